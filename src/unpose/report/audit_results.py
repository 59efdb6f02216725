"""What the page of an audit shows, as plain values and arrays, so that this room depends on no other.

Convention
----------
Shares are between 0 and 1, and None where they were not measured. Angles are in degrees, counter-clockwise. Images are
``(h, w)`` or ``(h, w, c)``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from numpy.typing import NDArray

from unpose.report.results import Rejected, Reproduction


@dataclass(frozen=True)
class AuditedElement:
    """What one transformation of the images does to a model.

    Parameters
    ----------
    name : str
        Such as "turn 90" or "mirror, turn 45".
    exact : bool
        Whether it only permutes pixels.
    error, floor : float
        Relative change of the output, and what interpolation alone changes.
    changed, changed_floor : float, optional
        Share of the answers that change, and by interpolation alone.
    accuracy : float, optional
        Share of right answers after the transformation.
    degrees : float, default nan
        Angle of a pure rotation.
    neighbours, neighbours_floor : float, optional
        Share of the nearest neighbours of an embedding that stay the same, and after interpolation alone.

    Examples
    --------
    >>> AuditedElement("turn 45", False, 0.2, 0.1, 0.07, 0.02).excess
    0.05
    """

    name: str
    exact: bool
    error: float
    floor: float
    changed: float | None = None
    changed_floor: float | None = None
    accuracy: float | None = None
    degrees: float = math.nan
    neighbours: float | None = None
    neighbours_floor: float | None = None

    @property
    def excess(self) -> float:
        """What interpolation does not explain: of the answers that change or, without answers, of the error."""
        if self.changed is not None:
            return max(0.0, round(self.changed - (self.changed_floor or 0.0), 12))
        return max(0.0, self.error - self.floor)


@dataclass(frozen=True)
class AuditedClass:
    """How stable the answers to the images of one class are.

    Parameters
    ----------
    name : str
        The class.
    count : int
        Number of its images.
    worst : str
        The element that changes most answers.
    changed, changed_floor : float
        Share of the answers that this element changes, and by interpolation alone.
    accuracy, turned_accuracy : float, optional
        Share of right answers to the images as they are, and as the mean over the other elements.

    Examples
    --------
    >>> AuditedClass("fish", 20, "turn 90", 0.4, 0.0).accuracy is None
    True
    """

    name: str
    count: int
    worst: str
    changed: float
    changed_floor: float
    accuracy: float | None = None
    turned_accuracy: float | None = None


@dataclass(frozen=True)
class AuditedModule:
    """The part of one module of a network in its error.

    Parameters
    ----------
    name, module : str
        Qualified name in the network, and name of its class.
    depth : int
        Nesting depth.
    error : float
        The error that the module causes itself; NaN if it could not be measured.
    breaks : bool
        Whether the audit names it as a cause.
    remark : str, default ""
        What else is known.

    Examples
    --------
    >>> AuditedModule("layer3.pool", "MaxPool2d", 1, 0.3, True).breaks
    True
    """

    name: str
    module: str
    depth: int
    error: float
    breaks: bool
    remark: str = ""


@dataclass(frozen=True)
class LayerShare:
    """What one module contributes to the change of the output under small rotations.

    Parameters
    ----------
    name, module : str
        Qualified name in the network, and name of its class.
    share : float
        Signed share of the whole change; all shares add up to 1.
    cause : str, default ""
        "aliasing", "border", "position", or empty.

    Examples
    --------
    >>> LayerShare("layer3.pool", "MaxPool2d", 0.8, "aliasing").share
    0.8
    """

    name: str
    module: str
    share: float
    cause: str = ""


@dataclass(frozen=True)
class WorstImage:
    """An image whose answer changes, as the model sees it before and after.

    Parameters
    ----------
    name : str
        Name of its file.
    element : str
        The transformation.
    before, after : str
        The answers to the image and to the transformed image.
    image, moved : (h, w) or (h, w, c) array
        Both images.
    label : str, default ""
        Its class, if known.
    certainty, moved_certainty : float, optional
        Probability that the model gives to each of these answers.

    Examples
    --------
    >>> import numpy as np
    >>> WorstImage("a.png", "turn 90", "fish", "bird", np.zeros((8, 8)), np.zeros((8, 8))).after
    'bird'
    """

    name: str
    element: str
    before: str
    after: str
    image: NDArray
    moved: NDArray
    label: str = ""
    certainty: float | None = None
    moved_certainty: float | None = None


@dataclass(frozen=True)
class Repair:
    """Something that was tried to make the model invariant, measured on images that were not used to choose it.

    Parameters
    ----------
    name : str
        What was tried; the first row is the model as it is.
    upright, turned : float
        Share of right answers, or of agreement with the plain model, as found and as mean over the other elements.
    changed : float
        Share of the answers that the worst element changes.
    calls : float
        Calls of the model for each image.
    chosen : bool, default False
        Whether it was recommended, on the other images.

    Examples
    --------
    >>> Repair("mean over c4", 0.9, 0.9, 0.0, 4.0, chosen=True).changed
    0.0
    """

    name: str
    upright: float
    turned: float
    changed: float
    calls: float
    chosen: bool = False


@dataclass(frozen=True)
class Comparison:
    """Two versions of a model, element by element.

    Parameters
    ----------
    other : str
        Name of the older model.
    elements : sequence of (str, float, float)
        Element, and the excess of the older and of this model (see :attr:`AuditedElement.excess`).
    answers_differ : float, optional
        Share of the images as found to which the two give different answers.
    images : sequence of (str, str, str), default ()
        Name, answer of the older and answer of this model, where they differ.
    accuracies : (float, float), optional
        Share of right answers to the images as found.
    turned_accuracies : (float, float), optional
        The same as the mean over the other elements.
    fixed, broken : int, default 0
        Number of images whose answer changes under some element with the older model only, and with this one only.
    p_value : float, default 1.0
        Probability of numbers so uneven if both were equally good (sign test).

    Examples
    --------
    >>> Comparison("old.onnx", [("turn 90", 0.2, 0.1)]).better
    ['turn 90']
    """

    other: str
    elements: Sequence[tuple[str, float, float]]
    answers_differ: float | None = None
    images: Sequence[tuple[str, str, str]] = ()
    accuracies: tuple[float, float] | None = None
    turned_accuracies: tuple[float, float] | None = None
    fixed: int = 0
    broken: int = 0
    p_value: float = 1.0

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

    Parameters
    ----------
    count : int
        Number of pairs.
    real, digital, resampled : float
        Mean change of the output between the photographs, when the first is turned digitally, and when it is turned
        and turned back; relative to the distance of the outputs of two things.
    changed, digital_changed, resampled_changed : float, optional
        Share of the pairs whose answer changes, for each of these.
    pairs : sequence of (str, str, str, str), default ()
        Names and answers of the pairs whose answers differ.
    estimated : int, default 0
        Number of pairs whose angle was estimated from the photographs.
    uncertainty : float, optional
        Median uncertainty of these angles in degrees.
    unclear : sequence of str, default ()
        Photographs that were left out because their angle could not be estimated.

    Examples
    --------
    >>> RealPairs(20, 0.3, 0.2, 0.1).count
    20
    """

    count: int
    real: float
    digital: float
    resampled: float
    changed: float | None = None
    digital_changed: float | None = None
    resampled_changed: float | None = None
    pairs: Sequence[tuple[str, str, str, str]] = ()
    estimated: int = 0
    uncertainty: float | None = None
    unclear: Sequence[str] = ()


