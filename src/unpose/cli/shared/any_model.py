"""Models that a command line names: networks of this package, ONNX files, Python objects and other programs."""

import contextlib
import csv
import hashlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import parameter_errors
from unpose.cli.shared.inputs import ModelFile, pick_device
from unpose.cli.shared.output import counted

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from unpose.nn import Network
    from unpose.runs.audits import RememberedCalls


_LABELS = 256
"""Number of classes of a model that answers with numbers, where their number is not known."""


@dataclass(frozen=True)
class AnyModel:
    """A model and what is known about it."""

    name: str
    call: "Callable[[Tensor], Any]"  # (n, c, h, w) -> (n, ...)
    fingerprint: str  # changes with the model, as far as that can be known
    network: "torch.nn.Module | None" = None  # whose modules can be tested
    own: "Network | None" = None  # the network, if it is one of this package
    path: Path | None = None
    expects: tuple[int | None, int | None, int | None] = (None, None, None)  # channels, height, width
    class_names: tuple[str, ...] = ()
    batch_size: int | None = None  # images per call that suit it
    outputs: "Callable[[Tensor], dict[str, Tensor]] | None" = None  # all that it returns, if no output was chosen


def load_any(text: str, *, device: str = "cpu", output: str | None = None, class_names: Sequence[str] = ()) -> AnyModel:
    """The model that a command line names: FILE.onnx, MODULE:NAME, or a network of this package."""
    from unpose.files import refuse_code

    if text.lower().endswith(".onnx"):
        return _onnx(text, output)
    if ":" in text and not os.path.exists(text) and not text.startswith(("/", ".")):
        return _python(text, device, output, class_names)
    with parameter_errors("MODEL"):
        refuse_code(text)
    return _own(text, device)


def _own(text: str, device: str) -> AnyModel:
    from unpose.train import load_network, read_classes

    try:
        path = ModelFile().convert(text, None, None)
        network = load_network(path, device=pick_device(device)).float()  # the inputs are float32
        names = read_classes(path)
    except click.BadParameter as error:
        raise click.BadParameter(error.message, param_hint="CHECKPOINT") from error
    except (ValueError, OSError) as error:
        raise click.BadParameter(str(error), param_hint="CHECKPOINT") from error
    channels, (height, width) = network.description["in_channels"], network.description["image_size"]
    return AnyModel(
        path.name, _torch_call(network, network, device), _digest(path.read_bytes()), network=network, own=network,
        path=path, expects=(channels, height, width), class_names=tuple(names),
    )  # fmt: skip


def _onnx(text: str, output: str | None) -> AnyModel:
    from unpose.audit import as_model
    from unpose.audit.outputs import output_named

    path = Path(text)
    if not path.is_file():
        raise click.BadParameter(f"there is no file {text!r}", param_hint="MODEL")
    with parameter_errors("MODEL"):
        wrapped = as_model(path, output=None if output is None else partial(output_named, name=output))
    wrapped.label_maps = True
    channels, height, width = wrapped.expects
    return AnyModel(
        path.name, wrapped, _digest(path.read_bytes()), path=path, expects=(channels, height, width),
        outputs=wrapped.raw if output is None else None,
    )  # fmt: skip


def _python(text: str, device: str, output: str | None, class_names: Sequence[str]) -> AnyModel:
    """MODULE:NAME, or MODULE:NAME() to call a function that returns the model."""
    import torch

    from unpose.audit import as_model
    from unpose.audit.calls import first_line
    from unpose.audit.outputs import output_named

    module_name, _, attribute = text.partition(":")
    click.echo(f"note: importing {module_name} and running it; its code can do anything that you can", err=True)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for `python -m`
    try:
        module = import_module(module_name)
        found: Any = module
        for part in attribute.removesuffix("()").split("."):
            found = getattr(found, part)
        if attribute.endswith("()"):
            found = found()
        if isinstance(found, torch.nn.Module):
            found = found.to(pick_device(device))
    except click.ClickException:
        raise
    except Exception as error:
        raise click.BadParameter(
            f"{text} cannot be loaded: {type(error).__name__}: {first_line(error)}", param_hint="MODEL"
        ) from error
    is_module = isinstance(found, torch.nn.Module)
    is_estimator = not is_module and hasattr(found, "fit") and hasattr(found, "predict")
    with parameter_errors("MODEL"):
        if is_module or is_estimator:
            wrapped = as_model(found, output=None if output is None else partial(output_named, name=output))
        else:
            pick = (lambda answer: answer) if output is None else partial(output_named, name=output)
            wrapped = as_model(found, layout="nhwc", output=lambda answer: as_scores(pick(answer), class_names))
    wrapped = copy(wrapped)  # an object may be wrapped already
    wrapped.label_maps = True
    first = next((m for m in found.modules() if isinstance(m, torch.nn.Conv2d)), None) if is_module else None
    return AnyModel(
        text, _torch_call(found, wrapped, device) if is_module else wrapped,
        _digest(text.encode(), _source(module), _state(found)),
        network=None if not is_module else found if output is None else _picked(found, output),
        expects=(first.in_channels if first is not None else None, None, None),
        outputs=None if output is not None else _torch_call(found, wrapped.raw, device) if is_module else wrapped.raw,
    )  # fmt: skip


