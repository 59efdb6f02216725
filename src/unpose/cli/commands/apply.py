"""``unpose apply``: write the names that were given on the page of a run into the run."""

import json
from pathlib import Path

import click

from unpose.cli.shared.errors import UserError
from unpose.cli.shared.inputs import ImagesPath, read_run_again
from unpose.cli.shared.output import counted
from unpose.cli.shared.progress import progress
from unpose.runs import apply_names, read_names, read_run
from unpose.runs.folder import RunFolder


@click.command(
    epilog="""\b
    Examples:
      unpose apply run ~/Downloads/labels.csv
      unpose apply run labels.csv --images /media/photos     the images were moved
      unpose export run --to folders -o sorted           one folder for each name
      unpose train run                                   the settled images are the classes to learn
    """
)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--images", type=ImagesPath(), help="Where the images are now, if they were moved.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary of the run as JSON.")
def command(run: Path, labels: Path, images: Path | None, as_json: bool) -> None:
    """Write groups and names that were given on the page into the run.

    RUN is a folder that `unpose cluster` wrote; LABELS is the labels.csv that its page saved, or any CSV file with the
    columns path and name. Every name becomes a group; images without a name stay in their group, without their
    named images. The averages and poses of the new groups are computed, and all files of the run are written again,
    the page too. The images are read and never changed.

    After this, `unpose export --to folders` makes one folder for each name, `unpose train RUN` learns the settled
    images, and the page goes on where it stopped.
    """
    from unpose.files import read_text

    try:
        table = read_text(labels)
    except ValueError as error:
        raise UserError(str(error)) from error
    with RunFolder(run).changing():
        before = read_run(run)
        groups = read_names(table, before)
        pixels = read_run_again(before, images)
        with progress() as report:
            after = apply_names(before, groups, pixels, progress=report)
    if as_json:
        click.echo(json.dumps(after.summary(), indent=2))
        return
    if groups.unknown:
        click.echo(
            f"{counted(len(groups.unknown), 'row')} left out: not in the run, {groups.unknown[0]!r} first.", err=True
        )
    named = sum(bool(name) for name in groups.names)
    click.echo(
        f"{counted(len(groups.names), 'group')}, {named} of them named; {counted(int(groups.settled.sum()), 'image')} "
        f"of {len(after.names):,} settled."
    )
    click.echo(f"The page is {after.path / 'report.html'}.")
