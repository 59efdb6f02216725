"""``unpose report``: the page of a run, made again from its folder."""

import json
from pathlib import Path

import click

from unpose.cli.shared.output import is_stream, write_output


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
    from unpose.report.page import render
    from unpose.runs.finished import read_run, results, summary, write_page

    found = read_run(run)
    if out is None:
        try:
            page = write_page(found)
        except OSError as error:
            raise click.ClickException(f"{run} cannot be written: {error.strerror}") from error
    else:
        page = out
        write_output(out, render(results(found)).encode())
    told = json.dumps(summary(found) | {"report": str(page)}, indent=2) if as_json else f"The page is {page}."
    click.echo(told, err=out is not None and is_stream(out))
