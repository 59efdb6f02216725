"""``unpose align``: images of one thing brought together."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import unpose
from unpose.cli.commands.cluster import command_again, finished_before, read_input, say_how_it_was_read
from unpose.cli.shared.settings import Settings, as_toml, given, run_options
from unpose.cli.shared.tables import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.data import ImageSet

_SHOWN = 48
"""Images in the montage."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("images", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder of the run; made where it is not there."
)
@run_options(clusters=False)
def command(images: Path, out: Path, resume: bool, force: bool, as_json: bool, **chosen: Any) -> None:
    """Bring images of one thing together: one mean, and the pose of every image.

    \b
    Examples:
      unpose align frames/ -o run                       turns and shifts
      unpose align frames.tif -o run --group similarity --max-angle 10
      unpose align particles.mrcs -o run --size 64

    \b
    The run folder holds:
      mean.png, error.png   the mean, and the standard error of its pixels (the brightest is the largest)
      aligned.npy           all images upright: (n, h, w) or (n, h, w, 3), float32
      montage.png           some of them, as found and aligned
      poses.csv             one row for each image: angle, shift, scale, mirrored, and its distance from the mean:
                            the RMS difference of their pixels
      rejected.csv, config.toml, log.txt

    \b
    Exit status: 0 done, 1 failed, 2 the call or the input is wrong, 130 stopped by Ctrl-C.
    """
    summary = _run_align(images, out, Settings(**chosen), force=force, resume=resume)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    together = counted(summary["images"], "image")
    click.echo(f"{together} brought together; RMS difference from their mean {summary['distance']:.3g}.")
    if summary["constant"]:
        click.echo(f"{counted(summary['constant'], 'image')} constant, with nothing to align, but in the mean.")
    say_how_it_was_read(summary, out)
    click.echo(f"The mean is {out / 'mean.png'}; before and after are in {out / 'montage.png'}.")


def _run_align(images: Path, out: Path, settings: Settings, *, force: bool, resume: bool) -> dict[str, Any]:
    """Read, bring together, write the run folder; the summary of it."""
    from unpose.cli.shared.progress import progress
    from unpose.runs.folder import check_run, open_run, spoken_errors

    if resume and not force and (made := finished_before("align", images, out, settings)):
        return _summary(out, made.about)
    check_run(out, images, force=force, resume=resume)
    with spoken_errors(out, command_again("align", images, out, settings)):
        from unpose.cluster import align_stack

        found, settings = read_input(images, settings)
        constant = _constant(found.images, settings.light)
        with open_run(out, "align", settings, found, force=force) as folder, progress(log=folder.log) as report:
            folder.log(f"{len(found)} images read from {images}; {found.canvas}; {len(found.rejected)} rejected")
            stack = align_stack(
                found.images, group=settings.group, light=settings.light, max_angle=math.radians(settings.max_angle),
                max_shift=given(settings.max_shift), max_scale=settings.max_scale, device=settings.device,
                n_jobs=given(settings.jobs), memory=settings.memory, progress=report, pieces=folder,
            )  # fmt: skip
            told = _write(out, images, found, stack.poses, stack.standard_error, settings, constant)
            folder.log("finished")
            folder.finish()
    return _summary(out, told)


def _constant(images: "NDArray", light: str) -> int:
    """How many images are constant once light is taken away; not all of them may be."""
    import torch

    from unpose.cluster.light import check_shown, prepared, show_something
    from unpose.images import as_batch

    shown = show_something(prepared(as_batch(images, dtype=torch.float32), light))
    check_shown(shown)
    return int((~shown).sum())


def _summary(out: Path, told: dict[str, Any]) -> dict[str, Any]:
    """The answer, for scripts, from what the run's config.toml tells."""
    keys = ("images", "constant", "rejected", "distance", "notes")
    return {"run": str(out)} | {key: told[key] for key in keys} | {"mean": str(out / "mean.png")}


def _write(
    out: Path, source: Path, found: "ImageSet", poses: Any, error: Any, settings: Settings, constant: int
) -> dict[str, Any]:
    """Everything a run of `align` holds, each file whole; what its config.toml tells about it."""
    import io

    import numpy as np

    from unpose.cli.shared.tables import as_csv, pose_parts
    from unpose.cluster.pictures import averages, upright
    from unpose.files.atomic import write_chunks, write_image, write_text
    from unpose.report import figures
    from unpose.report.thumbnails import spread, window
    from unpose.runs.finished import printable_path
    from unpose.runs.folder import fingerprint

    aligned = upright(found.images, poses)
    means, distances = averages(found.images, np.zeros(len(found), np.int64), poses, 1)
    low, high = window(found.images[spread(len(found), 256)])
    stream = io.BytesIO()
    np.save(stream, aligned)
    write_chunks(out / "aligned.npy", [stream.getvalue()])
    write_image(out / "mean.png", (means[0] - low) / (high - low))
    write_image(out / "error.png", error / (float(error.max()) or 1.0))
    some = spread(len(found), _SHOWN)
    panels = [
        figures.montage((images[some] - low) / (high - low), columns=8, title=title, scale=1)
        for images, title in ((found.images, "As found"), (aligned, "Aligned"))
    ]
    write_image(out / "montage.png", figures.beside(panels))
    rows = [
        {"path": name, "frame": int(frame), **pose_parts(pose), "distance": float(distance)}
        for name, frame, pose, distance in zip(found.names, found.frames, poses, distances, strict=True)
    ]
    write_text(out / "poses.csv", as_csv(list(rows[0]), rows))
    reasons = [{"path": name, "reason": reason} for name, reason in found.rejected]
    write_text(out / "rejected.csv", as_csv(("path", "reason"), reasons))
    told = {
        "version": unpose.__version__, "input": printable_path(source), "canvas": found.canvas,
        "fingerprint": fingerprint(found), "images": len(found), "constant": constant, "rejected": len(found.rejected),
        "distance": float(np.sqrt((distances**2).mean())), "notes": found.notes,
    }  # fmt: skip
    write_text(out / "config.toml", as_toml(settings, told, leave_out=("clusters",)))
    return told
