"""Closed curves as complex sequences: from masks and points, and their distance over rotation, start and mirror.

Convention
----------
A contour is a complex sequence (n,) of points at equal arc length, counter-clockwise on screen: ``x - i y`` with x to
the right and y down, in pixels from the image centre. Multiplication by ``exp(i a)`` rotates it counter-clockwise by a,
a cyclic shift changes where it starts, and the mirror is the conjugate, in reversed order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage

_POWER = 0.5
"""Weight of frequency k in distances, |k| to this power: between positions (0) and directions (1)."""
_FEATURES = 30
"""Largest frequency of the vectors of outlines."""
_BLOCK = 2**22
"""Entries of correlations that are computed at a time."""


def contour(mask: ArrayLike, n: int = 128, *, smooth: float = 1.0) -> NDArray[np.complex128]:
    """The outer outline of the largest region of a mask.

    Parameters
    ----------
    mask : (h, w) array
        True or non-zero inside; for floating-point images, above half of the largest value.
    n : int, default 128
        Points of the contour.
    smooth : float, default 1
        Standard deviation in pixels of the Gaussian by which the staircase of pixels is smoothed along the curve.

    Returns
    -------
    complex array of shape (n,)
        Points at equal arc length, counter-clockwise on screen, in pixels from the image centre.

    Examples
    --------
    >>> disc = np.hypot(*np.mgrid[-20:21, -20:21]) <= 15
    >>> bool(np.ptp(np.abs(contour(disc))) < 1)
    True
    """
    array = np.asarray(mask)
    if array.ndim != 2:
        raise ValueError(f"the mask must be an image (h, w), got shape {array.shape}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError("the mask holds NaN or infinity")
        array = array > array.max() / 2 if array.size and array.max() > 0 else np.zeros(array.shape, bool)
    regions, count = ndimage.label(np.pad(array != 0, 1))
    if count == 0:
        raise ValueError("the mask is empty: nothing has an outline")
    largest = regions == 1 + int(np.argmax(np.bincount(regions.ravel())[1:]))
    steps = _trace(ndimage.binary_fill_holes(largest))
    rows, columns = steps.T
    height, width = array.shape
    # Padding moved everything by one pixel; corners of pixels lie half a pixel before their centres.
    curve = (columns - 1.5 - (width - 1) / 2) - 1j * (rows - 1.5 - (height - 1) / 2)
    curve = (curve + np.roll(curve, -1)) / 2  # midpoints of the edges
    if smooth > 0:
        for part in (curve.real, curve.imag):
            part[:] = ndimage.gaussian_filter1d(part, smooth, mode="wrap")
    return resample(curve, n)


def resample(points: ArrayLike, n: int = 128) -> NDArray[np.complex128]:
    """A closed curve as n points at equal arc length, counter-clockwise on screen.

    Parameters
    ----------
    points : complex array (k,), or real array (k, 2) of x and y
        A closed curve; the last point is joined to the first. Real points have y pointing down.
    n : int, default 128
        Points of the result.

    Returns
    -------
    complex array of shape (n,)

    Raises
    ------
    ValueError
        For fewer than three points, NaN, a curve without length, and an open curve: one whose last step is longer than
        a quarter of the rest. Curves that cross themselves are kept in their given order if their area is zero.

    Examples
    --------
    >>> np.abs(np.diff(resample([[0, 0], [0, 4], [4, 4], [4, 0]], 8))).round(6).tolist()
    [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    """
    curve = np.asarray(points)
    if curve.ndim == 2 and curve.shape[1] == 2 and not np.iscomplexobj(curve):
        curve = curve[:, 0] - 1j * curve[:, 1]
    if curve.ndim != 1 or not np.iscomplexobj(curve):
        raise ValueError(f"a contour must be complex (k,) or real (k, 2), got {curve.dtype} {curve.shape}")
    if len(curve) < 3 or n < 3:
        raise ValueError(f"a contour needs at least three points, got {len(curve)} and n = {n}")
    if not np.isfinite(curve).all():
        raise ValueError("the contour holds NaN or infinity")
    lengths = np.abs(np.diff(np.append(curve, curve[0])))
    total = lengths.sum()
    if not total > 0:
        raise ValueError("all points of the contour coincide")
    if len(curve) > 8 and lengths[-1] > 0.25 * lengths[:-1].sum():
        raise ValueError("the contour is open: its last point is far from its first; close it, or give the whole curve")
    if signed_area(curve) < 0:
        curve = curve[::-1]
        lengths = np.abs(np.diff(np.append(curve, curve[0])))
    at = np.concatenate([[0.0], np.cumsum(lengths)])
    wanted = np.arange(n) * (total / n)
    closed = np.append(curve, curve[0])
    return np.interp(wanted, at, closed.real) + 1j * np.interp(wanted, at, closed.imag)


def signed_area(curve: NDArray) -> float:
    """The area of a closed complex curve, positive if it runs counter-clockwise."""
    return float((curve.conj() * np.roll(curve, -1)).imag.sum() / 2)


@dataclass(frozen=True)
class OutlineMatch:
    """Distances of outlines over the orbit, and where they are reached; the result of :func:`outline_distances`.

    Parameters
    ----------
    distances : array of shape (n, m)
        Between 0 and the root of 2.
    angles : array of shape (n, m)
        By how much an outline of the second set is rotated counter-clockwise to match, in radians.
    starts : int array of shape (n, m)
        How many points the second outline is shifted: its new point k is its point ``k + start``.
    mirrored : bool array of shape (n, m)
        Whether the second outline is mirrored first.

    Examples
    --------
    >>> square = resample([[0, 0], [0, 4], [4, 4], [4, 0]], 32)
    >>> outline_distances(square[None]).distances.round(6)
    array([[0.]])
    """

    distances: NDArray
    angles: NDArray
    starts: NDArray
    mirrored: NDArray

    def _repr_html_(self) -> str:
        """The matrix of distances as a picture, for notebooks."""
        from unpose.report import pictures_html

        return pictures_html(self.distances[None], ["distances, 0 is black"], width=240)


def outline_distances(a: ArrayLike, b: ArrayLike | None = None, *, mirrors: bool = True) -> OutlineMatch:
    """Distances between all pairs of contours, over rotation, start, shift, scale and mirror.

    With both outlines centred and of unit norm, ``min |a - exp(i t) shift_s(b)|^2 = 2 - 2 max_s |C(s)|``, where C is
    the circular correlation: all starts cost one FFT, and the angle is the phase of C.

    Parameters
    ----------
    a : complex array of shape (n, k)
        Contours of k points each.
    b : complex array of shape (m, k), optional
        Others; by default ``a`` itself.
    mirrors : bool, default True
        Whether mirror images count as the same.

    Returns
    -------
    OutlineMatch

    Notes
    -----
    Cost: n m k log k; 1300 outlines of 100 points take about 10 s on one core with mirrors. Before comparison frequency
    k is weighted by ``|k|**0.5``, half way between positions and directions.

    Examples
    --------
    >>> curve = np.exp(2j * np.pi * np.arange(64) / 64) * (2 + np.cos(np.arange(64) * 0.3))
    >>> match = outline_distances(curve[None], np.roll(3j * curve, 5)[None])
    >>> match.distances.round(6), match.angles.round(3)  # a quarter turn back
    (array([[0.]]), array([[-1.571]]))
    """
    first = _spectra(a, "a")
    second = first if b is None else _spectra(b, "b")
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"contours must have as many points, got {first.shape[1]} and {second.shape[1]}")
    n, m, k = len(first), len(second), first.shape[1]
    size = np.full((n, m), -1.0)
    phase, start, mirrored = np.zeros((n, m)), np.zeros((n, m), int), np.zeros((n, m), bool)
    # The reversed conjugate of a sequence has the conjugate of its spectrum.
    for flip, other in enumerate([second, second.conj()] if mirrors else [second]):
        for low in range(0, n, step := max(1, _BLOCK // (m * k))):
            rows = slice(low, low + step)
            correlation = np.fft.ifft(first[rows, None] * other.conj(), axis=2) * k  # (rows, m, k)
            best = np.abs(correlation).argmax(2)
            value = np.take_along_axis(correlation, best[..., None], 2)[..., 0]
            better = np.abs(value) > size[rows] + 1e-12
            size[rows] = np.where(better, np.abs(value), size[rows])
            phase[rows] = np.where(better, np.angle(value), phase[rows])
            start[rows] = np.where(better, (-best) % k, start[rows])
            mirrored[rows] = np.where(better, bool(flip), mirrored[rows])
    return OutlineMatch(np.sqrt(np.maximum(0.0, 2 - 2 * size)), phase, start, mirrored)


def outline_features(images: ArrayLike, n: int = 128) -> NDArray[np.float32]:
    """Moduli of the Fourier coefficients of outlines: vectors that ignore rotation, shift, scale, mirror and start.

    Parameters
    ----------
    images : array of shape (n, h, w) or (n, h, w, c)
        Silhouettes, bright on dark; channels are averaged. The outline is taken at half of the largest value.
    n : int, default 128
        Points of each contour.

    Returns
    -------
    array of shape (n, 60)
        Zero for images without an outline.

    Examples
    --------
    >>> bars = np.zeros((2, 24, 24))
    >>> bars[0, 10:14, 4:20] = bars[1, 4:20, 10:14] = 1
    >>> found = outline_features(bars)
    >>> bool(np.abs(found[0] - found[1]).max() < 0.01)
    True
    """
    array = np.asarray(images)
    if array.ndim == 4:
        array = array.mean(3)
    if array.ndim != 3:
        raise ValueError(f"images must be (n, h, w) or (n, h, w, c), got shape {array.shape}")
    frequencies = np.fft.fftfreq(n, 1 / n)
    kept = (np.abs(frequencies) <= _FEATURES) & (frequencies != 0)
    features = np.zeros((len(array), int(kept.sum())), np.float32)
    for row, image in enumerate(array.astype(np.float64)):
        if image.max() > 0:
            features[row] = np.abs(_spectra(contour(image, n)[None], "images"))[0, kept]
    return features


def _spectra(contours: ArrayLike, name: str) -> NDArray:
    """Fourier coefficients (n, k) of contours, centred, weighted and of unit norm."""
    array = np.asarray(contours)
    if array.ndim != 2 or not np.iscomplexobj(array) or array.shape[1] < 3:
        raise ValueError(f"{name} must be complex contours (n, k), got {array.dtype} {array.shape}; see resample")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity")
    k = array.shape[1]
    spectrum = np.fft.fft(array, axis=1) * np.abs(np.fft.fftfreq(k, 1 / k)) ** _POWER
    norm = np.linalg.norm(spectrum, axis=1, keepdims=True)
    if not (norm > 0).all():
        raise ValueError(f"contour {int((norm[:, 0] == 0).argmax())} of {name} is a single point")
    return spectrum / norm


def _trace(region: NDArray) -> NDArray:
    """Corners (k, 2) of pixels along the boundary of one region without holes, inside always on the left."""
    row, column = (int(each) for each in np.argwhere(region)[0])  # the top row; its left corner is on the boundary
    inside = region.tolist()
    # Directions down, right, up, left on the grid of corners: counter-clockwise on screen.
    moves = ((1, 0), (0, 1), (-1, 0), (0, -1))
    ahead = {0: ((0, -1), (0, 0)), 1: ((0, 0), (-1, 0)), 2: ((-1, 0), (-1, -1)), 3: ((-1, -1), (0, -1))}
    corner, heading, path = (row, column), 0, [(row, column)]
    while True:
        corner = (corner[0] + moves[heading][0], corner[1] + moves[heading][1])
        if corner == path[0]:
            return np.array(path)
        path.append(corner)
        # Pixels to the right and to the left of the way ahead.
        right, left = (inside[corner[0] + dr][corner[1] + dc] for dr, dc in ahead[heading])
        if right and left:
            heading = (heading - 1) % 4
        elif not left:
            heading = (heading + 1) % 4
