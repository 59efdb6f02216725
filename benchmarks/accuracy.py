"""Test accuracy of group networks trained to the end: group attention, our own network, and their baselines.

    UNPOSE_DATA=/path/to/arrays python benchmarks/accuracy.py [--only attention,own,windows,wide,upright,reflections]
                                                              [--seeds 0 1 2] [--device cuda] [--minutes 60]
                                                              [--folder runs]
    python benchmarks/accuracy.py --report docs/benchmarks [--folder runs]

Sections:

attention    the published rotated-MNIST network with 4 rotations; with 8 and 12, starting from the weights for 4 of the
             same seed (`rotmnist-refined`); and its translation-only baseline
own          `rotmnist-modern`, and a group CNN with as many parameters, by the same recipe
windows      the published network, 4 rotations, with windows of 3 to 27 pixels, 16 epochs: table 1 of the paper
wide         the same with windows of 7 and 11 pixels by the whole recipe, like `attention c4` with windows of 5
upright      trained on upright MNIST for 4 epochs without random poses, tested upright and at 24 angles
reflections  CIFAR-10 with `cifar10-modern`, its translation-only baseline, and the baseline trained on mirrored images

Each run stores its curves (`log.csv`), its recipe and its result in `FOLDER/NAME/SEED`. The recipe decides whether the
last epoch is kept or the one with the best validation accuracy; the test images are used once, at the end of a run.
Finished runs are not repeated, and a run that was interrupted by `--minutes` resumes: repeat the same command until all
runs are finished. At the end a table of all finished runs is printed. `--report` trains nothing: it writes the results,
all curves and one plot for each section to a folder, as accuracy.json, accuracy.csv and accuracy-SECTION.png.
"""

import argparse
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from unpose.data import load
from unpose.files import write_image, write_text
from unpose.nn import count_parameters
from unpose.report import figures
from unpose.train import (
    Recipe,
    StoppedError,
    TrainingProgress,
    accuracy_by_angle,
    baseline_description,
    build_network,
    named_recipe,
    train,
)
from unpose.train.loop import LOG_FILE, MODEL_FILE, RESULT_FILE
from unpose.train.recipe import NetworkPart, PosePart
from unpose.train.state import STATE_FILE

SPAN = 5
"""Range of a plot below the best accuracy, in per cent; lower values are clipped to it."""
ANGLES = tuple(2 * math.pi * number / 24 for number in range(24))
WINDOWS = (3, 5, 7, 9, 11, 15, 19, 23, 27)
WIDE = (7, 11)


def attention(group: str, **config: int) -> Recipe:
    """The published network, by our recipe."""
    recipe = named_recipe("rotmnist-attention")
    options = {"config": {**recipe.network.options["config"], **config}}
    return dataclasses.replace(recipe, network=dataclasses.replace(recipe.network, group=group, options=options))


def enlarged(group: str, start: str) -> Recipe:
    """The published network with more rotations, starting from the final weights of the run with this name."""
    return named_recipe("rotmnist-refined").changed(group=group, begin=start)


def group_cnn_like(recipe: Recipe, data: str) -> Recipe:
    """The same recipe with a group CNN that has about as many parameters."""
    options = {"parameters": count_parameters(build_network(recipe, load(data)))}
    return dataclasses.replace(
        recipe, network=NetworkPart(kind="group_cnn", group=recipe.network.group, options=options)
    )


def baseline_of(recipe: Recipe, data: str) -> Recipe:
    """The same recipe with the translation-only baseline of its network."""
    baseline = baseline_description(build_network(recipe, load(data)).description)
    names = recipe.network.options
    options = {name: baseline[name] for name in {*names, "widths"} if name in baseline}
    return dataclasses.replace(recipe, network=dataclasses.replace(recipe.network, group="c1", options=options))


