"""The command line, and the only room that prints.

Each command is one file in ``commands/`` with a click command called ``command``, and one line in ``_COMMANDS`` below;
``shared/`` holds what several commands use. Nothing heavy is imported here or at the top of a command's file, so that
``unpose --help`` answers at once.
"""

import difflib
import errno
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import unpose
from unpose.cli.shared.errors import UserError, unexpected_error

__all__ = ["main"]

_COMMANDS = {
    "demo": "Group a few hundred rotated digits: a first look, without any data of your own.",
    "cluster": "Group images by what they show, whatever the pose of each.",
    "align": "Align images of one object: their mean, their poses and the aligned stack.",
    "dedupe": "Find photographs that are the same though turned, mirrored, scaled, cropped or stamped.",
    "report": "Make the page of a run again.",
    "apply": "Write the names that were given on the page of a run into the run.",
    "export": "Export the results of a run as a table, sorted folders, arrays or STAR.",
    "train": "Train a network whose answer does not change when the image is rotated.",
    "evaluate": "Measure the accuracy of a network on upright and rotated images.",
    "predict": "Assign new images to the clusters of a run or to the classes of a network.",
    "models": "List the trained networks of the package, or show the card of one.",
    "adapt": "Make a model that one already has ignore rotations and mirrors.",
    "audit": "Measure how invariant any model is, find what breaks it, and try what would help.",
    "discover": "Find out which transformations images obey, and how far.",
    "register": "Find the rigid motion between two point clouds.",
    "reproduce": "Reproduce the figures, tables and theorems of the two papers behind this package.",
}


class _LazyGroup(click.Group):
    """A group that imports a command when it is run, and knows its one-line help without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"unpose.cli.commands.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(_COMMANDS)}."
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
        except ValueError as error:
            raise UserError(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader of our output has closed the pipe; click ends quietly
            raise click.ClickException(str(error)) from error
        except Exception as error:
            raise unexpected_error(error, _write_log(traceback.format_exc())) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _write_log(text: str) -> Path:
    with tempfile.NamedTemporaryFile(
        "w", prefix="unpose-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(text)
    return Path(file.name)


@click.group(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
    Examples:
      unpose demo                        a few hundred rotated digits, grouped without labels
      unpose cluster photos/ -o run      the same for your own images; then open run/report.html
    """,
)  # fmt: skip
@click.version_option(unpose.__version__, "-V", "--version", message="unpose %(version)s")
def main() -> None:
    """Machine learning on images that does not depend on pose: on how an object is rotated, shifted, scaled or
    mirrored in its image.

    `unpose COMMAND --help` explains a command. Start with `unpose demo`.

    Exit status: 0 success, 1 failure, 2 wrong call or input, 130 stopped by Ctrl-C.
    """
