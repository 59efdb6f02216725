"""The pixel loops of refinement and measurement on the CPU, compiled: one pass per pair, nothing in between in memory.

The same sums as the plain versions in :mod:`unpose.align.photometry` and :mod:`unpose.align.refine`, which remain the
oracle and serve every other device. Each pair is summed by one thread in a fixed order, in double precision.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from unpose.groups import inverse
from unpose.images.keys_cpu import MARGIN, compiled, dot, in_threads, inlined, padded, split, weights

N_MOMENTS = 6
# Sums over one pair's pixels may be taken in any order the vector unit likes, always the same one.
_summing = numba.njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")


def moments(moving: Tensor, fixed: Tensor, poses: Tensor, mask: Tensor, *, overlap: bool) -> Tensor:
    """Per pair and channel the sums of w, w m, w f, w m m, w m f, w f f: (p, c, 6) float64."""
    pixels, goal, tau, inside, area = _arrays(moving, fixed, poses, mask)
    out = np.zeros((len(goal), goal.shape[1], N_MOMENTS))
    in_threads(lambda start, stop: _moments(pixels, goal, tau, inside, area, overlap, start, stop, out), len(goal))
    return torch.from_numpy(out)


def energy_outside(images: Tensor, poses: Tensor, shape: tuple[int, int]) -> Tensor:
    """Energy of the source pixels that a pose carries out of a frame of this shape, (p,) float64."""
    pixels, matrices = images.contiguous().numpy(), poses.double().contiguous().numpy()
    out = np.zeros(len(pixels))
    in_threads(lambda start, stop: _energy_outside(pixels, matrices, *shape, start, stop, out), len(pixels))
    return torch.from_numpy(out)


class Linearised:
    """Squared error and half its gradient at any poses, for pairs whose images stay the same.

    moving, fixed (p, c, h, w); slopes (p, c, 2, h, w) of the fixed images; velocity (dim, 2, h, w) of the coordinates;
    contrast is 0 none, 1 offset, 2 gain, 3 affine.
    """

    def __init__(
        self, moving: Tensor, fixed: Tensor, slopes: Tensor, velocity: Tensor, mask: Tensor, contrast: int
    ) -> None:
        self._pixels, self._fixed = padded(moving), fixed.contiguous().numpy()
        self._slopes, self._velocity = slopes.contiguous().numpy(), velocity.contiguous().numpy()
        self._inside, self._mask = padded(mask[None, None]), mask.contiguous().numpy()
        self._contrast = contrast

    def __call__(self, poses: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """At these poses (q, 3, 3) of some of the pairs (q,): error (q,) and half gradient (q, dim)."""
        error, gradient = np.zeros(len(pairs)), np.zeros((len(pairs), len(self._velocity)))
        tau, chosen = _normalised(poses), pairs.numpy()

        def run(start: int, stop: int) -> None:
            _linearise(self._pixels, self._fixed, self._slopes, self._velocity, tau, chosen, self._inside, self._mask,
                       self._contrast, start, stop, error, gradient)  # fmt: skip

        in_threads(run, len(pairs))
        return torch.from_numpy(error).to(poses), torch.from_numpy(gradient).to(poses)


def _normalised(poses: Tensor) -> np.ndarray:
    tau = inverse(poses.double())
    return (tau / tau[:, 2:, 2:]).contiguous().numpy()


def _arrays(moving: Tensor, fixed: Tensor, poses: Tensor, mask: Tensor) -> tuple[np.ndarray, ...]:
    return (padded(moving), fixed.contiguous().numpy(), _normalised(poses), padded(mask[None, None]),
            mask.contiguous().numpy())  # fmt: skip


@inlined
def _place(tau, x, y):  # type: ignore[no-untyped-def]
    """Where a field reads the pixel at (x, y); what lies behind the camera is far away."""
    if tau[2, 0] == 0.0 and tau[2, 1] == 0.0:
        return tau[0, 0] * x + tau[0, 1] * y + tau[0, 2], tau[1, 0] * x + tau[1, 1] * y + tau[1, 2]
    depth = tau[2, 0] * x + tau[2, 1] * y + 1.0
    if depth <= 1e-3:
        return 1e6, 1e6
    return (tau[0, 0] * x + tau[0, 1] * y + tau[0, 2]) / depth, (tau[1, 0] * x + tau[1, 1] * y + tau[1, 2]) / depth


@inlined
def _value(flat, at, line, u, v):  # type: ignore[no-untyped-def]
    return (
        dot(flat, at, u) * v[0]
        + dot(flat, at + line, u) * v[1]
        + dot(flat, at + line + line, u) * v[2]
        + dot(flat, at + line + line + line, u) * v[3]
    )


@compiled
def _warp(pixels, tau, inside, mask, overlap, i, moved, weight):  # type: ignore[no-untyped-def]
    """One moving image into (c, h * w) and the weights into (h * w,)."""
    _, channels, rows, columns = pixels.shape
    height, width = mask.shape
    flat, known, one, line = pixels.ravel(), inside.ravel(), pixels.dtype.type(1), np.uintp(columns)
    own_height, own_width = rows - 2 * MARGIN, columns - 2 * MARGIN
    half_x, half_y = pixels.dtype.type((own_width - 1) / 2), pixels.dtype.type((own_height - 1) / 2)
    near_x, near_y = (
        pixels.dtype.type(2 * own_width * np.spacing(one)),
        pixels.dtype.type(2 * own_height * np.spacing(one)),
    )
    half = pixels.dtype.type(0.5)
    for row in range(height):
        for column in range(width):
            k = row * width + column
            px, py = _place(tau, column - (width - 1) / 2, row - (height - 1) / 2)
            x, tx = split(pixels.dtype.type(px) + half_x, own_width, one, near_x)
            y, ty = split(pixels.dtype.type(py) + half_y, own_height, one, near_y)
            weight[k] = mask[row, column]
            if x < 0 or y < 0:
                for c in range(channels):
                    moved[c, k] = 0
                if overlap:
                    weight[k] = 0
                continue
            u, v = weights(tx, one), weights(ty, one)
            for c in range(channels):
                at = np.uintp(((i * channels + c) * rows + y) * columns + x)
                moved[c, k] = _value(flat, at, line, u, v)
            if overlap and _value(known, np.uintp(y * columns + x), line, u, v) <= half:
                weight[k] = 0


@_summing
def _sums(moved, goal, weight, out):  # type: ignore[no-untyped-def]
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


@_summing
def _residuals(moved, goal, slope, weight, gain, level, offset, pull, first):  # type: ignore[no-untyped-def]
    """Add one channel's weighted residual times slopes to ``pull`` (2, size); its squared error is returned."""
    squared = 0.0
    for k in range(moved.size):
        residual = gain * (moved[k] - level) + offset - goal[k]
        weighted = weight[k] * residual
        squared += np.float64(weighted * residual)
        if first:
            pull[0, k] = weighted * slope[0, k]
            pull[1, k] = weighted * slope[1, k]
        else:
            pull[0, k] += weighted * slope[0, k]
            pull[1, k] += weighted * slope[1, k]
    return squared


