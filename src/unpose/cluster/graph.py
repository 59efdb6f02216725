"""From neighbours to an attention matrix: sparse, self-tuned, symmetric."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

NEIGHBOURS = 12
"""Neighbours that are looked for."""
ATTENDED = 8
"""Neighbours that an image attends to."""
_LOCAL = 7
"""The neighbour whose distance is an image's own bandwidth."""


def attention(indices: NDArray, distances: NDArray, attended: int = ATTENDED) -> sparse.csr_array:
    """Weights ``exp(-d_ij^2 / (s_i s_j))`` of each image's nearest, s its distance to the seventh: (n, n), symmetric.

    ``indices`` and ``distances`` (n, k), nearest first. The bandwidth of the kernel (3.1) is every image's own, so that
    dense and thin regions count alike (Zelnik-Manor and Perona). A pair is linked where either attends to the other.
    """
    n, k = indices.shape
    k = min(k, attended)
    scale = distances[:, min(_LOCAL, distances.shape[1]) - 1]
    # Copies of one image are at no distance at all: they still get a bandwidth, far below that of the others.
    floor = 1e-6 * max(float(np.median(distances)), float(distances.max()) * 1e-3, 1e-12)
    scale = np.maximum(scale, floor)
    weights = np.exp(-(distances[:, :k] ** 2) / (scale[:, None] * scale[indices[:, :k]]))
    # What underflows is still a neighbour: a graph without edges could not be read out.
    weights = np.maximum(weights, 1e-12)
    rows = np.repeat(np.arange(n), k)
    one_way = sparse.csr_array((weights.ravel(), (rows, indices[:, :k].ravel())), shape=(n, n))
    both = sparse.csr_array(one_way.maximum(one_way.T))
    both.sort_indices()
    return both
