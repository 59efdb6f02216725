"""Group convolution: the strong baseline, and the stem of our own network."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import check_counts, check_maps
from unpose.nn.functional.group_attention import check_window
from unpose.nn.functional.positions import inverse_elements, parse_finite, relative_elements, relative_positions
from unpose.nn.layers.encodings import harmonic_basis


def kernel_basis(group: FiniteGroup, size: int) -> Tensor:
    """The functions that kernels are made of, as each element sees them: (order, functions, size, size) in float64.

    Where the group maps the pixel grid onto itself (quarter turns, mirrors) the functions are the pixels themselves and
    every kernel is an exact copy of the first with its weights moved. For finer angles they are the smooth functions of
    :func:`unpose.nn.layers.encodings.harmonic_basis`, evaluated at the turned positions, each with unit norm at the identity.
    """
    inverses = inverse_elements(group)
    points = relative_positions(inverses, (size, size))  # (order, size, size, 2)
    if torch.equal(inverses, inverses.round()):
        return (points[:, None] == points[0].flatten(0, 1)[None, :, None, None]).all(-1).double()
    radius = size // 2
    # Measured: with the outer ring a quarter of a pixel further in, a square window cuts off little of it, and the
    # error at 45 degrees falls from 12 % to 3 %. A window of 3 has no room for that.
    spacing = (radius - 0.25) / radius if radius > 1 else 1.0
    basis = harmonic_basis(points / spacing, radius + 1).movedim(-1, 1)
    return basis / basis[:1].square().sum((-2, -1), keepdim=True).sqrt()


class GroupConv2d(nn.Module):
    """Convolution with one kernel seen from every element of a group; the result has the size of the input.

    Lifting: ``out(i, h) = sum_j psi(h^-1 (x_j - x_i)) f(j)``, (b, in, h, w) -> (b, out, order, h, w). On the group:
    ``out(i, h) = sum_jk psi(h^-1 (x_j - x_i), h^-1 k) f(j, k)``, (b, in, order, h, w) -> (b, out, order, h, w).

    Parameters
    ----------
    group : name or FiniteGroup, a point group
    in_channels, out_channels : of the maps
    kernel_size : odd side of the square kernel
    lifting : whether the input is a map on the plane
    bias : whether a number is added to each output channel

    Notes
    -----
    Outside of the image everything is zero. There is no stride: :class:`unpose.nn.SpatialPool` makes maps smaller
    without breaking the symmetry.

    Examples
    --------
    >>> GroupConv2d("c8", 3, 4, 5, lifting=True)(torch.rand(2, 3, 9, 13)).shape
    torch.Size([2, 4, 8, 9, 13])
    """

    basis: Tensor
    relations: Tensor

    def __init__(
        self,
        group: str | FiniteGroup,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        lifting: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        group = parse_finite(group)
        if not group.is_group:
            raise ValueError(f"group convolution needs a group that is closed, got {group}")
        check_counts(in_channels=in_channels, out_channels=out_channels)
        check_window((kernel_size, kernel_size))
        relations, kinds = relative_elements(group)
        if lifting:
            relations, kinds = torch.zeros(group.order, 1, dtype=torch.long), 1
        basis = kernel_basis(group, kernel_size)
        self.group, self.in_channels, self.lifting = group, in_channels, lifting
        fan = in_channels * kinds * basis.shape[1]
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, kinds, basis.shape[1]) * math.sqrt(2 / fan))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.register_buffer("basis", basis, persistent=False)
        self.register_buffer("relations", relations, persistent=False)

    def extra_repr(self) -> str:
        out_channels, in_channels = self.weight.shape[:2]
        return f"group={self.group}, {in_channels} -> {out_channels}, lifting={self.lifting}"

    def kernels(self) -> Tensor:
        """All kernels written out: (out, order, in, keys, size, size)."""
        seen = torch.einsum("oirn,gnyx->oigryx", self.weight, self.basis.to(self.weight.dtype))
        own = torch.arange(self.group.order, device=self.relations.device)[:, None]
        return seen[:, :, own, self.relations].transpose(1, 2)

    def forward(self, maps: Tensor) -> Tensor:
        check_maps(maps, self.in_channels, None if self.lifting else self.group)
        kernels = self.kernels()
        flat = kernels.flatten(2, 3).flatten(0, 1).to(maps.dtype)  # (out * order, in * keys, size, size)
        bias = None if self.bias is None else self.bias.repeat_interleave(self.group.order).to(maps.dtype)
        stacked = maps if self.lifting else maps.flatten(1, 2)  # (b, in * keys, h, w)
        return conv2d(stacked, flat, bias, padding=flat.shape[-1] // 2).unflatten(1, (-1, self.group.order))
