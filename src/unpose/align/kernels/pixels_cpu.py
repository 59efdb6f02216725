"""The pixel loops of measurement on the CPU, compiled: pairs are named by number, nothing in between is kept in memory.

The same sums as the plain versions in :mod:`unpose.align.photometry`, which remain the oracle and serve every other
device. Each pair is summed by one thread in a fixed order, in double precision. Some rows of pixels at a time are
warped in three passes: weights, taps down the columns, taps along the row. The first and the last fill vectors.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from unpose.compiled import compiled, in_threads
from unpose.groups import inverse
from unpose.images.kernels.keys_cpu import MARGIN, padded

N_MOMENTS = 6
# Sums over one pair's pixels may be taken in any order the vector unit likes, always the same one.
summing = numba.njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz", "nnan"}, error_model="numpy")
_REACH, _ZERO, _HALF = np.float32(-2), np.float32(0), np.float32(0.5)
_ONE, _TWO, _FAR, _BEHIND = np.float32(1), np.float32(2), np.float32(1e6), np.float32(1e-3)
_AT_ONCE = 320
"""Pixels warped at a time: long enough for vectors, short enough for the nearest cache."""
_A, _B = np.float32(1.5), np.float32(2.5)  # Keys' polynomials


class Pixels:
    """Both sides of many pairs as the loops read them: float32, (n, c, h, w) and (m, c, h, w), with a mask (h, w)."""

    def __init__(self, moving: Tensor, fixed: Tensor, mask: Tensor) -> None:
        self.moving, self.fixed = padded(moving), fixed.contiguous().numpy()
        self.inside, self.mask = padded(mask[None, None])[0, 0], mask.contiguous().numpy()

    def moments(self, moving: Tensor, fixed: Tensor, poses: Tensor, *, overlap: bool) -> Tensor:
        """Per pair of numbers (p,) and channel the sums of w, w m, w f, w m m, w m f, w f f: (p, c, 6) float64."""
        tau, left, right = normalised(inverse(poses.double())), moving.numpy(), fixed.numpy()
        out = np.zeros((len(left), self.fixed.shape[1], N_MOMENTS))

        def run(start: int, stop: int) -> None:
            _moments(self.moving, self.fixed, self.inside, self.mask, left, right, tau, overlap, start, stop, out)

        in_threads(run, len(left))
        return torch.from_numpy(out)

    def energy_outside(self, moving: Tensor, poses: Tensor) -> Tensor:
        """Energy of the source pixels that a pose carries out of the fixed side's frame, (p,) float64."""
        matrices, left, out = normalised(poses.double()), moving.numpy(), np.zeros(len(moving))
        height, width = self.mask.shape

        def run(start: int, stop: int) -> None:
            _energy_outside(self.moving, left, matrices, height, width, start, stop, out)

        in_threads(run, len(left))
        return torch.from_numpy(out)


def normalised(poses: Tensor) -> np.ndarray:
    """Homographies with a last entry of one, as a contiguous array."""
    return (poses / poses[:, 2:, 2:]).contiguous().numpy()


@compiled  # not free to forget NaN: a place that is no number must not be read
def _weights(points, x_of, y_of, columns, top_x, top_y, near_x, near_y, at, u, v):  # type: ignore[no-untyped-def]
    """Where the first tap of every pixel stands in the padded image (w,), and its Keys weights u, v (4, w).

    The place of pixel k is linear in ``points[:, k]``, with coefficients x_of and y_of.
    """
    x_a, x_b, x_c = x_of
    y_a, y_b, y_c = y_of
    for k in range(at.size):
        x = x_a * points[0, k] + x_b * points[1, k] + x_c
        y = y_a * points[0, k] + y_b * points[1, k] + y_c
        # Beyond these all taps read zeros: no test is needed further on.
        x = x if x > _REACH else _REACH
        x = x if x < top_x else top_x
        y = y if y > _REACH else _REACH
        y = y if y < top_y else top_y
        # As close to a pixel as rounding lets it be is on the pixel: quarter turns and whole shifts are exact.
        whole_x, whole_y = np.floor(x + _HALF), np.floor(y + _HALF)
        x = whole_x if abs(x - whole_x) <= near_x else x
        y = whole_y if abs(y - whole_y) <= near_y else y
        base_x, base_y = np.floor(x), np.floor(y)
        t, s = x - base_x, y - base_y
        at[k] = np.int32(base_y * columns + base_x)
        u[0, k], u[1, k] = ((_TWO - t) * t - _ONE) * t * _HALF, (_A * t - _B) * t * t + _ONE
        u[2, k], u[3, k] = ((_TWO - _A * t) * t + _HALF) * t, (t - _ONE) * t * t * _HALF
        v[0, k], v[1, k] = ((_TWO - s) * s - _ONE) * s * _HALF, (_A * s - _B) * s * s + _ONE
        v[2, k], v[3, k] = ((_TWO - _A * s) * s + _HALF) * s, (s - _ONE) * s * s * _HALF


