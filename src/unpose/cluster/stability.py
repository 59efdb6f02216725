"""How far the clusters of random subsets of the images agree: a measure of confidence that uses no true classes.

The share of attention that stays inside a cluster says little: a continuum that is cut into slices keeps most of it,
and so does every image in the middle of a wrong cluster. Clusters that reflect separate kinds are found again when
other images are left out; slices of a continuum are cut elsewhere. The neighbours are not searched again: the graph is
restricted to the subset and read out by the same procedure. The Jaccard index is Hennig's (2007, Cluster-wise
assessment of cluster stability).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.metrics.cluster import contingency_matrix

from unpose.cluster.graph import attention_matrix
from unpose.cluster.limits import DEFAULT, Limits
from unpose.cluster.modularity import RESOLUTION
from unpose.cluster.readout import partition
from unpose.cluster.resolution import MIN_IMAGES, UNSTABLE, mean_agreement, random_subsets

_LARGE = 2000
"""Number of images from which three subsets are read out, not five."""


@dataclass(frozen=True)
class Stability:
    """How far clusters are found again in random subsets of the images."""

    agreement: float  # mean adjusted Rand index of two subsets on the images they share; NaN for few images
    confidences: NDArray  # (n,), mean Jaccard index of the clusters of an image in all images and in a subset
    n_clusters: tuple[int, int]  # smallest and largest number of clusters of a subset, or the number that was given


def subset_stability(
    indices: NDArray, distances: NDArray, labels: NDArray, n_clusters: int | None, resolution: float,
    rng: np.random.RandomState, limits: Limits = DEFAULT,
) -> Stability:  # fmt: skip
    """Read out random subsets of 70 % of the images, and compare their clusters with each other and with ``labels``.

    ``indices`` and ``distances`` are (n, k), nearest first; ``n_clusters`` is None if the number was found, with the
    ``resolution`` that was chosen for all images. Confidences are averaged over the subsets that contain the image.
    Fewer than ten images have none.
    """
    n, found_clusters = len(labels), int(labels.max()) + 1
    if n < MIN_IMAGES:
        return Stability(math.nan, np.zeros(n), (found_clusters, found_clusters))
    graph = attention_matrix(indices, distances, indices.shape[1])  # all neighbours, since some are left out
    found, confidences = _found_again(graph, labels, n_clusters, resolution, rng, limits)
    counts = [found_clusters]
    if n_clusters is None:
        counts += (found.max(1) + 1).tolist()
    return Stability(mean_agreement(found), confidences, (min(counts), max(counts)))


def stability_of_groups(
    weights: sparse.csr_array, labels: NDArray, rng: np.random.RandomState, limits: Limits = DEFAULT
) -> Stability:
    """How far given groups, such as those that a person made, are found again in random subsets of the images.

    ``weights`` is the attention matrix (n, n). Subsets are read out with as many clusters as there are ``labels`` (n,),
    and the agreement is that with the groups.
    """
    n, n_groups = len(labels), int(labels.max()) + 1
    if n < MIN_IMAGES:
        return Stability(math.nan, np.zeros(n), (n_groups, n_groups))
    found, confidences = _found_again(weights, labels, n_groups, RESOLUTION, rng, limits)
    agreement = float(np.mean([mean_agreement(np.stack([labels, again])) for again in found]))
    return Stability(agreement, confidences, (n_groups, n_groups))


def _found_again(
    graph: sparse.csr_array, labels: NDArray, n_clusters: int | None, resolution: float, rng: np.random.RandomState,
    limits: Limits,
) -> tuple[NDArray, NDArray]:  # fmt: skip
    """Clusters (m, n) of m random subsets, -1 for what is left out, and mean Jaccard indices with those of all (n,)."""
    n = len(labels)
    subsets = random_subsets(n, 5 if n < _LARGE else 3, rng)
    found, jaccard = np.full((len(subsets), n), -1), np.zeros((len(subsets), n))
    for number, kept in enumerate(subsets):
        inner = graph[kept][:, kept]
        inner.sort_indices()
        count = None if n_clusters is None else min(n_clusters, len(kept))
        again, _ = partition(inner, count, rng, resolution=resolution, limits=limits)
        _, before = np.unique(labels[kept], return_inverse=True)
        common = contingency_matrix(before, again)
        union = common.sum(1, keepdims=True) + common.sum(0) - common
        found[number, kept], jaccard[number, kept] = again, (common / union)[before, again]
    return found, jaccard.sum(0) / (found >= 0).sum(0)


def reliability_notes(stability: float, n_different: int, n_copies: int, n_clusters: tuple[int, int]) -> list[str]:
    """What a reader must know about the clusters, in full sentences: too few images, unstable clusters, copies.

    ``n_clusters`` are the smallest and the largest number of clusters that subsets of the images have.
    """
    notes = []
    if math.isnan(stability):
        few = "1 different image is" if n_different == 1 else f"{n_different} different images are"
        notes.append(f"{few} too few to tell how many groups there are and how reliable they are.")
    elif stability < UNSTABLE:
        notes.append(
            f"The groups are not stable (agreement {stability:.2f} between random subsets of the images): they may be "
            "slices of a continuum rather than separate kinds."
        )
    if n_clusters[0] < n_clusters[1]:
        notes.append(
            f"The number of groups is uncertain: random subsets of the images have {n_clusters[0]:,} to "
            f"{n_clusters[1]:,}."
        )
    if n_copies:
        one = n_copies == 1
        notes.append(
            f"{n_copies:,} image{' is a copy' if one else 's are copies'} of another image; "
            f"{'it is' if one else 'they are'} not counted in the groups' means."
        )
    return notes
