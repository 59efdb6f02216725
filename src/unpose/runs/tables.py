"""CSV tables that are safe to open in a spreadsheet, and poses as readable numbers."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> str:
    """Format a table as CSV whose text cells no spreadsheet runs as a formula.

    Text in the header or in a cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return gets a
    leading apostrophe, which spreadsheets show as text. Floats have six significant digits, booleans are ``yes`` or
    ``no``, None is an empty cell.

    Parameters
    ----------
    columns : sequence of str
        The header.
    rows : iterable of dict or of sequence
        A row is a dictionary by column name, where missing columns are empty, or the cells in order.

    Returns
    -------
    text : str
        The table, with lines that end in a line feed.

    Examples
    --------
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


def pose_parts(pose: "NDArray") -> dict[str, Any]:
    """Decompose a pose into a mirror, a rotation, a scale and a shift, applied in this order.

    The mirror maps ``x`` to ``-x``. Shear and perspective are left out of the decomposition; a run keeps whole
    matrices in ``model.safetensors``.

    Parameters
    ----------
    pose : array of shape (3, 3)
        Homogeneous matrix.

    Returns
    -------
    parts : dict
        ``angle`` in degrees, counter-clockwise on screen; ``shift_x`` and ``shift_y`` in pixels; ``scale`` as a
        factor; ``mirrored`` as a bool.

    Examples
    --------
    >>> import numpy as np
    >>> pose_parts(np.array([[0.0, 1, 3], [-1, 0, 0], [0, 0, 1]]))
    {'angle': 90.0, 'shift_x': 3.0, 'shift_y': 0.0, 'scale': 1.0, 'mirrored': False}
    """
    from unpose.groups import pose_parts  # imports torch, which `unpose --help` must not wait for

    return pose_parts(pose)