@summing
def _down(flat, first, line, at, v, taps):  # type: ignore[no-untyped-def]
    """Four neighbouring columns, each summed over four rows, for every place: (w, 4)."""
    one = np.uintp(1)  # unsigned: an index that may be negative costs a test per read
    two, three = one + one, one + one + one
    for k in range(at.size):
        a = np.uintp(first + np.int64(at[k]))
        b = a + line
        c = b + line
        d = c + line
        v0, v1, v2, v3 = v[0, k], v[1, k], v[2, k], v[3, k]
        taps[k, 0] = flat[a] * v0 + flat[b] * v1 + flat[c] * v2 + flat[d] * v3
        taps[k, 1] = flat[a + one] * v0 + flat[b + one] * v1 + flat[c + one] * v2 + flat[d + one] * v3
        taps[k, 2] = flat[a + two] * v0 + flat[b + two] * v1 + flat[c + two] * v2 + flat[d + two] * v3
        taps[k, 3] = flat[a + three] * v0 + flat[b + three] * v1 + flat[c + three] * v2 + flat[d + three] * v3


@summing
def _along_row(taps, u, out):  # type: ignore[no-untyped-def]
    for k in range(out.size):
        out[k] = taps[k, 0] * u[0, k] + taps[k, 1] * u[1, k] + taps[k, 2] * u[2, k] + taps[k, 3] * u[3, k]


@compiled
def _projected(x_of, y_of, depth_of, grid, half_x, half_y, out):  # type: ignore[no-untyped-def]
    """Where a homography reads pixels of the fixed frame, from the moving image's first pixel; behind it is far.

    Pixels grid (2, w) into out (2, w).
    """
    x_a, x_b, x_c = x_of
    y_a, y_b, y_c = y_of
    depth_a, depth_b, depth_c = depth_of
    for k in range(grid.shape[1]):
        x, y = grid[0, k], grid[1, k]
        depth = depth_a * x + depth_b * y + depth_c
        share = _ONE / (depth if depth > _BEHIND else _BEHIND)
        out[0, k] = (x_a * x + x_b * y + x_c) * share + half_x if depth > _BEHIND else _FAR
        out[1, k] = (y_a * x + y_b * y + y_c) * share + half_y if depth > _BEHIND else _FAR


