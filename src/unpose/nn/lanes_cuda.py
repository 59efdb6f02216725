"""The kernels of group attention on a GPU, for :mod:`unpose.nn.windowed_cuda`: a lane is a pixel.

Letters: ``D`` and ``DV`` channels of keys and values, an image of ``H`` by ``W``, a window of ``WY`` by ``WX``. An
entry of the position table is a key element and an offset; ``GROUP`` of them are scored at a time, each for the
``SHARED`` elements that a thread holds. ``Q``, ``K``, ``V``, ``G`` and ``R`` are the strides of queries, keys, values,
the result's gradient and the result, ``GQ``, ``GK`` and ``GV`` those of gradients: of images, heads, channels and
elements. Pixels lie side by side.
"""

# Triton reads no stars in tuples, and no annotations of them.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, var-annotated"

import math

import triton
import triton.language as tl

_HELD = tl.constexpr(16)
"""Channels up to which a pixel's queries stay in registers; wider heads read them again for each group of scores."""

_LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
def _pixels(tile, count, LANES: tl.constexpr, H: tl.constexpr, W: tl.constexpr):  # type: ignore[no-untyped-def]
    """Image, pixel number, row and column of each lane, and whether it is one; images follow one another."""
    lane = tile * LANES + tl.arange(0, LANES)
    live = lane < count
    lane = tl.minimum(lane, count - 1)
    pixel = lane % (H * W)
    return (lane // (H * W)).to(tl.int64), pixel, pixel // W, pixel % W, live


@triton.jit
def _inside(y, x, H: tl.constexpr, W: tl.constexpr):  # type: ignore[no-untyped-def]
    # Seen without its sign a negative number is large: one comparison for both ends.
    return (y.to(tl.uint32, bitcast=True) < H) & (x.to(tl.uint32, bitcast=True) < W)


@triton.jit
def _neighbours(  # type: ignore[no-untyped-def]
    start, pixel, y, x,
    H: tl.constexpr, W: tl.constexpr, KEYS: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The next (GROUP,) table entries, their elements, and (LANES, GROUP): neighbour, and whether there is one."""
    entry = start + tl.arange(0, GROUP)
    known = tl.minimum(entry, KEYS * WY * WX - 1)
    offset = known % (WY * WX)
    step_y, step_x = offset // WX - WY // 2, offset % WX - WX // 2
    inside = _inside(y[:, None] + step_y[None, :], x[:, None] + step_x[None, :], H, W)
    if KEYS * WY * WX % GROUP != 0:
        inside = inside & (entry == known)[None, :]
    # Where there is none a lane reads its own pixel, which it sees anyway: the address is safe, and so is the number.
    place = pixel[:, None] + tl.where(inside, (step_y * W + step_x)[None, :], 0)
    return known, known // (WY * WX), place, inside


@triton.jit
def _row(at, SIZE: tl.constexpr, STRIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The channels behind pointers, one tensor each: they stay in registers, and none is padded."""
    row = ()
    for c in tl.static_range(SIZE):
        row = row + (tl.load(at + c * STRIDE).to(tl.float32),)
    return row


@triton.jit
def _inner(one, other, SIZE: tl.constexpr, ONE: tl.constexpr, OTHER: tl.constexpr):  # type: ignore[no-untyped-def]
    total = tl.full(one.shape, 0.0, tl.float32)
    for c in range(SIZE):
        total += tl.load(one + c * ONE).to(tl.float32) * tl.load(other + c * OTHER).to(tl.float32)
    return total


@triton.jit
def _codes(at):  # type: ignore[no-untyped-def]
    """Two channels of the encoding, read as one number of twice the size: half as many loads."""
    pair = tl.load(at)
    return pair.to(tl.int32).to(tl.float32, bitcast=True), (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _kept(index, seed, least, scale):  # type: ignore[no-untyped-def]
    """1 / (1 - dropout) for the weights that are kept, 0 for the others: by a hash of their place."""
    x = index * 0x9E3779B9 + seed.to(tl.uint32)
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return tl.where(x >= least.to(tl.uint32), scale, 0.0)


@triton.jit
def _products(  # type: ignore[no-untyped-def]
    held, own, other, table, entry,
    SIZE: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, ENTRIES: tl.constexpr, SHARED: tl.constexpr,
    CODED: tl.constexpr,
):  # fmt: skip
    """Inner products of each of SHARED outputs with what is behind ``other``, plus the encoding if ``CODED``.

    ``own`` are SHARED pointers (LANES,), ``other`` is (LANES, GROUP), ``OWN`` and ``OTHER`` their channels' strides;
    ``held`` are the SHARED * SIZE channels behind ``own`` where these are few, else they are read again.
    """
    PAIRS: tl.constexpr = (SIZE + 1) // 2
    found = ()
    for _ in tl.static_range(SHARED):
        found = found + (tl.full(other.shape, 0.0, tl.float32),)
    if SIZE <= _HELD:
        for c in tl.static_range(0, SIZE, 2):
            channel = tl.load(other + c * OTHER).to(tl.float32)
            next_channel = channel
            if c + 1 < SIZE:
                next_channel = tl.load(other + (c + 1) * OTHER).to(tl.float32)
            summed = ()
            for i in tl.static_range(SHARED):
                seen, next_seen = channel, next_channel
                if CODED:
                    code, next_code = _codes(table + (i * PAIRS + c // 2) * ENTRIES + entry)
                    seen, next_seen = channel + code[None, :], next_channel + next_code[None, :]
                total = found[i] + held[i * SIZE + c][:, None] * seen
                if c + 1 < SIZE:
                    total += held[i * SIZE + c + 1][:, None] * next_seen
                summed = summed + (total,)
            found = summed
    else:
        codes = table.to(tl.pointer_type(tl.float32))
        for c in range(SIZE):
            channel = tl.load(other + c * OTHER).to(tl.float32)
            summed = ()
            for i in tl.static_range(SHARED):
                seen = channel
                if CODED:
                    seen = channel + tl.load(codes + ((i * PAIRS + c // 2) * ENTRIES + entry) * 2 + c % 2)[None, :]
                summed = summed + (found[i] + tl.load(own[i] + c * OWN).to(tl.float32)[:, None] * seen,)
            found = summed
    return found


@triton.jit(do_not_specialize=["count", "seed", "least"])
def forward_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, out, logsumexp, count, seed, least, scale,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, R: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Outputs and denominators of ``SHARED`` output elements at ``LANES`` pixels: equation 16, a running maximum."""
    ENTRIES: tl.constexpr = KEYS * WY * WX
    FACTOR: tl.constexpr = _LOG2E / D**0.5  # scores in bits: powers of two are what the machine computes
    program = tl.program_id(0)
    first = program % (OUTPUTS // SHARED) * SHARED  # outputs of one tile run side by side: they read the same keys
    program = program // (OUTPUTS // SHARED)
    tiles = (count + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = _pixels(program % tiles, count, LANES, H, W)
    number = ((image * HEADS + head) * OUTPUTS + first) * (H * W) + pixel
    table += (head * OUTPUTS + first) * (ENTRIES * ((D + 1) // 2))
    bias += (head * OUTPUTS + first) * ENTRIES
    keys = key + (image * K[0] + head * K[1])
    values = value + (image * V[0] + head * V[1])
    asking, queries, total, top, below = (), (), (), (), ()
    for i in tl.static_range(SHARED):
        asking = asking + (query + (image * Q[0] + head * Q[1] + (first + i) * Q[3] + pixel),)
        if D <= _HELD:
            queries = queries + _row(asking[i], D, Q[2])
        # Finite, so that a key that is left out gives exp(-inf), never inf - inf.
        top = top + (tl.full((LANES,), -1e30, tl.float32),)
        below = below + (tl.full((LANES,), 0.0, tl.float32),)
        for _ in tl.static_range(DV):
            total = total + (tl.full((LANES,), 0.0, tl.float32),)
    for start in range(0, ENTRIES, GROUP):
        entry, element, place, inside = _neighbours(start, pixel, y, x, H, W, KEYS, WY, WX, GROUP)
        seen = keys[:, None] + (element[None, :] * K[3] + place)
        scores = _products(queries, asking, seen, table, entry, D, Q[2], K[2], ENTRIES, SHARED, True)
        weights, shrinks, new_top, new_below = (), (), (), ()
        for i in tl.static_range(SHARED):
            score = tl.where(inside, scores[i], float("-inf"))
            if HAS_BIAS:
                score += tl.load(bias + i * ENTRIES + entry)[None, :]
            highest = tl.maximum(top[i], tl.max(score, 1))
            shrink = tl.exp2((top[i] - highest) * FACTOR)
            weight = tl.exp2(score * FACTOR - (highest * FACTOR)[:, None])
            new_top = new_top + (highest,)
            new_below = new_below + (below[i] * shrink + tl.sum(weight, 1),)
            shrinks = shrinks + (shrink,)
            if DROPS:
                mark = ((number + i * (H * W)) * ENTRIES).to(tl.uint32)
                weight *= _kept(mark[:, None] + entry[None, :].to(tl.uint32), seed, least, scale)
            weights = weights + (weight,)
        top, below, before, total = new_top, new_below, total, ()
        seen = values[:, None] + (element[None, :] * V[3] + place)
        for c in tl.static_range(DV):
            channel = tl.load(seen + c * V[2]).to(tl.float32)
            for i in tl.static_range(SHARED):
                part = tl.sum(weights[i] * channel, 1)
                total = total + (before[c * SHARED + i] * shrinks[i] + part,)
    for i in tl.static_range(SHARED):
        tl.store(logsumexp + number + i * (H * W), (top[i] * FACTOR + tl.log2(below[i])) / _LOG2E, live)
        at = out + (image * R[0] + head * R[1] + (first + i) * R[3] + pixel)
        for c in tl.static_range(DV):
            tl.store(at + c * R[2], (total[c * SHARED + i] / below[i]).to(out.dtype.element_ty), live)


@triton.jit(do_not_specialize=["count", "blocks", "splits", "tiles_each", "groups_each", "seed", "least"])
def queries_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, grad_out, out, logsumexp, delta, grad_query, sums,
    count, blocks, splits, tiles_each, groups_each, seed, least, scale,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, R: tl.constexpr, GQ: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr, GROUP: tl.constexpr,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr, WANT_QUERY: tl.constexpr, WANT_TABLE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of ``SHARED`` outputs' queries over a block of tiles, and the block's sums for the table."""
    ENTRIES: tl.constexpr = KEYS * WY * WX
    FACTOR: tl.constexpr = _LOG2E / D**0.5  # scores in bits: powers of two are what the machine computes
    GROUPS: tl.constexpr = (ENTRIES + GROUP - 1) // GROUP
    program = tl.program_id(0)
    first = program % (OUTPUTS // SHARED) * SHARED
    program = program // (OUTPUTS // SHARED)
    split = program % splits
    program = program // splits
    block = program % blocks
    head = (program // blocks).to(tl.int64)
    table += (head * OUTPUTS + first) * (ENTRIES * ((D + 1) // 2))
    bias += (head * OUTPUTS + first) * ENTRIES
    sums += ((block * HEADS + head) * OUTPUTS + first) * (COLUMNS * ENTRIES)
    wide = tl.arange(0, WIDE)
    for step in range(tiles_each):
        image, pixel, y, x, live = _pixels(block * tiles_each + step, count, LANES, H, W)
        number = ((image * HEADS + head) * OUTPUTS + first) * (H * W) + pixel
        keys = key + (image * K[0] + head * K[1])
        values = value + (image * V[0] + head * V[1])
        asking, queries, wanting, grads, given, tops, deltas, total = (), (), (), (), (), (), (), ()
        for i in tl.static_range(SHARED):
            asking = asking + (query + (image * Q[0] + head * Q[1] + (first + i) * Q[3] + pixel),)
            wanting = wanting + (grad_out + (image * G[0] + head * G[1] + (first + i) * G[3] + pixel),)
            if D <= _HELD:
                queries = queries + _row(asking[i], D, Q[2])
            if DV <= _HELD:
                grads = grads + _row(wanting[i], DV, G[2])
            result = out + (image * R[0] + head * R[1] + (first + i) * R[3] + pixel)
            dot = _inner(wanting[i], result, DV, G[2], R[2])
            deltas = deltas + (dot,)
            tops = tops + (tl.load(logsumexp + number + i * (H * W)) * _LOG2E,)
            if WANT_QUERY:
                tl.store(delta + number + i * (H * W), dot, live)
                for _ in tl.static_range(D):
                    total = total + (tl.full((LANES,), 0.0, tl.float32),)
            if WANT_TABLE:
                # A column of ones after the channels: its sums are the gradient of the bias.
                ones = tl.where(wide == D, 1.0, 0.0)[:, None]
                tile = tl.load(asking[i][None, :] + wide[:, None] * Q[2], (wide < D)[:, None], 0.0)
                given = given + (tile.to(tl.float32) + ones,)  # (WIDE, LANES)
        for group in range(split * groups_each, tl.minimum((split + 1) * groups_each, GROUPS)):
            entry, element, place, inside = _neighbours(group * GROUP, pixel, y, x, H, W, KEYS, WY, WX, GROUP)
            inside = inside & live[:, None]
            near = keys[:, None] + (element[None, :] * K[3] + place)
            scores = _products(queries, asking, near, table, entry, D, Q[2], K[2], ENTRIES, SHARED, True)
            seen = values[:, None] + (element[None, :] * V[3] + place)
            products = _products(grads, wanting, seen, table, entry, DV, G[2], V[2], ENTRIES, SHARED, False)
            slopes = ()
            for i in tl.static_range(SHARED):
                score = scores[i]
                if HAS_BIAS:
                    score += tl.load(bias + i * ENTRIES + entry)[None, :]
                weight = tl.where(inside, tl.exp2(score * FACTOR - tops[i][:, None]), 0.0)
                product = products[i]
                if DROPS:
                    mark = ((number + i * (H * W)) * ENTRIES).to(tl.uint32)
                    product *= _kept(mark[:, None] + entry[None, :].to(tl.uint32), seed, least, scale)
                slopes = slopes + (weight * (product - deltas[i][:, None]),)
            if WANT_QUERY:
                before, total = total, ()
                for c in tl.static_range(0, D, 2):
                    channel = tl.load(near + c * K[2]).to(tl.float32)
                    next_channel = channel
                    if c + 1 < D:
                        next_channel = tl.load(near + (c + 1) * K[2]).to(tl.float32)
                    added, next_added = (), ()
                    for i in tl.static_range(SHARED):
                        code, next_code = _codes(table + (i * ((D + 1) // 2) + c // 2) * ENTRIES + entry)
                        part = tl.sum(slopes[i] * (channel + code[None, :]), 1)
                        added = added + (before[c * SHARED + i] + part,)
                        if c + 1 < D:
                            part = tl.sum(slopes[i] * (next_channel + next_code[None, :]), 1)
                            next_added = next_added + (before[(c + 1) * SHARED + i] + part,)
                    total = total + added + next_added
            if WANT_TABLE:
                for i in tl.static_range(SHARED):
                    own = sums + i * (COLUMNS * ENTRIES) + wide[:, None] * ENTRIES + entry[None, :]
                    exists = (wide < COLUMNS)[:, None] & (group * GROUP + tl.arange(0, GROUP) < ENTRIES)[None, :]
                    so_far = tl.load(own, exists & (step > 0), 0.0)
                    so_far += tl.dot(given[i], slopes[i], input_precision=PRECISION)  # (WIDE, GROUP)
                    tl.store(own, so_far, exists)
        if WANT_TABLE:
            tl.debug_barrier()  # what this tile has stored, the next one reads
        if WANT_QUERY:
            for i in tl.static_range(SHARED):
                at = grad_query + (image * GQ[0] + head * GQ[1] + (first + i) * GQ[3] + pixel)
                for c in tl.static_range(D):
                    found = total[c * SHARED + i] / D**0.5
                    tl.store(at + c * GQ[2], found.to(grad_query.dtype.element_ty), live)


@triton.jit(do_not_specialize=["count", "seed", "least"])
def keys_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, bias, grad_out, logsumexp, delta, grad_key, grad_value, count, seed, least, scale,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, GK: tl.constexpr, GV: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr, LANES: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Gradients of ``SHARED`` elements' keys and values at ``LANES`` pixels, from every query that sees them."""
    ENTRIES: tl.constexpr = KEYS * WY * WX
    FACTOR: tl.constexpr = _LOG2E / D**0.5  # scores in bits: powers of two are what the machine computes
    PAIRS: tl.constexpr = (D + 1) // 2
    program = tl.program_id(0)
    first = program % (KEYS // SHARED) * SHARED
    program = program // (KEYS // SHARED)
    tiles = (count + LANES - 1) // LANES
    head = (program // tiles).to(tl.int64)
    image, pixel, y, x, live = _pixels(program % tiles, count, LANES, H, W)
    number = (image * HEADS + head) * (OUTPUTS * H * W)
    table += head * (OUTPUTS * PAIRS * ENTRIES)
    bias += head * (OUTPUTS * ENTRIES)
    queries = query + (image * Q[0] + head * Q[1])
    results = grad_out + (image * G[0] + head * G[1])
    keys, values, total, total_value = (), (), (), ()
    for i in tl.static_range(SHARED):
        keys = keys + _row(key + (image * K[0] + head * K[1] + (first + i) * K[3] + pixel), D, K[2])
        values = values + _row(value + (image * V[0] + head * V[1] + (first + i) * V[3] + pixel), DV, V[2])
        for _ in tl.static_range(D):
            total = total + (tl.full((LANES,), 0.0, tl.float32),)
        for _ in tl.static_range(DV):
            total_value = total_value + (tl.full((LANES,), 0.0, tl.float32),)
    for number_of in range(OUTPUTS * WY * WX):
        output, offset = number_of // (WY * WX), number_of % (WY * WX)
        step_y, step_x = offset // WX - WY // 2, offset % WX - WX // 2
        inside = _inside(y - step_y, x - step_x, H, W)
        place = tl.where(inside, pixel - (step_y * W + step_x), pixel)
        at = number + output * (H * W) + place
        top = tl.load(logsumexp + at) * _LOG2E
        below = tl.load(delta + at)
        row = _row(queries + (output * Q[3] + place), D, Q[2])
        grad = _row(results + (output * G[3] + place), DV, G[2])
        before, before_value, total, total_value = total, total_value, (), ()
        for i in tl.static_range(SHARED):
            entry = (first + i) * (WY * WX) + offset
            score = tl.full((LANES,), 0.0, tl.float32)
            if HAS_BIAS:
                score += tl.load(bias + output * ENTRIES + entry)
            for c in tl.static_range(0, D, 2):
                code, next_code = _codes(table + (output * PAIRS + c // 2) * ENTRIES + entry)
                score += row[c] * (keys[i * D + c] + code)
                if c + 1 < D:
                    score += row[c + 1] * (keys[i * D + c + 1] + next_code)
            weight = tl.where(inside, tl.exp2(score * FACTOR - top), 0.0)
            product = grad[0] * values[i * DV]
            for c in tl.static_range(1, DV):
                product += grad[c] * values[i * DV + c]
            given = weight
            if DROPS:
                kept = _kept((at * ENTRIES + entry).to(tl.uint32), seed, least, scale)
                product *= kept
                given = weight * kept
            slope = weight * (product - below)
            for c in tl.static_range(DV):
                total_value = total_value + (before_value[i * DV + c] + given * grad[c],)
            for c in tl.static_range(D):
                total = total + (before[i * D + c] + slope * row[c],)
    for i in tl.static_range(SHARED):
        at = grad_key + (image * GK[0] + head * GK[1] + (first + i) * GK[3] + pixel)
        for c in tl.static_range(D):
            tl.store(at + c * GK[2], (total[i * D + c] / D**0.5).to(grad_key.dtype.element_ty), live)
        at = grad_value + (image * GV[0] + head * GV[1] + (first + i) * GV[3] + pixel)
        for c in tl.static_range(DV):
            tl.store(at + c * GV[2], total_value[i * DV + c].to(grad_value.dtype.element_ty), live)
