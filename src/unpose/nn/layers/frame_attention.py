"""Attention of tokens that carry functions on a group: the elements of the group, the frames, are folded into heads.

Each frame attends by itself, with positions as seen from it, on PyTorch's ``scaled_dot_product_attention``; the linear
maps before and after, in the irrep basis, exchange information among frames.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from unpose.groups import FiniteGroup, fourier_basis
from unpose.images import pixel_grid, smooth
from unpose.nn.functional.checks import check_feature_maps, check_positive, parse_point_group
from unpose.nn.functional.orbit_attention import group_operators, orbit_mask
from unpose.nn.layers.constants import ConstantTables
from unpose.nn.layers.irreps import FrameMLP, IrrepLinear, IrrepNorm, channels_of, needs_interpolation
from unpose.nn.ops.frames import change_basis, rotary_frames

_GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))
_BLUR = 0.7
"""Standard deviation in pixels that kernels are smoothed with, if they must be interpolated."""
_LOWEST_FREQUENCY = 0.01
"""Radians for each token between neighbours, of the slowest rotary pair; the fastest has one radian."""


class FrameAttention(ConstantTables):
    """Self-attention among tokens that commutes with the group, in the irrep basis: (b, n, width) -> (b, n, width).

    In frame h, a query at x and a key at y are compared as ``q(x, h) R(h^-1 (y - x)) k(y, h)`` with rotary positions R:
    pairs of channels turn by ``w . h^-1 x`` for frequencies w in several directions. If the image is transformed by g,
    frame h sees what frame ``g^-1 h`` saw before, so the layer is equivariant; only relative positions matter.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``.
    width : int
        Numbers of a token: a multiple of the order of the group.
    heads : int
        Heads of all frames together, with ``width / heads`` channels each: a multiple of the order of the group, or
        for a group with mirrors half of its order. Then the frames h and h m, where m is the mirror, share a head:
        their scores are added. The group permutes such pairs, so the layer stays equivariant.

    Examples
    --------
    >>> layer = FrameAttention("d4", width=32, heads=8)
    >>> layer(torch.rand(2, 3 * 5, 32), *layer.rotary_angles(3, 5)).shape
    torch.Size([2, 15, 32])
    """

    basis: Tensor
    frequencies: Tensor

    def __init__(self, group: str | FiniteGroup, width: int, heads: int) -> None:
        super().__init__()
        self.group = parse_point_group(group)
        channels = channels_of(width, self.group)
        check_positive(heads=heads)
        is_shared = self.group.mirrored and 2 * heads == self.group.order
        self.heads = 1 if is_shared else heads // self.group.order  # of each frame
        if (not is_shared and heads % self.group.order) or channels % (2 * self.heads):
            half = " or half of it," if self.group.mirrored else ""
            raise ValueError(
                f"heads must be a multiple of {self.group.order}, the order of {self.group},{half} and leave an even "
                f"number of the {channels} channels of a frame to each head, got {heads}"
            )
        self.total_heads = heads
        self.qkv, self.proj = IrrepLinear(self.group, width, 3 * width), IrrepLinear(self.group, width, width)
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        channels = self.qkv.in_features // self.group.order
        frequencies = rotary_frequencies(self.heads, channels // self.heads)  # (heads, d / 2, 2)
        # Frames h and h m are neighbours, so that they can share a head without a copy.
        frames = torch.arange(self.group.order).view(1 + self.group.mirrored, -1).T.flatten()
        turned = torch.einsum("gij,hfj->ghfi", self.group.elements[frames, :2, :2], frequencies)
        return {"basis": fourier_basis(self.group)[:, frames], "frequencies": turned}

    def extra_repr(self) -> str:
        return f"group={self.group}, heads={self.total_heads}"

    def rotary_angles(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the angles at each token of a grid: (n, order, heads, d / 2) each."""
        positions = pixel_grid((rows, columns), self.frequencies.dtype, self.frequencies.device).flatten(0, 1)  # (n, 2)
        # w . h^-1 x = (h w) . x, summed by hand: a matrix product might round the frames differently.
        x, y = positions[:, 0, None, None, None], positions[:, 1, None, None, None]
        angles = x * self.frequencies[..., 0] + y * self.frequencies[..., 1]  # (n, order, heads, d / 2)
        return angles.cos(), angles.sin()

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        projected = self.qkv.multiply(tokens)  # (b, n, 3 * width)
        query, key, value = (
            part.flatten(2).unflatten(2, (self.total_heads, -1)).transpose(1, 2)  # (b, total heads, n, d)
            for part in rotary_frames(projected, self.qkv.bias, cos, sin, self.basis, self.group.name)
        )
        attended = scaled_dot_product_attention(query, key, value).transpose(1, 2)  # (b, n, total heads, d)
        frames = attended.flatten(2).unflatten(2, (self.group.order, -1))  # (b, n, order, channels)
        return self.proj(change_basis(frames, self.basis, self.group.name))


