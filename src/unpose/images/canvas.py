"""Puts images of different sizes onto one canvas.

Images that all have the same size keep their shape, and are scaled down together if their longer side exceeds the
canvas. Otherwise the canvas is a square: every image is scaled up or down, with its aspect ratio kept, until it just
fits, and the rest is filled with the median of the image's own border. By default the side of the canvas is the median
of the longer sides of the images, and at most 128 pixels.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from unpose.images.batch import as_batch, from_batch

LARGEST_DEFAULT_CANVAS = 128
"""Largest default side in pixels: enough detail to find a pose, and time grows with the number of pixels."""


def choose_canvas(sizes: Sequence[tuple[int, int]], size: int | None = None) -> tuple[tuple[int, int], str]:
    """Choose the canvas for images of these sizes.

    Parameters
    ----------
    sizes : sequence of (int, int)
        Height and width of each image.
    size : int, optional
        Longer side of the canvas; by default the median of the longer sides of the images, at most 128.

    Returns
    -------
    shape : (int, int)
        Height and width of the canvas.
    rule : str
        What happens to the images, in one sentence.

    Examples
    --------
    >>> choose_canvas([(31, 17), (31, 17)])
    ((31, 17), 'all images are 31 x 17 and keep their size')
    """
    longer = np.array([max(each) for each in sizes])
    side = min(int(np.median(longer)), LARGEST_DEFAULT_CANVAS) if size is None else size
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
    """Scale a frame to fit a canvas, centre it, and pad it with the median of its border.

    Parameters
    ----------
    frame : ndarray, shape (h, w) or (h, w, c)
    shape : (int, int)
        Height and width of the canvas.

    Returns
    -------
    ndarray, shape (height, width) or (height, width, c)
        A frame that already has the shape of the canvas is returned unchanged.

    Notes
    -----
    Scaling is cubic (Keys, a = -1/2). When it shrinks, the kernel is widened by the factor to avoid aliasing. Values
    are clipped to the frame's own range, because cubic interpolation overshoots.

    Examples
    --------
    >>> onto_canvas(np.ones((4, 8), np.float32), (16, 16)).shape
    (16, 16)
    """
    factor = min(shape[0] / frame.shape[0], shape[1] / frame.shape[1])
    inner = tuple(min(most, side) for most, side in zip(shape, _scaled(frame.shape[:2], factor), strict=True))
    if inner != frame.shape[:2]:
        channels = np.asarray(frame[..., None] if frame.ndim == 2 else frame, dtype=np.float32)  # (h, w, c)
        scaled = np.stack([_resized(channels[..., c], inner) for c in range(channels.shape[-1])], axis=-1)
        frame = scaled[..., 0] if frame.ndim == 2 else scaled
    if inner == shape:
        return frame
    canvas = np.empty((*shape, *frame.shape[2:]), dtype=np.float32)
    canvas[:] = border_level(np.moveaxis(frame, (0, 1), (-2, -1)))
    top, left = (shape[0] - inner[0]) // 2, (shape[1] - inner[1]) // 2
    canvas[top : top + inner[0], left : left + inner[1]] = frame
    return canvas


def onto_one_canvas(pictures: Sequence[NDArray], shape: tuple[int, int] | None = None) -> NDArray:
    """Bring pictures of different sizes onto one canvas.

    Parameters
    ----------
    pictures : sequence of arrays, shape (h, w) or (h, w, c)
        Integer types are scaled as in :func:`unpose.images.as_batch`. If some pictures have channels and others are
        grey, the grey ones get equal channels.
    shape : (int, int), optional
        Height and width of the canvas; :func:`choose_canvas` chooses it by default.

    Returns
    -------
    ndarray of float32, shape (n, height, width) or (n, height, width, c)

    Examples
    --------
    >>> onto_one_canvas([np.ones((8, 4)), np.ones((12, 12, 3), np.uint8)]).shape
    (2, 10, 10, 3)
    """
    frames = []
    for k, picture in enumerate(pictures):
        if np.ndim(picture) not in (2, 3):
            raise ValueError(f"image {k} must be (h, w) or (h, w, channels), got shape {np.shape(picture)}")
        try:
            batch = as_batch([picture], dtype=torch.float32)
        except ValueError as error:
            raise ValueError(f"image {k}: {error}") from error
        frames.append(from_batch(batch, channels=np.ndim(picture) == 3)[0])
    channels = {frame.shape[2] for frame in frames if frame.ndim == 3}
    if len(channels) > 1:
        raise ValueError(f"images must have the same channels or none, got {sorted(channels)} channels")
    shape = shape or choose_canvas([(frame.shape[0], frame.shape[1]) for frame in frames])[0]
    placed = [onto_canvas(frame, shape) for frame in frames]
    if channels:
        wanted = (*shape, *channels)
        placed = [np.broadcast_to(frame[..., None] if frame.ndim == 2 else frame, wanted) for frame in placed]
    return np.stack(placed)


def resize_box(frame: NDArray, box: tuple[float, float, float, float], shape: tuple[int, int]) -> NDArray:
    """Cut a rectangle out of a frame and scale it.

    Parameters
    ----------
    frame : ndarray, shape (h, w)
        Bytes stay bytes, other types become float32.
    box : (float, float, float, float)
        Left, top, right and bottom edge in pixels from the upper left corner of the frame, not outside of it.
    shape : (int, int)
        Height and width of the result.

    Returns
    -------
    ndarray of uint8 or float32, shape (height, width)

    Notes
    -----
    Scaling is that of :func:`onto_canvas`: cubic, antialiased when it shrinks, clipped to the frame's own range.

    Examples
    --------
    >>> resize_box(np.eye(8, dtype=np.float32), (2.0, 2.0, 6.0, 6.0), (4, 4)).diagonal()
    array([1., 1., 1., 1.], dtype=float32)
    """
    return _resized(frame if frame.dtype == np.uint8 else np.asarray(frame, dtype=np.float32), shape, box)


def border_level(images: NDArray) -> NDArray:
    """The median of the outermost pixels.

    Parameters
    ----------
    images : ndarray, shape (..., h, w)

    Returns
    -------
    ndarray, shape (...)

    Examples
    --------
    >>> float(border_level(np.pad(np.ones((3, 3)), 2)))
    0.0
    """
    sides = (images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1])
    return np.median(np.concatenate(sides, axis=-1), axis=-1)


def _resized(channel: NDArray, shape: tuple[int, ...], box: tuple[float, float, float, float] | None = None) -> NDArray:
    picture = Image.fromarray(np.ascontiguousarray(channel))
    scaled = np.asarray(picture.resize((shape[1], shape[0]), Image.Resampling.BICUBIC, box))
    return np.clip(scaled, channel.min(), channel.max())


def _scaled(size: tuple[int, ...], factor: float) -> tuple[int, int]:
    return max(2, round(size[0] * factor)), max(2, round(size[1] * factor))
