"""A training run as one frozen, validated value, read from and written to TOML.

Tables (TOML files, notes inside saved networks) hold angles in degrees; the dataclasses hold radians.
"""

import dataclasses
import math
import numbers
import os
import tomllib
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from unpose.nn import NETWORKS

_RECIPES = Path(__file__).parent / "recipes"
_LARGEST_FILE = 2**20
_Table = TypeVar("_Table")


class RecipeError(ValueError):
    """An invalid recipe; the message names the entry."""


@dataclass(frozen=True)
class DataPart:
    """Which images to train on."""

    name: str = "digits"  # a data set that unpose.data.load knows, or a folder
    size: int | None = None  # longer side in pixels that images of a folder are resized to
    split_by: str | None = None  # images of one slide or patient stay together; see unpose.data.load


@dataclass(frozen=True)
class NetworkPart:
    """Which network to train; channels, classes and image size come from the data."""

    kind: str = "group_cnn"  # a name in unpose.nn.NETWORKS
    group: str = "c4"  # or "auto": the largest finite group that the training images and their labels obey
    # "he": linear weights with variance 2 / fan_in; "offsets": random query biases, so that attention is not uniform
    initialization: str = "default"
    begin: str | None = None  # file or name of a network to start from; it may have fewer rotations
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of the network's constructor

    def __post_init__(self) -> None:
        _one_of("network.kind", self.kind, NETWORKS)
        _one_of("network.initialization", self.initialization, ("default", "he", "offsets"))
        _check_options(NETWORKS[self.kind], self.options, "network.options")


@dataclass(frozen=True)
class OptimizerPart:
    """The optimizer and its learning-rate schedule."""

    name: str = "adamw"  # adam, adamw, sgd, muon
    learning_rate: float = 2e-3
    weight_decay: float = 0.01  # adamw, muon: decoupled, matrices only; adam, sgd: L2 penalty on all, as published
    momentum: float = 0.9  # sgd, muon
    share: float = 0.25  # muon: learning rate of parameters that are not matrices, relative to that of matrices
    schedule: str = "cosine"  # "constant" or "cosine" (decays to zero)
    warmup_epochs: float = 0.0  # linear warm-up from zero

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
    """Augmentation of the training images by random poses; the defaults leave images unchanged."""

    max_angle: float = 0.0  # radians either way, pi is the full circle; in degrees in tables
    max_shift: float = 0.0  # pixels either way
    max_scale: float = 1.0  # largest factor; the smallest is its inverse
    max_stretch: float = 1.0  # largest anisotropic stretch: the axis ratio of the ellipse that a circle becomes
    bend: float = 0.0  # smooth elastic deformation: standard deviation of the displacement in pixels
    mirror: bool = False

    def __post_init__(self) -> None:
        _within("poses.max_angle (in degrees)", _degrees(self.max_angle), 0.0, 180.0)
        _within("poses.max_shift", self.max_shift, 0.0, math.inf)
        _within("poses.max_scale", self.max_scale, 1.0, 16.0)
        _within("poses.max_stretch", self.max_stretch, 1.0, 16.0)
        _within("poses.bend", self.bend, 0.0, math.inf)
        object.__setattr__(self, "max_angle", math.radians(_degrees(self.max_angle)))

    @property
    def is_identity(self) -> bool:
        """Whether images are left unchanged."""
        return self == PosePart()


