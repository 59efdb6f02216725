"""Make a network that comes with the package from a finished run: its weights and its card, one file.

    UNPOSE_DATA=/path/to/arrays python benchmarks/ship.py RUN NAME --limit "one digit to an image" [--limit ...]
                                                                   [--turned 10000] [--device cuda]

RUN is a folder that `unpose train --recipe ...` ended in. Weights and classes are taken from its model.safetensors,
the rest of the card from its result.json, config.toml and log.csv and from what is measured here on the same test
images: right answers as they are, right answers turned (as `unpose evaluate` counts them, of 10,000 images unless
`--turned` says how many) and the audit. No number is typed. A run is refused that is not finished, whose recipe does
not come with the package, whose network fails the audit or does not give the result's accuracy again. At the end
docs/models.md is made anew from all files; `--pages` makes only that.
"""

import argparse
import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import torch
from unpose.cli.shared.angle_sweep import sweep_angles

import unpose
from unpose.audit import EquivarianceReport, equivariance_error
from unpose.data import Split, credit, load
from unpose.files import write_text
from unpose.images import as_batch, measure_light
from unpose.train import (
    accuracy,
    accuracy_by_angle,
    load_network,
    named_recipe,
    pretrained_file,
    pretrained_names,
    read_classes,
    read_recipe,
    recipe_names,
)
from unpose.train.cards import Card, card_markdown, describe, save_with_card
from unpose.train.pretrained import WEIGHTS
from unpose.train.recipe import recipe_table

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
AUDITED, TURNED = 32, 10_000
"""Test images that the audit looks at, and that a sweep turns unless it is told otherwise."""
LARGEST = 5_000_000
"""Bytes of all files together."""
ROUNDING = 1e-3
"""Share of test images whose answer may change from one machine to another."""


class Unfit(Exception):
    """Why a run cannot be shipped."""


def command_of(recipe):
    """The command that trains a recipe of the package again."""
    for name in recipe_names():
        own = named_recipe(name)
        if own.changed(group=recipe.network.group, epochs=recipe.epochs, seed=recipe.seed) == recipe:
            options = {"group": (own.network.group, recipe.network.group), "epochs": (own.epochs, recipe.epochs),
                       "seed": (own.seed, recipe.seed)}  # fmt: skip
            changed = "".join(f" --{option} {now}" for option, (before, now) in options.items() if now != before)
            return f"unpose train --recipe {name}{changed}"
    raise Unfit("its recipe is none of the package's; add it to src/unpose/train/recipes, so that others can repeat it")


def sample(test: Split, most: int) -> Split:
    """Images at even steps through the set."""
    return test.take(np.unique(np.linspace(0, len(test) - 1, most).astype(int)))


def audited(network, part: Split) -> EquivarianceReport:
    """The audit, which the network must hold."""
    measured = equivariance_error(network, as_batch(part.images, dtype=torch.float32), network.group)
    if not measured.holds():
        raise Unfit(f"it fails the audit:\n{measured}")
    return measured


