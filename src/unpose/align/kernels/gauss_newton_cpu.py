"""Refinement on the CPU, compiled: the whole Gauss-Newton loop of a pair in one call, pair after pair.

The same algorithm as the batched version in :mod:`unpose.align.refine`, which remains the oracle and serves every other
device. Pairs that stand together and share their fixed image share its linearisation.
"""

import numpy as np
import torch
from torch import Tensor

from unpose.align.kernels.pixels_cpu import N_MOMENTS, Pixels, bench, normalised, summing, sums, warp
from unpose.compiled import compiled, in_threads


def refine(
    pixels: Pixels,
    moving: Tensor,
    fixed: Tensor,
    poses: Tensor,
    generators: Tensor,
    velocity: Tensor,
    *,
    contrast: int,
    unit: Tensor,
    pull: Tensor,
    bounds: tuple[float, float, float],
    at_rest: tuple[float, float],
    n_steps: int,
) -> tuple[Tensor, Tensor]:
    """Refine the poses (p, 3, 3) of pairs of numbers (p,): poses and whether they converged.

    generators (dim, 3, 3) and what they do to the pixels, velocity (dim, 2, h, w); unit and pull (dim,) as in
    :func:`unpose.align.refine.refine`; bounds on angle, shift and log scale; contrast is 0 none, 1 offset, 2 gain,
    3 affine.
    """
    found, converged = normalised(poses.double()).copy(), np.zeros(len(poses), np.bool_)
    left, right = moving.numpy(), fixed.numpy()
    algebra, speed = generators.double().numpy(), velocity.float().flatten(2).contiguous().numpy()
    units, pulls = unit.double().numpy(), pull.double().numpy()

    def run(start: int, stop: int) -> None:
        _refine(pixels.moving, pixels.fixed, pixels.inside, pixels.mask, left, right, algebra, speed, units, pulls,
                bounds, at_rest, contrast, n_steps, start, stop, found, converged)  # fmt: skip

    in_threads(run, len(left))
    return torch.from_numpy(found).to(poses), torch.from_numpy(converged)


@compiled
def _refine(  # type: ignore[no-untyped-def]
    images, fixed, inside, mask, left, right, algebra, speed, unit, pull, bounds, at_rest, contrast, n_steps,
            start, stop, poses, converged):  # fmt: skip
    channels, size, dim = fixed.shape[1], mask.size, len(algebra)
    moved, weight = np.empty((channels, size), np.float32), np.empty(size, np.float32)
    slope, force = np.empty((channels, 2, size), np.float32), np.empty((2, size), np.float32)
    table, level = np.empty((channels, N_MOMENTS)), np.empty((channels, 2))
    normal, system, prior = np.empty((dim, dim)), np.empty((dim, dim)), np.empty(dim)
    xi, drift, trial_drift = np.empty(dim), np.empty(dim), np.empty(dim)
    gradient, trial_gradient, trial = np.empty(dim), np.empty(dim), np.empty((3, 3))
    tools = bench(mask)
    everything, stiffness, linearised = np.float64(mask.sum()), 0.0, -1
    for p in range(start, stop):
        goal = fixed[right[p]].reshape(channels, size)
        if right[p] != linearised:
            linearised = right[p]
            _slopes(fixed[linearised], slope)
            _normal(slope, speed, mask.ravel(), normal)
            stiffness = 0.0
            for d in range(dim):
                stiffness = max(stiffness, normal[d, d] / unit[d] ** 2)
        drift[:], damping, pose = 0.0, 1e-3, poses[p]
        for d in range(dim):
            prior[d] = pull[d] * unit[d] ** 2 * stiffness
        error = _error(images, left[p], _inverse(pose), goal, slope, speed, inside, mask, contrast, everything,
                       tools, moved, weight, force, table, level, gradient) / _growth(pose)  # fmt: skip
        for _ in range(n_steps):
            system[:] = normal
            for d in range(dim):
                system[d, d] += prior[d] + damping * stiffness * unit[d] ** 2 + 1e-12
                xi[d] = gradient[d] + prior[d] * drift[d]
            if not _solve(system, xi):
                break
            _moved(algebra, xi, pose, trial)  # tau exp(-xi), seen from the other side
            trial_error = _error(images, left[p], _inverse(trial), goal, slope, speed, inside, mask, contrast,
                                 everything, tools, moved, weight, force, table, level, trial_gradient)  # fmt: skip
            trial_error /= _growth(trial)
            largest = 0.0
            for d in range(dim):
                trial_drift[d] = drift[d] - xi[d]
                trial_error += prior[d] * trial_drift[d] ** 2
                largest = max(largest, abs(xi[d] * unit[d]))
            better = trial_error <= error and _within(trial, bounds)
            done = largest < at_rest[0] or (better and error - trial_error <= at_rest[1] * error)
            if better:
                pose[:], drift[:], gradient[:] = trial, trial_drift, trial_gradient
                error = trial_error
            damping = min(max(damping * (0.3 if better else 10.0), 1e-6), 1e3)
            if done:
                converged[p] = True
                break


