"""The page of a search for duplicates: each pair as found, aligned, and its difference.

Names of files are untrusted: the template escapes them, and the content policy forbids scripts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unpose.report.documents import asset, rendered
from unpose.report.thumbnails import thumbnail, webp

__all__ = ["ShownPair", "ShownSet", "render_duplicates"]

_SIDE = 200


@dataclass(frozen=True)
class ShownPair:
    """A copy beside the photograph that it was compared with."""

    other: str  # name of the copy
    beside: str  # name of the photograph that it was compared with
    facts: Sequence[str]  # such as the angle
    pictures: Sequence[tuple[str, NDArray | None]]  # captions, and (h, w) or (h, w, 3) in [0, 1]; None if unreadable


@dataclass(frozen=True)
class ShownSet:
    """A set of duplicates."""

    keep: str  # name of the photograph to keep
    reason: str  # why
    pairs: Sequence[ShownPair]  # the others


def render_duplicates(
    sets: Sequence[ShownSet], sentences: Sequence[str], left_alone: Sequence[tuple[str, str]], version: str
) -> str:
    """Render the page, one HTML file without scripts that needs no server.

    ``sentences`` say what was found, ``left_alone`` are the names of files that were not compared, each with the
    reason.

    >>> pair = ShownPair("<b>.jpg", "a.jpg", [], [("as found", np.zeros((3, 4)))])
    >>> page = render_duplicates([ShownSet("a.jpg", "largest", [pair])], ["1 set."], [], "1.0")
    >>> "&lt;b&gt;.jpg" in page, "<b>" in page
    (True, False)
    """
    style = asset("page.css") + asset("duplicates.css")
    shown = [
        (each, [(pair, [(caption, _encoded(picture)) for caption, picture in pair.pictures]) for pair in each.pairs])
        for each in sets
    ]
    return rendered(
        "duplicates.html.j2", style, "", sets=shown, sentences=sentences, left_alone=left_alone, version=version
    )


def _encoded(picture: NDArray | None) -> str:
    return "" if picture is None else webp(thumbnail(np.asarray(picture), (0.0, 1.0), _SIDE))
