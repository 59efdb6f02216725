"""Frames of the files in a listing, brought onto one canvas; for files that cannot be read, the reason."""

from collections.abc import Sequence
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
    wanted = None if found.row_of_frame is None else set(found.row_of_frame)
    try:
        for number, frame in read_frames(found.path, max(shape), wanted, found.key):
            if isinstance(frame, UnreadableError):
                bad.append((number, str(frame)))
            else:
                row = 0 if found.row_of_frame is None else found.row_of_frame[number]
                good.append(DecodedFrame(found, number, row, with_colour(onto_canvas(frame, shape), colour)))
    except Exception as error:  # also MemoryError while frames are scaled
        return [], [(None, str(as_unreadable_error(error)))]
    if wanted is not None:
        missing = wanted - {frame.number for frame in good} - {number for number, _ in bad}
        bad += [(number, "is not in the stack") for number in sorted(missing)]
    return good, bad


def with_colour(frame: NDArray, colour: Colour) -> NDArray:
    """Convert a frame (h, w, 3) to grey (h, w) if that is wanted, or if its channels are nearly equal."""
    if frame.ndim == 2:
        return frame
    scale = max(1.0, float(np.abs(frame).max()))
    if colour == "grey" or (colour == "auto" and float(np.ptp(frame, axis=-1).max()) <= _GREY_TOLERANCE * scale):
        red, green, blue = np.moveaxis(frame, -1, 0)
        return green + LUMINANCE[0] * (red - green) + LUMINANCE[2] * (blue - green)  # exact where all are equal
    return frame


def stack_frames(kept: list[DecodedFrame], shape: tuple[int, int], colour: Colour) -> NDArray:
    """Copy all frames into one array; each is freed at once, so that the set is in memory only once."""
    in_colour = colour == "rgb" or any(frame.pixels is not None and frame.pixels.ndim == 3 for frame in kept)
    images = np.empty((len(kept), *shape, 3) if in_colour else (len(kept), *shape), dtype=np.float32)
    for image, frame in zip(images, kept, strict=True):
        if frame.pixels is not None:
            image[...] = frame.pixels[..., None] if in_colour and frame.pixels.ndim == 2 else frame.pixels
            frame.pixels = None
    return images


def frame_sizes(readable: Sequence[Source]) -> list[tuple[int, int]]:
    """Height and width of every frame to read."""
    sizes = []
    for found, header in readable:
        if found.row_of_frame is None:
            sizes += header.sizes
        else:
            size_of = dict(zip(header.numbers, header.sizes, strict=True))
            sizes += [size_of[number] for number in found.row_of_frame if number in size_of]
    return sizes


def is_coloured(readable: Sequence[Source], shape: tuple[int, int]) -> bool:
    """Whether one of up to 64 images is coloured, of the files that declare colours."""
    declared = [source for source in readable if source[1].colour]
    for k in np.unique(np.linspace(0, len(declared) - 1, min(64, len(declared))).astype(int)) if declared else ():
        found, header = declared[k]
        some = (
            replace(found, row_of_frame={header.numbers[len(header.sizes) // 2]: 0})
            if found.row_of_frame is None
            else found
        )
        for frame in decode_file(some, shape, "auto")[0]:
            if frame.pixels is not None and frame.pixels.ndim == 3:
                return True
    return False
