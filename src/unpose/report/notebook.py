"""What results show in notebooks: tables and small pictures as HTML that needs no style sheet, light or dark."""

import io
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from unpose.report.thumbnails import display_range, thumbnail

MOST_ROWS = 24
"""Rows of a table that are shown."""

_BAR = "#0072b2"
"""Blue of the colour-blind safe palette, legible on white and on black."""


def pictures_html(images: NDArray, captions: Sequence[str], *, width: int = 96) -> str:
    """Images with captions, side by side, as HTML for notebooks.

    Parameters
    ----------
    images : (k, h, w) or (k, h, w, c) array
        Images; all share one range of values, from black to white.
    captions : sequence of k str
        A line below each image.
    width : int, default 96
        Width of an image on the screen.

    Returns
    -------
    str

    Examples
    --------
    >>> pictures_html(np.zeros((2, 8, 8)), ["a", "b < c"]).count("<img"), "b &lt; c" in pictures_html(
    ...     np.zeros((1, 8, 8)), ["b < c"])
    (2, True)
    """
    shown_range = display_range(images) if len(images) else (0.0, 1.0)
    figures = []
    for image, caption in zip(images, captions, strict=True):
        file = io.BytesIO()
        thumbnail(image, shown_range, 2 * width).save(file, format="PNG")
        source = b64encode(file.getvalue()).decode("ascii")
        figures.append(
            f'<figure style="display:inline-block;margin:4px;text-align:center"><img width="{width}" '
            f'src="data:image/png;base64,{source}" alt="{escape(caption)}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )
    return "".join(figures)


def table_html(
    columns: Mapping[str, Sequence[Any]],
    *,
    title: str = "",
    notes: Sequence[str] = (),
    bars: Sequence[str] = (),
    n_rows: int | None = None,
) -> str:
    """A table as HTML for notebooks; of many rows, the first 24 (:data:`MOST_ROWS`).

    Parameters
    ----------
    columns : dict of str to sequence
        Header and cells of each column. Numbers have three significant digits, booleans are yes or no, and None and NaN
        are empty. Text is escaped, except ``markupsafe.Markup``.
    title : str, default ""
        A line above the table.
    notes : sequence of str, default ()
        Lines below it.
    bars : sequence of str, default ()
        Columns whose numbers are also drawn as bars, from zero to the largest number of all of them.
    n_rows : int, optional
        Number of rows of the whole table, if the columns hold only the first of them.

    Returns
    -------
    str

    Examples
    --------
    >>> html = table_html({"element": ["turn 90", "mirror"], "error": [1e-7, 0.5]}, bars=["error"], notes=["Mirrors."])
    >>> "1e-07" in html, html.count("<tr>"), html.endswith("<div>Mirrors.</div>")
    (True, 3, True)
    """
    count = max((len(cells) for cells in columns.values()), default=0)
    numbers = [float(cell) for name in bars for cell in columns[name] if _is_number(cell)]
    longest = max([number for number in numbers if math.isfinite(number)], default=0.0)
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in columns)
    rows = [
        "".join(
            f'<td style="text-align:{"right" if _is_number(cells[i]) else "left"}">{_cell(cells[i])}'
            f"{_bar(cells[i], longest) if name in bars else ''}</td>"
            for name, cells in columns.items()
        )
        for i in range(min(count, MOST_ROWS))
    ]
    left_out = (count if n_rows is None else n_rows) - len(rows)
    if left_out > 0:
        notes = (f"... and {left_out:,} more rows", *notes)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    heading = f"<div><b>{escape(title)}</b></div>" if title else ""
    below = "".join(f"<div>{escape(note)}</div>" for note in notes)
    return f"{heading}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def text_html(text: str) -> str:
    """Text with its columns kept, as HTML for notebooks.

    Parameters
    ----------
    text : str
        Lines that are aligned by spaces.

    Returns
    -------
    str

    Examples
    --------
    >>> text_html("a < b")
    '<pre>a &lt; b</pre>'
    """
    return f"<pre>{escape(text)}</pre>"


def curve_html(values: Sequence[float]) -> Markup:
    """A small curve for the cell of a table, from 0 at the bottom to 1 at the top.

    Parameters
    ----------
    values : sequence of float
        At equal distances.

    Returns
    -------
    markupsafe.Markup

    Examples
    --------
    >>> curve_html([0.0, 0.5, 1.0])[:20]
    Markup('<svg width="90" heig')
    """
    heights = [18 - 16 * min(max(float(value), 0.0), 1.0) for value in values]
    if len(heights) == 1:
        heights *= 2
    points = " ".join(f"{2 + 86 * i / (len(heights) - 1):.1f},{y:.1f}" for i, y in enumerate(heights))
    return Markup(
        '<svg width="90" height="20" viewBox="0 0 90 20"><line x1="0" x2="90" y1="18.5" y2="18.5" '
        f'stroke="currentColor" stroke-opacity="0.3"/><polyline points="{points}" fill="none" stroke="{_BAR}" '
        'stroke-width="2"/></svg>'
    )


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float | np.number) and not isinstance(cell, bool | np.bool_)


def _cell(cell: Any) -> str:
    if isinstance(cell, bool | np.bool_):
        return "yes" if cell else "no"
    if cell is None or (_is_number(cell) and math.isnan(cell)):
        return ""
    if _is_number(cell):
        return f"{cell:,}" if isinstance(cell, int | np.integer) else f"{float(cell):.3g}"
    return str(escape(cell))


def _bar(cell: Any, longest: float) -> str:
    if not _is_number(cell) or not math.isfinite(cell) or longest <= 0:
        return ""
    size = 80 * max(float(cell), 0.0) / longest
    return (
        '<span style="display:inline-block;width:84px;margin-left:8px;text-align:left">'
        f'<span style="display:inline-block;width:{size:.0f}px;height:0.6em;background:{_BAR}"></span></span>'
    )
