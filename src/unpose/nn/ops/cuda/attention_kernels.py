"""The Triton kernels of group attention, launched by :mod:`unpose.nn.ops.cuda.attention`: one thread is one pixel.

Each program is one warp. It handles ``BLOCK_PIXELS`` pixels, one per thread, of one head and of ``ELEMENTS`` group
elements, whose channels it keeps in registers; it loops over the window and over the other side's elements. All tensors
in a kernel are blocks of shape (BLOCK_PIXELS,); several channels, entries or elements are tuples of blocks. A block
holds the numbers of ``PACK`` images at the same pixel: one in float32, or two packed in half precision
(:mod:`unpose.nn.ops.cuda.packed`), which one instruction computes together.

Names of sizes:

- ``D`` and ``DV``: channels of keys and values; ``H`` x ``W``: the image; ``WY`` x ``WX``: the window.
- ``KEYS_PER_ENTRY``: key elements that share an entry of the position table, 1 or all of ``KEYS``. An entry has the
  first ``POSITION_CHANNELS`` channels of the encoding; the others, if any, are in ``element_table``, one vector for
  each pair of elements.
- ``SEGMENT_SIZE``: entries of one row of the window, a segment, whose scores are computed together.
- ``Q, K, V, G, R``: strides of query, key, value, gradient of the result and result, and ``GQ, GK, GV`` of the
  gradients of the first three, each for images, heads, channels and elements. The stride of pixels is 1.

The scores themselves are computed in :mod:`unpose.nn.ops.cuda.scores`. Nothing is added atomically: every program owns
what it writes, so results do not depend on the order in which programs run.
"""

# Triton does not parse starred tuples or annotations of them.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, var-annotated, misc"

import math

import triton
import triton.language as tl

from unpose.nn.ops.cuda.neighbourhood import (
    element_channel,
    full,
    hash32,
    load_channels,
    load_elements,
    masked_zero,
    pixel_block,
    store_channels,
    visible_segments,
    window_offset,
)
from unpose.nn.ops.cuda.packed import (
    add,
    broadcast,
    dropout_mask,
    entry_channel,
    exp2,
    fma,
    load_entry,
    load_float,
    load_packed,
    load_partial_sum,
    maximum,
    multiply,
    pack,
    store_packed,
    subtract,
    unpack,
)
from unpose.nn.ops.cuda.scores import (
    add_content_score,
    element_scores,
    load_element_vector,
    saturate,
    segment_scores,
    weight_and_score_gradient,
)

_LOG2E = tl.constexpr(math.log2(math.e))

_HEADROOM = tl.constexpr(4.0)
"""Weights are summed multiplied by 2^-4, so that sums of many values stay in the range of half precision."""


