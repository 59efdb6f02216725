"""Tables 1 and 2 of Group Equivariant Stand-Alone Self-Attention For Vision: every cell as a training run.

A cell is a row of a table. It is trained with the settings of the paper (appendix F) or by our own recipe, changed in
the group, the window or the kind of layer that the cell names.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unpose.reproduce.items import Outcome, Settings

if TYPE_CHECKING:
    from unpose.data import Dataset
    from unpose.train import Recipe

_PUBLISHED = {"rotated-mnist": "rotmnist-r4", "cifar-10": "cifar10-m", "patch-camelyon": "pcam-r4"}
_RECIPES, _UNTRAINED = Path(__file__).parent / "recipes", ("cifar10-m", "pcam-r4")
"""Published settings that were never trained to the end; ``unpose train`` does not offer them."""
_OURS = {"rotated-mnist": "rotmnist-attention", "cifar-10": "cifar10-modern", "patch-camelyon": "pcam-modern"}
"""Recipes of the three data sets. Ours for the second and third train another network, ``swivel_net``."""
_CNN_RECIPES = {"rotated-mnist": "rotmnist-modern", "cifar-10": "cifar10-modern", "patch-camelyon": "pcam-modern"}
_NOT_HERE = "attentive group convolution (Romero et al., 2020) is another method, whose rows the paper quotes"
_GPU_RATES = {"c1": 3630, "c4": 2280, "c8": 1235, "c12": 702, "c16": 464}
"""Images per second of rotated MNIST with the published settings (batch 8), measured on an H200."""
_PAPER_SUM_RATE = 755
"""The same for c4 with the paper's sum over all queries."""
_FULL_RATE, _SINGLE_PRECISION = 10_430, 0.4
"""Images per second of c4 at batch 64, when the GPU is full, and the share of it that float32 reaches."""
_TRAINING_IMAGES = {"rotated-mnist": 10_000, "cifar-10": 45_000, "patch-camelyon": 262_144}
_SIZES = {"rotated-mnist": 28, "cifar-10": 32, "patch-camelyon": 96}
_SMALL_WORK = 4e10
"""Multiply-adds of attention in a small run, forward passes: about a minute on two cores."""


@dataclass(frozen=True)
class Cell:
    """A row of table 1 or 2: what is trained on what, and the figures that the paper prints."""

    data: str
    group: str
    accuracy: float  # as printed, in per cent
    parameters: str  # as printed
    window: int | None = 5
    is_cnn: bool = False
    absent: str = ""  # the reason why there is no such run

    def recipe(self, settings: str, mode: str) -> "Recipe":
        """Return the recipe of the cell: ``settings`` is "published" or "ours", ``mode`` that of the layers."""
        if self.is_cnn:
            recipe = _named(_CNN_RECIPES[self.data])
            count = float(self.parameters[:-1]) * {"K": 1e3, "M": 1e6}[self.parameters[-1]]
            options: dict[str, Any] = {"parameters": round(count), "kernel_size": 3}
            return replace(recipe, network=replace(recipe.network, kind="group_cnn", group=self.group, options=options))
        recipe = _named((_PUBLISHED if settings == "published" else _OURS)[self.data]).changed(group=self.group)
        if recipe.network.kind != "gsa_net" or (self.window == 5 and mode == "relative"):
            return recipe
        return replace(recipe, network=replace(recipe.network, options={"config": self._config(recipe, mode)}))

    def _config(self, recipe: "Recipe", mode: str) -> dict[str, Any]:
        from dataclasses import asdict

        from unpose.nn import GSA_NET_CONFIGS

        config = recipe.network.options["config"]
        config = asdict(GSA_NET_CONFIGS[config]) if isinstance(config, str) else dict(config)
        stages = [list(stage) for stage in config["stages"]]
        return config | {"mode": mode, "window": self.window or 0, "stages": stages}  # 0: TOML has no null


def _named(name: str) -> "Recipe":
    from unpose.train import named_recipe, read_recipe

    return read_recipe(_RECIPES / f"{name}.toml") if name in _UNTRAINED else named_recipe(name)


