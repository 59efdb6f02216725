"""Do labels object? Whether the nearest neighbour names fewer images rightly once moved copies are neighbours too."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LabelGain:
    """What moved copies do to the accuracy of the nearest neighbour.

    Parameters
    ----------
    plain : float
        Accuracy of the nearest neighbour among real images.
    gain : float
        Change of the accuracy when moved copies of the same images are neighbours too.
    standard_error : float
        Of the gain, from its differences between images.
    misled : Tensor of shape (m, 2)
        Images that only the moved copies name wrongly, and the image whose copy did it; the most similar first.

    Examples
    --------
    >>> LabelGain(0.9, -0.05, 0.01, torch.zeros(0, 2, dtype=torch.long)).objects
    True
    """

    plain: float
    gain: float
    standard_error: float
    misled: Tensor

    @property
    def objects(self) -> bool:
        """Whether accuracy falls by more than chance would explain: by at least two and a half standard errors."""
        return self.gain < -2.5 * self.standard_error and self.gain < 0


def label_gains(real: Tensor, copies: list[list[Tensor]], labels: Tensor, *, random_state: int = 0) -> list[LabelGain]:
    """Measure the nearest neighbour's accuracy with moved copies, for several sets of copies.

    Parameters
    ----------
    real : Tensor of shape (n, d)
        Descriptions of images.
    copies : list of list of Tensor of shape (n, d)
        Descriptions of moved copies; each list is used on its own.
    labels : Tensor of shape (n,)
        Class of each image, as a number.
    random_state : int, default 0
        Seed that divides the images into two halves, each of which is named by the other.

    Returns
    -------
    list of LabelGain
        One for each list of copies.

    Examples
    --------
    >>> points, labels = torch.tensor([[0.0], [0.1], [1.0], [1.1]]), torch.tensor([0, 0, 1, 1])
    >>> [found.gain for found in label_gains(points, [[points]], labels)]
    [0.0]
    """
    n = len(real)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(random_state))
    halves = order[: n // 2], order[n // 2 :]
    plain, plain_distance = torch.empty(n, dtype=torch.long), torch.empty(n, dtype=real.dtype)
    for train, test in (halves, halves[::-1]):
        plain_distance[test], found = torch.cdist(real[test], real[train]).min(dim=1)
        plain[test] = train[found]
    plain_right = labels[plain] == labels
    gains = []
    for added in copies:
        nearest, distance = plain.clone(), plain_distance.clone()
        for moved in added:
            for train, test in (halves, halves[::-1]):
                closer, found = torch.cdist(real[test], moved[train]).min(dim=1)
                nearest[test] = torch.where(closer < distance[test], train[found], nearest[test])
                distance[test] = torch.minimum(closer, distance[test])
        right = labels[nearest] == labels
        change = right.double() - plain_right.double()
        misled = (plain_right & ~right).nonzero()[:, 0]
        misled = misled[distance[misled].argsort()]
        pairs = torch.stack([misled, nearest[misled]], dim=1)
        error = float(change.std()) / math.sqrt(n)
        gains.append(LabelGain(float(plain_right.double().mean()), float(change.mean()), error, pairs))
    return gains
