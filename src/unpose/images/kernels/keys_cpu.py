"""Keys sampling on the CPU without gradients: the same sums as :mod:`unpose.images.sampling`, compiled.

Gathering in torch reads every tap of every point through memory; here the weights of a point stay in registers. Images
are padded with MARGIN zeros, so that all 4 x 4 taps of a point near the image can be read without bounds checks. Each
value is computed by one thread in a fixed order, so that results do not depend on the number of threads.
"""

import numpy as np
import torch
from torch import Tensor

from unpose.compiled import compiled, in_threads, inlined

__all__ = ["keys_weights", "sample", "weighted_sum"]

_MARGIN = 4


def sample(images: Tensor, points: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor]:
    """images (n or 1, c, h, w), points (n or 1, k, 2) -> values (n, c, k) and their gradients (n, c, k, 2).

    Without ``gradient`` the second tensor is empty.
    """
    n = max(len(images), len(points))
    pixels = torch.nn.functional.pad(images.detach(), [_MARGIN] * 4).contiguous().numpy()
    positions = points.detach().contiguous().numpy()
    values = np.empty((n, images.shape[1], points.shape[1]), pixels.dtype)
    gradients = np.empty((*values.shape, 2) if gradient else (0, 0, 0, 2), pixels.dtype)

    def run(start: int, stop: int) -> None:
        if gradient:
            _values_and_gradients(pixels, positions, start, stop, values, gradients)
        else:
            _values(pixels, positions, start, stop, values)

    in_threads(run, n)
    return torch.from_numpy(values), torch.from_numpy(gradients)


@inlined
def _split(position, size, one, tolerance):  # type: ignore[no-untyped-def]
    """Index of the first tap in the padded image and the fraction beyond the pixel; -1 where no tap is in the image."""
    if not (position > -2 and position < size + 1):
        return -1, one
    base = np.floor(position)
    t = position - base
    if t <= tolerance:
        t -= t
    elif one - t <= tolerance:
        t -= t
        base += one
    return np.int64(base) + (_MARGIN - 1), t


@inlined
def keys_weights(t, one):  # type: ignore[no-untyped-def]
    """The four Keys weights at a fraction t; ``one`` carries the dtype, since constants would widen it to float64."""
    two = one + one
    half = one / two
    h, u, c = half * t, t * t, (two + one) * half * t
    return h * t * (two - t) - h, (c - two - half) * u + one, (two - c) * u + h, h * t * (t - one)


@inlined
def _weight_derivatives(t, one):  # type: ignore[no-untyped-def]
    two = one + one
    half, three = one / two, two + one
    c = three * half * t
    return (two - c) * t - half, (three * c - two * two - one) * t, (two * two - three * c) * t + half, (c - one) * t


@inlined
def weighted_sum(flat, at, weights):  # type: ignore[no-untyped-def]
    """Weighted sum of four neighbouring pixels."""
    step = np.uintp(1)  # unsigned indices: numba tests signed ones for wraparound at every access
    return (
        flat[at] * weights[0]
        + flat[at + step] * weights[1]
        + flat[at + step + step] * weights[2]
        + flat[at + step + step + step] * weights[3]
    )


@compiled
def _values(images, points, start, stop, values):  # type: ignore[no-untyped-def]
    """padded images (n or 1, c, rows, columns), points (n or 1, k, 2) -> values (n, c, k), images start to stop."""
    _, channels, rows, columns = images.shape
    height, width = rows - 2 * _MARGIN, columns - 2 * _MARGIN
    flat, one, row_stride = images.ravel(), images.dtype.type(1), np.uintp(columns)
    half_width, half_height = images.dtype.type((width - 1) / 2), images.dtype.type((height - 1) / 2)
    near_x, near_y = images.dtype.type(2 * width * np.spacing(one)), images.dtype.type(2 * height * np.spacing(one))
    for i in range(start, stop):
        image, point_set = (i if images.shape[0] > 1 else 0), (i if points.shape[0] > 1 else 0)
        for k in range(points.shape[1]):
            x, tx = _split(points[point_set, k, 0] + half_width, width, one, near_x)
            y, ty = _split(points[point_set, k, 1] + half_height, height, one, near_y)
            if x < 0 or y < 0:
                for c in range(channels):
                    values[i, c, k] = 0
                continue
            u, v = keys_weights(tx, one), keys_weights(ty, one)
            for c in range(channels):
                at = np.uintp(((image * channels + c) * rows + y) * columns + x)
                values[i, c, k] = (
                    weighted_sum(flat, at, u) * v[0]
                    + weighted_sum(flat, at + row_stride, u) * v[1]
                    + weighted_sum(flat, at + row_stride + row_stride, u) * v[2]
                    + weighted_sum(flat, at + row_stride + row_stride + row_stride, u) * v[3]
                )


@compiled
def _values_and_gradients(images, points, start, stop, values, gradients):  # type: ignore[no-untyped-def]
    """As :func:`_values`, and the derivatives along x and y, (n, c, k, 2)."""
    _, channels, rows, columns = images.shape
    height, width = rows - 2 * _MARGIN, columns - 2 * _MARGIN
    flat, one, row_stride = images.ravel(), images.dtype.type(1), np.uintp(columns)
    half_width, half_height = images.dtype.type((width - 1) / 2), images.dtype.type((height - 1) / 2)
    near_x, near_y = images.dtype.type(2 * width * np.spacing(one)), images.dtype.type(2 * height * np.spacing(one))
    for i in range(start, stop):
        image, point_set = (i if images.shape[0] > 1 else 0), (i if points.shape[0] > 1 else 0)
        for k in range(points.shape[1]):
            x, tx = _split(points[point_set, k, 0] + half_width, width, one, near_x)
            y, ty = _split(points[point_set, k, 1] + half_height, height, one, near_y)
            if x < 0 or y < 0:
                for c in range(channels):
                    values[i, c, k] = gradients[i, c, k, 0] = gradients[i, c, k, 1] = 0
                continue
            u, v = keys_weights(tx, one), keys_weights(ty, one)
            du, dv = _weight_derivatives(tx, one), _weight_derivatives(ty, one)
            for c in range(channels):
                first = np.uintp(((image * channels + c) * rows + y) * columns + x)
                second = first + row_stride
                third = second + row_stride
                fourth = third + row_stride
                a, da = weighted_sum(flat, first, u), weighted_sum(flat, first, du)
                b, db = weighted_sum(flat, second, u), weighted_sum(flat, second, du)
                d, dd = weighted_sum(flat, third, u), weighted_sum(flat, third, du)
                e, de = weighted_sum(flat, fourth, u), weighted_sum(flat, fourth, du)
                values[i, c, k] = a * v[0] + b * v[1] + d * v[2] + e * v[3]
                gradients[i, c, k, 0] = da * v[0] + db * v[1] + dd * v[2] + de * v[3]
                gradients[i, c, k, 1] = a * dv[0] + b * dv[1] + d * dv[2] + e * dv[3]
