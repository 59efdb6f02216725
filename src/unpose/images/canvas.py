"""Images of many sizes on one canvas.

The rule: images that all have one size keep their shape, and are scaled together where their longer side exceeds the
canvas. Otherwise the canvas is a square, and every image is scaled up or down, its aspect kept, until it just fits;
what remains is filled with the median of the image's own border. The side of the canvas is the median of the longer
sides, at most 128, unless the caller says.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LARGEST_DEFAULT = 128
"""Pixels along a side, unless the caller asks for more: what a pose needs is there, and time grows with the pixels."""


def choose_canvas(sizes: Sequence[tuple[int, int]], size: int | None = None) -> tuple[tuple[int, int], str]:
    """The canvas (height, width) for images of these sizes (height, width), and the rule in a sentence.

    Examples
    --------
    >>> choose_canvas([(31, 17), (31, 17)])
    ((31, 17), 'all images are 31 x 17 and keep their size')
    """
    longer = np.array([max(each) for each in sizes])
    side = min(int(np.median(longer)), LARGEST_DEFAULT) if size is None else size
    smallest, largest = min(sizes), max(sizes)
    if smallest != largest:
        return (side, side), (
            f"sizes from {min(longer)} to {max(longer)} pixels: each image is scaled (antialiased, aspect kept) to fit "
            f"{side} x {side} and padded with the median of its border"
        )
    height, width = smallest
    if side == max(smallest):
        return smallest, f"all images are {height} x {width} and keep their size"
    shape = _scaled(smallest, side / max(smallest))
    return shape, f"all images are {height} x {width}, scaled (antialiased) to {shape[0]} x {shape[1]}"


def onto_canvas(frame: NDArray, shape: tuple[int, int]) -> NDArray:
    """A frame (h, w) or (h, w, c) scaled to fit a canvas (height, width), centred, padded with its border's median.

    Notes
    -----
    Scaling is cubic (Keys, a = -1/2) with the kernel widened by the factor when it shrinks, so that nothing aliases;
    overshoot is cut at the frame's own extremes. A frame that fits already is not touched.
    """
    factor = min(shape[0] / frame.shape[0], shape[1] / frame.shape[1])
    inner = tuple(min(most, side) for most, side in zip(shape, _scaled(frame.shape[:2], factor), strict=True))
    if inner != frame.shape[:2]:
        channels = frame[..., None] if frame.ndim == 2 else frame  # (h, w, c)
        scaled = np.stack([_resized(channels[..., c], inner) for c in range(channels.shape[-1])], axis=-1)
        frame = scaled[..., 0] if frame.ndim == 2 else scaled
    if inner == shape:
        return frame
    canvas = np.empty((*shape, *frame.shape[2:]), dtype=np.float32)
    canvas[:] = border_level(np.moveaxis(frame, (0, 1), (-2, -1)))
    top, left = (shape[0] - inner[0]) // 2, (shape[1] - inner[1]) // 2
    canvas[top : top + inner[0], left : left + inner[1]] = frame
    return canvas


def border_level(images: NDArray) -> NDArray:
    """The median of the outermost pixels: (..., h, w) -> (...)."""
    sides = (images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1])
    return np.median(np.concatenate(sides, axis=-1), axis=-1)


def _resized(channel: NDArray, shape: tuple[int, ...]) -> NDArray:
    picture = Image.fromarray(np.ascontiguousarray(channel, dtype=np.float32))
    scaled = np.asarray(picture.resize((shape[1], shape[0]), Image.Resampling.BICUBIC))
    return np.clip(scaled, channel.min(), channel.max())


def _scaled(size: tuple[int, ...], factor: float) -> tuple[int, int]:
    return max(2, round(size[0] * factor)), max(2, round(size[1] * factor))
