"""Group attention on the CPU in compiled loops that never write a score to memory, forward and backward.

The same sums as :mod:`unpose.nn.windowed`. A band of rows of one image and head is copied into planes with a margin,
then tiles of neighbouring pixels go through the entries of the window, a chunk at a time (:mod:`unpose.nn.lanes_cpu`).
Besides its channels a key has a mask, a query a one and the table a bias, so that one sum over channels is the score.

Backward the scores are computed again, twice: seen from the queries for the gradients of query and table, seen from
the keys for those of key and value. So every result has one writer. Work is divided by shapes alone and the table's
partial sums are added in a fixed order: no byte depends on the number of threads.
"""

import math

import numpy as np
import torch
from torch import Tensor

from unpose.images.keys_cpu import compiled, in_threads
from unpose.nn.lanes_cpu import (
    BLOCK,
    HALF,
    WIDTH,
    drop,
    dropped_gradients,
    exponentials,
    gather,
    gather_encoded,
    gradients,
    key_scores,
    outer,
    peak,
    products,
    query_scores,
)
from unpose.nn.planes_cpu import (
    FAR,
    Plan,
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

_CHUNK = 128  # entries scored before they are used: their rows stay in the nearest cache
_PARTS = 8  # partial sums of the table's gradient for each head


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    dropout: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """The attention of :func:`unpose.nn.windowed.attend`, and the logarithm of each query's sum of weights.

    Shapes as there; bfloat16 and half precision are computed in float32. A weight is dropped where a hash of seed and
    its place in (batch, heads, outputs, height, width, keys, window_y, window_x) says so, here and in :func:`backward`.

    Returns
    -------
    (batch, heads, outputs, height, width, value channels) in the type of the query, and
    (batch, heads, outputs, height, width) in the type of the sums
    """
    plan = make_plan(query, key, value, position)
    dtype = _working(query)
    table = _table(position, bias, dtype, by_key=False)
    out = torch.empty(*plan.shape[:3], *plan.shape[5:7], plan.shape[8], dtype=dtype)
    top, total = torch.empty(2, *out.shape[:5], 1, dtype=dtype).unbind(0)
    inputs = tuple(flat(tensor.to(dtype)) for tensor in (query, key, value))
    entries, chance = _entries(plan, by_key=False), _chance(dropout, seed, dtype)
    results = out.numpy(), top.numpy(), total.numpy()

    def run(start: int, stop: int) -> None:
        _forward(inputs, table, plan, entries, chance, start, stop, results)

    in_threads(run, plan.shape[0] * plan.shape[1] * plan.bands)
    return out.to(query.dtype), (top + total.log_())[..., 0]


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
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value, position and bias (where there is one), from what :func:`forward` returned."""
    plan = make_plan(query, key, value, position)
    dtype = _working(query)
    inputs = tuple(flat(tensor.to(dtype)) for tensor in (query, key, value, grad_out, out, logsumexp))
    chance = _chance(dropout, seed, dtype)
    batch, heads, outputs = plan.shape[:3]
    table = _table(position, bias, dtype, by_key=False)
    channels = plan.shape[7] + (bias is not None)
    parts = min(_PARTS, batch * plan.bands)
    to_query = torch.empty(query.shape, dtype=dtype)
    partial = np.empty((heads, parts, outputs, table.shape[2] * BLOCK, channels), to_query.numpy().dtype)
    entries, written = _entries(plan, by_key=False), (to_query.numpy(), partial)

    def from_queries(start: int, stop: int) -> None:
        _query_gradients(inputs, table, plan, entries, chance, start, stop, written)

    in_threads(from_queries, heads * parts)
    to_key, to_value = (torch.empty(tensor.shape, dtype=dtype) for tensor in (key, value))
    mirrored = _table(position, bias, dtype, by_key=True)
    seen, found = _entries(plan, by_key=True), (to_key.numpy(), to_value.numpy())

    def from_keys(start: int, stop: int) -> None:
        _key_gradients(inputs, mirrored, plan, seen, chance, start, stop, found)

    in_threads(from_keys, batch * heads * plan.bands)
    to_table = _reduced(partial, position)
    to_bias = None if bias is None else _reduced_heads(to_table[..., -1], len(bias)).to(bias.dtype)
    to_position = _reduced_heads(to_table[..., : position.shape[-1]], len(position)).to(position.dtype)
    return to_query.to(query.dtype), to_key.to(key.dtype), to_value.to(value.dtype), to_position, to_bias


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
    table = outputs * entries * (channels + 1)
    tables = 3 * position.numel() + 3 * len(position) * table + heads * (parts + 1) * table
    workers = min(threads, max(heads * parts, batch * heads * plan.bands))
    planes = (queries + keys) * (channels + 1) + (keys + outputs) * value_channels + 2 * outputs + 1
    return held + number * (tables + workers * (planes * plan.size + table * HALF))


def _working(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _chance(dropout: float, seed: int, dtype: torch.dtype) -> tuple[int, int, np.ndarray]:
    """Seed, threshold of the hash and the factor of what is kept."""
    factor = np.array([1 / (1 - dropout)], np.float64 if dtype == torch.float64 else np.float32)
    return seed, min(math.ceil(dropout * 2**32), 2**32 - 1), factor


def _table(position: Tensor, bias: Tensor | None, dtype: torch.dtype, *, by_key: bool) -> np.ndarray:
    """The table with the bias as its last channel: (heads, outputs or keys, entries / 4, channels + 1, 4).

    Entries are ordered by row of the window first, so that the rows inside of the image are consecutive.
    """
    shape = (max(len(position), 1 if bias is None else len(bias)), *position.shape[1:5])
    added = torch.zeros(shape, dtype=dtype) if bias is None else bias.detach().to(dtype).expand(shape)
    full = torch.cat([position.detach().to(dtype).expand(*shape, -1), added[..., None]], -1)
    full = full.permute(0, 2, 3, 1, 4, 5) if by_key else full.permute(0, 1, 3, 2, 4, 5)
    rows = full.flatten(2, 4)  # (heads, outputs or keys, entries, channels + 1)
    table = torch.zeros(*rows.shape[:2], -(-rows.shape[2] // BLOCK) * BLOCK, rows.shape[3], dtype=dtype)
    table[:, :, rows.shape[2] :, -1] = -FAR
    table[:, :, : rows.shape[2]] = rows
    return table.unflatten(2, (-1, BLOCK)).mT.contiguous().numpy()


def _entries(plan: Plan, *, by_key: bool) -> tuple[np.ndarray, ...]:
    """For each entry how far from the tile it reads, and the index of its weight: five arrays of int64.

    By query: offsets into key, value, a plane for each output, a plane, and the index. By key: offsets into query,
    gradient, a plane for each output, a plane, and the index.
    """
    _, _, outputs, queries, keys, height, width, channels, value_channels = plan.shape
    window_y, window_x = 2 * plan.reach[0] + 1, 2 * plan.reach[1] + 1
    elements = outputs if by_key else keys
    y, element, x = (
        axis.ravel()
        for axis in np.meshgrid(np.arange(window_y), np.arange(elements), np.arange(window_x), indexing="ij")
    )
    shift = (y - plan.reach[0]) * plan.line + x - plan.reach[1]
    inside = y * window_x + x
    if by_key:
        asked = element if queries > 1 else 0 * element
        planes = [asked * (channels + 1), element * value_channels, element, 0 * element]
        offsets = [plane * plan.size - shift for plane in planes]
        index = element * height * width * keys * window_y * window_x + inside
    else:
        planes = [element * (channels + 1), element * value_channels]
        offsets = [plane * plan.size + shift for plane in planes] + [0 * shift, 0 * shift]
        index = element * window_y * window_x + inside
    spare = -len(y) % BLOCK
    return tuple(np.pad(array, (0, spare)).astype(np.int64) for array in (*offsets, index))


def _reduced(partial: np.ndarray, position: Tensor) -> Tensor:
    """(heads, parts, outputs, entries, channels) -> (heads, outputs, keys, window_y, window_x, channels)"""
    parts = torch.from_numpy(partial).unbind(1)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    keys, window_y, window_x = position.shape[2:5]
    used = total[:, :, : keys * window_y * window_x]
    return used.unflatten(2, (window_y, keys, window_x)).transpose(2, 3)


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
    ask = room(queries * (channels + 1) * size, dtype)
    have = room(keys * (channels + 1) * size, dtype)
    give = room(keys * value_channels * size, dtype)
    scores, found = room(_CHUNK * WIDTH, dtype), room(value_channels * WIDTH, dtype)
    top, total, last = room(WIDTH, dtype), room(WIDTH, dtype), room(WIDTH, dtype)
    ignored, numbers = np.zeros(WIDTH, dtype), np.zeros(size, np.int32)
    per_row = keys * (2 * plan.reach[1] + 1)
    weights = per_row * (2 * plan.reach[0] + 1)  # of one query
    scale, far = one / np.sqrt(dtype.type(channels)), dtype.type(FAR)
    to_key, to_value, _, _, index = entries
    seed, threshold, factor = chance
    for job in range(start, stop):
        b, n, first_row = job // plan.bands // heads, job // plan.bands % heads, job % plan.bands * plan.band
        pack(query, b, n, queries, channels, 1, first_row, plan, scale, one, one, ask)
        pack(key, b, n, keys, channels, 1, first_row, plan, one, -far, one - one, have)
        pack(value, b, n, keys, value_channels, 0, first_row, plan, one, one, one, give)
        if threshold > 0:
            number(first_row, plan, numbers)
        for tile in range(plan.tiles):
            at = plan.origin + tile * WIDTH
            first, end = reached(tile, first_row, plan, per_row, 1)
            for h in range(outputs):
                codes = table[n if len(table) > 1 else 0, h]
                asked = (h if queries > 1 else 0) * (channels + 1) * size
                base = ((b * heads + n) * outputs + h) * height * width * weights
                fill(top, -far)
                fill(total, one - one)
                fill(found, one - one)
                for e in range(first, end, _CHUNK):
                    count = min(_CHUNK, end - e)
                    blocks = count // BLOCK
                    query_scores(ask, asked + at, have, at, to_key, e, blocks, channels + 1, size, codes, scores)
                    for lane in range(WIDTH):
                        last[lane] = top[lane]
                    peak(scores, count, top)
                    if e > first:
                        # What is summed so far was relative to a smaller maximum.
                        exponentials(last, 1, top, ignored)
                        multiply(total, last)
                        multiply(found, last)
                    exponentials(scores, count, top, total)
                    if threshold > 0:
                        drop(scores, count, numbers, at, index, e, weights, base, seed, threshold, factor)
                    gather(scores, give, at, to_value, e, blocks, value_channels, size, found)
                unpack(top, 1, tile, first_row, plan, tops[b, n, h])
                unpack(total, 1, tile, first_row, plan, sums[b, n, h])
                for lane in range(WIDTH):
                    total[lane] = one / total[lane]
                multiply(found, total)
                unpack(found, value_channels, tile, first_row, plan, out[b, n, h])


@compiled
def _query_gradients(inputs, table, plan, entries, chance, start, stop, results):  # type: ignore[no-untyped-def]
    """Gradients of the queries, and the table's: (heads, parts, outputs, entries, channels) partial sums."""
    batch, heads, outputs, queries, keys, height, width, channels, value_channels = plan.shape
    to_query, partial = results
    dtype, size, one = to_query.dtype, plan.size, to_query.dtype.type(1)
    parts, table_channels = partial.shape[1], partial.shape[4]
    per_row = keys * (2 * plan.reach[1] + 1)
    weights = per_row * (2 * plan.reach[0] + 1)
    planes = make_planes(plan, to_query)
    ask, have, give, wanted, levels, deltas, numbers = planes
    scores, slopes = room(_CHUNK * WIDTH, dtype), room(_CHUNK * WIDTH, dtype)
    found = room(channels * WIDTH, dtype)
    totals = room(outputs * partial.shape[3] * table_channels * HALF, dtype).reshape(outputs, -1)
    scale, far = one / np.sqrt(dtype.type(channels)), dtype.type(FAR)
    to_key, to_value, nowhere, _, index = entries
    seed, threshold, factor = chance
    items = batch * plan.bands
    for job in range(start, stop):
        n, part = job // parts, job % parts
        fill(totals.ravel(), one - one)
        for item in range(part * items // parts, (part + 1) * items // parts):
            b, first_row = item // plan.bands, item % plan.bands * plan.band
            load(inputs, b, n, first_row, 0, plan, -far, planes)
            for tile in range(plan.tiles):
                at = plan.origin + tile * WIDTH
                first, end = reached(tile, first_row, plan, per_row, 1)
                for h in range(outputs):
                    codes = table[n if len(table) > 1 else 0, h]
                    asked = h if queries > 1 else 0
                    ask_at, level_at = asked * (channels + 1) * size + at, h * size + at
                    wanted_at = h * value_channels * size + at
                    base = ((b * heads + n) * outputs + h) * height * width * weights
                    if asked == h:
                        fill(found, one - one)
                    for e in range(first, end, _CHUNK):
                        count = min(_CHUNK, end - e)
                        blocks = count // BLOCK
                        query_scores(ask, ask_at, have, at, to_key, e, blocks, channels + 1, size, codes, scores)
                        products(wanted, wanted_at, give, at, to_value, e, blocks, value_channels, size, slopes)
                        if threshold > 0:
                            dropped_gradients(scores, slopes, count, levels, deltas, level_at, nowhere, e, numbers, at,
                                              nowhere, index, weights, base, seed, threshold, factor)  # fmt: skip
                        else:
                            gradients(scores, slopes, count, levels, deltas, level_at, nowhere, e)
                        gather_encoded(scores, have, at, to_key, e, blocks, channels, size, codes, channels + 1, found)
                        outer(scores, ask, ask_at, e, blocks, table_channels, size, totals[h])
                    if queries > 1 or h == outputs - 1:
                        for lane in range(found.size):
                            found[lane] *= scale
                        unpack(found, channels, tile, first_row, plan, to_query[b, n, asked])
        for h in range(outputs):
            for e in range(partial.shape[3]):
                for c in range(table_channels):
                    total = one - one
                    for lane in range(HALF):
                        total += totals[h, (e * table_channels + c) * HALF + lane]
                    partial[n, part, h, e, c] = total


@compiled
def _key_gradients(inputs, table, plan, entries, chance, start, stop, results):  # type: ignore[no-untyped-def]
    """Gradients of keys and values, each gathered from the queries whose window holds it."""
    _, heads, outputs, _, keys, height, width, channels, value_channels = plan.shape
    to_key, to_value = results
    dtype, size, one = to_key.dtype, plan.size, to_key.dtype.type(1)
    per_row = outputs * (2 * plan.reach[1] + 1)
    window = (2 * plan.reach[0] + 1) * (2 * plan.reach[1] + 1)
    weights = keys * window
    planes = make_planes(plan, to_key)
    ask, have, give, wanted, levels, deltas, numbers = planes
    scores, slopes = room(_CHUNK * WIDTH, dtype), room(_CHUNK * WIDTH, dtype)
    keyed, valued = room(channels * WIDTH, dtype), room(value_channels * WIDTH, dtype)
    asked, graded, levelled, shifts, index = entries
    seed, threshold, factor = chance
    for job in range(start, stop):
        b, n, first_row = job // plan.bands // heads, job // plan.bands % heads, job % plan.bands * plan.band
        load(inputs, b, n, first_row, plan.reach[0], plan, one - one, planes)
        for tile in range(plan.tiles):
            at = plan.origin + tile * WIDTH
            first, end = reached(tile, first_row, plan, per_row, -1)
            for k in range(keys):
                codes = table[n if len(table) > 1 else 0, k]
                base = (b * heads + n) * outputs * height * width * weights + k * window
                key_at, value_at = k * (channels + 1) * size + at, k * value_channels * size + at
                fill(keyed, one - one)
                fill(valued, one - one)
                for e in range(first, end, _CHUNK):
                    count = min(_CHUNK, end - e)
                    blocks = count // BLOCK
                    key_scores(have, key_at, ask, at, asked, e, blocks, channels + 1, size, codes, scores)
                    products(give, value_at, wanted, at, graded, e, blocks, value_channels, size, slopes)
                    if threshold > 0:
                        dropped_gradients(scores, slopes, count, levels, deltas, at, levelled, e, numbers, at,
                                          shifts, index, weights, base, seed, threshold, factor)  # fmt: skip
                    else:
                        gradients(scores, slopes, count, levels, deltas, at, levelled, e)
                    gather(scores, ask, at, asked, e, blocks, channels, size, keyed)
                    gather(slopes, wanted, at, graded, e, blocks, value_channels, size, valued)
                unpack(keyed, channels, tile, first_row, plan, to_key[b, n, k])
                unpack(valued, value_channels, tile, first_row, plan, to_value[b, n, k])
