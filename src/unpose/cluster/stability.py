"""How far the clusters of random subsets of the images agree: a measure of confidence that uses no true classes.

The share of attention that stays inside a cluster says little: a continuum that is cut into slices keeps most of it,
and so does every image in the middle of a wrong cluster. Clusters that reflect separate kinds are found again when
other images are left out; slices of a continuum are cut elsewhere. The neighbours are not searched again: the graph is
restricted to the subset and read out by the same procedure. The Jaccard index is Hennig's (2007, Cluster-wise
assessment of cluster stability).
"""

import math

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix

from unpose.cluster.graph import attention_matrix
from unpose.cluster.readout import partition

UNSTABLE = 0.7
"""Clusters whose subsets agree less may be slices of a continuum. 500 images without kinds (smooth and white
noise, ellipses of any aspect, one digit) reach at most 0.67; digits, characters, silhouettes and clothes at least 0.71.
"""
MIN_IMAGES = 10
"""For fewer images, subsets say nothing."""
_LEFT_OUT = 0.3
_LARGE = 2000
"""Number of images from which three subsets are read out, not five."""


def subset_stability(
    indices: NDArray, distances: NDArray, labels: NDArray, n_clusters: int | None, rng: np.random.RandomState
) -> tuple[float, NDArray]:
    """Read out random subsets of 70 % of the images, and compare their clusters with each other and with ``labels``.

    ``indices`` and ``distances`` are (n, k), nearest first; ``n_clusters`` is None if the number is to be found.

    Returns the mean adjusted Rand index of two subsets on the images they share, and for each image (n,) how far its
    cluster is found again: the Jaccard index of its clusters in ``labels`` and in a subset, averaged over the subsets
    that contain the image. Fewer than ten images give NaN and zeros.
    """
    n = len(labels)
    if n < MIN_IMAGES:
        return math.nan, np.zeros(n)
    graph = attention_matrix(indices, distances, indices.shape[1])  # all neighbours, since some are left out
    n_subsets = 5 if n < _LARGE else 3
    found, jaccard = np.full((n_subsets, n), -1), np.zeros((n_subsets, n))
    position = rng.permutation(n) / n
    for number in range(n_subsets):  # every image is left out of nearly equally many subsets, and never of all
        kept = np.flatnonzero((position + number / n_subsets) % 1 >= _LEFT_OUT)
        inner = graph[kept][:, kept]
        inner.sort_indices()
        again = partition(inner, None if n_clusters is None else min(n_clusters, len(kept)), rng)
        _, before = np.unique(labels[kept], return_inverse=True)
        common = contingency_matrix(before, again)
        union = common.sum(1, keepdims=True) + common.sum(0) - common
        found[number, kept], jaccard[number, kept] = again, (common / union)[before, again]
    agreements = []
    for first, second in zip(*np.triu_indices(n_subsets, 1), strict=True):
        shared = (found[first] >= 0) & (found[second] >= 0)
        agreements.append(adjusted_rand_score(found[first, shared], found[second, shared]))
    return float(np.mean(agreements)), jaccard.sum(0) / (found >= 0).sum(0)


def reliability_notes(stability: float, n_different: int, n_copies: int) -> list[str]:
    """What a reader must know about the clusters, in full sentences: too few images, unstable clusters, copies."""
    notes = []
    if math.isnan(stability):
        few = "1 image is" if n_different == 1 else f"{n_different} different images are"
        notes.append(f"{few} too few to tell how many groups there are and how reliable they are.")
    elif stability < UNSTABLE:
        notes.append(
            f"The groups are not stable (agreement {stability:.2f} between random subsets of the images): they may be "
            "slices of a continuum rather than separate kinds."
        )
    if n_copies:
        one = n_copies == 1
        notes.append(
            f"{n_copies:,} image{' is a copy' if one else 's are copies'} of another image; "
            f"{'it is' if one else 'they are'} not counted in the groups' means."
        )
    return notes
