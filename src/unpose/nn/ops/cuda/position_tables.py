"""Position tables on a GPU, for :mod:`unpose.nn.ops.cuda.attention`: as kernels read them, and their gradients.

The kernel of the queries (:mod:`unpose.nn.ops.cuda.attention_kernels`) writes gradients of scores into slots: for each line, GROUP
entries of one row of the window, one for each entry, and where there are vectors, one for each key element. Times the
queries and summed over pixels they are the gradients of the table: a matrix product for blocks of pixels, and a second,
fixed sum over these.
"""

# mypy: disable-error-code="assignment, misc"

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unpose.nn.ops.cuda.reduce import over_rows

_ENTRIES = 128
"""Numbers of a table's gradient that a program writes."""

_BLOCK, _STEP, _ROWS = 1024, 64, 32
"""Pixels of an image that one program sums up for the table's gradient, at most, those of one product, and slots in its
rows."""


@dataclass(frozen=True)
class Encoding:
    """What scores have beside queries and keys."""

    position: Tensor
    element: Tensor | None
    bias: Tensor | None

    def tables(self, heads: int, pair: int) -> tuple[Tensor, Tensor, Tensor]:
        """Position, element and bias as kernels read them; nothing reads those that there are not."""
        position = _table(self.position.flatten(2, 4), heads, pair)
        element = position if self.element is None else _table(self.element, heads, pair)
        if self.bias is None:
            return position, element, position
        # Times sqrt(d), by which scores are divided.
        bias = math.sqrt(self.position.shape[-1]) * self.bias.float()
        return position, element, bias.flatten(2).expand(heads, -1, -1).contiguous()


def _table(table: Tensor, heads: int, pair: int) -> Tensor:
    """(n or 1, outputs, entries, channels) as kernels read it: (heads, outputs, entries, columns), padded to fours.

    A column is a channel in float32, or two of float16 in 32 bits.
    """
    channels = table.shape[-1]
    make = torch.zeros if channels % pair else torch.empty  # padding is not read, but for half of a last word
    columns = make(
        heads, *table.shape[1:3], channels + -channels % (4 * pair),
        dtype=torch.float32 if pair == 1 else torch.float16, device=table.device,
    )  # fmt: skip
    columns[..., :channels] = table
    return columns.view(torch.int32)


def empty_sums(columns: int, slots: int, shape: dict[str, Any], device: torch.device) -> Tensor:
    """Room for block sums of so many columns of images: (blocks, heads, outputs, slots, d and one for the bias)."""
    blocks = columns * triton.cdiv(shape["H"] * shape["W"], _BLOCK)
    return torch.empty(blocks, shape["HEADS"], shape["OUTPUTS"], slots, shape["D"] + shape["HAS_BIAS"], device=device)


def add_up(
    query: Tensor,
    slopes: Tensor,
    sums: Tensor,
    images: tuple[int, int],
    slots: tuple[int, int],
    shape: dict[str, Any],
    pair: int,
) -> None:
    """Block sums of slopes times queries, (images, heads, slots, outputs, pixels) and as kernels read them.

    ``images`` are the first and how many, ``slots`` the first and the one after the last of those in ``sums``.
    """
    blocks, rows = triton.cdiv(shape["H"] * shape["W"], _BLOCK), slots[1] - slots[0]
    halves = [tensor if pair == 1 else tensor.view(torch.float16) for tensor in (query, slopes)]
    names = ("HEADS", "OUTPUTS", "H", "W", "D", "HAS_BIAS")
    table_kernel[(shape["OUTPUTS"] * triton.cdiv(rows, _ROWS) * blocks * images[1] * shape["HEADS"],)](
        *halves, sums, *images, slots[0], rows, Q=query.stride()[:4], SLOTS=slopes.shape[2], ALL=sums.shape[3],
        **{name: shape[name] for name in names}, PAIR=pair, BLOCK=_BLOCK, ROWS=_ROWS, STEP=_STEP,
        COLUMNS=max(16, triton.next_power_of_2(sums.shape[4])), num_warps=4,
    )  # fmt: skip


