"""Gaussian smoothing."""

import math

import torch
from torch import Tensor


def smooth(images: Tensor, sigma: float) -> Tensor:
    """Convolve (..., h, w) images with a Gaussian of standard deviation ``sigma`` pixels, zero outside the frame.

    Separable, cut off at four standard deviations or at the image size (the paper's "kernel of the same size"),
    whichever is smaller. With zeros outside the operator is symmetric, so it is its own adjoint. ``sigma = 0``
    returns the images.
    """
    if not sigma >= 0 or math.isinf(sigma):
        raise ValueError(f"sigma must be a finite number of pixels, zero or more, got {sigma}")
    if sigma == 0 or images.numel() == 0:
        return images
    height, width = images.shape[-2:]
    flat = images.reshape(-1, 1, height, width)
    flat = torch.nn.functional.conv2d(flat, _kernel(sigma, height, flat)[None, None, :, None], padding="same")
    flat = torch.nn.functional.conv2d(flat, _kernel(sigma, width, flat)[None, None, None, :], padding="same")
    return flat.reshape(images.shape)


def _kernel(sigma: float, size: int, like: Tensor) -> Tensor:
    """The weights of a sampled Gaussian, summing to one: (2 radius + 1,)."""
    radius = min(math.ceil(4 * sigma), size - 1) if size > 1 else 0
    offsets = torch.arange(-radius, radius + 1, dtype=like.dtype, device=like.device)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    return weights / weights.sum()
