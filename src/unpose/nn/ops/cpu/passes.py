"""Forward and backward pass of CPU attention over row blocks, compiled; :mod:`unpose.nn.ops.cpu.attention` calls them.

The forward pass is flash attention over a local window. Loop order, from outside to inside::

    image, head, row block          copy queries, keys and values into padded maps (layout.py)
      pixel block
        output elements             OUTPUT_BLOCK at a time: together with the pixels, one query block
          chunk of neighbours       scores -> row maximum -> exponentials -> weighted sum of values (microkernels.py)

The running row maximum and row sum of the online softmax and the weighted sum belong to the query block and stay in the
L1 cache; when a chunk raises the maximum, the sums so far are rescaled.

The backward pass computes the scores again from the saved logsumexp, once. Of each chunk it adds

- ``weights * grad_out`` to the gradient of the values and ``grad_scores * query`` to that of the keys, in padded maps
  of the row block that include its margin,
- ``grad_scores * (key + position)`` to the gradient of the query block,
- ``sum over pixels of grad_scores * query`` to the gradients of the tables.

Tables: the score of a query with the position table is computed once per table entry, not per neighbour. A neighbour
has an entry of its own (one per offset and key element), or shares the entry of its offset with the other key elements
and has a second entry, of the element table, for its key element. The first channels of a query belong to the position
table, the others to the element table.

``inputs`` are :func:`unpose.nn.ops.cpu.layout.flat_view` of tensors (b, n, elements, h, w, channels), ``tables`` and
``neighbours`` are made in :mod:`unpose.nn.ops.cpu.attention`, and ``dropout`` is (seed, threshold, factor (1,)).
"""

import math

import numpy as np

from unpose.compiled import compiled, inner
from unpose.nn.ops.cpu.layout import (
    HUGE,
    add_padded,
    aligned_empty,
    fill,
    fill_backward_maps,
    make_backward_maps,
    neighbour_range,
    pack_map,
    pack_pixel_hashes,
    scale_rows,
    store_block,
)
from unpose.nn.ops.cpu.microkernels import (
    QUERY_BLOCK,
    apply_dropout,
    dot_neighbours,
    exponentiate,
    gather,
    gather_table,
    load_block,
    scatter_add,
    score_gradients,
    score_neighbours,
    score_table,
    sum_rows,
    table_gradient,
    update_row_max,
)
from unpose.nn.ops.cpu.simd import OUTPUT_BLOCK, PIXEL_BLOCK, SIMD_LANES, UNROLL

LOG2_E = math.log2(math.e)
_N_BLOCKS = 2  # pixel blocks whose contributions to the table gradients are summed in registers


