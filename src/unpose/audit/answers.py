"""Which answers of a classifier change with the pose of the image: by element, by class, by image; and calibration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unpose.audit.orbit import OrbitOutputs
from unpose.audit.results import Plain

_BINS = 15
"""Bins of confidence for the expected calibration error, as in Guo et al. (2017)."""

_SHOWN = 8
"""Worst images that are listed for a class."""


@dataclass(frozen=True)
class ClassAnswers:
    """How the answers for the images of one class change.

    Parameters
    ----------
    name : str
        Name of the class.
    count : int
        Number of its images.
    worst : str
        The element under which most of its answers change, in excess of the floor.
    degrees : float
        The angle of that element, NaN if it is not a rotation.
    flips, floor : float
        Share of its images whose answer changes under that element, and by its interpolation alone.
    images : tuple of int
        Indices of images whose answer changes there, the largest loss of confidence first; eight at most.

    Examples
    --------
    >>> ClassAnswers("fish", 4, "turn 90", 90.0, 0.5, 0.0, (3, 1)).flips
    0.5
    """

    name: str
    count: int
    worst: str
    degrees: float
    flips: float
    floor: float
    images: tuple[int, ...]


@dataclass(frozen=True)
class AnswerReport(Plain):
    """The result of :func:`answer_changes`; ``print`` it to see the table.

    Parameters
    ----------
    group : str
        Name of the group.
    elements : tuple of k str
        Names of the elements; entry 0 is the identity.
    degrees : (k,) array
        Angles of the rotations among them, NaN for the others.
    exact : (k,) array of bool
        Whether the element permutes pixels without interpolation.
    flips, floors : (k,) array
        Share of the images whose answer changes under the element, and by its interpolation alone.
    changed : (k, n) array of bool
        Whether the answer for an image changes under an element.
    control : str
        Name of a transformation outside the group.
    control_flips, control_floor : float
        Its share of changed answers and its floor.
    discrimination : float
        Share of the images that do not get the most frequent answer; 0 for a classifier that always says the same.
    classes : tuple of ClassAnswers
        By class, the class with most changed answers first. Without labels a class is the answer for the image.
    accuracy, calibration : (k,) array, or None without labels
        Accuracy and expected calibration error under every element.
    calibration_upright, calibration_orbit : float, or None without labels
        Expected calibration error of the images as given, and of all transformed images together.

    Examples
    --------
    >>> import torch
    >>> from unpose.audit import orbit_outputs
    >>> images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> halves = lambda x: torch.stack([x[..., :4].mean((1, 2, 3)), x[..., 4:].mean((1, 2, 3))], dim=1)
    >>> answer_changes(orbit_outputs(halves, images, "c4")).flips.tolist()[2]
    1.0
    """

    group: str
    elements: tuple[str, ...]
    degrees: NDArray[np.float64]
    exact: NDArray[np.bool_]
    flips: NDArray[np.float64]
    floors: NDArray[np.float64]
    changed: NDArray[np.bool_]
    control: str
    control_flips: float
    control_floor: float
    discrimination: float
    classes: tuple[ClassAnswers, ...]
    accuracy: NDArray[np.float64] | None
    calibration: NDArray[np.float64] | None
    calibration_upright: float | None
    calibration_orbit: float | None

    @property
    def worst(self) -> int:
        """Index of the element with most changed answers in excess of its floor."""
        return int((self.flips - self.floors).argmax())

    @property
    def mean_flips(self) -> float:
        """Share of changed answers over all images and all elements but the identity."""
        return float(self.flips[1:].mean()) if len(self.flips) > 1 else 0.0

    def _repr_html_(self) -> str:
        """The table with bars, for notebooks."""
        from unpose.report import table_html

        columns: dict[str, list[Any]] = {
            f"answers under {self.group}": [*self.elements, f"control: {self.control}"],
            "changed": [*self.flips.tolist(), self.control_flips],
            "floor": [*self.floors.tolist(), self.control_floor],
        }
        if self.accuracy is not None:
            columns["accuracy"] = [*self.accuracy.tolist(), None]
        worst = [f"class {each.name}: {each.flips:.0%} of {each.count} change under {each.worst}"
                 for each in self.classes[:5] if each.flips]  # fmt: skip
        return table_html(columns, bars=["changed"], notes=worst)

    def __str__(self) -> str:
        width = max(len("control: " + self.control), len("most frequent answer for") + 8, *map(len, self.elements))
        lines = [f"{'answers under ' + self.group:{width}}   changed     floor" + (
            "  accuracy  calibration error" if self.accuracy is not None else "")]  # fmt: skip
        for i, name in enumerate(self.elements):
            floor = f"{'exact':>9}" if self.exact[i] else f"{self.floors[i]:9.1%}"
            line = f"{name:{width}} {self.flips[i]:9.1%} {floor}"
            if self.accuracy is not None and self.calibration is not None:
                line += f" {self.accuracy[i]:9.1%} {self.calibration[i]:18.3f}"
            lines.append(line)
        lines.append(f"{'control: ' + self.control:{width}} {self.control_flips:9.1%} {self.control_floor:9.1%}")
        lines.append(f"{'most frequent answer for':{width}} {1 - self.discrimination:9.1%}")
        if self.calibration_orbit is not None:
            lines.append(
                f"calibration error {self.calibration_upright:.3f}, over the orbit {self.calibration_orbit:.3f}"
            )
        lines += [
            f"class {each.name}: {each.flips:.1%} of {each.count} change under {each.worst} "
            f"(floor {each.floor:.1%}); images {', '.join(map(str, each.images)) or 'none'}"
            for each in self.classes[:5]
            if each.flips
        ]
        if not self.discrimination:
            lines.append("note: the answer is the same for every image, so that it never changes means nothing")
        return "\n".join(lines)


def answer_changes(
    orbit: OrbitOutputs, labels: ArrayLike | None = None, class_names: Sequence[str] | None = None
) -> AnswerReport:
    """Count the answers of a classifier that change with the pose of the image.

    Parameters
    ----------
    orbit : OrbitOutputs
        From :func:`orbit_outputs` of a function that returns class scores (n, classes). The answer is the class with
        the largest score. Scores that are not probabilities are taken as logits.
    labels : (n,) array of int, optional
        True classes, for accuracy and calibration.
    class_names : sequence of str, optional
        Names of the classes, by default their numbers.

    Returns
    -------
    AnswerReport

    Notes
    -----
    The expected calibration error is the mean of ``|accuracy - confidence|`` over 15 bins of confidence, weighted by
    the number of images in the bin (Guo et al. 2017). Over the orbit, all transformed images are put into one set.

    Examples
    --------
    >>> import torch
    >>> from unpose.audit import orbit_outputs
    >>> images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> brightness = lambda x: torch.cat([x.mean((2, 3)), 1 - x.mean((2, 3))], dim=1)
    >>> answer_changes(orbit_outputs(brightness, images, "d4"), labels=[0, 0, 1, 1, 1]).flips.max()
    np.float64(0.0)
    """
    scores = orbit.upright
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ValueError(
            f"answers need class scores (n, classes) with at least two classes, got outputs of shape {scores.shape}; "
            "return [1 - p, p] for one probability, and use neighbour_agreement for embeddings"
        )
    names = [str(i) for i in range(scores.shape[1])] if class_names is None else list(class_names)
    if len(names) != scores.shape[1]:
        raise ValueError(f"class_names must name {scores.shape[1]} classes, got {len(names)}")
    truth = None if labels is None else _checked_labels(labels, *scores.shape)
    answers = scores.argmax(1)
    flips, floors, control_flips, control_floor = orbit.read(
        lambda before, after: float((before.argmax(1) != after.argmax(1)).mean())
    )
    changed = np.stack([row.before.argmax(1) != row.after.argmax(1) for row in orbit.rows])  # (k, n)
    accuracy = calibration = upright_error = orbit_error = None
    if truth is not None:
        probabilities = [as_probabilities(row.after) for row in orbit.rows]
        accuracy = np.array([(row.after.argmax(1) == truth).mean() for row in orbit.rows])
        calibration = np.array([calibration_error(each, truth) for each in probabilities])
        upright_error = calibration_error(as_probabilities(scores), truth)
        orbit_error = calibration_error(np.concatenate(probabilities), np.tile(truth, len(probabilities)))
    by_class = answers if truth is None else truth
    classes = [_class_answers(orbit, changed, by_class == i, names[i]) for i in np.unique(by_class)]
    return AnswerReport(
        group=orbit.group,
        elements=tuple(row.name for row in orbit.rows),
        degrees=np.array([row.degrees for row in orbit.rows]),
        exact=np.array([row.exact for row in orbit.rows]),
        flips=flips,
        floors=floors,
        changed=changed,
        control=orbit.control.name,
        control_flips=control_flips,
        control_floor=control_floor,
        discrimination=1 - float(np.bincount(answers).max() / len(answers)),
        classes=tuple(sorted(classes, key=lambda each: each.floor - each.flips)),
        accuracy=accuracy,
        calibration=calibration,
        calibration_upright=upright_error,
        calibration_orbit=orbit_error,
    )


def as_probabilities(scores: NDArray) -> NDArray:
    """Scores as probabilities: as they are if they are non-negative and sum to one, else their softmax.

    Parameters
    ----------
    scores : (n, classes) array

    Returns
    -------
    (n, classes) array

    Examples
    --------
    >>> as_probabilities(np.array([[0.0, 0.0], [3.0, 3.0]])).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    if (scores >= 0).all() and np.allclose(scores.sum(1), 1, atol=1e-3):
        return scores
    exponents = np.exp(scores - scores.max(1, keepdims=True))
    probabilities: NDArray = exponents / exponents.sum(1, keepdims=True)
    return probabilities


