"""Errors as one line for the user, with an exit status that says whether the input or the program is at fault."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from unpose.runs.folder import RunFolder
from unpose.runs.settings import is_users_mistake


class UserError(click.ClickException):
    """The call or the input is wrong; exit status 2."""

    exit_code = 2


def unexpected_error(error: Exception, log: Path) -> click.ClickException:
    """The first line of an unexpected error and the file that has its traceback; exit status 1."""
    first_line = str(error).partition("\n")[0] or type(error).__name__
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
    whose = "" if is_memory else "this is a fault of unpose, not of your input; "
    return click.ClickException(f"failed: {first_line}; {whose}{log} has the details")


def _with_flags(error: Exception) -> str:
    """The message of an error; one that names parameters of Python names the flags of the command instead."""
    from unpose.align import MemoryBudgetError
    from unpose.files import readable_bytes

    if not isinstance(error, MemoryBudgetError):
        return str(error)
    smaller = f", --size {error.fitting_side}" if error.fitting_side else ""
    return (
        f"about {readable_bytes(error.needed)} are needed for {error.what}, more than the budget of "
        f"{readable_bytes(error.budget)}; give --memory {readable_bytes(error.needed)}{smaller}, or smaller bounds "
        "(--max-shift, --max-scale)"
    )


@contextmanager
def run_errors(folder: RunFolder, command: str) -> Iterator[None]:
    """Turn errors of a run into one line, and write them to the log of a run that has begun.

    The exit status is 2 for wrong input, 1 for a failure, and 130 for Ctrl-C, after which the message gives the
    ``command`` that continues the run.
    """

    def log(line: str) -> None:
        if folder.is_unfinished:
            folder.log(line)

    try:
        yield
    except KeyboardInterrupt:
        log("stopped by Ctrl-C")
        if folder.has_checkpoints:
            click.echo(f"\nStopped. The finished stages are kept; continue with: {command}", err=True)
        else:
            click.echo(f"\nStopped before any stage was finished. Start again with: {command}", err=True)
        raise click.exceptions.Exit(130) from None
    except click.exceptions.Exit:
        raise
    except click.ClickException as error:
        log(error.message)
        raise
    except OSError as error:
        log(str(error))
        raise click.ClickException(str(error)) from error
    except Exception as error:
        if is_users_mistake(error):
            message = _with_flags(error)
            log(message)
            raise UserError(message) from error
        if not folder.is_unfinished:
            raise  # the run has no log yet; the command group writes the traceback to a file of its own
        log(traceback.format_exc())
        raise unexpected_error(error, folder.path / "log.txt") from error


@contextmanager
def parameter_errors(hint: str, errors: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Report the user's mistakes as a problem with the option or argument that ``hint`` names."""
    try:
        yield
    except errors as error:
        if isinstance(error, ValueError) and not is_users_mistake(error):
            raise
        raise click.BadParameter(str(error), param_hint=hint) from error


@contextmanager
def training_errors(again: str) -> Iterator[None]:
    """Say in one line how a training ended that was stopped, diverged or was refused; ``again`` continues it."""
    from unpose.train import DivergedError, StoppedError

    try:
        yield
    except StoppedError:
        click.echo(f"\nStopped; all work is saved. Continue with: {again}", err=True)
        raise click.exceptions.Exit(130) from None
    except DivergedError as error:
        raise click.ClickException(str(error)) from error
    except (ValueError, OSError) as error:
        if isinstance(error, ValueError) and not is_users_mistake(error):
            raise
        raise click.UsageError(str(error)) from error
