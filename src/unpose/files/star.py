"""Reads from a STAR file of RELION which images of which stacks it lists.

Only the column ``_rlnImageName`` is used (``000012@Extract/job007/stack.mrcs``, counted from one).
"""

import re
from pathlib import Path

from unpose.files.frames import UnreadableError, printable_name
from unpose.files.outputs import read_file
from unpose.files.texts import LARGEST_TEXT

_COLUMN = "_rlnImageName"
_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|\S+")


def read_star(path: Path) -> list[tuple[Path, int]]:
    """Stack and index (from zero) of every listed image, in the order of the file.

    Relative paths are looked up beside the STAR file and then in the folders above it, because projects store paths
    relative to their root folder.
    """
    rows = [_entry(value) for value in _image_names(_text(path))]
    if not rows:
        raise UnreadableError(f"lists no images: no loop with the column {_COLUMN}")
    paths: dict[str, Path] = {}
    for stack, _ in rows:
        if stack not in paths:
            paths[stack] = _stack_path(path, stack)
    return [(paths[stack], index) for stack, index in rows]


def _text(path: Path) -> str:
    try:
        return read_file(path, LARGEST_TEXT).decode("utf-8", "surrogateescape")
    except ValueError as error:
        raise UnreadableError(f"cannot be read: {error}") from error


def _image_names(text: str) -> list[str]:
    """The values of the column in the first loop that has it."""
    values: list[str] = []
    columns: list[str] = []
    in_header = False
    for line in text.splitlines():
        tokens = _TOKEN.findall(line.partition(" #")[0])
        if not tokens or tokens[0].startswith("#"):
            continue
        if tokens[0] == "loop_" or tokens[0].startswith("data_"):
            if values:
                break
            columns, in_header = [], tokens[0] == "loop_"
        elif tokens[0].startswith("_") and in_header:
            columns.append(tokens[0])
        elif _COLUMN in columns:
            in_header = False
            if len(tokens) != len(columns):
                raise UnreadableError(f"has a row of {len(tokens)} values where {len(columns)} columns are declared")
            values.append(tokens[columns.index(_COLUMN)].strip("'\""))
    return values


def _entry(value: str) -> tuple[str, int]:
    """Stack and index of ``NUMBER@STACK``; a name without a number is a file with one image."""
    number, at, stack = value.partition("@")
    if not at:
        return value, 0
    if not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise UnreadableError(
            f"names an image as {printable_name(value)[:80]!r}; NUMBER@STACK was expected, counted from one"
        )
    return stack, int(number) - 1


def _stack_path(path: Path, stack: str) -> Path:
    for folder in path.absolute().parents:
        if (folder / stack).is_file():
            return folder / stack
    return path.parent / stack  # rejected as missing when it is opened
