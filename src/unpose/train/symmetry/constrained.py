"""Invariance as a constraint: the loss at hard poses may exceed the loss of the images themselves by a slack.

Hounie, Chamon and Ribeiro, "Automatic Data Augmentation via Invariance-Constrained Learning" (ICML 2023).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unpose.train.objective import Forward
from unpose.train.processes import Processes
from unpose.train.symmetry.base import Bounds, LearnedSymmetry, Losses, at_poses, by_group, parse_candidates

_RATE = 0.005
"""Step of the dual ascent: by how much a multiplier falls in a step in which its constraint has all of its slack."""
_MOST = 5.0
"""An excess counts at most this many times the slack, so that single batches do not decide."""


class InvarianceConstrained(LearnedSymmetry):
    """Train on images and their hard poses, of which each group has as many as cost at most ``slack``.

    Parameters
    ----------
    groups : sequence of str
        Names of candidates: finite groups, translation, so2, se2 or similarity.
    slack : float, default 0.03
        By how much the loss at poses of a group may exceed the loss of the images, in nats.
    bounds : Bounds, optional
        How far elements of continuous groups reach.

    Notes
    -----
    For each group the mean loss at its poses may exceed the loss of the images themselves by at most ``slack``. In the
    training loop both are measured on validation images: a network knows its training images, and other poses of them
    would cost more even if the symmetry holds. The multiplier of this constraint moves by its violation after each
    step, between 0 and 1. It decides how far the group reaches: poses are drawn within ``1 - multiplier`` of the
    bounds, and elements of a finite group with this probability. A symmetry that holds costs nothing, its multiplier
    stays near 0, and the network is trained on all of the group. For one that the labels contradict, the multiplier
    grows to where the rest of the group still holds.

    Poses that are trained on follow the density proportional to their loss: of two uniform draws the second replaces
    the first with the probability of Metropolis, the ratio of their losses. Both are evaluated in one batch; with the
    validation images, a step costs ``1.5 + 2.5 groups`` times a plain one. The published method weighs the loss at
    poses by its multiplier instead; on upright digits with all turns as candidate, that costs accuracy on upright
    images at every slack that was tried.

    Examples
    --------
    >>> InvarianceConstrained(["so2", "d1"]).strengths()["multipliers"]
    {'so2': 0.5, 'd1': 0.5}
    """

    multipliers: Tensor
    sums: Tensor

    def __init__(self, groups: Sequence[str], slack: float = 0.03, bounds: Bounds | None = None) -> None:
        super().__init__()
        self.groups = parse_candidates(groups, bounds)
        if slack <= 0:
            raise ValueError(f"slack must be above 0, got {slack}")
        self.slack = slack
        self.register_buffer("multipliers", torch.full((len(self.groups),), 0.5))
        self.register_buffer("sums", torch.zeros(len(self.groups) + 1))  # excess of each group; number of images

    def forward(self, network: Forward, images: Tensor, labels: Tensor, losses: Losses) -> tuple[Tensor, Tensor]:
        """Return the outputs for the images, (b, classes), and the loss at images and poses, summed over the images."""
        reach = 1 - self.multipliers
        draws = [
            at_poses(images, group.draw(images, reach[k])) for k, group in enumerate(self.groups) for _ in range(2)
        ]
        outputs = network(torch.cat([images, *draws]))
        plain, *posed = losses(outputs, labels.repeat(1 + len(draws))).split(len(images))  # 1 + 2 groups of (b,)
        chosen = []
        for first, second in zip(posed[::2], posed[1::2], strict=True):
            accepted = torch.rand_like(first) * first.detach() < second.detach()
            chosen.append(torch.where(accepted, second, first).sum())
        self._keep_excess(plain, [(first + second) / 2 for first, second in zip(posed[::2], posed[1::2], strict=True)])
        return outputs[: len(images)], plain.sum() + torch.stack(chosen).sum()

    @torch.no_grad()
    def measure(self, network: Forward, images: Tensor, labels: Tensor, losses: Losses) -> None:
        """Measure the constraints on images that are not trained on, at uniform poses."""
        reach = 1 - self.multipliers
        posed = [at_poses(images, group.draw(images, reach[k])) for k, group in enumerate(self.groups)]
        outputs = network(torch.cat([images, *posed]))
        plain, *others = losses(outputs, labels.repeat(1 + len(posed))).split(len(images))
        self._keep_excess(plain, others)

    @torch.no_grad()
    def _keep_excess(self, plain: Tensor, posed: list[Tensor]) -> None:
        """Keep by how much losses (b,) at poses of each group exceed those of the images, summed over the images."""
        each = torch.stack([(losses - plain).sum() for losses in posed])  # (groups,)
        self.sums.copy_(torch.cat([each, torch.full_like(each[:1], len(plain))]))

    @torch.no_grad()
    def adjust(self, processes: Processes | None = None) -> None:
        """Move each multiplier by the violation of its constraint."""
        summed = (processes or Processes()).sum(self.sums.clone())
        excess = summed[:-1] / summed[-1] / self.slack
        self.multipliers.add_(_RATE * (excess.clamp(max=_MOST) - 1)).clamp_(0.0, 1.0)

    def strengths(self) -> dict[str, Any]:
        """Return the multipliers, near 0 for symmetries that hold, and the reach of each group, as a share."""
        return {
            "method": "constrained", "multipliers": by_group(self.groups, self.multipliers),
            "reach": by_group(self.groups, 1 - self.multipliers),
        }  # fmt: skip
