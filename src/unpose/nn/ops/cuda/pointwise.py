"""A linear map of the channels on CUDA in half precision, for maps whose positions are adjacent in memory.

The products are small (20 channels in the published networks), so memory bandwidth takes the time. A program of the
forward pass loads all channels at a block of positions of one image, multiplies them by the weight on tensor cores and
writes the result once; the bias is added and types are converted on the way.

The gradient of weight and bias is one product too, with a channel of ones beside the maps. A program sums it over its
positions, and :mod:`unpose.nn.ops.cuda.reduce` over programs in a fixed order. Sums are float32. No block size depends
on the GPU, and nothing is read back to the host.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from unpose.nn.ops.cuda.reduce import sum_rows

_BLOCK_POSITIONS = 128
"""Positions of a tile."""

_MAX_IN = 64
"""Most input channels of one product. If there are more, those after the first block are loaded again, from the cache,
for each block of output channels."""

_MAX_OUT = 64
"""Most output channels that a program keeps in registers."""

_PROGRAMS = 512
"""Programs for the gradient of the weight: enough for any GPU, and few partial sums."""


def forward(maps: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Map (b, in, ...) by an (out, in) weight of any strides and an (out,) bias to (b, out, ...) of this dtype.

    Factors are rounded to the type ``product``, bfloat16 or float16.
    """
    maps = maps.contiguous()
    batch, in_channels = maps.shape[:2]
    out_channels, positions = len(weight), maps[:1, :1].numel()
    out = torch.empty(batch, out_channels, *maps.shape[2:], dtype=dtype, device=maps.device)
    with torch.cuda.device_of(maps):
        forward_kernel[(batch * triton.cdiv(positions, _BLOCK_POSITIONS),)](
            maps, weight, weight if bias is None else bias, out, positions, *weight.stride(),
            IN=in_channels, OUT=out_channels, BLOCK_IN=_block_size(in_channels, _MAX_IN),
            BLOCK_OUT=_block_size(out_channels, _MAX_OUT), BLOCK_POSITIONS=_BLOCK_POSITIONS,
            HAS_BIAS=bias is not None, PRODUCT=_TRITON_DTYPES[product], num_warps=4, num_stages=2,
        )  # fmt: skip
    return out


