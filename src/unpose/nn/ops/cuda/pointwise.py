"""A linear map of the channels on a GPU in half precision, where the places of a channel lie side by side.

The products are small, 20 channels wide in the published networks, so what takes the time is memory. A program reads
all channels at some places of one image once, or of the two that share words, and writes the result once: the bias is
added and types are changed on the way, not in passes of their own. The gradient of weight and bias is one product too,
with a channel of ones beside the maps; it is summed over a program's places, then over programs in a second, fixed sum.
Sums are float32.

As with the norm (:mod:`unpose.nn.ops.cuda.norm`) nothing depends on the machine or passes through the host.
"""

# Triton reads no stars in tuples and no annotations of them.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, var-annotated, misc"

import torch
import triton
import triton.language as tl
from torch import Tensor

from unpose.nn.ops.cuda.packed import word
from unpose.nn.ops.cuda.reduce import over_rows

_LANES = 128
"""Places of a tile, of all its images together."""

_INSIDE = 64
"""Channels that go into one product, at most; of more channels, those after the first block are read again for each
block of the result, from the cache."""

_OUTSIDE = 64
"""Channels of the result that a program holds, at most."""

_PROGRAMS = 512
"""Programs for the gradient of the weight: enough for any GPU, and few block sums to add up."""


def forward(maps: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype, kind: torch.dtype) -> Tensor:
    """(b, in, ...) maps, an (out, in) weight of any strides and an (out,) bias -> (b, out, ...) in the type ``kind``.

    Factors are rounded to the type ``product``, bfloat16 or float16.
    """
    out = torch.empty(len(maps), len(weight), *maps.shape[2:], dtype=kind, device=maps.device)
    return _map(maps, weight, bias, product, out)


def forward_words(maps: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype) -> Tensor:
    """:func:`forward` as attention reads it: two images in words of 32 bits, (ceil(b / 2), out, ...), in float16."""
    columns = triton.cdiv(len(maps), 2)
    out = torch.empty(columns, len(weight), *maps.shape[2:], dtype=torch.int32, device=maps.device)
    return _map(maps, weight, bias, product, out)


def _map(maps: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype, out: Tensor) -> Tensor:
    """Writes one product for each image to ``out``, or where that has int32, words of two."""
    maps = maps.contiguous()
    batch, inside = maps.shape[:2]
    outside, places, pair = len(weight), maps[:1, :1].numel(), 2 if out.dtype == torch.int32 else 1
    lanes = _LANES // pair
    with torch.cuda.device_of(maps):
        forward_kernel[(len(out) * triton.cdiv(places, lanes),)](
            maps, weight, weight if bias is None else bias, out, batch, places, *weight.stride(),
            INSIDE=inside, OUTSIDE=outside, PAIR=pair,
            BLOCK_INSIDE=_block(inside, _INSIDE), BLOCK_OUTSIDE=_block(outside, _OUTSIDE), LANES=lanes,
            HAS_BIAS=bias is not None, PRODUCT=_TRITON[product], num_warps=4, num_stages=2,
        )  # fmt: skip
    return out