def sections() -> dict[str, Callable[[], dict[str, tuple[str, Recipe]]]]:
    """Section -> function that makes its runs: name -> data set and recipe. Some functions load the data."""
    rotated, upright, photographs = "rotated-mnist", "mnist", "cifar-10"
    own, mirrored = named_recipe("rotmnist-modern"), named_recipe("cifar10-modern")

    def without_poses(recipe: Recipe, epochs: int) -> Recipe:
        return dataclasses.replace(recipe.changed(epochs=epochs), poses=PosePart())

    def reflections() -> dict[str, tuple[str, Recipe]]:
        baseline = baseline_of(mirrored, photographs)
        augmented = dataclasses.replace(baseline, poses=dataclasses.replace(baseline.poses, mirror=True))
        runs = {"reflections d1": mirrored, "reflections c1": baseline, "reflections c1 mirrored": augmented}
        return {name: (photographs, recipe) for name, recipe in runs.items()}

    def windowed(size: int) -> Recipe:
        # A short schedule without elastic deformation, which helps long ones: an epoch with the largest window takes
        # many times as long as one with 5 x 5.
        recipe = attention("c4", window=size)
        return dataclasses.replace(recipe, epochs=16, poses=dataclasses.replace(recipe.poses, bend=0.0))

    # The first word of a run's name is its section.
    return {
        "attention": lambda: {
            "attention c4": (rotated, attention("c4")),
            "attention c8": (rotated, enlarged("c8", "attention c4")),
            "attention c12": (rotated, enlarged("c12", "attention c4")),
            "attention c1": (rotated, attention("c1")),
        },
        "own": lambda: {"own c8": (rotated, own), "own CNN c8": (rotated, group_cnn_like(own, rotated))},
        "windows": lambda: {f"windows {size}": (rotated, windowed(size)) for size in WINDOWS},
        "wide": lambda: {f"wide {size}": (rotated, attention("c4", window=size)) for size in WIDE},
        "upright": lambda: {
            "upright c4": (upright, without_poses(attention("c4"), 4)),
            "upright c8": (upright, without_poses(enlarged("c8", "upright c4"), 1)),
            "upright c1": (upright, without_poses(attention("c1"), 4)),
        },
        "reflections": reflections,
    }


def run(name: str, data: str, recipe: Recipe, folder: Path, device: str, deadline: float) -> None:
    """Train to the end or to the deadline; networks trained on upright digits are also tested at all angles."""
    images, printed_at = load(data), 0.0

    def on_progress(progress: TrainingProgress) -> None:
        nonlocal printed_at
        if time.monotonic() > deadline:
            raise StoppedError
        if time.monotonic() - printed_at > 20:
            printed_at = time.monotonic()
            print(f"  {name}: epoch {progress.epoch} of {progress.epochs}, loss {progress.loss:.4f}", flush=True)

    result = train(images, recipe, folder, device=device, resume=True, progress=on_progress)
    if data == "mnist":
        accuracies = accuracy_by_angle(result.network, images.test, ANGLES)
        (folder / "angles.json").write_text(json.dumps(dict(zip(map(math.degrees, ANGLES), accuracies, strict=True))))
    (folder / STATE_FILE).unlink()


