"""``unpose report``: the page of a run, made again from its folder."""

import json
from pathlib import Path

import click

from unpose.cli.shared.output import check_output, is_stream, write_output
from unpose.runs import read_run
from unpose.runs.folder import RunFolder


@click.command(
    epilog="""\b
    Examples:
      unpose report run
      unpose report run -o ~/for-my-colleagues.html
    """
)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file, not to RUN/report.html."
)
@click.option("--force", is_flag=True, help="Replace the file.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary of the run as JSON.")
def command(run: Path, out: Path | None, force: bool, as_json: bool) -> None:
    """Make the page of a run again.

    RUN is a folder that `unpose cluster` wrote; the images themselves are not needed. The command writes one HTML file
    that needs no other file and no server, so it can be sent to others.
    """
    if out is None:
        with RunFolder(run).changing():
            results = read_run(run)
            try:
                page = results.write_page()
            except OSError as error:
                raise click.ClickException(f"{run / 'report.html'} cannot be written: {error.strerror}") from error
    else:
        check_output(out, force)
        results, page = read_run(run), out
        write_output(out, results.page().encode())
    message = json.dumps(results.summary() | {"report": str(page)}, indent=2) if as_json else f"The page is {page}."
    click.echo(message, err=out is not None and is_stream(out))