def weight_gradient(grad_out: Tensor, maps: Tensor, product: torch.dtype) -> Tensor:
    """Gradients of weight and bias one after the other, (out * in + out,) in float32, given that of the result."""
    maps, grad_out = maps.contiguous(), grad_out.contiguous()
    inside, outside, places = maps.shape[1], grad_out.shape[1], maps[:1, :1].numel()
    blocks = _block(outside, _OUTSIDE), _block(inside + 1, _INSIDE)
    parts = triton.cdiv(outside, blocks[0]), triton.cdiv(inside + 1, blocks[1])
    tiles = len(maps) * triton.cdiv(places, _LANES)
    steps = triton.cdiv(tiles, max(1, _PROGRAMS // (parts[0] * parts[1])))
    programs = triton.cdiv(tiles, steps)
    sums = torch.empty(programs, outside * (inside + 1), dtype=torch.float32, device=maps.device)
    with torch.cuda.device_of(maps):
        weight_kernel[(programs, *parts)](
            grad_out, maps, sums, places, tiles, steps,
            INSIDE=inside, OUTSIDE=outside, BLOCK_INSIDE=blocks[1], BLOCK_OUTSIDE=blocks[0],
            LANES=_LANES, PRODUCT=_TRITON[product], num_warps=4, num_stages=2,
        )  # fmt: skip
    return over_rows(sums)


_TRITON = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _block(channels: int, most: int) -> int:
    """Channels of a block: a power of two, and at least the 16 that tensor cores multiply."""
    return min(max(16, triton.next_power_of_2(channels)), most)


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    maps, weight, bias, out, batch, places, row, column,
    INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, PAIR: tl.constexpr, BLOCK_INSIDE: tl.constexpr,
    BLOCK_OUTSIDE: tl.constexpr, LANES: tl.constexpr, HAS_BIAS: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """One program for each tile of places, with all channels, of PAIR images; ``row`` and ``column`` are the weight's
    strides."""
    number, place = _where(tl.program_id(0), places, LANES)
    out += number * OUTSIDE * places
    images, held = (), ()
    for p in tl.static_range(PAIR):
        image = maps + tl.minimum(number * PAIR + p, batch - 1) * INSIDE * places  # one that is not there is not read
        images = images + (image,)
        tile = _read(image, tl.arange(0, BLOCK_INSIDE), place, places, INSIDE)
        held = held + (tile.to(PRODUCT),)  # (BLOCK_INSIDE, LANES)
    for first in range(0, OUTSIDE, BLOCK_OUTSIDE):
        channel = first + tl.arange(0, BLOCK_OUTSIDE)
        added = tl.zeros((BLOCK_OUTSIDE,), tl.float32)
        if HAS_BIAS:
            added = tl.load(bias + channel, mask=channel < OUTSIDE, other=0.0).to(tl.float32)
        found = ()
        for p in tl.static_range(PAIR):
            factor = _factor(weight, channel, tl.arange(0, BLOCK_INSIDE), row, column, OUTSIDE, INSIDE)
            total = tl.dot(factor.to(PRODUCT), held[p])  # (BLOCK_OUTSIDE, LANES)
            for further in range(BLOCK_INSIDE, INSIDE, BLOCK_INSIDE):
                within = further + tl.arange(0, BLOCK_INSIDE)
                factor = _factor(weight, channel, within, row, column, OUTSIDE, INSIDE)
                seen = _read(images[p], within, place, places, INSIDE)
                total = tl.dot(factor.to(PRODUCT), seen.to(PRODUCT), total)
            found = found + (total + added[:, None],)
        at = channel[:, None].to(tl.int64) * places + place[None]
        is_inside = (channel < OUTSIDE)[:, None] & (place < places)[None]
        if PAIR == 2:
            tl.store(out + at, word(found[0], found[1]), mask=is_inside)
        else:
            tl.store(out + at, found[0].to(out.dtype.element_ty), mask=is_inside)


@triton.jit
def weight_kernel(  # type: ignore[no-untyped-def]
    grad_out, maps, sums, places, tiles, steps,
    INSIDE: tl.constexpr, OUTSIDE: tl.constexpr, BLOCK_INSIDE: tl.constexpr, BLOCK_OUTSIDE: tl.constexpr,
    LANES: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """One program for ``steps`` tiles and a block of the weight; its sums go to a row of ``sums``."""
    channel = tl.program_id(1) * BLOCK_OUTSIDE + tl.arange(0, BLOCK_OUTSIDE)
    within = tl.program_id(2) * BLOCK_INSIDE + tl.arange(0, BLOCK_INSIDE)
    found = tl.zeros((BLOCK_OUTSIDE, BLOCK_INSIDE), tl.float32)
    begin = tl.program_id(0) * steps
    for tile in range(begin, tl.minimum(begin + steps, tiles)):
        image, place = _where(tile, places, LANES)
        slope = _read(grad_out + image * OUTSIDE * places, channel, place, places, OUTSIDE)
        seen = _read(maps + image * INSIDE * places, within, place, places, INSIDE)
        seen = tl.where((within == INSIDE)[:, None], 1.0, seen)  # beside the maps: the bias's share
        found = tl.dot(slope.to(PRODUCT), tl.trans(seen.to(PRODUCT)), found)
    row = sums + tl.program_id(0) * (OUTSIDE * (INSIDE + 1))
    is_inside = (channel < OUTSIDE)[:, None] & (within <= INSIDE)[None]
    of_weight, of_bias = channel[:, None] * INSIDE + within[None], OUTSIDE * INSIDE + channel[:, None]
    tl.store(row + tl.where((within < INSIDE)[None], of_weight, of_bias), found, mask=is_inside)


@triton.jit
def _where(tile, places, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The image of a tile, in 64 bits since maps may be longer than 2^31, and the tile's places in it, (LANES,)."""
    per_image = tl.cdiv(places, LANES)
    image = tile // per_image
    return image.to(tl.int64), (tile - image * per_image) * LANES + tl.arange(0, LANES)


@triton.jit
def _read(image, channel, place, places, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Channels of an image at some places, (BLOCK, LANES) in float32; zero where there are none."""
    is_inside = (channel < CHANNELS)[:, None] & (place < places)[None]
    return tl.load(image + channel[:, None].to(tl.int64) * places + place[None], mask=is_inside, other=0.0).to(
        tl.float32
    )


@triton.jit
def _factor(  # type: ignore[no-untyped-def]
    weight, channel, within, row, column, OUTSIDE: tl.constexpr, INSIDE: tl.constexpr
):
    """A block of the weight, (BLOCK_OUTSIDE, BLOCK_INSIDE) in float32; zero where there is none."""
    is_inside = (channel < OUTSIDE)[:, None] & (within < INSIDE)[None]
    return tl.load(weight + channel[:, None] * row + within[None] * column, mask=is_inside, other=0.0).to(tl.float32)
