"""What the kernels of :mod:`unpose.nn.ops.cuda.attention_kernels` share: how a lane looks around, reads, writes and draws.

Letters and columns are theirs. Everything here is compiled into the kernels that call it.
"""

# Triton reads no stars in tuples, no annotations of them, and drops the way not taken only below an else.
# ruff: noqa: RUF005, RET505
# mypy: disable-error-code="assignment, var-annotated, misc"

import triton
import triton.language as tl

from unpose.nn.ops.cuda.packed import alike, apart, read, store

_HELD = tl.constexpr(16)
"""Channels up to which what belongs to a lane stays in registers; of wider heads it is read again for each entry."""

_SMALL = tl.constexpr(7)
"""Rows up to which a window is walked over whole: few of them leave the image, and the loop's bounds stay constants."""


@triton.jit
def lines_seen(  # type: ignore[no-untyped-def]
    y, begin, end, SIGN: tl.constexpr, EACH: tl.constexpr, H: tl.constexpr, WY: tl.constexpr,
):  # fmt: skip
    """The first of the lines from ``begin`` to ``end`` in which any lane may find a pixel, and the one after the last.

    A row of the window has EACH of them; ``SIGN`` is that of :func:`look`.
    """
    if WY <= _SMALL:
        return begin, end
    else:
        up, down = tl.max(y), H - 1 - tl.min(y)  # how far the lanes can look
        before, after = (up, down) if SIGN > 0 else (down, up)
        first = tl.minimum(tl.maximum(begin, (WY // 2 - before) * EACH), end)
        return first, tl.maximum(tl.minimum(end, (WY // 2 + after + 1) * EACH), first)


@triton.jit
def look(  # type: ignore[no-untyped-def]
    y, x, row, start, j: tl.constexpr, SIGN: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """What a lane finds at the j-th place from ``start`` in a row of the window.

    Whether it is a pixel, how far off it lies in memory, and j itself, or of places beyond the row the last one's.
    Where there is no pixel it finds its own, which it sees anyway: address and number are safe. ``SIGN`` = -1 looks the
    other way, from a key to who sees it.
    """
    column = start + j
    step_y, step_x = SIGN * (row - WY // 2), SIGN * (column - WX // 2)
    inside = _within(y + step_y, H) & _within(x + step_x, W)
    shift = j
    if WX % GROUP != 0:
        inside = inside & (column < WX)
        shift = tl.minimum(column, WX - 1) - start
    return inside, tl.where(inside, step_y * W + step_x, 0), shift


@triton.jit
def rows_of(  # type: ignore[no-untyped-def]
    at, SIZE: tl.constexpr, CHANNEL: tl.constexpr, ELEMENT: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """All SIZE channels of SHARED elements behind pointers, those of one element side by side."""
    rows = ()
    if SIZE <= _HELD:
        for i in tl.static_range(SHARED):
            for c in tl.static_range(SIZE):
                rows = rows + (read(at + (i * ELEMENT + c * CHANNEL), PAIR),)
    return rows


@triton.jit
def channel(  # type: ignore[no-untyped-def]
    held, at, i: tl.constexpr, c: tl.constexpr, SIZE: tl.constexpr, CHANNEL: tl.constexpr, ELEMENT: tl.constexpr,
    PAIR: tl.constexpr,
):  # fmt: skip
    """Channel c of the i-th element: out of ``held``, or out of memory where heads are wide."""
    if SIZE <= _HELD:
        return held[i * SIZE + c]
    else:
        return read(at + (i * ELEMENT + c * CHANNEL), PAIR)


@triton.jit
def neighbour(at, SIZE: tl.constexpr, CHANNEL: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """All channels of one element behind pointers."""
    columns = ()
    for c in tl.static_range(SIZE):
        columns = columns + (read(at + c * CHANNEL, PAIR),)
    return columns


@triton.jit
def outset_of(inside, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """What a score is added to: nothing, or minus infinity where there is no pixel, which no finite number changes."""
    if PAIR == 1:
        return tl.where(inside, 0.0, float("-inf"))
    else:
        return tl.where(inside, 0, -0x03FF0400)  # 0xFC00 in both halves


@triton.jit
def full(column, COUNT: tl.constexpr, number: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """COUNT columns as long as the given one, each with a number for all images."""
    columns = ()
    for _ in tl.static_range(COUNT):
        columns = columns + (alike(tl.full(column.shape, number, tl.float32), PAIR),)
    return columns


@triton.jit
def write(  # type: ignore[no-untyped-def]
    at, columns, first: tl.constexpr, sizes, live, COUNT: tl.constexpr, IMAGE: tl.constexpr, CHANNEL: tl.constexpr,
    PAIR: tl.constexpr,
):  # fmt: skip
    """COUNT channels from column ``first`` on behind pointers; each image has a size they are multiplied with."""
    for c in tl.static_range(COUNT):
        found = apart(columns[first + c], PAIR)
        for p in tl.static_range(PAIR):
            store(at + (p * IMAGE + c * CHANNEL), found[p] * sizes[p], live[p])


@triton.jit
def pixels(  # type: ignore[no-untyped-def]
    tile, begun, images, batch, LANES: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """Which pixel each lane of a tile has, of some ``images``, that is columns of PAIR of them, from ``begun`` on.

    Number of the column, pixel, row and column of it, and which of the ``batch`` images there are: with an odd number
    of them the last column has one.
    """
    place = tile * LANES + tl.arange(0, LANES)
    exists = place < images * (H * W)
    place = tl.minimum(place, images * (H * W) - 1)
    number, pixel, live = (begun + place // (H * W)).to(tl.int64), place % (H * W), ()
    for p in tl.static_range(PAIR):
        live = live + (exists & (number * PAIR + p < batch),)
    return number, pixel, pixel // W, pixel % W, live


@triton.jit
def _within(number, END: tl.constexpr):  # type: ignore[no-untyped-def]
    # Seen without its sign a negative number is large: one comparison for both ends.
    return number.to(tl.uint32, bitcast=True) < END


@triton.jit
def hashed(number):  # type: ignore[no-untyped-def]
    """A hash of 32 bits."""
    x = number.to(tl.uint32) * 0x9E3779B9
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)
