"""SIMD vectors of pixels for the CPU attention kernels, written as LLVM instructions.

One SIMD lane is one pixel: the channels of an image are stored as separate maps, so that the same channel of
neighbouring pixels is one vector load. Numba's own loop vectoriser uses half of the register width on AVX-512, and it
keeps no accumulator in a register while the number of channels is unknown at compile time. The microkernels
(:mod:`unpose.nn.ops.cpu.microkernels`) therefore emit vector instructions themselves, through :class:`VectorBuilder`.

Every lane runs the same operations in the same order, whatever the other lanes hold. A result therefore does not
depend on where a pixel lies in its vector.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils

from unpose.compiled import llvm_intrinsic

_FEATURES = binding.get_host_cpu_features()
_HAS_AVX512, _HAS_AVX = _FEATURES.get("avx512f", False), _FEATURES.get("avx", False)
SIMD_LANES = 16 if _HAS_AVX512 else 8 if _HAS_AVX else 4
"""float32 numbers in one SIMD register."""
PIXEL_BLOCK = 2 * SIMD_LANES
"""Neighbouring pixels computed together: two registers, so that enough accumulators are independent of each other."""
UNROLL = 4
"""Neighbours are processed in multiples of this number."""
ACCUMULATORS = 8 if _HAS_AVX and not _HAS_AVX512 else 16
"""Registers used as accumulators: half of those that the CPU has."""
OUTPUT_BLOCK = ACCUMULATORS // 4
"""Output elements computed together: each neighbour is loaded once for all of them."""
HASH_FACTOR = 0x9E3779B9
"""The index of an attention weight is multiplied by this factor before it is hashed for dropout, modulo 2^32."""

I32, I64 = ir.IntType(32), ir.IntType(64)
# Minimax polynomial of 2^r for |r| <= 1/2 with constant term 1: relative error 9e-8. float64 uses the Taylor series.
_EXP2_COEFFICIENTS = (
    1.0, 0.693146977599164, 0.2402224208537507, 0.05550733743251635, 0.009671512639650229, 0.0013264727197294262
)  # fmt: skip
_LN2 = 0.6931471805599453


class VectorBuilder:
    """Emits LLVM instructions for vectors of float32 or float64 numbers.

    All values are LLVM values, not numbers: the methods append instructions to the function that numba compiles.
    Indices are 64-bit integers and count numbers, not bytes.
    """

    def __init__(self, builder: Any, number_type: Any) -> None:
        self.builder, self.number_type = builder, number_type
        self.is_double = isinstance(number_type, ir.DoubleType)

    def vector_type(self, width: int = PIXEL_BLOCK) -> Any:
        return ir.VectorType(self.number_type, width)

    def load(self, pointer: Any, index: Any, width: int = PIXEL_BLOCK, kind: Any = None) -> Any:
        """Vector of ``width`` numbers, or of the LLVM vector type ``kind``, that starts at ``pointer[index]``."""
        kind = kind or self.vector_type(width)
        address = self.builder.bitcast(self.builder.gep(pointer, [index]), kind.as_pointer())
        return self.builder.load(address, align=4)

    def store(self, value: Any, pointer: Any, index: Any) -> None:
        address = self.builder.bitcast(self.builder.gep(pointer, [index]), value.type.as_pointer())
        self.builder.store(value, address, align=4)

    def load_scalar(self, pointer: Any, index: Any) -> Any:
        return self.builder.load(self.builder.gep(pointer, [index]))

    def broadcast(self, scalar: Any, width: int = PIXEL_BLOCK) -> Any:
        """Vector with ``scalar`` in every lane."""
        empty = ir.VectorType(scalar.type, width)(ir.Undefined)
        first = self.builder.insert_element(empty, scalar, I32(0))
        return self.builder.shuffle_vector(first, empty, ir.VectorType(I32, width)([0] * width))

    def constant(self, value: float) -> Any:
        return self.vector_type()([value] * PIXEL_BLOCK)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """``a * b + c``, rounded once where the CPU has the instruction."""
        return self._call_llvm("fmuladd", a, b, c)

    def accumulators(self, count: int, width: int = PIXEL_BLOCK) -> list[Any]:
        """Uninitialised vector variables, which LLVM keeps in registers."""
        return [cgutils.alloca_once(self.builder, self.vector_type(width)) for _ in range(count)]

    def accumulate(self, accumulator: Any, a: Any, b: Any) -> None:
        """``accumulator += a * b``"""
        self.builder.store(self.fma(a, b, self.builder.load(accumulator)), accumulator)

    def plus(self, a: Any, b: Any) -> Any:
        """Sum of two indices."""
        return self.builder.add(a, I64(b) if isinstance(b, int) else b)

    def times(self, a: Any, b: int | Any) -> Any:
        """Product of two indices."""
        return self.builder.mul(a, I64(b) if isinstance(b, int) else b)

    def for_groups(self, count: Any, largest: int, emit: Callable[[Any, int], None]) -> None:
        """Loop over ``range(count)`` in groups: ``emit(first index, group size)``.

        Groups have ``largest`` members, a power of two; the remainder is covered by smaller powers of two. The size is
        known at compile time, so that ``emit`` can use one register per member.
        """
        builder, shift = self.builder, largest.bit_length() - 1
        with cgutils.for_range(builder, builder.lshr(count, I64(shift))) as group:
            emit(self.times(group.index, largest), largest)
        while (largest := largest // 2) > 0:
            with builder.if_then(builder.icmp_unsigned("!=", builder.and_(count, I64(largest)), I64(0))):
                emit(builder.and_(count, I64(~(2 * largest - 1))), largest)

    def maximum(self, a: Any, b: Any) -> Any:
        """Larger of two vectors in one instruction. Where one is NaN: ``b`` with AVX, else NaN."""
        if _HAS_AVX:
            return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)
        return self._call_llvm("maximum", a, b)

    def exp2(self, x: Any) -> Any:
        """``2^x`` for x at most slightly above 0; zero where the result is not a normal number, NaN where x is NaN.

        Splits x into an integer n and a remainder r with |r| <= 1/2, and multiplies a polynomial of r by 2^n.
        """
        builder = self.builder
        mantissa_bits, bits, exponent_bias = (52, 64, 1023) if self.is_double else (23, 32, 127)
        integer = ir.VectorType(ir.IntType(bits), PIXEL_BLOCK)
        x = self.maximum(self.constant(-exponent_bias), x)  # from here down the exponent field, and so 2^n, is zero
        # Adding this number rounds x to an integer and leaves n + exponent_bias in the lowest bits of the mantissa.
        magic = self.constant(1.5 * 2.0**mantissa_bits + exponent_bias)
        rounded = builder.fadd(x, magic)
        r = builder.fsub(x, builder.fsub(rounded, magic))
        coefficients = list(_EXP2_COEFFICIENTS)
        if self.is_double:
            coefficients = [1.0]
            for term in range(1, 14):
                coefficients.append(coefficients[-1] * _LN2 / term)
        power = builder.shl(builder.bitcast(rounded, integer), integer([mantissa_bits] * PIXEL_BLOCK))
        return builder.fmul(self._polynomial(coefficients, r), builder.bitcast(power, self.vector_type()))

    def dropout_mask(self, pixel_hash: Any, index: Any, seed: Any, threshold: Any) -> tuple[Any, Any]:
        """Lanes that keep their weight, for output elements h (even) and h + 1, which share one 32-bit hash.

        The hash is of the seed and of the weight's index, which is the sum of a pixel's part, given times HASH_FACTOR
        as ``pixel_hash`` (PIXEL_BLOCK,) int32, and of ``index``. Its lower 16 bits decide for the first element, its
        upper 16 bits for the second: a weight is kept where they are at least ``threshold``.
        """
        builder, kind = self.builder, ir.VectorType(I32, PIXEL_BLOCK)

        def constant(value: int) -> Any:
            return kind([value] * PIXEL_BLOCK)

        start = self.broadcast(builder.trunc(self.plus(self.times(index, HASH_FACTOR), seed), I32))
        x = builder.add(pixel_hash, start)
        x = builder.mul(builder.xor(x, builder.lshr(x, constant(16))), constant(0x7FEB352D))
        x = builder.mul(builder.xor(x, builder.lshr(x, constant(15))), constant(0x846CA68B))
        x = builder.xor(x, builder.lshr(x, constant(16)))
        least = self.broadcast(builder.trunc(builder.shl(threshold, I64(16)), I32))
        lower, upper = builder.shl(x, constant(16)), x
        return builder.icmp_unsigned(">=", lower, least), builder.icmp_unsigned(">=", upper, least)

    def _call_llvm(self, name: str, *values: Any) -> Any:
        """Call one of LLVM's element-wise vector intrinsics."""
        kind = values[0].type
        full = f"llvm.{name}.v{kind.count}{'f64' if self.is_double else 'f32'}"
        signature = ir.FunctionType(kind, [kind] * len(values))
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, signature, full), values)

    def _polynomial(self, coefficients: list[float], x: Any) -> Any:
        """Polynomial with an even number of coefficients, in pairs: half the latency of Horner's rule."""
        terms = [self.constant(coefficient) for coefficient in coefficients]
        pairs = [self.fma(odd, x, even) for even, odd in zip(terms[::2], terms[1::2], strict=True)]
        square, value = self.builder.fmul(x, x), pairs[-1]
        for pair in reversed(pairs[:-1]):
            value = self.fma(value, square, pair)
        return value


microkernel = llvm_intrinsic(
    lambda context, builder, types: VectorBuilder(builder, context.get_value_type(types[0].dtype)), inline=False
)
"""Decorator: make ``emit(simd, ...)`` callable from numba kernels; ``simd`` is a :class:`VectorBuilder`.

The first argument of the call is an array; its dtype is that of all vectors.
"""
