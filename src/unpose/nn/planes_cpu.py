"""Maps as planes for the compiled loops of group attention: (element, channel, pixel), with a margin for the window.

A band of rows of one image and head is copied at a time, so that what the loops read stays in a cache.
"""

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from unpose.images.keys_cpu import compiled
from unpose.nn.lanes_cpu import BLOCK, HALF, WIDTH

FAR = 1e30
"""Added to what must not count; finite, so that a lane where nothing counts stays a number."""
_BAND = 4096  # pixels of a band


class Plan(NamedTuple):
    """Numbers that the loops share; all follow from the shapes."""

    shape: tuple[int, ...]  # batch, heads, outputs, queries, keys, height, width, channels, value channels
    reach: tuple[int, int]  # of the window to each side: rows, columns
    band: int  # rows of a band
    bands: int
    line: int  # numbers from one row of a plane to the next
    origin: int  # where the first pixel of a band is
    tiles: int
    size: int  # numbers of a plane


def make_plan(query: Tensor, key: Tensor, value: Tensor, position: Tensor) -> Plan:
    batch, heads, queries, height, width, channels = query.shape
    outputs, keys, window_y, window_x = position.shape[1:5]
    shape = (batch, heads, outputs, queries, keys, height, width, channels, value.shape[-1])
    return _geometry(shape, (window_y // 2, window_x // 2))


def _geometry(shape: tuple[int, ...], reach: tuple[int, int]) -> Plan:
    height, width = shape[5:7]
    bands = max(1, round(height * width / _BAND))
    band = math.ceil(height / bands)
    # The margin to the right of a row is the one to the left of the next.
    line = width + reach[1]
    # A load that starts on a cache line costs half of one that does not: tiles and planes start on one.
    origin = -(-(reach[0] * line + reach[1]) // HALF) * HALF
    tiles = -(-band * line // WIDTH)
    return Plan(shape, reach, band, -(-height // band), line, origin, tiles, 2 * origin + tiles * WIDTH)


def flat(tensor: Tensor) -> tuple[np.ndarray, tuple[int, ...]]:
    """A tensor of any layout as its numbers in memory and its strides: the loops are compiled for one layout only."""
    tensor = tensor.detach()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).numpy(), tensor.stride()


@compiled
def reached(tile, first_row, plan, per_row, sign):  # type: ignore[no-untyped-def]
    """The entries, in whole blocks, whose rows of the window meet the image from some pixel of a tile.

    sign is 1 where the entry's row lies below the pixel's (keys of a query), -1 where above (queries of a key).
    """
    height, reach = plan.shape[5], plan.reach[0]
    top = first_row + tile * WIDTH // plan.line
    bottom = min(first_row + (tile * WIDTH + WIDTH - 1) // plan.line, height - 1)
    if sign > 0:
        lowest, highest = max(-reach, -bottom), min(reach, height - 1 - top)
    else:
        lowest, highest = max(-reach, top - height + 1), min(reach, bottom)
    first = (lowest + reach) * per_row // BLOCK * BLOCK
    end = ((highest + reach + 1) * per_row + BLOCK - 1) // BLOCK * BLOCK
    return first, max(first, end)


@compiled
def room(count, dtype):  # type: ignore[no-untyped-def]
    """Numbers that start on a cache line."""
    room = np.empty(count + 64, dtype)
    skip = (-room.ctypes.data) % 64 // room.itemsize
    return room[skip : skip + count]


@compiled
def make_planes(plan, like):  # type: ignore[no-untyped-def]
    """Room for queries, keys, values, gradients, levels, deltas and pixel numbers of one band."""
    _, _, outputs, queries, keys, _, _, channels, value_channels = plan.shape
    size, dtype = plan.size, like.dtype
    return (
        room(queries * (channels + 1) * size, dtype),
        room(keys * (channels + 1) * size, dtype),
        room(keys * value_channels * size, dtype),
        room(outputs * value_channels * size, dtype),
        room(outputs * size, dtype),
        room(outputs * size, dtype),
        np.zeros(size, np.int32),
    )


@compiled
def load(inputs, b, n, first_row, margin, plan, outside, planes):  # type: ignore[no-untyped-def]
    """Fill the planes of a band; queries count only in the band and so many rows around it."""
    query, key, value, grad, out, level = inputs
    ask, have, give, wanted, levels, deltas, numbers = planes
    _, _, outputs, queries, keys, _, _, channels, value_channels = plan.shape
    one = ask.dtype.type(1)
    pack(query, b, n, queries, channels, 1, first_row, plan, one / np.sqrt(ask.dtype.type(channels)), one, one, ask)
    pack(key, b, n, keys, channels, 1, first_row, plan, one, outside, one - one, have)
    pack(value, b, n, keys, value_channels, 0, first_row, plan, one, one, one, give)
    pack(grad, b, n, outputs, value_channels, 0, first_row, plan, one, one, one, wanted)
    _pack_levels(level, grad, out, b, n, first_row, margin, plan, levels, deltas)
    number(first_row, plan, numbers)


@compiled
def pack(source, b, n, elements, channels, extra, first_row, plan, factor, outside, inside, planes):  # type: ignore[no-untyped-def]
    """A band of one image and head, (element, row, column, channel) in memory, into planes with zeros around it.

    An extra plane for each element holds one number outside of the image and another inside.
    """
    numbers, strides = source
    height, width, reach_y, line, size = plan.shape[5], plan.shape[6], plan.reach[0], plan.line, plan.size
    next_x, next_c = np.uintp(strides[4]), np.uintp(strides[5])
    for element in range(elements):
        start = element * (channels + extra) * size
        for i in range(channels * size):
            planes[np.uintp(start + i)] = 0
        for i in range(extra * size):
            planes[np.uintp(start + channels * size + i)] = outside
        for row in range(max(0, first_row - reach_y), min(height, first_row + plan.band + reach_y)):
            at = np.uintp(b * strides[0] + n * strides[1] + element * strides[2] + row * strides[3])
            to = start + plan.origin + (row - first_row) * line
            for c in range(channels):
                there, here = np.uintp(to + c * size), at + np.uintp(c) * next_c
                for x in range(width):
                    planes[there + np.uintp(x)] = numbers[here + np.uintp(x) * next_x] * factor
            if extra > 0:
                there = np.uintp(to + channels * size)
                for x in range(width):
                    planes[there + np.uintp(x)] = inside


@compiled
def _pack_levels(level, grad, out, b, n, first_row, margin, plan, levels, deltas):  # type: ignore[no-untyped-def]
    """Planes of the logarithm of each query's sum and of ``<gradient, out>``, for a band and so many rows around it.

    The rest is infinitely far: no weight there counts.
    """
    outputs, height, width, channels = plan.shape[2], plan.shape[5], plan.shape[6], plan.shape[8]
    line, size = plan.line, plan.size
    (numbers, by_level), (slopes, by_slope), (values, by_value) = level, grad, out
    fill(levels, levels.dtype.type(FAR))
    fill(deltas, deltas.dtype.type(0))
    for h in range(outputs):
        for row in range(max(0, first_row - margin), min(height, first_row + plan.band + margin)):
            to = np.uintp(h * size + plan.origin + (row - first_row) * line)
            one = np.uintp(b * by_level[0] + n * by_level[1] + h * by_level[2] + row * by_level[3])
            two = np.uintp(b * by_slope[0] + n * by_slope[1] + h * by_slope[2] + row * by_slope[3])
            three = np.uintp(b * by_value[0] + n * by_value[1] + h * by_value[2] + row * by_value[3])
            for x in range(width):
                at = np.uintp(x)
                levels[to + at] = numbers[one + at * np.uintp(by_level[4])]
                for c in range(channels):
                    slope = slopes[two + at * np.uintp(by_slope[4]) + np.uintp(c) * np.uintp(by_slope[5])]
                    found = values[three + at * np.uintp(by_value[4]) + np.uintp(c) * np.uintp(by_value[5])]
                    deltas[to + at] += slope * found


@compiled
def number(first_row, plan, numbers):  # type: ignore[no-untyped-def]
    """The number of each pixel in its image, in a plane."""
    height, width, reach_y, line = plan.shape[5], plan.shape[6], plan.reach[0], plan.line
    for row in range(max(0, first_row - reach_y), min(height, first_row + plan.band + reach_y)):
        to = plan.origin + (row - first_row) * line
        for x in range(width):
            numbers[np.uintp(to + x)] = row * width + x


@compiled
def unpack(rows, channels, tile, first_row, plan, target):  # type: ignore[no-untyped-def]
    """Rows (channels, WIDTH) of a tile into their pixels of a map (height, width, channels)."""
    height, width = plan.shape[5], plan.shape[6]
    y, x = tile * WIDTH // plan.line, tile * WIDTH % plan.line
    stop = min(plan.band, height - first_row)
    for lane in range(WIDTH):
        if x < width and y < stop:
            for c in range(channels):
                target[np.uintp(first_row + y), np.uintp(x), np.uintp(c)] = rows[np.uintp(c * WIDTH + lane)]
        x += 1
        if x == plan.line:
            x, y = 0, y + 1


@compiled
def fill(rows, value):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        rows[i] = value


@compiled
def multiply(rows, factors):  # type: ignore[no-untyped-def]
    """Rows (any, WIDTH), each times the factors (WIDTH,)."""
    for i in range(rows.size // WIDTH):
        for lane in range(WIDTH):
            rows[np.uintp(i * WIDTH + lane)] *= factors[np.uintp(lane)]
