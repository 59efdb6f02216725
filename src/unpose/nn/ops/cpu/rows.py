"""Lines of numbers that lie side by side in memory, for the planes of group attention on the CPU.

The compiler's own loops take the last numbers of a line one by one, and lines of an image are short.
"""

from collections.abc import Callable
from typing import Any

from numba.core import cgutils

from unpose.nn.ops.cpu.simd import HALF, I64, Lanes, lane_code


def _along(lanes: Lanes, count: Any, emit: Callable[[Any, int], None]) -> None:
    """``emit(first, width)`` for HALF numbers of a line at a time, some twice at its end; one by one if it is short."""
    builder = lanes.builder
    with builder.if_else(builder.icmp_signed(">=", count, I64(HALF))) as (long, short):
        with long:
            with cgutils.for_range(builder, builder.lshr(count, I64(HALF.bit_length() - 1))) as part:
                emit(lanes.times(part.index, HALF), HALF)
            emit(lanes.plus(count, -HALF), HALF)
        with short, cgutils.for_range(builder, count) as part:
            emit(part.index, 1)


@lane_code
def copy(lanes, target, to, source, at, count, factor):  # type: ignore[no-untyped-def]
    """A line of numbers, times a factor."""

    def emit(first: Any, width: int) -> None:
        value = lanes.load(source, lanes.plus(at, first), width)
        lanes.store(lanes.builder.fmul(value, lanes.splat(factor, width)), target, lanes.plus(to, first))

    _along(lanes, count, emit)


@lane_code
def inner(lanes, target, to, left, left_at, left_stride, right, right_at, right_stride, channels, count):  # type: ignore[no-untyped-def]
    """``sum_c left_c right_c`` of a line of numbers; channels are a stride apart."""

    def emit(first: Any, width: int) -> None:
        (total,) = lanes.sums(1, width)
        lanes.builder.store(lanes.vector(width)([0.0] * width), total)
        with cgutils.for_range(lanes.builder, channels) as channel:
            a = lanes.plus(lanes.plus(left_at, first), lanes.times(channel.index, left_stride))
            b = lanes.plus(lanes.plus(right_at, first), lanes.times(channel.index, right_stride))
            lanes.add(total, lanes.load(left, a, width), lanes.load(right, b, width))
        lanes.store(lanes.builder.load(total), target, lanes.plus(to, first))

    _along(lanes, count, emit)
