"""Assign new images to clusters by the votes of their nearest fitted images, and tell which belong to none.

The clusters are read from a graph of neighbours, and need not be compact: an image may be nearer to the average of
another cluster than to that of its own. New images are therefore linked to the graph as the fitted images are.

An image is of none of the clusters if it is far from the fitted images. Images of an unseen kind often are not, but
they are nearer to each other than to fitted images. Where many images are assigned together, the neighbours of each are
therefore searched among fitted and new images: a two-sample test by nearest neighbours (Schilling, 1986, Multivariate
two-sample tests based on nearest neighbors), image by image.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from unpose.cluster.graph import N_ATTENDED, bandwidths

_FEWEST = 5
"""Different members of a cluster that are needed to know the range of their distances."""
_COPY = 1e-3
"""An image is a copy of its nearest one if it is nearer than this share of its bandwidth."""


@dataclass(frozen=True)
class Assignment:
    """The clusters that new images are assigned to, as :meth:`InvariantClustering.assign` returns them.

    Parameters
    ----------
    labels : (n,) array of int
        Cluster of each image; -1 for constant images.
    confidences : (n,) array
        Estimated probability that the label is the one that a fit of all images together would give, in [0, 1].
    p_values : (n,) array
        Probability that a member of the cluster is at least as far from its nearest fitted images as this image. If
        more than twelve images are assigned together, also the probability that a fitted image has as many of them
        among its twelve nearest images, fitted or new; the p-value is then twice the smaller of the two. Images below
        0.01 are of none of the kinds that were fitted, or damaged. NaN for clusters of fewer than five different
        images, 0 for constant images.
    second : (n,) array of int
        Cluster with the second largest vote; -1 where all votes agree.
    distances : (n,) array
        Orbit distance from the average of the cluster.
    poses : (n, 3, 3) array
        Bring each image onto the average of its cluster.

    Examples
    --------
    >>> import numpy as np
    >>> from unpose.cluster import InvariantClustering
    >>> from unpose.data import posed
    >>> bars = np.zeros((2, 17, 17)); bars[0, 3:14, 8:10] = 1; bars[1, 5:12, 5:12] = 1
    >>> model = InvariantClustering(2).fit(posed(bars, copies=8, max_shift=1.0).images)
    >>> found = model.assign(posed(bars, copies=1, max_shift=1.0, random_state=5).images)
    >>> sorted(found.labels.tolist()), found.poses.shape
    ([0, 1], (2, 3, 3))
    """

    labels: NDArray
    confidences: NDArray
    p_values: NDArray
    second: NDArray
    distances: NDArray
    poses: NDArray


def vote_shares(indices: NDArray, distances: NDArray, scales: NDArray, labels: NDArray, n_clusters: int) -> NDArray:
    """Share of each cluster in the attention that images pay to their nearest fitted images, (n, K).

    ``indices`` and ``distances`` are (n, k), nearest first; ``scales`` and ``labels`` are (m,), the bandwidths and the
    clusters of the fitted images. See :func:`vote_weights`.
    """
    weights = vote_weights(indices, distances, scales)
    shares = np.zeros((len(distances), n_clusters))
    np.add.at(shares, (np.arange(len(distances))[:, None], labels[indices[:, : weights.shape[1]]]), weights)
    return shares / shares.sum(1, keepdims=True)


def vote_weights(indices: NDArray, distances: NDArray, scales: NDArray) -> NDArray:
    """Attention of images to their nearest eight among m fitted images with the bandwidths ``scales``, (n, k).

    The weights are those of the attention matrix, ``exp(-d_ij^2 / (s_i s_j))``. A copy of a fitted image attends to
    that image only.
    """
    own = bandwidths(distances)
    k = min(N_ATTENDED, distances.shape[1])
    weights = np.exp(-(distances[:, :k] ** 2) / np.maximum(own[:, None] * scales[indices[:, :k]], 1e-300))
    is_copy = distances[:, 0] <= _COPY * own
    weights[is_copy, 1:] = 0.0
    return np.maximum(weights, 1e-12)


def neighbour_distance(distances: NDArray) -> NDArray:
    """Mean distance of images to their nearest eight, (n, k) -> (n,): large for images like no other."""
    return distances[:, :N_ATTENDED].mean(1)


def outlier_p_values(scores: NDArray, labels: NDArray, known: NDArray, known_labels: NDArray) -> NDArray:
    """Probability that a member of the cluster has a distance as large as these, (n,).

    ``known`` are the distances of the members (m,), with their clusters ``known_labels`` (m,). Their logarithms are
    close to normal, so a new one follows Student's distribution about their mean.
    """
    p_values = np.full(len(scores), np.nan)
    for label in np.unique(labels):
        logs = np.log(np.maximum(known[known_labels == label], 1e-12))
        if len(logs) >= _FEWEST:
            rows, spread = labels == label, max(float(logs.std(ddof=1)), 1e-6)
            deviation = (np.log(np.maximum(scores[rows], 1e-12)) - logs.mean()) / (spread * np.sqrt(1 + 1 / len(logs)))
            p_values[rows] = stats.t.sf(deviation, len(logs) - 1)
    return p_values


def share_of_new(to_fitted: NDArray, to_new: NDArray) -> NDArray:
    """Share of new images among the nearest images of each image, (n,).

    ``to_fitted`` (n, k) are the distances to its nearest fitted images and ``to_new`` (n, k) those to its nearest new
    ones, itself excluded; infinite where there are fewer.
    """
    k = to_fitted.shape[1]
    nearest = np.argsort(np.concatenate([to_fitted, to_new], axis=1), axis=1, kind="stable")[:, :k]
    return (nearest >= k).mean(1)


def crowd_p_values(shares: NDArray, labels: NDArray, known: NDArray, known_labels: NDArray) -> NDArray:
    """Probability that a fitted image has a share of new neighbours as large as these, (n,).

    ``known`` (m,) are the shares of fitted images, whose clusters are ``known_labels``; ``labels`` (n,) are those that
    the new images vote for. If the new images are drawn as the fitted ones were, all images are exchangeable, and the
    rank of a share among them is a p-value without any assumption about distances. A kind that is more frequent among
    the new images raises the shares of all its members, fitted ones too: these count in proportion (Tibshirani et al.,
    2019, Conformal prediction under covariate shift).
    """
    count = int(max(labels.max(), known_labels.max())) + 1
    ratio = (1 + np.bincount(labels, minlength=count)) / (1 + np.bincount(known_labels, minlength=count))
    order = np.argsort(known, kind="stable")
    weights = ratio[known_labels[order]] / ratio[known_labels].mean()
    above = np.append(np.cumsum(weights[::-1])[::-1], 0.0)  # of all shares from the i-th smallest up
    return (1 + above[np.searchsorted(known[order], shares, side="left")]) / (1 + len(known))


def sparser_factor(distances: NDArray, share: float) -> float:
    """By how much distances to neighbours grow if only a ``share`` of the images is kept.

    ``distances`` are (n, k), nearest first. In a set of dimension d the k-th neighbour is at a distance in proportion
    to ``k^(1/d)``, from which d is estimated, and the distances grow by ``share^(-1/d)``.
    """
    first, last = distances[:, 3], distances[:, -1]
    known = np.isfinite(last) & (first > 0)
    ratio = float(np.log(last[known] / first[known]).mean()) if known.any() else 0.0
    return share ** (-ratio / np.log(distances.shape[1] / 4))