def gradients(
    sums: Tensor, encoding: Encoding, unit: Tensor, shape: dict[str, Any], group: int, lines: int, sums_each: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of position, element and bias from block sums: the second sum, over blocks, and heads if they share."""
    position, element, bias = encoding.position, encoding.element, encoding.bias
    d, space = shape["D"], shape["SPACE"]
    own = _over_blocks(sums, position)
    common = {"WIDTH": sums.shape[-1], "SUMS": sums_each, "GROUP": group, "BLOCK": _ENTRIES}
    window = {"PARTS": position.shape[2], "WY": shape["WY"], "WX": shape["WX"]}

    def empty(table: Tensor) -> tuple[Tensor, tuple[int]]:
        return torch.empty_like(table, memory_format=torch.contiguous_format), (triton.cdiv(table.numel(), _ENTRIES),)

    to_position, grid = empty(position)
    scale = 1 / math.sqrt(d)
    entries_kernel[grid](own, to_position, unit, scale, position.numel(), FIRST=0, COUNT=space, **window, **common)
    to_element = to_bias = None
    if element is not None:
        to_element, grid = empty(element)
        vectors_kernel[grid](
            own, to_element, unit, scale, element.numel(), FIRST=space, COUNT=d - space, LINES=lines,
            KEYS=shape["KEYS"], **common,
        )  # fmt: skip
    if bias is not None:
        to_bias, grid = empty(bias)
        of_bias = _over_blocks(sums, bias)
        entries_kernel[grid](of_bias, to_bias, unit, 1.0, bias.numel(), FIRST=d, COUNT=1, **window, **common)
    return to_position, to_element, to_bias


def _over_blocks(sums: Tensor, table: Tensor) -> Tensor:
    """(blocks, heads, ...) -> (heads, ...), or (1, ...) where all heads share a table."""
    return over_rows(sums if len(table) == sums.shape[1] else sums.flatten(0, 1)[:, None])


@triton.jit(do_not_specialize=["begun", "images", "first_row", "rows"])
def table_kernel(  # type: ignore[no-untyped-def]
    query, slopes, sums, begun, images, first_row, rows,
    Q: tl.constexpr, SLOTS: tl.constexpr, ALL: tl.constexpr, HEADS: tl.constexpr, OUTPUTS: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, D: tl.constexpr, HAS_BIAS: tl.constexpr, PAIR: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums over a BLOCK of pixels for the table's gradient: slopes times queries, a matrix product.

    The slopes of ROWS slots, (ROWS, STEP * PAIR), by queries, (STEP * PAIR, COLUMNS), COLUMNS a power of two not below
    the channels and the one that is 1, for the bias. What the two images of a word have is summed up too. ``rows``
    slots are there, the first of them is number ``first_row`` of ALL.
    """
    BLOCKS: tl.constexpr = (H * W + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    output, program = program % OUTPUTS, program // OUTPUTS
    parts = (rows + ROWS - 1) // ROWS
    part, program = program % parts, program // parts
    first, program = program % BLOCKS * BLOCK, program // BLOCKS
    image, head = (program % images).to(tl.int64), (program // images).to(tl.int64)
    slot, column = part * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    number = tl.arange(0, STEP * PAIR)
    end = tl.minimum(first + BLOCK, H * W) * PAIR
    query += ((begun + image) * Q[0] + head * Q[1] + output * Q[3]) * PAIR
    slopes += (((image * HEADS + head) * SLOTS + slot) * OUTPUTS + output)[:, None] * (H * W * PAIR)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, tl.minimum(first + BLOCK, H * W), STEP):
        place = start * PAIR + number
        is_query = (place < end)[:, None] & (column < D)
        asked = tl.load(query + place[:, None] + column * (Q[2] * PAIR), is_query, 0.0)
        if HAS_BIAS:
            asked = tl.where(column == D, 1.0, asked)
        found = tl.load(slopes + place, (slot < rows)[:, None] & (place < end), 0.0)
        total = tl.dot(found, asked.to(found.dtype), total, input_precision="ieee")
    block = (begun + image) * BLOCKS + first // BLOCK
    sums += (((block * HEADS + head) * OUTPUTS + output) * ALL + first_row) * (D + HAS_BIAS)
    exists = (slot < rows)[:, None] & (column < D + HAS_BIAS)
    tl.store(sums + (slot[:, None] * (D + HAS_BIAS) + column), total, exists)


@triton.jit
def entries_kernel(  # type: ignore[no-untyped-def]
    sums, found, unit, factor, count,
    FIRST: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, WY: tl.constexpr,
    WX: tl.constexpr, SUMS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """COUNT columns of sums, (heads and outputs, lines, SUMS, WIDTH), where they belong in a table's gradient."""
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column, entry = number % COUNT, number // COUNT
    x, y, part = entry % WX, entry // WX % WY, entry // (WX * WY) % PARTS
    line = (entry // (WX * WY * PARTS) * (WY * CHUNKS) + y * CHUNKS + x // GROUP) * PARTS + part
    at = (line * SUMS + x % GROUP) * WIDTH + FIRST + column
    result = tl.load(sums + at, number < count, 0.0) * (tl.load(unit) * factor)
    tl.store(found + number, result.to(found.dtype.element_ty), number < count)


@triton.jit
def vectors_kernel(  # type: ignore[no-untyped-def]
    sums, found, unit, factor, count,
    FIRST: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr, LINES: tl.constexpr, KEYS: tl.constexpr,
    SUMS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """COUNT columns of sums, (heads and outputs, LINES, SUMS, WIDTH), summed over lines: the gradient of vectors."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column, element, own = number % COUNT, number // COUNT % KEYS, number // (COUNT * KEYS)
    at = sums + ((own * (LINES * SUMS) + GROUP + element) * WIDTH + FIRST + column)
    total = tl.zeros((BLOCK,), tl.float32)
    for line in range(LINES):
        total += tl.load(at + line * (SUMS * WIDTH), number < count, 0.0)
    tl.store(found + number, (total * (tl.load(unit) * factor)).to(found.dtype.element_ty), number < count)
