"""The verdict of an audit in words that need no knowledge of the field."""

import math
import re

from unpose.report.audit.results import AuditResults, Comparison, RealPairs

_FEW = 5
"""Classes with fewer images are not named as the worst."""


_UNSTEADY = {
    "random": "The model is random: the same picture gets different answers.",
    "stateful": "The model keeps state: the answer to a picture depends on earlier calls.",
    "batch": "The answer to a picture depends on the other pictures of the same call.",
}


def percent(share: float) -> str:
    """A share as per cent: whole numbers from 10 on, one digit below, never 0 or 100 unless exactly so.

    >>> percent(0.0), percent(0.0004), percent(0.074), percent(0.31), percent(0.999), percent(1.0)
    ('0 %', '0.1 %', '7.4 %', '31 %', '99 %', '100 %')
    """
    value = 100 * share
    if not math.isfinite(value):
        return "more than can be said"
    if 99 < value < 100:
        return "99 %"
    if abs(value) >= 10:
        return f"{value:.0f} %"
    shown = f"{value:.1f}".removesuffix(".0")
    if shown in ("0", "-0"):
        shown = "0.1" if value > 0 else "-0.1" if value < 0 else "0"
    return f"{shown} %"


def movement(element: str) -> str:
    """What an element does to a picture, in words.

    >>> movement("mirror, turn 90"), movement("scale 1.2, turn 33, shift (+1.0, -2.0)")
    ('mirrored and turned by 90 degrees', 'scaled by 1.2, turned by 33 degrees and shifted by (+1.0, -2.0) pixels')
    """
    words = []
    for part in re.split(r", (?![^(]*\))", element):
        kind, _, value = part.partition(" ")
        words.append({
            "mirror": "mirrored", "turn": f"turned by {value} degrees", "scale": f"scaled by {value}",
            "stretch": f"stretched by {value}", "shift": f"shifted by {value} pixels", "tilt": "tilted",
            "identity": "shown again",
        }.get(kind, part))  # fmt: skip
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def headline(results: AuditResults) -> str:
    """The answer in one short sentence.

    >>> from unpose.report.audit.results import AuditedElement, Reproduction
    >>> rows = [AuditedElement("identity", True, 0, 0, 0.0, 0.0), AuditedElement("turn 90", True, 0.3, 0, 0.07, 0.0)]
    >>> print(headline(AuditResults("m", "c4", "photos", 200, rows, rows[0], 1.0, 1e-5, Reproduction("", 0, ""))))
    7 % of the answers change when the picture is turned by 90 degrees.
    """
    worst = results.worst
    if results.nearly_constant:
        return (
            f"The model gives {'the same answer' if results.has_answers else 'nearly the same output'} to every image."
        )
    if results.unsteady and not results.passes:
        return _UNSTEADY[results.unsteady]
    if results.has_answers:
        if not any(element.changed for element in results.moved):
            if results.passes:
                return "The answers do not change."
            exact = max((element for element in results.elements if element.exact), key=lambda each: each.error)
            return (
                f"The answers do not change, but the scores do: by {exact.error:.1g} of their size when the picture is "
                f"{movement(exact.name)}."
            )
        return f"{percent(worst.changed or 0.0)} of the answers change when the picture is {movement(worst.name)}."
    if results.holds and results.decides and results.passes:
        return "The output does not change."
    return f"The output changes by {percent(worst.error)} when the picture is {movement(worst.name)}."


