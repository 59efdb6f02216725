"""Vectors of pixels for the inner loops of group attention on the CPU: one lane is one pixel.

The compiler's own vectoriser stays at half the register width on AVX-512 and keeps no sum in a register while the
number of channels is unknown. Here a tile of neighbouring pixels is one vector, and every lane runs the same operations
in the same order whatever its neighbours hold. :mod:`unpose.nn.ops.cpu.microkernels` has the loops.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils

from unpose.compiled import vector_code

_FEATURES = binding.get_host_cpu_features()
_IS_WIDE, _IS_AVX = _FEATURES.get("avx512f", False), _FEATURES.get("avx", False)
HALF = 16 if _IS_WIDE else 8 if _IS_AVX else 4
WIDTH = 2 * HALF
"""Pixels of a tile: two registers, for enough sums that do not wait for each other."""
BLOCK = 4
"""Entries of the window are gone through in blocks of so many."""
SUMS = 8 if _IS_AVX and not _IS_WIDE else 16
"""Registers for sums, half of what there are."""
SHARE = SUMS // 4
"""Outputs that are computed together: each neighbour is read once for all of them."""
HASH = 0x9E3779B9
"""The index of a weight is multiplied with it before it is hashed; all wraps around at 2^32."""

I32, I64 = ir.IntType(32), ir.IntType(64)
# 2^r within half of zero: least relative error with the first coefficient one, 9e-8, and the Taylor series.
_POWERS = (1.0, 0.693146977599164, 0.2402224208537507, 0.05550733743251635, 0.009671512639650229, 0.0013264727197294262)
_LN2 = 0.6931471805599453


class Lanes:
    """What the loops say, in the compiler's words, for vectors of one type of number."""

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

    def splat(self, scalar: Any, width: int = WIDTH) -> Any:
        """A vector with ``scalar`` in every lane."""
        empty = ir.VectorType(scalar.type, width)(ir.Undefined)
        first = self.builder.insert_element(empty, scalar, I32(0))
        return self.builder.shuffle_vector(first, empty, ir.VectorType(I32, width)([0] * width))

    def constant(self, value: float) -> Any:
        return self.vector()([value] * WIDTH)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """``a * b + c``, rounded once where the machine can."""
        return self._call("fmuladd", a, b, c)

    def add(self, total: Any, a: Any, b: Any) -> None:
        """``total += a * b``"""
        self.builder.store(self.fma(a, b, self.builder.load(total)), total)

    def sums(self, count: int, width: int = WIDTH) -> list[Any]:
        """Registers for sums."""
        return [cgutils.alloca_once(self.builder, self.vector(width)) for _ in range(count)]

    def plus(self, a: Any, b: Any) -> Any:
        return self.builder.add(a, I64(b) if isinstance(b, int) else b)

    def times(self, a: Any, b: int | Any) -> Any:
        return self.builder.mul(a, I64(b) if isinstance(b, int) else b)

    def in_groups(self, count: Any, largest: int, emit: Callable[[Any, int], None]) -> None:
        """``emit(first, how many)`` for groups of ``largest``, a power of two, and for what remains."""
        builder, shift = self.builder, largest.bit_length() - 1
        with cgutils.for_range(builder, builder.lshr(count, I64(shift))) as group:
            emit(self.times(group.index, largest), largest)
        while (largest := largest // 2) > 0:
            with builder.if_then(builder.icmp_unsigned("!=", builder.and_(count, I64(largest)), I64(0))):
                emit(builder.and_(count, I64(~(2 * largest - 1))), largest)

    def larger(self, a: Any, b: Any) -> Any:
        """Of two; b where one is not a number, or what is not a number: what the machine has in one step."""
        if _IS_AVX:
            return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)
        return self._call("maximum", a, b)

    def _call(self, name: str, *values: Any) -> Any:
        """One of the compiler's own functions of vectors."""
        kind = values[0].type
        full = f"llvm.{name}.v{kind.count}{'f64' if self.is_double else 'f32'}"
        signature = ir.FunctionType(kind, [kind] * len(values))
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, signature, full), values)

    def power(self, x: Any) -> Any:
        """Two to the power of what is at most a little above zero; zero below the smallest normal number.

        ``2^n 2^r`` with a polynomial for r within half of zero. What is not a number stays so.
        """
        builder = self.builder
        shift, bits, bias = (52, 64, 1023) if self.is_double else (23, 32, 127)
        integer = ir.VectorType(ir.IntType(bits), WIDTH)
        x = self.larger(self.constant(-bias), x)  # a power of zero, from here down
        # Adding it rounds to a whole number, whose lowest bits are then the exponent of the power.
        magic = self.constant(1.5 * 2.0**shift + bias)
        rounded = builder.fadd(x, magic)
        r = builder.fsub(x, builder.fsub(rounded, magic))
        coefficients = list(_POWERS)
        if self.is_double:
            coefficients = [1.0]
            for term in range(1, 14):
                coefficients.append(coefficients[-1] * _LN2 / term)
        power = builder.shl(builder.bitcast(rounded, integer), integer([shift] * WIDTH))
        return builder.fmul(self._polynomial(coefficients, r), builder.bitcast(power, self.vector()))

    def _polynomial(self, coefficients: list[float], x: Any) -> Any:
        """Two coefficients at a time, so that sums wait for each other half as long; their number is even."""
        terms = [self.constant(coefficient) for coefficient in coefficients]
        pairs = [self.fma(odd, x, even) for even, odd in zip(terms[::2], terms[1::2], strict=True)]
        square, value = self.builder.fmul(x, x), pairs[-1]
        for pair in reversed(pairs[:-1]):
            value = self.fma(value, square, pair)
        return value

    def kept(self, pixels: Any, number: Any, seed: Any, threshold: Any) -> tuple[Any, Any]:
        """Which lanes keep their weight, for two weights: half of a hash is at least the threshold, of 16 bits.

        The hash is of the seed and the first weight's index, which is what the pixel adds, (WIDTH,) int32 that come
        times HASH, and a number.
        """
        builder, kind = self.builder, ir.VectorType(I32, WIDTH)

        def word(value: int) -> Any:
            return kind([value] * WIDTH)

        start = self.splat(builder.trunc(self.plus(self.times(number, HASH), seed), I32))
        x = builder.add(pixels, start)
        x = builder.mul(builder.xor(x, builder.lshr(x, word(16))), word(0x7FEB352D))
        x = builder.mul(builder.xor(x, builder.lshr(x, word(15))), word(0x846CA68B))
        x = builder.xor(x, builder.lshr(x, word(16)))
        least = self.splat(builder.trunc(builder.shl(threshold, I64(16)), I32))
        return builder.icmp_unsigned(">=", builder.shl(x, word(16)), least), builder.icmp_unsigned(">=", x, least)


lane_code = vector_code(lambda context, builder, kinds: Lanes(builder, context.get_value_type(kinds[0].dtype)))
"""Make ``emit(lanes, ...)`` callable from compiled code; the first argument is an array and says the type of number."""
