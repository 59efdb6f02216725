"""Both sides of many pairs at one size, and what is done to pairs there: refine their poses, measure their distances.

Pairs are given by two lists of numbers. On the CPU compiled loops read the images where they lie; on other devices the
pairs' images are gathered into batches.
"""

import math
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unpose.align import photometry, refine
from unpose.groups import LieGroup, area_change
from unpose.images import pixel_grid

if TYPE_CHECKING:
    from unpose.align.kernels.pixels_cpu import Pixels


class Level:
    """Images made smaller by a factor; poses go in and come out in full-size pixels, distances are the level's own."""

    def __init__(self, factor: float, moving: Tensor, fixed: Tensor, mask: Tensor) -> None:
        self.factor, self.moving, self.fixed, self.mask = factor, moving, fixed, mask

    @cached_property
    def _pixels(self) -> "Pixels | None":
        if self.fixed.device.type != "cpu" or find_spec("numba") is None:
            return None
        from unpose.align.kernels.pixels_cpu import Pixels  # its compiler is slow to import

        return Pixels(self.moving, self.fixed, self.mask)

    def refine(
        self,
        moving: Tensor,
        fixed: Tensor,
        poses: Tensor,
        group: LieGroup,
        *,
        contrast: str,
        max_angle: float,
        max_shift: float,
        max_scale: float,
        n_steps: int = refine.STEPS,
        at_rest: tuple[float, float] = (refine.SMALL, refine.AT_REST),
    ) -> tuple[Tensor, Tensor]:
        """Gauss-Newton from these poses (p, 3, 3) of pairs of numbers (p,): poses and whether they converged."""
        start = _rescaled(poses, 1 / self.factor)
        if (pixels := self._pixels) is None:
            found, converged = refine.refine(
                self.moving[moving], self.fixed[fixed], start, group, contrast=contrast, mask=self.mask,
                max_angle=max_angle, max_shift=max_shift / self.factor, max_scale=max_scale, n_steps=n_steps,
                at_rest=at_rest,
            )  # fmt: skip
        else:
            from unpose.align.kernels import gauss_newton_cpu as newton_cpu

            shape = (self.fixed.shape[-2], self.fixed.shape[-1])
            unit, pull = refine.scales(group, shape)
            found, converged = newton_cpu.refine(
                pixels, moving, fixed, start, group.generators, refine.velocity(group, pixel_grid(shape)),
                contrast=photometry.CONTRASTS.index(contrast), unit=unit, pull=pull, n_steps=n_steps,
                at_rest=at_rest,
                bounds=(max_angle, max_shift / self.factor, math.log(max_scale)),
            )  # fmt: skip
        return _rescaled(found, self.factor), converged

    def distances(self, moving: Tensor, fixed: Tensor, poses: Tensor, contrast: str) -> Tensor:
        """Distance of each pair of numbers (p,) at its pose (p, 3, 3), with Keys sampling: (p,) float64.

        What a pose pushes out of the frame still counts: leaving the canvas must not bring two images closer.
        """
        poses, confined = _rescaled(poses, 1 / self.factor), photometry.uses_overlap(contrast)
        if (pixels := self._pixels) is not None:
            sums = pixels.moments(moving, fixed, poses, overlap=confined)
            lost = torch.zeros(len(poses)) if confined else pixels.energy_outside(moving, poses)
        else:
            images, goals = self.moving[moving], self.fixed[fixed]
            shape = (goals.shape[-2], goals.shape[-1])
            sums = photometry.moments(images, goals, poses, self.mask, overlap=confined)
            lost = torch.zeros(len(poses)) if confined else photometry.energy_outside(images, poses, shape)
        return photometry.distances(sums, lost.to(sums), area_change(poses).abs().double(), contrast, self.mask)


def _rescaled(poses: Tensor, factor: float) -> Tensor:
    """The same poses with coordinates multiplied by a factor."""
    if factor == 1:
        return poses
    scale = torch.tensor([factor, factor, 1.0], dtype=poses.dtype, device=poses.device)
    return poses * scale[:, None] / scale
