"""Which pictures could be copies: the nearest signatures, by inverted lists for large collections.

Every query vector is compared with the vectors of the lists whose centres are nearest to it. With as many lists as the
number of pictures demands, in cells by which they are found, the cost grows nearly linearly; small collections have one
list, which is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from unpose.dedupe.kernels import keep_nearest
from unpose.dedupe.signature import LAYERS

_PER_LIST = 250
"""Vectors in a list, on average."""
_PROBES = 80
"""Lists that a picture is compared with: all of them by one query, or a share of them by each of several."""
_CELL_PROBES = 8
"""Cells in which these lists are looked for, at least."""
_SAMPLED = 40
"""Points for each centre in the sample that centres are computed from."""
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
"""Queries and vectors that are compared at once; their products take 16 MB."""


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
    exact: int = 20_000,
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
    exact : int, default 20000
        Vectors up to which all are compared; of more, those in the nearest of some lists.
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
            parts.append(_in_layer(vectors[LAYERS[layer].name], owners, asking, asked, layer, exact))
        if progress is not None:
            progress("signatures", step + 1, len(jobs))
    if not parts:
        none = np.zeros(0, int)
        return Candidates(none, none, none, none, none, none)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Candidates(*columns)


def _in_layer(
    vectors: NDArray, owners: NDArray, asking: NDArray, asked: NDArray, layer: int, exact: int
) -> tuple[NDArray, ...]:
    """Candidates of one layer: queries, entries, layers, query views, views and distances, (p,) each."""
    n_views, size = vectors.shape[1:]
    query_views = np.array(LAYERS[layer].queries)
    asking_entries, asked_entries = np.flatnonzero(asking), np.flatnonzero(asked)
    points = vectors[asked_entries].reshape(-1, size).astype(np.float32)  # (asked * views, size)
    queries = vectors[asking_entries][:, query_views].reshape(-1, size).astype(np.float32)
    largest, probes = _LARGEST_DISTANCE[LAYERS[layer].name], _PROBES // len(query_views)
    query, point, squared = _nearest_vectors(queries, points, largest, probes, exact)
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


def _nearest_vectors(
    queries: NDArray, points: NDArray, largest: float, probes: int, exact: int
) -> tuple[NDArray, NDArray, NDArray]:
    """Find the points (m, size) nearest to each query (q, size), up to a distance and at most 24 for each.

    Of more than ``exact`` points, those in ``probes`` lists are compared. Returns query, point and squared distance of
    each hit, (hits,) each, sorted by query and distance.
    """
    limit = np.float32(largest) ** 2
    if len(points) <= exact:
        everything = _Lists(np.arange(len(points)), np.array([0, len(points)]))
        nearest, squared = _scan(queries, points, everything, np.zeros((len(queries), 1), int), _NEAREST, limit)
    else:
        lists, centres, cells, cell_centres = _two_levels(points)
        near_cells = _closest(queries, cell_centres, min(max(_CELL_PROBES, probes // 4), len(cell_centres)))
        probed, _ = _scan(queries, centres, cells, near_cells, min(probes, len(centres)), np.float32(np.inf))
        nearest, squared = _scan(queries, points, lists, probed, _NEAREST, limit)
    order = np.argsort(np.where(nearest >= 0, squared, np.inf), axis=1, kind="stable")
    nearest, squared = np.take_along_axis(nearest, order, 1), np.take_along_axis(squared, order, 1)
    query, place = np.nonzero(nearest >= 0)
    return query, nearest[query, place], squared[query, place]


@dataclass(frozen=True)
class _Lists:
    """Lists of points: those of list i are ``members[ends[i] : ends[i + 1]]``."""

    members: NDArray
    ends: NDArray

    @classmethod
    def by(cls, home: NDArray, count: int) -> "_Lists":
        """From the list that each point is in."""
        members = np.argsort(home, kind="stable")
        return cls(members, np.searchsorted(home[members], np.arange(count + 1)))

    def __getitem__(self, number: int) -> NDArray:
        return self.members[self.ends[number] : self.ends[number + 1]]


def _scan(
    queries: NDArray, points: NDArray, lists: _Lists, visited: NDArray, count: int, limit: np.float32
) -> tuple[NDArray, NDArray]:
    """The nearest of the points in the lists that each query visits (q, v): indices and squared distances (q, count).

    Unordered; the index is -1 where there are fewer within the limit, and lists of that number are not visited.
    """
    nearest = np.full((len(queries), count), -1)
    squared = np.zeros((len(queries), count), np.float32)
    limits = np.full(len(queries), limit, np.float32)
    norms, point_norms = (np.einsum("ns,ns->n", each, each) for each in (queries, points))
    n_lists = len(lists.ends) - 1
    visits = _Lists.by(np.where(visited >= 0, visited, n_lists).ravel(), n_lists)
    for number in range(n_lists):
        inside, visitors = lists[number], visits[number] // visited.shape[1]
        for start in range(0, len(visitors), _BLOCK):
            rows = visitors[start : start + _BLOCK]
            for first in range(0, len(inside), _BLOCK):
                columns = inside[first : first + _BLOCK]
                products = queries[rows] @ points[columns].T
                keep_nearest(products, rows, norms, columns, point_norms, nearest, squared, limits)
    return nearest, squared


def _two_levels(points: NDArray) -> tuple[_Lists, NDArray, _Lists, NDArray]:
    """Lists of about 250 points with their centres, and cells of lists with theirs.

    To find the nearest of L centres, a point is compared with those of its cell only, about the root of L: with all of
    them, the work would grow with the square of the number of points.
    """
    n_lists = len(points) // _PER_LIST
    cell_centres = _centres(points, max(1, round(n_lists**0.5)))
    in_cells = _Lists.by(_closest(points, cell_centres, 1)[:, 0], len(cell_centres))
    home, centres = np.zeros(len(points), int), []
    cell_of: list[int] = []  # of each list
    for cell in range(len(cell_centres)):
        members = in_cells[cell]
        if len(members) == 0:
            continue
        mine = _centres(points[members], max(1, round(len(members) / _PER_LIST)))
        home[members] = len(cell_of) + _closest(points[members], mine, 1)[:, 0]
        centres.append(mine)
        cell_of += [cell] * len(mine)
    lists = _Lists.by(home, len(cell_of))
    return lists, np.concatenate(centres), _Lists.by(np.array(cell_of), len(cell_centres)), cell_centres


def _centres(points: NDArray, count: int) -> NDArray:
    """Centres of the lists: some of the points, after two steps of k-means on a sample."""
    if count == 1:
        return points.mean(0, keepdims=True)
    random = np.random.default_rng(0)
    sample = points[random.permutation(len(points))[: _SAMPLED * count]]
    centres = sample[:count].copy()
    for _ in range(2):
        home = _closest(sample, centres, 1)[:, 0]
        sizes = np.bincount(home, minlength=count)
        members = sparse.csr_array((np.ones(len(home), np.float32), (home, np.arange(len(home)))), (count, len(home)))
        centres = np.where(sizes[:, None] > 0, (members @ sample) / np.maximum(sizes, 1)[:, None], centres)
    return centres.astype(np.float32)


def _closest(points: NDArray, centres: NDArray, count: int) -> NDArray:
    """The closest centres of each point, in any order: (n, count)."""
    if len(centres) == count:
        return np.broadcast_to(np.arange(count), (len(points), count))
    parts = []
    norms = np.einsum("ns,ns->n", centres, centres)
    for start in range(0, len(points), _BLOCK):
        squared = norms - 2 * (points[start : start + _BLOCK] @ centres.T)  # up to the norm of the point
        parts.append(squared.argmin(1)[:, None] if count == 1 else np.argpartition(squared, count, axis=1)[:, :count])
    return np.concatenate(parts)
