"""Measure the equivariance error of any function, per group element, beside the error of interpolation alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.audit.actions import Kind, act, check_shape, disc_window, kind_of, round_trip, valid_mask
from unpose.audit.calls import checked_output, evaluation
from unpose.audit.elements import Element, content_radius, control_for, elements_of, exact_elements, plane_group
from unpose.audit.finding import FoundAction, find_action
from unpose.audit.precision import measure_precision
from unpose.audit.worlds import OUTPUTS, WorldElement, check_world, world_elements
from unpose.groups import FiniteGroup, Group

_FEW = 4
"""Number of inputs by which the tolerance is measured and actions are found."""

_NOT_REPEATABLE = 1e-4
"""Two calls on the same inputs that differ by more than this are not due to the order of additions on a GPU."""

_ROUNDING = 1e-5
"""Errors up to this count as rounding where the noise of a function was not measured."""


class ElementFailure(ValueError):
    """The function fails on inputs that were transformed by one element."""


@dataclass(frozen=True)
class EquivarianceReport:
    """The result of :func:`equivariance_error`; ``print`` it to see the table.

    Entry 0 of each array is the identity, for which f is called twice on the same input.

    Parameters
    ----------
    group : str
        Name of the group.
    input, output : str
        Kinds of the input and the output.
    elements : tuple of k str
        Names of the group elements.
    exact : (k,) array of bool
        Whether the element permutes pixels without interpolation.
    errors : (k,) array
        ``||f(g x) - g f(x)|| / ||g f(x)||``.
    floors : (k,) array
        The error that interpolation alone causes in f(x) and in the output; 0 for exact elements.
    input_floors : (k,) array
        Relative change of the input when it is transformed and transformed back; 0 for exact elements.
    by_input : (k, n) array
        The error of each input, relative to the root mean square norm over all inputs.
    control : str
        Name of a transformation outside the group.
    control_error, control_floor : float
        Error and interpolation floor of the control.
    discrimination : float
        Spread of f over the inputs: 0 for a constant function, near 1 if outputs of different inputs are unrelated.
    tolerance : float, default 1e-5
        The largest error that counts as rounding, from the type in which f computes and from how much f changes when
        its input is rounded once.
    n_calls : int, default 0
        Number of times that f was called on all inputs.
    failures : tuple of (str, str), default ()
        Elements for which f failed, with its messages; their errors are NaN. Only :func:`unpose.audit.audit_model`
        continues after a failure.

    Examples
    --------
    >>> images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> report = equivariance_error(lambda x: x.sum((2, 3)), images, "c4")
    >>> report.elements
    ('identity', 'turn 90', 'turn 180', 'turn 270')
    """

    group: str
    input: str
    output: str
    elements: tuple[str, ...]
    exact: NDArray[np.bool_]
    errors: NDArray[np.float64]
    floors: NDArray[np.float64]
    input_floors: NDArray[np.float64]
    by_input: NDArray[np.float64]
    control: str
    control_error: float
    control_floor: float
    discrimination: float
    tolerance: float = _ROUNDING
    n_calls: int = 0
    failures: tuple[tuple[str, str], ...] = ()

    @property
    def worst(self) -> int:
        """Index of the element with the largest error."""
        return int(np.nan_to_num(self.errors, nan=-1.0).argmax())

    @property
    def worst_exact(self) -> float:
        """The largest error of the exact elements."""
        return float(np.nan_to_num(self.errors[self.exact]).max())

    @property
    def worst_of_discrimination(self) -> float:
        """The largest error divided by the discrimination, so that a large constant part of f cannot hide it."""
        worst = float(np.nan_to_num(self.errors).max())
        return worst / self.discrimination if self.discrimination else float(worst > 0)

    @property
    def is_nearly_constant(self) -> bool:
        """Whether outputs of different inputs differ by no more than rounding, so that small errors mean nothing."""
        return self.discrimination <= self.tolerance

    @property
    def decides(self) -> bool:
        """Whether any element but the identity is exact; otherwise :meth:`holds` only compares f with itself."""
        return bool(self.exact[1:].any())

    def holds(self, tolerance: float | None = None) -> bool:
        """Whether the error of every exact element is within the tolerance, and f is not nearly constant.

        By default the tolerance is the measured one, :attr:`tolerance`. Elements that need interpolation are not
        considered: compare their errors with their floors. See :attr:`decides` for groups without exact elements.
        """
        limit = self.tolerance if tolerance is None else tolerance
        return self.worst_exact <= limit and not self.is_nearly_constant and not self.failures

    @property
    def far_above_floor(self) -> tuple[str, ...]:
        """Elements that need interpolation whose error is twice the floor and more than half that of the control."""
        lost = ~self.exact & (self.errors > 2 * self.floors) & (self.errors > self.control_error / 2)
        return tuple(np.array(self.elements)[lost].tolist())

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain numbers, strings and lists, for JSON; numbers that are not finite become None."""
        rows = zip(self.elements, self.exact, self.errors, self.floors, self.input_floors, strict=True)
        return {
            "group": self.group,
            "input": self.input,
            "output": self.output,
            "holds": self.holds(),
            "decides": self.decides,
            "tolerance": self.tolerance,
            "elements": [
                {
                    "element": name, "exact": bool(exact), "error": finite(error), "floor": finite(floor),
                    "pixels": finite(pixels),
                }
                for name, exact, error, floor, pixels in rows
            ],
            "control": {"element": self.control, "error": finite(self.control_error),
                        "floor": finite(self.control_floor)},
            "discrimination": finite(self.discrimination),
            "n_calls": self.n_calls,
            "failures": [{"element": element, "message": message} for element, message in self.failures],
            "notes": self.remarks(),
        }  # fmt: skip

    def table(self) -> str:
        """Format the report as text, one line per element."""
        width = max(len("worst / discrimination"), len("control: " + self.control), *map(len, self.elements))
        lines = [f"{'under ' + self.group:{width}} {'error':>9} {'floor':>9} {'(pixels)':>9}"]
        for i, name in enumerate(self.elements):
            floors = f"{'exact':>9}" if self.exact[i] else f"{self.floors[i]:9.2g} {self.input_floors[i]:9.2g}"
            lines.append(f"{name:{width}} {self.errors[i]:9.2g} {floors}")
        floor = f"{self.control_floor:9.2g}" if self.control_floor else f"{'exact':>9}"
        lines.append(f"{'control: ' + self.control:{width}} {self.control_error:9.2g} {floor}")
        lines.append(f"{'discrimination':{width}} {self.discrimination:9.2g}")
        lines.append(f"{'worst / discrimination':{width}} {self.worst_of_discrimination:9.2g}")
        lines += [f"note: {remark}" for remark in self.remarks()]
        return "\n".join(lines)

    def remarks(self) -> list[str]:
        """Warnings about how to read the numbers."""
        found = []
        if self.is_nearly_constant:
            found.append("nearly constant: the output hardly depends on the input, so small errors mean little")
        if self.errors[0] > _NOT_REPEATABLE:
            found.append("not repeatable: two calls on the same input differ (the identity's error)")
        if self.control_error <= max(1e-2 * self.discrimination, self.control_floor, self.tolerance):
            found.append(
                f"f is equivariant to the control ({self.control}) too: its group may be larger, or it ignores pose"
            )
        if lost := self.far_above_floor:
            names = ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")
            found.append(f"far above the floor, and about as large as the control: {names}")
        if not self.decides and len(self.elements) > 1:
            found.append(
                "every element but the identity needs interpolation on this grid: compare each error with its floor"
            )
        found += [f"failed under {element}: {message}" for element, message in self.failures]
        return found

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """The table with bars, for notebooks."""
        from unpose.report import table_html

        floors = ["exact" if exact else f"{floor:.2g}" for exact, floor in zip(self.exact, self.floors, strict=True)]
        columns = {
            f"under {self.group}": [*self.elements, f"control: {self.control}"],
            "error": [*self.errors.tolist(), self.control_error],
            "floor": [*floors, f"{self.control_floor:.2g}" if self.control_floor else "exact"],
        }
        notes = [f"discrimination {self.discrimination:.2g}", *self.remarks()]
        return table_html(columns, bars=["error"], notes=notes)


