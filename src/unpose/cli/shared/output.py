"""What a command prints and writes: no file is replaced unasked, and missing folders are created."""

import math
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import UserError
from unpose.runs.folder import LOCK, check_apart

if TYPE_CHECKING:
    from PIL.Image import Image

    from unpose.runs import RunSettings


def is_stream(out: Path) -> bool:
    """Whether a path is a pipe, a device or our own stdout, which is written to and never replaced."""
    return out.exists() and not out.is_dir() and (not out.is_file() or os.path.samestat(out.stat(), os.fstat(1)))


def check_output(out: Path, force: bool) -> None:
    """Refuse to replace an existing file, before any work is done."""
    if not force and out.exists() and not is_stream(out):
        raise UserError(f"{out} already exists; give another name, or --force to replace it")


def check_results_folder(out: Path, command: str, is_ours: Callable[[Path], bool], sources: Iterable[Path]) -> None:
    """Refuse a folder for the results of a command that holds anything else, also with --force, or lies in the images.

    ``is_ours`` says whether a folder that is not empty holds results of this command.
    """
    for source in sources:
        check_apart(out, source)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give a folder")
    if out.is_dir() and any(entry.name != LOCK for entry in out.iterdir()) and not is_ours(out):
        raise UserError(
            f"{out} is not empty and holds no results of `unpose {command}`, and nothing else is replaced; give "
            "another folder"
        )


def check_picture(out: Path, force: bool) -> None:
    """Check the output file of a picture, whose name must not promise a format other than PNG."""
    if out.suffix.lower() not in ("", ".png"):
        raise UserError(f"pictures are written as PNG; give a name that ends with .png, got {out}")
    check_output(out, force)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Report an ``OSError`` as a problem with the option --out."""
    try:
        yield
    except OSError as error:
        raise click.BadParameter(f"cannot write {out}: {error.strerror or error}", param_hint="--out") from error


def write_output(out: Path, content: bytes) -> None:
    """Write a file, completely or not at all."""
    from unpose.files import write_chunks

    with writing(out):
        write_chunks(out, [content])


def write_lines(out: Path, lines: Iterable[str]) -> None:
    """Write a text line by line, completely or not at all, for tables of any length."""
    from unpose.files import write_chunks

    with writing(out):
        write_chunks(out, (line.encode() for line in lines))


def write_picture(path: Path, picture: "Image") -> None:
    """Write a picture as PNG."""
    from unpose.files import write_image

    with writing(path):
        write_image(path, picture)


def write_table(text: str, out: Path | None, count: int, rejected: Sequence[tuple[str, str]]) -> None:
    """Write a table of ``count`` images to a file or to stdout, and list the images that were not read on stderr."""
    if out is None:
        click.echo(text, nl=False)
    else:
        write_output(out, text.encode())
        click.echo(f"Wrote the results of {counted(count, 'image')} to {out}.", err=is_stream(out))
    list_unread(rejected)


def list_unread(rejected: Sequence[tuple[str, str]], most: int | None = None) -> None:
    """List on stderr the images that were not read, at most so many of them."""
    for name, reason in rejected[:most]:
        click.echo(f"not read: {name} {reason}", err=True)
    if most is not None and len(rejected) > most:
        click.echo(f"... and {len(rejected) - most:,} more that could not be read", err=True)


def counted(count: int, noun: str) -> str:
    """A number with its noun: 1 image, 2 images."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def finite(value: float) -> float | None:
    """The value, or None (null in JSON) where it is not finite."""
    return float(value) if math.isfinite(value) else None


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Rows of cells as lines with aligned columns, those of the indices ``right`` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        [cell.rjust(width) if i in right else cell.ljust(width)
         for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]  # fmt: skip
    return "\n".join("  ".join(line).rstrip() for line in lines)


def print_input_notes(summary: dict[str, Any], out: Path) -> None:
    """Print how many images of a run could not be read, and other notes about its input."""
    if summary["rejected"]:
        click.echo(f"{counted(summary['rejected'], 'image')} could not be read; {out / 'rejected.csv'} says why.")
    for note in summary["notes"]:
        click.echo(f"{note}.")


def command_line(name: str, source: Path, out: Path, settings: "RunSettings") -> str:
    """The command that continues or repeats a run, with the flags that differ from the defaults."""
    words = ["unpose", name, str(source), "-o", str(out)]
    for setting, value in settings.changed().items():
        words += [f"--{setting.replace('_', '-')}", str(value)]
    return shlex.join(words)
