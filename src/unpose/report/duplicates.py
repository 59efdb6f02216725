"""The page of a search for duplicates: each pair as found, aligned, and its difference.

Names of files are untrusted: the template escapes them, and the content policy forbids scripts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unpose.report.documents import asset, content_policy, encodable, templates
from unpose.report.thumbnails import thumbnail, webp

__all__ = ["ShownPair", "ShownSet", "render_duplicates"]

_SIDE = 200


@dataclass(frozen=True)
class ShownPair:
    """A copy beside the photograph that it was compared with.

    Parameters
    ----------
    other : str
        Name of the copy.
    beside : str
        Name of the photograph that it was compared with.
    facts : sequence of str
        What is known of the pair, such as the angle.
    pictures : sequence of (str, array or None)
        Captions, and pictures (h, w) or (h, w, 3) in [0, 1]; None if a file can no longer be read.

    Examples
    --------
    >>> ShownPair("b.jpg", "a.jpg", ["turned by 90 degrees"], [("as found", np.zeros((3, 4)))]).other
    'b.jpg'
    """

    other: str
    beside: str
    facts: Sequence[str]
    pictures: Sequence[tuple[str, NDArray | None]]


@dataclass(frozen=True)
class ShownSet:
    """A set of duplicates.

    Parameters
    ----------
    keep : str
        Name of the photograph to keep.
    reason : str
        Why.
    pairs : sequence of ShownPair
        The others.

    Examples
    --------
    >>> ShownSet("a.jpg", "largest", []).keep
    'a.jpg'
    """

    keep: str
    reason: str
    pairs: Sequence[ShownPair]


def render_duplicates(
    sets: Sequence[ShownSet], sentences: Sequence[str], left_alone: Sequence[tuple[str, str]], version: str
) -> str:
    """Render the page, one HTML file without scripts that needs no server.

    Parameters
    ----------
    sets : sequence of ShownSet
        Sets of duplicates.
    sentences : sequence of str
        What was found, in words.
    left_alone : sequence of (str, str)
        Files that were not compared, and why.
    version : str
        Version of the program.

    Returns
    -------
    str
        The page.

    Examples
    --------
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
    return templates.get_template("duplicates.html.j2").render(
        sets=shown, sentences=sentences, left_alone=left_alone, version=version, style=style,
        policy=content_policy("", style), encodable=encodable,
    )  # fmt: skip


def _encoded(picture: NDArray | None) -> str:
    return "" if picture is None else webp(thumbnail(np.asarray(picture), (0.0, 1.0), _SIDE))