@compiled
def _error(  # type: ignore[no-untyped-def]
    images, number, tau, goal, slope, speed, inside, mask, contrast, everything, tools, moved, weight, force,
           table, level, gradient):  # fmt: skip
    """The weighted squared error at a pose with inverse tau, and half its gradient (dim,)."""
    channels = len(goal)
    overlap = contrast == 1 or contrast == 3
    warp(images, number, tau, inside, mask, overlap, tools, moved, weight)
    gain = 1.0
    level[:] = 0.0
    if contrast != 0:
        sums(moved, goal, weight, table)
        product = energy = 0.0
        for c in range(channels):
            total = max(table[c, 0], 1e-12)
            if overlap:
                level[c, 0], level[c, 1] = table[c, 1] / total, table[c, 2] / total
            product += table[c, 4] - total * level[c, 0] * level[c, 1]
            energy += table[c, 3] - total * level[c, 0] ** 2
        if contrast != 1:
            gain = min(max(product / max(energy, 1e-20), 0.05), 20.0)
    squared = 0.0
    for c in range(channels):
        squared += _residuals(moved[c], goal[c], slope[c], weight, np.float32(gain), np.float32(level[c, 0]),
                              np.float32(level[c, 1]), force, c == 0)  # fmt: skip
    for d in range(len(gradient)):
        gradient[d] = _along(force, speed[d])
    return squared / max(np.float64(np.sum(weight)), 1.0) * everything if overlap else squared


@summing
def _residuals(moved, goal, slope, weight, gain, level, offset, force, first):  # type: ignore[no-untyped-def]
    """Add one channel's weighted residual times slopes to ``force`` (2, size); its squared error is returned."""
    squared = 0.0
    for k in range(moved.size):
        residual = gain * (moved[k] - level) + offset - goal[k]
        weighted = weight[k] * residual
        squared += np.float64(weighted * residual)
        moved[k] = weighted
    if first:
        for k in range(moved.size):
            force[0, k], force[1, k] = moved[k] * slope[0, k], moved[k] * slope[1, k]
    else:
        for k in range(moved.size):
            force[0, k] += moved[k] * slope[0, k]
            force[1, k] += moved[k] * slope[1, k]
    return squared


@summing
def _along(force, speed):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(force.shape[1]):
        total += np.float64(force[0, k] * speed[0, k] + force[1, k] * speed[1, k])
    return total


@compiled
def _slopes(image, out):  # type: ignore[no-untyped-def]
    """Central differences, the slope of Keys' kernel on a pixel centre: (c, h, w) into (c, 2, h * w)."""
    channels, height, width = image.shape
    out[:] = 0
    half = np.float32(0.5)
    for c in range(channels):
        for row in range(height):
            for column in range(width):
                k = row * width + column
                if 0 < column < width - 1:
                    out[c, 0, k] = (image[c, row, column + 1] - image[c, row, column - 1]) * half
                if 0 < row < height - 1:
                    out[c, 1, k] = (image[c, row + 1, column] - image[c, row - 1, column]) * half


@summing
def _weighted_product(sx, sy, weight, one, two):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(weight.size):
        first, second = sx[k] * one[0, k] + sy[k] * one[1, k], sx[k] * two[0, k] + sy[k] * two[1, k]
        total += np.float64(weight[k] * first * second)
    return total


