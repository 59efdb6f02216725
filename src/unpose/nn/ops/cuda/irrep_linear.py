"""A block-diagonal linear map of the channels of tokens on CUDA in half precision: all blocks in one launch.

The blocks are small (96 channels for d4 at a width of 768), so memory bandwidth takes the time, and one cuBLAS call for
each kind of block would write parts of rows that a copy must then join. Here a program computes a tile of tokens and
output channels of one block, directly in the rows of the result. Programs of the same tokens follow each other, so
that a row is loaded from memory once and then from the cache.

The gradient of the weight sums over all tokens. Programs sum over parts of them, and
:mod:`unpose.nn.ops.cuda.reduce` over programs in a fixed order. Sums are float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from unpose.nn.ops.cuda.reduce import sum_rows

_BLOCK_TOKENS = 128
"""Tokens of a tile in the forward pass."""

_BLOCK_IN = 64
"""Input channels that are multiplied at once."""

_GRADIENT_TOKENS = 64
"""Tokens that are multiplied at once in the gradient of the weight."""

_PROGRAMS = 528
"""Programs for the gradient of the weight: four for each multiprocessor of the largest GPUs."""


def library_forward(tokens: Tensor, singles: Tensor, pairs: Tensor, components: int) -> Tensor:
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


def library_weight_gradient(grad_out: Tensor, tokens: Tensor, s: int, p: int, components: int) -> Tensor:
    """Return the gradients of both kinds of blocks by cuBLAS, flat and concatenated, in float32."""
    order = s + 2 * p * components
    gradient, rows = grad_out.reshape(-1, grad_out.shape[-1]), tokens.reshape(-1, tokens.shape[-1])
    out_channels, channels = gradient.shape[1] // order, rows.shape[1] // order
    total = torch.empty((s + 4 * p) * out_channels * channels, device=tokens.device)
    singles = torch.bmm(_groups(gradient, 0, s, out_channels).mT, _groups(rows, 0, s, channels))
    total[: singles.numel()] = singles.flatten()
    if p:
        count = p * components
        left = _groups(gradient, s * out_channels, count, 2 * out_channels)
        pairs = torch.bmm(left.mT, _groups(rows, s * channels, count, 2 * channels))
        torch.sum(
            pairs.unflatten(0, (p, components)),
            1,
            dtype=torch.float32,
            out=total[singles.numel() :].view(p, 2 * out_channels, 2 * channels),
        )
    return total


def _groups(rows: Tensor, first: int, count: int, channels: int) -> Tensor:
    """Return groups of neighbouring columns as a view: (n, width) -> (count, n, channels)."""
    return rows[:, first : first + count * channels].unflatten(1, (count, channels)).transpose(0, 1)


def forward(tokens: Tensor, singles: Tensor, pairs: Tensor, components: int) -> Tensor:
    """Map (..., order * c) by blocks (s, out, c) and (p, 2 out, 2 c), of any strides, to (..., order * out)."""
    tokens = tokens.contiguous()
    s, out_channels, in_channels = singles.shape
    order = s + 2 * len(pairs) * components
    n_tokens = tokens.numel() // tokens.shape[-1]
    out = tokens.new_empty(*tokens.shape[:-1], order * out_channels)
    block_out = _block_size(2 * out_channels if len(pairs) else out_channels, 128)
    tiles_single, tiles_pair = triton.cdiv(out_channels, block_out), triton.cdiv(2 * out_channels, block_out)
    tiles = s * tiles_single + len(pairs) * components * tiles_pair
    with torch.cuda.device_of(tokens):
        forward_kernel[(triton.cdiv(n_tokens, _BLOCK_TOKENS) * tiles,)](
            tokens, singles, pairs if len(pairs) else singles, out, n_tokens, *singles.stride(), *pairs.stride(),
            S=s, COMPONENTS=components, IN=in_channels, OUT=out_channels, WIDTH_IN=order * in_channels,
            WIDTH_OUT=order * out_channels, TILES=tiles, TILES_SINGLE=tiles_single, TILES_PAIR=tiles_pair,
            BLOCK_TOKENS=_BLOCK_TOKENS, BLOCK_IN=min(_BLOCK_IN, _block_size(in_channels, 64)), BLOCK_OUT=block_out,
            num_warps=8 if block_out > 64 else 4, num_stages=3,
        )  # fmt: skip
    return out


def weight_gradient(grad_out: Tensor, tokens: Tensor, s: int, p: int, components: int) -> Tensor:
    """Return the gradients of both kinds of blocks, flat and concatenated, in float32."""
    tokens, grad_out = tokens.contiguous(), grad_out.contiguous()
    order = s + 2 * p * components
    out_channels, in_channels = grad_out.shape[-1] // order, tokens.shape[-1] // order
    n_tokens = tokens.numel() // tokens.shape[-1]
    scale = 2 if p else 1
    block_out, block_in = _block_size(scale * out_channels, 128), _block_size(scale * in_channels, 64)
    tiles_single = triton.cdiv(out_channels, block_out) * triton.cdiv(in_channels, block_in)
    tiles_pair = triton.cdiv(2 * out_channels, block_out) * triton.cdiv(2 * in_channels, block_in)
    tiles = s * tiles_single + p * tiles_pair
    chunks = triton.cdiv(n_tokens, _GRADIENT_TOKENS)
    chunks_each = triton.cdiv(chunks, max(1, _PROGRAMS // tiles))
    splits = triton.cdiv(chunks, chunks_each)
    partial_sums = torch.empty(splits, (s + 4 * p) * out_channels * in_channels, device=tokens.device)
    with torch.cuda.device_of(tokens):
        weight_kernel[(tiles, splits)](
            grad_out, tokens, partial_sums, n_tokens, chunks_each * _GRADIENT_TOKENS, partial_sums.shape[1],
            S=s, COMPONENTS=components, IN=in_channels, OUT=out_channels, WIDTH_IN=order * in_channels,
            WIDTH_OUT=order * out_channels, TILES_SINGLE=tiles_single, TILES_PAIR=tiles_pair,
            BLOCK_TOKENS=_GRADIENT_TOKENS, BLOCK_IN=block_in, BLOCK_OUT=block_out,
            num_warps=8 if block_out > 64 else 4, num_stages=3,
        )  # fmt: skip
    return partial_sums[0] if splits == 1 else sum_rows(partial_sums)


def _block_size(channels: int, limit: int) -> int:
    """Return the channels of a tile: a power of two, and at least the 16 that tensor cores multiply."""
    return min(max(16, triton.next_power_of_2(channels)), limit)


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    tokens, singles, pairs, out, n_tokens, stride_s, stride_so, stride_si, stride_p, stride_po, stride_pi,
    S: tl.constexpr, COMPONENTS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, WIDTH_IN: tl.constexpr,
    WIDTH_OUT: tl.constexpr, TILES: tl.constexpr, TILES_SINGLE: tl.constexpr, TILES_PAIR: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BLOCK_IN: tl.constexpr, BLOCK_OUT: tl.constexpr,
):  # fmt: skip
    """Compute one tile of tokens and output channels of one block."""
    program = tl.program_id(0)
    token = (program // TILES) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    tile = program % TILES
    if tile < S * TILES_SINGLE:
        block, first_out = tile // TILES_SINGLE, tile % TILES_SINGLE * BLOCK_OUT
        _tile(
            tokens + block * IN, singles + block * stride_s, out + block * OUT, token, first_out, n_tokens, stride_so,
            stride_si, IN, OUT, WIDTH_IN, WIDTH_OUT, BLOCK_TOKENS, BLOCK_IN, BLOCK_OUT,
        )  # fmt: skip
    else:
        tile -= S * TILES_SINGLE
        part, first_out = tile // TILES_PAIR, tile % TILES_PAIR * BLOCK_OUT  # part: representation and component
        _tile(
            tokens + (S + 2 * part) * IN, pairs + part // COMPONENTS * stride_p, out + (S + 2 * part) * OUT, token,
            first_out, n_tokens, stride_po, stride_pi, 2 * IN, 2 * OUT, WIDTH_IN, WIDTH_OUT, BLOCK_TOKENS, BLOCK_IN,
            BLOCK_OUT,
        )  # fmt: skip


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    tokens, weight, out, token, first_out, n_tokens, stride_out, stride_in, IN: tl.constexpr, OUT: tl.constexpr,
    WIDTH_IN: tl.constexpr, WIDTH_OUT: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
):  # fmt: skip
    """Multiply a tile of tokens by a tile of one block, (BLOCK_TOKENS, IN) x (IN, BLOCK_OUT), and store it."""
    channel_out = first_out + tl.arange(0, BLOCK_OUT)
    row = token.to(tl.int64)[:, None]
    accumulator = tl.zeros((BLOCK_TOKENS, BLOCK_OUT), tl.float32)
    for first_in in range(0, IN, BLOCK_IN):
        channel_in = first_in + tl.arange(0, BLOCK_IN)
        exists = (row < n_tokens) & (channel_in < IN)[None]
        left = tl.load(tokens + row * WIDTH_IN + channel_in[None], mask=exists, other=0.0)
        exists = (channel_in < IN)[:, None] & (channel_out < OUT)[None]
        right = tl.load(
            weight + channel_out[None] * stride_out + channel_in[:, None] * stride_in, mask=exists, other=0.0
        )
        accumulator = tl.dot(left, right, accumulator)
    exists = (row < n_tokens) & (channel_out < OUT)[None]
    tl.store(out + row * WIDTH_OUT + channel_out[None], accumulator.to(out.dtype.element_ty), mask=exists)


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