def swept(network, test: Split, audit: EquivarianceReport) -> np.ndarray:
    """Right answers at the angles of `unpose evaluate`: (angles,)."""
    angles = sweep_angles()
    if "turn 90" not in audit.elements:
        return accuracy_by_angle(network, test, angles)
    # The audit has shown that quarter turns change nothing: a quarter of the circle stands for the whole.
    return np.tile(accuracy_by_angle(network, test, angles[: len(angles) // 4]), 4)


def ship(
    run: Path,
    name: str,
    limits: list[str],
    weights: Path = WEIGHTS,
    root: Path | None = None,
    device: str = "cpu",
    most_turned: int = TURNED,
) -> Path:
    """Write NAME.safetensors into the folder of weights, from a finished run."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise Unfit(f"a name is small letters and digits, joined by hyphens, got {name!r}")
    for file in ("result.json", "config.toml", "log.csv", "model.safetensors"):
        if not (run / file).is_file():
            raise Unfit(f"{file} is not there: only a finished run has a result to put on a card")
    others = sum(path.stat().st_size for path in weights.glob("*.safetensors") if path.stem != name)
    if (together := others + (run / "model.safetensors").stat().st_size) > LARGEST:
        raise Unfit(f"with it the files take {together:,} bytes, and the package has room for {LARGEST:,}")
    result = json.loads((run / "result.json").read_text())
    recipe = read_recipe(run / "config.toml")
    command = command_of(recipe)
    with (run / "log.csv").open(newline="") as log:
        seconds = sum(float(row["seconds"]) for row in csv.DictReader(log))
    data = load(recipe.data.name, root, size=recipe.data.size)
    owner = credit(recipe.data.name)
    network = load_network(run / "model.safetensors")
    looked_at, turned = sample(data.test, AUDITED), sample(data.test, most_turned)
    audit = audited(network, looked_at)
    upright = accuracy(network.to(device), data.test)
    if abs(upright - result["test_accuracy"]) > ROUNDING:
        raise Unfit(f"result.json says {result['test_accuracy']:.4f} of the test images, the network has {upright:.4f}")
    sweep = swept(network, turned, audit)
    resampled = np.where(audit.exact, -1.0, audit.errors)
    worst = int(resampled.argmax())
    has_turns = not audit.exact.all()
    card = Card(
        title=recipe.title,
        data=data.name,
        citation=owner.citation,
        licence=owner.licence,
        command=command,
        version=f"unpose {unpose.__version__}, torch {torch.__version__}",
        train_images=result["images"]["train"],
        validation_images=result["images"]["validation"],
        test_images=result["images"]["test"],
        training_seconds=seconds,
        chosen_epoch=result["chosen_epoch"],
        epochs=result["epochs"],
        validation=result["validation_accuracy"],
        upright=upright,
        turned_images=len(turned),
        turned=float(sweep.mean()),
        worst=float(sweep.min()),
        angles=len(sweep),
        audited=len(looked_at),
        exact_error=audit.worst_exact,
        turn_error=float(audit.errors[worst]) if has_turns else 0.0,
        turn_floor=float(audit.floors[worst]) if has_turns else 0.0,
        control=audit.control,
        control_error=float(audit.control_error),
        limits=tuple(limits),
    )
    return save_with_card(
        weights / f"{name}.safetensors", network.cpu(), read_classes(run / "model.safetensors"), recipe_table(recipe),
        measure_light(data.train.images), card,
    )  # fmt: skip


def page() -> str:
    """All cards on one page."""
    cards = [card_markdown(describe(pretrained_file(name))) for name in pretrained_names()]
    return (
        "# Trained networks in this package\n\nGenerated by `python benchmarks/ship.py --pages` from the files in "
        "`src/unpose/train/weights`; `unpose models NAME` shows the same.\n\n" + "\n".join(cards)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--limit", action="append", default=[], help="a sentence about what it cannot do; at least one")
    parser.add_argument("--root", type=Path, help="where the data set lies")
    parser.add_argument("--device", default="cpu", help="where the test images are read; the audit is on the CPU")
    parser.add_argument("--turned", type=int, default=TURNED, help="test images for the sweep; the card says how many")
    parser.add_argument("--pages", action="store_true")
    options = parser.parse_args()
    if not options.pages:
        if options.run is None or options.name is None or not options.limit:
            parser.error("give the folder of a run, a name and at least one --limit")
        try:
            more = {"root": options.root, "device": options.device, "most_turned": options.turned}
            path = ship(options.run, options.name, options.limit, **more)
        except (Unfit, ValueError, OSError) as error:
            sys.exit(f"{options.run} cannot be shipped: {error}")
        print(card_markdown(describe(path)))
    print(f"The page is {write_text(PAGE, page())}.")


if __name__ == "__main__":
    main()
