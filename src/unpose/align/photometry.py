"""The distance between two images at a pose, and the changes of brightness that it ignores.

| contrast | ignores | compared over | distance |
|---|---|---|---|
| ``none`` | nothing | the plane; images are zero outside their frame | ``||m - f||`` |
| ``gain`` | a positive factor, from 0.05 to 20 | the plane | ``sqrt(2 - 2 r)``, r the normalised correlation |
| ``offset`` | an added constant | the overlap of both masks | ``||m - f||`` without means, scaled to the mask |
| ``affine`` | both | the overlap of both masks | ``sqrt(2 - 2 r)``, r the correlation coefficient |

m is the moving image, warped into the frame of the fixed image f. Where a pose changes area, the squared distances of
``none`` and ``offset`` are divided by the square root of that change: they are then the same whether one image is
enlarged or the other reduced.
"""

import torch
from torch import Tensor

from unpose.groups import transform
from unpose.images import pixel_grid, sample, source_points

CONTRASTS = ("none", "offset", "gain", "affine")
_LEAST_OVERLAP = 0.4
"""Overlap, as a fraction of the mask, below which the distances of ``offset`` and ``affine`` are infinite."""


def uses_overlap(contrast: str) -> bool:
    """Whether images are compared only where their masks overlap."""
    return contrast in ("offset", "affine")


def distances(moments: Tensor, lost: Tensor, area: Tensor, contrast: str, mask: Tensor) -> Tensor:
    """Distances (p,) from the moments (p, c, 6), the energy moved out of the frame (p,) and the change of area (p,)."""
    w, m, f, mm, mf, ff = moments.unbind(-1)  # (p, c) each
    if uses_overlap(contrast):
        share = w[:, 0] / mask.sum().double()
        total = w.clamp(min=1e-12)
        mm, mf, ff = mm - m * m / total, mf - m * f / total, ff - f * f / total
        if contrast == "offset":
            squared = (mm - 2 * mf + ff).sum(1) / share.clamp(min=_LEAST_OVERLAP) / area.sqrt()
        else:
            squared = 2 - 2 * mf.sum(1) / (mm.sum(1) * ff.sum(1)).clamp(min=1e-40).sqrt()
        return torch.where(share >= _LEAST_OVERLAP, squared.clamp(min=0).sqrt(), torch.inf)
    lost = lost * area
    if contrast == "none":
        return ((mm - 2 * mf + ff).sum(1) + lost).clamp(min=0).div(area.sqrt()).sqrt()
    energy = (mm.sum(1) + lost) * ff.sum(1)
    return (2 - 2 * mf.sum(1) / energy.clamp(min=1e-40).sqrt()).clamp(min=0).sqrt()


def moments(moving: Tensor, fixed: Tensor, poses: Tensor, mask: Tensor, *, overlap: bool) -> Tensor:
    """Sum w, w m, w f, w m m, w m f and w f f over the pixels, for each pair and channel: (p, c, 6) float64.

    The weight w is the mask, or with ``overlap`` the overlap of both masks.
    """
    points = source_points(poses, (fixed.shape[-2], fixed.shape[-1]))
    moved = sample(moving, points)
    weight = overlap_of(mask, points) if overlap else mask.expand(len(fixed), 1, -1, -1)
    weight = weight.expand_as(fixed)
    terms = (weight, weight * moved, weight * fixed, weight * moved * moved, weight * moved * fixed, weight * fixed**2)
    return torch.stack([term.sum((2, 3), dtype=torch.float64) for term in terms], dim=-1)


def overlap_of(mask: Tensor, points: Tensor) -> Tensor:
    """The overlap of a mask (h, w) with itself read at points (p, h, w, 2): zeros and ones (p, 1, h, w)."""
    moved = sample(mask[None, None], points)
    return (moved > 0.5).to(mask.dtype) * mask


def match_brightness(moved: Tensor, fixed: Tensor, weight: Tensor, contrast: str) -> Tensor:
    """Change the brightness of the moved images, as far as the contrast ignores it, to fit the fixed ones best.

    A least-squares fit over the weighted pixels; refinement compares the result with the fixed images.
    """
    if contrast == "none":
        return moved
    if uses_overlap(contrast):
        level = _mean(fixed, weight)
        moved, fixed = _centred(moved, weight), _centred(fixed, weight)
    else:
        level = torch.zeros_like(moved[:, :1, :1, :1])
    if contrast == "offset":
        return moved + level
    product = (weight * moved * fixed).sum((1, 2, 3), keepdim=True)
    energy = (weight * moved * moved).sum((1, 2, 3), keepdim=True)
    # The factor stays positive: a negative is another image.
    return moved * (product / energy.clamp(min=1e-20)).clamp(0.05, 20.0) + level


def coarse_images(images: Tensor, contrast: str, mask: Tensor) -> Tensor:
    """Prepare images for the coarse stage: remove the constant and the factor that the contrast ignores."""
    if uses_overlap(contrast):
        weight = mask.expand(len(images), 1, -1, -1)
        images = weight * _centred(images, weight)
    else:
        images = images * mask
    if contrast in ("gain", "affine"):
        images = images / images.square().sum((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-12)
    return images


def _mean(images: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean of each channel, (p, c, 1, 1)."""
    return (weight * images).sum((2, 3), keepdim=True) / weight.sum((2, 3), keepdim=True).clamp(min=1e-12)


def _centred(images: Tensor, weight: Tensor) -> Tensor:
    return images - _mean(images, weight)


def energy_outside(images: Tensor, poses: Tensor, shape: tuple[int, int]) -> Tensor:
    """Energy of the pixels of images (p, c, h, w) that a pose moves out of a frame of this shape, (p,) float64."""
    grid = pixel_grid((images.shape[-2], images.shape[-1]), images.dtype, images.device).flatten(0, 1)
    place = transform(poses, grid).abs()  # (p, h * w, 2)
    outside = (place[..., 0] > shape[1] / 2) | (place[..., 1] > shape[0] / 2)
    return (images.square().sum(1).flatten(1) * outside).sum(1, dtype=torch.float64)
