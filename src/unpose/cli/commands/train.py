"""``unpose train``: train a network from a recipe or on a folder of labelled images."""

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.inputs import load_data, pick_device
from unpose.cli.shared.options import device_option, root_option
from unpose.cli.shared.progress import progress

if TYPE_CHECKING:
    from unpose.train import Processes, Recipe, TrainingProgress, TrainingResult

_CURVES = "curves.png"


@click.command(
    epilog="""\b
    Examples:
      unpose train photos/ --group c8              your own images, eight rotations
      unpose train --recipe digits                 a first run on small digits of the package
      unpose train --recipe rotmnist-r4            a published recipe; rotmnist-modern is our own
      unpose train --recipe digits --print > my.toml; unpose train --config my.toml
      unpose train --recipe rotmnist-refined --group c12
                                                   more rotations, starting from a network of the package with four
      unpose train --resume runs/digits-c8-seed0   continue a run that was stopped or killed
      torchrun --nproc-per-node 2 --max-restarts 3 -m unpose train --recipe digits
    """
)
@click.argument("images", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--recipe", "name", help="A recipe of the package; `--recipe list` lists them.")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A TOML file with your own recipe."
)
@click.option(
    "--resume", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Continue the run in this folder."
)
@click.option("--group", help="Symmetry of the network: c4, c8, d4, ...; c1 for translations only.")
@click.option(
    "--begin", metavar="MODEL",
    help="Start from the weights of this network, a file or a name; it may have another number of rotations.",
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
    begin: str | None, epochs: int | None, seed: int | None, root: Path | None, device: str, out: Path | None,
    force: bool, only_print: bool,
) -> None:  # fmt: skip
    """Train a network whose answer does not change when the image is rotated.

    IMAGES is a folder with one subfolder of images for each class (cat/1.png), or with such folders below train/,
    validation/ and test/, or an .npz file with the arrays x and y. Data without these parts are divided 70:15:15.

    The epoch with the best validation accuracy is kept, unless the recipe keeps the last one. The test images are used
    once, at the end.

    The command writes a run folder with config.toml (the recipe), log.csv, curves.png, model.safetensors (the network),
    state.safetensors (to continue from) and result.json.
    """
    from unpose.train import RecipeError, joined_processes, named_recipe, recipe_names, recipe_toml, was_restarted

    if name == "list":
        names = recipe_names()
        for known in names:
            click.echo(f"{known:{max(map(len, names))}}  {named_recipe(known).title}")
        return
    try:
        recipe, stem = _recipe(images, name, config, resume)
        if begin is not None and Path(begin).is_file():
            begin = str(Path(begin).resolve())  # the run may be continued from another folder
        recipe = recipe.changed(group=group, begin=begin, epochs=epochs, seed=seed)
    except RecipeError as error:
        raise click.UsageError(str(error)) from error
    if resume is not None and (any(each is not None for each in (group, begin, epochs, seed, out)) or force):
        raise click.UsageError(
            "--resume continues a run with its own settings; it takes only --root and --device besides"
        )
    if only_print:
        click.echo(recipe_toml(recipe), nl=False)
        return
    folder = resume or out or Path("runs") / f"{stem}-{recipe.network.group}-seed{recipe.seed}"
    torch_device = pick_device(device)
    with joined_processes(torch_device) as processes:
        result = _run(recipe, folder, torch_device, processes, root, resume is not None or was_restarted(), force)
    if processes.is_first:
        _print_result(result, folder)


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


def _on_images(recipe: "Recipe", images: Path) -> "Recipe":
    """The recipe with the absolute path of the images, so that the run can be continued from another folder."""
    from unpose.files import printable_name

    path = str(images.resolve())
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise click.UsageError(f"{printable_name(path)} is not UTF-8, as config.toml must be; rename it") from error
    return replace(recipe, data=replace(recipe.data, name=path))


def _run(
    recipe: "Recipe", folder: Path, device: Any, processes: "Processes", root: Path | None, resume: bool, force: bool
) -> "TrainingResult":
    from unpose.train import DivergedError, StoppedError, build_network, train

    quiet = not processes.is_first
    if not (quiet or resume):
        _check_free(folder, force)
    if quiet:
        processes.wait()  # the first process downloads and reads the data, then the others find the files
    dataset = load_data(recipe.data.name, root, recipe.data.size, quiet=quiet)
    if not quiet:
        processes.wait()
        click.echo(f"{dataset.name}: {dataset.source}", err=True)
        click.echo(
            f"{len(dataset.train):,} images for training, {len(dataset.validation):,} for validation, "
            f"{len(dataset.test):,} for the test; {len(dataset.classes)} classes",
            err=True,
        )
    again = f"unpose train --resume {shlex.quote(str(folder))}"
    if root is not None:
        again += f" --root {shlex.quote(str(root))}"
    try:
        build_network(recipe, dataset)  # fails at once if the recipe does not suit the data
        with _training_progress(quiet) as report:
            return train(
                dataset, recipe, folder, device=device, processes=processes, resume=resume, force=force,
                progress=report, on_epoch=lambda history: _report_epoch(history, folder, recipe.epochs),
            )  # fmt: skip
    except StoppedError:
        click.echo(f"\nStopped; all work is saved. Continue with: {again}", err=True)
        raise click.exceptions.Exit(130) from None
    except DivergedError as error:
        raise click.ClickException(str(error)) from error
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error


def _check_free(folder: Path, force: bool) -> None:
    """Refuse to replace the files in a folder, unless they are a run and --force is given, before data are read."""
    from unpose.train import RecipeError, read_recipe

    if not folder.is_dir() or not any(folder.iterdir()):
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


def _report_epoch(history: list[dict[str, float]], folder: Path, epochs: int) -> None:
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
        panels.append(figures.curve(curves, x_label="epoch, from 0", y_label=label))
    write_image(folder / _CURVES, figures.beside(panels, title="Training"))


def _print_result(result: "TrainingResult", folder: Path) -> None:
    click.echo(
        f"Kept epoch {result.best_epoch} of {len(result.history)}, with validation accuracy "
        f"{result.validation_accuracy:.2%}."
    )
    click.echo(f"Test accuracy {result.test_accuracy:.2%}; the test images were used once, for this number.")
    click.echo(f"The network is {folder / 'model.safetensors'}; the curves are in {folder / _CURVES}.")
