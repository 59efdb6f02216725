"""What all image readers share: the header of a file, frames as float32 arrays, and the error for unreadable files.

A frame is a ``float32`` array ``(h, w)`` or ``(h, w, 3)``. ``uint8`` and ``uint16`` pixels are divided by their full
scale; all other numbers keep their values (True becomes 1).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PIXEL_LIMIT = 400_000_000
"""Most pixels of one frame (20,000 x 20,000). It protects against decompression bombs, as the memory budget does."""

FRAME_LIMIT = 10_000_000
"""Most frames of one file. A header of a few bytes can declare more than fit into memory."""

_LARGEST_PIXEL = 1e15
"""Largest magnitude of a pixel: sums of the squares of larger ones overflow in single precision."""

LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""Weights of red, green and blue in grey (ITU-R BT.601)."""

Frame = tuple[int, "NDArray | UnreadableError"]
"""The index of a frame in its file, and its pixels or the reason why it could not be read."""


class UnreadableError(ValueError):
    """A file or frame cannot be read. The message is one line that continues the file's name: "is cut short"."""


@dataclass(frozen=True)
class Header:
    """What a file declares, read before any pixel."""

    sizes: list[tuple[int, int]]  # height and width of each frame that can be read, as far as the header tells
    colour: bool  # whether some frame has colour channels, which may all be equal
    cost: int  # bytes of memory needed while the file is read, besides the frames that are kept
    note: str = ""  # what reading will lose, if anything
    bad: frozenset[int] = frozenset()  # numbers of the frames that cannot be read, which ``sizes`` leaves out

    @property
    def count(self) -> int:
        """Number of frames, with those that cannot be read."""
        return len(self.sizes) + len(self.bad)

    @property
    def numbers(self) -> Sequence[int]:
        """The number in the file of each of ``sizes``."""
        everything = range(self.count)
        return [number for number in everything if number not in self.bad] if self.bad else everything


def to_float32(array: NDArray) -> NDArray:
    """Convert pixels to float32: ``uint8`` and ``uint16`` divided by their full scale, other types unchanged."""
    if array.dtype.kind not in "biuf":
        raise UnreadableError(f"holds values of type {array.dtype}, which are not pixels")
    if array.dtype.kind == "u" and array.dtype.itemsize <= 2:
        return np.divide(array, np.iinfo(array.dtype).max, dtype=np.float32)
    with np.errstate(over="ignore"):  # doubles beyond float32 become infinite, which check_frame rejects
        return array.astype(np.float32)


def check_frame(frame: NDArray) -> NDArray:
    """Return the frame (h, w, ...), or raise :class:`UnreadableError` if it cannot be an image."""
    check_size(frame.shape[0], frame.shape[1])
    largest = max(float(frame.max()), -float(frame.min()))
    if not math.isfinite(largest):
        raise UnreadableError("has pixels that are NaN or infinite")
    if largest > _LARGEST_PIXEL:
        raise UnreadableError(
            f"has pixels of up to {largest:.3g}, and beyond {_LARGEST_PIXEL:.0e} their squares overflow; divide all "
            "images by the same number"
        )
    return frame


def check_size(height: int, width: int, limit: int = PIXEL_LIMIT) -> None:
    """Reject frames that are too small to have a pose or too large to decode safely."""
    if height < 2 or width < 2:
        raise UnreadableError(f"is {height} x {width} pixels; at least 2 x 2 are needed")
    if height * width > limit:
        raise _too_large(f"{height} x {width}", limit)


def check_count(count: int) -> None:
    """Reject files that declare more frames than the limit."""
    if count > FRAME_LIMIT:
        raise UnreadableError(f"declares {count:,} images, more than the limit of {FRAME_LIMIT:,}")


def _too_large(pixels: str, limit: int) -> UnreadableError:
    return UnreadableError(f"has {pixels} pixels, more than the limit of {limit:,}; crop it or scale it down")


