"""Fast neighbours for a graph: every pair of images is compared once, for both of its images.

Near neighbours are often mutual. :func:`unpose.align.nearest` treats every image separately by default, and so refines
most pairs twice. Here the candidates are pairs: a pair is kept while either of its images ranks it high, and the pose
found in one direction is inverted for the other.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.align.checkpoints import Arrays, Checkpoints, load_or_compute
from unpose.align.pipeline import Job, refine_and_measure, refine_briefly
from unpose.align.refine import Tolerance
from unpose.groups import inverse

_RERANKING_STEPS = 2
"""Gauss-Newton steps when pairs are re-ranked."""
_TOLERANCE = Tolerance(step=0.1, error=5e-3)
"""Looser than the default: a graph needs distances, not poses to a hundredth of a pixel."""
_BLOCK = {"cpu": 2**15, "cuda": 2**20}
"""Pairs processed at once, and stored as one checkpoint."""


def n_candidates(n: int, k: int) -> int:
    """Number of candidates per image, for k neighbours among n images."""
    return 2 * k + max(56, int(1.3 * math.sqrt(n)))


def neighbours_from_pairs(
    job: Job,
    candidates: Tensor,
    points: Tensor,
    poses_of: Callable[[Tensor], Tensor],
    k: int,
    checkpoints: Checkpoints | None,
) -> tuple[NDArray, NDArray, NDArray]:
    """Find the k nearest of each image, nearest first: (n, k) indices, (n, k) distances, (n, k, 3, 3) poses.

    candidates (n, c) are image indices with grid points (n, c); ``poses_of`` gives the poses of grid points.
    """
    n = len(candidates)
    fixed, moving, entry = _unique_pairs(candidates)
    points = points.flatten()[entry]

    def rerank(rows: slice) -> Arrays:
        poses, distances = refine_briefly(job, moving[rows], fixed[rows], poses_of(points[rows]), _RERANKING_STEPS)
        return {"poses": poses.numpy(), "distances": distances.numpy()}

    rough = _in_blocks(job, "compare", rerank, len(fixed), checkpoints)
    order, rank = _rank_by_distance(torch.cat([fixed, moving]).numpy(), np.tile(rough["distances"], 2), n)
    kept = torch.from_numpy(np.unique(order[rank < k + k // 2] % len(fixed)))
    fixed, moving, start = fixed[kept], moving[kept], torch.from_numpy(rough["poses"])[kept]

    def refine_both_ways(rows: slice) -> Arrays:
        there, ahead, _ = refine_and_measure(
            job, moving[rows], fixed[rows], start[rows], tolerance=_TOLERANCE, stage=None
        )
        back = inverse(there)
        back, behind, _ = refine_and_measure(
            job, fixed[rows], moving[rows], back / back[:, 2:, 2:], refined=False, stage=None
        )
        poses, distances = torch.stack([there, back]), torch.stack([ahead, behind])
        return {"poses": poses.numpy().swapaxes(0, 1), "distances": distances.numpy().T}

    final = _in_blocks(job, "refine", refine_both_ways, len(fixed), checkpoints)
    poses, distances = final["poses"].swapaxes(0, 1).reshape(-1, 3, 3), final["distances"].T.ravel()
    image, other = torch.cat([fixed, moving]).numpy(), torch.cat([moving, fixed]).numpy()
    order, rank = _rank_by_distance(image, distances, n)
    nearest = order[rank < k].reshape(n, k)
    return other[nearest], distances[nearest], poses[nearest]


def _unique_pairs(candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each pair of image and candidate once: fixed and moving images (p,), and the entries of ``candidates`` (p,)."""
    n, count = candidates.shape
    fixed, moving = torch.arange(n).repeat_interleave(count), candidates.flatten()
    key = torch.minimum(fixed, moving) * n + torch.maximum(fixed, moving)
    entry = torch.from_numpy(np.sort(np.unique(key.numpy(), return_index=True)[1]))  # in the order of the candidates
    return fixed[entry], moving[entry], entry


def _rank_by_distance(images: NDArray, distances: NDArray, n: int) -> tuple[NDArray, NDArray]:
    """Order entries (e,) by image and then by distance, and give the rank of each within its image, from 0."""
    order = np.lexsort((distances, images))
    first = np.searchsorted(images[order], np.arange(n))
    return order, np.arange(len(order)) - first[images[order]]


def _in_blocks(
    job: Job, stage: str, work: Callable[[slice], Arrays], total: int, checkpoints: Checkpoints | None
) -> Arrays:
    """Apply ``work`` to blocks of ``range(total)``, each a checkpoint, and concatenate the results."""
    size = _BLOCK.get(job.device.type, _BLOCK["cpu"])
    found = []
    for start in range(0, total, size):
        rows = slice(start, min(start + size, total))
        found.append(load_or_compute(checkpoints, f"{stage}-{start}", partial(work, rows)))
        job.search.report(stage, rows.stop, total)
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}
