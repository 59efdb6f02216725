"""The paper's solver: gradient descent on poses from the identity, with a greedy choice of smoothing.

It is the honest reference of the fast engine, not a rival to it: from the identity it finds the right pose only within
its basin, some tens of degrees for most pictures.

A *problem* is a set of images to be brought onto one target. One image and a fixed target is the pairwise problem
behind the invariant kernel (2.2); many images and a target that is their own weighted mean is the invariant mean (2.3).
Problems are solved side by side in one batch.

Convention
----------
``tau`` is the paper's field written as a matrix, ``src_from_dst``: the value at pixel p is read at ``tau p``. Results
are given as poses, ``dst_from_src = inverse(tau)``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.groups import LieGroup, area_change, inverse, scaling, transform
from unpose.images import pixel_grid, sample, sample_with_gradient, smooth

SMOOTHING_LEVELS = (0.0, 1.0, 2.0, 4.0)
"""Standard deviations in pixels among which every step chooses greedily (section 5)."""

_AT_REST = 1e-4
"""A problem whose objective falls by less than this fraction in a step has come to rest."""


@dataclass(frozen=True)
class Bounds:
    """How far a pose may go: a shift in pixels, and factors of scale between ``1 / max_scale`` and ``max_scale``."""

    max_shift: float
    max_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.max_shift >= 0:
            raise ValueError(f"max_shift must not be negative, got {self.max_shift}")
        if not self.max_scale >= 1:
            raise ValueError(f"max_scale must be at least 1, got {self.max_scale}")


@dataclass(frozen=True)
class Descent:
    """What a descent ends with, for m images in p problems."""

    poses: Tensor  # (m, 3, 3) dst_from_src
    targets: Tensor  # (p, c, h, w)
    errors: Tensor  # (m,) squared distance of each image to its target, over the root of its change of area
    objective: Tensor  # (steps + 1, p): (2.3) before the first step and after each


def descend(
    images: Tensor,
    problem: Tensor,
    weights: Tensor,
    group: LieGroup,
    *,
    targets: Tensor | None = None,
    start: Tensor | None = None,
    n_steps: int,
    bounds: Bounds,
    step: float = 1.0,
    sigmas: tuple[float, ...] = SMOOTHING_LEVELS,
    watch: Callable[[int, Tensor], None] | None = None,
) -> Descent:
    """Minimise ``sum_i W_i ||g * (v_i o tau_i - mu)||^2`` over the fields (Algorithm 1).

    Parameters
    ----------
    images : (m, c, h, w), the images of all problems one after the other.
    problem : (m,) index of the problem each image belongs to, from 0 to p - 1.
    weights : (m,) weight of each image in its problem.
    targets : (p, c, h, w) fixed targets, or None: the target is the weighted mean (2.5) of the images as they stand.
    start : (m, 3, 3) poses to start from; the identity, as published, by default.
    step : learning rate t. The paper gives step size 1 without units; here one is the step that solves a problem of
        one parameter and small residual: each gradient is divided by the energy of the smoothed image's derivative
        along that parameter, measured once, before the descent.
    sigmas : smoothing levels; each step takes, for each problem, the one whose step lowers the objective (2.3) most.
    watch : called with the number of steps done and the targets.

    Notes
    -----
    A step that would raise the objective at every level is not taken, and the problem rests. Where poses change area
    the squared error is divided by the square root of that change, which makes it the same whether one side grows or
    the other shrinks, and where the mean is free the mean change of area is held at one: otherwise shrinking
    everything would win.
    """
    if group.is_projective or (group.mirrored and start is None):
        raise ValueError(f"the published descent supports affine groups without mirror, not {group}")
    rows, columns = _margins(images if targets is None else torch.cat([images, targets]), bounds)
    padding = (columns, columns, rows, rows)
    images = torch.nn.functional.pad(images, padding)
    fixed = None if targets is None else torch.nn.functional.pad(targets, padding)
    grid = pixel_grid((images.shape[-2], images.shape[-1]), images.dtype, images.device)  # (h, w, 2)
    energies = [_energies(images, sigma, group, grid) for sigma in sigmas]
    identity = torch.eye(3, dtype=images.dtype, device=images.device).repeat(len(images), 1, 1)
    tau = identity if start is None else inverse(start.to(identity))
    target, errors, objective = _evaluate(images, tau, problem, weights, fixed, grid)
    history = [objective]
    if watch is not None:
        watch(0, _crop(target, rows, columns))
    active = torch.ones_like(objective, dtype=torch.bool)
    for done in range(1, n_steps + 1):
        if active.any():
            # Problems at rest take no part: among all pairs most come to rest early.
            row = active[problem]
            part = torch.cumsum(active, 0)[problem[row]] - 1  # (m',) the problems still moving, numbered anew
            stack, share, goal = images[row], weights[row], None if fixed is None else fixed[active]
            moved, slopes = sample_with_gradient(stack, _read(tau[row], grid))
            best_tau, best = tau[row], (target[active], errors[row], objective[active])
            for sigma, energy in zip(sigmas, energies, strict=True):
                gradient = _gradient(moved - target[active][part], slopes, tau[row], sigma, group, grid)
                trial_tau = _bounded(tau[row] @ group.exp(-step * gradient / energy[row]), bounds)
                if goal is None and not group.is_isometric:
                    trial_tau = _hold_area(trial_tau, part, share)
                trial = _evaluate(stack, trial_tau, part, share, goal, grid)
                better = trial[2] < best[2]
                best_tau = torch.where(better[part, None, None], trial_tau, best_tau)
                best = (
                    torch.where(better[:, None, None, None], trial[0], best[0]),
                    torch.where(better[part], trial[1], best[1]),
                    torch.where(better, trial[2], best[2]),
                )
            progress = objective[active] - best[2] > _AT_REST * objective[active]
            tau = tau.index_put((row,), best_tau)
            target, objective = target.index_put((active,), best[0]), objective.index_put((active,), best[2])
            errors = errors.index_put((row,), best[1])
            active = active.index_put((active,), progress)
        history.append(objective)
        if watch is not None:
            watch(done, _crop(target, rows, columns))
    return Descent(inverse(tau), _crop(target, rows, columns), errors, torch.stack(history))


def _read(tau: Tensor, grid: Tensor) -> Tensor:
    """Where each field reads its pixels: (m, 3, 3) -> (m, h, w, 2)."""
    return transform(tau, grid.flatten(0, 1)).unflatten(1, grid.shape[:2])


def _evaluate(
    images: Tensor, tau: Tensor, problem: Tensor, weights: Tensor, targets: Tensor | None, grid: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The targets (p, c, h, w), each image's error (m,) and each problem's objective (p,) at these fields."""
    moved = sample(images, _read(tau, grid))
    member = _membership(problem, weights)
    if targets is None:
        # The weighted mean (2.5) of each problem's images.
        targets = torch.einsum("pm,mchw->pchw", member / member.sum(1, keepdim=True), moved)
    errors = (moved - targets[problem]).square().sum((1, 2, 3)) * area_change(tau).abs().sqrt()
    return targets, errors, member @ errors


