"""Vector loops over one row of an image, used to copy rows into and out of the padded maps.

Numba's own loops process the last numbers of a row one at a time, which is slow because image rows are short. Here the
last vector overlaps the one before it instead.
"""

from collections.abc import Callable
from typing import Any

from numba.core import cgutils

from unpose.nn.ops.cpu.simd import I64, SIMD_LANES, VectorBuilder, microkernel


def _for_vectors(simd: VectorBuilder, count: Any, emit: Callable[[Any, int], None]) -> None:
    """``emit(first, width)`` for vectors of SIMD_LANES numbers that cover ``range(count)``; one by one if short."""
    builder = simd.builder
    with builder.if_else(builder.icmp_signed(">=", count, I64(SIMD_LANES))) as (long, short):
        with long:
            with cgutils.for_range(builder, builder.lshr(count, I64(SIMD_LANES.bit_length() - 1))) as vector:
                emit(simd.times(vector.index, SIMD_LANES), SIMD_LANES)
            emit(simd.plus(count, -SIMD_LANES), SIMD_LANES)
        with short, cgutils.for_range(builder, count) as number:
            emit(number.index, 1)


@microkernel
def copy_row(simd, target, target_start, source, source_start, count, factor):  # type: ignore[no-untyped-def]
    """``target[target_start + i] = factor * source[source_start + i]`` for i < count."""

    def emit(first: Any, width: int) -> None:
        value = simd.load(source, simd.plus(source_start, first), width)
        scaled = simd.builder.fmul(value, simd.broadcast(factor, width))
        simd.store(scaled, target, simd.plus(target_start, first))

    _for_vectors(simd, count, emit)


@microkernel
def dot_rows(simd, target, target_start, a, a_start, a_stride, b, b_start, b_stride, channels, count):  # type: ignore[no-untyped-def]
    """``target[i] = sum_c a[i, c] b[i, c]`` for the ``count`` pixels of a row; strides are between channels."""

    def emit(first: Any, width: int) -> None:
        (total,) = simd.accumulators(1, width)
        simd.builder.store(simd.vector_type(width)([0.0] * width), total)
        with cgutils.for_range(simd.builder, channels) as channel:
            a_at = simd.plus(simd.plus(a_start, first), simd.times(channel.index, a_stride))
            b_at = simd.plus(simd.plus(b_start, first), simd.times(channel.index, b_stride))
            simd.accumulate(total, simd.load(a, a_at, width), simd.load(b, b_at, width))
        simd.store(simd.builder.load(total), target, simd.plus(target_start, first))

    _for_vectors(simd, count, emit)