def rotary_frequencies(heads: int, channels: int) -> Tensor:
    """Return the frequencies of rotary pairs, in radians for each token, as vectors: (heads, channels / 2, 2)."""
    pairs = channels // 2
    number = torch.arange(heads * pairs, dtype=torch.float64, device="cpu").view(pairs, heads).T  # (heads, pairs)
    size = _LOWEST_FREQUENCY ** (torch.arange(pairs, dtype=torch.float64, device="cpu") / pairs)
    angle = _GOLDEN_ANGLE * number  # directions spread evenly, in each octave and over heads
    return size[:, None] * torch.stack([angle.cos(), angle.sin()], -1)


class LiftingPatchEmbed(ConstantTables):
    """Patch embedding with one kernel transformed by every element of a group: (b, in_channels, h, w) -> (b, n, width).

    The kernels of all elements are changed to the irrep basis, so that the layer is one product of patches and kernels,
    as in an ordinary vision transformer.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``.
    in_channels : int
        Channels of the images.
    patch_size : int
        Side of a patch in pixels; patches do not overlap and fill the image.
    width : int
        Numbers of a token: a multiple of the order of the group.

    Notes
    -----
    Quarter turns and mirrors permute the pixels of a kernel, so the layer is exact for them at every patch size, even
    or odd. For other angles kernels are smoothed a little and interpolated, inside the disc that stays in the patch.

    Examples
    --------
    >>> LiftingPatchEmbed("d4", 3, 4, 16)(torch.rand(2, 3, 12, 20)).shape
    torch.Size([2, 15, 16])
    """

    operators: Tensor

    def __init__(self, group: str | FiniteGroup, in_channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.group = parse_point_group(group)
        check_positive(in_channels=in_channels, patch_size=patch_size)
        self.in_channels, self.patch_size = in_channels, patch_size
        channels = channels_of(width, self.group)
        bound = math.sqrt(1 / (in_channels * patch_size**2))
        self.weight = nn.Parameter(torch.empty(channels, in_channels, patch_size, patch_size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        operators = group_operators(self.group, self.patch_size)  # (order, p * p, p * p)
        if needs_interpolation(self.group):
            # Kernels without fine detail keep their shape when they are interpolated: their error falls three times.
            units = torch.eye(self.patch_size**2, dtype=operators.dtype).unflatten(1, (1, self.patch_size, -1))
            operators = operators * orbit_mask(self.group, self.patch_size).flatten() @ smooth(units, _BLUR).flatten(1)
            operators = with_moments(operators, self.group.elements, min(2, self.patch_size - 1))
        return {"operators": torch.einsum("kg,gts->kts", fourier_basis(self.group), operators)}

    def extra_repr(self) -> str:
        channels, in_channels, size = self.weight.shape[:3]
        return f"group={self.group}, {in_channels} -> {channels * self.group.order}, patch_size={size}"

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Return the numbers of rows and columns of patches."""
        check_feature_maps(images, self.in_channels, None)
        height, width = images.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise ValueError(
                f"patches of {self.patch_size} pixels do not fill an image of {height} x {width}; crop or pad it"
            )
        return height // self.patch_size, width // self.patch_size

    def forward(self, images: Tensor) -> Tensor:
        rows, columns = self.grid(images)
        size = self.patch_size
        kernels = torch.einsum("kts,ocs->koct", self.operators, self.weight.flatten(2))  # (order, channels, in, p * p)
        patches = images.reshape(-1, self.in_channels, rows, size, columns, size).permute(0, 2, 4, 1, 3, 5)
        tokens = linear(patches.flatten(3).flatten(1, 2), kernels.flatten(2).flatten(0, 1))  # (b, n, width)
        # A constant in every frame is a constant of the trivial representation alone.
        return tokens + torch.nn.functional.pad(self.bias, (0, tokens.shape[-1] - len(self.bias)))


def with_moments(operators: Tensor, elements: Tensor, degree: int) -> Tensor:
    """Change operators by as little as makes the answers of kernels to polynomials equivariant.

    Interpolation changes the moments of a kernel: its sum, and where it lies. A smooth image is nearly a polynomial of
    low degree within a patch, so these errors are most of what it shows.

    Parameters
    ----------
    operators : Tensor of shape (order, p * p, p * p)
        They make the kernel of each element from a kernel, whose pixels are the last axis.
    elements : Tensor of shape (order, 3, 3)
        The elements of the group, the first of which is the identity.
    degree : int
        Degree of the polynomials, less than p.

    Returns
    -------
    Tensor of shape (order, p * p, p * p)
        For every kernel k and polynomial q, ``<O_g k, q> = <O_1 k, q after g>``.
    """
    size = math.isqrt(operators.shape[1])
    points = pixel_grid((size, size), operators.dtype, operators.device).flatten(0, 1) / size  # (p * p, 2)

    def monomials(at: Tensor) -> Tensor:  # (..., p * p, 2) -> (..., p * p, terms)
        x, y = at.unbind(-1)
        return torch.stack([x ** (n - k) * y**k for n in range(degree + 1) for k in range(n + 1)], -1)

    basis = monomials(points)
    wanted = monomials(points @ elements[:, :2, :2].mT).mT @ operators[0]  # (order, terms, p * p)
    return operators + basis @ torch.linalg.solve(basis.T @ basis, wanted - basis.T @ operators)


class FrameBlock(nn.Module):
    """Transformer block that commutes with the group, in the irrep basis: (b, n, width) -> (b, n, width).

    ``x + attention(norm(x))``, then ``x + mlp(norm(x))``. With the group ``c1`` it is the block of an ordinary vision
    transformer with rotary positions.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``.
    width : int
        Numbers of a token: a multiple of the order of the group.
    heads : int
        Heads of all frames together.
    mlp_ratio : float, default 4.0
        Hidden numbers of the MLP, relative to the width.

    Examples
    --------
    >>> block = FrameBlock("d4", width=32, heads=8)
    >>> block(torch.rand(2, 3 * 5, 32), *block.attn.rotary_angles(3, 5)).shape
    torch.Size([2, 15, 32])
    """

    def __init__(self, group: str | FiniteGroup, width: int, heads: int, *, mlp_ratio: float = 4.0) -> None:
        super().__init__()
        group = parse_point_group(group)
        hidden = max(1, round(width * mlp_ratio / group.order)) * group.order
        self.norm1, self.attn = IrrepNorm(group, width), FrameAttention(group, width, heads)
        self.norm2, self.mlp = IrrepNorm(group, width), FrameMLP(group, width, hidden)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        tokens = tokens + self.attn(self.norm1(tokens), cos, sin)
        return tokens + self.mlp(self.norm2(tokens))
