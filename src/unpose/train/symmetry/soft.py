"""A penalty for each candidate symmetry whose weight is learned.

After Kim, Lee, Yang and Lee, "Regularizing Towards Soft Equivariance Under Mixed Symmetries" (ICML 2023).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unpose.train.objective import Forward
from unpose.train.processes import Processes
from unpose.train.symmetry.base import Bounds, LearnedSymmetry, Losses, at_poses, by_group, parse_candidates

_FLOOR = 0.02
"""Mismatch that counts as none: a weight is at most ``strength / _FLOOR``."""
_MEMORY = 0.98
"""Decay of the running mean of the mismatch."""


class SoftEquivariance(LearnedSymmetry):
    """Penalise the change of the outputs under each group, with weights that follow how well each symmetry holds.

    Parameters
    ----------
    groups : sequence of str
        Names of candidate groups, such as ``["so2", "d1"]``.
    strength : float, default 0.01
        Strength of all penalties together with the loss, in nats per unit of the logarithm of the mismatch.
    bounds : Bounds, optional
        How far elements of continuous groups reach.

    Notes
    -----
    The mismatch ``R_k`` of group ``k`` is the mean squared change of the outputs under random elements, in units of
    the mean squared difference of the outputs of two images: 0 for an invariant network, about 1 for one whose answer
    to a moved image says nothing about the image. Its weight is ``strength / (R_k + 0.02)`` with a running mean of
    ``R_k``, which minimises the sum of ``strength log(R_k + 0.02)`` by reweighting. This penalty is concave: a symmetry
    that costs the loss nothing is enforced more and more, one that the labels contradict is released.

    Examples
    --------
    >>> SoftEquivariance(["so2"]).strengths()["mismatch"]
    {'so2': 1.0}
    """

    mismatch: Tensor
    sums: Tensor

    def __init__(self, groups: Sequence[str], strength: float = 0.01, bounds: Bounds | None = None) -> None:
        super().__init__()
        self.groups = parse_candidates(groups, bounds)
        if strength <= 0:
            raise ValueError(f"strength must be above 0, got {strength}")
        self.strength = strength
        self.register_buffer("mismatch", torch.ones(len(self.groups)))
        self.register_buffer("sums", torch.zeros(len(self.groups) + 1))  # mismatch of each group; number of images

    @property
    def weights(self) -> Tensor:
        """Weight of each penalty, (groups,): large where the symmetry holds."""
        return self.strength / (self.mismatch + _FLOOR)

    def forward(self, network: Forward, images: Tensor, labels: Tensor, losses: Losses) -> tuple[Tensor, Tensor]:
        """Return the outputs for the images, (b, classes), and the loss with its penalties, summed over the images."""
        posed = [at_poses(images, group.draw(images)) for group in self.groups]
        outputs = network(torch.cat([images, *posed]))
        # A constant added to all scores changes no answer.
        scores = (outputs - outputs.mean(1, keepdim=True)).float().view(1 + len(posed), len(images), -1)
        plain, moved = scores[0], scores[1:]  # (b, classes) and (groups, b, classes)
        spread = 2 * (plain - plain.mean(0)).square().sum(1).mean().detach().clamp_min(1e-6)
        each = (moved - plain).square().sum((1, 2)) / spread  # (groups,)
        with torch.no_grad():
            self.sums.copy_(torch.cat([each, torch.full_like(each[:1], len(images))]))
        own = outputs[: len(images)]
        return own, losses(own, labels).sum() + (self.weights * each).sum()

    @torch.no_grad()
    def adjust(self, processes: Processes | None = None) -> None:
        """Update the running mean of the mismatch."""
        summed = (processes or Processes()).sum(self.sums.clone())
        self.mismatch.lerp_(summed[:-1] / summed[-1], 1 - _MEMORY)

    def strengths(self) -> dict[str, Any]:
        """Return weight and mismatch of each group: a symmetry that holds has a large weight and a small mismatch."""
        return {
            "method": "soft", "weights": by_group(self.groups, self.weights),
            "mismatch": by_group(self.groups, self.mismatch),
        }  # fmt: skip
