"""Which module of a network breaks equivariance: each is judged on its own, given exactly transformed input."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unpose.audit.actions import Kind, act, check_shape, kind_of
from unpose.audit.elements import Element, exact_elements
from unpose.audit.error import check_inputs, checked_numbers, evaluation, relative_norm
from unpose.audit.trace import Call, trace
from unpose.groups import FiniteGroup, Group, parse

_SURE = 1e-2
"""A tensor moves as a kind says when the part that tells inputs apart misses by less than this."""

_UNSURE = 0.5
"""A tensor whose best kind misses by more than this moves in no way known here."""

_MOST_TRIES = 16

NETWORK = "(network)"
"""Name of the network itself among its modules."""


@dataclass(frozen=True)
class ModuleError:
    """One call of one module."""

    name: str
    module: str  # its class
    depth: int
    takes: str  # how its input moves
    gives: str  # how its output moves
    arrives: float  # error of the input it gets in the network, with what went wrong before it
    own: float  # error it makes itself, given exactly transformed input; NaN where that could not be told
    remark: str


@dataclass(frozen=True)
class ModulesAudit:
    """What :func:`audit_modules` measured; ``print`` it for the table."""

    group: str
    elements: tuple[str, ...]
    error: float  # of the whole network, its worst element
    rows: tuple[ModuleError, ...]
    culprits: tuple[str, ...]  # in the order of execution; empty where the network is equivariant

    def table(self) -> str:
        """The measurement as text, one line per call."""
        names = ["  " * row.depth + f"{row.name} ({row.module})" for row in self.rows]
        wide, kinds = max(map(len, names)), max(len(f"{row.takes} -> {row.gives}") for row in self.rows)
        lines = [f"{'module':{wide}}  {'moves':{kinds}}  {'arrives':>8} {'own':>8}"]
        for name, row in zip(names, self.rows, strict=True):
            own = f"{'?':>8}" if math.isnan(row.own) else f"{row.own:8.1e}"
            moves = f"{row.takes} -> {row.gives}"
            lines.append(f"{name:{wide}}  {moves:{kinds}}  {row.arrives:8.1e} {own}  {row.remark}".rstrip())
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
) -> ModulesAudit:
    """Name the modules that break a network's equivariance.

    Parameters
    ----------
    network : torch module, measured in evaluation mode and then put back
    inputs, group, output, input : as for :func:`unpose.audit.equivariance_error`
    group_axis : int, optional
        Where feature maps have their group axis. By default any axis with one place per element may be it, and the
        network's own input and output have it at axis 2.
    tolerance : float
        Largest relative error that counts as rounding.

    Returns
    -------
    ModulesAudit

    Notes
    -----
    Only elements that move pixels without interpolation are used: quarter turns and mirrors.

    The network runs on x and on g x, and every call of a module is recorded. How a module's input moves is read off
    these two runs: of the kinds that its shape allows, the one that fits best, judged on the part that tells the inputs
    of the batch apart (a position code added to everything does not hide how the rest moves), the simplest on a tie.
    Then the module alone is called on its recorded input, transformed by that kind, and its output is compared with its
    recorded output under each kind that fits. So a module is not blamed for what reached it broken.

    If the network errs, its direct modules are judged in this way, then those inside a guilty one. A guilty module with
    no guilty module inside breaks equivariance in its own forward. The first culprit is certain: its input arrives
    whole, and its output moves in no known way. (A ``Flatten`` of pixels is such a module.) Of later ones, where damage
    is large, those are named whose input can still be recognised and whom no way of moving it clears.

    Cost: one run of the network per element and, for each module judged, one call per element.
    """
    group = parse(group)
    takes, gives = (kind_of(name, group, 2 if group_axis is None else group_axis) for name in (input, output))
    check_inputs(inputs, takes, gives, len(group) if isinstance(group, FiniteGroup) else 0)
    if not isinstance(network, nn.Module):
        raise ValueError(f"audit_modules needs a torch module, got {type(network).__name__}; equivariance_error any f")
    elements = [element for element in exact_elements(group) if element.name != "identity"]
    if not elements:
        raise ValueError(
            f"no element of {group} only moves pixels, so that modules could be told apart exactly; use c4"
        )
    judge = _Judge(group, elements, group_axis, tolerance, network, inputs, takes)
    with evaluation(network):
        judge.run(gives)
    return ModulesAudit(
        group=group.name,
        elements=tuple(element.name for element in elements),
        error=judge.rows[0].own,
        rows=tuple(judge.rows),
        culprits=tuple(dict.fromkeys(judge.culprits)),
    )


class _Fit:
    """How well each kind explains what the elements do to one tensor: the worst element counts."""

    def __init__(self, tensor: Tensor, kinds: list[Kind]) -> None:
        self._tensor = tensor
        self.misfit = dict.fromkeys(kinds, 0.0)  # on the part that tells inputs apart
        self.error = dict.fromkeys(kinds, 0.0)  # on everything

    def see(self, moved: Tensor, element: Element) -> None:
        for kind in self.misfit:
            expected = act(self._tensor, element, kind, (1, 1))
            misfit, error = _gap(moved, expected) if moved.shape == expected.shape else (math.inf, math.inf)
            self.misfit[kind] = max(self.misfit[kind], misfit)
            self.error[kind] = max(self.error[kind], error)

    def best(self, tolerance: float) -> Kind:
        sure = [kind for kind, misfit in self.misfit.items() if misfit <= _SURE]
        if sure:  # kinds are listed from simple to complex, and min takes the first of equals
            return min(sure, key=lambda kind: max(self.error[kind], tolerance))
        return min(self.misfit, key=lambda kind: self.misfit[kind])

    def plausible(self, tolerance: float) -> list[Kind]:
        """Ways in which the tensor may have been meant to move, the best first; one where that is sure."""
        best = self.best(tolerance)
        if self.misfit[best] <= _SURE:
            return [best]
        ranked = sorted(self.misfit, key=lambda kind: self.misfit[kind])
        # That it does not move at all would clear any module: only where this fits best, or nothing else can.
        return [kind for kind in ranked if math.isfinite(self.misfit[kind]) and (kind != Kind() or kind == best)]


class _Judge:
    """The recorded runs, and the verdicts so far."""

    def __init__(
        self, group: Group, elements: list[Element], group_axis: int | None, tolerance: float, network: nn.Module,
        inputs: Tensor, takes: Kind,
    ) -> None:  # fmt: skip
        self._order = len(group) if isinstance(group, FiniteGroup) else 0
        self._elements, self._group_axis, self._tolerance = elements, group_axis, tolerance
        self._network, self._inputs, self._takes = network, inputs, takes
        self.rows: list[ModuleError] = []
        self.culprits: list[str] = []
        self._arrivals: dict[int, list[_Fit]] = {}
        self._names: dict[int, str] = {}

    def run(self, gives: Kind) -> None:
        root = trace(self._network, self._inputs)
        check_shape(checked_numbers(root.output, len(self._inputs)), gives, self._order, "the network's output")
        self._name(root)
        self._record_arrivals(root)
        fits = self._try(root, [self._takes], lambda _: [gives])
        own = fits[0].error[gives]
        self.rows.append(
            ModuleError(NETWORK, type(self._network).__name__, 0, str(self._takes), str(gives), 0.0, own, "")
        )
        if own <= self._tolerance:
            for call in root.calls:
                self._judge(call, 1)
        elif not self._judge_below(root, 1):
            self._blame_forward(root, 0)

    def _name(self, root: Call) -> None:
        seen: dict[str, int] = {}
        for call in root.walk():
            seen[call.name] = seen.get(call.name, 0) + 1
            repeat = f", call {seen[call.name]}" if seen[call.name] > 1 else ""
            self._names[id(call)] = (call.name or NETWORK) + repeat

    def _record_arrivals(self, root: Call) -> None:
        """Compare what every module is given for x and for g x."""
        calls = root.walk()
        for call in calls:
            self._arrivals[id(call)] = [_Fit(tensor, self._kinds(tensor)) for tensor in call.given]
        for element in self._elements:
            moved = act(self._inputs, element, self._takes, (1, 1))
            try:
                others = trace(self._network, moved).walk()
            except Exception as error:
                raise ValueError(
                    f"the network fails on its input after '{element.name}', {tuple(moved.shape)}: {error}"
                ) from error
            if [call.name for call in others] != [call.name for call in calls]:
                raise ValueError(f"the network calls other modules after '{element.name}': they cannot be compared")
            for call, other in zip(calls, others, strict=True):
                for fit, tensor in zip(self._arrivals[id(call)], other.given, strict=True):
                    fit.see(tensor, element)

    def _judge_below(self, parent: Call, depth: int) -> bool:
        """Judge the calls a module makes, and look into the guilty ones; whether there was any."""
        guilty = False
        for call in parent.calls:
            at = len(self.rows)
            if self._judge(call, depth) > self._tolerance:
                guilty = True
                if not self._judge_below(call, depth + 1):
                    self._blame_forward(call, at)
        return guilty

    def _judge(self, call: Call, depth: int) -> float:
        arrivals = self._arrivals[id(call)]
        kinds = [fit.best(self._tolerance) for fit in arrivals]
        misfit = max((fit.misfit[kind] for fit, kind in zip(arrivals, kinds, strict=True)), default=0.0)
        tries = itertools.product(*(fit.plausible(self._tolerance) for fit in arrivals))
        own, gives, remark = math.inf, "?", ""
        for takes in itertools.islice(tries, _MOST_TRIES):
            fits = self._try(call, list(takes), self._kinds)
            found = [fit.best(self._tolerance) for fit in fits]
            error = max((fit.error[kind] for fit, kind in zip(fits, found, strict=True)), default=0.0)
            if error < own:
                own, gives, kinds = error, _join(found), list(takes)
            if own <= self._tolerance:
                break
        if own > self._tolerance and misfit > _UNSURE:
            own, gives = math.nan, "?"
            remark = "not judged: its input " + ("is too broken" if self.culprits else "moves in no way known here")
        arrives = max((fit.error[kind] for fit, kind in zip(arrivals, kinds, strict=True)), default=0.0)
        name, module = self._names[id(call)], type(call.module).__name__
        self.rows.append(ModuleError(name, module, depth, _join(kinds), gives, arrives, own, remark))
        return own

    def _try(self, call: Call, takes: list[Kind], kinds: Callable[[Tensor], list[Kind]]) -> list[_Fit]:
        """Call a module on its recorded input, transformed, and see how its output moved."""
        fits = [_Fit(tensor, kinds(tensor)) for tensor in call.gave]
        for element in self._elements:
            given = [act(tensor, element, kind, (1, 1)) for tensor, kind in zip(call.given, takes, strict=True)]
            for fit, tensor in zip(fits, call.again(given), strict=True):
                fit.see(tensor, element)
        return fits

    def _blame_forward(self, call: Call, at: int) -> None:
        """No module inside is guilty: say between which of them it happens."""
        name = self._names[id(call)]
        self.culprits.append(name)
        below = [row for row in self.rows[at + 1 :] if row.depth == self.rows[at].depth + 1]
        broken = next((row.name for row in below if not row.arrives <= self._tolerance), None)
        where = f", before {broken}" if broken else f", after {below[-1].name}" if below else ""
        remark = f"<- breaks it{where and ' in its own forward'}{where}"
        self.rows[at] = replace(self.rows[at], remark=remark)

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


def _gap(given: Tensor, expected: Tensor) -> tuple[float, float]:
    """Relative distance of two tensors: of the parts that differ between the entries of the batch, and of all."""
    given, expected = given.to("cpu", torch.float64), expected.to("cpu", torch.float64)
    difference = given - expected
    if not difference.isfinite().all():
        return math.inf, math.inf
    varying = expected - expected.mean(0, keepdim=True) if expected.ndim else expected
    moved = difference - difference.mean(0, keepdim=True) if expected.ndim else difference
    # Rounding of a tensor that is the same for all inputs must not pass for a difference between them.
    size = max(float(varying.norm()), 1e-6 * float(expected.norm()))
    misfit = float(moved.norm()) / size if size else float(difference.any())
    return misfit, relative_norm(difference, expected)


def _join(kinds: list[Kind]) -> str:
    return " & ".join(map(str, kinds)) or "nothing"
