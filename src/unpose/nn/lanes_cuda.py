"""The kernels of group attention on a GPU, for :mod:`unpose.nn.windowed_cuda`: a lane is a pixel.

Letters: ``D`` and ``DV`` channels of keys and values, an image of ``H`` by ``W``, a window of ``WY`` by ``WX``. An
entry of the position table is a key element and an offset. ``GROUP`` entries of one row of the window are scored at a
time, each for the ``SHARED`` elements that a lane holds. ``Q``, ``K``, ``V``, ``G`` and ``R`` are the strides of
queries, keys, values, the result's gradient and the result, ``GQ``, ``GK`` and ``GV`` those of gradients: of images,
heads, channels and elements. Pixels lie side by side.

All tensors are columns, (LANES,); what has several channels, entries or elements is a tuple of them. So everything
stays in the registers of its lane; only the gradient of the table is summed over lanes, in the end. With ``PAIR`` = 2
a column holds two channels, see :mod:`unpose.nn.words_cuda`; ``D`` and ``DV`` still count channels.
"""

# Triton reads no stars in tuples, no annotations of them, and drops the way not taken only below an else.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, var-annotated, misc"

import math

import triton
import triton.language as tl

from unpose.nn.columns_cuda import (
    channel,
    codes_of,
    full,
    hashed,
    is_kept,
    look,
    neighbour,
    outset_of,
    pixels,
    rows_of,
    write,
)
from unpose.nn.words_cuda import apart, joined, plus, times, times_plus, twice

_LOG2E = tl.constexpr(math.log2(math.e))

_SUMMED = tl.constexpr(64)
"""Pixels that a lane sums up in half precision for the table's gradient."""

_HEADROOM = tl.constexpr(4.0)
"""Weights are summed as 2^-4 of themselves: sums of many values stay below what half precision can hold."""


