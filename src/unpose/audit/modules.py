"""Find the modules that break a network's equivariance: each is tested alone, on exactly transformed inputs."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unpose.audit.actions import Kind, act, check_shape, kind_of
from unpose.audit.calls import evaluation
from unpose.audit.elements import Element, exact_elements
from unpose.audit.error import check_inputs, checked_numbers, relative_norm
from unpose.audit.trace import Call, trace
from unpose.groups import FiniteGroup, Group, parse

_MAX_MISFIT = 1e-2
"""A tensor transforms as a kind if the part that differs between inputs deviates by at most this much."""

_UNKNOWN_MISFIT = 0.5
"""A tensor that deviates by more than this from its best kind transforms in no known way."""

_MAX_COMBINATIONS = 16
"""Combinations of kinds of a module's inputs that are tried."""

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

    def __str__(self) -> str:
        return self.table()


def audit_modules(
    network: nn.Module,
    inputs: Tensor,
    group: str | Group,
    output: str = "invariant",
    *,
    input: str = "image",
    group_axis: int | None = None,
    tolerance: float = 1e-5,
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
    output, input : str, default "invariant" and "image"
        How the network's output and input transform, as for :func:`unpose.audit.equivariance_error`.
    group_axis : int, optional
        The group axis of feature maps. By default any axis with one entry per element is considered, and axis 2 for
        the network's own input and output.
    tolerance : float, default 1e-5
        Largest relative error that counts as rounding.

    Returns
    -------
    NetworkReport
        One row per module, and the modules that break equivariance.

    Notes
    -----
    Only quarter turns and mirrors are used, because they need no interpolation.

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
    group = parse(group)
    takes, gives = (kind_of(name, group, 2 if group_axis is None else group_axis) for name in (input, output))
    check_inputs(inputs, takes, gives, len(group) if isinstance(group, FiniteGroup) else 0)
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"audit_modules needs a torch module, got {type(network).__name__}; equivariance_error takes any f"
        )
    elements = [element for element in exact_elements(group) if element.name != "identity"]
    if not elements:
        raise ValueError(
            f"{group} has no quarter turn or mirror, which are needed to test modules without interpolation; use c4"
        )
    auditor = _ModuleAuditor(group, elements, group_axis, tolerance, network, inputs, takes)
    with evaluation(network):
        auditor.run(gives)
    return NetworkReport(
        group=group.name,
        elements=tuple(element.name for element in elements),
        error=auditor.rows[0].own_error,
        rows=tuple(auditor.rows),
        culprits=tuple(dict.fromkeys(auditor.culprits)),
    )


class _KindFit:
    """How well each kind explains how one tensor transforms: the largest deviation over the elements."""

    def __init__(self, tensor: Tensor, kinds: list[Kind]) -> None:
        self._tensor = tensor
        self.misfit = dict.fromkeys(kinds, 0.0)  # of the part that differs between inputs
        self.error = dict.fromkeys(kinds, 0.0)  # of the whole tensor

    def update(self, moved: Tensor, element: Element) -> None:
        """Compare the tensor after an element with the prediction of every kind."""
        for kind in self.misfit:
            expected = act(self._tensor, element, kind, (1, 1))
            misfit, error = _deviations(moved, expected) if moved.shape == expected.shape else (math.inf, math.inf)
            self.misfit[kind] = max(self.misfit[kind], misfit)
            self.error[kind] = max(self.error[kind], error)

    def best(self, tolerance: float) -> Kind:
        fitting = [kind for kind, misfit in self.misfit.items() if misfit <= _MAX_MISFIT]
        if fitting:  # kinds are listed from simple to complex, and min returns the first of equals
            return min(fitting, key=lambda kind: max(self.error[kind], tolerance))
        return min(self.misfit, key=lambda kind: self.misfit[kind])

    def plausible(self, tolerance: float) -> list[Kind]:
        """Kinds that the tensor may have been meant to have, best first; only the best if it fits."""
        best = self.best(tolerance)
        if self.misfit[best] <= _MAX_MISFIT:
            return [best]
        ranked = sorted(self.misfit, key=lambda kind: self.misfit[kind])
        # Skip 'invariant' unless it fits best: it would excuse every module.
        return [kind for kind in ranked if math.isfinite(self.misfit[kind]) and (kind != Kind() or kind == best)]


