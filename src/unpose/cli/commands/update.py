"""``unpose update``: add images that arrived later to a finished run."""

import json
from pathlib import Path

import click

from unpose.cli.shared.inputs import ImagesPath, pick_device, read_on_canvas, read_run_again, use_features
from unpose.cli.shared.options import device_option, features_again_option
from unpose.cli.shared.output import counted
from unpose.cli.shared.progress import progress
from unpose.runs import read_run, update_run
from unpose.runs.folder import RunFolder


@click.command(
    epilog="""\b
    Examples:
      unpose update run monday/
      unpose update run tuesday/ --averages              new averages of the groups, too
      unpose update run new/ --json | jq .foreign
    """
)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("new", type=ImagesPath())
@click.option(
    "--averages", is_flag=True,
    help="Compute the averages and all poses again, with the new images; reads the images of the run again.",
)  # fmt: skip
@click.option(
    "--images", type=ImagesPath(),
    help="Where the images of the run are now, if they were moved; for --averages.",
)  # fmt: skip
@features_again_option
@device_option
@click.option("--json", "as_json", is_flag=True, help="Print what was added as JSON.")
def command(
    run: Path, new: Path, averages: bool, images: Path | None, features: str | None, device: str, as_json: bool
) -> None:
    """Add images to a finished run, without doing it again.

    RUN is a folder that `unpose cluster` wrote; NEW is a folder or stack of images that arrived later. The images of
    the run that are most similar to a new image vote for its group, as with `unpose predict`; the groups themselves
    stay. The tables and the page are written again with all images, in one step: if the command is stopped, the run
    stays as it was. Images that an earlier update has added are not added again, so a stopped command can be repeated.

    added.csv in the run folder lists every image that was added, with its group, the confidence and its p-value, as
    `unpose predict` explains them. Images with a p-value below 0.05 fit no group and may be of a new kind. If there are
    many, run `unpose cluster` on all images.
    """
    with RunFolder(run).changing():
        results = read_run(run)
        use_features(results, features)
        results.model.set_params(device=str(pick_device(device)))
        with progress() as report:
            read = read_on_canvas(results, new, report)
            before = read_run_again(results, images) if averages else None
            update = update_run(results, new, read, old=before, progress=report)
    summary = {
        "run": str(run), "added": len(update.rows), "images": len(update.run.names), "foreign": update.n_foreign,
        "rejected": len(read.rejected), "table": str(run / "added.csv"), "report": str(run / "report.html"),
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    done = "added by an earlier update and none now" if len(update.run.names) == len(results.names) else "added"
    click.echo(
        f"{counted(len(update.rows), 'image')} {done}; the run has {counted(len(update.run.names), 'image')} now."
    )
    if update.n_foreign:
        click.echo(
            f"{counted(update.n_foreign, 'new image')} fit no group and may be of another kind (of known kinds, one in "
            f"twenty would); see {run / 'added.csv'}."
        )
    if read.rejected:
        click.echo(f"{counted(len(read.rejected), 'image')} could not be read; {run / 'rejected.csv'} says why.")
    click.echo(f"The page is {run / 'report.html'}.")
