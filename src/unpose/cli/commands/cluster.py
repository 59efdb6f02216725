"""``unpose cluster``: a folder of images in, groups and a page to look at out."""

import json
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import Refused
from unpose.cli.shared.settings import Settings, given, run_options
from unpose.cli.shared.tables import counted

if TYPE_CHECKING:
    from unpose.cli.shared.settings import Made
    from unpose.data import ImageSet
    from unpose.runs.folder import RunFolder


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("images", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder of the run; made where it is not there."
)
@run_options(clusters=True)
def command(images: Path, out: Path, resume: bool, force: bool, as_json: bool, **chosen: Any) -> None:
    """Find the kinds of things in a pile of images, however each is turned, shifted, scaled or mirrored.

    IMAGES is a folder (with all below it), a TIFF stack (three channels are one image in colour; of others split off
    one), .npy, .npz, MRC, STAR, HDF5 or Zarr. What cannot be read is left out and listed. Folders below IMAGES are
    taken for classes and used for nothing but to report agreement.

    \b
    Examples:
      unpose cluster photos/ -o run                           how many kinds there are, it finds itself
      unpose cluster photos/ -o run --clusters 12             exactly twelve
      unpose cluster scans/ -o run --group se2+mirror         things that lie on either side
      unpose cluster shapes/ -o run --group similarity        size does not count either
      unpose cluster slides/ -o run --max-angle 20            nearly upright already
      unpose cluster particles.mrcs -o run --size 64 --memory 8GB
      unpose cluster photos/ -o again --config run/config.toml
      unpose cluster photos/ -o run                           once more after it was stopped: goes on

    \b
    The run folder holds:
      report.html       the page: open it in a browser
      labels.csv        one row for each image: group, confidence, angle, shift, scale, mirrored, and its distance
                        from the average: the RMS difference of their pixels
      means/            the average of each group, and a map of its error
      rejected.csv      what could not be read, and why
      clusters.json, model.json + model.safetensors, images.json, pictures.safetensors, config.toml, log.txt

    \b
    Exit status: 0 done, 1 failed, 2 the call or the input is wrong, 130 stopped by Ctrl-C.
    """
    summary = run_cluster(images, out, Settings(**chosen), force=force, resume=resume)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    sure = f"{summary['confidence']:.0%} sure on average"
    click.echo(f"{counted(summary['images'], 'image')}, {counted(summary['clusters'], 'group')}, {sure}.")
    if summary["no_cluster"]:
        click.echo(f"{counted(summary['no_cluster'], 'image')} in no group: constant, with nothing to compare.")
    say_how_it_was_read(summary, out)
    for measure, value in summary["agreement"].items():
        click.echo(f"Agreement with the class folders, {measure}: {value:.3f}")
    click.echo(f"The page is {summary['report']}.")


def run_cluster(source: Path, out: Path, settings: Settings, *, force: bool, resume: bool) -> dict[str, Any]:
    """Read, find the groups, write the run folder; the summary of it."""
    from unpose.cli.shared.progress import progress
    from unpose.runs.finished import read_run, summary, write_page, write_run
    from unpose.runs.folder import check_run, open_run, spoken_errors

    if resume and not force and finished_before("cluster", source, out, settings):
        return summary(read_run(out))
    check_run(out, source, force=force, resume=resume)
    # How much of the machine was used, and where results went, are no part of them.
    asked = replace(settings, jobs=Settings.jobs, memory=Settings.memory)
    same = command_again("cluster", source, Path("RUN"), asked)
    with spoken_errors(out, command_again("cluster", source, out, settings)):
        images, settings = read_input(source, settings)
        if given(settings.clusters) is not None and int(settings.clusters) > len(images):
            raise Refused(f"--clusters must be at most the number of images ({len(images)}), got {settings.clusters}")
        with open_run(out, "cluster", settings, images, force=force) as folder, progress(log=folder.log) as report:
            began = time.monotonic()
            folder.log(f"{len(images)} images read from {source}; {images.canvas}; {len(images.rejected)} rejected")
            model = _fit(images, settings, folder, report)
            folder.log(f"{counted(model.n_clusters_, 'group')} found after {time.monotonic() - began:.1f} s")
            report("write", 0, 2)
            run = write_run(out, source, images, model, settings, same)
            report("write", 1, 2)
            write_page(run)
            report("write", 2, 2)
            folder.log(f"finished after {time.monotonic() - began:.1f} s")
            folder.finish()
    return summary(run)


def say_how_it_was_read(summary: dict[str, Any], out: Path) -> None:
    """What a run left out of its input, and what else there is to know about it."""
    if summary["rejected"]:
        click.echo(f"{counted(summary['rejected'], 'image')} could not be read; {out / 'rejected.csv'} says why.")
    for note in summary["notes"]:
        click.echo(f"{note}.")


def finished_before(kind: str, source: Path, out: Path, settings: Settings) -> "Made | None":
    """This very run, where the folder holds it finished, which is said; another finished run is refused."""
    from unpose.runs.folder import check_same, finished

    if (made := finished(out)) is None:
        return None
    images, settings = read_input(source, settings)
    check_same(out, made, kind, settings, images)
    click.echo(f"{out} is finished already.", err=True)
    return made


def read_input(source: Path, settings: Settings) -> "tuple[ImageSet, Settings]":
    """The images, and the settings with what could be known only from them and from the machine."""
    from unpose.cli.shared.progress import progress
    from unpose.cli.shared.settings import on_device
    from unpose.data import read_images
    from unpose.groups import parse_continuous

    settings = on_device(settings)
    try:
        group = repr(parse_continuous(settings.group))
    except ValueError as error:
        raise Refused(
            "--group must be one of the continuous groups translation, se2, similarity, affine and perspective, or one "
            f"of them with +mirror, got {settings.group!r}"
        ) from error
    with progress() as report:
        images = read_images(
            source, size=given(settings.size), memory=settings.memory, jobs=given(settings.jobs), progress=report
        )
    longer = max(images.images.shape[1:3])
    shift = longer / 4 if settings.max_shift == "auto" else settings.max_shift
    return images, replace(settings, group=group, size=longer, max_shift=shift)


def _fit(images: "ImageSet", settings: Settings, folder: "RunFolder", report: Any) -> Any:
    import math

    from unpose.cluster import InvariantClustering

    model = InvariantClustering(
        given(settings.clusters), group=settings.group, max_angle=math.radians(settings.max_angle),
        max_shift=given(settings.max_shift), max_scale=settings.max_scale, light=settings.light,
        random_state=settings.seed, device=settings.device, n_jobs=given(settings.jobs), memory=settings.memory,
        progress=_with_phases(report), pieces=folder,
    )  # fmt: skip
    return model.fit(images.images)


def _with_phases(report: Any) -> Any:
    """The same stages come twice: among all images for the groups, then onto the averages."""
    phase = "neighbours"

    def told(stage: str, done: int, total: int) -> None:
        nonlocal phase
        if stage == "read out":
            phase = "averages"
        report(stage if stage == "read out" else f"{phase}: {stage}", done, total)

    return told


def command_again(name: str, source: Path, out: Path, settings: Settings) -> str:
    """The command that goes on or does the same again, with the flags that differ from the defaults."""
    told = ["unpose", name, str(source), "-o", str(out)]
    for flag, value in vars(settings).items():
        if value != getattr(Settings(), flag):
            told += [f"--{flag.replace('_', '-')}", str(value)]
    return shlex.join(told)