@compiled
def bench(mask):  # type: ignore[no-untyped-def]
    """What :func:`warp` works on, for frames like this mask (h, w); one for each thread."""
    height, width = mask.shape
    band = max(1, min(height, _AT_ONCE // width))  # rows
    size = band * width
    grid, place = np.empty((2, size), np.float32), np.empty((2, size), np.float32)
    for row in range(band):
        for column in range(width):
            grid[0, row * width + column] = column - (width - 1) / 2
            grid[1, row * width + column] = row - (height - 1) / 2
    weights, taps = np.empty((2, 4, size), np.float32), np.empty((size, 4), np.float32)
    return grid, place, np.empty(size, np.int32), weights, taps


@compiled
def warp(images, number, tau, inside, mask, overlap, tools, moved, weight):  # type: ignore[no-untyped-def]
    """One moving image into (c, h * w) and its weights into (h * w,); tools are those of :func:`bench`."""
    _, channels, rows, columns = images.shape
    height, width = mask.shape
    own_height, own_width = rows - 2 * MARGIN, columns - 2 * MARGIN
    flat, known, line = images.ravel(), inside.ravel(), np.uintp(columns)
    half_x, half_y, near = (own_width - 1) / 2, (own_height - 1) / 2, 2 * np.spacing(_ONE)
    straight = tau[2, 0] == 0.0 and tau[2, 1] == 0.0
    grid, place, at, weights, taps = tools
    u, v = weights[0], weights[1]
    band, first = at.size // width, (MARGIN - 1) * columns + MARGIN - 1
    for top in range(0, height, band):
        begin, end = top * width, min(top + band, height) * width
        at = at[: end - begin]
        if straight:
            points, x_of, y_of = grid, _line(tau[0], top, half_x), _line(tau[1], top, half_y)
        else:
            _projected(_line(tau[0], top, 0.0), _line(tau[1], top, 0.0), _line(tau[2], top, 0.0), grid,
                       np.float32(half_x), np.float32(half_y), place)  # fmt: skip
            points, x_of, y_of = place, (_ONE, _ZERO, _ZERO), (_ZERO, _ONE, _ZERO)
        _weights(points, x_of, y_of, np.float32(columns), np.float32(own_width + 1), np.float32(own_height + 1),
                 np.float32(own_width * near), np.float32(own_height * near), at, u, v)  # fmt: skip
        for c in range(channels):
            _down(flat, (number * channels + c) * rows * columns + first, line, at, v, taps)
            _along_row(taps, u, moved[c, begin:end])
        weight[begin:end] = mask.ravel()[begin:end]
        if overlap:
            _down(known, first, line, at, v, taps)
            _along_row(taps, u, place[0, : end - begin])
            _cut(place[0], weight[begin:end])


@compiled
def _line(tau, top, half):  # type: ignore[no-untyped-def]
    """The coefficients of a coordinate for rows that begin at ``top``."""
    return np.float32(tau[0]), np.float32(tau[1]), np.float32(tau[1] * top + tau[2] + half)


@summing
def _cut(carried, weight):  # type: ignore[no-untyped-def]
    """No weight where the other mask, carried here, is below a half."""
    for k in range(weight.size):
        weight[k] = weight[k] if carried[k] > _HALF else _ZERO


@summing
def sums(moved, goal, weight, out):  # type: ignore[no-untyped-def]
    """The six sums of each channel into (c, 6)."""
    for c in range(moved.shape[0]):
        w = m = f = mm = mf = ff = 0.0
        for k in range(moved.shape[1]):
            wk, mk, fk = np.float64(weight[k]), np.float64(moved[c, k]), np.float64(goal[c, k])
            w += wk
            m += wk * mk
            f += wk * fk
            mm += wk * mk * mk
            mf += wk * mk * fk
            ff += wk * fk * fk
        out[c, 0], out[c, 1], out[c, 2], out[c, 3], out[c, 4], out[c, 5] = w, m, f, mm, mf, ff


@compiled
def _moments(images, fixed, inside, mask, left, right, tau, overlap, start, stop, out):  # type: ignore[no-untyped-def]
    channels, size = fixed.shape[1], mask.size
    moved, weight = np.empty((channels, size), np.float32), np.empty(size, np.float32)
    tools = bench(mask)
    for p in range(start, stop):
        warp(images, left[p], tau[p], inside, mask, overlap, tools, moved, weight)
        sums(moved, fixed[right[p]].reshape(channels, size), weight, out[p])


@compiled
def _energy_outside(images, left, poses, height, width, start, stop, out):  # type: ignore[no-untyped-def]
    channels, rows, columns = images.shape[1:]
    for p in range(start, stop):
        total = 0.0
        for c in range(channels):
            for row in range(MARGIN, rows - MARGIN):
                line = images[left[p], c, row, MARGIN : columns - MARGIN]
                total += _row_outside(line, row - (rows - 1) / 2, poses[p], width / 2, height / 2)
        out[p] = total


@summing
def _row_outside(line, y, pose, half_width, half_height):  # type: ignore[no-untyped-def]
    """Energy of one row that a pose carries beyond the frame: compared before the division by depth, not after."""
    at_x, at_y, depth = pose[0, 1] * y + pose[0, 2], pose[1, 1] * y + pose[1, 2], pose[2, 1] * y + 1.0
    total, middle = 0.0, (line.size - 1) / 2
    for column in range(line.size):
        x, value = column - middle, np.float64(line[column])
        away = abs(pose[2, 0] * x + depth)
        far = (abs(pose[0, 0] * x + at_x) > half_width * away) | (abs(pose[1, 0] * x + at_y) > half_height * away)
        total += value * value if far else 0.0
    return total
