"""``unpose reproduce``: the figures, tables and theorems of both papers, one subcommand each."""

import json
from pathlib import Path
from typing import Any

import click

from unpose.cli.shared.output import aligned, check_output, write_output, write_picture
from unpose.cli.shared.progress import progress
from unpose.cli.shared.site import page_line
from unpose.reproduce import ITEMS, Item, Option, Settings, find

_PAGES = {
    "Invariant Attention": "benchmarks/invariant-attention",
    "Group Equivariant Stand-Alone Self-Attention": "benchmarks/group-attention",
}
"""Paper -> the page with its results."""


class _Items(click.Group):
    """One subcommand for each item of the room, made when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [item.name for item in ITEMS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _subcommand(find(name))


def _print_list(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(_table())
        ctx.exit()


@click.group(
    cls=_Items,
    epilog="""\b
    Examples:
      unpose reproduce --list                               what there is, and how long it takes
      unpose reproduce experiment1 -o demo
      unpose reproduce experiment1 -o circle --max-angle 180 --solver search
    """,
)
@click.option(
    "--list", is_flag=True, expose_value=False, is_eager=True, callback=_print_list,
    help="List everything that can be reproduced, with its place in the paper, its command and the expected time.",
)  # fmt: skip
def command() -> None:
    """Reproduce the figures, tables, theorems and propositions of the two papers behind this package.

    Each ends in a picture NAME.png or a table NAME.md, and in numbers.json. The default is a small version that takes
    at most two minutes on two cores; --full runs at the size of the paper.
    """


def _table() -> str:
    """All items: reference, title, command, and expected times."""
    lines = []
    for paper in dict.fromkeys(item.paper for item in ITEMS):
        rows = [("where", "command", "time", "--full", "what")]
        rows += [
            (item.reference, f"unpose reproduce {item.name}", _duration(item.seconds),
             "the same" if item.full_seconds is None else _duration(item.full_seconds), item.title)
            for item in ITEMS
            if item.paper == paper
        ]  # fmt: skip
        lines += [paper, "", aligned(rows), ""]
    return "\n".join([*lines, "Times are for two CPU cores; --full of what trains networks is meant for a GPU."])


def _duration(seconds: int) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds} s"


def _subcommand(item: Item) -> click.Command:
    """The command of one item."""

    def run(out: Path, seed: int, full: bool, force: bool, **options: Any) -> None:
        for name in ("numbers.json", f"{item.name}.png", f"{item.name}.md"):
            check_output(out / name, force)
        out.mkdir(parents=True, exist_ok=True)
        with progress() as report:
            outcome = item.outcome(Settings(seed, full, out, report), **options)
        said = {"item": item.name, "seed": seed, "full": full} | options | outcome.numbers
        write_output(out / "numbers.json", (json.dumps(said, indent=2) + "\n").encode())
        if outcome.figure is not None:
            write_picture(out / f"{item.name}.png", outcome.figure)
        if outcome.table:
            write_output(out / f"{item.name}.md", f"{outcome.markdown()}\n".encode())
            click.echo(outcome.markdown())
        for line in outcome.findings:
            click.echo(line)
        if outcome.figure is not None:
            click.echo(f"The picture is {out / f'{item.name}.png'}.")
        click.echo(f"The numbers are in {out / 'numbers.json'}.")

    full_size = "the same as the default" if item.full_seconds is None else f"about {_duration(item.full_seconds)}"
    parameters: list[click.Parameter] = [
        click.Option(
            ["-o", "--out"], required=True, type=click.Path(file_okay=False, path_type=Path),
            help="Folder for the picture or table and the numbers.",
        ),
        click.Option(["--seed"], default=item.seed, show_default=True, help="Seed of the random data and poses."),
        click.Option(["--full"], is_flag=True, help=f"Run at the size of the paper: {full_size}."),
        click.Option(["--force"], is_flag=True, help="Replace the results in the folder."),
        *map(_parameter, item.options),
    ]  # fmt: skip
    text = (
        f"{item.title} ({item.paper}, {item.reference}).\n\n{item.description}\n\n"
        f"Takes about {_duration(item.seconds)} on two cores."
    )
    call, page = f"unpose reproduce {item.name} -o", _PAGES[item.paper]
    examples = f"\b\nExamples:\n  {call} {item.name}\n  {call} again --seed 1\n\n{page_line(page, page)}"
    return click.Command(item.name, callback=run, params=parameters, help=text, epilog=examples, short_help=item.title)


def _parameter(option: Option) -> click.Option:
    kind: Any = type(option.default)
    if option.choices:
        kind = click.Choice(option.choices)
    elif option.bounds is not None:
        low, high = option.bounds
        kind = click.IntRange(int(low), int(high)) if kind is int else click.FloatRange(low, high)
    is_flag = isinstance(option.default, bool)
    return click.Option(
        [f"--{option.name}"], default=option.default, help=option.help, is_flag=is_flag, show_default=not is_flag,
        type=None if is_flag else kind,
    )  # fmt: skip
