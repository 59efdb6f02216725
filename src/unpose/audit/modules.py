"""Find the modules that break a network's equivariance: each is tested alone, on exactly transformed inputs."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unpose.audit.actions import Kind, act, check_shape, frame_of, kind_of
from unpose.audit.calls import evaluation, first_line
from unpose.audit.elements import Element, exact_elements, order_of, plane_group
from unpose.audit.finding import (
    FITS,
    conventions,
    deviations,
    find_action,
    find_labels,
    fitting_fields,
    misfit_of,
    shape_kinds,
)
from unpose.audit.measurement import check_inputs, checked_values
from unpose.audit.outputs import outputs_of
from unpose.audit.precision import computed_types, in_double, model_device, model_type
from unpose.audit.results import as_plain
from unpose.audit.trace import Call, trace
from unpose.groups import FiniteGroup, Group

_UNKNOWN_MISFIT = 0.5
"""A tensor that deviates by more than this from its best kind transforms in no known way."""

_MAX_COMBINATIONS = 16
"""Combinations of kinds of a module's inputs that are tried."""

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5}
_COARSE_TOLERANCE = 0.04
_COARSE_EPS = 1e-6
"""Relative errors of one module that count as rounding, by the type in which it computes; coarse types are those with a
larger rounding error than this."""

NETWORK = "(network)"
"""Name of the network itself in the table of modules."""


@dataclass(frozen=True)
class ModuleReport:
    """Equivariance of one call of one module.

    Parameters
    ----------
    name : str
        Qualified name in the network.
    module : str
        Name of the module's class.
    depth : int
        Nesting depth; the network itself has depth 0.
    input_kind, output_kind : str
        How its input and output transform.
    input_error : float
        Error of the input that it receives in the network, caused by earlier modules.
    own_error : float
        Error that it causes itself, on exactly transformed input; NaN if it could not be measured.
    remark : str
        Explanation, such as where inside the module equivariance breaks.

    Examples
    --------
    >>> images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> report = audit_modules(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), images, "c4")
    >>> [(row.name, row.input_kind) for row in report.rows]
    [('(network)', 'image'), ('0', 'image'), ('1', 'invariant')]
    """

    name: str
    module: str
    depth: int
    input_kind: str
    output_kind: str
    input_error: float
    own_error: float
    remark: str


