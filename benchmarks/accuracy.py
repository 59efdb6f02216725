"""How well group networks classify, trained to their ends: group attention, our own network, and their twins.

    UNPOSE_DATA=/path/to/arrays python benchmarks/accuracy.py [--only attention,own,windows,upright,reflections]
                                                              [--seeds 3] [--device cuda] [--minutes 60] [--folder runs]

attention    the published rotated-MNIST network with 4, 8 and 12 rotations, and none: its translation-only twin
own          `rotmnist-modern`, and the group CNN with as many parameters, by the same recipe
windows      the published network, 4 rotations, with windows of 3 to 27 pixels: table 1 of the paper, to the end
upright      MNIST as it is, tested upright and at 24 angles: nothing turned is ever learnt from
reflections  CIFAR-10 with `cifar10-modern`, and its twin without the mirror

Each run keeps its curves (`log.csv`), its recipe and its result in `FOLDER/NAME/SEED`. The epoch is chosen on
validation and the test images are used once, at the end of a run. A run that is there is not made again, one that was
cut off by `--minutes` goes on: the same command, as often as it takes. Then a table of all that is there.
"""

import argparse
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from unpose.data import load
from unpose.nn import count_parameters
from unpose.train import (
    Moment,
    Recipe,
    Stopped,
    accuracy_by_angle,
    build_network,
    named_recipe,
    train,
    twin_description,
)
from unpose.train.loop import LOG_FILE, RESULT_FILE
from unpose.train.recipe import NetworkPart, PosePart
from unpose.train.state import STATE_FILE

ANGLES = tuple(2 * math.pi * number / 24 for number in range(24))
WINDOWS = (3, 5, 7, 9, 11, 15, 19, 23, 27)


def attention(group: str, **config: int) -> Recipe:
    """The published network, by a recipe of ours."""
    recipe = named_recipe("rotmnist-attention")
    options = {"config": {**recipe.network.options["config"], **config}}
    return dataclasses.replace(recipe, network=dataclasses.replace(recipe.network, group=group, options=options))


def group_cnn_like(recipe: Recipe, data: str) -> Recipe:
    """The same recipe with the group CNN that has about as many parameters."""
    options = {"parameters": count_parameters(build_network(recipe, load(data)))}
    return dataclasses.replace(
        recipe, network=NetworkPart(kind="group_cnn", group=recipe.network.group, options=options)
    )


def twin_of(recipe: Recipe, data: str) -> Recipe:
    """The same recipe with the translation-only twin of its network."""
    twin = twin_description(build_network(recipe, load(data)).description)
    names = recipe.network.options
    options = {name: twin[name] for name in {*names, "widths"} if name in twin}
    return dataclasses.replace(recipe, network=dataclasses.replace(recipe.network, group="c1", options=options))


def sections() -> dict[str, Callable[[], dict[str, tuple[str, Recipe]]]]:
    """What makes the runs of each section: data and recipe by name. Some need the data for it."""
    turned, upright, photographs = "rotated-mnist", "mnist", "cifar-10"
    own, mirrored = named_recipe("rotmnist-modern"), named_recipe("cifar10-modern")

    def still(group: str) -> Recipe:
        return dataclasses.replace(attention(group), epochs=30, poses=PosePart())

    return {
        "attention": lambda: {f"attention {group}": (turned, attention(group)) for group in ("c4", "c8", "c12", "c1")},
        "own": lambda: {"own c8": (turned, own), "group CNN c8": (turned, group_cnn_like(own, turned))},
        "windows": lambda: {f"window {size}": (turned, attention("c4", window=size)) for size in WINDOWS},
        "upright": lambda: {f"upright {group}": (upright, still(group)) for group in ("c4", "c8", "c1")},
        "reflections": lambda: {
            "reflections d1": (photographs, mirrored),
            "reflections c1": (photographs, twin_of(mirrored, photographs)),
        },
    }


def run(name: str, data: str, recipe: Recipe, folder: Path, device: str, deadline: float) -> None:
    """Train to the end, or to the deadline; what turned images are worth is measured where none were learnt from."""
    images, said = load(data), 0.0

    def watch(moment: Moment) -> None:
        nonlocal said
        if time.monotonic() > deadline:
            raise Stopped
        if time.monotonic() - said > 20:
            said = time.monotonic()
            print(f"  {name}: epoch {moment.epoch} of {moment.epochs}, loss {moment.loss:.4f}", flush=True)

    outcome = train(images, recipe, folder, device=device, resume=True, watch=watch)
    if data == "mnist":
        turned = accuracy_by_angle(outcome.network, images.test, ANGLES)
        (folder / "angles.json").write_text(json.dumps(dict(zip(map(math.degrees, ANGLES), turned, strict=True))))
    (folder / STATE_FILE).unlink()


def table(root: Path) -> None:
    """Mean and spread over the seeds of every run that is there."""
    for place in sorted(path for path in root.iterdir() if path.is_dir()):
        done = [path.parent for path in sorted(place.glob(f"*/{RESULT_FILE}"))]
        if not done:
            continue
        results = [json.loads((path / RESULT_FILE).read_text()) for path in done]
        seconds = [np.genfromtxt(path / LOG_FILE, delimiter=",", names=True)["seconds"].sum() for path in done]
        tests = 100 * np.array([result["test_accuracy"] for result in results])
        line = f"{place.name:16} {results[0]['parameters']:9,} parameters, {len(done)} seeds: test {tests.mean():.2f} "
        line += f"({', '.join(f'{test:.2f}' for test in tests)}), validation "
        line += f"{100 * np.mean([result['validation_accuracy'] for result in results]):.2f}, "
        line += f"{np.mean(seconds) / 60:.1f} minutes"
        turned = [json.loads((path / "angles.json").read_text()) for path in done if (path / "angles.json").exists()]
        if turned:
            line += f"; over all angles {100 * np.mean([list(angles.values()) for angles in turned]):.2f}"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="attention,own,windows,upright,reflections")
    parser.add_argument("--runs", help="names of single runs of these sections, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="other than the recipes' own, for a trial")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    if "UNPOSE_DATA" not in os.environ:
        parser.error("UNPOSE_DATA must name a folder with the arrays of MNIST (and CIFAR-10)")
    deadline = time.monotonic() + 60 * options.minutes
    options.folder.mkdir(parents=True, exist_ok=True)
    made, chosen = sections(), {}
    for section in options.only.split(","):
        chosen |= made[section]()
    if options.runs:
        chosen = {name: chosen[name] for name in options.runs.split(",")}
    for seed in range(options.seeds):  # all of one seed first: a table early on
        for name, (data, recipe) in chosen.items():
            folder = options.folder / name / str(seed)
            if time.monotonic() < deadline and not (folder / RESULT_FILE).exists():
                try:
                    run(name, data, recipe.changed(seed=seed, epochs=options.epochs), folder, options.device, deadline)
                except Stopped:
                    print(f"  {name}: stopped, goes on next time", flush=True)
    table(options.folder)


if __name__ == "__main__":
    main()
