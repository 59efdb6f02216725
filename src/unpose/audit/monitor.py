"""Watch a classifier on a stream of images without labels: how much its answers depend on pose (Jain et al. 2023)."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unpose.audit.answers import as_probabilities
from unpose.audit.orbit import OrbitOutputs, orbit_outputs
from unpose.audit.results import Plain
from unpose.groups import Group

_ALARM = 4.0
"""Standard errors above the baseline that raise the alarm: by chance once in 30,000 batches."""


@dataclass(frozen=True)
class MonitorReading(Plain):
    """The state of a :func:`monitor` after one batch.

    Parameters
    ----------
    batch : int
        Number of the batch, from 0.
    images : int
        Images in it.
    score, floor : float
        Mean instability of the answers in it, and the part that interpolation alone causes.
    baseline : float
        Mean score of the first batches.
    z : float
        Score above the baseline in standard errors; NaN during the first batches.
    alarm : bool
        Whether z is above 4.

    Examples
    --------
    >>> MonitorReading(3, 32, 0.2, 0.01, 0.05, 5.1, True).alarm
    True
    """

    batch: int
    images: int
    score: float
    floor: float
    baseline: float
    z: float
    alarm: bool

    def __str__(self) -> str:
        state = f"{self.z:+.1f} standard errors" if math.isfinite(self.z) else "baseline"
        beside = f"floor {self.floor:.3f}, baseline {self.baseline:.3f}"
        return f"batch {self.batch}: instability {self.score:.3f} ({beside}), {state}" + "  ALARM" * self.alarm


def monitor(
    f: Callable[[Tensor], Any], batches: Iterable[Tensor], group: str | Group = "c8", *, baseline: int = 4
) -> Iterator[MonitorReading]:
    """Measure, batch by batch and without labels, how much the answers of a classifier depend on pose.

    Parameters
    ----------
    f : callable
        Function from images (n, c, h, w) to class scores (n, classes), probabilities or logits.
    batches : iterable of (n, c, h, w) tensor
        Each with at least two different images.
    group : str or Group, default "c8"
        The poses that the answers should not depend on.
    baseline : int, default 4
        Number of first batches that later ones are compared with.

    Yields
    ------
    MonitorReading

    Notes
    -----
    The score is :func:`instability`. The alarm compares the batch with the first batches by the means and variances of
    the scores of their images.

    Cost for each batch: as many calls of f as :func:`orbit_outputs` makes.

    Examples
    --------
    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> stream = (torch.rand(6, 1, 8, 8, generator=generator) for _ in range(3))
    >>> halves = lambda x: torch.stack([x[..., :4].mean((1, 2, 3)), x[..., 4:].mean((1, 2, 3))], dim=1)
    >>> [reading.alarm for reading in monitor(halves, stream, "c4", baseline=2)]
    [False, False, False]
    """
    if baseline < 1:
        raise ValueError(f"baseline must be at least one batch, got {baseline}")
    first: list[NDArray] = []
    for number, images in enumerate(batches):
        orbit = orbit_outputs(f, images, group)
        scores, floor = instability(orbit), float(instability(orbit, returned=True).mean())
        z = math.nan
        if number < baseline:
            first.append(scores)
        reference = np.concatenate(first)
        if number >= baseline:
            error = math.sqrt(_variance(scores) / len(scores) + _variance(reference) / len(reference))
            # Without any spread in the scores the smallest change would be infinitely many standard errors.
            z = float(scores.mean() - reference.mean()) / max(error, 1e-3)
        yield MonitorReading(
            number, len(images), float(scores.mean()), floor, float(reference.mean()), z, bool(z > _ALARM)
        )


def instability(orbit: OrbitOutputs, *, returned: bool = False) -> NDArray[np.float64]:
    """How much the class probabilities of each image change over its orbit.

    Parameters
    ----------
    orbit : OrbitOutputs
        From :func:`orbit_outputs` of a function that returns class scores.
    returned : bool, default False
        Measure the floor instead: images moved and moved back.

    Returns
    -------
    (n,) array
        Mean over the elements of the total variation distance between the probabilities before and after, in [0, 1].

    Examples
    --------
    >>> import torch
    >>> images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> brightness = lambda x: torch.cat([x.mean((2, 3)), 1 - x.mean((2, 3))], dim=1)
    >>> bool(instability(orbit_outputs(brightness, images, "c4")).max() < 1e-6)
    True
    """
    if orbit.upright.ndim != 2 or orbit.upright.shape[1] < 2:
        raise ValueError(f"instability needs class scores (n, classes), got outputs of shape {orbit.upright.shape}")
    rows = orbit.rows[1:] or orbit.rows
    distances = [
        np.abs(as_probabilities(row.before) - as_probabilities(row.returned if returned else row.after)).sum(1) / 2
        for row in rows
    ]
    means: NDArray[np.float64] = np.mean(distances, axis=0)
    return means


def _variance(scores: NDArray) -> float:
    return float(scores.var(ddof=1)) if len(scores) > 1 else 0.0
