"""What every reader of files speaks: a header before any pixel, frames in natural units, one reason for what fails.

A frame is a ``float32`` array ``(h, w)`` or ``(h, w, 3)``: ``uint8`` and ``uint16`` divided by their full scale, all
other numbers as they are (true is one).
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PIXEL_LIMIT = 2**28
"""Pixels of one frame, against decompression bombs: no file makes us decode more. 16384 on each side."""

FRAME_LIMIT = 10_000_000
"""Frames of one file: a few bytes can declare more than can be counted."""

LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""Grey from red, green and blue (ITU-R BT.601), as everywhere."""

Frame = tuple[int, "NDArray | Unreadable"]
"""The number of a frame in its file, and its pixels or why there are none."""


class Unreadable(ValueError):
    """A file or a frame that is not read; the message is one line for the list of rejected files."""


@dataclass(frozen=True)
class Header:
    """What a file says it holds, read before any pixel."""

    sizes: list[tuple[int, int]]  # height and width of each frame
    colour: bool  # some frame has colour channels, which may still all be equal
    cost: int  # bytes of memory while it is read, besides the frames kept
    note: str = ""  # what reading will lose, if anything


def natural_units(array: NDArray) -> NDArray:
    """Numbers of any real type as float32: by full scale where the type has one, else as they are."""
    if array.dtype.kind not in "biuf":
        raise Unreadable(f"holds values of type {array.dtype}, which are not pixels")
    if array.dtype.kind == "u" and array.dtype.itemsize <= 2:
        return np.divide(array, np.iinfo(array.dtype).max, dtype=np.float32)
    with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite, and that is refused below
        return array.astype(np.float32)


def checked_frame(frame: NDArray) -> NDArray:
    """The frame (h, w, ...) itself, or :class:`Unreadable` where it cannot be an image."""
    check_size(frame.shape[0], frame.shape[1])
    if not np.isfinite(frame).all():
        raise Unreadable("has pixels that are NaN or infinite")
    return frame


def check_size(height: int, width: int) -> None:
    """Refuse frames that are too small to have a pose and those too large to decode safely."""
    if height < 2 or width < 2:
        raise Unreadable(f"is {height} x {width} pixels; at least 2 x 2 are needed")
    if height * width > PIXEL_LIMIT:
        raise _too_large(f"{height} x {width}", PIXEL_LIMIT)


def _too_large(pixels: str, limit: int) -> Unreadable:
    return Unreadable(f"has {pixels} pixels, more than the limit of {limit:,}; crop it or scale it down")


def over_ground(image: NDArray) -> NDArray:
    """Transparent images on a ground: colour (h, w, 4) -> (h, w, 3), grey (h, w, 2) -> (h, w).

    The ground is black, and white where the visible part is itself nearly black (mean luminance below a quarter): a
    black shape cut out of nothing would vanish on black.
    """
    colour, alpha = image[..., :-1], image[..., -1:]
    luminance = colour @ LUMINANCE if colour.shape[-1] == 3 else colour[..., 0]
    total = float(alpha.sum(dtype=np.float64))
    brightness = float((luminance * alpha[..., 0]).sum(dtype=np.float64)) / total if total > 0 else 1.0
    ground = np.float32(brightness < 0.25)
    blended = colour * alpha
    blended += ground * (1 - alpha)
    return blended if colour.shape[-1] == 3 else blended[..., 0]


def unreadable(error: Exception) -> Unreadable:
    """Any decoder's complaint as one line."""
    if isinstance(error, Unreadable):
        return error
    if isinstance(error, MemoryError):
        return Unreadable("needs more memory than there is")
    if isinstance(error, OSError) and error.strerror:
        return Unreadable(f"cannot be read: {error.strerror}")
    # Pillow tells how many pixels there are, and how many there may be, in words only.
    if isinstance(error, Image.DecompressionBombError) and len(told := re.findall(r"\d+", str(error))) == 2:
        return _too_large(f"{int(told[0]):,}", int(told[1]))
    said = " ".join(printable(str(error)).split())[:160]
    return Unreadable(f"is damaged or not what it seems: {said or type(error).__name__}")


def printable(name: str) -> str:
    r"""A file's name as text that is safe to show and still names one file only.

    Bytes that are no UTF-8, control characters (new lines, terminal codes, reversed writing) and backslashes are
    written as escapes. Quotes and angle brackets stay: a page escapes them where it shows them.

    Examples
    --------
    >>> printable("two\nlines")
    'two\\nlines'
    """
    return "".join(letter if letter.isprintable() and letter != "\\" else _escaped(letter) for letter in name)


def _escaped(letter: str) -> str:
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8, as the operating system's interface hands it over
        return f"\\x{code - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode("ascii")
