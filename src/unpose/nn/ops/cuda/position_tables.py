"""Position tables for :mod:`unpose.nn.ops.cuda.attention`: the form that the kernels read, and their gradients.

The kernel of the queries stores gradients of scores in slots: for each segment of the window, one slot for each entry
and, if the table comes in two parts, one for each key element. Multiplied by the queries and summed over pixels they
are the gradients of the table. A first kernel computes this matrix product on tensor cores, one program for a block of
pixels of one image, head and output and for a block of slots; its accumulator is float32. A second kernel adds the
block sums in an order that depends on the shape alone, and a third writes them to their places in the table.
"""

# mypy: disable-error-code="assignment, misc"

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unpose.nn.ops.cuda.reduce import sum_rows

_WRITE_BLOCK = 128
"""Numbers that a program of the third kernel writes."""

_BLOCK_PIXELS, _STEP_PIXELS, _BLOCK_SLOTS = 1024, 64, 32
"""Most pixels of a program of the matrix product, pixels of one step of it, and slots of a program."""


@dataclass(frozen=True)
class Encoding:
    """The tables that enter the scores besides queries and keys."""

    position: Tensor
    element: Tensor | None
    bias: Tensor | None

    def tables(self, heads: int, pack: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return position, element and bias as the kernels read them; those that are missing are never read."""
        position = _kernel_table(self.position.flatten(2, 4), heads, pack)
        element = position if self.element is None else _kernel_table(self.element, heads, pack)
        if self.bias is None:
            return position, element, position
        # The kernels divide scores by sqrt(d), after the bias is added.
        bias = math.sqrt(self.position.shape[-1]) * self.bias.float()
        return position, element, bias.flatten(2).expand(heads, -1, -1).contiguous()


def _kernel_table(table: Tensor, heads: int, pack: int) -> Tensor:
    """(n or 1, outputs, entries, channels) -> (heads, outputs, entries, a multiple of four), as the kernels read it.

    The int32 numbers of the result hold one channel in float32 or two in float16.
    """
    channels = table.shape[-1]
    make = torch.zeros if channels % pack else torch.empty  # only half of the last number is read
    padded = make(
        heads, *table.shape[1:3], channels + -channels % (4 * pack),
        dtype=torch.float32 if pack == 1 else torch.float16, device=table.device,
    )  # fmt: skip
    padded[..., :channels] = table
    return padded.view(torch.int32)


def empty_block_sums(packed_images: int, slots: int, shape: dict[str, Any], device: torch.device) -> Tensor:
    """Allocate the block sums of packed images: (blocks, heads, outputs, slots, d + 1 if there is a bias)."""
    blocks = packed_images * triton.cdiv(shape["H"] * shape["W"], _BLOCK_PIXELS)
    return torch.empty(blocks, shape["HEADS"], shape["OUTPUTS"], slots, shape["D"] + shape["HAS_BIAS"], device=device)


def add_block_sums(
    query: Tensor,
    score_gradients: Tensor,
    block_sums: Tensor,
    images: tuple[int, int],
    slots: tuple[int, int],
    shape: dict[str, Any],
    pack: int,
) -> None:
    """Write the block sums of gradients of scores, (images, heads, slots, outputs, pixels), times queries.

    ``images`` are the first image and how many there are, ``slots`` the range of slots in ``block_sums``.
    """
    blocks, n_slots = triton.cdiv(shape["H"] * shape["W"], _BLOCK_PIXELS), slots[1] - slots[0]
    unpacked = [tensor if pack == 1 else tensor.view(torch.float16) for tensor in (query, score_gradients)]
    names = ("HEADS", "OUTPUTS", "H", "W", "D", "HAS_BIAS")
    programs = shape["OUTPUTS"] * triton.cdiv(n_slots, _BLOCK_SLOTS) * blocks * images[1] * shape["HEADS"]
    table_gradient_kernel[(programs,)](
        *unpacked, block_sums, *images, slots[0], n_slots, Q=query.stride()[:4], SLOTS=score_gradients.shape[2],
        ALL_SLOTS=block_sums.shape[3], **{name: shape[name] for name in names}, PACK=pack, BLOCK=_BLOCK_PIXELS,
        BLOCK_SLOTS=_BLOCK_SLOTS, STEP_PIXELS=_STEP_PIXELS,
        BLOCK_CHANNELS=max(16, triton.next_power_of_2(block_sums.shape[4])), num_warps=4,
    )  # fmt: skip


def table_gradients(
    block_sums: Tensor,
    encoding: Encoding,
    gradient_scale: Tensor,
    shape: dict[str, Any],
    segment_size: int,
    n_segments: int,
    slots_per_segment: int,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Sum the block sums, over heads too if these share a table, to the gradients of position, element and bias."""
    position, element, bias = encoding.position, encoding.element, encoding.bias
    d, position_channels = shape["D"], shape["POSITION_CHANNELS"]
    summed = _sum_blocks(block_sums, position)
    common = {
        "ROW_LENGTH": block_sums.shape[-1],
        "SLOTS_PER_SEGMENT": slots_per_segment,
        "SEGMENT_SIZE": segment_size,
        "BLOCK": _WRITE_BLOCK,
    }
    window = {"TABLE_KEYS": position.shape[2], "WY": shape["WY"], "WX": shape["WX"]}

    def empty(table: Tensor) -> tuple[Tensor, tuple[int]]:
        gradient = torch.empty_like(table, memory_format=torch.contiguous_format)
        return gradient, (triton.cdiv(table.numel(), _WRITE_BLOCK),)

    grad_position, grid = empty(position)
    scale = 1 / math.sqrt(d)
    position_gradient_kernel[grid](
        summed, grad_position, gradient_scale, scale, position.numel(), FIRST_CHANNEL=0, CHANNELS=position_channels,
        **window, **common,
    )  # fmt: skip
    grad_element = grad_bias = None
    if element is not None:
        grad_element, grid = empty(element)
        element_gradient_kernel[grid](
            summed, grad_element, gradient_scale, scale, element.numel(), FIRST_CHANNEL=position_channels,
            CHANNELS=d - position_channels, ALL_SEGMENTS=n_segments, KEYS=shape["KEYS"], **common,
        )  # fmt: skip
    if bias is not None:
        grad_bias, grid = empty(bias)
        summed = _sum_blocks(block_sums, bias)
        position_gradient_kernel[grid](
            summed, grad_bias, gradient_scale, 1.0, bias.numel(), FIRST_CHANNEL=d, CHANNELS=1, **window, **common
        )
    return grad_position, grad_element, grad_bias


def _sum_blocks(block_sums: Tensor, table: Tensor) -> Tensor:
    """(blocks, heads, ...) -> (heads, ...), or (1, ...) if all heads share the table."""
    return sum_rows(block_sums if len(table) == block_sums.shape[1] else block_sums.flatten(0, 1)[:, None])


@triton.jit(do_not_specialize=["first_image", "images", "first_slot", "n_slots"])
def table_gradient_kernel(  # type: ignore[no-untyped-def]
    query, score_gradients, block_sums, first_image, images, first_slot, n_slots,
    Q: tl.constexpr, SLOTS: tl.constexpr, ALL_SLOTS: tl.constexpr, HEADS: tl.constexpr, OUTPUTS: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, D: tl.constexpr, HAS_BIAS: tl.constexpr, PACK: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_SLOTS: tl.constexpr, STEP_PIXELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Sum gradients of scores times queries over a BLOCK of pixels: one block of the table's gradient.

    In steps of STEP_PIXELS it multiplies the gradients of BLOCK_SLOTS slots, (BLOCK_SLOTS, STEP_PIXELS * PACK), by the
    queries, (STEP_PIXELS * PACK, BLOCK_CHANNELS), of which one channel is 1, for the bias. The two images of packed
    pairs are summed. There are ``n_slots`` slots, the first of which is number ``first_slot`` of ALL_SLOTS.
    """
    BLOCKS: tl.constexpr = (H * W + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    output, program = program % OUTPUTS, program // OUTPUTS
    slot_blocks = (n_slots + BLOCK_SLOTS - 1) // BLOCK_SLOTS
    slot_block, program = program % slot_blocks, program // slot_blocks
    first_pixel, program = program % BLOCKS * BLOCK, program // BLOCKS
    image, head = (program % images).to(tl.int64), (program // images).to(tl.int64)
    slot, channel = slot_block * BLOCK_SLOTS + tl.arange(0, BLOCK_SLOTS), tl.arange(0, BLOCK_CHANNELS)
    index = tl.arange(0, STEP_PIXELS * PACK)
    end = tl.minimum(first_pixel + BLOCK, H * W) * PACK
    query += ((first_image + image) * Q[0] + head * Q[1] + output * Q[3]) * PACK
    score_gradients += (((image * HEADS + head) * SLOTS + slot) * OUTPUTS + output)[:, None] * (H * W * PACK)
    accumulator = tl.zeros((BLOCK_SLOTS, BLOCK_CHANNELS), tl.float32)
    for start in range(first_pixel, tl.minimum(first_pixel + BLOCK, H * W), STEP_PIXELS):
        index_in_image = start * PACK + index
        is_query = (index_in_image < end)[:, None] & (channel < D)
        queries = tl.load(query + index_in_image[:, None] + channel * (Q[2] * PACK), is_query, 0.0)
        if HAS_BIAS:
            queries = tl.where(channel == D, 1.0, queries)
        gradients = tl.load(score_gradients + index_in_image, (slot < n_slots)[:, None] & (index_in_image < end), 0.0)
        accumulator = tl.dot(gradients, queries.to(gradients.dtype), accumulator, input_precision="ieee")
    block = (first_image + image) * BLOCKS + first_pixel // BLOCK
    block_sums += (((block * HEADS + head) * OUTPUTS + output) * ALL_SLOTS + first_slot) * (D + HAS_BIAS)
    exists = (slot < n_slots)[:, None] & (channel < D + HAS_BIAS)
    tl.store(block_sums + (slot[:, None] * (D + HAS_BIAS) + channel), accumulator, exists)


@triton.jit
def position_gradient_kernel(  # type: ignore[no-untyped-def]
    block_sums, gradient, gradient_scale, factor, count,
    FIRST_CHANNEL: tl.constexpr, CHANNELS: tl.constexpr, ROW_LENGTH: tl.constexpr, TABLE_KEYS: tl.constexpr,
    WY: tl.constexpr, WX: tl.constexpr, SLOTS_PER_SEGMENT: tl.constexpr, SEGMENT_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy CHANNELS channels of (heads * outputs, segments, SLOTS_PER_SEGMENT, ROW_LENGTH) sums to the gradient."""
    SEGMENTS: tl.constexpr = (WX + SEGMENT_SIZE - 1) // SEGMENT_SIZE
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel, entry = index % CHANNELS, index // CHANNELS
    x, y, table_key = entry % WX, entry // WX % WY, entry // (WX * WY) % TABLE_KEYS
    segment = entry // (WX * WY * TABLE_KEYS) * (WY * SEGMENTS) + y * SEGMENTS + x // SEGMENT_SIZE
    segment = segment * TABLE_KEYS + table_key
    offset = (segment * SLOTS_PER_SEGMENT + x % SEGMENT_SIZE) * ROW_LENGTH + FIRST_CHANNEL + channel
    result = tl.load(block_sums + offset, index < count, 0.0) * (tl.load(gradient_scale) * factor)
    tl.store(gradient + index, result.to(gradient.dtype.element_ty), index < count)


@triton.jit
def element_gradient_kernel(  # type: ignore[no-untyped-def]
    block_sums, gradient, gradient_scale, factor, count,
    FIRST_CHANNEL: tl.constexpr, CHANNELS: tl.constexpr, ROW_LENGTH: tl.constexpr, ALL_SEGMENTS: tl.constexpr,
    KEYS: tl.constexpr, SLOTS_PER_SEGMENT: tl.constexpr, SEGMENT_SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum CHANNELS channels of sums, (heads * outputs, ALL_SEGMENTS, SLOTS_PER_SEGMENT, ROW_LENGTH), over segments.

    The result is the gradient of the vectors of the pairs of elements.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel, element, table_row = index % CHANNELS, index // CHANNELS % KEYS, index // (CHANNELS * KEYS)
    slot = table_row * (ALL_SEGMENTS * SLOTS_PER_SEGMENT) + SEGMENT_SIZE + element
    pointers = block_sums + (slot * ROW_LENGTH + FIRST_CHANNEL + channel)
    accumulator = tl.zeros((BLOCK,), tl.float32)
    for segment in range(ALL_SEGMENTS):
        accumulator += tl.load(pointers + segment * (SLOTS_PER_SEGMENT * ROW_LENGTH), index < count, 0.0)
    target, scale = gradient + index, tl.load(gradient_scale) * factor
    tl.store(target, (accumulator * scale).to(gradient.dtype.element_ty), index < count)
