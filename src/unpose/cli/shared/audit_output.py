"""An audit as text, JSON, JUnit cases, a table of images and a plot."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unpose.cli.shared.angle_sweep import N_ANGLES, STEP_DEGREES, full_circle
from unpose.cli.shared.output import finite

if TYPE_CHECKING:
    from PIL.Image import Image

    from unpose.audit import EquivarianceReport
    from unpose.report.audit import AuditedElement, AuditResults
    from unpose.runs.audits import AuditRun


def verdict_line(measured: "EquivarianceReport", results: "AuditResults") -> str:
    """Whether the outputs are invariant, in one line."""
    from unpose.report.audit import headline

    tolerance = results.tolerance
    if measured.is_nearly_constant:
        return (
            f"No verdict: the outputs of different images differ by only {measured.discrimination:.1g} of their norm."
        )
    if results.nearly_constant or (results.unsteady and not results.passes):
        return f"No verdict: {headline(results)}"
    if not measured.decides:
        return "No verdict: no element of the group only permutes pixels."
    worst = measured.worst_exact
    if worst <= tolerance:
        return f"Invariant to every element of {measured.group} that only permutes pixels; largest error {worst:.1g}."
    return f"Not invariant to {measured.group}: errors up to {worst:.2g}, tolerance {tolerance:.1g}."


def as_dictionary(run: "AuditRun", model: str) -> dict[str, Any]:
    """Everything that was measured, for JSON."""
    from unpose.report.audit import headline, sentences

    results, worst = run.results, run.results.worst
    measured, modules = run.report, run.modules
    text = measured.to_dict() | {
        "checkpoint": model,
        "holds": replace(results, fail_above=None).passes,
        "passed": results.passes,
        "tolerance": results.tolerance,
        "worst": {"element": worst.name, "error": finite(worst.error), "excess": finite(worst.excess)},
        "culprits": [] if modules is None else list(modules.culprits),
    }
    if results.fail_above is not None:
        text["fail_above"] = results.fail_above
    text |= {
        "images": results.count,
        "images_from": results.images,
        "headline": headline(results),
        "verdict": sentences(results),
        "remarks": list(results.remarks),
        "left_out": [{"image": each.name, "why": each.reason} for each in results.failures],
    }
    if results.has_answers:
        text["answers"] = [_answers(element) for element in results.elements]
        text["answers_control"] = _answers(results.control)
        text["classes"] = [
            {
                "class": each.name, "images": each.count, "worst": each.worst, "changed": each.changed,
                "floor": each.changed_floor, "accuracy": each.accuracy, "accuracy_transformed": each.turned_accuracy,
            }
            for each in results.classes
        ]  # fmt: skip
    text["measures"] = {
        each.key: {"value": finite(each.value), "floor": each.floor, "control": each.control, "chance": each.chance}
        for each in results.measures
    }
    text["worst_images"] = [
        {"image": each.name, "element": each.element, "before": each.before, "after": each.after, "label": each.label}
        for each in results.worst_images
    ]
    text["angles"] = [
        {"degrees": each.degrees, "error": finite(each.error), "floor": finite(each.floor), "changed": each.changed,
         "changed_floor": each.changed_floor, "accuracy": each.accuracy}
        for each in results.angles
    ]  # fmt: skip
    text["modules"] = [
        {"module": each.name, "class": each.module, "error": finite(each.error), "breaks": each.breaks}
        for each in results.modules
    ]
    text["shares_under_small_rotations"] = [
        {"module": each.name, "class": each.module, "share": finite(each.share), "cause": each.cause}
        for each in results.shares
    ]
    if results.elements[0].neighbours is not None:
        text["neighbours_kept"] = [
            {"element": each.name, "share": each.neighbours, "floor": each.neighbours_floor}
            for each in results.elements
        ]
    text["repairs"] = [
        {"tried": each.name, "upright": each.upright, "transformed": each.turned, "changed": each.changed,
         "calls": each.calls, "recommended": each.chosen}
        for each in results.repairs
    ]  # fmt: skip
    text["comparison"], text["pairs"] = _comparison(results), _pairs(results)
    return text


def _answers(element: "AuditedElement") -> dict[str, Any]:
    return {
        "element": element.name,
        "changed": element.changed,
        "floor": element.changed_floor,
        "excess": element.excess,
        "accuracy": element.accuracy,
    }


def _comparison(results: "AuditResults") -> dict[str, Any] | None:
    if (found := results.comparison) is None:
        return None
    return {
        "old": found.other,
        "elements": [{"element": name, "old": old, "new": new} for name, old, new in found.elements],
        "answers_differ": found.answers_differ,
        "images": [{"image": name, "old": old, "new": new} for name, old, new in found.images],
        "accuracy": found.accuracies,
        "accuracy_transformed": found.turned_accuracies,
        "fixed": found.fixed,
        "broken": found.broken,
        "p_value": found.p_value,
    }


def _pairs(results: "AuditResults") -> dict[str, Any] | None:
    if (found := results.pairs) is None:
        return None
    return {
        "pairs": found.count,
        "changed": {"real": found.changed, "digital": found.digital_changed, "resampled": found.resampled_changed},
        "change": {"real": finite(found.real), "digital": finite(found.digital), "resampled": finite(found.resampled)},
        "estimated": found.estimated,
        "uncertainty_degrees": found.uncertainty,
        "unclear": list(found.unclear),
        "differ": [{"image": a, "other": b, "answer": x, "other_answer": y} for a, b, x, y in found.pairs],
    }


def junit_cases(run: "AuditRun", output: str = "") -> list[tuple[str, str]]:
    """One case for each element, one for the discrimination and one for two equal calls: names and messages."""
    from unpose.report.audit import headline, movement, percent

    results, cases = run.results, []
    fail_above = results.fail_above
    for element in results.elements[1:]:
        message = ""
        what = "of the answers change" if results.has_answers else "of the output changes"
        if fail_above is not None:
            if element.excess > fail_above:
                message = (
                    f"{percent(element.excess)} {what} when the picture is {movement(element.name)}, not counting "
                    f"interpolation; at most {percent(fail_above)} may"
                )
        elif element.exact and element.error > results.tolerance:
            message = (
                f"the output changes by {element.error:.2g} of its size when the picture is {movement(element.name)}; "
                f"the tolerance is {results.tolerance:.1g}"
            )
        cases.append((element.name, message))
    steady, constant = "", ""
    if results.unsteady and not results.passes:
        steady = headline(results)
    if results.nearly_constant:
        constant = f"the outputs of different images differ by only {results.discrimination:.1g} of their size"
    cases += [("same answer twice", steady), ("different images differ", constant)]
    return [(f"{output}: {name}" if output else name, message) for name, message in cases]


def measure_lines(results: "AuditResults") -> list[str]:
    """The further measures as lines of text."""
    lines = []
    for each in results.measures:
        beside = {"interpolation": each.floor, "control": each.control, "by chance": each.chance}
        known = ", ".join(f"{name} {value:.2g}" for name, value in beside.items() if value is not None)
        lines.append(f"{each.title}: {each.value:.2g}{f' ({known})' if known else ''}")
    return lines


def images_table(run: "AuditRun") -> str:
    """A CSV table with the answer to every image and what changes it."""
    from unpose.runs.tables import csv_text

    labels, names = run.images.labels, run.images.class_names
    columns = ["image", "class", "answer", "changed_by", "worst_error"]
    rows = []
    for i, name in enumerate(run.images.names):
        label = "" if labels is None else names[labels[i]] if labels[i] < len(names) else str(labels[i])
        said = run.answer_names[i] if run.answer_names else ""
        changing = ""
        if run.answers is not None:
            elements = zip(run.answers.elements, run.answers.changed[:, i], strict=True)
            changing = "; ".join(element for element, changed in elements if changed)
        rows.append([name, label, said, changing, float(run.report.by_input[1:, i].max(initial=0.0))])
    return csv_text(columns, rows)


def plot(run: "AuditRun") -> "Image":
    """Plot the error of every rotation by 15 degrees and its floor, and the errors of the group's elements (log)."""
    import numpy as np

    from unpose.report import figures

    measured, turns = run.report, run.results.angles
    if not turns:
        raise ValueError("the model fails on some of the images when they are turned by other angles")
    lines = {
        "network": full_circle(np.array([turn.error for turn in turns])),
        "interpolation alone": full_circle(np.array([turn.floor for turn in turns])),
    }
    # Never closer than a tenth: on a finer scale rounding errors would look like a dependence on the angle.
    highest = max(0.1, 1.05 * max(np.nanmax(line, initial=0.0, where=np.isfinite(line)) for line in lines.values()))
    around = figures.curve(
        lines, title="Rotations by any angle", x=[STEP_DEGREES * step for step in range(N_ANGLES + 1)], x_step=45,
        x_label="rotation in degrees", y_label=f"relative change of the output, from 0 to {highest:.2g}",
        y_limits=(0.0, highest), size=(460, 280),
    )  # fmt: skip
    smallest = 1e-9  # zero is drawn here
    by_name = {
        "element": measured.errors,
        "floor": measured.floors,
        f"control: {measured.control}": np.full(len(measured.errors), measured.control_error),
    }
    by_element = figures.curve(
        {label: np.log10(np.clip(np.nan_to_num(line, posinf=1e9), smallest, None)) for label, line in by_name.items()},
        title=f"Elements of {measured.group}", x_label="element, as in the table", y_label="log10 of the error",
        size=(460, 280),
    )  # fmt: skip
    return figures.beside([around, by_element], title=f"Audit of {run.results.model}")
