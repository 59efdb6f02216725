"""``unpose demo``: demonstrations that need no data of your own; ``unpose demo learn`` is a second one."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unpose.cli.commands.cluster import run_cluster
from unpose.cli.shared.angle_sweep import N_ANGLES, sweep_angles, sweep_picture
from unpose.cli.shared.errors import UserError
from unpose.cli.shared.inputs import load_data
from unpose.cli.shared.output import counted, write_picture
from unpose.runs import RunSettings
from unpose.runs.folder import RunFolder

if TYPE_CHECKING:
    from numpy.typing import NDArray

_IMAGES_PER_DIGIT = 30
_SIDE, _MARGIN = 28, 8
_SOFTWARE_TAG = "unpose demo"
_PNG_HEADER_BYTES = 256
"""The software tag of a PNG file is among these first bytes."""

_out_option = click.option(
    "-o", "--out", default=Path("demo"), show_default=True, type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the results.",
)  # fmt: skip


@click.group(
    invoke_without_command=True,
    epilog="""\b
    Examples:
      unpose demo                  group digits; the page is demo/run/report.html
      unpose demo learn            train two small networks on upright digits, test them on rotated ones
    """,
)
@_out_option
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of digits and poses.")
@click.option("--force", is_flag=True, help="Replace the run of an earlier demonstration.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
@click.pass_context
def command(ctx: click.Context, out: Path, seed: int, force: bool, as_json: bool) -> None:
    """Group a few hundred handwritten digits, each randomly rotated and shifted, without labels.

    The digits come with the package; nothing is downloaded. The command writes them to OUT/digits as PNG files and
    runs `unpose cluster` on that folder, which writes OUT/run with a page to look at. Under a minute on two cores.
    """
    if ctx.invoked_subcommand is None:
        _cluster_digits(out, seed, force, as_json)


def _cluster_digits(out: Path, seed: int, force: bool, as_json: bool) -> None:
    from unpose.files import write_image

    began = time.perf_counter()
    folder, run = out / "digits", out / "run"
    RunFolder(run).check(folder, force=force, resume=False)
    _check_own_files(folder)
    images, digits = rotated_digits(seed, _IMAGES_PER_DIGIT)
    for index, (image, digit) in enumerate(zip(images, digits, strict=True)):
        write_image(folder / str(digit) / f"{index:03d}.png", image, software=_SOFTWARE_TAG)
    click.echo(f"{len(images)} handwritten digits, each randomly rotated and shifted, are in {folder}.", err=True)
    summary = run_cluster(folder, run, RunSettings(seed=seed), force=force, resume=False)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    click.echo(
        f"{counted(summary['clusters'], 'group')} found in {summary['images']} images, without labels, in "
        f"{time.perf_counter() - began:.0f} s. Agreement with the true digits: {summary['agreement']['accuracy']:.1%} "
        f"with one group for each digit, {summary['agreement']['purity']:.1%} if each group counts as its most "
        "frequent digit. (A 6 upside down looks much like a 9.)"
    )
    click.echo(f"The page is {summary['report']}: open it in a browser.")


def _check_own_files(folder: Path) -> None:
    """Refuse a folder with files that no demonstration wrote: they would be replaced, or taken for digits."""
    for path in folder.rglob("[!.]*"):
        if not _is_own_file(path):
            raise UserError(
                f"{folder} contains {path.name!r}, which no demonstration wrote; give another folder with -o"
            )


def _is_own_file(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():  # through a link we would write into somebody's folder
        return path.is_dir() and not path.is_symlink()
    with path.open("rb") as stream:
        return _SOFTWARE_TAG.encode() in stream.read(_PNG_HEADER_BYTES)


def rotated_digits(seed: int, per_digit: int) -> "tuple[NDArray, NDArray]":
    """scikit-learn's digits, enlarged from 8 x 8 pixels, at random poses: images (n, 44, 44) and digits (n,)."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    from unpose.data import posed

    small = load_digits()
    rng = np.random.default_rng(seed)
    chosen = np.concatenate(
        [rng.choice(np.flatnonzero(small.target == digit), per_digit, replace=False) for digit in range(10)]
    )
    large = [
        np.asarray(Image.fromarray(image.astype(np.float32)).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC))
        for image in small.images[chosen]
    ]
    frames = np.pad(np.clip(np.stack(large) / 16, 0, 1), ((0, 0), (_MARGIN,) * 2, (_MARGIN,) * 2))  # (n, 44, 44)
    images = posed(frames, "se2", max_shift=4.0, random_state=seed).images
    return np.clip(images, 0, 1), small.target[chosen]


@command.command(
    "learn",
    short_help="Train two networks on upright digits, test them on rotated ones.",
    epilog="""\b
    Examples:
      unpose demo learn
      unpose demo learn --epochs 4 -o quick
    """,
)
@_out_option
@click.option("--epochs", default=16, show_default=True, type=click.IntRange(1), help="Passes over the images.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the training.")
def learn(out: Path, epochs: int, seed: int) -> None:
    """Train two small networks on upright digits and test them on rotated ones.

    One is a convolutional network that is invariant to eight rotations (group c8). The other is its baseline for
    translations only (c1), with as many parameters, trained in the same way on the same digits. The command writes the
    two networks (learn-c8.safetensors, learn-c1.safetensors) and learn.png, which shows their accuracy against the
    rotation angle of the test images. One or two minutes on two cores; nothing is downloaded.
    """
    from unpose.nn import count_parameters
    from unpose.train import accuracy_by_angle, baseline_description, build_network, named_recipe, save_network, train

    dataset = load_data("digits", None)
    recipe = named_recipe("digits").changed(group="c8", epochs=epochs, seed=seed)
    baseline = baseline_description(build_network(recipe, dataset).description)
    options = {name: baseline[name] for name in ("width", "stages", "kernel_size")}
    recipes = {
        "eight rotations (c8)": recipe,
        "its baseline, translations only (c1)": replace(
            recipe, network=replace(recipe.network, group="c1", options=options)
        ),
    }
    accuracies = {}
    for name, each in recipes.items():
        start = time.perf_counter()
        result = train(dataset, each)
        accuracies[name] = curve = accuracy_by_angle(result.network, dataset.test, sweep_angles())
        out.mkdir(parents=True, exist_ok=True)
        save_network(out / f"learn-{each.network.group}.safetensors", result.network, classes=dataset.classes)
        click.echo(
            f"{name}: {count_parameters(result.network):,} parameters, {time.perf_counter() - start:.0f} s; accuracy "
            f"{curve[0]:.1%} upright, {curve[1:].mean():.1%} rotated on average, {curve.min():.1%} at worst"
        )
    title = f"Trained upright, tested rotated: {len(dataset.test)} digits at {N_ANGLES} angles"
    write_picture(out / "learn.png", sweep_picture(accuracies, title))
    click.echo(f"The picture is {out / 'learn.png'}.")
