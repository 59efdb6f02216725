"""Thumbnails for the page: conversion of images, sprite sheets in WebP, and which images are shown."""

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

DisplayRange = tuple[float, float]
"""The values shown as black and as white."""

MARGIN = 2
"""Border around each picture that repeats its edge, so that scaling or rotating it does not blend in its neighbour."""


@dataclass(frozen=True)
class Sheet:
    """A sprite sheet: pictures of one size, row by row, in one file."""

    data: str  # base64 of a WebP file
    count: int
    columns: int
    size: tuple[int, int]  # (width, height) of one picture, without its margin


def display_range(images: Iterable[NDArray]) -> DisplayRange:
    """Choose the values to show as black and white: the 0.1th and 99.9th percentile of all pixels.

    Percentiles near 0 and 1 become exactly 0 and 1, so that pictures made for screens are shown unchanged even if
    resampling overshoots a little.

    Parameters
    ----------
    images : iterable of arrays (h, w) or (h, w, c)
        Images; uint8 and uint16 are divided by their full scale.

    Returns
    -------
    (low, high) : tuple of float

    Examples
    --------
    >>> display_range([np.linspace(0, 1, 25).reshape(5, 5)])
    (0.0, 1.0)
    """
    values = np.concatenate([_floats(image).ravel() for image in images])
    low, high = np.percentile(values, [0.1, 99.9]).tolist()
    if abs(low) <= 0.1 * (high - low):
        low = 0.0
    if 0.75 <= high <= 1.25:
        high = 1.0
    return (low, high) if high > low else (low, low + 1.0)


def thumbnail(image: NDArray, shown_range: DisplayRange, side: int) -> Image.Image:
    """Convert an image to an RGB picture of limited size.

    Parameters
    ----------
    image : (h, w) or (h, w, c) array
        The image; channels other than three are averaged to grey.
    shown_range : (low, high)
        Values shown as black and white; see :func:`display_range`.
    side : int
        Largest side in pixels; smaller images are not enlarged.

    Returns
    -------
    PIL.Image.Image

    Examples
    --------
    >>> thumbnail(np.zeros((20, 40)), (0.0, 1.0), 10).size
    (10, 5)
    """
    low, high = shown_range
    values = np.clip((_floats(image) - low) / (high - low), 0, 1)  # (h, w) or (h, w, c)
    if values.ndim == 3 and values.shape[2] != 3:
        values = values.mean(2)
    shown = Image.fromarray((values * 255 + 0.5).astype(np.uint8)).convert("RGB")
    ratio = side / max(shown.size)
    if ratio >= 1:
        return shown
    return shown.resize((max(1, round(shown.width * ratio)), max(1, round(shown.height * ratio))), Image.Resampling.BOX)


def border_colour(image: NDArray, shown_range: DisplayRange) -> str:
    """The median of the outermost pixels as "rrggbb", which fills the corners when the image is rotated."""
    values = _floats(image)
    edge = np.median(np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]]), axis=0)  # () or (c,)
    colour = np.atleast_1d(edge) if np.shape(edge) == (3,) else np.full(3, np.mean(edge))
    low, high = shown_range
    return bytes((np.clip((colour - low) / (high - low), 0, 1) * 255 + 0.5).astype(np.uint8)).hex()


def sheet(pictures: Sequence[Image.Image], *, quality: int = 80) -> Sheet:
    """Arrange pictures of one size on a roughly square sheet."""
    if not pictures:
        return Sheet("", 0, 1, (1, 1))
    columns = math.ceil(math.sqrt(len(pictures)))
    width, height = pictures[0].size
    tiles = np.stack([np.asarray(each) for each in pictures])  # (n, h, w, 3)
    tiles = np.pad(tiles, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), mode="edge")
    rows = -(-len(tiles) // columns)
    tiles = np.concatenate([tiles, np.zeros((rows * columns - len(tiles), *tiles.shape[1:]), np.uint8)])
    grid = tiles.reshape(rows, columns, *tiles.shape[1:]).swapaxes(1, 2)  # (rows, h, columns, w, 3)
    whole = Image.fromarray(grid.reshape(rows * grid.shape[1], columns * grid.shape[3], 3))
    return Sheet(webp(whole, quality=quality), len(pictures), columns, (width, height))


def webp(image: Image.Image, *, quality: int = 80, lossless: bool = False) -> str:
    """Encode a picture as a WebP file in base64."""
    file = io.BytesIO()
    # Effort 1 of 6: within 6 % of the size of the default 4, in less than half the time.
    image.save(file, format="WEBP", quality=quality, lossless=lossless, method=1)
    return base64.b64encode(file.getvalue()).decode("ascii")


def share_equally(sizes: Sequence[int], total: int) -> list[int]:
    """Divide ``total`` items equally among groups of these sizes; what small groups cannot use goes to the others.

    Parameters
    ----------
    sizes : sequence of int
        Items in each group.
    total : int
        Items to take in all.

    Returns
    -------
    list of int
        Items to take of each group; fewer than ``total`` in all if there are fewer.

    Examples
    --------
    >>> share_equally([2, 50, 9], 20)
    [2, 9, 9]
    """
    shares = [0] * len(sizes)
    left = min(total, sum(sizes))
    order = sorted(range(len(sizes)), key=lambda group: sizes[group])
    for rank, group in enumerate(order):
        shares[group] = min(sizes[group], left // (len(order) - rank))
        left -= shares[group]
    return shares


def evenly_spaced(count: int, n_chosen: int) -> NDArray[np.int64]:
    """Choose indices at equal distances, with the first and the last.

    Parameters
    ----------
    count : int
        Number of items to choose from.
    n_chosen : int
        Number of items to choose; all of them if there are fewer.

    Returns
    -------
    (min(count, n_chosen),) array of int

    Examples
    --------
    >>> evenly_spaced(11, 3)
    array([ 0,  5, 10])
    """
    return np.unique(np.round(np.linspace(0, count - 1, min(count, n_chosen))).astype(np.int64))


def _floats(image: NDArray) -> NDArray[np.float32]:
    """Convert to float32: uint8 and uint16 are divided by their full scale, NaN and infinity become zero."""
    array = np.asarray(image)
    scale = np.iinfo(array.dtype).max if array.dtype in (np.uint8, np.uint16) else 1
    return np.nan_to_num(array.astype(np.float32) / np.float32(scale), posinf=0.0, neginf=0.0)
