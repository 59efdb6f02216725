"""Gauss-Newton refinement of poses on the CPU: the whole loop of a pair in one kernel, pair after pair.

The same algorithm as :func:`unpose.align.refine.refine`, which processes all pairs in a batch. Consecutive pairs with
the same fixed image share its linearisation: its gradient images and its normal matrix. One evaluation of a pose warps
the moving image, forms residuals with the fixed image, and takes ``dim`` inner products of residual times image
gradient with the velocity fields of the group's generators. Each pair is computed by one thread in a fixed order, so
that results do not depend on the number of threads.
"""

import numpy as np
import torch
from torch import Tensor

from unpose.align.kernels.pixels_cpu import (
    N_MOMENTS,
    Pixels,
    compiled_sum,
    make_warp_buffers,
    normalised,
    pair_moments,
    warp,
)
from unpose.compiled import compiled, in_threads, inner


def refine(
    pixels: Pixels,
    moving: Tensor,
    fixed: Tensor,
    poses: Tensor,
    generators: Tensor,
    velocity: Tensor,
    *,
    contrast: int,
    step_units: Tensor,
    priors: Tensor,
    bounds: tuple[float, float, float],
    tolerance: tuple[float, float],
    n_steps: int,
) -> tuple[Tensor, Tensor]:
    """Refine the poses (p, 3, 3) of pairs of indices (p,): poses (p, 3, 3) and converged (p,) bool.

    ``generators`` (dim, 3, 3) and the velocity of the pixels along them (dim, 2, h, w); ``step_units`` and ``priors``
    (dim,), ``tolerance`` (step, error) as in :mod:`unpose.align.refine`; ``bounds`` on angle, shift and log scale;
    ``contrast`` is 0 none, 1 offset, 2 gain, 3 affine.
    """
    refined, converged = normalised(poses.double()).copy(), np.zeros(len(poses), np.bool_)
    left, right = moving.numpy(), fixed.numpy()
    algebra, velocities = generators.double().numpy(), velocity.float().flatten(2).contiguous().numpy()
    units, prior_weights = step_units.double().numpy(), priors.double().numpy()

    def run(start: int, stop: int) -> None:
        _refine(pixels.moving, pixels.fixed, pixels.padded_mask, pixels.mask, left, right, algebra, velocities, units,
                prior_weights, bounds, tolerance, contrast, n_steps, start, stop, refined, converged)  # fmt: skip

    in_threads(run, len(left))
    return torch.from_numpy(refined).to(poses), torch.from_numpy(converged)


@compiled
def _refine(  # type: ignore[no-untyped-def]
    images, fixed, padded_mask, mask, left, right, algebra, velocities, units, prior_weights, bounds, tolerance,
    contrast, n_steps, start, stop, poses, converged
):  # fmt: skip
    """Refine the poses of the pairs ``start`` to ``stop`` in place."""
    channels, size, dim = fixed.shape[1], mask.size, len(algebra)
    # Scratch buffers of _evaluate: warped image, weights, residual times image gradient, moments, mean brightness.
    warped, weight = np.empty((channels, size), np.float32), np.empty(size, np.float32)
    force, moments, means = np.empty((2, size), np.float32), np.empty((channels, N_MOMENTS)), np.empty((channels, 2))
    buffers = make_warp_buffers(mask), warped, weight, force, moments, means
    image_gradient = np.empty((channels, 2, size), np.float32)
    normal, system, prior = np.empty((dim, dim)), np.empty((dim, dim)), np.empty(dim)
    xi, drift, trial_drift = np.empty(dim), np.empty(dim), np.empty(dim)
    gradient, trial_gradient, trial = np.empty(dim), np.empty(dim), np.empty((3, 3))
    total_weight, stiffness, linearised = np.float64(mask.sum()), 0.0, -1
    for p in range(start, stop):
        goal = fixed[right[p]].reshape(channels, size)
        if right[p] != linearised:
            linearised = right[p]
            _image_gradient(fixed[linearised], image_gradient)
            _normal_matrix(image_gradient, velocities, mask.ravel(), normal)
            stiffness = 0.0
            for d in range(dim):
                stiffness = max(stiffness, normal[d, d] / units[d] ** 2)
        damping, pose = 1e-3, poses[p]
        for d in range(dim):
            drift[d] = 0.0
            prior[d] = prior_weights[d] * units[d] ** 2 * stiffness
        error = _evaluate(images, left[p], pose, goal, image_gradient, velocities, padded_mask, mask, contrast,
                          total_weight, buffers, gradient)  # fmt: skip
        for _ in range(n_steps):
            _copy_matrix(normal, system)
            for d in range(dim):
                system[d, d] += prior[d] + damping * stiffness * units[d] ** 2 + 1e-12
                xi[d] = gradient[d] + prior[d] * drift[d]
            if not _solve(system, xi):
                break
            _exp_times_pose(algebra, xi, pose, trial)  # the inverse of tau exp(-xi), with tau = inverse(pose)
            trial_error = _evaluate(images, left[p], trial, goal, image_gradient, velocities, padded_mask, mask,
                                    contrast, total_weight, buffers, trial_gradient)  # fmt: skip
            largest_step = 0.0
            for d in range(dim):
                trial_drift[d] = drift[d] - xi[d]
                trial_error += prior[d] * trial_drift[d] ** 2
                largest_step = max(largest_step, abs(xi[d] * units[d]))
            is_better = trial_error <= error and _is_within(trial, bounds)
            is_done = largest_step < tolerance[0] or (is_better and error - trial_error <= tolerance[1] * error)
            if is_better:
                _copy_matrix(trial, pose)
                for d in range(dim):
                    drift[d], gradient[d] = trial_drift[d], trial_gradient[d]
                error = trial_error
            damping = min(max(damping * (0.3 if is_better else 10.0), 1e-6), 1e3)
            if is_done:
                converged[p] = True
                break


