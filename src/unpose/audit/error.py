"""How far a function is from equivariant: one relative error per element, beside what interpolation alone costs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.audit.actions import Kind, act, check_shape, comparable, disc_window, kind_of, there_and_back
from unpose.audit.elements import Element, content_radius, control_for, elements_of
from unpose.groups import FiniteGroup, Group, parse

NEARLY_CONSTANT = 1e-3
"""Below this discrimination a function hardly looks at its input, and a small error means little."""


@dataclass(frozen=True)
class EquivarianceError:
    """What :func:`equivariance_error` measured; ``print`` it for the table.

    Entry 0 of each array is the identity: f called twice on the same input.
    """

    group: str
    input: str
    output: str
    elements: tuple[str, ...]  # k names
    exact: NDArray[np.bool_]  # (k,) whether the element only moves pixels
    errors: NDArray[np.float64]  # (k,) ||f(gx) - g f(x)|| / ||g f(x)||
    floors: NDArray[np.float64]  # (k,) what interpolation alone does to f and to its output; 0 where exact
    input_floors: NDArray[np.float64]  # (k,) what turning the input and turning it back costs; 0 where exact
    by_input: NDArray[np.float64]  # (k, n) the same error of each input, over the mean norm of all
    control: str  # a transformation outside the group
    control_error: float
    control_floor: float
    discrimination: float  # 0 for a constant function, near 1 where every input has an output of its own

    @property
    def worst(self) -> int:
        """The element with the largest error."""
        return int(self.errors.argmax())

    @property
    def worst_exact(self) -> float:
        """The largest error of the elements that only move pixels."""
        return float(self.errors[self.exact].max())

    @property
    def worst_of_discrimination(self) -> float:
        """The largest error as a share of what tells inputs apart, which a large constant part cannot hide."""
        return float(self.errors.max() / self.discrimination) if self.discrimination else float(self.errors.any())

    @property
    def is_nearly_constant(self) -> bool:
        """Whether f gives nearly the same output whatever it is shown: then no error of it counts for much."""
        return self.discrimination < NEARLY_CONSTANT

    @property
    def decides(self) -> bool:
        """Whether any element but the identity only moves pixels: without one :meth:`holds` says next to nothing."""
        return bool(self.exact[1:].any())

    def holds(self, tolerance: float = 1e-5) -> bool:
        """Whether every element that only moves pixels stays within the tolerance, and f is not nearly constant.

        Resampled elements do not decide: they are to be read beside their floors. Where there are no others, see
        :attr:`decides`.
        """
        return self.worst_exact <= tolerance and not self.is_nearly_constant

    def table(self) -> str:
        """The measurement as text, one line per element."""
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
        """What to be careful about when reading the numbers."""
        found = []
        if self.is_nearly_constant:
            found.append("nearly constant: the output hardly depends on the input, so small errors mean little")
        if self.errors[0] > 1e-4:
            found.append("not repeatable: two calls on the same input differ (the identity's error)")
        if self.control_error <= max(1e-2 * self.discrimination, self.control_floor):
            found.append(
                f"the control ({self.control}) is not told apart: f may hold for a larger group, or ignore pose"
            )
        lost = ~self.exact & (self.errors > 2 * self.floors) & (self.errors > self.control_error / 2)
        if lost.any():
            names = ", ".join(np.array(self.elements)[lost][:3]) + (", ..." if lost.sum() > 3 else "")
            found.append(f"far above the floor, and about as large as the control: {names}")
        if not self.decides and len(self.elements) > 1:
            found.append("no element only moves pixels on this grid: read each error beside its floor")
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
) -> EquivarianceError:
    """Measure ``||f(g x) - g f(x)|| / ||g f(x)||`` for the elements g of a group.

    Parameters
    ----------
    f : callable
        Anything from a tensor to a tensor or array of numbers with one entry per input. A torch module is measured in
        evaluation mode and then put back.
    inputs : (n, c, h, w) tensor, or (n, c, order, h, w) for ``input="regular image"``
        At least two different ones, float32 or float64.
    group : str or Group
        Of a finite group every element is measured, of a continuous one ``n_elements`` drawn ones, and those quarter
        turns and mirrors of it that leave the frame's height and width what they are.
    output, input : {"invariant", "image", "regular", "regular image"}
        How f's output and input move: not at all, as images (pixels in the last two axes), by permuting the places of
        ``group_axis`` as the product table says, or both.
    group_axis : int
        The group axis of inputs and outputs that have one.
    n_elements : int
        How many elements of a continuous group are drawn.
    random_state : int
        Seed of the drawn elements.

    Returns
    -------
    EquivarianceError

    Notes
    -----
    Norms are the root of the sum of squares over everything, in float64: the whole batch, all channels, whole maps.

    Quarter turns and mirrors are exact permutations; a frame that is not square has its sides swapped by a quarter
    turn. For other elements the input stands under a window that fades to zero inside the largest disc no element
    pushes out of the frame, is resampled once, and maps are compared inside a disc. Beside their error stands the
    floor: f of the input moved there and back against f of the input and, for images, f's output moved there and back
    against itself, added. Both leave the pose as it was, so all of it is interpolation.

    The control lies outside the group: the mirror or, where the group mirrors, the first turn by 180, 90, 45, ...
    degrees it does not hold, then a stretch by 1.3, then swapped quadrants. A function equivariant under the group
    and no more shows a large error there. Discrimination is the spread of f over the inputs, relative to the norm of f.

    Cost: one call of f per element that only moves pixels, two for any other.

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
    return EquivarianceError(
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
    """Spread of outputs (n, ...) about their mean, relative to their norm: 0 for a constant function."""
    return relative_norm(outputs - outputs.mean(0, keepdim=True), outputs)


def relative_norm(difference: Tensor, reference: Tensor) -> float:
    """``||difference|| / ||reference||``, zero where both are."""
    return float(_ratio(difference.norm(), reference.norm()))


class _Probe:
    """f with its inputs: calls it, checks what comes back, and keeps what all elements share."""

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
        """Error, floor, floor of the input, and the error of each input."""
        exact = self.is_exact(element)
        inputs, outputs = (self._inputs, self.whole) if exact else (self._windowed, self._faded)
        given = self._call_moved(inputs, element)
        ways = len(element.orders) if self._gives.group_axis is not None else 1
        tries = [self._compare(given, outputs, element, way) for way in range(ways)]
        error, by_input = min(tries, key=lambda result: result[0])
        if exact:
            return error, 0.0, 0.0, by_input
        back = there_and_back(inputs, element, self._frame)
        mask = comparable(outputs, element, self._gives, self._frame)
        floor = relative_norm(mask * (self._call(back) - outputs), mask * outputs)
        if self._gives.image:
            returned = there_and_back(outputs, element, self._frame)
            floor += relative_norm(mask * (returned - outputs), mask * outputs)
        return error, floor, relative_norm((back - inputs).double(), inputs.double()), by_input

    def _compare(self, given: Tensor, outputs: Tensor, element: Element, way: int) -> tuple[float, NDArray]:
        expected = act(outputs, element, self._gives, self._frame, way)
        if given.shape != expected.shape:
            raise ValueError(
                f"f gives {tuple(outputs.shape)} for the inputs and {tuple(given.shape)} after '{element.name}', where "
                f"an output of kind '{self._gives}' would be {tuple(expected.shape)}"
            )
        mask = comparable(outputs, element, self._gives, self._frame, way)
        gaps = (mask * (given - expected)).flatten(1).norm(dim=1)  # (n,)
        size = (mask * expected).norm()
        by_input = _ratio(gaps, size / len(gaps) ** 0.5)
        return float(_ratio(gaps.norm(), size)), by_input.numpy()

    def _call_moved(self, inputs: Tensor, element: Element) -> Tensor:
        moved = act(inputs, element, self._takes, self._frame)
        if moved.shape == inputs.shape:
            return self._call(moved)
        try:
            return self._call(moved)
        except Exception as error:
            raise ValueError(
                f"f fails on the frame that '{element.name}' makes of the inputs, {tuple(moved.shape)} from "
                f"{tuple(inputs.shape)}: {error}. Give square images, or a group without quarter turns"
            ) from error

    def _call(self, inputs: Tensor) -> Tensor:
        # a copy, because f may work in place
        outputs = checked_numbers(self._f(inputs.clone()), len(inputs))
        check_shape(outputs, self._gives, self._order, "f's output")
        return outputs


def checked_numbers(outputs: Any, n: int) -> Tensor:
    """What a function returned as a float64 tensor on the CPU; raises unless it is finite numbers for n inputs."""
    if isinstance(outputs, np.ndarray):
        outputs = torch.from_numpy(outputs)
    if not isinstance(outputs, Tensor):
        raise ValueError(f"f must return a tensor or an array, got {type(outputs).__name__}; pick one in a lambda")
    if not outputs.dtype.is_floating_point:
        raise ValueError(
            f"f must return real numbers, got {outputs.dtype}; of labels give scores or a one-hot code, of complex "
            "numbers torch.view_as_real"
        )
    if outputs.ndim == 0 or len(outputs) != n or outputs.numel() == 0:
        raise ValueError(f"f must return one output per input ({n}), got shape {tuple(outputs.shape)}")
    outputs = outputs.detach().to("cpu", torch.float64)
    if not outputs.isfinite().all():
        raise ValueError(f"f returns {int((~outputs.isfinite()).sum())} values that are NaN or infinite")
    return outputs


def check_inputs(inputs: Tensor, takes: Kind, gives: Kind, order: int) -> None:
    """Raise unless inputs and kinds can be audited."""
    if not isinstance(inputs, Tensor) or inputs.dtype not in (torch.float32, torch.float64):
        given = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(
            f"inputs must be a float32 or float64 tensor (n, c, h, w), got {given}; unpose.images.as_batch makes one"
        )
    if takes == Kind():
        raise ValueError("an input of kind 'invariant' does not move, so nothing can be measured on it")
    if gives.image and not takes.image:
        raise ValueError(f"an output of kind '{gives}' needs an input with pixels, got kind '{takes}'")
    if takes.image and inputs.ndim < 4:
        raise ValueError(f"image inputs must be (n, c, h, w), got shape {tuple(inputs.shape)}")
    _check_differ(inputs)
    check_shape(inputs, takes, order, "the input")


def _check_differ(inputs: Tensor) -> None:
    """Raise unless there are two different, finite inputs: without them a constant function would look perfect."""
    if inputs.ndim == 0 or inputs.numel() == 0:
        raise ValueError(f"inputs are empty: shape {tuple(inputs.shape)}; at least two images are needed")
    if not inputs.isfinite().all():
        raise ValueError(f"inputs hold {int((~inputs.isfinite()).sum())} values that are NaN or infinite")
    if not (inputs != inputs[:1]).any():
        raise ValueError("at least two different inputs are needed, to tell an invariant function from a constant one")


@contextmanager
def evaluation(f: object) -> Iterator[None]:
    """No gradients, and a module's dropout and batch statistics switched off for a while."""
    modules = list(f.modules()) if isinstance(f, torch.nn.Module) else []
    trained = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, was in zip(modules, trained, strict=True):
            module.training = was


def _ratio(size: Tensor, reference: Tensor) -> Tensor:
    """size / reference, zero where both are."""
    return torch.where(size > 0, size / reference, torch.zeros_like(size))
