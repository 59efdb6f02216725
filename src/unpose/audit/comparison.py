"""Compare two models: which transformations each ignores, and which answers a new version changes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor

from unpose.audit.answers import AnswerReport
from unpose.audit.calls import evaluation
from unpose.audit.measurement import checked_numbers
from unpose.audit.orbit import change, orbit_outputs
from unpose.audit.results import Plain
from unpose.groups import Group, LieGroup

_IGNORED = 0.1
"""A model ignores a transformation that moves its output by less than a tenth of the distance of two images."""


@dataclass(frozen=True)
class SharedRow:
    """What two models make of one transformation.

    Parameters
    ----------
    name : str
        Name of the transformation.
    sensitivities : (float, float)
        Distance that the output moves, relative to the distance of the outputs of two images, for either model.
    floors : (float, float)
        The same for images that are moved and moved back.
    verdict : {"both ignore it", "only the first ignores it", "only the second ignores it", "neither ignores it"}

    Examples
    --------
    >>> SharedRow("c4", (0.01, 0.7), (0.0, 0.0), "only the first ignores it").sensitivities
    (0.01, 0.7)
    """

    name: str
    sensitivities: tuple[float, float]
    floors: tuple[float, float]
    verdict: str


@dataclass(frozen=True)
class SharedInvariances(Plain):
    """The result of :func:`shared_invariances`; ``print`` it to see the table.

    Parameters
    ----------
    rows : tuple of SharedRow
        One for each transformation.
    overlap : float
        Sum of the smaller over sum of the larger invariance, where invariance is 1 minus sensitivity, at least 0; NaN
        if neither model ignores anything.

    Examples
    --------
    >>> import torch
    >>> images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> shared_invariances(lambda x: x.mean((2, 3)), lambda x: x[:, 0, 0, :2], images, {"c4": "c4"}).rows[0].verdict
    'only the first ignores it'
    """

    rows: tuple[SharedRow, ...]
    overlap: float

    def __str__(self) -> str:
        width = max(len("output moves by"), *(len(row.name) for row in self.rows))
        lines = [f"{'output moves by':{width}} {'first':>8} {'second':>8} {'floors':>15}"]
        for row in self.rows:
            (a, b), (c, d) = row.sensitivities, row.floors
            lines.append(f"{row.name:{width}} {a:8.3f} {b:8.3f} {c:7.3f} {d:7.3f}  {row.verdict}")
        lines.append(f"{'overlap':{width}} {self.overlap:8.3f}")
        return "\n".join(lines)


def shared_invariances(
    first: Callable[[Tensor], Any],
    second: Callable[[Tensor], Any],
    images: Tensor,
    transformations: Mapping[str, str | Group | Callable[[Tensor], Tensor]],
) -> SharedInvariances:
    """Measure for two models which transformations they ignore (Lubana et al. 2023).

    Parameters
    ----------
    first, second : callable
        Functions from images (n, c, h, w) to outputs with one entry per image. Their outputs may differ in shape.
    images : (n, c, h, w) tensor
        At least two different images.
    transformations : mapping of str to group or callable
        A group, by name or as an object, stands for all its elements. A function from images to images stands for
        itself: it can remove a mark, change the background or the colour.

    Returns
    -------
    SharedInvariances

    Notes
    -----
    A model ignores a transformation if it moves the output by at most a tenth of the distance of two images, or twice
    the floor.

    Examples
    --------
    >>> import torch
    >>> images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> without_corner = lambda x: torch.cat([torch.zeros_like(x[:, :, :1]), x[:, :, 1:]], dim=2)
    >>> model = lambda x: x[:, 0, 0, :2]
    >>> shared_invariances(model, model, images, {"first line": without_corner}).rows[0].verdict
    'neither ignores it'
    """
    if not transformations:
        raise ValueError("give at least one transformation, such as {'turns': 'c8'}")
    rows, invariances = [], []
    for name, transformation in transformations.items():
        (a, floor_a), (b, floor_b) = (_sensitivity(f, images, transformation) for f in (first, second))
        ignored = [value <= max(_IGNORED, 2 * floor) for value, floor in ((a, floor_a), (b, floor_b))]
        who = "both ignore" if all(ignored) else "neither ignores"
        if ignored[0] != ignored[1]:
            who = f"only the {'first' if ignored[0] else 'second'} ignores"
        rows.append(SharedRow(name, (a, b), (floor_a, floor_b), f"{who} it"))
        invariances.append([max(0.0, 1 - a), max(0.0, 1 - b)])
    table = np.array(invariances)
    largest = float(table.max(1).sum())
    return SharedInvariances(tuple(rows), float(table.min(1).sum()) / largest if largest else math.nan)


@dataclass(frozen=True)
class VersionDiff(Plain):
    """The result of :func:`version_diff`.

    Parameters
    ----------
    elements : tuple of k str
        Names of the elements.
    old, new : (k,) array
        Share of the images whose answer changes under each element, for either version.
    fixed, broken : tuple of int
        Indices of images whose answer changed under some element with the old version only, and with the new only.
    p_value : float
        Probability of so uneven numbers of fixed and broken images if the versions were equally good (sign test).

    Examples
    --------
    >>> VersionDiff(("identity",), np.zeros(1), np.zeros(1), (), (), 1.0).p_value
    1.0
    """

    elements: tuple[str, ...]
    old: NDArray[np.float64]
    new: NDArray[np.float64]
    fixed: tuple[int, ...]
    broken: tuple[int, ...]
    p_value: float

    def __str__(self) -> str:
        width = max(len("answers change"), *map(len, self.elements))
        lines = [f"{'answers change':{width}} {'old':>7} {'new':>7}"]
        lines += [
            f"{name:{width}} {a:7.1%} {b:7.1%}" for name, a, b in zip(self.elements, self.old, self.new, strict=True)
        ]
        lines.append(f"{len(self.fixed)} images fixed, {len(self.broken)} broken (sign test p = {self.p_value:.2g})")
        return "\n".join(lines)


def version_diff(old: AnswerReport, new: AnswerReport) -> VersionDiff:
    """Compare the answers of two versions of a classifier on the same images and the same group.

    Parameters
    ----------
    old, new : AnswerReport
        From :func:`answer_changes`.

    Returns
    -------
    VersionDiff

    Examples
    --------
    >>> import torch
    >>> from unpose.audit import answer_changes, orbit_outputs
    >>> images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> old = lambda x: torch.stack([x[..., :4].mean((1, 2, 3)), x[..., 4:].mean((1, 2, 3))], dim=1)
    >>> new = lambda x: torch.cat([x.mean((2, 3)), 1 - x.mean((2, 3))], dim=1)
    >>> reports = [answer_changes(orbit_outputs(model, images, "c4")) for model in (old, new)]
    >>> len(version_diff(*reports).fixed)
    5
    """
    if old.elements != new.elements or old.changed.shape != new.changed.shape:
        raise ValueError(
            f"both reports must be of the same elements and number of images, got {old.group} on "
            f"{old.changed.shape[1]} and {new.group} on {new.changed.shape[1]} images"
        )
    before, after = old.changed.any(0), new.changed.any(0)
    fixed, broken = np.flatnonzero(before & ~after), np.flatnonzero(after & ~before)
    differ = len(fixed) + len(broken)
    p_value = float(binomtest(len(fixed), differ).pvalue) if differ else 1.0
    indices = tuple(map(int, fixed)), tuple(map(int, broken))
    return VersionDiff(old.elements, old.flips, new.flips, *indices, p_value)


def _sensitivity(f: Callable[[Tensor], Any], images: Tensor, transformation: Any) -> tuple[float, float]:
    """Root mean square change of the output over all elements, and its floor."""
    if callable(transformation) and not isinstance(transformation, LieGroup):
        with evaluation(f):
            before, after = (
                checked_numbers(f(x.clone()), len(images)).numpy() for x in (images, transformation(images.clone()))
            )
        return change(before, after), 0.0
    return orbit_outputs(f, images, transformation).sensitivity()
