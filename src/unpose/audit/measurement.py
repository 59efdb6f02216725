"""Call a function on transformed inputs and compare its outputs with what their kinds predict."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.audit.actions import Kind, act, check_shape, disc_window, round_trip, valid_mask
from unpose.audit.calls import checked_output, first_line
from unpose.audit.elements import Element, content_radius, exact_elements, order_of
from unpose.audit.equivariance_report import EquivarianceReport
from unpose.audit.finding import find_action
from unpose.groups import Group

_FEW = 4
"""Number of inputs by which the tolerance is measured and actions are found."""


class ElementFailure(ValueError):
    """The function fails on inputs that were transformed by one element."""


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


def find_kind(
    call: Callable[[Tensor], dict[str, Tensor]], inputs: Tensor, takes: Kind, group: Group, frame: tuple[int, int]
) -> Kind:
    """Find how the only output transforms, from a few inputs and the exact elements of the group."""
    exact = [element for element in exact_elements(group) if element.name != "identity" and element.preserves(frame)]
    moved = [(element, call(act(inputs, element, takes, frame))[""]) for element in exact]
    return find_action(call(inputs.clone())[""], moved, group, frame).kind


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
    return float(ratio(difference.norm(), reference.norm()))


class _Squares:
    """Sums of squares of differences and of what they are compared with, over all pieces of the inputs."""

    def __init__(self) -> None:
        self.by_input: list[Tensor] = []
        self.size = 0.0

    def add(self, difference: Tensor, reference: Tensor) -> None:
        self.by_input.append(difference.reshape(len(difference), -1).square().sum(1))  # also of (n,)
        self.size += float(reference.square().sum())

    def errors(self, labels: bool) -> tuple[float, NDArray]:
        """The relative error, and that of each input; for labels the share that differs."""
        squares = torch.cat(self.by_input)
        total, size = squares.sum(), torch.tensor(self.size, dtype=torch.float64)
        whole, each = ratio(total, size), ratio(squares, size / len(squares))
        return (float(whole), each.numpy()) if labels else (float(whole.sqrt()), each.sqrt().numpy())


class Probe:
    """Calls f on transformed inputs, in pieces, and compares each of its outputs with what its kind predicts."""

    def __init__(
        self, call: Callable[[Tensor], dict[str, Tensor]], inputs: Tensor, takes: Kind, gives: dict[str, Kind],
        group: Group, frame: tuple[int, int], elements: list[Element], batch_size: int | None = None,
        progress: Callable[[str, int, int], None] | None = None, keep_going: bool = False,
    ) -> None:  # fmt: skip
        self._call, self._takes, self._gives, self._group, self._frame = call, takes, gives, group, frame
        self._order = order_of(group)
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
        self, elements: list[Element], tolerances: dict[str, float], input: str
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
                rows.append(self._nothing())
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

    def _nothing(self) -> dict[str, tuple[float, float, float, NDArray]]:
        return dict.fromkeys(self._gives, (np.nan, np.nan, np.nan, np.full(len(self._inputs), np.nan)))

    def _measure(self, element: Element) -> dict[str, tuple[float, float, float, NDArray]]:
        """Error, floor, floor of the input, and the error of each input (n,), for each output."""
        exact = self.is_exact(element)
        outputs = self.whole if exact else self._faded
        window = None if exact else self._window
        # Labels cannot be interpolated.
        gives = {name: kind for name, kind in self._gives.items() if exact or not self._is_label_map(name)}
        sums = {
            (name, candidate): _Squares()
            for name, kind in gives.items()
            for candidate in range(len(element.permutations) if kind.group_axis is not None else 1)
        }
        changes, returns = ({name: _Squares() for name in gives} for _ in range(2))
        pixels = _Squares()
        self.n_calls += 1 if exact else 2
        for piece in self._pieces:
            part = self._inputs[piece] if window is None else self._inputs[piece] * window
            given = self._call_moved(part, element)
            for (name, candidate), squares in sums.items():
                self._compare(given[name], outputs[name][piece], element, name, candidate, squares)
            if exact:
                continue
            back = round_trip(part, element, self._frame)
            pixels.add((back - part).double(), part.double())
            again = self._call_safely(back)
            for name, kind in gives.items():
                base = outputs[name][piece]
                mask = valid_mask(base, element, kind, self._frame) if not kind.part else torch.ones(())
                changes[name].add(mask * _difference(again[name], base), mask * _size_of(base))
                if kind.image and base.dtype.is_floating_point and not kind.channels_last:
                    returned = round_trip(base, element, self._frame)
                    returns[name].add(mask * (returned - base).double(), mask * base.double())
        found = self._nothing()
        for name, kind in gives.items():
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
            return self._call_safely(moved)
        try:
            return self._call(moved.clone())
        except Exception as error:
            raise ElementFailure(
                f"f fails on inputs transformed by '{element.name}', of shape {tuple(moved.shape)} instead of "
                f"{tuple(inputs.shape)}: {error}. Give square images, or a group without quarter turns"
            ) from error

    def _call_safely(self, inputs: Tensor) -> dict[str, Tensor]:
        try:
            return self._call(inputs.clone())
        except Exception as error:
            if not self._keep_going:
                raise
            raise ElementFailure(first_line(error)) from error


def _difference(given: Tensor, expected: Tensor) -> Tensor:
    """The difference of numbers; for labels 1 where they differ."""
    return given.double() - expected.double() if given.dtype.is_floating_point else (given != expected).double()


def _size_of(tensor: Tensor) -> Tensor:
    """What a difference is relative to: the numbers themselves, or 1 for each label."""
    return tensor.double() if tensor.dtype.is_floating_point else torch.ones(tensor.shape, dtype=torch.float64)


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


def ratio(size: Tensor, reference: Tensor) -> Tensor:
    """size / reference, and 0 if both are 0."""
    return torch.where(size > 0, size / reference, torch.zeros_like(size))
