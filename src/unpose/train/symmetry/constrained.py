"""Invariance as a constraint: the loss at hard poses may exceed the loss of the images themselves by a slack.

Hounie, Chamon and Ribeiro, "Automatic Data Augmentation via Invariance-Constrained Learning" (ICML 2023).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unpose.images import warp
from unpose.train.objective import Forward
from unpose.train.processes import Processes
from unpose.train.symmetry.base import (
    Bounds,
    LearnedSymmetry,
    Losses,
    by_group,
    parse_candidates,
    random_elements,
)

_RATE = 0.02
"""Step of the dual ascent: change of a multiplier for an excess of one nat above the slack."""


class InvarianceConstrained(LearnedSymmetry):
    """Minimise the loss subject to a constraint for each group: at hard poses it may be larger by at most ``slack``.

    Parameters
    ----------
    groups : sequence of str
        Names of candidate groups, such as ``["so2", "d1"]``.
    slack : float, default 0.1
        How much larger the loss at hard poses may be than the loss of the images, in nats.
    limit : float, default 1.0
        Largest multiplier. Posed images count at most this much in the objective, beside 1 for the images.
    bounds : Bounds, optional
        How far elements of continuous groups reach.

    Notes
    -----
    The Lagrangian is ``loss + sum_k m_k (loss at poses of group k - loss - slack)``, where the gradient of the second
    loss is not taken. Poses follow the density proportional to their loss: of two uniform draws the second replaces the
    first with the probability of Metropolis, the ratio of their losses. After each step the multiplier ``m_k`` moves by
    the violation of its constraint. It stays near zero for a symmetry that holds, because posed images then cost
    nothing, and grows to the limit for one that does not. The two draws are evaluated with gradients in one batch: a
    step costs ``1 + 2 groups`` times a plain one.

    Examples
    --------
    >>> InvarianceConstrained(["so2", "d1"]).strengths()["multipliers"]
    {'so2': 0.0, 'd1': 0.0}
    """

    multipliers: Tensor
    sums: Tensor

    def __init__(
        self, groups: Sequence[str], slack: float = 0.1, limit: float = 1.0, bounds: Bounds | None = None
    ) -> None:
        super().__init__()
        self.groups, self.bounds = parse_candidates(groups), bounds or Bounds()
        if slack < 0 or limit <= 0:
            raise ValueError(f"slack must be at least 0 and limit above 0, got {slack} and {limit}")
        self.slack, self.limit = slack, limit
        self.register_buffer("multipliers", torch.zeros(len(self.groups)))
        self.register_buffer("sums", torch.zeros(len(self.groups) + 1))  # excess of each group; number of images

    def forward(self, network: Forward, images: Tensor, labels: Tensor, losses: Losses) -> tuple[Tensor, Tensor]:
        """Return the outputs for the images, (b, classes), and the Lagrangian, summed over the images."""
        draws = [warp(images, random_elements(group, self.bounds, images)) for group in self.groups for _ in range(2)]
        outputs = network(torch.cat([images, *draws]))
        plain, *posed = losses(outputs, labels.repeat(1 + len(draws))).split(len(images))  # 1 + 2 groups of (b,)
        excess = []
        for first, second in zip(posed[::2], posed[1::2], strict=True):
            accepted = torch.rand_like(first) * first.detach() < second.detach()
            excess.append((torch.where(accepted, second, first) - plain.detach()).sum())
        each = torch.stack(excess)  # (groups,)
        with torch.no_grad():
            self.sums.copy_(torch.cat([each, torch.full_like(each[:1], len(images))]))
        return outputs[: len(images)], plain.sum() + (self.multipliers * each).sum()

    @torch.no_grad()
    def adjust(self, processes: Processes | None = None) -> None:
        """Move each multiplier by the violation of its constraint."""
        summed = (processes or Processes()).sum(self.sums.clone())
        self.multipliers.add_(_RATE * (summed[:-1] / summed[-1] - self.slack)).clamp_(0.0, self.limit)

    def strengths(self) -> dict[str, Any]:
        """Return the multipliers: near zero for symmetries that hold, large for others."""
        return {"method": "constrained", "slack": self.slack, "multipliers": by_group(self.groups, self.multipliers)}
