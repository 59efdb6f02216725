"""Measure the equivariance error of any function, per group element, beside the error of interpolation alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.audit.actions import Kind, act, check_shape, disc_window, kind_of, round_trip, valid_mask
from unpose.audit.calls import checked_output, evaluation
from unpose.audit.elements import Element, content_radius, control_for, elements_of
from unpose.groups import FiniteGroup, Group, parse

NEARLY_CONSTANT = 1e-3
"""Below this discrimination a function hardly depends on its input, and a small error means little."""


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

    @property
    def worst(self) -> int:
        """Index of the element with the largest error."""
        return int(self.errors.argmax())

    @property
    def worst_exact(self) -> float:
        """The largest error of the exact elements."""
        return float(self.errors[self.exact].max())

    @property
    def worst_of_discrimination(self) -> float:
        """The largest error divided by the discrimination, so that a large constant part of f cannot hide it."""
        return float(self.errors.max() / self.discrimination) if self.discrimination else float(self.errors.any())

    @property
    def is_nearly_constant(self) -> bool:
        """Whether f gives nearly the same output for every input, so that its errors mean little."""
        return self.discrimination < NEARLY_CONSTANT

    @property
    def decides(self) -> bool:
        """Whether any element but the identity is exact; otherwise :meth:`holds` only compares f with itself."""
        return bool(self.exact[1:].any())

    def holds(self, tolerance: float = 1e-5) -> bool:
        """Whether the error of every exact element is within the tolerance, and f is not nearly constant.

        Elements that need interpolation are not considered: compare their errors with their floors. See
        :attr:`decides` for groups without exact elements.
        """
        return self.worst_exact <= tolerance and not self.is_nearly_constant

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
        if self.errors[0] > 1e-4:
            found.append("not repeatable: two calls on the same input differ (the identity's error)")
        if self.control_error <= max(1e-2 * self.discrimination, self.control_floor):
            found.append(
                f"f is equivariant to the control ({self.control}) too: its group may be larger, or it ignores pose"
            )
        lost = ~self.exact & (self.errors > 2 * self.floors) & (self.errors > self.control_error / 2)
        if lost.any():
            names = ", ".join(np.array(self.elements)[lost][:3]) + (", ..." if lost.sum() > 3 else "")
            found.append(f"far above the floor, and about as large as the control: {names}")
        if not self.decides and len(self.elements) > 1:
            found.append(
                "every element but the identity needs interpolation on this grid: compare each error with its floor"
            )
        return found

    def __str__(self) -> str:
        return self.table()


def equivariance_error(
    f: Callable[[Tensor], Any],
    inputs: Tensor,
    group: str | Group,
    output: str = "invariant",
    *,
    input: str = "image",
    group_axis: int = 2,
    n_elements: int = 16,
    random_state: int = 0,
) -> EquivarianceReport:
    """Measure ``||f(g x) - g f(x)|| / ||g f(x)||`` for the elements g of a group.

    Parameters
    ----------
    f : callable
        Any function from a tensor to a tensor or array of numbers with one entry per input. A torch module is
        measured in evaluation mode and then restored.
    inputs : (n, c, h, w) tensor, or (n, c, order, h, w) for ``input="regular image"``
        At least two different inputs, float32 or float64.
    group : str or Group
        Every element of a finite group is measured. For a continuous group, ``n_elements`` random elements are
        measured and those of its quarter turns and mirrors that preserve the height and width of the input.
    output : {"invariant", "image", "regular", "regular image"}, default "invariant"
        How the output transforms: not at all, as an image (pixels in the last two axes), by permuting the entries of
        ``group_axis`` according to the product table, or both.
    input : {"image", "regular", "regular image"}, default "image"
        How the input transforms.
    group_axis : int, default 2
        The group axis of inputs and outputs that have one.
    n_elements : int, default 16
        Number of random elements of a continuous group.
    random_state : int, default 0
        Seed of the random elements.

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

    Cost: one call of f per exact element, two for every other element.

    Examples
    --------
    >>> images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> equivariance_error(lambda x: x.sum((2, 3)), images, "c4").holds()
    True
    """
    group = parse(group)
    takes, gives = kind_of(input, group, group_axis), kind_of(output, group, group_axis)
    order = len(group) if isinstance(group, FiniteGroup) else 0
    check_inputs(inputs, takes, gives, order)
    frame = (inputs.shape[-2], inputs.shape[-1]) if takes.image else (1, 1)
    elements = elements_of(group, frame, n_elements, torch.Generator().manual_seed(int(random_state)))
    control = control_for(group)
    with evaluation(f):
        probe = _Probe(f, inputs, takes, gives, order, frame, [*elements, control])
        measured = [probe.measure(element) for element in elements]
        outside = probe.measure(control)
    errors, floors, input_floors = np.array([m[:3] for m in measured]).T
    return EquivarianceReport(
        group=group.name,
        input=input,
        output=output,
        elements=tuple(element.name for element in elements),
        exact=np.array([probe.is_exact(element) for element in elements]),
        errors=errors,
        floors=floors,
        input_floors=input_floors,
        by_input=np.stack([m[3] for m in measured]),
        control=control.name,
        control_error=outside[0],
        control_floor=outside[1],
        discrimination=discrimination(probe.whole),
    )


def discrimination(outputs: Tensor) -> float:
    """Spread of outputs (n, ...) around their mean, relative to their norm; 0 for a constant function."""
    return relative_norm(outputs - outputs.mean(0, keepdim=True), outputs)


def relative_norm(difference: Tensor, reference: Tensor) -> float:
    """``||difference|| / ||reference||``, and 0 if both are 0."""
    return float(_ratio(difference.norm(), reference.norm()))


class _Probe:
    """Calls f on transformed inputs, checks its outputs, and keeps what is common to all elements."""

    def __init__(
        self, f: Callable[[Tensor], Any], inputs: Tensor, takes: Kind, gives: Kind, order: int,
        frame: tuple[int, int], elements: list[Element],
    ) -> None:  # fmt: skip
        self._f, self._takes, self._gives, self._order, self._frame = f, takes, gives, order, frame
        self._inputs = self._windowed = inputs
        self.whole = self._faded = self._call(inputs)
        if takes.image and not all(element.is_exact for element in elements):
            self._windowed = inputs * disc_window(frame, content_radius(elements, frame), inputs)
            self._faded = self._call(self._windowed)

    def is_exact(self, element: Element) -> bool:
        return element.is_exact or not self._takes.image

    def measure(self, element: Element) -> tuple[float, float, float, NDArray]:
        """Error, floor, floor of the input, and the error of each input (n,)."""
        exact = self.is_exact(element)
        inputs, outputs = (self._inputs, self.whole) if exact else (self._windowed, self._faded)
        given = self._call_moved(inputs, element)
        candidates = len(element.permutations) if self._gives.group_axis is not None else 1
        results = [self._compare(given, outputs, element, candidate) for candidate in range(candidates)]
        error, by_input = min(results, key=lambda result: result[0])
        if exact:
            return error, 0.0, 0.0, by_input
        back = round_trip(inputs, element, self._frame)
        mask = valid_mask(outputs, element, self._gives, self._frame)
        floor = relative_norm(mask * (self._call(back) - outputs), mask * outputs)
        if self._gives.image:
            returned = round_trip(outputs, element, self._frame)
            floor += relative_norm(mask * (returned - outputs), mask * outputs)
        return error, floor, relative_norm((back - inputs).double(), inputs.double()), by_input

    def _compare(self, given: Tensor, outputs: Tensor, element: Element, candidate: int) -> tuple[float, NDArray]:
        expected = act(outputs, element, self._gives, self._frame, candidate)
        if given.shape != expected.shape:
            raise ValueError(
                f"f gives {tuple(outputs.shape)} for the inputs and {tuple(given.shape)} after '{element.name}', where "
                f"an output of kind '{self._gives}' would be {tuple(expected.shape)}"
            )
        mask = valid_mask(outputs, element, self._gives, self._frame, candidate)
        differences = (mask * (given - expected)).flatten(1).norm(dim=1)  # (n,)
        size = (mask * expected).norm()
        by_input = _ratio(differences, size / len(differences) ** 0.5)
        return float(_ratio(differences.norm(), size)), by_input.numpy()

    def _call_moved(self, inputs: Tensor, element: Element) -> Tensor:
        moved = act(inputs, element, self._takes, self._frame)
        if moved.shape == inputs.shape:
            return self._call(moved)
        try:
            return self._call(moved)
        except Exception as error:
            raise ValueError(
                f"f fails on inputs transformed by '{element.name}', of shape {tuple(moved.shape)} instead of "
                f"{tuple(inputs.shape)}: {error}. Give square images, or a group without quarter turns"
            ) from error

    def _call(self, inputs: Tensor) -> Tensor:
        # f may modify its input in place
        outputs = checked_numbers(self._f(inputs.clone()), len(inputs))
        check_shape(outputs, self._gives, self._order, "f's output")
        return outputs


def checked_numbers(outputs: Any, n: int) -> Tensor:
    """Check outputs of f, and convert them to a float64 tensor on the CPU."""
    return checked_output(outputs, n).detach().to("cpu", torch.float64)


def check_inputs(inputs: Tensor, takes: Kind, gives: Kind, order: int) -> None:
    """Raise a ValueError unless inputs and kinds can be audited."""
    if not isinstance(inputs, Tensor) or inputs.dtype not in (torch.float32, torch.float64):
        given = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(
            f"inputs must be a float32 or float64 tensor (n, c, h, w), got {given}; unpose.images.as_batch makes one"
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
