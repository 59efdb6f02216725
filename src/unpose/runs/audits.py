"""The audit of a whole model: errors, answers, angles, modules, worst images and a repair that was tried.

The measures are those of :mod:`unpose.audit`, the repairs those of :mod:`unpose.adapt`; here they are put together, so
that commands and Python get the same results. The model is called through
:class:`~unpose.runs.remembered_calls.RememberedCalls`, once for each picture.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unpose.audit import (
    AnswerReport,
    CallChecks,
    EquivarianceReport,
    ModelCallError,
    NeighbourReport,
    NetworkReport,
    OrbitOutputs,
    answer_changes,
    as_probabilities,
    audit_modules,
    check_calls,
    equivariance_error,
    evaluation,
    lie_derivative,
    neighbour_agreement,
    orbit_outputs,
    version_diff,
)
from unpose.audit.calls import first_line
from unpose.audit.precision import measure_precision, model_type
from unpose.files import readable_bytes
from unpose.report import Rejected, Reproduction, evenly_spaced
from unpose.report.audit import (
    AuditedClass,
    AuditedElement,
    AuditedModule,
    AuditResults,
    Comparison,
    LayerShare,
    WorstImage,
)
from unpose.runs.audited_images import AuditedImages
from unpose.runs.measures import MEASURES, device_of, further_measures
from unpose.runs.pairs import real_pairs
from unpose.runs.remembered_calls import OutputView, RememberedCalls
from unpose.runs.repairs import advice, try_repairs

__all__ = [
    "MEASURES",
    "AuditRun",
    "AuditedImages",
    "OutputView",
    "RememberedCalls",
    "compare_audits",
    "real_pairs",
    "run_audit",
]

Progress = Callable[[str, int, int], None]

N_ANGLES = 24
"""Rotations of the full circle in the polar plot."""
ANGLE_IMAGES = 64
"""Images that they are measured on, evenly chosen."""
WORST_SHOWN = 12
"""Images shown with their answers before and after."""
MODULE_IMAGES = 8
"""Images on which single modules are tested."""
_COPIES = 8
"""Copies of the pictures, and of maps, that are held at once."""
LEAST_NEIGHBOURS = 9
"""Images from which on the neighbours of embeddings are compared."""


@dataclass(frozen=True)
class AuditRun:
    """The result of :func:`run_audit`."""

    report: EquivarianceReport  # errors of the outputs by element
    answers: AnswerReport | None  # changes of the answers, for scores of classes
    modules: NetworkReport | None  # those of a torch network, if it is not invariant
    images: AuditedImages  # that were measured
    results: AuditResults  # everything as the page shows it
    answer_names: Sequence[str] = ()  # the answer to each image; none without scores


def run_audit(
    model: Callable[[Tensor], Any],
    images: AuditedImages,
    group: str = "c4",
    *,
    kind: str | None = None,
    network: nn.Module | None = None,
    name: str = "model",
    tolerance: float | None = None,
    angles: bool = True,
    repair: bool = True,
    steps: int = 0,
    measures: Sequence[str] = (),
    random_state: int = 0,
    memory: int | None = None,
    reproduction: Reproduction | None = None,
    rejected: Sequence[tuple[str, str]] = (),
    progress: Progress | None = None,
) -> AuditRun:
    """Measure how invariant a model is, find what breaks it, and try what would help.

    Parameters
    ----------
    model : callable
        From a tensor (n, c, h, w) to a tensor or array with one entry per image. A
        :class:`RememberedCalls` keeps its answers.
    images : AuditedImages
        At least two images, square if the group has quarter turns.
    group : str, default "c4"
        Transformations to test.
    kind : {"scores", "embedding", "image"}, optional
        What the model returns. By default maps (n, ..., h, w) move with the image (with fewer than four axes those of
        the size of the images), vectors of two or more entries are scores of classes unless the images are noise, and
        single numbers must not change. Whole numbers (n, ..., h, w) are maps of labels.
    network : torch.nn.Module, optional
        The network in ``model`` whose modules are tested if it is not invariant.
    name : str, default "model"
        What the page calls the model.
    tolerance : float, optional
        Largest error of an exact element that counts as rounding; by default measured, see
        :func:`unpose.audit.equivariance_error`.
    angles : bool, default True
        Whether to measure the full circle in steps of 15 degrees, for the polar plot.
    repair : bool, default True
        Whether to try repairs if answers change.
    steps : int, default 0
        Training steps of a canonicalizer among the repairs; 0 trains none.
    measures : sequence of {"explanations", "completeness"}, default ()
        Measures that call the model more often; those that need no or few further calls are always taken.
    random_state : int, default 0
        Seed.
    memory : int, optional
        Bytes that pictures and answers may take; more is refused once the size of an answer is known.
    reproduction : Reproduction, optional
        What the page says about the command.
    rejected : sequence of (str, str), default ()
        Files that could not be read, and why.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    AuditRun

    Raises
    ------
    ModelCallError
        If the model fails altogether, or on so many images that fewer than two remain.
    ValueError
        If more ``memory`` is needed.

    Examples
    --------
    >>> images = AuditedImages(torch.rand(6, 1, 9, 9, generator=torch.Generator().manual_seed(0)), list("abcdef"))
    >>> audit = run_audit(lambda x: x.mean((1, 3)), images, "c4", angles=False, repair=False)
    >>> bool(audit.results.elements[1].changed > 0)
    True
    """
    f = model if isinstance(model, RememberedCalls) else RememberedCalls(model)
    outputs = f(images.batch[: f.batch_size])
    kind = kind or _kind_of(outputs, images)
    if memory is not None:
        _check_memory(f, images.batch, outputs[0], group, random_state, kind, angles, memory)
    action = "image" if kind == "image" else "invariant"
    report = _measured(f, images.batch, group, action, random_state, "transformations", progress)
    images, failures = _without_failures(f, images)
    if failures:
        report = equivariance_error(f, images.batch, group, action, random_state=random_state)
    steady = _steadiness(f, network, images.batch)
    if kind == "scores" and (outputs.ndim != 2 or outputs.shape[1] < 2):
        raise ValueError(f"scores must be (n, classes) with two classes or more, got {tuple(outputs.shape)}")
    # Remembered answers are equal and only read, so the error of the identity and the tolerance come from other calls.
    precision = measure_precision(f.fresh, images.batch[evenly_spaced(len(images), MODULE_IMAGES)])
    errors = np.array([0.0 if steady.repeats else steady.difference, *report.errors[1:]])
    report = replace(report, errors=errors, tolerance=precision.tolerance(""))
    tolerance = report.tolerance if tolerance is None else tolerance
    orbit = answers = None
    class_names = list(images.class_names)
    mismatch: list[str] = []
    if kind == "scores":
        orbit = orbit_outputs(f, images.batch, group, random_state=random_state)
        images, mismatch = _with_fitting_labels(images, outputs.shape[1])
        class_names = _class_names(images, outputs.shape[1])
        answers = answer_changes(orbit, images.labels, class_names)
    neighbours = around = None
    if kind == "embedding" and outputs.ndim == 2 and outputs.shape[1] > 1:
        around = orbit_outputs(f, images.batch, group, random_state=random_state)
        if len(images) >= LEAST_NEIGHBOURS:
            neighbours = neighbour_agreement(around, min(10, len(images) // 3))
    modules, remarks = _modules(network, images, report, group, action, tolerance)
    remarks = [*_unsteady(steady), *report_remarks(report), *mismatch, *remarks]
    if f.takes_one or (isinstance(f.model, OutputView) and f.model.takes_one):
        remarks.append("The model takes one image at a time, so it was called once for each.")
    turned = _angles(f, images, action, kind, progress) if angles else []
    repairs, counts, text = [], (0, 0), ""
    if repair and answers is not None and answers.flips[1:].any():
        tried = None
        try:
            tried = try_repairs(
                f.strict, images.batch, images.labels, group, steps=steps, random_state=random_state, progress=progress
            )
        except ValueError as error:  # the model fails on pictures that only the repairs need
            remarks.append(f"Repairs could not be tried: {first_line(error).rstrip('.')}.")
        if tried is not None:
            repairs, counts = tried.rows, tried.counts
            text = advice(repairs, counts[1], images.labels is not None)
    further, missing = further_measures(
        f, images.batch, group, kind, orbit or around, network=network, labels=images.labels, wanted=measures,
        random_state=random_state, progress=progress,
    )  # fmt: skip
    remarks += missing
    results = AuditResults(
        model=name,
        group=report.group,
        images=images.source,
        count=len(images),
        elements=_elements(report, answers, steady, neighbours),
        control=_control(report, answers, orbit, images.labels),
        discrimination=report.discrimination,
        tolerance=tolerance,
        unsteady=steady.cause,
        nearly_constant=report.is_nearly_constant or (answers is not None and answers.discrimination == 0),
        reproduction=reproduction or Reproduction("", random_state, ""),
        angles=turned,
        angles_count=min(len(images), ANGLE_IMAGES) if turned else 0,
        classes=_classes(answers, orbit, images.labels, class_names),
        modules=_module_rows(modules),
        shares=_shares(network, images, report, action, tolerance),
        worst_images=_worst_images(images, report, orbit, group, class_names, random_state),
        repairs=repairs,
        repair_images=counts,
        advice=text,
        labelled=images.labels is not None,
        measures=further,
        failures=[*failures, *(Rejected(*each) for each in rejected)],
        remarks=remarks,
    )
    said = [] if orbit is None else [class_names[i] for i in orbit.upright.argmax(1)]
    return AuditRun(report, answers, modules, images, results, said)


def compare_audits(old: AuditRun, new: AuditRun) -> Comparison:
    """What changed from one version of a model to another; both audits need the same group and seed.

    >>> images = AuditedImages(torch.rand(6, 1, 9, 9, generator=torch.Generator().manual_seed(0)), list("abcdef"))
    >>> rows, sums = (
    ...     run_audit(f, images, "c4", angles=False, repair=False)
    ...     for f in (lambda x: x.mean((1, 3)), lambda x: x.sort(3).values.mean((1, 2)))
    ... )
    >>> len(compare_audits(rows, sums).elements)
    3
    """
    names = [row.name for row in new.results.elements]
    if [row.name for row in old.results.elements] != names:
        raise ValueError("audits can be compared if they have the same group and seed")
    if old.results.has_answers != new.results.has_answers:
        raise ValueError("one model returns scores of classes and the other does not; say what they return with kind")
    elements = [
        (a.name, a.excess, b.excess) for a, b in zip(old.results.elements[1:], new.results.elements[1:], strict=True)
    ]
    differ, images, diff = None, [], None
    if old.answers is not None and new.answers is not None and list(old.images.names) == list(new.images.names):
        diff = version_diff(old.answers, new.answers)
    if new.answer_names:
        before = dict(zip(old.images.names, old.answer_names, strict=True))
        both = [(name, before[name], said) for name, said in zip(new.images.names, new.answer_names, strict=True)
                if name in before]  # fmt: skip
        images = [row for row in both if row[1] != row[2]]
        differ = len(images) / len(both) if both else None
    upright = turned = None
    accuracies = [[row.accuracy for row in run.results.elements] for run in (old, new)]
    if all(value is not None for values in accuracies for value in values) and len(names) > 1:
        (old_upright, *old_turned), (new_upright, *new_turned) = np.array(accuracies, dtype=float).tolist()
        upright, turned = (old_upright, new_upright), (float(np.mean(old_turned)), float(np.mean(new_turned)))
    counts = (0, 0, 1.0) if diff is None else (len(diff.fixed), len(diff.broken), diff.p_value)
    return Comparison(old.results.model, elements, differ, images, upright, turned, *counts)


def report_remarks(report: EquivarianceReport) -> list[str]:
    """The notes of a report that a reader of the page must know, as sentences."""
    skipped = ("not repeatable", "far above the floor", "nearly constant")  # said elsewhere
    texts = [text.replace("f is", "the model is") for text in report.remarks() if not text.startswith(skipped)]
    return [f"{text[0].upper()}{text[1:]}." for text in texts]


def _steadiness(f: RememberedCalls, network: nn.Module | None, batch: Tensor) -> CallChecks:
    """Whether the model is a function of each image; a network is copied for this, so that it keeps its state."""
    some = batch[:MODULE_IMAGES]
    model = f.model.fresh if isinstance(f.model, OutputView) else f.model
    try:
        if network is not None:
            model, some = network, some.to(device_of(network), model_type(network, some))
        with evaluation(model):
            return check_calls(model, some)
    except Exception:  # a model of another shape, of one image, or of full batches
        return check_calls(f.fresh, batch[:MODULE_IMAGES])


def _unsteady(checks: CallChecks) -> list[str]:
    """What a reader must know about a model that is no function of the image, in full sentences."""
    if checks.cause == "batch":
        return [
            "The answer to an image depends on the other images of the same call (by "
            f"{checks.difference:.2g} of its size), as with batch normalisation in training mode."
        ]
    if checks.repeats:
        return []
    return [
        f"The model {'is random' if checks.cause == 'random' else 'keeps state'}: two calls on the same images differ "
        f"by {checks.difference:.2g} of their size, and {100 * checks.changed:.0f} % of the answers change. The "
        "figures include this; switch off dropout and random augmentation."
    ]


def _without_failures(f: RememberedCalls, images: AuditedImages) -> tuple[AuditedImages, list[Rejected]]:
    """Leave out the images on which the model failed."""
    failed = f.failed_rows
    if not failed:
        return images, []
    kept = [i for i in range(len(images)) if i not in failed]
    left = [Rejected(images.names[i], message) for i, message in sorted(failed.items())]
    if len(kept) < 2:
        raise ModelCallError(
            f"the model fails on {len(failed)} of {len(images)} images, in some pose; at least two must be left. "
            f"{left[0].name}: {left[0].reason}"
        )
    return images.subset(kept), left


def _measured(
    f: RememberedCalls, batch: Tensor, group: str, action: str, seed: int, stage: str, progress: Progress | None
) -> EquivarianceReport:
    """Measure the errors, say how far it is, and list the images on which the model failed."""
    total = len(batch) * _number_of_calls(batch, group, seed)
    f.restart()
    f.progress = None if progress is None else lambda done: progress(stage, min(done, total), total)
    try:
        return equivariance_error(f, batch, group, action, random_state=seed)
    except ValueError as error:
        raise (error.__cause__ if isinstance(error.__cause__, ModelCallError) else error) from None
    finally:
        f.progress = None


def _check_memory(
    f: RememberedCalls, batch: Tensor, output: Tensor, group: str, seed: int, kind: str, angles: bool, memory: int
) -> None:
    """Refuse an audit whose pictures and answers need more memory than the budget."""
    calls = _number_of_calls(batch, group, seed)
    answers = len(batch) * calls
    if angles:
        answers += min(len(batch), ANGLE_IMAGES) * _number_of_calls(batch, f"c{N_ANGLES}", 0)
    kept = answers * output.nbytes
    if f.folder is not None:
        kept = min(kept, memory // 2)  # others are read again
    # Maps are compared one transformation after the other; other outputs are held over the whole orbit.
    copies = _COPIES if kind == "image" else 2 * calls
    needed = _COPIES * batch.nbytes + kept + copies * len(batch) * output.numel() * 8  # float64
    if needed > memory:
        raise ValueError(
            f"about {readable_bytes(needed)} are needed for {len(batch)} images of {tuple(batch.shape[1:])} and "
            f"outputs of {tuple(output.shape)}, more than the budget of {readable_bytes(memory)}; "
            f"raise the memory, or take {max(2, len(batch) * memory // needed)} images"
        )


def _number_of_calls(batch: Tensor, group: str, seed: int) -> int:
    """How often a measurement calls the model, counted on two images of noise."""
    calls = []

    def count(x: Tensor) -> Tensor:
        calls.append(1)
        return x.mean((2, 3))

    probe = torch.rand(2, 1, *batch.shape[-2:], generator=torch.Generator().manual_seed(0), dtype=batch.dtype)
    orbit_outputs(count, probe, group, random_state=seed)
    return len(calls)


def _kind_of(outputs: Tensor, images: AuditedImages) -> str:
    if outputs.ndim >= 4 or (outputs.ndim == 3 and outputs.shape[-2:] == images.batch.shape[-2:]):
        return "image"
    return "scores" if not images.are_noise and outputs.ndim == 2 and outputs.shape[1] >= 2 else "embedding"


def _with_fitting_labels(images: AuditedImages, count: int) -> tuple[AuditedImages, list[str]]:
    """Leave out labels that cannot be those of a model with this many scores."""
    if images.labels is None:
        return images, []
    known = len(images.class_names) or count
    if known == count and max(images.labels) < count:
        return images, []
    text = (
        f"The labels are not used: the model has {count} scores and the images have "
        f"{len(images.class_names) or max(images.labels) + 1} classes. Name the model's classes in the order of its "
        "scores."
    )
    return replace(images, labels=None, class_names=()), [text]


def _class_names(images: AuditedImages, count: int) -> list[str]:
    if len(images.class_names) == count:
        return list(images.class_names)
    return [str(i) for i in range(count)]


def _modules(
    network: nn.Module | None, images: AuditedImages, report: EquivarianceReport, group: str, action: str,
    tolerance: float,
) -> tuple[NetworkReport | None, list[str]]:  # fmt: skip
    if network is None or report.worst_exact <= tolerance or not report.decides:
        return None, []
    try:
        return audit_modules(network, _few(images, network), group, action, tolerance=tolerance), []
    except Exception as error:
        return None, [f"Single modules could not be tested: {first_line(error)}."]


def _shares(
    network: nn.Module | None, images: AuditedImages, report: EquivarianceReport, action: str, tolerance: float
) -> list[LayerShare]:
    """What each module contributes under small rotations, if there are rotations that change the output."""
    turns = [error for name, error in zip(report.elements, report.errors, strict=True) if "turn" in name]
    if network is None or not turns or max(turns) <= tolerance or report.is_nearly_constant:
        return []
    try:
        rows = lie_derivative(network, _few(images, network), ("rotation",), action).rows
    except Exception:  # networks that torch cannot differentiate raise many kinds of errors
        return []
    return [LayerShare(row.name, row.module, row.shares[0], row.cause) for row in rows]


def _few(images: AuditedImages, network: nn.Module) -> Tensor:
    """Some images, evenly chosen, on the device of the network and in its type."""
    chosen = images.batch[evenly_spaced(len(images), MODULE_IMAGES)]
    return chosen.to(device_of(network), model_type(network, chosen))


def _module_rows(modules: NetworkReport | None) -> list[AuditedModule]:
    if modules is None:
        return []
    culprits = set(modules.culprits)
    return [
        AuditedModule(
            row.name, row.module, row.depth, row.own_error, row.name in culprits,
            row.remark.removeprefix("<- breaks it").lstrip(" ,:;"),
        )
        for row in modules.rows
    ]  # fmt: skip


def _elements(
    report: EquivarianceReport, answers: AnswerReport | None, steady: CallChecks | None = None,
    neighbours: NeighbourReport | None = None,
) -> list[AuditedElement]:  # fmt: skip
    rows = []
    for i, name in enumerate(report.elements):
        changed = floor = accuracy = None
        degrees = math.nan
        if answers is not None:
            changed, floor = float(answers.flips[i]), float(answers.floors[i])
            accuracy = None if answers.accuracy is None else float(answers.accuracy[i])
            degrees = float(answers.degrees[i])
        if i == 0 and changed is not None and steady is not None:
            changed = steady.changed
        error, low = float(report.errors[i]), float(report.floors[i])
        near: tuple[float | None, float | None] = (None, None)
        if neighbours is not None:
            near = (float(neighbours.agreement[i]), float(neighbours.agreement_floors[i]))
        rows.append(AuditedElement(name, bool(report.exact[i]), error, low, changed, floor, accuracy, degrees, *near))
    return rows


def _control(
    report: EquivarianceReport, answers: AnswerReport | None, orbit: OrbitOutputs | None, labels: Sequence[int] | None
) -> AuditedElement:
    changed = floor = accuracy = None
    if answers is not None and orbit is not None:
        changed, floor = answers.control_flips, answers.control_floor
        if labels is not None:
            accuracy = float((orbit.control.after.argmax(1) == np.asarray(labels)).mean())
    exact = report.control_floor == 0
    return AuditedElement(report.control, exact, report.control_error, report.control_floor, changed, floor, accuracy)


def _angles(
    f: RememberedCalls, images: AuditedImages, action: str, kind: str, progress: Progress | None
) -> list[AuditedElement]:
    """The full circle, on some of the images."""
    group = f"c{N_ANGLES}"
    chosen = images.subset(evenly_spaced(len(images), ANGLE_IMAGES))
    report = _measured(f, chosen.batch, group, action, 0, "angles", progress)
    if f.failed_rows:  # images on which the model fails at some angle would count as changes
        return []
    answers = answer_changes(orbit_outputs(f, chosen.batch, group), chosen.labels) if kind == "scores" else None
    rows = _elements(report, answers)
    return [replace(row, degrees=360 / N_ANGLES * i) for i, row in enumerate(rows)]


def _classes(
    answers: AnswerReport | None, orbit: OrbitOutputs | None, labels: Sequence[int] | None, names: Sequence[str]
) -> list[AuditedClass]:
    if answers is None or orbit is None:
        return []
    right = None if labels is None else np.stack([row.after.argmax(1) == np.asarray(labels) for row in orbit.rows])
    rows = []
    for each in answers.classes:
        upright = moved = None
        if right is not None:
            members = np.asarray(labels) == list(names).index(each.name)
            upright = float(right[0, members].mean())
            moved = float(right[1:, members].mean()) if len(right) > 1 else upright
        rows.append(AuditedClass(each.name, each.count, each.worst, each.flips, each.floor, upright, moved))
    return rows


def _worst_images(
    images: AuditedImages, report: EquivarianceReport, orbit: OrbitOutputs | None, group: str,
    class_names: Sequence[str], seed: int,
) -> list[WorstImage]:  # fmt: skip
    """The images whose answer is lost most clearly, each under the element that is worst for it."""
    if orbit is not None:
        losses = np.stack([_loss(row.before, row.after) for row in orbit.rows])  # (k, n)
    else:
        losses = np.where(report.errors[:, None] > report.floors[:, None] + 1e-6, report.by_input, 0.0)
    losses[0] = 0.0  # the identity
    worst = losses.argmax(0)  # (n,)
    order = np.argsort(-losses.max(0), kind="stable")[:WORST_SHOWN]
    order = order[losses.max(0)[order] > 0]
    if len(order) == 0:
        return []
    # Beside the chosen ones another image, because a measurement needs two; what the identity returns is what is seen.
    rows = [*order.tolist(), next(i for i in range(len(images)) if i != order[0])]
    pictures = orbit_outputs(lambda x: x, images.batch[rows], group, random_state=seed)
    found = []
    for k, i in enumerate(order.tolist()):
        element = pictures.rows[worst[i]]
        before, sure, unsure = "", None, None
        after = f"output changes by {report.by_input[worst[i], i]:.2g} of its size"
        if orbit is not None:
            row = orbit.rows[worst[i]]
            first, then = as_probabilities(np.stack([row.before[i], row.after[i]]))
            before, after = class_names[int(first.argmax())], class_names[int(then.argmax())]
            sure, unsure = float(first.max()), float(then.max())
        shown, moved = images.visible(np.stack([element.before[k], element.after[k]]))
        label = "" if images.labels is None else class_names[images.labels[i]]
        found.append(WorstImage(images.names[i], element.name, before, after, shown, moved, label, sure, unsure))
    return found


def _loss(before: NDArray, after: NDArray) -> NDArray:
    """How much probability the first answer loses where the answer changes, (n,); 0 elsewhere."""
    rows, answers = np.arange(len(before)), before.argmax(1)
    first, then = as_probabilities(before)[rows, answers], as_probabilities(after)[rows, answers]
    changed = answers != after.argmax(1)
    return np.where(changed, np.maximum(first - then, 1e-9), 0.0)