def sentences(results: AuditResults) -> list[str]:
    """The verdict: the headline, how much changes, where it is worst, what causes it and what would help.

    >>> from unpose.report.audit.results import AuditedElement, Reproduction
    >>> rows = [AuditedElement("identity", True, 0, 0, 0.0, 0.0), AuditedElement("turn 90", True, 0.3, 0, 0.07, 0.0)]
    >>> results = AuditResults("m", "c4", "photos", 200, rows, rows[0], 1.0, 1e-5, Reproduction("", 0, ""))
    >>> sentences(results)
    ['7 % of the answers change when the picture is turned by 90 degrees.', 'That is 14 of 200 images.']
    """
    found = [headline(results)]
    if results.nearly_constant:
        text = "what never changes is not invariant but useless"
        if not results.has_answers:
            text += f"; the outputs of different images differ by only {results.discrimination:.1g} of their size"
        return [*found, f"There is no verdict, because {text}."]
    found += _how_much(results)
    found += _worst_class(results)
    found += _cause(results)
    if results.advice:
        found.append(results.advice)
    if results.comparison is not None:
        found += comparison_sentences(results.comparison)
    if results.pairs is not None:
        found += pair_sentences(results.pairs)
    return found


def _how_much(results: AuditResults) -> list[str]:
    worst, others = results.worst, results.moved
    noise = results.elements[0]
    found = []
    if results.has_answers:
        if not any(element.changed for element in others):
            found.append(f"{results.count} images and {len(others)} transformations of {results.group} were tried.")
            if not results.passes and results.fail_above is None and not results.unsteady:
                found.append(f"Rounding changes the scores by at most {results.tolerance:.1g} of their size.")
        else:
            changed = worst.changed or 0.0
            text = f"That is {round(changed * results.count)} of {results.count} images"
            if worst.changed_floor:
                text += f"; resampling alone, without turning, changes {percent(worst.changed_floor)}"
            found.append(f"{text}.")
            if len(others) > 1:
                mean = sum(element.changed or 0.0 for element in others) / len(others)
                found.append(
                    f"On average over {len(others)} transformations of {results.group}, {percent(mean)} change."
                )
        upright, turned = results.elements[0].accuracy, [e.accuracy for e in results.elements[1:]]
        if upright is not None and turned and all(value is not None for value in turned):
            mean = sum(value for value in turned if value is not None) / len(turned)
            lowest = min(value for value in turned if value is not None)
            found.append(
                f"{percent(upright)} of the answers are right for the pictures as they are, {percent(mean)} on average "
                f"for transformed ones, and {percent(lowest)} at worst."
            )
    elif results.holds and results.decides and results.passes:
        found.append(
            f"Under the elements of {results.group} that only permute pixels, the largest change is "
            f"{max(element.error for element in results.elements if element.exact):.1g} of its size, which is rounding."
        )
    else:
        if not worst.exact:
            found.append(f"Resampling alone, without turning, changes it by {percent(worst.floor)}.")
        found.append(f"The outputs of different images differ by {percent(results.discrimination)}.")
    if results.has_answers and noise.changed:
        found.append(f"{percent(noise.changed)} of the answers change even when the same picture is shown again.")
    if results.fail_above is not None:
        found.append(
            f"{'No more than' if results.passes else 'More than'} {percent(results.fail_above)} changes beyond what "
            "interpolation alone changes, the bound of --fail-above."
        )
    return found


def _worst_class(results: AuditResults) -> list[str]:
    large = [each for each in results.classes if each.count >= min(_FEW, results.count)]
    if not large or not results.worst.changed:
        return []
    worst = max(large, key=lambda each: each.changed - each.changed_floor)
    if worst.changed <= results.worst.changed:
        return []
    return [
        f"Worst is the class '{worst.name}': {percent(worst.changed)} of its {worst.count} images get another answer "
        f"when they are {movement(worst.worst)}."
    ]


def _cause(results: AuditResults) -> list[str]:
    causes = [module for module in results.modules if module.breaks]
    found = []
    if causes:
        first = causes[0]
        text = f"The first module that breaks the symmetry is '{first.name}' ({first.module})"
        untested = any(math.isnan(module.error) for module in results.modules)
        if len(causes) > 1:
            text += f"; {len(causes) - 1} later one{'s do' if len(causes) > 2 else ' does'}, too"
        elif not untested:
            text += ", and no later one does"
        found.append(f"{text}.")
    if results.shares and results.worst.excess > 0:
        most = max(results.shares, key=lambda each: each.share)
        reason = {"aliasing": ", by aliasing", "border": ", at the border", "position": ", by absolute position"}
        found.append(
            f"Of the change under small rotations, {percent(max(0.0, most.share))} arises in '{most.name}' "
            f"({most.module}){reason.get(most.cause, '')}."
        )
    return found


