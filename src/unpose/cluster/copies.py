"""Find images that are copies of others: they would form clusters of their own, and count too much in averages."""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from unpose.align import Neighbours
from unpose.cluster.pieces import Batch
from unpose.images import warp

_MIN_CORRELATION = 0.995
"""Pixels of an image and of its aligned copy correlate at least so much: interpolation and rounding cost the rest."""
_MAX_DEFORMATION = 0.02
"""A copy is found without stretch, shear and tilt, up to this share. Two things of one kind need more."""


def first_copies(images: Tensor | Batch) -> NDArray:
    """Index of the first image with the same pixels, for each of the images (n, ...): (n,)."""
    first: dict[bytes, int] = {}
    digests = (hashlib.sha256(image.cpu().numpy().tobytes()).digest() for image in images)
    return np.array([first.setdefault(digest, i) for i, digest in enumerate(digests)])


def near_copies(images: Tensor | Batch, neighbours: Neighbours) -> NDArray:
    """Index of the first image that is the same up to pose and light, for each of the images (n, c, h, w): (n,).

    If at least half of the images are copies of others, then the set consists of views of a few things. The clusters
    are these things, and every image counts.
    """
    n = len(images)
    pairs = np.argwhere(_is_undeformed(neighbours.poses, max(images.shape[-2:])))
    links = []
    for part in np.array_split(pairs, len(pairs) // 1024 + 1):
        row, rank = part.T
        others = neighbours.indices[row, rank]
        own = images[row]
        moved = warp(images[others], torch.from_numpy(neighbours.poses[row, rank]).to(own))
        cosine = torch.nn.functional.cosine_similarity(own.flatten(1), moved.flatten(1), dim=1).numpy()
        links.append(np.stack([row, others])[:, cosine > _MIN_CORRELATION])
    row, others = np.concatenate(links, axis=1)
    graph = sparse.csr_array((np.ones(len(row)), (row, others)), shape=(n, n))
    _, first, component = np.unique(
        sparse.csgraph.connected_components(graph, directed=False)[1], return_index=True, return_inverse=True
    )
    return first[component] if 2 * len(first) > n else np.arange(n)


def _is_undeformed(poses: NDArray, side: int) -> NDArray:
    """Whether poses (..., 3, 3) are similarities, up to ``_MAX_DEFORMATION`` at the edge of the image: (...)."""
    poses = poses / poses[..., 2:, 2:]
    stretch = np.linalg.svd(poses[..., :2, :2], compute_uv=False)
    tilt = np.abs(poses[..., 2, :2]).max(-1) * side / 2
    return (stretch[..., 0] < (1 + _MAX_DEFORMATION) * stretch[..., 1]) & (tilt < _MAX_DEFORMATION)
