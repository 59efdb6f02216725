"""The first stage: every pose of a grid, for every pair, as matrix products in a steerable basis.

A *view* is a moving image after a mirror, a scale and a shift; the angle is searched on top of it, about the centre of
the fixed image: ``pose = turn @ shift @ scale @ mirror``. The stage works on reduced images; its poses are given in
full-size pixels.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from unpose.align.basis import SteerableBasis, analysis_matrix, fit_basis, project, project_with, view_grid
from unpose.compiled import worker_pool
from unpose.groups import LieGroup, rotation, scaling
from unpose.images import smooth, warp

_COARSE = 40
"""Larger side of the images of the coarse stage, in pixels; images up to a fifth larger are taken as they are."""
_ANGLES = 72
_SHIFT_STEP = 1.5  # coarse pixels: well within a stroke, from where refinement finds the rest
_SCALE_STEP = 1.2
_FUNCTIONS = 64
TILE = 64
"""Moving images searched at once; fixed, so that the same bytes come back for any number of workers."""


@dataclass(frozen=True)
class Plan:
    """What is searched: the group within its bounds, on a grid of poses at a reduced size."""

    group: LieGroup
    max_angle: float
    max_shift: float  # full-size pixels
    max_scale: float
    factor: float  # full-size pixels per coarse pixel
    shape: tuple[int, int]  # of the coarse images
    views: Tensor  # (V, 3, 3) float64, coarse pixels
    n_shifts: int  # views of one scale and handedness stand together
    angles: Tensor  # (A,) radians

    @property
    def unmirrored(self) -> Tensor:
        """The views that are not mirrored; they come first."""
        return self.views[: len(self.views) // (2 if self.group.mirrored else 1)]

    @cached_property
    def mirrored_shifts(self) -> Tensor:
        """For each unmirrored view the one of the same scale whose shift has the opposite x."""
        views = self.unmirrored
        wanted = views.clone()
        wanted[:, 0, 2] *= -1
        return (wanted[:, None] - views).abs().amax((-1, -2)).argmin(1)

    @property
    def full_circle(self) -> bool:
        return len(self.angles) == _ANGLES and self.max_angle >= math.pi

    def poses(self, index: Tensor) -> Tensor:
        """Poses of grid points ``view * A + angle`` in full-size pixels: (...) -> (..., 3, 3) float64."""
        index = index.cpu()
        view, angle = index // len(self.angles), index % len(self.angles)
        pose = rotation(self.angles[angle]) @ self.views[view]
        pose[..., :2, 2] *= self.factor
        return pose


def plan(
    shape: tuple[int, int], group: LieGroup, *, max_angle: float, max_shift: float | None, max_scale: float
) -> Plan:
    """Choose the coarse size and the grid of poses for images of this shape."""
    larger = max(shape)
    max_shift = larger / 4 if max_shift is None else max_shift
    for name, value, least in (
        ("max_angle", max_angle, 0.0),
        ("max_shift", max_shift, 0.0),
        ("max_scale", max_scale, 1.0),
    ):
        if not value >= least or math.isinf(value):
            raise ValueError(f"{name} must be a number of at least {least:g}, got {value}")
    max_shift = max_shift if group.shifts else 0.0
    factor = larger / _COARSE if larger > 1.2 * _COARSE else 1.0
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
        angles = torch.arange(_ANGLES, dtype=torch.float64) * (2 * math.pi / _ANGLES)
    else:
        side = math.ceil(max_angle / (2 * math.pi / _ANGLES))
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


def reduce(images: Tensor, factor: float) -> Tensor:
    """Images made smaller by a factor, smoothed first so that nothing aliases: (n, c, h, w)."""
    if factor == 1:
        return images
    shape = (math.ceil(images.shape[-2] / factor), math.ceil(images.shape[-1] / factor))
    shrink = scaling(torch.tensor(1 / factor, dtype=images.dtype, device=images.device))
    return warp(smooth(images, 0.45 * math.sqrt(factor**2 - 1)), shrink, shape)


@dataclass(frozen=True)
class Index:
    """A basis learned from the images at hand, and the matrix that takes the moving side's coefficients."""

    plan: Plan
    basis: SteerableBasis
    analysis: Tensor  # (pixels, V * C * 2) of the moving side
    gain: Tensor  # (V,) score factor of each view: larger copies overlap more, which is no merit

    def views_of(self, moving: Tensor) -> Tensor:
        """Coefficients of coarse moving images in every view: (n, V, C) complex64."""
        views = project_with(self.basis, moving, self.analysis) * self.gain[:, None]
        if not self.plan.group.mirrored:
            return views
        # Mirrored and then shifted is the same as shifted the other way along x and then mirrored, and mirroring turns
        # block k into (-1)^k times its conjugate.
        blocks = torch.from_numpy(np.diff(self.basis.starts))
        sign = torch.repeat_interleave((-1.0) ** torch.arange(self.basis.n_frequencies), blocks).to(views.real)
        return torch.cat([views, views[:, self.plan.mirrored_shifts.to(views.device)].conj() * sign], dim=1)

    def at_rest(self, images: Tensor) -> Tensor:
        """Coefficients of coarse images as they are: (n, C) complex64."""
        return project(self.basis, images, torch.eye(3, dtype=torch.float64)[None])[:, 0]


