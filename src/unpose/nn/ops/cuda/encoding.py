"""The position table of a separable encoding on CUDA: one kernel, and two for its gradient.

A table is small (600 numbers in the published networks); computed with PyTorch operations it takes dozens of launches,
each longer to start than to run. A program computes both scalar networks (of x and of y) for one output element and a
block of window offsets; the first program of an element also writes the vectors of its relative elements. The hidden
units and the channels of a block are in registers.

The backward pass computes the networks again. A program sums the gradients of the weights over its offsets, and
:mod:`unpose.nn.ops.cuda.reduce` over programs in a fixed order: the same input gives the same bytes on the same
machine. Everything is float32. No block size depends on the GPU, and nothing is read back to the host.
"""

# mypy: disable-error-code="assignment, misc"

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unpose.nn.ops.cuda.reduce import sum_rows

_BLOCK_OFFSETS = 32
"""Most offsets of a program: few, so that there are programs for more than one multiprocessor."""

_BLOCK_SIZE = 256
"""Most offsets times channels of a program; each has a product for every hidden unit."""

_PROGRAMS = 256
"""Approximate number of programs of the backward pass: enough for any GPU, and few partial sums."""


def forward(
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window: tuple[int, int],
    reach: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Compute the two parts of the table, see :func:`unpose.nn.ops.encoding.separable_table`.

    Returns
    -------
    position : (1, order, 1, *window, channels of x and y), the same for all keys
    element : (1, order, keys, the other channels), the same for all offsets; empty if there are none
    """
    shape = _kernel_shape(weights, relations, window)
    (order, keys), element_channels = relations.shape, shape["ELEMENT_CHANNELS"]
    table_shape = 1, order, 1, *window, shape["X_CHANNELS"] + shape["Y_CHANNELS"]
    table = torch.empty(table_shape, dtype=dtype, device=inverses.device)
    element = table.new_empty((1, order, keys, element_channels) if element_channels else 0)
    n_blocks = triton.cdiv(window[0] * window[1], shape["BLOCK_OFFSETS"])
    with torch.cuda.device_of(table):
        table_kernel[(len(inverses), n_blocks)](
            *_pointers(weights), inverses.contiguous(), relations.contiguous(), table, element, reach, eps, **shape
        )
    return table, element


def backward(
    grad_position: Tensor,
    grad_element: Tensor,
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window: tuple[int, int],
    reach: float,
    eps: float,
) -> Tensor:
    """Compute the gradients of all weights, concatenated, in float32, from those of the two parts of the table."""
    shape = _kernel_shape(weights, relations, window)
    n_blocks = triton.cdiv(window[0] * window[1], shape["BLOCK_OFFSETS"])
    blocks_each = triton.cdiv(n_blocks, min(n_blocks, triton.cdiv(_PROGRAMS, len(inverses))))
    programs = triton.cdiv(n_blocks, blocks_each)
    partial_sums = torch.empty(
        programs * len(inverses), sum(weight.numel() for weight in weights), dtype=torch.float32, device=inverses.device
    )
    with torch.cuda.device_of(partial_sums):
        weight_gradient_kernel[(len(inverses), programs)](
            grad_position.contiguous(), grad_element.contiguous(), *_pointers(weights), inverses.contiguous(),
            relations.contiguous(), partial_sums, reach, eps, blocks_each, partial_sums.shape[1], **shape,
            BLOCK_RELATIONS=triton.next_power_of_2(len(weights[-1]) if shape["ELEMENT_CHANNELS"] else 1),
        )  # fmt: skip
    return sum_rows(partial_sums)


def _pointers(weights: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the networks of x and y and the vectors; if there are none, an address that is never read."""
    contiguous = [weight.contiguous() for weight in weights]
    return tuple(contiguous[:6]), tuple(contiguous[6:12]), contiguous[-1]


def _kernel_shape(weights: Sequence[Tensor], relations: Tensor, window: tuple[int, int]) -> dict[str, Any]:
    """Return the sizes for which both kernels are compiled."""
    x_channels, y_channels = len(weights[4]), len(weights[10])
    element_channels = weights[12].shape[1] if len(weights) > 12 else 0
    block_channels = triton.next_power_of_2(max(x_channels, y_channels, element_channels))
    return {
        "KEYS": relations.shape[1], "WY": window[0], "WX": window[1], "HIDDEN": len(weights[0]),
        "X_CHANNELS": x_channels, "Y_CHANNELS": y_channels, "ELEMENT_CHANNELS": element_channels,
        "BLOCK_CHANNELS": block_channels, "BLOCK_OFFSETS": min(_BLOCK_OFFSETS, _BLOCK_SIZE // block_channels),
        "num_warps": 4,
    }  # fmt: skip


@triton.jit
def table_kernel(  # type: ignore[no-untyped-def]
    network_x, network_y, element_vectors, inverses, relations, table, element, reach, eps,
    KEYS: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr, HIDDEN: tl.constexpr, X_CHANNELS: tl.constexpr,
    Y_CHANNELS: tl.constexpr, ELEMENT_CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_OFFSETS: tl.constexpr,
):  # fmt: skip
    """Compute the table for one output element, ``program_id(0)``, and BLOCK_OFFSETS window offsets."""
    output, channel = tl.program_id(0), tl.arange(0, BLOCK_CHANNELS)
    offset = tl.program_id(1) * BLOCK_OFFSETS + tl.arange(0, BLOCK_OFFSETS)
    x, y = _relative_coordinates(inverses, output, offset, reach, WY, WX)
    pointers = table + _entry_offset(output, offset, WY, WX, X_CHANNELS + Y_CHANNELS) + channel[None]
    is_inside = (offset < WY * WX)[:, None]
    along_x = _network(network_x, x, eps, channel, X_CHANNELS, HIDDEN)  # (BLOCK_OFFSETS, BLOCK_CHANNELS)
    tl.store(pointers, along_x.to(table.dtype.element_ty), mask=is_inside & (channel < X_CHANNELS)[None])
    along_y = _network(network_y, y, eps, channel, Y_CHANNELS, HIDDEN)
    tl.store(pointers + X_CHANNELS, along_y.to(table.dtype.element_ty), mask=is_inside & (channel < Y_CHANNELS)[None])
    if ELEMENT_CHANNELS > 0:
        is_first_program = channel + tl.program_id(1) * BLOCK_CHANNELS < ELEMENT_CHANNELS
        for key in range(KEYS):
            relative_element = tl.load(relations + output * KEYS + key)
            vector_pointers = element_vectors + relative_element * ELEMENT_CHANNELS + channel
            vector = tl.load(vector_pointers, mask=channel < ELEMENT_CHANNELS, other=0.0)
            element_pointers = element + (output * KEYS + key) * ELEMENT_CHANNELS + channel
            tl.store(element_pointers, vector.to(element.dtype.element_ty), mask=is_first_program)


@triton.jit
def weight_gradient_kernel(  # type: ignore[no-untyped-def]
    grad_position, grad_element, network_x, network_y, element_vectors, inverses, relations, partial_sums, reach, eps,
    blocks_each, n_weights,
    KEYS: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr, HIDDEN: tl.constexpr, X_CHANNELS: tl.constexpr,
    Y_CHANNELS: tl.constexpr, ELEMENT_CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_OFFSETS: tl.constexpr,
    BLOCK_RELATIONS: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of all weights for one output element and ``blocks_each`` blocks of offsets to a row."""
    output, channel = tl.program_id(0), tl.arange(0, BLOCK_CHANNELS)
    relation = tl.arange(0, BLOCK_RELATIONS)
    sums_x, sums_y = _zero_sums(BLOCK_CHANNELS, HIDDEN), _zero_sums(BLOCK_CHANNELS, HIDDEN)
    grad_vectors = tl.zeros((BLOCK_RELATIONS, BLOCK_CHANNELS), tl.float32)
    if ELEMENT_CHANNELS > 0:
        is_first_program = channel + tl.program_id(1) * BLOCK_CHANNELS < ELEMENT_CHANNELS
        for key in range(KEYS):
            relative_element = tl.load(relations + output * KEYS + key)
            element_pointers = grad_element + (output * KEYS + key) * ELEMENT_CHANNELS + channel
            gradient = tl.load(element_pointers, mask=is_first_program, other=0.0).to(tl.float32)
            grad_vectors += tl.where((relation == relative_element)[:, None], gradient[None], 0.0)
    for step in range(blocks_each):
        offset = (tl.program_id(1) * blocks_each + step) * BLOCK_OFFSETS + tl.arange(0, BLOCK_OFFSETS)
        is_inside = (offset < WY * WX)[:, None]
        pointers = grad_position + _entry_offset(output, offset, WY, WX, X_CHANNELS + Y_CHANNELS) + channel[None]
        gradient_x = tl.load(pointers, mask=is_inside & (channel < X_CHANNELS)[None], other=0.0).to(tl.float32)
        pointers += X_CHANNELS
        gradient_y = tl.load(pointers, mask=is_inside & (channel < Y_CHANNELS)[None], other=0.0).to(tl.float32)
        x, y = _relative_coordinates(inverses, output, offset, reach, WY, WX)
        sums_x = _add_gradients(sums_x, network_x, x, gradient_x, eps, channel, X_CHANNELS, HIDDEN)
        sums_y = _add_gradients(sums_y, network_y, y, gradient_y, eps, channel, Y_CHANNELS, HIDDEN)
    row = partial_sums + (output * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * n_weights
    row = _store_sums(row, sums_x, channel, X_CHANNELS, HIDDEN)
    row = _store_sums(row, sums_y, channel, Y_CHANNELS, HIDDEN)
    if ELEMENT_CHANNELS > 0:
        index = relation[:, None] * ELEMENT_CHANNELS + channel[None]
        n_entries = n_weights - (4 * HIDDEN * 2 + (X_CHANNELS + Y_CHANNELS) * (HIDDEN + 1))
        tl.store(row + index, grad_vectors, mask=(channel < ELEMENT_CHANNELS)[None] & (index < n_entries))


@triton.jit
def _relative_coordinates(  # type: ignore[no-untyped-def]
    inverses, output, offset, reach, WY: tl.constexpr, WX: tl.constexpr
):
    """Return both coordinates of ``h^-1 (x_j - x_i)`` for an output element h, in units of ``reach``."""
    x, y = (offset % WX - WX // 2).to(tl.float32), (offset // WX - WY // 2).to(tl.float32)
    inverse = inverses + output * 4
    a, b = tl.load(inverse).to(tl.float32), tl.load(inverse + 1).to(tl.float32)
    c, d = tl.load(inverse + 2).to(tl.float32), tl.load(inverse + 3).to(tl.float32)
    return (a * x + b * y) / reach, (c * x + d * y) / reach


@triton.jit
def _entry_offset(  # type: ignore[no-untyped-def]
    output, offset, WY: tl.constexpr, WX: tl.constexpr, CHANNELS: tl.constexpr
):
    """Return the offset in memory of the table's entries, (BLOCK_OFFSETS, 1)."""
    return (output.to(tl.int64) * (WY * WX) + offset[:, None]) * CHANNELS


@triton.jit
def _norm(network, coordinate, eps, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Normalise the first linear layer: the result, (BLOCK_OFFSETS, HIDDEN), and the inverse deviation."""
    unit = tl.arange(0, HIDDEN)
    weight, bias = tl.load(network[0] + unit).to(tl.float32), tl.load(network[1] + unit).to(tl.float32)
    inner = coordinate[:, None] * weight[None] + bias[None]
    inner -= (tl.sum(inner, 1) / HIDDEN)[:, None]
    scale = tl.rsqrt(tl.sum(inner * inner, 1) / HIDDEN + eps)[:, None]
    return inner * scale, scale


@triton.jit
def _swish(network, normed, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return Swish of the norm's result, and its derivative: (BLOCK_OFFSETS, HIDDEN) each."""
    unit = tl.arange(0, HIDDEN)
    weight, bias = tl.load(network[2] + unit).to(tl.float32), tl.load(network[3] + unit).to(tl.float32)
    result = normed * weight[None] + bias[None]
    gate = tl.sigmoid(result)
    return result * gate, gate * (1 + result * (1 - gate))


@triton.jit
def _second_weight(network, channel, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the weight of the second linear layer, (BLOCK_CHANNELS, HIDDEN), padded with zeros."""
    offset = channel[:, None] * HIDDEN + tl.arange(0, HIDDEN)[None]
    return tl.load(network[4] + offset, mask=(channel < CHANNELS)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _network(  # type: ignore[no-untyped-def]
    network, coordinate, eps, channel, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr
):
    """Evaluate a scalar network: (BLOCK_OFFSETS,) -> (BLOCK_OFFSETS, BLOCK_CHANNELS)."""
    active, _ = _swish(network, _norm(network, coordinate, eps, HIDDEN)[0], HIDDEN)
    bias = tl.load(network[5] + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)
    return tl.sum(active[:, None] * _second_weight(network, channel, CHANNELS, HIDDEN)[None], 2) + bias[None]


@triton.jit
def _zero_sums(BLOCK_CHANNELS: tl.constexpr, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return zeros for the gradients of the weights of a network, in their order."""
    units, bias = tl.zeros((HIDDEN,), tl.float32), tl.zeros((BLOCK_CHANNELS,), tl.float32)
    return units, units, units, units, tl.zeros((BLOCK_CHANNELS, HIDDEN), tl.float32), bias


@triton.jit
def _add_gradients(  # type: ignore[no-untyped-def]
    partial_sums, network, coordinate, gradient, eps, channel, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr
):
    """Add to the gradients of the weights of a network those of one block, from its (BLOCK_OFFSETS, BLOCK_CHANNELS)."""
    normed, scale = _norm(network, coordinate, eps, HIDDEN)
    active, derivative = _swish(network, normed, HIDDEN)
    grad_weight = tl.sum(gradient[:, :, None] * active[:, None], 0)  # (BLOCK_CHANNELS, HIDDEN)
    # Summed over the last axis: Triton turns a sum over the middle axis into a product on tensor cores, which is wrong
    # for few channels and rounds to ten bits for more.
    weight = tl.trans(_second_weight(network, channel, CHANNELS, HIDDEN))  # (HIDDEN, BLOCK_CHANNELS)
    grad_activated = tl.sum(gradient[:, None] * weight[None], 2) * derivative
    grad_normed = grad_activated * tl.load(network[2] + tl.arange(0, HIDDEN)).to(tl.float32)[None]
    total, projection = tl.sum(grad_normed, 1)[:, None], tl.sum(grad_normed * normed, 1)[:, None]
    grad_inner = (grad_normed - total / HIDDEN - normed * (projection / HIDDEN)) * scale
    return (
        partial_sums[0] + tl.sum(grad_inner * coordinate[:, None], 0),
        partial_sums[1] + tl.sum(grad_inner, 0),
        partial_sums[2] + tl.sum(grad_activated * normed, 0),
        partial_sums[3] + tl.sum(grad_activated, 0),
        partial_sums[4] + grad_weight,
        partial_sums[5] + tl.sum(gradient, 0),
    )


@triton.jit
def _store_sums(  # type: ignore[no-untyped-def]
    row, partial_sums, channel, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr
):
    """Store the gradients of a network one after the other; return the address after the last."""
    unit = tl.arange(0, HIDDEN)
    for i in tl.static_range(4):
        tl.store(row + i * HIDDEN + unit, partial_sums[i])
    second_layer = row + 4 * HIDDEN
    is_channel = channel < CHANNELS
    tl.store(second_layer + channel[:, None] * HIDDEN + unit[None], partial_sums[4], mask=is_channel[:, None])
    tl.store(second_layer + CHANNELS * HIDDEN + channel, partial_sums[5], mask=is_channel)
    return second_layer + CHANNELS * (HIDDEN + 1)