def results_in(root: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of the finished runs below a folder: name -> one dictionary per seed; curves are record arrays."""
    found: dict[str, list[dict[str, Any]]] = {}
    # Shorter names come first within a section: windows of 5 before those of 11.
    paths = {path: path.parent.parent.name for path in root.glob(f"*/*/{RESULT_FILE}")}
    for path in sorted(paths, key=lambda path: (paths[path].split()[0], len(paths[path]), path)):
        result, angles = json.loads(path.read_text()), path.parent / "angles.json"
        curves = np.atleast_1d(np.genfromtxt(path.parent / LOG_FILE, delimiter=",", names=True))
        kept = ("parameters", "epochs", "chosen_epoch", "validation_accuracy", "test_accuracy")
        one = {"seed": int(path.parent.name), "data": result["data"]["name"]} | {name: result[name] for name in kept}
        one |= {"seconds": round(float(curves["seconds"].sum()), 1), "curves": curves}
        if angles.exists():
            one["angles"] = json.loads(angles.read_text())
        found.setdefault(path.parent.parent.name, []).append(one)
    return found


def print_table(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print the mean over seeds and the accuracy of each seed, for every finished run."""
    for name, seeds in found.items():
        tests, chosen, seconds = (
            np.array([one[key] for one in seeds]) for key in ("test_accuracy", "validation_accuracy", "seconds")
        )
        line = f"{name:16} {seeds[0]['parameters']:9,} parameters, {len(seeds)} seeds: test {100 * tests.mean():.2f} "
        line += f"({', '.join(f'{100 * test:.2f}' for test in tests)}), validation {100 * chosen.mean():.2f}, "
        line += f"{seconds.mean() / 60:.1f} minutes"
        by_angle = [list(one["angles"].values()) for one in seeds if "angles" in one]
        if by_angle:
            line += f"; over all angles {100 * np.mean(by_angle):.2f}"
        print(line, flush=True)


def report(found: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Write the results, every curve and one plot for each section, for the documentation."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: [{k: v for k, v in one.items() if k != "curves"} for one in seeds] for name, seeds in found.items()}
    write_text(folder / "accuracy.json", json.dumps(plain, indent=1) + "\n")
    columns = next(iter(found.values()))[0]["curves"].dtype.names
    rows = [",".join(("run", "seed", *columns))]
    for name, seeds in found.items():
        for one in seeds:
            rows += [",".join((name, str(one["seed"]), *(f"{value:.5g}" for value in row))) for row in one["curves"]]
    write_text(folder / "accuracy.csv", "\n".join(rows) + "\n")
    for section in sorted({name.split()[0] for name in found}):
        lines = {
            name: 100 * np.mean([one["curves"]["validation_accuracy"] for one in seeds], 0)
            for name, seeds in found.items()
            if name.split()[0] == section
        }
        lowest = math.ceil(max(line.max() for line in lines.values())) - SPAN
        picture = figures.curve(
            {name: line.clip(lowest) for name, line in lines.items()},
            title=f"{section}: {'mean over seeds' if any(len(found[name]) > 1 for name in lines) else 'one seed'}",
            x_label="epoch, from 0",
            y_label=f"validation accuracy, per cent; clipped at {lowest}",
            size=(620, 320),
        )
        write_image(folder / f"accuracy-{section}.png", picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="attention,own,windows,wide,upright,reflections")
    parser.add_argument("--runs", help="only these runs of the sections, separated by commas")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="number of epochs instead of the recipes' own")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="write the finished runs for the documentation")
    options = parser.parse_args()
    if options.report:
        found = results_in(options.folder)
        if not found:
            parser.error(f"there is no finished run in {options.folder}")
        report(found, options.report)
        return
    if "UNPOSE_DATA" not in os.environ:
        parser.error("UNPOSE_DATA must name a folder with the arrays of MNIST (and CIFAR-10)")
    deadline = time.monotonic() + 60 * options.minutes
    options.folder.mkdir(parents=True, exist_ok=True)
    makers, chosen = sections(), {}
    for section in options.only.split(","):
        chosen |= makers[section]()
    if options.runs:
        chosen = {name: chosen[name] for name in options.runs.split(",")}
    for seed in options.seeds:  # all runs of one seed first, for an early table
        for name, (data, recipe) in chosen.items():
            folder, start = options.folder / name / str(seed), recipe.network.begin
            begin = None if start is None else str(options.folder / start / str(seed) / MODEL_FILE)
            if time.monotonic() < deadline and not (folder / RESULT_FILE).exists():
                try:
                    changed = recipe.changed(seed=seed, epochs=options.epochs, begin=begin)
                    run(name, data, changed, folder, options.device, deadline)
                except StoppedError:
                    print(f"  {name}: stopped; resumes next time", flush=True)
    print_table(results_in(options.folder))


if __name__ == "__main__":
    main()
