"""Reads PNG, JPEG, WebP, BMP, GIF and PPM files with Pillow, and HEIC files with pillow-heif.

TIFF files are read by :mod:`unpose.files.tiff`. Every frame of an animation (GIF, WebP, PNG) is an image, as every page
of a TIFF is. The EXIF orientation is applied. Pillow keeps only 8 bits of 16-bit colour; for PNG files all 16 bits are
recovered here, PPM files and animations are read at 8 bits.

Large images are decoded at a reduced size where the format allows it (JPEG), and otherwise converted and averaged strip
by strip, so that only the decoder's own copy has the full size.
"""

import logging
from collections.abc import Iterator
from math import prod
from pathlib import Path
from struct import unpack
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from unpose.files.frames import (
    Frame,
    Header,
    UnreadableError,
    as_unreadable_error,
    blend_over_background,
    check_count,
    check_frame,
    check_size,
    import_optional,
    shrink,
    shrink_factor,
    to_float32,
    upright,
)

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM")
"""The only Pillow decoders that are used here: some others run programs (EPS)."""

_ALL_FORMATS = (*FORMATS, "TIFF", "HEIC", "DICOM", "FITS", "MRC", "NPY", "NPZ", "HDF5", "Zarr")
"""What the error for an unknown file names; some need an extra, which the error for such a file says."""

BYTES_AS_FLOATS = 48
"""Memory per pixel of a shrunk image: four float channels, and copies while they are blended and scaled."""

_BYTES_DECODED = 20
"""Memory per pixel while WebP, GIF, HEIC, RLE or an animation is decoded: these decoders keep several copies."""

_BYTES_BY_PYTHON = 40
"""Memory per pixel of PPM files that Pillow decodes in Python: as text, or with more or fewer than 8 bits."""

_BYTES_OF_MODE = {"1": 1, "L": 1, "P": 1}
"""Memory per pixel of an image in Pillow: 2 bytes for 16-bit grey, 4 for the modes that are not listed."""

_BYTES_OF_COEFFICIENTS = 8
"""Memory per pixel of a progressive JPEG: libjpeg keeps all coefficients, 2 bytes each, of up to 4 components."""

_STRIP_PIXELS = 2**18
"""Pixels that are converted at a time while a large image is shrunk."""

_ANIMATED = ("GIF", "WEBP", "PNG")
_MIN_FRAME_BYTES = 12
"""No frame of an animation is shorter: that is an empty one in a GIF."""

_GIF_PIXEL_LIMIT = 2**26
"""Most pixels of a GIF (8192 x 8192): Pillow allocates frames of a GIF already when it opens the file."""

_ANIMATION_PIXEL_LIMIT = 2**32
"""Most pixels of all frames of an animation: a frame of a few bytes takes as long to decode as any."""

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}

_GREY_MODES = ("1", "L", "LA", "La", "I", "F")
_GREY_ALPHA_16 = "LA;16B"
_DEEP_PNG_MODES = (_GREY_ALPHA_16, "RGB;16B", "RGBA;16B")
"""Pillow's raw modes of PNG files with 16-bit colour, or 16-bit grey with alpha."""

Image.preinit()  # registers the decoders once, before several threads use them
logging.getLogger("PIL").addHandler(logging.NullHandler())  # otherwise damaged files print warnings to stderr


def read_header(path: Path, side: int) -> Header:
    """Read sizes and memory cost from the file's header."""
    with _open(path) as image:
        return _header(image, path, side)


def read_frames(path: Path, side: int, wanted: set[int] | None = None) -> Iterator[Frame]:
    """Read all frames or those wanted; images much larger than ``side`` are shrunk."""
    with _open(path) as image:
        yield from _frames(image, path, side, wanted)


def read_grey(path: Path, side: int) -> tuple[NDArray | UnreadableError | None, Header]:
    """Read the header and, if it is the only one, the image, of a JPEG file the luminance (h, w) uint8."""
    with _open(path) as image:
        header = _header(image, path, side, grey=True)
        if len(header.sizes) > 1:
            return None, header
        if image.format != "JPEG" or image.mode != "L":
            return next(_frames(image, path, side, None))[1], header
        image.load()
        factor = shrink_factor(image.height, image.width, side)
        return upright(np.array(image.reduce(factor) if factor > 1 else image), _orientation(image)), header


