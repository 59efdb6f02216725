"""``unpose export``: the results of a run in the form the next tool wants."""

import json
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import Refused
from unpose.cli.shared.output import check_output, is_stream, write_output, writing
from unpose.cli.shared.tables import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.runs.finished import FinishedRun

_LONGEST_NAME = 120
_FORMS = ("csv", "folders", "npz", "star")
_EXPORTED = re.compile(r"(cluster-\d{3,}|no-cluster)(/\d{6,}-[^/]+)?", re.DOTALL)
"""Paths that an export to folders makes."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--to", "form", required=True, type=click.Choice(_FORMS))
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="File, or folder for `folders`.")
@click.option("--aligned", is_flag=True, help="folders: images brought onto their mean, as PNG, instead of the files.")
@click.option("--images", type=click.Path(exists=True, path_type=Path), help="Where the images are now, if they moved.")
@click.option("--pixel-size", type=click.FloatRange(0, min_open=True), metavar="A",
              help="star: Angstrom for a pixel of the files; origins are then in Angstrom.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def command(
    run: Path, form: str, out: Path, aligned: bool, images: Path | None, pixel_size: float | None, force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Hand the results of a run on.

    \b
      csv       the table: path, frame, cluster, confidence, angle, shift, scale, mirrored, distance (the RMS
                difference of pixels from the mean), and the class folder where there are any
      folders   one folder for each cluster with copies of its images, or with --aligned the images upright; these,
                and images out of stacks, are PNGs of 8 bits, as the page shows them: npz keeps all values
      npz       NumPy arrays: aligned, labels, confidences, poses, means, names
      star      RELION's columns: image name, class (from 1), psi, origin in pixels of the files, and with mirrors flip

    Shifts of the table are in pixels of the canvas that config.toml names, and so are origins where images of several
    sizes were brought to it.

    \b
    Examples:
      unpose export run --to csv -o table.csv
      unpose export run --to folders -o sorted
      unpose export run --to folders -o upright --aligned
      unpose export run --to npz -o results.npz
      unpose export run --to star -o classes.star --pixel-size 1.35

    The images themselves are only read, never changed. npz and --aligned need them where they were, and unchanged.
    """
    from unpose.runs.finished import read_run, table

    found = read_run(run)
    check_output(out, force)
    if form == "csv":
        write_output(out, table(found).encode())
    elif form == "star":
        if found.source_scale is None:
            click.echo("The images had several sizes: origins are in pixels of the canvas.", err=True)
        write_output(out, _star(found, pixel_size).encode())
    elif form == "npz":
        write_output(out, _npz(found, images))
    else:
        _check_export(out)
        with writing(out):
            _folders(found, out, images, aligned)
    told = {"run": str(run), "to": form, "out": str(out), "images": len(found.names)}
    shown = json.dumps(told, indent=2) if as_json else f"{counted(len(found.names), 'image')}, in {out}."
    click.echo(shown, err=is_stream(out))


@dataclass(frozen=True)
class _Pixels:
    """The images of a run, read again."""

    images: "NDArray"
    window: tuple[float, float]


def _read_again(run: "FinishedRun", moved: Path | None) -> _Pixels:
    """The images as the run read them; others under the same names would be a wrong export."""
    from unpose.cli.shared.progress import progress
    from unpose.data import read_images
    from unpose.runs.folder import fingerprint

    source = moved or run.source
    try:
        with progress() as report:
            found = read_images(source, size=max(run.shape), progress=report)
    except ValueError as error:
        raise Refused(f"the images of the run cannot be read again: {error}; --images says where they are") from error
    if fingerprint(found) != run.about["fingerprint"]:
        raise Refused(f"{source} has changed since the run: its images, or what can be read of them, are not the same")
    low, high = (float(value) for value in run.pictures["window"])
    return _Pixels(found.images, (low, high))


def _npz(run: "FinishedRun", moved: Path | None) -> bytes:
    import io

    import numpy as np

    from unpose.cluster.pictures import averages, upright

    pixels = _read_again(run, moved).images
    model = run.model
    stream = io.BytesIO()
    np.savez_compressed(
        stream, aligned=upright(pixels, model.poses_), labels=model.labels_, confidences=model.confidences_,
        poses=model.poses_, means=averages(pixels, model.labels_, model.poses_, model.n_clusters_)[0],
        names=np.array(run.names),
    )  # fmt: skip
    return stream.getvalue()


