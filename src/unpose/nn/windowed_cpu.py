"""Group attention on the CPU in compiled loops that never write a score to memory, forward and backward.

The same sums as :mod:`unpose.nn.windowed`. A band of rows of one image and head is copied into planes with a margin,
then tiles of neighbouring pixels go through the entries of the window, a chunk at a time (:mod:`unpose.nn.tiles_cpu`).
Besides its channels a key has a mask, a query a one and the table a bias.

Backward the scores are computed again, once, and each tile gives its keys and values their part of the gradient. Bands
whose windows meet the same rows are not computed at the same time. Work is divided by shapes alone and the table's
partial sums are added in a fixed order: no byte depends on the number of threads.
"""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from unpose.images.keys_cpu import compiled, in_threads
from unpose.nn.lanes_cpu import BLOCK, HALF, SHARE, WIDTH
from unpose.nn.planes_cpu import (
    FAR,
    Plan,
    add,
    fill,
    flat,
    load,
    make_plan,
    make_planes,
    multiply,
    number,
    pack,
    reached,
    room,
    unpack,
)
from unpose.nn.tiles_cpu import (
    ROW,
    dots,
    drop,
    gather,
    gather_encoded,
    hold,
    outer,
    peak,
    powers,
    scatter,
    slopes,
)

_CHUNK = 32  # entries scored before they are used: their rows stay in the nearest cache
_STRIP = 2  # tiles whose part of the table's gradient is summed in registers
_PARTS = 8  # partial sums of the table's gradient for each head
_LOG2_E = math.log2(math.e)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The attention of :func:`unpose.nn.windowed.attend`, and the logarithm to base two of each query's sum of weights.

    Shapes as there; bfloat16 and half precision are computed in float32. A weight is dropped where a hash of seed and
    its place in (batch, heads, outputs, height, width, keys, window_y, window_x) says so, here and in :func:`backward`.

    Returns
    -------
    (batch, heads, outputs, height, width, value channels) in the type of the query, the pixels of a channel side by
    side in memory, and (batch, heads, outputs, height, width) in the type of the sums
    """
    plan = make_plan(query, key, value, position)
    dtype = _working(query)
    table = _table(position, bias, dtype)
    batch, heads, outputs, _, _, height, width, _, value_channels = plan.shape
    out = torch.empty(batch, heads, value_channels, outputs, height, width, dtype=dtype)
    top, total = torch.empty(2, batch, heads, 1, outputs, height, width, dtype=dtype).unbind(0)
    inputs = tuple(flat(tensor.to(dtype)) for tensor in (query, key, value))
    entries, chance = _entries(plan), _chance(dropout, seed, dtype)
    results = out.numpy(), top.numpy(), total.numpy()

    def run(start: int, stop: int) -> None:
        _forward(inputs, table, plan, entries, chance, start, stop, results)

    in_threads(run, batch * heads * plan.bands)
    return _pixels_first(out).to(query.dtype), (top + total.log2_())[:, :, 0]


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value, position and bias (where there is one), from what :func:`forward` returned."""
    plan = make_plan(query, key, value, position)
    dtype = _working(query)
    inputs = tuple(flat(tensor.to(dtype)) for tensor in (query, key, value, grad_out, out, logsumexp))
    chance = _chance(dropout, seed, dtype)
    batch, heads, outputs = plan.shape[:3]
    table = _table(position, bias, dtype)
    channels = plan.shape[7] + (bias is not None)
    parts = min(_PARTS, batch * plan.bands)
    to_query, to_key, to_value = (_planar_like(tensor, dtype) for tensor in (query, key, value))
    partial = np.zeros((heads, parts, outputs, table.shape[2] * BLOCK, channels), table.dtype)
    entries, written = _entries(plan), (to_query.numpy(), to_key.numpy(), to_value.numpy(), partial)
    # The rows that a band's window reaches belong to other bands too: only every so many are computed together.
    phases = min(plan.bands, 1 + math.ceil(2 * plan.reach[0] / plan.band))
    for phase in range(phases):

        def run(start: int, stop: int, first: int = phase) -> None:
            _gradients(inputs, table, plan, entries, chance, first, phases, start, stop, written)

        in_threads(run, heads * parts)
    to_table = _reduced(partial, position)
    to_bias = None if bias is None else _reduced_heads(to_table[..., -1], len(bias)).to(bias.dtype)
    to_position = _reduced_heads(to_table[..., : position.shape[-1]], len(position)).to(position.dtype)
    maps = (_pixels_first(planar).to(query.dtype) for planar in (to_query, to_key, to_value))
    return *maps, to_position, to_bias  # type: ignore[return-value]


