"""Add images that arrive later to a fitted clustering, without searching among the fitted images again.

New images are linked to their nearest fitted images, which vote for their clusters as in ``predict``. Averages and the
images that later ones are compared with stay those of the fit, so the order in which images arrive does not matter.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from unpose.align import Neighbours
from unpose.cluster.assignment import Assignment
from unpose.cluster.graph import N_ATTENDED, bandwidths


def append_assigned(model: Any, found: Assignment, neighbours: Neighbours) -> None:
    """Append assigned images to the attributes of an InvariantClustering that have one entry for each image.

    ``neighbours`` are the nearest fitted images of the new ones, (m, k), with index -1 for constant images.
    """
    n, m = len(model.labels_), len(found.labels)
    model.weights_ = extended_weights(model.weights_, neighbours, model.neighbours_.distances)
    model.labels_ = np.concatenate([model.labels_, found.labels])
    model.confidences_ = np.concatenate([model.confidences_, found.confidences])
    model.poses_ = np.concatenate([model.poses_, found.poses])
    model._labelled = np.concatenate([model._labelled, np.zeros(m, bool)])
    model.copies_ = np.concatenate([model.copies_, np.arange(n, n + m)])
    both = [(each.indices, each.distances, each.poses) for each in (model.neighbours_, neighbours)]
    joined = (np.concatenate([old, new.astype(old.dtype)]) for old, new in zip(*both, strict=True))
    model.neighbours_ = Neighbours(*joined)
    if model.probabilities_ is not None:  # new images have the class of the images they were assigned with
        shares = np.stack([model.probabilities_[model.labels_[:n] == k].mean(0) for k in range(model.n_clusters_)])
        added = np.full((m, model.probabilities_.shape[1]), 1 / model.probabilities_.shape[1])
        added[found.labels >= 0] = shares[found.labels[found.labels >= 0]]
        model.probabilities_ = np.concatenate([model.probabilities_, added])


def extended_weights(weights: sparse.csr_array, neighbours: Neighbours, distances: NDArray) -> sparse.csr_array:
    """The attention matrix (n + m, n + m) with the attention of m new images to their nearest among n fitted ones.

    ``distances`` (n, k) are those of the fitted images to their neighbours; weights are those of the attention matrix.
    """
    n, m = weights.shape[0], len(neighbours.indices)
    k = min(N_ATTENDED, neighbours.indices.shape[1])
    shown = np.flatnonzero(neighbours.indices[:, 0] >= 0) if k else np.zeros(0, np.int64)
    indices, length = neighbours.indices[shown, :k], neighbours.distances[shown]
    if len(shown) and distances.shape[1]:
        linked = np.isfinite(distances).all(1)
        scales = np.ones(n)
        scales[linked] = bandwidths(distances[linked])
        values = np.exp(-(length[:, :k] ** 2) / np.maximum(bandwidths(length)[:, None] * scales[indices], 1e-300))
    else:
        values = np.ones(indices.shape)
    link = sparse.csr_array((np.maximum(values, 1e-12).ravel(), (np.repeat(shown, k), indices.ravel())), shape=(m, n))
    found = sparse.csr_array(sparse.block_array([[sparse.csr_array(weights), link.T], [link, None]]))
    found.sort_indices()
    return found
