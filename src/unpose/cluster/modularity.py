"""Groups of a weighted graph by modularity: how much more its weight stays within groups than chance would keep there.

``Q = sum over groups of (inside / total) - resolution (volume / total)^2``. Two groups are worth joining where they are
linked by more than ``resolution`` times what chance would put between them.
"""

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

_SETTLED = 1e-6
"""A sweep over all nodes that gains less has settled."""


def blocks(graph: sparse.csr_array, labels: NDArray) -> NDArray:
    """Total weight between groups, (K, K); what lies inside a group counts twice, as in the graph itself."""
    return _condensed(graph, labels).toarray()


def modularity(graph: sparse.csr_array, labels: NDArray, resolution: float) -> float:
    """The criterion above."""
    between = blocks(graph, labels)
    total = max(between.sum(), 1e-300)
    return float((between.diagonal() / total - resolution * (between.sum(1) / total) ** 2).sum())


def improve(graph: sparse.csr_array, labels: NDArray, resolution: float, order: NDArray) -> NDArray:
    """Move nodes one by one, in this order, to where modularity gains most, until nothing gains; no group dies out."""
    labels = labels.astype(np.int64)
    degree = np.asarray(graph.sum(1)).ravel()
    volume = np.bincount(labels, degree)
    _move(graph.indptr, graph.indices, graph.data, degree, labels, volume, resolution, order, False)
    return labels


def communities(graph: sparse.csr_array, resolution: float, rng: np.random.RandomState) -> NDArray:
    """Labels (n,) by moving nodes, then whole groups, then groups of groups (Louvain)."""
    member = np.arange(graph.shape[0])
    while True:
        count = graph.shape[0]
        degree = np.asarray(graph.sum(1)).ravel()
        labels, volume = np.arange(count), degree.copy()
        _move(graph.indptr, graph.indices, graph.data, degree, labels, volume, resolution, rng.permutation(count), True)
        kept, labels = np.unique(labels, return_inverse=True)
        member = labels[member]
        if len(kept) == count:
            return member
        graph = _condensed(graph, labels)


def merged(graph: sparse.csr_array, labels: NDArray, count: int) -> NDArray:
    """Join the two groups with the largest ``cut / (volume x volume)`` until ``count`` are left."""
    between = blocks(graph, labels)
    volume = np.maximum(between.sum(1), 1e-300)
    alive, becomes = list(range(len(between))), np.arange(len(between))
    while len(alive) > count:
        ratio = between[np.ix_(alive, alive)] / np.outer(volume[alive], volume[alive])
        np.fill_diagonal(ratio, -1.0)
        first, second = sorted(divmod(int(ratio.argmax()), len(alive)))
        keep, gone = alive[first], alive.pop(second)
        between[keep] += between[gone]
        between[:, keep] += between[:, gone]
        volume[keep] += volume[gone]
        becomes[becomes == gone] = keep
    return np.unique(becomes[labels], return_inverse=True)[1]


def _condensed(graph: sparse.csr_array, labels: NDArray) -> sparse.csr_array:
    n, count = len(labels), int(labels.max()) + 1
    member = sparse.csr_array((np.ones(n), (np.arange(n), labels)), shape=(n, count))
    return sparse.csr_array(member.T @ graph @ member)


@numba.njit(cache=True)
def _move(indptr, indices, weights, degree, labels, volume, resolution, order, may_empty):  # type: ignore[no-untyped-def]
    """Sweep over the nodes, changing labels and volumes in place."""
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
        if 2 * gained / total < _SETTLED:
            return
