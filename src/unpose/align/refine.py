"""The second stage: batched Gauss-Newton in the Lie algebra, inverse compositional, for any group with generators.

The moving image is warped by the pose at hand; the fixed image is linearised once, at rest. A step solves
``min over xi of sum w (m o tau - f o exp(xi))^2`` and updates ``tau <- tau exp(-xi)``, ``tau = inverse(pose)``. The
normal matrix depends on the fixed image alone, so a step costs one warp and ``dim`` inner products.
"""

import math

import torch
from torch import Tensor

from unpose.align import photometry
from unpose.groups import LieGroup, area_change
from unpose.images import pixel_grid, sample, source_points

STEPS = 12
SMALL = 0.02
"""Pixels: a step that moves no pixel of a typical object further has converged."""
AT_REST = 1e-3
"""A step that lowers the error by less than this fraction has converged."""


def refine(
    moving: Tensor,
    fixed: Tensor,
    poses: Tensor,
    group: LieGroup,
    *,
    contrast: str = "none",
    mask: Tensor | None = None,
    max_angle: float = math.pi,
    max_shift: float = math.inf,
    max_scale: float = math.inf,
    n_steps: int = STEPS,
    at_rest: tuple[float, float] = (SMALL, AT_REST),
) -> tuple[Tensor, Tensor]:
    """Refine the poses of pairs: (p, c, h, w) twice, (p, 3, 3) -> poses (p, 3, 3), converged (p,) bool.

    Affine and perspective coordinates are held near the start by a prior; a step that does not lower the error is
    halved by damping, and one that leaves the bounds is not taken.
    """
    height, width = fixed.shape[-2:]
    mask = torch.ones(height, width, dtype=fixed.dtype, device=fixed.device) if mask is None else mask
    grid = pixel_grid((height, width), fixed.dtype, fixed.device)
    slopes, speed = _slopes(fixed), velocity(group, grid)  # (p, c, 2, h, w), (dim, 2, h, w)
    normal = _normal(slopes, speed, mask)  # (p, dim, dim)

    def evaluate(poses: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        error, gradient = linearise(moving[pairs], fixed[pairs], slopes[pairs], speed, poses, contrast, mask)
        return error / area_change(poses).abs().sqrt(), gradient

    unit, pull = (scale.to(fixed) for scale in scales(group, (height, width)))
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
        trial = group.exp(xi) @ poses[active]  # tau exp(-xi), seen from the other side
        trial_drift = drift[active] - xi
        trial_error, trial_gradient = evaluate(trial, active)
        trial_error = trial_error + (prior[active] * trial_drift**2).sum(1)
        inside = _within(trial, max_angle, max_shift, max_scale)
        better = inside & (trial_error <= error[active])
        # At rest: a step too small to see, or one that gains next to nothing.
        small = (xi * unit).abs().amax(1) < at_rest[0]
        idle = better & (error[active] - trial_error <= at_rest[1] * error[active])
        taken = active[better]
        poses[taken], drift[taken] = trial[better], trial_drift[better]
        gradient[taken], error[taken] = trial_gradient[better], trial_error[better]
        damping[active] = torch.where(better, damping[active] * 0.3, damping[active] * 10).clamp(1e-6, 1e3)
        done = small | idle
        converged[active[done]] = True
        active = active[~done]
        if len(active) == 0:
            break
    return poses, converged


def scales(group: LieGroup, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """For each coordinate how far one step moves a pixel at a third of the frame, and its pull back to the start.

    The first lets damping treat all coordinates alike. (dim,) each.
    """
    return group.units(max(shape) / 3), group.priors


def linearise(
    moving: Tensor, fixed: Tensor, slopes: Tensor, speed: Tensor, poses: Tensor, contrast: str, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """The weighted squared error (p,) at these poses and half its gradient in the coordinates (p, dim)."""
    points = source_points(poses, (fixed.shape[-2], fixed.shape[-1]))
    moved = sample(moving, points)
    confined = photometry.uses_overlap(contrast)
    weight = photometry.shared(mask, points) if confined else mask.expand(len(fixed), 1, -1, -1)
    residual = photometry.matched(moved, fixed, weight, contrast) - fixed
    weighted = weight * residual
    error = (weighted * residual).sum((1, 2, 3))
    if confined:
        error = error / weight.sum((1, 2, 3)).clamp(min=1.0) * mask.sum()
    pull = (weighted[:, :, None] * slopes).sum(1)  # (p, 2, h, w)
    return error, pull.flatten(1) @ speed.flatten(1).T


def _slopes(fixed: Tensor) -> Tensor:
    """Derivatives along x and y at the pixels, (p, c, h, w) -> (p, c, 2, h, w)."""
    slopes = torch.zeros(*fixed.shape[:2], 2, *fixed.shape[2:], dtype=fixed.dtype, device=fixed.device)
    # The slope of Keys' kernel on a pixel centre is the central difference.
    slopes[:, :, 0, :, 1:-1] = (fixed[..., 2:] - fixed[..., :-2]) / 2
    slopes[:, :, 1, 1:-1, :] = (fixed[..., 2:, :] - fixed[..., :-2, :]) / 2
    return slopes


def velocity(group: LieGroup, grid: Tensor) -> Tensor:
    """What each coordinate does to a pixel at rest: (h, w, 2) -> (dim, 2, h, w)."""
    ones = torch.ones_like(grid[..., :1])
    moved = torch.einsum("kij,hwj->kihw", group.generators.to(grid), torch.cat([grid, ones], dim=-1))
    return moved[:, :2] - grid.movedim(-1, 0) * moved[:, 2:]  # projective: d(X / W) at W = 1 is dX - X dW


def _normal(slopes: Tensor, speed: Tensor, mask: Tensor) -> Tensor:
    """The normal matrices, (p, dim, dim): one product of the images' structure tensors with pairs of velocities."""
    x, y = slopes.unbind(2)
    tensor = torch.stack([(x * x).sum(1), 2 * (x * y).sum(1), (y * y).sum(1)], dim=1) * mask  # (p, 3, h, w)
    u, v = speed.unbind(1)  # (dim, h, w)
    cross = (u[:, None] * v + v[:, None] * u) / 2
    pairs = torch.stack([u[:, None] * u, cross, v[:, None] * v], dim=2)  # (dim, dim, 3, h, w)
    dim = len(speed)
    return (tensor.flatten(1) @ pairs.reshape(dim * dim, -1).T).reshape(-1, dim, dim)


def _within(poses: Tensor, max_angle: float, max_shift: float, max_scale: float) -> Tensor:
    """Which poses keep the bounds, (p,) bool; the angle of a mirrored pose is that of the turn after the mirror."""
    area = area_change(poses)
    scale = area.abs().sqrt()
    shift = (poses[:, :2, 2] / poses[:, 2:, 2]).norm(dim=1)
    flip = torch.where(area < 0, -1.0, 1.0)
    cos = flip * poses[:, 0, 0] + poses[:, 1, 1]
    sin = poses[:, 0, 1] - flip * poses[:, 1, 0]
    angle = torch.atan2(sin, cos).abs()
    slack = 1 + 1e-5
    return (
        (angle <= max_angle * slack) & (shift <= max_shift * slack) & (scale.log().abs() <= math.log(max_scale) + 1e-5)
    )
