"""``unpose train``: train a network from a recipe or on a folder of labelled images."""

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.auto_group import AUTO, discovered
from unpose.cli.shared.errors import parameter_errors, training_errors
from unpose.cli.shared.inputs import ImagesPath, load_data, pick_device
from unpose.cli.shared.options import FiniteRange, device_option, root_option
from unpose.cli.shared.progress import progress
from unpose.cli.shared.train_output import (
    CURVES,
    QUICK,
    allow_missing_report,
    majority_row,
    print_estimate,
    print_parts,
    report_epoch,
    report_figures,
    report_result,
)
from unpose.runs.folder import LOCK, check_apart, folder_lock
from unpose.runs.settings import is_users_mistake

if TYPE_CHECKING:
    from unpose.data import Dataset
    from unpose.train import QuickResult, Recipe, TrainingProgress
    from unpose.train.processes import Processes

_RUN_FILES = (QUICK, CURVES, "log.csv", "state.safetensors")
"""Files of the run of a network that the quick classifier does not replace."""


@click.command(
    epilog="""\b
    Examples:
      unpose train photos/ --quick                 a first answer in seconds, without a network
      unpose train photos/ --group c8              your own images, eight rotations
      unpose train photos/ --unlabelled -o encoder
                                                   an encoder, without classes
      unpose train photos/ --split-by "slide[0-9]+"
                                                   images of one slide are never in both training and test
      unpose train --recipe digits                 a first run on small digits of the package
      unpose train --recipe rotmnist-r4            a published recipe; rotmnist-modern is our own
      unpose train --recipe digits --print > my.toml; unpose train --config my.toml
      unpose train --recipe rotmnist-refined --group c12
                                                   more rotations, starting from a network of the package with four
      unpose train --resume runs/digits-c8-seed0   continue a run that was stopped or killed
      torchrun --nproc-per-node 2 --max-restarts 3 -m unpose train --recipe digits
    """
)
@click.argument("images", required=False, type=ImagesPath())
@click.option("--recipe", "name", help="A recipe of the package; `--recipe list` lists them.")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A TOML file with your own recipe."
)
@click.option(
    "--resume", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Continue the run in this folder."
)
@click.option("--group", help="Symmetry of the network: c4, c8, d4, ...; c1 for translations only; auto finds it from "
                              "your images and classes, as unpose discover does.")  # fmt: skip
@click.option(
    "--begin", metavar="MODEL",
    help="Start from the weights of this network, a file or a name; it may have another number of rotations.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Fit a classifier to fixed invariant statistics, in seconds.")
