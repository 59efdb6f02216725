"""The second stage of the search: Gauss-Newton refinement of poses in the Lie algebra, for many pairs at once.

The method is inverse compositional. The moving image is warped by the current pose; the fixed image is linearised
once. A step solves ``min over xi of sum w (m o tau - f o exp(xi))^2`` and updates ``tau <- tau exp(-xi)``, where
``tau = inverse(pose)``. The normal matrix depends on the fixed image alone, so a step costs one warp and ``dim`` inner
products. It works for every group with generators.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from unpose.align import photometry
from unpose.groups import LieGroup, area_change
from unpose.images import pixel_grid, sample, source_points

MAX_STEPS = 12


class PoseBounds(NamedTuple):
    """Bounds that refined poses must keep: radians, pixels, and a factor of scale."""

    max_angle: float = math.pi
    max_shift: float = math.inf
    max_scale: float = math.inf


class Tolerance(NamedTuple):
    """When a refinement has converged: the step is this small, or lowers the error by this little."""

    step: float = 0.02  # pixels that a step moves a typical object
    error: float = 1e-3  # fraction by which a step lowers the error


DEFAULT_TOLERANCE = Tolerance()
NO_BOUNDS = PoseBounds()


def refine(
    moving: Tensor,
    fixed: Tensor,
    poses: Tensor,
    group: LieGroup,
    *,
    contrast: str = "none",
    mask: Tensor | None = None,
    bounds: PoseBounds = NO_BOUNDS,
    n_steps: int = MAX_STEPS,
    tolerance: Tolerance = DEFAULT_TOLERANCE,
) -> tuple[Tensor, Tensor]:
    """Refine the poses of pairs of images.

    moving and fixed (p, c, h, w), poses (p, 3, 3), mask (h, w) -> poses (p, 3, 3) and converged (p,) bool.

    In groups that deform shapes, a prior holds the coordinates near the start. A step that does not lower the error,
    or that leaves the bounds, is not taken, and the damping is increased.
    """
    height, width = fixed.shape[-2:]
    mask = torch.ones(height, width, dtype=fixed.dtype, device=fixed.device) if mask is None else mask
    grid = pixel_grid((height, width), fixed.dtype, fixed.device)
    slopes, speed = _image_gradient(fixed), velocity(group, grid)  # (p, c, 2, h, w), (dim, 2, h, w)
    normal = _normal_matrix(slopes, speed, mask)  # (p, dim, dim)

    def evaluate(poses: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        error, gradient = linearise(moving[pairs], fixed[pairs], slopes[pairs], speed, poses, contrast, mask)
        return error / area_change(poses).abs().sqrt(), gradient

    unit, pull = step_units(group, (height, width)).to(fixed), group.priors.to(fixed)
    stiffness = normal.diagonal(dim1=1, dim2=2).mul(unit**-2).amax(1)  # (p,) per squared pixel
    prior = pull * unit**2 * stiffness[:, None]  # (p, dim)
    poses = poses.to(fixed, copy=True)
    drift = torch.zeros(len(fixed), group.dim, dtype=fixed.dtype, device=fixed.device)
    damping = torch.full_like(stiffness, 1e-3)
    converged = torch.zeros(len(fixed), dtype=torch.bool, device=fixed.device)
    active = torch.arange(len(fixed), device=fixed.device)
    error, gradient = evaluate(poses, active)
    for _ in range(n_steps):
        system = normal[active] + torch.diag_embed(
            prior[active] + (damping[active] * stiffness[active])[:, None] * unit**2 + 1e-12
        )
        xi = torch.linalg.solve(system, gradient[active] + prior[active] * drift[active])  # (a, dim)
        trial = group.exp(xi) @ poses[active]  # the inverse of tau exp(-xi)
        trial_drift = drift[active] - xi
        trial_error, trial_gradient = evaluate(trial, active)
        trial_error = trial_error + (prior[active] * trial_drift**2).sum(1)
        inside = _is_within(trial, bounds)
        better = inside & (trial_error <= error[active])
        is_small = (xi * unit).abs().amax(1) < tolerance.step
        gains_little = better & (error[active] - trial_error <= tolerance.error * error[active])
        taken = active[better]
        poses[taken], drift[taken] = trial[better], trial_drift[better]
        gradient[taken], error[taken] = trial_gradient[better], trial_error[better]
        damping[active] = torch.where(better, damping[active] * 0.3, damping[active] * 10).clamp(1e-6, 1e3)
        done = is_small | gains_little
        converged[active[done]] = True
        active = active[~done]
        if len(active) == 0:
            break
    return poses, converged


def step_units(group: LieGroup, shape: tuple[int, int]) -> Tensor:
    """How far a unit step along each coordinate moves a pixel at a third of the frame: (dim,) pixels.

    Damping and convergence are measured in these units, so that all coordinates are treated alike.
    """
    return group.units(max(shape) / 3)


def linearise(
    moving: Tensor, fixed: Tensor, slopes: Tensor, speed: Tensor, poses: Tensor, contrast: str, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the weighted squared error at these poses, (p,), and half its gradient in the coordinates, (p, dim)."""
    points = source_points(poses, (fixed.shape[-2], fixed.shape[-1]))
    moved = sample(moving, points)
    uses_overlap = photometry.uses_overlap(contrast)
    weight = photometry.overlap_of(mask, points) if uses_overlap else mask.expand(len(fixed), 1, -1, -1)
    residual = photometry.match_brightness(moved, fixed, weight, contrast) - fixed
    weighted = weight * residual
    error = (weighted * residual).sum((1, 2, 3))
    if uses_overlap:
        error = error / weight.sum((1, 2, 3)).clamp(min=1.0) * mask.sum()
    pull = (weighted[:, :, None] * slopes).sum(1)  # (p, 2, h, w)
    return error, pull.flatten(1) @ speed.flatten(1).T


