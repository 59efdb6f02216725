"""The kernels of group attention on a GPU, for :mod:`unpose.nn.windowed_cuda`: a lane is a pixel.

Letters: ``D`` and ``DV`` channels of keys and values, an image of ``H`` by ``W``, a window of ``WY`` by ``WX``. An
entry of the position table is a key element and an offset. ``GROUP`` entries of one row of the window are scored at a
time, each for the ``SHARED`` elements that a lane holds. ``Q``, ``K``, ``V``, ``G`` and ``R`` are the strides of
queries, keys, values, the result's gradient and the result, ``GQ``, ``GK`` and ``GV`` those of gradients: of images,
heads, channels and elements. Pixels lie side by side.

All tensors are columns, (LANES,); what has several channels, entries or elements is a tuple of them. So everything
stays in the registers of its lane; only the gradient of the table is summed over lanes. With ``PAIR`` = 2 a column
holds two elements, see :mod:`unpose.nn.words_cuda`.
"""

# Triton reads no stars in tuples, no annotations of them, and drops the way not taken only below an else.
# ruff: noqa: RUF005, RET505
# mypy: disable-error-code="assignment, var-annotated, misc"

import math

import triton
import triton.language as tl

from unpose.nn.words_cuda import apart, plus, times, times_plus, together, twice, word

_HELD = tl.constexpr(16)
"""Channels up to which what belongs to a lane stays in registers; of wider heads it is read again for each entry."""

_LOG2E = tl.constexpr(math.log2(math.e))

_HEADROOM = tl.constexpr(4.0)
"""Weights are summed as 2^-4 of themselves: sums of many values stay below what half precision can hold."""


