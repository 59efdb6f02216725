"""TIFFs that Pillow cannot read or would cut to 8 bits: floats in colour, doubles, halves, planes of 16 bits.

By tifffile, from the extra ``formats``. Pages that are compressed by anything but deflate need more than that.
"""

import logging
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from struct import calcsize, unpack
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unpose.files.frames import Frame, Header, Unreadable, check_size, checked_frame, natural_units, over_ground

_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_COMPRESSIONS = (1, 8, 32946)
"""None and deflate (two numbers): what tifffile reads without further libraries."""
WHITE_IS_ZERO = 0
_SAMPLES = {WHITE_IS_ZERO: (1, 2), 1: (1, 2), 2: (3, 4)}
"""Samples of a pixel for each kind of picture: grey from white, grey from black, colour."""


def is_tiff(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(4) in _MAGIC


def check_pages(path: Path) -> None:
    """Follow a TIFF from page to page and refuse chains that run in circles or through themselves.

    A page is a count, that many tags, and where the next page is. Decoders follow such chains for hours; those of
    honest files do not overlap, and so are never longer than the file.
    """
    with path.open("rb") as handle:
        start = handle.read(16)
        order, is_big = "<" if start[:2] == b"II" else ">", start[2:4] in (b"+\0", b"\0+")
        count_form, tag_size, offset_form = ("Q", 20, "Q") if is_big else ("H", 12, "I")
        room = path.stat().st_size
        following = start[8:16] if is_big else start[4:8]
        while len(following) == calcsize(offset_form) and (offset := unpack(order + offset_form, following)[0]):
            if offset >= 2**63:
                return  # beyond any file
            handle.seek(offset)
            counted = handle.read(calcsize(count_form))
            if len(counted) < calcsize(count_form):
                return
            tags = unpack(order + count_form, counted)[0] * tag_size
            room -= tags + calcsize(count_form) + calcsize(offset_form)
            if room < 0:
                raise Unreadable("has a chain of pages that is longer than the file")
            handle.seek(offset + calcsize(count_form) + tags)
            following = handle.read(calcsize(offset_form))


def can_read(path: Path) -> bool:
    """Whether tifffile is there and knows the file's compression."""
    try:
        with _tifffile().TiffFile(path) as file:
            return all(page.compression in _COMPRESSIONS and _layout(page) for page in _pages(file))
    except Exception:
        return False


def probe(path: Path) -> Header:
    """Sizes and cost from the pages' tags."""
    check_pages(path)
    with _tifffile().TiffFile(path) as file:
        pages = _pages(file)
        for page in pages:
            _layout(page)
        sizes = [(int(page.imagelength), int(page.imagewidth)) for page in pages]
        for size in sizes:
            check_size(*size)
        # The page as stored, as floats, and once more while it is blended.
        cost = max(page.size * (page.dtype.itemsize + 12) for page in pages)
        return Header(sizes, any(page.samplesperpixel > 2 for page in pages), cost)


def read(path: Path) -> Iterator[Frame]:
    """The frames of all full pages."""
    with _tifffile().TiffFile(path) as file:
        for number, page in enumerate(_pages(file)):
            check_size(int(page.imagelength), int(page.imagewidth))
            yield number, checked_frame(_pixels(page))


def _pixels(page: Any) -> NDArray:
    stored = page.asarray(maxworkers=1)
    if int(page.photometric) == WHITE_IS_ZERO and stored.dtype.kind == "u" and stored.ndim == 2:
        stored = ~stored
    frame = natural_units(np.moveaxis(stored, 0, -1) if _layout(page) == "SYX" else stored)
    if frame.ndim == 2:
        return frame
    return over_ground(frame) if frame.shape[-1] in (2, 4) else frame  # (h, w) or (h, w, 3)


def _pages(file: Any) -> list[Any]:
    pages = [page for page in file.pages if not page.is_reduced]
    if not pages:
        raise Unreadable("holds no page")
    return pages


def _layout(page: Any) -> str:
    """Order of the axes: rows and columns, and the samples of grey or colour, also with transparency, before or behind.

    Others than these, such as four inks, would be taken for colours that they are not.
    """
    axes = str(page.axes)
    samples = {"YX": 1, "YXS": page.shape[-1], "SYX": page.shape[0]}.get(axes)
    if samples not in _SAMPLES.get(int(page.photometric), ()) or page.dtype is None:
        raise Unreadable(f"has pages of shape {tuple(page.shape)} ({axes}), which are not grey or colour pictures")
    return axes


@cache
def _tifffile() -> ModuleType:
    try:
        module = import_module("tifffile")
    except ImportError as error:
        raise Unreadable("is a TIFF beyond what Pillow reads; pip install unpose[formats] reads it") from error
    logging.getLogger("tifffile").addHandler(logging.NullHandler())  # or damaged files speak on stderr
    return module