@dataclass(frozen=True)
class UnlabelledPart:
    """Learning without labels: two views of an image, or of an image and a neighbour, get similar vectors.

    The views are poses of the image (``[poses]``) with the changes of light below.
    """

    loss: str = "none"  # "vicreg", or "none" for a classifier of labelled images
    invariance: float = 25.0  # weight of the squared distance between the vectors of two views
    variance: float = 25.0  # weight of the hinge that keeps the deviation of every entry above one; 0 collapses
    covariance: float = 1.0  # weight of the squared covariances between different entries
    steps: int = 100  # of an epoch, whatever the number of images
    expander: int = 1024  # width of the three layers between encoder and loss, which are not kept
    neighbours: int = 4  # nearest images over the orbit of which the second view may be taken
    neighbour_share: float = 0.0  # share of the pairs whose second view is of a neighbour
    contrast: float = 1.0  # largest factor of the contrast with the background; the smallest is its inverse
    brightness: float = 0.0  # largest change of the level, where white is one
    noise: float = 0.0  # standard deviation of the noise of each pixel
    erase: float = 0.0  # probability that a rectangle of up to a quarter of the area becomes background

    def __post_init__(self) -> None:
        _one_of("unlabelled.loss", self.loss, ("none", "vicreg"))
        for name in ("invariance", "variance", "covariance", "brightness", "noise"):
            _within(f"unlabelled.{name}", getattr(self, name), 0.0, math.inf)
        _within("unlabelled.steps", self.steps, 1, 1_000_000)
        _within("unlabelled.expander", self.expander, 2, 65_536)
        _within("unlabelled.neighbours", self.neighbours, 1, 64)
        _within("unlabelled.neighbour_share", self.neighbour_share, 0.0, 1.0)
        _within("unlabelled.contrast", self.contrast, 1.0, 16.0)
        _within("unlabelled.erase", self.erase, 0.0, 1.0)


@dataclass(frozen=True)
class SymmetryPart:
    """How far symmetries hold is learned with the network; by default nothing of it is."""

    method: str = "none"  # "soft", "constrained" or "instance": see unpose.train.symmetry
    groups: list[str] = field(default_factory=lambda: ["so2"])  # candidates; one continuous group for "instance"
    strength: float = 0.01  # soft: strength of the penalties
    slack: float = 0.03  # constrained: by how much the loss at poses may exceed that of the images, in nats
    spread: float = 0.5  # instance: geometric mean of the ranges, as a share of the bounds
    max_angle: float = math.pi  # bounds of continuous groups: radians either way; in degrees in tables
    max_shift: float = 2.0  # pixels either way
    max_scale: float = 1.2  # largest factor; the smallest is its inverse

    def __post_init__(self) -> None:
        _one_of("symmetry.method", self.method, ("none", "soft", "constrained", "instance"))
        _within("symmetry.strength", self.strength, 0.0, math.inf, open_low=True)
        _within("symmetry.slack", self.slack, 0.0, math.inf, open_low=True)
        _within("symmetry.spread", self.spread, 0.0, 0.999, open_low=True)
        _within("symmetry.max_angle (in degrees)", _degrees(self.max_angle), 0.0, 180.0)
        _within("symmetry.max_shift", self.max_shift, 0.0, math.inf)
        _within("symmetry.max_scale", self.max_scale, 1.0, 16.0)
        if self.method == "instance" and len(self.groups) != 1:
            raise RecipeError(f"symmetry.groups must name one group for the method 'instance', got {self.groups}")
        object.__setattr__(self, "max_angle", math.radians(_degrees(self.max_angle)))


