"""``unpose audit``: how invariant a trained network is to each element of a group, and which module breaks it."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.angle_sweep import N_ANGLES, STEP_DEGREES, full_circle
from unpose.cli.shared.inputs import ModelFile
from unpose.cli.shared.options import json_option
from unpose.cli.shared.output import check_picture, write_picture

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from unpose.audit import EquivarianceReport, NetworkReport
    from unpose.nn import Network


@click.command(
    epilog="""\b
    Examples:
      unpose audit mnist-c8                                a network of the package
      unpose audit model.safetensors --images scans/       on your own images
      unpose audit model.safetensors --group d4            is it invariant to mirrors, too?
      unpose audit model.safetensors --group se2           quarter turns, and 16 random rotations with shifts
      unpose audit model.safetensors -o audit.png          plot the error of every rotation and its floor
      unpose audit model.safetensors --json | jq .worst    for scripts
    """
)
@click.argument("checkpoint", type=ModelFile())
@click.option("--group", help="Transformations to test, such as c4, d4, c8 or se2; by default the network's own group.")
@click.option(
    "--images", type=click.Path(path_type=Path),
    help="A folder of images, a stack or a .npy file; by default smooth noise of the network's size.",
)  # fmt: skip
@click.option("--count", default=4, show_default=True, type=click.IntRange(2), help="Number of images to use.")
@click.option(
    "--seed", default=0, show_default=True, help="Seed of the noise, and of the elements of a continuous group."
)
@click.option(
    "--tolerance", default=1e-5, show_default=True, type=click.FloatRange(0, min_open=True),
    help="Largest relative error under a quarter turn or mirror that counts as rounding.",
)  # fmt: skip
@json_option
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a plot (PNG) to this file.")
@click.option("--force", is_flag=True, help="Replace an existing plot.")
def command(
    checkpoint: Path, group: str | None, images: Path | None, count: int, seed: int, tolerance: float, as_json: bool,
    out: Path | None, force: bool,
) -> None:  # fmt: skip
    """Measure how invariant a trained network is.

    CHECKPOINT is a file that `unpose train` wrote, or the name of a network that `unpose models` lists.

    For every element of a group, the network's output on transformed images is compared with its output on the images
    themselves. Quarter turns and mirrors only permute pixels, so a network that claims a group with them must not
    change at all. Other rotations need interpolation; for these the table also gives the floor: the change of the
    output when images are rotated and rotated back.

    The command prints a table, and with -o writes a plot. If the network is not invariant, a second table names the
    module that breaks the invariance.

    \b
    Exit status:
      0  every quarter turn and mirror of the group is within the tolerance, and different images give different
         outputs. A group may have no such element, which the output states ("decides": false).
      1  the network is not invariant, or its output is nearly constant
      2  the call is wrong, or a file cannot be read
    """
    from unpose.audit import audit_modules, equivariance_error
    from unpose.groups import parse

    if out is not None:
        check_picture(out, force)
    network = _load(checkpoint)
    description = network.description
    channels, (height, width) = description["in_channels"], description["image_size"]
    try:
        tried = parse(group or description["group"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--group") from error
    inputs = _inputs(images, count, seed, channels, (height, width))
    try:
        measured = equivariance_error(network, inputs, tried, random_state=seed)
        # A network with a nearly constant output fails too, but no module is to blame for that.
        broken = measured.worst_exact > tolerance
        modules = audit_modules(network, inputs, tried, tolerance=tolerance) if broken else None
    except ValueError as error:
        raise click.UsageError(f"{checkpoint} cannot be audited under {tried}: {error}") from error
    if out is not None:
        write_picture(out, _plot(network, inputs, measured, checkpoint.name, seed))
    if as_json:
        click.echo(json.dumps(_as_dictionary(measured, modules, checkpoint, tolerance), indent=2))
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
        return load_network(path).float()  # the inputs are float32
    except (ValueError, OSError) as error:
        raise click.BadParameter(str(error), param_hint="CHECKPOINT") from error


def _inputs(path: Path | None, count: int, seed: int, channels: int, shape: tuple[int, int]) -> "Tensor":
    """Evenly spaced images of those at ``path``, or smooth noise: (count, channels, h, w)."""
    from unpose.audit import smooth_noise

    if path is None:
        return smooth_noise(count, channels, shape, random_state=seed)
    import numpy as np

    from unpose.data import read_images
    from unpose.images import as_batch

    if channels not in (1, 3):
        raise click.BadParameter(
            f"the network takes {channels} channels, and images have 1 or 3; leave out --images to use noise",
            param_hint="--images",
        )
    try:
        found = read_images(path, size=max(shape), colour="grey" if channels == 1 else "rgb", min_images=1).images
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--images") from error
    chosen = np.unique(np.linspace(0, len(found) - 1, count).round().astype(int))
    return as_batch(found[chosen])


def _verdict(measured: "EquivarianceReport", tolerance: float) -> str:
    if measured.is_nearly_constant:
        return (
            f"No verdict: the outputs of different images differ by only {measured.discrimination:.1g} of their norm."
        )
    if not measured.decides:
        return "No verdict: no element of the group only permutes pixels."
    worst = measured.worst_exact
    if worst <= tolerance:
        return f"Invariant to every element of {measured.group} that only permutes pixels; largest error {worst:.1g}."
    return f"Not invariant to {measured.group}: errors up to {worst:.2g}, tolerance {tolerance:g}."


def _plot(network: "Network", inputs: "Tensor", measured: "EquivarianceReport", name: str, seed: int) -> "Image":
    """Plot the error of every rotation by 15 degrees and its floor, and the errors of the group's elements (log)."""
    import numpy as np

    from unpose.audit import equivariance_error
    from unpose.report import figures

    turns = equivariance_error(network, inputs, f"c{N_ANGLES}", random_state=seed)
    lines = {"network": full_circle(turns.errors), "interpolation alone": full_circle(turns.floors)}
    # Never closer than a tenth: on a finer scale rounding errors would look like a dependence on the angle.
    highest = max(0.1, 1.05 * max(np.nanmax(line, initial=0.0, where=np.isfinite(line)) for line in lines.values()))
    around = figures.curve(
        lines, title="Rotations by any angle", x=[STEP_DEGREES * step for step in range(N_ANGLES + 1)], x_step=45,
        x_label="rotation in degrees", y_label=f"relative change of the output, from 0 to {highest:.2g}",
        y_limits=(0.0, highest), size=(460, 280),
    )  # fmt: skip
    smallest = 1e-9  # zero is drawn here
    by_name = {
        "element": measured.errors,
        "floor": measured.floors,
        f"control: {measured.control}": np.full(len(measured.errors), measured.control_error),
    }
    by_element = figures.curve(
        {label: np.log10(np.clip(np.nan_to_num(line, posinf=1e9), smallest, None)) for label, line in by_name.items()},
        title=f"Elements of {measured.group}", x_label="element, as in the table", y_label="log10 of the error",
        size=(460, 280),
    )  # fmt: skip
    return figures.beside([around, by_element], title=f"Audit of {name}")


def _as_dictionary(
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
    """The value, or None (null in JSON) where it is not finite."""
    return float(value) if math.isfinite(value) else None
