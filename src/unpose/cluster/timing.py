"""How long the stages of a clustering take, measured on a sample of the images, for plans of larger runs."""

import time
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from unpose.align import nearest
from unpose.cluster.estimator import InvariantClustering
from unpose.cluster.graph import N_NEIGHBOURS
from unpose.cluster.neighbours import graph_search, small_images


@dataclass(frozen=True)
class StageTimes:
    """CPU seconds of the stages of a fit.

    Parameters
    ----------
    n : int
        Number of images.
    search, rest : float
        Seconds until all neighbours are found, and of everything after that: read-out and averages.
    indexed : float
        Seconds in which an index finds the neighbours of the same images.

    Examples
    --------
    >>> StageTimes(100, 2.0, 1.0, 1.5).rest
    1.0
    """

    n: int
    search: float
    rest: float
    indexed: float


def stage_times(images: NDArray, *, indexed: bool, **parameters: Any) -> StageTimes:
    """Fit a sample of images and measure the CPU time of the stages.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c) array
        At least two images.
    indexed : bool
        Also measure the search by an index, which is NaN otherwise.
    **parameters : optional
        Parameters of :class:`InvariantClustering`.

    Returns
    -------
    StageTimes

    Examples
    --------
    >>> import numpy as np
    >>> bars = np.stack([np.rot90(np.tri(13), k) for k in range(4)])
    >>> stage_times(bars, indexed=False).n
    4
    """
    model, found = InvariantClustering(**parameters), [0.0]

    def watch(stage: str, done: int, total: int) -> None:
        if stage == "read out" and done == 0:
            found[0] = time.process_time()

    began = time.process_time()
    model.fit(images, progress=watch)
    ended = time.process_time()
    searched = (found[0] or ended) - began
    rest, seconds = ended - began - searched, float("nan")
    if indexed:
        batch, _ = model._without_light(model._given(images, fitting=False))
        small = small_images(batch).movedim(1, -1)
        search = graph_search(model._search(), max(batch.shape[-2:]))
        began = time.process_time()
        nearest(small, min(N_NEIGHBOURS, len(images) - 1), candidates="index", search=search)
        seconds = time.process_time() - began
    return StageTimes(len(images), searched, rest, seconds)
