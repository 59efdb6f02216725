"""Memory layout of the CPU attention kernels: padded maps for a block of image rows, and copies into and out of them.

The kernels process one image, one head and one *row block*, some consecutive image rows, at a time, so that everything
they read stays in a cache. Queries, keys and values of the row block are copied into *padded maps*, flat arrays of
shape ``(elements, channels, map_size)``. A padded map holds the rows of the block with ``radius[0]`` rows above and
below it, at a distance of ``row_stride = width + radius[1]`` numbers: the zeros behind a row are the right margin of
this row and the left margin of the next. So the neighbour at offset (dy, dx) of every pixel lies ``dy * row_stride +
dx`` numbers further on, and no window needs a bounds check. Keys have one more channel, the mask: 0 inside the image,
-HUGE outside. In the backward pass queries have one more channel of ones, which gives the gradient of the bias.

The pixels of a row block, margins included, are cut into pixel blocks of PIXEL_BLOCK numbers; results of pixels in the
margin are computed and not stored. All sizes follow from the shapes of the tensors, never from the number of threads.
"""

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from unpose.compiled import inner
from unpose.nn.ops.cpu.microkernels import QUERY_BLOCK
from unpose.nn.ops.cpu.rows import copy_row, dot_rows
from unpose.nn.ops.cpu.simd import HASH_FACTOR, PIXEL_BLOCK, SIMD_LANES, UNROLL

HUGE = 1e30
"""Stands for infinity in masks and padding; finite, so that a SIMD lane without any valid neighbour gets no NaN."""
_ROW_BLOCK_PIXELS = 4096  # approximate number of pixels of a row block
_CHUNK_NEIGHBOURS = 4096 // QUERY_BLOCK  # approximate number of neighbours in a chunk: 16 KB of scores


class Layout(NamedTuple):
    """Sizes that all kernels share; they follow from the shapes of the tensors."""

    shape: tuple[int, ...]  # batch, heads, outputs, queries, keys, height, width, channels, value channels
    radius: tuple[int, int]  # of the window: rows, columns
    block_rows: int  # image rows in a row block
    n_row_blocks: int
    row_stride: int  # numbers from one image row of a padded map to the next
    origin: int  # index of the row block's first pixel in a padded map
    n_pixel_blocks: int
    map_size: int  # numbers of one padded map
    keys_per_position: int  # neighbours that share an entry of the position table: all keys at an offset, or one
    unit: int  # neighbours are processed in multiples of it: a multiple of UNROLL and of the number of keys
    chunk: int  # neighbours whose scores are computed before they are used, few enough for the L1 cache


