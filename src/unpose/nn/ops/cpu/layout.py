"""Maps as planes for the compiled loops of group attention: (element, channel, pixel), with a margin for the window.

A band of rows of one image and head is copied at a time, so that what the loops read stays in a cache.
"""

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from unpose.compiled import compiled
from unpose.nn.ops.cpu.microkernels import ROW
from unpose.nn.ops.cpu.rows import copy, inner
from unpose.nn.ops.cpu.simd import BLOCK, HALF, HASH, WIDTH

FAR = 1e30
"""Added to what must not count; finite, so that a lane where nothing counts stays a number."""
_BAND = 4096  # pixels of a band
_CHUNK = 4096 // ROW  # entries of a chunk, about: 16 KB of rows


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
    share: int  # entries that have a code of the table in common: the keys at an offset, or each its own
    unit: int  # entries are gone through in multiples of it: whole blocks, and all keys at an offset
    chunk: int  # entries that are scored before they are used, few enough to stay in the nearest cache


def make_plan(query: Tensor, key: Tensor, value: Tensor, position: Tensor) -> Plan:
    batch, heads, queries, height, width, channels = query.shape
    outputs, tabled, window_y, window_x = position.shape[1:5]
    keys, reach = key.shape[2], (window_y // 2, window_x // 2)
    shape = (batch, heads, outputs, queries, keys, height, width, channels, value.shape[-1])
    bands = max(1, round(height * width / _BAND))
    band = math.ceil(height / bands)
    # The margin to the right of a row is the one to the left of the next.
    line = width + reach[1]
    # A load that starts on a cache line costs half of one that does not: tiles and planes start on one.
    origin = -(-(reach[0] * line + reach[1]) // HALF) * HALF
    tiles = -(-band * line // WIDTH)
    size, unit = 2 * origin + tiles * WIDTH, math.lcm(BLOCK, keys)
    chunk = unit * max(1, _CHUNK // unit)
    return Plan(shape, reach, band, -(-height // band), line, origin, tiles, size, keys // tabled, unit, chunk)


def flat(tensor: Tensor) -> tuple[np.ndarray, tuple[int, ...]]:
    """A tensor of any layout as its numbers in memory and its strides: the loops are compiled for one layout only."""
    tensor = tensor.detach()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).numpy(), tensor.stride()


@compiled
def reached(tile, tiles, first_row, plan):  # type: ignore[no-untyped-def]
    """The entries, in whole units, whose rows of the window meet the image from some pixel of some tiles."""
    height, reach = plan.shape[5], plan.reach[0]
    per_row = plan.shape[4] * (2 * plan.reach[1] + 1)
    top = first_row + tile * WIDTH // plan.line
    bottom = min(first_row + ((tile + tiles) * WIDTH - 1) // plan.line, height - 1)
    lowest, highest = max(-reach, -bottom), min(reach, height - 1 - top)
    first = (lowest + reach) * per_row // plan.unit * plan.unit
    end = ((highest + reach + 1) * per_row + plan.unit - 1) // plan.unit * plan.unit
    return first, max(first, end)


@compiled
def room(count, dtype):  # type: ignore[no-untyped-def]
    """Numbers that start on a cache line."""
    room = np.empty(count + 64, dtype)
    skip = (-room.ctypes.data) % 64 // room.itemsize
    return room[skip : skip + count]


@compiled
def make_planes(plan, like):  # type: ignore[no-untyped-def]
    """Room for queries, keys, values, gradients, levels, deltas and pixel numbers of one band, and for the gradients of
    keys and values."""
    _, _, outputs, queries, keys, _, _, channels, value_channels = plan.shape
    size, dtype = plan.size, like.dtype
    return (
        room(queries * (channels + 1) * size, dtype),
        room(keys * (channels + 1) * size, dtype),
        room(keys * value_channels * size, dtype),
        room(outputs * value_channels * size, dtype),
        room(outputs * size, dtype),
        room(outputs * size, dtype),
        np.zeros(size, np.uint32),
        room(keys * (channels + 1) * size, dtype),
        room(keys * value_channels * size, dtype),
    )


@compiled
def load(inputs, b, n, first_row, plan, factor, planes):  # type: ignore[no-untyped-def]
    """Fill the planes of a band, queries times the factor; gradients of keys and values begin with zero."""
    query, key, value, grad, out, level = inputs
    ask, have, give, wanted, levels, deltas, pixels, keyed, valued = planes
    _, _, outputs, queries, keys, _, _, channels, value_channels = plan.shape
    one = ask.dtype.type(1)
    pack(query, b, n, queries, channels, 1, first_row, plan, factor, one, one, ask)
    pack(key, b, n, keys, channels, 1, first_row, plan, one, -ask.dtype.type(FAR), one - one, have)
    pack(value, b, n, keys, value_channels, 0, first_row, plan, one, one, one, give)
    pack(grad, b, n, outputs, value_channels, 0, first_row, plan, one, one, one, wanted)
    _pack_levels(level, grad, out, b, n, first_row, plan, levels, deltas)
    number(first_row, plan, pixels)
    fill(keyed, one - one)
    fill(valued, one - one)


@compiled
def pack(source, b, n, elements, channels, extra, first_row, plan, factor, outside, inside, planes):  # type: ignore[no-untyped-def]
    """A band of one image and head, (element, row, column, channel), into planes with zeros around it.

    An extra plane for each element holds one number outside of the image and another inside.
    """
    numbers, strides = source
    height, width, reach_y, line, size = plan.shape[5], plan.shape[6], plan.reach[0], plan.line, plan.size
    next_x, next_c = np.uintp(strides[4]), np.uintp(strides[5])
    for element in range(elements):
        start = element * (channels + extra) * size
        fill(planes[start : start + channels * size], factor - factor)
        fill(planes[start + channels * size : start + (channels + extra) * size], outside)
        for row in range(max(0, first_row - reach_y), min(height, first_row + plan.band + reach_y)):
            at = np.uintp(b * strides[0] + n * strides[1] + element * strides[2] + row * strides[3])
            to = start + plan.origin + (row - first_row) * line
            for c in range(channels):
                if strides[4] == 1:
                    copy(planes, to + c * size, numbers, np.intp(at) + c * strides[5], width, factor)
                    continue
                there, here = np.uintp(to + c * size), at + np.uintp(c) * next_c
                for x in range(width):
                    planes[there + np.uintp(x)] = numbers[here + np.uintp(x) * next_x] * factor
            if extra > 0:
                there = np.uintp(to + channels * size)
                for x in range(width):
                    planes[there + np.uintp(x)] = inside


@compiled
def _pack_levels(level, grad, out, b, n, first_row, plan, levels, deltas):  # type: ignore[no-untyped-def]
    """Planes of the logarithm of each query's sum and of ``<gradient, out>``, for the rows of a band.

    The rest is infinitely far: no weight there counts.
    """
    outputs, height, width, channels = plan.shape[2], plan.shape[5], plan.shape[6], plan.shape[8]
    line, size = plan.line, plan.size
    (numbers, by_level), (slopes, by_slope), (values, by_value) = level, grad, out
    fill(levels, levels.dtype.type(FAR))
    fill(deltas, deltas.dtype.type(0))
    for h in range(outputs):
        for row in range(first_row, min(height, first_row + plan.band)):
            to = h * size + plan.origin + (row - first_row) * line
            one = b * by_level[0] + n * by_level[1] + h * by_level[2] + row * by_level[3]
            two = b * by_slope[0] + n * by_slope[1] + h * by_slope[2] + row * by_slope[3]
            three = b * by_value[0] + n * by_value[1] + h * by_value[2] + row * by_value[3]
            for x in range(width):
                levels[np.uintp(to + x)] = numbers[np.uintp(one + x * by_level[4])]
            if by_slope[4] == 1 and by_value[4] == 1:
                inner(deltas, to, slopes, two, by_slope[5], values, three, by_value[5], channels, width)
                continue
            for x in range(width):
                total = deltas.dtype.type(0)
                for c in range(channels):
                    slope = slopes[np.uintp(two + x * by_slope[4] + c * by_slope[5])]
                    total += slope * values[np.uintp(three + x * by_value[4] + c * by_value[5])]
                deltas[np.uintp(to + x)] = total


@compiled
def number(first_row, plan, pixels):  # type: ignore[no-untyped-def]
    """What each pixel adds to the index of its weights, times HASH, in a plane."""
    height, width, reach_y, line = plan.shape[5], plan.shape[6], plan.reach[0], plan.line
    weights = plan.shape[4] * (2 * reach_y + 1) * (2 * plan.reach[1] + 1)  # of one query
    for row in range(max(0, first_row - reach_y), min(height, first_row + plan.band + reach_y)):
        to = plan.origin + (row - first_row) * line
        for x in range(width):
            index = np.uint64((row * width + x) * weights)
            pixels[np.uintp(to + x)] = np.uint32((index * np.uint64(HASH)) & np.uint64(0xFFFFFFFF))


@compiled
def unpack(rows, member, factor, tile, first_row, plan, target, image, element):  # type: ignore[no-untyped-def]
    """A member's tile of rows (channels, SHARE, WIDTH), times a factor, into maps (b, n, channels, elements, h, w).

    ``image`` counts images and heads.
    """
    channels, elements, height, width = target.shape[2:]
    line, stop, lane = plan.line, min(plan.band, height - first_row), 0
    while lane < WIDTH:
        y, x = (tile * WIDTH + lane) // line, (tile * WIDTH + lane) % line
        if y >= stop:
            break
        count = min(line - x, WIDTH - lane)
        to = ((image * channels * elements + element) * height + first_row + y) * width + x
        for c in range(channels):
            here = c * ROW + member * WIDTH + lane
            copy(target, to + c * elements * height * width, rows, here, min(count, width - x), factor)
        lane += count


@compiled
def add(planes, each, factor, first_row, plan, target, image):  # type: ignore[no-untyped-def]
    """A band and the rows that its window reaches, times a factor, onto maps (b, n, channels, elements, h, w).

    ``each`` planes belong to an element; ``image`` counts images and heads.
    """
    channels, elements, height, width = target.shape[2:]
    maps = target.ravel()
    for element in range(elements):
        for row in range(max(0, first_row - plan.reach[0]), min(height, first_row + plan.band + plan.reach[0])):
            for c in range(channels):
                at = (element * each + c) * plan.size + plan.origin + (row - first_row) * plan.line
                to = (((image * channels + c) * elements + element) * height + row) * width
                for x in range(width):
                    maps[np.uintp(to + x)] += planes[np.uintp(at + x)] * factor


@compiled
def fill(rows, value):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        rows[i] = value


@compiled
def multiply(rows, factors):  # type: ignore[no-untyped-def]
    """Rows (any, SHARE, WIDTH), each times the factors (SHARE, WIDTH)."""
    for i in range(rows.size // ROW):
        for lane in range(ROW):
            rows[np.uintp(i * ROW + lane)] *= factors[np.uintp(lane)]
