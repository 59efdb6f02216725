"""Fast neighbours for a graph: every pair of images is compared once, for both of its images.

Near neighbours are often mutual. :func:`unpose.align.nearest` treats every image separately by default, and so refines
most pairs twice. Here the candidates are pairs: a pair is kept while either of its images ranks it high, and the pose
found in one direction is inverted for the other.
"""

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.align.blocks import concatenate
from unpose.align.checkpoints import Arrays, Checkpoints
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
    job: Job, candidates: Tensor, points: Tensor, k: int, checkpoints: Checkpoints | None, *, inverted: bool
) -> tuple[NDArray, NDArray, NDArray]:
    """Find the k nearest of each image, nearest first: (n, k) indices, (n, k) distances, (n, k, 3, 3) poses.

    candidates (n, c) are image indices with grid points (n, c); ``inverted`` says that the poses of these points bring
    the image onto its candidate instead of the candidate onto the image.
    """
    n = len(candidates)
    fixed, moving, entry = _unique_pairs(candidates)
    grid = points.flatten()[entry]
    rough = concatenate(
        job.run_blocks(
            partial(_compare, inverted=inverted),
            lambda rows: {"moving": moving[rows], "fixed": fixed[rows], "points": grid[rows]},
            len(fixed), _BLOCK, stage="compare", checkpoints=checkpoints,
        )
    )  # fmt: skip
    order, rank = _rank_by_distance(torch.cat([fixed, moving]).numpy(), np.tile(rough["distances"], 2), n)
    kept = torch.from_numpy(np.unique(order[rank < k + k // 2] % len(fixed)))
    fixed, moving, start = fixed[kept], moving[kept], torch.from_numpy(rough["poses"])[kept]
    final = concatenate(
        job.run_blocks(
            _refine_both_ways,
            lambda rows: {"moving": moving[rows], "fixed": fixed[rows], "poses": start[rows]},
            len(fixed), _BLOCK, stage="refine", checkpoints=checkpoints,
        )
    )  # fmt: skip
    poses, distances = final["poses"].swapaxes(0, 1).reshape(-1, 3, 3), final["distances"].T.ravel()
    image, other = torch.cat([fixed, moving]).numpy(), torch.cat([moving, fixed]).numpy()
    order, rank = _rank_by_distance(image, distances, n)
    nearest = order[rank < k].reshape(n, k)
    return other[nearest], distances[nearest], poses[nearest]


def _compare(job: Job, moving: Tensor, fixed: Tensor, points: Tensor, *, inverted: bool) -> Arrays:
    """Rough poses (p, 3, 3) and distances (p,) of pairs (p,), from their grid points (p,)."""
    start = job.grid_poses(points, inverted=inverted)
    poses, distances = refine_briefly(job, moving, fixed, start, _RERANKING_STEPS)
    return {"poses": poses.numpy(), "distances": distances.numpy()}


def _refine_both_ways(job: Job, moving: Tensor, fixed: Tensor, poses: Tensor) -> Arrays:
    """Refined poses (p, 2, 3, 3) and distances (p, 2) of pairs (p,), in both directions."""
    there, ahead, _ = refine_and_measure(job, moving, fixed, poses, tolerance=_TOLERANCE, stage=None)
    back = inverse(there)
    back, behind, _ = refine_and_measure(job, fixed, moving, back / back[:, 2:, 2:], refined=False, stage=None)
    both, distances = torch.stack([there, back]), torch.stack([ahead, behind])
    return {"poses": both.numpy().swapaxes(0, 1), "distances": distances.numpy().T}


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
