"""Make a pretrained network of the package from a finished run: one file with its weights and its model card.

    UNPOSE_DATA=/path/to/arrays python benchmarks/ship.py RUN NAME --limit "one digit to an image" [--limit ...]
                                                                   [--rotated 10000] [--device cuda]

RUN is a folder that `unpose train --recipe ...` wrote. Weights and classes are taken from its model.safetensors, the
rest of the card from its result.json, config.toml and log.csv and from measurements on the same test images: accuracy
upright, accuracy rotated (as in `unpose evaluate`, on 10,000 images or as many as `--rotated` gives), and the audit. No
number is typed by hand. A run is refused if it is not finished, if its recipe is not in the package, if its network
fails the audit, or if its network does not reproduce the accuracy in result.json. Finally
docs/reference/models.md is generated from all files; `--pages` does only that.
"""

import argparse
import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import torch

import unpose
from unpose.audit import EquivarianceReport, equivariance_error
from unpose.cli.shared.angle_sweep import sweep_angles
from unpose.data import Split, credit, load
from unpose.files import write_text
from unpose.images import as_batch, measure_light
from unpose.train import (
    accuracy_by_angle,
    class_figures,
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

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "models.md"
AUDITED, ROTATED = 32, 10_000
"""Default numbers of test images for the audit and for the accuracy on rotated images."""
LARGEST = 5_000_000
"""Largest number of bytes of all files together."""
ROUNDING = 1e-3
"""Largest difference of the test accuracy between machines, due to rounding."""


class UnfitError(Exception):
    """A run cannot be shipped; the message says why."""


def command_of(recipe):
    """The command that repeats the training, if the recipe is one of the package."""
    for name in recipe_names():
        own = named_recipe(name)
        if own.changed(group=recipe.network.group, epochs=recipe.epochs, seed=recipe.seed) == recipe:
            options = {"group": (own.network.group, recipe.network.group), "epochs": (own.epochs, recipe.epochs),
                       "seed": (own.seed, recipe.seed)}  # fmt: skip
            changed = "".join(f" --{option} {now}" for option, (before, now) in options.items() if now != before)
            return f"unpose train --recipe {name}{changed}"
    raise UnfitError(
        "its recipe is not in the package; add it to src/unpose/train/recipes, so that others can repeat it"
    )


def sample(test: Split, most: int) -> Split:
    """At most this many images, evenly spaced."""
    return test.take(np.unique(np.linspace(0, len(test) - 1, most).astype(int)))


def audited(network, part: Split) -> EquivarianceReport:
    """Audit the network; it must pass."""
    measured = equivariance_error(network, as_batch(part.images, dtype=torch.float32), network.group)
    if not measured.holds():
        raise UnfitError(f"it fails the audit:\n{measured}")
    return measured


def swept(network, test: Split, audit: EquivarianceReport, angles) -> np.ndarray:
    """Accuracy at angles once around the circle: (angles,)."""
    if "turn 90" not in audit.elements:
        return accuracy_by_angle(network, test, angles)
    # Quarter turns do not change the output, as the audit has shown: a quarter of the circle is enough.
    return np.tile(accuracy_by_angle(network, test, angles[: len(angles) // 4]), 4)


def ship(
    run: Path,
    name: str,
    limits: list[str],
    weights: Path = WEIGHTS,
    root: Path | None = None,
    device: str = "cpu",
    most_rotated: int = ROTATED,
    angles: list[float] | None = None,
) -> Path:
    """Write NAME.safetensors into the folder of weights, from a finished run; ``angles`` of `unpose evaluate`."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise UnfitError(f"a name consists of lower-case letters and digits, joined by hyphens; got {name!r}")
    for file in ("result.json", "config.toml", "log.csv", "model.safetensors"):
        if not (run / file).is_file():
            raise UnfitError(f"{file} does not exist: only a finished run has the results for a card")
    others = sum(path.stat().st_size for path in weights.glob("*.safetensors") if path.stem != name)
    if (together := others + (run / "model.safetensors").stat().st_size) > LARGEST:
        raise UnfitError(f"with it all files together have {together:,} bytes, and at most {LARGEST:,} are allowed")
    result = json.loads((run / "result.json").read_text())
    recipe = read_recipe(run / "config.toml")
    command = command_of(recipe)
    with (run / "log.csv").open(newline="") as log:
        seconds = sum(float(row["seconds"]) for row in csv.DictReader(log))
    data = load(recipe.data.name, root, size=recipe.data.size)
    owner = credit(recipe.data.name)
    network = load_network(run / "model.safetensors")
    audit_images, rotated_images = sample(data.test, AUDITED), sample(data.test, most_rotated)
    audit = audited(network, audit_images)
    by_class = class_figures(network.to(device), data.test, read_classes(run / "model.safetensors"))
    upright = by_class.accuracy
    if abs(upright - result["test_accuracy"]) > ROUNDING:
        raise UnfitError(
            f"result.json gives a test accuracy of {result['test_accuracy']:.4f}, the network has {upright:.4f}"
        )
    sweep = swept(network, rotated_images, audit, sweep_angles() if angles is None else angles)
    resampled = np.where(audit.exact, -1.0, audit.errors)
    worst = int(resampled.argmax())
    has_inexact = not audit.exact.all()
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
        turned_images=len(rotated_images),
        turned=float(sweep.mean()),
        worst=float(sweep.min()),
        angles=len(sweep),
        audited=len(audit_images),
        exact_error=audit.worst_exact,
        turn_error=float(audit.errors[worst]) if has_inexact else 0.0,
        turn_floor=float(audit.floors[worst]) if has_inexact else 0.0,
        control=audit.control,
        control_error=float(audit.control_error),
        limits=tuple(limits),
        mean_recall=by_class.balanced_accuracy,
        worst_class=by_class.worst(),
    )
    return save_with_card(
        weights / f"{name}.safetensors", network.cpu(), read_classes(run / "model.safetensors"), recipe_table(recipe),
        measure_light(data.train.images), card,
    )  # fmt: skip


def page() -> str:
    """The page with the cards of all networks."""
    cards = [card_markdown(describe(pretrained_file(name))) for name in pretrained_names()]
    return (
        "# Trained networks in this package\n\nGenerated by `python benchmarks/ship.py --pages` from the files in "
        "`src/unpose/train/weights`; `unpose models NAME` shows the same.\n\n" + "\n".join(cards)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("name", nargs="?")
    parser.add_argument(
        "--limit", action="append", default=[], help="a sentence about what the network cannot do; at least one"
    )
    parser.add_argument("--root", type=Path, help="folder of the data set")
    parser.add_argument("--device", default="cpu", help="device for the accuracy; the audit runs on the CPU")
    parser.add_argument(
        "--rotated", type=int, default=ROTATED, help="number of test images for the accuracy on rotated images"
    )
    parser.add_argument("--pages", action="store_true")
    options = parser.parse_args()
    if not options.pages:
        if options.run is None or options.name is None or not options.limit:
            parser.error("give the folder of a run, a name and at least one --limit")
        try:
            more = {"root": options.root, "device": options.device, "most_rotated": options.rotated}
            path = ship(options.run, options.name, options.limit, **more)
        except (UnfitError, ValueError, OSError) as error:
            sys.exit(f"{options.run} cannot be shipped: {error}")
        print(card_markdown(describe(path)))
    print(f"The page is {write_text(PAGE, page())}.")


if __name__ == "__main__":
    main()
