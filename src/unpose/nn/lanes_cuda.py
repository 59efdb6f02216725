"""The kernels of group attention on a GPU, for :mod:`unpose.nn.windowed_cuda`: a lane is a pixel.

Letters: ``D`` and ``DV`` channels of keys and values, an image of ``H`` by ``W``, a window of ``WY`` by ``WX``. An
entry of the position table is a key element and an offset. ``GROUP`` entries of one row of the window are scored at a
time, each for the ``SHARED`` elements that a lane holds. ``Q``, ``K``, ``V``, ``G`` and ``R`` are the strides of
queries, keys, values, the result's gradient and the result, ``GQ``, ``GK`` and ``GV`` those of gradients: of images,
heads, channels and elements. Pixels lie side by side.

All tensors are columns, (LANES,); what has several channels, entries or elements is a tuple of them. So everything
stays in the registers of its lane; only the gradient of the table is summed over lanes, in the end. A column holds the
numbers of ``PAIR`` images at the same pixel, see :mod:`unpose.nn.words_cuda`: with two, one instruction serves both.
"""

# Triton reads no stars in tuples, no annotations of them, and drops the way not taken only below an else.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, var-annotated, misc"

import math

import triton
import triton.language as tl

from unpose.nn.columns_cuda import (
    channel,
    full,
    hashed,
    look,
    neighbour,
    outset_of,
    pixels,
    rows_of,
    write,
)
from unpose.nn.words_cuda import (
    alike,
    apart,
    code_of,
    codes_of,
    greater,
    keep_of,
    less,
    load,
    plus,
    power,
    read,
    times,
    times_plus,
    together,
)

_LOG2E = tl.constexpr(math.log2(math.e))

_SUMMED = tl.constexpr(64)
"""Pixels that a lane sums up in half precision for the table's gradient."""

_HEADROOM = tl.constexpr(4.0)
"""Weights are summed as 2^-4 of themselves: sums of many values stay below what half precision can hold."""


