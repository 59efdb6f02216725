"""``unpose export``: the results of a run as files for other programs."""

import json
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import UserError
from unpose.cli.shared.inputs import ImagesPath, read_run_again
from unpose.cli.shared.options import FiniteRange
from unpose.cli.shared.output import check_output, counted, is_stream, write_lines, writing
from unpose.runs import read_run
from unpose.runs.folder import cluster_name

if TYPE_CHECKING:
    from unpose.runs import FinishedRun

_LONGEST_NAME = 120
_PIECE = 1024
"""Images that are aligned at a time."""
_FORMATS = ("csv", "folders", "npz", "star")
_EXPORTED = re.compile(r"\d{6,}-[^/]+", re.DOTALL)
"""Names of the files that an export to folders creates."""


@click.command(
    epilog="""\b
    Examples:
      unpose export run --to csv -o table.csv
      unpose export run --to folders -o sorted
      unpose export run --to folders -o upright --aligned
      unpose export run --to npz -o results.npz
      unpose export run --to star -o classes.star --pixel-size 1.35
    """
)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--to", "form", required=True, type=click.Choice(_FORMATS), help="Format; see above.")
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="File to write, or the folder for `folders`."
)
@click.option("--aligned", is_flag=True, help="folders: write aligned images as PNG instead of copies of the files.")
@click.option("--images", type=ImagesPath(), help="Where the images are now, if they were moved.")
@click.option("--source", "sources", type=click.Path(exists=True, path_type=Path), multiple=True, metavar="FOLDER",
              help="folders: also copy images that are in this folder, outside of the input of the run.")  # fmt: skip
