"""Layer norm over channels on a GPU, where the places of a channel lie side by side: no map is copied to be normed.

A program takes a tile of all channels at some places of one image, reads it once and keeps it in registers. What has
more channels than a tile holds is read again from the cache, block by block. Statistics are float32. The backward
pass computes them again from the tile it needs anyway, which costs no memory traffic; nothing but the maps is kept.

The gradients of weight and bias are summed over a program's tiles, then over programs in a second, fixed sum: the same
input gives the same bytes on the same machine. No block size depends on the machine, and no number passes through the
host: a CUDA graph can hold the kernels.
"""

# Triton reads no stars in tuples and no annotations of them.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, var-annotated, misc"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unpose.nn.ops.cuda.reduce import over_rows

_TILE = 1024
"""Numbers that a warp holds of a tile, 32 for each thread; the backward pass holds four tiles: maps, gradient and two
sums. Tiles of one warp need no barrier."""

_BLOCK, _LEAST = 256, 16
"""Channels of a tile, at most, and places, at least: these fill the sectors that memory is read in."""

_PLACES = 256
"""Places of a tile, at most: maps of few channels are small, and more programs share them."""

_PROGRAMS = 4096
"""Programs of the backward pass, at most: enough for any GPU, and few block sums to add up."""


def forward(maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float, kind: torch.dtype) -> Tensor:
    """Layer norm over axis 1 of (b, channels, ...) maps, ``swish`` with x sigmoid(x) after it, in the type ``kind``.

    All tensors may be float32, bfloat16 or float16.
    """
    maps = maps.contiguous()
    out = torch.empty_like(maps, dtype=kind)
    shape, tiles = _shape(maps)
    with torch.cuda.device_of(maps):
        forward_kernel[(tiles,)](
            maps, weight.contiguous(), bias.contiguous(), out, shape.pop("places"), eps, **shape, SWISH=swish
        )
    return out


def backward(
    grad_out: Tensor, maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float
) -> tuple[Tensor, Tensor]:
    """The gradient of the maps, in their type, and those of weight and bias, (2, channels) in float32.

    ``grad_out`` is that of what :func:`forward` returned.
    """
    maps, grad_out = maps.contiguous(), grad_out.contiguous()
    shape, tiles = _shape(maps)
    steps = triton.cdiv(tiles, _PROGRAMS)
    programs = triton.cdiv(tiles, steps)
    grad_maps = torch.empty_like(maps)
    sums = torch.empty(programs, 2, maps.shape[1], dtype=torch.float32, device=maps.device)
    with torch.cuda.device_of(maps):
        backward_kernel[(programs,)](
            grad_out, maps, weight.contiguous(), bias.contiguous(), grad_maps, sums,
            shape.pop("places"), tiles, steps, eps, **shape, SWISH=swish,
        )  # fmt: skip
    return grad_maps, over_rows(sums)