def weight_gradient(grad_out: Tensor, maps: Tensor, product: torch.dtype) -> Tensor:
    """Return the gradients of weight and bias, concatenated, (out * in + out,) in float32, from that of the result."""
    maps, grad_out = maps.contiguous(), grad_out.contiguous()
    in_channels, out_channels, positions = maps.shape[1], grad_out.shape[1], maps[:1, :1].numel()
    block_sizes = _block_size(out_channels, _MAX_OUT), _block_size(in_channels + 1, _MAX_IN)
    blocks_of_weight = triton.cdiv(out_channels, block_sizes[0]), triton.cdiv(in_channels + 1, block_sizes[1])
    n_tiles = len(maps) * triton.cdiv(positions, _BLOCK_POSITIONS)
    tiles_each = triton.cdiv(n_tiles, max(1, _PROGRAMS // (blocks_of_weight[0] * blocks_of_weight[1])))
    programs = triton.cdiv(n_tiles, tiles_each)
    partial_sums = torch.empty(programs, out_channels * (in_channels + 1), dtype=torch.float32, device=maps.device)
    with torch.cuda.device_of(maps):
        weight_kernel[(programs, *blocks_of_weight)](
            grad_out, maps, partial_sums, positions, n_tiles, tiles_each,
            IN=in_channels, OUT=out_channels, BLOCK_IN=block_sizes[1], BLOCK_OUT=block_sizes[0],
            BLOCK_POSITIONS=_BLOCK_POSITIONS, PRODUCT=_TRITON_DTYPES[product], num_warps=4, num_stages=2,
        )  # fmt: skip
    return sum_rows(partial_sums)


_TRITON_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _block_size(channels: int, limit: int) -> int:
    """Return the channels of a block: a power of two, and at least the 16 that tensor cores multiply."""
    return min(max(16, triton.next_power_of_2(channels)), limit)


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    maps, weight, bias, out, positions, row_stride, column_stride,
    IN: tl.constexpr, OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_POSITIONS: tl.constexpr, HAS_BIAS: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """Map all channels of one tile of positions of one image; the two strides are those of the weight."""
    image, position = _tile_position(tl.program_id(0), positions, BLOCK_POSITIONS)
    out += image * OUT * positions
    maps += image * IN * positions
    loaded = _load(maps, tl.arange(0, BLOCK_IN), position, positions, IN).to(PRODUCT)  # (BLOCK_IN, BLOCK_POSITIONS)
    for first_out in range(0, OUT, BLOCK_OUT):
        out_channel = first_out + tl.arange(0, BLOCK_OUT)
        bias_block = tl.zeros((BLOCK_OUT,), tl.float32)
        if HAS_BIAS:
            bias_block = tl.load(bias + out_channel, mask=out_channel < OUT, other=0.0).to(tl.float32)
        weight_block = _load_weight(weight, out_channel, tl.arange(0, BLOCK_IN), row_stride, column_stride, OUT, IN)
        accumulator = tl.dot(weight_block.to(PRODUCT), loaded)  # (BLOCK_OUT, BLOCK_POSITIONS)
        for first_in in range(BLOCK_IN, IN, BLOCK_IN):
            in_channel = first_in + tl.arange(0, BLOCK_IN)
            weight_block = _load_weight(weight, out_channel, in_channel, row_stride, column_stride, OUT, IN)
            map_block = _load(maps, in_channel, position, positions, IN)
            accumulator = tl.dot(weight_block.to(PRODUCT), map_block.to(PRODUCT), accumulator)
        result = accumulator + bias_block[:, None]
        offset = out_channel[:, None].to(tl.int64) * positions + position[None]
        exists = (out_channel < OUT)[:, None] & (position < positions)[None]
        tl.store(out + offset, result.to(out.dtype.element_ty), mask=exists)


@triton.jit
def weight_kernel(  # type: ignore[no-untyped-def]
    grad_out, maps, partial_sums, positions, n_tiles, tiles_each,
    IN: tl.constexpr, OUT: tl.constexpr, BLOCK_IN: tl.constexpr, BLOCK_OUT: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """Sum the gradient of a block of the weight over ``tiles_each`` tiles, to a row of ``partial_sums``."""
    out_channel = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    in_channel = tl.program_id(2) * BLOCK_IN + tl.arange(0, BLOCK_IN)
    accumulator = tl.zeros((BLOCK_OUT, BLOCK_IN), tl.float32)
    begin = tl.program_id(0) * tiles_each
    for tile in range(begin, tl.minimum(begin + tiles_each, n_tiles)):
        image, position = _tile_position(tile, positions, BLOCK_POSITIONS)
        gradient = _load(grad_out + image * OUT * positions, out_channel, position, positions, OUT)
        map_block = _load(maps + image * IN * positions, in_channel, position, positions, IN)
        map_block = tl.where((in_channel == IN)[:, None], 1.0, map_block)  # the channel of ones, for the bias
        accumulator = tl.dot(gradient.to(PRODUCT), tl.trans(map_block.to(PRODUCT)), accumulator)
    row = partial_sums + tl.program_id(0) * (OUT * (IN + 1))
    exists = (out_channel < OUT)[:, None] & (in_channel <= IN)[None]
    weight_offset, bias_offset = out_channel[:, None] * IN + in_channel[None], OUT * IN + out_channel[:, None]
    tl.store(row + tl.where((in_channel < IN)[None], weight_offset, bias_offset), accumulator, mask=exists)


@triton.jit
def _tile_position(tile, positions, BLOCK_POSITIONS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the image of a tile, as a 64-bit number for maps of more than 2^31 numbers, and the tile's positions."""
    per_image = tl.cdiv(positions, BLOCK_POSITIONS)
    image = tile // per_image
    return image.to(tl.int64), (tile - image * per_image) * BLOCK_POSITIONS + tl.arange(0, BLOCK_POSITIONS)


@triton.jit
def _load(image, channel, position, positions, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load channels of an image as float32, (channels, BLOCK_POSITIONS), padded with zeros."""
    exists = (channel < CHANNELS)[:, None] & (position < positions)[None]
    pointers = image + channel[:, None].to(tl.int64) * positions + position[None]
    return tl.load(pointers, mask=exists, other=0.0).to(tl.float32)


@triton.jit
def _load_weight(  # type: ignore[no-untyped-def]
    weight, out_channel, in_channel, row_stride, column_stride, OUT: tl.constexpr, IN: tl.constexpr
):
    """Load a block of the weight as float32, (BLOCK_OUT, BLOCK_IN), padded with zeros."""
    exists = (out_channel < OUT)[:, None] & (in_channel < IN)[None]
    pointers = weight + out_channel[:, None] * row_stride + in_channel[None] * column_stride
    return tl.load(pointers, mask=exists, other=0.0).to(tl.float32)
