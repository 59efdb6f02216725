"""``unpose cluster``: group a folder of images, and make a page that shows the groups."""

import csv
import io
import json
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import UserError, run_errors
from unpose.cli.shared.inputs import (
    ImagesPath,
    finished_run,
    memory_budget,
    pick_device,
    read_run_images,
    value_or_none,
)
from unpose.cli.shared.options import run_options
from unpose.cli.shared.output import command_line, counted, print_input_notes
from unpose.cli.shared.progress import progress
from unpose.runs import RunSettings, check_run_memory, read_run, write_run
from unpose.runs.folder import RunFolder

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from unpose.cli.shared.progress import Report
    from unpose.cluster import InvariantClustering
    from unpose.data import ImageSet


@click.command(
    epilog="""\b
    Examples:
      unpose cluster photos/ -o run                      determine the number of groups
      unpose cluster photos/ -o run --clusters 12        exactly twelve groups
      unpose cluster scans/ -o run --group se2+mirror    objects that lie on either side
      unpose cluster shapes/ -o run --group similarity   ignore size, too
      unpose cluster cells/ -o run --features efficientnet-lite0             compare by what a network sees, too
      unpose cluster cells/ -o run --features learn                          learn what to compare by from the images
      unpose cluster cells/ -o run --labels known.csv                        some classes are known
      unpose cluster slides/ -o run --max-angle 20       nearly upright already
      unpose cluster coins/ -o run --light local --mask disc --crop 0.1      metal under changing light
      unpose cluster particles.mrcs -o run --size 64 --memory 8GB
      unpose cluster photos/ -o again --config run/config.toml
      unpose cluster plankton.zarr -o run --dask tcp://host:8786             on the workers of a Dask cluster
    """
)
@click.argument("images", type=ImagesPath())
@run_options(clusters=True)
@click.option("--dask", metavar="ADDRESS",
              help="Search on the workers of a Dask cluster, such as tcp://host:8786, or on --jobs processes of this "
                   "machine: local. Results do not depend on it. Needs the extra unpose[scale].")  # fmt: skip
def command(
    images: Path, out: Path, resume: bool, force: bool, as_json: bool, dask: str | None, **options: Any
) -> None:
    """Group images by what they show, however each is rotated, shifted, scaled or mirrored.

    IMAGES is a folder (with its subfolders), a TIFF stack (three channels make one colour image; from any other
    multi-channel stack save one channel first), or a .npy, .npz, MRC, STAR, HDF5, Zarr, FITS or DICOM file. Files that
    cannot be read are skipped and listed. Subfolders are taken as class names, unless they are named by date or run;
    classes are used only to report the agreement with the groups.

    The command writes a run folder. A run that was stopped continues when the same command is given again.

    \b
    The run folder contains:
      report.html       the page to open in a browser
      labels.csv        for each image: group, confidence (how far its group is found again in random subsets of the
                        images), rotation angle, shift, scale, mirrored, the distance from the group's mean (the RMS
                        difference of their pixels), the image that it is a copy of, and with --labels the most
                        probable class with its probability
      means/            the mean of each group, and a map of its standard error
      rejected.csv      the images that could not be read, and why
      clusters.json, model.json, model.safetensors, images.json, pictures.safetensors, config.toml, log.txt
    """
    summary = run_cluster(images, out, RunSettings(**options), force=force, resume=resume, dask=dask)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    click.echo(f"{counted(summary['images'], 'image')}, {counted(summary['clusters'], 'group')}.")
    if summary["confidence"] is not None:
        click.echo(f"Mean confidence {summary['confidence']:.0%}: how far groups are found again among fewer images.")
    for remark in summary["remarks"]:
        click.echo(remark)
    if summary["no_cluster"]:
        click.echo(f"{counted(summary['no_cluster'], 'image')} in no group: constant, with nothing to compare.")
    print_input_notes(summary, out)
    for measure, value in summary["agreement"].items():
        click.echo(f"Agreement with the class folders, {measure}: {value:.3f}")
    click.echo(f"The page is {summary['report']}.")