def _header(image: ImageFile.ImageFile, path: Path, side: int, *, grey: bool = False) -> Header:
    """The header of an opened image. A JPEG is set to the size at which it is decoded, and to grey if that is asked."""
    width, height = image.size
    check_size(height, width)
    count = _frame_count(image, path)
    # The base class's method, because that of PNG decodes the image to find metadata behind the pixels.
    is_turned = _valid_orientation(Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)) > 4
    raw_mode = _png_raw_mode(image)
    is_grey = image.mode in _GREY_MODES or image.mode.startswith("I;16") or raw_mode == _GREY_ALPHA_16
    notes = []
    if _ppm_white(image) > 255 or (raw_mode in _DEEP_PNG_MODES and count > 1):
        notes.append("colour of more than 8 bits read at 8 bits")
    if count > 1:
        notes.append("an animation, of which every frame is an image")
    mode = "L" if grey else image.mode
    cost = _decoding_bytes(image, side, mode) + BYTES_AS_FLOATS * min(height * width, (4 * side) ** 2)
    sizes = [(width, height) if is_turned else (height, width)] * count
    return Header(sizes, not is_grey or count > 1, cost, "; ".join(notes))


def _frames(image: ImageFile.ImageFile, path: Path, side: int, wanted: set[int] | None) -> Iterator[Frame]:
    count = _frame_count(image, path)
    if count == 1 and (raw_mode := _png_raw_mode(image)) in _DEEP_PNG_MODES:
        yield 0, check_frame(_deep_png_pixels(path, raw_mode, image.info.get("transparency"), side))
        return
    for number in range(count):
        if wanted is not None and number not in wanted:
            continue
        try:
            if count > 1:
                image.seek(number)
            frame = check_frame(pixels(image, side))
        except Exception as error:
            if number == 0:
                raise
            # Frames are drawn over the previous ones, so that those after a damaged one are lost too.
            yield from ((later, as_unreadable_error(error)) for later in range(number, count))
            return
        yield number, frame


def pixels(image: ImageFile.ImageFile, side: int, *, white_is_zero: bool = False) -> NDArray:
    """Decode an opened image, upright: (h, w) or (h, w, 3) float32.

    ``white_is_zero`` inverts 16-bit grey; at 8 bits Pillow itself inverts.
    """
    image.draft(image.mode, (2 * side, 2 * side))  # JPEG: decodes at 1/2, 1/4 or 1/8 of the size
    image.load()
    factor = shrink_factor(image.height, image.width, side)
    strips = [_samples(image.crop(box), factor, white_is_zero) for box in _strips(image, factor)]
    frame = upright(np.concatenate(strips), _orientation(image))
    if image.mode == "I" and image.format == "PPM":
        frame = frame / np.float32(65535)  # Pillow scales PGM to 16 bits
    if frame.ndim == 2 or frame.shape[-1] == 3:
        return frame
    frame = blend_over_background(frame)
    return frame[..., 0] if frame.ndim == 3 and image.mode in _GREY_MODES else frame


def _samples(strip: Image.Image, factor: int, white_is_zero: bool) -> NDArray:
    """A strip of an image as float32: (h, w), (h, w, 3), or with alpha (h, w, 2) or (h, w, 4), shrunk by ``factor``."""
    if strip.mode.startswith("I;16"):
        samples, transparent = np.asarray(strip).astype(np.uint16), strip.info.get("transparency")
        values = ~samples if white_is_zero else samples
        if not isinstance(transparent, int):
            return shrink(values[..., None], factor, has_alpha=False)[..., 0]
        opaque = (samples != transparent) * np.uint16(65535)
        return shrink(np.stack([values, opaque], axis=-1), factor, has_alpha=True)
    if strip.mode in ("I", "F"):
        return shrink(np.asarray(strip)[..., None], factor, has_alpha=False)[..., 0]
    mode = "RGBA" if strip.has_transparency_data else "L" if strip.mode in _GREY_MODES else "RGB"
    strip = strip.convert(mode)
    return to_float32(np.asarray(strip.reduce(factor) if factor > 1 else strip))


