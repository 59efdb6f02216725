"""Write an audit as one self-contained HTML page, which loads no other file and works without a server.

Names of files and classes and the answers of a model are untrusted: the template escapes them, and the content policy
forbids all scripts, styles and addresses but the page's own.
"""

import math
from typing import Any

from numpy.typing import NDArray

from unpose.report.audit.polar import polar_plot
from unpose.report.audit.results import AuditedElement, AuditResults
from unpose.report.audit.words import movement, percent, sentences
from unpose.report.documents import asset, rendered
from unpose.report.thumbnails import display_range, thumbnail, webp

PICTURE_SIDE = 160
"""Largest side of a picture in the page, in pixels."""
_LONGEST_TABLE = 200
"""Rows of a table that the page shows; the JSON file has all."""
_LEAST_LIMIT = 0.05
"""The outer circle of the polar plot is at least this."""


def render_audit(results: AuditResults) -> str:
    r"""Write the results of an audit as an HTML page; the same results give the same text.

    >>> from unpose.report import Reproduction
    >>> rows = [AuditedElement("identity", True, 0, 0, 0.0, 0.0), AuditedElement("turn 90", True, 0.3, 0, 0.07, 0.0)]
    >>> run = Reproduction("unpose audit model.onnx", seed=0, version="0.1.0")
    >>> page = render_audit(AuditResults("model.onnx", "c4", "photos", 200, rows, rows[0], 1.0, 1e-5, run))
    >>> "7\u00a0% of the answers change" in page
    True
    """
    style, script = asset("page.css") + asset("audit.css"), asset("audit.js")
    first, *verdict = map(_unbroken, sentences(results))
    return rendered(
        "audit.html.j2",
        style,
        script,
        r=results,
        headline=first,
        verdict=verdict,
        state=results.state,
        elements=_element_rows(results),
        polar=_polar(results),
        pictures=[(_picture(each.image, results), _picture(each.moved, results)) for each in results.worst_images],
        widest_module=max((m.error for m in results.modules if math.isfinite(m.error)), default=0.0) or 1.0,
        longest=_LONGEST_TABLE,
        percent=percent,
        movement=movement,
        number=_number,
        isfinite=math.isfinite,
    )


def _element_rows(results: AuditResults) -> list[dict[str, Any]]:
    rows = [*results.elements, results.control]
    widest = max([_shown(row) for row in rows if math.isfinite(_shown(row))] or [0.0]) or 1.0
    return [
        {
            "row": row,
            "width": 100 * min(1.0, _shown(row) / widest) if math.isfinite(_shown(row)) else 100.0,
            "floor": 100 * min(1.0, _shown_floor(row) / widest) if math.isfinite(_shown_floor(row)) else 100.0,
            "control": row is rows[-1],
        }
        for row in rows
    ]


def _shown(element: AuditedElement) -> float:
    """What the charts show: the share of answers that change or, without answers, the error."""
    return element.error if element.changed is None else element.changed


def _shown_floor(element: AuditedElement) -> float:
    return element.floor if element.changed_floor is None else element.changed_floor


def _polar(results: AuditResults) -> dict[str, Any] | None:
    if len(results.angles) < 3:
        return None
    degrees = [element.degrees for element in results.angles]
    measured = [_shown(element) for element in results.angles]
    floors = [_shown_floor(element) for element in results.angles]
    control = _shown(results.control)
    plot = polar_plot(degrees, [measured, floors], _LEAST_LIMIT)
    order = sorted(range(len(degrees)), key=lambda i: degrees[i] % 360)
    table = [(degrees[i], measured[i], floors[i], results.angles[i].accuracy) for i in order]
    dots = [(x, y, *table[k][:3]) for k, (x, y) in enumerate(plot.points[0])]
    return {"plot": plot, "dots": dots, "table": table, "control": control}


def _picture(image: NDArray, results: AuditResults) -> str:
    """An image as a data address. All pictures share one range of brightness."""
    shown = display_range([each.image for each in results.worst_images])
    return f"data:image/webp;base64,{webp(thumbnail(image, shown, PICTURE_SIDE), quality=85)}"


def _unbroken(text: str) -> str:
    """Keep a number and its % on one line."""
    return text.replace(" %", "\u00a0%")


def _number(value: float) -> str:
    """Two significant digits."""
    return f"{value:.2g}" if math.isfinite(value) else "?"
