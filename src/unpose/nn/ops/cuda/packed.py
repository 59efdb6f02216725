"""Columns of numbers on a GPU, and columns of words: the numbers of two images, in half precision, in 32 bits.

One instruction multiplies, adds or compares both numbers of a word. These functions are written in the machine's
language, since the compiler does not keep the two together; Triton's interpreter, which knows no machine, has the same
in Triton's own. With ``PAIR`` = 1, one image in a column, they are float32 arithmetic.
"""

# Triton reads no stars in tuples, and drops the way not taken only below an else.
# ruff: noqa: RUF005, RET505
# mypy: disable-error-code="assignment"

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


# Loads and stores are written in that language too: for each one of Triton's own, and there are a hundred in a kernel,
# its compiler looks through everything for a layout, which takes half a minute. What is read is not written to while a
# kernel runs.


@triton.jit
def load(at):  # type: ignore[no-untyped-def]
    """Numbers behind pointers, in float32."""
    if _INTERPRETED:
        return tl.load(at).to(tl.float32)
    elif at.dtype.element_ty == tl.float32:
        return tl.inline_asm_elementwise("ld.global.nc.f32 $0, [$1];", "=f,l", [at.to(tl.int64)], tl.float32, True, 1)
    else:
        bits = tl.inline_asm_elementwise("ld.global.nc.b16 $0, [$1];", "=h,l", [at.to(tl.int64)], tl.int16, True, 1)
        return bits.to(at.dtype.element_ty, bitcast=True).to(tl.float32)


@triton.jit
def read(at, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """A column behind pointers."""
    if PAIR == 1:
        return load(at)
    elif _INTERPRETED:
        return tl.load(at)
    else:
        return tl.inline_asm_elementwise("ld.global.nc.b32 $0, [$1];", "=r,l", [at.to(tl.int64)], tl.int32, True, 1)


@triton.jit
def store(at, number, exists):  # type: ignore[no-untyped-def]
    """A float32 column, rounded, behind pointers where there is something to write to."""
    number = number.to(at.dtype.element_ty)
    if _INTERPRETED:
        tl.store(at, number, exists)
    elif at.dtype.element_ty == tl.float32:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.f32 [$1], $2; mov.b32 $0, 0; }", "=r,l,f,r",
            [at.to(tl.int64), number, exists.to(tl.int32)], tl.int32, False, 1,
        )  # fmt: skip
    else:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.b16 [$1], $2; mov.b32 $0, 0; }", "=r,l,h,r",
            [at.to(tl.int64), number.to(tl.int16, bitcast=True), exists.to(tl.int32)], tl.int32, False, 1,
        )  # fmt: skip


@triton.jit
def put(at, column, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write a column behind pointers, as it is."""
    if _INTERPRETED:
        tl.store(at, column)
    elif PAIR == 1:
        tl.inline_asm_elementwise(
            "st.global.f32 [$1], $2; mov.b32 $0, 0;", "=r,l,f", [at.to(tl.int64), column], tl.int32, False, 1
        )
    else:
        tl.inline_asm_elementwise(
            "st.global.b32 [$1], $2; mov.b32 $0, 0;", "=r,l,r", [at.to(tl.int64), column], tl.int32, False, 1
        )


@triton.jit
def carried(at, begin, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """A column behind pointers, or zeros where nothing has begun."""
    if _INTERPRETED:
        return tl.load(at, mask=begin + tl.zeros(at.shape, tl.int32) > 0, other=0)
    elif PAIR == 1:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.gt.s32 p, $2, 0; mov.f32 $0, 0f00000000; @p ld.global.f32 $0, [$1]; }", "=f,l,r",
            [at.to(tl.int64), begin], tl.float32, True, 1,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.gt.s32 p, $2, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1]; }", "=r,l,r",
            [at.to(tl.int64), begin], tl.int32, True, 1,
        )  # fmt: skip


@triton.jit
def apart(column, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """The numbers of a column, one float32 column for each image."""
    if PAIR == 1:
        return (column,)
    elif _INTERPRETED:
        return _low(column).to(tl.float32), _high(column).to(tl.float32)
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }", "=f,=f,r",
            [column], (tl.float32, tl.float32), True, 1,
        )  # fmt: skip


@triton.jit
def together(columns, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """A float32 column for each image -> one column."""
    if PAIR == 1:
        return columns[0]
    else:
        return word(columns[0], columns[1])


@triton.jit
def alike(column, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """A float32 column as the same number of all images."""
    if PAIR == 1:
        return column
    else:
        return word(column, column)


@triton.jit
def codes_of(at, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """SIZE words of 32 bits of an entry of the table: four in one load, and no more than there are.

    All lanes read the same, but each has to be given it: what is read costs, not the number of loads.
    """
    codes = ()
    if _INTERPRETED:
        for c in tl.static_range(SIZE):
            codes = codes + (tl.load(at + c),)
    else:
        for c in tl.static_range(0, SIZE // 4 * 4, 4):
            codes = codes + tl.inline_asm_elementwise(
                "ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l",
                [(at + c).to(tl.int64)], (tl.int32, tl.int32, tl.int32, tl.int32), True, 1,
            )  # fmt: skip
        for c in tl.static_range(SIZE // 4 * 4, SIZE):
            codes = codes + (tl.load(at + c),)
    return codes


@triton.jit
def code_of(codes, c: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Channel c of an entry of the table, for all images. A word of it is a float32, or of two images two channels."""
    if PAIR == 1:
        return codes[c].to(tl.float32, bitcast=True)
    elif _INTERPRETED:
        half = (codes[c // 2] >> (16 * (c % 2))) & 0xFFFF
        return half | (half << 16)
    elif c % 2 == 0:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; mov.b32 {l, h}, $1; mov.b32 $0, {l, l}; }", "=r,r", [codes[c // 2]], tl.int32, True, 1
        )
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; mov.b32 {l, h}, $1; mov.b32 $0, {h, h}; }", "=r,r", [codes[c // 2]], tl.int32, True, 1
        )


