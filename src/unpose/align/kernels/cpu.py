"""The CPU backend: kernels compiled by numba."""

import math

import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.align import photometry, refine
from unpose.align.kernels import gauss_newton_cpu, peaks_cpu, reference, search_cpu
from unpose.align.kernels.pixels_cpu import Pixels
from unpose.groups import LieGroup
from unpose.images import pixel_grid


class ImagePairs(Pixels):
    """Both sides of many pairs at one size; the kernels read the images in place, without gathering them."""

    def refine(
        self,
        moving: Tensor,
        fixed: Tensor,
        poses: Tensor,
        group: LieGroup,
        *,
        contrast: str,
        bounds: refine.PoseBounds,
        n_steps: int,
        tolerance: refine.Tolerance,
    ) -> tuple[Tensor, Tensor]:
        """Refine the poses (p, 3, 3) of pairs (p,) by Gauss-Newton: poses (p, 3, 3) and converged (p,) bool."""
        shape = self.mask.shape
        return gauss_newton_cpu.refine(
            self, moving, fixed, poses, group.generators, refine.velocity(group, pixel_grid(shape)),
            contrast=photometry.CONTRASTS.index(contrast), step_units=refine.step_units(group, shape),
            priors=group.priors, n_steps=n_steps, tolerance=(tolerance.step, tolerance.error),
            bounds=(bounds.max_angle, bounds.max_shift, math.log(bounds.max_scale)),
        )  # fmt: skip


def best_poses(
    views: Tensor, fixed: Tensor, starts: NDArray, angles: Tensor, full_circle: bool
) -> tuple[Tensor, Tensor]:
    """Find the best pose of every pair; the kernel uses symmetries of the full circle, other ranges the reference."""
    if not full_circle:
        return reference.best_poses(views, fixed, starts, angles, full_circle)
    score, point = search_cpu.best_poses(views.numpy(), fixed.numpy(), starts, len(angles))
    return torch.from_numpy(score), torch.from_numpy(point)


def best_poses_of_candidates(
    views: Tensor, fixed: Tensor, candidates: Tensor, starts: NDArray, angles: Tensor, full_circle: bool
) -> tuple[Tensor, Tensor]:
    """Find the best pose of each image and its candidates; see the reference."""
    found = [
        best_poses(view[None], fixed[chosen], starts, angles, full_circle)
        for view, chosen in zip(views, candidates, strict=True)
    ]
    return torch.cat([score for score, _ in found]), torch.cat([point for _, point in found])


def peaks(
    views: Tensor, fixed: Tensor, starts: NDArray, angles: Tensor, n_shifts: int, full_circle: bool, count: int
) -> Tensor:
    """Find the best few poses of given pairs: views (p, V, C), fixed (p, m, C) -> grid points (p, m, count)."""
    arrays = views.resolve_conj().numpy(), fixed.numpy(), starts, angles.numpy()
    return torch.from_numpy(peaks_cpu.peaks(*arrays, n_shifts, full_circle, count))
