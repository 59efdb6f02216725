"""Rounds of invariant attention: every image replaced by the mean of its neighbours, brought to its pose.

Averaging takes away what differs between neighbours. Where that is noise the rounds help; where it is shape they wash
away what tells kinds apart (a 6 becomes a 9). The two look different: noise has no correlation from pixel to pixel,
the difference of two shapes does. So a round is taken while what separates neighbours looks like noise.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unpose.align import Neighbours
from unpose.cluster.graph import attention
from unpose.images import warp

MOST = 3
NOISY = 0.35
"""Differences whose neighbouring pixels correlate less look like noise; resampling alone gives noise about 0.2."""
_WORTH = 0.05
"""Share of an image's energy that must differ from its nearest before there is anything to average away."""
_AVERAGED = 8
_SAMPLE = 512


@dataclass(frozen=True)
class Round:
    """What one round saw before it averaged anything."""

    mean_distance: float  # to the nearest neighbours
    max_distance: float
    unexplained: float  # share of an image's energy that its nearest neighbour does not have
    correlation: float  # of neighbouring pixels in that difference: 0 for noise, more for shape
    averaged: bool  # whether images were then replaced by means


def look(images: Tensor, neighbours: Neighbours, *, may_average: bool) -> Round:
    """Measure a round on images (n, c, h, w) and their neighbours; some hundred of them stand for all."""
    rows = np.linspace(0, len(images) - 1, min(len(images), _SAMPLE)).astype(np.int64)
    poses = torch.from_numpy(neighbours.poses[rows, 0]).to(images)
    near, mine = warp(images[neighbours.indices[rows, 0]], poses), images[rows]
    gain = (mine * near).sum((1, 2, 3), keepdim=True) / near.square().sum((1, 2, 3), keepdim=True).clamp(min=1e-20)
    rest = mine - gain * near
    unexplained = float(rest.square().sum() / mine.square().sum().clamp(min=1e-20))
    rest = rest - rest.mean((2, 3), keepdim=True)
    along = (rest[..., 1:] * rest[..., :-1]).sum() + (rest[..., 1:, :] * rest[..., :-1, :]).sum()
    correlation = float(along / (2 * rest.square().sum()).clamp(min=1e-20))
    return Round(
        mean_distance=float(neighbours.distances[:, 0].mean()),
        max_distance=float(neighbours.distances[:, 0].max()),
        unexplained=unexplained,
        correlation=correlation,
        averaged=may_average and correlation < NOISY and unexplained > _WORTH,
    )


def attend(images: Tensor, neighbours: Neighbours) -> Tensor:
    """The invariant means (3.3) of each image and its nearest, weighted by attention: (n, c, h, w) again."""
    weights = attention(neighbours.indices, neighbours.distances, _AVERAGED)
    total, mass = images.clone(), torch.ones(len(images), 1, 1, 1).to(images)
    rows = np.arange(len(images))
    for rank in range(min(_AVERAGED, neighbours.indices.shape[1])):
        others = neighbours.indices[:, rank]
        weight = torch.from_numpy(np.asarray(weights[rows, others])).to(images)[:, None, None, None]
        total += weight * warp(images[others], torch.from_numpy(neighbours.poses[:, rank]).to(images))
        mass += weight
    return total / mass