def _shape(maps: Tensor) -> tuple[dict[str, Any], int]:
    """What a launch is told of (b, channels, ...) maps, and how many tiles they have."""
    batch, channels = maps.shape[:2]
    places = maps[:1, :1].numel()
    block = min(triton.next_power_of_2(channels), _BLOCK)
    lanes = min(max(_LEAST, _TILE // block), _PLACES)
    shape = {
        "places": places,
        "CHANNELS": channels,
        "BLOCK": block,
        "LANES": lanes,
        "num_warps": max(1, block * lanes // _TILE),
    }
    return shape, batch * triton.cdiv(places, lanes)


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    maps, weight, bias, out, places, eps,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, SWISH: tl.constexpr,
):  # fmt: skip
    """One program for each tile."""
    start, place, is_place = _where(tl.program_id(0), places, CHANNELS, LANES)
    mean, scale = _statistics(maps + start, place, is_place, places, eps, CHANNELS, BLOCK, LANES)
    for first in range(0, CHANNELS, BLOCK):
        channel = first + tl.arange(0, BLOCK)
        at, is_inside = _tile(channel, place, is_place, places, CHANNELS)
        normed = (_read(maps + start, at, is_inside) - mean) * scale
        result = _affine(normed, weight, bias, channel, CHANNELS)
        if SWISH:
            result = result * tl.sigmoid(result)
        tl.store(out + start + at, result.to(out.dtype.element_ty), mask=is_inside)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    grad_out, maps, weight, bias, grad_maps, sums, places, tiles, steps, eps,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, SWISH: tl.constexpr,
):  # fmt: skip
    """One program for ``steps`` tiles; its sums for weight and bias go to ``sums``, (programs, 2, channels).

    With y = weight n + bias for the normed n, and h the gradient of n, that of the maps is
    ``(h - mean(h) - n mean(h n)) / deviation``, means over channels.
    """
    to_weight, to_bias = (), ()
    for _ in tl.static_range(0, CHANNELS, BLOCK):
        # Places are summed up last: in every tile that would cost as much as all the rest.
        nothing = tl.zeros((BLOCK, LANES), tl.float32)
        to_weight, to_bias = to_weight + (nothing,), to_bias + (nothing,)
    begin = tl.program_id(0) * steps
    for tile in range(begin, tl.minimum(begin + steps, tiles)):
        start, place, is_place = _where(tile, places, CHANNELS, LANES)
        mean, scale = _statistics(maps + start, place, is_place, places, eps, CHANNELS, BLOCK, LANES)
        total, along = tl.zeros((1, LANES), tl.float32), tl.zeros((1, LANES), tl.float32)
        for first in range(0, CHANNELS, BLOCK):
            channel = first + tl.arange(0, BLOCK)
            at, is_inside = _tile(channel, place, is_place, places, CHANNELS)
            normed = (_read(maps + start, at, is_inside) - mean) * scale
            slope = _slope(_read(grad_out + start, at, is_inside), normed, weight, bias, channel, CHANNELS, SWISH)
            slope = slope * _column(weight, channel, CHANNELS)
            total += tl.sum(slope, 0)[None]
            along += tl.sum(slope * normed, 0)[None]
        more_weight, more_bias = (), ()
        for first in tl.static_range(0, CHANNELS, BLOCK):
            channel = first + tl.arange(0, BLOCK)
            at, is_inside = _tile(channel, place, is_place, places, CHANNELS)
            normed = (_read(maps + start, at, is_inside) - mean) * scale
            slope = _slope(_read(grad_out + start, at, is_inside), normed, weight, bias, channel, CHANNELS, SWISH)
            more_weight = more_weight + (to_weight[first // BLOCK] + slope * normed,)
            more_bias = more_bias + (to_bias[first // BLOCK] + slope,)
            slope = slope * _column(weight, channel, CHANNELS)
            found = (slope - total / CHANNELS - normed * (along / CHANNELS)) * scale
            tl.store(grad_maps + start + at, found.to(grad_maps.dtype.element_ty), mask=is_inside)
        to_weight, to_bias = more_weight, more_bias
    row = sums + tl.program_id(0) * (2 * CHANNELS)
    for first in tl.static_range(0, CHANNELS, BLOCK):
        channel = first + tl.arange(0, BLOCK)
        tl.store(row + channel, tl.sum(to_weight[first // BLOCK], 1), mask=channel < CHANNELS)
        tl.store(row + CHANNELS + channel, tl.sum(to_bias[first // BLOCK], 1), mask=channel < CHANNELS)


@triton.jit
def _where(tile, places, CHANNELS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where a tile's image begins in memory, the tile's places in the image, (1, LANES), and which of them there are.

    In 64 bits: maps may be longer than 2^31.
    """
    per_image = tl.cdiv(places, LANES)
    image = tile // per_image
    place = (tile - image * per_image) * LANES + tl.arange(0, LANES)[None]
    return image.to(tl.int64) * CHANNELS * places, place, place < places


@triton.jit
def _tile(channel, place, is_place, places, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where (BLOCK,) channels at (1, LANES) places lie in an image, and which of them there are."""
    return channel[:, None].to(tl.int64) * places + place, (channel < CHANNELS)[:, None] & is_place


@triton.jit
def _read(pointer, at, is_inside):  # type: ignore[no-untyped-def]
    return tl.load(pointer + at, mask=is_inside, other=0.0).to(tl.float32)


@triton.jit
def _column(vector, channel, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One number for each channel, as (BLOCK, 1); zero where there is no channel."""
    return tl.load(vector + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)[:, None]


@triton.jit
def _statistics(  # type: ignore[no-untyped-def]
    image, place, is_place, places, eps, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Mean over the channels and one over their deviation, (1, LANES) each: about the mean, so nothing cancels.

    With one block there is no loop, and the compiler reads the maps once: nothing is written in between.
    """
    total, squares = tl.zeros((1, LANES), tl.float32), tl.zeros((1, LANES), tl.float32)
    for first in range(0, CHANNELS, BLOCK):
        at, is_inside = _tile(first + tl.arange(0, BLOCK), place, is_place, places, CHANNELS)
        total += tl.sum(_read(image, at, is_inside), 0)[None]
    mean = total / CHANNELS
    for first in range(0, CHANNELS, BLOCK):
        at, is_inside = _tile(first + tl.arange(0, BLOCK), place, is_place, places, CHANNELS)
        centred = tl.where(is_inside, _read(image, at, is_inside) - mean, 0.0)
        squares += tl.sum(centred * centred, 0)[None]
    return mean, tl.rsqrt(squares / CHANNELS + eps)


@triton.jit
def _affine(normed, weight, bias, channel, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    return normed * _column(weight, channel, CHANNELS) + _column(bias, channel, CHANNELS)


@triton.jit
def _slope(  # type: ignore[no-untyped-def]
    grad_out, normed, weight, bias, channel, CHANNELS: tl.constexpr, SWISH: tl.constexpr
):
    """The gradient of weight n + bias, given that of the result."""
    if SWISH:
        result = _affine(normed, weight, bias, channel, CHANNELS)
        gate = tl.sigmoid(result)
        grad_out = grad_out * gate * (1 + result * (1 - gate))
    return grad_out
