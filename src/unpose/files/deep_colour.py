"""Colour of 16 bits from PNG, TIFF and PPM, of which Pillow keeps 8.

Pillow has no picture of more than 8 bits in colour, but its decoders know both orders of the two bytes of a sample and
keep the first. So a picture is decoded twice, once in its own order for the high bytes and once in the other order for
the low ones. Compression, filters, interlacing and all checks against damaged files stay Pillow's.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, TiffImagePlugin

from unpose.files.frames import Unreadable, natural_units, over_ground
from unpose.files.orientation import upright

_OTHER_ORDER = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
_FORMATS = ("PNG", "TIFF", "PPM")
_COLOURS = ("RGB;16", "RGBA;16", "RGBa;16", "RGBX;16", "CMYK;16")
_GREY_ALPHA = "LA;16B"
_SEPARATE = 2
"""TIFF's planar configuration in which every colour lies apart; its decoder does not ask for the order of bytes."""

BYTES_PLAIN = 40
"""Memory for each pixel of a pixmap written as text: Pillow's numbers of 32 bits, and copies of them."""


def is_deep(image: ImageFile.ImageFile) -> bool:
    """Whether an opened picture has colour, or grey with transparency, of more than 8 bits."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(258, (1,))
        colour = image.mode in ("RGB", "RGBA", "RGBX", "CMYK")
        return colour and max(bits if isinstance(bits, tuple) else (bits,)) > 8
    if image.format == "PPM":
        return _largest(image) > 255
    return image.format == "PNG" and _stored(image).startswith((*_COLOURS, _GREY_ALPHA))


def can_read(image: ImageFile.ImageFile) -> bool:
    """Whether :func:`read` keeps all bits of an opened picture that :func:`is_deep`."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return is_deep(image)
    joined = image.tag_v2.get(TiffImagePlugin.PLANAR_CONFIGURATION, 1) != _SEPARATE
    return is_deep(image) and joined and _stored(image).startswith(_COLOURS)


def check(image: ImageFile.ImageFile) -> None:
    """Refuse planes of 16 bits that are not compressed: Pillow would take each of their bytes for a sample."""
    if is_deep(image) and not can_read(image) and image.tile and image.tile[0].codec_name == "raw":
        raise Unreadable("keeps colours of 16 bits in separate planes; pip install unpose[formats] reads it")


def is_grey(image: ImageFile.ImageFile) -> bool:
    """Whether an opened picture is grey with transparency, which Pillow takes for colour."""
    return _stored(image) == _GREY_ALPHA


def is_plain(image: ImageFile.ImageFile) -> bool:
    """Whether an opened pixmap is written as text."""
    return bool(image.tile) and image.tile[0].codec_name == "ppm_plain"