def _image_gradient(fixed: Tensor) -> Tensor:
    """Derivatives of images along x and y at the pixels: (p, c, h, w) -> (p, c, 2, h, w)."""
    slopes = torch.zeros(*fixed.shape[:2], 2, *fixed.shape[2:], dtype=fixed.dtype, device=fixed.device)
    # At a pixel centre the derivative of Keys' interpolation is the central difference.
    slopes[:, :, 0, :, 1:-1] = (fixed[..., 2:] - fixed[..., :-2]) / 2
    slopes[:, :, 1, 1:-1, :] = (fixed[..., 2:, :] - fixed[..., :-2, :]) / 2
    return slopes


def velocity(group: LieGroup, grid: Tensor) -> Tensor:
    """Velocity of each pixel (h, w, 2) along each coordinate of the group, at the identity: (dim, 2, h, w)."""
    ones = torch.ones_like(grid[..., :1])
    moved = torch.einsum("kij,hwj->kihw", group.generators.to(grid), torch.cat([grid, ones], dim=-1))
    return moved[:, :2] - grid.movedim(-1, 0) * moved[:, 2:]  # projective: d(X / W) at W = 1 is dX - X dW


def _normal_matrix(slopes: Tensor, speed: Tensor, mask: Tensor) -> Tensor:
    """The normal matrices (p, dim, dim): one product of the images' structure tensors with pairs of velocities."""
    x, y = slopes.unbind(2)
    tensor = torch.stack([(x * x).sum(1), 2 * (x * y).sum(1), (y * y).sum(1)], dim=1) * mask  # (p, 3, h, w)
    u, v = speed.unbind(1)  # (dim, h, w)
    cross = (u[:, None] * v + v[:, None] * u) / 2
    pairs = torch.stack([u[:, None] * u, cross, v[:, None] * v], dim=2)  # (dim, dim, 3, h, w)
    dim = len(speed)
    return (tensor.flatten(1) @ pairs.reshape(dim * dim, -1).T).reshape(-1, dim, dim)


def _is_within(poses: Tensor, bounds: PoseBounds) -> Tensor:
    """Whether poses keep the bounds, (p,) bool; the angle of a mirrored pose is that of the turn after the mirror."""
    area = area_change(poses)
    scale = area.abs().sqrt()
    shift = (poses[:, :2, 2] / poses[:, 2:, 2]).norm(dim=1)
    flip = torch.where(area < 0, -1.0, 1.0)
    cos = flip * poses[:, 0, 0] + poses[:, 1, 1]
    sin = poses[:, 0, 1] - flip * poses[:, 1, 0]
    angle = torch.atan2(sin, cos).abs()
    slack = 1 + 1e-5
    return (
        (angle <= bounds.max_angle * slack)
        & (shift <= bounds.max_shift * slack)
        & (scale.log().abs() <= math.log(bounds.max_scale) + 1e-5)
    )
