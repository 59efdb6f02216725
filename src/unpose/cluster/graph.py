"""From nearest neighbours to an attention matrix: sparse, symmetric, with a bandwidth for each image."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

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
