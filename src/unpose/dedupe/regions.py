"""The part of a photograph that shows the picture: all of it, or what lies inside a frame of one colour.

A picture that was turned into a larger file has corners of one colour, and a picture with a border a frame of one
colour. Both are found in the same way: the colour of the corners is followed inwards, and the smallest rectangle, at
any angle, around what remains is the region of the picture. A photograph of an object on a plain background looks the
same, so the whole frame always stays the first hypothesis.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unpose.dedupe.kernels import convex_hull, inside_border

_TOLERANCE = 0.06
"""Largest difference of brightness inside a uniform border: JPEG makes borders noisy near their edges."""
_SMALLEST_SHARE = 0.1
_LARGEST_SHARE = 0.995
"""Share of the frame that the region inside a border takes; nearly all is noise in the corners, hardly any a blank."""
_FULL = 0.9
"""Share of a rectangle that its content fills, if it is a picture with a border or corners of one colour."""
_SMALLEST_RADIUS = 0.2
"""Smallest radius of the region's disc, as a fraction of the shorter side of the frame."""


@dataclass(frozen=True)
class Region:
    """A rectangle in a frame, in pixels from the centre of the frame, as in CONVENTIONS.md.

    Parameters
    ----------
    x, y : float
        Centre of the rectangle.
    half_width, half_height : float
        Half of its sides.
    angle : float
        Its rotation in radians, counter-clockwise on screen.
    radius : float
        Radius of the largest disc about its centre that lies inside rectangle and frame.

    Examples
    --------
    >>> find_regions(np.random.default_rng(0).random((30, 40)))[0].radius
    15.0
    """

    x: float
    y: float
    half_width: float
    half_height: float
    angle: float
    radius: float


def find_regions(grey: NDArray) -> list[Region]:
    """Find the hypotheses about which part of a frame is the picture.

    Parameters
    ----------
    grey : array of shape (h, w)
        The frame: bytes, or floats in [0, 1].

    Returns
    -------
    list of Region
        The whole frame; then, if there is a border or corners of one colour, the rectangle inside of them. If that
        rectangle is full, it is the only one: two pictures with the same border agree in its edges.

    Examples
    --------
    >>> picture = np.pad(np.random.default_rng(0).random((20, 30)), 5)
    >>> (inner,) = find_regions(picture)
    >>> inner.half_width, inner.half_height, inner.radius
    (15.0, 10.0, 10.0)
    """
    height, width = grey.shape
    whole = Region(0.0, 0.0, width / 2, height / 2, 0.0, min(height, width) / 2)
    corners = sorted(float(grey[y, x]) for y in (0, -1) for x in (0, -1))
    colour = (corners[1] + corners[2]) / 2
    tolerance = _TOLERANCE * (255 if grey.dtype == np.uint8 else 1)
    if max(colour - corners[0], corners[3] - colour) >= tolerance:
        return [whole]
    content = np.empty(grey.shape, bool)
    inside_border(np.ascontiguousarray(grey), colour - tolerance, colour + tolerance, content)
    if not _SMALLEST_SHARE <= content.mean() <= _LARGEST_SHARE:
        return [whole]
    inner = _smallest_rectangle(content)
    if inner is None:
        return [whole]
    fills = content.sum() >= _FULL * 4 * inner.half_width * inner.half_height
    return [inner] if fills else [whole, inner]


def _smallest_rectangle(content: NDArray) -> Region | None:
    """The rectangle of least area, at any angle, around the true pixels of a mask (h, w)."""
    height, width = content.shape
    first = np.where(content.any(1), content.argmax(1), width)  # outer edges of the first and last pixel of each row
    last = np.where(content.any(1), width - content[:, ::-1].argmax(1), 0)
    left = np.minimum(np.append(first, width), np.append(width, first))  # at the edges between rows
    right = np.maximum(np.append(last, 0), np.append(0, last))
    y = np.flatnonzero(left < right)
    ends = np.stack([left[y], y, right[y], y], 1).reshape(-1, 2) - np.array([width, height]) / 2
    corners = np.empty((len(ends) + 1, 2))
    hull = corners[: convex_hull(ends, corners)]
    sides = np.roll(hull, -1, axis=0) - hull
    # One side of the smallest rectangle lies on a side of the hull. The upright one is preferred where nothing is won.
    angles = np.append(0.0, np.arctan2(sides[:, 1], sides[:, 0]))
    along, across = np.stack([np.cos(angles), np.sin(angles)]), np.stack([-np.sin(angles), np.cos(angles)])
    u, v = hull @ along, hull @ across  # (points, angles)
    areas = np.ptp(u, axis=0) * np.ptp(v, axis=0)
    areas[0] *= 1 - 1e-3
    best = int(areas.argmin())
    middle = np.array([(s[:, best].max() + s[:, best].min()) / 2 for s in (u, v)])
    x, y = (middle @ np.stack([along[:, best], across[:, best]])).tolist()
    half_width, half_height = np.ptp(u[:, best]) / 2, np.ptp(v[:, best]) / 2
    radius = min(half_width, half_height, width / 2 - abs(x), height / 2 - abs(y))
    if radius < _SMALLEST_RADIUS * min(height, width):
        return None
    return Region(x, y, float(half_width), float(half_height), float(-angles[best]), float(radius))
