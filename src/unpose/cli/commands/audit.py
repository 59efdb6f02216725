"""``unpose audit``: how invariant a trained network really is, element by element, and which module breaks it."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.networks import ModelFile, write_picture
from unpose.cli.shared.output import check_picture

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from unpose.audit import EquivarianceReport, NetworkReport
    from unpose.nn import Network

_SWEEP = 24
"""Turns of the picture's sweep: every 15 degrees."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkpoint", type=ModelFile())
@click.option("--group", help="Transformations to try, such as c4, d4, c8 or se2; by default the network's own group.")
@click.option(
    "--images", type=click.Path(path_type=Path),
    help="A folder of pictures, a stack or a .npy file; by default smooth noise of the network's size.",
)  # fmt: skip
@click.option("--count", default=4, show_default=True, type=click.IntRange(2), help="How many images to use.")
@click.option("--seed", default=0, show_default=True, help="Of the noise, and of the elements of a continuous group.")
@click.option(
    "--tolerance", default=1e-5, show_default=True, type=click.FloatRange(0, min_open=True),
    help="Largest relative error of a quarter turn or mirror that counts as rounding.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON instead of the table.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture (PNG) here.")
@click.option("--force", is_flag=True, help="Replace the picture that is there.")
def command(
    checkpoint: Path, group: str | None, images: Path | None, count: int, seed: int, tolerance: float, as_json: bool,
    out: Path | None, force: bool,
) -> None:  # fmt: skip
    """Measure how invariant a trained network is.

    CHECKPOINT is a file that `unpose train` made, or the name of a network that `unpose models` lists.

    For every element of a group the output on transformed images is compared with the output on the images
    themselves. Quarter turns and mirrors move pixels and change none, so a network that claims their group must not
    notice them. Other turns need interpolation: beside their error stands its floor, what turning the images and
    turning them back does to the output.

    \b
    Examples:
      unpose audit model.safetensors                       the network's own group, on smooth noise
      unpose audit mnist-c8                                a network that comes along
      unpose audit model.safetensors --images scans/       on your pictures
      unpose audit model.safetensors --group d4            is it invariant to mirrors as well?
      unpose audit model.safetensors --group se2           quarter turns, and 16 random turns with shifts
      unpose audit model.safetensors -o audit.png          and a picture: the error of every turn beside its floor
      unpose audit model.safetensors --json | jq .worst    for scripts

    \b
    Exit status:
      0  every quarter turn and mirror of the group is within the tolerance, and inputs are told apart; a group may
         have none, which is said ("decides": false)
      1  they are not; a second table names the module that breaks it
      2  the call is wrong, or a file cannot be read
    """
    from unpose.audit import audit_modules, equivariance_error
    from unpose.groups import parse

    if out is not None:
        check_picture(out, force)
    network = _load(checkpoint)
    claimed, channels, frame = _claims(network.description)
    try:
        tried = parse(group or claimed)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--group") from error
    inputs = _inputs(images, count, seed, channels, frame)
    try:
        measured = equivariance_error(network, inputs, tried, random_state=seed)
        # A network too constant to judge breaks nothing: no module is to be named for it.
        broken = measured.worst_exact > tolerance
        modules = audit_modules(network, inputs, tried, tolerance=tolerance) if broken else None
    except ValueError as error:
        raise click.UsageError(f"{checkpoint} cannot be audited under {tried}: {error}") from error
    if out is not None:
        write_picture(out, _picture(network, inputs, measured, checkpoint.name, seed))
    if as_json:
        click.echo(json.dumps(_numbers(measured, modules, checkpoint, tolerance), indent=2))
    else:
        click.echo(measured.table())
        click.echo(_verdict(measured, tolerance))
        if modules is not None:
            click.echo(f"\n{modules.table()}")
    if not measured.holds(tolerance):
        raise click.exceptions.Exit(1)


def _load(path: Path) -> "Network":
    from unpose.train import load_network

    try:
        return load_network(path).float()  # as the inputs are, whatever it was saved in
    except (ValueError, OSError) as error:
        raise click.BadParameter(str(error), param_hint="CHECKPOINT") from error


