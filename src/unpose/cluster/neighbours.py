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
from unpose.cluster.pieces import Batch, Folder
from unpose.cluster.rounds import MAX_ROUNDS, Round, average_neighbours, measure_round
from unpose.groups import parse_continuous
from unpose.images import downscale

_TOLERANCE = math.radians(10)
"""Rotation that neighbours may differ by even if the group has no rotations, as a small difference of shape."""
_MAX_EXHAUSTIVE = 4000
"""Up to this many images the CPU searches every pair; for more, a cheaper search selects candidates."""
_CANDIDATES = 250
_MAX_WITHOUT_INDEX = {"cpu": 50_000, "cuda": 150_000}
"""Among more images, candidates come from an index, by device type; images that are read in pieces always use it. The
index is faster and finds fewer of the exact neighbours, so it is used where comparing all pairs would take an hour on
two cores, or ten minutes on a GPU."""


@dataclass(frozen=True)
class Found:
    """Neighbours after the rounds of attention, and what the first round, with the images themselves, says."""

    neighbours: Neighbours | None  # None for one image
    history: list[Round]
    first_copies: NDArray  # (n,) the first image that is a near copy of each image
    typical_distances: NDArray  # (n,) distance of each image from its neighbours


def find_neighbours(images: Any, search: Search, checkpoints: Checkpoints | None, folder: Folder) -> Found:
    """Nearest neighbours of images (n, c, h, w), a tensor or a :class:`Batch`, after the rounds of attention."""
    n, in_pieces = len(images), isinstance(images, Batch)
    if n == 1:
        return Found(None, [], np.zeros(1, np.int64), np.zeros(1))
    kind = _device_type(search)
    uses_index = in_pieces or n > _MAX_WITHOUT_INDEX.get(kind, _MAX_WITHOUT_INDEX["cpu"])
    small = small_images(images, folder)
    # The full search costs only seconds on a GPU; with scales, shapes fit in more ways and need it.
    quick = kind == "cpu" and not parse_continuous(search.group).scales
    search = graph_search(search, max(images.shape[-2:]))
    history: list[Round] = []
    while True:
        stored = None if checkpoints is None else PrefixedCheckpoints(checkpoints, f"round{len(history)}")
        found = nearest(
            small.images if in_pieces else small.movedim(1, -1), min(N_NEIGHBOURS, n - 1), quick=quick,
            candidates="index" if uses_index else _candidates(n, search), checkpoints=stored, search=search,
        )  # fmt: skip
        if not history:
            first = near_copies(small, found, cosine_distances=search.contrast == "gain")
            typical = neighbour_distance(found.distances)
        history.append(measure_round(small, found, may_average=len(history) < MAX_ROUNDS))
        if not history[-1].averaged:
            return Found(found, history, first, typical)
        small = average_neighbours(small, found, folder)


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
