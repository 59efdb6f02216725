"""Our reading of the paper's solver: gradient descent on poses from the identity, with a greedy choice of smoothing.

The paper leaves the scale of a step, the smoothing levels and the number of steps open;
docs/benchmarks/invariant-attention.md says what we chose. It is the reference that the search is compared with. From
the identity it finds the right pose only within a basin of some tens of degrees for most images.

A *problem* is a set of images to be aligned to one target. One image and a fixed target is the pairwise problem of the
invariant kernel (2.2); many images and a target that is their weighted mean is the invariant mean (2.3). Many problems
are solved in one batch.

Convention
----------
``tau`` is the paper's field written as a matrix, ``src_from_dst``: the value at pixel p is read at ``tau p``. Results
are poses, ``dst_from_src = inverse(tau)``.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.groups import LieGroup, area_change, inverse, rotation, scaling, transform
from unpose.images import pixel_grid, sample, sample_with_gradient, smooth

__all__ = ["SMOOTHING_LEVELS", "Bounds", "Descent", "descend"]

SMOOTHING_LEVELS = (0.0, 1.0, 2.0, 4.0)
"""Standard deviations in pixels among which every step chooses greedily (section 5)."""

_TOLERANCE = 1e-4
"""A problem has converged when a step lowers its objective by less than this fraction."""

_BATCH = 24
"""Images that are moved together. Their fields, values and slopes then stay in the cache of a processor core."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of the poses of a descent.

    Parameters
    ----------
    max_shift : float
        Largest shift in pixels.
    max_scale : float, default 1.0
        Largest factor of scale; scales are between ``1 / max_scale`` and ``max_scale``.
    max_angle : float, default pi
        Largest rotation in radians, in either direction.

    Examples
    --------
    >>> Bounds(4.0).max_scale
    1.0
    """

    max_shift: float
    max_scale: float = 1.0
    max_angle: float = math.pi

    def __post_init__(self) -> None:
        if not self.max_angle >= 0:
            raise ValueError(f"max_angle must not be negative, got {self.max_angle}")
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
    poses = torch.eye(3, dtype=images.dtype, device=images.device).repeat(len(images), 1, 1) if start is None else start
    parts = [
        _descend_batch(
            images[rows], problem[rows] - first, weights[rows], group, inverse(poses[rows].to(images)),
            targets=None if targets is None else targets[first:last], n_steps=n_steps, bounds=bounds, step=step,
            sigmas=sigmas, watch=watch,
        )
        for first, last, rows in _batches(problem, len(problem) if watch is not None else _BATCH)
    ]  # fmt: skip
    return Descent(
        torch.cat([part.poses for part in parts]),
        torch.cat([part.targets for part in parts]),
        torch.cat([part.errors for part in parts]),
        torch.cat([part.objective for part in parts], dim=1),
    )


def _batches(problem: Tensor, size: int) -> Iterator[tuple[int, int, slice]]:
    """First and last problem and the rows of batches of whole problems, of at most ``size`` images if possible."""
    ends = [0, *torch.cumsum(torch.bincount(problem), 0).tolist()]
    first = 0
    for last in range(1, len(ends)):
        if last == len(ends) - 1 or ends[last + 1] - ends[first] > size:
            yield first, last, slice(ends[first], ends[last])
            first = last


def _descend_batch(
    images: Tensor, problem: Tensor, weights: Tensor, group: LieGroup, tau: Tensor, *, targets: Tensor | None,
    n_steps: int, bounds: Bounds, step: float, sigmas: tuple[float, ...],
    watch: Callable[[int, Tensor], None] | None,
) -> Descent:  # fmt: skip
    """Solve the problems of one batch together, on a canvas that grows with the poses.

    Two images that are pushed out of a finite frame are equal: a false optimum of the kernel. On a canvas that contains
    all images at all poses that are tried, it cannot occur.
    """
    shape = (images.shape[-2], images.shape[-1])
    circles = _content(images)
    canvas = _canvas(circles, tau, shape, bounds)
    if targets is not None:
        canvas = _larger(canvas, _canvas(_content(targets), torch.eye(3).to(tau).expand(len(targets), 3, 3), shape))
    grid = _grid(shape, canvas, images)
    fixed = None if targets is None else _pad(targets, canvas)
    energies = [_energies(images, sigma, group) for sigma in sigmas]
    target, errors, objective = _evaluate(images, tau, problem, weights, fixed, grid)
    history = [objective]
    if watch is not None:
        watch(0, _pad(target, (-canvas[0], -canvas[1])))
    active = torch.ones_like(objective, dtype=torch.bool)
    for done in range(1, n_steps + 1):
        if active.any():
            # Problems that have converged are left out: among all pairs most converge early.
            row = active[problem]
            part = torch.cumsum(active, 0)[problem[row]] - 1  # (m',) index among the active problems
            stack, share = images[row], weights[row]
            moved, slopes = sample_with_gradient(stack, _source_points(tau[row], grid))
            residual = moved - target[active][part]
            trials = []
            for sigma, energy in zip(sigmas, energies, strict=True):
                gradient = _gradient(residual, slopes, tau[row], sigma, group, grid)
                trial_tau = _bounded(tau[row] @ group.exp(-step * gradient / energy[row]), bounds)
                if targets is None and not group.is_isometric:
                    trial_tau = _hold_area(trial_tau, part, share)
                trials.append(trial_tau)
            needed = canvas
            for trial_tau in trials:
                needed = _larger(needed, _canvas([each[row] for each in circles], trial_tau, shape, bounds))
            if needed != canvas:
                target = _pad(target, (needed[0] - canvas[0], needed[1] - canvas[1]))
                canvas, grid = needed, _grid(shape, needed, images)
            best_tau, best = tau[row], (target[active], errors[row], objective[active])
            for trial_tau in trials:
                goal = None if targets is None else target[active]
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
            watch(done, _pad(target, (-canvas[0], -canvas[1])))
    return Descent(inverse(tau), _pad(target, (-canvas[0], -canvas[1])), errors, torch.stack(history))


def _source_points(tau: Tensor, grid: Tensor) -> Tensor:
    """Points at which each field reads its pixels: (m, 3, 3) -> (m, h, w, 2)."""
    x, y = grid[0, :, 0], grid[:, 0, 1]
    along_x, along_y = tau[:, None, :2, 0] * x[:, None], tau[:, None, :2, 1] * y[:, None] + tau[:, None, :2, 2]
    return along_x[:, None] + along_y[:, :, None]


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
    if sigma > 0:
        residual = _twice(residual.shape[-2], sigma, residual) @ residual @ _twice(residual.shape[-1], sigma, residual)
    field = (2 * residual[..., None] * slopes).sum(1)  # (m, h, w, 2)
    # With respect to (A, b): sums over the pixels p of field p^T and of field; first along rows, by a thin product.
    x, y = grid[0, :, 0], grid[:, 0, 1]
    along = torch.kron(torch.stack([x, torch.ones_like(x)], dim=1), torch.eye(2).to(x))  # (w * 2, 4)
    by_x, total = (field.flatten(2) @ along).unflatten(-1, (2, 2)).unbind(2)  # (m, h, 2) each
    affine = torch.stack([by_x.sum(1), (total * y[:, None]).sum(1), total.sum(1)], dim=-1)  # (m, 2, 3)
    # With respect to the coordinates: tau exp(xi) moves the point that p reads by A (xi p).
    local = tau[:, :2, :2].mT @ affine
    return local.flatten(1) @ group.generators[:, :2].to(local).flatten(1).T


def _twice(size: int, sigma: float, like: Tensor) -> Tensor:
    """The matrix (size, size) that smooths twice along one axis, of images that are zero outside of it.

    Smoothing multiplies by one matrix on each side, so smoothing an identity matrix gives the square of that matrix. It
    is made on a longer axis, because what the first smoothing carries out of the frame, the second carries back.
    """
    spread = math.ceil(4 * sigma)
    whole = smooth(torch.eye(size + 2 * spread, dtype=like.dtype, device=like.device), sigma)
    return whole[spread : spread + size, spread : spread + size]


def _energies(images: Tensor, sigma: float, group: LieGroup) -> Tensor:
    """Twice the squared norm of the derivative of the smoothed images along each coordinate of the group: (m, dim)."""
    spread = math.ceil(4 * sigma)
    images = _pad(images, (spread, spread))
    grid = pixel_grid((images.shape[-2], images.shape[-1]), images.dtype, images.device)
    _, slopes = sample_with_gradient(smooth(images, sigma), grid[None])
    ones = torch.ones_like(grid[..., :1])
    velocity = torch.einsum("kij,hwj->khwi", group.generators[:, :2].to(grid), torch.cat([grid, ones], dim=-1))
    along = torch.einsum("mchwi,khwi->mkchw", slopes, velocity)
    energy = 2 * along.square().sum((2, 3, 4))
    return energy + torch.finfo(energy.dtype).tiny ** 0.5  # constant images have zero energy


def _content(images: Tensor) -> tuple[Tensor, Tensor]:
    """The centre (m, 2) and the radius (m,) of a circle around the pixels of each image that are not zero."""
    lit = (images != 0).any(1)[..., None]  # (m, h, w, 1)
    grid = pixel_grid((images.shape[-2], images.shape[-1]), images.dtype, images.device)
    far = torch.tensor(torch.inf, dtype=images.dtype, device=images.device)
    low = torch.where(lit, grid, far).amin((1, 2))
    high = torch.where(lit, grid, -far).amax((1, 2))
    centre = torch.where(low <= high, (low + high) / 2, 0.0)
    radius = torch.where(lit[..., 0], (grid - centre[:, None, None]).norm(dim=-1), 0.0).amax((1, 2))
    return centre, radius


def _canvas(
    circles: Sequence[Tensor], tau: Tensor, shape: tuple[int, int], bounds: Bounds | None = None
) -> tuple[int, int]:
    """Rows and columns that a frame lacks on each side to contain these circles; negative where it is too large."""
    centre, radius = circles
    scale = 1.0 if bounds is None else bounds.max_scale
    places = transform(inverse(tau), centre[:, None])[:, 0]  # (m, 2)
    reach = (places.abs() + (radius * scale + 2 * scale + 1)[:, None]).amax(0).tolist()  # two pixels of interpolation
    return math.ceil(reach[1] - shape[0] / 2), math.ceil(reach[0] - shape[1] / 2)


def _larger(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), max(a[1], b[1])


def _grid(shape: tuple[int, int], canvas: tuple[int, int], like: Tensor) -> Tensor:
    return pixel_grid((shape[0] + 2 * canvas[0], shape[1] + 2 * canvas[1]), like.dtype, like.device)


def _pad(images: Tensor, canvas: tuple[int, int]) -> Tensor:
    """Add rows and columns of zeros on each side; negative numbers remove them."""
    rows, columns = canvas
    return torch.nn.functional.pad(images, (columns, columns, rows, rows))


def _bounded(tau: Tensor, bounds: Bounds) -> Tensor:
    """Project fields onto the bounds: the singular values and the angle of the linear part, the length of the shift."""
    left, scales, right = torch.linalg.svd(tau[:, :2, :2])
    linear = left * scales.clamp(1 / bounds.max_scale, bounds.max_scale)[:, None] @ right
    if bounds.max_angle < math.pi:
        # The angle of a mirrored pose is that of the rotation after the mirror, as in the search.
        flip = torch.where(torch.linalg.det(linear) < 0, -1.0, 1.0)
        angle = torch.atan2(linear[:, 0, 1] - flip * linear[:, 1, 0], flip * linear[:, 0, 0] + linear[:, 1, 1])
        excess = angle - angle.clamp(-bounds.max_angle, bounds.max_angle)
        linear = rotation(-excess)[:, :2, :2] @ linear
    shift = tau[:, :2, 2:]
    length = shift.norm(dim=1, keepdim=True)
    shift = shift * (bounds.max_shift / length.clamp(min=1e-12)).clamp(max=1.0)
    return torch.cat([torch.cat([linear, shift], dim=-1), tau[:, 2:]], dim=1)


def _hold_area(tau: Tensor, problem: Tensor, weights: Tensor) -> Tensor:
    """Scale the fields of each problem so that the weighted mean of their log changes of area is zero."""
    member = _membership(problem, weights)
    area = member @ area_change(tau).abs().log() / member.sum(1)  # (p,)
    return tau @ scaling(torch.exp(-0.5 * area[problem]))
