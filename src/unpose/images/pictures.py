"""Picture files by Pillow: PNG, JPEG, TIFF, WebP, BMP, GIF and PPM, and nothing else that Pillow could start.

An animation (GIF, WebP, PNG) is one image, its first frame; every page of a TIFF is one. EXIF orientation is applied.
Grey keeps its 16 bits or floats; colour is read at 8 bits, except from TIFFs that :mod:`unpose.images.deep_tiff` reads.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from unpose.images import deep_tiff
from unpose.images.frames import (
    Frame,
    Header,
    Unreadable,
    check_size,
    checked_frame,
    natural_units,
    over_ground,
    unreadable,
)

FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF", "PPM")
"""The only decoders that are ever started: others run programs (EPS) or read what is no picture."""

_BYTES_DECODED = 20
"""Memory for each pixel while a picture is decoded, turned and made smaller: Pillow's pixels and copies of them."""

_BYTES_AS_FLOATS = 48
"""Memory for each pixel that is left then: four channels of floats, and copies while they are blended and scaled."""

_GREY = ("1", "L", "LA", "La", "I", "F")
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Image.preinit()  # registers the decoders once, before threads ask for them
logging.getLogger("PIL").addHandler(logging.NullHandler())  # or damaged files speak on stderr


def probe(path: Path, side: int, key: str | None) -> Header:
    """Sizes of the frames and what reading will cost, from the file's headers alone."""
    _refuse_key(key)
    sizes, colour, reasons, note = [], False, [], ""
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
            if _is_deep(image) and deep_tiff.can_read(path):
                return deep_tiff.probe(path)
            if _is_deep(image):
                note = "colour of more than 8 bits read at 8 bits"
            for _, reason in _pages(image):
                if reason is not None:
                    reasons.append(reason)
                    continue
                width, height = image.size
                if image.format != "TIFF" and Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1) > 4:
                    height, width = width, height  # Pillow turns TIFFs itself
                sizes.append((height, width))
                colour |= image.mode not in _GREY and not image.mode.startswith("I;16")
    if not sizes:
        raise reasons[0] if reasons else Unreadable("holds no page")
    pixels = max(height * width for height, width in sizes)
    return Header(sizes, colour, _BYTES_DECODED * pixels + _BYTES_AS_FLOATS * min(pixels, (4 * side) ** 2), note)


def read(path: Path, side: int, wanted: set[int] | None) -> Iterator[Frame]:
    """The frames of a picture file; those much larger than ``side`` are made smaller on the way."""
    with path.open("rb") as handle:
        try:
            image = Image.open(handle, formats=FORMATS)
        except UnidentifiedImageError:
            yield from deep_tiff.read(path)
            return
        with image:
            if _is_deep(image) and deep_tiff.can_read(path):
                yield from deep_tiff.read(path)
                return
            for number, reason in _pages(image):
                if wanted is not None and number not in wanted:
                    continue
                if reason is not None:
                    yield number, reason
                    continue
                try:
                    frame = checked_frame(_pixels(image, side))
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
        except Exception as error:
            yield number, unreadable(error)
        else:
            yield number, None


def _is_deep(image: ImageFile.ImageFile) -> bool:
    """Colour with more than 8 bits, of which Pillow keeps 8."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(258, (1,))
        return image.mode not in _GREY and max(bits if isinstance(bits, tuple) else (bits,)) > 8
    if not image.tile:
        return False
    stored = image.tile[0].args  # the layout of the bytes; for portable pixmaps also the largest value
    if image.format == "PPM":
        return image.mode == "RGB" and isinstance(stored, tuple) and isinstance(stored[-1], int) and stored[-1] > 255
    return str(stored).startswith(("RGB;16", "RGBA;16", "LA;16"))


def _pixels(image: Image.Image, side: int) -> NDArray:
    """One opened frame as (h, w) or (h, w, 3) floats, upright."""
    image.draft(image.mode, (2 * side, 2 * side))  # JPEG only: decodes at half, a quarter, an eighth
    image.load()
    upright = _upright(image)
    if upright.mode.startswith("I;16"):
        return natural_units(np.asarray(upright).astype(np.uint16))
    if upright.mode in ("I", "F"):
        scale = 65535 if upright.mode == "I" and image.format == "PPM" else 1  # Pillow brings PGM to 16 bits
        return np.asarray(upright, dtype=np.float32) / np.float32(scale)
    grey = upright.mode in _GREY
    mode = "RGBA" if upright.has_transparency_data else "L" if grey else "RGB"
    upright = upright.convert(mode)
    # Boxes of whole pixels first: the rest of the way, in floats, then costs no more than twice the canvas.
    if (factor := max(upright.size) // (2 * side)) > 1:
        upright = upright.reduce(factor)
    frame = natural_units(np.asarray(upright))
    if mode != "RGBA":
        return frame
    return over_ground(frame)[..., 0] if grey else over_ground(frame)


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        return image  # the pixels are good, only the notes beside them are damaged
    return image.transpose(_UPRIGHT[turn]) if turn in _UPRIGHT else image


def _refuse_key(key: str | None) -> None:
    if key is not None:
        raise Unreadable(f"is a picture file, which holds no array {key!r}")
