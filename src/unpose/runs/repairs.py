"""Try what would make a model invariant: chosen on one half of the images, measured on the other half."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.adapt import recommend, try_adaptations
from unpose.audit import as_model, orbit_outputs
from unpose.groups import FiniteGroup, Group, LieGroup, as_quarter_turns, parse
from unpose.report.audit import Repair, percent

LARGEST_HALF = 48
"""Images in each half for groups whose elements need interpolation: every average then needs calls of its own."""
LEAST_HALF = 4
"""Images in each half below which nothing is tried."""
PLAIN = "the model as it is"


@dataclass(frozen=True)
class TriedRepairs:
    """The result of :func:`try_repairs`; the first row is the model as it is.

    ``counts`` are the numbers of images that the recommendation was made on, and that the rows were measured on.
    """

    rows: list[Repair]
    counts: tuple[int, int]


def try_repairs(
    model: Callable[[Tensor], Any],
    images: Tensor,
    labels: Sequence[int] | None,
    group: str | Group,
    *,
    steps: int = 0,
    random_state: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> TriedRepairs | None:
    """Try the mean over a group and canonicalizers in front of a classifier; None if there is nothing to try.

    The model gives scores (n, classes), which are taken as probabilities if they are, else as logits. Images (n, c, h,
    w) are in the orientation that it was made for; without ``labels`` its answers to them count as right. For a
    continuous group with rotations, their multiples of 45 degrees are averaged. With ``steps``, a canonicalizer is
    trained for so many steps.

    >>> images = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> tried = try_repairs(lambda x: x.flatten(1)[:, :3], images, None, "c4")
    >>> [(row.name, row.changed) for row in tried.rows][1]
    ('mean over c4', 0.0)
    """
    finite = _finite(parse(group))
    if finite is None or len(images) < 2 * LEAST_HALF:
        return None
    exact = all(as_quarter_turns(pose) is not None for pose in finite.elements)
    limit = len(images) if exact else LARGEST_HALF
    first, second = list(range(0, len(images), 2))[:limit], list(range(1, len(images), 2))[:limit]
    with torch.no_grad():
        scores = torch.as_tensor(model(images)).float()
    are_shares = bool((scores >= 0).all() and ((scores.sum(1) - 1).abs() < 1e-3).all())
    wrapped = as_model(model, gives="probabilities" if are_shares else "logits", batch_size=len(images))
    right = np.asarray(scores.argmax(1) if labels is None else labels)
    trials = try_adaptations(
        wrapped, images[first], right[first], finite, steps=steps, random_state=random_state, progress=progress
    )
    chosen, _ = recommend(trials)
    rows = []
    for k, trial in enumerate(trials):
        if progress is not None:
            progress("repairs", k, len(trials))
        upright, turned, changed = _measure(trial.model, images[second], right[second], finite)
        name = PLAIN if k == 0 else trial.name
        rows.append(Repair(name, upright, turned, changed, float(trial.passes), k > 0 and trial is chosen))
    if progress is not None:
        progress("repairs", len(trials), len(trials))
    # What was chosen on the first half is only recommended if it is also worth it on the second.
    rows = [replace(row, chosen=row.chosen and _net_gain(rows[0], row) > 0) for row in rows]
    return TriedRepairs(rows, (len(first), len(second)))


def advice(rows: Sequence[Repair], count: int, labelled: bool) -> str:
    """What would help and by how much, in full sentences, from rows that were measured on ``count`` images.

    >>> plain = Repair(PLAIN, 0.9, 0.6, 0.4, 1.0)
    >>> print(advice([plain, Repair("mean over c4", 0.9, 0.9, 0.0, 4.0, chosen=True)], 50, True)[:57])
    What would help: the mean over c4 lowers the answers that
    """
    plain, tried = rows[0], rows[1:]
    chosen = next((row for row in tried if row.chosen), None)
    right = "right answers" if labelled else "answers that agree with those to the pictures as they are"
    where = f"measured on {count} images that were not used to choose it"
    if chosen is not None and _net_gain(plain, chosen) > 0:
        text = (
            f"What would help: {_named(chosen)} lowers the answers that change from {percent(plain.changed)} to "
            f"{percent(chosen.changed)} and takes {right} for transformed pictures from {percent(plain.turned)} to "
            f"{percent(chosen.turned)}"
        )
        if labelled or chosen.upright < 1:
            text += f" (for the pictures as they are: from {percent(plain.upright)} to {percent(chosen.upright)})"
        calls = "call" if chosen.calls == 1 else "calls"
        return f"{text}, at {chosen.calls:g} {calls} of the model for each picture; {where}."
    text = "Nothing that was tried gains more on transformed pictures than it loses on the others"
    if tried:
        best = chosen or max(tried, key=lambda row: _net_gain(plain, row))
        text += f": {_named(best)} takes {right} for transformed pictures from {percent(plain.turned)} to "
        text += percent(best.turned)
        if best.upright < plain.upright:
            text += f", but for the pictures as they are from {percent(plain.upright)} to {percent(best.upright)}"
        text += f"; {where}"
    return (
        f"{text}. Train the model with transformed pictures, or a canonicalizer in front of it (--steps 600), or use a "
        "network that has the symmetry (unpose train)."
    )


def _net_gain(plain: Repair, other: Repair) -> float:
    """What a repair gains on transformed pictures, less what it loses on the others."""
    return other.turned - plain.turned - max(0.0, plain.upright - other.upright)


def _named(row: Repair) -> str:
    if row.name.startswith("learned"):
        return "a trained canonicalizer" + row.name.removeprefix("learned").replace(",", " with", 1)
    return f"the {row.name}"


def _finite(group: Group) -> FiniteGroup | None:
    """The finite group to average over."""
    if isinstance(group, LieGroup):
        return parse("d8" if group.mirrored else "c8") if group.turns else None  # type: ignore[return-value]
    return group if isinstance(group, FiniteGroup) and group.is_group else None


def _measure(
    model: Callable[[Tensor], Any], images: Tensor, right: NDArray, group: FiniteGroup
) -> tuple[float, float, float]:
    """Share of right answers to the images and to transformed ones, and the largest share of answers that change."""
    orbit = orbit_outputs(model, images, group)
    shares = [float((row.after.argmax(1) == right).mean()) for row in orbit.rows]
    changed = [float((row.after.argmax(1) != row.before.argmax(1)).mean()) for row in orbit.rows]
    turned = shares[1:] or shares
    return shares[0], sum(turned) / len(turned), max(changed)
