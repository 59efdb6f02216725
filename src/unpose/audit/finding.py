"""Find how an output transforms: which of the actions that its shape allows explains best what elements do to it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from unpose.audit.actions import Kind, act, field_kinds, part_kinds
from unpose.audit.elements import Element, finite_elements, order_of
from unpose.groups import FiniteGroup, Group

FITS = 1e-2
"""A tensor transforms as a kind if the part that differs between inputs deviates by at most this much."""

_CLEARLY_BETTER = 0.5
"""Another action than the one that the shape suggests must deviate by less than this, and by less than this share of
what the suggested one does."""

_MAX_EXTRA_TOKENS = 5
_MAX_PLANES = 512


@dataclass(frozen=True)
class FoundAction:
    """How an output transforms, as found from the data."""

    kind: Kind
    misfit: float  # deviation of the part that differs between inputs, root mean square over the elements
    margin: float  # smallest misfit of other actions divided by this one, at most 1e6; near 1 if they are alike


def shape_kinds(
    tensor: Tensor, group: Group, frame: tuple[int, int], n: int, group_axis: int | None = None
) -> list[Kind]:
    """The kinds that a tensor's shape allows, from simple to complex; ``frame`` is the size of the image, n the batch.

    With ``group_axis`` only that axis is considered for the group.
    """
    shape = tuple(tensor.shape)
    grids = _token_axes(shape, frame, n) if tensor.ndim < 5 else []
    kinds = []
    for axis, merged in _group_axes(shape, group, n, group_axis):
        base = Kind(group_axis=axis, merged=merged)
        kinds.append(base)
        if tensor.ndim >= 3 and (axis is None or axis < tensor.ndim - 2):
            kinds.append(replace(base, image=True))
        # Channels last: only if these axes have the shape of the image, because two other axes are tried as well.
        if tensor.ndim == 4 and (axis is None or axis in (0, 3)) and _is_like(shape[1:3], frame):
            kinds.append(replace(base, image=True, channels_last=True))
        kinds += [replace(base, **tokens) for tokens in grids if axis not in tokens["tokens"]]
    return kinds


def conventions(group: Group) -> list[tuple[int, ...]]:
    """Orders of the entries of a group axis: as the group lists its elements, and by their inverses."""
    if not isinstance(group, FiniteGroup) or not group.is_group:
        return [()]
    inverses = tuple(group.inverse.tolist())
    return [()] if inverses == tuple(range(len(inverses))) else [(), inverses]


def deviations(given: Tensor, expected: Tensor, batch_axis: int = 0) -> tuple[float, float]:
    """Relative distance of two tensors: of the part that differs between the inputs of the batch, and of the whole."""
    given, expected = (
        (torch.view_as_real(each) if each.is_complex() else each).to("cpu", torch.float64) for each in (given, expected)
    )
    difference = given - expected
    if not difference.isfinite().all():
        return math.inf, math.inf
    varying = expected - expected.mean(batch_axis, keepdim=True) if expected.ndim > batch_axis else expected
    moved = difference - difference.mean(batch_axis, keepdim=True) if expected.ndim > batch_axis else difference
    # Rounding errors of a tensor that is equal for all inputs must not count as a difference between inputs.
    size = max(float(varying.norm()), 1e-6 * float(expected.norm()))
    misfit = float(moved.norm()) / size if size else float(difference.any())
    whole = float(expected.norm())
    return misfit, float(difference.norm()) / whole if whole else float(difference.any())


def find_action(
    base: Tensor, moved: Sequence[tuple[Element, Tensor]], group: Group, frame: tuple[int, int]
) -> FoundAction:
    """Find the action under which the outputs for moved inputs follow from the outputs for the inputs.

    The shape suggests one: pixels for axes like those of the image, a group axis for a map of five axes, and otherwise
    "invariant". Another action is chosen if the part of the output that differs between inputs clearly follows it.
    """
    n = base.shape[0]
    kinds = [kind for kind in shape_kinds(base, group, frame, n) if 0 not in kind.tokens and kind.group_axis != 0]
    kinds = [kind for kind in kinds if kind.planes == 1]
    regular = [kind for kind in kinds if kind.group_axis is not None]
    for labels in conventions(group)[1:]:
        kinds += [replace(kind, labels=labels) for kind in regular]
    kinds += part_kinds(base)
    misfits = {kind: misfit_of(base, moved, kind, frame) for kind in kinds}
    if regular and min(misfits.values()) > FITS:
        for kind in regular:
            if not kind.merged and (labels := find_labels(base, moved, kind, group, frame)):
                found = replace(kind, labels=labels)
                misfits[found] = misfit_of(base, moved, found, frame)
    if base.dtype.is_floating_point and min(misfits.values()) > FITS:
        misfits |= {kind: misfit for kind, (misfit, _) in fitting_fields(base, moved, group, frame).items()}
    suggested = _suggested(base, kinds, frame)
    if suggested.image and not suggested.channels_last and tuple(base.shape[-2:]) == frame:
        misfits.pop(Kind(), None)  # a map of the image that does not move is a mistake, unless declared
    best = min(misfits, key=lambda kind: max(misfits[kind], 1e-6))  # the first, and simplest, of equals
    chosen = suggested
    if misfits[best] < min(_CLEARLY_BETTER, _CLEARLY_BETTER * misfits[suggested]) and misfits[suggested] > 1e-6:
        chosen = best
    same = misfits[chosen]
    others = [misfit for kind, misfit in misfits.items() if kind != chosen]
    margin = min(others, default=1e6) / max(same, 1e-6)
    return FoundAction(chosen, same, float(min(margin, 1e6)))


def find_labels(
    base: Tensor, moved: Sequence[tuple[Element, Tensor]], kind: Kind, group: Group, frame: tuple[int, int]
) -> tuple[int, ...]:
    """Find which group element each entry of a group axis belongs to; empty if no order of the elements fits.

    Entry 0 is taken for the identity. Under each element the entries of the axis are assigned to each other; the entry
    that entry 0 is assigned to then belongs to the element. All elements must be given.
    """
    if not isinstance(group, FiniteGroup) or kind.group_axis is None or len(moved) < len(group) - 1:
        return ()
    axis = kind.group_axis
    names = {element.name: i for i, element in enumerate(finite_elements(group))}
    labels = [-1] * len(group)
    labels[0] = 0
    for element, tensor in moved:
        expected = act(base, element, replace(kind, group_axis=None), frame)
        if expected.shape != tensor.shape or element.name not in names:
            return ()
        entries, targets = (each.double().movedim(axis, 0).flatten(1) for each in (expected, tensor))
        rows, columns = linear_sum_assignment(torch.cdist(entries, targets).numpy())
        goes_to = dict(zip(rows.tolist(), columns.tolist(), strict=True))
        labels[goes_to[0]] = names[element.name]
    if sorted(labels) != list(range(len(group))):
        return ()
    return tuple(labels)


def misfit_of(base: Tensor, moved: Sequence[tuple[Element, Tensor]], kind: Kind, frame: tuple[int, int]) -> float:
    """Deviation of outputs for moved inputs from what a kind predicts: root mean square over the elements."""
    squares = []
    for element, tensor in moved:
        expected = act(base, element, kind, frame)
        if expected.shape != tensor.shape:
            return math.inf
        if not base.dtype.is_floating_point:
            squares.append(float((expected != tensor).double().mean()))
            continue
        misfit, whole = deviations(tensor, expected, kind.batch_axis)
        if kind.part:  # another origin of coordinates changes only what all inputs have in common
            varying = expected.double() - expected.double().mean(0, keepdim=True)
            size = max(float(varying.norm()), 1e-6 * float(expected.double().norm()))
            misfit = whole * float(expected.double().norm()) / size if size else whole
        squares.append(misfit**2)
    return float(np.sqrt(np.mean(squares))) if squares else 0.0


def fitting_fields(
    base: Tensor, moved: Sequence[tuple[Element, Tensor]], group: Group, frame: tuple[int, int]
) -> dict[Kind, tuple[float, float]]:
    """The rarer kinds of features that fit a tensor, with their largest misfit and error over the elements."""
    found, wrong = {}, set()
    for kind in field_kinds(base, group):
        if (turns := (kind.image, kind.cyclic[:2])) in wrong:
            continue  # where a mirror takes the angles does not matter if rotations do not fit
        worst = (0.0, 0.0)
        for element, tensor in moved:
            expected = act(base, element, kind, frame)
            each = deviations(tensor, expected) if expected.shape == tensor.shape else (math.inf, math.inf)
            worst = max(worst[0], each[0]), max(worst[1], each[1])
            if worst[0] > FITS:  # most kinds fail at the first element
                if kind.cyclic and element.quarter_turns is not None and not element.quarter_turns[1]:
                    wrong.add(turns)
                break
        else:
            found[kind] = worst
    return found


def _suggested(base: Tensor, kinds: list[Kind], frame: tuple[int, int]) -> Kind:
    """The action that the shape suggests."""
    if base.ndim >= 3 and min(base.shape[-2:]) > 1 and _is_like(tuple(base.shape[-2:]), frame):
        if base.ndim == 5:
            maps = [kind for kind in kinds if kind.image and kind.group_axis == 2 and not kind.labels]
            return (maps or [Kind(image=True)])[0]
        return Kind(image=True)
    if base.ndim == 4 and min(base.shape[1:3]) > 1 and _is_like(tuple(base.shape[1:3]), frame):
        return Kind(image=True, channels_last=True)
    return Kind()


def _is_like(shape: tuple[int, ...], frame: tuple[int, int]) -> bool:
    """Whether two axes can be the rows and columns of a map of an image: of nearly its aspect ratio."""
    height, width = shape
    ratio = (height / frame[0]) / (width / frame[1])
    return min(shape) > 1 and 0.8 < ratio < 1.25


def _group_axes(shape: tuple[int, ...], group: Group, n: int, wanted: int | None) -> list[tuple[int | None, str]]:
    found: list[tuple[int | None, str]] = [(None, "")]
    order = order_of(group)
    if order < 2 or not shape:
        return found
    axes = range(1, len(shape)) if wanted is None else [wanted % len(shape)]
    found += [(axis, "") for axis in axes if 0 < axis < len(shape) and shape[axis] == order]
    if wanted is None:
        if len(shape) > 1 and shape[1] > order and shape[1] % order == 0:
            found += [(1, "inner"), (1, "outer")]
        if len(shape) == 3 and shape[2] > order and shape[2] % order == 0:
            found += [(2, "inner"), (2, "outer")]
        if shape[0] == n * order:
            found += [(0, "inner"), (0, "outer")]
    return found


def _token_axes(shape: tuple[int, ...], frame: tuple[int, int], n: int) -> list[dict[str, Any]]:
    """Axes that can list the pixels of a grid like the image, as fields of a Kind."""
    found: list[dict[str, Any]] = []
    for axis, size in enumerate(shape):
        if axis == 0:
            if size != n and size % n == 0 and (grid := _grid(size // n, frame)):
                found.append({"tokens": (0,), "grid": grid, "planes": n})
            if size == n or len(shape) < 2 or shape[1] != n:
                continue
        for extra in range(_MAX_EXTRA_TOKENS + 1):
            grid = _grid(size - extra, frame)
            if grid is None:
                continue
            found.append({"tokens": (axis,), "grid": grid, "extra": extra})
            twins = tuple(other for other in range(axis + 1, len(shape)) if shape[other] == size)
            if twins and axis > 0:
                found.append({"tokens": (axis, *twins), "grid": grid, "extra": extra})
            break
    if len(shape) == 2:
        for planes in range(2, min(shape[1] // 4, _MAX_PLANES) + 1):
            if shape[1] % planes == 0 and (grid := _grid(shape[1] // planes, frame, smallest=2)):
                found += [{"tokens": (1,), "grid": grid, "planes": sign * planes} for sign in (1, -1)]
    return found


def _grid(tokens: int, frame: tuple[int, int], smallest: int = 3) -> tuple[int, int] | None:
    """A grid like the image with so many tokens; one of 2 x 2 would be seen in every axis of four entries."""
    if min(frame) < 2 or tokens < smallest**2:
        return None
    height = round((tokens * frame[0] / frame[1]) ** 0.5)
    if height < smallest or tokens % height or tokens // height < smallest:
        return None
    grid = (height, tokens // height)
    return grid if _is_like(grid, frame) else None
