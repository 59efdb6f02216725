"""The particles that a STAR file lists: which image of which stack.

Only the column ``_rlnImageName`` is read (``000012@Extract/job007/stack.mrcs``, counted from one).
"""

import re
from pathlib import Path

from unpose.files.frames import Unreadable, printable

_COLUMN = "_rlnImageName"
_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|\S+")


def read_star(path: Path) -> list[tuple[Path, int]]:
    """Stack and number (from zero) of every image listed, in the order of the file.

    Relative stacks are sought beside the STAR file and then in the folders above it, as projects keep them relative to
    their root.
    """
    rows = [_entry(path, value) for value in _column(path.read_text(encoding="utf-8", errors="surrogateescape"))]
    if not rows:
        raise Unreadable(f"lists no images: no loop with the column {_COLUMN}")
    places: dict[str, Path] = {}
    for stack, _ in rows:
        if stack not in places:
            places[stack] = _place(path, stack)
    return [(places[stack], number) for stack, number in rows]


def _column(text: str) -> list[str]:
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
                raise Unreadable(f"has a row of {len(tokens)} values where {len(columns)} columns are declared")
            values.append(tokens[columns.index(_COLUMN)].strip("'\""))
    return values


def _entry(path: Path, value: str) -> tuple[str, int]:
    number, at, stack = value.partition("@")
    if not at:
        return value, 0
    if not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise Unreadable(f"names an image as {printable(value)[:80]!r}; NUMBER@STACK was expected, counted from one")
    return stack, int(number) - 1


def _place(path: Path, stack: str) -> Path:
    for folder in path.absolute().parents:
        if (folder / stack).is_file():
            return folder / stack
    return path.parent / stack  # listed as missing when it is opened