@_summing
def _along(pull, speed):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(pull.shape[1]):
        total += np.float64(pull[0, k] * speed[0, k] + pull[1, k] * speed[1, k])
    return total


@compiled
def _moments(pixels, fixed, tau, inside, mask, overlap, start, stop, out):  # type: ignore[no-untyped-def]
    channels, size = fixed.shape[1], mask.size
    moved, weight = np.empty((channels, size), pixels.dtype), np.empty(size, pixels.dtype)
    for i in range(start, stop):
        _warp(pixels, tau[i], inside, mask, overlap, i, moved, weight)
        _sums(moved, fixed[i].reshape(channels, size), weight, out[i])


@compiled
def _linearise(pixels, fixed, slopes, velocity, tau, chosen, inside, mask, contrast, start, stop, error, gradient):  # type: ignore[no-untyped-def]
    channels, size, dim, real = fixed.shape[1], mask.size, velocity.shape[0], pixels.dtype.type
    moved, weight = np.empty((channels, size), pixels.dtype), np.empty(size, pixels.dtype)
    sums, level = np.empty((channels, N_MOMENTS)), np.empty((channels, 2))
    pull = np.empty((2, size), pixels.dtype)
    speed = velocity.reshape(dim, 2, size)
    overlap = contrast == 1 or contrast == 3
    everything = mask.sum()
    for q in range(start, stop):
        i = chosen[q]
        _warp(pixels, tau[q], inside, mask, overlap, i, moved, weight)
        goal, slope = fixed[i].reshape(channels, size), slopes[i].reshape(channels, 2, size)
        gain = 1.0
        level[:] = 0.0
        if contrast != 0:
            _sums(moved, goal, weight, sums)
            product = energy = 0.0
            for c in range(channels):
                total = max(sums[c, 0], 1e-12)
                if overlap:
                    level[c, 0], level[c, 1] = sums[c, 1] / total, sums[c, 2] / total
                product += sums[c, 4] - total * level[c, 0] * level[c, 1]
                energy += sums[c, 3] - total * level[c, 0] ** 2
            if contrast != 1:
                gain = min(max(product / max(energy, 1e-20), 0.05), 20.0)
        squared = 0.0
        for c in range(channels):
            squared += _residuals(
                moved[c], goal[c], slope[c], weight, real(gain), real(level[c, 0]), real(level[c, 1]), pull, c == 0
            )
        error[q] = squared / max(np.sum(weight), 1.0) * everything if overlap else squared
        for d in range(dim):
            gradient[q, d] = _along(pull, speed[d])


@compiled
def _energy_outside(pixels, poses, height, width, start, stop, out):  # type: ignore[no-untyped-def]
    channels, rows, columns = pixels.shape[1:]
    for i in range(start, stop):
        pose, total = poses[i], 0.0
        for row in range(rows):
            for column in range(columns):
                energy = 0.0
                for c in range(channels):
                    energy += np.float64(pixels[i, c, row, column]) ** 2
                if energy > 0.0:
                    x, y = column - (columns - 1) / 2, row - (rows - 1) / 2
                    depth = pose[2, 0] * x + pose[2, 1] * y + pose[2, 2]
                    there_x = (pose[0, 0] * x + pose[0, 1] * y + pose[0, 2]) / depth
                    there_y = (pose[1, 0] * x + pose[1, 1] * y + pose[1, 2]) / depth
                    if abs(there_x) > width / 2 or abs(there_y) > height / 2:
                        total += energy
        out[i] = total
