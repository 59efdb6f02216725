"""What ``unpose train`` prints and draws: the data, the expected time, epochs, and accuracies beside baselines."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.class_report import class_lines, write_confusion

if TYPE_CHECKING:
    from unpose.data import Dataset
    from unpose.train import ClassFigures, QuickResult, Recipe, TrainingResult

CURVES, QUICK = "curves.png", "quick.safetensors"
_MOST_TESTED = 5_000
"""Test images on which the quick classifier is tested beside a network."""


def allow_missing_report(folder: Path) -> None:
    """Let a run be resumed whose training is finished and whose report is not: the card is written last.

    Nothing is learnt again. The network that was kept is tested again, which gives the same figures.
    """
    if (folder / "state.safetensors").exists() and not (folder / "card.md").exists():
        (folder / "result.json").unlink(missing_ok=True)


def print_parts(dataset: "Dataset") -> None:
    """Print where the images come from, and how many each part has."""
    source = dataset.source.replace(f"{Path.cwd()}{os.sep}", "")  # recipes hold the absolute path of the images
    click.echo(f"{dataset.name}: {source}", err=True)
    click.echo(
        f"{len(dataset.train):,} images for training, {len(dataset.validation):,} for validation, "
        f"{len(dataset.test):,} for the test; {len(dataset.classes)} classes",
        err=True,
    )


def print_estimate(network: Any, recipe: "Recipe", dataset: "Dataset", resume: bool) -> None:
    """Print what is trained, and how long that takes on this machine."""
    from unpose.nn import count_parameters
    from unpose.train.cost import measured_seconds

    seconds = measured_seconds(recipe, dataset)
    duration = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{max(seconds, 2):.0f} seconds"
    height, width = dataset.image_size
    change = "" if resume else "; --size, --epochs and --group change it, --quick takes seconds"
    click.echo(
        f"{recipe.network.kind} {recipe.network.group} with {count_parameters(network):,} parameters, images of "
        f"{height} x {width} pixels, {recipe.epochs} epochs: about {duration} on this machine{change}",
        err=True,
    )


def majority_row(dataset: "Dataset") -> dict[str, tuple[float, float]]:
    """The accuracies, in validation and test, of the answer that is right most often in training."""
    import numpy as np

    from unpose.train import majority_accuracy

    name = dataset.classes[int(np.bincount(dataset.train.labels).argmax())]
    parts = (dataset.validation, dataset.test)
    validation, test = (majority_accuracy(dataset.train, part) for part in parts)
    return {f"always {name}": (validation, test)}


def report_epoch(history: list[dict[str, float]], folder: Path, epochs: int) -> None:
    """Print a line about the last epoch, and plot the curves so far."""
    from unpose.files import write_image
    from unpose.report import figures

    last = history[-1]
    click.echo(
        f"epoch {len(history):>3} of {epochs}: loss {last['train_loss']:.4f}, accuracy {last['train_accuracy']:.2%} in "
        f"training, {last['validation_accuracy']:.2%} in validation, {last['seconds']:.1f} s",
        err=True,
    )
    panels = []
    for what, label, factor in (("loss", "mean cross entropy", 1.0), ("accuracy", "accuracy, per cent", 100.0)):
        curves = {
            {"train": "training", "validation": "validation"}[part]: [factor * row[f"{part}_{what}"] for row in history]
            for part in ("train", "validation")
        }
        epochs_done = range(1, len(history) + 1)
        panels.append(figures.curve(curves, x=list(epochs_done), x_label="epoch", y_label=label))
    write_image(folder / CURVES, figures.beside(panels, title="Training"))


def report_result(
    result: "TrainingResult", folder: Path, dataset: "Dataset", recipe: "Recipe", baseline: "QuickResult | None"
) -> None:
    """Print and write the figures of a trained network by class, beside those of the baselines."""
    import json

    import numpy as np

    from unpose.files import write_text
    from unpose.train import class_figures, save_quick

    rows = {f"{recipe.network.kind} {recipe.network.group}": (result.validation_accuracy, result.test_accuracy)}
    if baseline is not None:
        save_quick(folder / QUICK, baseline, dataset)
        rng = np.random.default_rng(recipe.seed)
        parts = [part.sample(_MOST_TESTED, rng) for part in (dataset.validation, dataset.test)]
        validation, test = (class_figures(baseline.network, part, dataset.classes).accuracy for part in parts)
        of = f", {len(parts[1]):,} test images" if len(parts[1]) < len(dataset.test) else ""
        rows[f"quick classifier{of}"] = validation, test
    rows |= majority_row(dataset)
    path = folder / "result.json"
    baselines = {
        name: {"validation_accuracy": validation, "test_accuracy": test}
        for name, (validation, test) in list(rows.items())[1:]
    }
    write_text(path, json.dumps(json.loads(path.read_text()) | {"baselines": baselines}, indent=2) + "\n")
    click.echo(
        f"Kept epoch {result.best_epoch} of {len(result.history)}, with validation accuracy "
        f"{result.validation_accuracy:.2%}."
    )
    if result.by_class is not None:
        report_figures(folder, dataset, result.by_class, rows, recipe.class_weights)
    if result.symmetry is not None:
        learned = _symmetry_lines(result.symmetry.strengths(), dataset.classes)
        click.echo(f"What was learned about symmetries:\n{learned}")
        card = folder / "card.md"
        write_text(card, f"{card.read_text()}\nWhat was learned about symmetries:\n\n```\n{learned}\n```\n")
    click.echo(f"The curves are in {folder / CURVES}.")


def _symmetry_lines(strengths: dict[str, Any], classes: Sequence[str]) -> str:
    """What a method learned about symmetries, one line for each kind of figure."""
    lines = []
    for name, value in strengths.items():
        if not isinstance(value, dict):
            lines.append(f"{name.replace('_', ' ')}: {value}")
            continue
        for key, entry in value.items():
            figures = dict(zip(classes, entry, strict=True)) if isinstance(entry, list) else {"": entry}
            text = ", ".join(f"{each} {figure:.3g}".strip() for each, figure in figures.items())
            lines.append(f"{name.replace('_', ' ')}, {key}: {text}")
    return "\n".join(lines)


def report_figures(
    folder: Path, dataset: "Dataset", figures: "ClassFigures", rows: dict[str, tuple[float, float]], weights: str
) -> None:
    """Print the accuracies in ``rows`` (validation, test) and the figures by class; write the card and the matrix."""
    from unpose.files import write_text

    width = max(map(len, rows))
    lines = [f"{'':{width}}  validation     test"]
    lines += [f"{name:{width}}  {validation:>10.2%}  {test:>7.2%}" for name, (validation, test) in rows.items()]
    summary = "\n".join(lines)
    click.echo(
        f"Test accuracy {figures.accuracy:.2%}; the test images were used once, for these figures.\n\n{summary}\n\n"
        f"Test images by class:\n{class_lines(figures)}"
    )
    better = [
        f"{name} ({folder / QUICK})" if name.startswith("quick classifier") else name
        for name, (_, test) in rows.items()
        if test > figures.accuracy
    ]
    if better:
        click.echo(f"Better on these test images: {', '.join(better)}.")
    if weights == "none" and (figures.recall == 0).any():
        click.echo("--class-weights balanced finds more images of rare classes, at the expense of the frequent ones.")
    title = f"{dataset.name}, test: {len(dataset.test):,} images"
    write_confusion(folder / "confusion", figures, title)
    card = (
        f"# {dataset.name}\n\n{dataset.source}. {len(dataset.train):,} images for training, "
        f"{len(dataset.validation):,} for validation, {len(dataset.test):,} for the test.\n\n```\n{summary}\n```\n\n"
        f"Test images by class:\n\n```\n{class_lines(figures)}\n```\n\n![What is taken for what](confusion.png)\n"
    )
    write_text(folder / "card.md", card)
    click.echo(
        f"The model is {folder / 'model.safetensors'}; confusion.png and confusion.csv there show what is taken for "
        "what."
    )
