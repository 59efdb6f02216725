"""What the page of an audit shows, as plain values and arrays.

Convention
----------
Shares are between 0 and 1, and None where they were not measured. Angles are in degrees, counter-clockwise. Images are
``(h, w)`` or ``(h, w, c)``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import NDArray

from unpose.report.results import Rejected, Reproduction


@dataclass(frozen=True)
class AuditedElement:
    """What one transformation of the images does to a model.

    >>> AuditedElement("turn 45", False, 0.2, 0.1, 0.07, 0.02).excess
    0.05
    """

    name: str  # such as "turn 90" or "mirror, turn 45"
    exact: bool  # whether it only permutes pixels
    error: float  # relative change of the output
    floor: float  # what interpolation alone changes
    changed: float | None = None  # share of the answers that change
    changed_floor: float | None = None  # and by interpolation alone
    accuracy: float | None = None  # share of right answers after the transformation
    degrees: float = math.nan  # angle of a pure rotation
    neighbours: float | None = None  # share of the nearest neighbours of an embedding that stay the same
    neighbours_floor: float | None = None  # and after interpolation alone

    @property
    def excess(self) -> float:
        """What interpolation does not explain: of the answers that change or, without answers, of the error."""
        if self.changed is not None:
            return max(0.0, round(self.changed - (self.changed_floor or 0.0), 12))
        return max(0.0, self.error - self.floor)


@dataclass(frozen=True)
class AuditedClass:
    """How stable the answers to the images of one class are."""

    name: str
    count: int  # of its images
    worst: str  # the element that changes most answers
    changed: float  # share of the answers that this element changes
    changed_floor: float  # and by interpolation alone
    accuracy: float | None = None  # share of right answers to the images as they are
    turned_accuracy: float | None = None  # the mean of the same over the other elements


@dataclass(frozen=True)
class AuditedModule:
    """The part of one module of a network in its error."""

    name: str  # qualified, in the network
    module: str  # name of its class
    depth: int  # of nesting
    error: float  # that the module causes itself; NaN if it could not be measured
    breaks: bool  # whether the audit names it as a cause
    remark: str = ""


@dataclass(frozen=True)
class LayerShare:
    """What one module contributes to the change of the output under small rotations."""

    name: str  # qualified, in the network
    module: str  # name of its class
    share: float  # signed, of the whole change; all shares add up to 1
    cause: str = ""  # "aliasing", "border" or "position"


@dataclass(frozen=True)
class WorstImage:
    """An image whose answer changes, as the model sees it before and after."""

    name: str  # of its file
    element: str  # the transformation
    before: str  # the answer to the image
    after: str  # the answer to the transformed image
    image: NDArray
    moved: NDArray
    label: str = ""  # its class, if known
    certainty: float | None = None  # probability that the model gives to the answer before
    moved_certainty: float | None = None  # and to the answer after


@dataclass(frozen=True)
class Repair:
    """Something that was tried to make the model invariant, measured on images that were not used to choose it."""

    name: str  # what was tried; the first row is the model as it is
    upright: float  # share of right answers, or of agreement with the plain model, to the images as found
    turned: float  # the mean of the same over the other elements
    changed: float  # share of the answers that the worst element changes
    calls: float  # of the model for each image
    chosen: bool = False  # whether it was recommended, on the other images


@dataclass(frozen=True)
class Comparison:
    """Two versions of a model, element by element.

    >>> Comparison("old.onnx", [("turn 90", 0.2, 0.1)]).better
    ['turn 90']
    """

    other: str  # name of the older model
    elements: Sequence[tuple[str, float, float]]  # name, and AuditedElement.excess of the older and of this model
    answers_differ: float | None = None  # share of the images as found to which the two give different answers
    images: Sequence[tuple[str, str, str]] = ()  # name, answer of the older and of this model, where they differ
    accuracies: tuple[float, float] | None = None  # shares of right answers to the images as found
    turned_accuracies: tuple[float, float] | None = None  # the mean of the same over the other elements
    fixed: int = 0  # images whose answer changes under some element with the older model only
    broken: int = 0  # and with this model only
    p_value: float = 1.0  # probability of numbers so uneven if both were equally good (sign test)

    @property
    def better(self) -> list[str]:
        """Elements under which this model changes less than the older one."""
        return [name for name, old, new in self.elements if new < old]

    @property
    def worse(self) -> list[str]:
        """Elements under which this model changes more than the older one."""
        return [name for name, old, new in self.elements if new > old]


@dataclass(frozen=True)
class RealPairs:
    """Photographs of the same things at several angles, beside the same turns made by resampling.

    Changes of the output are relative to the distance of the outputs of two things.
    """

    count: int  # of pairs
    real: float  # mean change of the output between the photographs
    digital: float  # when the first is turned digitally
    resampled: float  # when the first is turned and turned back
    changed: float | None = None  # share of the pairs whose answer changes between the photographs
    digital_changed: float | None = None
    resampled_changed: float | None = None
    pairs: Sequence[tuple[str, str, str, str]] = ()  # names and answers of the pairs whose answers differ
    estimated: int = 0  # pairs whose angle was estimated from the photographs
    uncertainty: float | None = None  # median of these angles, in degrees
    unclear: Sequence[str] = ()  # photographs that were left out because their angle could not be estimated


@dataclass(frozen=True)
class AuditedMeasure:
    """A further measure of a model, as one number beside what it is compared with."""

    key: str  # its name in JSON
    title: str  # its name on the page
    value: float
    floor: float | None = None  # the same when interpolation alone acts
    control: float | None = None  # for a transformation outside the group
    chance: float | None = None  # for random labels, or for different images
    reading: str = ""  # how to read it, in full sentences


@dataclass(frozen=True)
class AuditResults:
    """Everything that the page of an audit shows.

    >>> still = AuditedElement("identity", True, 0.0, 0.0)
    >>> results = AuditResults(
    ...     "model.onnx", "c4", "photos", 20, [still, AuditedElement("turn 90", True, 0.2, 0.0)], still, 0.9, 1e-5,
    ...     Reproduction("unpose audit model.onnx", seed=0, version="0.1.0"),
    ... )
    >>> results.worst.name, results.holds
    ('turn 90', False)
    """

    model: str
    group: str  # of transformations
    images: str  # where they come from, in words
    count: int  # of images that were measured
    elements: Sequence[AuditedElement]  # the first is the identity
    control: AuditedElement  # a transformation outside the group
    discrimination: float  # how much the outputs of different images differ, relative to their size
    tolerance: float  # largest error of an exact element that counts as rounding
    reproduction: Reproduction
    fail_above: float | None = None  # largest excess that passes; None if exact elements must be within the tolerance
    unsteady: str = ""  # why the model is no function of the image: "random", "stateful" or "batch"
    nearly_constant: bool = False  # whether the model gives nearly the same output or answer to every image
    angles: Sequence[AuditedElement] = ()  # rotations of the full circle, for the polar plot
    angles_count: int = 0  # images that they were measured on
    classes: Sequence[AuditedClass] = ()  # worst first
    modules: Sequence[AuditedModule] = ()  # in order of execution
    shares: Sequence[LayerShare] = ()
    worst_images: Sequence[WorstImage] = ()  # worst first
    repairs: Sequence[Repair] = ()  # the first is the model as it is
    repair_images: tuple[int, int] = (0, 0)  # images that a repair was chosen on, and that it was measured on
    advice: str = ""  # what would help, in full sentences
    labelled: bool = False  # whether accuracies refer to given labels
    comparison: Comparison | None = None  # with an older version of the model
    pairs: RealPairs | None = None
    measures: Sequence[AuditedMeasure] = ()
    outputs: Sequence[tuple[str, str, str]] = ()  # of several: name, verdict in short and address of the page of each
    failures: Sequence[Rejected] = ()  # images that the model failed on, and files that could not be read
    remarks: Sequence[str] = ()  # what a reader must know, in full sentences

    def __post_init__(self) -> None:
        if not self.elements:
            raise ValueError("an audit needs at least one element, got none")
        if self.count < 1:
            raise ValueError(f"an audit needs at least one image, got {self.count}")

    @property
    def has_answers(self) -> bool:
        """Whether the outputs are answers, such as classes, so that their changes can be counted."""
        return self.elements[0].changed is not None

    @property
    def moved(self) -> Sequence[AuditedElement]:
        """All elements but the identity; the identity alone if there is no other."""
        return self.elements[1:] or self.elements

    @property
    def worst(self) -> AuditedElement:
        """The element with the largest excess, and among equals with the largest error."""
        errors = {element.name: -1.0 if math.isnan(element.error) else element.error for element in self.moved}
        return max(self.moved, key=lambda element: (element.excess, errors[element.name]))

    @property
    def passes(self) -> bool:
        """The verdict, which the page, the exit status, JSON and JUnit state.

        Without ``fail_above`` the model must be a function of the image and every exact element within the tolerance.
        With it, no element may change more, and a random model passes if its own noise changes no more either.
        """
        if self.nearly_constant or self.unsteady in ("stateful", "batch"):
            return False
        if self.fail_above is None:
            return self.holds and not self.unsteady
        return all(element.excess <= self.fail_above for element in self.elements)

    @property
    def state(self) -> str:
        """The verdict as "good" or "bad"; "open" if it passes although elements change that the verdict leaves out."""
        if not self.passes:
            return "bad"
        if self.fail_above is not None:
            return "good"
        settled = self.worst.excess == 0 if self.has_answers else self.decides
        return "good" if settled else "open"

    @property
    def holds(self) -> bool:
        """Whether every exact element is within the tolerance."""
        return all(element.error <= self.tolerance for element in self.elements if element.exact)

    @property
    def decides(self) -> bool:
        """Whether there is an exact element other than the identity."""
        return any(element.exact for element in self.elements[1:])
