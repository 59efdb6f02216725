"""Position encodings: smooth functions of a relative position and of the index of a relative element.

They are evaluated at rotated positions, so any angle works and no image is interpolated. Each maps positions
``(..., 2)`` in pixels to ``(heads or 1, relative elements, ..., channels)``.
"""

import math

import torch
from torch import Tensor, nn

from unpose.nn.layers.norm_and_pooling import norm_swish

_RING_WIDTH = 0.6
"""Standard deviation of a ring in ring spacings: adjacent rings overlap enough to cover every radius between them."""
_CORE = 0.25
"""Radius, in ring spacings, inside which angular functions fade out, so that all are smooth at the origin."""


def harmonic_basis(points: Tensor, rings: int) -> Tensor:
    """Evaluate circular harmonics on Gaussian rings of radii 0, 1, ..., rings - 1: (..., 2) -> (..., functions).

    Ring j > 0 carries the angular frequencies 0 ... j + 1; more would alias on a grid of that spacing. The innermost
    has none. With ``rho^2 = x^2 + y^2 + c^2`` a function is ``exp(-(rho - j)^2 / 2 s^2)`` times the real or imaginary
    part of ``((x + i y) / rho)^m``, which has all its derivatives at the origin. A rotation of the points mixes only
    the two functions of the same frequency.
    """
    x, y = points.unbind(-1)
    rho = (x * x + y * y + _CORE**2).sqrt()
    cos, sin = [torch.ones_like(x)], [torch.zeros_like(x)]
    for _ in range(rings):
        # The next power of the complex number (x + i y) / rho.
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
    """The paper's encoding: a small network of x, one of y and a vector for each relative element, concatenated.

    Parameters
    ----------
    channels : int
        Channels of the encoding, which all heads share.
    relations : int or None
        Number of relative elements. None for a lifting layer, which has none: all channels then encode x and y.
    reach : float
        Distance in pixels that is scaled to 1 at the input of the networks.

    Notes
    -----
    The networks are linear (16), layer norm, Swish, linear, as in the published code. There the biases are initialised
    to zero, so at coordinate zero the norm computes 0 / 0 and gradients explode. Here they are initialised at random
    and the norm adds 1e-3 to the variance.

    Examples
    --------
    >>> SeparableEncoding(channels=7, relations=4, reach=2.0)(torch.zeros(5, 3, 2)).shape
    torch.Size([1, 4, 5, 3, 7])
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

    def encode_positions(self, points: Tensor) -> Tensor:
        """Return the channels of x and y, the same for every relative element: (..., 2) -> (1, 1, ..., channels)."""
        # Flattened, so that each linear layer is one matrix product on a GPU.
        x, y = (points.reshape(-1, 2).to(next(self.parameters()).dtype) / self.reach).split(1, dim=-1)
        return torch.cat([self.along_x(x), self.along_y(y)], dim=-1).view(1, 1, *points.shape[:-1], -1)

    def forward(self, points: Tensor) -> Tensor:
        """(..., 2) -> (1, relations or 1, ..., channels)"""
        position = self.encode_positions(points)
        if self.element is None:
            return position
        vectors = self.element.weight  # (relations, e)
        vectors = vectors.view(1, len(vectors), *[1] * (points.ndim - 1), -1).expand(-1, -1, *points.shape[:-1], -1)
        return torch.cat([position.expand(-1, vectors.shape[1], *[-1] * points.ndim), vectors], dim=-1)


class HarmonicEncoding(nn.Module):
    """A steerable encoding: for each head and relative element a weighted sum of circular harmonics on rings.

    Parameters
    ----------
    channels : int
        Channels of the encoding.
    relations : int or None
        Number of relative elements. None for a lifting layer, which has none.
    heads : int
        Number of heads; each has its own weights.
    reach : float
        Radius of the outermost ring in pixels.
    rings : int, default 3
        Number of rings, the innermost at the origin.

    Examples
    --------
    >>> HarmonicEncoding(channels=7, relations=4, heads=2, reach=2.0)(torch.zeros(5, 3, 2)).shape
    torch.Size([2, 4, 5, 3, 7])
    """

    def __init__(self, channels: int, relations: int | None, heads: int, reach: float, rings: int = 3) -> None:
        super().__init__()
        if rings < 2:
            raise ValueError(f"a harmonic encoding needs at least 2 rings, got {rings}")
        self.rings = rings
        self.spacing = reach / (rings - 1)
        functions = harmonic_basis(torch.zeros(2), rings).shape[-1]
        self.weight = nn.Parameter(torch.randn(heads, relations or 1, functions, channels) / math.sqrt(functions))

    def basis(self, points: Tensor) -> Tensor:
        """Evaluate the circular harmonics, which have no weights: (..., 2) -> (..., functions)"""
        return harmonic_basis(points / self.spacing, self.rings)

    def combine(self, basis: Tensor) -> Tensor:
        """Return the weighted sums of the functions: (..., functions) -> (heads, relations or 1, ..., channels)"""
        values = torch.einsum("pn,hrnd->hrpd", basis.flatten(0, -2), self.weight)
        return values.unflatten(2, basis.shape[:-1])

    def forward(self, points: Tensor) -> Tensor:
        """(..., 2) -> (heads, relations or 1, ..., channels)"""
        return self.combine(self.basis(points.to(self.weight.dtype)))


def make_encoding(kind: str, channels: int, relations: int | None, heads: int, reach: float) -> nn.Module:
    """Create the encoding with this name: ``"separable"`` or ``"harmonic"``."""
    if kind == "separable":
        return SeparableEncoding(channels, relations, reach)
    if kind == "harmonic":
        return HarmonicEncoding(channels, relations, heads, reach)
    raise ValueError(f"encoding must be 'separable' or 'harmonic', got {kind!r}")


def _scalar_network(channels: int) -> nn.Sequential:
    """Create the network of one coordinate: (m, 1) -> (m, channels)."""
    return nn.Sequential(nn.Linear(1, 16), *norm_swish(16, eps=1e-3), nn.Linear(16, channels))
