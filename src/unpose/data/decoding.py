"""Frames of the files in a listing, brought onto one canvas; for files that cannot be read, the reason."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unpose.files import LUMINANCE, UnreadableError
from unpose.files.formats import Header, as_unreadable_error, read_frames, read_header
from unpose.files.listing import ListedFile
from unpose.images import onto_canvas

Colour = Literal["auto", "grey", "rgb"]
Source = tuple[ListedFile, Header]
"""A file whose header could be read."""

_GREY_TOLERANCE = 0.02
"""An image whose channels differ by at most this share of full scale is grey: JPEG compression adds as much."""


@dataclass
class DecodedFrame:
    """A frame on the canvas, before it is copied into the result."""

    found: ListedFile
    number: int
    row: int
    pixels: NDArray | None
    name: str = ""
    is_void: bool = False  # whether its file proved to be damaged afterwards


def header_or_error(found: ListedFile, side: int) -> Header | UnreadableError:
    """What a file declares, or why it cannot be read."""
    try:
        return read_header(found.path, side, found.key)
    except UnreadableError as reason:
        return reason


def decode_file(
    found: ListedFile, shape: tuple[int, int], colour: Colour
) -> tuple[list[DecodedFrame], list[tuple[int | None, str]]]:
    """Frames of a file on the canvas, and errors of the others; a damaged file gives no frame at all."""
    good: list[DecodedFrame] = []
    bad: list[tuple[int | None, str]] = []
    for frames, errors in decode_parts(found, shape, colour):
        good += frames
        bad += errors
    return ([], bad[-1:]) if bad and bad[-1][0] is None else (good, bad)


def decode_parts(
    found: ListedFile, shape: tuple[int, int], colour: Colour, length: int | None = None
) -> Iterator[tuple[list[DecodedFrame], list[tuple[int | None, str]]]]:
    """The answer of :func:`decode_file` in parts of ``length`` frames, in one pass through the file.

    A number None in the last error says that the whole file is damaged: its frames that came before do not count.
    """
    good: list[DecodedFrame] = []
    bad: list[tuple[int | None, str]] = []
    rows = found.row_of_frame
    missing = set(rows or ())
    try:
        for number, frame in read_frames(found.path, max(shape), None if rows is None else set(rows), found.key):
            missing.discard(number)
            if isinstance(frame, UnreadableError):
                bad.append((number, str(frame)))
            else:
                pixels = with_colour(onto_canvas(frame, shape), colour)
                good.append(DecodedFrame(found, number, 0 if rows is None else rows[number], pixels))
            if length is not None and len(good) + len(bad) >= length:
                yield good, bad
                good, bad = [], []
    except Exception as error:  # also MemoryError while frames are scaled
        yield [], [(None, str(as_unreadable_error(error)))]
        return
    yield good, bad + [(number, "is not in the stack") for number in sorted(missing)]


def with_colour(frame: NDArray, colour: Colour) -> NDArray:
    """Convert a frame (h, w, 3) to grey (h, w) if that is wanted, or if its channels are nearly equal."""
    if frame.ndim == 2:
        return frame
    scale = max(1.0, float(np.abs(frame).max()))
    if colour == "grey" or (colour == "auto" and float(np.ptp(frame, axis=-1).max()) <= _GREY_TOLERANCE * scale):
        red, green, blue = np.moveaxis(frame, -1, 0)
        return green + LUMINANCE[0] * (red - green) + LUMINANCE[2] * (blue - green)  # exact where all are equal
    return frame


def is_any_coloured(frames: Sequence[DecodedFrame]) -> bool:
    """Whether one of these frames has channels."""
    return any(frame.pixels is not None and frame.pixels.ndim == 3 for frame in frames)


def stack_frames(frames: Sequence[DecodedFrame], images: NDArray) -> NDArray:
    """Copy frames into an array (n, h, w) or (n, h, w, 3), and return it; each is freed at once."""
    for image, frame in zip(images, frames, strict=True):
        if frame.pixels is not None:
            image[...] = frame.pixels[..., None] if image.ndim == 3 and frame.pixels.ndim == 2 else frame.pixels
            frame.pixels = None
    return images


def frame_numbers(found: ListedFile, header: Header) -> Sequence[int]:
    """The numbers of the frames to read that the file has."""
    if found.row_of_frame is None:
        return header.numbers
    return [number for number in found.row_of_frame if number < header.count and number not in header.bad]


def frame_sizes(readable: Sequence[Source]) -> list[tuple[int, int]]:
    """Height and width of every frame to read."""
    sizes = []
    for found, header in readable:
        if found.row_of_frame is None:
            sizes += header.sizes
        else:
            size_of = dict(zip(header.numbers, header.sizes, strict=True))
            sizes += [size_of[number] for number in frame_numbers(found, header)]
    return sizes


def is_coloured(readable: Sequence[Source], shape: tuple[int, int]) -> bool:
    """Whether one of up to 64 images is coloured, of the files that declare colours."""
    declared = [source for source in readable if source[1].colour and frame_numbers(*source)]
    for k in np.unique(np.linspace(0, len(declared) - 1, min(64, len(declared))).astype(int)) if declared else ():
        numbers = frame_numbers(*declared[k])
        some = replace(declared[k][0], row_of_frame={numbers[len(numbers) // 2]: 0})
        if is_any_coloured(decode_file(some, shape, "auto")[0]):
            return True
    return False