def _source(module: Any) -> bytes:
    """The text of a Python module; empty if it has no file."""
    source = getattr(module, "__file__", None)
    return Path(source).read_bytes() if source else b""


def _state(model: Any) -> bytes:
    """Hash what a model has learnt: it may come from another file than the code."""
    import torch

    digest = hashlib.sha256()
    learnt = model.state_dict() if isinstance(model, torch.nn.Module) else model
    for entry in _entries(learnt, {}):
        digest.update(entry)
    return digest.digest()


def _entries(value: Any, seen: dict[int, Any]) -> "Iterator[bytes]":
    """The numbers and texts of which an object consists, each object once; of functions and classes only the name."""
    import numpy as np
    import torch

    if isinstance(value, str | bytes | int | float | complex | np.generic | None):
        yield repr(value).encode()
    elif id(value) not in seen:
        seen[id(value)] = value  # kept, so that no other object gets its number
        yield type(value).__qualname__.encode()
        if isinstance(value, torch.Tensor):
            yield f"{value.dtype} {tuple(value.shape)}".encode()
            yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            yield f"{value.dtype} {value.shape}".encode()  # between the fields of a row there may be anything
            yield from (value[name].tobytes() for name in value.dtype.names or [...])
        elif isinstance(value, dict):
            for name, part in value.items():
                yield from _entries(name, seen)
                yield from _entries(part, seen)
        elif isinstance(value, list | tuple | np.ndarray):
            for part in value:
                yield from _entries(part, seen)
        elif callable(value) and hasattr(value, "__qualname__"):
            yield value.__qualname__.encode()
            if isinstance(value, MethodType):
                yield from _entries(value.__self__, seen)
        else:
            with contextlib.suppress(TypeError):  # objects of C code that tell nothing
                yield from _entries(value.__getstate__(), seen)


def as_scores(answers: Any, class_names: Sequence[str]) -> Any:
    """Labels, given as whole numbers or as names of classes, as scores with a single 1; anything else as it is."""
    import numpy as np
    import torch

    if isinstance(answers, dict | tuple):
        entries = ", ".join(map(str, answers)) if isinstance(answers, dict) else f"0 to {len(answers) - 1}"
        raise ValueError(f"the model returns several outputs ({entries}); choose one with --output NAME")
    if isinstance(answers, torch.Tensor) and answers.dtype.is_floating_point:
        return answers
    array = answers.detach().cpu().numpy() if isinstance(answers, torch.Tensor) else np.asarray(answers)
    if array.ndim != 1 or array.dtype.kind not in "iuUSO":
        return answers
    if array.dtype.kind in "iu":
        numbers, width = array.astype(int), len(class_names) or _LABELS
    else:
        unknown = [str(name) for name in array if str(name) not in class_names]
        if unknown:
            raise ValueError(f"the model answers {unknown[0]!r}, which is no known class; name them with --classes")
        numbers, width = np.array([list(class_names).index(str(name)) for name in array]), len(class_names)
    if numbers.min() < 0 or numbers.max() >= width:
        raise ValueError(f"labels must be from 0 to {width - 1}, got {numbers.min()} to {numbers.max()}")
    return np.eye(width, dtype=np.float32)[numbers]