def equivariance_error(
    f: Callable[[Tensor], Any],
    inputs: Tensor,
    group: str | Group,
    output: str | None = "invariant",
    *,
    input: str = "image",
    group_axis: int = 2,
    n_elements: int = 16,
    random_state: int = 0,
    batch_size: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> EquivarianceReport:
    """Measure ``||f(g x) - g f(x)|| / ||g f(x)||`` for the elements g of a group.

    Parameters
    ----------
    f : callable
        Any function from a tensor to a tensor or array with one entry per input. A torch module is measured in
        evaluation mode and then restored. Integers are labels: the error is the share of labels that change.
    inputs : (n, c, h, w) tensor, or (n, c, order, h, w) for ``input="regular image"``
        At least two different inputs, floating point.
    group : str or Group
        Every element of a finite group is measured. For a continuous group, ``n_elements`` random elements are
        measured and those of its quarter turns and mirrors that preserve the height and width of the input.
    output : str or None, default "invariant"
        How the output transforms. "invariant": not at all. "image": as an image, pixels in the last two axes.
        "regular": the entries of ``group_axis`` are permuted according to the product table. "regular image": both.
        "vectors", "keypoints" (last axis 2), "boxes" (last axis 4), "poses" (..., 3, 3) and "vector image"
        (n, 2, h, w): coordinates, which may be followed by a colon and their order and origin, such as
        "keypoints: xy pixel" or "boxes: cxcywh unit". None: found from the data.
    input : {"image", "regular", "regular image", "points", "contour", "sphere"}, default "image"
        How the input transforms. The last three are point clouds (n, k, d), complex contours (n, k) and
        latitude-longitude images (n, c, h, w); their outputs are "invariant" or, in order, "points" or "vectors",
        "contour", "sphere" (see :mod:`unpose.audit.worlds`).
    group_axis : int, default 2
        The group axis of inputs and outputs that have one.
    n_elements : int, default 16
        Number of random elements of a continuous group.
    random_state : int, default 0
        Seed of the random elements.
    batch_size : int, optional
        Largest number of inputs per call of f; all of them by default.
    progress : callable, optional
        Called with a stage, the number of elements done and their total.

    Returns
    -------
    EquivarianceReport
        Errors, interpolation floors, control and discrimination.

    Notes
    -----
    Norms are root sums of squares in float64 over the whole batch, all channels and all pixels.

    Quarter turns and mirrors are exact permutations of pixels; a quarter turn of a non-square image swaps its sides.
    For other elements the input is first multiplied by a window that fades to zero inside the largest disc that no
    element moves out of the image; it is resampled once, and outputs are compared inside a disc. Their floor is the
    change of f(x) when the input is transformed and transformed back, plus, for images, the change of the output when
    it is transformed and transformed back. Both leave the pose unchanged, so the floor is due to interpolation alone.

    The control is outside the group: the mirror or, for groups with mirrors, the first rotation by 180, 90, 45, ...
    degrees that is not in the group, then a stretch by 1.3, then a swap of quadrants. A function that is equivariant
    to the group and to nothing more shows a large error there. Discrimination is the spread of f over the inputs,
    relative to the norm of f.

    The tolerance is 64 times the change of f when its input is rounded once to the type in which f computes, 6 times
    for float16 and bfloat16; f is taken to amplify rounding by a factor of at least one. It is at most 0.1.

    Cost: one call of f per exact element, two for every other element; one for the inputs, one for the control, and two
    on a few inputs for the tolerance.

    Examples
    --------
    >>> images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> equivariance_error(lambda x: x.sum((2, 3)), images, "c4").holds()
    True
    """
    if input in OUTPUTS:
        return _error_in_world(f, inputs, group, output or "invariant", input, n_elements, int(random_state))
    group = plane_group(group)
    takes = kind_of(input, group, group_axis)
    gives = None if output is None else kind_of(output, group, group_axis)
    order = len(group) if isinstance(group, FiniteGroup) else 0
    check_inputs(inputs, takes, gives or Kind(), order)
    frame = (inputs.shape[-2], inputs.shape[-1]) if takes.image else (1, 1)
    elements = elements_of(group, frame, n_elements, torch.Generator().manual_seed(int(random_state)))

    def call(tensor: Tensor) -> dict[str, Tensor]:
        return {"": checked_values(f(tensor), len(tensor))}

    with evaluation(f):
        few = some_inputs(call, inputs)
        precision = measure_precision(lambda tensor: call(tensor)[""], few)
        if gives is None:
            gives = find_actions(call, few, takes, group, frame)[""].kind
        probe = Probe(
            call, inputs, takes, {"": gives}, group, frame, [*elements, control_for(group)], batch_size, progress
        )
        return probe.report(elements, {"": precision.tolerance("")}, input)[""]


def _error_in_world(
    f: Callable[[Tensor], Any], inputs: Tensor, group: str | Group, output: str, world: str, n_elements: int, seed: int
) -> EquivarianceReport:
    """The report for point clouds, contours and images of the sphere."""
    check_world(inputs, world, output)
    name, elements, control = world_elements(inputs, world, group, n_elements, seed)

    def as_real(tensor: Tensor) -> Tensor:
        return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor

    def call(tensor: Tensor) -> Tensor:
        answer = f(tensor.clone())
        return answer if isinstance(answer, Tensor) and answer.is_complex() else checked_values(answer, len(tensor))

    def call_real(tensor: Tensor) -> dict[str, Tensor]:
        given = torch.view_as_complex(tensor.contiguous()) if inputs.is_complex() else tensor
        return {"": as_real(call(given))}

    def error_of(element: WorldElement) -> tuple[float, float, float, NDArray]:
        found, expected = call(element.act(inputs, world)), element.act(base, output)
        if found.shape != expected.shape:
            raise ValueError(
                f"f gives {tuple(base.shape)} for the inputs and {tuple(found.shape)} after '{element.name}', where an "
                f"output of kind {output!r} would be {tuple(expected.shape)}"
            )
        gaps, size = as_real(found - expected).double().flatten(1).norm(dim=1), as_real(expected).double().norm()
        floor, input_floor = 0.0, 0.0
        if element.undo is not None:
            back = element.undo(element.act(inputs, world), world)
            returned = element.undo(element.act(base, output), output)
            floor = relative_norm(call(back) - base, base) + relative_norm(returned - base, base)
            input_floor = relative_norm(back - inputs, inputs)
        by_input = _ratio(gaps, size / len(gaps) ** 0.5).detach().cpu().numpy()
        return float(_ratio(gaps.norm(), size)), floor, input_floor, by_input

    with evaluation(f), torch.no_grad():
        precision = measure_precision(lambda tensor: call_real(tensor)[""], as_real(inputs))
        base = call(inputs)
        rows, outside = [error_of(element) for element in elements], error_of(control)
    errors, floors, input_floors = np.array([row[:3] for row in rows]).T
    return EquivarianceReport(
        group=name, input=world, output=output, elements=tuple(element.name for element in elements),
        exact=np.array([element.is_exact for element in elements]), errors=errors, floors=floors,
        input_floors=input_floors, by_input=np.stack([row[3] for row in rows]), control=control.name,
        control_error=outside[0], control_floor=outside[1], discrimination=discrimination(as_real(base).double()),
        tolerance=precision.tolerance(""), n_calls=len(elements) + 4,
    )  # fmt: skip


def some_inputs(call: Callable[[Tensor], Any], inputs: Tensor) -> Tensor:
    """A few of the inputs, different ones; all of them if f takes no other number."""
    first_other = next(i for i in range(1, len(inputs)) if not torch.equal(inputs[i], inputs[0]))
    few = inputs[:_FEW] if first_other < _FEW else inputs[torch.tensor([0, first_other])]
    if len(few) < len(inputs):
        try:
            call(few.clone())
        except Exception:
            return inputs
    return few


def find_actions(
    call: Callable[[Tensor], dict[str, Tensor]], inputs: Tensor, takes: Kind, group: Group, frame: tuple[int, int],
    elements: list[Element] | None = None,
) -> dict[str, FoundAction]:  # fmt: skip
    """Find how each output transforms, from a few inputs and the exact elements of the group, or else given ones."""
    exact = [element for element in exact_elements(group) if element.name != "identity" and element.preserves(frame)]
    tried = exact or [element for element in elements or [] if element.name != "identity"][:4]
    base = call(inputs.clone())
    moved = [(element, call(act(inputs, element, takes, frame))) for element in tried]
    return {
        name: find_action(tensor, [(element, outputs[name]) for element, outputs in moved], group, frame)
        for name, tensor in base.items()
    }


def discrimination(outputs: Tensor) -> float:
    """Spread of outputs (n, ...) around their mean, relative to their norm; 0 for a constant function.

    For labels it is the probability that two of them differ.
    """
    if not outputs.dtype.is_floating_point:
        rows = outputs.flatten(1) if outputs.ndim > 1 else outputs[:, None]
        shares = [1 - float((rows[:, i : i + 1] == rows[:, i]).double().mean()) for i in range(min(rows.shape[1], 256))]
        return float(np.mean(shares))
    outputs = outputs.double()
    return relative_norm(outputs - outputs.mean(0, keepdim=True), outputs)


def relative_norm(difference: Tensor, reference: Tensor) -> float:
    """``||difference|| / ||reference||``, and 0 if both are 0."""
    return float(_ratio(difference.norm(), reference.norm()))


class _Squares:
    """Sums of squares of differences and of what they are compared with, over all pieces of the inputs."""

    def __init__(self) -> None:
        self.by_input: list[Tensor] = []
        self.size = 0.0

    def add(self, difference: Tensor, reference: Tensor) -> None:
        self.by_input.append(difference.flatten(1).square().sum(1))
        self.size += float(reference.square().sum())

    def errors(self, labels: bool) -> tuple[float, NDArray]:
        """The relative error, and that of each input; for labels the share that differs."""
        squares = torch.cat(self.by_input)
        total, size = squares.sum(), torch.tensor(self.size, dtype=torch.float64)
        whole, each = _ratio(total, size), _ratio(squares, size / len(squares))
        return (float(whole), each.numpy()) if labels else (float(whole.sqrt()), each.sqrt().numpy())


class Probe:
    """Calls f on transformed inputs, in pieces, and compares each of its outputs with what its kind predicts."""

    def __init__(
        self, call: Callable[[Tensor], dict[str, Tensor]], inputs: Tensor, takes: Kind, gives: dict[str, Kind],
        group: Group, frame: tuple[int, int], elements: list[Element], batch_size: int | None = None,
        progress: Callable[[str, int, int], None] | None = None, keep_going: bool = False,
    ) -> None:  # fmt: skip
        self._call, self._takes, self._gives, self._group, self._frame = call, takes, gives, group, frame
        self._order = len(group) if isinstance(group, FiniteGroup) else 0
        self._pieces = [
            slice(i, i + (batch_size or len(inputs))) for i in range(0, len(inputs), batch_size or len(inputs))
        ]
        self._progress, self._keep_going = progress, keep_going
        self._inputs, self._window = inputs, None
        self.n_calls = 0
        self.whole = self._faded = self._outputs(self._inputs)
        *_, self._control = elements
        if takes.image and not all(element.is_exact for element in elements):
            self._window = disc_window(frame, content_radius(elements, frame), inputs)
            self._faded = self._outputs(self._inputs, self._window)

    def _outputs(self, inputs: Tensor, window: Tensor | None = None) -> dict[str, Tensor]:
        """f of all inputs; outputs with another number of axes than their kind needs are refused."""
        self.n_calls += 1
        parts = []
        for piece in self._pieces:
            part = inputs[piece].clone() if window is None else inputs[piece] * window  # f may work in place
            parts.append(self._call(part))
        outputs = {name: torch.cat([part[name] for part in parts]) for name in self._gives}
        for name, tensor in outputs.items():
            check_shape(tensor, self._gives[name], self._order, f"output {name!r}" if name else "f's output")
        return outputs

    def _is_label_map(self, name: str) -> bool:
        return self._gives[name].has_pixels and not self.whole[name].dtype.is_floating_point

    def is_exact(self, element: Element) -> bool:
        return element.is_exact or not self._takes.image

    def report(
        self,
        elements: list[Element],
        tolerances: dict[str, float],
        input: str,
        output_names: dict[str, str] | None = None,
    ) -> dict[str, EquivarianceReport]:
        """Measure all elements and the control, and report each output."""
        rows: list[dict[str, tuple[float, float, float, NDArray]]] = []
        failures: list[tuple[str, str]] = []
        everything = [*elements, self._control]
        for done, element in enumerate(everything):
            if self._progress is not None:
                self._progress("elements", done, len(everything))
            try:
                rows.append(self._measure(element))
            except ElementFailure as error:
                if not self._keep_going:
                    raise
                failures.append((element.name, str(error)))
                nothing = np.full(len(self._inputs), np.nan)
                rows.append(dict.fromkeys(self._gives, (np.nan, np.nan, np.nan, nothing)))
        if self._progress is not None:
            self._progress("elements", len(everything), len(everything))
        return {
            name: self._entry(name, elements, rows, tuple(failures), tolerances[name], input) for name in self._gives
        }

    def _entry(
        self, name: str, elements: list[Element], rows: list[dict[str, tuple[float, float, float, NDArray]]],
        failures: tuple[tuple[str, str], ...], tolerance: float, input: str,
    ) -> EquivarianceReport:  # fmt: skip
        measured, outside = [row[name] for row in rows[:-1]], rows[-1][name]
        errors, floors, input_floors = np.array([m[:3] for m in measured]).T
        kind = self._gives[name]
        plain = Kind(kind.image, kind.group_axis)
        return EquivarianceReport(
            group=self._group.name,
            input=input,
            output=str(kind).partition(",")[0] if kind == plain else str(kind),
            elements=tuple(element.name for element in elements),
            exact=np.array([self.is_exact(element) for element in elements]),
            errors=errors,
            floors=floors,
            input_floors=input_floors,
            by_input=np.stack([m[3] for m in measured]),
            control=self._control.name,
            control_error=outside[0],
            control_floor=outside[1],
            discrimination=discrimination(self.whole[name]),
            tolerance=tolerance,
            n_calls=self.n_calls,
            failures=failures,
        )

    def _measure(self, element: Element) -> dict[str, tuple[float, float, float, NDArray]]:
        """Error, floor, floor of the input, and the error of each input (n,), for each output."""
        exact = self.is_exact(element)
        outputs = self.whole if exact else self._faded
        window = None if exact else self._window
        sums = {
            (name, candidate): _Squares()
            for name, kind in self._gives.items()
            for candidate in range(len(element.permutations) if kind.group_axis is not None else 1)
        }
        changes = {name: _Squares() for name in self._gives}
        returns = {name: _Squares() for name in self._gives}
        pixels = _Squares()
        self.n_calls += 1 if exact else 2
        # Labels cannot be interpolated.
        unseen = {name for name in self._gives if not exact and self._is_label_map(name)}
        sums = {(name, candidate): squares for (name, candidate), squares in sums.items() if name not in unseen}
        for piece in self._pieces:
            part = self._inputs[piece] if window is None else self._inputs[piece] * window
            given = self._call_moved(part, element)
            for (name, candidate), squares in sums.items():
                self._compare(given[name], outputs[name][piece], element, name, candidate, squares)
            if exact:
                continue
            back = round_trip(part, element, self._frame)
            pixels.add((back - part).double(), part.double())
            again = self._call_safely(back, element)
            for name, kind in self._gives.items():
                if name in unseen:
                    continue
                base = outputs[name][piece]
                mask = valid_mask(base, element, kind, self._frame) if not kind.part else torch.ones(())
                changes[name].add(mask * _difference(again[name], base), mask * _size_of(base))
                if kind.image and base.dtype.is_floating_point and not kind.channels_last:
                    returned = round_trip(base, element, self._frame)
                    returns[name].add(mask * (returned - base).double(), mask * base.double())
        found = {}
        for name, kind in self._gives.items():
            if name in unseen:
                found[name] = (np.nan, np.nan, np.nan, np.full(len(self._inputs), np.nan))
                continue
            labels = not outputs[name].dtype.is_floating_point
            candidates = [squares for (entry, _), squares in sums.items() if entry == name]
            error, by_input = min((squares.errors(labels) for squares in candidates), key=lambda result: result[0])
            if exact:
                found[name] = (error, 0.0, 0.0, by_input)
                continue
            floor = changes[name].errors(labels)[0]
            if kind.image and not labels and not kind.channels_last:
                floor += returns[name].errors(labels)[0]
            found[name] = (error, floor, pixels.errors(False)[0], by_input)
        return found

    def _compare(
        self, given: Tensor, outputs: Tensor, element: Element, name: str, candidate: int, squares: _Squares
    ) -> None:
        kind = self._gives[name]
        expected = act(outputs, element, kind, self._frame, candidate)
        if given.shape != expected.shape:
            raise ElementFailure(
                f"f gives {tuple(outputs.shape)} for the inputs and {tuple(given.shape)} after '{element.name}', where "
                f"an output of kind '{kind}' would be {tuple(expected.shape)}"
            )
        plain = kind.part and not kind.image
        mask = torch.ones(()) if plain else valid_mask(outputs, element, kind, self._frame, candidate)
        squares.add(mask * _difference(given, expected), mask * _size_of(expected))

    def _call_moved(self, inputs: Tensor, element: Element) -> dict[str, Tensor]:
        moved = act(inputs, element, self._takes, self._frame)
        if moved.shape == inputs.shape:
            return self._call_safely(moved, element)
        try:
            return self._call(moved.clone())
        except Exception as error:
            raise ElementFailure(
                f"f fails on inputs transformed by '{element.name}', of shape {tuple(moved.shape)} instead of "
                f"{tuple(inputs.shape)}: {error}. Give square images, or a group without quarter turns"
            ) from error

    def _call_safely(self, inputs: Tensor, element: Element) -> dict[str, Tensor]:
        try:
            return self._call(inputs.clone())
        except Exception as error:
            if not self._keep_going:
                raise
            raise ElementFailure(str(error).strip().partition("\n")[0] or type(error).__name__) from error


def _difference(given: Tensor, expected: Tensor) -> Tensor:
    """The difference of numbers; for labels 1 where they differ."""
    return given.double() - expected.double() if given.dtype.is_floating_point else (given != expected).double()


def _size_of(tensor: Tensor) -> Tensor:
    """What a difference is relative to: the numbers themselves, or 1 for each label."""
    return tensor.double() if tensor.dtype.is_floating_point else torch.ones(tensor.shape, dtype=torch.float64)


def finite(value: float) -> float | None:
    """The value, or None (null in JSON) where it is not finite."""
    return float(value) if math.isfinite(value) else None


def checked_values(outputs: Any, n: int) -> Tensor:
    """Check an output of f: finite real numbers or labels, with one entry per input, as a tensor on the CPU."""
    if isinstance(outputs, np.ndarray) and outputs.dtype.kind in "iub":
        outputs = torch.from_numpy(np.ascontiguousarray(outputs))
    if isinstance(outputs, Tensor) and not outputs.dtype.is_floating_point and not outputs.is_complex():
        checked_output(outputs.double(), n)
        return outputs.detach().to("cpu")
    return checked_output(outputs, n).detach().to("cpu")


def checked_numbers(outputs: Any, n: int) -> Tensor:
    """Check outputs of f, and convert them to a float64 tensor on the CPU."""
    return checked_output(outputs, n).detach().to("cpu", torch.float64)


def check_inputs(inputs: Tensor, takes: Kind, gives: Kind, order: int) -> None:
    """Raise a ValueError unless inputs and kinds can be audited."""
    if not isinstance(inputs, Tensor) or not inputs.dtype.is_floating_point:
        given = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(
            f"inputs must be a floating-point tensor (n, c, h, w), got {given}; unpose.images.as_batch makes one"
        )
    if takes == Kind():
        raise ValueError("an input of kind 'invariant' does not transform, so nothing can be measured on it")
    if gives.image and not takes.image:
        raise ValueError(f"an output of kind '{gives}' needs an input with pixels, got kind '{takes}'")
    if takes.image and inputs.ndim < 4:
        raise ValueError(f"image inputs must be (n, c, h, w), got shape {tuple(inputs.shape)}")
    _check_differ(inputs)
    check_shape(inputs, takes, order, "the input")


def _check_differ(inputs: Tensor) -> None:
    """Raise unless there are two different, finite inputs; otherwise a constant function would look perfect."""
    if inputs.ndim == 0 or inputs.numel() == 0:
        raise ValueError(f"inputs are empty: shape {tuple(inputs.shape)}; at least two images are needed")
    if not inputs.isfinite().all():
        raise ValueError(f"inputs hold {int((~inputs.isfinite()).sum())} values that are NaN or infinite")
    if not (inputs != inputs[:1]).any():
        raise ValueError("at least two different inputs are needed, to tell an invariant function from a constant one")


def _ratio(size: Tensor, reference: Tensor) -> Tensor:
    """size / reference, and 0 if both are 0."""
    return torch.where(size > 0, size / reference, torch.zeros_like(size))