@click.option("--unlabelled", is_flag=True, help="Learn an encoder from the images alone, without classes.")
@click.option(
    "--minutes",
    type=FiniteRange(min=0, min_open=True),
    metavar="M",
    help="With --unlabelled: train for at most about so many minutes on this machine.",
)
@click.option(
    "--split-by", metavar="WHAT",
    help="Keep images of one slide or patient in one part: a column of labels.csv in the folder, parent-folder, or a "
         "regular expression that finds the slide in every file name; for an .npz file, the name of an array.",
)  # fmt: skip
@click.option(
    "--class-weights", type=click.Choice(["none", "balanced"]),
    help="balanced: every class counts as much in the loss, however many images it has.",
)  # fmt: skip
@click.option(
    "--size", type=click.IntRange(8, 4096), metavar="PX",
    help="Longer side of the images of a folder. By default on the CPU, what two cores train on in minutes.",
)  # fmt: skip
@click.option("--epochs", type=click.IntRange(1), help="Number of epochs, instead of the recipe's.")
@click.option(
    "--seed", type=click.IntRange(0),
    help="Seed of the weights, the order of the images and the random poses, instead of the recipe's.",
)  # fmt: skip
@root_option
@device_option
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the run; by default a folder in runs/.")
@click.option("--force", is_flag=True, help="Replace the run in the folder.")
@click.option("--print", "only_print", is_flag=True, help="Print the recipe as TOML and stop.")
def command(
    images: Path | None, name: str | None, config: Path | None, resume: Path | None, group: str | None,
    begin: str | None, quick: bool, unlabelled: bool, minutes: float | None, split_by: str | None,
    class_weights: str | None, size: int | None, epochs: int | None, seed: int | None, root: Path | None, device: str,
    out: Path | None, force: bool, only_print: bool,
) -> None:  # fmt: skip
    """Train a network whose answer does not change when the image is rotated.

    IMAGES is a folder with one subfolder of images for each class (cat/1.png), or with such folders below train/,
    validation/ and test/, or an .npz file with the arrays x and y, or a run of `unpose cluster` whose groups were named
    (`unpose apply`): its settled images are learnt. Data without these parts are divided 70:15:15.

    The epoch with the best validation accuracy is kept, unless the recipe keeps the last one. The test images are used
    once, at the end.

    The command prints how many images of each class are recognised, beside two baselines on the same images: the
    answer that is right most often, and the classifier of --quick. For a folder on the CPU, it chooses image size and
    number of epochs such that two cores finish in minutes, and says so; --size and --epochs override the choice.

    The command writes a run folder with config.toml (the recipe), log.csv, curves.png, model.safetensors (the network),
    quick.safetensors (the classifier of --quick), state.safetensors (to continue from), confusion.png and confusion.csv
    (what is taken for what), card.md (a summary) and result.json. With --quick, model.safetensors is the classifier,
    and there is nothing to continue.

    With --unlabelled, IMAGES is any folder or file of images that unpose cluster reads. Views of an image at random
    poses get similar vectors (VICReg). The run folder has config.toml, log.csv (with two gauges that show a collapse),
    model.safetensors (the encoder), state.safetensors, card.md and result.json, and serves as --features of unpose
    cluster. --group is d4 (rotations and mirror images) unless it is given.
    """
    from unpose.train import RecipeError, named_recipe, recipe_names, recipe_toml
    from unpose.train.processes import joined_processes, was_restarted

    if name == "list":
        names = recipe_names()
        for known in names:
            click.echo(f"{known:{max(map(len, names))}}  {named_recipe(known).title}")
        return
    unlabelled = unlabelled or _is_unlabelled(config, resume)
    if minutes is not None and not unlabelled:
        raise click.UsageError("--minutes belongs to --unlabelled")
    if unlabelled:
        if quick or begin is not None or split_by is not None or class_weights is not None or name is not None:
            raise click.UsageError(
                "--unlabelled learns from images alone; it takes no --quick, --begin, --split-by, --class-weights or "
                "--recipe"
            )
        _run_unlabelled(images, config, resume, group, size, epochs, minutes, seed, device, out, force, only_print)
        return
    if group == AUTO:
        if images is None:
            raise click.UsageError("--group auto looks at your images; give a folder, or name the group")
        if only_print:  # otherwise it is found when the images are read
            from unpose.data import load

            training = load(images, root, size=size, split_by=split_by).train  # test images choose nothing
            group = discovered(training.images, training.labels).finite_group
    try:
        recipe, stem = _recipe(images, name, config, resume)
        if begin is not None and Path(begin).is_file():
            begin = str(Path(begin).resolve())  # the run may be continued from another folder
            size = size or (_size_of(begin) if images is not None else None)
        recipe = recipe.changed(
            group=group, begin=begin, epochs=epochs, seed=seed, size=size, split_by=split_by,
            class_weights=class_weights,
        )  # fmt: skip
    except RecipeError as error:
        raise click.UsageError(str(error)) from error
    if quick and any(each is not None for each in (group, begin, epochs, resume)):
        raise click.UsageError("--quick trains no network; it takes no --group, --begin, --epochs or --resume")
    changes = (group, begin, epochs, seed, size, split_by, class_weights, out)
    if resume is not None and (any(each is not None for each in changes) or force):
        raise click.UsageError(
            "--resume continues a run with its own settings; it takes only --root and --device besides"
        )
    if only_print:
        click.echo(recipe_toml(recipe), nl=False)
        return
    kind = "quick" if quick else recipe.network.group
    folder = resume or out or Path("runs") / f"{stem}-{kind}-seed{recipe.seed}"
    torch_device = pick_device(device)
    if quick:
        _run_quick(recipe, folder, torch_device, root, force)
        return
    may_fit = images is not None and torch_device.type == "cpu" and size is None
    resuming = resume is not None or was_restarted()
    with joined_processes(torch_device) as processes:
        _run(recipe, folder, torch_device, processes, root, resuming, force, may_fit, epochs)


