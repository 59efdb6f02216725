"""Networks on contours that commute with rotation and with the choice of the start.

A complex circular convolution without bias commutes with ``z -> exp(i a) z`` and with cyclic shifts; an activation that
acts on the modulus only does, too. Pooled moduli then change with neither.
"""

import math

import torch
from torch import Tensor, nn


def modulus_activation(features: Tensor, threshold: Tensor) -> Tensor:
    """``relu(|z| + threshold) z / |z|``: acts on moduli, keeps phases; (b, c, n) with a threshold for each channel."""
    modulus = (features.real.square() + features.imag.square() + 1e-12).sqrt()
    return features * (torch.relu(modulus + threshold[:, None]) / modulus)


def circular_convolution(features: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
    """Complex circular convolution without bias: (b, c, n) with (out, c, k) -> (b, out, n); k is odd."""
    reach = dilation * (weight.shape[2] // 2)
    n = features.shape[2]
    index = torch.arange(-reach, n + reach, device=features.device) % n
    padded = features[..., index]
    real, imag = torch.view_as_real(padded).unbind(-1)
    both = torch.cat([real, imag], dim=1)  # (b, 2 c, n + 2 reach)
    top = torch.cat([weight.real, -weight.imag], dim=1)
    bottom = torch.cat([weight.imag, weight.real], dim=1)
    out = nn.functional.conv1d(both, torch.cat([top, bottom], dim=0), dilation=dilation)
    return torch.complex(*out.chunk(2, dim=1))


class ComplexCircularLayer(nn.Module):
    """A complex circular convolution, a norm and an activation on moduli (after RotaTouille, 2025).

    Parameters
    ----------
    in_channels, out_channels : int
        Complex channels.
    size : int, default 5
        Length of the filters; odd.
    dilation : int, default 1
        Distance of the points that a filter sees.

    Examples
    --------
    >>> layer, z = ComplexCircularLayer(1, 3), torch.randn(2, 1, 16, dtype=torch.complex64)
    >>> torch.allclose(layer(1j * z.roll(3, -1)), 1j * layer(z).roll(3, -1), atol=1e-5)
    True
    """

    def __init__(self, in_channels: int, out_channels: int, size: int = 5, dilation: int = 1) -> None:
        super().__init__()
        if size % 2 == 0:
            raise ValueError(f"the size of a filter must be odd, got {size}")
        scale = 1 / math.sqrt(2 * in_channels * size)
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, size, 2) * scale)
        self.threshold = nn.Parameter(torch.full((out_channels,), -0.1))
        self.dilation = dilation

    def forward(self, features: Tensor) -> Tensor:
        """(b, in_channels, n) -> (b, out_channels, n), complex"""
        out = circular_convolution(features, torch.view_as_complex(self.weight), self.dilation)
        power = (out.real.square() + out.imag.square()).mean((1, 2), keepdim=True)
        return modulus_activation(out / (power + 1e-6).sqrt(), self.threshold)


class ComplexCircularNet(nn.Module):
    """Complex circular layers, pooled moduli and an answer; made by :func:`complex_circular_net`.

    Parameters
    ----------
    n_out : int
        Outputs.
    width : int
        Complex channels.
    depth : int
        Layers; dilation doubles from one to the next.
    mirrors : bool
        Whether the answer is the same for mirror images.

    Examples
    --------
    >>> ComplexCircularNet(3, 4, 2, True)(torch.randn(2, 16, dtype=torch.complex64)).shape
    torch.Size([2, 3])
    """

    def __init__(self, n_out: int, width: int, depth: int, mirrors: bool) -> None:
        super().__init__()
        self.mirrors = mirrors
        self.layers = nn.ModuleList(
            ComplexCircularLayer(1 if k == 0 else width, width, dilation=2**k) for k in range(depth)
        )
        self.answer = nn.Sequential(
            nn.LayerNorm(2 * depth * width), nn.Linear(2 * depth * width, 4 * width), nn.SiLU(), nn.Dropout(0.2),
            nn.Linear(4 * width, n_out),
        )  # fmt: skip

    def layer_outputs(self, contours: Tensor) -> list[Tensor]:
        """Complex features (b, width, n) of every layer: they turn and shift with the contour."""
        if contours.ndim != 2 or not contours.is_complex():
            raise ValueError(f"contours must be complex (b, n), got {contours.dtype} {tuple(contours.shape)}")
        hidden = (contours - contours.mean(1, keepdim=True))[:, None]
        outputs = []
        for layer in self.layers:
            hidden = layer(hidden)
            outputs.append(hidden)
        return outputs

    def forward(self, contours: Tensor) -> Tensor:
        """(b, n) complex -> (b, n_out), the same for every rotation, start, shift and scale"""
        pooled = self._pooled(contours)
        if self.mirrors:
            pooled = (pooled + self._pooled(contours.conj().resolve_conj().flip(1))) / 2
        return self.answer(pooled)

    def _pooled(self, contours: Tensor) -> Tensor:
        moduli = [(each.real.square() + each.imag.square() + 1e-12).sqrt() for each in self.layer_outputs(contours)]
        return torch.cat([pool for each in moduli for pool in (each.mean(2), each.amax(2))], dim=1)


def complex_circular_net(n_out: int, *, width: int = 16, depth: int = 4, mirrors: bool = True) -> ComplexCircularNet:
    """A network on contours whose answer does not depend on rotation, start, shift, scale or mirror.

    Parameters
    ----------
    n_out : int
        Outputs, for example classes.
    width : int, default 16
        Complex channels.
    depth : int, default 4
        Layers.
    mirrors : bool, default True
        Whether the answer is the same for mirror images, too.

    Returns
    -------
    ComplexCircularNet

    Examples
    --------
    >>> net, z = complex_circular_net(5).eval(), torch.randn(2, 32, dtype=torch.complex128)
    >>> torch.allclose(net.double()(z), net(2j * z.roll(7, 1) + 3))
    True
    """
    return ComplexCircularNet(n_out, width, depth, mirrors)
