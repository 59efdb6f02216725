"""Images to audit with when there are none of one's own."""

import torch
from torch import Tensor

from unpose.images import smooth


def smooth_noise(n: int, channels: int, frame: tuple[int, int], *, sigma: float = 1.5, random_state: int = 0) -> Tensor:
    """Random smooth images without any symmetry, (n, channels, height, width) in [0, 1].

    White noise under a Gaussian of ``sigma`` pixels, brought to mean 1/2 and standard deviation 1/4, clipped.
    """
    if min(n, channels, *frame) < 1:
        raise ValueError(f"smooth_noise needs at least one image, channel and pixel, got {(n, channels, *frame)}")
    generator = torch.Generator().manual_seed(int(random_state))
    noise = smooth(torch.randn(n, channels, *frame, generator=generator), sigma)
    noise = noise - noise.mean((-2, -1), keepdim=True)
    spread = noise.square().mean((-2, -1), keepdim=True).sqrt().clamp(min=torch.finfo(noise.dtype).tiny)
    return (0.5 + 0.25 * noise / spread).clamp(0, 1)