def _recipe(images: Path | None, name: str | None, config: Path | None, resume: Path | None) -> "tuple[Recipe, str]":
    """The recipe that the command line names, and a short name for its folder."""
    from unpose.data import NAMES
    from unpose.train import named_recipe, read_recipe

    given = [each for each in (images, name, config, resume) if each is not None]
    if len(given) != 1:
        raise click.UsageError(
            "give one of: a folder of images, --recipe NAME, --config FILE, --resume RUN "
            f"({'none' if not given else len(given)} given); unpose train --help shows examples"
        )
    if images is not None:
        return _on_images(named_recipe("folder"), images), images.resolve().stem
    if name is not None:
        return named_recipe(name), name
    if config is not None:
        recipe = read_recipe(config)
        path = Path(recipe.data.name)
        return recipe if recipe.data.name in NAMES or not path.exists() else _on_images(recipe, path), config.stem
    if resume is None or not (resume / "config.toml").is_file():
        raise click.BadParameter(f"{resume} holds no run: it has no config.toml", param_hint="--resume")
    return read_recipe(resume / "config.toml"), resume.name


def _recipe_file(config: Path | None, resume: Path | None) -> Path | None:
    """The file of a recipe that the command line names: its own, or that of a run to continue."""
    return config or (resume / "config.toml" if resume is not None else None)


def _is_unlabelled(config: Path | None, resume: Path | None) -> bool:
    """Whether a recipe of a file or of a run to continue learns without labels."""
    from unpose.train import RecipeError, read_recipe

    path = _recipe_file(config, resume)
    try:
        return path is not None and path.is_file() and read_recipe(path).unlabelled.loss != "none"
    except (RecipeError, OSError):
        return False  # the caller reads it again, and reports what is wrong


def _run_unlabelled(
    images: Path | None, config: Path | None, resume: Path | None, group: str | None, size: int | None,
    epochs: int | None, minutes: float | None, seed: int | None, device: str, out: Path | None, force: bool,
    only_print: bool,
) -> None:  # fmt: skip
    from unpose.cli.shared.unlabelled_run import read_images, run_unlabelled
    from unpose.files.listing import split_array_name
    from unpose.train import read_recipe, recipe_toml, unlabelled_recipe

    torch_device = pick_device(device)
    changes = (images, group, size, epochs, minutes, seed, out)
    if resume is not None and (any(each is not None for each in changes) or force):
        raise click.UsageError("--resume continues a run with its own settings; it takes only --device besides")
    path, recipe = _recipe_file(config, resume), None
    if path is None and images is None:
        raise click.UsageError("--unlabelled needs a folder or file of images")
    if path is not None:
        recipe = read_recipe(path).changed(group=group, size=size, epochs=epochs, seed=seed)
        images = images or Path(recipe.data.name)
    if images is None or split_array_name(images) is None:
        raise click.UsageError(f"there are no images at {images}, which the recipe names")
    if only_print:
        if AUTO in (group, recipe and recipe.network.group):
            given = size or (recipe.data.size if recipe is not None else None)
            group = discovered(read_images(images, given, torch_device)[0]).finite_group
            recipe = recipe and recipe.changed(group=group)
        small = torch_device.type == "cpu"
        shown = recipe or unlabelled_recipe(group or "d4", small=small, epochs=epochs, seed=seed or 0)
        click.echo(recipe_toml(shown), nl=False)
        return
    folder = resume or out or Path("runs") / f"{images.resolve().stem}-unlabelled-seed{seed or 0}"
    if resume is None:
        _check_free(folder, force, images)
    else:
        allow_missing_report(folder)
    click.get_current_context().with_resource(folder_lock(folder))
    run_unlabelled(
        images, folder, recipe, torch_device, group=group, size=size, epochs=epochs, minutes=minutes, seed=seed,
        resume=resume is not None, force=force, training_progress=_training_progress(False),
    )  # fmt: skip


