"""Picture files by Pillow: PNG, JPEG, TIFF, WebP, BMP, GIF and PPM, and nothing else that Pillow could start.

An animation (GIF, WebP, PNG) is one image, its first frame; every page of a TIFF is one, or one of the three colours of
one (:mod:`unpose.files.tiff_channels`). EXIF orientation is applied.
16 bits and floats are kept; where Pillow would not, :mod:`unpose.files.deep_colour` and
:mod:`unpose.files.tiff` read in its place.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from unpose.files import deep_colour
from unpose.files import tiff as deep_tiff
from unpose.files import tiff_channels as channels
from unpose.files.frames import (
    Frame,
    Header,
    Unreadable,
    check_size,
    checked_frame,
    natural_units,
    over_ground,
    unreadable,
)
from unpose.files.orientation import upright, upright_size

FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF", "PPM")
"""The only decoders that are ever started: others run programs (EPS) or read what is no picture."""

_BYTES_DECODED = 20
"""Memory for each pixel while a picture is decoded, turned and made smaller: Pillow's pixels and copies of them."""

_BYTES_AS_FLOATS = 48
"""Memory for each pixel that is left then: four channels of floats, and copies while they are blended and scaled."""

_GREY = ("1", "L", "LA", "La", "I", "F")

Image.preinit()  # registers the decoders once, before threads ask for them
logging.getLogger("PIL").addHandler(logging.NullHandler())  # or damaged files speak on stderr


def probe(path: Path, side: int, key: str | None) -> Header:
    """Sizes of the frames and what reading will cost, from the file's headers alone."""
    _refuse_key(key)
    told = _probe_pages(path, side)
    return channels.joined_header(told) if _are_colours(path) else told


def _probe_pages(path: Path, side: int) -> Header:
    sizes, colour, reasons, notes, plain = [], False, [], set(), False
    with path.open("rb") as handle:
        try:
            image = Image.open(handle, formats=FORMATS)
        except UnidentifiedImageError as error:
            if deep_tiff.is_tiff(path):
                return deep_tiff.probe(path)
            raise Unreadable(f"is not a picture of a kind that is read ({', '.join(FORMATS)})") from error
        with image:
            if image.format == "TIFF":
                deep_tiff.check_pages(path)
            if _is_for_tifffile(image, path):
                return deep_tiff.probe(path)
            for _, reason in _pages(image):
                if reason is not None:
                    reasons.append(reason)
                    continue
                sizes.append(upright_size(image))
                grey = image.mode in _GREY or image.mode.startswith("I;16") or deep_colour.is_grey(image)
                colour |= not grey
                plain |= deep_colour.is_plain(image)
                if deep_colour.is_deep(image) and not deep_colour.can_read(image):
                    notes.add("colour of more than 8 bits read at 8 bits")
    if not sizes:
        raise reasons[0] if reasons else Unreadable("holds no page")
    pixels = max(height * width for height, width in sizes)
    decoded = deep_colour.BYTES_PLAIN if plain else _BYTES_DECODED
    cost = decoded * pixels + _BYTES_AS_FLOATS * min(pixels, (4 * side) ** 2)
    return Header(sizes, colour, cost, "; ".join(sorted(notes)))


def read(path: Path, side: int, wanted: set[int] | None) -> Iterator[Frame]:
    """The frames of a picture file; those much larger than ``side`` are made smaller on the way."""
    if _are_colours(path):
        return channels.joined(_read_pages(path, side, None), wanted)
    return _read_pages(path, side, wanted)


def _are_colours(path: Path) -> bool:
    if not deep_tiff.is_tiff(path):
        return False
    with path.open("rb") as handle:
        return channels.are_colours(handle)


def _read_pages(path: Path, side: int, wanted: set[int] | None) -> Iterator[Frame]:
    with path.open("rb") as handle:
        try:
            image = Image.open(handle, formats=FORMATS)
        except UnidentifiedImageError:
            yield from deep_tiff.read(path)
            return
        with image:
            if _is_for_tifffile(image, path):
                yield from deep_tiff.read(path)
                return
            for number, reason in _pages(image):
                if wanted is not None and number not in wanted:
                    continue
                if reason is not None:
                    yield number, reason
                    continue
                try:
                    deep = deep_colour.can_read(image)
                    frame = checked_frame(deep_colour.read(path, number, side) if deep else _pixels(image, side))
                except Exception as error:
                    yield number, unreadable(error)
                else:
                    yield number, frame


def _pages(image: ImageFile.ImageFile) -> Iterator[tuple[int, Unreadable | None]]:
    """Opens the frames that count, one after the other: all full pages of a TIFF, else the first."""
    for number in range(image.n_frames) if isinstance(image, TiffImagePlugin.TiffImageFile) else (0,):
        try:
            image.seek(number)
            if isinstance(image, TiffImagePlugin.TiffImageFile) and int(image.tag_v2.get(254, 0)) & 1:
                continue  # NewSubfileType: a small copy of another page
            check_size(image.size[1], image.size[0])
            deep_colour.check(image)
        except Exception as error:
            yield number, unreadable(error)
        else:
            yield number, None


def _is_for_tifffile(image: ImageFile.ImageFile, path: Path) -> bool:
    """A TIFF with bits that only tifffile keeps."""
    return deep_colour.is_deep(image) and not deep_colour.can_read(image) and deep_tiff.can_read(path)


def _pixels(image: Image.Image, side: int) -> NDArray:
    """One opened frame as (h, w) or (h, w, 3) floats, upright."""
    image.draft(image.mode, (2 * side, 2 * side))  # JPEG only: decodes at half, a quarter, an eighth
    image.load()
    turned = upright(image)
    if turned.mode.startswith("I;16"):
        words, key = np.asarray(turned).astype(np.uint16), image.info.get("transparency")
        if isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(262) == deep_tiff.WHITE_IS_ZERO:
            words = ~words  # as Pillow itself does for 8 bits
        frame = natural_units(words)
        return over_ground(np.stack([frame, words != key], axis=-1)) if isinstance(key, int) else frame
    if turned.mode in ("I", "F"):
        scale = 65535 if turned.mode == "I" and image.format == "PPM" else 1  # Pillow brings PGM to 16 bits
        return np.asarray(turned, dtype=np.float32) / np.float32(scale)
    grey = turned.mode in _GREY
    mode = "RGBA" if turned.has_transparency_data else "L" if grey else "RGB"
    turned = turned.convert(mode)
    # Boxes of whole pixels first: the rest of the way, in floats, then costs no more than twice the canvas.
    if (factor := max(turned.size) // (2 * side)) > 1:
        turned = turned.reduce(factor)
    frame = natural_units(np.asarray(turned))
    if mode != "RGBA":
        return frame
    return over_ground(frame)[..., 0] if grey else over_ground(frame)


def _refuse_key(key: str | None) -> None:
    if key is not None:
        raise Unreadable(f"is a picture file, which holds no array {key!r}")
