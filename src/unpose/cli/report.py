"""``unpose report``: the page of a run, made again from its folder."""

import json
from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write here instead of RUN/report.html."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary of the run as JSON.")
def command(run: Path, out: Path | None, as_json: bool) -> None:
    """Make the page of a run again, from what its folder holds; the images themselves are not needed.

    \b
    Examples:
      unpose report run
      unpose report run -o ~/for-my-colleagues.html
    """
    from unpose.cli.finished_run import read_run, results, summary, write_page
    from unpose.images.files import write_text
    from unpose.report.page import render

    found = read_run(run)
    try:
        page = write_page(found) if out is None else write_text(out, render(results(found)))
    except OSError as error:
        raise click.ClickException(f"{out or run} cannot be written: {error.strerror}") from error
    click.echo(json.dumps(summary(found) | {"report": str(page)}, indent=2) if as_json else f"The page is {page}.")
