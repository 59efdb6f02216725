"""Scores in the attention kernels, and their gradients.

A score is the sum of three products of the query: with the position table (:func:`segment_scores`), with the vector of
the pair of elements (:func:`element_scores`) and with the key (:func:`add_content_score`). The names of sizes are those
of :mod:`unpose.nn.ops.cuda.attention_kernels`, into which everything here is inlined.
"""

# Triton does not parse starred tuples or annotations of them, and removes a branch that is not taken only in an else.
# ruff: noqa: RUF005, RET505
# mypy: disable-error-code="assignment, var-annotated, misc"

import triton
import triton.language as tl

from unpose.nn.ops.cuda.neighbourhood import element_channel, masked_zero, window_offset
from unpose.nn.ops.cuda.packed import (
    add,
    broadcast,
    dropout_mask,
    entry_channel,
    exp2,
    fma,
    load_entry,
    minimum,
    multiply,
)

_PACKED_LIMIT = tl.constexpr(0x78E278E2)
"""The number 40,000 in half precision, twice. For heads of one channel, whose scores are multiplied by log2(e), the
logsumexp is then 57,700; half precision ends at 65,504."""


@triton.jit
def _add_products(  # type: ignore[no-untyped-def]
    score, queries, query_pointers, entry, i: tl.constexpr, first: tl.constexpr, COUNT: tl.constexpr,
    Q: tl.constexpr, D: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Add to a score the product of a table entry and COUNT channels, from ``first`` on, of the i-th output's query."""
    for c in tl.static_range(COUNT):
        query_channel = element_channel(queries, query_pointers, i, first + c, D, Q[2], Q[3], PACK)
        score = fma(query_channel, entry_channel(entry, c, PACK), score, PACK)
    return score


@triton.jit
def segment_scores(  # type: ignore[no-untyped-def]
    segment, queries, query_pointers, table, bias, y, x, Q: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, D: tl.constexpr, POSITION_CHANNELS: tl.constexpr, TABLE_KEYS: tl.constexpr,
    HAS_BIAS: tl.constexpr, ELEMENTS: tl.constexpr, PACK: tl.constexpr, SEGMENT_SIZE: tl.constexpr,
):  # fmt: skip
    """Compute the partial scores of one window segment: query . position (+ bias), -inf outside the image.

    They are the same for all key elements that share the table entries. Also returns the index of these key elements
    in the table and, for each entry of the segment, the offset of the key in memory and the index in the window.
    """
    ENTRY_SIZE: tl.constexpr = (POSITION_CHANNELS + PACK - 1) // PACK
    ENTRY_STRIDE: tl.constexpr = (ENTRY_SIZE + 3) // 4 * 4
    SEGMENTS: tl.constexpr = (WX + SEGMENT_SIZE - 1) // SEGMENT_SIZE
    ENTRIES: tl.constexpr = TABLE_KEYS * WY * WX
    table_key, row = segment % TABLE_KEYS, segment // (TABLE_KEYS * SEGMENTS)
    first_column = segment // TABLE_KEYS % SEGMENTS * SEGMENT_SIZE
    partial_scores, key_offsets, window_entries = (), (), ()
    first_entry = (table_key * WY + row) * WX + first_column
    # Added to the pointers here, so that all further offsets are constants.
    segment_table, segment_bias = table + first_entry * ENTRY_STRIDE, bias + first_entry
    for j in tl.static_range(SEGMENT_SIZE):
        inside, pixel_offset, entry_shift = window_offset(y, x, row, first_column, j, 1, H, W, WY, WX, SEGMENT_SIZE)
        key_offsets = key_offsets + (pixel_offset,)
        window_entries = window_entries + (row * WX + first_column + entry_shift,)
        start_score = masked_zero(inside, PACK)
        for i in tl.static_range(ELEMENTS):
            entry = load_entry(segment_table + (i * ENTRIES + entry_shift) * ENTRY_STRIDE, ENTRY_SIZE)
            score = _add_products(start_score, queries, query_pointers, entry, i, 0, POSITION_CHANNELS, Q, D, PACK)
            if HAS_BIAS:
                score = add(score, broadcast(tl.load(segment_bias + (i * ENTRIES + entry_shift)), PACK), PACK)
            partial_scores = partial_scores + (score,)
    return table_key, partial_scores, key_offsets, window_entries


@triton.jit
def load_element_vector(  # type: ignore[no-untyped-def]
    element_table, row, CHANNELS: tl.constexpr, PACK: tl.constexpr
):
    """Load the vector of one pair of elements, as :func:`load_entry` does."""
    ENTRY_SIZE: tl.constexpr = (CHANNELS + PACK - 1) // PACK
    return load_entry(element_table + row * ((ENTRY_SIZE + 3) // 4 * 4), ENTRY_SIZE)


@triton.jit
def element_scores(  # type: ignore[no-untyped-def]
    scores, queries, query_pointers, element_table, first_row, Q: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr,
    POSITION_CHANNELS: tl.constexpr, ELEMENTS: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Add to scores the products of ELEMENTS outputs' queries and their vectors for one key element.

    ``first_row`` is the row of the first output's vector in the table.
    """
    result = ()
    for i in tl.static_range(ELEMENTS):
        entry = load_element_vector(element_table, first_row + i * KEYS, D - POSITION_CHANNELS, PACK)
        score = _add_products(
            scores[i], queries, query_pointers, entry, i, POSITION_CHANNELS, D - POSITION_CHANNELS, Q, D, PACK
        )
        result = result + (score,)
    return result


@triton.jit
def add_content_score(  # type: ignore[no-untyped-def]
    score, queries, query_pointers, key_channels, i: tl.constexpr, Q: tl.constexpr, D: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Add to a score the product of the i-th output's query and a key."""
    for c in tl.static_range(D):
        score = fma(element_channel(queries, query_pointers, i, c, D, Q[2], Q[3], PACK), key_channels[c], score, PACK)
    return score


@triton.jit
def saturate(score, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Limit a packed score to 40,000, so that neither it nor the logsumexp overflows half precision to infinity.

    Scores that large make attention a choice of the highest one; without the limit the softmax of an infinite score is
    not a number. A score below -65,504 becomes -inf, which is a weight of zero.
    """
    if PACK == 2:
        return minimum(score, tl.full(score.shape, _PACKED_LIMIT, tl.int32), PACK)
    else:
        return score


@triton.jit
def weight_and_score_gradient(  # type: ignore[no-untyped-def]
    score, grad_weight, score_scale, statistics, first: tl.constexpr, query_hash, entry, threshold,
    HAS_DROPOUT: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Return an attention weight after dropout and the gradient of its score, before the scales of both.

    ``grad_weight`` is the product of the value and the gradient of the result. ``statistics`` holds, from ``first`` on,
    minus the logsumexp to base 2, with PACK = 2 in two parts (rounded to half precision, and the rest), and minus the
    product of the result and its gradient.
    """
    exponent = fma(score, score_scale, statistics[first], PACK)
    if PACK == 2:
        # A weight is at most 1. Large scores, which the forward pass adds in another order, are rounded to other
        # numbers here: half precision has steps of 16 at 30,000, and exp2(16) would make the gradient infinite.
        exponent = minimum(add(exponent, statistics[first + 1], PACK), tl.zeros_like(exponent), PACK)
    weight = exp2(exponent, PACK)
    if HAS_DROPOUT:
        mask = dropout_mask(query_hash, entry, threshold, PACK)
        kept_weight = multiply(weight, mask, PACK)
        return kept_weight, multiply(weight, fma(grad_weight, mask, statistics[first + PACK], PACK), PACK)
    else:
        return weight, multiply(weight, add(grad_weight, statistics[first + PACK], PACK), PACK)