def build_index(plan: Plan, moving: Tensor, fixed: Tensor) -> Index:
    """Learn the basis from some coarse images of both sides, and move its functions to every view."""
    both = torch.cat([moving[:: max(1, len(moving) // 256)], fixed[:: max(1, len(fixed) // 256)]])
    views = plan.unmirrored
    basis = fit_basis(both, views, _FUNCTIONS)
    scale = torch.linalg.det(views[:, :2, :2]).sqrt()
    return Index(plan, basis, analysis_matrix(basis, views).to(moving.device), (1 / scale).to(moving))


def centred_only(index: Index) -> Index:
    """The same basis with five shifts about the centre instead of all, for images whose centres are nearly known."""
    step = _SHIFT_STEP
    near = torch.tensor([[0.0, 0.0], [step, 0.0], [-step, 0.0], [0.0, step], [0.0, -step]])
    plan = replace(index.plan, views=view_grid(near, torch.ones(1), index.plan.group.mirrored), n_shifts=len(near))
    analysis = analysis_matrix(index.basis, plan.unmirrored).to(index.gain.device)
    return Index(plan, index.basis, analysis, torch.ones(len(near)).to(index.gain))


def search(
    index: Index,
    moving: Tensor,
    fixed: Tensor,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Best score and grid point of each pair of coarse moving images (n, c, h, w) and coefficients at rest (m, C).

    Tile by tile: yields the first moving image of a tile, (t, m) scores and (t, m) int32 grid points.

    No array over all poses is ever written.
    """
    starts = range(0, len(moving), TILE)

    def tile(start: int) -> tuple[int, Tensor, Tensor]:
        return start, *best_poses(index.views_of(moving[start : start + TILE]), fixed, index.basis, index.plan)

    workers = workers if moving.device.type == "cpu" else 1
    with worker_pool(workers) as threads:
        # A few tiles ahead, not all: results are as wide as the fixed side.
        for first in range(0, len(starts), 2 * workers):
            for start, score, pose in threads.map(tile, starts[first : first + 2 * workers]):
                yield start, score, pose
                if progress is not None:
                    progress(start + len(score), len(moving))


def best_poses(views: Tensor, fixed: Tensor, basis: SteerableBasis, plan: Plan) -> tuple[Tensor, Tensor]:
    """views (n, V, C), fixed (m, C) complex -> best score (n, m) float32 and its grid point (n, m) int32.

    ``score = max over v, a of Re sum_k exp(-i k phi_a) <views[i, v], fixed[j]>_k``. A fused kernel on the CPU where the
    whole circle is searched, a fused kernel on CUDA, else one matrix product per tile.
    """
    if views.device.type == "cpu" and plan.full_circle and find_spec("numba") is not None:
        from unpose.align.kernels import search_cpu  # its compiler is slow to import

        score, pose = search_cpu.best_poses(views.numpy(), fixed.numpy(), basis.starts, len(plan.angles))
        return torch.from_numpy(score), torch.from_numpy(pose)
    frequencies = torch.repeat_interleave(
        torch.arange(basis.n_frequencies), torch.from_numpy(np.diff(basis.starts))
    )  # (C,)
    if views.device.type == "cuda" and find_spec("triton") is not None:
        from unpose.align.kernels import search_cuda  # only where there is a GPU

        return search_cuda.best_poses(views, fixed, frequencies.to(views.device), plan.angles.to(views.device))
    return _by_products(views, fixed, frequencies, plan.angles)


def peaks(views: Tensor, fixed: Tensor, basis: SteerableBasis, plan: Plan, count: int) -> Tensor:
    """The best poses of pairs that differ in angle: views (p, V, C), fixed (p, m, C) -> grid points (p, m, count)."""
    if views.device.type == "cpu" and find_spec("numba") is not None:
        from unpose.align.kernels import peaks_cpu  # its compiler is slow to import

        return torch.from_numpy(
            peaks_cpu.peaks(
                views.resolve_conj().numpy(), fixed.numpy(), basis.starts, plan.angles.numpy(), plan.n_shifts,
                plan.full_circle, count,
            )
        )  # fmt: skip
    return local_maxima(all_scores(views, fixed, basis, plan), plan, count)


def all_scores(views: Tensor, fixed: Tensor, basis: SteerableBasis, plan: Plan) -> Tensor:
    """The whole grid for given pairs: views (p, V, C), for each of them fixed (p, m, C) -> scores (p, m, V, A)."""
    blocks = list(zip(basis.starts[:-1].tolist(), basis.starts[1:].tolist(), strict=True))
    cross = torch.stack([fixed[..., a:b].conj() @ views[..., a:b].mT for a, b in blocks], dim=-1)  # (p, m, V, K)
    phases = torch.outer(torch.arange(basis.n_frequencies, dtype=torch.float64), plan.angles).to(fixed.real)
    return cross.real @ phases.cos() + cross.imag @ phases.sin()


def local_maxima(scores: Tensor, plan: Plan, count: int) -> Tensor:
    """Grid points of the highest local maxima along the angle, each with its best shift: (..., V, A) -> (..., count).

    Where there are fewer maxima than asked for the highest is repeated.
    """
    n_views, n_angles = scores.shape[-2:]
    by_scale = scores.unflatten(-2, (n_views // plan.n_shifts, plan.n_shifts))
    curve, shift = by_scale.max(-2)  # (..., scales, A)
    if plan.full_circle:
        before, after = curve.roll(1, -1), curve.roll(-1, -1)
    else:
        edge = torch.full_like(curve[..., :1], -torch.inf)
        before, after = torch.cat([edge, curve[..., :-1]], -1), torch.cat([curve[..., 1:], edge], -1)
    peaks = torch.where((curve >= before) & (curve >= after), curve, -torch.inf).flatten(-2)
    height, place = peaks.topk(min(count, peaks.shape[-1]), dim=-1)
    place = torch.where(torch.isinf(height), place[..., :1], place)
    place = torch.cat([place, place[..., :1].expand(*place.shape[:-1], count - place.shape[-1])], dim=-1)
    scale, angle = place // n_angles, place % n_angles
    return (scale * plan.n_shifts + shift.flatten(-2).gather(-1, place)) * n_angles + angle


def _by_products(views: Tensor, fixed: Tensor, frequencies: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Every pose of the moving side as a row, then one product per moving image."""
    turns = torch.outer(angles, frequencies.double())  # (A, C)
    phases = torch.polar(torch.ones_like(turns), -turns).to(views)
    flat = torch.view_as_real(fixed).flatten(1)  # (m, 2 C)
    scores, index = [], []
    for view in views:
        bank = torch.view_as_real(view[:, None] * phases).flatten(0, 1).flatten(1)  # (V * A, 2 C)
        best = (bank @ flat.T).max(0)
        scores.append(best.values)
        index.append(best.indices.int())
    return torch.stack(scores), torch.stack(index)
