"""Frames from moments: a few poses for each image that follow the image when it moves.

The frame of an image is a weighted set of poses that bring it to a standard position: its centroid to the centre, its
second moments to a standard angle and size. When the image is moved by an element of the group, its frame moves along,
so that averages over the frame are invariant. The weights make averages continuous: where the second moments are nearly
round, the principal axis is undefined and an unweighted frame would jump between unrelated angles.

Convention
----------
Poses are ``upright_from_input``: they map coordinates of the image to coordinates of its standard position.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.groups import LieGroup, rotation, scaling, translation
from unpose.images import pixel_grid

MOMENT_GROUPS = ("translation", "so2", "se2", "similarity")
_SHARPNESS = 30.0
"""Concentration of the weights around the principal axis, per unit of anisotropy."""


@dataclass(frozen=True)
class Moments:
    """Moments of n images: mass (n,), centroid (n, 2), size (n,) and the two complex numbers that give direction."""

    mass: Tensor  # (n,) sum of the weights of the pixels
    centroid: Tensor  # (n, 2)
    size: Tensor  # (n,) root mean square distance from the centre
    axis: Tensor  # (n, 2): (cos, sin) of twice the angle of the principal axis, times the anisotropy in [0, 1]
    skew: Tensor  # (n, 2): (cos, sin) of the direction of the third moments, times their size in [0, 1]


def moments_of(images: Tensor, *, centred: bool) -> Moments:
    """Moments of images (n, c, h, w) inside the inscribed disc, about their centroids or about the image centre.

    Pixels are weighted by their difference from the border of the disc, so that a bright background has no weight.
    """
    shape = (images.shape[-2], images.shape[-1])
    points = pixel_grid(shape, images.dtype, images.device).flatten(0, 1)  # (h * w, 2)
    radius = points.norm(dim=1)
    inside = radius <= min(shape) / 2
    ring = inside & (radius > min(shape) / 2 - 1.5)
    pixels = images.mean(1).flatten(1)  # (n, h * w)
    background = (pixels * ring).sum(1, keepdim=True) / ring.sum()
    weight = (pixels - background).abs() * inside
    mass = weight.sum(1)
    safe = mass.clamp(min=torch.finfo(images.dtype).tiny)
    centroid = (weight @ points) / safe[:, None]
    about = centroid if centred else torch.zeros_like(centroid)
    x, y = (points[None] - about[:, None]).unbind(-1)  # (n, h * w) each; y points down
    square = x.square() + y.square()
    spread = (weight * square).sum(1) / safe
    size = spread.clamp(min=0.25).sqrt()
    # Angles counter-clockwise on screen: the direction of (x, y) is atan2(-y, x).
    second = torch.stack([(weight * (x.square() - y.square())).sum(1), (weight * -2 * x * y).sum(1)], dim=1)
    third = torch.stack([(weight * square * x).sum(1), -(weight * square * y).sum(1)], dim=1)
    return Moments(
        mass, centroid, size, second / (safe * size.square())[:, None], third / (safe * size.pow(3))[:, None]
    )


def angular_weights(moments: Moments, angles: Tensor) -> Tensor:
    """Unnormalised log weights (n, k) of directions (n, k): high along the principal axis, on the heavier side."""
    double = 2 * angles
    axis = moments.axis[:, :1] * double.cos() + moments.axis[:, 1:] * double.sin()
    skew = moments.skew[:, :1] * angles.cos() + moments.skew[:, 1:] * angles.sin()
    return _SHARPNESS * (axis + skew)


def moment_frames(images: Tensor, group: LieGroup, views: int) -> tuple[Tensor, Tensor]:
    """The frame of each image: poses (n, k, 3, 3) and weights (n, k) that sum to one.

    Rotations are ``views`` directions, evenly spaced from the direction of largest weight on. Where an image is round,
    all of them have the same weight, and the mean over them hardly depends on where the first one is.
    """
    name = group.name.removesuffix("+mirror")
    if name not in MOMENT_GROUPS:
        raise ValueError(f"frames from moments exist for {', '.join(MOMENT_GROUPS)}, also with +mirror, got {group}")
    moments = moments_of(images, centred=name != "so2")
    centring = translation(-moments.centroid * (name != "so2"))
    if name == "similarity":
        standard = min(images.shape[-2:]) / 4
        centring = scaling(standard / moments.size) @ centring
    if name == "translation":
        frames, weights = centring[:, None], torch.ones_like(moments.mass)[:, None]
    else:
        steps = torch.arange(views, dtype=images.dtype, device=images.device) * (2 * math.pi / views)
        first = _best_direction(moments)  # (n,)
        angles = first[:, None] + steps  # (n, views)
        weights = angular_weights(moments, angles).softmax(1)
        frames = rotation(-angles) @ centring[:, None]
    if not group.mirrored:
        return frames, weights
    # The reflection that keeps the standard direction, along x: y -> -y.
    upside_down = torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=images.dtype, device=images.device))
    flipped = upside_down @ frames
    return torch.cat([frames, flipped], dim=1), torch.cat([weights, weights], dim=1) / 2


def _best_direction(moments: Moments, samples: int = 180) -> Tensor:
    """The direction of largest weight (n,), to a fraction of a degree."""
    grid = torch.arange(samples, dtype=moments.axis.dtype, device=moments.axis.device) * (2 * math.pi / samples)
    score = angular_weights(moments, grid.expand(moments.axis.shape[0], -1))
    best = score.argmax(1, keepdim=True)
    around = (score.gather(1, (best + step) % samples)[:, 0] for step in (-1, 0, 1))
    return grid[best[:, 0]] + from_cell(*around) * (2 * math.pi / samples)


def from_cell(left: Tensor, middle: Tensor, right: Tensor) -> Tensor:
    """Where the parabola through three values has its peak, in cells from the middle one."""
    bend = (left - 2 * middle + right).clamp(max=-torch.finfo(middle.dtype).tiny)
    return (0.5 * (left - right) / bend).clamp(-0.5, 0.5)
