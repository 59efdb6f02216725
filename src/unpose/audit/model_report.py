"""What :func:`unpose.audit.audit_model` concludes about a model."""

from dataclasses import dataclass, replace
from typing import Any

from unpose.audit.call_checks import CallChecks
from unpose.audit.equivariance_report import EquivarianceReport
from unpose.audit.modules import NetworkReport
from unpose.audit.results import as_plain


class ModelCallError(ValueError):
    """The model cannot be called on the images at all; the message says why and what to do.

    Examples
    --------
    >>> issubclass(ModelCallError, ValueError)
    True
    """


@dataclass(frozen=True)
class OutputAudit:
    """How one output of a model transforms, and whether exactly.

    Parameters
    ----------
    name : str
        Key or index of the output; "" for a single one.
    action : str
        How it transforms.
    found : bool
        Whether the action was found from the data; otherwise it was declared.
    margin : float
        How many times worse the next best action explains the data; NaN for a declared action.
    error : float
        Largest relative error under quarter turns and mirrors, in double precision where that is possible.
    element : str
        The element with that error.
    tolerance : float
        Largest error that counts as rounding.
    discrimination : float
        Spread of the output over the inputs.
    verdict : str
        "broken", "constant", "undecided" or "equivariant".

    Examples
    --------
    >>> import torch
    >>> from unpose.audit import audit_model
    >>> audit = audit_model(lambda x: {"sum": x.sum((2, 3))}, torch.rand(4, 1, 8, 8), "c4")
    >>> audit.outputs["sum"].action, audit.outputs["sum"].verdict
    ('invariant', 'equivariant')
    """

    name: str
    action: str
    found: bool
    margin: float
    error: float
    element: str
    tolerance: float
    discrimination: float
    verdict: str


@dataclass(frozen=True)
class ModelAudit:
    """The result of :func:`audit_model`; ``print`` it to read it.

    Parameters
    ----------
    group : str
        Name of the group.
    verdict : str
        "equivariant": no error above rounding. "broken": some output errs by more. "random", "stateful", "batch": the
        model is no function of the image. "constant": outputs do not depend on the image. "undecided": rounding hides
        the answer, or no element is exact. "not finite", "failed": outputs are NaN, or the model fails on some
        elements.
    cause : str
        The module that is responsible; "" if there is none or it is not known.
    outputs : dict of str to OutputAudit
        Each output on its own.
    reports : dict of str to EquivarianceReport
        The errors of all elements for each output, in the model's own precision, beside floors and control.
    checks : CallChecks
        Whether the model is a function of the image.
    modules : NetworkReport, optional
        The modules, if the model is a torch module that is broken.
    sizes : dict of int to bool
        Further sizes of images that were tried, and whether the model is equivariant there.
    failures : tuple of (str, str)
        Elements for which the model failed, with its messages.
    notes : tuple of str
        What a reader must know.
    n_calls : int
        Number of calls of the model on all images.

    Examples
    --------
    >>> import torch
    >>> from unpose.audit import audit_model
    >>> audit_model(lambda x: x.cumsum(-1), torch.rand(4, 1, 8, 8), "d4").verdict
    'broken'
    """

    group: str
    verdict: str
    cause: str
    outputs: dict[str, OutputAudit]
    reports: dict[str, EquivarianceReport]
    checks: CallChecks
    modules: NetworkReport | None
    sizes: dict[int, bool]
    failures: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    n_calls: int

    @property
    def holds(self) -> bool:
        """Whether the verdict is "equivariant"."""
        return self.verdict == "equivariant"

    @property
    def worst(self) -> OutputAudit | None:
        """The output with the largest error relative to its tolerance; None if nothing could be measured."""
        entries = list(self.outputs.values())
        return max(entries, key=lambda entry: entry.error / max(entry.tolerance, 1e-300)) if entries else None

    def summary(self) -> str:
        """One sentence that names element, module and error."""
        worst = self.worst
        if self.verdict in ("random", "stateful", "batch"):
            return f"no verdict on {self.group}: {self.checks}"
        if self.verdict in ("failed", "not finite") or worst is None:
            element, message = self.failures[0] if self.failures else ("identity", "no outputs")
            return f"no verdict on {self.group}: the model fails under '{element}': {message}"
        output = f"output '{worst.name}'" if worst.name else "the output"
        figures = f"error {worst.error:.2g} under '{worst.element}', tolerance {worst.tolerance:.2g}"
        if self.verdict == "broken":
            where = f"; module {self.cause} breaks it" if self.cause else ""
            return f"not equivariant to {self.group}: {output} ({worst.action}) has {figures}{where}"
        if self.verdict == "constant":
            return f"no verdict on {self.group}: {output} is the same for every image"
        if self.verdict == "undecided":
            return f"no verdict on {self.group}: {output} ({worst.action}) has {figures}, and rounding hides the answer"
        return f"equivariant to {self.group}: {figures}"

    def to_dict(self) -> dict[str, Any]:
        """Convert the audit to plain numbers, strings, lists and dictionaries, for JSON."""
        plain: dict[str, Any] = as_plain(replace(self, reports={}, modules=None))
        return plain | {
            "summary": self.summary(),
            "reports": {name: report.to_dict() for name, report in self.reports.items()},
            "modules": None if self.modules is None else self.modules.to_dict(),
            "failures": [{"element": element, "message": message} for element, message in self.failures],
        }

    def __str__(self) -> str:
        lines = [self.summary()]
        for name, report in self.reports.items():
            lines += ["", f"{name or 'output'}: {self.outputs[name].action}", report.table()]
        if self.modules is not None:
            lines += ["", self.modules.table()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        """The verdict, the outputs and their tables, for notebooks."""
        from unpose.report import table_html

        outputs = list(self.outputs.values())
        columns: dict[str, list[Any]] = {
            "output": [each.name or "output" for each in outputs],
            "moves": [each.action for each in outputs],
            "verdict": [each.verdict for each in outputs],
            "error": [each.error for each in outputs],
            "under": [each.element for each in outputs],
            "tolerance": [each.tolerance for each in outputs],
        }
        parts = [table_html(columns, title=self.summary(), notes=self.notes)]
        parts += [report._repr_html_() for report in self.reports.values()]
        if self.modules is not None:
            parts.append(self.modules._repr_html_())
        return "".join(parts)
