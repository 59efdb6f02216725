"""Features of tokens between the irrep basis and frames: a change of basis, GELU, and rotary positions.

The channels of a token are ``order x c``: in the irrep basis one row of c channels for each row of
:func:`unpose.groups.fourier_basis`, in frames one row for each element of the group. Nonlinear functions of a number
commute with the group in frames, where the group permutes rows; linear maps are cheap in the irrep basis.

The CUDA kernels are for d4, whose change of basis takes 20 additions for eight numbers. Their frames are ordered by
turns, each followed by the same turn after the mirror: the columns of the basis that ``rotary_frames`` and
``change_basis`` are given must be in this order. They read and write every token once and write no frames to memory.
``torch.compile`` sees the operators ``unpose::frame_gelu``, ``unpose::change_basis`` and ``unpose::rotary_frames`` and
does not trace into them.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import gelu, pad

from unpose.groups import FiniteGroup, fourier_basis, parse
from unpose.nn.ops.dispatch import drawn, first_derivatives_only, kernels, operator, use_kernels

KERNEL_GROUP = "d4"
"""The group for which there are kernels."""


_PAIRED = (0, 4, 1, 5, 2, 6, 3, 7)
"""Frames in the order of ``rotary_frames`` and ``change_basis``: each turn is followed by the same after the mirror."""


def _d4_basis(order: Sequence[int] = range(8)) -> Tensor:
    return fourier_basis(cast(FiniteGroup, parse(KERNEL_GROUP)))[:, list(order)].float()


def _example_turns() -> tuple[Tensor, Tensor]:
    angles = torch.rand(5, 8, 1, 3)
    return angles.cos(), angles.sin()


def to_frames(features: Tensor, basis: Tensor) -> Tensor:
    """Change from the irrep basis to frames, (..., order * c) -> (..., order, c), with PyTorch operations."""
    return _multiply_rows(basis.T, features.unflatten(-1, (len(basis), -1)))


def from_frames(frames: Tensor, basis: Tensor) -> Tensor:
    """Change from frames to the irrep basis, (..., order, c) -> (..., order * c), with PyTorch operations."""
    return _multiply_rows(basis, frames).flatten(-2)


def _multiply_rows(matrix: Tensor, rows: Tensor) -> Tensor:
    """Multiply (..., order, c) by an (order, order) matrix from the left."""
    if len(matrix) == 1:
        return rows
    if rows.is_cuda and torch.compiler.is_compiling():  # fused with what follows
        return (matrix.T.to(rows.dtype)[:, :, None] * rows.unsqueeze(-2)).sum(-3)
    # One product of a small and a long matrix: products of 8 rows for each token take four times as long on a CPU. The
    # result keeps the rows first in memory, so that changing back needs no copy.
    first = rows.movedim(-2, 0)  # (order, ..., c)
    return (matrix.to(rows.dtype) @ first.flatten(1)).view(first.shape).movedim(0, -2)


@operator(example=lambda: (drawn(2, 5, 8 * 3), drawn(3), _d4_basis(), KERNEL_GROUP))
def frame_gelu(features: Tensor, bias: Tensor | None, basis: Tensor, group: str) -> Tensor:
    """Add a bias, change to frames, apply GELU and change back: (..., order * c) -> (..., order * c).

    Parameters
    ----------
    features : (..., order * c) tensor
        In the irrep basis.
    bias : (c,) tensor, or None
        Added to the trivial representation.
    basis : (order, order) tensor
        See :func:`unpose.groups.fourier_basis`.
    group : str
        Name of the group, which decides whether there are kernels.

    Examples
    --------
    >>> from unpose.groups import fourier_basis, parse
    >>> basis = fourier_basis(parse("d1")).float()
    >>> features = torch.randn(5, 2 * 3)
    >>> frames = to_frames(frame_gelu(features, None, basis, "d1"), basis)
    >>> torch.allclose(frames, gelu(to_frames(features, basis)), atol=1e-6)
    True
    """
    if bias is None:
        bias = features.new_zeros(features.shape[-1] // len(basis))
    if group == KERNEL_GROUP and use_kernels("frames", features, bias):
        return _frame_gelu(features, bias.to(features.dtype))
    features = features + pad(bias, (0, features.shape[-1] - len(bias)))
    return from_frames(gelu(to_frames(features, basis)), basis)


@operator(example=lambda: (drawn(2, 5, 8 * 18), drawn(18), *_example_turns(), _d4_basis(_PAIRED), KERNEL_GROUP))
def rotary_frames(
    features: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor, basis: Tensor, group: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Change queries, keys and values to frames, and rotate queries and keys by the positions of their tokens.

    Parameters
    ----------
    features : (b, n, order * 3 * heads * d) tensor
        Queries, keys and values in the irrep basis.
    bias : (3 * heads * d,) tensor, or None
        Added to the trivial representation.
    cos, sin : (n, order, heads, d / 2) tensors
        The angles of pairs of channels j and j + d / 2 of each head, at each token, seen from each frame.
    basis : (order, order) tensor
    group : str

    Returns
    -------
    three (b, n, order, heads, d) tensors

    Examples
    --------
    >>> from unpose.groups import fourier_basis, parse
    >>> basis, angle = fourier_basis(parse("c4")).float(), torch.rand(7, 4, 2, 3)
    >>> query, key, value = rotary_frames(torch.randn(5, 7, 4 * 36), None, angle.cos(), angle.sin(), basis, "c4")
    >>> value.shape
    torch.Size([5, 7, 4, 2, 6])
    """
    heads, half = cos.shape[-2:]
    if bias is None:
        bias = features.new_zeros(6 * heads * half)
    if group == KERNEL_GROUP and use_kernels("frames", features, bias):
        return _rotary_frames(features, bias.to(features.dtype), cos, sin)
    features = features + pad(bias.to(features.dtype), (0, features.shape[-1] - len(bias)))
    query, key, value = to_frames(features, basis).unflatten(-1, (3, heads, 2 * half)).unbind(-3)
    cos, sin = cos.to(features.dtype), sin.to(features.dtype)
    return _rotate(query, cos, sin), _rotate(key, cos, sin), value