_ROTATED = [("z2", "c1", 96.37), ("r4", "c4", 97.46), ("r8", "c8", 97.90), ("r12", "c12", 97.97), ("r16", "c16", 97.66)]
_PATCHES = [("z2", "c1", 83.04), ("r4", "c4", 83.44), ("r8", "c8", 83.58), ("r4m", "d4", 84.76)]
_WINDOWS = {3: 96.56, 5: 97.49, 7: 97.33, 9: 97.42, 11: 97.17, 15: 96.89, 19: 96.86, 23: 97.05, 28: 96.81}

TABLE1: dict[str, Cell] = {
    f"r4-{size}x{size}": Cell("rotated-mnist", "c4", accuracy, "44.67K", window=None if size == 28 else size)
    for size, accuracy in _WINDOWS.items()
}
"""Accuracy against neighbourhood size, four rotations; 28 x 28 is global attention."""

TABLE2: dict[str, Cell] = {
    **{f"rotmnist-{name}": Cell("rotated-mnist", group, accuracy, "44.67K") for name, group, accuracy in _ROTATED},
    "rotmnist-z2-cnn": Cell("rotated-mnist", "c1", 94.97, "21.75K", is_cnn=True),
    "rotmnist-r4-cnn": Cell("rotated-mnist", "c4", 98.21, "77.54K", is_cnn=True),
    "rotmnist-alpha-r4-cnn": Cell("rotated-mnist", "c4", 98.31, "73.13K", is_cnn=True, absent=_NOT_HERE),
    "cifar10-z2": Cell("cifar-10", "c1", 82.3, "2.99M"),
    "cifar10-z2m": Cell("cifar-10", "d1", 83.72, "2.99M"),
    "cifar10-z2-cnn": Cell("cifar-10", "c1", 90.56, "1.37M", is_cnn=True),
    **{f"pcam-{name}": Cell("patch-camelyon", group, accuracy, "205.66K") for name, group, accuracy in _PATCHES},
    "pcam-z2-cnn": Cell("patch-camelyon", "c1", 84.07, "130.60K", is_cnn=True),
    "pcam-r4-cnn": Cell("patch-camelyon", "c4", 87.55, "129.65K", is_cnn=True),
    "pcam-r4m-cnn": Cell("patch-camelyon", "d4", 88.36, "124.21K", is_cnn=True),
    "pcam-alpha-r4-cnn": Cell("patch-camelyon", "c4", 88.66, "140.45K", is_cnn=True, absent=_NOT_HERE),
    "pcam-alpha-r4m-cnn": Cell("patch-camelyon", "d4", 89.12, "141.22K", is_cnn=True, absent=_NOT_HERE),
}
"""Classification results. M of the paper's Z2M is the mirror group, d1."""


