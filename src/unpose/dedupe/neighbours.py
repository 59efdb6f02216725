"""Which pictures could be copies: the nearest signatures, by inverted lists for large collections.

Every query vector is compared with the vectors of the lists whose centres are nearest to it. With as many lists as the
number of pictures demands, the cost grows nearly linearly; small collections have one list, which is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from unpose.dedupe.signature import LAYERS

_EXACT = 20_000
"""Vectors up to which there is one list."""
_PER_LIST = 250
"""Vectors in a list, on average."""
_PROBES = 16
"""Lists that a query is compared with."""
_NEAREST = 24
"""Vectors that a query keeps; several belong to one picture."""
_PER_PICTURE = 4
"""Pictures that a picture is compared with in each layer, nearest first."""
_LARGEST_DISTANCE = {"whole": 18.0, "parts": 14.0}
"""Distances of signatures beyond which pictures are not compared; about 99 % of hard copies are nearer."""
_RATIO = 2.0
_ALWAYS = 9.0
"""A candidate is dropped if its distance is more than twice that of the nearest, and larger than this: a picture whose
copy is found beyond doubt is not compared with those that are merely similar."""
_BLOCK = 2048
"""Queries and vectors that are compared at once; the distances of one block take 16 MB."""


@dataclass(frozen=True)
class Candidates:
    """Pairs of entries that could show the same picture, p in all.

    An entry is one hypothesis about a picture: its whole frame, or what lies inside a border.

    Parameters
    ----------
    queries : int array of shape (p,)
        Entries that may be a part of the other.
    entries : int array of shape (p,)
        The other entries.
    layers : int array of shape (p,)
        Layer of the signature in which they are near: 0 whole, 1 parts.
    query_views, views : int arrays of shape (p,)
        Views in which they are near.
    distances : array of shape (p,)
        Distances of the signatures.

    Examples
    --------
    >>> from unpose.dedupe.signature import signatures
    >>> patches = np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)
    >>> patches[2] = np.rot90(patches[0])
    >>> found = find_candidates(signatures(patches), np.arange(3))
    >>> sorted({(int(a), int(b)) for a, b in zip(found.queries, found.entries)} - {(1, 0), (0, 1), (1, 2), (2, 1)})
    [(0, 2), (2, 0)]
    """

    queries: NDArray
    entries: NDArray
    layers: NDArray
    query_views: NDArray
    views: NDArray
    distances: NDArray

    def take(self, rows: NDArray) -> "Candidates":
        """Some of the pairs, by their indices."""
        return Candidates(*(getattr(self, field.name)[rows] for field in fields(self)))


def find_candidates(
    vectors: dict[str, NDArray],
    owners: NDArray,
    *,
    is_new: NDArray | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Candidates:
    """Find the pairs of pictures whose signatures are near, each picture as a part of the other.

    Parameters
    ----------
    vectors : dict of str to arrays of shape (n, views, size)
        Signatures of all entries, from :func:`unpose.dedupe.signatures`.
    owners : int array of shape (n,)
        The picture that each entry belongs to.
    is_new : bool array of shape (n,), optional
        Entries that have not been searched before; pairs of two others are left out. All by default.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    Candidates
        At most 4 pictures per picture and layer, and for each pair of pictures the nearest of its views in each layer.

    Examples
    --------
    >>> from unpose.dedupe.signature import signatures
    >>> patches = np.random.default_rng(0).integers(0, 256, (2, 64, 64), np.uint8)
    >>> len(find_candidates(signatures(patches), np.array([0, 0])).queries)  # two entries of one picture
    0
    """
    new = np.ones(len(owners), bool) if is_new is None else np.asarray(is_new, bool)
    parts = []
    jobs = [(layer, *roles) for layer in range(len(LAYERS)) for roles in ((new, np.ones_like(new)), (~new, new))]
    for step, (layer, asking, asked) in enumerate(jobs):
        if asking.any() and asked.any():
            parts.append(_in_layer(vectors[LAYERS[layer].name], owners, asking, asked, layer))
        if progress is not None:
            progress("signatures", step + 1, len(jobs))
    if not parts:
        none = np.zeros(0, int)
        return Candidates(none, none, none, none, none, none)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Candidates(*columns)


def _in_layer(vectors: NDArray, owners: NDArray, asking: NDArray, asked: NDArray, layer: int) -> tuple[NDArray, ...]:
    """Candidates of one layer: queries, entries, layers, query views, views and distances, (p,) each."""
    n_views, size = vectors.shape[1:]
    query_views = np.array(LAYERS[layer].queries)
    asking_entries, asked_entries = np.flatnonzero(asking), np.flatnonzero(asked)
    points = vectors[asked_entries].reshape(-1, size).astype(np.float32)  # (asked * views, size)
    queries = vectors[asking_entries][:, query_views].reshape(-1, size).astype(np.float32)
    query, point, squared = nearest_vectors(queries, points, _LARGEST_DISTANCE[LAYERS[layer].name])
    left, right = asking_entries[query // len(query_views)], asked_entries[point // n_views]
    other = owners[left] != owners[right]
    query, point, squared, left, right = query[other], point[other], squared[other], left[other], right[other]
    order = np.lexsort((squared, owners[right], owners[left]))
    pairs = np.stack([owners[left], owners[right]])[:, order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(0)
    best = order[is_first]  # the nearest views of each pair of pictures
    best = best[np.lexsort((squared[best], owners[left[best]]))]
    owner = owners[left[best]]
    starts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1])) if len(best) else np.zeros(0, int)
    rank = np.arange(len(best)) - np.repeat(starts, np.diff(np.append(starts, len(best))))
    nearest = np.repeat(squared[best[starts]], np.diff(np.append(starts, len(best))))
    is_close = squared[best] <= np.maximum(nearest * _RATIO**2, _ALWAYS**2)
    best = best[(rank < _PER_PICTURE) & is_close]
    return (
        left[best], right[best], np.full(len(best), layer), query_views[query[best] % len(query_views)],
        point[best] % n_views, np.sqrt(squared[best]),
    )  # fmt: skip


def nearest_vectors(queries: NDArray, points: NDArray, largest: float) -> tuple[NDArray, NDArray, NDArray]:
    """Find the points (m, size) nearest to each query (q, size), up to a distance and at most 24 for each.

    Returns query, point and squared distance of each hit, (hits,) each, sorted by query.
    """
    n_lists = 1 if len(points) <= _EXACT else len(points) // _PER_LIST
    centres = _centres(points, n_lists)
    lists = np.argsort(home := _closest(points, centres, 1)[:, 0], kind="stable")
    ends = np.searchsorted(home[lists], np.arange(n_lists + 1))
    probed = _closest(queries, centres, min(_PROBES, n_lists))  # (q, probes)
    visits = np.argsort(probed.ravel(), kind="stable")
    visit_ends = np.searchsorted(probed.ravel()[visits], np.arange(n_lists + 1))
    hits: list[tuple[NDArray, NDArray, NDArray]] = []
    for number in range(n_lists):
        inside = lists[ends[number] : ends[number + 1]]
        visitors = visits[visit_ends[number] : visit_ends[number + 1]] // probed.shape[1]
        for start in range(0, len(visitors), _BLOCK):
            for first in range(0, len(inside), _BLOCK):
                rows, columns = visitors[start : start + _BLOCK], inside[first : first + _BLOCK]
                squared = _squared_distances(queries[rows], points[columns])
                near = squared <= largest**2
                if len(crowded := np.flatnonzero(near.sum(1) > _NEAREST)):
                    limits = np.partition(squared[crowded], _NEAREST - 1, axis=1)[:, _NEAREST - 1]
                    near[crowded] &= squared[crowded] <= limits[:, None]
                row, column = np.nonzero(near)
                hits.append((rows[row], columns[column], squared[row, column]))
    query, point, squared = (np.concatenate(column) for column in zip(*hits, strict=True))
    order = np.lexsort((squared, query))
    query, point, squared = query[order], point[order], squared[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    keep = rank < _NEAREST
    return query[keep], point[keep], np.maximum(squared[keep], 0)


def _centres(points: NDArray, count: int) -> NDArray:
    """Centres of the lists: some of the points, after two steps of k-means on a sample."""
    if count == 1:
        return points[:1]
    random = np.random.default_rng(0)
    sample = points[random.permutation(len(points))[: 40 * count]]
    centres = sample[:count].copy()
    for _ in range(2):
        home = _closest(sample, centres, 1)[:, 0]
        sums = np.zeros_like(centres)
        np.add.at(sums, home, sample)
        sizes = np.bincount(home, minlength=count)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres).astype(np.float32)
    return centres


def _closest(points: NDArray, centres: NDArray, count: int) -> NDArray:
    """The closest centres of each point, in any order: (n, count)."""
    if len(centres) == count:
        return np.broadcast_to(np.arange(count), (len(points), count))
    parts = []
    for start in range(0, len(points), _BLOCK):
        squared = _squared_distances(points[start : start + _BLOCK], centres)
        parts.append(squared.argmin(1)[:, None] if count == 1 else np.argpartition(squared, count, axis=1)[:, :count])
    return np.concatenate(parts)


def _squared_distances(one: NDArray, two: NDArray) -> NDArray:
    """Squared distances of all pairs, (n, m) float32; slightly negative for equal vectors."""
    return (one**2).sum(1)[:, None] + (two**2).sum(1) - 2 * (one @ two.T)
