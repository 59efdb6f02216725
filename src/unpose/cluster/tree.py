"""The tree of clusters: finer and coarser partitions that nest with the clusters that were found.

Above the found clusters, the two with the largest ``cut / (volume x volume)`` are merged first; below them, the cluster
whose best bisection has the smallest such ratio is split first. The attention matrix is all that is needed, so another
number of clusters costs no new search.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from unpose.cluster.limits import DEFAULT, Limits
from unpose.cluster.modularity import merge_clusters, weights_between
from unpose.cluster.readout import by_size, partition


def cut_tree(
    weights: sparse.csr_array, labels: NDArray, n_clusters: int, rng: np.random.RandomState, limits: Limits = DEFAULT
) -> NDArray:
    """Labels (n,) of exactly ``n_clusters`` clusters, each a union or a part of the clusters ``labels`` (n,).

    ``weights`` is the attention matrix (n, n) without images that have no cluster. Clusters are numbered from the
    largest down.
    """
    count = int(labels.max()) + 1
    if not 1 <= n_clusters <= len(labels):
        raise ValueError(f"n_clusters must be between 1 and the number of images ({len(labels)}), got {n_clusters}")
    if n_clusters <= count:
        return labels if n_clusters == count else by_size(merge_clusters(weights, labels, n_clusters))
    labels = labels.copy()
    bisections: dict[int, tuple[float, NDArray]] = {}
    for new in range(count, n_clusters):
        for cluster in range(new):
            if cluster not in bisections:
                bisections[cluster] = _bisect(weights, np.flatnonzero(labels == cluster), rng, limits)
        split = min(bisections, key=lambda cluster: bisections[cluster][0])
        labels[bisections.pop(split)[1]] = new  # both halves are bisected anew
    return by_size(labels)


def _bisect(
    weights: sparse.csr_array, members: NDArray, rng: np.random.RandomState, limits: Limits
) -> tuple[float, NDArray]:
    """The best split of a cluster: ``cut / (volume x volume)``, and the members (m,) of its smaller half."""
    if len(members) < 2:
        return np.inf, members
    inner = weights[members][:, members]
    inner.sort_indices()
    halves = by_size(partition(inner, 2, rng, limits=limits)[0])
    between = weights_between(inner, halves)
    volume = np.maximum(between.sum(1), 1e-12 * max(between.sum(), 1e-300))
    return float(between[0, 1] / (volume[0] * volume[1])), members[halves == 1]