def _folders(run: "FinishedRun", out: Path, moved: Path | None, aligned: bool) -> None:
    """Copies by cluster, made beside the target and put in its place when all are there."""
    from unpose.cluster.pictures import upright
    from unpose.files.atomic import write_image
    from unpose.runs.finished import cluster_name

    paths = [_moved_path(Path(path), run, moved) for path in run.about["paths"]]
    several = {path for path, count in Counter(paths).items() if count > 1}  # stacks: no file is one image
    pixels = _read_again(run, moved) if aligned or several else None
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.", suffix=".tmp") as beside:
        made = Path(beside) / "made"
        for i, (name, path) in enumerate(zip(run.names, paths, strict=True)):
            folder = made / cluster_name(int(run.model.labels_[i]))
            folder.mkdir(parents=True, exist_ok=True)
            if pixels is not None and (aligned or path in several):
                image = pixels.images[i : i + 1]
                shown = upright(image, run.model.poses_[i : i + 1]) if aligned else image
                low, high = pixels.window
                write_image(folder / f"{i:06d}-{safe_name(Path(name).stem)}.png", (shown[0] - low) / (high - low))
            elif not path.is_file():
                raise Refused(f"{name} is not where it was; --images says where the images are now")
            else:
                shutil.copyfile(path, folder / f"{i:06d}-{safe_name(Path(name).name)}")
        if out.is_dir():
            shutil.rmtree(out)
        made.replace(out)


def _moved_path(path: Path, run: "FinishedRun", moved: Path | None) -> Path:
    if moved is None:
        return path
    return moved / path.relative_to(run.source) if path != run.source else moved


def _check_export(out: Path) -> None:
    """Refuse to replace what is not an earlier export, before anything is copied."""
    if out.is_file():
        raise Refused(f"{out} is a file; give a folder")
    for each in out.rglob("*") if out.is_dir() else ():
        if not _EXPORTED.fullmatch(each.relative_to(out).as_posix()):
            raise Refused(f"{out} holds {safe_name(each.name)}, which no export wrote; give another folder")


def safe_name(name: str) -> str:
    """A file name made of a stranger's: one part, no separators, nothing a shell or a system takes for a command."""
    kept = "".join(letter if letter.isalnum() or letter in "._- " else "_" for letter in name).strip(" .")
    stem, dot, suffix = kept.rpartition(".")
    if dot and len(suffix) <= 8:
        return f"{stem[:_LONGEST_NAME]}.{suffix}"
    return kept[:_LONGEST_NAME] or "image"


def _star(run: "FinishedRun", pixel_size: float | None) -> str:
    """A particle table with RELION's names.

    RELION brings a particle onto its class by adding the origin, then turning by psi, clockwise on screen with y down;
    our poses turn counter-clockwise, then shift.
    """
    import numpy as np

    from unpose.cli.shared.tables import pose_parts

    units = "Angst" if pixel_size else ""
    pixel = (run.source_scale or 1.0) * (pixel_size or 1.0)  # one of the canvas, in what origins are told in
    columns = ["_rlnImageName", "_rlnClassNumber", "_rlnAnglePsi", f"_rlnOriginX{units}", f"_rlnOriginY{units}"]
    if mirrored := "mirror" in run.model.group:
        columns.append("_rlnIsFlip")
    lines = ["", "data_particles", "", "loop_", *(f"{name} #{k}" for k, name in enumerate(columns, start=1))]
    paths = run.about["paths"]
    stacks = {path for path, frame in zip(paths, run.about["frames"], strict=True) if frame > 0}
    for i, path in enumerate(paths):
        if run.model.labels_[i] < 0:
            continue  # images that show nothing have no class
        pose = run.model.poses_[i]
        parts = pose_parts(pose)
        origin = np.linalg.solve(pose[:2, :2] / pose[2, 2], pose[:2, 2] / pose[2, 2]) * pixel
        values: list[Any] = [_star_word(path, int(run.about["frames"][i]) if path in stacks else None)]
        values += [int(run.model.labels_[i]) + 1, *(f"{value:.6f}" for value in (-parts["angle"], *origin))]
        values += [int(parts["mirrored"])] if mirrored else []
        lines.append(" ".join(str(value) for value in values))
    return "\n".join(lines) + "\n"


def _star_word(path: str, frame: int | None) -> str:
    """A path as one word: STAR ends words at white space, and the word must not look like syntax."""
    from unpose.files.frames import printable

    shown = printable(path)
    word = shown if frame is None else f"{frame + 1:06d}@{shown}"
    if any(letter.isspace() or letter in "\"'#" for letter in word) or word.startswith(("_", "$", "data_", "loop_")):
        quote = '"' if '"' not in word else "'"
        return f"{quote}{word.replace(quote, '_')}{quote}"
    return word
