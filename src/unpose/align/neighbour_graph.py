"""Fast neighbours for a graph: every pair of images is compared once, for both of its images.

Near neighbours are often mutual. :func:`unpose.align.nearest` treats every image separately by default, and so refines
most pairs twice. Here the candidates are pairs: a pair is kept while either of its images ranks it high, and the pose
found in one direction is inverted for the other.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.align.checkpoints import Arrays, Checkpoints
from unpose.align.pipeline import Job, SharedInBlocks, refine_and_measure, refine_briefly
from unpose.align.refine import Tolerance
from unpose.groups import inverse

_RERANKING_STEPS = 2
"""Gauss-Newton steps when pairs are re-ranked."""
_TOLERANCE = Tolerance(step=0.1, error=5e-3)
"""Looser than the default: a graph needs distances, not poses to a hundredth of a pixel."""


def n_candidates(n: int, k: int) -> int:
    """Number of candidates per image, for k neighbours among n images."""
    return 2 * k + max(56, int(1.3 * math.sqrt(n)))


def neighbours_from_pairs(
    job: SharedInBlocks,
    candidates: Tensor,
    start_poses: Callable[[Tensor, Tensor, Tensor], Tensor],
    k: int,
    checkpoints: Checkpoints | None,
) -> tuple[NDArray, NDArray, NDArray]:
    """Find the k nearest of each image, nearest first: (n, k) indices, (n, k) distances, (n, k, 3, 3) poses.

    candidates (n, c) are image indices; ``start_poses(moving, fixed, entry)`` gives poses that roughly bring moving
    images (p,) onto fixed ones, for entries (p,) of the flattened candidates.
    """
    n = len(candidates)
    fixed, moving, entry = unique_pairs(candidates)

    def rough_pairs(rows: slice) -> Mapping[str, Any]:
        some = moving[rows], fixed[rows]
        return {"moving": some[0], "fixed": some[1], "poses": start_poses(*some, entry[rows])}

    size = job.search.at_once.pairs
    rough = job.run_blocks(compare_pairs, rough_pairs, len(fixed), size, stage="compare", checkpoints=checkpoints)
    order, rank = rank_by_distance(torch.cat([fixed, moving]).numpy(), np.tile(rough["distances"], 2), n)
    kept = torch.from_numpy(np.unique(order[rank < k + k // 2] % len(fixed)))
    fixed, moving, start = fixed[kept], moving[kept], torch.from_numpy(rough.pop("poses"))[kept]
    final = job.run_blocks(
        _refine_both_ways,
        lambda rows: {"moving": moving[rows], "fixed": fixed[rows], "poses": start[rows]},
        len(fixed), size, stage="refine", checkpoints=checkpoints,
    )  # fmt: skip
    order, rank = rank_by_distance(torch.cat([fixed, moving]).numpy(), final["distances"].T.ravel(), n)
    nearest = order[rank < k].reshape(n, k)
    pair, way = nearest % len(fixed), nearest // len(fixed)
    other = np.where(way == 0, moving.numpy()[pair], fixed.numpy()[pair])
    return other, final["distances"][pair, way], final["poses"][pair, way]


def compare_pairs(job: Job, moving: Tensor, fixed: Tensor, poses: Tensor) -> Arrays:
    """Better poses (p, 3, 3) and distances (p,) of pairs (p,), from rough poses."""
    poses, distances = refine_briefly(job, moving, fixed, poses, _RERANKING_STEPS)
    return {"poses": poses.numpy(), "distances": distances.numpy()}


def _refine_both_ways(job: Job, moving: Tensor, fixed: Tensor, poses: Tensor) -> Arrays:
    """Refined poses (p, 2, 3, 3) and distances (p, 2) of pairs (p,), in both directions."""
    there, ahead, _ = refine_and_measure(job, moving, fixed, poses, tolerance=_TOLERANCE, stage=None)
    back = inverse(there)
    back, behind, _ = refine_and_measure(job, fixed, moving, back / back[:, 2:, 2:], refined=False, stage=None)
    both, distances = torch.stack([there, back]), torch.stack([ahead, behind])
    return {"poses": both.numpy().swapaxes(0, 1), "distances": distances.numpy().T}


def unique_pairs(candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each pair of image and candidate once: fixed and moving images (p,), and the entries of ``candidates`` (p,)."""
    n, count = candidates.shape
    fixed, moving = torch.arange(n).repeat_interleave(count), candidates.flatten()
    key = torch.minimum(fixed, moving) * n + torch.maximum(fixed, moving)
    entry = torch.from_numpy(np.sort(np.unique(key.numpy(), return_index=True)[1]))  # in the order of the candidates
    return fixed[entry], moving[entry], entry


def rank_by_distance(images: NDArray, distances: NDArray, n: int) -> tuple[NDArray, NDArray]:
    """Order entries (e,) by image and then by distance, and give the rank of each within its image, from 0."""
    order = np.lexsort((distances, images))
    first = np.searchsorted(images[order], np.arange(n))
    return order, np.arange(len(order)) - first[images[order]]
