"""The separable encoding written out on a GPU: one launch, and two for its gradient.

A table is small, 600 numbers in the published networks; made of torch's operations it is dozens of launches that each
take longer to begin than to run. A program takes offsets of the window as one output element sees them and computes
both scalar networks there; the first of an element's programs also writes the vectors of its relative elements.

The backward pass computes the networks again. Gradients of the weights are summed over a program's offsets, then over
programs in a second, fixed sum (:mod:`unpose.nn.ops.cuda.reduce`): the same input gives the same bytes on the same machine.
Everything is float32. No block size depends on the machine, and no number passes through the host.
"""

# mypy: disable-error-code="assignment, misc"

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unpose.nn.ops.cuda.reduce import over_rows

_LANES = 32
"""Offsets of a tile, at most: few, so that there are tiles for more than one multiprocessor."""

_TILE = 256
"""Offsets times channels of a tile, at most; each has a product for each hidden unit."""

_PROGRAMS = 256
"""Programs of the backward pass, about: enough for any GPU, and few block sums to add up."""


def forward(
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window: tuple[int, int],
    reach: float,
    eps: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """What :func:`unpose.nn.position_table` of a separable encoding is made of, as ``kind``.

    Parameters
    ----------
    weights : of the encoding, in the order of its parameters
        Those of the network of x (weight and bias of a linear layer, of a norm and of a linear layer), those of the
        network of y, and (relative elements, channels) vectors where there are any.
    inverses : (order, 2, 2)
    relations : (order, keys) of indices

    Returns
    -------
    position : (1, order, 1, *window, channels of x and y), the same for all keys
    element : (1, order, keys, the other channels), the same for all offsets; empty where there are none
    """
    shape = _shape(weights, relations, window)
    order, keys = relations.shape
    table = torch.empty(1, order, 1, *window, shape["X"] + shape["Y"], dtype=kind, device=inverses.device)
    element = table.new_empty(1, order, keys, shape["ELEMENT"]) if shape["ELEMENT"] else table.new_empty(0)
    tiles = triton.cdiv(window[0] * window[1], shape["LANES"])
    with torch.cuda.device_of(table):
        table_kernel[(len(inverses), tiles)](
            *_pointers(weights), inverses.contiguous(), relations.contiguous(), table, element, reach, eps, **shape
        )
    return table, element


def backward(
    grad_table: Tensor,
    grad_element: Tensor,
    weights: Sequence[Tensor],
    inverses: Tensor,
    relations: Tensor,
    window: tuple[int, int],
    reach: float,
    eps: float,
) -> Tensor:
    """Gradients of all weights, one after the other in float32, given that of what :func:`forward` returned."""
    shape = _shape(weights, relations, window)
    tiles = triton.cdiv(window[0] * window[1], shape["LANES"])
    steps = triton.cdiv(tiles, min(tiles, triton.cdiv(_PROGRAMS, len(inverses))))
    blocks = triton.cdiv(tiles, steps)
    sums = torch.empty(
        blocks * len(inverses), sum(weight.numel() for weight in weights), dtype=torch.float32, device=inverses.device
    )
    with torch.cuda.device_of(sums):
        weights_kernel[(len(inverses), blocks)](
            grad_table.contiguous(), grad_element.contiguous(), *_pointers(weights), inverses.contiguous(),
            relations.contiguous(), sums, reach, eps, steps, sums.shape[1], **shape,
            BLOCK_RELATIONS=triton.next_power_of_2(len(weights[-1]) if shape["ELEMENT"] else 1),
        )  # fmt: skip
    return over_rows(sums)


def _pointers(weights: Sequence[Tensor]) -> tuple[Any, ...]:
    """The networks of x and y and the vectors; some address where there are none of these."""
    held = [weight.contiguous() for weight in weights]
    return tuple(held[:6]), tuple(held[6:12]), held[-1]


def _shape(weights: Sequence[Tensor], relations: Tensor, window: tuple[int, int]) -> dict[str, Any]:
    """What both kernels are compiled for."""
    along_x, along_y = len(weights[4]), len(weights[10])
    element = weights[12].shape[1] if len(weights) > 12 else 0
    block = triton.next_power_of_2(max(along_x, along_y, element))
    return {
        "KEYS": relations.shape[1], "WY": window[0], "WX": window[1], "HIDDEN": len(weights[0]),
        "X": along_x, "Y": along_y, "ELEMENT": element, "BLOCK": block, "LANES": min(_LANES, _TILE // block),
        "num_warps": 4,
    }  # fmt: skip


@triton.jit
def table_kernel(  # type: ignore[no-untyped-def]
    network_x, network_y, vectors, inverses, relations, table, element, reach, eps,
    KEYS: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr, HIDDEN: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
    ELEMENT: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program for a tile of offsets and an output element."""
    output, channel = tl.program_id(0), tl.arange(0, BLOCK)
    offset = tl.program_id(1) * LANES + tl.arange(0, LANES)
    x, y = _seen(inverses, output, offset, reach, WY, WX)
    at = table + _entry(output, offset, WY, WX, X + Y) + channel[None]
    is_inside = (offset < WY * WX)[:, None]
    along_x = _network(network_x, x, eps, channel, X, HIDDEN)  # (LANES, BLOCK)
    tl.store(at, along_x.to(table.dtype.element_ty), mask=is_inside & (channel < X)[None])
    along_y = _network(network_y, y, eps, channel, Y, HIDDEN)
    tl.store(at + X, along_y.to(table.dtype.element_ty), mask=is_inside & (channel < Y)[None])
    if ELEMENT > 0:
        is_own = channel + tl.program_id(1) * BLOCK < ELEMENT  # the first program's
        for key in range(KEYS):
            kind = tl.load(relations + output * KEYS + key)
            vector = tl.load(vectors + kind * ELEMENT + channel, mask=channel < ELEMENT, other=0.0)
            at_key = element + (output * KEYS + key) * ELEMENT + channel
            tl.store(at_key, vector.to(element.dtype.element_ty), mask=is_own)


@triton.jit
def weights_kernel(  # type: ignore[no-untyped-def]
    grad_table, grad_element, network_x, network_y, vectors, inverses, relations, sums, reach, eps, steps, columns,
    KEYS: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr, HIDDEN: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
    ELEMENT: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, BLOCK_RELATIONS: tl.constexpr,
):  # fmt: skip
    """One program for ``steps`` tiles of offsets and an output element; its sums go to a row of ``sums``."""
    output, channel = tl.program_id(0), tl.arange(0, BLOCK)
    relation = tl.arange(0, BLOCK_RELATIONS)
    to_x, to_y = _nothing(BLOCK, HIDDEN), _nothing(BLOCK, HIDDEN)
    to_vectors = tl.zeros((BLOCK_RELATIONS, BLOCK), tl.float32)
    if ELEMENT > 0:
        is_own = channel + tl.program_id(1) * BLOCK < ELEMENT  # the first program's
        for key in range(KEYS):
            kind = tl.load(relations + output * KEYS + key)
            at_key = grad_element + (output * KEYS + key) * ELEMENT + channel
            slope = tl.load(at_key, mask=is_own, other=0.0).to(tl.float32)
            to_vectors += tl.where((relation == kind)[:, None], slope[None], 0.0)
    for step in range(steps):
        offset = (tl.program_id(1) * steps + step) * LANES + tl.arange(0, LANES)
        is_inside = (offset < WY * WX)[:, None]
        at = grad_table + _entry(output, offset, WY, WX, X + Y) + channel[None]
        slope_x = tl.load(at, mask=is_inside & (channel < X)[None], other=0.0).to(tl.float32)
        slope_y = tl.load(at + X, mask=is_inside & (channel < Y)[None], other=0.0).to(tl.float32)
        x, y = _seen(inverses, output, offset, reach, WY, WX)
        to_x = _more(to_x, network_x, x, slope_x, eps, channel, X, HIDDEN)
        to_y = _more(to_y, network_y, y, slope_y, eps, channel, Y, HIDDEN)
    row = sums + (output * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * columns
    row = _write(row, to_x, channel, X, HIDDEN)
    row = _write(row, to_y, channel, Y, HIDDEN)
    if ELEMENT > 0:
        at = relation[:, None] * ELEMENT + channel[None]
        is_there = (channel < ELEMENT)[None] & (at < columns - (4 * HIDDEN * 2 + (X + Y) * (HIDDEN + 1)))
        tl.store(row + at, to_vectors, mask=is_there)


@triton.jit
def _seen(inverses, output, offset, reach, WY: tl.constexpr, WX: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both coordinates of offsets as an output element sees them, in units of ``reach``."""
    x, y = (offset % WX - WX // 2).to(tl.float32), (offset // WX - WY // 2).to(tl.float32)
    inverse = inverses + output * 4
    a, b = tl.load(inverse).to(tl.float32), tl.load(inverse + 1).to(tl.float32)
    c, d = tl.load(inverse + 2).to(tl.float32), tl.load(inverse + 3).to(tl.float32)
    return (a * x + b * y) / reach, (c * x + d * y) / reach


@triton.jit
def _entry(  # type: ignore[no-untyped-def]
    output, offset, WY: tl.constexpr, WX: tl.constexpr, CHANNELS: tl.constexpr
):
    """Where the channels of a table's entries begin, (LANES, 1)."""
    return (output.to(tl.int64) * (WY * WX) + offset[:, None]) * CHANNELS


@triton.jit
def _normed(network, at, eps, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first linear layer at coordinates, normed, and one over its deviation: (LANES, HIDDEN) and (LANES, 1)."""
    unit = tl.arange(0, HIDDEN)
    first, shift = tl.load(network[0] + unit).to(tl.float32), tl.load(network[1] + unit).to(tl.float32)
    inner = at[:, None] * first[None] + shift[None]
    inner -= (tl.sum(inner, 1) / HIDDEN)[:, None]
    scale = tl.rsqrt(tl.sum(inner * inner, 1) / HIDDEN + eps)[:, None]
    return inner * scale, scale


@triton.jit
def _activated(network, normed, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Swish of the norm's result, and its slope: (LANES, HIDDEN) each."""
    unit = tl.arange(0, HIDDEN)
    weight, bias = tl.load(network[2] + unit).to(tl.float32), tl.load(network[3] + unit).to(tl.float32)
    result = normed * weight[None] + bias[None]
    gate = tl.sigmoid(result)
    return result * gate, gate * (1 + result * (1 - gate))


@triton.jit
def _last(network, channel, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """The weight of the second linear layer, (BLOCK, HIDDEN); zero where there is no channel."""
    at = channel[:, None] * HIDDEN + tl.arange(0, HIDDEN)[None]
    return tl.load(network[4] + at, mask=(channel < CHANNELS)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _network(  # type: ignore[no-untyped-def]
    network, at, eps, channel, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr
):
    """A scalar network at coordinates: (LANES,) -> (LANES, BLOCK)."""
    active, _ = _activated(network, _normed(network, at, eps, HIDDEN)[0], HIDDEN)
    shift = tl.load(network[5] + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)
    return tl.sum(active[:, None] * _last(network, channel, CHANNELS, HIDDEN)[None], 2) + shift[None]


@triton.jit
def _nothing(BLOCK: tl.constexpr, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums for the weights of a network, in their order."""
    units = tl.zeros((HIDDEN,), tl.float32)
    return units, units, units, units, tl.zeros((BLOCK, HIDDEN), tl.float32), tl.zeros((BLOCK,), tl.float32)


@triton.jit
def _more(  # type: ignore[no-untyped-def]
    sums, network, at, slope, eps, channel, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr
):
    """Sums for the weights of a network, and what (LANES, BLOCK) gradients of its results add to them."""
    normed, scale = _normed(network, at, eps, HIDDEN)
    active, rise = _activated(network, normed, HIDDEN)
    to_last = tl.sum(slope[:, :, None] * active[:, None], 0)  # (BLOCK, HIDDEN)
    # Over the last axis: of a sum over the middle one Triton makes a product on tensor cores, which is wrong for few
    # channels and rounds to ten bits for more.
    weight = tl.trans(_last(network, channel, CHANNELS, HIDDEN))  # (HIDDEN, BLOCK)
    to_result = tl.sum(slope[:, None] * weight[None], 2) * rise
    to_normed = to_result * tl.load(network[2] + tl.arange(0, HIDDEN)).to(tl.float32)[None]
    total, along = tl.sum(to_normed, 1)[:, None], tl.sum(to_normed * normed, 1)[:, None]
    to_inner = (to_normed - total / HIDDEN - normed * (along / HIDDEN)) * scale
    return (
        sums[0] + tl.sum(to_inner * at[:, None], 0),
        sums[1] + tl.sum(to_inner, 0),
        sums[2] + tl.sum(to_result * normed, 0),
        sums[3] + tl.sum(to_result, 0),
        sums[4] + to_last,
        sums[5] + tl.sum(slope, 0),
    )


@triton.jit
def _write(row, sums, channel, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sums of a network, one after the other; where the next begin."""
    unit = tl.arange(0, HIDDEN)
    for i in tl.static_range(4):
        tl.store(row + i * HIDDEN + unit, sums[i])
    last = row + 4 * HIDDEN
    is_channel = channel < CHANNELS
    tl.store(last + channel[:, None] * HIDDEN + unit[None], sums[4], mask=is_channel[:, None])
    tl.store(last + CHANNELS * HIDDEN + channel, sums[5], mask=is_channel)
    return last + CHANNELS * (HIDDEN + 1)
