"""Three small drawings made of strokes: a crab, a hand-written seven and a creature.

Each drawing is a float32 array of shape (size, size, 3) in [0, 1] on an exactly zero background. The centroid of its
brightness is the image centre, and its strokes stay inside a centred disc of radius 0.36 * size, so a drawing can be
rotated by any angle and shifted by about a sixth of its size with almost nothing leaving the frame. None of them has a
mirror or rotation symmetry, so their pose is unique.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
# Positions are in units of the image side, measured from the centre: x to the right, y downwards.
Point = tuple[float, float]

_SUPERSAMPLING: Final = 8
_SMALLEST: Final = 8
_STEPS_PER_SEGMENT: Final = 24

_WHITE: Final[Colour] = (255, 255, 255)
_CREAM: Final[Colour] = (255, 240, 214)
_INK: Final[Colour] = (24, 26, 38)
_ORANGE: Final[Colour] = (255, 140, 50)
_RUST: Final[Colour] = (150, 52, 18)
_TEAL: Final[Colour] = (48, 190, 180)
_DEEP_TEAL: Final[Colour] = (22, 128, 134)
_PINK: Final[Colour] = (255, 128, 176)
_ROSE: Final[Colour] = (255, 98, 120)
_YELLOW: Final[Colour] = (255, 214, 84)


def _smooth(points: Sequence[Point], closed: bool) -> NDArray[np.float64]:
    """Catmull-Rom curve through ``points``: (k, 2) -> (m, 2)."""
    knots = np.asarray(points, dtype=np.float64)
    if closed:
        padded = np.concatenate([knots[-1:], knots, knots[:2]])
    else:
        # Mirrored end knots keep the curve straight at its first and last point.
        padded = np.concatenate([2 * knots[:1] - knots[1:2], knots, 2 * knots[-1:] - knots[-2:-1]])
    before, start, end, after = padded[:-3, None], padded[1:-2, None], padded[2:-1, None], padded[3:, None]
    t = np.linspace(0.0, 1.0, _STEPS_PER_SEGMENT, endpoint=False)[None, :, None]
    curve = 0.5 * (
        2 * start
        + (end - before) * t
        + (2 * before - 5 * start + 4 * end - after) * t**2
        + (3 * start - before - 3 * end + after) * t**3
    )
    return np.concatenate([curve.reshape(-1, 2), padded[-2:-1]])


class _Sheet:
    """A supersampled black image on which strokes, blobs and dots are drawn."""

    def __init__(self, size: int) -> None:
        if size < _SMALLEST:
            raise ValueError(f"size must be at least {_SMALLEST} pixels, got {size}")
        self._size = size
        self._side = size * _SUPERSAMPLING
        self._image = Image.new("RGB", (self._side, self._side))
        self._draw = ImageDraw.Draw(self._image)

    def _pixels(self, curve: NDArray[np.float64]) -> list[Point]:
        return [(float(x), float(y)) for x, y in (curve + 0.5) * self._side]

    def dot(self, centre: Point, radius: float, colour: Colour, stretch: float = 1.0) -> None:
        """Fill an ellipse with half axes ``radius`` across and ``radius * stretch`` down."""
        x, y = centre
        corners = np.array([[x - radius, y - radius * stretch], [x + radius, y + radius * stretch]])
        self._draw.ellipse(self._pixels(corners), fill=colour)

    def blob(self, points: Sequence[Point], colour: Colour) -> None:
        """Fill the smooth closed curve through ``points``."""
        self._draw.polygon(self._pixels(_smooth(points, closed=True)), fill=colour)

    def stroke(
        self, points: Sequence[Point], colour: Colour, width: float, *, tip: float = 1.0, closed: bool = False
    ) -> None:
        """Draw a round-ended stroke through ``points``, whose width goes from ``width`` to ``width * tip``."""
        curve = _smooth(points, closed)
        reach = np.hypot(*np.diff(curve, axis=0).T)
        along = np.concatenate([[0.0], np.cumsum(reach)])
        # One disc per supersampled pixel gives round joints, which thick polylines do not have.
        at = np.linspace(0.0, along[-1], max(2, int(along[-1] * self._side)))
        radii = 0.5 * width * np.linspace(1.0, tip, at.size)
        for x, y, radius in zip(
            np.interp(at, along, curve[:, 0]), np.interp(at, along, curve[:, 1]), radii, strict=True
        ):
            self.dot((float(x), float(y)), float(radius), colour)

    def finish(self) -> NDArray[np.float32]:
        """Move the centroid of brightness to the centre, reduce the size, scale to [0, 1]: (size, size, 3)."""
        pixels = np.asarray(self._image)
        light = pixels.sum(axis=2, dtype=np.float64)
        places = np.arange(self._side) - (self._side - 1) / 2
        down = round(float(light.sum(axis=1) @ places / light.sum()))
        right = round(float(light.sum(axis=0) @ places / light.sum()))
        # The margin around the drawing is black, so the pixels that wrap around are black.
        centred = Image.fromarray(np.roll(pixels, (-down, -right), axis=(0, 1)))
        small = centred.resize((self._size, self._size), Image.Resampling.BOX)
        return np.asarray(small, dtype=np.float32) / np.float32(255.0)


def _outlined(sheet: _Sheet, points: Sequence[Point], fill: Colour, line: Colour, width: float) -> None:
    """Fill a smooth closed shape and draw its outline."""
    sheet.blob(points, fill)
    sheet.stroke(points, line, width, closed=True)


def crab(size: int = 64) -> NDArray[np.float32]:
    """Draw a crab with one claw larger than the other: (size, size, 3)."""
    sheet = _Sheet(size)
    pen = 0.024
    legs: list[list[Point]] = [
        [(-0.13, 0.09), (-0.215, 0.075), (-0.27, 0.13)],
        [(-0.12, 0.13), (-0.19, 0.14), (-0.225, 0.205)],
        [(-0.08, 0.16), (-0.125, 0.195), (-0.14, 0.25)],
        [(0.13, 0.09), (0.22, 0.085), (0.265, 0.145)],
        [(0.12, 0.13), (0.19, 0.15), (0.215, 0.215)],
        [(0.08, 0.16), (0.115, 0.20), (0.125, 0.255)],
    ]
    for leg in legs:
        sheet.stroke(leg, _ORANGE, 0.026, tip=0.6)
    sheet.stroke([(-0.13, 0.03), (-0.205, 0.0), (-0.215, -0.07)], _ORANGE, 0.034)
    sheet.stroke([(0.13, 0.04), (0.20, 0.025), (0.225, -0.03)], _ORANGE, 0.028)
    big: list[Point] = [
        (-0.215, -0.055), (-0.275, -0.10), (-0.285, -0.175), (-0.235, -0.245), (-0.215, -0.165),
        (-0.165, -0.235), (-0.13, -0.175), (-0.15, -0.095),
    ]  # fmt: skip
    small: list[Point] = [
        (0.225, -0.02), (0.19, -0.055), (0.195, -0.11), (0.228, -0.075), (0.262, -0.115), (0.268, -0.05),
    ]  # fmt: skip
    _outlined(sheet, big, _RUST, _ORANGE, pen)
    _outlined(sheet, small, _RUST, _ORANGE, 0.02)
    for x, y in ((-0.06, -0.095), (0.06, -0.085)):
        sheet.stroke([(x * 0.9, 0.0), (x, y)], _ORANGE, 0.022)
    body: list[Point] = [
        (-0.16, 0.06), (-0.115, -0.01), (0.0, -0.03), (0.115, -0.005), (0.16, 0.065), (0.11, 0.145),
        (0.0, 0.17), (-0.11, 0.145),
    ]  # fmt: skip
    _outlined(sheet, body, _RUST, _ORANGE, pen)
    for x, y in ((-0.06, -0.105), (0.06, -0.095)):
        sheet.dot((x, y), 0.042, _WHITE)
        sheet.dot((x - 0.008, y + 0.006), 0.02, _INK)
    sheet.stroke([(-0.06, 0.072), (-0.034, 0.098), (0.0, 0.106), (0.036, 0.098), (0.062, 0.07)], _CREAM, 0.02)
    return sheet.finish()


def seven(size: int = 64) -> NDArray[np.float32]:
    """Draw a hand-written seven with a bar across its stem: (size, size, 3)."""
    sheet = _Sheet(size)
    sheet.stroke([(-0.155, -0.165), (-0.15, -0.195), (-0.135, -0.213)], _WHITE, 0.044, tip=1.1)
    sheet.stroke([(-0.135, -0.211), (-0.05, -0.197), (0.06, -0.204), (0.155, -0.225)], _WHITE, 0.05)
    sheet.stroke(
        [(0.155, -0.225), (0.085, -0.105), (0.03, 0.015), (-0.008, 0.13), (-0.022, 0.25)], _WHITE, 0.052, tip=0.9
    )
    sheet.stroke([(-0.08, 0.035), (0.02, 0.005), (0.13, 0.008)], _WHITE, 0.044, tip=0.8)
    return sheet.finish()


def creature(size: int = 64) -> NDArray[np.float32]:
    """Draw a round teal creature with ears of two lengths and a curled tail on one side: (size, size, 3)."""
    sheet = _Sheet(size)
    tail: list[Point] = [
        (0.10, 0.16), (0.20, 0.175), (0.275, 0.115), (0.275, 0.03), (0.215, 0.01), (0.20, 0.06),
        (0.235, 0.075),
    ]  # fmt: skip
    sheet.stroke(tail, _YELLOW, 0.046, tip=0.65)
    long_ear: list[Point] = [
        (-0.02, -0.08), (-0.055, -0.18), (-0.135, -0.245), (-0.235, -0.205), (-0.245, -0.15), (-0.18, -0.145),
        (-0.13, -0.04),
    ]  # fmt: skip
    short_ear: list[Point] = [(0.035, -0.08), (0.085, -0.15), (0.14, -0.175), (0.165, -0.125), (0.13, -0.03)]
    _outlined(sheet, long_ear, _PINK, _TEAL, 0.024)
    _outlined(sheet, short_ear, _PINK, _TEAL, 0.024)
    for x in (-0.085, 0.07):
        sheet.dot((x, 0.232), 0.05, _DEEP_TEAL, stretch=0.65)
    body: list[Point] = [
        (0.0, -0.12), (0.125, -0.08), (0.185, 0.045), (0.155, 0.175), (0.0, 0.23), (-0.155, 0.18),
        (-0.19, 0.05), (-0.13, -0.08),
    ]  # fmt: skip
    sheet.blob(body, _TEAL)
    # A patch over one eye, spots on one side and an off-centre belly break the mirror symmetry of a face.
    sheet.blob([(-0.125, -0.07), (-0.03, -0.075), (-0.01, 0.02), (-0.075, 0.075), (-0.165, 0.03)], _DEEP_TEAL)
    sheet.dot((-0.035, 0.15), 0.085, _CREAM, stretch=0.75)
    for x, y, radius in ((0.105, 0.125, 0.024), (0.072, 0.178, 0.018), (0.13, 0.172, 0.014)):
        sheet.dot((x, y), radius, _YELLOW)
    for x, radius in ((-0.08, 0.058), (0.07, 0.05)):
        sheet.dot((x, -0.008), radius, _WHITE, stretch=1.1)
        sheet.dot((x + 0.012, 0.0), radius * 0.62, _INK, stretch=1.15)
        sheet.dot((x + 0.024, -0.02), radius * 0.26, _WHITE)
    for x in (-0.142, 0.132):
        sheet.dot((x, 0.078), 0.032, _ROSE, stretch=0.75)
    sheet.stroke([(-0.04, 0.058), (-0.022, 0.072), (0.0, 0.076), (0.022, 0.069), (0.036, 0.052)], _INK, 0.018)
    return sheet.finish()


DRAWINGS: Final[dict[str, Callable[..., NDArray[np.float32]]]] = {"crab": crab, "seven": seven, "creature": creature}


def drawings(size: int = 64) -> NDArray[np.float32]:
    """Draw a crab, a hand-written seven and a creature: three images without any symmetry.

    Parameters
    ----------
    size : int, default 64
        Side of the images in pixels, at least 8.

    Returns
    -------
    ndarray, shape (3, size, size, 3)
        The drawings in [0, 1] on a background of zeros. Each can be rotated by any angle, and shifted by about a sixth
        of its size, with almost nothing leaving the frame.

    Examples
    --------
    >>> drawings(40).shape
    (3, 40, 40, 3)
    """
    return np.stack([draw(size) for draw in DRAWINGS.values()])
