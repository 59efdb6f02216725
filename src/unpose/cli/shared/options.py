"""Command line options that several commands share, and their parameter types."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from unpose.runs.settings import RunError, RunSettings, read_settings

_Command = TypeVar("_Command", bound=Callable[..., Any])

device_option = click.option(
    "--device", default="auto", show_default=True,
    help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
root_option = click.option(
    "--root", type=click.Path(path_type=Path), help="Folder of the data sets; downloads are saved there, too."
)


def check_features(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse files that can run code, and files that only a file of settings names, before any image is read."""
    if value is None or not (os.path.dirname(value) or os.path.splitext(value)[1]):
        return value
    from unpose.files import refuse_code

    try:
        refuse_code(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if ctx.get_parameter_source(str(param.name)) is ParameterSource.DEFAULT_MAP:
        raise click.BadParameter(
            f"the settings name {value!r}, and settings may come from a stranger; name the file yourself, with "
            "--features FILE on the command line"
        )
    return value


features_again_option = click.option(
    "--features", metavar="FILE", callback=check_features,
    help="The network that the images of the run were compared by, if it is not in the run: the same .onnx file, or "
         "the same run of unpose train; its checksum is compared.",
)  # fmt: skip
MOST_JOBS = 1024
"""Threads that can be asked for; systems refuse many more, and libraries then end the process."""
_LARGEST_SEED = 2**32 - 1
"""Of NumPy's older generators."""


class FiniteRange(click.FloatRange):
    """A number in a range, which NaN and infinity are not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class NumberOrAuto(click.ParamType):
    """A number of the given type, or the word auto."""

    def __init__(self, number: click.ParamType, name: str) -> None:
        self._number, self.name = number, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto":
            return value
        try:
            return self._number.convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message.rstrip('.')}; give a number or auto", param, ctx)


class ByteSize(click.ParamType):
    """A number of bytes such as 4GB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from unpose.files import in_bytes  # imports NumPy, which --help must not wait for

        try:
            size = in_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < 2**20:
            self.fail(f"must be at least 1MiB, got {value!r}", param, ctx)
        return size


def _read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Use the settings of a TOML file as defaults, so that flags take precedence and both are checked alike."""
    if path is not None:
        try:
            settings = read_settings(path)
        except RunError as error:
            raise click.BadParameter(str(error)) from error
        accepted = {option.name for option in ctx.command.params}
        ctx.default_map = {name: value for name, value in settings.items() if name in accepted}
    return path


def run_options(*, clusters: bool) -> Callable[[_Command], _Command]:
    """The options of the commands that make a run; ``clusters`` adds the number of clusters."""
    default = RunSettings()
    options: list[Callable[[Any], Any]] = [
        click.option("-o", "--out", required=True, type=click.Path(path_type=Path),
                     help="Run folder for the results; created if it does not exist."),
    ]  # fmt: skip
    if clusters:
        options += [
            click.option("-k", "--clusters", type=NumberOrAuto(click.IntRange(1), "K"), default="auto",
                         help="Number of groups; auto (the default) determines it."),
            click.option("--features", default=default.features, show_default=True, metavar="NETWORK",
                         callback=check_features,
                         help="What images are compared by: pixels; or also contour, the outlines of silhouettes; or "
                              "also statistics of texture and shape; or also the features of a network: "
                              "efficientnet-lite0 (with the extra unpose[features]), or the path of an .onnx file "
                              "or of a run of unpose train. learn first learns an encoder from the images, without "
                              "labels. auto takes the network of the extra if it is installed, and otherwise the "
                              "statistics where they tell kinds apart better than pixels."),
            click.option("--labels", default=default.labels, metavar="FILE",
                         help="CSV file with the columns path and class, the classes of some images; groups with such "
                              "images become the classes, and labels.csv gives their probabilities."),
        ]  # fmt: skip
    options += [
        click.option("--group", default=default.group, show_default=True,
                     help="Transformations that do not count as a difference, such as translation, so2 (rotations "
                          "about the centre), se2 (rotations and shifts), similarity (and scale), affine or "
                          "perspective; with +mirror also reflections, as in se2+mirror. auto finds group, angle and "
                          "scale from the images, as unpose discover does."),
        click.option("--max-angle", type=FiniteRange(0, 180), default=default.max_angle, show_default=True,
                     metavar="DEG", help="Largest rotation in either direction, in degrees."),
        click.option("--max-shift", type=NumberOrAuto(FiniteRange(0), "PX"), default="auto",
                     help="Largest shift in pixels of the canvas; a quarter of its longer side by default."),
        click.option("--max-scale", type=FiniteRange(1), default=default.max_scale, show_default=True,
                     metavar="F", help="Largest change of size, as a factor; for groups that include scale."),
        click.option("--light", type=click.Choice(["ignore", "local", "keep", *(["auto"] if clusters else [])]),
                     default=default.light, show_default=True,
                     help="Whether to ignore differences in brightness, contrast and a sloping background; local also "
                          "ignores shadows and reflections, which change the contrast inside the image"
                          + ("; auto chooses between ignore and local." if clusters else ".")),
        click.option("--mask", type=click.Choice(["none", "disc"]), default=default.mask, show_default=True,
                     help="Pixels that are compared: all, or those in the largest disc, if the corners show something "
                          "else."),
        click.option("--size", type=NumberOrAuto(click.IntRange(8, 4096), "PX"), default="auto",
                     help="Longer side of the canvas that all images are scaled to; by default the median size of the "
                          "images, at most 128."),
        click.option("--crop", type=FiniteRange(0), default=default.crop, show_default=True, metavar="F",
                     help="Cut this much off every side of the canvas, such as a rim: a share of its shorter side "
                          "below 0.5, such as 0.15, or pixels."),
        click.option("--seed", type=click.IntRange(0, _LARGEST_SEED), default=default.seed, show_default=True,
                     help="Random seed; the same seed gives the same files."),
        click.option("--jobs", type=NumberOrAuto(click.IntRange(1, MOST_JOBS), "N"), default="auto",
                     help="Number of threads; all cores by default. Results do not depend on it."),
        click.option("--memory", type=NumberOrAuto(ByteSize(), "SIZE"), default="auto",
                     help="Memory budget, such as 5GB; a run that needs more is refused before it starts. By default "
                          "four fifths of the memory that is free."),
        device_option,
        click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), is_eager=True,
                     callback=_read_config, expose_value=False,
                     help="Read settings from a TOML file, such as the config.toml of a run; flags take precedence."),
        click.option("--resume", is_flag=True, help="Only continue a run that was stopped; never begin a new one."),
        click.option("--force", is_flag=True, help="Replace the run in the folder."),
        click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON."),
    ]  # fmt: skip

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
