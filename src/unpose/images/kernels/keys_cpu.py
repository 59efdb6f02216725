"""Keys sampling on the CPU without gradients: the same sums as :mod:`unpose.images.sampling`, compiled.

Gathers in torch read every tap of every pixel through memory; here weights stay in registers. Each value is computed
by one thread in a fixed order, so results do not depend on the number of threads.
"""

import numpy as np
import torch
from torch import Tensor

from unpose.compiled import compiled, in_threads, inlined

MARGIN = 4
"""Zeros around an image so that every tap of a point that reaches the image can be read."""


def sample(images: Tensor, points: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor]:
    """images (n or 1, c, h, w), points (n or 1, k, 2) -> values (n, c, k) and slopes (n, c, k, 2), or none of them."""
    n = max(len(images), len(points))
    pixels = padded(images)
    places = points.detach().contiguous().numpy()
    values = np.empty((n, images.shape[1], points.shape[1]), pixels.dtype)
    slopes = np.empty((*values.shape, 2) if gradient else (0, 0, 0, 2), pixels.dtype)

    def run(start: int, stop: int) -> None:
        if gradient:
            _values_and_slopes(pixels, places, start, stop, values, slopes)
        else:
            _values(pixels, places, start, stop, values)

    in_threads(run, n)
    return torch.from_numpy(values), torch.from_numpy(slopes)


def padded(images: Tensor) -> np.ndarray:
    """Images with the margin that the compiled loops read into."""
    return torch.nn.functional.pad(images.detach(), [MARGIN] * 4).contiguous().numpy()


@inlined
def split(position, size, one, tolerance):  # type: ignore[no-untyped-def]
    """The padded index of the first tap and the fraction beyond the pixel; -1 where no tap reaches the image."""
    if not (position > -2 and position < size + 1):
        return -1, one
    base = np.floor(position)
    t = position - base
    if t <= tolerance:
        t -= t
    elif one - t <= tolerance:
        t -= t
        base += one
    return np.int64(base) + (MARGIN - 1), t


@inlined
def weights(t, one):  # type: ignore[no-untyped-def]
    """The four Keys weights; ``one`` carries the precision, since bare constants would widen everything to double."""
    two = one + one
    half = one / two
    h, u, c = half * t, t * t, (two + one) * half * t
    return h * t * (two - t) - h, (c - two - half) * u + one, (two - c) * u + h, h * t * (t - one)


@inlined
def _slopes(t, one):  # type: ignore[no-untyped-def]
    two = one + one
    half, three = one / two, two + one
    c = three * half * t
    return (two - c) * t - half, (three * c - two * two - one) * t, (two * two - three * c) * t + half, (c - one) * t


@inlined
def dot(flat, at, weights):  # type: ignore[no-untyped-def]
    step = np.uintp(1)  # unsigned: an index that may be negative costs a test per read
    return (
        flat[at] * weights[0]
        + flat[at + step] * weights[1]
        + flat[at + step + step] * weights[2]
        + flat[at + step + step + step] * weights[3]
    )


@compiled
def _values(images, points, start, stop, values):  # type: ignore[no-untyped-def]
    _, channels, rows, columns = images.shape
    height, width = rows - 2 * MARGIN, columns - 2 * MARGIN
    flat, one, line = images.ravel(), images.dtype.type(1), np.uintp(columns)
    half_width, half_height = images.dtype.type((width - 1) / 2), images.dtype.type((height - 1) / 2)
    near_x, near_y = images.dtype.type(2 * width * np.spacing(one)), images.dtype.type(2 * height * np.spacing(one))
    for i in range(start, stop):
        image, place = (i if images.shape[0] > 1 else 0), (i if points.shape[0] > 1 else 0)
        for k in range(points.shape[1]):
            x, tx = split(points[place, k, 0] + half_width, width, one, near_x)
            y, ty = split(points[place, k, 1] + half_height, height, one, near_y)
            if x < 0 or y < 0:
                for c in range(channels):
                    values[i, c, k] = 0
                continue
            u, v = weights(tx, one), weights(ty, one)
            for c in range(channels):
                at = np.uintp(((image * channels + c) * rows + y) * columns + x)
                values[i, c, k] = (
                    dot(flat, at, u) * v[0]
                    + dot(flat, at + line, u) * v[1]
                    + dot(flat, at + line + line, u) * v[2]
                    + dot(flat, at + line + line + line, u) * v[3]
                )


@compiled
def _values_and_slopes(images, points, start, stop, values, slopes):  # type: ignore[no-untyped-def]
    _, channels, rows, columns = images.shape
    height, width = rows - 2 * MARGIN, columns - 2 * MARGIN
    flat, one, line = images.ravel(), images.dtype.type(1), np.uintp(columns)
    half_width, half_height = images.dtype.type((width - 1) / 2), images.dtype.type((height - 1) / 2)
    near_x, near_y = images.dtype.type(2 * width * np.spacing(one)), images.dtype.type(2 * height * np.spacing(one))
    for i in range(start, stop):
        image, place = (i if images.shape[0] > 1 else 0), (i if points.shape[0] > 1 else 0)
        for k in range(points.shape[1]):
            x, tx = split(points[place, k, 0] + half_width, width, one, near_x)
            y, ty = split(points[place, k, 1] + half_height, height, one, near_y)
            if x < 0 or y < 0:
                for c in range(channels):
                    values[i, c, k] = slopes[i, c, k, 0] = slopes[i, c, k, 1] = 0
                continue
            u, v = weights(tx, one), weights(ty, one)
            du, dv = _slopes(tx, one), _slopes(ty, one)
            for c in range(channels):
                at = np.uintp(((image * channels + c) * rows + y) * columns + x)
                a, da = dot(flat, at, u), dot(flat, at, du)
                b, db = dot(flat, at + line, u), dot(flat, at + line, du)
                d, dd = dot(flat, at + line + line, u), dot(flat, at + line + line, du)
                e, de = dot(flat, at + line + line + line, u), dot(flat, at + line + line + line, du)
                values[i, c, k] = a * v[0] + b * v[1] + d * v[2] + e * v[3]
                slopes[i, c, k, 0] = da * v[0] + db * v[1] + dd * v[2] + de * v[3]
                slopes[i, c, k, 1] = a * dv[0] + b * dv[1] + d * dv[2] + e * dv[3]