@triton.jit
def _score(  # type: ignore[no-untyped-def]
    queries, asking, near, codes, bias, outset, i: tl.constexpr, Q: tl.constexpr, D: tl.constexpr,
    HAS_BIAS: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """The score of the i-th output's query at a key, times sqrt(d); and key and encoding, added."""
    score, coded = outset, ()
    for c in tl.static_range(D):
        coded = coded + (plus(near[c], code_of(codes, c, PAIR), PAIR),)
        score = times_plus(channel(queries, asking, i, c, D, Q[2], Q[3], PAIR), coded[c], score, PAIR)
    if HAS_BIAS:
        score = plus(score, alike(tl.load(bias), PAIR), PAIR)
    return score, coded


@triton.jit(do_not_specialize=["batch", "least"])
def forward_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, out, logsumexp, seed, batch, least, rest,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, R: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Outputs and denominators of ``SHARED`` output elements at ``LANES`` pixels: equation 16, a running maximum."""
    ENTRIES: tl.constexpr = KEYS * WY * WX
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    SIZE: tl.constexpr = (D + PAIR - 1) // PAIR
    WORDS: tl.constexpr = (SIZE + 3) // 4 * 4
    # Finite, so that a key that is left out gives exp(-inf), never inf - inf.
    LOWEST: tl.constexpr = -1e30 if PAIR == 1 else -6e4
    program = tl.program_id(0)
    first = program % (OUTPUTS // SHARED) * SHARED  # outputs of one tile run side by side: they read the same keys
    program = program // (OUTPUTS // SHARED)
    tiles = ((batch + PAIR - 1) // PAIR * (H * W) + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = pixels(program % tiles, batch, LANES, H, W, PAIR)
    table += (head * OUTPUTS + first) * (ENTRIES * WORDS)
    bias += (head * OUTPUTS + first) * ENTRIES
    asking = query + (image * Q[0] + head * Q[1] + first * Q[3] + pixel)
    keys = key + (image * K[0] + head * K[1] + pixel)
    values = value + (image * V[0] + head * V[1] + pixel)
    queries, marks = rows_of(asking, D, Q[2], Q[3], SHARED, PAIR), ()
    if DROPS:
        for i in tl.static_range(SHARED):
            number = ((image * HEADS + head) * OUTPUTS + first + i) * (H * W) + pixel
            marks = marks + (hashed(number + tl.load(seed)),)
    # Scores in bits: powers of two are what the machine computes.
    factor, headroom = full(pixel, 1, _LOG2E / D**0.5, PAIR)[0], full(pixel, 1, -_HEADROOM, PAIR)[0]
    top, below = full(pixel, SHARED, LOWEST, PAIR), full(pixel, SHARED * PAIR, 0.0, 1)
    total = full(pixel, SHARED * DV, 0.0, PAIR)
    for line in range(KEYS * WY * CHUNKS):
        element, row, start = line // (WY * CHUNKS), line // CHUNKS % WY, line % CHUNKS * GROUP
        entry = (element * WY + row) * WX + start
        # Added to a pointer here, so that what follows are constant steps from it.
        line_table = table + entry * WORDS
        scores, places, entries = (), (), ()
        for j in tl.static_range(GROUP):
            inside, place, shift = look(y, x, row, start, j, 1, H, W, WY, WX, GROUP)
            places, entries = places + (place,), entries + (entry + shift,)
            near = neighbour(keys + (element * K[3] + place), D, K[2], PAIR)
            outset = outset_of(inside, PAIR)
            for i in tl.static_range(SHARED):
                codes = codes_of(line_table + (i * ENTRIES + shift) * WORDS, SIZE)
                extra = bias + i * ENTRIES + entry + shift
                score = _score(queries, asking, near, codes, extra, outset, i, Q, D, HAS_BIAS, PAIR)[0]
                scores = scores + (score,)
        weights, shrinks, new_top, new_below = (), (), (), ()
        for i in tl.static_range(SHARED):
            highest = top[i]
            for j in tl.static_range(GROUP):
                highest = greater(highest, scores[j * SHARED + i], PAIR)
            shrink = power(times(less(top[i], highest, PAIR), factor, PAIR), PAIR)
            summed = full(pixel, 1, 0.0, PAIR)[0]
            for j in tl.static_range(GROUP):
                lower = less(scores[j * SHARED + i], highest, PAIR)
                weight = power(times_plus(lower, factor, headroom, PAIR), PAIR)
                summed = plus(summed, weight, PAIR)
                weights = weights + (weight,)
            shrink_each, summed_each = apart(shrink, PAIR), apart(summed, PAIR)
            for p in tl.static_range(PAIR):
                new_below = new_below + (below[i * PAIR + p] * shrink_each[p] + summed_each[p],)
            new_top = new_top + (highest,)
            shrinks = shrinks + (shrink,)
        before, top, below, total = total, new_top, new_below, ()
        for i in tl.static_range(SHARED):
            for c in tl.static_range(DV):
                total = total + (times(before[i * DV + c], shrinks[i], PAIR),)
        for j in tl.static_range(GROUP):
            near = neighbour(values + (element * V[3] + places[j]), DV, V[2], PAIR)
            before, total = total, ()
            for i in tl.static_range(SHARED):
                weight = weights[i * GROUP + j]
                if DROPS:
                    weight = times(weight, keep_of(marks[i], entries[j], least, PAIR), PAIR)
                for c in tl.static_range(DV):
                    total = total + (times_plus(weight, near[c], before[i * DV + c], PAIR),)
    bits = apart(factor, PAIR)[0]  # as it was multiplied with: rounded
    for i in tl.static_range(SHARED):
        sizes, tops = (), apart(top[i], PAIR)
        for p in tl.static_range(PAIR):
            sizes = sizes + (1 / (below[i * PAIR + p] * rest),)
            summed = (tops[p] * bits + tl.log2(below[i * PAIR + p]) + _HEADROOM) / _LOG2E
            number = (((image * PAIR + p) * HEADS + head) * OUTPUTS + first + i) * (H * W) + pixel
            tl.store(logsumexp + number, summed, live[p])
        at = out + (image * (PAIR * R[0]) + head * R[1] + (first + i) * R[3] + pixel)
        write(at, total, i * DV, sizes, live, DV, R[0], R[2], PAIR)


@triton.jit
def _asking(  # type: ignore[no-untyped-def]
    query, grad_out, image, head, first, pixel, Q: tl.constexpr, G: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """Where the queries of SHARED outputs and the gradients of their results lie, and what is held of them."""
    asking = query + (image * Q[0] + head * Q[1] + first * Q[3] + pixel)
    wanting = grad_out + (image * G[0] + head * G[1] + first * G[3] + pixel)
    queries = rows_of(asking, D, Q[2], Q[3], SHARED, PAIR)
    return asking, wanting, queries, rows_of(wanting, DV, G[2], G[3], SHARED, PAIR)


@triton.jit
def _levels(at, plane, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the queries' kernel has stored: PAIR columns that are added to a score in bits, and one to a product."""
    levels = ()
    for c in tl.static_range(PAIR + 1):
        levels = levels + (read(at + c * plane, PAIR),)
    return levels


@triton.jit
def _weight(score, factor, levels, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """The weight of a score, given the logarithm of the denominator, negative and in bits.

    In words that comes in two parts, what half precision has of it and the rest.
    """
    score = times_plus(score, factor, levels[0], PAIR)
    if PAIR == 2:
        score = plus(score, levels[1], PAIR)
    return power(score, PAIR)


@triton.jit
def _slope(  # type: ignore[no-untyped-def]
    asked, near, seen, codes, bias, outset, factor, levels, mark, entry, least, i: tl.constexpr,
    Q: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr, DROPS: tl.constexpr,
    PAIR: tl.constexpr,
):  # fmt: skip
    """The gradient of a score of the i-th output, before unit and 1 / sqrt(d); and key and encoding, added."""
    asking, wanting, queries, grads = asked
    score, coded = _score(queries, asking, near, codes, bias + entry, outset, i, Q, D, HAS_BIAS, PAIR)
    product = full(outset, 1, 0.0, PAIR)[0]
    for c in tl.static_range(DV):
        product = times_plus(channel(grads, wanting, i, c, DV, G[2], G[3], PAIR), seen[c], product, PAIR)
    if DROPS:
        product = times(product, keep_of(mark, entry, least, PAIR), PAIR)
    return times(_weight(score, factor, levels, PAIR), plus(product, levels[PAIR], PAIR), PAIR), coded


@triton.jit(do_not_specialize=["batch", "least"])
def queries_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, grad_out, out, logsumexp, levels, grad_query, seed, unit, batch, least, rest,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, R: tl.constexpr, GQ: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Gradients of ``SHARED`` outputs' queries at ``LANES`` pixels, and their ``levels``, which the others need.

    These are the logarithm of the denominator, negative and in bits, see :func:`_weight`, and minus the inner product
    of a result and its gradient: planes of (b / PAIR, n, outputs, h, w).
    """
    ENTRIES: tl.constexpr = KEYS * WY * WX
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    SIZE: tl.constexpr = (D + PAIR - 1) // PAIR
    WORDS: tl.constexpr = (SIZE + 3) // 4 * 4
    program = tl.program_id(0)
    first = program % (OUTPUTS // SHARED) * SHARED
    program = program // (OUTPUTS // SHARED)
    columns = (batch + PAIR - 1) // PAIR * (H * W)
    tiles = (columns + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = pixels(program % tiles, batch, LANES, H, W, PAIR)
    table += (head * OUTPUTS + first) * (ENTRIES * WORDS)
    bias += (head * OUTPUTS + first) * ENTRIES
    keys = key + (image * K[0] + head * K[1] + pixel)
    values = value + (image * V[0] + head * V[1] + pixel)
    asked = _asking(query, grad_out, image, head, first, pixel, Q, G, D, DV, SHARED, PAIR)
    factor = full(pixel, 1, _LOG2E / D**0.5, PAIR)[0]
    marks, known = (), ()
    for i in tl.static_range(SHARED):
        number = ((image * HEADS + head) * OUTPUTS + first + i) * (H * W) + pixel
        marks = marks + (hashed(number + tl.load(seed)),)
        depths, inners = (), ()
        for p in tl.static_range(PAIR):
            own = (((image * PAIR + p) * HEADS + head) * OUTPUTS + first + i) * (H * W) + pixel
            # Of an image that is not there the denominator is large and all weights are zero.
            depths = depths + (tl.load(logsumexp + own, live[p], 2e4) * -_LOG2E,)
            there = tl.minimum(image * PAIR + p, batch - 1)  # another, where there is none: its gradient is zero
            result = out + (there * R[0] + head * R[1] + (first + i) * R[3] + pixel)
            inner = tl.full(pixel.shape, 0.0, tl.float32)
            for c in tl.static_range(DV):
                wanted = apart(channel(asked[3], asked[1], i, c, DV, G[2], G[3], PAIR), PAIR)[p]
                inner -= wanted * load(result + c * R[2])
            inners = inners + (inner * rest,)
        held = (together(depths, PAIR),)
        if PAIR == 2:
            rounded = apart(held[0], PAIR)
            held = held + (together((depths[0] - rounded[0], depths[1] - rounded[1]), PAIR),)
        held = held + (together(inners, PAIR),)
        for c in tl.static_range(PAIR + 1):
            tl.store(levels + (tl.cast(columns, tl.int64) * (HEADS * OUTPUTS * c) + number), held[c], live[0])
        known = known + held
    total = full(pixel, SHARED * D, 0.0, PAIR)
    for line in range(KEYS * WY * CHUNKS):
        element, row, start = line // (WY * CHUNKS), line // CHUNKS % WY, line % CHUNKS * GROUP
        entry = (element * WY + row) * WX + start
        line_table = table + entry * WORDS
        for j in tl.static_range(GROUP):
            inside, place, shift = look(y, x, row, start, j, 1, H, W, WY, WX, GROUP)
            near = neighbour(keys + (element * K[3] + place), D, K[2], PAIR)
            seen = neighbour(values + (element * V[3] + place), DV, V[2], PAIR)
            outset = outset_of(inside, PAIR)
            before, total = total, ()
            for i in tl.static_range(SHARED):
                codes = codes_of(line_table + (i * ENTRIES + shift) * WORDS, SIZE)
                held = ()
                for c in tl.static_range(PAIR + 1):
                    held = held + (known[i * (PAIR + 1) + c],)
                slope, coded = _slope(
                    asked, near, seen, codes, bias + i * ENTRIES, outset, factor, held, marks[i], entry + shift, least,
                    i, Q, G, D, DV, HAS_BIAS, DROPS, PAIR,
                )  # fmt: skip
                for c in tl.static_range(D):
                    total = total + (times_plus(slope, coded[c], before[i * D + c], PAIR),)
    size = tl.load(unit) / D**0.5
    for i in tl.static_range(SHARED):
        at = grad_query + (image * (PAIR * GQ[0]) + head * GQ[1] + (first + i) * GQ[3] + pixel)
        write(at, total, i * D, (size, size), live, D, GQ[0], GQ[2], PAIR)


@triton.jit(do_not_specialize=["batch", "blocks", "tiles_each", "least"])
def table_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, grad_out, levels, sums, seed, batch, blocks, tiles_each, least,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Sums for the gradient of one group of entries, ``SHARED`` outputs of them, over a block of tiles.

    Each lane sums over its pixels, in float16 where it has two images, but not many of them; lanes are summed after
    that, and added to what there is, in float32.
    """
    ENTRIES: tl.constexpr = KEYS * WY * WX
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    COLUMNS: tl.constexpr = D + HAS_BIAS
    SIZE: tl.constexpr = (D + PAIR - 1) // PAIR
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
    images = (batch + PAIR - 1) // PAIR
    plane = tl.cast(images, tl.int64) * (HEADS * OUTPUTS * H * W)
    lane, end = tl.arange(0, LANES), tl.minimum((block + 1) * tiles_each, images * TILES)
    factor = full(lane, 1, _LOG2E / D**0.5, PAIR)[0]
    for begin in range(block * tiles_each, end, _SUMMED):
        total = full(lane, GROUP * SHARED * COLUMNS, 0.0, PAIR)
        for tile in range(begin, tl.minimum(begin + _SUMMED, end)):
            # All of one image: where it begins is computed once, not by every lane.
            image, place_in = tl.cast(tile // TILES, tl.int64), tile % TILES * LANES + lane
            live, pixel = place_in < H * W, tl.minimum(place_in, H * W - 1)
            y, x = pixel // W, pixel % W
            keys = key + (image * K[0] + head * K[1] + element * K[3] + pixel)
            values = value + (image * V[0] + head * V[1] + element * V[3] + pixel)
            asked = _asking(query, grad_out, image, head, first, pixel, Q, G, D, DV, SHARED, PAIR)
            number = ((image * HEADS + head) * OUTPUTS + first) * (H * W) + pixel
            before, total = total, ()
            for j in tl.static_range(GROUP):
                inside, place, shift = look(y, x, row, start, j, 1, H, W, WY, WX, GROUP)
                near = neighbour(keys + place, D, K[2], PAIR)
                seen = neighbour(values + place, DV, V[2], PAIR)
                outset = outset_of(inside & live, PAIR)
                for i in tl.static_range(SHARED):
                    codes = codes_of(line_table + (i * ENTRIES + shift) * WORDS, SIZE)
                    known = _levels(levels + (number + i * (H * W)), plane, PAIR)
                    mark = hashed(number + i * (H * W) + tl.load(seed))
                    slope = _slope(
                        asked, near, seen, codes, bias + i * ENTRIES, outset, factor, known, mark, entry + shift,
                        least, i, Q, G, D, DV, HAS_BIAS, DROPS, PAIR,
                    )[0]  # fmt: skip
                    for c in tl.static_range(COLUMNS):
                        so_far = before[(j * SHARED + i) * COLUMNS + c]
                        if c < D:
                            asked_for = channel(asked[2], asked[0], i, c, D, Q[2], Q[3], PAIR)
                            total = total + (times_plus(slope, asked_for, so_far, PAIR),)
                        else:
                            total = total + (plus(slope, so_far, PAIR),)
        for j in tl.static_range(GROUP):
            exists = start + j < WX
            for i in tl.static_range(SHARED):
                for c in tl.static_range(COLUMNS):
                    at = sums + ((i * COLUMNS + c) * ENTRIES + j)
                    summed = tl.load(at, exists & (begin > block * tiles_each), 0.0)
                    each = apart(total[(j * SHARED + i) * COLUMNS + c], PAIR)
                    for p in tl.static_range(PAIR):
                        summed += tl.sum(each[p], 0)
                    tl.store(at, summed, exists)
        tl.debug_barrier()  # what one lane has stored here, all read next time


@triton.jit(do_not_specialize=["batch", "least"])
def keys_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, grad_out, levels, grad_key, grad_value, seed, unit, batch, least,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, GK: tl.constexpr, GV: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Gradients of ``SHARED`` elements' keys and values at ``LANES`` pixels, from every query that sees them."""
    AREA: tl.constexpr = WY * WX
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    SIZE: tl.constexpr = (D + PAIR - 1) // PAIR
    WORDS: tl.constexpr = (SIZE + 3) // 4 * 4
    program = tl.program_id(0)
    first = program % (KEYS // SHARED) * SHARED
    program = program // (KEYS // SHARED)
    columns = (batch + PAIR - 1) // PAIR * (H * W)
    tiles = (columns + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = pixels(program % tiles, batch, LANES, H, W, PAIR)
    table += (head * (OUTPUTS * KEYS) + first) * (AREA * WORDS)
    bias += head * (OUTPUTS * KEYS * AREA) + first * AREA
    asking = query + (image * Q[0] + head * Q[1] + pixel)
    wanting = grad_out + (image * G[0] + head * G[1] + pixel)
    key_at = key + (image * K[0] + head * K[1] + first * K[3] + pixel)
    value_at = value + (image * V[0] + head * V[1] + first * V[3] + pixel)
    about, plane = (image * HEADS + head) * (OUTPUTS * H * W) + pixel, tl.cast(columns, tl.int64) * (HEADS * OUTPUTS)
    keys = rows_of(key_at, D, K[2], K[3], SHARED, PAIR)
    values = rows_of(value_at, DV, V[2], V[3], SHARED, PAIR)
    factor = full(pixel, 1, _LOG2E / D**0.5, PAIR)[0]
    total, total_value = full(pixel, SHARED * D, 0.0, PAIR), full(pixel, SHARED * DV, 0.0, PAIR)
    for line in range(OUTPUTS * WY * CHUNKS):
        output, line_y, start = line // (WY * CHUNKS), line // CHUNKS % WY, line % CHUNKS * GROUP
        offset = line_y * WX + start
        line_table = table + (output * (KEYS * AREA) + offset) * WORDS
        for j in tl.static_range(GROUP):
            inside, place, shift = look(y, x, line_y, start, j, -1, H, W, WY, WX, GROUP)
            number = about + (output * (H * W) + place)
            known = _levels(levels + number, plane, PAIR)
            row = neighbour(asking + (output * Q[3] + place), D, Q[2], PAIR)
            grad = neighbour(wanting + (output * G[3] + place), DV, G[2], PAIR)
            if DROPS:
                mark = hashed(number + tl.load(seed))
            outset = outset_of(inside, PAIR)
            before, before_value, total, total_value = total, total_value, (), ()
            for i in tl.static_range(SHARED):
                codes = codes_of(line_table + (i * AREA + shift) * WORDS, SIZE)
                score, product = outset, full(pixel, 1, 0.0, PAIR)[0]
                for c in tl.static_range(D):
                    own = channel(keys, key_at, i, c, D, K[2], K[3], PAIR)
                    score = times_plus(row[c], plus(own, code_of(codes, c, PAIR), PAIR), score, PAIR)
                for c in tl.static_range(DV):
                    own = channel(values, value_at, i, c, DV, V[2], V[3], PAIR)
                    product = times_plus(grad[c], own, product, PAIR)
                if HAS_BIAS:
                    added = tl.load(bias + output * (KEYS * AREA) + i * AREA + offset + shift)
                    score = plus(score, alike(added, PAIR), PAIR)
                weight = _weight(score, factor, known, PAIR)
                given = weight
                if DROPS:
                    keep = keep_of(mark, (first + i) * AREA + offset + shift, least, PAIR)
                    given, product = times(weight, keep, PAIR), times(product, keep, PAIR)
                slope = times(weight, plus(product, known[PAIR], PAIR), PAIR)
                for c in tl.static_range(DV):
                    total_value = total_value + (times_plus(given, grad[c], before_value[i * DV + c], PAIR),)
                for c in tl.static_range(D):
                    total = total + (times_plus(slope, row[c], before[i * D + c], PAIR),)
    size = tl.load(unit)
    for i in tl.static_range(SHARED):
        at = grad_key + (image * (PAIR * GK[0]) + head * GK[1] + (first + i) * GK[3] + pixel)
        write(at, total, i * D, (size / D**0.5, size / D**0.5), live, D, GK[0], GK[2], PAIR)
        at = grad_value + (image * (PAIR * GV[0]) + head * GV[1] + (first + i) * GV[3] + pixel)
        write(at, total_value, i * DV, (size, size), live, DV, GV[0], GV[2], PAIR)
