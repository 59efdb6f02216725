"""Reads PNG, JPEG, WebP, BMP, GIF and PPM files with Pillow; TIFF files are read by :mod:`unpose.files.tiff`.

Only the first frame of an animation is read. The EXIF orientation is applied. Pillow keeps only 8 bits of 16-bit
colour; for PNG files all 16 bits are recovered here, PPM files are read at 8 bits.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from unpose.files.frames import (
    Frame,
    Header,
    UnreadableError,
    blend_over_background,
    check_frame,
    check_size,
    shrink,
    to_float32,
)

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM")
"""The only Pillow decoders that are used here: some others run programs (EPS)."""

BYTES_DECODED = 20
"""Memory per pixel while Pillow decodes, rotates and shrinks an image."""

BYTES_AS_FLOATS = 48
"""Memory per remaining pixel: four float channels, and copies while they are blended and scaled."""

_BYTES_PLAIN_TEXT = 40
"""Memory per pixel of a PNM file written as text, for which Pillow makes copies at 32 bits."""

_GREY_MODES = ("1", "L", "LA", "La", "I", "F")
_GREY_ALPHA_16 = "LA;16B"
_DEEP_PNG_MODES = (_GREY_ALPHA_16, "RGB;16B", "RGBA;16B")
"""Pillow's raw modes of PNG files with 16-bit colour, or 16-bit grey with alpha."""

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the operation that makes the image upright."""

Image.preinit()  # registers the decoders once, before several threads use them
logging.getLogger("PIL").addHandler(logging.NullHandler())  # otherwise damaged files print warnings to stderr


def read_header(path: Path, side: int) -> Header:
    """Read size and memory cost from the file's header."""
    with _open(path) as image:
        width, height = image.size
        check_size(height, width)
        # The base class's method, because that of PNG decodes the image to find metadata behind the pixels.
        if Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1) > 4:
            height, width = width, height
        raw_mode = _png_raw_mode(image)
        is_grey = image.mode in _GREY_MODES or image.mode.startswith("I;16") or raw_mode == _GREY_ALPHA_16
        is_plain_text = bool(image.tile) and image.tile[0].codec_name == "ppm_plain"
        note = "colour of more than 8 bits read at 8 bits" if _ppm_white(image) > 255 else ""
    decoded = _BYTES_PLAIN_TEXT if is_plain_text else BYTES_DECODED
    cost = decoded * height * width + BYTES_AS_FLOATS * min(height * width, (4 * side) ** 2)
    return Header([(height, width)], not is_grey, cost, note)


def read_frames(path: Path, side: int) -> Iterator[Frame]:
    """Read the first frame; an image much larger than ``side`` is shrunk."""
    with _open(path) as image:
        if (raw_mode := _png_raw_mode(image)) in _DEEP_PNG_MODES:
            frame = _deep_png_pixels(path, raw_mode, image.info.get("transparency"), side)
        else:
            frame = pixels(image, side)
    yield 0, check_frame(frame)


def pixels(image: ImageFile.ImageFile, side: int, *, white_is_zero: bool = False) -> NDArray:
    """Decode an opened image, upright: (h, w) or (h, w, 3) float32.

    ``white_is_zero`` inverts 16-bit grey; at 8 bits Pillow itself inverts.
    """
    image.draft(image.mode, (2 * side, 2 * side))  # JPEG only: decodes at 1/2, 1/4 or 1/8 of the size
    image.load()
    turned = _upright(image)
    if turned.mode.startswith("I;16"):
        samples, key = np.asarray(turned).astype(np.uint16), image.info.get("transparency")
        frame = to_float32(~samples if white_is_zero else samples)
        return blend_over_background(np.stack([frame, samples != key], axis=-1)) if isinstance(key, int) else frame
    if turned.mode in ("I", "F"):
        scale = 65535 if turned.mode == "I" and image.format == "PPM" else 1  # Pillow scales PGM to 16 bits
        return np.asarray(turned, dtype=np.float32) / np.float32(scale)
    is_grey = turned.mode in _GREY_MODES
    mode = "RGBA" if turned.has_transparency_data else "L" if is_grey else "RGB"
    turned = turned.convert(mode)
    # Average boxes of whole pixels first, so that the conversion to floats needs at most (4 side)^2 pixels.
    if (factor := max(turned.size) // (2 * side)) > 1:
        turned = turned.reduce(factor)
    frame = to_float32(np.asarray(turned))
    if mode != "RGBA":
        return frame
    return blend_over_background(frame)[..., 0] if is_grey else blend_over_background(frame)


def _open(path: Path) -> ImageFile.ImageFile:
    try:
        return Image.open(path, formats=FORMATS)
    except UnidentifiedImageError as error:
        raise UnreadableError(f"is not an image of a supported format ({', '.join(FORMATS)}, TIFF)") from error


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation to a decoded image."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        return image  # the pixels are good, only the metadata are damaged
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def _ppm_white(image: ImageFile.ImageFile) -> int:
    """The value of white that a colour PPM file declares; 0 for other files."""
    args = image.tile[0].args if image.format == "PPM" and image.mode == "RGB" and image.tile else ()
    return args[-1] if isinstance(args, tuple) and args and isinstance(args[-1], int) else 0


# 16-bit PNG ----------------------------------------------------------------------------------------------------------
# Pillow has no image mode with more than 8 bits in colour. But its PNG decoder accepts both byte orders and keeps the
# first byte of each sample, so decoding once in either order gives the high and the low bytes. Decompression, filters,
# interlacing and the checks against damage stay Pillow's.


def _png_raw_mode(image: ImageFile.ImageFile) -> str:
    return str(image.tile[0].args) if image.format == "PNG" and image.tile else ""


def _deep_png_pixels(path: Path, raw_mode: str, transparent: object, side: int) -> NDArray:
    """Decode a PNG of 16-bit colour or 16-bit grey with alpha, upright: (h, w) or (h, w, 3) float32."""
    if raw_mode == _GREY_ALPHA_16:  # its four bytes per pixel are decoded as if they were RGBA at 8 bits
        samples: NDArray = np.ascontiguousarray(_decoded_as(path, "RGBA")).view(">u2").astype(np.uint16)  # (h, w, 2)
    else:
        samples = _decoded_as(path, raw_mode).astype(np.uint16) << 8  # big-endian: the first byte is the high one
        samples |= _decoded_as(path, raw_mode[:-1] + "L")
    if isinstance(transparent, tuple) and samples.shape[-1] == 3:  # this colour stands for transparent
        opaque = (samples != np.array(transparent, dtype=np.uint16)).any(-1, keepdims=True)
        samples = np.concatenate([samples, opaque.astype(np.uint16) * np.uint16(65535)], axis=-1)  # (h, w, 4)
    has_alpha = samples.shape[-1] in (2, 4)
    frame = shrink(samples, side, has_alpha=has_alpha)
    return blend_over_background(frame) if has_alpha else frame


def _decoded_as(path: Path, raw_mode: str) -> NDArray:
    """Decode a PNG as if its samples had another raw mode: (h, w, c) uint8, upright."""
    with Image.open(path, formats=["PNG"]) as image:
        image.tile = [tile._replace(args=raw_mode) for tile in image.tile]
        image.load()
        return np.asarray(_upright(image))
