"""The paper's solver: gradient descent on poses from the identity, with a greedy choice of smoothing.

It is the reference that the search is compared with. From the identity it finds the right pose only within a basin of
some tens of degrees for most images.

A *problem* is a set of images to be aligned to one target. One image and a fixed target is the pairwise problem of the
invariant kernel (2.2); many images and a target that is their weighted mean is the invariant mean (2.3). Many problems
are solved in one batch.

Convention
----------
``tau`` is the paper's field written as a matrix, ``src_from_dst``: the value at pixel p is read at ``tau p``. Results
are poses, ``dst_from_src = inverse(tau)``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.groups import LieGroup, area_change, inverse, scaling, transform
from unpose.images import pixel_grid, sample, sample_with_gradient, smooth

__all__ = ["SMOOTHING_LEVELS", "Bounds", "Descent", "descend"]

SMOOTHING_LEVELS = (0.0, 1.0, 2.0, 4.0)
"""Standard deviations in pixels among which every step chooses greedily (section 5)."""

_TOLERANCE = 1e-4
"""A problem has converged when a step lowers its objective by less than this fraction."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of the poses of a descent.

    Parameters
    ----------
    max_shift : float
        Largest shift in pixels.
    max_scale : float, default 1.0
        Largest factor of scale; scales are between ``1 / max_scale`` and ``max_scale``.

    Examples
    --------
    >>> Bounds(4.0)
    Bounds(max_shift=4.0, max_scale=1.0)
    """

    max_shift: float
    max_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.max_shift >= 0:
            raise ValueError(f"max_shift must not be negative, got {self.max_shift}")
        if not self.max_scale >= 1:
            raise ValueError(f"max_scale must be at least 1, got {self.max_scale}")


@dataclass(frozen=True)
class Descent:
    """The result of a descent, for m images in p problems.

    Parameters
    ----------
    poses : Tensor of shape (m, 3, 3)
        Bring each image onto the target of its problem.
    targets : Tensor of shape (p, c, h, w)
        Targets.
    errors : Tensor of shape (m,)
        Squared distance of each image to its target, divided by the square root of its change of area.
    objective : Tensor of shape (n_steps + 1, p)
        The objective (2.3) before the first step and after each step.

    Examples
    --------
    >>> image = torch.zeros(1, 1, 9, 9)
    >>> image[0, 0, 3:6, 2:7] = 1.0
    >>> one = torch.zeros(1, dtype=torch.long), torch.ones(1)
    >>> from unpose.groups import parse
    >>> descend(image, *one, parse("se2"), targets=image, n_steps=2, bounds=Bounds(1.0)).objective.shape
    torch.Size([3, 1])
    """

    poses: Tensor
    targets: Tensor
    errors: Tensor
    objective: Tensor


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
    """Minimise ``sum_i W_i ||g * (v_i o tau_i - mu)||^2`` over the fields tau_i (Algorithm 1).

    Parameters
    ----------
    images : Tensor of shape (m, c, h, w)
        The images of all problems, problem after problem.
    problem : int Tensor of shape (m,)
        Index of the problem that each image belongs to, from 0 to p - 1.
    weights : Tensor of shape (m,)
        Weight of each image in its problem.
    group : LieGroup
        Group of the poses, not a projective one; a mirrored one only with ``start``.
    targets : Tensor of shape (p, c, h, w), optional
        Fixed targets; by default the target is the weighted mean (2.5) of the images at their current poses.
    start : Tensor of shape (m, 3, 3), optional
        Poses to start from; by default the identity, as published.
    n_steps : int
        Number of steps.
    bounds : Bounds
        Bounds of the poses.
    step : float, default 1.0
        Learning rate t. The paper gives step size 1 without units; here 1 is the step that solves a problem of one
        parameter and small residual: each gradient is divided by the energy of the smoothed image's derivative along
        that parameter, measured once before the descent.
    sigmas : tuple of float, default SMOOTHING_LEVELS
        Smoothing levels; each step uses, for each problem, the one whose step lowers the objective (2.3) most.
    watch : callable, optional
        Called before the first and after each step, with the number of steps and the targets.

    Returns
    -------
    Descent

    Notes
    -----
    A step that would raise the objective at every level is not taken, and the problem has converged. Where poses change
    area, the squared error is divided by the square root of that change, which makes it symmetric in the two images;
    and where the mean is free, the mean change of area is held at one, because otherwise shrinking everything would
    lower the objective.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> target = torch.zeros(1, 1, 15, 15)
    >>> target[0, 0, 4:11, 5:8] = target[0, 0, 9:11, 5:11] = 1.0
    >>> image, one = target.roll(1, dims=3), (torch.zeros(1, dtype=torch.long), torch.ones(1))
    >>> found = descend(image, *one, parse("translation"), targets=target, n_steps=20, bounds=Bounds(3.0))
    >>> (found.poses[0, :2, 2] - torch.tensor([-1.0, 0.0])).abs().max() < 0.1
    tensor(True)
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
            # Problems that have converged are left out: among all pairs most converge early.
            row = active[problem]
            part = torch.cumsum(active, 0)[problem[row]] - 1  # (m',) index among the active problems
            stack, share, goal = images[row], weights[row], None if fixed is None else fixed[active]
            moved, slopes = sample_with_gradient(stack, _source_points(tau[row], grid))
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
            progress = objective[active] - best[2] > _TOLERANCE * objective[active]
            tau = tau.index_put((row,), best_tau)
            target, objective = target.index_put((active,), best[0]), objective.index_put((active,), best[2])
            errors = errors.index_put((row,), best[1])
            active = active.index_put((active,), progress)
        history.append(objective)
        if watch is not None:
            watch(done, _crop(target, rows, columns))
    return Descent(inverse(tau), _crop(target, rows, columns), errors, torch.stack(history))