@dataclass(frozen=True)
class Recipe:
    """A training run: data, network, optimizer, augmentation and length.

    Parameters
    ----------
    title : str, default ""
        What the run is, for people.
    epochs : int, default 30
    batch_size : int, default 64
        Images of one process in one step.
    label_smoothing : float, default 0.0
    class_weights : {"none", "balanced"}, default "none"
        With ``"balanced"`` every class has the same total weight in the loss, however many images it has.
    average : float, default 0.0
        Decay of an exponential moving average of the weights; where positive, the average is validated and kept.
    keep : {"best", "last"}, default "best"
        Keep the epoch with the best validation accuracy, or the last one.
    mixed_precision : bool, default False
        Use bfloat16 autocast on CUDA. The CPU always computes in float32.
    seed : int, default 0
        Seed of weights, order, augmentation and dropout.
    data : DataPart, default DataPart()
    network : NetworkPart, default NetworkPart()
    optimizer : OptimizerPart, default OptimizerPart()
    poses : PosePart, default PosePart()
    symmetry : SymmetryPart, default SymmetryPart()
        Whether and how the network learns how far symmetries hold.
    unlabelled : UnlabelledPart, default UnlabelledPart()
        Whether and how an encoder is learnt without labels, by :func:`unpose.train.train_unlabelled`.

    Examples
    --------
    >>> Recipe(epochs=2, seed=3).network.kind
    'group_cnn'
    """

    title: str = ""
    epochs: int = 30
    batch_size: int = 64
    label_smoothing: float = 0.0
    class_weights: str = "none"
    average: float = 0.0
    keep: str = "best"
    mixed_precision: bool = False
    seed: int = 0
    data: DataPart = field(default_factory=DataPart)
    network: NetworkPart = field(default_factory=NetworkPart)
    optimizer: OptimizerPart = field(default_factory=OptimizerPart)
    poses: PosePart = field(default_factory=PosePart)
    symmetry: SymmetryPart = field(default_factory=SymmetryPart)
    unlabelled: UnlabelledPart = field(default_factory=UnlabelledPart)

    def __post_init__(self) -> None:
        _within("epochs", self.epochs, 1, 1_000_000)
        _within("batch_size", self.batch_size, 1, 1_000_000)
        _within("label_smoothing", self.label_smoothing, 0.0, 0.99)
        _within("average", self.average, 0.0, 0.999999)
        _one_of("keep", self.keep, ("best", "last"))
        _one_of("class_weights", self.class_weights, ("none", "balanced"))
        _within("seed", self.seed, 0, 2**63 - 1)
        if self.optimizer.warmup_epochs >= self.epochs:
            raise RecipeError(
                f"optimizer.warmup_epochs must be below epochs ({self.epochs}), got {self.optimizer.warmup_epochs:g}"
            )

    def is_mixed_on(self, device: str) -> bool:
        """Whether training on this type of device uses bfloat16 autocast."""
        return self.mixed_precision and device == "cuda"

    def changed(
        self, *, group: str | None = None, begin: str | None = None, size: int | None = None,
        split_by: str | None = None, **changes: Any,
    ) -> "Recipe":  # fmt: skip
        """Return a copy with another group, starting network, image size, split or top-level entries.

        None keeps an entry.
        """
        given = _without_none(changes)
        given["data"] = dataclasses.replace(
            given.get("data", self.data), **_without_none({"size": size, "split_by": split_by})
        )
        given["network"] = dataclasses.replace(self.network, **_without_none({"group": group, "begin": begin}))
        epochs = given.get("epochs", self.epochs)
        if 0 < epochs <= self.optimizer.warmup_epochs:  # a shortened run warms up for a tenth of its epochs
            given["optimizer"] = dataclasses.replace(self.optimizer, warmup_epochs=epochs / 10)
        return dataclasses.replace(self, **given)


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package.

    Returns
    -------
    list of str

    Examples
    --------
    >>> "digits" in recipe_names()
    True
    """
    return sorted(path.stem for path in _RECIPES.glob("*.toml"))


def named_recipe(name: str) -> Recipe:
    """Return a recipe that comes with the package.

    Parameters
    ----------
    name : str
        One of :func:`recipe_names`.

    Returns
    -------
    Recipe

    Examples
    --------
    >>> named_recipe("digits").network.group
    'c8'
    """
    if name not in recipe_names():
        raise RecipeError(f"unknown recipe {name!r}; known: {', '.join(recipe_names())}")
    return read_recipe(_RECIPES / f"{name}.toml")


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe from a TOML file.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    Recipe

    Raises
    ------
    RecipeError
        If the file is not TOML or an entry is unknown or out of range; the message names file and entry.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "recipe.toml"
    ...     _ = path.write_text("epochs = 5")
    ...     read_recipe(path).epochs
    5
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        if len(content) > _LARGEST_FILE:
            raise RecipeError(f"it has {len(content):,} bytes; a recipe has at most {_LARGEST_FILE:,}")
        return recipe_from(tomllib.loads(content.decode()))
    except (RecipeError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecipeError(f"{path} is not a recipe: {error}") from error


def recipe_from(table: dict[str, Any]) -> Recipe:
    """Build a recipe from nested dictionaries, such as parsed TOML; missing entries keep their defaults.

    Parameters
    ----------
    table : dict
        As in a TOML file; ``poses.max_angle`` is in degrees.

    Returns
    -------
    Recipe

    Examples
    --------
    >>> recipe_from({"epochs": 3, "poses": {"max_angle": 180}}).poses.max_angle
    3.141592653589793
    """
    return _build(Recipe, table, "")


def recipe_table(recipe: Recipe) -> dict[str, Any]:
    """Return the nested dictionaries that :func:`recipe_from` reads, without entries that are None."""
    table = _without_none(dataclasses.asdict(recipe))
    table["poses"]["max_angle"] = _degrees(recipe.poses.max_angle)
    table["symmetry"]["max_angle"] = _degrees(recipe.symmetry.max_angle)
    # Recipes that do not use these parts are written as before, so that their runs can be resumed.
    if recipe.symmetry == SymmetryPart():
        del table["symmetry"]
    if recipe.unlabelled == UnlabelledPart():
        del table["unlabelled"]
    return table


def _degrees(angle: float) -> float:
    """Radians to degrees, rounded so that degrees survive the round trip exactly; parts of a recipe round angles so."""
    return round(math.degrees(angle), 10)


def recipe_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML with every entry written out.

    Parameters
    ----------
    recipe : Recipe

    Returns
    -------
    str

    Examples
    --------
    >>> recipe_from(tomllib.loads(recipe_toml(Recipe(seed=3)))) == Recipe(seed=3)
    True
    """
    return tomli_w.dumps(recipe_table(recipe))


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in table.items()
        if value is not None
    }