def peak_bytes(query: Tensor, key: Tensor, value: Tensor, position: Tensor, threads: int) -> int:
    """What is alive at the end of :func:`backward`: all that goes in and comes out, the table's sums and the planes."""
    plan, number = make_plan(query, key, value, position), 8 if query.dtype == torch.float64 else 4
    batch, heads, outputs, queries, keys, _, _, channels, value_channels = plan.shape
    level = batch * heads * outputs * query.shape[3] * query.shape[4]
    maps = query.numel() + key.numel() + value.numel() + level * value_channels
    # Inputs and result, and the gradients of all; where their type is shorter than that of the sums, copies in that.
    held = 2 * maps * query.element_size() + level * number
    if query.element_size() < number:
        held += 2 * maps * number
    parts = min(_PARTS, batch * plan.bands)
    entries = -(-math.prod(position.shape[2:5]) // BLOCK) * BLOCK
    row = entries * (channels + 1)
    table, padded = outputs * row, -(-outputs // SHARE) * SHARE * row
    tables = 3 * position.numel() + 2 * len(position) * padded + heads * (parts + 1) * table
    workers = min(threads, max(heads * parts, batch * heads * plan.bands))
    planes = (queries + 2 * keys) * (channels + 1) + (2 * keys + outputs) * value_channels + 2 * outputs + 1
    return held + number * (tables + workers * (planes * plan.size + table * HALF))


def _planar_like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros for a map (b, n, g, h, w, d), as (b, n, d, g, h, w)."""
    batch, heads, elements, height, width, channels = tensor.shape
    return torch.zeros(batch, heads, channels, elements, height, width, dtype=dtype)


def _pixels_first(planar: Tensor) -> Tensor:
    """(b, n, d, g, h, w) -> (b, n, g, h, w, d), a view."""
    return planar.permute(0, 1, 3, 4, 5, 2)


def _working(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _chance(dropout: float, seed: Tensor | None, dtype: torch.dtype) -> tuple[int, int, np.ndarray]:
    """Seed, threshold of the hash and the factor of what is kept."""
    threshold = min(math.ceil(dropout * 2**16), 2**16 - 1)
    factor = np.array([1 / (1 - threshold / 2**16)], np.float64 if dtype == torch.float64 else np.float32)
    return 0 if seed is None else int(seed), threshold, factor


def _table(position: Tensor, bias: Tensor | None, dtype: torch.dtype) -> np.ndarray:
    """The table and the bias behind it: (heads, outputs / SHARE, entries / BLOCK, channels + 1, SHARE, BLOCK).

    Entries are ordered by row of the window first, so that the rows inside of the image are consecutive, and by key
    last: neighbours lie in planes of their own. Entries that fill a block are infinitely far.
    """
    shape = (max(len(position), 1 if bias is None else len(bias)), *position.shape[1:5])
    added = torch.zeros(shape, dtype=dtype) if bias is None else _LOG2_E * bias.detach().to(dtype).expand(shape)
    full = torch.cat([position.detach().to(dtype).expand(*shape, -1), added[..., None]], -1)
    rows = full.permute(0, 1, 3, 4, 2, 5).flatten(2, 4)  # (heads, outputs, entries, channels + 1)
    outputs, entries = (-(-size // step) * step for size, step in zip(rows.shape[1:3], (SHARE, BLOCK), strict=True))
    table = torch.zeros(len(rows), outputs, entries, rows.shape[3], dtype=dtype)
    table[:, :, rows.shape[2] :, -1] = -FAR
    table[:, : rows.shape[1], : rows.shape[2]] = rows
    blocks = table.unflatten(2, (-1, BLOCK)).unflatten(
        1, (-1, SHARE)
    )  # (heads, groups, SHARE, blocks, BLOCK, channels)
    return blocks.permute(0, 1, 3, 5, 2, 4).contiguous().numpy()


@lru_cache(maxsize=64)
def _entries(plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each entry how far from the tile its key and its value lie in their planes, and the index of its weight."""
    keys, channels, value_channels = plan.shape[4], plan.shape[7], plan.shape[8]
    window_y, window_x = 2 * plan.reach[0] + 1, 2 * plan.reach[1] + 1
    y, x, element = (
        axis.ravel() for axis in np.meshgrid(np.arange(window_y), np.arange(window_x), np.arange(keys), indexing="ij")
    )
    shift = (y - plan.reach[0]) * plan.line + x - plan.reach[1]
    key, value = (element * planes * plan.size + shift for planes in (channels + 1, value_channels))
    index = element * window_y * window_x + y * window_x + x
    spare = -len(y) % BLOCK
    to_key, to_value, weight = (np.pad(array, (0, spare)).astype(np.int64) for array in (key, value, index))
    return to_key, to_value, weight


def _reduced(partial: np.ndarray, position: Tensor) -> Tensor:
    """(heads, parts, outputs, entries, channels) -> (heads, outputs, keys, window_y, window_x, channels)"""
    parts = torch.from_numpy(partial).unbind(1)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    keys, window_y, window_x = position.shape[2:5]
    used = total[:, :, : keys * window_y * window_x]
    return used.unflatten(2, (window_y, window_x, keys)).permute(0, 1, 4, 2, 3, 5)


def _reduced_heads(gradient: Tensor, heads: int) -> Tensor:
    if heads == len(gradient):
        return gradient.contiguous()
    total = gradient[:1].clone(memory_format=torch.contiguous_format)
    for head in gradient[1:]:
        total += head
    return total


@compiled
def _forward(inputs, table, plan, entries, chance, start, stop, results):  # type: ignore[no-untyped-def]
    query, key, value = inputs
    _, heads, outputs, queries, keys, height, width, channels, value_channels = plan.shape
    out, tops, sums = results
    dtype, size, one = out.dtype, plan.size, out.dtype.type(1)
    ask = room(queries * channels * size, dtype)
    have = room(keys * (channels + 1) * size, dtype)
    give = room(keys * value_channels * size, dtype)
    held, scores, found = room(channels * ROW, dtype), room(_CHUNK * ROW, dtype), room(value_channels * ROW, dtype)
    top, total, last = room(ROW, dtype), room(ROW, dtype), room(ROW, dtype)
    ignored, pixels = np.zeros(ROW, dtype), np.zeros(size, np.uint32)
    weights = keys * (2 * plan.reach[0] + 1) * (2 * plan.reach[1] + 1) * height * width  # of one output
    scale, far = dtype.type(_LOG2_E) / np.sqrt(dtype.type(channels)), dtype.type(FAR)
    to_key, to_value, index = entries
    seed, threshold, factor = chance
    for job in range(start, stop):
        b, n, first_row = job // plan.bands // heads, job // plan.bands % heads, job % plan.bands * plan.band
        pack(query, b, n, queries, channels, 0, first_row, plan, scale, one, one, ask)
        pack(key, b, n, keys, channels, 1, first_row, plan, one, -far, one - one, have)
        pack(value, b, n, keys, value_channels, 0, first_row, plan, one, one, one, give)
        if threshold > 0:
            number(first_row, plan, pixels)
        for tile in range(plan.tiles):
            at = plan.origin + tile * WIDTH
            first, end = reached(tile, 1, first_row, plan)
            for h in range(0, outputs, SHARE):
                members = min(SHARE, outputs - h)
                codes = table[n if len(table) > 1 else 0, h // SHARE]
                step = channels * size if queries > 1 else 0
                hold(ask, h * step + at, step, members, channels, size, held)
                base = ((b * heads + n) * outputs + h) * weights
                fill(top, -far)
                fill(total, one - one)
                fill(found, one - one)
                for e in range(first, end, _CHUNK):
                    count = min(_CHUNK, end - e)
                    blocks = count // BLOCK
                    dots(held, members, have, at, to_key, e, blocks, channels, size, codes, scores)
                    for lane in range(ROW):
                        last[lane] = top[lane]
                    peak(scores, count, members, top)
                    if e > first:
                        # What is summed so far was relative to a smaller maximum.
                        powers(last, 1, members, top, ignored)
                        multiply(total, last)
                        multiply(found, last)
                    powers(scores, count, members, top, total)
                    if threshold > 0:
                        drop(scores, count, members, pixels, at, index, e, base, weights, seed, threshold, factor)
                    gather(scores, members, give, at, to_value, e, blocks, value_channels, size, found)
                for m in range(members):
                    unpack(top, m, one, tile, first_row, plan, tops, b * heads + n, h + m)
                    unpack(total, m, one, tile, first_row, plan, sums, b * heads + n, h + m)
                for lane in range(ROW):
                    total[lane] = one / total[lane]
                multiply(found, total)
                for m in range(members):
                    unpack(found, m, one, tile, first_row, plan, out, b * heads + n, h + m)


@compiled
def _gradients(inputs, table, plan, entries, chance, phase, phases, start, stop, results):  # type: ignore[no-untyped-def]
    """Gradients of query, key and value, and the table's: (heads, parts, outputs, entries, channels) partial sums.

    Of the bands, every so many from the phase on.
    """
    batch, heads, outputs, queries, keys, height, width, channels, value_channels = plan.shape
    to_query, to_key, to_value, partial = results
    dtype, size, one = to_query.dtype, plan.size, to_query.dtype.type(1)
    parts, table_channels = partial.shape[1], partial.shape[4]
    weights = keys * (2 * plan.reach[0] + 1) * (2 * plan.reach[1] + 1) * height * width  # of one output
    planes = make_planes(plan, to_query)
    ask, have, give, wanted, levels, deltas, pixels, keyed, valued = planes
    sloped = room(_STRIP * _CHUNK * ROW, dtype).reshape(_STRIP, -1)
    used = room(_CHUNK * ROW, dtype)
    asked = room(_STRIP * (channels + 1) * ROW, dtype).reshape(_STRIP, -1)
    graded = room(_STRIP * value_channels * ROW, dtype).reshape(_STRIP, -1)
    level, delta = room(_STRIP * ROW, dtype).reshape(_STRIP, -1), room(_STRIP * ROW, dtype).reshape(_STRIP, -1)
    found = room(_STRIP * channels * ROW, dtype).reshape(_STRIP, -1)
    totals = room(outputs * partial.shape[3] * table_channels * HALF, dtype).reshape(outputs, -1)
    natural, scale = dtype.type(1 / _LOG2_E), one / np.sqrt(dtype.type(channels))
    at_key, at_value, index = entries
    seed, threshold, factor = chance
    items = batch * ((plan.bands - phase + phases - 1) // phases)
    step = (channels + 1) * size if queries > 1 else 0
    for job in range(start, stop):
        n, part = job // parts, job % parts
        fill(totals.ravel(), one - one)
        for item in range(part * items // parts, (part + 1) * items // parts):
            b, first_row = item % batch, (phase + item // batch * phases) * plan.band
            load(inputs, b, n, first_row, plan, scale / natural, planes)
            for strip in range(0, plan.tiles, _STRIP):
                tiles = min(_STRIP, plan.tiles - strip)
                first, end = reached(strip, tiles, first_row, plan)
                for h in range(0, outputs, SHARE):
                    members = min(SHARE, outputs - h)
                    codes = table[n if len(table) > 1 else 0, h // SHARE]
                    base = ((b * heads + n) * outputs + h) * weights
                    for t in range(tiles):
                        at = plan.origin + (strip + t) * WIDTH
                        hold(ask, h * step + at, step, members, channels + 1, size, asked[t])
                        hold(wanted, h * value_channels * size + at, value_channels * size, members, value_channels,
                             size, graded[t])  # fmt: skip
                        hold(levels, h * size + at, size, members, 1, size, level[t])
                        hold(deltas, h * size + at, size, members, 1, size, delta[t])
                        if queries > 1 or h == 0:
                            fill(found[t], one - one)
                    for e in range(first, end, _CHUNK):
                        blocks = min(_CHUNK, end - e) // BLOCK
                        for t in range(tiles):
                            at = plan.origin + (strip + t) * WIDTH
                            dots(asked[t], members, have, at, at_key, e, blocks, channels, size, codes, sloped[t])
                            slopes(graded[t], members, give, at, at_value, e, blocks, value_channels, size, level[t],
                                   delta[t], sloped[t], used, pixels, at, index, base, weights, seed, threshold,
                                   factor)  # fmt: skip
                            gather_encoded(sloped[t], members, have, at, at_key, e, blocks, channels, size, codes,
                                           found[t])  # fmt: skip
                            scatter(sloped[t], members, asked[t], keyed, at, at_key, e, blocks, channels, size)
                            scatter(used, members, graded[t], valued, at, at_value, e, blocks, value_channels, size)
                        outer(sloped, sloped.shape[1], asked, asked.shape[1], tiles, members, blocks, table_channels,
                              e, totals.shape[1], totals[h])  # fmt: skip
                    for t in range(tiles):
                        if queries > 1:
                            for m in range(members):
                                unpack(found[t], m, scale, strip + t, first_row, plan, to_query, b * heads + n, h + m)
                        elif h + members == outputs:
                            _join(found[t], min(SHARE, outputs))
                            unpack(found[t], 0, scale, strip + t, first_row, plan, to_query, b * heads + n, 0)
            add(keyed, channels + 1, natural, first_row, plan, to_key, b * heads + n)
            add(valued, value_channels, one, first_row, plan, to_value, b * heads + n)
        for h in range(outputs):
            for e in range(partial.shape[3]):
                for c in range(table_channels):
                    total = one - one
                    for lane in range(HALF):
                        total += totals[h, (e * table_channels + c) * HALF + lane]
                    partial[n, part, h, e, c] += total * natural if c < channels else total


@compiled
def _join(rows, members):  # type: ignore[no-untyped-def]
    """Add the tiles of all members to that of the first."""
    for c in range(rows.size // ROW):
        for m in range(1, members):
            for lane in range(WIDTH):
                rows[c * ROW + lane] += rows[c * ROW + m * WIDTH + lane]
