"""The neighbours of every image: which search finds them, at what size, and the rounds of attention."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.align import Neighbours, Search, nearest
from unpose.align.checkpoints import Checkpoints, PrefixedCheckpoints
from unpose.cluster.assignment import neighbour_distance
from unpose.cluster.copies import near_copies
from unpose.cluster.graph import N_ATTENDED, N_NEIGHBOURS, SEARCH_SIDE, mutual_share
from unpose.cluster.light import evenly_spaced_rows, normalise_light
from unpose.cluster.limits import DEFAULT, Limits
from unpose.cluster.pieces import Batch, Folder, take
from unpose.cluster.rounds import MAX_ROUNDS, Round, average_neighbours, measure_round
from unpose.groups import parse_continuous
from unpose.images import downscale

_TOLERANCE = math.radians(10)
"""Rotation that neighbours may differ by even if the group has no rotations, as a small difference of shape."""
_MAX_EXHAUSTIVE = 4000
"""Up to this many images the CPU searches every pair; for more, a cheaper search selects candidates."""
_CANDIDATES = 250
_MANY_SHORT = 0.25
"""If more than this share of the lists contain a copy, all neighbours are searched again, which takes less time."""


@dataclass(frozen=True)
class Found:
    """Neighbours among the images that count, after the rounds of attention, and what the images themselves say."""

    neighbours: Neighbours | None  # None for one image
    history: list[Round]
    first_copies: NDArray  # (n,) the first image that is a near copy of each image; only these count
    typical_distances: NDArray  # distance of each image that counts from its neighbours


def find_neighbours(
    images: Any, search: Search, checkpoints: Checkpoints | None, folder: Folder, fewest: int = 1,
    limits: Limits = DEFAULT,
) -> Found:  # fmt: skip
    """Nearest neighbours of images (n, c, h, w), a tensor or a :class:`Batch`, after the rounds of attention.

    Near copies of earlier images are left out, unless fewer than ``fewest`` images would be left.
    """
    n, in_pieces = len(images), isinstance(images, Batch)
    everything = np.arange(n)
    if n == 1:
        return Found(None, [], everything, np.zeros(1))
    kind = _device_type(search)
    largest = limits.without_index_gpu if kind == "cuda" else limits.without_index
    uses_index = in_pieces or n > largest
    small = small_images(images, folder)
    # The full search costs only seconds on a GPU; with scales, shapes fit in more ways and need it.
    quick = kind == "cpu" and not parse_continuous(search.group).scales
    search = graph_search(search, max(images.shape[-2:]))

    def neighbours_of(some: Any, name: str) -> Neighbours:
        found = nearest(
            some.images if in_pieces else some.movedim(1, -1), min(N_NEIGHBOURS, len(some) - 1), quick=quick,
            candidates="index" if uses_index else _candidates(len(some), search),
            checkpoints=None if checkpoints is None else PrefixedCheckpoints(checkpoints, name), search=search,
        )  # fmt: skip
        if not uses_index:
            return found
        # The index computes in single precision, and that takes half the memory.
        return Neighbours(found.indices, *(each.astype(np.float32) for each in (found.distances, found.poses)))

    found = neighbours_of(small, "round0")
    first = near_copies(small, found, cosine_distances=search.contrast == "gain")
    kept = np.flatnonzero(first == everything)
    if len(kept) < fewest:
        first, kept = everything, everything
    if len(kept) == 1:
        return Found(None, [], first, np.zeros(1))
    if len(kept) < n:
        small, lists = take(small, kept), _only(found, kept)
        missing = (lists.indices < 0).sum(1)  # copies in each list
        short = np.flatnonzero(missing)
        nearby, is_enough = np.arange(len(kept)), len(short) <= _MANY_SHORT * len(kept)
        if uses_index and len(short):  # neighbours of neighbours, among which the missing ones are if most are left
            nearby, k = _nearby(lists, short), lists.indices.shape[1]
            is_enough &= bool(k < len(nearby) <= largest and 2 * missing.max() <= k)
        found = _completed(lists, small, short, nearby, search) if is_enough else neighbours_of(small, "different")
    typical = neighbour_distance(found.distances)
    history: list[Round] = []
    while True:
        history.append(measure_round(small, found, may_average=len(history) < MAX_ROUNDS))
        if not history[-1].averaged:
            return Found(found, history, first, typical)
        small = average_neighbours(small, found, folder)
        found = neighbours_of(small, f"round{len(history)}")


def _only(found: Neighbours, kept: NDArray) -> Neighbours:
    """The lists of the images ``kept`` (m,), in which neighbours that are not kept have the index -1."""
    places = np.full(len(found.indices), -1)
    places[kept] = np.arange(len(kept))
    length = min(found.indices.shape[1], len(kept) - 1)
    order = np.argsort(places[found.indices[kept]] < 0, axis=1, kind="stable")[:, :length]  # those not kept come last
    rows = kept[:, None]
    return Neighbours(places[found.indices[rows, order]], found.distances[rows, order], found.poses[rows, order])


def _nearby(lists: Neighbours, short: NDArray) -> NDArray:
    """The images ``short``, their neighbours, and the neighbours of these, sorted."""
    near = np.unique(lists.indices[short])
    found = np.unique(np.concatenate([short, near, lists.indices[near[near >= 0]].ravel()]))
    return found[found >= 0]


def _completed(lists: Neighbours, small: Any, short: NDArray, nearby: NDArray, search: Search) -> Neighbours:
    """Search the neighbours of the images ``short`` again, among the images ``nearby``."""
    k = lists.indices.shape[1]
    if len(short) == 0:
        return lists
    again = nearest(
        small[short].movedim(1, -1), k + 1, others=small[nearby].movedim(1, -1),
        candidates=_candidates(len(nearby), search), search=search,
    )  # fmt: skip
    chosen = nearby[again.indices]
    order = np.argsort(chosen == short[:, None], axis=1, kind="stable")[:, :k]  # without the image itself
    rows = np.arange(len(short))[:, None]
    indices, distances, poses = lists.indices.copy(), lists.distances.copy(), lists.poses.copy()
    indices[short], distances[short] = chosen[rows, order], again.distances[rows, order]
    poses[short] = again.poses[rows, order]
    return Neighbours(indices, distances, poses)


def nearest_references(images: Tensor, references: Tensor, k: int, search: Search, side: int) -> Neighbours:
    """The k nearest of ``references`` (m, c, h, w) of images (n, c, h, w), all small (:func:`small_images`).

    ``side`` is the longer side of the images before they were made small.
    """
    return nearest(
        images.float().movedim(1, -1), min(k, len(references)), others=references.float().movedim(1, -1),
        candidates=_candidates(len(references), search), search=graph_search(search, side),
    )  # fmt: skip


def gain_of_local_contrast(images: Any, search: Search) -> float:
    """How many more neighbours are mutual with local contrast among images (n, c, h, w), relative to their number.

    A sample is used. The ratio depends less on the number of images than the difference does.
    """
    sample = images[evenly_spaced_rows(len(images))]
    if len(sample) <= 2 * N_ATTENDED:
        return 0.0
    quick, search = _device_type(search) == "cpu", graph_search(search, max(images.shape[-2:]))
    shares = [
        mutual_share(nearest(small_images(some).movedim(1, -1), N_ATTENDED, quick=quick, search=search).indices)
        for some in (sample, normalise_light(sample, "local"))
    ]
    return shares[1] / max(shares[0], 1e-9) - 1


def small_images(images: Any, folder: Folder = None) -> Any:
    """Images (n, c, h, w), a tensor or a :class:`Batch`, at the size at which neighbours are searched."""
    factor = max(1.0, max(images.shape[-2:]) / SEARCH_SIDE)
    if isinstance(images, Batch):
        return images if factor == 1.0 else images.map(partial(downscale, factor=factor), folder)
    return downscale(images, factor)


def graph_search(search: Search, side: int) -> Search:
    """The search for neighbours among images whose longer side was ``side`` before they were made small.

    Things of a kind differ a little in shape, so that the poses between neighbours are those of a larger group.
    """
    factor = max(1.0, side / SEARCH_SIDE)
    group = parse_continuous(search.group)
    if not group.shifts:
        max_shift: float | None = _TOLERANCE * math.ceil(side / factor) / 2  # of a rotation, at the image's edge
    else:
        max_shift = None if search.max_shift is None else search.max_shift / factor
    return replace(
        search,
        group="perspective" + "+mirror" * group.mirrored,
        max_angle=max(search.max_angle, _TOLERANCE) if group.turns else _TOLERANCE,
        max_shift=max_shift,
        max_scale=search.max_scale if group.scales else 1.0,
    )


def _candidates(n: int, search: Search) -> int | None:
    """Number of candidates per image that the search among n images looks at; None for all."""
    return _CANDIDATES if _device_type(search) == "cpu" and n > _MAX_EXHAUSTIVE else None


def _device_type(search: Search) -> str:
    return torch.device(search.device).type
