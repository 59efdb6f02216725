"""Gaussian smoothing and downscaling."""

import math

import torch
from torch import Tensor

from unpose.groups import scaling
from unpose.images.sampling import warp

_MIN_SIGMA = 1 / 32
"""Smallest standard deviation that is a tensor: below it, smoothing is the identity, but its gradient is 0 * inf."""


def smooth(images: Tensor, sigma: float | Tensor) -> Tensor:
    """Convolve images with a Gaussian; outside the frame they are zero.

    Parameters
    ----------
    images : Tensor, shape (..., h, w)
    sigma : float or Tensor with one entry
        Standard deviation in pixels; 0 returns the images. Gradients flow to a tensor. A tensor must be positive;
        it is never read on the host, so the function can be exported and does not wait for a GPU.

    Returns
    -------
    Tensor, shape (..., h, w)

    Notes
    -----
    The kernel is separable and truncated at four standard deviations, for a tensor at most at four image sides. Because
    images are zero outside the frame, the operator is symmetric: it is its own adjoint. Each axis is one product with a
    banded matrix: for frames of a few hundred pixels this is several times faster than a convolution on every device,
    and its sums do not depend on the batch.

    Examples
    --------
    >>> dot = torch.zeros(9, 9)
    >>> dot[4, 4] = 1.0
    >>> round(smooth(dot, 1.0)[4, 4].item(), 3)  # 1 / (2 pi)
    0.159
    """
    height, width = images.shape[-2:]
    if isinstance(sigma, Tensor):
        sigma = sigma.clamp(min=_MIN_SIGMA)
        reach = 4 * max(height, width)
    else:
        if not sigma >= 0 or math.isinf(sigma):
            raise ValueError(f"sigma must be a finite number of pixels, zero or more, got {sigma}")
        if sigma == 0:
            return images
        reach = math.ceil(4 * sigma)
    # Expanded, because torch multiplies by one matrix in another way, with other bits, if it requires a gradient.
    columns = _gaussian_matrix(height, sigma, reach, images).expand(*images.shape[:-2], -1, -1)
    return columns @ images @ _gaussian_matrix(width, sigma, reach, images)


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


def _gaussian_matrix(size: int, sigma: float | Tensor, reach: int, like: Tensor) -> Tensor:
    """The symmetric banded matrix that smooths along an axis of this many pixels, (size, size).

    The Gaussian is truncated at ``ceil(4 sigma)`` pixels, at most ``reach``.
    """
    offsets = torch.arange(-reach, reach + 1, dtype=like.dtype, device=like.device)
    places = torch.arange(size, dtype=like.dtype, device=like.device)
    radius = (4 * sigma).detach().ceil() if isinstance(sigma, Tensor) else reach

    def truncated(distance: Tensor) -> Tensor:
        return torch.where(distance.abs() <= radius, torch.exp(-0.5 * (distance / sigma) ** 2), 0.0)

    return truncated(places[:, None] - places) / truncated(offsets).sum()
