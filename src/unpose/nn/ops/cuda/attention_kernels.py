"""The kernels of group attention on a GPU, for :mod:`unpose.nn.ops.cuda.attention`: a lane is a pixel.

Letters: ``D`` and ``DV`` channels of keys and values, an image of ``H`` by ``W``, a window of ``WY`` by ``WX``. Each
entry of the position table serves ``SHARES`` key elements, one or all of ``KEYS``, and has the first ``SPACE`` channels
of their encoding; the others, if any, are in ``vectors``, one for each pair of elements. ``GROUP`` entries of one row
of the window, a line, are scored at a time, each for the ``SHARED`` elements that a lane holds. ``Q``, ``K``, ``V``,
``G`` and ``R`` are the strides of queries, keys, values, the result's gradient and the result, ``GQ``, ``GK`` and
``GV`` those of gradients: of images, heads, channels and elements. Pixels lie side by side.

All tensors are columns, (LANES,); what has several channels, entries or elements is a tuple of them. So everything
stays in the registers of its lane. A column holds the numbers of ``PAIR`` images at the same pixel, see
:mod:`unpose.nn.ops.cuda.packed`: with two, one instruction serves both. Scores are computed in :mod:`unpose.nn.ops.cuda.scores`.
"""

# Triton reads no stars in tuples and no annotations of them.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, var-annotated, misc"

import math

import triton
import triton.language as tl

from unpose.nn.ops.cuda.neighbourhood import (
    channel,
    full,
    hashed,
    lines_seen,
    look,
    neighbour,
    outset_of,
    pixels,
    rows_of,
    write,
)
from unpose.nn.ops.cuda.packed import (
    alike,
    apart,
    carried,
    code_of,
    codes_of,
    greater,
    keep_of,
    less,
    load,
    plus,
    power,
    put,
    read,
    times,
    times_plus,
    together,
)
from unpose.nn.ops.cuda.scores import extras_of, line_of, score_of, slope_of, vector_of

_LOG2E = tl.constexpr(math.log2(math.e))

_HEADROOM = tl.constexpr(4.0)
"""Weights are summed as 2^-4 of themselves: sums of many values stay below what half precision can hold."""


