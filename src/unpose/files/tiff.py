"""Reads TIFF files: tifffile describes the pages, tifffile or Pillow decodes them.

Every page is an image, except reduced copies of other pages. Pages that are channels of one image, according to the
metadata of ImageJ, OME or tifffile, are joined: three channels are red, green and blue. Any other number of channels is
rejected, because the user must choose which to look at. Slices and time points are separate images.

Pillow decodes pages of up to 8 bits and grey pages, in all compressions of libtiff. tifffile decodes what Pillow cannot
read or would cut to 8 bits: 16-bit and float colour, doubles, halves. Without the package imagecodecs, tifffile cannot
read LZW and JPEG; 16-bit colour in these compressions is read at 8 bits, with a note.

tifffile's ``series`` is not used: for OME metadata it opens other files, and allocates whatever the metadata declare.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from struct import calcsize, unpack
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from unpose.files.frames import (
    Frame,
    Header,
    UnreadableError,
    as_unreadable_error,
    blend_over_background,
    check_frame,
    check_size,
    shrink,
    shrink_factor,
    upright,
)
from unpose.files.pictures import BYTES_AS_FLOATS, pixels

if TYPE_CHECKING:
    from tifffile import TiffFile

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""First bytes of TIFF and BigTIFF files."""

_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _CMYK = 0, 1, 2, 5
_COLOUR_SAMPLES = {_WHITE_IS_ZERO: 1, _BLACK_IS_ZERO: 1, _RGB: 3, _CMYK: 4}
"""Photometric interpretation -> samples per pixel without extra samples such as alpha."""

_UNSPECIFIED, _PREMULTIPLIED_ALPHA, _ALPHA = 0, 1, 2
"""Values of the tag ExtraSamples."""

_IMAGEJ_ORDERS = ("czt", "ctz", "zct", "ztc", "tcz", "tzc")

_BYTES_DECODED = 12
"""Memory per pixel while Pillow decodes a page: the page, a whole compressed strip, and the page turned upright."""

_BYTES_JOINED = 24
"""Memory per pixel while three channels are joined: each as float32, and all of them."""

_Axes = list[tuple[str, int]]
"""Names and lengths of the axes along which pages lie, the fastest first."""

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # otherwise damaged files print warnings to stderr


