"""What the commands about networks share: data and models by name with errors for a person, devices, the sweep."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from unpose.cli.shared.output import writing

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from PIL.Image import Image

    from unpose.data import Dataset
    from unpose.nn import Network

_COLOURS: "dict[int | None, Literal['grey', 'rgb']]" = {1: "grey", 3: "rgb"}
"""What a network of so many channels wants a folder's images to be."""

SWEEP = 24
"""Turns of a sweep: every 15 degrees."""


def sweep_angles() -> list[float]:
    """The angles of a sweep, in radians."""
    return [2 * math.pi * step / SWEEP for step in range(SWEEP)]


def load_data(
    name: str, root: Path | None, size: int | None = None, *, channels: int | None = None, quiet: bool = False
) -> "Dataset":
    """A data set, with progress on stderr; what could not be read is said there too."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from unpose.data import load

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        try:
            dataset = load(name, root, size=size, color=_COLOURS.get(channels, "auto"), progress=show)
        except (ValueError, OSError) as error:
            raise click.UsageError(str(error)) from error
    if not quiet:
        for line in dataset.notes[:10]:
            click.echo(line, err=True)
        if len(dataset.notes) > 10:
            click.echo(f"and {len(dataset.notes) - 10:,} more", err=True)
    return dataset


class ModelFile(click.ParamType):
    """A network: the path of a file that `unpose train` made, or the name of one that comes along."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from unpose.train import pretrained_file, pretrained_names

        known = str(value) in pretrained_names()
        if os.path.isfile(value):
            if known:
                click.echo(f"{value}: the file of this name is used, not the model that comes along", err=True)
            return Path(value)
        if os.path.isdir(value) and not known:
            self.fail(f"{value} is a folder; give the file of the network in it, such as model.safetensors", param, ctx)
        try:
            return pretrained_file(str(value))
        except ValueError as error:
            self.fail(f"no file is called {value!r}, nor is a model: {error}", param, ctx)


def load_model(path: Path, device: str, hint: str) -> "tuple[Network, tuple[str, ...]]":
    """A saved network and the names of its classes."""
    from unpose.train import load_network, read_classes

    try:
        return load_network(path, device=pick_device(device)), read_classes(path)
    except (ValueError, OSError) as error:
        raise click.BadParameter(str(error), param_hint=hint) from error


def pick_device(name: str) -> "torch.device":
    """``auto`` is a GPU where there is one; under ``torchrun`` each process takes its own."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if gpus else "cpu"
    there = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    if name not in there:
        raise click.BadParameter(f"{name!r} cannot be used here; there is {', '.join(there)}", param_hint="--device")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).partition("\n")[0]
        raise click.BadParameter(f"{name!r} cannot be used here: {said}", param_hint="--device") from error
    return device


def sweep_picture(lines: "dict[str, NDArray]", title: str) -> "Image":
    """Accuracy against angle, one line for each network."""
    from unpose.report import figures

    return figures.curve(
        {name: 100 * line for name, line in lines.items()},
        title=title,
        x_label=f"turn of the test images, in steps of {360 // SWEEP} degrees",
        y_label="right answers, per cent",
        size=(620, 320),
    )


def write_picture(path: Path, picture: "Image") -> None:
    """A picture to a file as PNG, its folder made where it is not there."""
    from unpose.files.atomic import write_image

    with writing(path):
        write_image(path, picture)
