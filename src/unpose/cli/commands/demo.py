"""``unpose demo``: one demonstration for each job, each ends with something to look at."""

from pathlib import Path

import click

from unpose.cli.commands import learn_demo


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--out", default=Path("demo"), show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the digits and their poses.")
@click.option("--force", is_flag=True, help="Replace the run of an earlier demonstration.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON on stdout.")
@click.pass_context
def command(ctx: click.Context, out: Path, seed: int, force: bool, as_json: bool) -> None:
    """Demonstrations on data that comes along; nothing is downloaded.

    Without a command: a few hundred handwritten digits at random turns and shifts are written to a folder, grouped
    without labels, and shown on a page. Under a minute on two cores.

    \b
    Examples:
      unpose demo                  find: the page is demo/run/report.html
      unpose demo learn            learn: a network that does not care about turns
    """
    if ctx.invoked_subcommand is None:
        from unpose.cli.commands.cluster_demo import cluster_demo

        cluster_demo(out, seed, force, as_json)


command.add_command(learn_demo.command, "learn")
