"""Layer norm over channels on CUDA for maps whose positions are adjacent in memory: the channels are not moved.

A tile is all channels at a block of positions of one image. A program of the forward pass loads one tile, keeps it in
registers and writes it normalised; if there are more channels than fit in registers, they are loaded again, block by
block, from the cache. Statistics are float32. The backward pass computes them again from the tile, which it loads
anyway, so that only the maps are saved.

A program of the backward pass sums the gradients of weight and bias over its tiles, and
:mod:`unpose.nn.ops.cuda.reduce` over programs in a fixed order: the same input gives the same bytes on the same
machine. No block size depends on the GPU, and nothing is read back to the host, so that a CUDA graph can record the
kernels.
"""

# Triton does not parse starred tuples or annotations of them.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, var-annotated, misc"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unpose.nn.ops.cuda.reduce import sum_rows

_WARP_ELEMENTS = 1024
"""Numbers of a tile per warp, 32 for each thread; the backward pass holds four tiles: maps, gradient and
two sums. Tiles of one warp need no barrier."""

_MAX_CHANNELS, _MIN_POSITIONS = 256, 16
"""Most channels of a block, and least positions: these fill a 32-byte sector of memory."""

_MAX_POSITIONS = 256
"""Most positions of a tile: maps of few channels are small, and more programs share them."""

_PROGRAMS = 4096
"""Most programs of the backward pass: enough for any GPU, and few partial sums."""


def forward(maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float, dtype: torch.dtype) -> Tensor:
    """Normalise axis 1 of (b, channels, ...) maps and apply x sigmoid(x) if ``swish``; the result has this dtype.

    All tensors may be float32, bfloat16 or float16.
    """
    maps = maps.contiguous()
    out = torch.empty_like(maps, dtype=dtype)
    shape, n_tiles = _launch_options(maps)
    with torch.cuda.device_of(maps):
        forward_kernel[(n_tiles,)](
            maps, weight.contiguous(), bias.contiguous(), out, shape.pop("positions"), eps, **shape, SWISH=swish
        )
    return out


