"""The first stage of the search: scores every pose of a grid, for every pair, by matrix products in a steerable basis.

A *view* is a moving image after a mirror, a scale and a shift. The angle is searched on top of the views, about the
centre of the fixed image: ``pose = turn @ shift @ scale @ mirror``. The stage works on downscaled images; its poses are
given in full-size pixels. Views and fixed images are compared by their coefficients in the basis.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from unpose.align.basis import SteerableBasis, analysis_matrix, fit_basis, project, project_with, view_grid
from unpose.align.kernels import backend_for
from unpose.align.refine import PoseBounds
from unpose.align.search import Search
from unpose.compiled import worker_pool
from unpose.groups import LieGroup, parse_continuous, rotation

_COARSE_SIZE = 40
"""Larger side of the images of the coarse stage in pixels; images up to 1.2 times as large are not downscaled."""
_N_ANGLES = 72
"""Angles on the full circle."""
_SHIFT_STEP = 1.5
"""Distance of shifts on the grid in coarse pixels: less than a stroke's width, so that refinement finds the rest."""
_SCALE_STEP = 1.2
"""Largest ratio of neighbouring scales on the grid."""
_BASIS_SIZE = 64
"""Complex functions in the steerable basis."""
TILE = 64
"""Moving images searched at once. It is fixed, so that results are the same bytes for any number of threads."""


@dataclass(frozen=True)
class Plan:
    """The grid of poses that is searched: a group within its bounds, at the size of the coarse images."""

    group: LieGroup
    max_angle: float
    max_shift: float  # full-size pixels
    max_scale: float
    factor: float  # full-size pixels per coarse pixel
    shape: tuple[int, int]  # of the coarse images
    views: Tensor  # (V, 3, 3) float64, coarse pixels
    n_shifts: int  # views are ordered by mirror, then scale, then shift
    angles: Tensor  # (A,) radians

    @property
    def unmirrored(self) -> Tensor:
        """The views without mirror; they come first."""
        return self.views[: len(self.views) // (2 if self.group.mirrored else 1)]

    @cached_property
    def mirrored_shifts(self) -> Tensor:
        """For each view without mirror, the index of the view of the same scale whose shift has the opposite x."""
        x, y = self.views[: self.n_shifts, :2, 2].numpy().T
        partner = np.empty(self.n_shifts, np.int64)
        partner[np.lexsort((y, x))] = np.lexsort((y, -x))  # the shifts of one scale are the same with x mirrored
        scales = torch.arange(0, len(self.unmirrored), self.n_shifts)
        return (scales[:, None] + torch.from_numpy(partner)).flatten()

    @property
    def full_circle(self) -> bool:
        """Whether all angles are searched."""
        return len(self.angles) == _N_ANGLES and self.max_angle >= math.pi

    @property
    def refinement_bounds(self) -> PoseBounds:
        """Bounds of refinement, in full-size pixels; in groups that deform shapes scales may go 1.2 times beyond."""
        return PoseBounds(self.max_angle, self.max_shift, self.max_scale * (1.2 if self.group.deforms else 1))

    def poses(self, points: Tensor) -> Tensor:
        """Poses of grid points ``view * A + angle`` in full-size pixels: (...) -> (..., 3, 3) float64."""
        points = points.cpu()
        view, angle = points // len(self.angles), points % len(self.angles)
        pose = rotation(self.angles[angle]) @ self.views[view]
        pose[..., :2, 2] *= self.factor
        return pose


def make_plan(shape: tuple[int, int], search: Search) -> Plan:
    """Choose the coarse size and the grid of poses for images of shape (h, w)."""
    group, max_angle, max_scale = parse_continuous(search.group), search.max_angle, search.max_scale
    larger = max(shape)
    max_shift = larger / 4 if search.max_shift is None else search.max_shift
    max_shift = max_shift if group.shifts else 0.0
    factor = larger / _COARSE_SIZE if larger > 1.2 * _COARSE_SIZE else 1.0
    steps = math.floor(max_shift / factor / _SHIFT_STEP + 1e-9)
    if max_shift > 0 and steps == 0:
        offsets = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64) * max_shift / factor
    else:
        offsets = torch.arange(-steps, steps + 1, dtype=torch.float64) * _SHIFT_STEP
    shifts = torch.cartesian_prod(offsets, offsets).reshape(-1, 2)
    shifts = shifts[shifts.norm(dim=1) <= max_shift / factor * (1 + 1e-9)]
    n_scales = 2 * math.ceil(math.log(max_scale) / math.log(_SCALE_STEP)) + 1 if group.scales and max_scale > 1 else 1
    scales = torch.logspace(-1, 1, n_scales, base=max_scale, dtype=torch.float64) if n_scales > 1 else torch.ones(1)
    if not group.turns:
        angles = torch.zeros(1, dtype=torch.float64)
    elif max_angle >= math.pi:
        angles = torch.arange(_N_ANGLES, dtype=torch.float64) * (2 * math.pi / _N_ANGLES)
    else:
        side = math.ceil(max_angle / (2 * math.pi / _N_ANGLES))
        angles = torch.arange(-side, side + 1, dtype=torch.float64) * (max_angle / max(side, 1))
    return Plan(
        group=group,
        max_angle=max_angle,
        max_shift=max_shift,
        max_scale=max_scale if group.scales else 1.0,
        factor=factor,
        shape=(math.ceil(shape[0] / factor), math.ceil(shape[1] / factor)),
        views=view_grid(shifts, scales, group.mirrored),
        n_shifts=len(shifts),
        angles=angles,
    )


