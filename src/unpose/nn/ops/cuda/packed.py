"""Arithmetic on packed pairs of half-precision numbers: the same pixel of two images in one 32-bit register.

One instruction (``add.f16x2``, ``fma.f16x2``, ...) computes both numbers of a pair. All functions take ``PACK``, the
number of images in a register: with ``PACK`` = 2 a block is an int32 tensor of packed pairs, with ``PACK`` = 1 it is a
float32 tensor and the same functions are float32 arithmetic.

The pairs are written in PTX, because Triton's compiler would split them. Triton's interpreter, which has no PTX,
computes the same in Triton operations.
"""

# Triton does not parse starred tuples, and removes a branch that is not taken only in an else.
# ruff: noqa: RUF005, RET505
# mypy: disable-error-code="assignment"

import os

import triton
import triton.language as tl

_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def _lower_half(packed):  # type: ignore[no-untyped-def]
    return packed.to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _upper_half(packed):  # type: ignore[no-untyped-def]
    return (packed >> 16).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def pack_pair(low, high):  # type: ignore[no-untyped-def]
    """Round two blocks to half precision and pack them: the first goes to the lower 16 bits."""
    if _INTERPRETED:
        low = low.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        return low | (high.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) << 16)
    else:
        return tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low.to(tl.float32), high.to(tl.float32)], tl.int32, True, 1
        )


# Loads and stores are written in PTX too. For each of Triton's own loads and stores, of which a kernel has a hundred,
# its compiler searches the whole kernel for a layout, which takes half a minute. The non-coherent loads (``.nc``) are
# safe: no kernel writes to what it reads.


@triton.jit
def load_float(pointers):  # type: ignore[no-untyped-def]
    """Load float32, bfloat16 or float16 numbers as float32."""
    if _INTERPRETED:
        return tl.load(pointers).to(tl.float32)
    elif pointers.dtype.element_ty == tl.float32:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [pointers.to(tl.int64)], tl.float32, True, 1
        )
    else:
        bits = tl.inline_asm_elementwise(
            "ld.global.nc.b16 $0, [$1];", "=h,l", [pointers.to(tl.int64)], tl.int16, True, 1
        )
        return bits.to(pointers.dtype.element_ty, bitcast=True).to(tl.float32)


@triton.jit
def load_packed(pointers, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load a block of packed numbers."""
    if PACK == 1:
        return load_float(pointers)
    elif _INTERPRETED:
        return tl.load(pointers)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.b32 $0, [$1];", "=r,l", [pointers.to(tl.int64)], tl.int32, True, 1
        )


@triton.jit
def store_float(pointers, number, exists):  # type: ignore[no-untyped-def]
    """Round a float32 block to the type of the pointers and store it where ``exists``."""
    number = number.to(pointers.dtype.element_ty)
    if _INTERPRETED:
        tl.store(pointers, number, exists)
    elif pointers.dtype.element_ty == tl.float32:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.f32 [$1], $2; mov.b32 $0, 0; }", "=r,l,f,r",
            [pointers.to(tl.int64), number, exists.to(tl.int32)], tl.int32, False, 1,
        )  # fmt: skip
    else:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.b16 [$1], $2; mov.b32 $0, 0; }", "=r,l,h,r",
            [pointers.to(tl.int64), number.to(tl.int16, bitcast=True), exists.to(tl.int32)], tl.int32, False, 1,
        )  # fmt: skip


@triton.jit
def store_packed(pointers, packed, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store a block of packed numbers."""
    if _INTERPRETED:
        tl.store(pointers, packed)
    elif PACK == 1:
        tl.inline_asm_elementwise(
            "st.global.f32 [$1], $2; mov.b32 $0, 0;", "=r,l,f", [pointers.to(tl.int64), packed], tl.int32, False, 1
        )
    else:
        tl.inline_asm_elementwise(
            "st.global.b32 [$1], $2; mov.b32 $0, 0;", "=r,l,r", [pointers.to(tl.int64), packed], tl.int32, False, 1
        )


@triton.jit
def load_partial_sum(pointers, begin, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load a block of packed partial sums, or zeros in the first launch, where ``begin`` is 0."""
    if _INTERPRETED:
        return tl.load(pointers, mask=begin + tl.zeros(pointers.shape, tl.int32) > 0, other=0)
    elif PACK == 1:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.gt.s32 p, $2, 0; mov.f32 $0, 0f00000000; @p ld.global.f32 $0, [$1]; }", "=f,l,r",
            [pointers.to(tl.int64), begin], tl.float32, True, 1,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.gt.s32 p, $2, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1]; }", "=r,l,r",
            [pointers.to(tl.int64), begin], tl.int32, True, 1,
        )  # fmt: skip


@triton.jit
def unpack(packed, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Unpack a block to a tuple of float32 blocks, one for each image."""
    if PACK == 1:
        return (packed,)
    elif _INTERPRETED:
        return _lower_half(packed).to(tl.float32), _upper_half(packed).to(tl.float32)
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }", "=f,=f,r",
            [packed], (tl.float32, tl.float32), True, 1,
        )  # fmt: skip


