"""Columns of numbers on a GPU, and columns of words: two channels of half precision in 32 bits.

One instruction multiplies or adds both numbers of a word. These functions are written in the machine's language, since
the compiler does not keep the two together; Triton's interpreter, which knows no machine, has the same in Triton's own.
With ``PAIR`` = 1 they are float32 arithmetic.
"""

# Triton drops the way not taken only below an else.
# ruff: noqa: RET505

import os

import triton
import triton.language as tl

_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def _low(word):  # type: ignore[no-untyped-def]
    return word.to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _high(word):  # type: ignore[no-untyped-def]
    return (word >> 16).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def word(low, high):  # type: ignore[no-untyped-def]
    """Two columns as one of words, rounded."""
    if _INTERPRETED:
        low = low.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        return low | (high.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) << 16)
    else:
        return tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low.to(tl.float32), high.to(tl.float32)], tl.int32, True, 1
        )


@triton.jit
def _numbers(word):  # type: ignore[no-untyped-def]
    """Both columns of a column of words, in float32."""
    if _INTERPRETED:
        return _low(word).to(tl.float32), _high(word).to(tl.float32)
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }", "=f,=f,r",
            [word], (tl.float32, tl.float32), True, 1,
        )  # fmt: skip


@triton.jit
def twice(column, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """A column as a factor of all channels: both halves of words."""
    if PAIR == 1:
        return column
    else:
        return word(column, column)


@triton.jit
def plus(one, other, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    if PAIR == 1:
        return one + other
    elif _INTERPRETED:
        return word(_low(one) + _low(other), _high(one) + _high(other))
    else:
        return tl.inline_asm_elementwise("add.rn.f16x2 $0, $1, $2;", "=r,r,r", [one, other], tl.int32, True, 1)


@triton.jit
def times(one, other, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    if PAIR == 1:
        return one * other
    elif _INTERPRETED:
        return word(_low(one) * _low(other), _high(one) * _high(other))
    else:
        return tl.inline_asm_elementwise("mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [one, other], tl.int32, True, 1)


@triton.jit
def times_plus(one, other, more, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """one * other + more"""
    if PAIR == 1:
        return one * other + more
    elif _INTERPRETED:
        return word(_low(one) * _low(other) + _low(more), _high(one) * _high(other) + _high(more))
    else:
        return tl.inline_asm_elementwise(
            "fma.rn.f16x2 $0, $1, $2, $3;", "=r,r,r,r", [one, other, more], tl.int32, True, 1
        )


@triton.jit
def apart(column, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """The channels of a column, one float32 column for each."""
    if PAIR == 1:
        return (column,)
    else:
        return _numbers(column)


@triton.jit
def joined(column, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum over the channels of a column, in float32."""
    if PAIR == 1:
        return column
    else:
        low, high = _numbers(column)
        return low + high


@triton.jit
def pack_kernel(  # type: ignore[no-untyped-def]
    planar, words, largest, unit, kept, count, S: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr,
    ELEMENTS: tl.constexpr, PIXELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A planar map, two channels to a word: (b, n, d, g, pixels) -> (b, n, ceil(d / 2), g, pixels).

    Given the size of its largest entry, that comes to lie between 2^-5 and 2^-4, far from both ends of float16: the
    map is multiplied with a power of two, exactly, and ``unit`` becomes ``kept`` over that power.
    """
    WORDS: tl.constexpr = (CHANNELS + 1) // 2
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = number < count
    pixel, rest = number % PIXELS, number // PIXELS
    element, rest = rest % ELEMENTS, rest // ELEMENTS
    channel, image = rest % WORDS * 2, rest // WORDS
    at = planar + (image // HEADS * S[0] + image % HEADS * S[1] + channel * S[2] + element * S[3] + pixel)
    size = 1.0
    if largest is not None:
        # The exponent's bits, no more than those with which both powers are normal numbers.
        bits = tl.load(largest).to(tl.float32).to(tl.int32, bitcast=True)
        exponent = tl.minimum((bits >> 23) & 255, 248)
        size = ((249 - exponent) << 23).to(tl.float32, bitcast=True)
        tl.store(unit, ((exponent + 5) << 23).to(tl.float32, bitcast=True) * kept, mask=tl.program_id(0) == 0)
    low = tl.load(at, exists, 0.0).to(tl.float32) * size
    high = tl.load(at + S[2], exists & (channel + 1 < CHANNELS), 0.0).to(tl.float32) * size
    tl.store(words + number, word(low, high), exists)
