"""From nearest neighbours to an attention matrix: sparse, symmetric, with a bandwidth for each image."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from unpose.align import Neighbours

__all__ = ["largest_entries"]

SEARCH_SIDE = 48
"""Larger side of the images among which neighbours are searched; averages are computed at full size."""
N_NEIGHBOURS = 12
"""Neighbours that are searched for each image."""
N_ATTENDED = 8
"""Nearest neighbours that an image attends to."""
_BANDWIDTH_NEIGHBOUR = 7
"""The bandwidth of an image is its distance to this neighbour."""


def attention_matrix(indices: NDArray, distances: NDArray, n_attended: int = N_ATTENDED) -> sparse.csr_array:
    """Weights ``exp(-d_ij^2 / (s_i s_j))`` of nearest neighbours, s_i the distance of image i to its seventh: (n, n).

    ``indices`` and ``distances`` are (n, k), nearest first. Every image has its own bandwidth in the kernel (3.1), so
    that dense and sparse regions count alike (Zelnik-Manor and Perona, 2004). The matrix is symmetric: a pair is linked
    if at least one of the two attends to the other.
    """
    n, k = indices.shape
    k = min(k, n_attended)
    scale = bandwidths(distances)
    weights = np.exp(-(distances[:, :k] ** 2) / (scale[:, None] * scale[indices[:, :k]]))
    # Weights that underflow stay positive, because clusters cannot be read out from a graph without edges.
    weights = np.maximum(weights, 1e-12)
    rows = np.repeat(np.arange(n), k)
    directed = sparse.csr_array((weights.ravel(), (rows, indices[:, :k].ravel())), shape=(n, n))
    symmetric = sparse.csr_array(directed.maximum(directed.T))
    symmetric.sort_indices()
    return symmetric


def mutual_share(indices: NDArray) -> float:
    """Share of neighbours that are mutual: j among the neighbours (n, k) of i, and i among those of j."""
    back = indices[indices] == np.arange(len(indices))[:, None, None]  # (n, k, k)
    return float(back.any(-1).mean())


def bandwidths(distances: NDArray) -> NDArray:
    """Bandwidth of each image, its distance to the seventh of its neighbours (n, k), nearest first: (n,)."""
    scale = distances[:, min(_BANDWIDTH_NEIGHBOUR, distances.shape[1]) - 1]
    # Copies of one image have distance 0; they get a positive bandwidth, far below that of the other images.
    floor = 1e-6 * max(float(np.median(distances)), float(distances.max()) * 1e-3, 1e-12)
    return np.maximum(scale, floor)


def vector_neighbours(batch: Tensor) -> Neighbours | None:
    """Euclidean neighbours of vectors (n, 1, 1, d), with identity poses; None for one vector."""
    X = batch[:, 0, 0].numpy()
    if len(X) == 1:
        return None
    distances, indices = NearestNeighbors(n_neighbors=min(N_NEIGHBOURS, len(X) - 1)).fit(X).kneighbors()
    return Neighbours(indices, distances, np.tile(np.eye(3), (*indices.shape, 1, 1)))


def attention_inside(weights: sparse.csr_array, labels: NDArray) -> NDArray:
    """Total attention of each image to its own cluster, (n,)."""
    edges = weights.tocoo()
    own = labels[edges.row] == labels[edges.col]
    return np.bincount(edges.row[own], edges.data[own], minlength=len(labels))


def largest_entries(matrix: sparse.csr_array, count: int) -> sparse.csr_array:
    """Keep the ``count`` largest entries of every row of a matrix (n, m)."""
    matrix = sparse.csr_array(matrix)
    lengths = np.diff(matrix.indptr)
    row = np.repeat(np.arange(matrix.shape[0]), lengths)
    order = np.lexsort((-matrix.data, row))
    kept = order[np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], lengths) < count]
    return sparse.csr_array((matrix.data[kept], (row[kept], matrix.indices[kept])), shape=matrix.shape)


def symmetric_walk(weights: sparse.csr_array) -> sparse.csr_array:
    """The matrix of a random walk on a symmetric graph in its symmetric form, ``D^-1/2 W D^-1/2``."""
    root = 1 / np.sqrt(np.maximum(np.asarray(weights.sum(1)).ravel(), 1e-300))
    return sparse.csr_array(sparse.diags_array(root) @ weights @ sparse.diags_array(root))


def weights_of_all(weights: sparse.csr_array, rows: NDArray, n: int) -> sparse.csr_array:
    """Extend a matrix over the images ``rows`` to all n images, with zeros."""
    edges = weights.tocoo()
    return sparse.csr_array((edges.data, (rows[edges.row], rows[edges.col])), shape=(n, n))


def neighbours_of_all(neighbours: Neighbours | None, rows: NDArray, n: int, k: int = 0) -> Neighbours:
    """Extend the neighbours of the images ``rows`` to all n images, with index -1 and infinite distances.

    Without neighbours, all images have k such entries.
    """
    k = k if neighbours is None else neighbours.indices.shape[1]
    indices, distances = np.full((n, k), -1), np.full((n, k), np.inf)
    poses = np.tile(np.eye(3), (n, k, 1, 1))
    if neighbours is not None:
        indices[rows], distances[rows], poses[rows] = rows[neighbours.indices], neighbours.distances, neighbours.poses
    return Neighbours(indices, distances, poses)
