"""From an attention matrix to labels: propose many partitions and choose by modularity, without any true classes.

Spectral clustering with the required number of clusters merges similar classes (6 and 9 at any angle) and splits large
ones. Computing more clusters and merging those that attend to each other most helps, but the best surplus differs
between data sets. Partitions are therefore proposed from several graphs and several numbers of clusters, each is
improved node by node, and the one with the highest modularity is chosen.

If the number of clusters is not given, it comes from community detection at the resolution at which random subsets of
the images agree most (:mod:`unpose.cluster.resolution`). Many partitions have nearly the highest modularity and differ
in what they merge, so the result is what they agree on.

The graph of many images is contracted first (:mod:`unpose.cluster.coarsening`): all of this is done with groups of
images, and only the last improvement moves single images.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import ArpackNoConvergence, eigsh
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from unpose.cluster.coarsening import contract
from unpose.cluster.graph import N_ATTENDED, attention_matrix
from unpose.cluster.limits import DEFAULT, Limits
from unpose.cluster.modularity import RESOLUTION, aggregate, improve, louvain, merge_clusters, modularity
from unpose.cluster.resolution import choose_resolution

_GRAPHS = (6, 8, 10, 12)
"""Numbers of attended neighbours of the graphs from which partitions are proposed."""
_SURPLUS = (1.0, 1.1, 1.25, 1.5, 2.0)
"""Factors by which more clusters are computed before they are merged."""
_CONSENSUS_PARTITIONS = 16
_FINAL_PARTITIONS = 4
_MAX_DENSE = 400
"""Up to this size matrices are decomposed as dense ones."""


def read_out(
    indices: NDArray, distances: NDArray, n_clusters: int | None, rng: np.random.RandomState, limits: Limits = DEFAULT
) -> tuple[NDArray, sparse.csr_array, float]:
    """Compute labels (n,), numbered from the largest cluster down, the attention matrix and the resolution used.

    ``indices`` and ``distances`` are (n, k), the neighbours of each image, nearest first; ``n_clusters`` is the exact
    number of clusters, or None to find it.
    """
    graph = attention_matrix(indices, distances)
    counts = _GRAPHS if indices.shape[1] > N_ATTENDED else (N_ATTENDED,)
    proposing = (attention_matrix(indices, distances, count) for count in counts)  # one at a time in memory
    labels, resolution = partition(graph, n_clusters, rng, proposing, limits=limits)
    return by_size(labels), graph, resolution


def partition(
    graph: sparse.csr_array,
    n_clusters: int | None,
    rng: np.random.RandomState,
    proposing: Iterable[sparse.csr_array] | None = None,
    resolution: float | None = None,
    limits: Limits = DEFAULT,
) -> tuple[NDArray, float]:
    """Labels (n,) of the nodes of a graph, and the resolution of the modularity that they maximise.

    ``proposing`` are the graphs that partitions into ``n_clusters`` come from, by default the graph itself. The
    resolution is chosen if it and the number of clusters are not given.
    """
    with threadpool_limits(1):  # threads would sum in another order and break ties differently
        if graph.shape[0] <= limits.large_graph:
            labels, resolution = _partition(graph, n_clusters, rng, proposing, resolution)
        else:
            labels, resolution = _partition_contracted(graph, n_clusters, rng, proposing, resolution, limits.groups)
        return labels if n_clusters is not None else _merge_singletons(graph, labels), resolution


def _partition(
    graph: sparse.csr_array, n_clusters: int | None, rng: np.random.RandomState,
    proposing: Iterable[sparse.csr_array] | None, resolution: float | None,
) -> tuple[NDArray, float]:  # fmt: skip
    """See :func:`partition`; clusters of one node are left as they are."""
    if n_clusters is None:
        chosen = choose_resolution(graph, rng) if resolution is None else resolution
        return _consensus(graph, rng, chosen), chosen
    proposals = [np.zeros(graph.shape[0], np.int64)] if n_clusters == 1 else []
    if n_clusters > 1:
        for each in [graph] if proposing is None else proposing:
            proposals += _spectral(each, n_clusters, rng)
    order = rng.permutation(graph.shape[0])
    improved = [improve(graph, _exactly(graph, labels, n_clusters), RESOLUTION, order) for labels in proposals]
    return max(improved, key=lambda labels: modularity(graph, labels, RESOLUTION)), RESOLUTION


def _partition_contracted(
    graph: sparse.csr_array, n_clusters: int | None, rng: np.random.RandomState,
    proposing: Iterable[sparse.csr_array] | None, resolution: float | None, n_groups: int,
) -> tuple[NDArray, float]:  # fmt: skip
    """The partition of the contracted graph, improved image by image in the whole one."""
    member = contract(graph, rng, max(n_groups, 10 * (n_clusters or 0)))
    small = None if proposing is None else (aggregate(each, member) for each in proposing)
    count = None if n_clusters is None else min(n_clusters, int(member.max()) + 1)
    groups, resolution = _partition(aggregate(graph, member), count, rng, small, resolution)
    labels = groups[member] if n_clusters is None else _exactly(graph, groups[member], n_clusters)
    return improve(graph, labels, resolution, rng.permutation(len(labels))), resolution


def by_size(labels: NDArray) -> NDArray:
    """Renumber labels from the largest cluster down; of equally large clusters, the first to occur comes first."""
    _, first, inverse, counts = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), np.int64)
    rank[np.lexsort((first, -counts))] = np.arange(len(counts))
    return rank[inverse]


def _consensus(graph: sparse.csr_array, rng: np.random.RandomState, resolution: float) -> NDArray:
    """Clusters that many partitions of high modularity agree on (Lancichinetti and Fortunato, 2012).

    Each link is multiplied by the share of partitions that keep its ends together; the result is the best partition of
    that graph.
    """
    links, partitions = graph.tocoo(), _partitions(graph, _CONSENSUS_PARTITIONS, rng, resolution)
    together = np.mean([labels[links.row] == labels[links.col] for labels in partitions], axis=0)
    agreed = sparse.csr_array((links.data * np.maximum(together, 1e-9), (links.row, links.col)), shape=graph.shape)
    agreed.sort_indices()
    found = _partitions(agreed, _FINAL_PARTITIONS, rng, resolution)
    return max(found, key=lambda labels: modularity(agreed, labels, resolution))


def _partitions(graph: sparse.csr_array, count: int, rng: np.random.RandomState, resolution: float) -> list[NDArray]:
    """Partitions of high modularity, from different orders of the nodes."""
    found = []
    for _ in range(count):
        labels = louvain(graph, resolution, rng)
        found.append(improve(graph, labels, resolution, rng.permutation(len(labels))))
    return found


def _merge_singletons(graph: sparse.csr_array, labels: NDArray) -> NDArray:
    """Merge every cluster of one image with the cluster that the image attends to most, the first one of equals."""
    labels = np.unique(labels, return_inverse=True)[1]
    sizes = np.bincount(labels)
    members = np.argsort(labels, kind="stable")[np.cumsum(sizes) - 1]  # the last image of each cluster
    for cluster in np.flatnonzero(sizes == 1):
        if sizes[cluster] != 1 or np.count_nonzero(sizes) == 1:
            continue  # another such image has joined it, or no other cluster is left
        row = slice(graph.indptr[members[cluster]], graph.indptr[members[cluster] + 1])
        attention = np.bincount(labels[graph.indices[row]], graph.data[row], len(sizes))
        attention[sizes == 0] = attention[cluster] = -1.0
        labels[members[cluster]] = attention.argmax()
        sizes[cluster] -= 1
        sizes[attention.argmax()] += 1
    return np.unique(labels, return_inverse=True)[1]


def _spectral(graph: sparse.csr_array, n_clusters: int, rng: np.random.RandomState) -> Iterator[NDArray]:
    """Partitions into the required number of clusters, each computed with more clusters first and then merged."""
    n = graph.shape[0]
    counts = sorted({min(n, int(np.ceil(surplus * n_clusters))) for surplus in _SURPLUS})
    vectors = _eigenvectors(graph, counts[-1], rng)
    for count in counts:
        rows = vectors[:, :count]
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        distinct = min(count, len(np.unique(rows.round(9), axis=0)))
        seed = rng.randint(2**31 - 1)
        labels = KMeans(distinct, n_init=3, random_state=seed).fit_predict(rows).astype(np.int64)
        yield merge_clusters(graph, np.unique(labels, return_inverse=True)[1], n_clusters)


def _eigenvectors(graph: sparse.csr_array, count: int, rng: np.random.RandomState) -> NDArray:
    """Leading eigenvectors of the random walk ``D^-1 W``, (n, count)."""
    degree = np.asarray(graph.sum(1)).ravel()
    root = 1 / np.sqrt(np.maximum(degree, 1e-300))
    normalised = sparse.diags_array(root) @ graph @ sparse.diags_array(root)
    n = graph.shape[0]
    if n <= max(_MAX_DENSE, 3 * count):
        _, vectors = scipy.linalg.eigh(normalised.toarray(), subset_by_index=(n - count, n - 1))
    else:
        start = rng.standard_normal((n, 1))
        try:
            _, vectors = eigsh(normalised, count, which="LA", v0=start[:, 0], tol=1e-5)
        except ArpackNoConvergence as error:  # many equal eigenvalues, such as those of a graph of many components
            found = error.eigenvectors
            vectors = subspace_iteration(
                normalised, np.hstack([found, rng.standard_normal((n, count - found.shape[1]))])
            )
    return vectors[:, ::-1] * root[:, None]


def subspace_iteration(matrix: sparse.csr_array, start: NDArray, n_steps: int = 200) -> NDArray:
    """Approximate the leading eigenvectors of a symmetric matrix (n, n) with spectrum in [-1, 1] from (n, m) vectors.

    The number of steps is fixed, so that it ends for any matrix. Eigenvectors are in ascending order of eigenvalues.
    """
    vectors = np.linalg.qr(start)[0]
    for _ in range(n_steps):
        vectors = np.linalg.qr(vectors + matrix @ vectors)[0]  # no eigenvalue of I + S is negative
    _, rotation = np.linalg.eigh(vectors.T @ (matrix @ vectors))
    return vectors @ rotation


def _exactly(graph: sparse.csr_array, labels: NDArray, n_clusters: int) -> NDArray:
    """Split off the least attended image of the largest cluster while there are too few (copies of a few images)."""
    labels = labels.copy()
    while (count := int(labels.max()) + 1) < n_clusters:
        members = np.flatnonzero(labels == np.bincount(labels).argmax())
        inside = np.asarray(graph[members][:, members].sum(1)).ravel()
        labels[members[inside.argmin()]] = count
    return labels
