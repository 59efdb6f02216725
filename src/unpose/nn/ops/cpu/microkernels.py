"""Microkernels of CPU attention: the innermost loops, for one query block and one chunk of neighbours.

As in flash attention, a block of queries stays in the nearest cache while it goes through its keys chunk by chunk. A
*query block* is PIXEL_BLOCK neighbouring pixels times up to OUTPUT_BLOCK output elements of the group (``n_outputs`` of
them). A *neighbour* of a query is one (window offset, key element). All arrays of a query block end in one axis of
QUERY_BLOCK = OUTPUT_BLOCK * PIXEL_BLOCK numbers:

=====================  ================================================================================================
query, output          ``(channels, QUERY_BLOCK)``
scores, weights        ``(neighbours, QUERY_BLOCK)``
row maximum, row sum   ``(QUERY_BLOCK,)``
padded maps            ``(elements, channels, map_size)``, flat: see :mod:`unpose.nn.ops.cpu.layout`
table                  ``(entries, channels + 1, OUTPUT_BLOCK)``; the last channel holds the bias
=====================  ================================================================================================

In padded maps the keys at one offset from the block's pixels are one contiguous vector. This load, which usually
crosses a cache line, is the main cost; the output elements of a block share it. Accumulators stay in registers over the
inner loop (over channels for scores, over neighbours for weighted sums), and block sizes are compile-time constants, so
that nearly all addresses are too.

Scores are in base 2: queries and biases come multiplied by log2(e), and weights are ``2^(score - row maximum)``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

from unpose.nn.ops.cpu.simd import (
    ACCUMULATORS,
    I32,
    I64,
    OUTPUT_BLOCK,
    PIXEL_BLOCK,
    SIMD_LANES,
    UNROLL,
    VectorBuilder,
    microkernel,
)

QUERY_BLOCK = OUTPUT_BLOCK * PIXEL_BLOCK
"""Queries of a block: PIXEL_BLOCK pixels for each of OUTPUT_BLOCK output elements."""


@microkernel
def load_block(simd, padded, start, output_stride, n_outputs, channels, channel_stride, block):  # type: ignore[no-untyped-def]
    """Copy the pixels from ``padded[start]`` on into ``block`` (channels, QUERY_BLOCK), for each output element."""
    builder = simd.builder
    with cgutils.for_range(builder, n_outputs) as output, cgutils.for_range(builder, channels) as channel:
        offset = simd.plus(simd.times(output.index, output_stride), simd.times(channel.index, channel_stride))
        target = simd.plus(simd.times(channel.index, QUERY_BLOCK), simd.times(output.index, PIXEL_BLOCK))
        simd.store(simd.load(padded, simd.plus(start, offset)), block, target)


class _Neighbours(NamedTuple):
    """The keys or values that a query block meets: ``n_groups * UNROLL`` neighbours from ``first`` on.

    Channel c of neighbour e is the vector at ``padded[start + offsets[e] + c * channel_stride]``.
    """

    padded: Any
    start: Any
    offsets: Any
    first: Any
    n_groups: Any
    channels: Any
    channel_stride: Any

    def address(self, simd: VectorBuilder, neighbour: Any) -> Any:
        """Index of the first channel of a neighbour, for the first pixel of the block."""
        return simd.plus(self.start, simd.load_scalar(self.offsets, neighbour))

    def load(self, simd: VectorBuilder, address: Any, channel: Any, width: int = PIXEL_BLOCK) -> Any:
        """One channel of the neighbour at an address."""
        return simd.load(self.padded, simd.plus(address, simd.times(channel, self.channel_stride)), width)


def _output_offset(simd: VectorBuilder, output: Any, o: int) -> Any:
    """Where the pixels of output element ``output + o`` start in a row of QUERY_BLOCK numbers."""
    return simd.times(simd.plus(output, o), PIXEL_BLOCK)


def _emit_dot_products(
    simd: VectorBuilder,
    block: Any,
    n_outputs: Any,
    neighbours: _Neighbours,
    products: Any,
    initial: Callable[[Any, Any], Callable[[Any], Any]],
) -> None:
    """``products[e] = initial + sum_c block[c] neighbour_e[c]``: (neighbours, QUERY_BLOCK).

    ``initial(row, address)(output offset)`` is the vector that the sum of a row begins with. The accumulators, for
    several neighbours and output elements, stay in registers over the loop over channels.
    """
    builder = simd.builder

    def emit(output: Any, count: int) -> None:
        unroll = min(UNROLL, ACCUMULATORS // (2 * count))
        totals = [simd.accumulators(count) for _ in range(unroll)]
        offsets = [_output_offset(simd, output, o) for o in range(count)]
        with cgutils.for_range(builder, simd.times(neighbours.n_groups, UNROLL // unroll)) as group:
            rows = [simd.plus(simd.times(group.index, unroll), i) for i in range(unroll)]
            addresses = [neighbours.address(simd, simd.plus(neighbours.first, row)) for row in rows]
            for row, address, row_totals in zip(rows, addresses, totals, strict=True):
                initial_at = initial(row, address)
                for offset, total in zip(offsets, row_totals, strict=True):
                    builder.store(initial_at(offset), total)
            with cgutils.for_range(builder, neighbours.channels) as channel:
                keys = [neighbours.load(simd, address, channel.index) for address in addresses]
                for o, offset in enumerate(offsets):
                    query = simd.load(block, simd.plus(simd.times(channel.index, QUERY_BLOCK), offset))
                    for row_totals, key in zip(totals, keys, strict=True):
                        simd.accumulate(row_totals[o], query, key)
            for row, row_totals in zip(rows, totals, strict=True):
                for offset, total in zip(offsets, row_totals, strict=True):
                    simd.store(builder.load(total), products, simd.plus(simd.times(row, QUERY_BLOCK), offset))

    simd.for_groups(n_outputs, OUTPUT_BLOCK, emit)


def _table_number(simd: VectorBuilder, table: Any, entry: Any, channels: Any, channel: Any, output: Any, o: int) -> Any:
    """``table[entry, channel, output + o]`` of a table (entries, channels + 1, OUTPUT_BLOCK)."""
    row = simd.plus(simd.times(entry, simd.plus(channels, 1)), channel)
    return simd.load_scalar(table, simd.plus(simd.plus(simd.times(row, OUTPUT_BLOCK), output), o))


@microkernel
def score_table(simd, block, n_outputs, table, first, count, channels, scores):  # type: ignore[no-untyped-def]
    """``scores[i] = bias + sum_c block[c] table[first + i, c]``: (count, QUERY_BLOCK)."""
    builder = simd.builder

    def emit(output: Any, n_outputs: int, i: Any, n_entries: int) -> None:
        totals = [simd.accumulators(n_outputs) for _ in range(n_entries)]
        entries = [simd.plus(simd.plus(first, i), j) for j in range(n_entries)]
        for row_totals, entry in zip(totals, entries, strict=True):
            for o, total in enumerate(row_totals):
                builder.store(simd.broadcast(_table_number(simd, table, entry, channels, channels, output, o)), total)
        with cgutils.for_range(builder, channels) as channel:
            for o in range(n_outputs):
                at = simd.plus(simd.times(channel.index, QUERY_BLOCK), _output_offset(simd, output, o))
                query = simd.load(block, at)
                for row_totals, entry in zip(totals, entries, strict=True):
                    number = _table_number(simd, table, entry, channels, channel.index, output, o)
                    simd.accumulate(row_totals[o], query, simd.broadcast(number))
        for j, row_totals in enumerate(totals):
            for o, total in enumerate(row_totals):
                at = simd.plus(simd.times(simd.plus(i, j), QUERY_BLOCK), _output_offset(simd, output, o))
                simd.store(builder.load(total), scores, at)

    def for_entries(output: Any, n_outputs: int) -> None:
        simd.for_groups(count, ACCUMULATORS // (2 * n_outputs), lambda i, size: emit(output, n_outputs, i, size))

    simd.for_groups(n_outputs, OUTPUT_BLOCK, for_entries)


@microkernel
def score_neighbours(  # type: ignore[no-untyped-def]
    simd, block, n_outputs, padded_key, start, offsets, first, n_groups, channels, channel_stride, position_scores,
    position_rows, element_scores, element_rows, scores
):  # fmt: skip
    """Scores of a query block (channels, QUERY_BLOCK) with a chunk of neighbours: (neighbours, QUERY_BLOCK).

    ``sum_c query_c key_c + mask + position score + element score``. Rows ``position_rows[e]`` and ``element_rows[e]``
    of the table scores, with e counted from the start of the chunk, belong to neighbour e. The mask is stored behind
    the key's channels.
    """
    neighbours = _Neighbours(padded_key, start, offsets, first, n_groups, channels, channel_stride)

    def initial(row: Any, address: Any) -> Callable[[Any], Any]:
        mask = neighbours.load(simd, address, channels)
        position_row, element_row = simd.load_scalar(position_rows, row), simd.load_scalar(element_rows, row)

        def initial_at(offset: Any) -> Any:
            position = simd.load(position_scores, simd.plus(position_row, offset))
            element = simd.load(element_scores, simd.plus(element_row, offset))
            return simd.builder.fadd(simd.builder.fadd(position, element), mask)

        return initial_at

    _emit_dot_products(simd, block, n_outputs, neighbours, scores, initial)


@microkernel
def dot_neighbours(  # type: ignore[no-untyped-def]
    simd, block, n_outputs, padded, start, offsets, first, n_groups, channels, channel_stride, products
):  # fmt: skip
    """``products[e] = sum_c block[c] neighbour_e[c]``: (neighbours, QUERY_BLOCK)."""
    neighbours = _Neighbours(padded, start, offsets, first, n_groups, channels, channel_stride)
    _emit_dot_products(simd, block, n_outputs, neighbours, products, lambda *_: lambda offset: simd.constant(0.0))


@microkernel
def update_row_max(simd, scores, count, n_outputs, row_max):  # type: ignore[no-untyped-def]
    """Raise ``row_max`` (QUERY_BLOCK,) to the maximum over the first ``count`` rows of scores."""

    def emit(output: Any, size: int) -> None:
        offsets = [simd.times(simd.plus(output, o), PIXEL_BLOCK) for o in range(size)]
        largest = simd.accumulators(size)
        for total, offset in zip(largest, offsets, strict=True):
            simd.builder.store(simd.load(row_max, offset), total)
        with cgutils.for_range(simd.builder, count) as row:
            for total, offset in zip(largest, offsets, strict=True):
                value = simd.load(scores, simd.plus(offset, simd.times(row.index, QUERY_BLOCK)))
                simd.builder.store(simd.maximum(value, simd.builder.load(total)), total)
        for total, offset in zip(largest, offsets, strict=True):
            simd.store(simd.builder.load(total), row_max, offset)

    simd.for_groups(n_outputs, OUTPUT_BLOCK, emit)


@microkernel
def exponentiate(simd, scores, count, n_outputs, row_max, row_sum):  # type: ignore[no-untyped-def]
    """Replace ``count`` rows of scores by ``2^(score - row_max)`` and add them to ``row_sum`` (QUERY_BLOCK,)."""
    with cgutils.for_range(simd.builder, n_outputs) as output:
        offset = simd.times(output.index, PIXEL_BLOCK)
        (total,) = simd.accumulators(1)
        simd.builder.store(simd.load(row_sum, offset), total)
        largest = simd.load(row_max, offset)
        with cgutils.for_range(simd.builder, count) as row:
            at = simd.plus(offset, simd.times(row.index, QUERY_BLOCK))
            value = simd.exp2(simd.builder.fsub(simd.load(scores, at), largest))
            simd.builder.store(simd.builder.fadd(simd.builder.load(total), value), total)
            simd.store(value, scores, at)
        simd.store(simd.builder.load(total), row_sum, offset)


class _Dropout(NamedTuple):
    """Which weights are dropped: a hash of the seed and of the weight's index decides.

    The index of a weight is a part of its pixel, given times HASH_FACTOR as ``pixel_hashes[start:]``, plus
    ``base + output * output_stride + weight_index[neighbour]``.
    """

    pixel_hashes: Any
    start: Any
    weight_index: Any
    base: Any
    output_stride: Any
    seed: Any
    threshold: Any
    factor: Any

    def scales(self, simd: VectorBuilder, neighbour: Any, output: Any, count: int) -> list[Any]:
        """Factors of the weights of a neighbour, 0 or ``factor``, for ``count`` output elements from an even one on."""
        pixel_hash = simd.load(self.pixel_hashes, self.start, kind=ir.VectorType(I32, PIXEL_BLOCK))
        start = simd.plus(self.base, simd.load_scalar(self.weight_index, neighbour))
        factor = simd.broadcast(simd.load_scalar(self.factor, I64(0)))
        kept: list[Any] = []
        for o in range(0, count, 2):
            index = simd.plus(start, simd.times(simd.plus(output, o), self.output_stride))
            kept += simd.dropout_mask(pixel_hash, index, self.seed, self.threshold)
        return [simd.builder.select(keep, factor, simd.constant(0.0)) for keep in kept[:count]]


@microkernel
def apply_dropout(  # type: ignore[no-untyped-def]
    simd, weights, count, n_outputs, pixel_hashes, start, weight_index, first, base, output_stride, seed, threshold,
    factor
):  # fmt: skip
    """Multiply weights (count, QUERY_BLOCK) by ``factor`` (1,) where they are kept and by zero where dropped."""
    builder = simd.builder
    dropout = _Dropout(pixel_hashes, start, weight_index, base, output_stride, seed, threshold, factor)

    def emit(output: Any, size: int) -> None:
        with cgutils.for_range(builder, count) as row:
            scales = dropout.scales(simd, simd.plus(first, row.index), output, size)
            for o, scale in enumerate(scales):
                at = simd.plus(simd.times(row.index, QUERY_BLOCK), _output_offset(simd, output, o))
                simd.store(builder.fmul(simd.load(weights, at), scale), weights, at)

    simd.for_groups(n_outputs, OUTPUT_BLOCK, emit)


@microkernel
def score_gradients(  # type: ignore[no-untyped-def]
    simd, scores, weights, count, n_outputs, logsumexp, delta, pixel_hashes, start, weight_index, first, base,
    output_stride, seed, threshold, factor
):  # fmt: skip
    """Replace scores by their gradients, ``weight (grad_weight - delta)`` with ``weight = 2^(score - logsumexp)``.

    On entry ``weights`` holds grad_weight = <grad_out, value>, on exit the weights after dropout; both are (count,
    QUERY_BLOCK). ``logsumexp``, in base 2, and ``delta`` = <grad_out, out> are (QUERY_BLOCK,). A dropped weight gets no
    gradient from its value.
    """
    builder = simd.builder
    dropout = _Dropout(pixel_hashes, start, weight_index, base, output_stride, seed, threshold, factor)

    def emit(output: Any, size: int, has_dropout: bool) -> None:
        offsets = [_output_offset(simd, output, o) for o in range(size)]
        with cgutils.for_range(builder, count) as row:
            scales = [None] * size
            if has_dropout:
                scales = dropout.scales(simd, simd.plus(first, row.index), output, size)
            for offset, scale in zip(offsets, scales, strict=True):
                at = simd.plus(simd.times(row.index, QUERY_BLOCK), offset)
                weight = simd.exp2(builder.fsub(simd.load(scores, at), simd.load(logsumexp, offset)))
                grad_weight, used_weight = simd.load(weights, at), weight
                if scale is not None:
                    grad_weight, used_weight = builder.fmul(grad_weight, scale), builder.fmul(used_weight, scale)
                centred = builder.fsub(grad_weight, simd.load(delta, offset))
                simd.store(builder.fmul(weight, centred), scores, at)
                simd.store(used_weight, weights, at)

    with builder.if_else(builder.icmp_unsigned("!=", threshold, I64(0))) as (some, none):
        for branch, has_dropout in ((some, True), (none, False)):
            with branch:
                simd.for_groups(n_outputs, OUTPUT_BLOCK, partial(emit, has_dropout=has_dropout))


def _for_register_blocks(
    simd: VectorBuilder, n_outputs: Any, channels: Any, emit: Callable[[Any, list[Any], list[Any], Any, int], None]
) -> None:
    """Loop over register blocks: some output elements, up to four channels, and all or half of the pixels.

    ``emit(output, offsets, channels, pixel, width)``: ``offsets`` say where in a row of QUERY_BLOCK numbers the output
    elements' vectors start, ``pixel`` pixels into the pixel block and ``width`` numbers wide. A register block has as
    many accumulators as there are registers for them.
    """

    def emit_block(output: Any, n_outputs: int, channel: Any, n_channels: int) -> None:
        width = PIXEL_BLOCK if 4 * n_outputs * 2 <= ACCUMULATORS else SIMD_LANES
        block_channels = [simd.plus(channel, c) for c in range(n_channels)]
        with cgutils.for_range(simd.builder, I64(PIXEL_BLOCK // width)) as part:
            pixel = simd.times(part.index, width)
            offsets = [simd.plus(pixel, _output_offset(simd, output, o)) for o in range(n_outputs)]
            emit(output, offsets, block_channels, pixel, width)

    def for_channels(output: Any, n_outputs: int) -> None:
        simd.for_groups(channels, 4, lambda channel, size: emit_block(output, n_outputs, channel, size))

    simd.for_groups(n_outputs, OUTPUT_BLOCK, for_channels)


@microkernel
def scatter_add(  # type: ignore[no-untyped-def]
    simd, weights, n_outputs, block, padded, start, offsets, first, n_groups, channels, channel_stride
):  # fmt: skip
    """``neighbour_e[c] += sum_outputs weights[e] block[c]`` in the padded maps: the transpose of :func:`gather`."""
    builder = simd.builder
    neighbours = _Neighbours(padded, start, offsets, first, n_groups, channels, channel_stride)

    def emit(output: Any, offsets: list[Any], channels: list[Any], pixel: Any, width: int) -> None:
        factors = [
            [simd.load(block, simd.plus(simd.times(channel, QUERY_BLOCK), offset), width) for offset in offsets]
            for channel in channels
        ]
        with cgutils.for_range(builder, simd.times(n_groups, UNROLL)) as row:
            row_start = simd.times(row.index, QUERY_BLOCK)
            row_weights = [simd.load(weights, simd.plus(row_start, offset), width) for offset in offsets]
            address = simd.plus(neighbours.address(simd, simd.plus(first, row.index)), pixel)
            for channel, channel_factors in zip(channels, factors, strict=True):
                total = neighbours.load(simd, address, channel, width)
                for weight, factor in zip(row_weights, channel_factors, strict=True):
                    total = simd.fma(weight, factor, total)
                simd.store(total, padded, simd.plus(address, simd.times(channel, channel_stride)))

    _for_register_blocks(simd, n_outputs, channels, emit)


def _emit_weighted_sum(
    simd: VectorBuilder,
    weights: Any,
    n_outputs: Any,
    n_groups: Any,
    unroll: int,
    channels: Any,
    result: Any,
    factors: Callable[[Any, Any, int], Callable[[Any, Any, int], Any]],
) -> None:
    """``result[c] += sum_r weights[r] factor_r[c]``: (channels, QUERY_BLOCK), over ``n_groups * unroll`` rows r.

    ``factors(row, pixel, width)(channel, output, o)`` is the vector of factors of ``width`` pixels from a pixel on. The
    accumulators stay in registers over the loop over rows.
    """
    builder = simd.builder

    def emit(output: Any, offsets: list[Any], channels: list[Any], pixel: Any, width: int) -> None:
        totals = [simd.accumulators(len(offsets), width) for _ in channels]
        for channel, channel_totals in zip(channels, totals, strict=True):
            for offset, total in zip(offsets, channel_totals, strict=True):
                at = simd.plus(offset, simd.times(channel, QUERY_BLOCK))
                builder.store(simd.load(result, at, width), total)
        with cgutils.for_range(builder, n_groups) as group:
            for i in range(unroll):
                row = simd.plus(simd.times(group.index, unroll), i)
                row_start = simd.times(row, QUERY_BLOCK)
                row_weights = [simd.load(weights, simd.plus(row_start, offset), width) for offset in offsets]
                factor = factors(row, pixel, width)
                for channel, channel_totals in zip(channels, totals, strict=True):
                    for o, (total, weight) in enumerate(zip(channel_totals, row_weights, strict=True)):
                        simd.accumulate(total, weight, factor(channel, output, o))
        for channel, channel_totals in zip(channels, totals, strict=True):
            for offset, total in zip(offsets, channel_totals, strict=True):
                simd.store(builder.load(total), result, simd.plus(offset, simd.times(channel, QUERY_BLOCK)))

    _for_register_blocks(simd, n_outputs, channels, emit)


@microkernel
def gather(  # type: ignore[no-untyped-def]
    simd, weights, n_outputs, padded, start, offsets, first, n_groups, channels, channel_stride, result
):  # fmt: skip
    """``result[c] += sum_e weights[e] neighbour_e[c]``: (channels, QUERY_BLOCK)."""
    neighbours = _Neighbours(padded, start, offsets, first, n_groups, channels, channel_stride)

    def factors(row: Any, pixel: Any, width: int) -> Callable[[Any, Any, int], Any]:
        address = simd.plus(neighbours.address(simd, simd.plus(first, row)), pixel)
        return lambda channel, output, o: neighbours.load(simd, address, channel, width)

    _emit_weighted_sum(simd, weights, n_outputs, n_groups, UNROLL, channels, result, factors)


@microkernel
def gather_table(simd, weights, count, n_outputs, table, first, channels, result):  # type: ignore[no-untyped-def]
    """``result[c] += sum_i weights[i] table[first + i, c]`` over ``count`` entries: (channels, QUERY_BLOCK)."""

    def factors(row: Any, pixel: Any, width: int) -> Callable[[Any, Any, int], Any]:
        entry = simd.plus(first, row)
        return lambda channel, output, o: simd.broadcast(
            _table_number(simd, table, entry, channels, channel, output, o), width
        )

    _emit_weighted_sum(simd, weights, n_outputs, count, 1, channels, result, factors)


@microkernel
def sum_rows(simd, rows, first, step, count, n_outputs, result, target_row):  # type: ignore[no-untyped-def]
    """``result[target_row] += sum of rows[first], rows[first + step], ...``, ``count`` rows of QUERY_BLOCK numbers."""
    builder = simd.builder

    def emit(output: Any, size: int) -> None:
        totals, offsets = simd.accumulators(size), [_output_offset(simd, output, o) for o in range(size)]
        target = simd.times(target_row, QUERY_BLOCK)
        for total, offset in zip(totals, offsets, strict=True):
            builder.store(simd.load(result, simd.plus(target, offset)), total)
        with cgutils.for_range(builder, count) as row:
            row_start = simd.times(simd.plus(first, simd.times(row.index, step)), QUERY_BLOCK)
            for total, offset in zip(totals, offsets, strict=True):
                value = simd.load(rows, simd.plus(row_start, offset))
                builder.store(builder.fadd(builder.load(total), value), total)
        for total, offset in zip(totals, offsets, strict=True):
            simd.store(builder.load(total), result, simd.plus(target, offset))

    simd.for_groups(n_outputs, OUTPUT_BLOCK, emit)


@microkernel
def table_gradient(  # type: ignore[no-untyped-def]
    simd, grad_scores, scores_stride, blocks, blocks_stride, n_blocks, n_outputs, count, channels, first, output_stride,
    result
):  # fmt: skip
    """``result[o, first + i, c] += sum_blocks grad_scores[i] block[c]`` for ``count`` table entries i.

    ``grad_scores`` (n_blocks, rows, QUERY_BLOCK) and ``blocks`` (n_blocks, channels, QUERY_BLOCK) have the given
    strides between query blocks. ``result`` (outputs, entries, channels, SIMD_LANES) keeps SIMD_LANES partial sums, one
    per lane; ``output_stride`` is the stride of its first axis.
    """
    builder = simd.builder

    def emit(output: Any, channel: Any, n_channels: int, i: Any, n_entries: int) -> None:
        totals = [simd.accumulators(n_channels, SIMD_LANES) for _ in range(n_entries)]
        offset = simd.times(output, PIXEL_BLOCK)
        base = simd.plus(simd.times(output, output_stride), simd.times(channel, SIMD_LANES))

        def target(j: int, c: int) -> Any:
            row = simd.times(simd.plus(first, simd.plus(i, j)), simd.times(channels, SIMD_LANES))
            return simd.plus(base, simd.plus(row, c * SIMD_LANES))

        for j, row_totals in enumerate(totals):
            for c, total in enumerate(row_totals):
                builder.store(simd.load(result, target(j, c), SIMD_LANES), total)
        with cgutils.for_range(builder, n_blocks) as block:
            scores_start, block_start = (simd.times(block.index, stride) for stride in (scores_stride, blocks_stride))
            for half in (0, SIMD_LANES):
                pixels = simd.plus(offset, half)
                queries = [
                    simd.load(
                        blocks,
                        simd.plus(simd.plus(block_start, pixels), simd.times(simd.plus(channel, c), QUERY_BLOCK)),
                        SIMD_LANES,
                    )
                    for c in range(n_channels)
                ]
                for j, row_totals in enumerate(totals):
                    at = simd.plus(simd.plus(scores_start, pixels), simd.times(simd.plus(i, j), QUERY_BLOCK))
                    grad_score = simd.load(grad_scores, at, SIMD_LANES)
                    for query, total in zip(queries, row_totals, strict=True):
                        simd.accumulate(total, grad_score, query)
        for j, row_totals in enumerate(totals):
            for c, total in enumerate(row_totals):
                simd.store(builder.load(total), result, target(j, c))

    def for_entries(output: Any, channel: Any, n_channels: int) -> None:
        simd.for_groups(count, ACCUMULATORS // 4, lambda i, size: emit(output, channel, n_channels, i, size))

    with cgutils.for_range(builder, n_outputs) as output:
        simd.for_groups(channels, 4, lambda channel, size: for_entries(output.index, channel, size))
