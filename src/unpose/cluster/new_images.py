"""Assign new images to the clusters of a fitted estimator: votes of the nearest fitted images, p-values and poses.

The statistics are in :mod:`unpose.cluster.assignment`; here images are compared, by pixels and by features. Images that
are read in pieces are compared block by block.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from unpose.align import Neighbours, Progress
from unpose.cluster.assignment import (
    Assignment,
    crowd_p_values,
    neighbour_distance,
    outlier_p_values,
    share_of_new,
    vote_shares,
    vote_weights,
)
from unpose.cluster.averaging import align_to_means
from unpose.cluster.features import FeatureNetwork, cosine_neighbours, feature_network, orbit_features
from unpose.cluster.graph import N_ATTENDED, N_NEIGHBOURS, bandwidths, largest_entries, neighbours_of_all
from unpose.cluster.joint_graph import FittedFeatures, whitened
from unpose.cluster.light import evenly_spaced_rows
from unpose.cluster.neighbours import nearest_references, small_images
from unpose.cluster.pieces import Batch, take
from unpose.compiled import torch_threads

_BLOCK_PIXELS = 2**25
"""Pixels of images in pieces that are compared at a time."""
_PROBED = 16
"""Images that a network is tried on."""


def voted_labels(model: Any, given: Any) -> NDArray:
    """Cluster of each image by the votes of its nearest fitted images, (n,); -1 for constant images."""
    batch, shown = model._without_light(given)
    labels, network = np.full(len(batch), -1), _network(model, given)
    for rows in blocks(batch, np.flatnonzero(shown)):
        labels[rows] = _vote(model, batch[rows], given[rows], network, None).labels
    return labels


@dataclass(frozen=True)
class Placed:
    """What is known of n new images: their clusters, and their links to the images of the estimator."""

    assignment: Assignment
    neighbours: Neighbours  # (n, k), the nearest fitted images by pixels; -1 for constant images
    links: sparse.csr_array | None  # (n, all images), attention if features were compared, too


def assign_new(model: Any, given: Any, progress: Progress | None) -> Placed:
    """Assign images (n, c, h, w), a tensor or a :class:`Batch`, to the clusters of an InvariantClustering.

    Constant images have no cluster. Images in pieces are compared block by block.
    """
    batch, shown = model._without_light(given)
    n, rows = len(batch), np.flatnonzero(shown)
    labels, second, distances = np.full(n, -1), np.full(n, -1), np.full(n, np.inf)
    confidences, p_values, poses = np.zeros(n), np.zeros(n), np.tile(np.eye(3), (n, 1, 1))
    near = neighbours_of_all(None, rows, n, model.neighbours_.indices.shape[1])
    if len(rows) == 0:
        nothing = sparse.csr_array((n, len(model.labels_))) if model.features_ is not None else None
        return Placed(Assignment(labels, confidences, p_values, second, distances, poses), near, nothing)
    network = _network(model, given)
    parts = [_vote(model, batch[part], given[part], network, progress) for part in blocks(batch, rows)]
    votes = parts[0] if len(parts) == 1 else _joined(parts)
    labels[rows], confidences[rows], second[rows] = votes.labels, votes.shares.max(1), votes.second()
    p_values[rows] = _p_values(model, votes, take(batch, rows), progress)
    k = near.indices.shape[1]
    near.indices[rows], near.distances[rows] = votes.nearest.indices[:, :k], votes.nearest.distances[:, :k]
    near.poses[rows] = votes.nearest.poses[:, :k]
    if model._is_vectors:
        distances[rows] = np.linalg.norm(batch[rows][:, 0, 0].numpy() - model.means_[labels[rows]], axis=1)
    else:
        means, search = model._means_with_channels(), model._search(progress)
        found = align_to_means(take(batch, rows), means, labels[rows], search)
        distances[rows], poses[rows] = found["distances"], found["poses"]
    links = None if votes.near_points is None else _joint_links(model, votes, votes.near_points, rows, n)
    return Placed(Assignment(labels, confidences, p_values, second, distances, poses), near, links)


def blocks(images: Any, rows: NDArray) -> list[NDArray]:
    """The rows of images (n, c, h, w) in parts that fit into memory; in one part if the images are in memory."""
    if len(rows) == 0 or not isinstance(images, Batch):
        return [rows] * (len(rows) > 0)
    length = max(1, _BLOCK_PIXELS // math.prod(images.shape[1:]))
    return np.array_split(rows, math.ceil(len(rows) / length))


@dataclass(frozen=True)
class _Votes:
    """The nearest fitted images of n new ones, and how they vote for the clusters of m fitted images."""

    nearest: Neighbours  # (n, k), by pixels
    shares: NDArray  # (n, K), of the attention to each cluster
    rows: NDArray  # (m,), the fitted images that count
    known: NDArray  # (m,), their clusters
    points: NDArray | None  # (n, r), of the new images in the space of features
    near_points: tuple[NDArray, NDArray] | None  # (n, k), their nearest of the m points and the distances
    new: NDArray  # (n, k), distances of new images to their nearest fitted ones by what decides
    own: NDArray  # (m, k), those of the fitted images
    by_features: bool  # whether features decide

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


def _joined(parts: list[_Votes]) -> _Votes:
    """The votes of the images of all parts."""

    def together(read: Callable[[Any], Any]) -> NDArray:
        return np.concatenate([read(part) for part in parts])

    nearest = Neighbours(
        together(lambda part: part.nearest.indices),
        together(lambda part: part.nearest.distances),
        together(lambda part: part.nearest.poses),
    )
    found = replace(
        parts[0], nearest=nearest, shares=together(lambda part: part.shares), new=together(lambda part: part.new)
    )
    if found.points is None:
        return found
    near = together(lambda part: part.near_points[0]), together(lambda part: part.near_points[1])
    return replace(found, points=together(lambda part: part.points), near_points=near)


def _network(model: Any, given: Any) -> FeatureNetwork | None:
    """The network by whose features the images were compared; None if only pixels were."""
    if model.features_ is None:
        return None
    network = feature_network(model._network(), given[:_PROBED], model.device, model.light_)
    if isinstance(model.features, str | os.PathLike):  # an object in memory is what its user says it is
        model.features_.check(network)
    return network


def _vote(
    model: Any, images: Tensor, given: Tensor, network: FeatureNetwork | None, progress: Progress | None
) -> _Votes:
    """Compare images (n, c, h, w), given without the effects of light and as they are, with the fitted ones."""
    rows = model._counted_rows()
    rows = rows[rows < model._n_fitted]
    known = model.labels_[rows]
    kept = rows if model._reference_rows is None else rows[model._reference_rows]
    found = _nearest(model, _small(model, images), model.references_, N_NEIGHBOURS, progress)
    scales = bandwidths(model.neighbours_.distances[kept]) if len(kept) > 1 else np.ones(1)
    shares = vote_shares(found.indices, found.distances, scales, model.labels_[kept], model.n_clusters_)
    # Distances of the fitted images before the rounds of attention, and for as many images as are kept.
    own = model.neighbours_.distances[rows]
    own = own * (model._typical_distances / np.maximum(neighbour_distance(own), 1e-12))[:, None] if own.size else own
    new, points, near_points, decides = found.distances, None, None, False
    if network is not None:
        features: FittedFeatures = model.features_
        poses, seen = network.poses(model.range_.group, model.range_.max_angle), images if network.statistics else given
        with torch_threads(model._search().n_threads):
            vectors = orbit_features(seen, network, poses, model.device, progress)
            points = whitened(features.space(vectors), features.whitening)
            by_features, near_points = features.votes(points, known, model.n_clusters_)
        shares = features.pixel_share * shares + (1 - features.pixel_share) * by_features
        if features.pixel_share < 0.5:  # what decides the cluster also decides whether an image belongs to it
            new, own, decides = near_points[1], features.own_neighbours[1], True
    nearest_images = replace(found, indices=kept[found.indices])
    return _Votes(nearest_images, shares, rows, known, points, near_points, new, own, decides)


def _joint_links(model: Any, votes: _Votes, points: tuple[NDArray, NDArray], rows: NDArray, n: int) -> sparse.csr_array:
    """Attention of new images, the ``rows`` of n, to all images, by pixels and by features: (n, all images).

    Weights of the fitted images come from random walks over the joined graph, on which new images are not. Their direct
    attention is scaled as that of the fitted images would have to be, to have the weights that they have.
    """
    features: FittedFeatures = model.features_
    share, fitted, total = features.pixel_share, votes.rows, len(model.labels_)
    pixels = model.neighbours_.distances[fitted]
    scales = np.ones(total)
    scales[fitted] = bandwidths(pixels)
    point_scales = bandwidths(features.own_neighbours[1])

    def attention(by_pixels: tuple[NDArray, NDArray], by_points: tuple[NDArray, NDArray]) -> list[NDArray]:
        one, other = vote_weights(*by_pixels, scales), vote_weights(*by_points, point_scales)
        return [share * one, (1 - share) * other]

    of_fitted = attention((model.neighbours_.indices[fitted], pixels), features.own_neighbours)
    found = largest_entries(model.weights_[fitted][:, fitted], N_ATTENDED)
    ratio = found.sum() / sum(each.sum() for each in of_fitted)
    near = votes.nearest
    values = np.concatenate(attention((near.indices, near.distances), points), axis=1)
    columns = np.concatenate([near.indices[:, :N_ATTENDED], fitted[points[0][:, :N_ATTENDED]]], axis=1)
    links = sparse.csr_array(
        (ratio * values.ravel(), (np.repeat(rows, values.shape[1]), columns.ravel())), shape=(n, total)
    )
    return largest_entries(links, N_ATTENDED)


def _p_values(model: Any, votes: _Votes, images: Any, progress: Progress | None) -> NDArray:
    """P-values that are small for images (n, c, h, w), a tensor or a :class:`Batch`, of none of the clusters: (n,)."""
    typical = neighbour_distance(votes.own) if votes.by_features else model._typical_distances
    p_values = outlier_p_values(neighbour_distance(votes.new), votes.labels, typical, votes.known)
    if min(len(votes.new), len(model.references_)) <= N_NEIGHBOURS:
        return p_values
    return np.minimum(1.0, 2 * np.minimum(p_values, _crowd_p_values(model, votes, images, progress)))


def _crowd_p_values(model: Any, votes: _Votes, images: Any, progress: Progress | None) -> NDArray:
    """P-values of new images (n, c, h, w) by the share of new images among their neighbours, (n,).

    If there are more new images than fitted ones, neighbours are searched among a sample of as many, so that the cost
    stays in proportion to that of the votes.
    """
    n, m = len(votes.new), len(model.references_)
    pool, sample = evenly_spaced_rows(n, m), evenly_spaced_rows(m)
    known = sample if model._reference_rows is None else model._reference_rows[sample]
    k = N_NEIGHBOURS + 1  # with the image itself
    if votes.by_features and votes.points is not None:
        indices, distances = cosine_neighbours(votes.points, votes.points[pool], k)
        _, from_known = cosine_neighbours(model.features_.points[known], votes.points[pool], k)
    else:
        small = _small(model, images)
        others, fitted = small[pool].numpy(), torch.from_numpy(model.references_[sample])
        parts = [_nearest(model, small[part], others, k, progress) for part in blocks(small, np.arange(n))]
        indices = np.concatenate([part.indices for part in parts])
        distances = np.concatenate([part.distances for part in parts])
        from_known = _nearest(model, fitted, others, k, progress).distances
    distances = np.where(pool[indices] == np.arange(n)[:, None], np.inf, distances)
    shares, of_known = share_of_new(votes.new, distances), share_of_new(votes.own[known], from_known)
    return crowd_p_values(shares, votes.labels, of_known, votes.known[known])


def _small(model: Any, images: Any) -> Any:
    """Images (n, c, h, w), a tensor or a :class:`Batch`, as they are compared; vectors as they are."""
    return images if model._is_vectors else small_images(images)


def _nearest(model: Any, images: Tensor, references: NDArray, k: int, progress: Progress | None) -> Neighbours:
    """The k nearest of ``references`` (m, c, h, w) of images (n, c, h, w), all small."""
    if model._is_vectors:
        space = NearestNeighbors(n_neighbors=min(k, len(references))).fit(references[:, 0, 0])
        found = space.kneighbors(images[:, 0, 0].numpy())
        return Neighbours(found[1], found[0], np.zeros((*found[0].shape, 3, 3)))
    side = max(model.image_shape_[:2])
    return nearest_references(images, torch.from_numpy(references), k, model._search(progress), side)