@operator(example=lambda: (drawn(2, 5, 8, 3), _d4_basis(_PAIRED), KERNEL_GROUP))
def change_basis(frames: Tensor, basis: Tensor, group: str) -> Tensor:
    """Change from frames to the irrep basis: (..., order, c) -> (..., order * c); see :func:`from_frames`."""
    if group == KERNEL_GROUP and use_kernels("frames", frames):
        return _change_basis(frames.flatten(-2), False)
    return from_frames(frames, basis)


def _rotate(features: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of channels: (..., d) by angles (..., d / 2)."""
    first, second = features.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


@torch.library.custom_op("unpose::frame_gelu", mutates_args=())
def _frame_gelu(features: Tensor, bias: Tensor) -> Tensor:
    return kernels("frames", features).gelu_forward(features, bias)


@torch.library.custom_op("unpose::frame_gelu_backward", mutates_args=())
def _frame_gelu_backward(grad_out: Tensor, features: Tensor, bias: Tensor) -> Tensor:
    return kernels("frames", features).gelu_backward(grad_out, features, bias)


@torch.library.custom_op("unpose::change_basis", mutates_args=())
def _change_basis(features: Tensor, to_frames: bool) -> Tensor:
    return kernels("frames", features).change_basis(features, to_frames)


@torch.library.custom_op("unpose::rotary_frames", mutates_args=())
def _rotary_frames(features: Tensor, bias: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return kernels("frames", features).rotary_forward(features, bias, cos, sin)


@torch.library.custom_op("unpose::rotary_frames_backward", mutates_args=())
def _rotary_frames_backward(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return kernels("frames", query).rotary_backward(query, key, value, cos, sin)


@_frame_gelu_backward.register_fake
def _frame_gelu_backward_shape(grad_out: Tensor, features: Tensor, bias: Tensor) -> Tensor:
    return features.new_empty(features.shape)


@_frame_gelu.register_fake
@_change_basis.register_fake
def _same_shape(features: Tensor, _: Tensor | bool) -> Tensor:
    return features.new_empty(features.shape)


@_rotary_frames.register_fake
def _rotary_frames_shapes(features: Tensor, bias: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _, order, heads, half = cos.shape
    one, two, three = (features.new_empty(*features.shape[:2], order, heads, 2 * half) for _ in range(3))
    return one, two, three


@_rotary_frames_backward.register_fake
def _rotary_frames_backward_shape(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return query.new_empty(*query.shape[:2], 3 * query[0, 0].numel())


def _save_gelu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gelu_backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    features, bias = ctx.saved_tensors
    gradient = _frame_gelu_backward(grad_out, features, bias)
    return gradient, _bias_gradient(gradient, bias)


def _bias_gradient(gradient: Tensor, bias: Tensor) -> Tensor:
    """Sum the gradient of the trivial representation over tokens."""
    return gradient[..., : len(bias)].flatten(0, -2).sum(0, dtype=torch.float32).to(bias.dtype)


def _save_direction(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.to_frames = inputs[1]


def _change_basis_backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    return _change_basis(grad_out, not ctx.to_frames), None


def _save_rotary(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[1:])


def _rotary_backward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor | None, ...]:
    bias, cos, sin = ctx.saved_tensors
    gradient = _rotary_frames_backward(query, key, value, cos, sin)
    return gradient, _bias_gradient(gradient, bias), None, None


_frame_gelu.register_autograd(_gelu_backward, setup_context=_save_gelu)
_change_basis.register_autograd(_change_basis_backward, setup_context=_save_direction)
_rotary_frames.register_autograd(_rotary_backward, setup_context=_save_rotary)
first_derivatives_only(_frame_gelu_backward, "fused GELU in frames")
first_derivatives_only(_rotary_frames_backward, "the fused rotary encoding")
