"""The attention matrix in cluster order, reduced to a picture and a few numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

BINS = 256


@dataclass(frozen=True)
class AttentionPicture:
    """Attention weights binned in cluster order."""

    density: NDArray[np.uint8]  # (bins, bins), 0 for none
    order: NDArray[np.int64]  # the clusters from top to bottom, -1 last
    edges: NDArray[np.float64]  # (clusters + 1,) where each begins, from 0 to 1
    shares: NDArray[np.float64]  # (clusters, clusters) of each cluster's weight, how much goes to which
    inside: float  # share of all weight that stays in its cluster


def attention_picture(attention: Any, labels: NDArray, confidences: NDArray) -> AttentionPicture:
    """Order images by cluster, the surest first, and add up the weights that fall in one pixel.

    Parameters
    ----------
    attention : (n, n) array or scipy sparse matrix
    labels, confidences : (n,)

    Notes
    -----
    The shade is the square root of a pixel's mean weight, so that weak links show; the strongest pixels are cut at
    their 99th percentile. Cost: the stored entries, never n x n of a sparse matrix.
    """
    labels = np.asarray(labels)
    n = len(labels)
    last = labels.max() + 1
    key = np.where(labels < 0, last, labels)  # what has no cluster comes last
    rank = np.empty(n, dtype=np.int64)
    rank[np.lexsort((-np.asarray(confidences), key))] = np.arange(n)

    links = coo_array(attention)
    weights = np.abs(np.asarray(links.data, dtype=np.float64))
    bins = min(n, BINS)
    row, column = rank[links.row] * bins // n, rank[links.col] * bins // n
    total = np.bincount(row * bins + column, weights, bins * bins).reshape(bins, bins)
    height = np.bincount(np.arange(n) * bins // n)  # images in a bin
    mean = np.sqrt(total / np.outer(height, height))
    filled = mean[mean > 0]
    density = np.clip(mean / np.percentile(filled, 99), 0, 1) if filled.size else mean

    order, sizes = np.unique(key, return_counts=True)
    place = np.searchsorted(order, key)
    k = len(order)
    shares = np.bincount(place[links.row] * k + place[links.col], weights, k * k).reshape(k, k)
    inside = float(np.trace(shares) / shares.sum()) if weights.sum() > 0 else 0.0
    shares = shares / np.maximum(shares.sum(1, keepdims=True), np.finfo(np.float64).tiny)
    return AttentionPicture(
        density=np.round(density * 255).astype(np.uint8),
        order=np.where(order == last, -1, order).astype(np.int64),
        edges=np.concatenate([[0], np.cumsum(sizes)]) / n,
        shares=shares,
        inside=inside,
    )