def backward(
    grad_out: Tensor, maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the maps, in their type, and those of weight and bias, (2, channels) in float32."""
    maps, grad_out = maps.contiguous(), grad_out.contiguous()
    shape, n_tiles = _launch_options(maps)
    tiles_each = triton.cdiv(n_tiles, _PROGRAMS)
    programs = triton.cdiv(n_tiles, tiles_each)
    grad_maps = torch.empty_like(maps)
    partial_sums = torch.empty(programs, 2, maps.shape[1], dtype=torch.float32, device=maps.device)
    with torch.cuda.device_of(maps):
        backward_kernel[(programs,)](
            grad_out, maps, weight.contiguous(), bias.contiguous(), grad_maps, partial_sums,
            shape.pop("positions"), n_tiles, tiles_each, eps, **shape, SWISH=swish,
        )  # fmt: skip
    return grad_maps, sum_rows(partial_sums)


def _launch_options(maps: Tensor) -> tuple[dict[str, Any], int]:
    """Return the sizes and options of a launch for (b, channels, ...) maps, and the number of tiles."""
    batch, channels = maps.shape[:2]
    positions = maps[:1, :1].numel()
    block_channels = min(triton.next_power_of_2(channels), _MAX_CHANNELS)
    block_positions = min(max(_MIN_POSITIONS, _WARP_ELEMENTS // block_channels), _MAX_POSITIONS)
    shape = {
        "positions": positions,
        "CHANNELS": channels,
        "BLOCK_CHANNELS": block_channels,
        "BLOCK_POSITIONS": block_positions,
        "num_warps": max(1, block_channels * block_positions // _WARP_ELEMENTS),
    }
    return shape, batch * triton.cdiv(positions, block_positions)


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    maps, weight, bias, out, positions, eps,
    CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_POSITIONS: tl.constexpr, SWISH: tl.constexpr,
):  # fmt: skip
    """Normalise one tile."""
    start, position, is_position = _tile_position(tl.program_id(0), positions, CHANNELS, BLOCK_POSITIONS)
    mean, inverse_deviation = _statistics(
        maps + start, position, is_position, positions, eps, CHANNELS, BLOCK_CHANNELS, BLOCK_POSITIONS
    )
    for first in range(0, CHANNELS, BLOCK_CHANNELS):
        channel = first + tl.arange(0, BLOCK_CHANNELS)
        offset, is_inside = _tile_offsets(channel, position, is_position, positions, CHANNELS)
        normed = (_load(maps + start, offset, is_inside) - mean) * inverse_deviation
        result = _affine(normed, weight, bias, channel, CHANNELS)
        if SWISH:
            result = result * tl.sigmoid(result)
        tl.store(out + start + offset, result.to(out.dtype.element_ty), mask=is_inside)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    grad_out, maps, weight, bias, grad_maps, partial_sums, positions, n_tiles, tiles_each, eps,
    CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_POSITIONS: tl.constexpr, SWISH: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of ``tiles_each`` tiles; those of weight and bias go to ``partial_sums``.

    With y = weight n + bias for the normalised n, and h the gradient of n, the gradient of the maps is
    ``(h - mean(h) - n mean(h n)) / deviation``, with means over channels. The partial sums are (programs, 2, channels).
    """
    grad_weight, grad_bias = (), ()
    for _ in tl.static_range(0, CHANNELS, BLOCK_CHANNELS):
        # Summed over positions at the end: in every tile that would cost as much as all the rest.
        zero = tl.zeros((BLOCK_CHANNELS, BLOCK_POSITIONS), tl.float32)
        grad_weight, grad_bias = grad_weight + (zero,), grad_bias + (zero,)
    begin = tl.program_id(0) * tiles_each
    for tile in range(begin, tl.minimum(begin + tiles_each, n_tiles)):
        start, position, is_position = _tile_position(tile, positions, CHANNELS, BLOCK_POSITIONS)
        mean, inverse_deviation = _statistics(
            maps + start, position, is_position, positions, eps, CHANNELS, BLOCK_CHANNELS, BLOCK_POSITIONS
        )
        gradient_sum = tl.zeros((1, BLOCK_POSITIONS), tl.float32)
        projection = tl.zeros((1, BLOCK_POSITIONS), tl.float32)
        for first in range(0, CHANNELS, BLOCK_CHANNELS):
            channel = first + tl.arange(0, BLOCK_CHANNELS)
            offset, is_inside = _tile_offsets(channel, position, is_position, positions, CHANNELS)
            normed = (_load(maps + start, offset, is_inside) - mean) * inverse_deviation
            gradient = _load(grad_out + start, offset, is_inside)
            gradient = _before_swish(gradient, normed, weight, bias, channel, CHANNELS, SWISH)
            gradient = gradient * _load_channels(weight, channel, CHANNELS)
            gradient_sum += tl.sum(gradient, 0)[None]
            projection += tl.sum(gradient * normed, 0)[None]
        new_grad_weight, new_grad_bias = (), ()
        for first in tl.static_range(0, CHANNELS, BLOCK_CHANNELS):
            channel = first + tl.arange(0, BLOCK_CHANNELS)
            offset, is_inside = _tile_offsets(channel, position, is_position, positions, CHANNELS)
            normed = (_load(maps + start, offset, is_inside) - mean) * inverse_deviation
            gradient = _load(grad_out + start, offset, is_inside)
            gradient = _before_swish(gradient, normed, weight, bias, channel, CHANNELS, SWISH)
            new_grad_weight = new_grad_weight + (grad_weight[first // BLOCK_CHANNELS] + gradient * normed,)
            new_grad_bias = new_grad_bias + (grad_bias[first // BLOCK_CHANNELS] + gradient,)
            gradient = gradient * _load_channels(weight, channel, CHANNELS)
            grad_tile = (gradient - gradient_sum / CHANNELS - normed * (projection / CHANNELS)) * inverse_deviation
            tl.store(grad_maps + start + offset, grad_tile.to(grad_maps.dtype.element_ty), mask=is_inside)
        grad_weight, grad_bias = new_grad_weight, new_grad_bias
    row = partial_sums + tl.program_id(0) * (2 * CHANNELS)
    for first in tl.static_range(0, CHANNELS, BLOCK_CHANNELS):
        channel = first + tl.arange(0, BLOCK_CHANNELS)
        tl.store(row + channel, tl.sum(grad_weight[first // BLOCK_CHANNELS], 1), mask=channel < CHANNELS)
        tl.store(row + CHANNELS + channel, tl.sum(grad_bias[first // BLOCK_CHANNELS], 1), mask=channel < CHANNELS)


@triton.jit
def _tile_position(  # type: ignore[no-untyped-def]
    tile, positions, CHANNELS: tl.constexpr, BLOCK_POSITIONS: tl.constexpr
):
    """Return the offset of a tile's image, the tile's positions, (1, BLOCK_POSITIONS), and which of them exist.

    Offsets are 64-bit numbers: maps may have more than 2^31 numbers.
    """
    per_image = tl.cdiv(positions, BLOCK_POSITIONS)
    image = tile // per_image
    position = (tile - image * per_image) * BLOCK_POSITIONS + tl.arange(0, BLOCK_POSITIONS)[None]
    return image.to(tl.int64) * CHANNELS * positions, position, position < positions


@triton.jit
def _tile_offsets(channel, position, is_position, positions, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the offsets of (BLOCK_CHANNELS,) channels at (1, BLOCK_POSITIONS) positions, and which of them exist."""
    return channel[:, None].to(tl.int64) * positions + position, (channel < CHANNELS)[:, None] & is_position


@triton.jit
def _load(pointer, offset, is_inside):  # type: ignore[no-untyped-def]
    return tl.load(pointer + offset, mask=is_inside, other=0.0).to(tl.float32)


@triton.jit
def _load_channels(vector, channel, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load one number for each channel as (BLOCK_CHANNELS, 1), padded with zeros."""
    return tl.load(vector + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)[:, None]


@triton.jit
def _statistics(  # type: ignore[no-untyped-def]
    image, position, is_position, positions, eps, CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr,
):  # fmt: skip
    """Return the mean of the channels and their inverse deviation, (1, BLOCK_POSITIONS) each.

    The variance is summed about the mean, so nothing cancels. If all channels are in one block there is no loop, and
    the compiler loads the maps once.
    """
    total, squares = tl.zeros((1, BLOCK_POSITIONS), tl.float32), tl.zeros((1, BLOCK_POSITIONS), tl.float32)
    for first in range(0, CHANNELS, BLOCK_CHANNELS):
        channel = first + tl.arange(0, BLOCK_CHANNELS)
        offset, is_inside = _tile_offsets(channel, position, is_position, positions, CHANNELS)
        total += tl.sum(_load(image, offset, is_inside), 0)[None]
    mean = total / CHANNELS
    for first in range(0, CHANNELS, BLOCK_CHANNELS):
        channel = first + tl.arange(0, BLOCK_CHANNELS)
        offset, is_inside = _tile_offsets(channel, position, is_position, positions, CHANNELS)
        centred = tl.where(is_inside, _load(image, offset, is_inside) - mean, 0.0)
        squares += tl.sum(centred * centred, 0)[None]
    return mean, tl.rsqrt(squares / CHANNELS + eps)


@triton.jit
def _affine(normed, weight, bias, channel, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    return normed * _load_channels(weight, channel, CHANNELS) + _load_channels(bias, channel, CHANNELS)


@triton.jit
def _before_swish(  # type: ignore[no-untyped-def]
    grad_out, normed, weight, bias, channel, CHANNELS: tl.constexpr, SWISH: tl.constexpr
):
    """Return the gradient of weight n + bias, from that of the result."""
    if SWISH:
        result = _affine(normed, weight, bias, channel, CHANNELS)
        gate = tl.sigmoid(result)
        grad_out = grad_out * gate * (1 + result * (1 - gate))
    return grad_out