def read_header(path: Path, side: int) -> Header:
    """Read the sizes of the images and the memory cost from the tags of all pages."""
    sizes: dict[int, tuple[int, int]] = {}
    errors: dict[int, UnreadableError] = {}
    is_colour, cost, notes = False, 0, set()
    _check_page_chain(path)
    with _open(path) as file:
        pages = _full_pages(file)
        channels = _channels_per_image(file, pages)
        for number, page in enumerate(pages):
            try:
                height, width = _size(page)
                check_size(height, width)
            except Exception as error:
                errors[number // channels] = as_unreadable_error(error)
                continue
            sizes.setdefault(number // channels, (height, width))
            is_colour |= int(page.photometric) not in (_WHITE_IS_ZERO, _BLACK_IS_ZERO)
            stored = max(_BYTES_DECODED * height * width, 2 * page.nbytes if _is_decodable(page) else 0)
            cost = max(cost, stored + BYTES_AS_FLOATS * min(height * width, (4 * side) ** 2))
            if _is_deep_colour(page) and not _is_decodable(page):
                notes.add("colour of more than 8 bits read at 8 bits; pip install imagecodecs keeps all bits")
    good = [size for number, size in sizes.items() if number not in errors]
    if not good:
        raise next(iter(errors.values()))
    if channels == 3:
        cost += _BYTES_JOINED * max(height * width for height, width in good)
        notes.add("3 channels of each position read as red, green and blue")
    return Header(good, is_colour or channels == 3, cost, "; ".join(sorted(notes)), frozenset(errors))


def read_frames(path: Path, side: int, wanted: set[int] | None) -> Iterator[Frame]:
    """Read all images or those wanted; images much larger than ``side`` may be shrunk."""
    with _open(path) as file, path.open("rb") as handle:
        pages = _full_pages(file)
        channels = _channels_per_image(file, pages)
        try:
            image = Image.open(handle, formats=["TIFF"])
        except UnidentifiedImageError:
            image = None  # Pillow does not know this kind of pixels
        for number in range(len(pages) // channels):
            if wanted is not None and number not in wanted:
                continue
            try:
                found = [_pixels(page, image, side) for page in pages[number * channels : (number + 1) * channels]]
                yield number, found[0] if channels == 1 else _joined(found)
            except Exception as error:
                yield number, as_unreadable_error(error)


def _open(path: Path) -> "TiffFile":
    from tifffile import TiffFile  # only where a TIFF is read

    # Without these flags tifffile would read private page tables of these formats on opening.
    return TiffFile(path, is_lsm=False, is_scanimage=False, is_ndpi=False)


def _check_page_chain(path: Path) -> None:
    """Follow the chain of pages and reject chains that leave the file, form a loop or overlap themselves.

    A page is a count, that many tags, and the offset of the next page. Decoders follow looping chains for hours, and
    tifffile silently ends a chain that leaves the file. The pages of a good file do not overlap, so all of them
    together are never longer than the file.
    """
    with path.open("rb") as handle:
        start = handle.read(16)
        order, is_big = "<" if start[:2] == b"II" else ">", start[2:4] in (b"+\0", b"\0+")
        count_format, tag_size, offset_format = ("Q", 20, "Q") if is_big else ("H", 12, "I")
        size = remaining = path.stat().st_size
        following = start[8:16] if is_big else start[4:8]
        while len(following) == calcsize(offset_format) and (offset := unpack(order + offset_format, following)[0]):
            handle.seek(min(offset, size))
            count = handle.read(calcsize(count_format))
            if len(count) < calcsize(count_format):
                raise UnreadableError("is cut short: it has a page beyond its end")
            tags = unpack(order + count_format, count)[0] * tag_size
            remaining -= tags + calcsize(count_format) + calcsize(offset_format)
            if remaining < 0:
                raise UnreadableError("has a chain of pages that is longer than the file")
            handle.seek(offset + calcsize(count_format) + tags)
            following = handle.read(calcsize(offset_format))


def _full_pages(file: "TiffFile") -> list[Any]:
    """All pages but reduced copies of others."""
    all_pages: Iterable[Any] = file.pages
    pages = [page for page in all_pages if not page.is_reduced]
    if not pages:
        raise UnreadableError("holds no page")
    return pages


def _size(page: Any) -> tuple[int, int]:
    """Height and width after the orientation is applied."""
    height, width = int(page.imagelength), int(page.imagewidth)
    return (width, height) if _orientation(page) > 4 else (height, width)


def _orientation(page: Any) -> int:
    value = page.tags.valueof(274, default=1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


# Pixels --------------------------------------------------------------------------------------------------------------


def _pixels(page: Any, image: Image.Image | None, side: int) -> NDArray:
    """One page as (h, w) or (h, w, 3) float32, upright."""
    if image is None or (_is_deep_colour(page) and _is_decodable(page)):
        return check_frame(_pixels_by_tifffile(page, side))
    image.seek(page.index)
    if (image.height, image.width) != _size(page):
        raise UnreadableError("declares two different sizes")
    return check_frame(pixels(image, side, white_is_zero=int(page.photometric) == _WHITE_IS_ZERO))  # type: ignore[arg-type]


def _is_deep_colour(page: Any) -> bool:
    """Whether a page has several samples of more than 8 bits."""
    return page.samplesperpixel > 1 and np.max(page.bitspersample) > 8


def _is_decodable(page: Any) -> bool:
    """Whether tifffile can decode a page."""
    from tifffile import TIFF

    try:
        _check_layout(page)
    except UnreadableError:
        return False
    return page.compression in TIFF.DECOMPRESSORS and page.predictor in TIFF.UNPREDICTORS


def _check_layout(page: Any) -> None:
    """Reject pages that are not grey, RGB or CMYK, perhaps with alpha: their samples would be taken for colours."""
    samples = page.samplesperpixel
    if (
        page.dtype is None
        or page.axes not in ("YX", "YXS", "SYX")
        or samples - _COLOUR_SAMPLES.get(int(page.photometric), -1) not in (0, 1)
    ):
        raise UnreadableError(f"has pages of shape {page.shape} ({page.axes}), which are neither grey nor colour")
    if samples == 2 and page.extrasamples == (_UNSPECIFIED,):
        raise UnreadableError("has 2 channels at each position; give one channel each")


def _pixels_by_tifffile(page: Any, side: int) -> NDArray:
    _check_layout(page)
    samples = page.asarray(maxworkers=1)  # (h, w), (h, w, c) or (c, h, w)
    samples = np.moveaxis(samples, 0, -1) if page.axes == "SYX" else samples.reshape(*samples.shape[:2], -1)
    photometric, n_colours = int(page.photometric), _COLOUR_SAMPLES[int(page.photometric)]
    extra = page.extrasamples[0] if page.extrasamples and samples.shape[-1] > n_colours else _UNSPECIFIED
    has_alpha = extra in (_PREMULTIPLIED_ALPHA, _ALPHA)
    samples = samples[..., : n_colours + has_alpha]
    factor = shrink_factor(samples.shape[0], samples.shape[1], side)
    if photometric == _WHITE_IS_ZERO and samples.dtype.kind == "u":
        samples[..., 0] = ~samples[..., 0]
    frame = upright(shrink(samples, factor, has_alpha=extra == _ALPHA), _orientation(page))
    if photometric == _CMYK:
        return (1 - frame[..., :3]) * (1 - frame[..., 3:4])
    if extra == _PREMULTIPLIED_ALPHA:
        frame[..., :-1] /= np.maximum(frame[..., -1:], np.float32(1e-9))
    if has_alpha:
        return blend_over_background(frame)
    return frame[..., 0] if n_colours == 1 else frame


def _joined(channels: list[NDArray]) -> NDArray:
    """Join three grey channels (h, w) to colour (h, w, 3)."""
    if channels[0].ndim > 2 or len({channel.shape for channel in channels}) > 1:
        raise UnreadableError("has channels that are not grey images of one size")
    return np.stack(channels, axis=-1)


# Channels ------------------------------------------------------------------------------------------------------------


def _channels_per_image(file: "TiffFile", pages: list[Any]) -> int:
    """How many successive pages are the channels of one image: 3 or 1; other numbers cannot be joined to colours."""
    try:
        series = [axes for axes in _page_axes(file, pages[0]) if all(length > 0 for _, length in axes)]
        # Metadata that were copied from another file, or describe a set of files, say nothing about these pages.
        if len(pages) % sum(prod(length for _, length in axes) for axes in series):
            return 1
        n_channels = {dict(axes).get("C", 1) for axes in series}
    except Exception:
        return 1  # the pixels may be good, only the metadata are missing or damaged
    if max(n_channels) == 1:
        return 1
    if n_channels != {3} or pages[0].samplesperpixel > 1:
        raise UnreadableError(
            f"has {max(n_channels)} channels at each position; give one channel each, for example by ImageJ's Split "
            "Channels"
        )
    if any(prod(length for _, length in axes[: [name for name, _ in axes].index("C")]) > 1 for axes in series):
        raise UnreadableError(
            "has 3 channels at each position, each a stack of its own; save it in the order XYCZT, or give one channel"
        )
    return 3


def _page_axes(file: "TiffFile", page: Any) -> list[_Axes]:
    """Axes of every series of pages that the metadata of the first page describe."""
    if metadata := file.imagej_metadata:
        lengths = {"c": "channels", "z": "slices", "t": "frames"}
        order = str(metadata.get("order"))
        return [
            [(axis.upper(), metadata.get(lengths[axis], 1)) for axis in (order if order in _IMAGEJ_ORDERS else "czt")]
        ]
    if text := page.shaped_description:
        metadata = json.loads(text)
        axes = zip(metadata["axes"].upper(), metadata["shape"], strict=True)
        return [[(axis, length) for axis, length in reversed(list(axes)) if axis not in "YXS"]]
    # Patterns instead of an XML parser, which would expand entities.
    return [
        _ome_axes(pixels, page.samplesperpixel)
        for pixels in re.findall(r"<(?:\w+:)?Pixels\s([^>]*)>", page.description)
    ]


def _ome_axes(pixels: str, samples: int) -> _Axes:
    """Axes from the attributes of a ``Pixels`` element."""
    values = dict(re.findall(r"""\b(Size[CZT]|DimensionOrder)\s*=\s*["'](\w{1,9})["']""", pixels))
    lengths = {axis: int(values.get(f"Size{axis}", 1)) for axis in "CZT"}
    if lengths["C"] % samples == 0:
        lengths["C"] //= samples  # OME counts the colours of one page as channels
    return [(axis, lengths[axis]) for axis in values.get("DimensionOrder", "XYCZT")[2:] if axis in lengths]
