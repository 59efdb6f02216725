"""The parts of a separable encoding's table as one operator of torch on CUDA, with Triton kernels behind it.

``torch.compile`` and ``torch.export`` see the operator ``unpose::separable_table`` and do not look inside. Elsewhere
:func:`unpose.nn.position_table` makes the whole table of torch's operations.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from unpose.nn.layers.encodings import SeparableEncoding
from unpose.nn.ops.norm import takes

_WIDEST = 32
"""Channels of each of the three parts that a program holds, at most."""

_VECTORS = 1024
"""Relative elements times channels, at most: a program holds as many numbers, each factor rounded to a power of two."""


def has_table(encoding: SeparableEncoding, inverses: Tensor, relations: Tensor) -> bool:
    """Whether :func:`separable_table` takes this encoding; not under ``implementation("plain")``."""
    weights = list(encoding.parameters())
    kinds, channels = (1, 0) if encoding.element is None else encoding.element.weight.shape
    widest = max(len(weights[4]), len(weights[10]), channels)
    fits = relations.ndim == 2 and widest <= _WIDEST and kinds * widest <= _VECTORS
    return fits and inverses.device == weights[0].device and takes(*weights)


def separable_table(
    encoding: SeparableEncoding, inverses: Tensor, relations: Tensor, window: tuple[int, int], kind: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """The two parts of an encoding's table (:func:`unpose.nn.functional.group_attention.joint_table`) as ``kind``, computed in float32.

    The channels of x and y, (1, order, 1, *window, c), the same for all keys; and those of the elements, (1, order,
    keys, e), the same for the whole window, or None. For encodings that have it (:func:`has_table`); ``inverses`` may
    be of any type.
    """
    eps = encoding.along_x[1].eps
    position, element = _table(list(encoding.parameters()), inverses, relations, *window, encoding.reach, eps, kind)
    return position, None if encoding.element is None else element


def _loops() -> Any:
    """Imported on first use: Triton costs time, and is seldom there."""
    return import_module("unpose.nn.ops.cuda.encoding")


@torch.library.custom_op("unpose::separable_table", mutates_args=())
def _table(
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window_y: int,
    window_x: int,
    reach: float,
    eps: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    return _loops().forward(weights, inverses, relations, (window_y, window_x), reach, eps, kind)


@torch.library.custom_op("unpose::separable_table_backward", mutates_args=())
def _table_backward(
    grad_table: Tensor,
    grad_element: Tensor,
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window_y: int,
    window_x: int,
    reach: float,
    eps: float,
) -> Tensor:
    return _loops().backward(grad_table, grad_element, weights, inverses, relations, (window_y, window_x), reach, eps)


@_table.register_fake
def _table_shape(
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window_y: int,
    window_x: int,
    reach: float,
    eps: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    order, keys = relations.shape
    table = inverses.new_empty(1, order, 1, window_y, window_x, len(weights[4]) + len(weights[10]), dtype=kind)
    return table, table.new_empty(1, order, keys, weights[12].shape[1]) if len(weights) > 12 else table.new_empty(0)


@_table_backward.register_fake
def _table_backward_shape(
    grad_table: Tensor,
    grad_element: Tensor,
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window_y: int,
    window_x: int,
    reach: float,
    eps: float,
) -> Tensor:
    return inverses.new_empty(sum(weight.numel() for weight in weights), dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    weights, inverses, relations, *ctx.numbers, _ = inputs
    ctx.save_for_backward(inverses, relations, *weights)


def _backward(ctx: Any, to_table: Tensor, to_element: Tensor) -> tuple[Any, ...]:
    inverses, relations, *weights = ctx.saved_tensors
    found = _table_backward(to_table, to_element, weights, inverses, relations, *ctx.numbers)
    parts = found.split([weight.numel() for weight in weights])
    to_weights = [part.view(weight.shape).to(weight.dtype) for part, weight in zip(parts, weights, strict=True)]
    return to_weights, None, None, None, None, None, None, None


def _no_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError(
        "the fused position table has no second derivatives; compute it under unpose.nn.implementation('plain'), "
        "which has"
    )


_table.register_autograd(_backward, setup_context=_save)
_table_backward.register_autograd(_no_second, setup_context=lambda ctx, inputs, output: None)
