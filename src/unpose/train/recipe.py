"""What a training run is, as one typed value: in and out of TOML, with the published and the modern recipes."""

import dataclasses
import math
import tomllib
import types
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from unpose.nn import NETWORKS

_RECIPES = Path(__file__).parent / "recipes"
_LARGEST_FILE = 2**20
_Table = TypeVar("_Table")


class RecipeError(ValueError):
    """A recipe that cannot be meant; the message names the entry."""


@dataclass(frozen=True)
class DataPart:
    """Which images."""

    name: str = "digits"  # a name that unpose.data.load knows, or a folder
    size: int | None = None  # longer side in pixels, for a folder


@dataclass(frozen=True)
class NetworkPart:
    """Which network; channels, classes and image size come from the data."""

    kind: str = "group_cnn"  # a name in unpose.nn.NETWORKS
    group: str = "c4"
    # "he": every linear map drawn with variance 2 / inputs; "offsets": attention looks at random places from the start
    initialization: str = "default"
    begin: str | None = None  # a network whose weights it begins with, of any number of turns: its file, or its name
    options: dict[str, Any] = field(default_factory=dict)  # the network's own arguments

    def __post_init__(self) -> None:
        _one_of("network.kind", self.kind, NETWORKS)
        _one_of("network.initialization", self.initialization, ("default", "he", "offsets"))


@dataclass(frozen=True)
class OptimizerPart:
    """How weights move."""

    name: str = "adamw"  # adam, adamw, sgd, muon
    learning_rate: float = 2e-3
    weight_decay: float = 0.01  # adamw, muon: matrices only; adam and sgd: added to every gradient, as published
    momentum: float = 0.9  # sgd, muon
    share: float = 0.25  # muon: the learning rate of what is no matrix, as a share of that of matrices
    schedule: str = "cosine"  # "constant", or "cosine" down to zero
    warmup_epochs: float = 0.0  # linear, from zero

    def __post_init__(self) -> None:
        _one_of("optimizer.name", self.name, ("adam", "adamw", "sgd", "muon"))
        _one_of("optimizer.schedule", self.schedule, ("constant", "cosine"))
        _within("optimizer.learning_rate", self.learning_rate, 0.0, math.inf, open_low=True)
        _within("optimizer.weight_decay", self.weight_decay, 0.0, math.inf)
        _within("optimizer.momentum", self.momentum, 0.0, 1.0)
        _within("optimizer.share", self.share, 0.0, math.inf)
        _within("optimizer.warmup_epochs", self.warmup_epochs, 0.0, math.inf)


@dataclass(frozen=True)
class PosePart:
    """Random poses of the training images; by default none."""

    max_angle: float = 0.0  # degrees either way; 180 is the circle
    max_shift: float = 0.0  # pixels either way
    max_scale: float = 1.0  # largest factor; the smallest is its inverse
    max_stretch: float = 1.0  # largest ratio of the longer to the shorter axis of what was a circle
    bend: float = 0.0  # pixels that the image is bent by, smoothly: the deviation of each coordinate
    mirror: bool = False

    def __post_init__(self) -> None:
        _within("poses.max_angle", self.max_angle, 0.0, 180.0)
        _within("poses.max_shift", self.max_shift, 0.0, math.inf)
        _within("poses.max_scale", self.max_scale, 1.0, 16.0)
        _within("poses.max_stretch", self.max_stretch, 1.0, 16.0)
        _within("poses.bend", self.bend, 0.0, math.inf)

    @property
    def still(self) -> bool:
        """Whether images are left as they are."""
        return self == PosePart()


@dataclass(frozen=True)
class Recipe:
    """A training run."""

    title: str = ""
    epochs: int = 30
    batch_size: int = 64  # images of one process in one step
    label_smoothing: float = 0.0
    average: float = 0.0  # decay of the moving average of the weights that is validated and kept; 0 for none
    keep: str = "best"  # the epoch that validates best, or "last": few images choose by chance
    mixed_precision: bool = False  # bfloat16 on CUDA; float32 on the CPU either way
    seed: int = 0
    data: DataPart = field(default_factory=DataPart)
    network: NetworkPart = field(default_factory=NetworkPart)
    optimizer: OptimizerPart = field(default_factory=OptimizerPart)
    poses: PosePart = field(default_factory=PosePart)

    def __post_init__(self) -> None:
        _within("epochs", self.epochs, 1, 1_000_000)
        _within("batch_size", self.batch_size, 1, 1_000_000)
        _within("label_smoothing", self.label_smoothing, 0.0, 0.99)
        _within("average", self.average, 0.0, 0.999999)
        _one_of("keep", self.keep, ("best", "last"))
        _within("seed", self.seed, 0, 2**63 - 1)
        if self.optimizer.warmup_epochs >= self.epochs:
            raise RecipeError(
                f"optimizer.warmup_epochs must be below epochs ({self.epochs}), got {self.optimizer.warmup_epochs:g}"
            )

    def is_mixed_on(self, device: str) -> bool:
        """Whether products are in bfloat16 on a device of this type."""
        return self.mixed_precision and device == "cuda"

    def changed(self, *, group: str | None = None, begin: str | None = None, **changes: Any) -> "Recipe":
        """The recipe with another group or beginning and other entries of its first level; None leaves one as it is."""
        given = _without_none(changes)
        given["network"] = dataclasses.replace(self.network, **_without_none({"group": group, "begin": begin}))
        epochs = given.get("epochs", self.epochs)
        if 0 < epochs <= self.optimizer.warmup_epochs:  # a short trial of a long recipe warms up for a tenth of it
            given["optimizer"] = dataclasses.replace(self.optimizer, warmup_epochs=epochs / 10)
        return dataclasses.replace(self, **given)


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in _RECIPES.glob("*.toml"))