def calibration_error(probabilities: NDArray, labels: NDArray) -> float:
    """Expected calibration error of probabilities (n, classes) over bins of confidence of equal width."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, right - confidence, minlength=_BINS)  # sum of accuracy minus confidence, by bin
    return float(np.abs(gaps).sum() / len(labels))


def _class_answers(orbit: OrbitOutputs, changed: NDArray, members: NDArray, name: str) -> ClassAnswers:
    returned = [(row.before.argmax(1) != row.returned.argmax(1))[members].mean() for row in orbit.rows]
    flips = changed[:, members].mean(1)  # (k,)
    worst = int((flips - np.array(returned)).argmax())
    row = orbit.rows[worst]
    before, after = as_probabilities(row.before), as_probabilities(row.after)
    at = np.arange(len(before)), row.before.argmax(1)
    indices = np.flatnonzero(changed[worst] & members)
    loss = (before[at] - after[at])[indices]
    shown = tuple(int(i) for i in indices[np.argsort(-loss, kind="stable")][:_SHOWN])
    count = int(members.sum())
    return ClassAnswers(name, count, row.name, row.degrees, float(flips[worst]), float(returned[worst]), shown)


def _checked_labels(labels: ArrayLike, n: int, classes: int) -> NDArray:
    truth = np.asarray(labels)
    if truth.shape != (n,) or not np.issubdtype(truth.dtype, np.integer):
        raise ValueError(f"labels must be {n} whole numbers, one per image, got {truth.dtype} of shape {truth.shape}")
    if truth.min() < 0 or truth.max() >= classes:
        raise ValueError(f"labels must be from 0 to {classes - 1}, got {truth.min()} to {truth.max()}")
    return truth
