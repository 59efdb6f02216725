"""Reduce the attention matrix, with images ordered by cluster, to a picture and a few numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

BINS = 256
"""Largest side of the picture."""


@dataclass(frozen=True)
class AttentionPicture:
    """Attention weights in bins of images, ordered by cluster."""

    density: NDArray[np.uint8]  # (bins, bins), 0 for no weight
    order: NDArray[np.int64]  # clusters from top to bottom, -1 last
    edges: NDArray[np.float64]  # (clusters + 1,) start of each cluster, from 0 to 1
    shares: NDArray[np.float64]  # (clusters, clusters) share of the row cluster's weight that the column cluster gets
    inside: float  # share of all weight between images of the same cluster


def attention_picture(attention: Any, labels: NDArray, confidences: NDArray) -> AttentionPicture:
    """Order images by cluster and decreasing confidence, and sum the weights that fall into each pixel.

    ``attention`` is an (n, n) array or scipy sparse matrix, ``labels`` and ``confidences`` are (n,). The intensity is
    the square root of a pixel's mean weight, so that weak links are visible, and is clipped at the 99th percentile. The
    cost is proportional to the stored entries of a sparse matrix, not to n x n.
    """
    labels = np.asarray(labels)
    n = len(labels)
    last = labels.max() + 1
    key = np.where(labels < 0, last, labels)  # images without a cluster come last
    rank = np.empty(n, dtype=np.int64)
    rank[np.lexsort((-np.asarray(confidences), key))] = np.arange(n)

    links = coo_array(attention)
    weights = np.abs(np.asarray(links.data, dtype=np.float64))
    bins = min(n, BINS)
    row, column = rank[links.row] * bins // n, rank[links.col] * bins // n
    total = np.bincount(row * bins + column, weights, bins * bins).reshape(bins, bins)
    bin_size = np.bincount(np.arange(n) * bins // n)  # images per bin
    intensity = np.sqrt(total / np.outer(bin_size, bin_size))
    positive = intensity[intensity > 0]
    density = np.clip(intensity / np.percentile(positive, 99), 0, 1) if positive.size else intensity

    order, sizes = np.unique(key, return_counts=True)
    position = np.searchsorted(order, key)
    k = len(order)
    shares = np.bincount(position[links.row] * k + position[links.col], weights, k * k).reshape(k, k)
    inside = float(np.trace(shares) / shares.sum()) if weights.sum() > 0 else 0.0
    shares = shares / np.maximum(shares.sum(1, keepdims=True), np.finfo(np.float64).tiny)
    return AttentionPicture(
        density=np.round(density * 255).astype(np.uint8),
        order=np.where(order == last, -1, order).astype(np.int64),
        edges=np.concatenate([[0], np.cumsum(sizes)]) / n,
        shares=shares,
        inside=inside,
    )
