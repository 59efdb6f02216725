"""The settings of a run as a typed value, and the ``config.toml`` that a run folder keeps them in."""

import dis
import hashlib
import json
import math
import os
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tomli_w

__all__ = ["RunConfig", "RunError", "RunSettings", "is_users_mistake", "read_settings"]

_ABOUT_TABLE = "made"
_LARGEST_FILE = 2**24
_HEADER = (
    "# Pass this file to --config to repeat the run; flags on the command line take precedence.\n"
    "# Angles are in degrees, shifts in pixels of the canvas.\n"
)


class RunError(ValueError):
    """A run folder that cannot be read, or that a new run must not write to; the message says what to do."""


def is_users_mistake(error: Exception) -> bool:
    """Whether an error says that the call or the input is wrong, rather than that this package has a fault.

    The user's mistakes are the ``ValueError`` that this package raises on purpose: those of its own classes, and plain
    ones that come from a ``raise`` statement in its sources, whose message says what must hold. Text that cannot be
    decoded is the user's, too. Every other error is a fault: a ``ValueError`` of NumPy, of torch or of an operation in
    our own line, such as an unpacking that fails, means that a check is missing, and other classes are never raised
    to speak to the user.

    >>> is_users_mistake(RunError("the folder holds a finished run")), is_users_mistake(TypeError("no number"))
    (True, False)
    """
    if not isinstance(error, ValueError):
        return False
    if type(error).__module__.partition(".")[0] == "unpose" or isinstance(error, UnicodeError | json.JSONDecodeError):
        return True
    if (raised := error.__traceback__) is None:
        return False
    while raised.tb_next is not None:
        raised = raised.tb_next
    frame = raised.tb_frame
    is_ours = frame.f_globals.get("__name__", "").partition(".")[0] == "unpose"
    return is_ours and dis.opname[frame.f_code.co_code[raised.tb_lasti]] == "RAISE_VARARGS"


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run: those that decide the results, and how much of the machine it may use.

    The names are those of the command line flags, so angles are in degrees here. ``"auto"`` stands for a value that is
    chosen from the images or from the machine.

    Parameters
    ----------
    clusters : int or "auto", default "auto"
        Number of clusters. A run of ``unpose align`` ignores it.
    group : str, default "se2"
        Continuous group of the poses, such as ``"similarity"`` or ``"se2+mirror"``.
    max_angle : float, default 180.0
        Largest rotation in either direction, in degrees.
    max_shift : float or "auto", default "auto"
        Largest shift, in pixels of the canvas.
    max_scale : float, default 1.5
        Largest change of size, as a factor.
    features : str, default "auto"
        What images are compared by: "pixels", "statistics", the name of a network or the path of its file, beside
        pixels. "auto" is chosen by :class:`unpose.InvariantClustering`. A run of ``unpose align`` ignores it.
    labels : str, default ""
        Path of a CSV file with the classes of some images. A run of ``unpose align`` ignores it.
    light : {"ignore", "local", "keep", "auto"}, default "ignore"
        Whether brightness, contrast and a sloping background are removed before images are compared; "local" also
        removes contrast that varies inside the image, "auto" chooses between "ignore" and "local".
    mask : {"none", "disc"}, default "none"
        Pixels that are compared: all, or those in the largest disc.
    size : int or "auto", default "auto"
        Longer side of the canvas, in pixels.
    crop : float, default 0
        What is cut off at every side of the canvas: pixels, or below 0.5 a share of its shorter side.
    seed : int, default 0
        Seed of every random choice.
    jobs : int or "auto", default "auto"
        Number of threads; does not change the results.
    memory : int or "auto", default "auto"
        Memory budget in bytes, by default four fifths of the memory that is free; does not change the results, except
        that files which need more are left out and listed.
    device : str, default "auto"
        Device that torch computes on, such as ``"cpu"`` or ``"cuda:1"``.

    Examples
    --------
    >>> settings = RunSettings(clusters=3, max_angle=20.0)
    >>> settings.group, settings.max_angle
    ('se2', 20.0)
    """

    clusters: int | str = "auto"
    group: str = "se2"
    max_angle: float = 180.0
    max_shift: float | str = "auto"
    max_scale: float = 1.5
    features: str = "auto"
    labels: str = ""
    light: str = "ignore"
    mask: str = "none"
    size: int | str = "auto"
    crop: float = 0
    seed: int = 0
    jobs: int | str = "auto"
    memory: int | str = "auto"
    device: str = "auto"

    def decisive(self) -> dict[str, Any]:
        """The settings that change the results: all but the number of threads and the memory budget."""
        return {name: value for name, value in asdict(self).items() if name not in ("jobs", "memory")}

    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each file that the settings name, which decides the results as the settings do.

        >>> RunSettings(features="pixels").checksums()
        {}
        """
        named = {"labels": self.labels, "features": self.features}
        if os.path.isdir(self.features):  # a run of `unpose train`
            named["features"] = os.path.join(self.features, "model.safetensors")
        found = {}
        for name, path in named.items():
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        return found

    def search_parameters(self) -> dict[str, Any]:
        """The settings of the pose search as the library takes them: angles in radians, None for ``auto``."""
        return {
            "group": self.group, "max_angle": math.radians(self.max_angle), "max_scale": self.max_scale,
            "max_shift": None if self.max_shift == "auto" else float(self.max_shift), "light": self.light,
            "mask": None if self.mask == "none" else self.mask,
        }  # fmt: skip

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}


