"""What images are compared by: smoothed pixels and histograms of gradient directions, inside the central disc."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from unpose.groups import translation
from unpose.images import downscale, smooth

SIDE = 32
"""Larger images are reduced to this many pixels: enough to see the pose, and free of noise and traces of resampling."""
_CELLS, _DIRECTIONS, _PIXELS = 4, 8, 16
_FADE = 0.15


def prepare(images: Tensor) -> tuple[Tensor, Tensor]:
    """Reduce images (n, c, h, w), subtract their background, and find the poses that centre them.

    The images (n, c, h', w') are at most 32 pixels wide and high, their border has a median of zero, and they fade to
    zero inside the largest disc around their centroid. Otherwise the edge of the frame, which lies at another angle in
    a rotated image, would tell moved images from real ones.

    The poses (n, 3, 3) bring the centroid of the absolute grey values to the image centre. They commute with turns,
    mirrors and scale, so that an object that is off the centre does not give away that its image was mirrored.

    >>> small, centred = prepare(torch.rand(5, 1, 64, 48))
    >>> small.shape, centred.shape
    (torch.Size([5, 1, 32, 24]), torch.Size([5, 3, 3]))
    """
    images = reduced(images)
    x, y = (torch.arange(side, dtype=images.dtype) - (side - 1) / 2 for side in (images.shape[-1], images.shape[-2]))
    mass = images.abs().mean(dim=1)  # (n, h, w)
    total = mass.sum(dim=(1, 2)).clamp_min(torch.finfo(images.dtype).tiny)
    centroid = torch.stack([(mass * x).sum(dim=(1, 2)), (mass * y[:, None]).sum(dim=(1, 2))], dim=1) / total[:, None]
    distance = torch.hypot(x - centroid[:, 0, None, None], y[:, None] - centroid[:, 1, None, None])  # (n, h, w)
    half = min(images.shape[-2:]) / 2
    radius = (half - centroid.norm(dim=1)).clamp_min(half / 2)[:, None, None]
    return images * _fading(distance / radius)[:, None], translation(-centroid)


def reduced(images: Tensor) -> Tensor:
    """Reduce images (n, c, h, w) to at most 32 pixels on each side, and subtract the median of their border."""
    images = downscale(images, max(1.0, max(images.shape[-2:]) / SIDE))
    return images - border(images).median(dim=-1).values[..., None, None]


def border(images: Tensor) -> Tensor:
    """The outermost rows and columns of images (n, c, h, w): (n, c, 2 * h + 2 * w); corners count twice."""
    return torch.cat([images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1]], dim=-1)


def descriptors(images: Tensor) -> tuple[Tensor, Tensor]:
    """Two descriptions of small images (n, c, h, w) with a background of zero, not yet scaled: see :func:`joined`.

    These are smoothed grey values inside the disc, (n, c * 256), and square roots of histograms of gradient directions
    in 4 x 4 cells, (n, 128), which are blind to the contrast of the image.

    >>> [part.shape[1] for part in descriptors(torch.rand(2, 3, 28, 28))]
    [768, 128]
    """
    height, width = images.shape[-2:]
    images = images * disc(height, width, images.dtype)
    pixels = functional.interpolate(smooth(images, min(height, width) / 32), size=(_PIXELS, _PIXELS), mode="area")
    grey = smooth(images, min(height, width) / 24).mean(dim=1, keepdim=True)
    across = functional.pad(grey[..., 2:] - grey[..., :-2], (1, 1))
    down = functional.pad(grey[..., 2:, :] - grey[..., :-2, :], (0, 0, 1, 1))
    size, direction = torch.hypot(across, down), torch.atan2(down, across)
    bins = [
        size * torch.cos(direction - 2 * math.pi * k / _DIRECTIONS).clamp_min(0) ** 3 for k in range(_DIRECTIONS)
    ]  # smooth bins: a direction between two of them counts for both
    histogram = functional.adaptive_avg_pool2d(torch.cat(bins, dim=1), _CELLS).flatten(1)  # (n, 8 * 4 * 4)
    total = histogram.sum(dim=1, keepdim=True).clamp_min(torch.finfo(images.dtype).tiny)
    return pixels.flatten(1), (histogram / total).sqrt()


def joined(sets: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """Scale all descriptions to equal weight and join them, with one centre and one scale for all sets.

    A centre of its own for each set would tell the sets apart.

    Parameters
    ----------
    sets : sequence of tuple of Tensor
        Results of :func:`descriptors`.

    Returns
    -------
    list of Tensor of shape (n, d)

    Examples
    --------
    >>> one, two = joined([descriptors(torch.rand(4, 1, 20, 20)) for _ in range(2)])
    >>> one.shape
    torch.Size([4, 384])
    """
    scaled = []
    for parts in zip(*sets, strict=True):
        everything = torch.cat(parts)
        centre = everything.mean(dim=0)
        length = (everything - centre).norm(dim=1).mean().clamp_min(torch.finfo(centre.dtype).tiny)
        scaled.append([(part - centre) / length for part in parts])
    return [torch.cat(parts, dim=1) for parts in zip(*scaled, strict=True)]


def disc(height: int, width: int, dtype: torch.dtype) -> Tensor:
    """One inside the largest disc, falling to zero at its rim: the corners would give away a rotation."""
    x, y = (torch.arange(side, dtype=dtype) - (side - 1) / 2 for side in (width, height))
    return _fading(torch.hypot(y[:, None], x) / (min(height, width) / 2))


def _fading(radius: Tensor) -> Tensor:
    """One up to a radius of 0.85, zero from 1 on."""
    return ((1 - radius) / _FADE).clamp(0, 1)
