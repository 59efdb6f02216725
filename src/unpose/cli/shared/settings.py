"""The settings of a run: the same names as flags, in a TOML file that one can give, and in the one a run writes."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
_ABOUT = "made"
"""The table of a run's config.toml that tells about the run and sets nothing."""


@dataclass(frozen=True)
class Settings:
    """What decides the results, and with how much of the machine they are made."""

    clusters: int | str = "auto"
    group: str = "se2"
    max_angle: float = 180.0  # degrees
    max_shift: float | str = "auto"  # pixels of the canvas
    max_scale: float = 1.5
    light: str = "ignore"
    size: int | str = "auto"  # longer side of the canvas
    seed: int = 0
    jobs: int | str = "auto"
    memory: int = 4 * 10**9  # bytes
    device: str = "auto"

    def decisive(self) -> dict[str, Any]:
        """Those that change results: not how many threads and bytes are used."""
        return {name: value for name, value in asdict(self).items() if name not in ("jobs", "memory")}


@dataclass(frozen=True)
class Made:
    """What the config.toml of a run says."""

    kind: str  # the command that made it
    settings: Settings
    about: dict[str, Any]


class _NumberOrAuto(click.ParamType):
    def __init__(self, kind: click.ParamType, name: str) -> None:
        self._kind, self.name = kind, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto":
            return value
        try:
            return self._kind.convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message.rstrip('.')}; a number or auto is needed", param, ctx)


class _Bytes(click.ParamType):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from unpose.files.byte_sizes import in_bytes  # torch comes with it, which --help must not wait for

        try:
            size = in_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < 2**20:
            self.fail(f"must be at least 1MiB, got {value!r}", param, ctx)
        return size


def _read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Take what a TOML file says as defaults, so that flags win and are checked alike."""
    if path is None:
        return None
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from error
    given.pop(_ABOUT, None)
    known = {field.name.replace("_", "-"): field.name for field in fields(Settings)}
    taken = {option.name for option in ctx.command.params}
    if unknown := [name for name in given if name not in known]:
        raise click.BadParameter(f"{path} sets {', '.join(unknown)}; known are {', '.join(known)}")
    ctx.default_map = {known[name]: value for name, value in given.items() if known[name] in taken}
    return path


def run_options(*, clusters: bool) -> Callable[[_Command], _Command]:
    """The options that `cluster` and `align` share, and the number of clusters where it is wanted."""
    default = Settings()
    options: list[Callable[[Any], Any]] = []
    if clusters:
        options.append(
            click.option("-k", "--clusters", type=_NumberOrAuto(click.IntRange(1), "K"), default="auto",
                         help="How many groups; auto (the default) finds the number.")
        )  # fmt: skip
    options += [
        click.option("--group", default=default.group, show_default=True,
                     help="What counts as pose: translation, se2 (turns and shifts), similarity (and scale), affine, "
                          "perspective; each also as se2+mirror and so on."),
        click.option("--max-angle", type=click.FloatRange(0, 180), default=default.max_angle, show_default=True,
                     metavar="DEG", help="Largest turn either way, in degrees."),
        click.option("--max-shift", type=_NumberOrAuto(click.FloatRange(0), "PX"), default="auto",
                     help="Largest shift in pixels of the canvas; a quarter of its longer side by default."),
        click.option("--max-scale", type=click.FloatRange(1), default=default.max_scale, show_default=True,
                     metavar="F", help="Largest change of size, as a factor; for groups that scale."),
        click.option("--light", type=click.Choice(["ignore", "keep"]), default=default.light, show_default=True,
                     help="Whether brightness, contrast and a sloping background are taken away."),
        click.option("--size", type=_NumberOrAuto(click.IntRange(8, 4096), "PX"), default="auto",
                     help="Longer side of the canvas all images are brought to; by default the median, at most 128."),
        click.option("--seed", type=click.IntRange(0), default=default.seed, show_default=True,
                     help="The same seed gives the same files."),
        click.option("--jobs", type=_NumberOrAuto(click.IntRange(1), "N"), default="auto",
                     help="Threads; all cores by default. Results do not depend on it."),
        click.option("--memory", type=_Bytes(), default="4GB", show_default=True,
                     help="What may be used; what needs more is refused beforehand."),
        click.option("--device", default=default.device, show_default=True, help="cpu, cuda, cuda:1, ..."),
        click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), is_eager=True,
                     callback=_read_config, expose_value=False,
                     help="Settings from a TOML file, such as a run's config.toml; flags win."),
        click.option("--resume", is_flag=True, help="Only go on with a run that was stopped; never begin one."),
        click.option("--force", is_flag=True, help="Replace the run in the folder."),
        click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON on stdout."),
    ]  # fmt: skip

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def on_device(settings: Settings) -> Settings:
    """With the device that ``auto`` means here, and torch told how many threads it may use."""
    import torch

    from unpose.cli.shared.networks import pick_device

    if settings.jobs != "auto":
        torch.set_num_threads(int(settings.jobs))
    return replace(settings, device=str(pick_device(settings.device)))


def given(value: Any) -> Any:
    """None for ``auto``, as the library wants it."""
    return None if value == "auto" else value


def as_toml(settings: Settings, about: dict[str, Any], leave_out: tuple[str, ...] = ()) -> str:
    """A file that gives the same results when it is fed back with ``--config``."""
    lines = ["# Give this file back with --config; flags win over it. Angles are degrees, shifts pixels of the canvas."]
    lines += [f"{name.replace('_', '-')} = {_value(value)}" for name, value in asdict(settings).items()
              if name not in leave_out]  # fmt: skip
    lines += ["", f"[{_ABOUT}]", *(f"{name} = {_value(value)}" for name, value in about.items())]
    return "\n".join(lines) + "\n"


def read_toml(path: Path) -> Made | None:
    """What :func:`as_toml` wrote into a file; None for a file that it did not write."""
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
        about = said.pop(_ABOUT)
        settings = Settings(**{name.replace("-", "_"): value for name, value in said.items()})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(about, dict) or not {"version", "input", "canvas"} <= about.keys():
        return None
    return Made("cluster" if "clusters" in said else "align", settings, about)


def _value(value: Any) -> str:
    # JSON's strings, of which DEL is the one character TOML wants escaped besides, and numbers are TOML's. Letters stay
    # as they are: JSON escapes those beyond 16 bits as two halves, which TOML does not know.
    return json.dumps(value, allow_nan=False, ensure_ascii=False).replace("\x7f", "\\u007f")
