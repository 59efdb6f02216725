"""Heads for learning without labels: each says how vectors shall change when an image is turned.

A head sees the vectors of a view and of the same view after a quarter turn, which is exact: no trace of interpolation
tells the turn. Its loss is added to that of VICReg, whose views are not turned so far that they contradict it. The
encoder must not be invariant to quarter turns (``network.group = "c1"``).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from unpose.images import quarter_turn
from unpose.train.vicreg import vicreg_loss

_TURN_WEIGHT = 5.0
"""Weight of the cross entropy of the turn: about a third of the loss of VICReg at the beginning."""
_GRAM_WEIGHT = 100.0
"""Weight of the squared differences of cosines, which are below 0.1 at the beginning."""
_PAIRS = 32
"""Pairs of entries that turn with the image, in the loss of a split vector."""


class Head(nn.Module):
    """What is added to the loss of VICReg; ``left`` gives the part of the vectors that VICReg still sees."""

    def left(self, vectors: Tensor) -> Tensor:
        """Vectors (b, d) -> the entries that shall be invariant, (b, d')."""
        return vectors

    def draw_turns(self, count: int, seed: int) -> Tensor:
        """Draw a number of quarter turns for each image: (count,), on the CPU."""
        return torch.randint(4, (count,), generator=torch.Generator().manual_seed(seed))

    def loss(self, first: Tensor, turned: Tensor, turns: Tensor) -> Tensor:
        """Loss of the head's outputs for views and for the turned views, (b, m) each, and the turns (b,)."""
        raise NotImplementedError


class TurnHead(Head):
    """Predicts which of four quarter turns was applied (Dangovski et al. 2022): (b, d) -> (b, 4)."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.classify = nn.Sequential(nn.BatchNorm1d(outputs), nn.Linear(outputs, 4))

    def forward(self, vectors: Tensor) -> Tensor:
        found: Tensor = self.classify(vectors)
        return found

    def loss(self, first: Tensor, turned: Tensor, turns: Tensor) -> Tensor:
        return _TURN_WEIGHT * cross_entropy(turned, turns)


class SplitHead(Head):
    """Every second entry of the vector is invariant; the others turn with the image (Garrido et al. 2023).

    Pairs of numbers are computed from the other entries, (b, d) -> (b, 2 pairs), and a quarter turn of the image shall
    rotate each pair by a quarter turn. In the paper a network predicts the linear map from the pose; that map may
    become the identity, for entries that do not change at all, which the rotation excludes.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        other, width = outputs // 2, 8 * _PAIRS
        self.expander = nn.Sequential(
            nn.BatchNorm1d(other), nn.Linear(other, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, 2 * _PAIRS),
        )  # fmt: skip

    def left(self, vectors: Tensor) -> Tensor:
        return vectors[:, ::2]

    def forward(self, vectors: Tensor) -> Tensor:
        found: Tensor = self.expander(vectors[:, 1::2])
        return found

    def loss(self, first: Tensor, turned: Tensor, turns: Tensor) -> Tensor:
        return vicreg_loss(turned_pairs(first, turns), turned)


class GramHead(Head):
    """Turning all images alike keeps the cosines between their vectors (Gupta et al. 2023): (b, d) -> (b, d).

    Then one orthogonal matrix for each turn moves the vectors of all images.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.standardize = nn.BatchNorm1d(outputs, affine=False)

    def draw_turns(self, count: int, seed: int) -> Tensor:
        """One to three quarter turns, the same for all images."""
        return (1 + super().draw_turns(1, seed) % 3).expand(count)

    def forward(self, vectors: Tensor) -> Tensor:
        return normalize(self.standardize(vectors), dim=1)

    def loss(self, first: Tensor, turned: Tensor, turns: Tensor) -> Tensor:
        return _GRAM_WEIGHT * (first @ first.T - turned @ turned.T).square().mean()


HEADS: dict[str, type[Head]] = {"turn": TurnHead, "split": SplitHead, "gram": GramHead}
"""Name in ``[unlabelled]`` of a recipe -> head."""


def quarter_turned(images: Tensor, turns: Tensor) -> Tensor:
    """Turn each square image (b, c, h, h) by its own number of quarter turns (b,), exactly."""
    every = torch.stack([quarter_turn(images, number) for number in range(4)])  # (4, b, c, h, h)
    return every[turns, torch.arange(len(images), device=images.device)]


def turned_pairs(pairs: Tensor, turns: Tensor) -> Tensor:
    """Rotate pairs of numbers (b, 2 m), counter-clockwise, by quarter turns (b,)."""
    x, y = pairs.unflatten(1, (-1, 2)).unbind(2)  # (b, m) each
    angle = turns[:, None].to(pairs.dtype) * (torch.pi / 2)
    cosine, sine = angle.cos(), angle.sin()
    return torch.stack([cosine * x - sine * y, sine * x + cosine * y], dim=2).flatten(1)