@compiled
def _normal(slope, speed, weight, out):  # type: ignore[no-untyped-def]
    """The normal matrix (dim, dim) of the fixed image."""
    dim = len(speed)
    for a in range(dim):
        for b in range(a, dim):
            total = 0.0
            for c in range(len(slope)):
                total += _weighted_product(slope[c, 0], slope[c, 1], weight, speed[a], speed[b])
            out[a, b] = out[b, a] = total


@compiled
def _solve(system, right):  # type: ignore[no-untyped-def]
    """Cholesky in place; the solution replaces the right side. False where the matrix is not positive."""
    dim = len(right)
    for i in range(dim):
        for j in range(i + 1):
            total = system[i, j]
            for k in range(j):
                total -= system[i, k] * system[j, k]
            if i == j:
                if not total > 0.0:
                    return False
                system[i, i] = np.sqrt(total)
            else:
                system[i, j] = total / system[j, j]
    for i in range(dim):
        for k in range(i):
            right[i] -= system[i, k] * right[k]
        right[i] /= system[i, i]
    for i in range(dim - 1, -1, -1):
        for k in range(i + 1, dim):
            right[i] -= system[k, i] * right[k]
        right[i] /= system[i, i]
    return True


@compiled
def _moved(algebra, xi, pose, out):  # type: ignore[no-untyped-def]
    """``exp(xi) pose`` with a last entry of one: the exponential halved until small, a short series, squared back."""
    matrix, power = np.zeros((3, 3)), np.empty((3, 3))
    for d in range(len(xi)):
        for i in range(3):
            for j in range(3):
                matrix[i, j] += xi[d] * algebra[d, i, j]
    largest, halvings = 0.0, 0
    for i in range(3):
        for j in range(3):
            largest = max(largest, abs(matrix[i, j]))
    while largest > 0.1 and halvings < 60:
        largest, halvings = largest / 2, halvings + 1
    share = 0.5**halvings
    out[:] = np.eye(3)
    for n in range(8, 0, -1):
        _product(matrix, out, share / n, power)
        out[:] = power
        for i in range(3):
            out[i, i] += 1.0
    for _ in range(halvings):
        _product(out, out, 1.0, power)
        out[:] = power
    power[:] = out
    _product(power, pose, 1.0, out)
    out /= out[2, 2]


@compiled
def _product(one, two, factor, out):  # type: ignore[no-untyped-def]
    for i in range(3):
        for j in range(3):
            out[i, j] = factor * (one[i, 0] * two[0, j] + one[i, 1] * two[1, j] + one[i, 2] * two[2, j])


@compiled
def _inverse(pose):  # type: ignore[no-untyped-def]
    """The inverse with a last entry of one: the adjugate, up to the factor that homographies do not have."""
    out = np.empty((3, 3))
    for i in range(3):
        for j in range(3):
            a, b, c, d = (i + 1) % 3, (i + 2) % 3, (j + 1) % 3, (j + 2) % 3
            out[j, i] = pose[a, c] * pose[b, d] - pose[a, d] * pose[b, c]
    out /= out[2, 2]
    return out


@compiled
def _area(pose):  # type: ignore[no-untyped-def]
    """How much a pose with a last entry of one multiplies area at the centre."""
    return (
        pose[0, 0] * (pose[1, 1] - pose[1, 2] * pose[2, 1])
        - pose[0, 1] * (pose[1, 0] - pose[1, 2] * pose[2, 0])
        + pose[0, 2] * (pose[1, 0] * pose[2, 1] - pose[1, 1] * pose[2, 0])
    )


@compiled
def _growth(pose):  # type: ignore[no-untyped-def]
    return np.sqrt(abs(_area(pose)))


@compiled
def _within(pose, bounds):  # type: ignore[no-untyped-def]
    """Whether a pose keeps the bounds; the angle of a mirrored pose is that of the turn after the mirror."""
    area = _area(pose)
    flip = -1.0 if area < 0 else 1.0
    angle = abs(np.arctan2(pose[0, 1] - flip * pose[1, 0], flip * pose[0, 0] + pose[1, 1]))
    shift, slack = np.hypot(pose[0, 2], pose[1, 2]), 1 + 1e-5
    return (
        angle <= bounds[0] * slack and shift <= bounds[1] * slack and abs(0.5 * np.log(abs(area))) <= bounds[2] + 1e-5
    )
