"""Sets of duplicates, and which picture of a set to keep."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from unpose.dedupe.kernels import detail

_SAME_AREA = 0.93
"""Pictures whose areas differ by less than this ratio count as equally large: the edges of a turned picture blur."""
_SAME_SHARPNESS = 0.95


@dataclass(frozen=True)
class Quality:
    """What decides which of several copies to keep.

    Parameters
    ----------
    area : float
        Pixels of the file that show the picture, without borders and corners.
    sharpness : float
        From :func:`sharpness`.
    modified : float
        When the file was last changed, in seconds.
    name : str
        Name of the file.

    Examples
    --------
    >>> Quality(1e6, 0.2, 0.0, "a.jpg").area
    1000000.0
    """

    area: float
    sharpness: float
    modified: float
    name: str


def duplicate_sets(pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Join pairs to sets: the connected components, each sorted.

    Parameters
    ----------
    pairs : sequence of (int, int)
        Indices of pictures that are the same.

    Returns
    -------
    list of lists of int

    Examples
    --------
    >>> duplicate_sets([(4, 1), (7, 4), (2, 3)])
    [[1, 4, 7], [2, 3]]
    """
    if not pairs:
        return []
    members, where = np.unique(np.array(pairs), return_inverse=True)
    one, two = where.reshape(-1, 2).T
    graph = sparse.coo_array((np.ones(len(one)), (one, two)), shape=(len(members), len(members)))
    _, labels = sparse.csgraph.connected_components(graph, directed=False)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels))[:-1]
    return sorted(part.tolist() for part in np.split(members[order], ends))


def choose_keeper(qualities: Sequence[Quality]) -> tuple[int, str]:
    """Choose the copy to keep: the largest; of equally large ones the sharpest; then the oldest.

    Parameters
    ----------
    qualities : sequence of Quality
        The copies.

    Returns
    -------
    index : int
        The copy to keep.
    reason : str
        Why, in a few words.

    Examples
    --------
    >>> choose_keeper([Quality(1e4, 0.2, 5.0, "small.jpg"), Quality(9e4, 0.1, 9.0, "large.jpg")])
    (1, 'largest: shows the picture with 9.0 times as many pixels as the next')
    """
    rest = list(range(len(qualities)))
    areas = np.array([each.area for each in qualities])
    large = [i for i in rest if areas[i] >= _SAME_AREA * areas.max()]
    if len(large) == 1:
        next_area = np.sort(areas)[-2] if len(areas) > 1 else areas.max()
        ratio = areas.max() / max(float(next_area), 1.0)
        return large[0], f"largest: shows the picture with {ratio:.1f} times as many pixels as the next"
    sharpest = max(qualities[i].sharpness for i in large)
    sharp = [i for i in large if qualities[i].sharpness >= _SAME_SHARPNESS * sharpest]
    if len(sharp) == 1:
        return sharp[0], "sharpest of those that are equally large"
    oldest = min(sharp, key=lambda i: (qualities[i].modified, qualities[i].name))
    if all(qualities[i].modified == qualities[oldest].modified for i in sharp):
        return oldest, "equally large, sharp and old as others; the first by name"
    return oldest, "oldest of those that are equally large and sharp"


def sharpness(grey: NDArray) -> float:
    """Fine detail of a grey frame: the differences of neighbouring pixels, as a fraction of its contrast.

    Parameters
    ----------
    grey : array of shape (h, w)
        The frame.

    Returns
    -------
    float

    Examples
    --------
    >>> frame = np.random.default_rng(0).random((40, 50))
    >>> sharpness(frame) > sharpness((frame[1:] + frame[:-1]) / 2)
    True
    """
    steps, deviation = detail(np.ascontiguousarray(grey, np.float32))
    return float(steps / max(deviation, 1e-6))