@dataclass(frozen=True)
class RunConfig:
    """The contents of a run's ``config.toml``."""

    command: str  # that made the run, "cluster" or "align"
    settings: RunSettings
    about: dict[str, Any]  # facts that set nothing: version, input, canvas, fingerprint of the images, and others


def config_text(settings: RunSettings, about: dict[str, Any], omit: tuple[str, ...] = ()) -> str:
    """The text of a ``config.toml`` that repeats a run when it is passed to ``--config``."""
    table = {name.replace("_", "-"): value for name, value in asdict(settings).items() if name not in omit}
    return _HEADER + tomli_w.dumps(table | {_ABOUT_TABLE: about})


def read_config(path: Path) -> RunConfig | None:
    """The contents of a file that :func:`config_text` wrote; None for any other file, or where there is none.

    The file is part of a run folder, so a :class:`~unpose.files.FolderError` says if it is a link.
    """
    from unpose.files import Folder, FolderError

    try:
        with Folder(path.parent) as folder:
            table = tomllib.loads(folder.read(path.name, _LARGEST_FILE).decode())
        about = table.pop(_ABOUT_TABLE)
        settings = RunSettings(**_checked(table, path))
    except FolderError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(about, dict) or not {"version", "input", "canvas"} <= about.keys():
        return None
    return RunConfig("cluster" if "clusters" in table else "align", settings, about)


def read_settings(path: Path) -> dict[str, Any]:
    """Read settings from a TOML file, such as the ``config.toml`` of a run, by the names of :class:`RunSettings`.

    The keys of the file are the names of flags, such as ``max-angle``; it need not give all settings. A
    :class:`RunError` says if it is not TOML or has entries that are no settings.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "my.toml"
    ...     _ = file.write_text("max-angle = 20.0")
    ...     read_settings(file)
    {'max_angle': 20.0}
    """
    from unpose.files import read_text

    try:
        table = tomllib.loads(read_text(path))
    except ValueError as error:
        raise RunError(f"{path} is not a TOML file: {error}") from error
    table.pop(_ABOUT_TABLE, None)
    return _checked(table, path)


def _checked(table: dict[str, Any], path: Path) -> dict[str, Any]:
    """The settings of a TOML table by their names in Python, each of its type."""
    known = {field.name.replace("_", "-"): field for field in fields(RunSettings)}
    if unknown := [name for name in table if name not in known]:
        raise RunError(f"{path} has the unknown settings {', '.join(unknown)}; known are {', '.join(known)}")
    for name, value in table.items():
        kinds = get_args(kind := get_type_hints(RunSettings)[known[name].name]) or (kind,)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (
            (str in kinds and isinstance(value, str))
            or (float in kinds and is_number)
            or (int in kinds and is_number and isinstance(value, int))
        ):
            words = {int: "a whole number", float: "a finite number", str: "text"}
            raise RunError(f"{name} in {path} must be {' or '.join(words[each] for each in kinds)}, got {value!r}")
    return {known[name].name: value for name, value in table.items()}