@inner
def _evaluate(  # type: ignore[no-untyped-def]
    images, image, pose, goal, image_gradient, velocities, padded_mask, mask, contrast, total_weight, buffers, gradient
):  # fmt: skip
    """Weighted squared error at a pose, divided by the square root of its change of area; half the gradient of the
    undivided error is written to ``gradient`` (dim,).

    goal (c, h * w), image_gradient (c, 2, h * w), velocities (dim, 2, h * w).
    """
    warp_buffers, warped, weight, force, moments, means = buffers
    channels = len(goal)
    overlap = contrast == 1 or contrast == 3
    warp(images, image, _inverse(pose), padded_mask, mask, overlap, warp_buffers, warped, weight)
    gain = 1.0
    for c in range(channels):
        means[c, 0] = means[c, 1] = 0.0
    if contrast != 0:
        pair_moments(warped, goal, weight, moments)
        product = energy = 0.0
        for c in range(channels):
            total = max(moments[c, 0], 1e-12)
            if overlap:
                means[c, 0], means[c, 1] = moments[c, 1] / total, moments[c, 2] / total
            product += moments[c, 4] - total * means[c, 0] * means[c, 1]
            energy += moments[c, 3] - total * means[c, 0] ** 2
        if contrast != 1:
            gain = min(max(product / max(energy, 1e-20), 0.05), 20.0)
    error = 0.0
    for c in range(channels):
        error += _residuals(warped[c], goal[c], image_gradient[c], weight, np.float32(gain), np.float32(means[c, 0]),
                            np.float32(means[c, 1]), force, c == 0)  # fmt: skip
    for d in range(len(gradient)):
        gradient[d] = _inner_product(force, velocities[d])
    if overlap:
        error = error / max(np.float64(np.sum(weight)), 1.0) * total_weight
    return error / np.sqrt(abs(_area_change(pose)))


@compiled_sum
def _residuals(warped, goal, image_gradient, weight, gain, mean, goal_mean, force, is_first):  # type: ignore[no-untyped-def]
    """Squared error of one channel; adds its weighted residual times the image gradient to ``force`` (2, size)."""
    squared = 0.0
    for k in range(warped.size):
        residual = gain * (warped[k] - mean) + goal_mean - goal[k]
        weighted = weight[k] * residual
        squared += np.float64(weighted * residual)
        warped[k] = weighted
    if is_first:
        for k in range(warped.size):
            force[0, k], force[1, k] = warped[k] * image_gradient[0, k], warped[k] * image_gradient[1, k]
    else:
        for k in range(warped.size):
            force[0, k] += warped[k] * image_gradient[0, k]
            force[1, k] += warped[k] * image_gradient[1, k]
    return squared


@compiled_sum
def _inner_product(force, velocity):  # type: ignore[no-untyped-def]
    """Sum over all pixels of the products of two vector fields (2, size)."""
    total = 0.0
    for k in range(force.shape[1]):
        total += np.float64(force[0, k] * velocity[0, k] + force[1, k] * velocity[1, k])
    return total


@inner
def _image_gradient(image, out):  # type: ignore[no-untyped-def]
    """Central differences, the derivative of Keys' interpolation at a pixel centre: (c, h, w) into (c, 2, h * w)."""
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


