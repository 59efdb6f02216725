"""Errors as a person reads them: one line, and a status that says whose fault it is."""

from pathlib import Path

import click


class Refused(click.ClickException):
    """A wrong call or input, in one line; exit status 2."""

    exit_code = 2


def failed(error: Exception, log: Path) -> click.ClickException:
    """An error that nobody expected, in one line; exit status 1."""
    told = str(error).partition("\n")[0] or type(error).__name__
    return click.ClickException(f"failed: {told}; {log} says more")
