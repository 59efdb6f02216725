"""The position table of a separable encoding: one operator with kernels on CUDA.

``torch.compile`` and ``torch.export`` see the operator ``unpose::separable_table`` and do not trace into it. Elsewhere
:func:`unpose.nn.position_table` computes the whole table with PyTorch operations.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unpose.nn.ops.dispatch import first_derivatives_only, kernels, use_kernels


def use_separable_table(weights: Sequence[Tensor], inverses: Tensor, relations: Tensor) -> bool:
    """Return whether :func:`separable_table` takes these weights; never under ``implementation("plain")``."""
    relative_elements, channels = weights[12].shape if len(weights) > 12 else (1, 0)
    widest = max(len(weights[4]), len(weights[10]), channels)
    is_possible = relations.ndim == 2 and inverses.device == weights[0].device
    entries = relative_elements * widest
    return is_possible and use_kernels("separable_table", *weights, channels=widest, vector_entries=entries)


def separable_table(
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window: tuple[int, int],
    *,
    reach: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:
    """Compute the two parts of the position table of a separable encoding, in float32, where kernels are used.

    Parameters
    ----------
    weights : sequence of 12 or 13 tensors
        The parameters of :class:`unpose.nn.SeparableEncoding` in their order: weight and bias of the first linear
        layer, of the norm and of the second linear layer, for x, then for y; then the (relative elements, e)
        vectors, if there are any.
    inverses : (order, 2, 2) tensor of any floating type
        The linear parts of the inverse elements ``h^-1``.
    relations : (order, keys) tensor of int64
        The index of the relative element ``h^-1 k``.
    window : (int, int)
    reach : float
        The distance in pixels that the encoding sees as 1.
    eps : float
        Added to the variance in the norms.
    dtype : torch.dtype
        Of the result.

    Returns
    -------
    position : (1, order, 1, *window, c) tensor
        The channels of x and y, the same for all keys.
    element : (1, order, keys, e) tensor, or None
        The channels of the relative elements, the same for the whole window.
    """
    position, element = _table(list(weights), inverses, relations, *window, reach, eps, dtype)
    return position, element if len(weights) > 12 else None


@torch.library.custom_op("unpose::separable_table", mutates_args=())
def _table(
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window_y: int,
    window_x: int,
    reach: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    backend = kernels("separable_table", weights[0])
    return backend.forward(weights, inverses, relations, (window_y, window_x), reach, eps, dtype)


@torch.library.custom_op("unpose::separable_table_backward", mutates_args=())
def _table_backward(
    grad_position: Tensor,
    grad_element: Tensor,
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window_y: int,
    window_x: int,
    reach: float,
    eps: float,
) -> Tensor:
    backend, window = kernels("separable_table", weights[0]), (window_y, window_x)
    return backend.backward(grad_position, grad_element, weights, inverses, relations, window, reach, eps)


@_table.register_fake
def _table_shape(
    weights: Sequence[Tensor], inverses: Tensor, relations: Tensor, window_y: int, window_x: int, reach: float,
    eps: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    order, keys = relations.shape
    table = inverses.new_empty(1, order, 1, window_y, window_x, len(weights[4]) + len(weights[10]), dtype=dtype)
    return table, table.new_empty(1, order, keys, weights[12].shape[1]) if len(weights) > 12 else table.new_empty(0)


@_table_backward.register_fake
def _table_backward_shape(
    grad_position: Tensor, grad_element: Tensor, weights: Sequence[Tensor], inverses: Tensor, *_: Any
) -> Tensor:
    return inverses.new_empty(sum(weight.numel() for weight in weights), dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    weights, inverses, relations, *ctx.numbers, _ = inputs
    ctx.save_for_backward(inverses, relations, *weights)


def _backward(ctx: Any, grad_position: Tensor, grad_element: Tensor) -> tuple[Any, ...]:
    inverses, relations, *weights = ctx.saved_tensors
    flat = _table_backward(grad_position, grad_element, weights, inverses, relations, *ctx.numbers)
    parts = flat.split([weight.numel() for weight in weights])
    grad_weights = [part.view(weight.shape).to(weight.dtype) for part, weight in zip(parts, weights, strict=True)]
    return grad_weights, None, None, None, None, None, None, None


_table.register_autograd(_backward, setup_context=_save)
first_derivatives_only(_table_backward, "the fused position table")
