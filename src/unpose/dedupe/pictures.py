"""From a decoded photograph to what duplicates are searched by: a small grey frame, its regions and their patches."""

import numpy as np
from numpy.typing import NDArray

from unpose.dedupe.regions import Region
from unpose.dedupe.signature import PATCH
from unpose.files import LUMINANCE
from unpose.images import resize_box

FRAME_SIDE = 160
"""Longest side of the grey frames at which pairs are finally compared; smaller photographs keep their size."""
_LARGEST = 1e30
"""Pixels beyond this are divided by the largest before they become float32, in which their differences overflow."""


def grey_frame(frame: NDArray) -> NDArray:
    """Convert a photograph to grey and scale it down to a longest side of 160 pixels.

    Parameters
    ----------
    frame : array of shape (h, w) or (h, w, 3)
        Bytes, or pixels in [0, 1]; others are brought there by their smallest and largest value.

    Returns
    -------
    uint8 or float32 array of shape (height, width)
        Bytes for grey bytes.

    Examples
    --------
    >>> grey_frame(np.ones((300, 400, 3))).shape
    (120, 160)
    """
    grey = frame
    if frame.dtype != np.uint8 or frame.ndim == 3:
        scale: float = 255 if frame.dtype == np.uint8 else 1
        if frame.dtype.kind == "f" and (largest := float(np.abs(frame).max())) > _LARGEST:
            scale = largest
        grey = np.divide(frame, scale, dtype=np.float32 if scale <= 255 else None).astype(np.float32, copy=False)
        grey = grey @ LUMINANCE if grey.ndim == 3 else grey
        low, high = float(grey.min()), float(grey.max())
        if low < 0 or high > 1.001 or scale > 255:
            grey = (grey - low) / (high - low) if high > low else np.zeros_like(grey)
    height, width = grey.shape
    factor = FRAME_SIDE / max(height, width)
    if factor >= 1:
        return grey
    shape = (max(2, round(height * factor)), max(2, round(width * factor)))
    return resize_box(grey, (0.0, 0.0, width, height), shape)


def extract_patch(grey: NDArray, region: Region, side: int = PATCH) -> NDArray:
    """Cut out the square around the disc of a region.

    Parameters
    ----------
    grey : array of shape (h, w)
        The frame: bytes, or floats in [0, 1].
    region : Region
        A region of the frame.
    side : int, default 64
        Height and width of the patch.

    Returns
    -------
    uint8 array of shape (side, side)

    Examples
    --------
    >>> from unpose.dedupe.regions import find_regions
    >>> grey = np.random.default_rng(0).random((30, 40))
    >>> extract_patch(grey, find_regions(grey)[0]).shape
    (64, 64)
    """
    height, width = grey.shape
    x, y, r = region.x + width / 2, region.y + height / 2, region.radius
    box = (max(0.0, x - r), max(0.0, y - r), min(float(width), x + r), min(float(height), y + r))
    patch = resize_box(grey, box, (side, side))
    return patch if patch.dtype == np.uint8 else np.clip(patch * 255 + 0.5, 0, 255).astype(np.uint8)
