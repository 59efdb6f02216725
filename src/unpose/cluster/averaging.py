"""Average groups of images at unknown pose, and find the pose that brings every image onto its average."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.align import Search, SearchSettings, align, nearest
from unpose.align.checkpoints import Arrays, Checkpoints, PrefixedCheckpoints, load_or_compute
from unpose.cluster.graph import N_NEIGHBOURS, attention_matrix
from unpose.cluster.light import LIGHT_CONTRAST, evenly_spaced_rows, normalise_light
from unpose.cluster.pieces import Batch, take
from unpose.images import as_batch, from_batch, warp

_ROUNDS = 3
"""Largest number of alignments: the first to the exemplar, the others to the averages."""
_SAMPLE = 48
"""Images per group that are averaged before the last round; all images are aligned in the last round."""
_CONVERGED = 0.03
"""Averages have converged when their relative change in a round is smaller."""
_CHUNK_PIXELS = 2**22
"""Pixels that are warped at a time."""


@dataclass(frozen=True)
class Averages:
    """K averages of n images."""

    means: Tensor  # (K, c, h, w)
    standard_errors: Tensor  # (K, c, h, w)
    poses: NDArray  # (n, 3, 3): brings each image onto its mean
    distances: NDArray  # (n,) orbit distance of each image from its mean


@dataclass(frozen=True)
class AlignedStack:
    """The result of :func:`align_stack`: images of one object and their average.

    Parameters
    ----------
    mean, standard_error : (h, w) or (h, w, c) array
        Mean of the aligned images and its standard error, pixel by pixel.
    poses : (n, 3, 3) array
        Bring each image onto the mean.
    aligned : (n, h, w) or (n, h, w, c) array
        The aligned images.
    distances : (n,) array
        Orbit distance of each image from the mean.
    exemplar : int
        Index of the image that all images were first aligned to.

    Examples
    --------
    >>> bar = np.zeros((3, 17, 17)); bar[:, 3:14, 7:10] = bar[:, 3:5, 7:13] = 1.0
    >>> align_stack(bar).mean.shape
    (17, 17)
    """

    mean: NDArray
    standard_error: NDArray
    poses: NDArray
    aligned: NDArray
    distances: NDArray
    exemplar: int

    def __repr__(self) -> str:
        size = "x".join(str(side) for side in self.mean.shape)
        return f"AlignedStack({len(self.aligned)} images of {size}, mean distance {self.distances.mean():.3g})"

    def _repr_html_(self) -> str:
        """The mean and its standard error, for notebooks."""
        from unpose.report import pictures_html

        return pictures_html(self.mean[None], ["mean"]) + pictures_html(self.standard_error[None], ["standard error"])


def align_stack(
    images: ArrayLike | Tensor,
    *,
    light: str = "ignore",
    checkpoints: Checkpoints | None = None,
    **settings: Unpack[SearchSettings],
) -> AlignedStack:
    """Align images of one object and average them.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c) array
        Images of the same object at unknown poses.
    light : {"ignore", "keep"}, default "ignore"
        "ignore" removes brightness, contrast and a linear background before images are compared and averaged.
    checkpoints : Checkpoints, optional
        Stores finished parts, so that an interrupted call continues; see :mod:`unpose.align.checkpoints`.
    **settings : optional
        Settings of the search: group ("se2" by default), max_angle, max_shift, max_scale, mask, device, n_jobs, memory
        and progress; :class:`unpose.align.Search` describes them.

    Returns
    -------
    AlignedStack
        Mean, standard error, poses and aligned images.

    Examples
    --------
    >>> bar = np.zeros((1, 17, 17)); bar[:, 3:14, 7:10] = 1.0; bar[:, 3:5, 7:13] = 1.0
    >>> from unpose.data import posed
    >>> stack = align_stack(posed(bar, copies=5, max_shift=1.0).images)
    >>> stack.aligned.shape, bool(stack.distances.max() < 0.2)
    ((5, 17, 17), True)
    """
    batch = as_batch(images, dtype=torch.float32).detach()
    normalised = normalise_light(batch, light)
    search = replace(Search(**settings), contrast=LIGHT_CONTRAST[light])
    n = len(normalised)
    if n == 1:
        exemplar = 0
    else:
        k = min(N_NEIGHBOURS, n - 1)
        found = nearest(normalised.movedim(1, -1), k, checkpoints=checkpoints, search=search)
        exemplar = int(attention_matrix(found.indices, found.distances).sum(1).argmax())
    result = average_groups(normalised, np.zeros(n, np.int64), np.array([exemplar]), search, checkpoints)
    channels = np.ndim(images[0]) == 3  # type: ignore[index]
    return AlignedStack(
        mean=from_batch(result.means, channels=channels)[0],
        standard_error=from_batch(result.standard_errors, channels=channels)[0],
        poses=result.poses,
        aligned=from_batch(warp_in_chunks(normalised, result.poses), channels=channels),
        distances=result.distances,
        exemplar=exemplar,
    )


def average_groups(
    images: Tensor | Batch, labels: NDArray, exemplars: NDArray, search: Search, checkpoints: Checkpoints | None
) -> Averages:
    """Alternate between aligning images to the average of their group and averaging the aligned images.

    images (n, c, h, w), labels (n,) in 0..K-1, exemplars (K,) the indices of the images that are the first averages.
    An image of a symmetric object has several best poses; one of them is used, so that the average is not blurred. A
    sample of each group is aligned until the averages have converged; the last round aligns all images.
    """
    means, change = images[exemplars], float("inf")
    everyone, sample = np.arange(len(images)), _sample_rows(labels)
    for number in range(_ROUNDS):
        is_last = number == _ROUNDS - 1 or change < _CONVERGED
        rows = everyone if is_last else sample
        some, goals = take(images, rows), means.movedim(1, -1).numpy()
        stored = None if checkpoints is None else PrefixedCheckpoints(checkpoints, f"average{number}")
        if isinstance(images, Batch):
            found = align_to_means(some, goals, labels[rows], search, stored)
        else:
            found = load_or_compute(
                checkpoints, f"average{number}", partial(align_to_means, some, goals, labels[rows], search)
            )
        previous = means
        means, errors = _means(some, labels[rows], found["poses"], len(exemplars))
        change = float((means - previous).norm() / previous.norm().clamp(min=1e-12))
        if is_last:
            break
    return Averages(means, errors, found["poses"], found["distances"])


def _sample_rows(labels: NDArray) -> NDArray:
    """Indices of up to ``_SAMPLE`` images of each group, evenly spaced in it, in ascending order."""
    order = np.argsort(labels, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    chosen = [group[evenly_spaced_rows(len(group), _SAMPLE)] for group in groups]
    return np.sort(np.concatenate(chosen))


def align_to_means(
    images: Tensor | Batch, means: NDArray, labels: NDArray, search: Search, checkpoints: Checkpoints | None = None
) -> Arrays:
    """Bring images (n, c, h, w) onto the means (K, h, w, c) of their labels (n,): poses (n, 3, 3), distances (n,).

    Images in pieces are aligned block by block, each a checkpoint.
    """
    if not isinstance(images, Batch):
        found = align(images.movedim(1, -1), means, to=labels, search=search)
        return {"poses": found.poses, "distances": found.distances}
    parts, at_once = [], images.limits.aligned_at_once
    for start in range(0, len(images), at_once):
        rows = slice(start, min(start + at_once, len(images)))

        def compute(rows: slice = rows) -> Arrays:
            return align_to_means(images[rows], means, labels[rows], replace(search, progress=None))

        parts.append(load_or_compute(checkpoints, str(start), compute))
        search.report("refine", rows.stop, len(images))
    return {name: np.concatenate([part[name] for part in parts]) for name in ("poses", "distances")}


def warp_in_chunks(images: Tensor, poses: NDArray) -> Tensor:
    """Warp images (n, c, h, w) by poses (n, 3, 3), in chunks to bound the memory."""
    chunk = max(1, _CHUNK_PIXELS // images[0].numel())
    parts = [
        warp(images[start : start + chunk], torch.from_numpy(poses[start : start + chunk]).to(images))
        for start in range(0, len(images), chunk)
    ]
    return torch.cat(parts)


def _means(images: Tensor | Batch, labels: NDArray, poses: NDArray, n_groups: int) -> tuple[Tensor, Tensor]:
    """Mean of each group's aligned images and its standard error, (K, c, h, w) each."""
    group = torch.from_numpy(labels)
    total = torch.zeros(n_groups, *images.shape[1:], dtype=torch.float64)
    squares = torch.zeros_like(total)
    chunk = max(1, _CHUNK_PIXELS // math.prod(images.shape[1:]))
    for start in range(0, len(images), chunk):
        rows = slice(start, start + chunk)
        aligned = warp_in_chunks(images[rows], poses[rows]).double()
        total.index_add_(0, group[rows], aligned)
        squares.index_add_(0, group[rows], aligned**2)
    size = torch.bincount(group, minlength=n_groups).double()[:, None, None, None]
    mean = total / size
    variance = (squares / size - mean**2).clamp(min=0) * size / (size - 1).clamp(min=1)
    return mean.float(), (variance / size).sqrt().float()
