"""The errors of a function by group element, beside floor, control and discrimination, and how to read them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unpose.audit.results import as_plain

_NOT_REPEATABLE = 1e-4
"""Two calls on the same inputs that differ by more than this are not due to the order of additions on a GPU."""

_ROUNDING = 1e-5
"""Errors up to this count as rounding where the noise of a function was not measured."""


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
    >>> import torch
    >>> from unpose.audit import equivariance_error
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
        columns = ("element", "exact", "error", "floor", "pixels")
        names = ("group", "input", "output", "tolerance", "discrimination", "n_calls", "decides")
        plain: dict[str, Any] = as_plain({
            **{name: getattr(self, name) for name in names},
            "holds": self.holds(),
            "elements": [dict(zip(columns, row, strict=True)) for row in rows],
            "control": {"element": self.control, "error": self.control_error, "floor": self.control_floor},
            "failures": [{"element": element, "message": message} for element, message in self.failures],
            "notes": self.remarks(),
        })  # fmt: skip
        return plain

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

    __str__ = table

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