def comparison_sentences(comparison: Comparison) -> list[str]:
    """What got better and what got worse from one version of a model to another.

    >>> for line in comparison_sentences(Comparison("old.onnx", [("turn 90", 0.2, 0.1), ("turn 180", 0.1, 0.1)])):
    ...     print(line)
    Compared with old.onnx, 1 of 2 transformations change less and none change more; the worst goes from 20 % to 10 %.
    """
    better, worse, total = comparison.better, comparison.worse, len(comparison.elements)
    old = max((before for _, before, _ in comparison.elements), default=0.0)
    new = max((after for _, _, after in comparison.elements), default=0.0)
    found = [
        f"Compared with {comparison.other}, {len(better) or 'none'} of {total} transformations change "
        f"less and {len(worse) or 'none'} change more; the worst goes from {percent(old)} to "
        f"{percent(new)}."
    ]
    if comparison.fixed or comparison.broken:
        chance = f"by chance such numbers come about with a probability of {comparison.p_value:.2g}"
        found.append(
            f"{comparison.fixed} images whose answer used to change keep it now, and {comparison.broken} that kept it "
            f"change now; {chance}."
        )
    if comparison.answers_differ is not None:
        found.append(
            f"The two models give different answers to {percent(comparison.answers_differ)} of the pictures as they "
            "are."
        )
    if comparison.accuracies is not None:
        old, new = comparison.accuracies
        text = f"Right answers go from {percent(old)} to {percent(new)} for the pictures as they are"
        if comparison.turned_accuracies is not None:
            old, new = comparison.turned_accuracies
            text += f", and from {percent(old)} to {percent(new)} for transformed ones"
        found.append(f"{text}.")
    return found


def pair_sentences(pairs: RealPairs) -> list[str]:
    """How far the digital audit was from photographs of the same things at other poses.

    >>> print(pair_sentences(RealPairs(20, 0.3, 0.2, 0.1, 0.2, 0.1, 0.0))[0])
    In 20 % of 20 real pairs the answer differs; turning the pictures digitally gave 10 %: 10 points too few.
    """
    if pairs.changed is not None and pairs.digital_changed is not None:
        real, digital, resampled = pairs.changed, pairs.digital_changed, pairs.resampled_changed or 0.0
        text = (
            f"In {percent(real)} of {pairs.count} real pairs the answer differs; turning the pictures digitally gave "
            f"{percent(digital)}"
        )
    else:
        real, digital, resampled = pairs.real, pairs.digital, pairs.resampled
        text = (
            f"Between {pairs.count} real pairs the output changes by {percent(real)} of the distance of two things; "
            f"turning the pictures digitally gave {percent(digital)}"
        )
    points = 100 * (real - digital)
    said = "which agrees" if abs(points) < 0.5 else f"{abs(points):.0f} points too {'few' if points > 0 else 'many'}"
    found = [f"{text}{',' if abs(points) < 0.5 else ':'} {said}."]
    if resampled > digital / 2 > 0:
        found.append("Most of the digital change is due to resampling the pictures, not to turning them.")
    if pairs.estimated and pairs.uncertainty is not None:
        found.append(
            f"The angles of {pairs.estimated} pairs were estimated from the pictures; at several resolutions they "
            f"agree to {pairs.uncertainty:.1g} degrees (median)."
        )
    if pairs.unclear:
        found.append(
            f"{len(pairs.unclear)} photographs are left out because their angle is not clear, such as "
            f"'{pairs.unclear[0]}'."
        )
    return found