@triton.jit(do_not_specialize=["count", "least"])
def forward_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, out, logsumexp, seed, count, least, rest,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, R: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Outputs and denominators of ``SHARED`` output elements at ``LANES`` pixels: equation 16, a running maximum."""
    ENTRIES: tl.constexpr = KEYS * WY * WX
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    SIZE: tl.constexpr = (D + PAIR - 1) // PAIR
    SIZE_V: tl.constexpr = (DV + PAIR - 1) // PAIR
    WORDS: tl.constexpr = (SIZE + 3) // 4 * 4
    FACTOR: tl.constexpr = _LOG2E / D**0.5  # scores in bits: powers of two are what the machine computes
    program = tl.program_id(0)
    first = program % (OUTPUTS // SHARED) * SHARED  # outputs of one tile run side by side: they read the same keys
    program = program // (OUTPUTS // SHARED)
    tiles = (count + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = pixels(program % tiles, count, LANES, H, W)
    asked = image * HEADS + head
    table += (head * OUTPUTS + first) * (ENTRIES * WORDS)
    bias += (head * OUTPUTS + first) * ENTRIES
    asking = query + (image * Q[0] + head * Q[1] + first * Q[3] + pixel)
    keys = key + (image * K[0] + head * K[1] + pixel)
    values = value + (image * V[0] + head * V[1] + pixel)
    queries, marks = rows_of(asking, SIZE, Q[2], Q[3], SHARED, PAIR), ()
    if DROPS:
        for i in tl.static_range(SHARED):
            marks = marks + (hashed((asked * OUTPUTS + first + i) * (H * W) + pixel + tl.load(seed)),)
    # Finite, so that a key that is left out gives exp(-inf), never inf - inf.
    top, below = full(pixel, SHARED, -1e30, 1), full(pixel, SHARED, 0.0, 1)
    total = full(pixel, SHARED * SIZE_V, 0.0, PAIR)
    for line in range(KEYS * WY * CHUNKS):
        element, row, start = line // (WY * CHUNKS), line // CHUNKS % WY, line % CHUNKS * GROUP
        entry = (element * WY + row) * WX + start
        # Added to a pointer here, so that what follows are constant steps from it.
        line_table = table + entry * WORDS
        scores, places, entries = (), (), ()
        for j in tl.static_range(GROUP):
            inside, place, shift = look(y, x, row, start, j, 1, H, W, WY, WX, GROUP)
            places, entries = places + (place,), entries + (entry + shift,)
            near = neighbour(keys + (element * K[3] + place), SIZE, K[2], PAIR)
            outset = outset_of(inside, PAIR)
            for i in tl.static_range(SHARED):
                codes = codes_of(line_table + (i * ENTRIES + shift) * WORDS, SIZE)
                score = outset
                for c in tl.static_range(SIZE):
                    asked_for = channel(queries, asking, i, c, SIZE, Q[2], Q[3], PAIR)
                    score = times_plus(asked_for, plus(near[c], codes[c], PAIR), score, PAIR)
                score = joined(score, PAIR)
                if HAS_BIAS:
                    score += tl.load(bias + i * ENTRIES + entry + shift)
                scores = scores + (score,)
        weights, shrinks, new_top, new_below = (), (), (), ()
        for i in tl.static_range(SHARED):
            highest = top[i]
            for j in tl.static_range(GROUP):
                highest = tl.maximum(highest, scores[j * SHARED + i])
            shrink = tl.exp2((top[i] - highest) * FACTOR)
            summed, minus = below[i] * shrink, highest * FACTOR + _HEADROOM
            for j in tl.static_range(GROUP):
                weight = tl.exp2(scores[j * SHARED + i] * FACTOR - minus)
                summed += weight
                weights = weights + (weight,)
            new_top = new_top + (highest,)
            new_below = new_below + (summed,)
            shrinks = shrinks + (twice(shrink, PAIR),)
        before, top, below, total = total, new_top, new_below, ()
        for i in tl.static_range(SHARED):
            for c in tl.static_range(SIZE_V):
                total = total + (times(before[i * SIZE_V + c], shrinks[i], PAIR),)
        for j in tl.static_range(GROUP):
            near = neighbour(values + (element * V[3] + places[j]), SIZE_V, V[2], PAIR)
            before, total = total, ()
            for i in tl.static_range(SHARED):
                weight = weights[i * GROUP + j]
                if DROPS:
                    weight = tl.where(is_kept(marks[i], entries[j], least), weight, 0.0)
                weight = twice(weight, PAIR)
                for c in tl.static_range(SIZE_V):
                    total = total + (times_plus(weight, near[c], before[i * SIZE_V + c], PAIR),)
    for i in tl.static_range(SHARED):
        at = out + (image * R[0] + head * R[1] + (first + i) * R[3] + pixel)
        write(at, total, i * SIZE_V, 1 / (below[i] * rest), live, DV, R[2], PAIR)
    for i in tl.static_range(SHARED):
        summed = (top[i] * FACTOR + tl.log2(below[i]) + _HEADROOM) / _LOG2E
        tl.store(logsumexp + ((asked * OUTPUTS + first + i) * (H * W) + pixel), summed, live)


@triton.jit
def _asking(  # type: ignore[no-untyped-def]
    query, grad_out, image, head, first, pixel, Q: tl.constexpr, G: tl.constexpr,
    SIZE: tl.constexpr, SIZE_V: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """Where the queries of SHARED outputs and the gradients of their results lie, and what is held of them."""
    asking = query + (image * Q[0] + head * Q[1] + first * Q[3] + pixel)
    wanting = grad_out + (image * G[0] + head * G[1] + first * G[3] + pixel)
    queries = rows_of(asking, SIZE, Q[2], Q[3], SHARED, PAIR)
    return asking, wanting, queries, rows_of(wanting, SIZE_V, G[2], G[3], SHARED, PAIR)


@triton.jit
def _slope(  # type: ignore[no-untyped-def]
    asked, near, seen, codes, bias, outset, top, delta, mark, entry, least, i: tl.constexpr,
    Q: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SIZE: tl.constexpr, SIZE_V: tl.constexpr,
    HAS_BIAS: tl.constexpr, DROPS: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """The gradient of a score of the i-th output, before unit and 1 / sqrt(d); and key and encoding, added."""
    FACTOR: tl.constexpr = _LOG2E / D**0.5
    asking, wanting, queries, grads = asked
    score, product, coded = outset, full(outset, 1, 0.0, PAIR)[0], ()
    for c in tl.static_range(SIZE):
        coded = coded + (plus(near[c], codes[c], PAIR),)
        asked_for = channel(queries, asking, i, c, SIZE, Q[2], Q[3], PAIR)
        score = times_plus(asked_for, coded[c], score, PAIR)
    for c in tl.static_range(SIZE_V):
        grad = channel(grads, wanting, i, c, SIZE_V, G[2], G[3], PAIR)
        product = times_plus(grad, seen[c], product, PAIR)
    score, product = joined(score, PAIR), joined(product, PAIR)
    if HAS_BIAS:
        score += tl.load(bias + entry)
    weight = tl.exp2(score * FACTOR - top)
    if DROPS:
        product = tl.where(is_kept(mark, entry, least), product, 0.0)
    return weight * (product - delta), coded


@triton.jit(do_not_specialize=["count", "least"])
def queries_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, grad_out, out, logsumexp, delta, grad_query, seed, unit, count, least, rest,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, R: tl.constexpr, GQ: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Gradients of ``SHARED`` outputs' queries at ``LANES`` pixels, and their ``delta``, which the others need."""
    ENTRIES: tl.constexpr = KEYS * WY * WX
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    SIZE: tl.constexpr = (D + PAIR - 1) // PAIR
    SIZE_V: tl.constexpr = (DV + PAIR - 1) // PAIR
    WORDS: tl.constexpr = (SIZE + 3) // 4 * 4
    program = tl.program_id(0)
    first = program % (OUTPUTS // SHARED) * SHARED
    program = program // (OUTPUTS // SHARED)
    tiles = (count + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = pixels(program % tiles, count, LANES, H, W)
    table += (head * OUTPUTS + first) * (ENTRIES * WORDS)
    bias += (head * OUTPUTS + first) * ENTRIES
    keys = key + (image * K[0] + head * K[1] + pixel)
    values = value + (image * V[0] + head * V[1] + pixel)
    asked = _asking(query, grad_out, image, head, first, pixel, Q, G, SIZE, SIZE_V, SHARED, PAIR)
    marks, tops, deltas = (), (), ()
    for i in tl.static_range(SHARED):
        number = ((image * HEADS + head) * OUTPUTS + first + i) * (H * W) + pixel
        marks = marks + (hashed(number + tl.load(seed)),)
        tops = tops + (tl.load(logsumexp + number) * _LOG2E,)
        result = out + (image * R[0] + head * R[1] + (first + i) * R[3] + pixel)
        inner = tl.full(pixel.shape, 0.0, tl.float32)
        for c in tl.static_range(DV):
            wanted = apart(channel(asked[3], asked[1], i, c // PAIR, SIZE_V, G[2], G[3], PAIR), PAIR)[c % PAIR]
            inner += wanted * tl.load(result + c * R[2]).to(tl.float32)
        deltas = deltas + (inner * rest,)
        tl.store(delta + number, deltas[i], live)
    total = full(pixel, SHARED * SIZE, 0.0, PAIR)
    for line in range(KEYS * WY * CHUNKS):
        element, row, start = line // (WY * CHUNKS), line // CHUNKS % WY, line % CHUNKS * GROUP
        entry = (element * WY + row) * WX + start
        line_table = table + entry * WORDS
        for j in tl.static_range(GROUP):
            inside, place, shift = look(y, x, row, start, j, 1, H, W, WY, WX, GROUP)
            near = neighbour(keys + (element * K[3] + place), SIZE, K[2], PAIR)
            seen = neighbour(values + (element * V[3] + place), SIZE_V, V[2], PAIR)
            outset = outset_of(inside, PAIR)
            before, total = total, ()
            for i in tl.static_range(SHARED):
                codes = codes_of(line_table + (i * ENTRIES + shift) * WORDS, SIZE)
                slope, coded = _slope(
                    asked, near, seen, codes, bias + i * ENTRIES, outset, tops[i], deltas[i], marks[i], entry + shift,
                    least, i, Q, G, D, SIZE, SIZE_V, HAS_BIAS, DROPS, PAIR,
                )  # fmt: skip
                slope = twice(slope, PAIR)
                for c in tl.static_range(SIZE):
                    total = total + (times_plus(slope, coded[c], before[i * SIZE + c], PAIR),)
    size = tl.load(unit) / D**0.5
    for i in tl.static_range(SHARED):
        at = grad_query + (image * GQ[0] + head * GQ[1] + (first + i) * GQ[3] + pixel)
        write(at, total, i * SIZE, size, live, D, GQ[2], PAIR)


@triton.jit(do_not_specialize=["images", "blocks", "tiles_each", "least"])
def table_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, grad_out, logsumexp, delta, sums, seed, images, blocks, tiles_each, least,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Sums for the gradient of one group of entries, ``SHARED`` outputs of them, over a block of tiles.

    Each lane sums over its pixels, in float16 where channels are paired, but not many of them; lanes are summed after
    that, and added to what there is, in float32.
    """
    ENTRIES: tl.constexpr = KEYS * WY * WX
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    COLUMNS: tl.constexpr = D + HAS_BIAS
    SIZE: tl.constexpr = (D + PAIR - 1) // PAIR
    SIZE_V: tl.constexpr = (DV + PAIR - 1) // PAIR
    WORDS: tl.constexpr = (SIZE + 3) // 4 * 4
    TILES: tl.constexpr = (H * W + LANES - 1) // LANES
    program = tl.program_id(0)
    # Those that read the same pixels run side by side.
    line = program % (KEYS * WY * CHUNKS)
    program = program // (KEYS * WY * CHUNKS)
    first = program % (OUTPUTS // SHARED) * SHARED
    program = program // (OUTPUTS // SHARED)
    block = program % blocks
    head = (program // blocks).to(tl.int64)
    element, row, start = line // (WY * CHUNKS), line // CHUNKS % WY, line % CHUNKS * GROUP
    entry = (element * WY + row) * WX + start
    line_table = table + ((head * OUTPUTS + first) * ENTRIES + entry) * WORDS
    bias += (head * OUTPUTS + first) * ENTRIES
    sums += ((block * HEADS + head) * OUTPUTS + first) * (COLUMNS * ENTRIES) + entry
    lane, end = tl.arange(0, LANES), tl.minimum((block + 1) * tiles_each, images * TILES)
    for begin in range(block * tiles_each, end, _SUMMED):
        total, total_bias = full(lane, GROUP * SHARED * SIZE, 0.0, PAIR), full(lane, GROUP * SHARED, 0.0, 1)
        for tile in range(begin, tl.minimum(begin + _SUMMED, end)):
            # All of one image: where it begins is computed once, not by every lane.
            image, place_in = tl.cast(tile // TILES, tl.int64), tile % TILES * LANES + lane
            live, pixel = place_in < H * W, tl.minimum(place_in, H * W - 1)
            y, x = pixel // W, pixel % W
            keys = key + (image * K[0] + head * K[1] + element * K[3] + pixel)
            values = value + (image * V[0] + head * V[1] + element * V[3] + pixel)
            asked = _asking(query, grad_out, image, head, first, pixel, Q, G, SIZE, SIZE_V, SHARED, PAIR)
            marks, tops, deltas = (), (), ()
            for i in tl.static_range(SHARED):
                number = ((image * HEADS + head) * OUTPUTS + first + i) * (H * W) + pixel
                marks = marks + (hashed(number + tl.load(seed)),)
                tops = tops + (tl.load(logsumexp + number) * _LOG2E,)
                deltas = deltas + (tl.load(delta + number),)
            before, before_bias, total, total_bias = total, total_bias, (), ()
            for j in tl.static_range(GROUP):
                inside, place, shift = look(y, x, row, start, j, 1, H, W, WY, WX, GROUP)
                near = neighbour(keys + place, SIZE, K[2], PAIR)
                seen = neighbour(values + place, SIZE_V, V[2], PAIR)
                outset = outset_of(inside & live, PAIR)
                for i in tl.static_range(SHARED):
                    codes = codes_of(line_table + (i * ENTRIES + shift) * WORDS, SIZE)
                    found = _slope(
                        asked, near, seen, codes, bias + i * ENTRIES, outset, tops[i], deltas[i], marks[i],
                        entry + shift, least, i, Q, G, D, SIZE, SIZE_V, HAS_BIAS, DROPS, PAIR,
                    )  # fmt: skip
                    slope = twice(found[0], PAIR)
                    for c in tl.static_range(SIZE):
                        asked_for = channel(asked[2], asked[0], i, c, SIZE, Q[2], Q[3], PAIR)
                        total = total + (times_plus(slope, asked_for, before[(j * SHARED + i) * SIZE + c], PAIR),)
                    total_bias = total_bias + (before_bias[j * SHARED + i] + found[0],)
        for j in tl.static_range(GROUP):
            exists = start + j < WX
            for i in tl.static_range(SHARED):
                at = sums + (i * COLUMNS * ENTRIES + j)
                for c in tl.static_range(COLUMNS):
                    if c < D:
                        column = apart(total[(j * SHARED + i) * SIZE + c // PAIR], PAIR)[c % PAIR]
                    else:
                        column = total_bias[j * SHARED + i]
                    so_far = tl.load(at + c * ENTRIES, exists & (begin > block * tiles_each), 0.0)
                    tl.store(at + c * ENTRIES, so_far + tl.sum(column, 0), exists)
        tl.debug_barrier()  # what one lane has stored here, all read next time


@triton.jit(do_not_specialize=["count", "least"])
def keys_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, grad_out, logsumexp, delta, grad_key, grad_value, seed, unit, count, least,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, GK: tl.constexpr, GV: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Gradients of ``SHARED`` elements' keys and values at ``LANES`` pixels, from every query that sees them."""
    AREA: tl.constexpr = WY * WX
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    SIZE: tl.constexpr = (D + PAIR - 1) // PAIR
    SIZE_V: tl.constexpr = (DV + PAIR - 1) // PAIR
    WORDS: tl.constexpr = (SIZE + 3) // 4 * 4
    FACTOR: tl.constexpr = _LOG2E / D**0.5
    program = tl.program_id(0)
    first = program % (KEYS // SHARED) * SHARED
    program = program // (KEYS // SHARED)
    tiles = (count + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = pixels(program % tiles, count, LANES, H, W)
    asked = image * HEADS + head
    table += (head * (OUTPUTS * KEYS) + first) * (AREA * WORDS)
    bias += head * (OUTPUTS * KEYS * AREA) + first * AREA
    asking = query + (image * Q[0] + head * Q[1] + pixel)
    wanting = grad_out + (image * G[0] + head * G[1] + pixel)
    key_at = key + (image * K[0] + head * K[1] + first * K[3] + pixel)
    value_at = value + (image * V[0] + head * V[1] + first * V[3] + pixel)
    about = asked * (OUTPUTS * H * W) + pixel
    keys = rows_of(key_at, SIZE, K[2], K[3], SHARED, PAIR)
    values = rows_of(value_at, SIZE_V, V[2], V[3], SHARED, PAIR)
    total, total_value = full(pixel, SHARED * SIZE, 0.0, PAIR), full(pixel, SHARED * SIZE_V, 0.0, PAIR)
    for line in range(OUTPUTS * WY * CHUNKS):
        output, line_y, start = line // (WY * CHUNKS), line // CHUNKS % WY, line % CHUNKS * GROUP
        offset = line_y * WX + start
        line_table = table + (output * (KEYS * AREA) + offset) * WORDS
        for j in tl.static_range(GROUP):
            inside, place, shift = look(y, x, line_y, start, j, -1, H, W, WY, WX, GROUP)
            highest = tl.load(logsumexp + about + (output * (H * W) + place)) * _LOG2E
            below = tl.load(delta + about + (output * (H * W) + place))
            row = neighbour(asking + (output * Q[3] + place), SIZE, Q[2], PAIR)
            grad = neighbour(wanting + (output * G[3] + place), SIZE_V, G[2], PAIR)
            if DROPS:
                mark = hashed(about + (output * (H * W) + place) + tl.load(seed))
            outset = outset_of(inside, PAIR)
            before, before_value, total, total_value = total, total_value, (), ()
            for i in tl.static_range(SHARED):
                codes = codes_of(line_table + (i * AREA + shift) * WORDS, SIZE)
                score, product = outset, full(pixel, 1, 0.0, PAIR)[0]
                for c in tl.static_range(SIZE):
                    own = channel(keys, key_at, i, c, SIZE, K[2], K[3], PAIR)
                    score = times_plus(row[c], plus(own, codes[c], PAIR), score, PAIR)
                for c in tl.static_range(SIZE_V):
                    own = channel(values, value_at, i, c, SIZE_V, V[2], V[3], PAIR)
                    product = times_plus(grad[c], own, product, PAIR)
                score, product = joined(score, PAIR), joined(product, PAIR)
                if HAS_BIAS:
                    score += tl.load(bias + output * (KEYS * AREA) + i * AREA + offset + shift)
                weight = tl.exp2(score * FACTOR - highest)
                given = weight
                if DROPS:
                    given = tl.where(is_kept(mark, (first + i) * AREA + offset + shift, least), weight, 0.0)
                given, slope = twice(given, PAIR), twice(given * product - weight * below, PAIR)
                for c in tl.static_range(SIZE_V):
                    total_value = total_value + (times_plus(given, grad[c], before_value[i * SIZE_V + c], PAIR),)
                for c in tl.static_range(SIZE):
                    total = total + (times_plus(slope, row[c], before[i * SIZE + c], PAIR),)
    size = tl.load(unit)
    for i in tl.static_range(SHARED):
        at = grad_key + (image * GK[0] + head * GK[1] + (first + i) * GK[3] + pixel)
        write(at, total, i * SIZE, size / D**0.5, live, D, GK[2], PAIR)
        at = grad_value + (image * GV[0] + head * GV[1] + (first + i) * GV[3] + pixel)
        write(at, total_value, i * SIZE_V, size, live, DV, GV[2], PAIR)
