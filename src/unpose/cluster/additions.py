"""Add images that arrive later to a fitted clustering, without searching among the fitted images again.

New images are linked to their nearest fitted images, which vote for their clusters as in ``predict``. Averages and the
images that later ones are compared with stay those of the fit, so the order in which images arrive does not matter.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from unpose.align import Neighbours
from unpose.cluster.copies import first_equal
from unpose.cluster.graph import N_ATTENDED, bandwidths, neighbours_of_all
from unpose.cluster.new_images import Placed


def append_assigned(model: Any, new: Placed, names: list[str] | None, digests: NDArray) -> None:
    """Append assigned images to the attributes of an InvariantClustering that have one entry for each image.

    ``names`` are those of their files, and ``digests`` (m, 32) those of their pixels. An image with the same pixels as
    an earlier one is a copy of that, as in a fit.
    """
    found, n, m = new.assignment, len(model.labels_), len(new.assignment.labels)
    known = np.zeros((0, digests.shape[1]), np.uint8) if model._digests is None else model._digests
    first = first_equal(np.concatenate([known, digests]))[len(known) :] + (n - len(known))
    is_copy = first != np.arange(n, n + m)
    model.weights_ = extended_weights(model.weights_, new, is_copy, model.neighbours_.distances)
    model.copies_ = np.concatenate([model.copies_, first])
    model.copies_ = model.copies_[model.copies_]  # the first image may itself be a copy, up to pose
    for name, theirs in (("labels_", found.labels), ("confidences_", found.confidences)):
        values = np.concatenate([getattr(model, name), theirs])
        values[n:] = values[model.copies_[n:]]
        setattr(model, name, values)
    poses = np.concatenate([model.poses_, found.poses])
    model.poses_ = np.concatenate([model.poses_, poses[first]])
    model._labelled = np.concatenate([model._labelled, np.zeros(m, bool)])
    if model._digests is not None:
        model._digests = np.concatenate([known, digests])
    if names is not None or model.names_ is not None:
        before = model.names_ or [str(i) for i in range(n)]
        model.names_ = [*before, *(names or [str(i) for i in range(n, n + m)])]
    none = neighbours_of_all(None, np.zeros(0, np.int64), m, new.neighbours.indices.shape[1])
    joined = {}
    for name in ("indices", "distances", "poses"):
        old, own = getattr(model.neighbours_, name), getattr(new.neighbours, name).copy()
        own[is_copy] = getattr(none, name)[is_copy]
        joined[name] = np.concatenate([old, own.astype(old.dtype)])
    model.neighbours_ = Neighbours(**joined)
    if model.probabilities_ is not None:  # new images have the class of the images they were assigned with
        shares = np.stack([model.probabilities_[model.labels_[:n] == k].mean(0) for k in range(model.n_clusters_)])
        added = np.full((m, model.probabilities_.shape[1]), 1 / model.probabilities_.shape[1])
        added[found.labels >= 0] = shares[found.labels[found.labels >= 0]]
        probabilities = np.concatenate([model.probabilities_, added])
        probabilities[n:] = probabilities[model.copies_[n:]]
        model.probabilities_ = probabilities


def extended_weights(weights: sparse.csr_array, new: Placed, is_copy: NDArray, distances: NDArray) -> sparse.csr_array:
    """The attention matrix (n + m, n + m) with the attention of m new images to their nearest among n fitted ones.

    ``distances`` (n, k) are those of the fitted images to their neighbours by pixels, from which the weights are
    computed if only pixels were compared. The new images that are copies (m,) attend to none.
    """
    link = new.links
    if link is None:
        link = _links_by_pixels(weights.shape[0], new.neighbours, distances)
    link = sparse.csr_array(sparse.diags_array(1.0 - is_copy) @ link)
    link.eliminate_zeros()
    found = sparse.csr_array(sparse.block_array([[sparse.csr_array(weights), link.T], [link, None]]))
    found.sort_indices()
    return found


def _links_by_pixels(n: int, neighbours: Neighbours, distances: NDArray) -> sparse.csr_array:
    """Attention of m new images to their nearest among n images, by the weights of the attention matrix: (m, n)."""
    m, k = len(neighbours.indices), min(N_ATTENDED, neighbours.indices.shape[1])
    shown = np.flatnonzero(neighbours.indices[:, 0] >= 0) if k else np.zeros(0, np.int64)
    indices, length = neighbours.indices[shown, :k], neighbours.distances[shown]
    if len(shown) and distances.shape[1]:
        linked = np.isfinite(distances).all(1)
        scales = np.ones(n)
        scales[linked] = bandwidths(distances[linked])
        values = np.exp(-(length[:, :k] ** 2) / np.maximum(bandwidths(length)[:, None] * scales[indices], 1e-300))
    else:
        values = np.ones(indices.shape)
    return sparse.csr_array((np.maximum(values, 1e-12).ravel(), (np.repeat(shown, k), indices.ravel())), shape=(m, n))