def fitting(model: AnyModel, call: "Callable[[Tensor], Any] | None" = None) -> "Callable[[Tensor], Any]":
    """The model as a function on square images: for one that takes another shape, their border is repeated."""
    import torch

    _, height, width = model.expects
    given = model.call if call is None else call
    if height is None or width is None or height == width:
        return given

    def padded(images: "Tensor") -> Any:
        down, across = height - images.shape[-2], width - images.shape[-1]
        if down < 0 or across < 0 or (down == 0 and across == 0):
            return given(images)
        around = (across // 2, across - across // 2, down // 2, down - down // 2)
        return given(torch.nn.functional.pad(images, around, mode="replicate"))

    return padded


def single_outputs(
    model: AnyModel, images: "Tensor", remember: "Callable[[Callable[[Tensor], Tensor]], RememberedCalls]",
    class_names: Sequence[str],
) -> dict[str, AnyModel]:  # fmt: skip
    """A model with several outputs as one model for each, by name; only itself, without a name, if it has one.

    ``remember`` makes the model answer each image once for all outputs.
    """
    from math import prod

    import torch

    from unpose.runs.audits import OutputView

    if model.outputs is None:
        return {"": model}
    raw = fitting(model, model.outputs)

    def numbers(images: "Tensor") -> "dict[str, Tensor]":
        found = {name: torch.as_tensor(as_scores(each, class_names)) for name, each in raw(images).items()}
        return {name: each.float() for name, each in found.items()}

    first: dict[str, Tensor] = {}
    for some in (images, images[:1]):  # it may take one image at a time only
        try:
            first = numbers(some)
            break
        except Exception:  # the audit itself says what is wrong
            continue
    if len(first) < 2:
        return {"": model}
    together = remember(lambda x: torch.cat([each.flatten(1) for each in numbers(x).values()], 1))
    found, start = {}, 0
    for name, each in first.items():
        shape = tuple(each.shape[1:]) or (1,)
        view = OutputView(together, slice(start, start + prod(shape)), shape)
        start += prod(shape)
        network = None if model.network is None else _picked(model.network, name)
        found[name] = replace(model, name=f"{model.name}, output {name}", call=view, network=network, outputs=None)
    return found


def _picked(network: "torch.nn.Module", name: str) -> "torch.nn.Module":
    """A network with the same modules that returns one of its outputs."""
    from unpose.audit.outputs import output_named

    kind = type(network)

    def forward(self: "torch.nn.Module", *args: Any, **kwargs: Any) -> Any:
        return output_named(kind.forward(self, *args, **kwargs), name)

    # A class of its own, because copies of the network, as in double precision, must call their own modules.
    picked = copy(network)
    picked.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    return picked


def external(command: str, class_names: Sequence[str]) -> AnyModel:
    """Another program as a model: it reads a folder of PNG files and writes a CSV file."""
    words = shlex.split(command)
    if not words or not all(any(mark in word for word in words) for mark in ("{input}", "{output}")):
        raise click.BadParameter(
            "the command must contain {input}, the folder with pictures, and {output}, the CSV file to write; got "
            f"{command!r}", param_hint="--command",
        )  # fmt: skip

    def call(images: "Tensor") -> "np.ndarray":
        from unpose.files.exchange import program_answers
        from unpose.images import from_batch

        with program_answers(words, from_batch(images, channels=True), marks=("{input}", "{output}")) as table:
            return read_answers(table, [f"{i:06d}.png" for i in range(len(images))], class_names)

    files = [Path(word).read_bytes() for word in words if Path(word).is_file()]  # such as a script, or its weights
    return AnyModel(command, call, _digest(command.encode(), *files), class_names=tuple(class_names), batch_size=1024)


def read_answers(table: Path, names: Sequence[str], class_names: Sequence[str]) -> "np.ndarray":
    """The answers in a CSV file, in the order of ``names``: scores (n, k), or one class name for each image."""
    import numpy as np

    with table.open(newline="", encoding="utf-8-sig") as file:  # Excel writes the mark
        rows = {
            Path(row[0].strip()).name: [cell.strip() for cell in row[1:]] for row in csv.reader(file) if len(row) > 1
        }
    missing = [name for name in names if name not in rows]
    if missing:
        raise ValueError(f"the CSV file has no line for {counted(len(missing), 'image')}, {missing[0]} first")
    cells = [rows[name] for name in names]
    if len({len(row) for row in cells}) != 1:
        raise ValueError("the lines of the CSV file must have equally many columns")
    try:
        scores = np.array(cells, dtype=np.float32)
    except ValueError:
        if len(cells[0]) != 1:
            raise ValueError(
                f"the CSV file must hold scores, or one class for each image, got {', '.join(cells[0])}"
            ) from None
        scores = as_scores([row[0] for row in cells], class_names)
    return scores


def _torch_call(network: "torch.nn.Module", call: "Callable[[Tensor], Any]", device: str) -> "Callable[[Tensor], Any]":
    """A function that calls a torch module in evaluation mode, on its device and with images of its own type."""
    from unpose.audit import evaluation
    from unpose.audit.precision import model_type

    target = pick_device(device)

    def called(images: "Tensor") -> Any:
        with evaluation(network):
            return call(images.to(target, model_type(network, images)))

    return called


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
