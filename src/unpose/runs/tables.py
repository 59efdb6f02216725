"""CSV tables that are safe to open in a spreadsheet."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["csv_text"]

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> str:
    """Format a table as CSV whose text cells no spreadsheet runs as a formula.

    Text in the header or in a cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return gets a
    leading apostrophe, which spreadsheets show as text. Floats have six significant digits, booleans are ``yes`` or
    ``no``, None is an empty cell.
    A row is a dictionary by column name, where missing columns are empty, or the cells in order. Lines end in a line
    feed.

    >>> print(csv_text(["path", "angle"], [{"path": "=1+1.png", "angle": -0.5}, ["b.png", None]]), end="")
    path,angle
    '=1+1.png,-0.5
    b.png,
    """
    return "".join(csv_lines(columns, rows))


def csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> Iterator[str]:
    """The lines of the table that :func:`csv_text` formats, one after the other, for tables of any length."""
    yield _line(columns)
    for row in rows:
        yield _line([row.get(name) for name in columns] if isinstance(row, Mapping) else row)


def _line(cells: Sequence[Any]) -> str:
    # The default line end makes the csv module quote a carriage return in a cell; our lines end with a line feed.
    stream = io.StringIO(newline="")
    csv.writer(stream).writerow([_cell(value) for value in cells])
    return stream.getvalue().removesuffix("\r\n") + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return str(value)


def plain_text(cell: str) -> str:
    """The text of a cell that :func:`csv_text` wrote: without the apostrophe that keeps it from being a formula.

    >>> plain_text("'=1+1.png"), plain_text("'quoted'")
    ('=1+1.png', "'quoted'")
    """
    return cell[1:] if cell.startswith("'") and cell[1:].startswith((*_FORMULA_STARTS, "\n")) else cell
