"""From an attention matrix to groups: many partitions are proposed, modularity chooses; no label is ever seen.

Spectral read-outs with the wanted number of groups fuse what is hard to tell apart (a 6 and a 9 at any angle) and split
what is large. Reading out more groups and joining those that attend to each other most mends that, but how many more is
right differs from set to set. So partitions are proposed from several graphs and several numbers of groups, each is
improved node by node, and the one of highest modularity stays. Where the number of groups is not given, it is that of
communities: many partitions have nearly the highest modularity and differ in what they join, so what counts is what
they agree on.
"""

from collections.abc import Iterator

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import eigsh
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from unpose.cluster.graph import ATTENDED, attention
from unpose.cluster.modularity import communities, improve, merged, modularity

RESOLUTION = 2.0
"""Groups are kept apart unless they attend to each other more than twice as much as chance would have it."""
_GRAPHS = (6, 8, 10, 12)
_SURPLUS = (1.0, 1.1, 1.25, 1.5, 2.0)
_VOTES = 16
_STARTS = 4
_DENSE = 400
"""Matrices up to this size are decomposed whole."""


def read_out(
    indices: NDArray, distances: NDArray, n_clusters: int | None, rng: np.random.RandomState
) -> tuple[NDArray, sparse.csr_array]:
    """Labels (n,) from 0, largest group first, and the attention matrix they were read from.

    Parameters
    ----------
    indices, distances : (n, k)
        Each image's neighbours, nearest first.
    n_clusters : exactly so many groups, or None for as many as the data show.
    """
    graph = attention(indices, distances)
    with threadpool_limits(1):  # sums in another order would break ties otherwise
        if n_clusters is None:
            labels = _communities(graph, rng)
        else:
            proposals = [np.zeros(len(indices), np.int64)] if n_clusters == 1 else []
            if n_clusters > 1:
                for attended in _GRAPHS if indices.shape[1] > ATTENDED else (ATTENDED,):
                    proposals += _spectral(attention(indices, distances, attended), n_clusters, rng)
            order = rng.permutation(len(indices))
            improved = [improve(graph, _exactly(graph, labels, n_clusters), RESOLUTION, order) for labels in proposals]
            labels = max(improved, key=lambda labels: modularity(graph, labels, RESOLUTION))
    return by_size(labels), graph


def by_size(labels: NDArray) -> NDArray:
    """The same groups numbered from the largest down; among equals the one that comes first."""
    _, first, inverse, counts = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), np.int64)
    rank[np.lexsort((first, -counts))] = np.arange(len(counts))
    return rank[inverse]


def _communities(graph: sparse.csr_array, rng: np.random.RandomState) -> NDArray:
    """Groups that many partitions of high modularity agree on (Lancichinetti and Fortunato, 2012).

    Every link is weakened by the share of partitions that cut it; the best partition of what is left stays.
    """
    links, votes = graph.tocoo(), _partitions(graph, _VOTES, rng)
    uncut = np.mean([labels[links.row] == labels[links.col] for labels in votes], axis=0)
    agreed = sparse.csr_array((links.data * np.maximum(uncut, 1e-9), (links.row, links.col)), shape=graph.shape)
    agreed.sort_indices()
    found = _partitions(agreed, _STARTS, rng)
    return _without_hermits(graph, max(found, key=lambda labels: modularity(agreed, labels, RESOLUTION)))


def _partitions(graph: sparse.csr_array, count: int, rng: np.random.RandomState) -> list[NDArray]:
    """Partitions of high modularity, from different orders of the nodes."""
    found = []
    for _ in range(count):
        labels = communities(graph, RESOLUTION, rng)
        found.append(improve(graph, labels, RESOLUTION, rng.permutation(len(labels))))
    return found


def _without_hermits(graph: sparse.csr_array, labels: NDArray) -> NDArray:
    """Groups of more than one: a single image joins the group it attends to most."""
    labels = np.unique(labels, return_inverse=True)[1]
    while len(alone := np.flatnonzero(np.bincount(labels) == 1)) and labels.max() > 0:
        image = int(np.flatnonzero(labels == alone[0])[0])
        attended = np.bincount(labels, graph[[image]].toarray().ravel())
        attended[alone[0]] = -1.0
        labels[image] = attended.argmax()
        labels = np.unique(labels, return_inverse=True)[1]
    return labels


def _spectral(graph: sparse.csr_array, n_clusters: int, rng: np.random.RandomState) -> Iterator[NDArray]:
    """Partitions into the wanted number of groups, each read out with a surplus first and then joined."""
    n = graph.shape[0]
    counts = sorted({min(n, int(np.ceil(surplus * n_clusters))) for surplus in _SURPLUS})
    vectors = _eigenvectors(graph, counts[-1], rng)
    for count in counts:
        rows = vectors[:, :count]
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        distinct = min(count, len(np.unique(rows.round(9), axis=0)))
        seed = rng.randint(2**31 - 1)
        labels = KMeans(distinct, n_init=3, random_state=seed).fit_predict(rows).astype(np.int64)
        yield merged(graph, np.unique(labels, return_inverse=True)[1], n_clusters)


def _eigenvectors(graph: sparse.csr_array, count: int, rng: np.random.RandomState) -> NDArray:
    """The slowest ways attention spreads, (n, count): leading eigenvectors of ``D^-1 W``."""
    degree = np.asarray(graph.sum(1)).ravel()
    root = 1 / np.sqrt(np.maximum(degree, 1e-300))
    balanced = sparse.diags_array(root) @ graph @ sparse.diags_array(root)
    n = graph.shape[0]
    if n <= max(_DENSE, 3 * count):
        _, vectors = scipy.linalg.eigh(balanced.toarray(), subset_by_index=(n - count, n - 1))
    else:
        _, vectors = eigsh(balanced, count, which="LA", v0=rng.standard_normal(n), tol=1e-5)
    return vectors[:, ::-1] * root[:, None]


def _exactly(graph: sparse.csr_array, labels: NDArray, n_clusters: int) -> NDArray:
    """Exactly so many groups: where fewer came out (copies of few images), the largest give up their least attended."""
    labels = labels.copy()
    while (count := int(labels.max()) + 1) < n_clusters:
        members = np.flatnonzero(labels == np.bincount(labels).argmax())
        inside = np.asarray(graph[members][:, members].sum(1)).ravel()
        labels[members[inside.argmin()]] = count
    return labels
