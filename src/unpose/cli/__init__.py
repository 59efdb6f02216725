"""The command line: one file per command; the only room that prints.

Nothing heavy is imported here or at the top of a command's file, so that ``unpose --help`` answers at once.
"""

import errno
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import unpose
from unpose.cli.shared.errors import Refused, failed

_COMMANDS = {
    "demo": "See it work, on data that comes along.",
    "cluster": "Find the kinds of things in a pile of images, however each is turned.",
    "align": "Bring images of one thing together: their mean, poses and aligned stack.",
    "report": "Make the page of a run again.",
    "export": "Results of a run as table, sorted folders, arrays or STAR.",
    "train": "Train a network for which a turned image is the same image.",
    "evaluate": "Measure a network on images upright and turned.",
    "predict": "Assign new images to the clusters of a run, or to the classes of a network.",
    "models": "Name the trained networks that come along, or show the card of one.",
    "audit": "Measure how invariant a trained network is, and name the module that breaks it.",
    "reproduce": "Make the pictures of the paper behind `find`.",
}


class _Lazy(click.Group):
    """Commands are imported when they are run; their one-line help is known without."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"unpose.cli.commands.{name.replace('-', '_')}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\nStopped.", err=True)
            raise click.exceptions.Exit(130) from None  # what shells expect, and not click's 1
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except ValueError as error:
            raise Refused(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # whoever read our output has enough; click ends quietly
            raise click.ClickException(str(error)) from error
        except Exception as error:
            raise failed(error, _kept(traceback.format_exc())) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _kept(text: str) -> Path:
    """A file of its own for what is too long to be said."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="unpose-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(text)
    return Path(file.name)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(unpose.__version__, "-V", "--version", message="unpose %(version)s")
def main() -> None:
    """Learning that does not depend on pose: how a thing is turned, shifted, scaled or mirrored in its picture.

    \b
    Start here:
      unpose demo                        a few hundred turned digits, grouped without labels; ends with a page
      unpose cluster photos/ -o run      the same for your own images: open run/report.html

    \b
    Exit status: 0 done, 1 failed, 2 the call or the input is wrong, 130 stopped by Ctrl-C.
    """
