"""The reference backend: plain torch operations, for every device."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.align import photometry, refine
from unpose.groups import LieGroup

_MAX_SCORES = 2**27
"""Scores of pairs and poses held at once."""


class ImagePairs:
    """Both sides of many pairs at one size: (n, c, h, w) moving, (m, c, h, w) fixed images, with a mask (h, w).

    Pairs are given by indices (p,) into both sides; their images are gathered into a batch.
    """

    def __init__(self, moving: Tensor, fixed: Tensor, mask: Tensor) -> None:
        self.moving, self.fixed, self.mask = moving, fixed, mask

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
        return refine.refine(
            self.moving[moving], self.fixed[fixed], poses, group, contrast=contrast, mask=self.mask, bounds=bounds,
            n_steps=n_steps, tolerance=tolerance,
        )  # fmt: skip

    def moments(self, moving: Tensor, fixed: Tensor, poses: Tensor, *, overlap: bool) -> Tensor:
        """Sums over the pixels of pairs (p,) at poses (p, 3, 3), see :func:`photometry.moments`: (p, c, 6) float64."""
        return photometry.moments(self.moving[moving], self.fixed[fixed], poses, self.mask, overlap=overlap)

    def energy_outside(self, moving: Tensor, poses: Tensor) -> Tensor:
        """Energy of the moving pixels that a pose carries out of the fixed image's frame, (p,) float64."""
        return photometry.energy_outside(self.moving[moving], poses, (self.fixed.shape[-2], self.fixed.shape[-1]))


def best_poses(
    views: Tensor, fixed: Tensor, starts: NDArray, angles: Tensor, full_circle: bool
) -> tuple[Tensor, Tensor]:
    """Find the best pose of every pair by one matrix product per moving image, whose rows are all its poses.

    views (n, V, C) and fixed (m, C) are complex, ``starts`` (K + 1,) says where the coefficients of each frequency
    begin, angles (A,) -> best score (n, m) float32 and its grid point ``view * A + angle`` (n, m) int32.
    """
    turns = torch.outer(angles, frequencies(starts).double())  # (A, C)
    phases = torch.polar(torch.ones_like(turns), -turns).to(views)
    flat = torch.view_as_real(fixed).flatten(1)  # (m, 2 C)
    scores, points = [], []
    for view in views:
        bank = torch.view_as_real(view[:, None] * phases).flatten(0, 1).flatten(1)  # (V * A, 2 C)
        best = (bank @ flat.T).max(0)
        scores.append(best.values)
        points.append(best.indices.int())
    return torch.stack(scores), torch.stack(points)


def best_poses_of_candidates(
    views: Tensor, fixed: Tensor, candidates: Tensor, starts: NDArray, angles: Tensor, full_circle: bool
) -> tuple[Tensor, Tensor]:
    """Find the best pose of each image and its candidates: views (n, V, C), fixed (m, C), candidates (n, c) -> (n, c).

    Scores are float32 and grid points int32, as in :func:`best_poses`.
    """
    rows = max(1, _MAX_SCORES // (candidates.shape[1] * views.shape[1] * len(angles)))
    scores, points = [], []
    for some, chosen in zip(views.split(rows), candidates.split(rows), strict=True):
        best = all_scores(some, fixed[chosen], starts, angles).flatten(-2).max(-1)
        scores.append(best.values)
        points.append(best.indices.int())
    return torch.cat(scores), torch.cat(points)


def peaks(
    views: Tensor, fixed: Tensor, starts: NDArray, angles: Tensor, n_shifts: int, full_circle: bool, count: int
) -> Tensor:
    """Find the best few poses of given pairs: views (p, V, C), fixed (p, m, C) -> grid points (p, m, count)."""
    return local_maxima(all_scores(views, fixed, starts, angles), n_shifts, full_circle, count)


def frequencies(starts: NDArray) -> Tensor:
    """Angular frequency of each coefficient, (C,)."""
    return torch.repeat_interleave(torch.arange(len(starts) - 1), torch.from_numpy(np.diff(starts)))


def all_scores(views: Tensor, fixed: Tensor, starts: NDArray, angles: Tensor) -> Tensor:
    """Score every pose of the grid for given pairs: views (p, V, C), fixed (p, m, C) -> (p, m, V, A)."""
    blocks = list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
    cross = torch.stack([fixed[..., a:b].conj() @ views[..., a:b].mT for a, b in blocks], dim=-1)  # (p, m, V, K)
    phases = torch.outer(torch.arange(len(blocks), dtype=torch.float64), angles).to(fixed.real)
    return cross.real @ phases.cos() + cross.imag @ phases.sin()


def local_maxima(scores: Tensor, n_shifts: int, full_circle: bool, count: int) -> Tensor:
    """Grid points of the highest local maxima along the angle, each at its best shift: (..., V, A) -> (..., count).

    Where there are fewer maxima than requested, the highest is repeated.
    """
    n_views, n_angles = scores.shape[-2:]
    by_scale = scores.unflatten(-2, (n_views // n_shifts, n_shifts))
    curve, shift = by_scale.max(-2)  # (..., scales, A)
    if full_circle:
        before, after = curve.roll(1, -1), curve.roll(-1, -1)
    else:
        edge = torch.full_like(curve[..., :1], -torch.inf)
        before, after = torch.cat([edge, curve[..., :-1]], -1), torch.cat([curve[..., 1:], edge], -1)
    maxima = torch.where((curve >= before) & (curve >= after), curve, -torch.inf).flatten(-2)
    height, place = maxima.topk(min(count, maxima.shape[-1]), dim=-1)
    place = torch.where(torch.isinf(height), place[..., :1], place)
    place = torch.cat([place, place[..., :1].expand(*place.shape[:-1], count - place.shape[-1])], dim=-1)
    scale, angle = place // n_angles, place % n_angles
    return (scale * n_shifts + shift.flatten(-2).gather(-1, place)) * n_angles + angle
