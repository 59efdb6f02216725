"""Encoders that the command line learns without labels: for ``unpose train --unlabelled`` and ``--features learn``."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.auto_group import AUTO, discovered
from unpose.cli.shared.errors import UserError, parameter_errors, training_errors
from unpose.cli.shared.output import list_unread
from unpose.cli.shared.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from unpose.train import Recipe, TrainingProgress, UnlabelledResult

_LARGEST = {"cpu": 40, "cuda": 64}
"""Longer side in pixels to which larger images are reduced, unless --size says otherwise."""
_AUDITED = 16
"""Images on which the invariance of the encoder is measured."""


def run_unlabelled(
    source: Path, folder: Path, recipe: "Recipe | None", device: Any, *, group: str | None, size: int | None,
    epochs: int | None, minutes: float | None, seed: int | None, resume: bool, force: bool,
    training_progress: "AbstractContextManager[Callable[[TrainingProgress], None]]",
) -> None:  # fmt: skip
    """Learn an encoder from the images of a folder, and say what it is good for.

    ``recipe`` is that of a run to resume or of a file; by default it is chosen for the device.
    """
    from unpose.train import unlabelled_recipe

    images, given = read_images(source, size or (recipe.data.size if recipe is not None else None), device)
    if AUTO in (group, recipe and recipe.network.group):
        group = discovered(images).finite_group
    if recipe is not None:
        recipe = recipe.changed(group=group)
    else:
        with parameter_errors("--group"):
            recipe = unlabelled_recipe(group or "d4", small=device.type == "cpu", epochs=epochs, seed=seed or 0)
    if not resume:
        recipe = replace(recipe, data=replace(recipe.data, name=str(source.resolve()), size=given))
    again = f"unpose train --resume {shlex.quote(str(folder))}"
    with training_errors(again):
        recipe = within_minutes(recipe, images, device, minutes, resume=resume)
        with training_progress as report_step:
            result = learn(images, recipe, folder, device, source.name, report_step, resume=resume, force=force)
    _report(result, recipe, images, folder, source)


def read_images(source: Path, size: int | None, device: Any) -> "tuple[NDArray[np.float32], int | None]":
    """The images of a folder, reduced to what the device learns from in minutes if no size is given, and that size."""
    from unpose.data import read_folder

    with progress() as report:
        found = read_folder(source, size=size, progress=report)
        limit = _LARGEST.get(device.type, 64)
        if size is None and max(found.images.shape[1:3]) > limit:
            found, size = read_folder(source, size=limit, progress=report), limit
    list_unread(found.rejected, 5)
    return found.images, size


def within_minutes(
    recipe: "Recipe", images: "NDArray[np.float32]", device: Any, minutes: float | None, *, resume: bool = False
) -> "Recipe":
    """Shorten a run to a budget of minutes, and say on the CPU how long it takes; a resumed run stays as it is."""
    from unpose.train import unlabelled_seconds

    if resume or (minutes is None and device.type != "cpu"):
        return recipe
    seconds = unlabelled_seconds(recipe, images, device)
    if minutes is not None:
        epochs = int(recipe.epochs * 60 * minutes / seconds)
        if epochs < 1:
            raise ValueError(
                f"one epoch takes about {seconds / recipe.epochs / 60:.1f} minutes on this machine; give at least that "
                "to --minutes, or a smaller --size"
            )
        if epochs < recipe.epochs:
            recipe, seconds = recipe.changed(epochs=epochs), seconds * epochs / recipe.epochs
    duration = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"
    height, width = images.shape[1:3]
    click.echo(
        f"an encoder {recipe.network.group} of {len(images):,} images of {height} x {width} pixels, {recipe.epochs} "
        f"epochs of {recipe.unlabelled.steps} steps: about {duration} on this machine; --minutes, --epochs and --size "
        "change it",
        err=True,
    )
    return recipe


def learn(
    images: "NDArray[np.float32]", recipe: "Recipe", folder: Path, device: Any, name: str,
    report_step: "Callable[[TrainingProgress], None]", *, resume: bool, force: bool,
) -> "UnlabelledResult":  # fmt: skip
    """Learn an encoder in a folder, with a line about every epoch."""
    from unpose.train import train_unlabelled

    def report_epoch(history: list[dict[str, float]]) -> None:
        last = history[-1]
        click.echo(
            f"epoch {len(history):>3} of {recipe.epochs}: loss {last['train_loss']:.3f}, effective rank "
            f"{last['effective_rank']:.1f}, spanning tree {last['tree_length']:.2f}, {last['seconds']:.1f} s",
            err=True,
        )

    return train_unlabelled(
        images, recipe, folder, name=name, device=device, resume=resume, force=force, progress=report_step,
        on_epoch=report_epoch,
    )  # fmt: skip


def learn_for_run(
    images: "NDArray[np.float32]", folder: Path, group: str, max_angle: float, seed: int, device: str, report: Any
) -> str:
    """Learn the encoder of ``unpose cluster --features learn``, or continue or take the one in the folder.

    Returns the folder, as ``features`` of :class:`unpose.InvariantClustering`.
    """
    import torch

    from unpose.train import StateError, UnlabelledResult, unlabelled_recipe

    recipe = unlabelled_recipe(group, max_angle=max_angle, small=torch.device(device).type == "cpu", seed=seed)
    if UnlabelledResult.is_in(folder, images, recipe):
        return str(folder)
    recipe = within_minutes(recipe, images, torch.device(device), None)

    def run(resume: bool) -> "UnlabelledResult":
        return learn(
            images, recipe, folder, torch.device(device), "images",
            lambda step: report("learn", step.step, step.steps), resume=resume, force=not resume,
        )  # fmt: skip

    try:
        result = run((folder / "state.safetensors").exists() and not (folder / "result.json").exists())
    except StateError:  # of other images or settings
        result = run(False)
    if result.has_collapsed:
        raise UserError(_COLLAPSED)
    return str(folder)


_COLLAPSED = (
    "The encoder has collapsed: the vectors of all images are about the same, and it has learnt nothing. Train longer, "
    "with a lower learning rate, or with a larger variance term"
)


def _report(
    result: "UnlabelledResult", recipe: "Recipe", images: "NDArray[np.float32]", folder: Path, source: Path
) -> None:
    """Print and write what was learnt, and how far the vectors do not depend on pose."""
    import torch

    from unpose.audit import equivariance_error
    from unpose.files import write_text
    from unpose.images import as_batch

    if result.has_collapsed:
        raise click.ClickException(_COLLAPSED + f". The run is in {folder}.")
    few = as_batch(images[:_AUDITED], dtype=torch.float32)
    encoder = result.encoder.cpu()
    measured = equivariance_error(encoder, few, recipe.network.group)
    length = encoder.description["n_classes"]
    lines = [
        f"An encoder learnt from {len(images):,} images without labels: vectors of {length} numbers.",
        f"Under the elements of {recipe.network.group} that move pixels to pixels they change by "
        f"{measured.worst_exact:.1g} of their length at most; under a {measured.control}, which is not one of them, by "
        f"{measured.control_error:.2g}.",
    ]
    click.echo("\n".join(lines))
    shown, model, place = (shlex.quote(str(each)) for each in (folder, folder / "model.safetensors", source))
    uses = [
        f"unpose cluster {place} --features {shown} -o groups",
        f"unpose audit {model} --images {place} --kind embedding",
    ]
    click.echo("Use it:\n" + "\n".join(f"  {use}" for use in uses))
    last = result.history[-1]
    card = (
        f"# {source.name}: an encoder without labels\n\n" + "\n".join(lines) + "\n\n"
        f"{recipe.network.kind}, group {recipe.network.group}, {recipe.epochs} epochs of {recipe.unlabelled.steps} "
        f"steps of {recipe.batch_size} images; loss {last['train_loss']:.3f}, effective rank "
        f"{last['effective_rank']:.1f}, mean edge of the spanning tree {last['tree_length']:.2f}.\n"
    )
    write_text(folder / "card.md", card)
