"""Attention on the sphere: softmax weights times areas, over neighbours by geodesic distance.

The sum over neighbours is a quadrature of an integral over a cap of the sphere, so that it does not matter where the
grid is dense: the output converges to a function that rotates with the input (after Bonev et al., 2025).
"""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from unpose.sphere.grid import areas, check_panorama

_BUMPS = 6
"""Functions of the distance that a learned bias is made of."""


def sphere_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, radius: float) -> Tensor:
    """Attend to all pixels within a geodesic radius.

    ``out(x) = sum_y a_y w(x, y) exp(q_x . k_y / sqrt(d) + bias(x, y)) v_y`` over the same sum without ``v_y``, where a
    is the area of a pixel and w a window that falls smoothly to zero at the radius.

    Parameters
    ----------
    query, key, value : Tensors, shape (b, heads, d, h, w)
        Values may have another d.
    bias : Tensor, shape (heads, bumps)
        Coefficients of Gaussian bumps of the distance, evenly spread over the radius.
    radius : float
        In radians.

    Returns
    -------
    Tensor, shape (b, heads, d, h, w)

    Examples
    --------
    >>> maps = torch.rand(1, 2, 3, 8, 16)
    >>> sphere_attention(maps, maps, maps, torch.zeros(2, 6), 0.8).shape
    torch.Size([1, 2, 3, 8, 16])
    """
    h, w = query.shape[-2:]
    rows = []
    for row, (near_rows, shifts, distances) in enumerate(_neighbours(h, w, radius)):
        there = (shifts[:, None] + torch.arange(w)) % w  # (k, w)
        index = (near_rows[:, None] * w + there).reshape(-1).to(query.device)
        keys, values = (
            each.flatten(3).index_select(3, index).unflatten(3, (-1, w)) for each in (key, value)
        )  # (b, heads, d, k, w)
        scores = torch.einsum("bzdw,bzdkw->bzkw", query[..., row, :], keys) / math.sqrt(query.shape[2])
        distance = distances.to(query)
        window = (0.5 * math.pi * distance / radius).cos().square() * areas(h, w, query.dtype).to(query)[near_rows, 0]
        prior = bias @ _bumps(distance, radius, bias.shape[1])  # (heads, k)
        logits = scores + (prior + window.clamp(min=1e-30).log())[None, :, :, None]
        rows.append(torch.einsum("bzkw,bzdkw->bzdw", logits.softmax(2), values))
    return torch.stack(rows, dim=3)


class SphereAttention(nn.Module):
    """Multi-head attention on the sphere, with a learned bias by distance and a residual connection.

    Parameters
    ----------
    channels : int
        Channels in and out.
    heads : int, default 4
    radius : float, default 0.4
        Geodesic radius of the neighbourhood in radians; at least about two rows of the image.

    Examples
    --------
    >>> layer, panorama = SphereAttention(8).eval(), torch.rand(1, 8, 12, 24)
    >>> torch.allclose(layer(panorama.roll(5, -1)), layer(panorama).roll(5, -1), atol=1e-5)
    True
    """

    def __init__(self, channels: int, heads: int = 4, radius: float = 0.4) -> None:
        super().__init__()
        if channels % heads:
            raise ValueError(f"channels must be a multiple of heads, got {channels} and {heads}")
        if not 0 < radius <= math.pi:
            raise ValueError(f"radius must be between 0 and pi, got {radius}")
        self.heads, self.radius = heads, radius
        self.projection = nn.Conv2d(channels, 3 * channels, 1)
        self.bias = nn.Parameter(torch.zeros(heads, _BUMPS))
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, images: Tensor) -> Tensor:
        """(b, channels, h, w) -> (b, channels, h, w)"""
        h, _ = check_panorama(images)
        if self.radius < 1.5 * math.pi / h:
            raise ValueError(
                f"a radius of {self.radius} reaches no neighbour in {h} rows; use {1.5 * math.pi / h:.2f} or more"
            )
        parts = self.projection(images).chunk(3, dim=1)
        query, key, value = (part.unflatten(1, (self.heads, -1)) for part in parts)  # (b, heads, d, h, w)
        return images + self.out(sphere_attention(query, key, value, self.bias, self.radius).flatten(1, 2))


def _bumps(distance: Tensor, radius: float, count: int) -> Tensor:
    """Gaussian bumps of the distance: (k,) -> (count, k)."""
    centres = torch.linspace(0, radius, count, dtype=distance.dtype, device=distance.device)
    return (-0.5 * ((distance - centres[:, None]) * count / radius).square()).exp()


@lru_cache(maxsize=32)
def _neighbours(h: int, w: int, radius: float) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each row: the rows, column shifts and geodesic distances of all pixels within the radius, (k,) each."""
    colatitude = (torch.arange(h, dtype=torch.float64) + 0.5) * (math.pi / h)
    shift = torch.arange(w)
    longitude = shift.double() * (2 * math.pi / w)
    found = []
    for here in colatitude:
        # The haversine formula, which is accurate for small distances.
        across = (colatitude.sin() * here.sin())[:, None] * (longitude / 2).sin().square()
        half = (((colatitude - here) / 2).sin().square()[:, None] + across).clamp(0, 1)
        distance = 2 * half.sqrt().asin()  # (h, w)
        near = distance < radius
        rows, columns = near.nonzero(as_tuple=True)
        found.append((rows, shift[columns], distance[near]))
    return found
