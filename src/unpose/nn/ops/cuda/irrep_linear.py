"""A block-diagonal linear map of the channels of tokens on CUDA in half precision.

Forward, and for the gradient of the tokens, strided batched products of cuBLAS read groups of channels and write them
directly into the rows of the result: one call for the one-dimensional representations and one for the others. Written
with views and a concatenation, PyTorch would copy the result once more.

The gradient of the weight sums over all tokens, and cuBLAS starts one program for each tile of the result and not for
parts of the sum. If the blocks are small (48 channels for d4 at a width of 384), these are too few for a GPU: measured
2 to 6 times slower than the kernel here, whose programs sum over parts of the tokens. Then
:mod:`unpose.nn.ops.cuda.reduce` sums over programs in a fixed order. Larger blocks are faster in cuBLAS.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from unpose.nn.ops.cuda.reduce import sum_rows

_SMALL = 96 * 96
"""Weights of one block up to which the kernel here is faster than cuBLAS for the gradient of the weight."""

_BLOCK_TOKENS = 64
"""Tokens that are multiplied at once."""

_BLOCK_CHANNELS = 64
"""Input and output channels of a tile."""

_PROGRAMS = 528
"""Programs for all parts of the sum together: four for each multiprocessor of the largest GPUs."""


def forward(tokens: Tensor, singles: Tensor, pairs: Tensor, components: int) -> Tensor:
    """Map (..., order * c) by strided batched products of cuBLAS, which write directly into the rows of the result."""
    tokens = tokens.contiguous()
    s, out_channels, channels = singles.shape
    p = len(pairs)
    order = s + 2 * p * components
    rows = tokens.view(-1, order * channels)  # (tokens, width)
    out = rows.new_empty(len(rows), order * out_channels)
    torch.bmm(_groups(rows, 0, s, channels), singles.mT, out=_groups(out, 0, s, out_channels))
    if p:
        blocks = pairs.mT[:, None].expand(-1, components, -1, -1).flatten(0, 1)  # (p * components, 2 c, 2 out)
        count = p * components
        torch.bmm(
            _groups(rows, s * channels, count, 2 * channels),
            blocks,
            out=_groups(out, s * out_channels, count, 2 * out_channels),
        )
    return out.view(*tokens.shape[:-1], -1)


def _groups(rows: Tensor, first: int, count: int, channels: int) -> Tensor:
    """Return groups of neighbouring columns as a view: (n, width) -> (count, n, channels)."""
    return rows[:, first : first + count * channels].unflatten(1, (count, channels)).transpose(0, 1)


def weight_gradient(grad_out: Tensor, tokens: Tensor, s: int, p: int, components: int) -> Tensor:
    """Return the gradients of both kinds of blocks, flat and concatenated, in float32."""
    order = s + 2 * p * components
    gradient, rows = grad_out.contiguous().view(-1, grad_out.shape[-1]), tokens.contiguous().view(-1, tokens.shape[-1])
    out_channels, channels = gradient.shape[1] // order, rows.shape[1] // order
    if out_channels * channels <= _SMALL:
        return _split_gradient(gradient, rows, s, p, components)
    total = torch.empty((s + 4 * p) * out_channels * channels, device=tokens.device)
    singles = torch.bmm(_groups(gradient, 0, s, out_channels).mT, _groups(rows, 0, s, channels))
    total[: singles.numel()] = singles.flatten()
    if p:
        left = _groups(gradient, s * out_channels, p * components, 2 * out_channels)
        pairs = torch.bmm(left.mT, _groups(rows, s * channels, p * components, 2 * channels))
        summed = total[singles.numel() :].view(p, 2 * out_channels, 2 * channels)
        torch.sum(pairs.unflatten(0, (p, components)), 1, dtype=torch.float32, out=summed)
    return total


def _split_gradient(gradient: Tensor, rows: Tensor, s: int, p: int, components: int) -> Tensor:
    """Compute the same with sums over parts of the tokens."""
    order = s + 2 * p * components
    out_channels, in_channels = gradient.shape[1] // order, rows.shape[1] // order
    scale = 2 if p else 1
    block_out, block_in = (_block_size(scale * channels) for channels in (out_channels, in_channels))
    tiles_single = triton.cdiv(out_channels, block_out) * triton.cdiv(in_channels, block_in)
    tiles_pair = triton.cdiv(2 * out_channels, block_out) * triton.cdiv(2 * in_channels, block_in)
    tiles = s * tiles_single + p * tiles_pair
    chunks = triton.cdiv(len(rows), _BLOCK_TOKENS)
    chunks_each = triton.cdiv(chunks, max(1, _PROGRAMS // tiles))
    splits = triton.cdiv(chunks, chunks_each)
    partial_sums = torch.empty(splits, (s + 4 * p) * out_channels * in_channels, device=rows.device)
    with torch.cuda.device_of(rows):
        weight_kernel[(tiles, splits)](
            gradient, rows, partial_sums, len(rows), chunks_each * _BLOCK_TOKENS, partial_sums.shape[1],
            S=s, COMPONENTS=components, IN=in_channels, OUT=out_channels, WIDTH_IN=order * in_channels,
            WIDTH_OUT=order * out_channels, TILES_SINGLE=tiles_single, TILES_PAIR=tiles_pair,
            BLOCK_TOKENS=_BLOCK_TOKENS, BLOCK_IN=block_in, BLOCK_OUT=block_out, num_warps=4, num_stages=3,
        )  # fmt: skip
    return sum_rows(partial_sums)


def _block_size(channels: int) -> int:
    """Return the channels of a tile: a power of two, and at least the 16 that tensor cores multiply."""
    return min(max(16, triton.next_power_of_2(channels)), _BLOCK_CHANNELS)


@triton.jit
def weight_kernel(  # type: ignore[no-untyped-def]
    grad_out, tokens, partial_sums, n_tokens, tokens_each, size, S: tl.constexpr, COMPONENTS: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, WIDTH_IN: tl.constexpr, WIDTH_OUT: tl.constexpr,
    TILES_SINGLE: tl.constexpr, TILES_PAIR: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
):  # fmt: skip
    """Sum the gradient of a tile of one block over a part of the tokens, to a row of ``partial_sums``."""
    tile = tl.program_id(0)
    first = tl.program_id(1) * tokens_each
    last = tl.minimum(first + tokens_each, n_tokens)
    partial_sums += tl.program_id(1).to(tl.int64) * size
    if tile < S * TILES_SINGLE:
        block = tile // TILES_SINGLE
        _gradient_tile(
            grad_out + block * OUT, tokens + block * IN, partial_sums + block * OUT * IN, tile % TILES_SINGLE, first,
            last, 1, IN, OUT, WIDTH_IN, WIDTH_OUT, BLOCK_TOKENS, BLOCK_IN, BLOCK_OUT,
        )  # fmt: skip
    else:
        tile -= S * TILES_SINGLE
        block = tile // TILES_PAIR
        part = S + 2 * block * COMPONENTS
        _gradient_tile(
            grad_out + part * OUT, tokens + part * IN, partial_sums + (S + 4 * block) * OUT * IN, tile % TILES_PAIR,
            first, last, COMPONENTS, 2 * IN, 2 * OUT, WIDTH_IN, WIDTH_OUT, BLOCK_TOKENS, BLOCK_IN, BLOCK_OUT,
        )  # fmt: skip


@triton.jit
def _gradient_tile(  # type: ignore[no-untyped-def]
    grad_out, tokens, total, tile, first, last, COMPONENTS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    WIDTH_IN: tl.constexpr, WIDTH_OUT: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
):  # fmt: skip
    """Sum ``grad_out^T tokens`` of one tile over tokens from first to last and over components."""
    columns = tl.cdiv(IN, BLOCK_IN)
    channel_out = tile // columns * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    channel_in = tile % columns * BLOCK_IN + tl.arange(0, BLOCK_IN)
    accumulator = tl.zeros((BLOCK_OUT, BLOCK_IN), tl.float32)
    for begin in range(first, last, BLOCK_TOKENS):
        row = (begin + tl.arange(0, BLOCK_TOKENS)).to(tl.int64)
        for component in tl.static_range(COMPONENTS):
            exists = (row < last)[:, None] & (channel_out < OUT)[None]
            offset = component * OUT + row[:, None] * WIDTH_OUT + channel_out[None]
            left = tl.load(grad_out + offset, mask=exists, other=0.0)
            exists = (row < last)[:, None] & (channel_in < IN)[None]
            offset = component * IN + row[:, None] * WIDTH_IN + channel_in[None]
            accumulator = tl.dot(tl.trans(left), tl.load(tokens + offset, mask=exists, other=0.0), accumulator)
    exists = (channel_out < OUT)[:, None] & (channel_in < IN)[None]
    tl.store(total + channel_out[:, None] * IN + channel_in[None], accumulator, mask=exists)
