"""Where a command writes what it was asked for: nothing is replaced unasked, and folders on the way are made."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from unpose.cli.shared.errors import Refused


def is_stream(out: Path) -> bool:
    """A pipe, a device, or our own stdout under another name: written to, never replaced."""
    return out.exists() and not out.is_dir() and (not out.is_file() or os.path.samestat(out.stat(), os.fstat(1)))


def check_output(out: Path, force: bool) -> None:
    """Refuse to replace what is there, before any work is done."""
    if not force and out.exists() and not is_stream(out):
        raise Refused(f"{out} is there already; give another name, or --force to replace it")


def check_picture(out: Path, force: bool) -> None:
    """The same for a picture, whose name must not promise another format."""
    if out.suffix.lower() not in ("", ".png"):
        raise Refused(f"pictures are written as PNG; give a name that ends with .png, got {out}")
    check_output(out, force)


def write_output(out: Path, content: bytes) -> None:
    """A file, whole or not at all."""
    from unpose.files.atomic import write_chunks  # numpy and Pillow come with it

    with writing(out):
        write_chunks(out, [content])


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Within it what keeps this from being written is said of the option that names it."""
    try:
        yield
    except OSError as error:
        raise click.BadParameter(f"cannot write {out}: {error.strerror or error}", param_hint="--out") from error