@dataclass(frozen=True)
class Index:
    """A basis fitted to the images of a search, and the matrix that computes coefficients of the moving images."""

    plan: Plan
    basis: SteerableBasis
    analysis: Tensor  # (pixels, V * C * 2)
    gain: Tensor  # (V,) factor of the scores of each view: enlarged images would score higher for their size alone

    def view_coefficients(self, moving: Tensor) -> Tensor:
        """Coefficients of coarse moving images in every view: (n, V, C) complex64."""
        views = project_with(self.basis, moving, self.analysis) * self.gain[:, None]
        if not self.plan.group.mirrored:
            return views
        # To mirror and then shift is to shift by the opposite x and then mirror, and mirroring turns coefficients of
        # frequency k into (-1)^k times their conjugates.
        blocks = torch.from_numpy(np.diff(self.basis.starts))
        sign = torch.repeat_interleave((-1.0) ** torch.arange(self.basis.n_frequencies), blocks).to(views.real)
        return torch.cat([views, views[:, self.plan.mirrored_shifts.to(views.device)].conj() * sign], dim=1)

    def coefficients(self, images: Tensor) -> Tensor:
        """Coefficients of coarse images in their own pose: (n, C) complex64."""
        return project(self.basis, images, torch.eye(3, dtype=torch.float64)[None])[:, 0]


def build_index(plan: Plan, moving: Tensor, fixed: Tensor) -> Index:
    """Fit the basis to a sample of the coarse images of both sides, and compute the analysis matrix of all views."""
    both = torch.cat([moving[:: max(1, len(moving) // 256)], fixed[:: max(1, len(fixed) // 256)]])
    views = plan.unmirrored
    basis = fit_basis(both, views, _BASIS_SIZE)
    scale = torch.linalg.det(views[:, :2, :2]).sqrt()
    return Index(plan, basis, analysis_matrix(basis, views).to(moving.device), (1 / scale).to(moving))


def near_centre(plan: Plan) -> Plan:
    """The grid for images in normal position: five shifts about the centre, and three scales if the group has them."""
    scales = torch.tensor([1 / _SCALE_STEP, 1.0, _SCALE_STEP]) if plan.group.scales and plan.max_scale > 1 else None
    return _with_five_shifts(plan, torch.ones(1) if scales is None else scales)


def centred_only(index: Index) -> Index:
    """The same basis with only five shifts about the centre, for images that are roughly centred."""
    plan = _with_five_shifts(index.plan, torch.ones(1))
    analysis = analysis_matrix(index.basis, plan.unmirrored).to(index.gain.device)
    return Index(plan, index.basis, analysis, torch.ones(plan.n_shifts).to(index.gain))


def _with_five_shifts(plan: Plan, scales: Tensor) -> Plan:
    step = _SHIFT_STEP
    near = torch.tensor([[0.0, 0.0], [step, 0.0], [-step, 0.0], [0.0, step], [0.0, -step]])
    return replace(plan, views=view_grid(near, scales, plan.group.mirrored), n_shifts=len(near))


def search_all_pairs(
    index: Index,
    moving: Tensor,
    fixed: Tensor,
    *,
    n_threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Find the best pose of each pair of coarse moving images (n, c, h, w) and fixed coefficients (m, C).

    Yields for each tile of t moving images the index of its first image, the best scores (t, m) and their grid points
    (t, m) int32. No array over all poses is ever written.
    """
    starts = range(0, len(moving), TILE)

    def tile(start: int) -> tuple[int, Tensor, Tensor]:
        return start, *best_poses(index.view_coefficients(moving[start : start + TILE]), fixed, index.basis, index.plan)

    with worker_pool(n_threads) as threads:
        # Only a few tiles at a time: a result has a column for every fixed image.
        for first in range(0, len(starts), 2 * n_threads):
            for start, scores, points in threads.map(tile, starts[first : first + 2 * n_threads]):
                yield start, scores, points
                if progress is not None:
                    progress(start + len(scores), len(moving))


def best_poses(views: Tensor, fixed: Tensor, basis: SteerableBasis, plan: Plan) -> tuple[Tensor, Tensor]:
    """Find the best pose of every pair.

    views (n, V, C), fixed (m, C) complex -> best scores (n, m) float32 and their grid points (n, m) int32:
    ``score = max over v, a of Re sum_k exp(-i k phi_a) <views[i, v], fixed[j]>_k``.
    """
    found: tuple[Tensor, Tensor] = backend_for(views.device).best_poses(
        views, fixed, basis.starts, plan.angles, plan.full_circle
    )
    return found


def best_poses_of_candidates(
    views: Tensor, fixed: Tensor, candidates: Tensor, basis: SteerableBasis, plan: Plan
) -> tuple[Tensor, Tensor]:
    """:func:`best_poses` of views (n, V, C) and their candidates (n, c) among fixed images (m, C): (n, c) each."""
    found: tuple[Tensor, Tensor] = backend_for(views.device).best_poses_of_candidates(
        views, fixed, candidates, basis.starts, plan.angles, plan.full_circle
    )
    return found


def peaks(views: Tensor, fixed: Tensor, basis: SteerableBasis, plan: Plan, count: int) -> Tensor:
    """Find the best few poses of given pairs, at different angles.

    views (p, V, C), for each of them fixed (p, m, C) -> grid points (p, m, count): the highest local maxima of the
    score along the angle, each at its best shift.
    """
    points: Tensor = backend_for(views.device).peaks(
        views, fixed, basis.starts, plan.angles, plan.n_shifts, plan.full_circle, count
    )
    return points
