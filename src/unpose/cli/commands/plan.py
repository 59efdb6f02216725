"""``unpose plan``: time, memory and disk of a run, before it starts."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from unpose.cli.shared.inputs import ImagesPath, memory_budget
from unpose.cli.shared.options import MOST_JOBS, ByteSize, NumberOrAuto, check_features, json_option
from unpose.cli.shared.output import finite
from unpose.cli.shared.progress import progress
from unpose.runs import RunSettings, plan_run, readable_time


@click.command(
    epilog="""\b
    Examples:
      unpose plan photos/
      unpose plan particles.mrcs --size 64 --workers 32
      unpose plan photos/ --group similarity --memory 8GB --json
    """
)
@click.argument("images", type=ImagesPath())
@click.option("-k", "--clusters", type=NumberOrAuto(click.IntRange(1), "K"), default="auto", help="Number of groups.")
@click.option("--group", default=RunSettings.group, show_default=True, help="Transformations that do not count.")
@click.option("--features", default=RunSettings.features, show_default=True, metavar="NETWORK",
              callback=check_features, help="What images are compared by, as for unpose cluster.")  # fmt: skip
@click.option("--size", type=NumberOrAuto(click.IntRange(8, 4096), "PX"), default="auto",
              help="Longer side of the canvas that all images are scaled to.")  # fmt: skip
@click.option("--jobs", type=NumberOrAuto(click.IntRange(1, MOST_JOBS), "N"), default="auto", help="Number of threads.")
@click.option("--memory", type=NumberOrAuto(ByteSize(), "SIZE"), default="auto", help="Memory budget, such as 5GB.")
@click.option("--workers", type=click.IntRange(1), default=16, show_default=True,
              help="Number of workers of a Dask cluster to plan for, with one core each.")  # fmt: skip
@json_option
def command(images: Path, workers: int, as_json: bool, **options: Any) -> None:
    """Say how long a run will take, and how much memory and disk, before it starts.

    IMAGES is what `unpose cluster` would be given. The command reads some of the images, groups samples of them for
    about a minute, and extrapolates; nothing is written. It says what to change where the run does not fit into this
    machine. The figures of a GPU are those of an H200, and rough.
    """
    from unpose.files import available_memory, readable_bytes

    settings = RunSettings(**options)
    with progress() as report:
        plan = plan_run(images, settings, memory=memory_budget(settings.memory), progress=report)
    place = images if images.is_dir() else images.absolute().parent
    free_disk = shutil.disk_usage(place if place.exists() else Path()).free
    advice = plan.advice(available_memory(), free_disk)
    times = {
        "here": plan.seconds(), "one_gpu": plan.gpu_seconds(), "workers": plan.seconds(workers=workers),
    }  # fmt: skip
    if as_json:
        told = asdict(plan)
        told["calibration"]["indexed"] = finite(told["calibration"]["indexed"])  # not measured without an index
        click.echo(json.dumps({"plan": told, "seconds": times, "advice": advice}, indent=2))
        return
    height, width = plan.shape
    colour = ", in colour" if plan.channels == 3 else ""
    kept = "kept in a file and read in pieces" if plan.in_pieces else "kept in memory"
    click.echo(f"{plan.count:,} images of {height} x {width} pixels{colour}, {kept}.")
    click.echo(f"Time on this machine ({plan.n_cores} cores): {readable_time(times['here'])}")
    click.echo(f"Time with one GPU (an H200, roughly): {readable_time(times['one_gpu'])}")
    click.echo(f"Time on {workers} workers with one core each: {readable_time(times['workers'])}")
    parts = f"the search {readable_time(plan.search_seconds)}"
    if plan.feature_seconds:
        parts += f", features {readable_time(plan.feature_seconds)}"
    click.echo(f"CPU time: {readable_time(plan.cpu_seconds)}, of which {parts}")
    click.echo(f"Memory: {readable_bytes(plan.memory)}")
    click.echo(f"Disk: {readable_bytes(plan.disk)}, and {readable_bytes(plan.temporary)} until the run is finished")
    for sentence in advice or ["It fits into this machine."]:
        click.echo(sentence)
