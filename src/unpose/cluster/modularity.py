"""Clusters of a weighted graph by modularity: the share of weight inside clusters beyond what chance would give.

``Q = sum over clusters of (inside / total) - resolution (volume / total)^2``. Merging two clusters raises Q if the
weight between them is more than ``resolution`` times the weight that chance would put there.
"""

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from unpose.compiled import CACHE

RESOLUTION = 2.0
"""Clusters stay separate unless they attend to each other more than twice as much as by chance."""
_MIN_GAIN = 1e-6
"""Sweeps over all nodes end when one gains less modularity than this."""
_MAX_DENSE = 2048
"""Weights between more clusters are summed as a sparse matrix."""


def weights_between(graph: sparse.csr_array, labels: NDArray) -> NDArray:
    """Total weight between clusters, (K, K); weights inside a cluster count twice, as in the graph itself."""
    return aggregate(graph, labels).toarray()


def modularity(graph: sparse.csr_array, labels: NDArray, resolution: float) -> float:
    """The modularity Q of a partition (n,)."""
    between = aggregate(graph, labels)
    if between.shape[0] <= _MAX_DENSE:
        between = between.toarray()
    total = max(between.sum(), 1e-300)
    return float((between.diagonal() / total - resolution * (between.sum(1) / total) ** 2).sum())


def improve(graph: sparse.csr_array, labels: NDArray, resolution: float, order: NDArray) -> NDArray:
    """Move single nodes, in this order, to the cluster that raises modularity most; no cluster becomes empty."""
    labels = labels.astype(np.int64)
    degree = np.asarray(graph.sum(1), np.float64).ravel()
    volume = np.bincount(labels, degree)
    _move_nodes(*_arrays(graph), degree, labels, volume, resolution, order, False)
    return labels


def louvain(graph: sparse.csr_array, resolution: float, rng: np.random.RandomState) -> NDArray:
    """Labels (n,) by the Louvain method: move nodes, aggregate clusters into nodes, and repeat."""
    member = np.arange(graph.shape[0])
    while True:
        count = graph.shape[0]
        degree = np.asarray(graph.sum(1), np.float64).ravel()
        labels, volume = np.arange(count), degree.copy()
        order = rng.permutation(count)
        _move_nodes(*_arrays(graph), degree, labels, volume, resolution, order, True)
        kept, labels = np.unique(labels, return_inverse=True)
        member = labels[member]
        if len(kept) == count:
            return member
        graph = aggregate(graph, labels)


def merge_clusters(graph: sparse.csr_array, labels: NDArray, n_clusters: int) -> NDArray:
    """Merge the two clusters with the largest ``cut / (volume x volume)`` until ``n_clusters`` are left."""
    between = weights_between(graph, labels)
    volume = np.maximum(between.sum(1), 1e-300)
    remaining, new_label = list(range(len(between))), np.arange(len(between))
    while len(remaining) > n_clusters:
        ratio = between[np.ix_(remaining, remaining)] / np.outer(volume[remaining], volume[remaining])
        np.fill_diagonal(ratio, -1.0)
        first, second = sorted(divmod(int(ratio.argmax()), len(remaining)))
        kept, removed = remaining[first], remaining.pop(second)
        between[kept] += between[removed]
        between[:, kept] += between[:, removed]
        volume[kept] += volume[removed]
        new_label[new_label == removed] = kept
    return np.unique(new_label[labels], return_inverse=True)[1]


def aggregate(graph: sparse.csr_array, labels: NDArray) -> sparse.csr_array:
    """The graph whose nodes are the clusters, (K, K)."""
    n, count = len(labels), int(labels.max()) + 1
    member = sparse.csr_array((np.ones(n), (np.arange(n), labels)), shape=(n, count))
    return sparse.csr_array(member.T @ graph @ member)


def _arrays(graph: sparse.csr_array) -> tuple[NDArray, NDArray, NDArray]:
    """The arrays of a CSR graph in one type each, so that the loop below is compiled once."""
    types = (graph.indptr, np.int64), (graph.indices, np.int64), (graph.data, np.float64)
    indptr, indices, weights = (array.astype(kind, copy=False) for array, kind in types)
    return indptr, indices, weights


@numba.njit(cache=CACHE)
def _move_nodes(indptr, indices, weights, degree, labels, volume, resolution, order, may_empty):  # type: ignore[no-untyped-def]
    """Sweep over the nodes of a CSR graph and move each to its best cluster, changing labels and volumes in place."""
    total = max(degree.sum(), 1e-300)
    link, touched = np.zeros(len(volume)), np.empty(len(volume), np.int64)
    size = np.bincount(labels, minlength=len(volume))
    while True:
        gained = 0.0
        for i in order:
            home, count = labels[i], 0
            for e in range(indptr[i], indptr[i + 1]):
                group = labels[indices[e]]
                if indices[e] != i and weights[e] > 0.0:
                    if link[group] == 0.0:
                        touched[count] = group
                        count += 1
                    link[group] += weights[e]
            if may_empty or size[home] > 1:
                volume[home] -= degree[i]
                stay = link[home] - resolution * degree[i] * volume[home] / total
                best, where = stay, home
                for t in range(count):
                    group = touched[t]
                    score = link[group] - resolution * degree[i] * volume[group] / total
                    if score > best + 1e-12:
                        best, where = score, group
                volume[where] += degree[i]
                if where != home:
                    labels[i] = where
                    size[home] -= 1
                    size[where] += 1
                    gained += best - stay
            for t in range(count):
                link[touched[t]] = 0.0
        if 2 * gained / total < _MIN_GAIN:
            return
