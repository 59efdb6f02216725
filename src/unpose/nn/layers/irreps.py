"""Layers for tokens that carry functions on a group, in the irrep basis: linear map, norm, GELU in frames.

Tokens are (..., width) with ``width = order * channels``. In the irrep basis the width is
``[singles x channels | pairs x components x 2 channels]``, see :func:`unpose.groups.fourier_basis`; an element of the
group multiplies the channels of a one-dimensional representation by 1 or -1 and mixes the two components of a
two-dimensional one.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from unpose.groups import FiniteGroup, as_quarter_turns, fourier_basis, irreducible_representations
from unpose.nn.functional.checks import check_positive, parse_point_group
from unpose.nn.layers.constants import ConstantTables
from unpose.nn.ops.frames import frame_gelu
from unpose.nn.ops.irrep_linear import irrep_linear


def channels_of(width: int, group: FiniteGroup) -> int:
    """Return the channels of each element of the group, given all numbers of a token."""
    check_positive(width=width)
    if width % group.order:
        nearest = max(1, round(width / group.order)) * group.order
        raise ValueError(
            f"the width must be a multiple of {group.order}, the order of {group}, got {width}; {nearest}?"
        )
    return width // group.order


def needs_interpolation(group: FiniteGroup) -> bool:
    """Whether a group has other elements than quarter turns and mirrors, which permute pixels."""
    return any(as_quarter_turns(element) is None for element in group.elements)


class IrrepLinear(nn.Module):
    """Linear map of tokens that commutes with the group, in the irrep basis: (..., in_features) -> (..., out_features).

    One block for each irreducible representation, and a bias for the trivial one alone. For a dihedral group all
    components of a representation share a block. For a cyclic one, a block of two components is a complex matrix.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``.
    in_features, out_features : int
        Numbers of a token: multiples of the order of the group.
    bias : bool, default True
        Whether to add a learnt constant to the channels of the trivial representation.

    Notes
    -----
    With c channels for each element, d4 needs 12 c^2 products and 8 c^2 parameters in place of the 64 c^2 of a linear
    map of the same width.

    Examples
    --------
    >>> layer = IrrepLinear("d4", 16, 24)
    >>> layer(torch.rand(2, 5, 16)).shape
    torch.Size([2, 5, 24])
    >>> sum(p.numel() for p in layer.parameters())  # 8 * 2 * 3 weights, 3 biases
    51
    """

    pairs: nn.Parameter | None  # None and not empty for c1, c2, d1 and d2: DDP fails with a parameter of size zero

    def __init__(self, group: str | FiniteGroup, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        self.group, self.in_features, self.out_features = parse_point_group(group), in_features, out_features
        channels, out = channels_of(in_features, self.group), channels_of(out_features, self.group)
        irreps = irreducible_representations(self.group)
        self.components, count = irreps.copies, len(irreps.pairs)
        # Without mirrors the matrices that commute with a pair are A + B i: only A and B are stored.
        shape = (count, 2 * out, 2 * channels) if irreps.copies == 2 else (count, 2, out, channels)
        bound = math.sqrt(1 / channels)  # as torch.nn.Linear
        self.singles = nn.Parameter(torch.empty(len(irreps.singles), out, channels).uniform_(-bound, bound))
        pairs = torch.empty(shape).uniform_(-bound, bound) / math.sqrt(2)
        self.register_parameter("pairs", nn.Parameter(pairs) if len(pairs) else None)
        self.register_load_state_dict_pre_hook(_without_empty)
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None

    def extra_repr(self) -> str:
        return f"group={self.group}, {self.in_features} -> {self.out_features}, bias={self.bias is not None}"

    def blocks(self) -> Tensor:
        """Return the blocks of the two-dimensional representations: (pairs, 2 * out, 2 * channels)."""
        if self.pairs is None:
            _, out, channels = self.singles.shape
            return self.singles.new_empty(0, 2 * out, 2 * channels)
        if self.components == 2:
            return self.pairs
        real, imaginary = self.pairs.unbind(1)  # (pairs, out, channels) each
        return torch.cat([torch.cat([real, -imaginary], -1), torch.cat([imaginary, real], -1)], -2)

    def multiply(self, tokens: Tensor) -> Tensor:
        """Apply the map without its bias, for an operator that adds it."""
        return irrep_linear(tokens, self.singles, self.blocks(), None, self.components)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[-1] != self.in_features:
            raise ValueError(f"the tokens must be (..., {self.in_features}), got shape {tuple(tokens.shape)}")
        return irrep_linear(tokens, self.singles, self.blocks(), self.bias, self.components)


class IrrepNorm(ConstantTables):
    """Layer norm of tokens that commutes with the group, in the irrep basis: (..., width) -> (..., width).

    Mean and variance are those over all channels and elements of the group. The mean lies in the trivial
    representation, and an orthogonal basis keeps the variance. The scale is one number for each channel of each
    representation, the shift only acts on the trivial one.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``.
    width : int
        Numbers of a token.
    eps : float, optional
        Added to the variance. Default: 1e-6, and 0.01 for groups with other angles than quarter turns. There, a token
        of a part of the image that is nearly empty holds little but errors of interpolation, which the norm would
        enlarge.

    Examples
    --------
    >>> IrrepNorm("d4", 24)(torch.rand(2, 5, 24)).shape
    torch.Size([2, 5, 24])
    """

    trivial: Tensor
    weight_pairs: nn.Parameter | None

    def __init__(self, group: str | FiniteGroup, width: int, *, eps: float | None = None) -> None:
        super().__init__()
        self.group, self.width = parse_point_group(group), width
        self.eps = (1e-2 if needs_interpolation(self.group) else 1e-6) if eps is None else eps
        channels = channels_of(width, self.group)
        irreps = irreducible_representations(self.group)
        self.copies = irreps.copies
        self.weight = nn.Parameter(torch.ones(len(irreps.singles) * channels))
        pairs = torch.ones(len(irreps.pairs), 1, irreps.copies * channels)
        self.register_parameter("weight_pairs", nn.Parameter(pairs) if len(pairs) else None)
        self.register_load_state_dict_pre_hook(_without_empty)
        self.bias = nn.Parameter(torch.zeros(channels))
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        channels = self.width // self.group.order
        return {"trivial": (torch.arange(self.width) < channels).double()}

    def extra_repr(self) -> str:
        return f"group={self.group}, {self.width}, eps={self.eps}"

    def forward(self, tokens: Tensor) -> Tensor:
        channels = len(self.bias)
        scale: Tensor = self.weight  # (width,)
        if self.weight_pairs is not None:
            scale = torch.cat([scale, self.weight_pairs.expand(-1, 2, -1).flatten()])
        full = tokens.float() if tokens.dtype in (torch.bfloat16, torch.float16) else tokens
        # The mean over channels and elements lies in the trivial representation. It is written as a sum over the whole
        # row, and not over a part of it, so that a compiler can fuse the norm to one pass over memory.
        trivial = self.trivial.to(full.dtype)  # (width,)
        mean = (full * trivial).sum(-1, keepdim=True) / channels
        centred = full - mean * trivial
        normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.eps)
        return normed * scale + pad(self.bias, (0, self.width - channels))


def _without_empty(module: nn.Module, weights: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Leave out what earlier versions saved for groups without two-dimensional representations: empty tensors."""
    for name in ("pairs", "weight_pairs"):
        if prefix + name in weights and not weights[prefix + name].numel():
            del weights[prefix + name]


class FrameMLP(ConstantTables):
    """Two linear maps that commute with the group, with GELU in frames between them: (..., width) -> (..., width).

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``.
    width, hidden : int
        Numbers of a token at the ends and in the middle: multiples of the order of the group.

    Examples
    --------
    >>> FrameMLP("d4", 16, 64)(torch.rand(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    basis: Tensor

    def __init__(self, group: str | FiniteGroup, width: int, hidden: int) -> None:
        super().__init__()
        self.group = parse_point_group(group)
        self.fc1, self.fc2 = IrrepLinear(self.group, width, hidden), IrrepLinear(self.group, hidden, width)
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        return {"basis": fourier_basis(self.group)}

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc2(frame_gelu(self.fc1.multiply(tokens), self.fc1.bias, self.basis, self.group.name))
