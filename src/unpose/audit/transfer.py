"""Which invariance a task needs of an embedding (after Speicher et al. 2024): does averaging over a group help?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest
from torch import Tensor

from unpose.audit.embeddings import nearest, unit
from unpose.audit.orbit import OrbitOutputs, orbit_outputs
from unpose.audit.results import Plain
from unpose.groups import Group, parse

_SIGNIFICANT = 0.01


@dataclass(frozen=True)
class NeededRow:
    """What invariance to one group would do for a task.

    Parameters
    ----------
    group : str
        Name of the group.
    sensitivity, floor : float
        Distance that the embedding moves under the group, relative to the distance of two images, and its floor.
    plain, averaged : float
        Accuracy of the nearest neighbours with the embedding as it is, and averaged over the group.
    p_value : float
        Probability of so uneven gains and losses if averaging made no difference (sign test over images).
    verdict : {"helps", "hurts", "makes no difference"}

    Examples
    --------
    >>> NeededRow("c4", 0.6, 0.0, 0.4, 0.9, 1e-5, "helps").verdict
    'helps'
    """

    group: str
    sensitivity: float
    floor: float
    plain: float
    averaged: float
    p_value: float
    verdict: str


@dataclass(frozen=True)
class NeededInvariances(Plain):
    """The result of :func:`needed_invariances`; ``print`` it to see the table.

    Parameters
    ----------
    rows : tuple of NeededRow
    chance : float
        Accuracy of always answering the most frequent label.

    Examples
    --------
    >>> print(NeededInvariances((NeededRow("c4", 0.6, 0.0, 0.4, 0.9, 1e-5, "helps"),), 0.1))
    invariance to    moves by    plain  averaged
    c4                  0.600    40.0%     90.0%  helps (p = 1e-05)
    by chance                    10.0%
    """

    rows: tuple[NeededRow, ...]
    chance: float

    def __str__(self) -> str:
        lines = [f"{'invariance to':14} {'moves by':>10} {'plain':>8} {'averaged':>9}"]
        for row in self.rows:
            values = f"{row.sensitivity:10.3f} {row.plain:8.1%} {row.averaged:9.1%}"
            lines.append(f"{row.group:14} {values}  {row.verdict} (p = {row.p_value:.1g})")
        lines.append(f"{'by chance':14} {'':10} {self.chance:8.1%}")
        return "\n".join(lines)


def needed_invariances(
    embedding: Callable[[Tensor], Any],
    images: Tensor,
    labels: ArrayLike,
    groups: Sequence[str | Group] = ("c4", "d1", "c8"),
    *,
    neighbours: int = 5,
) -> NeededInvariances:
    """Find out which invariances an embedding lacks for a task, and which would hurt it.

    Parameters
    ----------
    embedding : callable
        Function from images (n, c, h, w) to embeddings (n, ...).
    images : (n, c, h, w) tensor
    labels : (n,) array
        Classes of the task.
    groups : sequence of str or Group, default ("c4", "d1", "c8")
        The candidates.
    neighbours : int, default 5
        Nearest neighbours that vote, by cosine; the image itself is left out.

    Returns
    -------
    NeededInvariances

    Notes
    -----
    Embeddings are averaged at unit length over the elements of the group. For elements that need interpolation both
    accuracies are of images faded inside a disc.

    Examples
    --------
    >>> import torch
    >>> images = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> images[::2, :, :4] += 1  # the upper half is bright, or the lower one
    >>> images[1::2, :, 4:] += 1
    >>> rows = needed_invariances(lambda x: x - x.mean(), images, [0, 1] * 10, ["d1", "c4"], neighbours=3).rows
    >>> [row.verdict for row in rows]
    ['makes no difference', 'hurts']
    """
    truth = np.asarray(labels)
    if truth.shape != (len(images),) or len(np.unique(truth)) < 2:
        raise ValueError(f"labels must be ({len(images)},) and of at least two classes, got shape {truth.shape}")
    if not 1 <= neighbours < len(images) - 1:
        raise ValueError(f"neighbours must be from 1 to {len(images) - 2}, got {neighbours}")
    codes = np.unique(truth, return_inverse=True)[1]
    rows = []
    for group in groups:
        orbit = orbit_outputs(embedding, images, group)
        before, mean = _before_and_mean(orbit)
        plain, averaged = (_votes(each, codes, neighbours) == codes for each in (before, mean))
        gained, lost = int((averaged & ~plain).sum()), int((plain & ~averaged).sum())
        p_value = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
        verdict = "makes no difference" if p_value > _SIGNIFICANT else "helps" if gained > lost else "hurts"
        accuracies = float(plain.mean()), float(averaged.mean())
        rows.append(NeededRow(parse(group).name, *orbit.sensitivity(), *accuracies, p_value, verdict))
    return NeededInvariances(tuple(rows), float(np.bincount(codes).max() / len(codes)))


def _before_and_mean(orbit: OrbitOutputs) -> tuple[NDArray, NDArray]:
    """Embeddings (n, d) of the images, and averaged over the group; all of faded images if any element interpolates."""
    resampled = [row for row in orbit.rows if not row.exact]
    if not resampled:
        return unit(orbit.upright), np.mean([unit(row.after) for row in orbit.rows], axis=0)
    before = unit(resampled[0].before)
    # The exact elements were applied to images that are not faded: leave them out but for the identity.
    return before, np.mean([before, *(unit(row.after) for row in resampled)], axis=0)


def _votes(features: NDArray, codes: NDArray, k: int) -> NDArray:
    """The most frequent class (n,) among the nearest neighbours; the smaller number if two are equal."""
    counts = np.zeros((len(features), codes.max() + 1))
    for column in nearest(features, k).T:
        counts[np.arange(len(features)), codes[column]] += 1
    winners: NDArray = counts.argmax(1)
    return winners
