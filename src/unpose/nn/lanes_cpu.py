"""The inner loops of group attention on the CPU as explicit vector code: one lane is one pixel.

The compiler's own vectoriser stays at half the register width on AVX-512 and keeps no sum in a register while the
number of channels is unknown. Here a tile of neighbouring pixels is one vector; sums over channels or over entries of
the window stay in registers, and every lane runs the same operations in the same order whatever its neighbours hold.

Maps are planes, (element, channel, pixel), so that the keys at one offset from a tile's pixels are one load. Entries of
the window come in blocks of four, which share each load of the pixels they belong to.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

_FEATURES = binding.get_host_cpu_features()
HALF = 16 if _FEATURES.get("avx512f", False) else 8 if _FEATURES.get("avx", False) else 4
WIDTH = 2 * HALF
"""Pixels of a tile: two registers, for enough sums that do not wait for each other."""
BLOCK = 4
"""Entries of the window that are scored together."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.693145751953125, 1.4286068203094173e-06


class _Lanes:
    """What the loops below say, in the compiler's words, for vectors of one type of number."""

    def __init__(self, builder: Any, number: Any) -> None:
        self.builder, self.number = builder, number
        self.is_double = isinstance(number, ir.DoubleType)

    def vector(self, width: int = WIDTH) -> Any:
        return ir.VectorType(self.number, width)

    def at(self, pointer: Any, index: Any) -> Any:
        """Address ``index`` numbers further on."""
        return self.builder.gep(pointer, [index])

    def load(self, pointer: Any, index: Any, width: int = WIDTH, kind: Any = None) -> Any:
        kind = kind or self.vector(width)
        place = self.builder.bitcast(self.at(pointer, index), kind.as_pointer())
        return self.builder.load(place, align=4)

    def store(self, value: Any, pointer: Any, index: Any) -> None:
        place = self.builder.bitcast(self.at(pointer, index), value.type.as_pointer())
        self.builder.store(value, place, align=4)

    def entry(self, pointer: Any, index: Any) -> Any:
        """One number of an array."""
        return self.builder.load(self.at(pointer, index))

    def splat(self, scalar: Any) -> Any:
        """A vector with ``scalar`` in every lane."""
        empty = ir.VectorType(scalar.type, WIDTH)(ir.Undefined)
        first = self.builder.insert_element(empty, scalar, _I32(0))
        return self.builder.shuffle_vector(first, empty, ir.VectorType(_I32, WIDTH)([0] * WIDTH))

    def constant(self, value: float) -> Any:
        return self.vector()([value] * WIDTH)

    def call(self, name: str, *args: Any) -> Any:
        kind = args[0].type
        letter = "f64" if self.is_double else "f32"
        full = f"{name}.v{kind.count}{letter}"
        signature = ir.FunctionType(kind, [kind] * len(args))
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, signature, full), args)

    def add(self, total: Any, a: Any, b: Any) -> None:
        """``total += a * b``, rounded once where the machine can."""
        self.builder.store(self.call("llvm.fmuladd", a, b, self.builder.load(total)), total)

    def sums(self, count: int, width: int = WIDTH) -> list[Any]:
        """Registers for sums."""
        return [cgutils.alloca_once(self.builder, self.vector(width)) for _ in range(count)]

    def clear(self, totals: list[Any]) -> None:
        for total in totals:
            self.builder.store(total.type.pointee([0.0] * total.type.pointee.count), total)

    def plus(self, a: Any, b: Any) -> Any:
        return self.builder.add(a, b)

    def times(self, a: Any, b: int | Any) -> Any:
        return self.builder.mul(a, _I64(b) if isinstance(b, int) else b)

    def exp(self, x: Any) -> Any:
        """The exponential of what is at most a little above zero; zero below the smallest normal number.

        ``2^n exp(r)`` with a Taylor series for r within half of log 2. What is not a number stays so.
        """
        builder = self.builder
        shift, bits, bias, terms, low = (52, 64, 1023, 13, -708.0) if self.is_double else (23, 32, 127, 7, -87.0)
        integer = ir.VectorType(ir.IntType(bits), WIDTH)
        magic = 1.5 * 2.0**shift  # adding it rounds to a whole number, whose bits are then the lowest
        rounded = self.call("llvm.fmuladd", x, self.constant(_LOG2_E), self.constant(magic))
        whole = builder.fsub(rounded, self.constant(magic))
        r = self.call("llvm.fmuladd", whole, self.constant(-_LN2_HIGH), x)
        r = self.call("llvm.fmuladd", whole, self.constant(-_LN2_LOW), r)
        factorial, coefficients = 1.0, [1.0]
        for term in range(1, terms + 1):
            factorial *= term
            coefficients.append(1.0 / factorial)
        value = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self.call("llvm.fmuladd", value, r, self.constant(coefficient))
        power = builder.add(builder.bitcast(rounded, integer), integer([bias] * WIDTH))
        power = builder.bitcast(builder.shl(power, integer([shift] * WIDTH)), self.vector())
        below = builder.fcmp_ordered("<", x, self.constant(low))
        return builder.select(below, self.constant(0.0), builder.fmul(value, power))

    def kept(self, numbers: Any, entries: Any, offset: Any, seed: Any, threshold: Any) -> Any:
        """Which lanes keep their weight: a hash of the seed and the weight's index is at least the threshold.

        The index is ``numbers * entries + offset``, numbers (WIDTH,) int32; all wraps around at 2^32.
        """
        builder, kind = self.builder, ir.VectorType(_I32, WIDTH)

        def word(value: int) -> Any:
            return kind([value] * WIDTH)

        def scalar(value: Any) -> Any:
            return self.splat(builder.trunc(value, _I32))

        x = builder.add(builder.mul(numbers, scalar(entries)), scalar(offset))
        x = builder.add(builder.mul(x, word(0x9E3779B9)), scalar(seed))
        x = builder.mul(builder.xor(x, builder.lshr(x, word(16))), word(0x7FEB352D))
        x = builder.mul(builder.xor(x, builder.lshr(x, word(15))), word(0x846CA68B))
        x = builder.xor(x, builder.lshr(x, word(16)))
        return builder.icmp_unsigned(">=", x, scalar(threshold))


