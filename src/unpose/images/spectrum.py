"""Images as sums of sines and cosines: ideal low-pass resizing of periodic images.

The frequency k has k periods along a side. An image of n pixels has the frequencies up to ``(n - 1) // 2``; the one of
n / 2 periods, whose phase an even number of pixels cannot show, is left out. Positions are measured from the image
centre (see CONVENTIONS.md), so images of all sizes share their centre.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from unpose.compiled import is_traced_or_transformed


def real_spectrum(images: Tensor) -> Tensor:
    """Coefficients of an image in sines and cosines along both axes.

    Parameters
    ----------
    images : Tensor, shape (..., h, w)
        Periodic images.

    Returns
    -------
    Tensor, shape (..., (h - 1) // 2 + 1, 2, (w - 1) // 2 + 1, 2)
        For frequencies along y and along x, the coefficients of cosine and sine, both times the square root of 2 except
        for frequency zero, whose sine is zero.

    Examples
    --------
    >>> real_spectrum(torch.ones(6, 9)).shape
    torch.Size([3, 2, 5, 2])
    >>> real_spectrum(torch.ones(6, 9))[0, 0, 0, 0]
    tensor(1.)
    """
    height, width = images.shape[-2:]
    along_y, along_x = (_waves(side, (side - 1) // 2, images) for side in (height, width))
    found = along_y.mT @ images @ along_x / (height * width)
    return found.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2))


def from_real_spectrum(spectrum: Tensor, shape: Sequence[int]) -> Tensor:
    """The image of a given size with these coefficients, the inverse of :func:`real_spectrum`.

    Parameters
    ----------
    spectrum : Tensor, shape (..., ky, 2, kx, 2)
        Coefficients. Frequencies that do not fit into the size are left out.
    shape : (int, int)
        Height and width.

    Returns
    -------
    Tensor, shape (..., h, w)

    Examples
    --------
    >>> image = torch.rand(5, 7)
    >>> torch.allclose(from_real_spectrum(real_spectrum(image), (5, 7)), image, atol=1e-5)
    True
    """
    height, width = shape
    fits = [
        min(there, (side + 1) // 2) for there, side in zip((spectrum.shape[-4], spectrum.shape[-2]), shape, strict=True)
    ]
    kept = spectrum[..., : fits[0], :, : fits[1], :].flatten(-2).flatten(-3, -2)  # (..., 2 ky, 2 kx)
    return _waves(height, fits[0] - 1, kept) @ kept @ _waves(width, fits[1] - 1, kept).mT


def fourier_resize(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Resize periodic images with an ideal low-pass filter: all frequencies that fit are kept, all others removed.

    Shrinking twice is the same as shrinking once, to rounding; no other filter of finite width has this property.

    Parameters
    ----------
    images : Tensor, shape (..., h, w)
        Periodic images.
    shape : (int, int)
        Height and width of the result, smaller or larger.

    Returns
    -------
    Tensor, shape (..., height, width)

    Examples
    --------
    >>> image = torch.rand(1, 15, 15)
    >>> twice = fourier_resize(fourier_resize(image, (10, 10)), (7, 7))
    >>> torch.allclose(twice, fourier_resize(image, (7, 7)), atol=1e-6)
    True
    """
    if min(shape) < 1:
        raise ValueError(f"shape must be at least one pixel along each side, got {shape}")
    return from_real_spectrum(real_spectrum(images), shape)


def _waves(side: int, highest: int, like: Tensor) -> Tensor:
    """Cosine and sine of the frequencies 0 to ``highest`` at the pixels of a side: (side, 2 * (highest + 1))."""
    if type(like) is Tensor and not is_traced_or_transformed():
        return _remembered_waves(side, highest, like.dtype, like.device)
    return _computed_waves(side, highest, like.dtype, like.device)


def _computed_waves(side: int, highest: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Angles in float64: at the far end of an image, those of high frequencies are large.
    place = (torch.arange(side, dtype=torch.float64, device=device) + 0.5) / side - 0.5
    angle = 2 * math.pi * place[:, None] * torch.arange(highest + 1, dtype=torch.float64, device=device)
    size = torch.full_like(angle, math.sqrt(2))
    size[:, 0] = 1.0
    waves = torch.stack([angle.cos() * size, angle.sin() * size], dim=-1)  # (side, highest + 1, 2)
    return waves.flatten(1).to(dtype)


@lru_cache(maxsize=512)
def _remembered_waves(side: int, highest: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # the table is used later with gradients too
        return _computed_waves(side, highest, dtype, device)
