"""A head for learning without labels: turning all images alike keeps the cosines between their vectors.

The head sees the vectors of views and of the same views after a quarter turn, which is exact: no trace of interpolation
tells the turn. Its loss is added to that of VICReg, whose views are not turned so far that they contradict it. The
encoder must not be invariant to quarter turns (``network.group = "c1"``).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from unpose.images import quarter_turn

_GRAM_WEIGHT = 100.0
"""Weight of the squared differences of cosines, which are below 0.1 at the beginning."""


class GramHead(nn.Module):
    """Turning all images alike keeps the cosines between their vectors (Gupta et al. 2023): (b, d) -> (b, d).

    Then one orthogonal matrix for each turn moves the vectors of all images.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.standardize = nn.BatchNorm1d(outputs, affine=False)

    def draw_turns(self, count: int, seed: int) -> Tensor:
        """Draw one to three quarter turns, the same for all images: (count,), on the CPU."""
        return torch.randint(1, 4, (1,), generator=torch.Generator().manual_seed(seed)).expand(count)

    def forward(self, vectors: Tensor) -> Tensor:
        return normalize(self.standardize(vectors), dim=1)

    def loss(self, first: Tensor, turned: Tensor) -> Tensor:
        """Loss of the head's outputs for views and for the turned views, (b, d) each: 0-d."""
        return _GRAM_WEIGHT * (first @ first.T - turned @ turned.T).square().mean()


def quarter_turned(images: Tensor, turns: Tensor) -> Tensor:
    """Turn each square image (b, c, h, h) by its own number of quarter turns (b,), exactly."""
    every = torch.stack([quarter_turn(images, number) for number in range(4)])  # (4, b, c, h, h)
    return every[turns, torch.arange(len(images), device=images.device)]