@triton.jit
def pack(numbers, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pack a tuple of float32 blocks, one for each image, into one block."""
    if PACK == 1:
        return numbers[0]
    else:
        return pack_pair(numbers[0], numbers[1])


@triton.jit
def broadcast(number, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pack a float32 block so that all images get the same numbers."""
    if PACK == 1:
        return number
    else:
        return pack_pair(number, number)


@triton.jit
def load_entry(pointers, ENTRY_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the ENTRY_SIZE 32-bit numbers of an entry of a position table: four in one load, and none of the padding.

    All threads read the same address, but each needs its own copy: the bytes loaded cost time, not the number of loads.
    """
    entry = ()
    if _INTERPRETED:
        for c in tl.static_range(ENTRY_SIZE):
            entry = entry + (tl.load(pointers + c),)
    else:
        for c in tl.static_range(0, ENTRY_SIZE // 4 * 4, 4):
            entry = entry + tl.inline_asm_elementwise(
                "ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l",
                [(pointers + c).to(tl.int64)], (tl.int32, tl.int32, tl.int32, tl.int32), True, 1,
            )  # fmt: skip
        for c in tl.static_range(ENTRY_SIZE // 4 * 4, ENTRY_SIZE):
            entry = entry + (tl.load(pointers + c),)
    return entry


@triton.jit
def entry_channel(entry, c: tl.constexpr, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return channel c of an entry, for all images.

    A 32-bit number of the entry holds one channel in float32 or, with PACK = 2, two channels in float16.
    """
    if PACK == 1:
        return entry[c].to(tl.float32, bitcast=True)
    elif _INTERPRETED:
        half = (entry[c // 2] >> (16 * (c % 2))) & 0xFFFF
        return half | (half << 16)
    elif c % 2 == 0:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; mov.b32 {l, h}, $1; mov.b32 $0, {l, l}; }", "=r,r", [entry[c // 2]], tl.int32, True, 1
        )
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; mov.b32 {l, h}, $1; mov.b32 $0, {h, h}; }", "=r,r", [entry[c // 2]], tl.int32, True, 1
        )