def _source_points(tau: Tensor, grid: Tensor) -> Tensor:
    """Points at which each field reads its pixels: (m, 3, 3) -> (m, h, w, 2)."""
    return transform(tau, grid.flatten(0, 1)).unflatten(1, grid.shape[:2])


def _evaluate(
    images: Tensor, tau: Tensor, problem: Tensor, weights: Tensor, targets: Tensor | None, grid: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the targets (p, c, h, w), the error of each image (m,) and the objective of each problem (p,) at tau."""
    moved = sample(images, _source_points(tau, grid))
    member = _membership(problem, weights)
    if targets is None:
        # The weighted mean (2.5) of each problem's images.
        targets = torch.einsum("pm,mchw->pchw", member / member.sum(1, keepdim=True), moved)
    errors = (moved - targets[problem]).square().sum((1, 2, 3)) * area_change(tau).abs().sqrt()
    return targets, errors, member @ errors


def _membership(problem: Tensor, weights: Tensor) -> Tensor:
    """The weights as a matrix (p, m); products with it sum in a fixed order on every device."""
    return torch.nn.functional.one_hot(problem).to(weights.dtype).T * weights


def _gradient(residual: Tensor, slopes: Tensor, tau: Tensor, sigma: float, group: LieGroup, grid: Tensor) -> Tensor:
    """Gradient of (2.7) in the coordinates of the group at tau, by the chain rule through the field: (m, dim)."""
    # With respect to the field: 2 g*g*(v o tau - mu) times d(v o tau)/d(tau), summed over channels.
    pull = 2 * smooth(smooth(residual, sigma), sigma)
    field = (pull[..., None] * slopes).sum(1)  # (m, h, w, 2)
    # With respect to (A, b): sums over the pixels p of field p^T and of field.
    linear = torch.einsum("mhwi,hwj->mij", field, grid)
    affine = torch.cat([linear, field.sum((1, 2))[..., None]], dim=-1)  # (m, 2, 3)
    # With respect to the coordinates: tau exp(xi) moves the point that p reads by A (xi p).
    local = tau[:, :2, :2].mT @ affine
    return torch.einsum("mij,kij->mk", local, group.generators[:, :2].to(local))


def _energies(images: Tensor, sigma: float, group: LieGroup, grid: Tensor) -> Tensor:
    """Twice the squared norm of the derivative of the smoothed images along each coordinate of the group: (m, dim)."""
    _, slopes = sample_with_gradient(smooth(images, sigma), grid[None])
    ones = torch.ones_like(grid[..., :1])
    velocity = torch.einsum("kij,hwj->khwi", group.generators[:, :2].to(grid), torch.cat([grid, ones], dim=-1))
    along = torch.einsum("mchwi,khwi->mkchw", slopes, velocity)
    energy = 2 * along.square().sum((2, 3, 4))
    return energy + torch.finfo(energy.dtype).tiny ** 0.5  # constant images have zero energy


def _margins(images: Tensor, bounds: Bounds) -> tuple[int, int]:
    """Rows and columns to pad on each side so that no content of these images can leave the frame.

    Two images that are pushed out of a finite frame are equal: a false optimum of the kernel. On a canvas that contains
    the images at every bounded pose it cannot occur.
    """
    height, width = images.shape[-2:]
    lit = (images != 0).any(1).any(0)  # (h, w)
    radii = pixel_grid((height, width), images.dtype, images.device).norm(dim=-1)[lit]
    reach = float(radii.max()) * bounds.max_scale + bounds.max_shift + 2 if len(radii) else 0.0
    return max(0, math.ceil(reach - height / 2)), max(0, math.ceil(reach - width / 2))


def _crop(images: Tensor, rows: int, columns: int) -> Tensor:
    """Remove the padding."""
    height, width = images.shape[-2:]
    return images[..., rows : height - rows, columns : width - columns]


def _bounded(tau: Tensor, bounds: Bounds) -> Tensor:
    """Project fields onto the bounds: first the singular values of the linear part, then the length of the shift."""
    left, scales, right = torch.linalg.svd(tau[:, :2, :2])
    linear = left * scales.clamp(1 / bounds.max_scale, bounds.max_scale)[:, None] @ right
    shift = tau[:, :2, 2:]
    length = shift.norm(dim=1, keepdim=True)
    shift = shift * (bounds.max_shift / length.clamp(min=1e-12)).clamp(max=1.0)
    return torch.cat([torch.cat([linear, shift], dim=-1), tau[:, 2:]], dim=1)


def _hold_area(tau: Tensor, problem: Tensor, weights: Tensor) -> Tensor:
    """Scale the fields of each problem so that the weighted mean of their log changes of area is zero."""
    member = _membership(problem, weights)
    area = member @ area_change(tau).abs().log() / member.sum(1)  # (p,)
    return tau @ scaling(torch.exp(-0.5 * area[problem]))
