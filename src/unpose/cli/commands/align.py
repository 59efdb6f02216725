"""``unpose align``: align images of one object."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import run_errors
from unpose.cli.shared.inputs import ImagesPath, finished_run, memory_budget, read_run_images, value_or_none
from unpose.cli.shared.options import run_options
from unpose.cli.shared.output import command_line, counted, print_input_notes
from unpose.cli.shared.progress import progress
from unpose.runs import RunSettings
from unpose.runs.folder import RunFolder, fingerprint
from unpose.runs.tables import csv_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.cluster import AlignedStack
    from unpose.data import ImageSet

_MONTAGE_IMAGES = 48


@click.command(
    epilog="""\b
    Examples:
      unpose align frames/ -o run                            rotations and shifts
      unpose align frames.tif -o run --group similarity --max-angle 10
    """
)
@click.argument("images", type=ImagesPath())
@run_options(clusters=False)
def command(images: Path, out: Path, resume: bool, force: bool, as_json: bool, **options: Any) -> None:
    """Align images of one object: compute one mean, and the pose of every image.

    IMAGES is a folder or a stack, as for `unpose cluster`. The command writes a run folder. A run that was stopped
    continues when the same command is given again.

    \b
    The run folder contains:
      mean.png, error.png   the mean, and the standard error of its pixels (scaled so that the largest is white)
      aligned.npy           all images aligned: (n, h, w) or (n, h, w, 3), float32
      montage.png           some images before and after the alignment
      poses.csv             for each image: rotation angle, shift, scale, mirrored, and the distance from the mean
                            (the RMS difference of their pixels)
      rejected.csv, config.toml, log.txt
    """
    summary = _run_align(images, out, RunSettings(**options), force=force, resume=resume)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    click.echo(
        f"{counted(summary['images'], 'image')} aligned; RMS difference from the mean {summary['distance']:.3g}."
    )
    if summary["constant"]:
        click.echo(f"{counted(summary['constant'], 'image')} constant, with nothing to align; included in the mean.")
    print_input_notes(summary, out)
    click.echo(f"The mean is {out / 'mean.png'}; {out / 'montage.png'} shows images before and after.")


def _run_align(source: Path, out: Path, settings: RunSettings, *, force: bool, resume: bool) -> dict[str, Any]:
    """Read and align the images and write the run folder; returns the summary of the run."""
    folder = RunFolder(out)
    if resume and not force and (config := finished_run("align", source, folder, settings)):
        return _summary(out, config.about)
    folder.check(source, force=force, resume=resume)
    with run_errors(folder, command_line("align", source, out, settings)):
        import numpy as np

        from unpose.cluster import align_stack, constant_images

        images, settings = read_run_images(source, settings)
        constant = int(constant_images(images.images, light=settings.light).sum())
        with folder.begin("align", settings, images, force=force), progress(log=folder.log) as report:
            folder.log(f"{len(images)} images read from {source}; {images.canvas}; {len(images.rejected)} rejected")
            stack = align_stack(
                images.images, **settings.search_parameters(), device=settings.device,
                n_jobs=value_or_none(settings.jobs), memory=memory_budget(settings.memory), progress=report,
                checkpoints=folder,
            )  # fmt: skip
            distances = _write_results(out, images, stack)
            folder.write_rejected(images.rejected)
            facts = {
                "images": len(images), "constant": constant, "rejected": len(images.rejected),
                "distance": float(np.sqrt((distances**2).mean())), "notes": images.notes,
            }  # fmt: skip
            about = folder.write_config(
                settings, source, images, fingerprint(images), facts=facts, omit=("clusters", "features", "labels")
            )
            folder.log("finished")
            folder.finish()
    return _summary(out, about)


def _summary(out: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The main figures of a run, from its config.toml."""
    keys = ("images", "constant", "rejected", "distance", "notes")
    return {"run": str(out)} | {key: about[key] for key in keys} | {"mean": str(out / "mean.png")}


def _write_results(out: Path, images: "ImageSet", stack: "AlignedStack") -> "NDArray":
    """Write arrays, pictures and the table of poses; returns the distance of each image from the mean, (n,)."""
    import numpy as np

    from unpose.cluster import apply_poses, group_means
    from unpose.files import Folder
    from unpose.groups import pose_parts
    from unpose.report import display_range, evenly_spaced, figures

    error = stack.standard_error
    aligned = apply_poses(images.images, stack.poses)
    means, distances = group_means(images.images, np.zeros(len(images), np.int64), stack.poses, 1)
    low, high = display_range(images.images[evenly_spaced(len(images), 256)])
    some = evenly_spaced(len(images), _MONTAGE_IMAGES)
    panels = [
        figures.montage((pixels[some] - low) / (high - low), columns=8, title=title, scale=1)
        for pixels, title in ((images.images, "As found"), (aligned, "Aligned"))
    ]
    rows = [
        {"path": name, "frame": int(frame), **pose_parts(pose), "distance": float(distance)}
        for name, frame, pose, distance in zip(images.names, images.frames, stack.poses, distances, strict=True)
    ]
    with Folder(out) as folder:
        with folder.write("aligned.npy") as stream:
            np.save(stream, aligned)
        folder.write_image("mean.png", (means[0] - low) / (high - low))
        folder.write_image("error.png", error / (float(error.max()) or 1.0))
        folder.write_image("montage.png", figures.beside(panels))
        folder.write_text("poses.csv", csv_text(list(rows[0]), rows))
    return distances
