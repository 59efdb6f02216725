"""``unpose demo``: handwritten digits at random pose, grouped without being told what a digit is."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unpose.cli.shared.errors import Refused
from unpose.cli.shared.settings import Settings
from unpose.cli.shared.tables import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PER_CLASS = 30
_SIDE, _MARGIN = 28, 8
_OWNER = "unpose demo"
_HEAD = 256
"""Bytes of a PNG among which its owner is."""


def cluster_demo(out: Path, seed: int, force: bool, as_json: bool) -> None:
    """Write digits turned every way as a folder of PNGs, cluster the folder, say where the page is."""
    from unpose.cli.commands.cluster import run_cluster
    from unpose.files.atomic import write_image
    from unpose.runs.folder import check_run

    began = time.perf_counter()
    folder, run = out / "digits", out / "run"
    check_run(run, folder, force=force, resume=False)
    _check_own(folder)
    images, digits = turned_digits(seed)
    for number, (image, digit) in enumerate(zip(images, digits, strict=True)):
        write_image(folder / str(digit) / f"{number:03d}.png", image, software=_OWNER)
    click.echo(f"{len(images)} handwritten digits, each turned and shifted at random, are in {folder}.", err=True)
    told = run_cluster(folder, run, Settings(seed=seed), force=force, resume=False)
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    click.echo(
        f"{counted(told['clusters'], 'group')} found in {told['images']} images, without labels, in "
        f"{time.perf_counter() - began:.0f} s; agreement with the true digits {told['agreement']['accuracy']:.1%} "
        f"(one group for each), {told['agreement']['purity']:.1%} (each group its most frequent digit). "
        "A 6 upside down is much like a 9."
    )
    click.echo(f"The page is {told['report']}: open it in a browser.")


def _check_own(folder: Path) -> None:
    """Refuse a folder with images that no demonstration wrote: they would be replaced, or taken for digits."""
    for path in folder.rglob("[!.]*"):
        if not _is_own(path):
            raise Refused(f"{folder} holds {path.name!r}, which no demonstration wrote; give another folder with -o")


def _is_own(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():  # a link would lead our digits to somebody's folder
        return path.is_dir() and not path.is_symlink()
    with path.open("rb") as stream:
        return _OWNER.encode() in stream.read(_HEAD)


def turned_digits(seed: int) -> "tuple[NDArray, NDArray]":
    """scikit-learn's digits of 8 x 8 pixels, scaled up, at random turns and shifts: images and digits."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    from unpose.data import posed

    small = load_digits()
    rng = np.random.default_rng(seed)
    chosen = np.concatenate(
        [rng.choice(np.flatnonzero(small.target == d), _PER_CLASS, replace=False) for d in range(10)]
    )
    large = [
        np.asarray(Image.fromarray(image.astype(np.float32)).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC))
        for image in small.images[chosen]
    ]
    frames = np.pad(np.clip(np.stack(large) / 16, 0, 1), ((0, 0), (_MARGIN,) * 2, (_MARGIN,) * 2))  # (n, 44, 44)
    images = posed(frames, "se2", max_shift=4.0, random_state=seed).images
    return np.clip(images, 0, 1), small.target[chosen]
