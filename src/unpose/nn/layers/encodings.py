"""Position encodings: smooth functions of a relative position and of the index of a relative element.

They are asked at turned positions, so any angle works and no image is ever interpolated. Each maps positions
``(..., 2)`` in pixels to ``(heads or 1, relative elements, ..., channels)``.
"""

import math

import torch
from torch import Tensor, nn

from unpose.nn.layers.norm_and_pooling import norm_swish

_RING_WIDTH = 0.6
"""Standard deviation of a ring in ring spacings: neighbours overlap enough to reach every radius between them."""
_CORE = 0.25
"""Radius, in ring spacings, inside which angles fade out, so that everything is smooth at the origin."""


def harmonic_basis(points: Tensor, rings: int) -> Tensor:
    """Circular harmonics on Gaussian rings at radii 0, 1, ..., rings - 1: (..., 2) -> (..., functions).

    Ring j > 0 carries the angular frequencies 0 ... j + 1; more would alias on a grid of that spacing. The innermost
    has none. With ``rho^2 = x^2 + y^2 + c^2`` a function is ``exp(-(rho - j)^2 / 2 s^2)`` times the real or imaginary
    part of ``((x + i y) / rho)^m``, which has all its derivatives at the origin. Turning the points mixes the two
    functions of one frequency, nothing else.
    """
    x, y = points.unbind(-1)
    rho = (x * x + y * y + _CORE**2).sqrt()
    cos, sin = [torch.ones_like(x)], [torch.zeros_like(x)]
    for _ in range(rings):
        # the next power of the complex number (x + i y) / rho
        cos, sin = (
            [*cos, (cos[-1] * x - sin[-1] * y) / rho],
            [*sin, (cos[-1] * y + sin[-1] * x) / rho],
        )
    functions = []
    for ring in range(rings):
        bump = torch.exp(-(((rho - ring) / _RING_WIDTH) ** 2) / 2)
        top = ring + 1 if ring else 0
        functions += [bump * wave for wave in (*cos[: top + 1], *sin[1 : top + 1])]
    return torch.stack(functions, dim=-1)


class SeparableEncoding(nn.Module):
    """The paper's encoding: a small network of x, one of y and a vector for each relative element, side by side.

    Parameters
    ----------
    channels : of the result, shared by all heads
    relations : number of relative elements; None where there is none (lifting), and the channels go to x and y alone
    reach : distance in pixels that the networks see as 1

    Notes
    -----
    The networks are linear (16), layer norm, Swish, linear, as released. There the biases begin at zero: at coordinate
    zero the norm divides nothing by nothing and gradients explode. Here they begin at random and the norm's floor is
    1e-3.
    """

    def __init__(self, channels: int, relations: int | None, reach: float) -> None:
        super().__init__()
        parts = 2 if relations is None else 3
        if channels < parts:
            raise ValueError(f"a separable encoding needs at least {parts} channels for each head, got {channels}")
        self.reach = reach
        along = channels // parts
        self.along_x = _scalar_network(along)
        self.along_y = _scalar_network(along if relations else channels - along)
        self.element = nn.Embedding(relations, channels - 2 * along) if relations else None

    def places(self, points: Tensor) -> Tensor:
        """The channels of x and y, the same for every relative element: (..., 2) -> (1, 1, ..., channels)."""
        # Flat, so that each linear layer is one product on a GPU.
        x, y = (points.reshape(-1, 2).to(next(self.parameters()).dtype) / self.reach).split(1, dim=-1)
        return torch.cat([self.along_x(x), self.along_y(y)], dim=-1).view(1, 1, *points.shape[:-1], -1)

    def forward(self, points: Tensor) -> Tensor:
        place = self.places(points)
        if self.element is None:
            return place
        kinds = self.element.weight  # (relations, e)
        kinds = kinds.view(1, len(kinds), *[1] * (points.ndim - 1), -1).expand(-1, -1, *points.shape[:-1], -1)
        return torch.cat([place.expand(-1, kinds.shape[1], *[-1] * points.ndim), kinds], dim=-1)


class HarmonicEncoding(nn.Module):
    """A steerable encoding: for each head and relative element a weighted sum of :func:`harmonic_basis`.

    Parameters
    ----------
    channels : of the result
    relations : number of relative elements, 1 where there is none
    heads : each has an encoding of its own
    reach : radius of the outermost ring in pixels
    rings : number of rings, the innermost at the origin
    """

    def __init__(self, channels: int, relations: int | None, heads: int, reach: float, rings: int = 3) -> None:
        super().__init__()
        if rings < 2:
            raise ValueError(f"a harmonic encoding needs at least 2 rings, got {rings}")
        self.rings = rings
        self.spacing = reach / (rings - 1)
        functions = harmonic_basis(torch.zeros(2), rings).shape[-1]
        self.weight = nn.Parameter(torch.randn(heads, relations or 1, functions, channels) / math.sqrt(functions))

    def forward(self, points: Tensor) -> Tensor:
        basis = harmonic_basis(points.to(self.weight.dtype) / self.spacing, self.rings)
        values = torch.einsum("pn,hrnd->hrpd", basis.flatten(0, -2), self.weight)
        return values.unflatten(2, points.shape[:-1])


def make_encoding(kind: str, channels: int, relations: int | None, heads: int, reach: float) -> nn.Module:
    """The encoding with this name: ``"separable"`` or ``"harmonic"``."""
    if kind == "separable":
        return SeparableEncoding(channels, relations, reach)
    if kind == "harmonic":
        return HarmonicEncoding(channels, relations, heads, reach)
    raise ValueError(f"encoding must be 'separable' or 'harmonic', got {kind!r}")


def _scalar_network(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(1, 16), *norm_swish(16, eps=1e-3), nn.Linear(16, channels))
