"""``unpose train``: from a recipe, a configuration or a folder of labelled images to a network."""

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.networks import load_data, pick_device

if TYPE_CHECKING:
    from unpose.train import Moment, Outcome, Processes, Recipe

_CURVES = "curves.png"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("images", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--recipe", "name", help="A recipe of the package; `--recipe list` names them.")
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A recipe of your own.")
@click.option(
    "--resume", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Go on with the run in this folder."
)
@click.option("--group", help="Symmetry of the network: c4, c8, d4, ...; c1 for translations only.")
@click.option("--begin", help="Weights to begin with: a model's file or name, of the same network for any turns.")
@click.option("--epochs", type=click.IntRange(1), help="Instead of the recipe's.")
@click.option(
    "--seed", type=click.IntRange(0), help="Of the weights, the order and the poses; instead of the recipe's."
)
@click.option("--root", type=click.Path(path_type=Path), help="Where the data set lies; downloads go there too.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the run; by default below runs/.")
@click.option("--force", is_flag=True, help="Replace the run in the folder.")
@click.option("--print", "only_print", is_flag=True, help="Print the recipe as TOML and stop.")
def command(
    images: Path | None, name: str | None, config: Path | None, resume: Path | None, group: str | None,
    begin: str | None, epochs: int | None, seed: int | None, root: Path | None, device: str, out: Path | None,
    force: bool, only_print: bool,
) -> None:  # fmt: skip
    """Train a network for which a turned image is the same image.

    IMAGES is a folder with one folder of pictures per class (cat/1.png), perhaps below train/, validation/ and test/,
    or an .npz file with x and y. It is divided 70:15:15 unless it is divided already.

    \b
    Examples:
      unpose train photos/ --group c8              your own images, eight rotations
      unpose train --recipe digits                 a first run, on small digits that need no file
      unpose train --recipe rotmnist-r4            as published; rotmnist-modern is our own
      unpose train --recipe digits --group c1      the same for translations only
      unpose train --recipe digits --print > my.toml; unpose train --config my.toml
      unpose train --recipe rotmnist-refined --group c12
                                                   more rotations, from the weights of four that come along
      unpose train --resume runs/digits-c8-seed0   after it was stopped or killed
      torchrun --nproc-per-node 2 --max-restarts 3 -m unpose train --recipe digits

    The epoch is chosen on validation images, unless the recipe keeps the last; the test images are used once, at the
    end. The run's folder holds config.toml, log.csv, curves.png, model.safetensors (the network), state.safetensors (to
    go on from) and result.json.
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
            begin = str(Path(begin).resolve())  # a run may be gone on with from elsewhere
        recipe = recipe.changed(group=group, begin=begin, epochs=epochs, seed=seed)
    except RecipeError as error:
        raise click.UsageError(str(error)) from error
    if resume is not None and (any(each is not None for each in (group, begin, epochs, seed, out)) or force):
        raise click.UsageError("--resume goes on with a run as it was begun; give it no other option but --root")
    if only_print:
        click.echo(recipe_toml(recipe), nl=False)
        return
    folder = resume or out or Path("runs") / f"{stem}-{recipe.network.group}-seed{recipe.seed}"
    found = pick_device(device)
    with joined_processes(found) as processes:
        outcome = _run(recipe, folder, found, processes, root, resume is not None or was_restarted(), force)
    if processes.is_first:
        _say(outcome, folder)


def _recipe(images: Path | None, name: str | None, config: Path | None, resume: Path | None) -> "tuple[Recipe, str]":
    """The recipe that is meant, and a short name for its folder."""
    from unpose.data import NAMES
    from unpose.train import named_recipe, read_recipe

    given = [each for each in (images, name, config, resume) if each is not None]
    if len(given) != 1:
        raise click.UsageError(
            "give one of: a folder of images, --recipe NAME, --config FILE, --resume RUN "
            f"({'none' if not given else len(given)} given); unpose train --help shows examples"
        )
    if images is not None:
        return _at_place(named_recipe("folder"), images), images.resolve().stem
    if name is not None:
        return named_recipe(name), name
    if config is not None:
        recipe = read_recipe(config)
        here = Path(recipe.data.name)
        return recipe if recipe.data.name in NAMES or not here.exists() else _at_place(recipe, here), config.stem
    if resume is None or not (resume / "config.toml").is_file():
        raise click.BadParameter(f"{resume} holds no run: config.toml is not there", param_hint="--resume")
    return read_recipe(resume / "config.toml"), resume.name


def _at_place(recipe: "Recipe", images: Path) -> "Recipe":
    """The recipe for images that are named by their whole path: a run may be gone on with from elsewhere."""
    from unpose.files.frames import printable

    whole = str(images.resolve())
    try:
        whole.encode()
    except UnicodeEncodeError as error:
        raise click.UsageError(f"{printable(whole)} is no UTF-8, which config.toml must be; rename it") from error
    return replace(recipe, data=replace(recipe.data, name=whole))


def _run(
    recipe: "Recipe", folder: Path, device: Any, processes: "Processes", root: Path | None, resume: bool, force: bool
) -> "Outcome":
    from unpose.train import Diverged, Stopped, build_network, train

    quiet = not processes.is_first
    if not (quiet or resume):
        _check_free(folder, force)
    if quiet:
        processes.wait()  # one process fetches and reads first, the others find the files
    dataset = load_data(recipe.data.name, root, recipe.data.size, quiet=quiet)
    if not quiet:
        processes.wait()
        click.echo(f"{dataset.name}: {dataset.source}", err=True)
        click.echo(
            f"{len(dataset.train):,} images to train, {len(dataset.validation):,} to validate, {len(dataset.test):,} "
            f"to test at the end; {len(dataset.classes)} classes",
            err=True,
        )
    again = f"unpose train --resume {shlex.quote(str(folder))}"
    if root is not None:
        again += f" --root {shlex.quote(str(root))}"
    try:
        build_network(recipe, dataset)  # a recipe that does not fit its data is a wrong call, not a failed run
        with _watching(quiet) as watch:
            return train(
                dataset, recipe, folder, device=device, processes=processes, resume=resume, force=force,
                watch=watch, note=lambda history: _note(history, folder, recipe.epochs),
            )  # fmt: skip
    except Stopped:
        click.echo(f"\nStopped; nothing is lost. Go on with: {again}", err=True)
        raise click.exceptions.Exit(130) from None
    except Diverged as error:
        raise click.ClickException(str(error)) from error
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error


def _check_free(folder: Path, force: bool) -> None:
    """Refuse, before any data is read, to replace what is in a folder unless it is a run and that is asked for."""
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
            f"{folder} holds a run and nothing is overwritten; give another folder, "
            f"--resume {shlex.quote(str(folder))} to go on with it, or --force to replace it"
        )


@contextmanager
def _watching(quiet: bool) -> Iterator[Any]:
    """A bar with the time left; the first Ctrl-C ends the run after the step under way, a second one at once."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from unpose.train import Stopped

    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    before = signal.signal(signal.SIGINT, ask)
    try:
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
            task = bars.add_task("starting")

            def watch(moment: "Moment") -> None:
                told = f"epoch {moment.epoch} of {moment.epochs}, loss {moment.loss:.4f}"
                bars.update(task, total=moment.steps, completed=moment.step, description=told)
                if asked:
                    raise Stopped

            yield watch
    finally:
        signal.signal(signal.SIGINT, before)


def _note(history: list[dict[str, float]], folder: Path, epochs: int) -> None:
    """A line for the epoch, and the curves so far."""
    from unpose.files.atomic import write_image
    from unpose.report import figures

    last = history[-1]
    click.echo(
        f"epoch {len(history):>3} of {epochs}: loss {last['train_loss']:.4f}, training {last['train_accuracy']:.2%}, "
        f"validation {last['validation_accuracy']:.2%}, {last['seconds']:.1f} s",
        err=True,
    )
    panels = []
    for what, label, factor in (("loss", "mean cross entropy", 1.0), ("accuracy", "right answers, per cent", 100.0)):
        lines = {
            {"train": "training", "validation": "validation"}[part]: [factor * row[f"{part}_{what}"] for row in history]
            for part in ("train", "validation")
        }
        panels.append(figures.curve(lines, x_label="epoch, from 0", y_label=label))
    write_image(folder / _CURVES, figures.beside(panels, title="Training"))


def _say(outcome: "Outcome", folder: Path) -> None:
    click.echo(
        f"Kept: epoch {outcome.best_epoch} of {len(outcome.history)}, {outcome.validation_accuracy:.2%} right on "
        "validation."
    )
    click.echo(f"Test accuracy {outcome.test_accuracy:.2%}; the test images were used once, for this number.")
    click.echo(f"The network is {folder / 'model.safetensors'}; curves in {folder / _CURVES}.")