@triton.jit
def add(a, b, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    if PACK == 1:
        return a + b
    elif _INTERPRETED:
        return pack_pair(_lower_half(a) + _lower_half(b), _upper_half(a) + _upper_half(b))
    else:
        return tl.inline_asm_elementwise("add.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1)


@triton.jit
def subtract(a, b, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a - b."""
    if PACK == 1:
        return a - b
    elif _INTERPRETED:
        return pack_pair(_lower_half(a) - _lower_half(b), _upper_half(a) - _upper_half(b))
    else:
        return tl.inline_asm_elementwise("sub.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1)


@triton.jit
def multiply(a, b, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    if PACK == 1:
        return a * b
    elif _INTERPRETED:
        return pack_pair(_lower_half(a) * _lower_half(b), _upper_half(a) * _upper_half(b))
    else:
        return tl.inline_asm_elementwise("mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1)


@triton.jit
def fma(a, b, c, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the fused multiply-add a * b + c."""
    if PACK == 1:
        return a * b + c
    elif _INTERPRETED:
        # In float32, where the product is exact, as it is inside the fused instruction.
        low = _lower_half(a).to(tl.float32) * _lower_half(b) + _lower_half(c)
        return pack_pair(low, _upper_half(a).to(tl.float32) * _upper_half(b) + _upper_half(c))
    else:
        return tl.inline_asm_elementwise("fma.rn.f16x2 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], tl.int32, True, 1)


@triton.jit
def maximum(a, b, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    if PACK == 1:
        return tl.maximum(a, b)
    elif _INTERPRETED:
        return pack_pair(tl.maximum(_lower_half(a), _lower_half(b)), tl.maximum(_upper_half(a), _upper_half(b)))
    else:
        return tl.inline_asm_elementwise("max.f16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1)


@triton.jit
def minimum(a, b, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    if PACK == 1:
        return tl.minimum(a, b)
    elif _INTERPRETED:
        return pack_pair(tl.minimum(_lower_half(a), _lower_half(b)), tl.minimum(_upper_half(a), _upper_half(b)))
    else:
        return tl.inline_asm_elementwise("min.f16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1)


@triton.jit
def exp2(packed, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return 2 to the power of each number."""
    if PACK == 1:
        return tl.exp2(packed)
    elif _INTERPRETED:
        return pack_pair(tl.exp2(_lower_half(packed).to(tl.float32)), tl.exp2(_upper_half(packed).to(tl.float32)))
    else:
        return tl.inline_asm_elementwise("ex2.approx.f16x2 $0, $1;", "=r,r", [packed], tl.int32, True, 1)


@triton.jit
def dropout_mask(query_hash, entry, threshold, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return 1 where dropout keeps the weight of a query at an entry of the window, 0 where it drops it.

    A hash of the query's hash and of the entry is compared with the threshold. The entry's part of it is the same for
    all threads. One hash decides for both images of a pair, with 14 bits for each: as half-precision numbers these are
    finite and positive, so one instruction compares both.
    """
    bits = (query_hash ^ entry.to(tl.uint32) * 0x9E3779B9) * 0x85EBCA6B
    if PACK == 1:
        return tl.where(bits >= threshold.to(tl.uint32, bitcast=True), 1.0, 0.0)
    else:
        bits_14 = (bits & 0x3FFF3FFF).to(tl.int32, bitcast=True)
        if _INTERPRETED:
            low = tl.where((bits_14 & 0xFFFF) >= (threshold & 0xFFFF), 1.0, 0.0)
            return pack_pair(low, tl.where((bits_14 >> 16) >= (threshold >> 16), 1.0, 0.0))
        else:
            return tl.inline_asm_elementwise(
                "set.ge.f16x2.f16x2 $0, $1, $2;", "=r,r,r", [bits_14, threshold], tl.int32, True, 1
            )


@triton.jit
def pack_kernel(  # type: ignore[no-untyped-def]
    planar, packed, largest, gradient_scale, kept_scale, batch, count, S: tl.constexpr, HEADS: tl.constexpr,
    CHANNELS: tl.constexpr, ELEMENTS: tl.constexpr, PIXELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Pack pairs of images: (b, n, d, g, pixels) with strides S -> (ceil(b / 2), n, d, g, pixels), one program a block.

    If its largest magnitude is given, the map is first multiplied by the power of two that brings this number between
    2^-5 and 2^-4, far from both ends of float16; this is exact. ``gradient_scale`` becomes ``kept_scale`` divided by
    that power.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = index < count
    pixel, rest = index % PIXELS, index // PIXELS
    element, rest = rest % ELEMENTS, rest // ELEMENTS
    channel, rest = rest % CHANNELS, rest // CHANNELS
    head, image = rest % HEADS, rest // HEADS * 2
    pointers = planar + (image * S[0] + head * S[1] + channel * S[2] + element * S[3] + pixel)
    scale = 1.0
    if largest is not None:
        # The exponent, clamped so that both powers of two are normal numbers.
        bits = tl.load(largest).to(tl.float32).to(tl.int32, bitcast=True)
        exponent = tl.minimum((bits >> 23) & 255, 248)
        scale = ((249 - exponent) << 23).to(tl.float32, bitcast=True)
        inverse = ((exponent + 5) << 23).to(tl.float32, bitcast=True)
        tl.store(gradient_scale, inverse * kept_scale, mask=tl.program_id(0) == 0)
    low = tl.load(pointers, exists, 0.0).to(tl.float32) * scale
    high = tl.load(pointers + S[0], exists & (image + 1 < batch), 0.0).to(tl.float32) * scale
    tl.store(packed + index, pack_pair(low, high), exists)
