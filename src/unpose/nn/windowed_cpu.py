"""Group attention on the CPU in compiled loops that never write a score to memory, forward and backward.

The same sums as :mod:`unpose.nn.windowed`. A band of rows of one image and head is copied into planes with a margin,
then tiles of neighbouring pixels go through the entries of the window, a chunk at a time (:mod:`unpose.nn.tiles_cpu`).
Besides its channels a key has a mask, a query a one and the table a bias. What a query has with the table is computed
for each of its codes: an entry has one of its own, or one for its offset and one for its key, which others share.

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
from unpose.nn.windowed import unprojected

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
    return _attend((query, key, value), position, None, bias, dropout, seed)


def forward_projected(
    projected: Tensor,
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`forward` of query, key and value in one tensor, (b, 3, n, d, elements, h, w).

    Given ``element``, (heads or 1, outputs, keys, e), the table has one entry for all keys, of d - e channels, and the
    vectors of each pair of elements have the rest.
    """
    return _attend(unprojected(projected), position, element, bias, dropout, seed)


def _attend(
    maps: tuple[Tensor, Tensor, Tensor],
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    plan = make_plan(*maps, position)
    query = maps[0]
    dtype = _working(query)
    tables = _tables(plan, position, element, bias, dtype)
    batch, heads, outputs, _, _, height, width, _, value_channels = plan.shape
    out = torch.empty(batch, heads, value_channels, outputs, height, width, dtype=dtype)
    top, total = torch.empty(2, batch, heads, 1, outputs, height, width, dtype=dtype).unbind(0)
    inputs = tuple(flat(tensor.to(dtype)) for tensor in maps)
    entries, chance = _entries(plan), _chance(dropout, seed, dtype)
    results = out.numpy(), top.numpy(), total.numpy()

    def run(start: int, stop: int) -> None:
        _forward(inputs, tables, plan, entries, chance, start, stop, results)

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
    given = query, key, value
    maps = [_planar_like(tensor) for tensor in given]
    to_position, _, to_bias = _slopes(maps, grad_out, given, position, None, bias, out, logsumexp, dropout, seed)
    to_query, to_key, to_value = (_pixels_first(planar).to(query.dtype) for planar in maps)
    return to_query, to_key, to_value, to_position, to_bias


def backward_projected(
    grad_out: Tensor,
    projected: Tensor,
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of projected, position, element and bias, as :func:`backward`."""
    given = unprojected(projected)
    maps = torch.zeros(projected.shape, dtype=_working(projected))
    slopes = _slopes([maps] * 3, grad_out, given, position, element, bias, out, logsumexp, dropout, seed)
    return maps.to(projected.dtype), *slopes


def _slopes(
    maps: list[Tensor],
    grad_out: Tensor,
    given: tuple[Tensor, Tensor, Tensor],
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of position, of element and of bias; those of query, key and value are added to ``maps``.

    Zeros (b, n, d, elements, h, w) for each of them, or three times the same (b, 3, n, d, elements, h, w).
    """
    plan = make_plan(*given, position)
    dtype = _working(given[0])
    inputs = tuple(flat(tensor.to(dtype)) for tensor in (*given, grad_out, out, logsumexp))
    tables, chance = _tables(plan, position, element, bias, dtype), _chance(dropout, seed, dtype)
    entries = _entries(plan)
    batch, heads, outputs = plan.shape[:3]
    parts = min(_PARTS, batch * plan.bands)
    channels = position.shape[-1] + (bias is not None), tables[1].shape[3] - 1
    partial = [
        np.zeros((heads, parts, outputs, table.shape[2], count), table.dtype)
        for table, count in zip(tables, channels, strict=True)
    ]
    joined = int(maps[0].ndim == 7)  # 1 where an image has its three maps side by side
    written = (*(planar.flatten(0, -6).numpy() for planar in maps), *partial)
    # The rows that a band's window reaches belong to other bands too: only every so many are computed together.
    phases = min(plan.bands, 1 + math.ceil(2 * plan.reach[0] / plan.band))
    for phase in range(phases):

        def run(start: int, stop: int, first: int = phase) -> None:
            _gradients(inputs, tables, plan, entries, chance, joined, first, phases, start, stop, written)

        in_threads(run, heads * parts)
    keys, window_y, window_x = position.shape[2:5]
    codes, kinds = (_reduced_parts(table) for table in partial)  # (heads, outputs, codes or keys, channels)
    codes = codes[:, :, : window_y * window_x * keys].unflatten(2, (window_y, window_x, keys)).movedim(4, 2)
    to_position = _reduced_heads(codes[..., : position.shape[-1]], len(position)).to(position.dtype)
    to_bias = None if bias is None else _reduced_heads(codes[..., -1], len(bias)).to(bias.dtype)
    to_element = None if element is None else _reduced_heads(kinds, len(element)).to(element.dtype)
    return to_position, to_element, to_bias


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
    entries = -(-math.prod(position.shape[2:5]) // plan.unit) * plan.unit
    row = entries * (channels + 1)
    table, padded = outputs * row, -(-outputs // SHARE) * SHARE * row
    tables = 3 * position.numel() + 2 * len(position) * padded + heads * (parts + 1) * table
    workers = min(threads, max(heads * parts, batch * heads * plan.bands))
    planes = (queries + 2 * keys) * (channels + 1) + (2 * keys + outputs) * value_channels + 2 * outputs + 1
    return held + number * (tables + workers * (planes * plan.size + table * HALF))


def _planar_like(tensor: Tensor) -> Tensor:
    """Zeros for a map (b, n, g, h, w, d), as (b, n, d, g, h, w)."""
    batch, heads, elements, height, width, channels = tensor.shape
    return torch.zeros(batch, heads, channels, elements, height, width, dtype=_working(tensor))


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


def _tables(
    plan: Plan, position: Tensor, element: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Codes by offset and key, or by offset, and codes by key: (heads, outputs / SHARE, codes, channels + 1, SHARE).

    Behind the channels stands the bias. The first are ordered by row of the window, so that the rows inside of the
    image are consecutive, and by key last: neighbours lie in planes of their own. What fills a unit of entries is
    infinitely far. Where keys have no codes of their own the second have no channels.
    """
    shape = (max(len(position), 1 if bias is None else len(bias)), *position.shape[1:5])
    added = torch.zeros(shape, dtype=dtype) if bias is None else _LOG2_E * bias.detach().to(dtype).expand(shape)
    full = torch.cat([position.detach().to(dtype).expand(*shape, -1), added[..., None]], -1)
    codes = full.permute(0, 1, 3, 4, 2, 5).flatten(2, 4)  # (heads, outputs, codes, channels + 1)
    spare = torch.zeros(*codes.shape[:2], -codes.shape[2] % (plan.unit // plan.share), codes.shape[3])
    spare[..., -1] = -FAR
    if element is None:
        kinds = torch.zeros(1, shape[1], plan.shape[4], 1, dtype=dtype)
    else:
        kinds = torch.nn.functional.pad(element.detach().to(dtype), (0, 1))
    first, second = (_in_groups(table) for table in (torch.cat([codes, spare.to(dtype)], 2), kinds))
    return first, second


def _in_groups(table: Tensor) -> np.ndarray:
    """(heads, outputs, codes, channels) -> (heads, outputs / SHARE, codes, channels, SHARE)"""
    padded = torch.nn.functional.pad(table, (0, 0, 0, 0, 0, -table.shape[1] % SHARE))
    return padded.unflatten(1, (-1, SHARE)).permute(0, 1, 3, 4, 2).contiguous().numpy()


@lru_cache(maxsize=64)
def _entries(plan: Plan) -> tuple[np.ndarray, ...]:
    """For each entry how far from the tile its key and its value lie in their planes, and the index of its weight; for
    each of a chunk, from its start, the row of its code and that of its key."""
    keys, channels, value_channels = plan.shape[4], plan.shape[7], plan.shape[8]
    window_y, window_x = 2 * plan.reach[0] + 1, 2 * plan.reach[1] + 1
    y, x, element = (
        axis.ravel() for axis in np.meshgrid(np.arange(window_y), np.arange(window_x), np.arange(keys), indexing="ij")
    )
    shift = (y - plan.reach[0]) * plan.line + x - plan.reach[1]
    key, value = (element * planes * plan.size + shift for planes in (channels + 1, value_channels))
    index = element * window_y * window_x + y * window_x + x
    spare, within = -len(y) % plan.unit, np.arange(plan.chunk)
    padded = (np.pad(array, (0, spare)) for array in (key, value, index))
    return tuple(array.astype(np.int64) for array in (*padded, within // plan.share * ROW, within % keys * ROW))


def _reduced_parts(partial: np.ndarray) -> Tensor:
    """(heads, parts, outputs, codes, channels) -> (heads, outputs, codes, channels), added in their order."""
    parts = torch.from_numpy(partial).unbind(1)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _reduced_heads(gradient: Tensor, heads: int) -> Tensor:
    if heads == len(gradient):
        return gradient.contiguous()
    total = gradient[:1].clone(memory_format=torch.contiguous_format)
    for head in gradient[1:]:
        total += head
    return total


@compiled
def _forward(inputs, tables, plan, entries, chance, start, stop, results):  # type: ignore[no-untyped-def]
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
    scale, far = dtype.type(_LOG2_E) / np.sqrt(dtype.type(channels)), dtype.type(FAR)
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
def _gradients(inputs, tables, plan, entries, chance, joined, phase, phases, start, stop, results):  # type: ignore[no-untyped-def]
    """Gradients of query, key and value, and the tables': (heads, parts, outputs, codes, channels) partial sums.

    Of the bands, every so many from the phase on.
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
    natural, scale = dtype.type(1 / _LOG2_E), one / np.sqrt(dtype.type(channels))
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