@click.option("--pixel-size", type=FiniteRange(0, min_open=True), metavar="A",
              help="star: size of a pixel of the files in Angstrom; origins are then in Angstrom, too.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing file or export.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def command(
    run: Path, form: str, out: Path, aligned: bool, images: Path | None, sources: tuple[Path, ...],
    pixel_size: float | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Export the results of a run.

    RUN is a folder that `unpose cluster` wrote. The command writes one file, or one folder, in one of these formats:

    \b
      csv       the table: path, frame, cluster, confidence, rotation angle, shift, scale, mirrored, distance (the RMS
                difference of pixels from the mean), and the class folder if there are any
      folders   one folder for each cluster, called by its name if `unpose apply` gave it one, with copies of its
                images, or with --aligned the aligned images; these, and images from stacks, are PNG files of 8 bits,
                as on the page (npz keeps all values)
      npz       NumPy arrays: aligned, labels, confidences, poses, means, names, cluster_names, settled
      star      RELION's columns: image name, class (from 1), psi, origin in pixels of the files, and flip if the
                group of the run has mirrors

    Shifts in the table are in pixels of the canvas that config.toml describes. So are origins if the images had several
    sizes. The images are read and never changed; npz and folders need them as they were for the run. Only images that
    are in the input of the run, or in a folder that --source names, are copied.
    """
    results = read_run(run)
    check_output(out, force)
    if form == "csv":
        write_lines(out, results.table_lines())
    elif form == "star":
        if results.source_scale is None:
            click.echo("The images had several sizes; origins are in pixels of the canvas.", err=True)
        write_lines(out, _star(results, pixel_size))
    elif form == "npz":
        _npz(results, images, out)
    else:
        _check_export(out)
        with writing(out):
            _folders(results, out, images, aligned, sources)
    written = {"run": str(run), "to": form, "out": str(out), "images": len(results.names)}
    message = json.dumps(written, indent=2) if as_json else f"Wrote {counted(len(results.names), 'image')} to {out}."
    click.echo(message, err=is_stream(out))


def _npz(run: "FinishedRun", moved: Path | None, out: Path) -> None:
    """Write the arrays one after the other; the aligned images are computed and compressed piece by piece."""
    import zipfile

    import numpy as np

    from unpose.cluster import apply_poses, group_means
    from unpose.files import output

    pixels = read_run_again(run, moved).images
    means = group_means(pixels, run.labels, run.poses, run.model.n_clusters_)[0]
    pieces = (
        apply_poses(pixels[start : start + _PIECE], run.poses[start : start + _PIECE])
        for start in range(0, len(pixels), _PIECE)
    )
    arrays = {
        "labels": run.labels, "confidences": run.confidences, "poses": run.poses, "means": means,
        "names": np.array(run.names), "cluster_names": np.array(run.cluster_names), "settled": run.settled,
    }  # fmt: skip
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with writing(out), output(out) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("aligned.npy", "w", force_zip64=True) as member:
            header = {"descr": "<f4", "fortran_order": False, "shape": tuple(pixels.shape)}
            np.lib.format.write_array_header_1_0(member, header)
            for piece in pieces:
                member.write(np.ascontiguousarray(piece, "<f4").data)
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _folders(
    run: "FinishedRun", out: Path, moved: Path | None, aligned: bool, sources: tuple[Path, ...]
) -> None:  # fmt: skip
    """Copy the images into one folder for each cluster, all under a temporary name until they are complete.

    A run may come from somebody else, so what it says about paths is no reason to copy a file: the images are read
    again, must be those that the run was made from, and must lie in the folders that the user knows.
    """
    from unpose.cluster import apply_poses
    from unpose.files import Folder

    if not aligned and moved is None:
        _check_inside(run, run.paths, None, sources)  # before anything is read
    images = read_run_again(run, moved)
    stacks = {path for path, count in Counter(images.paths).items() if count > 1}  # no file of one image to copy
    if not aligned:
        _check_inside(run, [path for path in images.paths if path not in stacks], moved, sources)
    low, high = run.display_range
    folders = _folder_names(run)
    target = Path(os.path.realpath(out))  # a link stays, and the folder that it leads to is replaced
    new, old = (f".{secrets.token_hex(8)}.tmp" for _ in range(2))
    with Folder(target.parent, create=True, durable=False) as parent:
        try:
            with parent.folder(new, create=True) as complete:
                for label in {int(label) for label in run.labels}:
                    complete.folder(folders[label], create=True).close()
                for i, (name, path) in enumerate(zip(run.names, images.paths, strict=True)):
                    start = f"{folders[int(run.labels[i])]}/{i:06d}-"
                    if aligned or path in stacks:
                        image = images.images[i : i + 1]
                        shown = apply_poses(image, run.poses[i : i + 1]) if aligned else image
                        picture = (shown[0] - low) / (high - low)
                        complete.write_image(f"{start}{safe_name(Path(name).stem)}.png", picture)
                    else:
                        real = Path(os.path.realpath(path))
                        with (
                            Folder(real.parent) as place,
                            place.open(real.name) as source,
                            complete.write(start + safe_name(Path(name).name)) as stream,
                        ):
                            shutil.copyfileobj(source, stream)
            if parent.has(target.name):
                parent.move(target.name, parent, old)
            parent.move(new, parent, target.name)
        finally:
            parent.remove_tree(new)
            parent.remove_tree(old)


def _check_inside(
    run: "FinishedRun", paths: "Sequence[Path]", moved: Path | None, sources: tuple[Path, ...]
) -> None:  # fmt: skip
    """Refuse to copy files that lie outside of the images of the run, and of the folders that the user names."""
    from unpose.files import printable_name
    from unpose.files.listing import split_array_name

    known = [moved or run.source, *(Path(each["input"]) for each in run.added), *sources]
    roots = [Path(os.path.realpath((split_array_name(root) or (root, None))[0])) for root in known]
    outside = [path for path in paths if not any(Path(os.path.realpath(path)).is_relative_to(root) for root in roots)]
    if outside:
        raise UserError(
            f"{counted(len(outside), 'image')} of {run.path} {'is' if len(outside) == 1 else 'are'} outside of "
            f"{known[0]}, {printable_name(str(outside[0]))} first, and nothing was copied; if you know them, name a "
            "folder that contains them with --source"
        )


def _folder_names(run: "FinishedRun") -> dict[int, str]:
    """The folder of each cluster: its name if it has one, else its number; equal names get the number, too."""
    numbered = {label: cluster_name(label) for label in range(-1, run.model.n_clusters_)}
    wanted = {label: safe_name(name) if name else numbered[label] for label, name in enumerate(run.cluster_names)}
    taken = Counter(name.casefold() for name in [*wanted.values(), numbered[-1]])
    return numbered | {
        label: name if taken[name.casefold()] == 1 else f"{name}-{numbered[label]}" for label, name in wanted.items()
    }


def _check_export(out: Path) -> None:
    """Refuse to replace anything but an earlier export, before anything is copied."""
    if out.is_file():
        raise UserError(f"{out} is a file; give a folder")
    for each in out.rglob("*") if out.is_dir() else ():
        depth = len(each.relative_to(out).parts)
        is_ours = (depth == 1 and each.is_dir() and any(each.iterdir())) or (
            depth == 2 and each.is_file() and _EXPORTED.fullmatch(each.name)
        )
        if not is_ours or each.is_symlink():
            raise UserError(f"{out} contains {safe_name(each.name)}, which no export wrote; give another folder")


def safe_name(name: str) -> str:
    """A file name without separators or characters that a shell interprets, made from a name that cannot be trusted."""
    kept = "".join(letter if letter.isalnum() or letter in "._- " else "_" for letter in name).strip(" .")
    stem, dot, suffix = kept.rpartition(".")
    if dot and len(suffix) <= 8:
        return f"{stem[:_LONGEST_NAME]}.{suffix}"
    return kept[:_LONGEST_NAME] or "image"


def _star(run: "FinishedRun", pixel_size: float | None) -> Iterator[str]:
    """The lines of a particle table with RELION's column names.

    RELION maps a particle onto its class by adding the origin, then rotating by psi, clockwise on screen with y down;
    our poses rotate counter-clockwise, then shift.
    """
    import numpy as np

    from unpose.groups import pose_parts

    units = "Angst" if pixel_size else ""
    pixel = (run.source_scale or 1.0) * (pixel_size or 1.0)  # a pixel of the canvas, in the unit of the origins
    columns = ["_rlnImageName", "_rlnClassNumber", "_rlnAnglePsi", f"_rlnOriginX{units}", f"_rlnOriginY{units}"]
    if mirrored := "mirror" in run.model.group:
        columns.append("_rlnIsFlip")
    for line in ["", "data_particles", "", "loop_", *(f"{name} #{k}" for k, name in enumerate(columns, start=1))]:
        yield f"{line}\n"
    paths = run.about["paths"]
    stacks = {path for path, frame in zip(paths, run.about["frames"], strict=True) if frame > 0}
    for i, path in enumerate(paths):
        if run.labels[i] < 0:
            continue  # constant images have no class
        pose = run.poses[i]
        parts = pose_parts(pose)
        origin = np.linalg.solve(pose[:2, :2] / pose[2, 2], pose[:2, 2] / pose[2, 2]) * pixel
        values: list[Any] = [_star_word(path, int(run.about["frames"][i]) if path in stacks else None)]
        values += [int(run.labels[i]) + 1, *(f"{value:.6f}" for value in (-parts["angle"], *origin))]
        values += [int(parts["mirrored"])] if mirrored else []
        yield " ".join(str(value) for value in values) + "\n"


def _star_word(path: str, frame: int | None) -> str:
    """A path as one STAR word: quoted if it contains white space or looks like STAR syntax."""
    from unpose.files import printable_name

    shown = printable_name(path)
    word = shown if frame is None else f"{frame + 1:06d}@{shown}"
    if any(letter.isspace() or letter in "\"'#" for letter in word) or word.startswith(("_", "$", "data_", "loop_")):
        quote = '"' if '"' not in word else "'"
        return f"{quote}{word.replace(quote, '_')}{quote}"
    return word
