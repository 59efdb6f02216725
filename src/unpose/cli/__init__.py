"""The command line, and the only room that prints.

Each command is one file in ``commands/`` with a click command called ``command``, and one line in ``COMMANDS`` below;
``shared/`` holds what several commands use. Nothing heavy is imported here or at the top of a command's file, so that
``unpose --help`` answers at once.
"""

import difflib
import errno
import tempfile
import traceback
from functools import cache
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

import unpose
from unpose.cli.shared.errors import UserError, unexpected_error
from unpose.cli.shared.site import page_line
from unpose.runs.settings import is_users_mistake

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("Group a few hundred rotated digits: a first look, without any data of your own.", "start"),
    "cluster": ("Group images by what they show, whatever the pose of each.", "tutorials/plankton"),
    "plan": ("Say what a run will take before it starts: time, memory and disk.", "howto/long-runs"),
    "align": ("Align images of one object: their mean, their poses and the aligned stack.", "howto/align"),
    "dedupe": (
        "Find photographs that are the same though turned, mirrored, scaled, cropped or stamped.",
        "howto/duplicates",
    ),
    "report": ("Make the page of a run again.", "howto/labels"),
    "update": ("Add images that arrived later to a finished run.", "howto/new-images"),
    "apply": ("Write the names that were given on the page of a run into the run.", "howto/labels"),
    "export": ("Export the results of a run as a table, sorted folders, arrays or STAR.", "howto/labels"),
    "train": ("Train a network whose answer does not change when the image is rotated.", "howto/train"),
    "evaluate": ("Measure the accuracy of a network on upright and rotated images.", "howto/train"),
    "predict": ("Assign new images to the clusters of a run or to the classes of a network.", "howto/new-images"),
    "models": ("List the trained networks of the package, or show the card of one.", "howto/pretrained"),
    "adapt": ("Make a model that one already has ignore rotations and mirrors.", "howto/adapt"),
    "audit": ("Measure how invariant any model is, find what breaks it, and try what would help.", "howto/audit"),
    "discover": ("Find out which transformations images obey, and how far.", "howto/discover"),
    "register": ("Find the rigid motion between two point clouds.", "howto/points"),
    "reproduce": (
        "Reproduce the figures, tables and theorems of the two papers behind this package.",
        "howto/reproduce",
    ),
    "docs": ("Open the documentation, which lies on this computer.", "index"),
}
"""Name -> its line in the list of commands, and the page of the documentation that its help refers to."""


class _LazyGroup(click.Group):
    """A group that imports a command when it is run, and knows its one-line help without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return _load(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(COMMANDS)}."
            ctx.fail(f"There is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\nStopped.", err=True)
            raise click.exceptions.Exit(130) from None  # the status that shells expect; click's own would be 1
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader of our output has closed the pipe; click ends quietly
            raise click.ClickException(str(error)) from error
        except Exception as error:
            if is_users_mistake(error):
                raise UserError(str(error)) from error
            raise unexpected_error(error, _write_log(traceback.format_exc())) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (line, _) in COMMANDS.items()])


@cache
def _load(name: str) -> click.Command:
    """The command of a name, whose help ends with the address of its page, as do those of its subcommands."""
    command: click.Command = import_module(f"unpose.cli.commands.{name}").command
    page = COMMANDS[name][1]
    for each in (command, *getattr(command, "commands", {}).values()):
        each.epilog = f"{cleandoc(each.epilog or '')}\n\n{page_line(page, name)}"
    return command


def _write_log(text: str) -> Path:
    with tempfile.NamedTemporaryFile(
        "w", prefix="unpose-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(text)
    return Path(file.name)


@click.group(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"""\b
Examples:
  unpose demo                        a few hundred rotated digits, grouped without labels
  unpose cluster photos/ -o run      the same for your own images; then open run/report.html

{page_line("index")}""",
)  # fmt: skip
@click.version_option(unpose.__version__, "-V", "--version", message="unpose %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Machine learning on images that does not depend on pose: on how an object is rotated, shifted, scaled or
    mirrored in its image.

    `unpose COMMAND --help` explains a command. Start with `unpose demo`.

    Exit status: 0 success, 1 failure, 2 wrong call or input, 130 stopped by Ctrl-C.
    """
    ctx.obj = {name: page for name, (_, page) in COMMANDS.items()}  # for `unpose docs`