def blend_over_background(image: NDArray) -> NDArray:
    """Blend an image with alpha over a background: colour (h, w, 4) -> (h, w, 3), grey (h, w, 2) -> (h, w).

    The background is black. It is white if the visible part is nearly black (mean luminance below 1/4), because a
    black shape would vanish on black.
    """
    colour, alpha = image[..., :-1], image[..., -1:]
    luminance = colour @ LUMINANCE if colour.shape[-1] == 3 else colour[..., 0]
    total = float(alpha.sum(dtype=np.float64))
    brightness = float((luminance * alpha[..., 0]).sum(dtype=np.float64)) / total if total > 0 else 1.0
    background = np.float32(brightness < 0.25)
    blended = colour * alpha
    blended += background * (1 - alpha)
    return blended if colour.shape[-1] == 3 else blended[..., 0]


def shrink_factor(height: int, width: int, side: int) -> int:
    """Side of the boxes over which a frame is averaged: the longer side of the result is at least ``2 * side``."""
    return max(1, max(height, width) // (2 * side))


def shrink(pixels: NDArray, factor: int, *, has_alpha: bool) -> NDArray:
    """Convert pixels (h, w, c) to float32, averaged over boxes of ``factor`` x ``factor`` pixels.

    Boxes are converted row by row, so that a large image is never in memory as floats. With alpha, every pixel is
    weighted by its alpha.
    """
    if factor == 1:
        return to_float32(pixels)
    height, width, _ = pixels.shape
    starts = np.arange(0, width, factor)
    box_widths = np.minimum(starts + factor, width) - starts  # the last box of a row may be narrower
    rows = []
    for top in range(0, height, factor):
        strip = to_float32(pixels[top : top + factor])
        if has_alpha:
            strip[..., :-1] *= strip[..., -1:]
        totals = np.add.reduceat(strip.sum(0), starts, axis=0)  # (w / factor, c)
        rows.append(totals / (len(strip) * box_widths[:, None].astype(np.float32)))
    small = np.stack(rows)
    if has_alpha:
        small[..., :-1] /= np.maximum(small[..., -1:], np.float32(1e-9))
    return small


def upright(frame: NDArray, orientation: int) -> NDArray:
    """Apply an EXIF or TIFF orientation (1 to 8) to a frame (h, w, ...)."""
    if orientation > 4:
        frame = frame.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        frame = frame[:, ::-1]
    return frame[::-1] if orientation in (3, 4, 7, 8) else frame


def import_optional(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional library, or raise an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UnreadableError(f"is {what}; pip install unpose[{extra}] reads it") from error


def as_unreadable_error(error: Exception) -> UnreadableError:
    """Convert any exception of a decoder to an :class:`UnreadableError` of one printable line.

    >>> as_unreadable_error(MemoryError())
    UnreadableError('needs more memory than there is')
    """
    if isinstance(error, UnreadableError):
        return error
    if isinstance(error, MemoryError):
        return UnreadableError("needs more memory than there is")
    if isinstance(error, OSError) and error.strerror:
        return UnreadableError(f"cannot be read: {error.strerror}")
    # Pillow gives the number of pixels and its limit only in the text of its message.
    if isinstance(error, Image.DecompressionBombError) and len(numbers := re.findall(r"\d+", str(error))) == 2:
        return _too_large(f"{int(numbers[0]):,}", int(numbers[1]))
    message = " ".join(printable_name(str(error)).split())[:160]
    return UnreadableError(f"is damaged or has an unexpected content: {message or type(error).__name__}")


def printable_name(name: str) -> str:
    r"""Escape a file name so that it is safe to print and still identifies one file.

    Bytes that are not UTF-8, control characters (newlines, terminal codes, right-to-left marks) and backslashes become
    escape sequences. Quotes and angle brackets stay: HTML pages escape them when they show them.

    Parameters
    ----------
    name : str
        A file name or any other text from outside.

    Returns
    -------
    str
        The text with escapes.

    Examples
    --------
    >>> printable_name("two\nlines")
    'two\\nlines'
    """
    return "".join(letter if letter.isprintable() and letter != "\\" else _escaped(letter) for letter in name)


def _escaped(letter: str) -> str:
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # surrogate escape: a byte of the name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode("ascii")
