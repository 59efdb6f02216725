"""Assign new images to the clusters of a fitted estimator: votes of the nearest fitted images, p-values and poses.

The statistics are in :mod:`unpose.cluster.assignment`; here images are compared, by pixels and by features.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from unpose.align import Neighbours, Progress, align
from unpose.cluster.assignment import (
    Assignment,
    crowd_p_values,
    neighbour_distance,
    outlier_p_values,
    share_of_new,
    vote_shares,
)
from unpose.cluster.features import cosine_neighbours, feature_network, orbit_features
from unpose.cluster.graph import N_NEIGHBOURS, bandwidths, neighbours_of_all
from unpose.cluster.joint_graph import FittedFeatures, whitened
from unpose.cluster.light import evenly_spaced_rows
from unpose.cluster.neighbours import nearest_references, small_images


def voted_labels(model: Any, X: Any) -> NDArray:
    """Cluster of each image by the votes of its nearest fitted images, (n,); -1 for constant images."""
    given = model._given(X, fitting=False)
    batch, shown = model._without_light(given)
    labels, rows = np.full(len(batch), -1), np.flatnonzero(shown)
    if len(rows):
        labels[rows] = _vote(model, batch[rows], given[rows], None).labels
    return labels


def assign_new(model: Any, X: Any, progress: Progress | None) -> tuple[Assignment, Neighbours]:
    """Assign images to the clusters of an InvariantClustering; also their nearest fitted images.

    Constant images have no cluster, and the nearest image -1.
    """
    given = model._given(X, fitting=False)
    batch, shown = model._without_light(given)
    n, rows = len(batch), np.flatnonzero(shown)
    labels, second, distances = np.full(n, -1), np.full(n, -1), np.full(n, np.inf)
    confidences, p_values, poses = np.zeros(n), np.zeros(n), np.tile(np.eye(3), (n, 1, 1))
    near = neighbours_of_all(None, rows, n, model.neighbours_.indices.shape[1])
    if len(rows) == 0:
        return Assignment(labels, confidences, p_values, second, distances, poses), near
    images = batch[rows]
    votes = _vote(model, images, given[rows], progress)
    labels[rows], confidences[rows], second[rows] = votes.labels, votes.shares.max(1), votes.second()
    p_values[rows] = _p_values(model, votes, progress)
    k = near.indices.shape[1]
    near.indices[rows], near.distances[rows] = votes.nearest.indices[:, :k], votes.nearest.distances[:, :k]
    near.poses[rows] = votes.nearest.poses[:, :k]
    if model._is_vectors:
        distances[rows] = np.linalg.norm(images[:, 0, 0].numpy() - model.means_[labels[rows]], axis=1)
    else:
        means, search = model._means_with_channels(), model._search(progress)
        found = align(images.movedim(1, -1), means, to=labels[rows], search=search)
        distances[rows], poses[rows] = found.distances, found.poses
    return Assignment(labels, confidences, p_values, second, distances, poses), near


@dataclass(frozen=True)
class _Votes:
    """The nearest fitted images of n new ones, and how they vote for the clusters of m fitted images."""

    small: Tensor  # the new images as they are compared, (n, c, h, w)
    nearest: Neighbours  # (n, k), by pixels
    shares: NDArray  # (n, K), of the attention to each cluster
    known: NDArray  # (m,), clusters of the fitted images
    points: tuple[NDArray, NDArray] | None  # of the new and the fitted images, (n, r) and (m, r), if features decide
    new: NDArray  # (n, k), distances of new images to their nearest fitted ones by what decides
    own: NDArray  # (m, k), those of the fitted images

    @property
    def labels(self) -> NDArray:
        """Cluster with the largest share, (n,)."""
        return np.argsort(-self.shares, axis=1, kind="stable")[:, 0]

    def second(self) -> NDArray:
        """Cluster with the second largest share, (n,); -1 where all votes agree."""
        order = np.argsort(-self.shares, axis=1, kind="stable")
        second = order[:, min(1, self.shares.shape[1] - 1)]
        agreed = self.shares[np.arange(len(order)), second] * (second != order[:, 0]) <= 0
        return np.where(agreed, -1, second)


def _vote(model: Any, images: Tensor, given: Tensor, progress: Progress | None) -> _Votes:
    """Compare images (n, c, h, w), given without the effects of light and as they are, with the fitted ones."""
    rows = model._counted_rows()
    rows = rows[rows < model._n_fitted]
    known = model.labels_[rows]
    kept = rows if model._reference_rows is None else rows[model._reference_rows]
    small = images if model._is_vectors else small_images(images)
    found = _nearest(model, small, model.references_, N_NEIGHBOURS, progress)
    scales = bandwidths(model.neighbours_.distances[kept]) if len(kept) > 1 else np.ones(1)
    shares = vote_shares(found.indices, found.distances, scales, model.labels_[kept], model.n_clusters_)
    # Distances of the fitted images before the rounds of attention, and for as many images as are kept.
    own = model.neighbours_.distances[rows]
    own = own * (model._typical_distances / np.maximum(neighbour_distance(own), 1e-12))[:, None] if own.size else own
    new, points = found.distances, None
    if model.features_ is not None:
        features: FittedFeatures = model.features_
        network = feature_network(model._network(), given, model.device, model.light_)
        if isinstance(model.features, str | os.PathLike):  # an object in memory is what its user says it is
            features.check(network)
        poses, seen = network.poses(model.range_.group, model.range_.max_angle), images if network.statistics else given
        vectors = orbit_features(seen, network, poses, model.device, progress)
        at = whitened(features.space(vectors), features.whitening)
        by_features, *distances = features.votes(at, known, model.n_clusters_)
        shares = features.pixel_share * shares + (1 - features.pixel_share) * by_features
        if features.pixel_share < 0.5:  # what decides the cluster also decides whether an image belongs to it
            (new, own), points = distances, (at, features.points)
    return _Votes(small, replace(found, indices=kept[found.indices]), shares, known, points, new, own)


def _p_values(model: Any, votes: _Votes, progress: Progress | None) -> NDArray:
    """P-values that are small for images of none of the clusters, (n,)."""
    typical = model._typical_distances if votes.points is None else neighbour_distance(votes.own)
    p_values = outlier_p_values(neighbour_distance(votes.new), votes.labels, typical, votes.known)
    if min(len(votes.new), len(model.references_)) <= N_NEIGHBOURS:
        return p_values
    return np.minimum(1.0, 2 * np.minimum(p_values, _crowd_p_values(model, votes, progress)))


def _crowd_p_values(model: Any, votes: _Votes, progress: Progress | None) -> NDArray:
    """P-values of new images by the share of new images among their neighbours, (n,).

    If there are more new images than fitted ones, neighbours are searched among a sample of as many, so that the cost
    stays in proportion to that of the votes.
    """
    n, m = len(votes.new), len(model.references_)
    pool, sample = evenly_spaced_rows(n, m), evenly_spaced_rows(m)
    known = sample if model._reference_rows is None else model._reference_rows[sample]
    k = N_NEIGHBOURS + 1  # with the image itself
    if votes.points is None:
        others, fitted = votes.small[pool].numpy(), torch.from_numpy(model.references_[sample])
        found = _nearest(model, votes.small, others, k, progress)
        indices, distances = found.indices, found.distances
        from_known = _nearest(model, fitted, others, k, progress).distances
    else:
        indices, distances = cosine_neighbours(votes.points[0], votes.points[0][pool], k)
        _, from_known = cosine_neighbours(votes.points[1][known], votes.points[0][pool], k)
    distances = np.where(pool[indices] == np.arange(n)[:, None], np.inf, distances)
    shares, of_known = share_of_new(votes.new, distances), share_of_new(votes.own[known], from_known)
    return crowd_p_values(shares, votes.labels, of_known, votes.known[known])


def _nearest(model: Any, images: Tensor, references: NDArray, k: int, progress: Progress | None) -> Neighbours:
    """The k nearest of ``references`` (m, c, h, w) of images (n, c, h, w), all small."""
    if model._is_vectors:
        space = NearestNeighbors(n_neighbors=min(k, len(references))).fit(references[:, 0, 0])
        found = space.kneighbors(images[:, 0, 0].numpy())
        return Neighbours(found[1], found[0], np.zeros((*found[0].shape, 3, 3)))
    side = max(model.image_shape_[:2])
    return nearest_references(images, torch.from_numpy(references), k, model._search(progress), side)
