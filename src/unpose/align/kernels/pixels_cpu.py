"""Warping and comparing pairs of images on the CPU; no warped image is kept in memory.

Computes the same sums as :mod:`unpose.align.photometry`. The moving image of a pair is sampled with Keys interpolation
at the pixels of the fixed frame, some rows at a time, in three passes over these pixels:

1. the position of each pixel in the moving image, and its four weights along each axis (``_interpolation_weights``),
2. for each of the four columns around the position, the weighted sum of four rows (``_interpolate_columns``),
3. the weighted sum of the four columns (``_interpolate_rows``).

The first and the last pass fill SIMD vectors; the second reads scattered pixels. Moving images have a margin of MARGIN
zeros, and positions are clamped to it, so that no read needs a bounds check.

Each pair is computed by one thread, in a fixed order, and its sums are in double precision: results do not depend on
the number of threads.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from unpose.compiled import CACHE, NO_WRAPPERS, compiled, in_threads, inner
from unpose.groups import inverse

MARGIN = 4
"""Zeros around moving images: all taps of positions between -2 and size + 1 lie in the padded image."""
N_MOMENTS = 6
compiled_sum = numba.njit(
    nogil=True, cache=CACHE, fastmath={"contract", "reassoc", "nsz", "nnan"}, error_model="numpy", **NO_WRAPPERS
)
"""Numba decorator for loops that sum over pixels, inside of kernels: LLVM may reorder the sum to use SIMD, always in
the same way."""
_LOWEST, _ZERO, _HALF = np.float32(-2), np.float32(0), np.float32(0.5)
_ONE, _TWO, _FAR_AWAY, _MIN_DEPTH = np.float32(1), np.float32(2), np.float32(1e6), np.float32(1e-3)
_A, _B = np.float32(1.5), np.float32(2.5)  # coefficients of Keys' polynomials
_CHUNK_PIXELS = 320
"""Pixels warped at a time: enough to fill SIMD vectors, few enough for the L1 cache."""


class Pixels:
    """Moving images (n, c, h, w), fixed images (m, c, h, w) and a mask (h, w), float32, as the kernels read them.

    Pairs are given by indices (p,) into both sides.
    """

    def __init__(self, moving: Tensor, fixed: Tensor, mask: Tensor) -> None:
        self.moving, self.fixed = _pad(moving), fixed.contiguous().numpy()
        self.padded_mask, self.mask = _pad(mask), mask.contiguous().numpy()

    def moments(self, moving: Tensor, fixed: Tensor, poses: Tensor, *, overlap: bool) -> Tensor:
        """Sums of w, w m, w f, w m m, w m f, w f f over the pixels of each pair and channel: (p, c, 6) float64.

        Weights w are the mask; with ``overlap``, only where the moving image's mask, warped by the pose, is set too.
        """
        source_from_fixed, left, right = normalised(inverse(poses.double())), moving.numpy(), fixed.numpy()
        out = np.zeros((len(left), self.fixed.shape[1], N_MOMENTS))

        def run(start: int, stop: int) -> None:
            _moments(self.moving, self.fixed, self.padded_mask, self.mask, left, right, source_from_fixed, overlap,
                     start, stop, out)  # fmt: skip

        in_threads(run, len(left))
        return torch.from_numpy(out)

    def energy_outside(self, moving: Tensor, poses: Tensor) -> Tensor:
        """Energy of the moving image's pixels that the pose moves out of the fixed image's frame, (p,) float64."""
        matrices, left, out = normalised(poses.double()), moving.numpy(), np.zeros(len(moving))
        height, width = self.mask.shape

        def run(start: int, stop: int) -> None:
            _energy_outside(self.moving, left, matrices, height, width, start, stop, out)

        in_threads(run, len(left))
        return torch.from_numpy(out)


def _pad(images: Tensor) -> np.ndarray:
    """(..., h, w) with a margin of zeros."""
    return torch.nn.functional.pad(images.detach(), [MARGIN] * 4).contiguous().numpy()


def normalised(poses: Tensor) -> np.ndarray:
    """Homographies (p, 3, 3) scaled to a last entry of one, as a contiguous array."""
    return (poses / poses[:, 2:, 2:]).contiguous().numpy()


@inner  # not compiled_sum, which may assume that there is no NaN: a NaN position must be clamped too
def _interpolation_weights(points, to_x, to_y, columns, max_x, max_y, near_x, near_y, index, u, v):  # type: ignore[no-untyped-def]
    """First tap of each pixel in the padded image, ``index`` (size,), and Keys weights u along x, v along y, (4, size).

    The position of pixel k is linear in ``points[:, k]``, (2, size), with coefficients ``to_x`` and ``to_y``.
    """
    x_a, x_b, x_c = to_x
    y_a, y_b, y_c = to_y
    for k in range(index.size):
        x = x_a * points[0, k] + x_b * points[1, k] + x_c
        y = y_a * points[0, k] + y_b * points[1, k] + y_c
        # Beyond these limits all taps read zeros.
        x = x if x > _LOWEST else _LOWEST
        x = x if x < max_x else max_x
        y = y if y > _LOWEST else _LOWEST
        y = y if y < max_y else max_y
        # Positions within rounding of a pixel are on the pixel, so that quarter turns and whole shifts are exact.
        whole_x, whole_y = np.floor(x + _HALF), np.floor(y + _HALF)
        x = whole_x if abs(x - whole_x) <= near_x else x
        y = whole_y if abs(y - whole_y) <= near_y else y
        base_x, base_y = np.floor(x), np.floor(y)
        t, s = x - base_x, y - base_y
        index[k] = np.int32(base_y * columns + base_x)
        u[0, k], u[1, k] = ((_TWO - t) * t - _ONE) * t * _HALF, (_A * t - _B) * t * t + _ONE
        u[2, k], u[3, k] = ((_TWO - _A * t) * t + _HALF) * t, (t - _ONE) * t * t * _HALF
        v[0, k], v[1, k] = ((_TWO - s) * s - _ONE) * s * _HALF, (_A * s - _B) * s * s + _ONE
        v[2, k], v[3, k] = ((_TWO - _A * s) * s + _HALF) * s, (s - _ONE) * s * s * _HALF


@compiled_sum
def _interpolate_columns(flat, first, row_stride, index, v, taps):  # type: ignore[no-untyped-def]
    """Weighted sums over four rows, for the four columns around each position: taps (size, 4)."""
    one = np.uintp(1)  # unsigned indices: numba tests signed ones for wraparound at every access
    two, three = one + one, one + one + one
    for k in range(index.size):
        a = np.uintp(first + np.int64(index[k]))
        b = a + row_stride
        c = b + row_stride
        d = c + row_stride
        v0, v1, v2, v3 = v[0, k], v[1, k], v[2, k], v[3, k]
        taps[k, 0] = flat[a] * v0 + flat[b] * v1 + flat[c] * v2 + flat[d] * v3
        taps[k, 1] = flat[a + one] * v0 + flat[b + one] * v1 + flat[c + one] * v2 + flat[d + one] * v3
        taps[k, 2] = flat[a + two] * v0 + flat[b + two] * v1 + flat[c + two] * v2 + flat[d + two] * v3
        taps[k, 3] = flat[a + three] * v0 + flat[b + three] * v1 + flat[c + three] * v2 + flat[d + three] * v3


@compiled_sum
def _interpolate_rows(taps, u, out):  # type: ignore[no-untyped-def]
    """Weighted sums of the four columns: taps (size, 4), u (4, size) -> out (size,)."""
    for k in range(out.size):
        out[k] = taps[k, 0] * u[0, k] + taps[k, 1] * u[1, k] + taps[k, 2] * u[2, k] + taps[k, 3] * u[3, k]


@inner
def _project(to_x, to_y, to_depth, grid, half_x, half_y, out):  # type: ignore[no-untyped-def]
    """Positions, relative to the moving image's first pixel, to which a homography maps the pixels grid (2, size).

    Points behind the camera, with a depth that is not positive, are put far outside. ``out`` is (2, size).
    """
    x_a, x_b, x_c = to_x
    y_a, y_b, y_c = to_y
    depth_a, depth_b, depth_c = to_depth
    for k in range(grid.shape[1]):
        x, y = grid[0, k], grid[1, k]
        depth = depth_a * x + depth_b * y + depth_c
        factor = _ONE / (depth if depth > _MIN_DEPTH else _MIN_DEPTH)
        out[0, k] = (x_a * x + x_b * y + x_c) * factor + half_x if depth > _MIN_DEPTH else _FAR_AWAY
        out[1, k] = (y_a * x + y_b * y + y_c) * factor + half_y if depth > _MIN_DEPTH else _FAR_AWAY


@inner
def make_warp_buffers(mask):  # type: ignore[no-untyped-def]
    """Scratch buffers of :func:`warp` for frames of this mask's shape (h, w); each thread needs its own."""
    height, width = mask.shape
    n_rows = max(1, min(height, _CHUNK_PIXELS // width))
    size = n_rows * width
    grid, projected = np.empty((2, size), np.float32), np.empty((2, size), np.float32)
    for row in range(n_rows):
        for column in range(width):
            grid[0, row * width + column] = column - (width - 1) / 2
            grid[1, row * width + column] = row - (height - 1) / 2
    weights, taps = np.empty((2, 4, size), np.float32), np.empty((size, 4), np.float32)
    return grid, projected, np.empty(size, np.int32), weights, taps


@inner
def warp(images, image, source_from_fixed, padded_mask, mask, overlap, buffers, warped, weight):  # type: ignore[no-untyped-def]
    """Sample a moving image at the pixels of the fixed frame: ``warped`` (c, h * w) and pixel weights (h * w,).

    ``images`` (n, c, rows, columns) have margins, ``image`` is an index, ``source_from_fixed`` (3, 3) the inverse pose.
    """
    _, channels, rows, columns = images.shape
    height, width = mask.shape
    source_height, source_width = rows - 2 * MARGIN, columns - 2 * MARGIN
    flat, flat_mask, flat_weight, row_stride = images.ravel(), padded_mask.ravel(), mask.ravel(), np.uintp(columns)
    half_x, half_y, near = (source_width - 1) / 2, (source_height - 1) / 2, 2 * np.spacing(_ONE)
    is_affine = source_from_fixed[2, 0] == 0.0 and source_from_fixed[2, 1] == 0.0
    grid, projected, index, weights, taps = buffers
    u, v = weights[0], weights[1]
    n_rows, first = index.size // width, (MARGIN - 1) * columns + MARGIN - 1
    x_row, y_row, depth_row = source_from_fixed[0], source_from_fixed[1], source_from_fixed[2]
    for top in range(0, height, n_rows):
        begin, end = top * width, min(top + n_rows, height) * width
        index = index[: end - begin]
        if is_affine:
            points, to_x, to_y = grid, _coefficients(x_row, top, half_x), _coefficients(y_row, top, half_y)
        else:
            _project(_coefficients(x_row, top, 0.0), _coefficients(y_row, top, 0.0), _coefficients(depth_row, top, 0.0),
                     grid, np.float32(half_x), np.float32(half_y), projected)  # fmt: skip
            points, to_x, to_y = projected, (_ONE, _ZERO, _ZERO), (_ZERO, _ONE, _ZERO)
        _interpolation_weights(points, to_x, to_y, np.float32(columns), np.float32(source_width + 1),
                               np.float32(source_height + 1), np.float32(source_width * near),
                               np.float32(source_height * near), index, u, v)  # fmt: skip
        for c in range(channels):
            _interpolate_columns(flat, (image * channels + c) * rows * columns + first, row_stride, index, v, taps)
            _interpolate_rows(taps, u, warped[c, begin:end])
        for k in range(begin, end):
            weight[k] = flat_weight[k]
        if overlap:
            _interpolate_columns(flat_mask, first, row_stride, index, v, taps)
            _interpolate_rows(taps, u, projected[0, : end - begin])
            _apply_mask(projected[0], weight[begin:end])


@inner
def _coefficients(matrix_row, top, half):  # type: ignore[no-untyped-def]
    """Coefficients (x, y, 1) of a coordinate for image rows that begin at ``top``, where the grid begins at row 0."""
    return np.float32(matrix_row[0]), np.float32(matrix_row[1]), np.float32(matrix_row[1] * top + matrix_row[2] + half)


@compiled_sum
def _apply_mask(warped_mask, weight):  # type: ignore[no-untyped-def]
    """Set the weight to zero where the warped mask of the moving image is at most one half."""
    for k in range(weight.size):
        weight[k] = weight[k] if warped_mask[k] > _HALF else _ZERO


@compiled_sum
def pair_moments(warped, goal, weight, out):  # type: ignore[no-untyped-def]
    """The six moments of each channel: warped and goal (c, size), weight (size,) -> out (c, 6)."""
    for c in range(warped.shape[0]):
        w = m = f = mm = mf = ff = 0.0
        for k in range(warped.shape[1]):
            wk, mk, fk = np.float64(weight[k]), np.float64(warped[c, k]), np.float64(goal[c, k])
            w += wk
            m += wk * mk
            f += wk * fk
            mm += wk * mk * mk
            mf += wk * mk * fk
            ff += wk * fk * fk
        out[c, 0], out[c, 1], out[c, 2], out[c, 3], out[c, 4], out[c, 5] = w, m, f, mm, mf, ff


@compiled
def _moments(  # type: ignore[no-untyped-def]
    images, fixed, padded_mask, mask, left, right, source_from_fixed, overlap, start, stop, out
):  # fmt: skip
    channels, size = fixed.shape[1], mask.size
    warped, weight = np.empty((channels, size), np.float32), np.empty(size, np.float32)
    buffers = make_warp_buffers(mask)
    for p in range(start, stop):
        warp(images, left[p], source_from_fixed[p], padded_mask, mask, overlap, buffers, warped, weight)
        pair_moments(warped, fixed[right[p]].reshape(channels, size), weight, out[p])


@compiled
def _energy_outside(images, left, poses, height, width, start, stop, out):  # type: ignore[no-untyped-def]
    channels, rows, columns = images.shape[1:]
    for p in range(start, stop):
        total = 0.0
        for c in range(channels):
            for row in range(MARGIN, rows - MARGIN):
                pixels = images[left[p], c, row, MARGIN : columns - MARGIN]
                total += _row_energy_outside(pixels, row - (rows - 1) / 2, poses[p], width / 2, height / 2)
        out[p] = total


@compiled_sum
def _row_energy_outside(pixels, y, pose, half_width, half_height):  # type: ignore[no-untyped-def]
    """Energy of the pixels of one row (w,) that a pose moves out of the frame; avoids the division by the depth."""
    x_start, y_start, depth = pose[0, 1] * y + pose[0, 2], pose[1, 1] * y + pose[1, 2], pose[2, 1] * y + 1.0
    total, middle = 0.0, (pixels.size - 1) / 2
    for column in range(pixels.size):
        x, value = column - middle, np.float64(pixels[column])
        scale = abs(pose[2, 0] * x + depth)
        is_outside = (abs(pose[0, 0] * x + x_start) > half_width * scale) | (
            abs(pose[1, 0] * x + y_start) > half_height * scale
        )
        total += value * value if is_outside else 0.0
    return total