def _build(kind: type[_Table], table: Any, where: str) -> _Table:
    """Build a dataclass from a table, checking each entry against its annotated type."""
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
        if is_dataclass(wanted):
            given[name] = _build(typing.cast(type, wanted), value, path)
        else:
            given[name] = _of_type(wanted, value, path)
    if kind in (PosePart, SymmetryPart) and "max_angle" in given:
        given["max_angle"] = math.radians(given["max_angle"])
    return kind(**given)


def _of_type(wanted: Any, value: Any, path: str) -> Any:
    """Return the value of an entry, whole numbers as floats where those are wanted; refuse other types."""
    if not _is_of_type(wanted, value):
        raise RecipeError(f"{path} must be of type {_type_name(wanted)}, got {value!r}")
    return float(value) if wanted is float else value


def _is_of_type(wanted: Any, value: Any) -> bool:
    """Whether a value has an annotated type; lists and tuples are the same, as TOML has lists only."""
    if isinstance(wanted, types.UnionType):
        return any(_is_of_type(option, value) for option in typing.get_args(wanted))
    plain = typing.get_origin(wanted) or wanted
    if plain in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(_is_of_type(typing.get_args(wanted)[0], each) for each in value)
    if plain in (int, float):
        number = numbers.Integral if plain is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    return plain is Any or isinstance(value, plain)


def _type_name(wanted: Any) -> str:
    """The name of a type as TOML has it: no None, no objects of Python."""
    if isinstance(wanted, types.UnionType):
        options = [each for each in typing.get_args(wanted) if each is not type(None) and not is_dataclass(each)]
        return " or ".join(map(_type_name, options))
    plain = typing.get_origin(wanted) or wanted
    if plain in (list, tuple, Sequence):
        return f"list of {_type_name(typing.get_args(wanted)[0])}"
    return getattr(plain, "__name__", str(plain))


def _check_options(function: Any, options: dict[str, Any], path: str) -> None:
    """Refuse values of the wrong type for parameters of a function; unknown names are left to those who call it."""
    for name, wanted in typing.get_type_hints(function).items():
        if name not in options:
            continue
        _of_type(wanted, options[name], f"{path}.{name}")
        for described in filter(is_dataclass, typing.get_args(wanted)):  # a table of its fields may stand for it
            if isinstance(options[name], dict):
                _check_options(described, options[name], f"{path}.{name}")


def _one_of(name: str, value: str, allowed: typing.Iterable[str]) -> None:
    if value not in allowed:
        raise RecipeError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _within(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if not low <= value <= high or not math.isfinite(value) or (open_low and value == low):
        lower = f"above {low:g}" if open_low else f"at least {low:g}"
        upper = "" if math.isinf(high) else f" and at most {high:g}"
        raise RecipeError(f"{name} must be {lower}{upper}, got {value}")
