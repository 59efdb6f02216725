"""Pages of a TIFF that are channels of one image, by what ImageJ, OME or tifffile say in its description.

Taken for an image each, they would count every cell as often as it has channels. Three channels are red, green and
blue. Any other number makes no picture, and which to look at is not ours to choose. Slices and times are images.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from struct import Struct, unpack_from
from typing import IO

import numpy as np

from unpose.files.frames import Frame, Header, Unreadable

_COLOURS = 3
_SUBFILE_TYPE, _DESCRIPTION, _SAMPLES = 254, 270, 277  # TIFF's tags
_TEXT, _NUMBERS = 2, {3: "H", 4: "I"}  # and its types
_LONGEST = 64 * 2**20
"""Bytes of a description; those of OME list every page."""

_NOTE = "3 channels of each position read as red, green and blue"
_BYTES_JOINED = 24
"""Memory for each pixel while channels are put together: floats of each, and of all of them."""

_Axes = list[tuple[str, int]]
"""Axes along which pages lie and their lengths, the one that varies fastest first."""


@dataclass(frozen=True)
class _Directory:
    description: str
    samples: int
    is_reduced: bool


def are_colours(stream: IO[bytes]) -> bool:
    """Whether each three full pages of a TIFF, one after the other, are the channels of one image.

    Raises
    ------
    Unreadable
        Where pages are channels and do not make colours.
    """
    try:
        series, samples = _series(stream)
    except Exception:
        return False  # the pixels may be good; only the notes beside them are damaged
    channels = {dict(axes).get("C", 1) for axes in series}
    if max(channels, default=1) == 1:
        return False
    if channels != {_COLOURS} or samples > 1:
        raise Unreadable(
            f"has {max(channels)} channels at each position; give one channel each, such as by ImageJ's Split Channels"
        )
    if any(_step(axes) > 1 for axes in series):
        raise Unreadable(
            "has 3 channels at each position, each a stack of its own; save it in the order XYCZT, or give one channel"
        )
    return True


def joined_header(told: Header) -> Header:
    """What a file holds whose pages are the channels of colours, from what it holds by pages."""
    pixels = max((height * width for height, width in told.sizes), default=0)
    note = "; ".join(filter(None, (told.note, _NOTE)))
    return replace(told, sizes=told.sizes[::_COLOURS], colour=True, cost=told.cost + _BYTES_JOINED * pixels, note=note)


def joined(pages: Iterator[Frame], wanted: set[int] | None) -> Iterator[Frame]:
    """Colours (h, w, 3) from pages (h, w), each three of which are one; a bad page costs its image."""
    for number, group in enumerate(zip(pages, pages, pages, strict=True)):
        if wanted is not None and number not in wanted:
            continue
        planes = [plane for _, plane in group if not isinstance(plane, Unreadable)]
        if len(planes) < _COLOURS:
            yield number, next(reason for _, reason in group if isinstance(reason, Unreadable))
        elif planes[0].ndim > 2 or len({plane.shape for plane in planes}) > 1:
            yield number, Unreadable("has channels that are not grey pictures of one size")
        else:
            yield number, np.stack(planes, axis=-1)


def _series(stream: IO[bytes]) -> tuple[list[_Axes], int]:
    """The axes of every series of pages that a TIFF describes, and samples of a pixel on its pages."""
    directories = _directories(stream)
    first = next(directories)
    told = _described(first.description, first.samples)
    series = [axes for axes in told if all(length > 0 for _, length in axes)]
    if all(dict(axes).get("C", 1) == 1 for axes in series):
        return [], first.samples  # as nearly always, and no other page is looked at
    pages = [each for each in (first, *directories) if not each.is_reduced]
    # A description that came along from another file, or tells of a set of files, says nothing about these pages.
    described = sum(prod(length for _, length in axes) for axes in series)
    return series if len(pages) % described == 0 else [], first.samples


def _directories(stream: IO[bytes]) -> Iterator[_Directory]:
    """The pages of a TIFF without their pixels, which may be of kinds that Pillow does not know."""
    start = stream.read(16)
    order, is_big = "<" if start[:2] == b"II" else ">", 43 in start[2:4]
    count, entry, offset = (Struct(order + form) for form in (("Q", "HHQ8s", "Q") if is_big else ("H", "HHI4s", "I")))
    (following,) = offset.unpack_from(start, 8 if is_big else 4)
    seen = {0}
    while following not in seen:
        seen.add(following)
        stream.seek(following)
        entries = stream.read(entry.size * count.unpack(stream.read(count.size))[0])
        (following,) = offset.unpack(stream.read(offset.size))
        tags = {tag: (kind, length, value) for tag, kind, length, value in entry.iter_unpack(entries)}
        kind, length, value = tags.get(_DESCRIPTION, (_TEXT, 0, b""))
        if length > len(value):
            stream.seek(offset.unpack(value)[0])
            value = stream.read(min(length, _LONGEST))
        text = value[:length].rstrip(b"\0").decode("utf-8", "replace") if kind == _TEXT else ""
        numbers = {
            tag: unpack_from(order + _NUMBERS[kind], value)[0]
            for tag, (kind, length, value) in tags.items()
            if kind in _NUMBERS and length == 1
        }
        yield _Directory(text, numbers.get(_SAMPLES, 1), bool(numbers.get(_SUBFILE_TYPE, 0) & 1))


def _step(axes: _Axes) -> int:
    """How many pages lie between a channel and the next."""
    names = [name for name, _ in axes]
    return prod(length for _, length in axes[: names.index("C")])


def _described(text: str, samples: int) -> list[_Axes]:
    """The axes of every series of pages of which a description tells."""
    if text.startswith("ImageJ="):
        return [_imagej(text)]
    if text.startswith("{"):
        return _shaped(text)
    # By patterns: a parser of XML would follow what it defines, and the document can be long.
    return [_ome(pixels, samples) for pixels in re.findall(r"<(?:\w+:)?Pixels\s([^>]*)>", text)]


def _imagej(text: str) -> _Axes:
    told = dict(re.findall(r"^(channels|slices|frames)=(\d{1,9})\s*$", text, re.MULTILINE))
    lengths = {"C": told.get("channels", 1), "Z": told.get("slices", 1), "T": told.get("frames", 1)}
    order = re.search(r"^order=([czt]{3})\s*$", text, re.MULTILINE)
    return [(axis, int(lengths[axis])) for axis in (order.group(1).upper() if order else "CZT")]


def _ome(pixels: str, samples: int) -> _Axes:
    told = dict(re.findall(r"""\b(Size[CZT]|DimensionOrder)\s*=\s*["'](\w{1,9})["']""", pixels))
    order = told.get("DimensionOrder", "XYCZT")[2:]
    lengths = {axis: int(size) if (size := told.get(f"Size{axis}", "1")).isdecimal() else 1 for axis in "CZT"}
    if lengths["C"] % samples == 0:
        lengths["C"] //= samples  # colours of one page count as channels as well
    return [(axis, lengths[axis]) for axis in order if axis in lengths]


def _shaped(text: str) -> list[_Axes]:
    try:
        told = json.loads(text)
        axes, shape = str(told["axes"]).upper(), [int(length) for length in told["shape"]]
        pairs = list(zip(axes, shape, strict=True))
    except (ValueError, KeyError, TypeError, RecursionError):
        return []  # somebody else's words
    return [[(axis, length) for axis, length in reversed(pairs) if axis not in "YXS"]]