@dataclass(frozen=True)
class NetworkReport:
    """The result of :func:`audit_modules`; ``print`` it to see the table.

    Parameters
    ----------
    group : str
        Name of the group.
    elements : tuple of str
        Names of the elements that were applied.
    error : float
        Largest error of the whole network over these elements.
    rows : tuple of ModuleReport
        One row per call of a module, in order of execution; the network itself comes first.
    culprits : tuple of str
        Names of the modules that break equivariance, in order of execution; empty for an equivariant network.
    tolerance : float, default 1e-5
        The largest error that counted as rounding.

    Examples
    --------
    >>> images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> audit_modules(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), images, "c4").culprits
    ()
    """

    group: str
    elements: tuple[str, ...]
    error: float
    rows: tuple[ModuleReport, ...]
    culprits: tuple[str, ...]
    tolerance: float = 1e-5

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain numbers, strings and lists, for JSON; numbers that are not finite become None."""
        plain: dict[str, Any] = as_plain(self)
        return {"modules" if name == "rows" else name: value for name, value in plain.items()}

    def table(self) -> str:
        """Format the report as text, one line per call."""
        names = ["  " * row.depth + f"{row.name} ({row.module})" for row in self.rows]
        wide, kinds = max(map(len, names)), max(len(f"{row.input_kind} -> {row.output_kind}") for row in self.rows)
        lines = [f"{'module':{wide}}  {'moves':{kinds}}  {'arrives':>8} {'own':>8}"]
        for name, row in zip(names, self.rows, strict=True):
            own = f"{'?':>8}" if math.isnan(row.own_error) else f"{row.own_error:8.1e}"
            moves = f"{row.input_kind} -> {row.output_kind}"
            lines.append(f"{name:{wide}}  {moves:{kinds}}  {row.input_error:8.1e} {own}  {row.remark}".rstrip())
        lines.append(f"breaks {self.group}: {', '.join(self.culprits) or 'none'}")
        return "\n".join(lines)

    __str__ = table

    def _repr_html_(self) -> str:
        """The table with bars, for notebooks."""
        from unpose.report import table_html

        columns: dict[str, list[Any]] = {
            "module": ["\u2003" * row.depth + f"{row.name} ({row.module})" for row in self.rows],
            "moves": [f"{row.input_kind} \u2192 {row.output_kind}" for row in self.rows],
            "error that arrives": [row.input_error for row in self.rows],
            "error of its own": [row.own_error for row in self.rows],
            "": [row.remark for row in self.rows],
        }
        notes = [f"breaks {self.group}: {', '.join(self.culprits) or 'none'}"]
        return table_html(columns, bars=["error of its own"], notes=notes)


def audit_modules(
    network: nn.Module,
    inputs: Tensor,
    group: str | Group,
    output: str | None = "invariant",
    *,
    input: str = "image",
    group_axis: int | None = None,
    tolerance: float | None = None,
) -> NetworkReport:
    """Find the modules that break a network's equivariance.

    Parameters
    ----------
    network : torch.nn.Module
        The network; it is measured in evaluation mode and then restored.
    inputs : tensor
        At least two different inputs, as for :func:`unpose.audit.equivariance_error`.
    group : str or Group
        A group with quarter turns or mirrors.
    output, input : str or None, default "invariant" and "image"
        How the network's output and input transform, as for :func:`unpose.audit.equivariance_error`. If the output is
        None, or if there are several, it is found from the data.
    group_axis : int, optional
        The group axis of feature maps. By default any axis with one entry per element is considered, and axis 2 for
        the network's own input and output.
    tolerance : float, optional
        Largest relative error that counts as rounding. By default it follows from the type in which the network
        computes. A copy of the network in double precision is tested where that is possible.

    Returns
    -------
    NetworkReport
        One row per module, and the modules that break equivariance.

    Notes
    -----
    Only quarter turns and mirrors are used, because they need no interpolation. Feature maps may be (n, c, h, w),
    (n, h, w, c), lists of pixels (n, h w, c) with or without a class token, and each of them with a group axis of its
    own or merged into the channels or the batch. Entries of a group axis may be in the order of the group, in that of
    the inverses, or in another one that is found where the axis first occurs.

    The network runs on x and on g x, and every call of a module is recorded. How a module's input transforms is
    inferred from these runs: the kind that fits best among those that its shape allows, the simplest one in a tie. The
    fit considers only the part that differs between the inputs of the batch, so that an added position encoding does
    not hide how the rest transforms. Then the module alone is called on its recorded input, transformed by that kind,
    and its output is compared with its recorded output under each kind that its shape allows. A module is therefore
    not blamed for errors of its input.

    If the network is not equivariant, its direct submodules are tested in this way, then those inside every failing
    one. A failing module without failing submodules breaks equivariance in its own forward. The first culprit is
    certain: its input transforms correctly and its output transforms in no known way (a ``Flatten`` of pixels is such
    a module). Later modules are only named if their input is still recognisable and they fail for every kind that it
    may have.

    Cost: one run of the network per element and, for each tested module, one call per element.

    Examples
    --------
    >>> images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> audit_modules(network, images, "c4").culprits
    ('0',)
    """
    group = plane_group(group)
    takes = kind_of(input, group, 2 if group_axis is None else group_axis)
    gives = None if output is None else kind_of(output, group, 2 if group_axis is None else group_axis)
    check_inputs(inputs, takes, gives or Kind(), order_of(group))
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"audit_modules needs a torch module, got {type(network).__name__}; equivariance_error takes any f"
        )
    elements = [element for element in exact_elements(group) if element.name != "identity"]
    if not elements:
        raise ValueError(
            f"{group} has no quarter turn or mirror, which are needed to test modules without interpolation; use c4"
        )
    with evaluation(network):
        tested, inputs, own = _as_exact_as_possible(network, inputs)
        limit = own if tolerance is None else tolerance
        with evaluation(tested):
            auditor = _ModuleAuditor(group, elements, group_axis, limit, tested, inputs, takes, gives)
            auditor.run()
    return NetworkReport(
        group=group.name,
        elements=tuple(element.name for element in elements),
        error=auditor.rows[0].own_error,
        rows=tuple(auditor.rows),
        culprits=tuple(dict.fromkeys(auditor.culprits)),
        tolerance=limit,
    )


def _as_exact_as_possible(network: nn.Module, inputs: Tensor) -> tuple[nn.Module, Tensor, float]:
    """The network, or a copy of it in double precision, inputs of its type, and the tolerance of its modules."""
    inputs = inputs.to(model_device(network, inputs), model_type(network, inputs))
    wide = in_double(network, inputs)
    working = computed_types(network, inputs.clone())[0] or inputs.dtype
    if not isinstance(wide, nn.Module):
        return network, inputs, _TOLERANCES.get(working, _COARSE_TOLERANCE)
    used = computed_types(wide, inputs.double())[1]
    seen = [dtype for dtype in used if torch.finfo(dtype).eps <= torch.finfo(working).eps]
    # Weights that should be equal differ by the rounding of the type in which they were made, float32 if not float64.
    made = torch.float64 if working == torch.float64 else torch.float32
    return wide, inputs.double(), max(_TOLERANCES.get(dtype, _COARSE_TOLERANCE) for dtype in [made, *seen])


class _KindFit:
    """How well each kind explains how one tensor transforms: the largest deviation over the elements."""

    def __init__(self, tensor: Tensor, kinds: list[Kind]) -> None:
        self.tensor = tensor
        self.misfit = dict.fromkeys(kinds, 0.0)  # of the part that differs between inputs
        self.error = dict.fromkeys(kinds, 0.0)  # of the whole tensor

    def update(self, moved: Tensor, element: Element, frame: tuple[int, int]) -> None:
        """Compare the tensor after an element with the prediction of every kind."""
        for kind in self.misfit:
            expected = act(self.tensor, element, kind, frame)
            same_shape = moved.shape == expected.shape
            misfit, error = deviations(moved, expected, kind.batch_axis) if same_shape else (math.inf, math.inf)
            self.misfit[kind] = max(self.misfit[kind], misfit)
            self.error[kind] = max(self.error[kind], error)

    def best(self, tolerance: float) -> Kind:
        fitting = [kind for kind, misfit in self.misfit.items() if misfit <= FITS]
        if fitting:  # kinds are listed from simple to complex, and min returns the first of equals
            return min(fitting, key=lambda kind: max(self.error[kind], tolerance))
        return min(self.misfit, key=lambda kind: self.misfit[kind])

    def plausible(self, tolerance: float) -> list[Kind]:
        """Kinds that the tensor may have been meant to have, best first; only the best if it fits."""
        best = self.best(tolerance)
        if self.misfit[best] <= FITS:
            return [best]
        # Skip 'invariant' and unusual layouts unless they fit best: one of them would excuse nearly every module.
        usual = [kind for kind in self.misfit if kind.image and not kind.channels_last and not kind.merged]
        ranked = sorted({best, *usual}, key=lambda kind: self.misfit[kind])
        return [kind for kind in ranked if math.isfinite(self.misfit[kind])]


class _ModuleAuditor:
    """Holds the recorded runs and the rows and culprits found so far."""

    def __init__(
        self, group: Group, elements: list[Element], group_axis: int | None, tolerance: float, network: nn.Module,
        inputs: Tensor, takes: Kind, gives: Kind | None,
    ) -> None:  # fmt: skip
        self._group, self._order = group, order_of(group)
        self._elements, self._group_axis, self._tolerance = elements, group_axis, tolerance
        self._network, self._inputs, self._takes, self._gives = network, inputs, takes, gives
        self._labels: tuple[int, ...] = ()
        self._frame = frame_of(inputs, takes)
        self.rows: list[ModuleReport] = []
        self.culprits: list[str] = []
        self._input_fits: dict[int, list[_KindFit]] = {}
        self._names: dict[int, str] = {}
        self._others: list[tuple[Element, list[Call]]] = []
        self._calls: list[Call] = []

    def run(self) -> None:
        root = trace(self._network, self._inputs)
        self._set_names(root)
        self._record(root)
        self._labels = self._order_of_elements()
        self._fit_inputs()
        kinds = self._output_kinds(root)
        fits = self._fit_outputs(root, [self._takes], lambda tensor: kinds[id(tensor)])
        chosen = [kinds[id(tensor)][0] for tensor in root.outputs if id(tensor) in kinds]
        own = max(fit.error[next(iter(fit.error))] for fit in fits)
        self.rows.append(
            ModuleReport(NETWORK, type(self._network).__name__, 0, str(self._takes), _join(chosen), 0.0, own, "")
        )
        if own <= self._tolerance:
            for call in root.calls:
                self._test(call, 1)
        elif not self._test_submodules(root, 1):
            self._blame_forward(root, 0)

    def _output_kinds(self, root: Call) -> dict[int, list[Kind]]:
        """The kind of every output of the network: as declared, or found from the recorded runs."""
        n = len(self._inputs)
        outputs = [tensor for tensor in root.outputs if tensor.ndim and tensor.shape[0] == n]
        if not outputs:
            outputs_of(root.output, n)  # says what is wrong
        if self._gives is not None and len(outputs) == 1:
            check_shape(checked_values(outputs[0], n), self._gives, self._order, "the network's output")
            return {id(outputs[0]): [self._gives]}
        kinds = {}
        for i, tensor in enumerate(root.outputs):
            if tensor.ndim and tensor.shape[0] == n:
                moved = [(element, calls[0].outputs[i]) for element, calls in self._others]
                kinds[id(tensor)] = [find_action(tensor, moved, self._group, self._frame).kind]
        return kinds

    def _order_of_elements(self) -> tuple[int, ...]:
        """The order of the elements along group axes, from the first output of a module that has such an axis.

        Later outputs do not count: a module that shuffles the axis must not pass for another order.
        """
        if not isinstance(self._group, FiniteGroup) or not self._group.is_group or self._takes.group_axis is not None:
            return ()
        for index, call in enumerate(self._calls):
            for i, tensor in enumerate(call.outputs if not call.calls else []):
                kinds = self._kinds(tensor)
                regular = [kind for kind in kinds if kind.group_axis is not None]
                if not regular or not all(len(calls[index].outputs) == len(call.outputs) for _, calls in self._others):
                    continue
                moved = [(element, calls[index].outputs[i]) for element, calls in self._others]
                fits = {kind: misfit_of(tensor, moved, kind, self._frame) for kind in kinds}
                best = min(fits, key=lambda kind: fits[kind])
                if fits[best] <= FITS:
                    if best.group_axis is None:
                        continue
                    return ()
                for kind in regular:
                    orders = conventions(self._group)[1:]
                    orders += [] if kind.merged else [find_labels(tensor, moved, kind, self._group, self._frame)]
                    for labels in filter(None, orders):
                        if misfit_of(tensor, moved, replace(kind, labels=labels), self._frame) <= FITS:
                            return labels
        return ()

    def _set_names(self, root: Call) -> None:
        seen: dict[str, int] = {}
        for call in root.walk():
            seen[call.name] = seen.get(call.name, 0) + 1
            repeat = f", call {seen[call.name]}" if seen[call.name] > 1 else ""
            self._names[id(call)] = (call.name or NETWORK) + repeat

    def _record(self, root: Call) -> None:
        """Record the runs on g x."""
        calls = self._calls = root.walk()
        for element in self._elements:
            moved = act(self._inputs, element, self._takes, self._frame)
            try:
                others = trace(self._network, moved).walk()
            except Exception as error:
                raise ValueError(
                    f"the network fails on inputs transformed by '{element.name}', {tuple(moved.shape)}: {error}"
                ) from error
            if [call.name for call in others] != [call.name for call in calls]:
                raise ValueError(f"the network calls different modules after '{element.name}': they cannot be compared")
            self._others.append((element, others))

    def _fit_inputs(self) -> None:
        """Compare the inputs of every module in the runs on x and on g x."""
        for index, call in enumerate(self._calls):
            fits = self._input_fits[id(call)] = [_KindFit(tensor, self._kinds(tensor)) for tensor in call.inputs]
            for i, fit in enumerate(fits):
                self._fit(fit, [(element, others[index].inputs[i]) for element, others in self._others])

    def _test_submodules(self, parent: Call, depth: int) -> bool:
        """Test the calls that a module makes, and descend into the failing ones; whether any failed."""
        any_failed = False
        for call in parent.calls:
            row = len(self.rows)
            if self._is_view(call, parent):
                self._pass_over(call, depth)
            elif self._test(call, depth) > self._tolerance:
                any_failed = True
                if not self._test_submodules(call, depth + 1):
                    self._blame_forward(call, row)
        return any_failed

    def _is_view(self, call: Call, parent: Call) -> bool:
        """Whether the parent calls the same module on transformed copies of one input, to combine the answers.

        Such a module need not be equivariant; the parent is responsible.
        """
        if not call.inputs or call.inputs[0].ndim < 4:
            return False
        given = call.inputs[0]
        for other in parent.calls:
            if other is call or other.module is not call.module or not other.inputs:
                continue
            for element in self._elements:
                moved = act(given, element, Kind(image=True), self._frame)
                if moved.shape == other.inputs[0].shape and torch.equal(moved, other.inputs[0]):
                    return True
        return False

    def _pass_over(self, call: Call, depth: int) -> None:
        fits = self._input_fits[id(call)]
        kinds = [fit.best(self._tolerance) for fit in fits]
        error = max((fit.error[kind] for fit, kind in zip(fits, kinds, strict=True)), default=0.0)
        name, module = self._names[id(call)], type(call.module).__name__
        remark = "called on transformed copies of one input: its parent is responsible"
        self.rows.append(ModuleReport(name, module, depth, _join(kinds), "?", error, math.nan, remark))

    def _test(self, call: Call, depth: int) -> float:
        """Add the row of one call, and return the error that the module causes itself."""
        input_fits = self._input_fits[id(call)]
        kinds = [fit.best(self._tolerance) for fit in input_fits]
        misfit = max((fit.misfit[kind] for fit, kind in zip(input_fits, kinds, strict=True)), default=0.0)
        combinations = itertools.product(*(fit.plausible(self._tolerance) for fit in input_fits))
        own, gives, remark = math.inf, "?", ""
        for takes in itertools.islice(combinations, _MAX_COMBINATIONS):
            try:
                fits = self._fit_outputs(call, list(takes), self._kinds)
            except Exception as refusal:  # a module may refuse to be called on its own
                remark = f"not tested: {first_line(refusal)}"
                continue
            found = [fit.best(self._tolerance) for fit in fits]
            error = max((fit.error[kind] for fit, kind in zip(fits, found, strict=True)), default=0.0)
            if error < own:
                own, gives, kinds = error, _join(found), list(takes)
            if own <= self._tolerance:
                break
        if math.isinf(own) and remark:
            own = math.nan
        elif own > self._tolerance and misfit > _UNKNOWN_MISFIT:
            own, gives = math.nan, "?"
            remark = "not tested: its input " + ("is too broken" if self.culprits else "transforms in no known way")
        else:
            remark = ""
        input_error = max((fit.error[kind] for fit, kind in zip(input_fits, kinds, strict=True)), default=0.0)
        name, module = self._names[id(call)], type(call.module).__name__
        self.rows.append(ModuleReport(name, module, depth, _join(kinds), gives, input_error, own, remark))
        return own

    def _fit_outputs(self, call: Call, takes: list[Kind], kinds: Callable[[Tensor], list[Kind]]) -> list[_KindFit]:
        """Call a module on its recorded inputs, transformed as ``takes`` says, and fit kinds to its outputs."""
        fits: list[_KindFit | None] = []
        for tensor in call.outputs:
            try:
                fits.append(_KindFit(tensor, kinds(tensor)))
            except KeyError:  # an output of the network without one row per input
                fits.append(None)
        answers = []
        for element in self._elements:
            moved = [act(tensor, element, kind, self._frame) for tensor, kind in zip(call.inputs, takes, strict=True)]
            answers.append((element, call.call_again(moved)))
        for i, fit in enumerate(fits):
            if fit is not None:
                self._fit(fit, [(element, tensors[i]) for element, tensors in answers], rarer=call.name != "")
        return [fit for fit in fits if fit is not None]

    def _fit(self, fit: _KindFit, moved: list[tuple[Element, Tensor]], rarer: bool = True) -> None:
        """Compare a tensor with the same one after each element; with rarer kinds of features if no usual one fits."""
        for element, tensor in moved:
            fit.update(tensor, element, self._frame)
        if rarer and min(fit.misfit.values()) > FITS:
            for kind, fitting in fitting_fields(fit.tensor, moved, self._group, self._frame).items():
                fit.misfit[kind], fit.error[kind] = fitting

    def _blame_forward(self, call: Call, row: int) -> None:
        """Name a module none of whose submodules fails, and between which of them equivariance breaks."""
        name = self._names[id(call)]
        self.culprits.append(name)
        below = [each for each in self.rows[row + 1 :] if each.depth == self.rows[row].depth + 1]
        broken = next((each.name for each in below if not each.input_error <= self._tolerance), None)
        where = f", before {broken}" if broken else f", after {below[-1].name}" if below else ""
        remark = f"<- breaks it{where and ' in its own forward'}{where}"
        coarse = [dtype for dtype in self._types_in(call) if torch.finfo(dtype).eps > _COARSE_EPS]
        if coarse and self._tolerance < _COARSE_TOLERANCE:
            remark += f"; it rounds to {', '.join(str(dtype).removeprefix('torch.') for dtype in coarse)}"
        self.rows[row] = replace(self.rows[row], remark=remark)

    def _types_in(self, call: Call) -> list[torch.dtype]:
        try:
            return computed_types(call.call_again, call.inputs)[1]
        except Exception:
            return []

    def _kinds(self, tensor: Tensor) -> list[Kind]:
        """The kinds that a tensor's shape allows, from simple to complex."""
        kinds = shape_kinds(tensor, self._group, self._frame, len(self._inputs), self._group_axis)
        return [kind if kind.group_axis is None else replace(kind, labels=self._labels) for kind in kinds]


def _join(kinds: list[Kind]) -> str:
    return " & ".join(map(str, kinds)) or "nothing"