def _strips(image: Image.Image, factor: int) -> Iterator[tuple[int, int, int, int]]:
    """Boxes that cut an image into strips of whole rows of ``factor`` x ``factor`` pixels."""
    rows = factor * max(1, _STRIP_PIXELS // (factor * image.width))
    for top in range(0, image.height, rows):
        yield 0, top, image.width, min(top + rows, image.height)


def _open(path: Path) -> ImageFile.ImageFile:
    with path.open("rb") as handle:
        start = handle.read(16)
        if start.startswith(b"GIF8"):
            check_size(*_gif_extent(handle), _GIF_PIXEL_LIMIT)
    if start[4:8] == b"ftyp" and start[8:12] in _HEIF_BRANDS:
        heif: ImageFile.ImageFile = import_optional("pillow_heif", "heic", "a HEIC file").HeifImageFile(path)
        return heif
    try:
        return Image.open(path, formats=FORMATS)
    except UnidentifiedImageError as error:
        raise UnreadableError(f"is not an image of a supported format ({', '.join(_ALL_FORMATS)})") from error


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation of a decoded image."""
    try:
        return _valid_orientation(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1  # the pixels are good, only the metadata are damaged


def _valid_orientation(value: object) -> int:
    """An EXIF orientation; 1, which is upright, for values without a meaning."""
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _decoding_bytes(image: ImageFile.ImageFile, side: int, mode: str) -> int:
    """Memory that Pillow needs to decode an image. A JPEG is set to the mode, and the size at which it is decoded."""
    n_pixels, codec = _canvas_pixels(image), image.tile[0].codec_name if image.tile else ""
    if codec == "jpeg":
        coefficients = _BYTES_OF_COEFFICIENTS * n_pixels if image.info.get("progressive") else 0
        image.draft(mode, (2 * side, 2 * side))
        return coefficients + 4 * prod(image.size)
    if codec in ("zip", "raw") and not getattr(image, "is_animated", False):  # decoded row by row into the image
        copies = 3 if _png_raw_mode(image) in _DEEP_PNG_MODES else 1
        return copies * n_pixels * (2 if image.mode.startswith("I;16") else _BYTES_OF_MODE.get(image.mode, 4))
    return n_pixels * (_BYTES_BY_PYTHON if codec.startswith("ppm") else _BYTES_DECODED)


# Animations ----------------------------------------------------------------------------------------------------------


def _frame_count(image: ImageFile.ImageFile, path: Path) -> int:
    """Number of frames of an animation, checked against the limits and the size of the file; 1 for other files."""
    count = getattr(image, "n_frames", 1) if image.format in _ANIMATED else 1
    if count == 1:
        return 1
    check_count(count)
    if count * _MIN_FRAME_BYTES > path.stat().st_size:
        raise UnreadableError(f"declares {count:,} frames, more than a file of its size can hold")
    if count * _canvas_pixels(image) > _ANIMATION_PIXEL_LIMIT:
        raise UnreadableError(
            f"has {count:,} frames of {image.height} x {image.width} pixels, more than the limit of "
            f"{_ANIMATION_PIXEL_LIMIT:,} pixels in all; give fewer or smaller frames"
        )
    return count


def _canvas_pixels(image: ImageFile.ImageFile) -> int:
    return prod(_gif_extent(image.fp) if image.format == "GIF" and image.fp is not None else image.size)


def _gif_extent(handle: IO[bytes]) -> tuple[int, int]:
    """Height and width over all frames of a GIF, to which Pillow enlarges the declared size when it opens the file."""

    def skip_colours(flags: int) -> None:
        handle.seek(3 << (flags & 7) + 1 if flags & 0x80 else 0, 1)

    def skip_blocks() -> None:
        while length := handle.read(1)[:1]:
            if length == b"\0":
                break
            handle.seek(length[0], 1)

    handle.seek(6)
    width, height, flags, _, _ = unpack("<HHBBB", handle.read(7))
    skip_colours(flags)
    while (kind := handle.read(1)) not in (b"", b";"):
        if kind == b"!":  # an extension
            handle.seek(1, 1)
            skip_blocks()
        elif kind == b",":  # a frame
            if len(frame := handle.read(9)) < 9:
                break
            left, top, across, down, flags = unpack("<HHHHB", frame)
            width, height = max(width, left + across), max(height, top + down)
            skip_colours(flags)
            handle.seek(1, 1)  # the size of codes
            skip_blocks()
    return height, width


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
        decoded = [_decoded_as(path, "RGBA")]
    else:  # big-endian: the first byte is the high one
        decoded = [_decoded_as(path, raw_mode), _decoded_as(path, raw_mode[:-1] + "L")]
    factor = shrink_factor(decoded[0].height, decoded[0].width, side)
    strips = []
    for box in _strips(decoded[0], factor):
        samples = _joined_bytes([np.asarray(image.crop(box)) for image in decoded])
        if isinstance(transparent, tuple) and samples.shape[-1] == 3:  # this colour stands for transparent
            opaque = (samples != np.array(transparent, dtype=np.uint16)).any(-1, keepdims=True)
            samples = np.concatenate([samples, opaque.astype(np.uint16) * np.uint16(65535)], axis=-1)  # (h, w, 4)
        strips.append(shrink(samples, factor, has_alpha=samples.shape[-1] in (2, 4)))
    frame = upright(np.concatenate(strips), _orientation(decoded[0]))
    return blend_over_background(frame) if frame.shape[-1] in (2, 4) else frame


def _joined_bytes(parts: list[NDArray]) -> NDArray:
    """16-bit samples (h, w, c) from their high and low bytes (h, w, c), or from both in turn (h, w, 2 c)."""
    if len(parts) == 1:
        return np.ascontiguousarray(parts[0]).view(">u2").astype(np.uint16)
    return parts[0].astype(np.uint16) << 8 | parts[1]


def _decoded_as(path: Path, raw_mode: str) -> Image.Image:
    """Decode a PNG as if its samples had another raw mode, at 8 bits."""
    with Image.open(path, formats=["PNG"]) as image:
        image.tile = [tile._replace(args=raw_mode) for tile in image.tile]
        image.load()
        return image
