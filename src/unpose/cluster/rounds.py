"""Rounds of invariant attention: every image is replaced by the mean of its neighbours, aligned to it.

Averaging removes the differences between neighbours. This helps if the differences are noise; if they are differences
of shape, it removes what distinguishes the classes (a 6 becomes a 9). Noise is uncorrelated between neighbouring
pixels, the difference of two shapes is not. Rounds are therefore repeated as long as the differences look like noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from unpose.align import Neighbours
from unpose.cluster.graph import N_ATTENDED, attention_matrix
from unpose.cluster.light import evenly_spaced_rows
from unpose.cluster.pieces import Batch, Folder, as_stored
from unpose.files import store_images
from unpose.images import warp

MAX_ROUNDS = 3
NOISE_CORRELATION = 0.35
"""Differences whose neighbouring pixels correlate less look like noise; resampling alone gives noise about 0.2."""
_MIN_UNEXPLAINED = 0.05
"""Smallest share of an image's energy missing in its nearest neighbour for which averaging is worthwhile."""
_SAMPLE = 512
_AT_ONCE = 2048
"""Images that are averaged at once, if they are read in pieces."""


@dataclass(frozen=True)
class Round:
    """Statistics of images and their nearest neighbours at the start of a round."""

    mean_distance: float  # to the nearest neighbour
    max_distance: float
    unexplained: float  # share of an image's energy that is missing in its nearest neighbour
    correlation: float  # of neighbouring pixels in that difference: near 0 for noise, larger for shapes
    averaged: bool  # whether the images were then replaced by means


def measure_round(images: Tensor | Batch, neighbours: Neighbours, *, may_average: bool) -> Round:
    """Measure a round on a sample of the images (n, c, h, w), and decide whether to average."""
    rows = evenly_spaced_rows(len(images), _SAMPLE)
    own = images[rows]
    near = warp(images[neighbours.indices[rows, 0]], torch.from_numpy(neighbours.poses[rows, 0]).to(own))
    gain = (own * near).sum((1, 2, 3), keepdim=True) / near.square().sum((1, 2, 3), keepdim=True).clamp(min=1e-20)
    residual = own - gain * near
    unexplained = _total(residual.square()) / max(_total(own.square()), 1e-20)
    residual = residual - residual.mean((2, 3), keepdim=True)
    products = _total(residual[..., 1:] * residual[..., :-1]) + _total(residual[..., 1:, :] * residual[..., :-1, :])
    correlation = products / max(2 * _total(residual.square()), 1e-20)
    return Round(
        mean_distance=float(neighbours.distances[:, 0].mean()),
        max_distance=float(neighbours.distances[:, 0].max()),
        unexplained=unexplained,
        correlation=correlation,
        averaged=may_average and correlation < NOISE_CORRELATION and unexplained > _MIN_UNEXPLAINED,
    )


def _total(values: Tensor) -> float:
    """The sum, which does not depend on the number of threads as that of torch does."""
    return float(values.cpu().numpy().sum(dtype=np.float64))


def average_neighbours(images: Tensor | Batch, neighbours: Neighbours, folder: Folder = None) -> Any:
    """Replace images (n, c, h, w) by the invariant mean (3.3) of each image and its nearest neighbours."""
    weights = attention_matrix(neighbours.indices, neighbours.distances)
    if isinstance(images, Batch):
        parts = np.array_split(np.arange(len(images)), len(images) // _AT_ONCE + 1)
        means = (as_stored(attended_means(images.__getitem__, neighbours, weights, rows)) for rows in parts)
        return Batch(store_images(means, folder), limits=images.limits)
    return attended_means(images.__getitem__, neighbours, weights, np.arange(len(images)))


def attended_means(
    read: Callable[[NDArray], Tensor], neighbours: Neighbours, weights: sparse.csr_array, rows: NDArray
) -> Tensor:
    """The means of the images ``rows`` (m,) and their neighbours, (m, c, h, w); ``read`` returns images by number."""
    total = read(rows).clone()
    mass = torch.ones(len(rows), 1, 1, 1).to(total)
    for rank in range(min(N_ATTENDED, neighbours.indices.shape[1])):
        others = neighbours.indices[rows, rank]
        weight = torch.from_numpy(np.asarray(weights[rows, others])).to(total)[:, None, None, None]
        total += weight * warp(read(others), torch.from_numpy(neighbours.poses[rows, rank]).to(total))
        mass += weight
    return total / mass