class _ModuleAuditor:
    """Holds the recorded runs and the rows and culprits found so far."""

    def __init__(
        self, group: Group, elements: list[Element], group_axis: int | None, tolerance: float, network: nn.Module,
        inputs: Tensor, takes: Kind,
    ) -> None:  # fmt: skip
        self._order = len(group) if isinstance(group, FiniteGroup) else 0
        self._elements, self._group_axis, self._tolerance = elements, group_axis, tolerance
        self._network, self._inputs, self._takes = network, inputs, takes
        self.rows: list[ModuleReport] = []
        self.culprits: list[str] = []
        self._input_fits: dict[int, list[_KindFit]] = {}
        self._names: dict[int, str] = {}

    def run(self, gives: Kind) -> None:
        root = trace(self._network, self._inputs)
        check_shape(checked_numbers(root.output, len(self._inputs)), gives, self._order, "the network's output")
        self._set_names(root)
        self._fit_inputs(root)
        fits = self._fit_outputs(root, [self._takes], lambda _: [gives])
        own = fits[0].error[gives]
        self.rows.append(
            ModuleReport(NETWORK, type(self._network).__name__, 0, str(self._takes), str(gives), 0.0, own, "")
        )
        if own <= self._tolerance:
            for call in root.calls:
                self._test(call, 1)
        elif not self._test_submodules(root, 1):
            self._blame_forward(root, 0)

    def _set_names(self, root: Call) -> None:
        seen: dict[str, int] = {}
        for call in root.walk():
            seen[call.name] = seen.get(call.name, 0) + 1
            repeat = f", call {seen[call.name]}" if seen[call.name] > 1 else ""
            self._names[id(call)] = (call.name or NETWORK) + repeat

    def _fit_inputs(self, root: Call) -> None:
        """Compare the inputs of every module in the runs on x and on g x."""
        calls = root.walk()
        for call in calls:
            self._input_fits[id(call)] = [_KindFit(tensor, self._kinds(tensor)) for tensor in call.input_tensors]
        for element in self._elements:
            moved = act(self._inputs, element, self._takes, (1, 1))
            try:
                others = trace(self._network, moved).walk()
            except Exception as error:
                raise ValueError(
                    f"the network fails on inputs transformed by '{element.name}', {tuple(moved.shape)}: {error}"
                ) from error
            if [call.name for call in others] != [call.name for call in calls]:
                raise ValueError(f"the network calls different modules after '{element.name}': they cannot be compared")
            for call, other in zip(calls, others, strict=True):
                for fit, tensor in zip(self._input_fits[id(call)], other.input_tensors, strict=True):
                    fit.update(tensor, element)

    def _test_submodules(self, parent: Call, depth: int) -> bool:
        """Test the calls that a module makes, and descend into the failing ones; whether any failed."""
        any_failed = False
        for call in parent.calls:
            row = len(self.rows)
            if self._test(call, depth) > self._tolerance:
                any_failed = True
                if not self._test_submodules(call, depth + 1):
                    self._blame_forward(call, row)
        return any_failed

    def _test(self, call: Call, depth: int) -> float:
        """Add the row of one call, and return the error that the module causes itself."""
        input_fits = self._input_fits[id(call)]
        kinds = [fit.best(self._tolerance) for fit in input_fits]
        misfit = max((fit.misfit[kind] for fit, kind in zip(input_fits, kinds, strict=True)), default=0.0)
        combinations = itertools.product(*(fit.plausible(self._tolerance) for fit in input_fits))
        own, gives, remark = math.inf, "?", ""
        for takes in itertools.islice(combinations, _MAX_COMBINATIONS):
            fits = self._fit_outputs(call, list(takes), self._kinds)
            found = [fit.best(self._tolerance) for fit in fits]
            error = max((fit.error[kind] for fit, kind in zip(fits, found, strict=True)), default=0.0)
            if error < own:
                own, gives, kinds = error, _join(found), list(takes)
            if own <= self._tolerance:
                break
        if own > self._tolerance and misfit > _UNKNOWN_MISFIT:
            own, gives = math.nan, "?"
            remark = "not tested: its input " + ("is too broken" if self.culprits else "transforms in no known way")
        input_error = max((fit.error[kind] for fit, kind in zip(input_fits, kinds, strict=True)), default=0.0)
        name, module = self._names[id(call)], type(call.module).__name__
        self.rows.append(ModuleReport(name, module, depth, _join(kinds), gives, input_error, own, remark))
        return own

    def _fit_outputs(self, call: Call, takes: list[Kind], kinds: Callable[[Tensor], list[Kind]]) -> list[_KindFit]:
        """Call a module on its recorded inputs, transformed as ``takes`` says, and fit kinds to its outputs."""
        fits = [_KindFit(tensor, kinds(tensor)) for tensor in call.output_tensors]
        for element in self._elements:
            moved = [act(tensor, element, kind, (1, 1)) for tensor, kind in zip(call.input_tensors, takes, strict=True)]
            for fit, tensor in zip(fits, call.call_with(moved), strict=True):
                fit.update(tensor, element)
        return fits

    def _blame_forward(self, call: Call, row: int) -> None:
        """Name a module none of whose submodules fails, and between which of them equivariance breaks."""
        name = self._names[id(call)]
        self.culprits.append(name)
        below = [each for each in self.rows[row + 1 :] if each.depth == self.rows[row].depth + 1]
        broken = next((each.name for each in below if not each.input_error <= self._tolerance), None)
        where = f", before {broken}" if broken else f", after {below[-1].name}" if below else ""
        remark = f"<- breaks it{where and ' in its own forward'}{where}"
        self.rows[row] = replace(self.rows[row], remark=remark)

    def _kinds(self, tensor: Tensor) -> list[Kind]:
        """The kinds that a tensor's shape allows, from simple to complex."""
        axes: list[int | None] = [None]
        if self._order:
            wanted = range(1, tensor.ndim) if self._group_axis is None else [self._group_axis % max(tensor.ndim, 1)]
            axes += [axis for axis in wanted if 0 < axis < tensor.ndim and tensor.shape[axis] == self._order]
        return [
            Kind(image, axis)
            for axis in axes
            for image in (False, True)
            if not image or (tensor.ndim >= 3 and (axis is None or axis < tensor.ndim - 2))
        ]


def _deviations(given: Tensor, expected: Tensor) -> tuple[float, float]:
    """Relative distance of two tensors: of the part that differs between the inputs of the batch, and of the whole."""
    given, expected = given.to("cpu", torch.float64), expected.to("cpu", torch.float64)
    difference = given - expected
    if not difference.isfinite().all():
        return math.inf, math.inf
    varying = expected - expected.mean(0, keepdim=True) if expected.ndim else expected
    moved = difference - difference.mean(0, keepdim=True) if expected.ndim else difference
    # Rounding errors of a tensor that is equal for all inputs must not count as a difference between inputs.
    size = max(float(varying.norm()), 1e-6 * float(expected.norm()))
    misfit = float(moved.norm()) / size if size else float(difference.any())
    return misfit, relative_norm(difference, expected)


def _join(kinds: list[Kind]) -> str:
    return " & ".join(map(str, kinds)) or "nothing"