def read(path: Path, number: int, side: int) -> NDArray:
    """Page ``number`` of a picture of which :func:`can_read` is true, upright: (h, w) or (h, w, 3) floats.

    Pictures much larger than ``side`` come out smaller, never smaller than twice it.
    """
    with Image.open(path, formats=_FORMATS) as image:
        image.seek(number)
        stored, key, largest = _stored(image), image.info.get("transparency"), _largest(image)
        plain = is_plain(image)
    if plain:
        words, largest = _from_text(path), 65535  # Pillow has brought them to 16 bits
    elif stored == _GREY_ALPHA:
        words = _of_grey(path)
    else:
        # What is premultiplied must be joined before it is divided, and so is read as if it were not.
        straight = stored.replace("a", "A")
        words = _bytes(path, number, straight).astype(np.uint16) << 8
        words |= _bytes(path, number, straight[:-1] + _OTHER_ORDER[straight[-1]])
    if stored.startswith("RGBa"):
        _divide(words)
    if isinstance(key, tuple) and words.shape[-1] == 3:  # one colour stands for transparent
        opaque = (words != np.array(key, dtype=np.uint16)).any(-1, keepdims=True)
        words = np.concatenate([words, opaque.astype(np.uint16) * np.uint16(65535)], axis=-1)  # (h, w, 4)
    inks, has_alpha = stored.startswith("CMYK"), words.shape[-1] in (2, 4)
    frame = _shrunk(words, max(1, max(words.shape[:2]) // (2 * side)), has_alpha and not inks)
    if inks:
        return (1 - frame[..., :3]) * (1 - frame[..., 3:])
    if has_alpha:
        return over_ground(frame)
    return np.minimum(frame * np.float32(65535 / largest), np.float32(1)) if largest else frame


def _stored(image: ImageFile.ImageFile) -> str:
    """Pillow's name for how the samples of an opened picture lie in the file; empty where it has none."""
    if not image.tile:
        return ""
    args = image.tile[0].args
    told = args[0] if isinstance(args, tuple) and args else args
    return "RGB;16B" if image.format == "PPM" else str(told)


def _largest(image: ImageFile.ImageFile) -> int:
    """The value that a colour pixmap declares for white; 0 for other pictures."""
    args = image.tile[0].args if image.format == "PPM" and image.mode == "RGB" and image.tile else ()
    return args[-1] if isinstance(args, tuple) and args and isinstance(args[-1], int) else 0


def _bytes(path: Path, number: int, stored: str) -> NDArray:
    """One of the two bytes of every sample, (h, w, c): which one, the order in ``stored`` says."""
    with Image.open(path, formats=_FORMATS) as image:
        image.seek(number)
        if image.format == "PPM":
            image.tile = [tile._replace(codec_name="raw", args=(stored, 0, 1)) for tile in image.tile]
        else:
            image.tile = [
                tile._replace(args=(stored, *tile.args[1:]) if isinstance(tile.args, tuple) else stored)
                for tile in image.tile
            ]
        image.load()
        return np.asarray(upright(image))


def _of_grey(path: Path) -> NDArray:
    """Grey and transparency, (h, w, 2): their four bytes are as many as those of a pixel of 8 bits in colour."""
    with Image.open(path, formats=_FORMATS) as image:
        image.tile = [tile._replace(args="RGBA") for tile in image.tile]
        image.load()
        return np.ascontiguousarray(upright(image)).view(">u2").astype(np.uint16)  # (h, w, 4) -> (h, w, 2)


def _from_text(path: Path) -> NDArray:
    """A pixmap written as text, (h, w, 3), read as a grey one of thrice the width, which has all bits."""
    with Image.open(path, formats=_FORMATS) as image:
        width, height = image.size
        image._mode, image._size = "I", (3 * width, height)
        image.tile = [tile._replace(extents=(0, 0, 3 * width, height)) for tile in image.tile]
        image.load()
        return np.asarray(image).astype(np.uint16).reshape(height, width, 3)


def _divide(words: NDArray) -> None:
    """Colours (h, w, 4) as if nothing were transparent, from those that were multiplied by it; in place."""
    for row in words:  # by rows, as the products take twice the bits
        colour, alpha = row[:, :3].astype(np.uint32), np.maximum(row[:, 3:], 1)
        row[:, :3] = np.minimum((colour * np.uint32(65535) + alpha // 2) // alpha, 65535)


def _shrunk(words: NDArray, factor: int, has_alpha: bool) -> NDArray:
    """Means over boxes of ``factor`` pixels, each pixel weighed by how opaque it is: (h, w, c) floats in [0, 1]."""
    if factor == 1:
        return natural_units(words)
    height, width, _ = words.shape
    columns = np.arange(0, width, factor)
    across = np.minimum(columns + factor, width) - columns  # pixels of each box, fewer at the border
    rows = []
    for top in range(0, height, factor):
        strip = natural_units(words[top : top + factor])
        if has_alpha:
            strip[..., :-1] *= strip[..., -1:]
        sums = np.add.reduceat(strip.sum(0), columns, axis=0)  # (w / factor, c)
        rows.append(sums / (len(strip) * across[:, None].astype(np.float32)))
    small = np.stack(rows)
    if has_alpha:
        small[..., :-1] /= np.maximum(small[..., -1:], np.float32(1e-9))
    return small