@triton.jit(do_not_specialize=["batch", "least"])
def forward_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, vectors, bias, out, logsumexp, seed, batch, least, rest,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, R: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, SPACE: tl.constexpr, SHARES: tl.constexpr,
    HAS_BIAS: tl.constexpr, DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Outputs and denominators of ``SHARED`` output elements at ``LANES`` pixels: equation 16, a running maximum."""
    AREA: tl.constexpr = WY * WX
    PARTS: tl.constexpr = KEYS // SHARES
    ENTRIES: tl.constexpr = PARTS * AREA
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    WORDS: tl.constexpr = ((SPACE + PAIR - 1) // PAIR + 3) // 4 * 4
    REST: tl.constexpr = D - SPACE
    # Finite, so that a key that is left out gives exp(-inf), never inf - inf.
    LOWEST: tl.constexpr = -1e30 if PAIR == 1 else -6e4
    program = tl.program_id(0)
    first = program % (OUTPUTS // SHARED) * SHARED  # outputs of one tile run side by side: they read the same keys
    program = program // (OUTPUTS // SHARED)
    images = (batch + PAIR - 1) // PAIR
    tiles = (images * (H * W) + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = pixels(program % tiles, 0, images, batch, LANES, H, W, PAIR)
    own = head * OUTPUTS + first
    table += own * (ENTRIES * WORDS)
    bias += own * ENTRIES
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
    first_line, end_line = lines_seen(y, 0, PARTS * WY * CHUNKS, 1, PARTS * CHUNKS, H, WY)
    for line in range(first_line, end_line):
        part, begun, steps, places = line_of(
            line, queries, asking, table, bias, y, x, Q, H, W, WY, WX, D, SPACE, PARTS, HAS_BIAS, SHARED, PAIR, GROUP
        )
        for share in range(SHARES):
            element = part * SHARES + share
            extras, scores = full(pixel, SHARED, 0.0, PAIR), ()
            if REST > 0:
                extras = extras_of(
                    extras, queries, asking, vectors, own * KEYS + element, Q, D, KEYS, SPACE, SHARED, PAIR
                )
            for j in tl.static_range(GROUP):
                near = neighbour(keys + (element * K[3] + steps[j]), D, K[2], PAIR)
                for i in tl.static_range(SHARED):
                    score = begun[j * SHARED + i]
                    if REST > 0:
                        score = plus(score, extras[i], PAIR)
                    scores = scores + (score_of(score, queries, asking, near, i, Q, D, PAIR),)
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
                near = neighbour(values + (element * V[3] + steps[j]), DV, V[2], PAIR)
                before, total = total, ()
                for i in tl.static_range(SHARED):
                    weight = weights[i * GROUP + j]
                    if DROPS:
                        weight = times(weight, keep_of(marks[i], element * AREA + places[j], least, PAIR), PAIR)
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
def _blank(  # type: ignore[no-untyped-def]
    slopes, begin, end, pixel, SUMS: tl.constexpr, SLOT: tl.constexpr, SHARED: tl.constexpr, ELEMENT: tl.constexpr,
    PAIR: tl.constexpr,
):  # fmt: skip
    """Zeros for all sums of the lines from ``begin`` to ``end``."""
    nothing = full(pixel, 1, 0.0, PAIR)[0]
    for slot in range(begin * SUMS, end * SUMS):
        for i in tl.static_range(SHARED):
            put(slopes + (tl.cast(slot, tl.int64) * SLOT + i * ELEMENT), nothing, PAIR)


@triton.jit(do_not_specialize=["batch", "begun", "images", "begin", "end", "least"])
def queries_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, vectors, bias, grad_out, out, logsumexp, levels, slopes, carry, grad_query, seed, unit,
    batch, begun, images, begin, end, least, rest,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, R: tl.constexpr, GQ: tl.constexpr,
    SLOTS: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, SPACE: tl.constexpr, SHARES: tl.constexpr,
    HAS_BIAS: tl.constexpr, DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Gradients of ``SHARED`` outputs' queries at ``LANES`` pixels; and what the other kernels need.

    For the keys, their ``levels``, see :func:`slope_of`, and the hash that decides which weights are dropped: planes of
    (b / PAIR, n, outputs, h, w).

    For the table, the gradients of scores, ``slopes``, summed over the key elements that share an entry; and where
    there are vectors, those of each of these elements, summed over a line. All this for some images, from ``begun`` on,
    and some lines, from ``begin`` to ``end``: (images, heads, SLOTS, outputs, h, w), where slots are the lines' sums.
    What is summed up over lines that are not all is ``carry``-ed on.
    """
    AREA: tl.constexpr = WY * WX
    PARTS: tl.constexpr = KEYS // SHARES
    ENTRIES: tl.constexpr = PARTS * AREA
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    SIZE: tl.constexpr = (SPACE + PAIR - 1) // PAIR
    WORDS: tl.constexpr = (SIZE + 3) // 4 * 4
    REST: tl.constexpr = D - SPACE
    SUMS: tl.constexpr = GROUP + (SHARES if REST > 0 else 0)
    program = tl.program_id(0)
    carry += program * (SHARED * D * LANES) + tl.arange(0, LANES)
    first = program % (OUTPUTS // SHARED) * SHARED
    program = program // (OUTPUTS // SHARED)
    tiles = (images * (H * W) + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = pixels(program % tiles, begun, images, batch, LANES, H, W, PAIR)
    own = head * OUTPUTS + first
    table += own * (ENTRIES * WORDS)
    bias += own * ENTRIES
    asking = query + (image * Q[0] + head * Q[1] + first * Q[3] + pixel)
    wanting = grad_out + (image * G[0] + head * G[1] + first * G[3] + pixel)
    keys = key + (image * K[0] + head * K[1] + pixel)
    values = value + (image * V[0] + head * V[1] + pixel)
    slopes += (((image - begun) * HEADS + head) * (SLOTS * OUTPUTS) + first) * (H * W) + pixel
    queries = rows_of(asking, D, Q[2], Q[3], SHARED, PAIR)
    grads = rows_of(wanting, DV, G[2], G[3], SHARED, PAIR)
    factor = full(pixel, 1, _LOG2E / D**0.5, PAIR)[0]
    plane = tl.cast((batch + PAIR - 1) // PAIR, tl.int64) * (HEADS * OUTPUTS * H * W)
    marks, known, total = (), (), ()
    for i in tl.static_range(SHARED):
        number = ((image * HEADS + head) * OUTPUTS + first + i) * (H * W) + pixel
        marks = marks + (hashed(number + tl.load(seed)),)
        depths, inners = (), ()
        for p in tl.static_range(PAIR):
            there = image * PAIR + p
            # Of an image that is not there the denominator is large and all weights are zero. Lanes that have no pixel
            # do what the last pixel's does: they write the same to the same place.
            depth = tl.load(
                logsumexp + (((there * HEADS + head) * OUTPUTS + first + i) * (H * W) + pixel), there < batch, 2e4
            )
            depths = depths + (depth * -_LOG2E,)
            there = tl.minimum(there, batch - 1)  # another, where there is none: its gradient is zero
            result = out + (there * R[0] + head * R[1] + (first + i) * R[3] + pixel)
            inner = tl.full(pixel.shape, 0.0, tl.float32)
            for c in tl.static_range(DV):
                each = apart(channel(grads, wanting, i, c, DV, G[2], G[3], PAIR), PAIR)
                inner -= each[p] * load(result + c * R[2])
            inners = inners + (inner * rest,)
        held = (together(depths, PAIR),)
        if PAIR == 2:
            rounded = apart(held[0], PAIR)
            held = held + (together((depths[0] - rounded[0], depths[1] - rounded[1]), PAIR),)
        held = held + (together(inners, PAIR),)
        for c in tl.static_range(PAIR + 1):
            put(levels + (plane * c + number), held[c], PAIR)
        if DROPS:
            put(levels + (plane * (PAIR + 1) + number), marks[i].to(held[0].dtype, bitcast=True), PAIR)
        known = known + held
        for c in tl.static_range(D):
            total = total + (carried(carry + (i * D + c) * LANES, begin, PAIR),)
    first_line, end_line = lines_seen(y, begin, end, 1, PARTS * CHUNKS, H, WY)
    _blank(slopes, 0, first_line - begin, pixel, SUMS, OUTPUTS * H * W, SHARED, H * W, PAIR)
    _blank(slopes, end_line - begin, end - begin, pixel, SUMS, OUTPUTS * H * W, SHARED, H * W, PAIR)
    for line in range(first_line, end_line):
        part, starts, steps, places = line_of(
            line, queries, asking, table, bias, y, x, Q, H, W, WY, WX, D, SPACE, PARTS, HAS_BIAS, SHARED, PAIR, GROUP
        )
        line_slopes = slopes + (line - begin).to(tl.int64) * (SUMS * OUTPUTS * H * W)
        over_shares = full(pixel, GROUP * SHARED, 0.0, PAIR)
        for share in range(SHARES):
            element = part * SHARES + share
            over_line, extras = full(pixel, SHARED, 0.0, PAIR), full(pixel, SHARED, 0.0, PAIR)
            if REST > 0:
                extras = extras_of(
                    extras, queries, asking, vectors, own * KEYS + element, Q, D, KEYS, SPACE, SHARED, PAIR
                )
            so_far, over_shares = over_shares, ()
            for j in tl.static_range(GROUP):
                near = neighbour(keys + (element * K[3] + steps[j]), D, K[2], PAIR)
                seen = neighbour(values + (element * V[3] + steps[j]), DV, V[2], PAIR)
                before, in_line, total, over_line = total, over_line, (), ()
                for i in tl.static_range(SHARED):
                    score, product = starts[j * SHARED + i], full(pixel, 1, 0.0, PAIR)[0]
                    if REST > 0:
                        score = plus(score, extras[i], PAIR)
                    score = score_of(score, queries, asking, near, i, Q, D, PAIR)
                    for c in tl.static_range(DV):
                        wanted = channel(grads, wanting, i, c, DV, G[2], G[3], PAIR)
                        product = times_plus(wanted, seen[c], product, PAIR)
                    slope = slope_of(
                        score, product, factor, known, i * (PAIR + 1), marks[i], element * AREA + places[j], least,
                        DROPS, PAIR,
                    )[1]  # fmt: skip
                    over_shares = over_shares + (plus(so_far[j * SHARED + i], slope, PAIR),)
                    over_line = over_line + (plus(in_line[i], slope, PAIR),)
                    for c in tl.static_range(D):
                        total = total + (times_plus(slope, near[c], before[i * D + c], PAIR),)
            if REST > 0:
                before, total = total, ()
                for i in tl.static_range(SHARED):
                    put(line_slopes + ((GROUP + share) * OUTPUTS + i) * (H * W), over_line[i], PAIR)
                    codes = vector_of(vectors, (own + i) * KEYS + element, REST, PAIR)
                    for c in tl.static_range(D):
                        if c < SPACE:
                            total = total + (before[i * D + c],)
                        else:
                            code = code_of(codes, c - SPACE, PAIR)
                            total = total + (times_plus(over_line[i], code, before[i * D + c], PAIR),)
        for j in tl.static_range(GROUP):
            before, total = total, ()
            for i in tl.static_range(SHARED):
                found = over_shares[j * SHARED + i]
                put(line_slopes + (j * OUTPUTS + i) * (H * W), found, PAIR)
                codes = codes_of(table + (i * ENTRIES + part * AREA + places[j]) * WORDS, SIZE)
                for c in tl.static_range(D):
                    if c < SPACE:
                        total = total + (times_plus(found, code_of(codes, c, PAIR), before[i * D + c], PAIR),)
                    else:
                        total = total + (before[i * D + c],)
    if end == PARTS * WY * CHUNKS:
        size = tl.load(unit) / D**0.5
        for i in tl.static_range(SHARED):
            at = grad_query + (image * (PAIR * GQ[0]) + head * GQ[1] + (first + i) * GQ[3] + pixel)
            write(at, total, i * D, (size, size), live, D, GQ[0], GQ[2], PAIR)
    else:
        for c in tl.static_range(SHARED * D):
            put(carry + c * LANES, total[c], PAIR)


@triton.jit
def _levels(at, plane, DROPS: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the queries' kernel has stored: PAIR columns that are added to a score in bits, one to a product, a hash."""
    levels = ()
    for c in tl.static_range(PAIR + 1):
        levels = levels + (read(at + c * plane, PAIR),)
    if DROPS:
        levels = levels + (read(at + (PAIR + 1) * plane, PAIR).to(tl.uint32, bitcast=True),)
    return levels


@triton.jit(do_not_specialize=["batch", "least"])
def keys_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, vectors, bias, grad_out, levels, grad_key, grad_value, unit, batch, least,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, GK: tl.constexpr, GV: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, SPACE: tl.constexpr, SHARES: tl.constexpr,
    HAS_BIAS: tl.constexpr, DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Gradients of ``SHARED`` elements' keys and values at ``LANES`` pixels, from every query that sees them."""
    AREA: tl.constexpr = WY * WX
    ENTRIES: tl.constexpr = KEYS // SHARES * AREA
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    SIZE: tl.constexpr = (SPACE + PAIR - 1) // PAIR
    WORDS: tl.constexpr = (SIZE + 3) // 4 * 4
    REST: tl.constexpr = D - SPACE
    APART: tl.constexpr = AREA if SHARES == 1 else 0  # how far off the next element's entry is: none where all share it
    program = tl.program_id(0)
    first = program % (KEYS // SHARED) * SHARED
    program = program // (KEYS // SHARED)
    images = (batch + PAIR - 1) // PAIR
    tiles = (images * (H * W) + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = pixels(program % tiles, 0, images, batch, LANES, H, W, PAIR)
    table += (head * (OUTPUTS * ENTRIES) + first * APART) * WORDS
    bias += head * (OUTPUTS * ENTRIES) + first * APART
    vectors += (head * (OUTPUTS * KEYS) + first) * (((REST + PAIR - 1) // PAIR + 3) // 4 * 4)
    asking = query + (image * Q[0] + head * Q[1] + pixel)
    wanting = grad_out + (image * G[0] + head * G[1] + pixel)
    key_at = key + (image * K[0] + head * K[1] + first * K[3] + pixel)
    value_at = value + (image * V[0] + head * V[1] + first * V[3] + pixel)
    about = (image * HEADS + head) * (OUTPUTS * H * W) + pixel
    plane = tl.cast(images, tl.int64) * (HEADS * OUTPUTS * H * W)
    keys = rows_of(key_at, D, K[2], K[3], SHARED, PAIR)
    values = rows_of(value_at, DV, V[2], V[3], SHARED, PAIR)
    factor = full(pixel, 1, _LOG2E / D**0.5, PAIR)[0]
    total, total_value = full(pixel, SHARED * D, 0.0, PAIR), full(pixel, SHARED * DV, 0.0, PAIR)
    first_line, end_line = lines_seen(y, 0, WY * CHUNKS, -1, CHUNKS, H, WY)
    for output in range(OUTPUTS):
        coded = keys
        if REST > 0:
            coded = ()
            for i in tl.static_range(SHARED):
                vector = vector_of(vectors, output * KEYS + i, REST, PAIR)
                for c in tl.static_range(SPACE):
                    coded = coded + (keys[i * D + c],)
                for c in tl.static_range(REST):
                    coded = coded + (plus(keys[i * D + SPACE + c], code_of(vector, c, PAIR), PAIR),)
        for line in range(first_line, end_line):
            row, start = line // CHUNKS, line % CHUNKS * GROUP
            offset = row * WX + start
            line_table = table + (output * ENTRIES + offset) * WORDS
            for j in tl.static_range(GROUP):
                inside, step, shift = look(y, x, row, start, j, -1, H, W, WY, WX, GROUP)
                known = _levels(levels + (about + (output * (H * W) + step)), plane, DROPS, PAIR)
                asked = neighbour(asking + (output * Q[3] + step), D, Q[2], PAIR)
                grad = neighbour(wanting + (output * G[3] + step), DV, G[2], PAIR)
                before, before_value, total, total_value = total, total_value, (), ()
                for i in tl.static_range(SHARED):
                    if i == 0 or APART > 0:
                        codes, begun = codes_of(line_table + (i * APART + shift) * WORDS, SIZE), outset_of(inside, PAIR)
                        for c in tl.static_range(SPACE):
                            begun = times_plus(asked[c], code_of(codes, c, PAIR), begun, PAIR)
                    score, product = begun, full(pixel, 1, 0.0, PAIR)[0]
                    for c in tl.static_range(D):
                        score = times_plus(asked[c], channel(coded, key_at, i, c, D, K[2], K[3], PAIR), score, PAIR)
                    for c in tl.static_range(DV):
                        own = channel(values, value_at, i, c, DV, V[2], V[3], PAIR)
                        product = times_plus(grad[c], own, product, PAIR)
                    if HAS_BIAS:
                        added = tl.load(bias + (output * ENTRIES + i * APART + offset + shift))
                        score = plus(score, alike(added, PAIR), PAIR)
                    given, slope = slope_of(
                        score, product, factor, known, 0, known[PAIR + DROPS], (first + i) * AREA + offset + shift,
                        least, DROPS, PAIR,
                    )  # fmt: skip
                    for c in tl.static_range(DV):
                        total_value = total_value + (times_plus(given, grad[c], before_value[i * DV + c], PAIR),)
                    for c in tl.static_range(D):
                        total = total + (times_plus(slope, asked[c], before[i * D + c], PAIR),)
    size = tl.load(unit)
    for i in tl.static_range(SHARED):
        at = grad_key + (image * (PAIR * GK[0]) + head * GK[1] + (first + i) * GK[3] + pixel)
        write(at, total, i * D, (size / D**0.5, size / D**0.5), live, D, GK[0], GK[2], PAIR)
        at = grad_value + (image * (PAIR * GV[0]) + head * GV[1] + (first + i) * GV[3] + pixel)
        write(at, total_value, i * DV, (size, size), live, DV, GV[0], GV[2], PAIR)