def run_cluster(
    source: Path, out: Path, settings: RunSettings, *, force: bool, resume: bool, dask: str | None = None
) -> dict[str, Any]:
    """Read the images, find the groups and write the run folder; returns the summary of the run."""
    folder = RunFolder(out)
    if resume and not force and finished_run("cluster", source, folder, settings):
        return read_run(out).summary()
    folder.check(source, force=force, resume=resume)
    # The page shows the command without the settings that do not change the results, and without the place of the run.
    decisive = replace(settings, jobs=RunSettings.jobs, memory=RunSettings.memory)
    shown_command = command_line("cluster", source, Path("RUN"), decisive)
    again = command_line("cluster", source, out, settings) + (f" --dask {dask}" if dask else "")
    with run_errors(folder, again), _dask_client(dask, settings) as client:
        with folder.reading() as place:
            images, settings = read_run_images(source, settings, place)
            n_clusters = value_or_none(settings.clusters)
            if n_clusters is not None and n_clusters > len(images):
                raise UserError(f"--clusters must be at most the number of images ({len(images)}), got {n_clusters}")
            check_run_memory(images, settings, memory_budget(settings.memory))
        with folder.begin("cluster", settings, images, force=force), progress(log=folder.log) as report:
            began = time.monotonic()
            folder.log(f"{len(images)} images read from {source}; {images.canvas}; {len(images.rejected)} rejected")
            class_names, y = _read_labels(settings.labels, images.names)
            model = _fit(images, settings, folder, report, y, client)
            folder.log(f"{counted(model.n_clusters_, 'group')} found after {time.monotonic() - began:.1f} s")
            report("write", 0, 2)
            run = write_run(out, source, images, model, settings, shown_command, class_names)
            report("write", 1, 2)
            run.write_page()
            report("write", 2, 2)
            folder.log(f"finished after {time.monotonic() - began:.1f} s")
            folder.finish()
    return run.summary()


def _dask_client(address: str | None, settings: RunSettings) -> "AbstractContextManager[Any]":
    """The client of a Dask cluster, as a context manager; of None without an address."""
    if address is None:
        return nullcontext()
    from unpose.align.dask_executor import dask_client

    return dask_client(address, value_or_none(settings.jobs), device=pick_device(settings.device).type)


def _read_labels(path: str, names: list[str]) -> tuple[list[str] | None, list[int] | None]:
    """The class names in a CSV file with the columns path and class, and the class of each image, -1 for unknown."""
    if not path:
        return None, None
    from unpose.files import read_text

    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"--labels must be a CSV file that can be read: {path}: {error}") from error
    if not rows or not {"path", "class"} <= rows[0].keys():
        raise UserError(
            f"--labels must be a CSV file with the columns path and class, and at least one row, got {path}"
        )
    known = {row["path"]: row["class"].strip() for row in rows if row["path"] and (row["class"] or "").strip()}
    among = set(names)
    if unknown := [name for name in known if name not in among]:
        raise UserError(
            f"{counted(len(unknown), 'path')} in {path} {'is' if len(unknown) == 1 else 'are'} not among the images, "
            f"{unknown[0]!r} first; paths are relative to the folder of images, such as {names[0]!r}"
        )
    classes = sorted(set(known.values()))
    return classes, [classes.index(known[name]) if name in known else -1 for name in names]


def _fit(
    images: "ImageSet", settings: RunSettings, folder: RunFolder, report: "Report", y: list[int] | None, client: Any
) -> "InvariantClustering":
    from unpose.cluster import InvariantClustering

    phase = "neighbours"

    def report_phase(stage: str, done: int, total: int) -> None:
        """Prefix the stages: they occur first among all images, then, after the read-out, between images and means."""
        nonlocal phase
        if stage == "read out":
            phase = "averages"
        report(stage if stage in ("read out", "features") else f"{phase}: {stage}", done, total)

    features = settings.features
    if features == "learn":
        from unpose.cli.shared.unlabelled_run import learn_for_run

        features = learn_for_run(
            images.images, folder.path / "encoder", settings.group, math.radians(settings.max_angle), settings.seed,
            settings.device, report,
        )  # fmt: skip
    model = InvariantClustering(
        value_or_none(settings.clusters), **settings.search_parameters(), features=features,
        random_state=settings.seed, device=settings.device, n_jobs=value_or_none(settings.jobs),
        memory=memory_budget(settings.memory),
    )  # fmt: skip
    return model.fit(images.images, y, progress=report_phase, checkpoints=folder, client=client)
