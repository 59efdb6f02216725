"""One clean average of each group of images, and the pose that brings every image onto it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.align import align, nearest
from unpose.align.checkpoints import Arrays, Pieces, finished
from unpose.cluster.graph import NEIGHBOURS, attention
from unpose.cluster.light import CONTRAST, prepared
from unpose.images import as_batch, from_batch, warp

_ROUNDS = 3
"""Alignments: to the exemplar, then to the averages."""
_SOME = 48
"""Images of each group that are enough to settle what the others are brought onto in the last round."""
_SETTLED = 0.03
"""Averages that change by less, relative to their norm, are settled."""
_AT_ONCE = 2**22
"""Pixels warped at a time."""


@dataclass(frozen=True)
class Averages:
    """K averages of n images."""

    means: Tensor  # (K, c, h, w)
    standard_errors: Tensor  # (K, c, h, w)
    poses: NDArray  # (n, 3, 3): brings each image onto its mean
    distances: NDArray  # (n,) of each image from its mean, over the orbit
    changes: list[float]  # of the means in each round, relative


@dataclass(frozen=True)
class AlignedStack:
    """Images of one thing, brought together."""

    mean: NDArray  # (h, w) or (h, w, c)
    standard_error: NDArray  # like the mean
    poses: NDArray  # (n, 3, 3): brings each image onto the mean
    aligned: NDArray  # (n, h, w) or (n, h, w, c)
    distances: NDArray  # (n,) from the mean
    exemplar: int  # the image the others were first brought onto


def align_stack(
    images: ArrayLike | Tensor, *, group: str = "se2", light: str = "ignore", **settings: Any
) -> AlignedStack:
    """Bring images of one thing together: their mean, their poses, the aligned images and a map of the mean's error.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c)
    group : translation, se2, similarity, affine or perspective, each also with ``+mirror``.
    light : {"ignore", "keep"}
        Whether brightness, contrast and a sloping background are taken away first.
    settings : bounds, mask, device, n_jobs, memory and progress, as for :func:`unpose.align.nearest`.

    Examples
    --------
    >>> bar = np.zeros((1, 17, 17)); bar[:, 3:14, 7:10] = 1.0; bar[:, 3:5, 7:13] = 1.0
    >>> from unpose.data import posed
    >>> stack = align_stack(posed(bar, copies=5, max_shift=1.0).images)
    >>> stack.aligned.shape, bool(stack.distances.max() < 0.2)
    ((5, 17, 17), True)
    """
    batch = as_batch(images, dtype=torch.float32).detach()
    work, contrast = prepared(batch, light), CONTRAST[light]
    n = len(work)
    if n == 1:
        exemplar = 0
    else:
        found = nearest(_public(work), min(NEIGHBOURS, n - 1), group=group, contrast=contrast, **settings)
        exemplar = int(attention(found.indices, found.distances).sum(1).argmax())
    result = average(work, np.zeros(n, np.int64), np.array([exemplar]), group=group, contrast=contrast, **settings)
    channels = np.ndim(images[0]) == 3  # type: ignore[index]
    return AlignedStack(
        mean=from_batch(result.means, channels=channels)[0],
        standard_error=from_batch(result.standard_errors, channels=channels)[0],
        poses=result.poses,
        aligned=from_batch(moved(work, result.poses), channels=channels),
        distances=result.distances,
        exemplar=exemplar,
    )


def average(
    images: Tensor, labels: NDArray, exemplars: NDArray, *, pieces: Pieces | None = None, **settings: Any
) -> Averages:
    """Averages of groups, by turns: bring every image onto its group's average, average again.

    images (n, c, h, w), labels (n,) in 0..K-1, exemplars (K,) the images that stand for the averages at first. An
    object that looks the same at several poses is brought onto its mean by one of them, so that it is not smeared.
    Some of each group settle the average; the last round brings all onto it.
    """
    means, changes = images[exemplars], list[float]()
    everyone, some = np.arange(len(images)), _some(labels)
    for number in range(_ROUNDS):
        is_last = number == _ROUNDS - 1 or (number > 0 and changes[-1] < _SETTLED)
        rows = everyone if is_last else some
        bring = partial(_brought, _public(images[rows]), _public(means), labels[rows], settings)
        found = finished(pieces, f"average{number}", bring)
        before = means
        means, errors = _means(images[rows], labels[rows], found["poses"], len(exemplars))
        changes.append(float((means - before).norm() / before.norm().clamp(min=1e-12)))
        if is_last:
            break
    return Averages(means, errors, found["poses"], found["distances"], changes)


def _some(labels: NDArray) -> NDArray:
    """Up to so many images of each group, spread evenly over it, in order."""
    order = np.argsort(labels, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    chosen = [group[np.linspace(0, len(group) - 1, min(len(group), _SOME)).astype(np.int64)] for group in groups]
    return np.sort(np.concatenate(chosen))


def _brought(images: Tensor, means: Tensor, labels: NDArray, settings: dict[str, Any]) -> Arrays:
    found = align(images, means, to=labels, **settings)
    return {"poses": found.poses, "distances": found.distances}


def moved(images: Tensor, poses: NDArray) -> Tensor:
    """Images (n, c, h, w) brought to their poses (n, 3, 3), a piece at a time."""
    chunk = max(1, _AT_ONCE // images[0].numel())
    parts = [
        warp(images[start : start + chunk], torch.from_numpy(poses[start : start + chunk]).to(images))
        for start in range(0, len(images), chunk)
    ]
    return torch.cat(parts)


def _means(images: Tensor, labels: NDArray, poses: NDArray, count: int) -> tuple[Tensor, Tensor]:
    """Mean and standard error of the mean of each group's aligned images, (K, c, h, w) each."""
    group = torch.from_numpy(labels)
    total = torch.zeros(count, *images.shape[1:], dtype=torch.float64)
    squares = torch.zeros_like(total)
    chunk = max(1, _AT_ONCE // images[0].numel())
    for start in range(0, len(images), chunk):
        rows = slice(start, start + chunk)
        aligned = moved(images[rows], poses[rows]).double()
        total.index_add_(0, group[rows], aligned)
        squares.index_add_(0, group[rows], aligned**2)
    number = torch.bincount(group, minlength=count).double()[:, None, None, None]
    mean = total / number
    spread = (squares / number - mean**2).clamp(min=0) * number / (number - 1).clamp(min=1)
    return mean.to(images), (spread / number).sqrt().to(images)


def _public(images: Tensor) -> Tensor:
    """(n, c, h, w) as the engine's door takes it: (n, h, w, c)."""
    return images.movedim(1, -1)
