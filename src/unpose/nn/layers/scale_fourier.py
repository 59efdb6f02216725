"""Layers that commute with ideal downscaling: the features of the shrunk image are the shrunk features.

After Rahman and Yeh, Truly Scale-Equivariant Deep Nets with Fourier Layers (2023). Downscaling removes high
frequencies, so a layer commutes with it if each frequency of its output depends on equal or lower ones of its input.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from unpose.images import from_real_spectrum, real_spectrum
from unpose.nn.functional.checks import check_feature_maps, check_positive, check_window
from unpose.nn.layers.constants import ConstantTables


def scale_activation(maps: Tensor, function: Callable[[Tensor], Tensor] = gelu) -> Tensor:
    """Apply a function of pixels such that each frequency of the result depends on equal or lower ones only.

    The frequencies of k periods along the image are those of the function applied to the image shrunk to ``2 k + 1``
    pixels. So the result commutes with :func:`unpose.images.fourier_resize` to every smaller size, exactly; the
    function applied to the full image would move high frequencies into low ones.

    Parameters
    ----------
    maps : Tensor, shape (..., h, w)
        Maps; the law holds for square ones.
    function : callable, default torch.nn.functional.gelu
        A function of each pixel.

    Returns
    -------
    Tensor, shape (..., h, w)

    Notes
    -----
    The cost is that of the function on all odd sizes up to the image: about h / 6 times that of the image alone.

    Examples
    --------
    >>> from unpose.images import fourier_resize
    >>> maps = torch.randn(2, 3, 15, 15)
    >>> shrunk = scale_activation(fourier_resize(maps, (8, 8)))
    >>> torch.allclose(shrunk, fourier_resize(scale_activation(maps), (8, 8)), atol=1e-5)
    True
    """
    spectrum = real_spectrum(maps)
    rows, columns = spectrum.shape[-4], spectrum.shape[-2]
    found = spectrum[..., :0, :, :0, :]
    for k in range(max(rows, columns)):
        # The waves of frequencies up to k, on the fewest pixels that can show them.
        y, x = min(k + 1, rows), min(k + 1, columns)
        level = from_real_spectrum(spectrum[..., :y, :, :x, :], (2 * y - 1, 2 * x - 1))
        new = real_spectrum(function(level))  # (..., y, 2, x, 2)
        before_y, before_x = found.shape[-4], found.shape[-2]
        top = torch.cat([found, new[..., :before_y, :, before_x:, :]], dim=-2)
        found = torch.cat([top, new[..., before_y:, :, :, :]], dim=-4)
    return from_real_spectrum(found, maps.shape[-2:])


class ScaleFourier2d(ConstantTables):
    """Convolution whose kernel is measured in parts of the image: (b, in, h, w) -> (b, out, h, w), periodic.

    The taps of the kernel are ``spacing / size`` of the image side apart at every resolution, and values between pixels
    are those of the sum of sines and cosines. Each frequency is multiplied by itself, so the layer commutes with
    :func:`unpose.images.fourier_resize`.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels of the input and output maps.
    kernel_size : int
        Odd number of taps along each side.
    size : int
        Side of the image, in pixels, in which the spacing is measured. Images of other sizes are the same image at
        another resolution.
    spacing : int, default 1
        Pixels between taps, in an image of ``size`` pixels.
    bias : bool, default True
        Whether to add a learnt constant to each output channel.

    Examples
    --------
    >>> from unpose.images import fourier_resize
    >>> layer, images = ScaleFourier2d(1, 3, kernel_size=5, size=28), torch.rand(2, 1, 28, 28)
    >>> shrunk = layer(fourier_resize(images, (13, 13)))
    >>> torch.allclose(shrunk, fourier_resize(layer(images), (13, 13)), atol=1e-5)
    True
    """

    places: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, size: int, *, spacing: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels, size=size, spacing=spacing)
        check_window((kernel_size, kernel_size))
        self.in_channels, self.kernel_size, self.size, self.spacing = in_channels, kernel_size, size, spacing
        bound = 1 / math.sqrt(in_channels * kernel_size**2)
        self.weight = nn.Parameter(
            torch.empty(out_channels, in_channels, kernel_size, kernel_size).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        steps = torch.arange(self.kernel_size, dtype=torch.float64) - self.kernel_size // 2
        return {"places": steps * (2 * math.pi * self.spacing / self.size)}

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, size={self.size}, spacing={self.spacing}"

    def forward(self, images: Tensor) -> Tensor:
        check_feature_maps(images, self.in_channels, None)
        spectrum = real_spectrum(images)  # (b, in, ky, 2, kx, 2)
        shift_y, shift_x = (_shifts(self.places, count) for count in (spectrum.shape[2], spectrum.shape[4]))
        along_x = torch.einsum("oipq,xqTt->oipxTt", self.weight, shift_x)
        response = (
            torch.einsum("oipxTt,ypSs->yxistoST", along_x, shift_y).flatten(2, 4).flatten(3)
        )  # (ky, kx, 4 in, 4 out)
        given = spectrum.permute(2, 4, 0, 1, 3, 5).flatten(3)  # (ky, kx, b, 4 in)
        found = (given @ response).unflatten(3, (-1, 2, 2)).permute(2, 3, 0, 4, 1, 5)  # (b, out, ky, 2, kx, 2)
        maps = from_real_spectrum(found, images.shape[-2:])
        return maps if self.bias is None else maps + self.bias[:, None, None]


def _shifts(places: Tensor, count: int) -> Tensor:
    """What a shift by each tap does to cosine and sine of each frequency: (taps,) -> (count, taps, 2, 2)."""
    angle = torch.arange(count, dtype=places.dtype, device=places.device)[:, None] * places
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