@triton.jit
def plus(one, other, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    if PAIR == 1:
        return one + other
    elif _INTERPRETED:
        return word(_low(one) + _low(other), _high(one) + _high(other))
    else:
        return tl.inline_asm_elementwise("add.rn.f16x2 $0, $1, $2;", "=r,r,r", [one, other], tl.int32, True, 1)


@triton.jit
def less(one, other, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """one - other"""
    if PAIR == 1:
        return one - other
    elif _INTERPRETED:
        return word(_low(one) - _low(other), _high(one) - _high(other))
    else:
        return tl.inline_asm_elementwise("sub.rn.f16x2 $0, $1, $2;", "=r,r,r", [one, other], tl.int32, True, 1)


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
def greater(one, other, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """The greater of the two."""
    if PAIR == 1:
        return tl.maximum(one, other)
    elif _INTERPRETED:
        return word(tl.maximum(_low(one), _low(other)), tl.maximum(_high(one), _high(other)))
    else:
        return tl.inline_asm_elementwise("max.f16x2 $0, $1, $2;", "=r,r,r", [one, other], tl.int32, True, 1)


@triton.jit
def power(column, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Two to the power of a column."""
    if PAIR == 1:
        return tl.exp2(column)
    elif _INTERPRETED:
        return word(tl.exp2(_low(column).to(tl.float32)), tl.exp2(_high(column).to(tl.float32)))
    else:
        return tl.inline_asm_elementwise("ex2.approx.f16x2 $0, $1;", "=r,r", [column], tl.int32, True, 1)


@triton.jit
def keep_of(mark, entry, least, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """One where dropout keeps the weight of a query at an entry, zero elsewhere. ``mark`` is the query's hash.

    The entry's own part is the same for all lanes. One hash decides for both images of a word, 14 bits of it for each:
    as halves these are finite and positive, so one instruction compares them.
    """
    mixed = (mark ^ entry.to(tl.uint32) * 0x9E3779B9) * 0x85EBCA6B
    if PAIR == 1:
        return tl.where(mixed >= least.to(tl.uint32, bitcast=True), 1.0, 0.0)
    else:
        drawn = (mixed & 0x3FFF3FFF).to(tl.int32, bitcast=True)
        if _INTERPRETED:
            low = tl.where((drawn & 0xFFFF) >= (least & 0xFFFF), 1.0, 0.0)
            return word(low, tl.where((drawn >> 16) >= (least >> 16), 1.0, 0.0))
        else:
            return tl.inline_asm_elementwise(
                "set.ge.f16x2.f16x2 $0, $1, $2;", "=r,r,r", [drawn, least], tl.int32, True, 1
            )


@triton.jit
def pack_kernel(  # type: ignore[no-untyped-def]
    planar, words, largest, unit, kept, batch, count, S: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr,
    ELEMENTS: tl.constexpr, PIXELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A planar map, two images to a word: (b, n, d, g, pixels) -> (ceil(b / 2), n, d, g, pixels).

    Given the size of its largest entry, that comes to lie between 2^-5 and 2^-4, far from both ends of float16: the
    map is multiplied with a power of two, exactly, and ``unit`` becomes ``kept`` over that power.
    """
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = number < count
    pixel, rest = number % PIXELS, number // PIXELS
    element, rest = rest % ELEMENTS, rest // ELEMENTS
    channel, rest = rest % CHANNELS, rest // CHANNELS
    head, image = rest % HEADS, rest // HEADS * 2
    at = planar + (image * S[0] + head * S[1] + channel * S[2] + element * S[3] + pixel)
    size = 1.0
    if largest is not None:
        # The exponent's bits, no more than those with which both powers are normal numbers.
        bits = tl.load(largest).to(tl.float32).to(tl.int32, bitcast=True)
        exponent = tl.minimum((bits >> 23) & 255, 248)
        size = ((249 - exponent) << 23).to(tl.float32, bitcast=True)
        tl.store(unit, ((exponent + 5) << 23).to(tl.float32, bitcast=True) * kept, mask=tl.program_id(0) == 0)
    low = tl.load(at, exists, 0.0).to(tl.float32) * size
    high = tl.load(at + S[0], exists & (image + 1 < batch), 0.0).to(tl.float32) * size
    tl.store(words + number, word(low, high), exists)