def _on_images(recipe: "Recipe", images: Path) -> "Recipe":
    """The recipe with the absolute path of the images, so that the run can be continued from another folder."""
    from unpose.files import printable_name

    path = str(images.resolve())
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise click.UsageError(f"{printable_name(path)} is not UTF-8, as config.toml must be; rename it") from error
    return replace(recipe, data=replace(recipe.data, name=path))


def _size_of(path: str) -> int:
    """The longer side of the images of a network."""
    from unpose.train import load_network

    with parameter_errors("--begin", (ValueError, OSError)):
        return int(max(load_network(path).description["image_size"]))


def _load(recipe: "Recipe", root: Path | None, quiet: bool = False) -> "Dataset":
    return load_data(recipe.data.name, root, recipe.data.size, split_by=recipe.data.split_by, quiet=quiet)


def _run(
    recipe: "Recipe", folder: Path, device: Any, processes: "Processes", root: Path | None, resume: bool, force: bool,
    may_fit: bool, epochs: int | None,
) -> None:  # fmt: skip
    """Train a network, and measure it beside the baselines."""
    from unpose.train import build_network, train

    quiet = not processes.is_first
    if not (quiet or resume):
        _check_free(folder, force, Path(recipe.data.name))
    if not quiet:
        click.get_current_context().with_resource(folder_lock(folder))
    if quiet:
        processes.wait()  # the first process downloads and reads the data, then the others find the files
    dataset, found = _load(recipe, root, quiet), None
    if recipe.network.group == AUTO:
        found = discovered(dataset.train.images, dataset.train.labels, quiet=quiet)
        recipe = recipe.changed(group=found.finite_group)
    if may_fit:
        recipe, dataset = _fit_to_cpu(recipe, dataset, root, epochs)
    if not quiet:
        processes.wait()
        print_parts(dataset)
    again = f"unpose train --resume {shlex.quote(str(folder))}"
    if root is not None:
        again += f" --root {shlex.quote(str(root))}"
    if resume and not quiet:
        allow_missing_report(folder)
    with training_errors(again):
        network = build_network(recipe, dataset)  # fails at once if the recipe does not suit the data
        baseline = None if quiet else _quick_baseline(dataset, recipe, device)
        if not quiet and device.type == "cpu":
            print_estimate(network, recipe, dataset, resume)
        with _training_progress(quiet) as report:
            result = train(
                dataset, recipe, folder, device=device, processes=processes, resume=resume, force=force,
                discovery=found, progress=report, on_epoch=lambda history: report_epoch(history, folder, recipe.epochs),
            )  # fmt: skip
        if not quiet:
            report_result(result, folder, dataset, recipe, baseline)


def _run_quick(recipe: "Recipe", folder: Path, device: Any, root: Path | None, force: bool) -> None:
    """Fit the quick classifier and measure it; nothing can be continued, so nothing but results is written."""
    import json

    from unpose.files import write_text
    from unpose.train import class_figures, majority_accuracy, recipe_toml, save_quick, train_quick

    _check_free(folder, force, Path(recipe.data.name))
    click.get_current_context().with_resource(folder_lock(folder))
    dataset = _load(recipe, root)
    print_parts(dataset)
    weights = recipe.class_weights
    try:
        result = train_quick(dataset, class_weights=weights, random_state=recipe.seed, device=device)
        validation = class_figures(result.network.to(device), dataset.validation, dataset.classes)
        figures = class_figures(result.network, dataset.test, dataset.classes)
        folder.mkdir(parents=True, exist_ok=True)
        for name in _RUN_FILES:
            (folder / name).unlink(missing_ok=True)
        write_text(folder / "config.toml", recipe_toml(recipe))
        save_quick(folder / "model.safetensors", result, dataset)
        table = {
            "title": "quick",
            "data": {"name": dataset.name, "source": dataset.source},
            "images": {"train": len(dataset.train), "validation": len(dataset.validation), "test": len(dataset.test)},
            "classifier": result.classifier,
            "class_weights": weights,
            "cross_validation_accuracy": result.accuracy,
            "validation_accuracy": validation.accuracy,
            "test_accuracy": figures.accuracy,
            "test_by_class": figures.as_dictionary(),
            "majority_accuracy": majority_accuracy(dataset.train, dataset.test),
        }
        write_text(folder / "result.json", json.dumps(table, indent=2) + "\n")
    except (ValueError, OSError) as error:
        if isinstance(error, ValueError) and not is_users_mistake(error):
            raise
        raise click.UsageError(str(error)) from error
    click.echo(
        f"Invariant statistics and a classifier ({result.classifier}): {result.accuracy:.2%} right in cross-validation "
        f"of {result.images:,} training images."
    )
    rows = {"quick classifier": (validation.accuracy, figures.accuracy)} | majority_row(dataset)
    report_figures(folder, dataset, figures, rows, weights)