@triton.jit
def _look(  # type: ignore[no-untyped-def]
    y, x, row, column, SIGN: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """What a lane finds at a place of the window: whether a pixel, how far off in memory, and the place's number.

    Where there is none it finds its own pixel, which it sees anyway: address and number are safe. ``SIGN`` = -1 looks
    the other way, from a key to who sees it.
    """
    step_y, step_x = SIGN * (row - WY // 2), SIGN * (column - WX // 2)
    inside = _within(y + step_y, H) & _within(x + step_x, W)
    if WX % GROUP != 0:
        inside = inside & (column < WX)
        column = tl.minimum(column, WX - 1)
    return inside, tl.where(inside, step_y * W + step_x, 0), row * WX + column


@triton.jit
def _read(at, STRIDE: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """What is behind pointers, for a pair also what lies a stride further: one column."""
    if PAIR == 1:
        return tl.load(at).to(tl.float32)
    else:
        return word(tl.load(at), tl.load(at + STRIDE))


@triton.jit
def _rows(  # type: ignore[no-untyped-def]
    at, SIZE: tl.constexpr, CHANNEL: tl.constexpr, ELEMENT: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """All channels of SHARED elements behind pointers, channels of one element or pair side by side."""
    rows = ()
    if SIZE <= _HELD:
        for i in tl.static_range(0, SHARED, PAIR):
            for c in tl.static_range(SIZE):
                rows = rows + (_read(at + (i * ELEMENT + c * CHANNEL), ELEMENT, PAIR),)
    return rows


@triton.jit
def _channel(  # type: ignore[no-untyped-def]
    held, at, i: tl.constexpr, c: tl.constexpr, SIZE: tl.constexpr, CHANNEL: tl.constexpr, ELEMENT: tl.constexpr,
    PAIR: tl.constexpr,
):  # fmt: skip
    """Channel c of the i-th element or pair: out of ``held``, or out of memory where heads are wide."""
    if SIZE <= _HELD:
        return held[i * SIZE + c]
    else:
        return _read(at + (i * PAIR * ELEMENT + c * CHANNEL), ELEMENT, PAIR)


@triton.jit
def _neighbour(at, SIZE: tl.constexpr, CHANNEL: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """All channels of one element behind pointers, to go with elements or pairs."""
    channels = ()
    for c in tl.static_range(SIZE):
        if PAIR == 1:
            channels = channels + (tl.load(at + c * CHANNEL).to(tl.float32),)
        else:
            channels = channels + (twice(tl.load(at + c * CHANNEL)),)
    return channels


@triton.jit
def _codes(at, D: tl.constexpr):  # type: ignore[no-untyped-def]
    """An entry of the table channel by channel, and up to three channels of padding: four channels are one load."""
    codes = ()
    for c in tl.static_range(0, D, 4):
        even, odd = tl.split(tl.reshape(tl.load(at + c + tl.arange(0, 4)), (2, 2)))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        codes = codes + (first, second, third, fourth)
    return codes


@triton.jit
def _full(column, COUNT: tl.constexpr, number: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """COUNT columns as long as the given one; of words, all bits zero."""
    columns = ()
    for _ in tl.static_range(COUNT):
        if PAIR == 1:
            columns = columns + (tl.full(column.shape, number, tl.float32),)
        else:
            columns = columns + (tl.full(column.shape, 0, tl.int32),)
    return columns


@triton.jit
def _pixels(tile, count, LANES: tl.constexpr, H: tl.constexpr, W: tl.constexpr):  # type: ignore[no-untyped-def]
    """Image, pixel number, row and column of each lane, and whether it is one; images follow one another."""
    lane = tile * LANES + tl.arange(0, LANES)
    live = lane < count
    lane = tl.minimum(lane, count - 1)
    pixel = lane % (H * W)
    return (lane // (H * W)).to(tl.int64), pixel, pixel // W, pixel % W, live


@triton.jit
def _within(number, END: tl.constexpr):  # type: ignore[no-untyped-def]
    # Seen without its sign a negative number is large: one comparison for both ends.
    return number.to(tl.uint32, bitcast=True) < END


@triton.jit
def _marks(number, seed, ENTRIES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the hashes of a query's weights begin."""
    return (number * ENTRIES).to(tl.uint32) * 0x9E3779B9 + tl.load(seed).to(tl.uint32)


@triton.jit
def _hash(mark, entry):  # type: ignore[no-untyped-def]
    """32 bits for the weights of two output elements, an even one and the odd one after it: 16 for each."""
    x = mark + entry.to(tl.uint32) * 0x9E3779B9
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _kept(bits, output, least):  # type: ignore[no-untyped-def]
    return ((bits >> (output % 2 * 16)) & 0xFFFF) >= least


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
    WORDS: tl.constexpr = (D + 3) // 4 * 4
    SLOTS: tl.constexpr = SHARED // PAIR
    FACTOR: tl.constexpr = _LOG2E / D**0.5  # scores in bits: powers of two are what the machine computes
    program = tl.program_id(0)
    first = program % (OUTPUTS // SHARED) * SHARED  # outputs of one tile run side by side: they read the same keys
    program = program // (OUTPUTS // SHARED)
    tiles = (count + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = _pixels(program % tiles, count, LANES, H, W)
    asked = image * HEADS + head
    table += (head * OUTPUTS + first) // PAIR * (ENTRIES * WORDS)
    bias += (head * OUTPUTS + first) * ENTRIES
    asking = query + (image * Q[0] + head * Q[1] + first * Q[3] + pixel)
    keys = key + (image * K[0] + head * K[1] + pixel)
    values = value + (image * V[0] + head * V[1] + pixel)
    queries, marks = _rows(asking, D, Q[2], Q[3], SHARED, PAIR), ()
    if DROPS:
        for i in tl.static_range(SLOTS):
            number = (asked * ((OUTPUTS + 1) // 2) + (first + i * PAIR) // 2) * (H * W) + pixel
            marks = marks + (_marks(number, seed, ENTRIES),)
    # Finite, so that a key that is left out gives exp(-inf), never inf - inf.
    top, below = _full(pixel, SHARED, -1e30, 1), _full(pixel, SHARED, 0.0, 1)
    total = _full(pixel, SLOTS * DV, 0.0, PAIR)
    for line in range(KEYS * WY * CHUNKS):
        element, row, start = line // (WY * CHUNKS), line // CHUNKS % WY, line % CHUNKS * GROUP
        scores, places, entries = (), (), ()
        for j in tl.static_range(GROUP):
            inside, place, offset = _look(y, x, row, start + j, 1, H, W, WY, WX, GROUP)
            entry = element * (WY * WX) + offset
            places, entries = places + (place,), entries + (entry,)
            near = _neighbour(keys + (element * K[3] + place), D, K[2], PAIR)
            for i in tl.static_range(SLOTS):
                codes = _codes(table + (i * ENTRIES + entry) * WORDS, D)
                score = _full(pixel, 1, 0.0, PAIR)[0]
                for c in tl.static_range(D):
                    asked_for = _channel(queries, asking, i, c, D, Q[2], Q[3], PAIR)
                    score = times_plus(asked_for, plus(near[c], codes[c], PAIR), score, PAIR)
                found = apart(score, PAIR)
                for one in tl.static_range(PAIR):
                    score = found[one]
                    if HAS_BIAS:
                        score += tl.load(bias + (i * PAIR + one) * ENTRIES + entry)
                    scores = scores + (tl.where(inside, score, float("-inf")),)
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
            shrinks = shrinks + (shrink,)
        before, top, below, total = total, new_top, new_below, ()
        for i in tl.static_range(SLOTS):
            shrink = together(shrinks, i * PAIR, PAIR)
            for c in tl.static_range(DV):
                total = total + (times(before[i * DV + c], shrink, PAIR),)
        for j in tl.static_range(GROUP):
            near = _neighbour(values + (element * V[3] + places[j]), DV, V[2], PAIR)
            before, total = total, ()
            for i in tl.static_range(SLOTS):
                given = ()
                if DROPS:
                    bits = _hash(marks[i], entries[j])
                for one in tl.static_range(PAIR):
                    weight = weights[(i * PAIR + one) * GROUP + j]
                    if DROPS:
                        weight = tl.where(_kept(bits, first + i * PAIR + one, least.to(tl.uint32)), weight, 0.0)
                    given = given + (weight,)
                weight = together(given, 0, PAIR)
                for c in tl.static_range(DV):
                    total = total + (times_plus(weight, near[c], before[i * DV + c], PAIR),)
    for i in tl.static_range(SLOTS):
        for c in tl.static_range(DV):
            found = apart(total[i * DV + c], PAIR)
            for one in tl.static_range(PAIR):
                at = out + (image * R[0] + head * R[1] + (first + i * PAIR + one) * R[3] + pixel) + c * R[2]
                result = found[one] / (below[i * PAIR + one] * rest)
                tl.store(at, result.to(out.dtype.element_ty), live)
    for i in tl.static_range(SHARED):
        summed = (top[i] * FACTOR + tl.log2(below[i]) + _HEADROOM) / _LOG2E
        tl.store(logsumexp + ((asked * OUTPUTS + first + i) * (H * W) + pixel), summed, live)


@triton.jit
def _matrix(slopes, column, i: tl.constexpr, SHARED: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """A group's slopes of the i-th element side by side, padded to eight: (LANES, 8)."""
    columns = ()
    for j in tl.static_range(8):
        if j < GROUP:
            columns = columns + (slopes[j * SHARED + i],)
        else:
            columns = columns + (tl.full(column.shape, 0.0, slopes[0].dtype),)
    # Each join adds an axis behind the others.
    even = tl.join(tl.join(columns[0], columns[4]), tl.join(columns[2], columns[6]))
    odd = tl.join(tl.join(columns[1], columns[5]), tl.join(columns[3], columns[7]))
    return tl.reshape(tl.join(even, odd), (column.shape[0], 8))


@triton.jit(do_not_specialize=["count", "blocks", "splits", "tiles_each", "lines_each", "least"])
def queries_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, grad_out, out, logsumexp, delta, grad_query, sums, seed, unit,
    count, blocks, splits, tiles_each, lines_each, least, rest,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, R: tl.constexpr, GQ: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr, GROUP: tl.constexpr,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr, WANT_QUERY: tl.constexpr, WANT_TABLE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of ``SHARED`` outputs' queries over a block of tiles, and the block's sums for the table."""
    ENTRIES: tl.constexpr = KEYS * WY * WX
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    WORDS: tl.constexpr = (D + 3) // 4 * 4
    SLOTS: tl.constexpr = SHARED // PAIR
    FACTOR: tl.constexpr = _LOG2E / D**0.5
    kind: tl.constexpr = tl.float16 if PAIR == 2 else tl.float32
    program = tl.program_id(0)
    first = program % (OUTPUTS // SHARED) * SHARED
    program = program // (OUTPUTS // SHARED)
    split = program % splits
    program = program // splits
    block = program % blocks
    head = (program // blocks).to(tl.int64)
    table += (head * OUTPUTS + first) // PAIR * (ENTRIES * WORDS)
    bias += (head * OUTPUTS + first) * ENTRIES
    sums += ((block * HEADS + head) * OUTPUTS + first) * (COLUMNS * ENTRIES)
    wide, eight = tl.arange(0, WIDE), tl.arange(0, 8)
    for step in range(tiles_each):
        image, pixel, y, x, live = _pixels(block * tiles_each + step, count, LANES, H, W)
        asked = image * HEADS + head
        asking = query + (image * Q[0] + head * Q[1] + first * Q[3] + pixel)
        wanting = grad_out + (image * G[0] + head * G[1] + first * G[3] + pixel)
        keys = key + (image * K[0] + head * K[1] + pixel)
        values = value + (image * V[0] + head * V[1] + pixel)
        queries = _rows(asking, D, Q[2], Q[3], SHARED, PAIR)
        grads = _rows(wanting, DV, G[2], G[3], SHARED, PAIR)
        given, marks, tops, deltas = (), (), (), ()
        for i in tl.static_range(SHARED):
            number = (asked * OUTPUTS + first + i) * (H * W) + pixel
            tops = tops + (tl.load(logsumexp + number) * _LOG2E,)
            result = out + (image * R[0] + head * R[1] + (first + i) * R[3] + pixel)
            inner = tl.full(pixel.shape, 0.0, tl.float32)
            for c in tl.static_range(DV):
                wanted = tl.load(wanting + (i * G[3] + c * G[2])).to(tl.float32)
                inner += wanted * tl.load(result + c * R[2]).to(tl.float32)
            deltas = deltas + (inner * rest,)
            if WANT_QUERY:
                tl.store(delta + number, deltas[i], live)
            if WANT_TABLE:
                # A column of ones after the channels: its sums are the gradient of the bias.
                ones = tl.where(wide == D, 1.0, 0.0)[:, None].to(kind)
                tile = tl.load(asking[None, :] + (i * Q[3] + wide[:, None] * Q[2]), (wide < D)[:, None], 0.0)
                given = given + (tile.to(kind) + ones,)  # (WIDE, LANES)
        if DROPS:
            for i in tl.static_range(SLOTS):
                number = (asked * ((OUTPUTS + 1) // 2) + (first + i * PAIR) // 2) * (H * W) + pixel
                marks = marks + (_marks(number, seed, ENTRIES),)
        total = _full(pixel, SLOTS * D, 0.0, PAIR)
        for line in range(split * lines_each, tl.minimum((split + 1) * lines_each, KEYS * WY * CHUNKS)):
            element, row, start = line // (WY * CHUNKS), line // CHUNKS % WY, line % CHUNKS * GROUP
            slopes = ()
            for j in tl.static_range(GROUP):
                inside, place, offset = _look(y, x, row, start + j, 1, H, W, WY, WX, GROUP)
                entry = element * (WY * WX) + offset
                inside = inside & live
                near = _neighbour(keys + (element * K[3] + place), D, K[2], PAIR)
                seen = _neighbour(values + (element * V[3] + place), DV, V[2], PAIR)
                before, total = total, ()
                for i in tl.static_range(SLOTS):
                    codes = _codes(table + (i * ENTRIES + entry) * WORDS, D)
                    score, product, coded = _full(pixel, 1, 0.0, PAIR)[0], _full(pixel, 1, 0.0, PAIR)[0], ()
                    for c in tl.static_range(D):
                        coded = coded + (plus(near[c], codes[c], PAIR),)
                        asked_for = _channel(queries, asking, i, c, D, Q[2], Q[3], PAIR)
                        score = times_plus(asked_for, coded[c], score, PAIR)
                    for c in tl.static_range(DV):
                        grad = _channel(grads, wanting, i, c, DV, G[2], G[3], PAIR)
                        product = times_plus(grad, seen[c], product, PAIR)
                    scores, products, own = apart(score, PAIR), apart(product, PAIR), ()
                    if DROPS:
                        bits = _hash(marks[i], entry)
                    for one in tl.static_range(PAIR):
                        score, product = scores[one], products[one]
                        if HAS_BIAS:
                            score += tl.load(bias + (i * PAIR + one) * ENTRIES + entry)
                        weight = tl.where(inside, tl.exp2(score * FACTOR - tops[i * PAIR + one]), 0.0)
                        if DROPS:
                            kept = _kept(bits, first + i * PAIR + one, least.to(tl.uint32))
                            product = tl.where(kept, product, 0.0)
                        own = own + (weight * (product - deltas[i * PAIR + one]),)
                        slopes = slopes + (own[one].to(kind),)
                    if WANT_QUERY:
                        slope = together(own, 0, PAIR)
                        for c in tl.static_range(D):
                            total = total + (times_plus(slope, coded[c], before[i * D + c], PAIR),)
                if not WANT_QUERY:
                    total = before
            if WANT_TABLE:
                exists = (wide < COLUMNS)[:, None] & (eight < tl.minimum(GROUP, WX - start))[None, :]
                for i in tl.static_range(SHARED):
                    at = (
                        sums
                        + (i * COLUMNS + wide[:, None]) * ENTRIES
                        + ((element * WY + row) * WX + start + eight[None, :])
                    )
                    so_far = tl.load(at, exists & (step > 0), 0.0)
                    matrix = _matrix(slopes, pixel, i, SHARED, GROUP)
                    so_far += tl.dot(given[i], matrix, input_precision=PRECISION)  # (WIDE, 8)
                    tl.store(at, so_far, exists)
        if WANT_TABLE:
            tl.debug_barrier()  # what this tile has stored, the next one reads
        if WANT_QUERY:
            size = tl.load(unit) / D**0.5
            for i in tl.static_range(SLOTS):
                for c in tl.static_range(D):
                    found = apart(total[i * D + c], PAIR)
                    for one in tl.static_range(PAIR):
                        at = grad_query + (image * GQ[0] + head * GQ[1] + (first + i * PAIR + one) * GQ[3] + pixel)
                        tl.store(at + c * GQ[2], (found[one] * size).to(grad_query.dtype.element_ty), live)


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
    WORDS: tl.constexpr = (D + 3) // 4 * 4
    SLOTS: tl.constexpr = SHARED // PAIR
    FACTOR: tl.constexpr = _LOG2E / D**0.5
    program = tl.program_id(0)
    first = program % (KEYS // SHARED) * SHARED
    program = program // (KEYS // SHARED)
    tiles = (count + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = _pixels(program % tiles, count, LANES, H, W)
    asked = image * HEADS + head
    table += (head * (OUTPUTS * KEYS) + first) // PAIR * (AREA * WORDS)
    bias += head * (OUTPUTS * KEYS * AREA) + first * AREA
    asking = query + (image * Q[0] + head * Q[1] + pixel)
    wanting = grad_out + (image * G[0] + head * G[1] + pixel)
    key_at = key + (image * K[0] + head * K[1] + first * K[3] + pixel)
    value_at = value + (image * V[0] + head * V[1] + first * V[3] + pixel)
    about = asked * (OUTPUTS * H * W) + pixel
    hashed = asked * ((OUTPUTS + 1) // 2 * H * W) + pixel
    keys = _rows(key_at, D, K[2], K[3], SHARED, PAIR)
    values = _rows(value_at, DV, V[2], V[3], SHARED, PAIR)
    total, total_value = _full(pixel, SLOTS * D, 0.0, PAIR), _full(pixel, SLOTS * DV, 0.0, PAIR)
    for line in range(OUTPUTS * WY * CHUNKS):
        output, line_y, start = line // (WY * CHUNKS), line // CHUNKS % WY, line % CHUNKS * GROUP
        for j in tl.static_range(GROUP):
            inside, place, offset = _look(y, x, line_y, start + j, -1, H, W, WY, WX, GROUP)
            highest = tl.load(logsumexp + about + (output * (H * W) + place)) * _LOG2E
            below = tl.load(delta + about + (output * (H * W) + place))
            row = _neighbour(asking + (output * Q[3] + place), D, Q[2], PAIR)
            grad = _neighbour(wanting + (output * G[3] + place), DV, G[2], PAIR)
            if DROPS:
                mark = _marks(hashed + (output // 2 * (H * W) + place), seed, KEYS * AREA)
            before, before_value, total, total_value = total, total_value, (), ()
            for i in tl.static_range(SLOTS):
                codes = _codes(table + (output * (KEYS // PAIR * AREA) + i * AREA + offset) * WORDS, D)
                score, product = _full(pixel, 1, 0.0, PAIR)[0], _full(pixel, 1, 0.0, PAIR)[0]
                for c in tl.static_range(D):
                    own = _channel(keys, key_at, i, c, D, K[2], K[3], PAIR)
                    score = times_plus(row[c], plus(own, codes[c], PAIR), score, PAIR)
                for c in tl.static_range(DV):
                    own = _channel(values, value_at, i, c, DV, V[2], V[3], PAIR)
                    product = times_plus(grad[c], own, product, PAIR)
                scores, products, given, slopes = apart(score, PAIR), apart(product, PAIR), (), ()
                for one in tl.static_range(PAIR):
                    score, product = scores[one], products[one]
                    if HAS_BIAS:
                        score += tl.load(bias + output * (KEYS * AREA) + (i * PAIR + one) * AREA + offset)
                    weight = tl.where(inside, tl.exp2(score * FACTOR - highest), 0.0)
                    kept_weight = weight
                    if DROPS:
                        bits = _hash(mark, (first + i * PAIR + one) * AREA + offset)
                        kept = _kept(bits, output, least.to(tl.uint32))
                        product = tl.where(kept, product, 0.0)
                        kept_weight = tl.where(kept, weight, 0.0)
                    given = given + (kept_weight,)
                    slopes = slopes + (weight * (product - below),)
                weight, slope = together(given, 0, PAIR), together(slopes, 0, PAIR)
                for c in tl.static_range(DV):
                    total_value = total_value + (times_plus(weight, grad[c], before_value[i * DV + c], PAIR),)
                for c in tl.static_range(D):
                    total = total + (times_plus(slope, row[c], before[i * D + c], PAIR),)
    size = tl.load(unit)
    for i in tl.static_range(SLOTS):
        for c in tl.static_range(D):
            found = apart(total[i * D + c], PAIR)
            for one in tl.static_range(PAIR):
                at = grad_key + (image * GK[0] + head * GK[1] + (first + i * PAIR + one) * GK[3] + pixel)
                tl.store(at + c * GK[2], (found[one] * (size / D**0.5)).to(grad_key.dtype.element_ty), live)
        for c in tl.static_range(DV):
            found = apart(total_value[i * DV + c], PAIR)
            for one in tl.static_range(PAIR):
                at = grad_value + (image * GV[0] + head * GV[1] + (first + i * PAIR + one) * GV[3] + pixel)
                tl.store(at + c * GV[2], (found[one] * size).to(grad_value.dtype.element_ty), live)
