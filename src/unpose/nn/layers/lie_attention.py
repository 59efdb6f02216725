"""Self-attention among elements of a continuous group (LieTransformer, Hutchinson et al., 2021).

Each token has an element of the group: a position and a sampled linear part. Tokens see each other's elements only as
``g^-1 h``, which does not change if all elements are multiplied by an element of the group from the left.
"""

import math

import torch
from torch import Tensor, nn

from unpose.groups import Group, inverse, parse_affine, polar_coordinates
from unpose.nn.functional.checks import check_positive
from unpose.nn.ops.autocast import without_autocast

_HIDDEN = 32
"""Sines in the network of relative elements."""


class LieSelfAttention(nn.Module):
    """Self-attention by content and by the relative element: (b, n, width) -> (b, n, width).

    A query at g and a key at h have the score ``q(g) . k(h) / sqrt(d) + phi(g^-1 h)`` with a small network phi of the
    coordinates of the relative element, less the square of their distance over a learnt reach of each head. The
    coordinates are those of :func:`unpose.groups.polar_coordinates`, which unlike the logarithm of the paper are
    continuous at half a turn and exist for every affine map.

    Parameters
    ----------
    group : str or Group
        ``"translation"``, ``"se2"``, ``"similarity"`` or ``"affine"``, or one of them with ``"+mirror"``.
    width : int
        Channels of the tokens: a multiple of ``heads``.
    heads : int, default 4
        Attention heads, each with its own output of phi.
    unit : float, default 1.0
        Unit of length: shifts are divided by it before they enter phi.

    Notes
    -----
    The answer at every element stays the same if all elements are multiplied from the left, up to rounding. As the
    sampled linear parts are drawn by the Haar measure, a turned set of samples is as likely as any other, and the
    expectation is equivariant. The cost is quadratic in the number of tokens.

    Examples
    --------
    >>> from unpose.groups import haar_samples, parse, translation
    >>> points = torch.rand(2, 5, 2)  # any positions: pixels or a point cloud
    >>> elements = (translation(points)[:, :, None] @ haar_samples("se2", 3)).flatten(1, 2)  # (2, 15, 3, 3)
    >>> layer, tokens = LieSelfAttention("se2", 8), torch.rand(2, 15, 8)
    >>> turned = parse("se2").exp(torch.tensor([3.0, -1.0, 0.5])) @ elements
    >>> torch.allclose(layer(tokens, turned), layer(tokens, elements), atol=1e-5)
    True
    """

    def __init__(self, group: str | Group, width: int, heads: int = 4, *, unit: float = 1.0) -> None:
        super().__init__()
        self.group = parse_affine(group)
        check_positive(width=width, heads=heads)
        if width % heads:
            raise ValueError(f"width must be a multiple of heads ({heads}), got {width}")
        if not unit > 0:
            raise ValueError(f"unit must be positive, got {unit}")
        self.heads, self.unit = heads, unit
        coordinates = polar_coordinates(self.group, torch.eye(3, device="cpu")).numel()
        self.waves, self.phi = nn.Linear(coordinates, _HIDDEN), nn.Linear(_HIDDEN, heads, bias=False)
        # From the start, heads attend to places nearby, at several distances and in several directions.
        nn.init.normal_(self.waves.weight, std=1.0)
        nn.init.normal_(self.phi.weight, std=math.sqrt(8 / _HIDDEN))
        self.log_reach = nn.Parameter(torch.linspace(0.0, 1.0, heads))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def extra_repr(self) -> str:
        return f"group={self.group}, heads={self.heads}, unit={self.unit}"

    def scores(self, elements: Tensor) -> Tensor:
        """phi of all relative elements: (..., n, 3, 3) -> (..., heads, n, n)"""
        relative = inverse(elements)[..., :, None, :, :] @ elements[..., None, :, :, :]  # (..., n, n, 3, 3)
        coordinates = polar_coordinates(self.group, relative)
        shift = coordinates[..., :2] / self.unit
        near = shift.square().sum(-1)[..., None] * (-2 * self.log_reach).exp()  # (..., n, n, heads)
        waves = self.waves(torch.cat([shift, coordinates[..., 2:]], dim=-1)).sin()
        return (self.phi(waves) - near / 2).movedim(-1, -3)

    def forward(self, tokens: Tensor, elements: Tensor) -> Tensor:
        """(b, n, width) and (b, n, 3, 3), or (n, 3, 3) for all -> (b, n, width)"""
        if elements.shape[-3:] != (tokens.shape[-2], 3, 3):
            raise ValueError(
                f"every token needs an element: got tokens {tuple(tokens.shape)} and elements {tuple(elements.shape)}"
            )
        projected = self.qkv(tokens).unflatten(-1, (3, self.heads, -1))  # (b, n, 3, heads, d)
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # (b, heads, n, d) each
        # By hand: PyTorch's fused attention gives other bits if the scores of positions require a gradient.
        with without_autocast(elements):
            position = self.scores(elements)  # (b or none, heads, n, n)
        scores = (query / math.sqrt(query.shape[-1])) @ key.mT + position
        attended = scores.softmax(-1) @ value
        return self.proj(attended.transpose(1, 2).flatten(2))


class LieBlock(nn.Module):
    """A transformer block: attention among elements of a group, then an MLP at each: (b, n, width) -> (b, n, width).

    Parameters
    ----------
    group : str or Group
        As for :class:`LieSelfAttention`.
    width : int
        Channels of the tokens.
    heads : int, default 4
        Attention heads.
    unit : float, default 1.0
        Unit of length.
    mlp_ratio : int, default 2
        Hidden units of the MLP, as a multiple of the width.

    Examples
    --------
    >>> LieBlock("se2", 8)(torch.rand(2, 5, 8), torch.eye(3).expand(5, 3, 3)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self, group: str | Group, width: int, heads: int = 4, *, unit: float = 1.0, mlp_ratio: int = 2
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = LieSelfAttention(group, width, heads, unit=unit)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_ratio * width), nn.GELU(), nn.Linear(mlp_ratio * width, width))

    def forward(self, tokens: Tensor, elements: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens), elements)
        return tokens + self.mlp(self.norm2(tokens))