def attention_work(recipe: "Recipe", size: int) -> float:
    """Count the multiply-adds of the attention of one image, forward: scores, position scores and weighted sums."""
    from unpose.groups import FiniteGroup, parse
    from unpose.nn import GSA_NET_CONFIGS, GSANetConfig

    if recipe.network.kind != "gsa_net":
        return 5e7  # convolutions are far cheaper than attention; their images are few anyway
    config = recipe.network.options["config"]
    config = GSA_NET_CONFIGS[config] if isinstance(config, str) else GSANetConfig(**config)
    group = parse(recipe.network.group)
    order = group.order if isinstance(group, FiniteGroup) else 1
    queries = order if config.mode != "relative" else 1

    def layer(keys: int, side: int, width: int, sums: int) -> float:
        window = min(config.window or 2 * side - 1, 2 * side - 1)
        neighbours = min(window, side) ** 2
        return 3.0 * sums * order * keys * side**2 * neighbours * config.heads * (width // 2)

    total, side = layer(1, size, config.lifted, 1), size
    for stage in config.stages:
        total += sum(layer(order, side, width, queries) for width in stage)
        side = (side + 1) // 2
    return total


def gpu_hours(cell: Cell, settings: str, mode: str) -> float | None:
    """Estimate the hours of one run at the size of the paper on one H200; None for other networks than ``gsa_net``.

    The rates of the published batches of 8 rotated digits were measured; others follow from the number of
    multiply-adds, relative to the measured rate of the published network.
    """
    recipe = cell.recipe(settings, mode)
    if recipe.network.kind != "gsa_net":
        return None
    reference = attention_work(TABLE2["rotmnist-r4"].recipe("published", "relative"), 28)
    rate = _FULL_RATE * reference / attention_work(recipe, _SIZES[cell.data])
    if not recipe.mixed_precision:
        rate *= _SINGLE_PRECISION
    if recipe.batch_size <= 8:
        rate = min(rate, _GPU_RATES.get(cell.group, _GPU_RATES["c4"]))
        rate = min(rate, _PAPER_SUM_RATE) if mode != "relative" else rate
    return _TRAINING_IMAGES[cell.data] * recipe.epochs / rate / 3600


def _hours(cell: Cell, settings: str, mode: str) -> str:
    hours = gpu_hours(cell, settings, mode)
    return "not estimated" if hours is None else f"{hours:.2g}"


def train_cell(
    settings: Settings, cells: dict[str, Cell], *, cell: str, seeds: int, recipe: str, mode: str, device: str
) -> Outcome:
    """Train a cell for several seeds, small or at the size of the paper; "all" lists the cells and their cost."""
    if cell == "all":
        return _list_cells(cells, recipe, mode)
    chosen = cells[cell]
    if chosen.absent:
        row = {"cell": cell, "the paper, %": chosen.accuracy, "why there is no run": chosen.absent}
        return Outcome({"cells": {cell: row}}, [f"{cell}: {chosen.absent}."], table=[row])
    wanted = chosen.recipe(recipe, mode)
    data, said = _data(chosen, settings, wanted)
    if not settings.full:
        wanted = _small_recipe(wanted)
    results = []
    for seed in range(settings.seed, settings.seed + seeds):
        results.append(_train_seed(settings, cell, wanted, data, seed, f"{recipe}-{mode}", device))
    tested = [result["test_accuracy"] for result in results]
    row = {
        "cell": cell,
        "the paper, %": chosen.accuracy,
        f"here, {recipe} settings, %": " ".join(f"{100 * value:.2f}" for value in tested),
        "epochs": wanted.epochs,
        "training images": len(data.train),
        "parameters": results[0]["parameters"],
        "paper's parameters": chosen.parameters,
    }
    estimate = f"Hours of one run of --full on an H200: {_hours(chosen, recipe, mode)}."
    small = "This is the small run: few images of half the size and few epochs; its accuracy says nothing. "
    findings = [said, ("" if settings.full else small) + estimate, _DIFFERENCES]
    return Outcome({"cells": {cell: row | {"results": results}}, "data": data.name}, findings, table=[row])


_DIFFERENCES = (
    "The paper's figures are not from these images and settings alone: docs/benchmarks/group-attention.md lists every "
    "difference."
)


def _list_cells(cells: dict[str, Cell], recipe: str, mode: str) -> Outcome:
    rows = []
    for name, cell in cells.items():
        hours = "" if cell.absent else _hours(cell, recipe, mode)
        name_of_recipe = (_CNN_RECIPES if cell.is_cnn else _PUBLISHED if recipe == "published" else _OURS)[cell.data]
        rows.append(
            {
                "cell": name,
                "the paper, %": cell.accuracy,
                "its parameters": cell.parameters,
                "group": cell.group,
                "recipe": cell.absent or name_of_recipe,
                "H200 hours, estimated": hours,
            }
        )
    return Outcome({"cells": {row["cell"]: row for row in rows}}, ["Nothing was trained."], table=rows)


def _train_seed(
    settings: Settings, name: str, recipe: "Recipe", data: "Dataset", seed: int, about: str, device: str
) -> dict[str, Any]:
    """Train one seed, or read the result of a finished run in the folder of the results."""
    import json

    from unpose.files import read_file
    from unpose.nn import count_parameters
    from unpose.train import train

    folder = settings.folder / "runs" / f"{name}-{about}-seed{seed}" if settings.full else None
    if folder is not None:
        try:
            return json.loads(read_file(folder / "result.json", 2**20))
        except FileNotFoundError:
            pass  # not finished yet

    def report(progress: Any) -> None:
        settings.report(f"training, seed {seed}", progress.step, progress.steps, f"loss {progress.loss:.3f}")

    result = train(data, recipe.changed(seed=seed), folder, device=device, resume=folder is not None, progress=report)
    return {
        "seed": seed,
        "test_accuracy": result.test_accuracy,
        "validation_accuracy": result.validation_accuracy,
        "chosen_epoch": result.best_epoch,
        "parameters": count_parameters(result.network),
        "validation_by_epoch": [row["validation_accuracy"] for row in result.history],
    }


def _small_recipe(recipe: "Recipe") -> "Recipe":
    return replace(recipe.changed(epochs=2), batch_size=min(recipe.batch_size, 8), mixed_precision=False)


def _data(cell: Cell, settings: Settings, recipe: "Recipe") -> tuple["Dataset", str]:
    """Load the images of a cell; for a small run some of them, at half of their size where windows allow it."""
    import numpy as np

    from unpose.data import Dataset, MissingDataError, load

    if settings.full:
        data = load(cell.data)
        return data, f"Images: {data.name}, {data.source}."
    try:
        data = load(cell.data, download=False)
        note = f"Images: some of {data.name}."
    except MissingDataError:
        data, note = _stand_in(cell.data, settings.seed)
    side = _SIZES[cell.data]
    window = 5 if recipe.network.kind != "gsa_net" else cell.window or 1
    halves = window <= 5
    work = attention_work(recipe, side // 2 if halves else side)
    count = int(min(max(_SMALL_WORK / (3 * 2 * work), 16), 400, len(data.train)))
    parts = []
    for part, share in ((data.train, 1.0), (data.validation, 0.5), (data.test, 0.75)):
        chosen = part.take(np.arange(min(len(part), max(16, int(share * count)))))
        parts.append(replace(chosen, images=_halved(chosen.images)) if halves else chosen)
    return Dataset(data.name, data.source, data.classes, parts[0], parts[1], parts[2]), note


def _halved(images: Any) -> Any:
    """Average 2 x 2 pixels: (n, h, w, ...) -> (n, h // 2, w // 2, ...) in [0, 1]."""
    import numpy as np

    pixels = images.astype(np.float32) / (255 if images.dtype == np.uint8 else 1)
    height, width = (side // 2 * 2 for side in pixels.shape[1:3])
    pixels = pixels[:, :height, :width]
    return (pixels[:, ::2, ::2] + pixels[:, 1::2, ::2] + pixels[:, ::2, 1::2] + pixels[:, 1::2, 1::2]) / 4


def _stand_in(name: str, seed: int) -> tuple["Dataset", str]:
    """Make a small set in the format of one that is missing: rotated digits, or patches with a dark spot somewhere."""
    import numpy as np

    from unpose.data import Dataset, Split, load, posed

    if name == "rotated-mnist":
        digits = load("digits")
        padded = [
            Split(posed(np.pad(part.images, ((0, 0), (4, 4), (4, 4))), "se2", max_shift=0.0, random_state=seed).images,
                  part.labels)
            for part in (digits.train, digits.validation, digits.test)
        ]  # fmt: skip
        note = "MNIST is not here: scikit-learn's digits, rotated and padded to 28 pixels, stand in for it."
        return Dataset("digits, rotated", digits.source, digits.classes, padded[0], padded[1], padded[2]), note
    rng, side = np.random.default_rng(seed), _SIZES[name]
    splits = []
    for count in (400, 200, 300):
        labels = rng.integers(0, 2, count)
        images = 0.6 + 0.1 * rng.standard_normal((count, side, side, 3))
        grid = np.arange(side) - (side - 1) / 2
        for image, label in zip(images, labels, strict=True):
            at = rng.uniform(-side / 8, side / 8, 2) + (0 if label else np.array([side / 3, 0]))
            image -= 0.5 * np.exp(-((grid[:, None] - at[0]) ** 2 + (grid - at[1]) ** 2) / (side / 24) ** 2)[..., None]
        splits.append(Split(np.clip(images, 0, 1).astype(np.float32), labels))
    note = f"{name} is not here: made patches in its format stand in for it, with a dark spot in the centre or not."
    classes = ("normal", "tumour")
    made = f"made in the format of {name}"
    return Dataset(made, f"seed {seed}", classes, splits[0], splits[1], splits[2]), note