def _vector_code(emit: Callable[..., None]) -> Any:
    """Make ``emit(lanes, ...)`` callable from compiled code; arrays reach it as addresses, the first says the type."""

    def address(context: Any, builder: Any, kind: Any, arg: Any) -> Any:
        return context.make_array(kind)(context, builder, arg).data if isinstance(kind, types.Array) else arg

    @wraps(emit)  # numba counts the arguments by the signature, where its own context stands for the lanes
    def define(typing: Any, *kinds: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            lanes = _Lanes(builder, context.get_value_type(kinds[0].dtype))
            emit(lanes, *(address(context, builder, t, arg) for t, arg in zip(kinds, args, strict=True)))
            return context.get_dummy_value()

        return types.void(*kinds), codegen

    return intrinsic(define)


def _emit_dots(
    lanes: _Lanes,
    fixed: Any,
    fixed_at: Any,
    moving: Any,
    moving_at: Any,
    offsets: Any,
    first: Any,
    blocks: Any,
    channels: Any,
    stride: Any,
    table: Any,
    out: Any,
    place: str,
) -> None:
    totals = lanes.sums(BLOCK)
    with cgutils.for_range(lanes.builder, blocks) as block:
        entry = lanes.plus(first, lanes.times(block.index, BLOCK))
        starts = [lanes.plus(moving_at, lanes.entry(offsets, lanes.plus(entry, _I64(i)))) for i in range(BLOCK)]
        lanes.clear(totals)
        with cgutils.for_range(lanes.builder, channels) as channel:
            row = lanes.times(channel.index, stride)
            here = lanes.load(fixed, lanes.plus(fixed_at, row))
            code = lanes.plus(lanes.times(entry, channels), lanes.times(channel.index, BLOCK))
            for i, (total, start) in enumerate(zip(totals, starts, strict=True)):
                there = lanes.load(moving, lanes.plus(start, row))
                lanes.add(total, here, there)
                if place:
                    encoded = lanes.splat(lanes.entry(table, lanes.plus(code, _I64(i))))
                    lanes.add(total, here if place == "fixed" else there, encoded)
        for i, total in enumerate(totals):
            target = lanes.times(lanes.plus(lanes.times(block.index, BLOCK), _I64(i)), WIDTH)
            lanes.store(lanes.builder.load(total), out, target)


@_vector_code
def query_scores(lanes, query, query_at, key, key_at, offsets, first, blocks, channels, stride, table, out):  # type: ignore[no-untyped-def]
    """``sum_c query_c (key_c + table_c)`` of a tile of queries with blocks of entries, into rows of ``out``.

    Planes are ``stride`` numbers apart; entry e of the key lies ``offsets[e]`` beyond ``key_at``. table (entries / 4,
    channels, 4).
    """
    _emit_dots(lanes, query, query_at, key, key_at, offsets, first, blocks, channels, stride, table, out, "fixed")


@_vector_code
def key_scores(lanes, key, key_at, query, query_at, offsets, first, blocks, channels, stride, table, out):  # type: ignore[no-untyped-def]
    """The same scores seen from a tile of keys, each with the queries that lie ``offsets[e]`` away."""
    _emit_dots(lanes, key, key_at, query, query_at, offsets, first, blocks, channels, stride, table, out, "moving")


@_vector_code
def products(lanes, fixed, fixed_at, moving, moving_at, offsets, first, blocks, channels, stride, out):  # type: ignore[no-untyped-def]
    """``sum_c fixed_c moving_c``, without an encoding."""
    _emit_dots(lanes, fixed, fixed_at, moving, moving_at, offsets, first, blocks, channels, stride, None, out, "")


def _in_blocks(lanes: _Lanes, channels: Any, emit: Callable[[Any, int], None]) -> None:
    """``emit(first channel, count)`` for blocks of four channels and what remains."""
    builder = lanes.builder
    with cgutils.for_range(builder, builder.lshr(channels, _I64(2))) as block:
        emit(lanes.times(block.index, 4), 4)
    for count in (2, 1):
        with builder.if_then(builder.icmp_unsigned("!=", builder.and_(channels, _I64(count)), _I64(0))):
            emit(builder.and_(channels, _I64(~(2 * count - 1))), count)


def _emit_gather(
    lanes: _Lanes,
    weights: Any,
    moving: Any,
    moving_at: Any,
    offsets: Any,
    first: Any,
    blocks: Any,
    channels: Any,
    stride: Any,
    table: Any,
    rows: Any,
    out: Any,
) -> None:
    def emit(start: Any, count: int) -> None:
        totals = lanes.sums(count)
        places = [lanes.plus(start, _I64(c)) for c in range(count)]
        for total, c in zip(totals, places, strict=True):
            lanes.builder.store(lanes.load(out, lanes.times(c, WIDTH)), total)
        with cgutils.for_range(lanes.builder, blocks) as block:
            for i in range(BLOCK):
                number = lanes.plus(lanes.times(block.index, BLOCK), _I64(i))
                entry = lanes.plus(first, number)
                weight = lanes.load(weights, lanes.times(number, WIDTH))
                at = lanes.plus(moving_at, lanes.entry(offsets, entry))
                for total, c in zip(totals, places, strict=True):
                    value = lanes.load(moving, lanes.plus(at, lanes.times(c, stride)))
                    if table is not None:
                        code = lanes.times(lanes.plus(first, lanes.times(block.index, BLOCK)), rows)
                        code = lanes.plus(code, lanes.plus(lanes.times(c, BLOCK), _I64(i)))
                        value = lanes.builder.fadd(value, lanes.splat(lanes.entry(table, code)))
                    lanes.add(total, weight, value)
        for total, c in zip(totals, places, strict=True):
            lanes.store(lanes.builder.load(total), out, lanes.times(c, WIDTH))

    _in_blocks(lanes, channels, emit)


@_vector_code
def gather(lanes, weights, moving, moving_at, offsets, first, blocks, channels, stride, out):  # type: ignore[no-untyped-def]
    """Add ``sum_e weights_e moving_e`` to the rows of ``out`` (channels, WIDTH)."""
    _emit_gather(lanes, weights, moving, moving_at, offsets, first, blocks, channels, stride, None, None, out)


@_vector_code
def gather_encoded(lanes, weights, moving, moving_at, offsets, first, blocks, channels, stride, table, rows, out):  # type: ignore[no-untyped-def]
    """Add ``sum_e weights_e (moving_e + table_e)``; table (entries / 4, rows, 4), of which the first channels count."""
    _emit_gather(lanes, weights, moving, moving_at, offsets, first, blocks, channels, stride, table, rows, out)


@_vector_code
def outer(lanes, weights, query, query_at, first, blocks, channels, stride, out):  # type: ignore[no-untyped-def]
    """Add ``weights_e query_c`` to out (entries, channels, HALF): sums over pixels, HALF of them side by side."""

    def emit(start: Any, count: int) -> None:
        queries = []
        for c in range(count):
            at = lanes.plus(query_at, lanes.times(lanes.plus(start, _I64(c)), stride))
            queries.append([lanes.load(query, lanes.plus(at, _I64(part)), HALF) for part in (0, HALF)])
        with cgutils.for_range(lanes.builder, lanes.times(blocks, BLOCK)) as number:
            at = lanes.times(number.index, WIDTH)
            low, high = (lanes.load(weights, lanes.plus(at, _I64(part)), HALF) for part in (0, HALF))
            row = lanes.plus(lanes.times(lanes.plus(first, number.index), channels), start)
            for c, (query_low, query_high) in enumerate(queries):
                target = lanes.times(lanes.plus(row, _I64(c)), HALF)
                total = lanes.call("llvm.fmuladd", low, query_low, lanes.load(out, target, HALF))
                lanes.store(lanes.call("llvm.fmuladd", high, query_high, total), out, target)

    _in_blocks(lanes, channels, emit)


@_vector_code
def peak(lanes, scores, count, top):  # type: ignore[no-untyped-def]
    """Raise ``top`` (WIDTH,) to the largest of ``count`` rows."""
    (largest,) = lanes.sums(1)
    lanes.builder.store(lanes.load(top, _I64(0)), largest)
    with cgutils.for_range(lanes.builder, count) as row:
        value, old = lanes.load(scores, lanes.times(row.index, WIDTH)), lanes.builder.load(largest)
        larger = lanes.builder.fcmp_ordered(">", value, old)
        lanes.builder.store(lanes.builder.select(larger, value, old), largest)
    lanes.store(lanes.builder.load(largest), top, _I64(0))


@_vector_code
def exponentials(lanes, scores, count, top, total):  # type: ignore[no-untyped-def]
    """Replace rows by ``exp(row - top)`` and add them to ``total`` (WIDTH,)."""
    (sum_,) = lanes.sums(1)
    lanes.builder.store(lanes.load(total, _I64(0)), sum_)
    highest = lanes.load(top, _I64(0))
    with cgutils.for_range(lanes.builder, count) as row:
        at = lanes.times(row.index, WIDTH)
        value = lanes.exp(lanes.builder.fsub(lanes.load(scores, at), highest))
        lanes.builder.store(lanes.builder.fadd(lanes.builder.load(sum_), value), sum_)
        lanes.store(value, scores, at)
    lanes.store(lanes.builder.load(sum_), total, _I64(0))


@_vector_code
def drop(lanes, weights, count, numbers, numbers_at, indices, first, entries, base, seed, threshold, factor):  # type: ignore[no-untyped-def]
    """Multiply the weights that are kept by ``factor`` (1,), and the others by zero."""
    builder = lanes.builder
    here = lanes.load(numbers, numbers_at, kind=ir.VectorType(_I32, WIDTH))
    scale = lanes.splat(lanes.entry(factor, _I64(0)))
    with cgutils.for_range(builder, count) as row:
        offset = lanes.plus(base, lanes.entry(indices, lanes.plus(first, row.index)))
        kept = lanes.kept(here, entries, offset, seed, threshold)
        at = lanes.times(row.index, WIDTH)
        value = builder.fmul(lanes.load(weights, at), scale)
        lanes.store(builder.select(kept, value, lanes.constant(0.0)), weights, at)


def _emit_gradients(
    lanes: _Lanes,
    scores: Any,
    products: Any,
    count: Any,
    level: Any,
    delta: Any,
    at: Any,
    offsets: Any,
    first: Any,
    dropped: tuple[Any, ...] | None,
) -> None:
    builder = lanes.builder
    with cgutils.for_range(builder, count) as row:
        entry, target = lanes.plus(first, row.index), lanes.times(row.index, WIDTH)
        place = lanes.plus(at, lanes.entry(offsets, entry))
        weight = lanes.exp(builder.fsub(lanes.load(scores, target), lanes.load(level, place)))
        slope, used = lanes.load(products, target), weight
        if dropped is not None:
            numbers, pixels_at, shifts, indices, entries, base, seed, threshold, factor = dropped
            pixels = lanes.load(
                numbers, lanes.plus(pixels_at, lanes.entry(shifts, entry)), kind=ir.VectorType(_I32, WIDTH)
            )
            offset = lanes.plus(base, lanes.entry(indices, entry))
            kept = lanes.kept(pixels, entries, offset, seed, threshold)
            scale = builder.select(kept, lanes.splat(lanes.entry(factor, _I64(0))), lanes.constant(0.0))
            slope, used = builder.fmul(slope, scale), builder.fmul(used, scale)
        lanes.store(builder.fmul(weight, builder.fsub(slope, lanes.load(delta, place))), scores, target)
        lanes.store(used, products, target)


@_vector_code
def gradients(lanes, scores, products, count, level, delta, at, offsets, first):  # type: ignore[no-untyped-def]
    """From scores and ``<gradient, value>`` to gradients of the scores, and to the weights; both in place.

    ``weight = exp(score - level)`` and ``weight (product - delta)``, level and delta at ``offsets[e]`` beyond ``at``.
    """
    _emit_gradients(lanes, scores, products, count, level, delta, at, offsets, first, None)


@_vector_code
def dropped_gradients(  # type: ignore[no-untyped-def]
    lanes, scores, products, count, level, delta, at, offsets, first,
    numbers, numbers_at, shifts, indices, entries, base, seed, threshold, factor,
):  # fmt: skip
    """The same where some weights were dropped: :func:`drop` says which."""
    dropped = (numbers, numbers_at, shifts, indices, entries, base, seed, threshold, factor)
    _emit_gradients(lanes, scores, products, count, level, delta, at, offsets, first, dropped)