def named_recipe(name: str) -> Recipe:
    """A recipe of the package."""
    if name not in recipe_names():
        raise RecipeError(f"unknown recipe {name!r}; known: {', '.join(recipe_names())}")
    return read_recipe(_RECIPES / f"{name}.toml")


def read_recipe(path: Path) -> Recipe:
    """The recipe in a TOML file."""
    try:
        content = path.read_bytes()
        if len(content) > _LARGEST_FILE:
            raise RecipeError(f"it has {len(content):,} bytes; a recipe is a page")
        return recipe_from(tomllib.loads(content.decode()))
    except (RecipeError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecipeError(f"{path} is not a recipe: {error}") from error


def recipe_from(table: dict[str, Any]) -> Recipe:
    """The recipe that nested dictionaries describe; entries that are not named keep their defaults."""
    return _build(Recipe, table, "")


def recipe_table(recipe: Recipe) -> dict[str, Any]:
    """The way back: nested dictionaries of plain values, without entries that are None."""
    return _without_none(dataclasses.asdict(recipe))


def recipe_toml(recipe: Recipe) -> str:
    """The recipe as TOML, every entry written out.

    Examples
    --------
    >>> recipe_from(tomllib.loads(recipe_toml(Recipe(seed=3)))) == Recipe(seed=3)
    True
    """
    return "\n".join(_written(recipe_table(recipe), "")) + "\n"


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in table.items()
        if value is not None
    }


def _written(table: dict[str, Any], where: str) -> list[str]:
    lines = [f"{_key(name)} = {_value(value)}" for name, value in table.items() if not isinstance(value, dict)]
    for name, inside in table.items():
        if isinstance(inside, dict):
            path = f"{where}.{_key(name)}" if where else _key(name)
            lines += ["", f"[{path}]", *_written(inside, path)]
    return lines


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return repr(value)
    if isinstance(value, float):
        return repr(float(value))  # NumPy's are floats too, and write themselves otherwise
    if isinstance(value, str):
        escaped = "".join(
            f"\\u{ord(letter):04x}" if ord(letter) < 32 or ord(letter) == 127 else letter
            for letter in value.replace("\\", "\\\\").replace('"', '\\"')
        )
        return f'"{escaped}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(part) for part in value)}]"
    raise RecipeError(f"a recipe holds texts, numbers and lists, got {value!r}")


def _build(kind: type[_Table], table: Any, where: str) -> _Table:
    """A dataclass from a table, each entry checked against its type."""
    if not isinstance(table, dict):
        raise RecipeError(f"{where or 'a recipe'} must be a table, got {table!r}")
    hints = typing.get_type_hints(kind)
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for name, value in table.items():
        path = f"{where}.{name}" if where else name
        if name not in known:
            raise RecipeError(f"unknown entry {path!r}; known here: {', '.join(sorted(known))}")
        wanted = hints[name]
        if dataclasses.is_dataclass(wanted):
            given[name] = _build(typing.cast(type, wanted), value, path)
        else:
            given[name] = _of_type(wanted, value, path)
    return kind(**given)


def _of_type(wanted: Any, value: Any, path: str) -> Any:
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    for option in options:
        plain = typing.get_origin(option) or option
        if plain is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, plain) and not (isinstance(value, bool) and plain is not bool):
            return value
    names = " or ".join(getattr(typing.get_origin(o) or o, "__name__", str(o)) for o in options if o is not type(None))
    raise RecipeError(f"{path} must be of type {names}, got {value!r}")


def _one_of(name: str, value: str, allowed: typing.Iterable[str]) -> None:
    if value not in allowed:
        raise RecipeError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _within(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if not low <= value <= high or not math.isfinite(value) or (open_low and value == low):
        lower = f"above {low:g}" if open_low else f"at least {low:g}"
        upper = "" if math.isinf(high) else f" and at most {high:g}"
        raise RecipeError(f"{name} must be {lower}{upper}, got {value}")