def _claims(description: dict[str, Any]) -> tuple[str, int, tuple[int, int]]:
    """The group a network claims, the channels it takes and the size it was made for."""
    height, width = description["image_size"]
    return description["group"], description["in_channels"], (height, width)


def _inputs(path: Path | None, count: int, seed: int, channels: int, frame: tuple[int, int]) -> "Tensor":
    """(count, channels, h, w): images at even steps through what was given, or smooth noise."""
    from unpose.audit import smooth_noise

    if path is None:
        return smooth_noise(count, channels, frame, random_state=seed)
    import numpy as np

    from unpose.data import read_images
    from unpose.images import as_batch

    if channels not in (1, 3):
        raise click.BadParameter(
            f"the network takes {channels} channels, and pictures have 1 or 3; leave --images out for noise",
            param_hint="--images",
        )
    try:
        found = read_images(path, size=max(frame), color="grey" if channels == 1 else "rgb", fewest=1).images
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--images") from error
    chosen = np.unique(np.linspace(0, len(found) - 1, count).round().astype(int))
    return as_batch(found[chosen])


def _verdict(measured: "EquivarianceReport", tolerance: float) -> str:
    if measured.is_nearly_constant:
        return (
            f"Cannot be judged: the outputs of different images differ by {measured.discrimination:.1g} of their norm."
        )
    if not measured.decides:
        return "Nothing to decide: no element of the group only moves pixels."
    worst = measured.worst_exact
    if worst <= tolerance:
        return f"Invariant to every element of {measured.group} that only moves pixels, to {worst:.1g}."
    return f"Not invariant to {measured.group}: errors up to {worst:.2g} where {tolerance:g} is allowed."


def _picture(network: "Network", inputs: "Tensor", measured: "EquivarianceReport", name: str, seed: int) -> "Image":
    """Left, the error of every turn by 15 degrees beside its floor; right, the group's elements by powers of ten."""
    import numpy as np

    from unpose.audit import equivariance_error
    from unpose.report import figures

    turns = equivariance_error(network, inputs, f"c{_SWEEP}", random_state=seed)
    around = figures.curve(
        {"network": turns.errors, "interpolation alone": turns.floors}, title="Turned by any angle",
        x_label=f"turn, in steps of {360 // _SWEEP} degrees", y_label="relative change of the output", size=(460, 280),
    )  # fmt: skip
    smallest = 1e-9  # what is exactly zero is drawn here
    lines = {
        "element": measured.errors,
        "floor": measured.floors,
        f"control: {measured.control}": np.full(len(measured.errors), measured.control_error),
    }
    by_element = figures.curve(
        {label: np.log10(np.clip(np.nan_to_num(line, posinf=1e9), smallest, None)) for label, line in lines.items()},
        title=f"Elements of {measured.group}", x_label="element, as in the table", y_label="error, power of ten",
        size=(460, 280),
    )  # fmt: skip
    return figures.beside([around, by_element], title=f"Audit of {name}")


def _numbers(
    measured: "EquivarianceReport", modules: "NetworkReport | None", checkpoint: Path, tolerance: float
) -> dict[str, Any]:
    rows = zip(measured.elements, measured.exact, measured.errors, measured.floors, measured.input_floors, strict=True)
    return {
        "checkpoint": str(checkpoint),
        "group": measured.group,
        "holds": measured.holds(tolerance),
        "decides": measured.decides,
        "tolerance": tolerance,
        "elements": [
            {
                "element": name,
                "exact": bool(exact),
                "error": _finite(error),
                "floor": _finite(floor),
                "pixels": _finite(low),
            }
            for name, exact, error, floor, low in rows
        ],
        "worst": {"element": measured.elements[measured.worst], "error": _finite(measured.errors[measured.worst])},
        "control": {
            "element": measured.control,
            "error": _finite(measured.control_error),
            "floor": _finite(measured.control_floor),
        },
        "discrimination": _finite(measured.discrimination),
        "notes": measured.remarks(),
        "culprits": [] if modules is None else list(modules.culprits),
    }


def _finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return float(value) if math.isfinite(value) else None
