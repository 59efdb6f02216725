"""Gaussian smoothing."""

import math

import torch
from torch import Tensor


def smooth(images: Tensor, sigma: float | Tensor) -> Tensor:
    """Convolve (..., h, w) images with a Gaussian of standard deviation ``sigma`` pixels, zero outside the frame.

    Separable, cut off at four standard deviations. With zeros outside the operator is symmetric, so it is its own
    adjoint. ``sigma = 0`` returns the images. A ``sigma`` that is a tensor of one number gets its gradient.

    Notes
    -----
    Each axis is one product with a banded matrix: for frames of a few hundred pixels a matrix product is several times
    faster than a convolution, on every device, and its sums do not depend on the batch.
    """
    value = float(sigma.detach()) if isinstance(sigma, Tensor) else sigma
    if not value >= 0 or math.isinf(value):
        raise ValueError(f"sigma must be a finite number of pixels, zero or more, got {value}")
    if value == 0:
        return images
    radius = math.ceil(4 * value)
    height, width = images.shape[-2:]
    return _gaussian_matrix(height, sigma, radius, images) @ images @ _gaussian_matrix(width, sigma, radius, images)


def _gaussian_matrix(size: int, sigma: float | Tensor, radius: int, like: Tensor) -> Tensor:
    """The symmetric banded matrix that smooths a line of this many pixels, (size, size)."""
    offsets = torch.arange(-radius, radius + 1, dtype=like.dtype, device=like.device)
    total = torch.exp(-0.5 * (offsets / sigma) ** 2).sum()
    places = torch.arange(size, dtype=like.dtype, device=like.device)
    gaps = (places[:, None] - places).abs()
    return torch.where(gaps <= radius, torch.exp(-0.5 * (gaps / sigma) ** 2) / total, 0.0)
