"""The two passes of group attention on the CPU over bands of rows, compiled; :mod:`unpose.nn.ops.cpu.attention` calls them.

Queries, keys and values are given as :func:`unpose.nn.ops.cpu.layout.flat` gives them; the loops inside are those of
:mod:`unpose.nn.ops.cpu.microkernels`.
"""

import math

import numpy as np

from unpose.compiled import compiled
from unpose.nn.ops.cpu.layout import FAR, add, fill, load, make_planes, multiply, number, pack, reached, room, unpack
from unpose.nn.ops.cpu.microkernels import (
    ROW,
    decode,
    dots,
    drop,
    encode,
    fold,
    gather,
    hold,
    outer,
    peak,
    powers,
    products,
    scatter,
    slopes,
)
from unpose.nn.ops.cpu.simd import BLOCK, HALF, SHARE, WIDTH

LOG2_E = math.log2(math.e)
_STRIP = 2  # tiles whose part of the table's gradient is summed in registers


@compiled
def forward_bands(inputs, tables, plan, entries, chance, start, stop, results):  # type: ignore[no-untyped-def]
    """Attention of bands ``start`` to ``stop``, with the maximum of each query's scores and the sum of its weights."""
    query, key, value = inputs
    by_offset, by_key = tables
    _, heads, outputs, queries, keys, height, width, channels, value_channels = plan.shape
    out, tops, sums = results
    dtype, size, one = out.dtype, plan.size, out.dtype.type(1)
    ask = room(queries * channels * size, dtype)
    have = room(keys * (channels + 1) * size, dtype)
    give = room(keys * value_channels * size, dtype)
    held, scores, found = room(channels * ROW, dtype), room(plan.chunk * ROW, dtype), room(value_channels * ROW, dtype)
    coded, kinded = room(plan.chunk * ROW, dtype), room(keys * ROW, dtype)
    top, total, last = room(ROW, dtype), room(ROW, dtype), room(ROW, dtype)
    ignored, pixels = np.zeros(ROW, dtype), np.zeros(size, np.uint32)
    weights = keys * (2 * plan.reach[0] + 1) * (2 * plan.reach[1] + 1) * height * width  # of one output
    scale, far = dtype.type(LOG2_E) / np.sqrt(dtype.type(channels)), dtype.type(FAR)
    to_key, to_value, index, code_rows, kind_rows = entries
    coding, share = by_offset.shape[3] - 1, plan.share
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
                codes = by_offset[n if len(by_offset) > 1 else 0, h // SHARE]
                kinds = by_key[n if len(by_key) > 1 else 0, h // SHARE]
                step = channels * size if queries > 1 else 0
                hold(ask, h * step + at, step, members, channels, size, held)
                encode(held[coding * ROW :], members, kinds, 0, keys, by_key.shape[3] - 1, kinded)
                base = ((b * heads + n) * outputs + h) * weights
                fill(top, -far)
                fill(total, one - one)
                fill(found, one - one)
                for e in range(first, end, plan.chunk):
                    count = min(plan.chunk, end - e)
                    blocks = count // BLOCK
                    encode(held, members, codes, e // share, count // share, coding, coded)
                    dots(held, members, have, at, to_key, e, blocks, channels, size, coded, code_rows, kinded,
                         kind_rows, scores)  # fmt: skip
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
def backward_bands(inputs, tables, plan, entries, chance, joined, phase, phases, start, stop, results):  # type: ignore[no-untyped-def]
    """Gradients of query, key and value, and the tables': (heads, parts, outputs, codes, channels) partial sums.

    Of the bands, every so many from the phase on. ``joined`` is 1 where the gradients of query, key and value are one
    tensor in which an image has its three maps side by side, and 0 where they are three.
    """
    batch, heads, outputs, queries, keys, height, width, channels, value_channels = plan.shape
    to_query, to_key, to_value, to_offset, to_kind = results
    by_offset, by_key = tables
    dtype, size, one = to_query.dtype, plan.size, to_query.dtype.type(1)
    parts, coding, kinding = to_offset.shape[1], by_offset.shape[3] - 1, to_kind.shape[4]
    weights = keys * (2 * plan.reach[0] + 1) * (2 * plan.reach[1] + 1) * height * width  # of one output
    planes = make_planes(plan, to_query)
    ask, have, give, wanted, levels, deltas, pixels, keyed, valued = planes
    sloped = room(_STRIP * plan.chunk * ROW, dtype).reshape(_STRIP, -1)
    by_code = room(_STRIP * plan.chunk * ROW, dtype).reshape(_STRIP, -1)
    by_kind = room(_STRIP * keys * ROW, dtype).reshape(_STRIP, -1)
    kinded = room(_STRIP * keys * ROW, dtype).reshape(_STRIP, -1)
    used, coded = room(plan.chunk * ROW, dtype), room(plan.chunk * ROW, dtype)
    asked = room(_STRIP * (channels + 1) * ROW, dtype).reshape(_STRIP, -1)
    graded = room(_STRIP * value_channels * ROW, dtype).reshape(_STRIP, -1)
    level, delta = room(_STRIP * ROW, dtype).reshape(_STRIP, -1), room(_STRIP * ROW, dtype).reshape(_STRIP, -1)
    found = room(_STRIP * channels * ROW, dtype).reshape(_STRIP, -1)
    totals = room(outputs * to_offset.shape[3] * to_offset.shape[4] * HALF, dtype).reshape(outputs, -1)
    kind_totals = room(outputs * keys * kinding * HALF, dtype).reshape(outputs, -1)
    natural, scale = dtype.type(1 / LOG2_E), one / np.sqrt(dtype.type(channels))
    at_key, at_value, index, code_rows, kind_rows = entries
    share = plan.share
    seed, threshold, factor = chance
    items = batch * ((plan.bands - phase + phases - 1) // phases)
    step = (channels + 1) * size if queries > 1 else 0
    for job in range(start, stop):
        n, part = job // parts, job % parts
        fill(totals.ravel(), one - one)
        fill(kind_totals.ravel(), one - one)
        for item in range(part * items // parts, (part + 1) * items // parts):
            b, first_row = item % batch, (phase + item // batch * phases) * plan.band
            asks = b * (1 + 2 * joined) * heads + n
            has, gives = asks + joined * heads, asks + 2 * joined * heads
            load(inputs, b, n, first_row, plan, scale / natural, planes)
            for strip in range(0, plan.tiles, _STRIP):
                tiles = min(_STRIP, plan.tiles - strip)
                first, end = reached(strip, tiles, first_row, plan)
                for h in range(0, outputs, SHARE):
                    members = min(SHARE, outputs - h)
                    codes = by_offset[n if len(by_offset) > 1 else 0, h // SHARE]
                    kinds = by_key[n if len(by_key) > 1 else 0, h // SHARE]
                    base = ((b * heads + n) * outputs + h) * weights
                    for t in range(tiles):
                        at = plan.origin + (strip + t) * WIDTH
                        hold(ask, h * step + at, step, members, channels + 1, size, asked[t])
                        hold(wanted, h * value_channels * size + at, value_channels * size, members, value_channels,
                             size, graded[t])  # fmt: skip
                        hold(levels, h * size + at, size, members, 1, size, level[t])
                        hold(deltas, h * size + at, size, members, 1, size, delta[t])
                        encode(asked[t, coding * ROW :], members, kinds, 0, keys, kinding, kinded[t])
                        fill(by_kind[t], one - one)
                        if queries > 1 or h == 0:
                            fill(found[t], one - one)
                    for e in range(first, end, plan.chunk):
                        count = min(plan.chunk, end - e)
                        blocks, code, number = count // BLOCK, e // share, count // share
                        for t in range(tiles):
                            at = plan.origin + (strip + t) * WIDTH
                            encode(asked[t], members, codes, code, number, coding, coded)
                            dots(asked[t], members, have, at, at_key, e, blocks, channels, size, coded, code_rows,
                                 kinded[t], kind_rows, sloped[t])  # fmt: skip
                            products(graded[t], members, give, at, at_value, e, blocks, value_channels, size, used)
                            slopes(sloped[t], used, count, members, level[t], delta[t], pixels, at, index, e, base,
                                   weights, seed, threshold, factor)  # fmt: skip
                            gather(sloped[t], members, have, at, at_key, e, blocks, channels, size, found[t])
                            scatter(sloped[t], members, asked[t], keyed, at, at_key, e, blocks, channels, size)
                            scatter(used, members, graded[t], valued, at, at_value, e, blocks, value_channels, size)
                            if share > 1:
                                fill(by_code[t], one - one)
                                for own in range(number):
                                    fold(sloped[t], own * share, 1, share, members, by_code[t], own)
                            if kinding > 0:
                                for own in range(keys):
                                    fold(sloped[t], own, keys, count // keys, members, by_kind[t], own)
                        summed = by_code if share > 1 else sloped
                        for t in range(tiles):
                            decode(summed[t], number, members, codes, code, coding, found[t])
                        outer(summed, summed.shape[1], asked, asked.shape[1], tiles, members, number,
                              to_offset.shape[4], code, totals.shape[1], totals[h])  # fmt: skip
                    if kinding > 0:
                        for t in range(tiles):
                            decode(by_kind[t], keys, members, kinds, 0, kinding, found[t, coding * ROW :])
                        outer(by_kind, by_kind.shape[1], asked.ravel()[coding * ROW :], asked.shape[1], tiles, members,
                              keys, kinding, 0, kind_totals.shape[1], kind_totals[h])  # fmt: skip
                    for t in range(tiles):
                        if queries > 1:
                            for m in range(members):
                                unpack(found[t], m, scale, strip + t, first_row, plan, to_query, asks, h + m)
                        elif h + members == outputs:
                            _join(found[t], min(SHARE, outputs))
                            unpack(found[t], 0, scale, strip + t, first_row, plan, to_query, asks, 0)
            add(keyed, channels + 1, natural, first_row, plan, to_key, has)
            add(valued, value_channels, one, first_row, plan, to_value, gives)
        _sum_up(totals, natural, channels, to_offset[n, part])
        _sum_up(kind_totals, natural, channels, to_kind[n, part])


@compiled
def _sum_up(totals, natural, channels, target):  # type: ignore[no-untyped-def]
    """Add sums of HALF pixels, (outputs, codes * channels * HALF), to a target (outputs, codes, channels)."""
    for h in range(target.shape[0]):
        for e in range(target.shape[1]):
            for c in range(target.shape[2]):
                total = natural - natural
                for lane in range(HALF):
                    total += totals[h, (e * target.shape[2] + c) * HALF + lane]
                target[h, e, c] += total * natural if c < channels else total


@compiled
def _join(rows, members):  # type: ignore[no-untyped-def]
    """Add the tiles of all members to that of the first."""
    for c in range(rows.size // ROW):
        for m in range(1, members):
            for lane in range(WIDTH):
                rows[c * ROW + lane] += rows[c * ROW + m * WIDTH + lane]