def make_layout(query: Tensor, key: Tensor, value: Tensor, position: Tensor) -> Layout:
    """Choose block sizes for tensors of these shapes: maps (b, n, g, h, w, d), position (n or 1, o, k, wy, wx, d)."""
    batch, heads, queries, height, width, channels = query.shape
    outputs, table_keys, window_y, window_x = position.shape[1:5]
    keys, radius = key.shape[2], (window_y // 2, window_x // 2)
    shape = (batch, heads, outputs, queries, keys, height, width, channels, value.shape[-1])
    block_rows = math.ceil(height / max(1, round(height * width / _ROW_BLOCK_PIXELS)))
    row_stride = width + radius[1]
    # Pixel blocks and padded maps start on a cache line: a load that crosses one costs twice as much.
    origin = -(-(radius[0] * row_stride + radius[1]) // SIMD_LANES) * SIMD_LANES
    n_pixel_blocks = -(-block_rows * row_stride // PIXEL_BLOCK)
    unit = math.lcm(UNROLL, keys)
    return Layout(
        shape,
        radius,
        block_rows,
        n_row_blocks=-(-height // block_rows),
        row_stride=row_stride,
        origin=origin,
        n_pixel_blocks=n_pixel_blocks,
        map_size=2 * origin + n_pixel_blocks * PIXEL_BLOCK,
        keys_per_position=keys // table_keys,
        unit=unit,
        chunk=unit * max(1, _CHUNK_NEIGHBOURS // unit),
    )


def flat_view(tensor: Tensor) -> tuple[np.ndarray, tuple[int, ...]]:
    """The memory of a tensor as a flat array, and its strides: so kernels are compiled once for all memory layouts."""
    tensor = tensor.detach()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).numpy(), tensor.stride()


@inner
def neighbour_range(first_block, end_block, first_row, layout):  # type: ignore[no-untyped-def]
    """Range of neighbours, in whole units, whose window rows lie in the image for some pixel of these pixel blocks."""
    height, radius = layout.shape[5], layout.radius[0]
    per_row = layout.shape[4] * (2 * layout.radius[1] + 1)
    top = first_row + first_block * PIXEL_BLOCK // layout.row_stride
    bottom = min(first_row + (end_block * PIXEL_BLOCK - 1) // layout.row_stride, height - 1)
    lowest, highest = max(-radius, -bottom), min(radius, height - 1 - top)
    first = (lowest + radius) * per_row // layout.unit * layout.unit
    end = ((highest + radius + 1) * per_row + layout.unit - 1) // layout.unit * layout.unit
    return first, max(first, end)


@inner
def aligned_empty(count, dtype):  # type: ignore[no-untyped-def]
    """Uninitialised array (count,) that starts on a cache line."""
    memory = np.empty(count + 64, dtype)
    skip = (-memory.ctypes.data) % 64 // memory.itemsize
    return memory[skip : skip + count]


@inner
def make_backward_maps(layout, dtype_like):  # type: ignore[no-untyped-def]
    """Uninitialised padded maps of the backward pass for one row block.

    query, key, value, grad_out, logsumexp, delta, pixel_hashes, grad_key, grad_value.
    """
    _, _, outputs, queries, keys, _, _, channels, value_channels = layout.shape
    size, dtype = layout.map_size, dtype_like.dtype
    return (
        aligned_empty(queries * (channels + 1) * size, dtype),
        aligned_empty(keys * (channels + 1) * size, dtype),
        aligned_empty(keys * value_channels * size, dtype),
        aligned_empty(outputs * value_channels * size, dtype),
        aligned_empty(outputs * size, dtype),
        aligned_empty(outputs * size, dtype),
        np.zeros(size, np.uint32),
        aligned_empty(keys * (channels + 1) * size, dtype),
        aligned_empty(keys * value_channels * size, dtype),
    )


@inner
def fill_backward_maps(inputs, b, n, first_row, layout, query_scale, log2_e, maps):  # type: ignore[no-untyped-def]
    """Fill the padded maps of the backward pass for image b, head n and the row block that starts at ``first_row``."""
    query, key, value, grad_out, out, logsumexp = inputs
    padded_query, padded_key, padded_value, padded_grad, padded_lse, deltas, pixel_hashes, grad_key, grad_value = maps
    _, _, outputs, queries, keys, _, _, channels, value_channels = layout.shape
    one, zero = padded_query.dtype.type(1), padded_query.dtype.type(0)
    pack_map(query, b, n, queries, channels, first_row, layout, query_scale, one, one, padded_query)
    pack_map(key, b, n, keys, channels, first_row, layout, one, -padded_query.dtype.type(HUGE), zero, padded_key)
    pack_map(value, b, n, keys, value_channels, first_row, layout, one, one, one, padded_value)
    pack_map(grad_out, b, n, outputs, value_channels, first_row, layout, one, one, one, padded_grad)
    _pack_statistics(logsumexp, grad_out, out, b, n, first_row, layout, log2_e, padded_lse, deltas)
    pack_pixel_hashes(first_row, layout, pixel_hashes)
    fill(grad_key, zero)
    fill(grad_value, zero)


@inner
def pack_map(source, b, n, elements, channels, first_row, layout, factor, outside, inside, padded):  # type: ignore[no-untyped-def]
    """Copy a row block and its margin, times a factor, into padded maps (elements, channels or one more, map_size).

    ``source`` is the :func:`flat_view` of a (b, n, elements, h, w, channels) tensor. The extra channel, if ``padded``
    has one, holds the number ``inside`` in the image and ``outside`` elsewhere.
    """
    numbers, strides = source
    height, width, radius, size = layout.shape[5], layout.shape[6], layout.radius[0], layout.map_size
    extra = padded.size // (elements * size) - channels
    # Unsigned indices: numba tests signed ones for wraparound at every access.
    x_stride, channel_stride = np.uintp(strides[4]), np.uintp(strides[5])
    for element in range(elements):
        start = element * (channels + extra) * size
        fill(padded[start : start + channels * size], factor - factor)
        fill(padded[start + channels * size : start + (channels + extra) * size], outside)
        for row in range(max(0, first_row - radius), min(height, first_row + layout.block_rows + radius)):
            at = np.uintp(b * strides[0] + n * strides[1] + element * strides[2] + row * strides[3])
            to = start + layout.origin + (row - first_row) * layout.row_stride
            for c in range(channels):
                if strides[4] == 1:
                    copy_row(padded, to + c * size, numbers, np.intp(at) + c * strides[5], width, factor)
                    continue
                target, origin = np.uintp(to + c * size), at + np.uintp(c) * channel_stride
                for x in range(width):
                    padded[target + np.uintp(x)] = numbers[origin + np.uintp(x) * x_stride] * factor
            if extra > 0:
                target = np.uintp(to + channels * size)
                for x in range(width):
                    padded[target + np.uintp(x)] = inside


@inner
def _pack_statistics(logsumexp, grad_out, out, b, n, first_row, layout, log2_e, padded_lse, deltas):  # type: ignore[no-untyped-def]
    """Fill padded maps (outputs, map_size) of the base-2 logsumexp and of delta = <grad_out, out>.

    Outside of the row block the logsumexp is HUGE, so that all weights there are zero.
    """
    outputs, height, width, channels = layout.shape[2], layout.shape[5], layout.shape[6], layout.shape[8]
    (lse, lse_strides), (grads, grad_strides), (outs, out_strides) = logsumexp, grad_out, out
    fill(padded_lse, padded_lse.dtype.type(HUGE))
    fill(deltas, deltas.dtype.type(0))
    for h in range(outputs):
        for row in range(first_row, min(height, first_row + layout.block_rows)):
            to = h * layout.map_size + layout.origin + (row - first_row) * layout.row_stride
            lse_at = b * lse_strides[0] + n * lse_strides[1] + h * lse_strides[2] + row * lse_strides[3]
            grad_at = b * grad_strides[0] + n * grad_strides[1] + h * grad_strides[2] + row * grad_strides[3]
            out_at = b * out_strides[0] + n * out_strides[1] + h * out_strides[2] + row * out_strides[3]
            for x in range(width):
                padded_lse[np.uintp(to + x)] = lse[np.uintp(lse_at + x * lse_strides[4])] * log2_e
            if grad_strides[4] == 1 and out_strides[4] == 1:
                dot_rows(deltas, to, grads, grad_at, grad_strides[5], outs, out_at, out_strides[5], channels, width)
                continue
            for x in range(width):
                total = deltas.dtype.type(0)
                for c in range(channels):
                    grad = grads[np.uintp(grad_at + x * grad_strides[4] + c * grad_strides[5])]
                    total += grad * outs[np.uintp(out_at + x * out_strides[4] + c * out_strides[5])]
                deltas[np.uintp(to + x)] = total


@inner
def pack_pixel_hashes(first_row, layout, pixel_hashes):  # type: ignore[no-untyped-def]
    """Fill a padded map with each pixel's part of the index of its weights, times HASH_FACTOR modulo 2^32."""
    height, width, radius = layout.shape[5], layout.shape[6], layout.radius[0]
    weights_per_query = layout.shape[4] * (2 * radius + 1) * (2 * layout.radius[1] + 1)
    for row in range(max(0, first_row - radius), min(height, first_row + layout.block_rows + radius)):
        to = layout.origin + (row - first_row) * layout.row_stride
        for x in range(width):
            index = np.uint64((row * width + x) * weights_per_query)
            pixel_hashes[np.uintp(to + x)] = np.uint32((index * np.uint64(HASH_FACTOR)) & np.uint64(0xFFFFFFFF))


@inner
def store_block(block, output, factor, pixel_block, first_row, layout, target, image, element):  # type: ignore[no-untyped-def]
    """Store the pixels of one output element of a block (channels, QUERY_BLOCK), times a factor, as image rows.

    ``target`` is (b, n, channels, elements, h, w); ``image`` counts its first two axes together. Pixels in the margin
    are left out.
    """
    channels, elements, height, width = target.shape[2:]
    row_stride, n_rows, i = layout.row_stride, min(layout.block_rows, height - first_row), 0
    while i < PIXEL_BLOCK:
        y, x = (pixel_block * PIXEL_BLOCK + i) // row_stride, (pixel_block * PIXEL_BLOCK + i) % row_stride
        if y >= n_rows:
            break
        count = min(row_stride - x, PIXEL_BLOCK - i)
        to = ((image * channels * elements + element) * height + first_row + y) * width + x
        for c in range(channels):
            at = c * QUERY_BLOCK + output * PIXEL_BLOCK + i
            copy_row(target, to + c * elements * height * width, block, at, min(count, width - x), factor)
        i += count


@inner
def add_padded(padded, channels_per_element, factor, first_row, layout, target, image):  # type: ignore[no-untyped-def]
    """Add a row block and its margin, times a factor, to ``target`` (b, n, channels, elements, h, w).

    ``padded`` is (elements, channels_per_element, map_size); ``image`` counts the first two axes of the target.
    """
    channels, elements, height, width = target.shape[2:]
    radius, flat_target = layout.radius[0], target.ravel()
    for element in range(elements):
        for row in range(max(0, first_row - radius), min(height, first_row + layout.block_rows + radius)):
            for c in range(channels):
                at = (element * channels_per_element + c) * layout.map_size + layout.origin
                at += (row - first_row) * layout.row_stride
                to = (((image * channels + c) * elements + element) * height + row) * width
                for x in range(width):
                    flat_target[np.uintp(to + x)] += padded[np.uintp(at + x)] * factor


@inner
def fill(array, value):  # type: ignore[no-untyped-def]
    for i in range(array.size):
        array[i] = value


@inner
def scale_rows(rows, factors):  # type: ignore[no-untyped-def]
    """Multiply each row of (any, QUERY_BLOCK), given flat, by the factors (QUERY_BLOCK,)."""
    for row in range(rows.size // QUERY_BLOCK):
        for i in range(QUERY_BLOCK):
            rows[np.uintp(row * QUERY_BLOCK + i)] *= factors[np.uintp(i)]
