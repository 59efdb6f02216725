"""Addressing in the attention kernels: pixels of a program, offsets in the window, loads, stores, and the hash.

The names of sizes are those of :mod:`unpose.nn.ops.cuda.attention_kernels`, into which everything here is inlined.
"""

# Triton does not parse starred tuples or annotations of them, and removes a branch that is not taken only in an else.
# ruff: noqa: RUF005, RET505
# mypy: disable-error-code="assignment, var-annotated, misc"

import triton
import triton.language as tl

from unpose.nn.ops.cuda.packed import broadcast, load_packed, store_float, unpack

_HELD = tl.constexpr(16)
"""Largest number of channels that a thread keeps in registers; those of wider heads are loaded again for each entry."""

_SMALL = tl.constexpr(7)
"""Rows of the largest window that is visited whole: few rows leave the image, and constant loop bounds are faster."""


@triton.jit
def visible_segments(  # type: ignore[no-untyped-def]
    y, begin, end, SIGN: tl.constexpr, PER_ROW: tl.constexpr, H: tl.constexpr, WY: tl.constexpr,
):  # fmt: skip
    """Return the range, within ``begin`` to ``end``, of window segments that lie inside the image for any thread.

    A row of the window has PER_ROW segments; ``SIGN`` is that of :func:`window_offset`.
    """
    if WY <= _SMALL:
        return begin, end
    else:
        up, down = tl.max(y), H - 1 - tl.min(y)  # how far windows reach inside the image
        before, after = (up, down) if SIGN > 0 else (down, up)
        first = tl.minimum(tl.maximum(begin, (WY // 2 - before) * PER_ROW), end)
        return first, tl.maximum(tl.minimum(end, (WY // 2 + after + 1) * PER_ROW), first)


@triton.jit
def window_offset(  # type: ignore[no-untyped-def]
    y, x, row, start, j: tl.constexpr, SIGN: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr, SEGMENT_SIZE: tl.constexpr,
):  # fmt: skip
    """Locate the j-th entry after ``start`` in a row of the window.

    Returns whether it lies inside the image, its offset in memory from the thread's own pixel, and j, clamped to the
    row. Outside the image the offset is 0: the thread then loads its own pixel, which is safe. ``SIGN`` = 1 looks from
    a query to its keys, ``SIGN`` = -1 from a key to the queries that see it.
    """
    column = start + j
    offset_y, offset_x = SIGN * (row - WY // 2), SIGN * (column - WX // 2)
    inside = _in_range(y + offset_y, H) & _in_range(x + offset_x, W)
    shift = j
    if WX % SEGMENT_SIZE != 0:
        inside = inside & (column < WX)
        shift = tl.minimum(column, WX - 1) - start
    return inside, tl.where(inside, offset_y * W + offset_x, 0), shift


@triton.jit
def load_elements(  # type: ignore[no-untyped-def]
    pointers, CHANNELS: tl.constexpr, CHANNEL_STRIDE: tl.constexpr, ELEMENT_STRIDE: tl.constexpr,
    ELEMENTS: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Load all channels of ELEMENTS elements, element by element; nothing if they do not fit in registers."""
    loaded = ()
    if CHANNELS <= _HELD:
        for i in tl.static_range(ELEMENTS):
            for c in tl.static_range(CHANNELS):
                loaded = loaded + (load_packed(pointers + (i * ELEMENT_STRIDE + c * CHANNEL_STRIDE), PACK),)
    return loaded


@triton.jit
def element_channel(  # type: ignore[no-untyped-def]
    loaded, pointers, i: tl.constexpr, c: tl.constexpr, CHANNELS: tl.constexpr, CHANNEL_STRIDE: tl.constexpr,
    ELEMENT_STRIDE: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Return channel c of the i-th element, from :func:`load_elements` or, for wide heads, from memory."""
    if CHANNELS <= _HELD:
        return loaded[i * CHANNELS + c]
    else:
        return load_packed(pointers + (i * ELEMENT_STRIDE + c * CHANNEL_STRIDE), PACK)


@triton.jit
def load_channels(  # type: ignore[no-untyped-def]
    pointers, CHANNELS: tl.constexpr, CHANNEL_STRIDE: tl.constexpr, PACK: tl.constexpr
):
    """Load all channels of one element."""
    channels = ()
    for c in tl.static_range(CHANNELS):
        channels = channels + (load_packed(pointers + c * CHANNEL_STRIDE, PACK),)
    return channels


@triton.jit
def masked_zero(inside, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the start of a score: 0, or minus infinity outside the image, which no finite term changes."""
    if PACK == 1:
        return tl.where(inside, 0.0, float("-inf"))
    else:
        return tl.where(inside, 0, -0x03FF0400)  # 0xFC00 in both halves


@triton.jit
def full(block, COUNT: tl.constexpr, number: tl.constexpr, PACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return COUNT packed blocks of the same shape as ``block``, filled with a number."""
    blocks = ()
    for _ in tl.static_range(COUNT):
        blocks = blocks + (broadcast(tl.full(block.shape, number, tl.float32), PACK),)
    return blocks


@triton.jit
def store_channels(  # type: ignore[no-untyped-def]
    pointers, channels, first: tl.constexpr, scales, exists, COUNT: tl.constexpr, IMAGE_STRIDE: tl.constexpr,
    CHANNEL_STRIDE: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Unpack COUNT channels from ``first`` on, multiply those of each image by its scale, and store them."""
    for c in tl.static_range(COUNT):
        numbers = unpack(channels[first + c], PACK)
        for p in tl.static_range(PACK):
            store_float(pointers + (p * IMAGE_STRIDE + c * CHANNEL_STRIDE), numbers[p] * scales[p], exists[p])


@triton.jit
def pixel_block(  # type: ignore[no-untyped-def]
    block, first_image, images, batch, BLOCK_PIXELS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Return which pixel each thread of a program has, of ``images`` packed images from ``first_image`` on.

    These are the index of the packed image, the pixel, its row and column, and for each of the PACK images whether it
    exists: the last pair of an odd ``batch`` has one image.
    """
    index = block * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    in_block = index < images * (H * W)
    index = tl.minimum(index, images * (H * W) - 1)
    image, pixel, live = (first_image + index // (H * W)).to(tl.int64), index % (H * W), ()
    for p in tl.static_range(PACK):
        live = live + (in_block & (image * PACK + p < batch),)
    return image, pixel, pixel // W, pixel % W, live


@triton.jit
def _in_range(number, END: tl.constexpr):  # type: ignore[no-untyped-def]
    # As an unsigned number a negative one is large: one comparison tests both ends.
    return number.to(tl.uint32, bitcast=True) < END


@triton.jit
def hash32(number):  # type: ignore[no-untyped-def]
    """Return a 32-bit hash of a number, by multiplications and shifts."""
    x = number.to(tl.uint32) * 0x9E3779B9
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)
