"""Models that a command line names: networks of this package, ONNX files, Python objects and other programs."""

import csv
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.inputs import ModelFile, pick_device

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from unpose.nn import Network


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
    probabilities: bool = False
    batch_size: int | None = None  # images per call that suit it


def load_any(text: str, *, device: str = "cpu", output: str | None = None, probabilities: bool = False) -> AnyModel:
    """The model that a command line names: FILE.onnx, MODULE:NAME, or a network of this package."""
    if text.lower().endswith(".onnx"):
        return _onnx(text, output, probabilities)
    if ":" in text and not os.path.exists(text) and not text.startswith(("/", ".")):
        return _python(text, device, output, probabilities)
    if text.lower().endswith((".pkl", ".pickle", ".joblib", ".pt", ".pth")) and os.path.isfile(text):
        raise click.BadParameter(
            f"{text} may hold pickled objects, which can run any code when they are read; read it in a Python file of "
            "your own and name the object, as in my_model:classifier", param_hint="MODEL",
        )  # fmt: skip
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
        path.name, _on_device(network, device), _digest(path.read_bytes()), network=network, own=network, path=path,
        expects=(channels, height, width), class_names=tuple(names),
    )  # fmt: skip


def _onnx(text: str, output: str | None, probabilities: bool) -> AnyModel:
    from unpose.adapt import as_model

    path = Path(text)
    if not path.is_file():
        raise click.BadParameter(f"there is no file {text!r}", param_hint="MODEL")
    try:
        wrapped = as_model(path, output=output, gives="probabilities" if probabilities else None)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="MODEL") from error
    channels, height, width = wrapped.expects
    return AnyModel(
        path.name, wrapped, _digest(path.read_bytes()), path=path, expects=(channels, height, width),
        probabilities=probabilities,
    )  # fmt: skip


def _python(text: str, device: str, output: str | None, probabilities: bool) -> AnyModel:
    """MODULE:NAME, or MODULE:NAME() to call a function that returns the model."""
    import torch

    from unpose.adapt import as_model

    module_name, _, attribute = text.partition(":")
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
        first_line = str(error).strip().partition("\n")[0] or type(error).__name__
        raise click.BadParameter(
            f"{text} cannot be loaded: {type(error).__name__}: {first_line}", param_hint="MODEL"
        ) from error
    try:
        gives = "probabilities" if probabilities else None
        if isinstance(found, torch.nn.Module):
            wrapped = as_model(found, output=output, gives=gives)
            call: Callable[[Tensor], Any] = _on_device(wrapped, device)
        else:
            is_estimator = hasattr(found, "fit") and hasattr(found, "predict")
            wrapped = as_model(found, layout=None if is_estimator else "nhwc", output=output, gives=gives)
            call = wrapped
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="MODEL") from error
    source = getattr(module, "__file__", None)
    content = Path(source).read_bytes() if source else b""
    return AnyModel(
        text, call, _digest(text.encode(), content), probabilities=wrapped.gives == "probabilities",
        network=found if isinstance(found, torch.nn.Module) and output is None else None,
    )  # fmt: skip


def fitting(model: AnyModel) -> "Callable[[Tensor], Any]":
    """The model as a function on square images: for one that takes another shape, their border is repeated."""
    import torch

    _, height, width = model.expects
    if height is None or width is None or height == width:
        return model.call

    def call(images: "Tensor") -> Any:
        down, across = height - images.shape[-2], width - images.shape[-1]
        if down < 0 or across < 0 or (down == 0 and across == 0):
            return model.call(images)
        around = (across // 2, across - across // 2, down // 2, down - down // 2)
        return model.call(torch.nn.functional.pad(images, around, mode="replicate"))

    return call


def external(command: str, class_names: Sequence[str]) -> AnyModel:
    """Another program as a model: it reads a folder of PNG files and writes a CSV file."""
    words = shlex.split(command)
    if not words or not all(any(mark in word for word in words) for mark in ("{input}", "{output}")):
        raise click.BadParameter(
            "the command must contain {input}, the folder with pictures, and {output}, the CSV file to write; got "
            f"{command!r}", param_hint="--command",
        )  # fmt: skip

    def call(images: "Tensor") -> "np.ndarray":
        from unpose.files import write_image
        from unpose.images import from_batch

        with tempfile.TemporaryDirectory(prefix="unpose-") as place:
            folder, table = Path(place) / "images", Path(place) / "answers.csv"
            folder.mkdir()
            names = [f"{i:06d}.png" for i in range(len(images))]
            for name, picture in zip(names, from_batch(images, channels=images.shape[1] > 1), strict=True):
                write_image(folder / name, picture)
            filled = [word.replace("{input}", str(folder)).replace("{output}", str(table)) for word in words]
            try:
                done = subprocess.run(filled, capture_output=True, text=True, errors="replace")
            except OSError as error:
                raise ValueError(f"{words[0]} cannot be started: {error.strerror}") from error
            if done.returncode != 0:
                last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
                raise ValueError(f"the command ended with status {done.returncode}: {last}")
            if not table.is_file():
                raise ValueError("the command ended without writing its CSV file")
            return read_answers(table, names, class_names)

    return AnyModel(
        Path(words[0]).name, call, _digest(command.encode()), class_names=tuple(class_names), batch_size=1024
    )


def read_answers(table: Path, names: Sequence[str], class_names: Sequence[str]) -> "np.ndarray":
    """The answers in a CSV file, in the order of ``names``: scores (n, k), or one class name for each image."""
    import numpy as np

    with table.open(newline="", encoding="utf-8") as file:
        rows = {
            Path(row[0].strip()).name: [cell.strip() for cell in row[1:]] for row in csv.reader(file) if len(row) > 1
        }
    missing = [name for name in names if name not in rows]
    if missing:
        raise ValueError(f"the CSV file has no line for {missing[0]} and {len(missing) - 1} other images")
    cells = [rows[name] for name in names]
    if len({len(row) for row in cells}) != 1:
        raise ValueError("the lines of the CSV file must have equally many columns")
    if len(cells[0]) == 1 and class_names and all(row[0] in class_names for row in cells):
        answers = np.zeros((len(cells), len(class_names)), np.float32)  # one-hot, as scores
        answers[np.arange(len(cells)), [list(class_names).index(row[0]) for row in cells]] = 1
        return answers
    try:
        return np.array(cells, dtype=np.float32)
    except ValueError as error:
        unknown = next(row[0] for row in cells if not _is_number(row[0]))
        raise ValueError(
            f"the CSV file must hold scores, or one known class for each image; {unknown!r} is neither. Name the "
            "classes with --classes"
        ) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _on_device(model: "Callable[[Tensor], Any]", device: str) -> "Callable[[Tensor], Any]":
    """A torch module that is called on a device with images from the CPU."""
    if device == "cpu":
        return model
    target = pick_device(device)
    return lambda images: model(images.to(target))


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
