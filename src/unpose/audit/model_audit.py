"""Audit a whole model: is it a function of its input, how does each output transform, is that exact, what breaks it?"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from unpose.audit.actions import Kind, act, check_shape, frame_of, kind_of
from unpose.audit.call_checks import CallChecks, check_calls
from unpose.audit.calls import evaluation, first_line
from unpose.audit.elements import Element, control_for, elements_of, exact_elements, order_of, plane_group
from unpose.audit.equivariance_report import EquivarianceReport
from unpose.audit.finding import FITS, find_action, misfit_of
from unpose.audit.measurement import Probe, check_inputs, discrimination, some_inputs
from unpose.audit.model_report import ModelAudit, ModelCallError, OutputAudit
from unpose.audit.models import ImageModel, as_model
from unpose.audit.modules import NETWORK, NetworkReport, audit_modules
from unpose.audit.outputs import outputs_of
from unpose.audit.precision import Precision, in_double, measure_precision, model_device, model_type
from unpose.audit.probes import infer_inputs, smooth_noise
from unpose.discover import AUTO, discover_group
from unpose.groups import Group
from unpose.images import as_batch

Progress = Callable[[str, int, int], None]

_FAR_ABOVE_FLOOR = 3.0
_CONSTANT = 8.0
_COARSE_CONSTANT = 2.0
"""Outputs that differ between images by less than this many times the noise are constant."""

_MORE_IMAGES = 4.0
"""Errors on all images count as rounding up to this many times the tolerance, which was measured on a few of them."""

_OF_SPREAD = 0.01
"""An error within the tolerance that is more than this share of the differences between images proves nothing."""

_LABEL_TOLERANCES = {torch.float64: 0.0, torch.float32: 5e-3}
_COARSE_LABEL_TOLERANCE = 0.1
"""Share of labels that may change by rounding, near ties, by the type in which the model computes."""


def audit_model(
    model: Any,
    images: ArrayLike | Tensor | None = None,
    group: str | Group = "d4",
    *,
    actions: str | Mapping[str, str] | None = None,
    input: str = "image",
    group_axis: int = 2,
    n_elements: int = 16,
    measure: bool = True,
    modules: bool = True,
    sizes: tuple[int, ...] | None = None,
    keep_mode: bool = False,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: Progress | None = None,
    random_state: int = 0,
) -> ModelAudit:
    """Audit anything that takes images: what it returns, how that transforms, whether exactly, and what breaks it.

    Parameters
    ----------
    model : torch.nn.Module, path of an ONNX file, scikit-learn estimator, Command, ImageModel or callable
        A function is called with tensors (n, c, h, w), or with arrays if it takes no tensors. It may return a tensor,
        an array, or dictionaries and tuples of them; each entry is audited on its own. Integers are labels.
    images : (n, h, w) or (n, h, w, c) array, or (n, c, h, w) tensor, optional
        At least two different images. By default synthetic ones of a shape that the model takes.
    group : str or Group, default "d4"
        The group. "auto" is the largest finite group that the images obey, at least 64 of them
        (:func:`unpose.discover.discover_group`); ``notes`` say what was found and why.
    actions : str, or dict of str to str, optional
        How outputs transform, as ``output`` of :func:`equivariance_error`; for several outputs by name. Those that are
        left out are found from the data.
    input : {"image", "regular", "regular image"}, default "image"
        How the input transforms.
    group_axis : int, default 2
        The group axis of declared kinds that have one.
    n_elements : int, default 16
        Number of random elements of a continuous group.
    measure : bool, default True
        Whether to measure all elements on all images; otherwise there are no ``reports``.
    modules : bool, default True
        Whether to look for the responsible module of a broken network.
    sizes : tuple of int, optional
        Further sizes to try. By default the next three, if the model takes them; an empty tuple tries none.
    keep_mode : bool, default False
        Whether a torch module is called in the mode that it is in. By default it is put into evaluation mode.
    batch_size : int, optional
        Largest number of images per call.
    memory : int, optional
        Largest number of bytes of images and outputs per call, from which a batch size follows. Outputs of all images
        are held besides.
    progress : callable, optional
        Called with a stage, the number of steps done and their total.
    random_state : int, default 0
        Seed of random elements and synthetic images.

    Returns
    -------
    ModelAudit

    Raises
    ------
    ModelCallError
        If the model fails on the images themselves. Failures on moved images are reported, and the rest is kept.

    Notes
    -----
    Whether an error is a mistake is decided on a few images, with quarter turns and mirrors, in double precision where
    the model can be copied to it. There rounding is 1e-15 and any mistake stands out, also for a model in bfloat16.
    Elements that need interpolation decide only if no other error is found: an error of three times the floor and half
    of the control's is then called broken.

    Examples
    --------
    >>> pool = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(9, 2))
    >>> audit = audit_model(pool, torch.rand(4, 1, 7, 7), "c4")
    >>> audit.verdict, audit.cause
    ('broken', '0')
    """
    notes: list[str] = []
    if group == AUTO:
        if images is None:
            raise ValueError("group 'auto' looks at your images; give images, or name the group")
        shown = images.movedim(1, -1).cpu().numpy() if isinstance(images, Tensor) else images  # (n, h, w, c)
        found = discover_group(shown, random_state=random_state, progress=progress)
        group = found.finite_group
        notes += [f"group 'auto' is {group}", *(str(finding) for finding in found.findings)]
    group = plane_group(group)
    takes = kind_of(input, group, group_axis)
    f, network = _callable(model, images)
    if images is None:
        inputs = infer_inputs(network if network is not None else f, group, takes, random_state)
        notes.append(f"no images were given: synthetic ones of shape {tuple(inputs.shape)}")
    else:
        inputs = images if isinstance(images, Tensor) else as_batch(images)
    check_inputs(inputs, takes, Kind(), order_of(group))
    inputs = inputs.to(model_device(model, inputs), model_type(model, inputs))
    with evaluation(None if keep_mode else model):
        auditor = _Auditor(f, network, inputs, group, takes, actions, group_axis, notes)
        return auditor.run(
            n_elements, measure, modules, sizes, batch_size, memory, progress or (lambda *_: None), random_state,
            inferred=images is None,
        )  # fmt: skip


class _Auditor:
    """The steps of an audit, and what they found so far."""

    def __init__(
        self, f: Callable[[Tensor], Any], network: nn.Module | None, inputs: Tensor, group: Group, takes: Kind,
        actions: str | Mapping[str, str] | None, group_axis: int, notes: list[str],
    ) -> None:  # fmt: skip
        self._f, self._network, self._inputs, self._group, self._takes = f, network, inputs, group, takes
        self._actions, self._group_axis, self.notes = actions, group_axis, notes
        self._frame = frame_of(inputs, takes)
        self.failures: list[tuple[str, str]] = []

    def run(
        self, n_elements: int, measure: bool, modules: bool, sizes: tuple[int, ...] | None, batch_size: int | None,
        memory: int | None, progress: Progress, random_state: int, inferred: bool,
    ) -> ModelAudit:  # fmt: skip
        progress("calls", 0, 1)
        few, base = self._first_call()
        self._wide = in_double(self._f, few) if few.dtype != torch.float64 else None
        if self._wide is not None and self._network is not None:
            checks = check_calls(self._wide, few.double())
        else:
            checks = check_calls(self._f, few)
        self.notes += checks.notes
        self._note_mode()
        progress("structure", 0, 1)
        native = measure_precision(self._f, few)
        kinds, outputs = self._structure(few, native, base)
        reports: dict[str, EquivarianceReport] = {}
        n_calls = 0
        if measure and outputs:
            reports, n_calls = self._measure(kinds, native, n_elements, batch_size, memory, progress, random_state)
        verdict = self._verdict(checks, outputs, reports)
        broken_inputs = few
        if (
            verdict in ("equivariant", "constant", "undecided")
            and (worst := self._broken_images(native, reports)) is not None
        ):
            self.notes.append("broken for some of the images only, not for the first ones")
            verdict, broken_inputs = "broken", self._inputs[worst]
            kinds, outputs = self._structure(broken_inputs)
        cause, network_report = checks.module if verdict in ("random", "stateful", "batch") else "", None
        tried: dict[int, bool] = {}
        if verdict == "equivariant":
            progress("sizes", 0, 1)
            tried, broken = self._try_sizes(few, sizes)
            if broken is not None:
                wrong = ", ".join(str(size) for size, holds in tried.items() if not holds)
                self.notes.append(f"breaks at other sizes: {wrong} pixels")
                if inferred or sizes is not None:
                    verdict, broken_inputs = "broken", broken
                    _, outputs = self._structure(broken)
        if verdict == "broken" and modules and self._network is not None:
            progress("modules", 0, 1)
            network_report = self._modules(broken_inputs, kinds)
            cause = network_report.culprits[0] if network_report and network_report.culprits else ""
        return ModelAudit(
            self._group.name, verdict, cause, outputs, reports, checks, network_report, tried, tuple(self.failures),
            tuple(dict.fromkeys(self.notes)), n_calls,
        )  # fmt: skip

    def _first_call(self) -> tuple[Tensor, dict[str, Tensor]]:
        """A few of the images, and the outputs for them."""
        few = some_inputs(self._f, self._inputs)
        try:
            base = outputs_of(self._f(few.clone()), len(few))
        except Exception as error:
            raise ModelCallError(_explain(error, few)) from error
        bad = {name: int((~tensor.isfinite()).sum()) for name, tensor in base.items()}
        if any(bad.values()):
            where = ", ".join(f"{name or 'the output'}: {count}" for name, count in bad.items() if count)
            self.failures.append(("identity", f"values that are NaN or infinite ({where})"))
        return few, {name: tensor for name, tensor in base.items() if not bad[name]}

    def _note_mode(self) -> None:
        if self._network is None:
            return
        noisy = [
            name or NETWORK
            for name, module in self._network.named_modules()
            if module.training and isinstance(module, nn.modules.dropout._DropoutNd | nn.modules.batchnorm._BatchNorm)
        ]
        if noisy:
            self.notes.append(f"measured in training mode, in which {', '.join(noisy[:3])} depend on chance or batch")

    def _structure(
        self, few: Tensor, native: Precision | None = None, base: dict[str, Tensor] | None = None
    ) -> tuple[dict[str, Kind], dict[str, OutputAudit]]:
        """Find or take the action of each output, and measure it under the exact elements, as exactly as possible."""
        frame = frame_of(few, self._takes)
        f, wide = self._f, self._wide
        call, inputs = (f, few) if wide is None else (wide, few.double())
        native = measure_precision(f, few) if native is None else native
        exact = native if wide is None else measure_precision(call, inputs, may_be_double=wide is not f)
        outputs = {name: tensor for name, tensor in exact.outputs.items() if base is None or name in base}
        moved = self._moved(call, inputs, frame)
        kinds, entries = {}, {}
        for name, tensor in outputs.items():
            seen = [(element, answer[name]) for element, answer in moved if name in answer]
            declared = self._actions if isinstance(self._actions, str) else (self._actions or {}).get(name)
            if declared is not None:
                kinds[name], margin = kind_of(declared, self._group, self._group_axis), np.nan
                check_shape(tensor, kinds[name], order_of(self._group), f"output {name!r}" if name else "the output")
            else:
                action = find_action(tensor, seen, self._group, frame)
                kinds[name], margin = action.kind, action.margin
            tolerance = exact.tolerance(name, native.working)
            if not tensor.dtype.is_floating_point:
                tolerance = _LABEL_TOLERANCES.get(exact.working, _COARSE_LABEL_TOLERANCE)
            error, element = _worst(tensor, seen, kinds[name], frame)
            spread = discrimination(tensor)
            verdict = "equivariant" if seen else "undecided"
            rounding = (_CONSTANT if torch.finfo(exact.working).eps < 1e-6 else _COARSE_CONSTANT) * exact.noise[name]
            if error > tolerance:
                verdict = "broken"
                if declared is None and kinds[name].image and misfit_of(tensor, seen, Kind(), frame) <= FITS:
                    which = f"output {name!r}" if name else "the output"
                    self.notes.append(f"{which} does not move with the image: if it should not, declare it 'invariant'")
            elif spread <= rounding:
                verdict = "constant"
            elif error > max(_OF_SPREAD * spread, rounding) and tensor.dtype.is_floating_point:
                verdict = "undecided"
            entries[name] = OutputAudit(
                name, str(kinds[name]), declared is None, float(margin), error, element, tolerance, spread, verdict
            )
        return kinds, entries

    def _moved(
        self, call: Callable[[Tensor], Any], inputs: Tensor, frame: tuple[int, int]
    ) -> list[tuple[Element, dict[str, Tensor]]]:
        moved = []
        for element in exact_elements(self._group):
            if element.name == "identity":
                continue
            try:
                turned = act(inputs, element, self._takes, frame)
                answer = outputs_of(call(turned.clone()), len(inputs))
            except Exception as error:
                if not element.preserves(frame):
                    self.notes.append(f"the model takes no images of swapped sides, so '{element.name}' is left out")
                else:
                    self.failures.append((element.name, first_line(error)))
                continue
            if any(not tensor.isfinite().all() for tensor in answer.values() if tensor.dtype.is_floating_point):
                self.failures.append((element.name, "values that are NaN or infinite"))
                continue
            moved.append((element, answer))
        return moved

    def _measure(
        self, kinds: dict[str, Kind], native: Precision, n_elements: int, batch_size: int | None,
        memory: int | None, progress: Progress, random_state: int,
    ) -> tuple[dict[str, EquivarianceReport], int]:  # fmt: skip
        """Measure all elements on all images, in the model's own precision."""
        generator = torch.Generator().manual_seed(int(random_state))
        elements = elements_of(self._group, self._frame, n_elements, generator)
        if any(kind.part == "boxes" for kind in kinds.values()):
            elements = [element for element in elements if element.is_exact]  # the box of a turned box is a larger one
        simple = {name: kind for name, kind in kinds.items() if not (kind.tokens or kind.merged or kind.cyclic)}
        if not simple:
            return {}, 0
        if memory is not None:
            numbers = [int(self._inputs[0].numel()), *(int(native.outputs[name][0].numel()) for name in simple)]
            per_image = 8 * sum(numbers) * 4
            batch_size = min(batch_size or len(self._inputs), max(1, memory // per_image))

        def call(tensor: Tensor) -> dict[str, Tensor]:
            answer = outputs_of(self._f(tensor), len(tensor))
            bad = [name for name in simple if not answer[name].isfinite().all()]
            if bad:
                raise ValueError(f"values that are NaN or infinite in {bad[0] or 'the output'}")
            return answer

        tolerances = {name: native.tolerance(name) for name in simple}
        try:
            probe = Probe(
                call, self._inputs, self._takes, simple, self._group, self._frame,
                [*elements, control_for(self._group)], batch_size, progress, keep_going=True,
            )  # fmt: skip
        except ValueError as error:
            self.failures.append(("identity", str(error)))
            return {}, 0
        reports = probe.report(elements, tolerances, str(self._takes))
        for report in reports.values():
            known = {element for element, _ in self.failures}
            self.failures += [failure for failure in report.failures if failure[0] not in known]
        return reports, probe.n_calls

    def _broken_images(self, native: Precision, reports: dict[str, EquivarianceReport]) -> Tensor | None:
        """Positions of the images with the largest errors of exact elements, if these are no rounding; else None.

        A choice that depends on the pose, such as a branch or a threshold, shows for some images only.
        """
        for name, report in reports.items():
            is_label = not native.outputs[name].dtype.is_floating_point
            limit = _LABEL_TOLERANCES[torch.float32] if is_label else _MORE_IMAGES * report.tolerance
            if len(self._inputs) > len(native.outputs[name]) and report.worst_exact > limit:
                errors = np.nan_to_num(report.by_input[report.exact]).max(0)  # (n,)
                return torch.from_numpy(np.argsort(-errors, kind="stable")[: len(native.outputs[name])].copy())
        return None

    def _verdict(
        self, checks: CallChecks, outputs: dict[str, OutputAudit], reports: dict[str, EquivarianceReport]
    ) -> str:
        if not outputs:
            return "not finite"
        if checks.cause:
            return checks.cause
        found = {entry.verdict for entry in outputs.values()}
        if "broken" in found:
            return "broken"
        if self.failures:
            return "not finite" if any("NaN" in message for _, message in self.failures) else "failed"
        if any(breaks_between_pixels(report) for report in reports.values()):
            self.notes.append("broken only for elements that need interpolation: compare them with their floors")
            return "broken"
        if found == {"constant"}:
            return "constant"
        if "equivariant" in found:
            return "equivariant"
        no_exact = all(not report.decides for report in reports.values()) and reports
        return "equivariant" if no_exact and "undecided" in found and "constant" not in found else "undecided"

    def _try_sizes(self, few: Tensor, sizes: tuple[int, ...] | None) -> tuple[dict[int, bool], Tensor | None]:
        """Try other sizes of square images; which of them are equivariant, and inputs of the first that is not."""
        height, width = self._frame
        if not self._takes.image or height != width or sizes == ():
            return {}, None
        tried: dict[int, bool] = {}
        broken = None
        for size in sizes or (height + 1, height + 2, height + 3):
            shape = few.shape[1:-2].numel()
            images = smooth_noise(2, shape, (size, size)).unflatten(1, few.shape[1:-2]).to(few)
            try:
                _, entries = self._structure(images)
            except Exception:  # a model of fixed size raises whatever it likes
                continue
            if not entries or self.failures:
                self.failures.clear()
                continue
            tried[size] = all(entry.verdict != "broken" for entry in entries.values())
            if not tried[size] and broken is None:
                broken = images
        if not tried:
            self.notes.append(f"the model takes images of {height} x {width} pixels only")
        return tried, broken

    def _modules(self, inputs: Tensor, kinds: dict[str, Kind]) -> NetworkReport | None:
        if self._network is None:
            return None
        declared = self._actions if len(kinds) == 1 and isinstance(self._actions, str) else None
        axis = None if self._takes.group_axis is None else self._group_axis
        try:
            name = str(self._takes).partition(",")[0]
            return audit_modules(self._network, inputs, self._group, declared, input=name, group_axis=axis)
        except ValueError as error:
            self.notes.append(f"modules could not be compared: {error}")
            return None


def breaks_between_pixels(report: EquivarianceReport) -> bool:
    """Whether an element that needs interpolation errs by three times its floor and half of the control's error."""
    far = ~report.exact & (report.errors > _FAR_ABOVE_FLOOR * report.floors)
    return bool((far & (report.errors > report.control_error / 2)).any())


def _worst(base: Tensor, moved: list[tuple[Element, Tensor]], kind: Kind, frame: tuple[int, int]) -> tuple[float, str]:
    """The largest relative error over the elements, and its element; for labels the share that changes."""
    worst, name = 0.0, moved[0][0].name if moved else "identity"
    for element, given in moved:
        expected = act(base, element, kind, frame)
        if given.shape != expected.shape:
            return float("inf"), element.name
        if base.dtype.is_floating_point:
            size = float(expected.double().norm())
            change = float((given.double() - expected.double()).norm())
            error = change / size if size else float(change > 0)
        else:
            error = float((given != expected).double().mean())
        if error > worst:
            worst, name = error, element.name
    return worst, name


def _callable(model: Any, images: Any) -> tuple[Callable[[Tensor], Any], nn.Module | None]:
    """What to call on a tensor, and the torch module in it. A function gets arrays if the images are given as such."""
    if isinstance(model, ImageModel) and model.output is not None:
        return model, model if isinstance(model.model, nn.Module) else None
    if isinstance(model, ImageModel):
        inner = model.model if isinstance(model.model, nn.Module) and model.layout in (None, "nchw") else None
        return (inner, inner) if inner is not None and model.batch_size is None else (model.raw, None)
    if isinstance(model, nn.Module):
        return model, model
    wrapped = as_model(model)
    if wrapped.layout is None and images is not None and not isinstance(images, Tensor):
        wrapped.layout = "nhwc" if np.ndim(images) == 4 else "nhw"
    return _Function(wrapped), None


class _Function:
    """A function, estimator or file: called on tensors, or on arrays if it takes no tensors."""

    def __init__(self, model: ImageModel) -> None:
        self._model = model
        self._layouts = [model.layout] if model.layout is not None else [None, "nchw", "nhwc", "nhw"]

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        errors = []
        for layout in self._layouts:
            self._model.layout = layout
            try:
                answer = self._model.raw(images)
            except ValueError as error:
                errors.append(error)
                if not isinstance(error.__cause__, TypeError | AttributeError | IndexError):
                    break  # it takes such images, and fails for another reason
                continue
            self._layouts = [layout]
            return answer
        raise errors[0]


def _explain(error: Exception, inputs: Tensor) -> str:
    message = first_line(error)
    text = f"the model fails on images of shape {tuple(inputs.shape)}: {message}"
    if (
        any(word in message.lower() for word in ("cuda", "nvidia", "same device", "mps"))
        and not torch.cuda.is_available()
    ):
        text += "; it needs a GPU, and torch sees none here: move it to the CPU with model.cpu() or map_location='cpu'"
    return text