@compiled
def forward_row_blocks(inputs, tables, layout, neighbours, dropout, start, stop, results):  # type: ignore[no-untyped-def]
    """Attention of the jobs ``start`` to ``stop``, which count (image, head, row block).

    Writes output (b, n, value channels, outputs, h, w), and the row maximum and row sum, (b, n, 1, outputs, h, w) each,
    both in base 2: the logsumexp is ``maximum + log2(sum)``.
    """
    query, key, value = inputs
    position_table, element_table = tables
    _, heads, outputs, queries, keys, height, width, channels, value_channels = layout.shape
    out, row_maxima, row_sums = results
    dtype, size, chunk = out.dtype, layout.map_size, layout.chunk
    one, zero, huge = dtype.type(1), dtype.type(0), dtype.type(HUGE)
    padded_query = aligned_empty(queries * channels * size, dtype)
    padded_key = aligned_empty(keys * (channels + 1) * size, dtype)
    padded_value = aligned_empty(keys * value_channels * size, dtype)
    pixel_hashes = np.zeros(size, np.uint32)
    query_block = aligned_empty(channels * QUERY_BLOCK, dtype)
    scores = aligned_empty(chunk * QUERY_BLOCK, dtype)
    position_scores = aligned_empty(chunk * QUERY_BLOCK, dtype)
    element_scores = aligned_empty(keys * QUERY_BLOCK, dtype)
    out_block = aligned_empty(value_channels * QUERY_BLOCK, dtype)
    row_max, row_sum = aligned_empty(QUERY_BLOCK, dtype), aligned_empty(QUERY_BLOCK, dtype)
    rescale, ignored_sum = aligned_empty(QUERY_BLOCK, dtype), np.zeros(QUERY_BLOCK, dtype)
    weights_per_output = keys * (2 * layout.radius[0] + 1) * (2 * layout.radius[1] + 1) * height * width
    query_scale = dtype.type(LOG2_E) / np.sqrt(dtype.type(channels))
    output_stride = channels * size if queries > 1 else 0
    key_offsets, value_offsets, weight_index, position_rows, element_rows = neighbours
    position_channels, element_channels = position_table.shape[3] - 1, element_table.shape[3] - 1
    shared = layout.keys_per_position
    seed, threshold, factor = dropout
    for job in range(start, stop):
        image, first_row = job // layout.n_row_blocks, job % layout.n_row_blocks * layout.block_rows
        b, n = image // heads, image % heads
        pack_map(query, b, n, queries, channels, first_row, layout, query_scale, one, one, padded_query)
        pack_map(key, b, n, keys, channels, first_row, layout, one, -huge, zero, padded_key)
        pack_map(value, b, n, keys, value_channels, first_row, layout, one, one, one, padded_value)
        if threshold > 0:
            pack_pixel_hashes(first_row, layout, pixel_hashes)
        for pixel_block in range(layout.n_pixel_blocks):
            at = layout.origin + pixel_block * PIXEL_BLOCK
            first, end = neighbour_range(pixel_block, pixel_block + 1, first_row, layout)
            for h in range(0, outputs, OUTPUT_BLOCK):
                n_outputs = min(OUTPUT_BLOCK, outputs - h)
                positions = position_table[n if len(position_table) > 1 else 0, h // OUTPUT_BLOCK]
                elements = element_table[n if len(element_table) > 1 else 0, h // OUTPUT_BLOCK]
                load_block(padded_query, h * output_stride + at, output_stride, n_outputs, channels, size, query_block)
                score_table(query_block[position_channels * QUERY_BLOCK :], n_outputs, elements, 0, keys,
                            element_channels, element_scores)  # fmt: skip
                base = (image * outputs + h) * weights_per_output
                fill(row_max, -huge)
                fill(row_sum, zero)
                fill(out_block, zero)
                for e in range(first, end, chunk):
                    count = min(chunk, end - e)
                    n_groups = count // UNROLL
                    score_table(query_block, n_outputs, positions, e // shared, count // shared, position_channels,
                                position_scores)  # fmt: skip
                    score_neighbours(query_block, n_outputs, padded_key, at, key_offsets, e, n_groups, channels, size,
                                     position_scores, position_rows, element_scores, element_rows, scores)  # fmt: skip
                    for i in range(QUERY_BLOCK):
                        rescale[i] = row_max[i]
                    update_row_max(scores, count, n_outputs, row_max)
                    if e > first:
                        # The sums so far are relative to the previous maximum: multiply by 2^(previous - new).
                        exponentiate(rescale, 1, n_outputs, row_max, ignored_sum)
                        scale_rows(row_sum, rescale)
                        scale_rows(out_block, rescale)
                    exponentiate(scores, count, n_outputs, row_max, row_sum)
                    if threshold > 0:
                        apply_dropout(scores, count, n_outputs, pixel_hashes, at, weight_index, e, base,
                                      weights_per_output, seed, threshold, factor)  # fmt: skip
                    gather(scores, n_outputs, padded_value, at, value_offsets, e, n_groups, value_channels, size,
                           out_block)  # fmt: skip
                for o in range(n_outputs):
                    store_block(row_max, o, one, pixel_block, first_row, layout, row_maxima, image, h + o)
                    store_block(row_sum, o, one, pixel_block, first_row, layout, row_sums, image, h + o)
                for i in range(QUERY_BLOCK):
                    row_sum[i] = one / row_sum[i]
                scale_rows(out_block, row_sum)
                for o in range(n_outputs):
                    store_block(out_block, o, one, pixel_block, first_row, layout, out, image, h + o)


@compiled
def backward_row_blocks(  # type: ignore[no-untyped-def]
    inputs, tables, layout, neighbours, dropout, is_projected, phase, n_phases, start, stop, results
):  # fmt: skip
    """Gradients of query, key and value, and partial gradients of the tables, for the jobs ``start`` to ``stop``.

    Jobs count (head, part): the pairs (row block, image) of a head are divided into parts, and each part has its own
    partial gradients of the tables, (heads, parts, outputs, entries, channels). Only the row blocks ``phase, phase +
    n_phases, ...`` are processed, whose windows do not overlap, so that threads never add to the same pixels.

    ``is_projected`` is 1 where the gradients of query, key and value are one tensor (b, 3, n, d, elements, h, w), and 0
    where they are three tensors (b, n, d, elements, h, w).
    """
    batch, heads, outputs, queries, keys, height, width, channels, value_channels = layout.shape
    grad_query, grad_key, grad_value, grad_positions, grad_elements = results
    position_table, element_table = tables
    dtype, size, chunk = grad_query.dtype, layout.map_size, layout.chunk
    one, zero = dtype.type(1), dtype.type(0)
    n_parts, position_channels, element_channels = (
        grad_positions.shape[1],
        position_table.shape[3] - 1,
        grad_elements.shape[4],
    )
    weights_per_output = keys * (2 * layout.radius[0] + 1) * (2 * layout.radius[1] + 1) * height * width
    maps = make_backward_maps(layout, grad_query)
    padded_query, padded_key, padded_value, padded_grad, padded_lse, deltas, pixel_hashes, key_sums, value_sums = maps
    # Of each of the pixel blocks that are processed together.
    query_blocks = aligned_empty(_N_BLOCKS * (channels + 1) * QUERY_BLOCK, dtype).reshape(_N_BLOCKS, -1)
    grad_blocks = aligned_empty(_N_BLOCKS * value_channels * QUERY_BLOCK, dtype).reshape(_N_BLOCKS, -1)
    lse_blocks = aligned_empty(_N_BLOCKS * QUERY_BLOCK, dtype).reshape(_N_BLOCKS, -1)
    delta_blocks = aligned_empty(_N_BLOCKS * QUERY_BLOCK, dtype).reshape(_N_BLOCKS, -1)
    grad_scores = aligned_empty(_N_BLOCKS * chunk * QUERY_BLOCK, dtype).reshape(_N_BLOCKS, -1)
    grad_position_scores = aligned_empty(_N_BLOCKS * chunk * QUERY_BLOCK, dtype).reshape(_N_BLOCKS, -1)
    grad_element_scores = aligned_empty(_N_BLOCKS * keys * QUERY_BLOCK, dtype).reshape(_N_BLOCKS, -1)
    element_scores = aligned_empty(_N_BLOCKS * keys * QUERY_BLOCK, dtype).reshape(_N_BLOCKS, -1)
    query_sums = aligned_empty(_N_BLOCKS * channels * QUERY_BLOCK, dtype).reshape(_N_BLOCKS, -1)
    # Of one pixel block at a time.
    weights, position_scores = aligned_empty(chunk * QUERY_BLOCK, dtype), aligned_empty(chunk * QUERY_BLOCK, dtype)
    # Partial gradients of the tables, one sum per SIMD lane.
    position_sums = aligned_empty(outputs * grad_positions.shape[3] * grad_positions.shape[4] * SIMD_LANES, dtype)
    position_sums = position_sums.reshape(outputs, -1)
    element_sums = aligned_empty(outputs * keys * element_channels * SIMD_LANES, dtype).reshape(outputs, -1)
    ln_2, query_scale = dtype.type(1 / LOG2_E), one / np.sqrt(dtype.type(channels))
    key_offsets, value_offsets, weight_index, position_rows, element_rows = neighbours
    shared = layout.keys_per_position
    seed, threshold, factor = dropout
    n_items = batch * ((layout.n_row_blocks - phase + n_phases - 1) // n_phases)
    output_stride = (channels + 1) * size if queries > 1 else 0
    for job in range(start, stop):
        n, part = job // n_parts, job % n_parts
        fill(position_sums.ravel(), zero)
        fill(element_sums.ravel(), zero)
        for item in range(part * n_items // n_parts, (part + 1) * n_items // n_parts):
            b, first_row = item % batch, (phase + item // batch * n_phases) * layout.block_rows
            query_image = b * (1 + 2 * is_projected) * heads + n
            key_image, value_image = query_image + is_projected * heads, query_image + 2 * is_projected * heads
            fill_backward_maps(inputs, b, n, first_row, layout, query_scale / ln_2, dtype.type(LOG2_E), maps)
            for first_block in range(0, layout.n_pixel_blocks, _N_BLOCKS):
                n_blocks = min(_N_BLOCKS, layout.n_pixel_blocks - first_block)
                first, end = neighbour_range(first_block, first_block + n_blocks, first_row, layout)
                for h in range(0, outputs, OUTPUT_BLOCK):
                    n_outputs = min(OUTPUT_BLOCK, outputs - h)
                    positions = position_table[n if len(position_table) > 1 else 0, h // OUTPUT_BLOCK]
                    elements = element_table[n if len(element_table) > 1 else 0, h // OUTPUT_BLOCK]
                    base = ((b * heads + n) * outputs + h) * weights_per_output
                    for t in range(n_blocks):
                        at = layout.origin + (first_block + t) * PIXEL_BLOCK
                        load_block(padded_query, h * output_stride + at, output_stride, n_outputs, channels + 1, size,
                                   query_blocks[t])  # fmt: skip
                        load_block(padded_grad, h * value_channels * size + at, value_channels * size, n_outputs,
                                   value_channels, size, grad_blocks[t])  # fmt: skip
                        load_block(padded_lse, h * size + at, size, n_outputs, 1, size, lse_blocks[t])
                        load_block(deltas, h * size + at, size, n_outputs, 1, size, delta_blocks[t])
                        score_table(query_blocks[t, position_channels * QUERY_BLOCK :], n_outputs, elements, 0, keys,
                                    element_channels, element_scores[t])  # fmt: skip
                        fill(grad_element_scores[t], zero)
                        if queries > 1 or h == 0:
                            fill(query_sums[t], zero)
                    for e in range(first, end, chunk):
                        count = min(chunk, end - e)
                        n_groups, entry, n_entries = count // UNROLL, e // shared, count // shared
                        for t in range(n_blocks):
                            at = layout.origin + (first_block + t) * PIXEL_BLOCK
                            score_table(query_blocks[t], n_outputs, positions, entry, n_entries, position_channels,
                                        position_scores)  # fmt: skip
                            score_neighbours(query_blocks[t], n_outputs, padded_key, at, key_offsets, e, n_groups,
                                             channels, size, position_scores, position_rows, element_scores[t],
                                             element_rows, grad_scores[t])  # fmt: skip
                            dot_neighbours(grad_blocks[t], n_outputs, padded_value, at, value_offsets, e, n_groups,
                                           value_channels, size, weights)  # fmt: skip
                            score_gradients(grad_scores[t], weights, count, n_outputs, lse_blocks[t], delta_blocks[t],
                                            pixel_hashes, at, weight_index, e, base, weights_per_output, seed,
                                            threshold, factor)  # fmt: skip
                            gather(grad_scores[t], n_outputs, padded_key, at, key_offsets, e, n_groups, channels, size,
                                   query_sums[t])  # fmt: skip
                            scatter_add(grad_scores[t], n_outputs, query_blocks[t], key_sums, at, key_offsets, e,
                                        n_groups, channels, size)  # fmt: skip
                            scatter_add(weights, n_outputs, grad_blocks[t], value_sums, at, value_offsets, e, n_groups,
                                        value_channels, size)  # fmt: skip
                            if shared > 1:
                                fill(grad_position_scores[t], zero)
                                for i in range(n_entries):
                                    sum_rows(grad_scores[t], i * shared, 1, shared, n_outputs, grad_position_scores[t],
                                             i)  # fmt: skip
                            if element_channels > 0:
                                for i in range(keys):
                                    sum_rows(grad_scores[t], i, keys, count // keys, n_outputs, grad_element_scores[t],
                                             i)  # fmt: skip
                        grad_entries = grad_position_scores if shared > 1 else grad_scores
                        for t in range(n_blocks):
                            gather_table(grad_entries[t], n_entries, n_outputs, positions, entry, position_channels,
                                         query_sums[t])  # fmt: skip
                        table_gradient(grad_entries, grad_entries.shape[1], query_blocks, query_blocks.shape[1],
                                       n_blocks, n_outputs, n_entries, grad_positions.shape[4], entry,
                                       position_sums.shape[1], position_sums[h])  # fmt: skip
                    if element_channels > 0:
                        for t in range(n_blocks):
                            gather_table(grad_element_scores[t], keys, n_outputs, elements, 0, element_channels,
                                         query_sums[t, position_channels * QUERY_BLOCK :])  # fmt: skip
                        table_gradient(grad_element_scores, grad_element_scores.shape[1],
                                       query_blocks.ravel()[position_channels * QUERY_BLOCK :], query_blocks.shape[1],
                                       n_blocks, n_outputs, keys, element_channels, 0, element_sums.shape[1],
                                       element_sums[h])  # fmt: skip
                    for t in range(n_blocks):
                        n_stored = n_outputs if queries > 1 else 0
                        if queries == 1 and h + n_outputs == outputs:
                            _sum_outputs(query_sums[t], min(OUTPUT_BLOCK, outputs))
                            n_stored = 1
                        for o in range(n_stored):
                            store_block(query_sums[t], o, query_scale, first_block + t, first_row, layout, grad_query,
                                        query_image, h + o if queries > 1 else o)  # fmt: skip
            add_padded(key_sums, channels + 1, ln_2, first_row, layout, grad_key, key_image)
            add_padded(value_sums, value_channels, one, first_row, layout, grad_value, value_image)
        _add_lane_sums(position_sums, ln_2, channels, grad_positions[n, part])
        _add_lane_sums(element_sums, ln_2, channels, grad_elements[n, part])


@inner
def _add_lane_sums(lane_sums, ln_2, channels, target):  # type: ignore[no-untyped-def]
    """Add (outputs, entries * channels * SIMD_LANES), summed over lanes, to ``target`` (outputs, entries, channels).

    Channels of queries, which came multiplied by log2(e), are multiplied by ln(2); the channel of the bias is not.
    """
    for h in range(target.shape[0]):
        for e in range(target.shape[1]):
            for c in range(target.shape[2]):
                total = ln_2 - ln_2
                for lane in range(SIMD_LANES):
                    total += lane_sums[h, (e * target.shape[2] + c) * SIMD_LANES + lane]
                target[h, e, c] += total * ln_2 if c < channels else total


@inner
def _sum_outputs(block, n_outputs):  # type: ignore[no-untyped-def]
    """Add the pixels of all output elements of a block (channels, QUERY_BLOCK) to those of the first."""
    for c in range(block.size // QUERY_BLOCK):
        for o in range(1, n_outputs):
            for i in range(PIXEL_BLOCK):
                block[c * QUERY_BLOCK + i] += block[c * QUERY_BLOCK + o * PIXEL_BLOCK + i]
