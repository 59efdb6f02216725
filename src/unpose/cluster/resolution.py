"""How finely a graph is divided if the number of clusters is not given: so that random subsets are divided alike.

Modularity has a resolution: at a low one similar kinds are merged, at a high one kinds fall into parts, and no value is
right for ten digits and for a hundred species. Divisions that reflect separate kinds are found again when other images
are left out; parts of a kind are cut elsewhere, and which kinds are merged depends on the images, too (Lange et al.,
2004, Stability-based validation of clustering solutions). Resolution 1, the usual one, is left only for another at
which subsets clearly agree better. No class is used; ``docs/benchmarks/features.md`` has the numbers that are found.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from unpose.cluster.modularity import RESOLUTION, improve, louvain

RESOLUTIONS = tuple(2.0 ** (step / 2) for step in range(-2, 7))
"""From 0.5, where clusters are merged that attend to each other half as much as by chance, to 8."""
_LEFT_OUT = 0.3
"""Share of the images that a random subset leaves out."""
MIN_IMAGES = 10
"""For fewer images, subsets say nothing."""
_LARGE = 2000
"""Number of images from which six subsets are divided, not twelve."""
UNSTABLE = 0.7
"""Divisions whose subsets agree less may be slices of a continuum. 500 images without kinds (smooth and white
noise, ellipses of any aspect, one digit) reach at most 0.67 at a resolution of 2; digits, characters, silhouettes and
clothes at least 0.71.
"""
_TOLERANCE = 1.1
"""Resolutions are about equally good if subsets disagree by less than this factor more than at the best one."""


def choose_resolution(graph: sparse.csr_array, rng: np.random.RandomState) -> float:
    """The resolution nearest to 1 among those at which random subsets of a graph (n, n) are divided most alike.

    Agreement is the mean adjusted Rand index of two subsets on the nodes they share; subsets that are not divided at
    all have none. Resolutions where it is less than 1 by up to 1.1 times as much as at the best one are equally good.
    If no agreement reaches 0.7, none of them says anything about kinds, and the resolution is 1.

    Examples
    --------
    >>> blocks = np.kron(np.eye(3), np.ones((10, 10))) - np.eye(30)
    >>> graph = sparse.csr_array(blocks + 0.01)
    >>> labels = louvain(graph, choose_resolution(graph, np.random.RandomState(0)), np.random.RandomState(0))
    >>> int(labels.max()) + 1
    3
    """
    n = graph.shape[0]
    if n < MIN_IMAGES:
        return RESOLUTION
    subsets = []
    for kept in random_subsets(n, 12 if n < _LARGE else 6, rng):
        inner = graph[kept][:, kept]
        inner.sort_indices()
        subsets.append((kept, inner))
    disagreement = [1 - _agreement(subsets, n, resolution, rng) for resolution in RESOLUTIONS]
    if min(disagreement) > 1 - UNSTABLE:
        return 1.0
    bound = _TOLERANCE * min(disagreement) + 1e-9
    good = [resolution for resolution, each in zip(RESOLUTIONS, disagreement, strict=True) if each <= bound]
    return min(good, key=lambda resolution: (abs(math.log(resolution)), -resolution))


def random_subsets(n: int, count: int, rng: np.random.RandomState) -> list[NDArray]:
    """Indices of random subsets of n images; each image is left out of nearly equally many, and never of all."""
    position = rng.permutation(n) / n
    return [np.flatnonzero((position + number / count) % 1 >= _LEFT_OUT) for number in range(count)]


def _agreement(
    subsets: list[tuple[NDArray, sparse.csr_array]], n: int, resolution: float, rng: np.random.RandomState
) -> float:
    """Mean adjusted Rand index of two subsets of n nodes on the nodes they share."""
    found = np.full((len(subsets), n), -1)
    for labels, (kept, graph) in zip(found, subsets, strict=True):
        divided = louvain(graph, resolution, rng)
        labels[kept] = improve(graph, divided, resolution, rng.permutation(len(kept)))
    return mean_agreement(found, trivial=0.0)


def mean_agreement(found: NDArray, trivial: float = 1.0) -> float:
    """Mean adjusted Rand index of two rows of labels (m, n) where both are at least 0; ``trivial`` if all are equal."""
    scores = []
    for first, second in zip(*np.triu_indices(len(found), 1), strict=True):
        shared = (found[first] >= 0) & (found[second] >= 0)
        scores.append(_adjusted_rand_index(found[first, shared], found[second, shared], trivial))
    return float(np.mean(scores))


def _adjusted_rand_index(first: NDArray, second: NDArray, trivial: float) -> float:
    """That of scikit-learn for labels (n,) from 0, which takes ten times as long to check hundreds of small arrays."""
    n_columns = int(second.max(initial=0)) + 1
    both = np.bincount(first * n_columns + second)
    rows, columns = np.bincount(first), np.bincount(second)
    inside, of_first, of_second = (float((each * (each - 1.0)).sum()) for each in (both, rows, columns))
    expected = of_first * of_second / max(len(first) * (len(first) - 1.0), 1.0)
    if max(of_first, of_second) == len(first) * (len(first) - 1.0) == min(of_first, of_second):
        return trivial  # neither is divided
    most = (of_first + of_second) / 2
    return 1.0 if most == expected else (inside - expected) / (most - expected)
