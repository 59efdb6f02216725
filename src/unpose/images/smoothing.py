"""Gaussian smoothing and downscaling."""

import math

import torch
from torch import Tensor

from unpose.groups import scaling
from unpose.images.sampling import warp


def smooth(images: Tensor, sigma: float | Tensor) -> Tensor:
    """Convolve images with a Gaussian; outside the frame they are zero.

    Parameters
    ----------
    images : Tensor, shape (..., h, w)
    sigma : float or Tensor with one entry
        Standard deviation in pixels; 0 returns the images. Gradients flow to a tensor.

    Returns
    -------
    Tensor, shape (..., h, w)

    Notes
    -----
    The kernel is separable and truncated at four standard deviations. Because images are zero outside the frame, the
    operator is symmetric: it is its own adjoint. Each axis is one product with a banded matrix: for frames of a few
    hundred pixels this is several times faster than a convolution on every device, and its sums do not depend on the
    batch.

    Examples
    --------
    >>> dot = torch.zeros(9, 9)
    >>> dot[4, 4] = 1.0
    >>> round(smooth(dot, 1.0)[4, 4].item(), 3)  # 1 / (2 pi)
    0.159
    """
    value = float(sigma.detach()) if isinstance(sigma, Tensor) else sigma
    if not value >= 0 or math.isinf(value):
        raise ValueError(f"sigma must be a finite number of pixels, zero or more, got {value}")
    if value == 0:
        return images
    radius = math.ceil(4 * value)
    height, width = images.shape[-2:]
    return _gaussian_matrix(height, sigma, radius, images) @ images @ _gaussian_matrix(width, sigma, radius, images)


def downscale(images: Tensor, factor: float) -> Tensor:
    """Make images smaller by a factor, smoothed first against aliasing.

    Parameters
    ----------
    images : Tensor of shape (n, c, h, w)
        Images.
    factor : float
        Original pixels per pixel of the result, at least 1; 1 returns the images.

    Returns
    -------
    Tensor of shape (n, c, ceil(h / factor), ceil(w / factor))

    Examples
    --------
    >>> downscale(torch.ones(1, 1, 30, 20), 2.5).shape
    torch.Size([1, 1, 12, 8])
    """
    if factor == 1:
        return images
    shape = (math.ceil(images.shape[-2] / factor), math.ceil(images.shape[-1] / factor))
    shrink = scaling(torch.tensor(1 / factor, dtype=images.dtype, device=images.device))
    return warp(smooth(images, 0.45 * math.sqrt(factor**2 - 1)), shrink, shape)


def _gaussian_matrix(size: int, sigma: float | Tensor, radius: int, like: Tensor) -> Tensor:
    """The symmetric banded matrix that smooths along an axis of this many pixels, (size, size)."""
    offsets = torch.arange(-radius, radius + 1, dtype=like.dtype, device=like.device)
    total = torch.exp(-0.5 * (offsets / sigma) ** 2).sum()
    places = torch.arange(size, dtype=like.dtype, device=like.device)
    gaps = (places[:, None] - places).abs()
    return torch.where(gaps <= radius, torch.exp(-0.5 * (gaps / sigma) ** 2) / total, 0.0)