def _fit_to_cpu(
    recipe: "Recipe", dataset: "Dataset", root: Path | None, epochs: int | None
) -> "tuple[Recipe, Dataset]":
    """Choose image size and epochs for the CPU; epochs that the user gave are kept."""
    from unpose.train.cost import fit_to_cpu

    is_folder, size = Path(recipe.data.name).is_dir(), max(dataset.image_size)
    chosen = fit_to_cpu(
        recipe, len(dataset.train), dataset.channels, len(dataset.classes), size, may_resize=is_folder
    ).changed(epochs=epochs)
    if chosen.data.size is not None and chosen.data.size != size:
        dataset = _load(chosen, root, quiet=True)
    return chosen, dataset


def _quick_baseline(dataset: "Dataset", recipe: "Recipe", device: Any) -> "QuickResult | None":
    """The quick classifier of the same training images, as the first answer and as the baseline of the network."""
    from unpose.train import train_quick

    try:
        result = train_quick(dataset, class_weights=recipe.class_weights, random_state=recipe.seed, device=device)
    except ValueError as error:
        if not is_users_mistake(error):
            raise
        click.echo(f"note: no quick classifier as a baseline: {error}", err=True)
        return None
    click.echo(
        f"first answer: the quick classifier is right for {result.accuracy:.2%} of {result.images:,} training images "
        "in cross-validation",
        err=True,
    )
    return result


def _check_free(folder: Path, force: bool, source: Path) -> None:
    """Refuse to replace the files in a folder, unless they are a run and --force is given, before data are read.

    The folder must not contain the images or lie among them.
    """
    from unpose.train import RecipeError, read_recipe

    if source.exists():
        check_apart(folder, source)
    if folder.exists() and not folder.is_dir():
        raise click.UsageError(f"{folder} is a file; a run needs a folder of its own")
    if not folder.is_dir() or all(entry.name == LOCK for entry in folder.iterdir()):
        return
    try:
        read_recipe(folder / "config.toml")
    except (RecipeError, OSError) as error:
        why = ", and --force replaces nothing else" if force else ""
        raise click.UsageError(f"{folder} is not empty and holds no run{why}; give another folder") from error
    if not force:
        raise click.UsageError(
            f"{folder} already holds a run; give another folder, --resume {shlex.quote(str(folder))} to continue it, "
            "or --force to replace it"
        )


@contextmanager
def _training_progress(quiet: bool) -> Iterator[Any]:
    """Show the progress of a training; the first Ctrl-C stops it after the current step, a second one at once."""
    from unpose.train import StoppedError

    is_stopping = False

    def stop_after_step(number: int, frame: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, stop_after_step)
    try:
        with progress(quiet=quiet) as report:

            def report_step(step: "TrainingProgress") -> None:
                report("train", step.step, step.steps, f"epoch {step.epoch} of {step.epochs}, loss {step.loss:.4f}")
                if is_stopping:
                    raise StoppedError

            yield report_step
    finally:
        signal.signal(signal.SIGINT, previous)
