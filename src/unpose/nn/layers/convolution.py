"""Group convolution: the baseline beside attention, and the stem of :func:`unpose.nn.swivel_net`."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import check_feature_maps, check_positive, check_window, parse_point_group
from unpose.nn.functional.positions import inverse_elements, relative_elements, relative_positions
from unpose.nn.layers.constants import ConstantTables
from unpose.nn.layers.encodings import harmonic_basis

_BLURS = (1.0, 3.0, 3.0, 1.0), (2.0, 4.0, 2.0, 0.0)
"""Eight times the weights of the blur along an even and along an odd side."""


def kernel_basis(group: FiniteGroup, size: int) -> Tensor:
    """Return the kernel basis as transformed by each element: (order, functions, size, size) in float64.

    If the group maps the pixel grid onto itself (quarter turns, mirrors), the basis functions are single pixels and
    every kernel is an exact permutation of the first. For finer angles they are the smooth functions of
    :func:`unpose.nn.layers.encodings.harmonic_basis` at the rotated positions, each with unit norm at the identity.
    """
    inverses = inverse_elements(group)
    points = relative_positions(inverses, (size, size))  # (order, size, size, 2)
    if torch.equal(inverses, inverses.round()):
        return (points[:, None] == points[0].flatten(0, 1)[None, :, None, None]).all(-1).double()
    radius = size // 2
    # The outer ring lies a quarter of a pixel inside the window, so that the square window truncates it little:
    # measured, the error at 45 degrees falls from 12 % to 3 %. A window of 3 is too small for that.
    spacing = (radius - 0.25) / radius if radius > 1 else 1.0
    basis = harmonic_basis(points / spacing, radius + 1).movedim(-1, 1)
    return basis / basis[:1].square().sum((-2, -1), keepdim=True).sqrt()


class GroupConv2d(ConstantTables):
    """Convolution with one kernel transformed by every element of a group.

    Lifting: ``out(i, h) = sum_j psi(h^-1 (x_j - x_i)) f(j)``, (b, in, h, w) -> (b, out, order, h, w). On the group:
    ``out(i, h) = sum_jk psi(h^-1 (x_j - x_i), h^-1 k) f(j, k)``, (b, in, order, h, w) -> (b, out, order, h, w).

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"p4"``, ``"c8"`` or ``"d4"``.
    in_channels, out_channels : int
        Channels of the input and output maps.
    kernel_size : int
        Odd side of the square kernel in pixels.
    lifting : bool, default False
        Whether the input is an image and not a map on the group.
    bias : bool, default True
        Whether to add a learnt constant to each output channel.
    stride : {1, 2}, default 1
        1 keeps the size of the input; 2 halves it, like :class:`unpose.nn.SpatialPool`, after a blur.

    Notes
    -----
    The input is padded with zeros. A plain stride would read other pixels in the rotated image. With ``stride=2`` the
    kernel is convolved with a binomial blur, which prevents aliasing: of four pixels around the middle of a pair where
    the side is even, of three around every second pixel where it is odd. Either way the positions of the outputs are
    symmetric about the centre, so the layer commutes with quarter turns and mirrors at every size, with the same
    weights. Only a quarter of the outputs is computed.

    Examples
    --------
    >>> GroupConv2d("c8", 3, 4, 5, lifting=True)(torch.rand(2, 3, 9, 13)).shape
    torch.Size([2, 4, 8, 9, 13])
    >>> GroupConv2d("c8", 3, 4, 5, lifting=True, stride=2)(torch.rand(2, 3, 9, 14)).shape
    torch.Size([2, 4, 8, 5, 7])
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
        stride: int = 1,
    ) -> None:
        super().__init__()
        group = parse_point_group(group)
        check_positive(in_channels=in_channels, out_channels=out_channels)
        check_window((kernel_size, kernel_size))
        if stride not in (1, 2):
            raise ValueError(f"stride must be 1 or 2, got {stride}; SpatialPool halves maps further")
        self.stride = stride
        self.group, self.in_channels, self.lifting, self.kernel_size = group, in_channels, lifting, kernel_size
        functions = kernel_basis(group, kernel_size).shape[1]
        shape = (out_channels, in_channels, 1 if lifting else group.order, functions)
        self.weight = nn.Parameter(torch.randn(shape) * math.sqrt(2 / math.prod(shape[1:])))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        lifting = torch.zeros(self.group.order, 1, dtype=torch.long)
        relations = lifting if self.lifting else relative_elements(self.group)[0]  # (order, keys)
        return {"basis": kernel_basis(self.group, self.kernel_size), "relations": relations}

    def extra_repr(self) -> str:
        out_channels, in_channels = self.weight.shape[:2]
        return f"group={self.group}, {in_channels} -> {out_channels}, lifting={self.lifting}, stride={self.stride}"

    def kernels(self) -> Tensor:
        """Return the kernels of all elements: (out, order, in, keys, size, size)."""
        # o output channel, i input channel, r relative element, n basis function, g element
        transformed = torch.einsum("oirn,gnyx->oirgyx", self.weight, self.basis.to(self.weight.dtype))
        if self.lifting:
            return transformed.permute(0, 3, 1, 2, 4, 5)
        order = self.group.order
        own = torch.arange(order, device=self.relations.device)[:, None]
        # ``index_select`` and not indexing: on a GPU the gradient of an index sorts first.
        rows = transformed.flatten(2, 3).index_select(2, torch.add(own, self.relations, alpha=order).flatten())
        return rows.unflatten(2, (order, order)).transpose(1, 2)  # (out, order, in, keys, size, size)

    def forward(self, maps: Tensor) -> Tensor:
        check_feature_maps(maps, self.in_channels, None if self.lifting else self.group)
        kernels = self.kernels()
        flat = kernels.flatten(2, 3).flatten(0, 1).to(maps.dtype)  # (out * order, in * keys, size, size)
        bias = None if self.bias is None else self.bias.repeat_interleave(self.group.order).to(maps.dtype)
        stacked = maps if self.lifting else maps.flatten(1, 2)  # (b, in * keys, h, w)
        if self.stride == 1:
            found = conv2d(stacked, flat, bias, padding=flat.shape[-1] // 2)
        else:
            before = self.kernel_size // 2 + 1  # pixels from an even pixel to the first one that its output reads
            padded = pad(stacked, (before, before + 1) * 2)
            found = conv2d(padded, blurred_kernels(flat, maps.shape[-2], maps.shape[-1]), bias, stride=2)
        return found.unflatten(1, (-1, self.group.order))


def blurred_kernels(kernels: Tensor, height: int, width: int) -> Tensor:
    """Convolve kernels with the blur for halving maps of this size: (n, m, size, size) -> (n, m, size + 3, size + 3).

    The weights are (1, 3, 3, 1) / 8 along an even side and (1, 2, 1, 0) / 4 along an odd one. They are mixed by the
    parity, without a branch, so that ``torch.export`` can leave the sides free.
    """
    even, odd = (torch.tensor(row, dtype=kernels.dtype, device=kernels.device) / 8 for row in _BLURS)
    along_y, along_x = (even + side % 2 * (odd - even) for side in (height, width))
    blur = (along_y[:, None] * along_x).flip(0, 1)  # flipped: conv2d correlates
    return conv2d(kernels.flatten(0, 1)[:, None], blur[None, None], padding=3)[:, 0].unflatten(0, kernels.shape[:2])
