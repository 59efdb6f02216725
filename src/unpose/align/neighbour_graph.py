"""Neighbours for a graph: every pair of images is looked at once, and serves both.

Near is mutual more often than not. Where each image is asked for itself, as :func:`unpose.align.nearest` does by
default, most pairs are refined twice. Here candidates are pairs; a pair goes on while either of its images ranks it
high, and a pose found for one is turned round for the other.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.align.checkpoints import Arrays, Pieces, finished
from unpose.align.pipeline import Job, finish, second_look
from unpose.groups import inverse

_STEPS = 2
"""Gauss-Newton steps of a second look."""
_AT_REST = (0.1, 5e-3)
"""Pixels of a step and share of the error that count as rest: a graph needs distances, not poses to a hundredth."""
_BLOCK = {"cpu": 2**15, "cuda": 2**20}
"""Pairs worked on at once, kept as one piece."""


def looks(n: int, k: int) -> int:
    """How many candidates of each of n images get a second look where k neighbours are wanted."""
    return 2 * k + max(56, int(1.3 * math.sqrt(n)))


def settle(
    job: Job, who: Tensor, grid: Tensor, poses_of: Callable[[Tensor], Tensor], k: int, pieces: Pieces | None
) -> tuple[NDArray, NDArray, NDArray]:
    """The k nearest of each image, nearest first: (n, k) indices, (n, k) distances, (n, k, 3, 3) poses.

    Candidates who (n, c) with grid points (n, c); ``poses_of`` gives the poses of grid points.
    """
    n = len(who)
    fixed, moving, entry = _pairs(who)
    points = grid.flatten()[entry]

    def look(rows: slice) -> Arrays:
        poses, distances = second_look(job, moving[rows], fixed[rows], poses_of(points[rows]), _STEPS)
        return {"poses": poses.numpy(), "distances": distances.numpy()}

    looked = _in_blocks(job, "compare", look, len(fixed), pieces)
    both = torch.cat([fixed, moving]).numpy()
    order, rank = _by_nearness(both, np.tile(looked["distances"], 2), n)
    kept = torch.from_numpy(np.unique(order[rank < k + k // 2] % len(fixed)))
    fixed, moving, start = fixed[kept], moving[kept], torch.from_numpy(looked["poses"])[kept]

    def refine(rows: slice) -> Arrays:
        there, ahead, _ = finish(job, moving[rows], fixed[rows], start[rows], at_rest=_AT_REST, stage=None)
        back = inverse(there)
        back, behind, _ = finish(job, fixed[rows], moving[rows], back / back[:, 2:, 2:], refined=False, stage=None)
        poses, distances = torch.stack([there, back]), torch.stack([ahead, behind])
        return {"poses": poses.numpy().swapaxes(0, 1), "distances": distances.numpy().T}

    settled = _in_blocks(job, "refine", refine, len(fixed), pieces)
    poses, distances = settled["poses"].swapaxes(0, 1).reshape(-1, 3, 3), settled["distances"].T.ravel()
    both, other = torch.cat([fixed, moving]).numpy(), torch.cat([moving, fixed]).numpy()
    order, rank = _by_nearness(both, distances, n)
    nearest = order[rank < k].reshape(n, k)
    return other[nearest], distances[nearest], poses[nearest]


def _pairs(who: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each pair of an image and a candidate once: (p,) fixed and moving images, and where it stands in ``who``."""
    n, count = who.shape
    fixed, moving = torch.arange(n).repeat_interleave(count), who.flatten()
    name = torch.minimum(fixed, moving) * n + torch.maximum(fixed, moving)
    entry = torch.from_numpy(np.sort(np.unique(name.numpy(), return_index=True)[1]))  # by fixed image, as they stood
    return fixed[entry], moving[entry], entry


def _by_nearness(ends: NDArray, distances: NDArray, n: int) -> tuple[NDArray, NDArray]:
    """Entries (e,) by image and then by distance, and the rank of each among its image's, from 0."""
    order = np.lexsort((distances, ends))
    first = np.searchsorted(ends[order], np.arange(n))
    return order, np.arange(len(order)) - first[ends[order]]


def _in_blocks(job: Job, stage: str, work: Callable[[slice], Arrays], total: int, pieces: Pieces | None) -> Arrays:
    size = _BLOCK.get(job.device.type, _BLOCK["cpu"])
    found = []
    for start in range(0, total, size):
        rows = slice(start, min(start + size, total))
        found.append(finished(pieces, f"{stage}-{start}", partial(work, rows)))
        job.report(stage, rows.stop, total)
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}