@dataclass(frozen=True)
class AuditedMeasure:
    """A further measure of a model, as one number beside what it is compared with.

    Parameters
    ----------
    key, title : str
        Its name in JSON, and on the page.
    value : float
        What was measured.
    floor : float, optional
        The same when interpolation alone acts.
    control : float, optional
        The same for a transformation outside the group.
    chance : float, optional
        The same for random labels, or for different images.
    reading : str, default ""
        How to read it, in full sentences.

    Examples
    --------
    >>> AuditedMeasure("gradients", "Explanations by gradients", 0.1, control=0.2).value
    0.1
    """

    key: str
    title: str
    value: float
    floor: float | None = None
    control: float | None = None
    chance: float | None = None
    reading: str = ""


@dataclass(frozen=True)
class AuditResults:
    """Everything that the page of an audit shows.

    Parameters
    ----------
    model, group : str
        Name of the model, and of the group of transformations.
    images : str
        Where the images come from, in words.
    count : int
        Number of images that were measured.
    elements : sequence of AuditedElement
        The first is the identity.
    control : AuditedElement
        A transformation outside the group.
    discrimination : float
        How much the outputs of different images differ, relative to their size.
    tolerance : float
        Largest error of an exact element that counts as rounding.
    reproduction : Reproduction
        Command, seed, version and settings.
    nearly_constant : bool, default False
        Whether the model gives nearly the same output, or the same answer, to every image.
    angles : sequence of AuditedElement, default ()
        Rotations of the full circle, for the polar plot.
    angles_count : int, default 0
        Number of images that they were measured on.
    classes : sequence of AuditedClass, default ()
        Worst first.
    modules : sequence of AuditedModule, default ()
        In order of execution.
    shares : sequence of LayerShare, default ()
        What each module contributes under small rotations.
    worst_images : sequence of WorstImage, default ()
        Worst first.
    repairs : sequence of Repair, default ()
        The first is the model as it is.
    repair_images : (int, int), default (0, 0)
        Number of images that a repair was chosen on, and that it was measured on.
    advice : str, default ""
        What would help, in full sentences.
    labelled : bool, default False
        Whether accuracies refer to given labels.
    comparison : Comparison, optional
        An older version of the model.
    pairs : RealPairs, optional
        Pairs of photographs.
    measures : sequence of AuditedMeasure, default ()
        Further measures.
    outputs : sequence of (str, str, str), default ()
        If the model has several outputs: name, verdict in short and address of the page of each.
    failures : sequence of Rejected, default ()
        Images that the model failed on, which are left out, and files that could not be read.
    remarks : sequence of str, default ()
        What a reader must know, in full sentences.

    Examples
    --------
    >>> still = AuditedElement("identity", True, 0.0, 0.0)
    >>> results = AuditResults(
    ...     "model.onnx", "c4", "photos", 20, [still, AuditedElement("turn 90", True, 0.2, 0.0)], still, 0.9, 1e-5,
    ...     Reproduction("unpose audit model.onnx", seed=0, version="0.1.0"),
    ... )
    >>> results.worst.name, results.holds
    ('turn 90', False)
    """

    model: str
    group: str
    images: str
    count: int
    elements: Sequence[AuditedElement]
    control: AuditedElement
    discrimination: float
    tolerance: float
    reproduction: Reproduction
    nearly_constant: bool = False
    angles: Sequence[AuditedElement] = ()
    angles_count: int = 0
    classes: Sequence[AuditedClass] = ()
    modules: Sequence[AuditedModule] = ()
    shares: Sequence[LayerShare] = ()
    worst_images: Sequence[WorstImage] = ()
    repairs: Sequence[Repair] = ()
    repair_images: tuple[int, int] = (0, 0)
    advice: str = ""
    labelled: bool = False
    comparison: Comparison | None = None
    pairs: RealPairs | None = None
    measures: Sequence[AuditedMeasure] = ()
    outputs: Sequence[tuple[str, str, str]] = ()
    failures: Sequence[Rejected] = ()
    remarks: Sequence[str] = field(default_factory=tuple)

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
        return max(self.moved, key=lambda element: (element.excess, element.error))

    @property
    def holds(self) -> bool:
        """Whether every exact element is within the tolerance."""
        return all(element.error <= self.tolerance for element in self.elements if element.exact)

    @property
    def decides(self) -> bool:
        """Whether there is an exact element other than the identity."""
        return any(element.exact for element in self.elements[1:])