def _membership(problem: Tensor, weights: Tensor) -> Tensor:
    """The weights spread over problems, (p, m); products with it add up in a fixed order on every device."""
    return torch.nn.functional.one_hot(problem).to(weights.dtype).T * weights


def _gradient(residual: Tensor, slopes: Tensor, tau: Tensor, sigma: float, group: LieGroup, grid: Tensor) -> Tensor:
    """Gradient of (2.7) in the group's coordinates at tau, through the field: (m, dim)."""
    # In the field: 2 g*g*(v o tau - mu) times d(v o tau)/d(tau), summed over channels.
    pull = 2 * smooth(smooth(residual, sigma), sigma)
    field = (pull[..., None] * slopes).sum(1)  # (m, h, w, 2)
    # In (A, b): sums over the pixels p of field p^T and of field.
    linear = torch.einsum("mhwi,hwj->mij", field, grid)
    affine = torch.cat([linear, field.sum((1, 2))[..., None]], dim=-1)  # (m, 2, 3)
    # In the angle and its companions: tau exp(xi) moves the place that p reads by A (xi p).
    local = tau[:, :2, :2].mT @ affine
    return torch.einsum("mij,kij->mk", local, group.generators[:, :2].to(local))


def _energies(images: Tensor, sigma: float, group: LieGroup, grid: Tensor) -> Tensor:
    """Twice the squared norm of the smoothed image's derivative along each of the group's coordinates: (m, dim)."""
    _, slopes = sample_with_gradient(smooth(images, sigma), grid[None])
    ones = torch.ones_like(grid[..., :1])
    velocity = torch.einsum("kij,hwj->khwi", group.generators[:, :2].to(grid), torch.cat([grid, ones], dim=-1))
    along = torch.einsum("mchwi,khwi->mkchw", slopes, velocity)
    energy = 2 * along.square().sum((2, 3, 4))
    return energy + torch.finfo(energy.dtype).tiny ** 0.5  # a constant image has nothing to descend on


def _margins(images: Tensor, bounds: Bounds) -> tuple[int, int]:
    """Rows and columns to add on each side so that nothing in these images can leave the frame.

    Pushed out of a finite frame two images are equal: the kernel's false optimum. On a canvas that holds every bounded
    pose there is nothing to gain from leaving.
    """
    height, width = images.shape[-2:]
    lit = (images != 0).any(1).any(0)  # (h, w)
    radii = pixel_grid((height, width), images.dtype, images.device).norm(dim=-1)[lit]
    reach = float(radii.max()) * bounds.max_scale + bounds.max_shift + 2 if len(radii) else 0.0
    return max(0, math.ceil(reach - height / 2)), max(0, math.ceil(reach - width / 2))


def _crop(images: Tensor, rows: int, columns: int) -> Tensor:
    height, width = images.shape[-2:]
    return images[..., rows : height - rows, columns : width - columns]


def _bounded(tau: Tensor, bounds: Bounds) -> Tensor:
    """Bring fields back inside the bounds: singular values of the linear part, then the length of the shift."""
    left, scales, right = torch.linalg.svd(tau[:, :2, :2])
    linear = left * scales.clamp(1 / bounds.max_scale, bounds.max_scale)[:, None] @ right
    shift = tau[:, :2, 2:]
    length = shift.norm(dim=1, keepdim=True)
    shift = shift * (bounds.max_shift / length.clamp(min=1e-12)).clamp(max=1.0)
    return torch.cat([torch.cat([linear, shift], dim=-1), tau[:, 2:]], dim=1)


def _hold_area(tau: Tensor, problem: Tensor, weights: Tensor) -> Tensor:
    """Scale each problem's destination so that its weighted mean of log areas is zero."""
    member = _membership(problem, weights)
    area = member @ area_change(tau).abs().log() / member.sum(1)  # (p,)
    return tau @ scaling(torch.exp(-0.5 * area[problem]))
