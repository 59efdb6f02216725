"""Synthetic images for audits."""

import torch
from torch import Tensor

from unpose.images import smooth


def smooth_noise(n: int, channels: int, frame: tuple[int, int], *, sigma: float = 1.5, random_state: int = 0) -> Tensor:
    """Generate random smooth images without any symmetry, for audits without images of one's own.

    They are white noise, smoothed by a Gaussian, scaled to mean 1/2 and standard deviation 1/4, and clipped to [0, 1].

    Parameters
    ----------
    n, channels : int
        Number of images and of their channels.
    frame : (height, width)
        Size in pixels.
    sigma : float, default 1.5
        Standard deviation of the Gaussian in pixels.
    random_state : int, default 0
        Seed.

    Returns
    -------
    (n, channels, height, width) tensor, float32 in [0, 1]

    Examples
    --------
    >>> smooth_noise(2, 3, (8, 9)).shape
    torch.Size([2, 3, 8, 9])
    """
    if min(n, channels, *frame) < 1:
        raise ValueError(f"smooth_noise needs at least one image, channel and pixel, got {(n, channels, *frame)}")
    generator = torch.Generator().manual_seed(int(random_state))
    noise = smooth(torch.randn(n, channels, *frame, generator=generator), sigma)
    noise = noise - noise.mean((-2, -1), keepdim=True)
    spread = noise.square().mean((-2, -1), keepdim=True).sqrt().clamp(min=torch.finfo(noise.dtype).tiny)
    return (0.5 + 0.25 * noise / spread).clamp(0, 1)
