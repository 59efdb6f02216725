"""Write what ``unpose discover`` found as one self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unpose.report.documents import asset, rendered
from unpose.report.results import Reproduction
from unpose.report.thumbnails import display_range, thumbnail, webp

__all__ = ["SymmetryFamily", "SymmetryResults", "render_symmetry"]

_SIDE = 96
_MARKS = {"holds": "good", "does not hold": "bad"}


@dataclass(frozen=True)
class SymmetryFamily:
    """One family of transformations on the page."""

    name: str
    answer: str  # the verdict with its limit
    verdict: str  # the verdict alone
    why: str
    strengths: Sequence[str]  # with their units; one empty text for a single transformation
    plausible: Sequence[float]  # one curve, from 0 to 1
    told_apart: Sequence[float]  # the other curve, from 0 to 1
    gains: Sequence[str] = ()  # changes of accuracy as text; none without labels
    says_no: str = ""  # what the pictures show
    pictures: Sequence[tuple[NDArray, str]] = ()  # that speak against it, (h, w) or (h, w, 3), with their captions


@dataclass(frozen=True)
class SymmetryResults:
    """Everything that the page of a discovery shows."""

    source: str  # where the images are from
    count: int  # of images
    labelled: bool  # whether labels were used
    headline: str  # the answer in one line
    sentences: Sequence[str]  # what follows from it
    families: Sequence[SymmetryFamily]
    reproduction: Reproduction


def render_symmetry(results: SymmetryResults) -> str:
    """Write the results of a discovery as an HTML page; the same results give the same text.

    >>> run = Reproduction("unpose discover photos", seed=0, version="0.1.0")
    >>> mirror = SymmetryFamily("mirror", "holds", "holds", "Alike.", [""], [1.0], [0.0])
    >>> "mirror" in render_symmetry(SymmetryResults("photos", 100, False, "Mirrors are safe.", [], [mirror], run))
    True
    """
    style, script = asset("page.css") + asset("audit.css") + asset("symmetry.css"), asset("audit.js")
    families = [_shown(family) for family in results.families]
    return rendered("symmetry.html.j2", style, script, r=results, families=families)


def _shown(family: SymmetryFamily) -> dict[str, Any]:
    rows = [
        [strength, f"{plausible:.0%}", f"{max(apart, 0.0):.0%}", *family.gains[k : k + 1]]
        for k, (strength, plausible, apart) in enumerate(
            zip(family.strengths, family.plausible, family.told_apart, strict=True)
        )
    ]
    return {
        "name": family.name,
        "answer": family.answer,
        "why": family.why,
        "mark": _MARKS.get(family.verdict, ""),
        "curve": _curve(family) if len(family.strengths) > 1 else None,
        "rows": rows,
        "says_no": family.says_no,
        "pictures": [(_picture(image), caption) for image, caption in family.pictures],
    }


def _curve(family: SymmetryFamily) -> dict[str, Any]:
    """Both curves with equally spaced strengths, in a box of 200 by 60; at strength zero every image is real."""
    across = np.linspace(0, 200, len(family.strengths) + 1)

    def points(values: Sequence[float], start: float) -> str:
        heights = 60 * (1 - np.clip([start, *values], 0, 1))
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, heights, strict=True))

    return {
        "plausible": points(family.plausible, 1.0),
        "apart": points(family.told_apart, 0.0),
        "ticks": [(f"{x:.1f}", text.split()[0]) for x, text in zip(across[1:], family.strengths, strict=True)],
        "unit": family.strengths[-1].partition(" ")[2],
    }


def _picture(image: NDArray) -> str:
    return webp(thumbnail(image, display_range([image]), 2 * _SIDE))