@compiled_sum
def _normal_entry(gradient_x, gradient_y, weight, a, b):  # type: ignore[no-untyped-def]
    """Weighted inner product of the derivatives of one channel along two velocity fields a, b (2, size)."""
    total = 0.0
    for k in range(weight.size):
        along_a = gradient_x[k] * a[0, k] + gradient_y[k] * a[1, k]
        along_b = gradient_x[k] * b[0, k] + gradient_y[k] * b[1, k]
        total += np.float64(weight[k] * along_a * along_b)
    return total


@inner
def _normal_matrix(image_gradient, velocities, weight, out):  # type: ignore[no-untyped-def]
    """Normal matrix (dim, dim) of the fixed image."""
    dim = len(velocities)
    for a in range(dim):
        for b in range(a, dim):
            total = 0.0
            for c in range(len(image_gradient)):
                total += _normal_entry(image_gradient[c, 0], image_gradient[c, 1], weight, velocities[a], velocities[b])
            out[a, b] = out[b, a] = total


@inner
def _solve(system, right):  # type: ignore[no-untyped-def]
    """Solve by Cholesky; the solution replaces ``right`` (dim,). False if the matrix is not positive definite."""
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


@inner
def _exp_times_pose(algebra, xi, pose, out):  # type: ignore[no-untyped-def]
    """``exp(xi) pose`` scaled to a last entry of one; the exponential by scaling and squaring, with eight terms."""
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
    scale = 0.5**halvings
    for i in range(3):
        for j in range(3):
            out[i, j] = 1.0 if i == j else 0.0
    for n in range(8, 0, -1):
        _matrix_product(matrix, out, scale / n, power)
        _copy_matrix(power, out)
        for i in range(3):
            out[i, i] += 1.0
    for _ in range(halvings):
        _matrix_product(out, out, 1.0, power)
        _copy_matrix(power, out)
    _copy_matrix(out, power)
    _matrix_product(power, pose, 1.0, out)
    _scale_to_last_entry(out)


@inner
def _copy_matrix(source, out):  # type: ignore[no-untyped-def]
    """Copy entry by entry: numba compiles the checks of shapes in ``out[:] = source`` for seconds."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = source[i, j]


@inner
def _scale_to_last_entry(pose):  # type: ignore[no-untyped-def]
    """Scale a homography in place to a last entry of one."""
    last = pose[2, 2]
    for i in range(3):
        for j in range(3):
            pose[i, j] /= last


@inner
def _matrix_product(a, b, factor, out):  # type: ignore[no-untyped-def]
    """``factor * a @ b`` of 3 x 3 matrices."""
    for i in range(3):
        for j in range(3):
            out[i, j] = factor * (a[i, 0] * b[0, j] + a[i, 1] * b[1, j] + a[i, 2] * b[2, j])


@inner
def _inverse(pose):  # type: ignore[no-untyped-def]
    """Inverse of a homography, scaled to a last entry of one: the adjugate, since a common factor does not matter."""
    out = np.empty((3, 3))
    for i in range(3):
        for j in range(3):
            a, b, c, d = (i + 1) % 3, (i + 2) % 3, (j + 1) % 3, (j + 2) % 3
            out[j, i] = pose[a, c] * pose[b, d] - pose[a, d] * pose[b, c]
    _scale_to_last_entry(out)
    return out


@inner
def _area_change(pose):  # type: ignore[no-untyped-def]
    """Factor by which a pose with a last entry of one multiplies areas at the centre; negative for mirrored poses."""
    return (
        pose[0, 0] * (pose[1, 1] - pose[1, 2] * pose[2, 1])
        - pose[0, 1] * (pose[1, 0] - pose[1, 2] * pose[2, 0])
        + pose[0, 2] * (pose[1, 0] * pose[2, 1] - pose[1, 1] * pose[2, 0])
    )


@inner
def _is_within(pose, bounds):  # type: ignore[no-untyped-def]
    """Whether a pose keeps the bounds; the angle of a mirrored pose is that of the turn after the mirror."""
    area = _area_change(pose)
    flip = -1.0 if area < 0 else 1.0
    angle = abs(np.arctan2(pose[0, 1] - flip * pose[1, 0], flip * pose[0, 0] + pose[1, 1]))
    shift, slack = np.hypot(pose[0, 2], pose[1, 2]), 1 + 1e-5
    return (
        angle <= bounds[0] * slack and shift <= bounds[1] * slack and abs(0.5 * np.log(abs(area))) <= bounds[2] + 1e-5
    )