@triton.jit(do_not_specialize=["batch", "threshold"])
def forward_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, element_table, bias, out, logsumexp, seed, batch, threshold, keep_probability,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, R: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, POSITION_CHANNELS: tl.constexpr,
    KEYS_PER_ENTRY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK_PIXELS: tl.constexpr,
    ELEMENTS: tl.constexpr, PACK: tl.constexpr, SEGMENT_SIZE: tl.constexpr,
):  # fmt: skip
    """Compute equation 16 and its logsumexp for ELEMENTS outputs at BLOCK_PIXELS pixels, with a running maximum."""
    WINDOW: tl.constexpr = WY * WX
    TABLE_KEYS: tl.constexpr = KEYS // KEYS_PER_ENTRY
    ENTRIES: tl.constexpr = TABLE_KEYS * WINDOW
    SEGMENTS: tl.constexpr = (WX + SEGMENT_SIZE - 1) // SEGMENT_SIZE
    ENTRY_STRIDE: tl.constexpr = ((POSITION_CHANNELS + PACK - 1) // PACK + 3) // 4 * 4
    ELEMENT_CHANNELS: tl.constexpr = D - POSITION_CHANNELS
    # Finite, so that a masked key gives exp(-inf) and never inf - inf.
    LOWEST: tl.constexpr = -1e30 if PACK == 1 else -6e4
    program = tl.program_id(0)
    # Programs for the outputs of the same pixels are neighbours: they read the same keys.
    first_element = program % (OUTPUTS // ELEMENTS) * ELEMENTS
    program = program // (OUTPUTS // ELEMENTS)
    images = (batch + PACK - 1) // PACK
    n_blocks = (images * (H * W) + BLOCK_PIXELS - 1) // BLOCK_PIXELS
    head = (program // n_blocks).to(tl.int64)
    image, pixel, y, x, exists = pixel_block(program % n_blocks, 0, images, batch, BLOCK_PIXELS, H, W, PACK)
    table_row = head * OUTPUTS + first_element
    table += table_row * (ENTRIES * ENTRY_STRIDE)
    bias += table_row * ENTRIES
    query_pointers = query + (image * Q[0] + head * Q[1] + first_element * Q[3] + pixel)
    key_pointers = key + (image * K[0] + head * K[1] + pixel)
    value_pointers = value + (image * V[0] + head * V[1] + pixel)
    queries, query_hashes = load_elements(query_pointers, D, Q[2], Q[3], ELEMENTS, PACK), ()
    if HAS_DROPOUT:
        for i in tl.static_range(ELEMENTS):
            query_index = ((image * HEADS + head) * OUTPUTS + first_element + i) * (H * W) + pixel
            query_hashes = query_hashes + (hash32(query_index + tl.load(seed)),)
    # Scores are logarithms to base 2: the GPU computes powers of two.
    score_scale, headroom = full(pixel, 1, _LOG2E / D**0.5, PACK)[0], full(pixel, 1, -_HEADROOM, PACK)[0]
    running_max, denominators = full(pixel, ELEMENTS, LOWEST, PACK), full(pixel, ELEMENTS * PACK, 0.0, 1)
    accumulator = full(pixel, ELEMENTS * DV, 0.0, PACK)
    first_segment, end_segment = visible_segments(y, 0, TABLE_KEYS * WY * SEGMENTS, 1, TABLE_KEYS * SEGMENTS, H, WY)
    for segment in range(first_segment, end_segment):
        table_key, partial_scores, key_offsets, window_entries = segment_scores(
            segment, queries, query_pointers, table, bias, y, x, Q, H, W, WY, WX, D, POSITION_CHANNELS, TABLE_KEYS,
            HAS_BIAS, ELEMENTS, PACK, SEGMENT_SIZE,
        )  # fmt: skip
        for shared_key in range(KEYS_PER_ENTRY):
            element = table_key * KEYS_PER_ENTRY + shared_key
            element_terms, scores = full(pixel, ELEMENTS, 0.0, PACK), ()
            if ELEMENT_CHANNELS > 0:
                element_terms = element_scores(
                    element_terms, queries, query_pointers, element_table, table_row * KEYS + element, Q, D, KEYS,
                    POSITION_CHANNELS, ELEMENTS, PACK,
                )  # fmt: skip
            for j in tl.static_range(SEGMENT_SIZE):
                key_channels = load_channels(key_pointers + (element * K[3] + key_offsets[j]), D, K[2], PACK)
                for i in tl.static_range(ELEMENTS):
                    score = partial_scores[j * ELEMENTS + i]
                    if ELEMENT_CHANNELS > 0:
                        score = add(score, element_terms[i], PACK)
                    score = add_content_score(score, queries, query_pointers, key_channels, i, Q, D, PACK)
                    scores = scores + (saturate(score, PACK),)
            weights, rescales, new_max, new_denominators = (), (), (), ()
            for i in tl.static_range(ELEMENTS):
                highest = running_max[i]
                for j in tl.static_range(SEGMENT_SIZE):
                    highest = maximum(highest, scores[j * ELEMENTS + i], PACK)
                rescale = exp2(multiply(subtract(running_max[i], highest, PACK), score_scale, PACK), PACK)
                weight_sum = full(pixel, 1, 0.0, PACK)[0]
                for j in tl.static_range(SEGMENT_SIZE):
                    difference = subtract(scores[j * ELEMENTS + i], highest, PACK)
                    weight = exp2(fma(difference, score_scale, headroom, PACK), PACK)
                    weight_sum = add(weight_sum, weight, PACK)
                    weights = weights + (weight,)
                rescale_each, weight_sum_each = unpack(rescale, PACK), unpack(weight_sum, PACK)
                for p in tl.static_range(PACK):
                    denominator = denominators[i * PACK + p] * rescale_each[p] + weight_sum_each[p]
                    new_denominators = new_denominators + (denominator,)
                new_max = new_max + (highest,)
                rescales = rescales + (rescale,)
            previous, running_max, denominators, accumulator = accumulator, new_max, new_denominators, ()
            for i in tl.static_range(ELEMENTS):
                for c in tl.static_range(DV):
                    accumulator = accumulator + (multiply(previous[i * DV + c], rescales[i], PACK),)
            for j in tl.static_range(SEGMENT_SIZE):
                value_channels = load_channels(value_pointers + (element * V[3] + key_offsets[j]), DV, V[2], PACK)
                previous, accumulator = accumulator, ()
                for i in tl.static_range(ELEMENTS):
                    weight = weights[i * SEGMENT_SIZE + j]
                    if HAS_DROPOUT:
                        entry = element * WINDOW + window_entries[j]
                        weight = multiply(weight, dropout_mask(query_hashes[i], entry, threshold, PACK), PACK)
                    for c in tl.static_range(DV):
                        accumulator = accumulator + (fma(weight, value_channels[c], previous[i * DV + c], PACK),)
    rounded_scale = unpack(score_scale, PACK)[0]  # as the scores were multiplied by it
    for i in tl.static_range(ELEMENTS):
        scales, maxima = (), unpack(running_max[i], PACK)
        for p in tl.static_range(PACK):
            # Zero only if every score is below the range of half precision; then the result is zero.
            denominator = tl.maximum(denominators[i * PACK + p], 1e-30)
            scales = scales + (1 / (denominator * keep_probability),)
            natural = (maxima[p] * rounded_scale + tl.log2(denominator) + _HEADROOM) / _LOG2E
            query_index = (((image * PACK + p) * HEADS + head) * OUTPUTS + first_element + i) * (H * W) + pixel
            tl.store(logsumexp + query_index, natural, exists[p])
        pointers = out + (image * (PACK * R[0]) + head * R[1] + (first_element + i) * R[3] + pixel)
        store_channels(pointers, accumulator, i * DV, scales, exists, DV, R[0], R[2], PACK)


@triton.jit
def _store_zeros(  # type: ignore[no-untyped-def]
    score_gradients, begin, end, pixel, SLOTS_PER_SEGMENT: tl.constexpr, SLOT_STRIDE: tl.constexpr,
    ELEMENTS: tl.constexpr, ELEMENT_STRIDE: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Store zeros in all slots of the segments from ``begin`` to ``end``."""
    zero = full(pixel, 1, 0.0, PACK)[0]
    for slot in range(begin * SLOTS_PER_SEGMENT, end * SLOTS_PER_SEGMENT):
        for i in tl.static_range(ELEMENTS):
            store_packed(score_gradients + (tl.cast(slot, tl.int64) * SLOT_STRIDE + i * ELEMENT_STRIDE), zero, PACK)


@triton.jit(do_not_specialize=["batch", "first_image", "images", "begin", "end", "threshold"])
def query_gradient_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, element_table, bias, grad_out, out, logsumexp, statistics, score_gradients, partial_sums,
    grad_query, seed, gradient_scale, batch, first_image, images, begin, end, threshold, keep_probability,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, R: tl.constexpr, GQ: tl.constexpr,
    SLOTS: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, POSITION_CHANNELS: tl.constexpr,
    KEYS_PER_ENTRY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK_PIXELS: tl.constexpr,
    ELEMENTS: tl.constexpr, PACK: tl.constexpr, SEGMENT_SIZE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of ELEMENTS outputs' queries at BLOCK_PIXELS pixels, and what the other kernels need.

    For the gradients of keys and values it stores ``statistics``, (PACK + 1 + HAS_DROPOUT, b / PACK, n, outputs, h, w):
    those of :func:`weight_and_score_gradient` and the hash that decides which weights are dropped.

    For the gradient of the table it stores ``score_gradients``, (images, heads, SLOTS, outputs, h, w). A segment has
    one slot for each entry, summed over the key elements that share it, and if there is an ``element_table``, one for
    each of these elements, summed over the segment.

    One launch handles ``images`` packed images from ``first_image`` on and the segments from ``begin`` to ``end``. If
    these are not all segments, the gradients summed so far are passed to the next launch in ``partial_sums``.
    """
    WINDOW: tl.constexpr = WY * WX
    TABLE_KEYS: tl.constexpr = KEYS // KEYS_PER_ENTRY
    ENTRIES: tl.constexpr = TABLE_KEYS * WINDOW
    SEGMENTS: tl.constexpr = (WX + SEGMENT_SIZE - 1) // SEGMENT_SIZE
    ENTRY_SIZE: tl.constexpr = (POSITION_CHANNELS + PACK - 1) // PACK
    ENTRY_STRIDE: tl.constexpr = (ENTRY_SIZE + 3) // 4 * 4
    ELEMENT_CHANNELS: tl.constexpr = D - POSITION_CHANNELS
    SLOTS_PER_SEGMENT: tl.constexpr = SEGMENT_SIZE + (KEYS_PER_ENTRY if ELEMENT_CHANNELS > 0 else 0)
    program = tl.program_id(0)
    partial_sums += program * (ELEMENTS * D * BLOCK_PIXELS) + tl.arange(0, BLOCK_PIXELS)
    first_element = program % (OUTPUTS // ELEMENTS) * ELEMENTS
    program = program // (OUTPUTS // ELEMENTS)
    n_blocks = (images * (H * W) + BLOCK_PIXELS - 1) // BLOCK_PIXELS
    head = (program // n_blocks).to(tl.int64)
    image, pixel, y, x, exists = pixel_block(program % n_blocks, first_image, images, batch, BLOCK_PIXELS, H, W, PACK)
    table_row = head * OUTPUTS + first_element
    table += table_row * (ENTRIES * ENTRY_STRIDE)
    bias += table_row * ENTRIES
    query_pointers = query + (image * Q[0] + head * Q[1] + first_element * Q[3] + pixel)
    grad_out_pointers = grad_out + (image * G[0] + head * G[1] + first_element * G[3] + pixel)
    key_pointers = key + (image * K[0] + head * K[1] + pixel)
    value_pointers = value + (image * V[0] + head * V[1] + pixel)
    score_gradients += (((image - first_image) * HEADS + head) * (SLOTS * OUTPUTS) + first_element) * (H * W) + pixel
    queries = load_elements(query_pointers, D, Q[2], Q[3], ELEMENTS, PACK)
    grad_outs = load_elements(grad_out_pointers, DV, G[2], G[3], ELEMENTS, PACK)
    score_scale = full(pixel, 1, _LOG2E / D**0.5, PACK)[0]
    statistic_stride = tl.cast((batch + PACK - 1) // PACK, tl.int64) * (HEADS * OUTPUTS * H * W)
    query_hashes, query_statistics, accumulator = (), (), ()
    for i in tl.static_range(ELEMENTS):
        query_index = ((image * HEADS + head) * OUTPUTS + first_element + i) * (H * W) + pixel
        query_hashes = query_hashes + (hash32(query_index + tl.load(seed)),)
        minus_logsumexps, minus_deltas = (), ()
        for p in tl.static_range(PACK):
            image_index = image * PACK + p
            # An image that does not exist gets a large denominator, so all its weights are zero. Threads without a
            # pixel compute the last pixel again and store the same numbers at the same address.
            index = ((image_index * HEADS + head) * OUTPUTS + first_element + i) * (H * W) + pixel
            logsumexp_value = tl.load(logsumexp + index, image_index < batch, 2e4)
            minus_logsumexps = minus_logsumexps + (logsumexp_value * -_LOG2E,)
            image_index = tl.minimum(image_index, batch - 1)  # where there is none, another: its gradient is zero
            out_pointers = out + (image_index * R[0] + head * R[1] + (first_element + i) * R[3] + pixel)
            minus_delta = tl.full(pixel.shape, 0.0, tl.float32)
            for c in tl.static_range(DV):
                grad_channels = unpack(element_channel(grad_outs, grad_out_pointers, i, c, DV, G[2], G[3], PACK), PACK)
                minus_delta -= grad_channels[p] * load_float(out_pointers + c * R[2])
            minus_deltas = minus_deltas + (minus_delta * keep_probability,)
        packed_statistics = (pack(minus_logsumexps, PACK),)
        if PACK == 2:
            rounded = unpack(packed_statistics[0], PACK)
            remainders = minus_logsumexps[0] - rounded[0], minus_logsumexps[1] - rounded[1]
            packed_statistics = packed_statistics + (pack(remainders, PACK),)
        packed_statistics = packed_statistics + (pack(minus_deltas, PACK),)
        for c in tl.static_range(PACK + 1):
            store_packed(statistics + (statistic_stride * c + query_index), packed_statistics[c], PACK)
        if HAS_DROPOUT:
            hash_bits = query_hashes[i].to(packed_statistics[0].dtype, bitcast=True)
            store_packed(statistics + (statistic_stride * (PACK + 1) + query_index), hash_bits, PACK)
        query_statistics = query_statistics + packed_statistics
        for c in tl.static_range(D):
            accumulator = accumulator + (load_partial_sum(partial_sums + (i * D + c) * BLOCK_PIXELS, begin, PACK),)
    first_segment, end_segment = visible_segments(y, begin, end, 1, TABLE_KEYS * SEGMENTS, H, WY)
    SLOT_STRIDE: tl.constexpr = OUTPUTS * H * W
    _store_zeros(
        score_gradients, 0, first_segment - begin, pixel, SLOTS_PER_SEGMENT, SLOT_STRIDE, ELEMENTS, H * W, PACK
    )
    _store_zeros(
        score_gradients, end_segment - begin, end - begin, pixel, SLOTS_PER_SEGMENT, SLOT_STRIDE, ELEMENTS, H * W, PACK
    )
    for segment in range(first_segment, end_segment):
        table_key, partial_scores, key_offsets, window_entries = segment_scores(
            segment, queries, query_pointers, table, bias, y, x, Q, H, W, WY, WX, D, POSITION_CHANNELS, TABLE_KEYS,
            HAS_BIAS, ELEMENTS, PACK, SEGMENT_SIZE,
        )  # fmt: skip
        segment_gradients = score_gradients + (segment - begin).to(tl.int64) * (SLOTS_PER_SEGMENT * OUTPUTS * H * W)
        entry_gradients = full(pixel, SEGMENT_SIZE * ELEMENTS, 0.0, PACK)
        for shared_key in range(KEYS_PER_ENTRY):
            element = table_key * KEYS_PER_ENTRY + shared_key
            vector_gradients, element_terms = full(pixel, ELEMENTS, 0.0, PACK), full(pixel, ELEMENTS, 0.0, PACK)
            if ELEMENT_CHANNELS > 0:
                element_terms = element_scores(
                    element_terms, queries, query_pointers, element_table, table_row * KEYS + element, Q, D, KEYS,
                    POSITION_CHANNELS, ELEMENTS, PACK,
                )  # fmt: skip
            previous_entries, entry_gradients = entry_gradients, ()
            for j in tl.static_range(SEGMENT_SIZE):
                key_channels = load_channels(key_pointers + (element * K[3] + key_offsets[j]), D, K[2], PACK)
                value_channels = load_channels(value_pointers + (element * V[3] + key_offsets[j]), DV, V[2], PACK)
                previous, previous_vectors, accumulator, vector_gradients = accumulator, vector_gradients, (), ()
                for i in tl.static_range(ELEMENTS):
                    score, grad_weight = partial_scores[j * ELEMENTS + i], full(pixel, 1, 0.0, PACK)[0]
                    if ELEMENT_CHANNELS > 0:
                        score = add(score, element_terms[i], PACK)
                    score = add_content_score(score, queries, query_pointers, key_channels, i, Q, D, PACK)
                    for c in tl.static_range(DV):
                        grad_channel = element_channel(grad_outs, grad_out_pointers, i, c, DV, G[2], G[3], PACK)
                        grad_weight = fma(grad_channel, value_channels[c], grad_weight, PACK)
                    score_gradient = weight_and_score_gradient(
                        score, grad_weight, score_scale, query_statistics, i * (PACK + 1), query_hashes[i],
                        element * WINDOW + window_entries[j], threshold, HAS_DROPOUT, PACK,
                    )[1]  # fmt: skip
                    entry_gradients = entry_gradients + (add(previous_entries[j * ELEMENTS + i], score_gradient, PACK),)
                    vector_gradients = vector_gradients + (add(previous_vectors[i], score_gradient, PACK),)
                    for c in tl.static_range(D):
                        accumulator = accumulator + (fma(score_gradient, key_channels[c], previous[i * D + c], PACK),)
            if ELEMENT_CHANNELS > 0:
                previous, accumulator = accumulator, ()
                for i in tl.static_range(ELEMENTS):
                    slot = SEGMENT_SIZE + shared_key
                    store_packed(segment_gradients + (slot * OUTPUTS + i) * (H * W), vector_gradients[i], PACK)
                    vector = load_element_vector(
                        element_table, (table_row + i) * KEYS + element, ELEMENT_CHANNELS, PACK
                    )
                    for c in tl.static_range(D):
                        if c < POSITION_CHANNELS:
                            accumulator = accumulator + (previous[i * D + c],)
                        else:
                            factor = entry_channel(vector, c - POSITION_CHANNELS, PACK)
                            accumulator = accumulator + (fma(vector_gradients[i], factor, previous[i * D + c], PACK),)
        for j in tl.static_range(SEGMENT_SIZE):
            previous, accumulator = accumulator, ()
            for i in tl.static_range(ELEMENTS):
                entry_gradient = entry_gradients[j * ELEMENTS + i]
                store_packed(segment_gradients + (j * OUTPUTS + i) * (H * W), entry_gradient, PACK)
                entry_index = i * ENTRIES + table_key * WINDOW + window_entries[j]
                entry = load_entry(table + entry_index * ENTRY_STRIDE, ENTRY_SIZE)
                for c in tl.static_range(D):
                    if c < POSITION_CHANNELS:
                        factor = entry_channel(entry, c, PACK)
                        accumulator = accumulator + (fma(entry_gradient, factor, previous[i * D + c], PACK),)
                    else:
                        accumulator = accumulator + (previous[i * D + c],)
    if end == TABLE_KEYS * WY * SEGMENTS:
        scale = tl.load(gradient_scale) / D**0.5
        for i in tl.static_range(ELEMENTS):
            pointers = grad_query + (image * (PACK * GQ[0]) + head * GQ[1] + (first_element + i) * GQ[3] + pixel)
            store_channels(pointers, accumulator, i * D, (scale, scale), exists, D, GQ[0], GQ[2], PACK)
    else:
        for c in tl.static_range(ELEMENTS * D):
            store_packed(partial_sums + c * BLOCK_PIXELS, accumulator[c], PACK)


@triton.jit
def _load_statistics(  # type: ignore[no-untyped-def]
    pointers, statistic_stride, HAS_DROPOUT: tl.constexpr, PACK: tl.constexpr
):
    """Load the ``statistics`` of a query that :func:`query_gradient_kernel` stored."""
    statistics = ()
    for c in tl.static_range(PACK + 1):
        statistics = statistics + (load_packed(pointers + c * statistic_stride, PACK),)
    if HAS_DROPOUT:
        query_hash = load_packed(pointers + (PACK + 1) * statistic_stride, PACK).to(tl.uint32, bitcast=True)
        statistics = statistics + (query_hash,)
    return statistics


@triton.jit(do_not_specialize=["batch", "threshold"])
def key_value_gradient_kernel(  # type: ignore[no-untyped-def]
    query, key, value, table, element_table, bias, grad_out, statistics, grad_key, grad_value, gradient_scale, batch,
    threshold,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, G: tl.constexpr, GK: tl.constexpr, GV: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, KEYS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, POSITION_CHANNELS: tl.constexpr,
    KEYS_PER_ENTRY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK_PIXELS: tl.constexpr,
    ELEMENTS: tl.constexpr, PACK: tl.constexpr, SEGMENT_SIZE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of ELEMENTS elements' keys and values at BLOCK_PIXELS pixels, from all queries."""
    WINDOW: tl.constexpr = WY * WX
    ENTRIES: tl.constexpr = KEYS // KEYS_PER_ENTRY * WINDOW
    SEGMENTS: tl.constexpr = (WX + SEGMENT_SIZE - 1) // SEGMENT_SIZE
    ENTRY_SIZE: tl.constexpr = (POSITION_CHANNELS + PACK - 1) // PACK
    ENTRY_STRIDE: tl.constexpr = (ENTRY_SIZE + 3) // 4 * 4
    ELEMENT_CHANNELS: tl.constexpr = D - POSITION_CHANNELS
    KEY_STRIDE: tl.constexpr = WINDOW if KEYS_PER_ENTRY == 1 else 0  # from one key element's entries to the next one's
    program = tl.program_id(0)
    first_element = program % (KEYS // ELEMENTS) * ELEMENTS
    program = program // (KEYS // ELEMENTS)
    images = (batch + PACK - 1) // PACK
    n_blocks = (images * (H * W) + BLOCK_PIXELS - 1) // BLOCK_PIXELS
    head = (program // n_blocks).to(tl.int64)
    image, pixel, y, x, exists = pixel_block(program % n_blocks, 0, images, batch, BLOCK_PIXELS, H, W, PACK)
    table += (head * (OUTPUTS * ENTRIES) + first_element * KEY_STRIDE) * ENTRY_STRIDE
    bias += head * (OUTPUTS * ENTRIES) + first_element * KEY_STRIDE
    element_table += (head * (OUTPUTS * KEYS) + first_element) * (((ELEMENT_CHANNELS + PACK - 1) // PACK + 3) // 4 * 4)
    query_pointers = query + (image * Q[0] + head * Q[1] + pixel)
    grad_out_pointers = grad_out + (image * G[0] + head * G[1] + pixel)
    key_pointers = key + (image * K[0] + head * K[1] + first_element * K[3] + pixel)
    value_pointers = value + (image * V[0] + head * V[1] + first_element * V[3] + pixel)
    statistics_offset = (image * HEADS + head) * (OUTPUTS * H * W) + pixel
    statistic_stride = tl.cast(images, tl.int64) * (HEADS * OUTPUTS * H * W)
    own_keys = load_elements(key_pointers, D, K[2], K[3], ELEMENTS, PACK)
    own_values = load_elements(value_pointers, DV, V[2], V[3], ELEMENTS, PACK)
    score_scale = full(pixel, 1, _LOG2E / D**0.5, PACK)[0]
    accumulator, value_accumulator = full(pixel, ELEMENTS * D, 0.0, PACK), full(pixel, ELEMENTS * DV, 0.0, PACK)
    first_segment, end_segment = visible_segments(y, 0, WY * SEGMENTS, -1, SEGMENTS, H, WY)
    for output in range(OUTPUTS):
        encoded_keys = own_keys
        if ELEMENT_CHANNELS > 0:
            encoded_keys = ()
            for i in tl.static_range(ELEMENTS):
                element_vector = load_element_vector(element_table, output * KEYS + i, ELEMENT_CHANNELS, PACK)
                for c in tl.static_range(POSITION_CHANNELS):
                    encoded_keys = encoded_keys + (own_keys[i * D + c],)
                for c in tl.static_range(ELEMENT_CHANNELS):
                    term = entry_channel(element_vector, c, PACK)
                    encoded_keys = encoded_keys + (add(own_keys[i * D + POSITION_CHANNELS + c], term, PACK),)
        for segment in range(first_segment, end_segment):
            row, first_column = segment // SEGMENTS, segment % SEGMENTS * SEGMENT_SIZE
            first_entry = row * WX + first_column
            segment_table = table + (output * ENTRIES + first_entry) * ENTRY_STRIDE
            for j in tl.static_range(SEGMENT_SIZE):
                inside, pixel_offset, entry_shift = window_offset(
                    y, x, row, first_column, j, -1, H, W, WY, WX, SEGMENT_SIZE
                )
                statistics_pointers = statistics + (statistics_offset + (output * (H * W) + pixel_offset))
                query_statistics = _load_statistics(statistics_pointers, statistic_stride, HAS_DROPOUT, PACK)
                query_channels = load_channels(query_pointers + (output * Q[3] + pixel_offset), D, Q[2], PACK)
                grad_channels = load_channels(grad_out_pointers + (output * G[3] + pixel_offset), DV, G[2], PACK)
                previous, previous_values, accumulator, value_accumulator = accumulator, value_accumulator, (), ()
                for i in tl.static_range(ELEMENTS):
                    if i == 0 or KEY_STRIDE > 0:
                        entry = load_entry(segment_table + (i * KEY_STRIDE + entry_shift) * ENTRY_STRIDE, ENTRY_SIZE)
                        partial_score = masked_zero(inside, PACK)
                        for c in tl.static_range(POSITION_CHANNELS):
                            partial_score = fma(query_channels[c], entry_channel(entry, c, PACK), partial_score, PACK)
                    score, grad_weight = partial_score, full(pixel, 1, 0.0, PACK)[0]
                    for c in tl.static_range(D):
                        key_channel = element_channel(encoded_keys, key_pointers, i, c, D, K[2], K[3], PACK)
                        score = fma(query_channels[c], key_channel, score, PACK)
                    for c in tl.static_range(DV):
                        value_channel = element_channel(own_values, value_pointers, i, c, DV, V[2], V[3], PACK)
                        grad_weight = fma(grad_channels[c], value_channel, grad_weight, PACK)
                    if HAS_BIAS:
                        bias_value = tl.load(bias + (output * ENTRIES + i * KEY_STRIDE + first_entry + entry_shift))
                        score = add(score, broadcast(bias_value, PACK), PACK)
                    weight, score_gradient = weight_and_score_gradient(
                        score, grad_weight, score_scale, query_statistics, 0, query_statistics[PACK + HAS_DROPOUT],
                        (first_element + i) * WINDOW + first_entry + entry_shift, threshold, HAS_DROPOUT, PACK,
                    )  # fmt: skip
                    for c in tl.static_range(DV):
                        grad_value_channel = fma(weight, grad_channels[c], previous_values[i * DV + c], PACK)
                        value_accumulator = value_accumulator + (grad_value_channel,)
                    for c in tl.static_range(D):
                        accumulator = accumulator + (fma(score_gradient, query_channels[c], previous[i * D + c], PACK),)
    scale = tl.load(gradient_scale)
    for i in tl.static_range(ELEMENTS):
        pointers = grad_key + (image * (PACK * GK[0]) + head * GK[1] + (first_element + i) * GK[3] + pixel)
        store_channels(pointers, accumulator, i * D, (scale / D**0.5, scale / D**0.5), exists, D, GK[0], GK[2], PACK)
        pointers = grad_value + (image * (PACK * GV[0]) + head * GV[1] + (first_element + i) * GV[3] + pixel)
        store_channels(pointers, value_accumulator, i * DV, (scale, scale), exists, DV, GV[0], GV[2], PACK)
