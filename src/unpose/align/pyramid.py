"""One level of an image pyramid: both sides of many pairs at one size, and the comparison of pairs there."""

import torch
from torch import Tensor

from unpose.align import photometry, refine
from unpose.align.kernels import backend_for
from unpose.groups import LieGroup, area_change


class Level:
    """Moving images (n, c, h, w), fixed images (m, c, h, w) and mask (h, w), downscaled by a factor.

    Poses are given and returned in full-size pixels; distances are those at the size of the level. Pairs are given by
    two lists of indices (p,), into the moving and into the fixed images.
    """

    def __init__(self, factor: float, moving: Tensor, fixed: Tensor, mask: Tensor) -> None:
        self.factor, self.mask = factor, mask
        self.pairs = backend_for(fixed.device).ImagePairs(moving, fixed, mask)

    def refine(
        self,
        moving: Tensor,
        fixed: Tensor,
        poses: Tensor,
        group: LieGroup,
        *,
        contrast: str,
        bounds: refine.PoseBounds,
        n_steps: int = refine.MAX_STEPS,
        tolerance: refine.Tolerance = refine.DEFAULT_TOLERANCE,
    ) -> tuple[Tensor, Tensor]:
        """Refine the poses (p, 3, 3) of pairs (p,) by Gauss-Newton: poses (p, 3, 3) and converged (p,) bool."""
        found, converged = self.pairs.refine(
            moving, fixed, _rescale(poses, 1 / self.factor), group, contrast=contrast,
            bounds=bounds._replace(max_shift=bounds.max_shift / self.factor), n_steps=n_steps, tolerance=tolerance,
        )  # fmt: skip
        return _rescale(found, self.factor), converged

    def distances(self, moving: Tensor, fixed: Tensor, poses: Tensor, contrast: str) -> Tensor:
        """Distance of each pair (p,) at its pose (p, 3, 3), with Keys sampling: (p,) float64.

        Pixels that a pose moves out of the frame still count: leaving the frame must not bring two images closer.
        """
        poses, overlap = _rescale(poses, 1 / self.factor), photometry.uses_overlap(contrast)
        moments = self.pairs.moments(moving, fixed, poses, overlap=overlap)
        lost = torch.zeros(len(poses)) if overlap else self.pairs.energy_outside(moving, poses)
        return photometry.distances(moments, lost.to(moments), area_change(poses).abs().double(), contrast, self.mask)


def _rescale(poses: Tensor, factor: float) -> Tensor:
    """The same poses with coordinates multiplied by a factor."""
    if factor == 1:
        return poses
    scale = torch.tensor([factor, factor, 1.0], dtype=poses.dtype, device=poses.device)
    return poses * scale[:, None] / scale
