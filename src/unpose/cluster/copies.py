"""Find images that are copies of others: they would form clusters of their own, and count too much in averages."""

import hashlib
import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from unpose.align import Neighbours
from unpose.cluster.pieces import Batch
from unpose.images import warp

_COPY = (0.995, 0.02)
"""Least correlation of the pixels of an image and its aligned copy, for interpolation and rounding cost the rest; and
largest stretch, shear and tilt of the pose, as a share. Two things of one kind need more."""
_VIEW = (0.99, 0.1)
"""The same for another view of a thing: the stretch of a thin bar is not known to 2 %."""
_AT_REST = 0.2
"""Largest shift of a corner, in pixels, by the pose of a picture that was saved again, such as by another format."""
_PAIR_PIXELS = 2**22
"""Pixels of the pairs that are compared at a time."""
_FIRST_LOOK = 0.95
"""Pairs that correlate less than this, according to the distance that the search found, are not compared again."""


def content_digests(images: Tensor | Batch) -> NDArray:
    """SHA-256 of the pixels of each of the images (n, ...): (n, 32) bytes."""
    digests = b"".join(hashlib.sha256(image.cpu().numpy().tobytes()).digest() for image in images)
    return np.frombuffer(digests, np.uint8).reshape(-1, 32)


def first_equal(digests: NDArray) -> NDArray:
    """Index of the first row that is the same, for each of the rows (n, 32): (n,)."""
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(row.tobytes(), i) for i, row in enumerate(digests)], np.int64)


def near_copies(images: Tensor | Batch, neighbours: Neighbours, *, cosine_distances: bool) -> NDArray:
    """Index of the first image that is the same up to pose and light, for each of the images (n, c, h, w): (n,).

    If at least half of the images are views of others, then the set consists of views of a few things. The clusters
    are these things, and every image counts. Pictures that were saved again, at the same pose, are no other views. With
    ``cosine_distances``, distances are sqrt(2 - 2 r) for the correlation r, and only pairs that are alike by them are
    compared.
    """
    n = len(images)
    deformations = _deformations(neighbours.poses, max(images.shape[-2:]))
    possible = deformations < _VIEW[1]
    if cosine_distances:
        possible &= 1 - neighbours.distances**2 / 2 > _FIRST_LOOK
    pairs = np.argwhere(possible)
    links = []  # (5, number): two images, correlation, deformation, largest shift of a corner
    at_once = max(1, min(1024, _PAIR_PIXELS // math.prod(images.shape[1:])))
    for part in np.array_split(pairs, len(pairs) // at_once + 1):
        row, rank = part.T
        others = neighbours.indices[row, rank]
        own = images[row]
        moved = warp(images[others], torch.from_numpy(neighbours.poses[row, rank]).to(own))
        cosine = torch.nn.functional.cosine_similarity(own.flatten(1), moved.flatten(1), dim=1).numpy()
        shifts = _corner_shifts(neighbours.poses[row, rank], images.shape[-2:])
        links.append(np.stack([row, others, cosine, deformations[row, rank], shifts])[:, cosine > _VIEW[0]])
    views = np.concatenate(links, axis=1)
    copies = views[:, (views[2] > _COPY[0]) & (views[3] < _COPY[1])]
    n_pictures = len(np.unique(_first_linked(copies[:, copies[4] < _AT_REST], n)))  # without those saved again
    if 2 * len(np.unique(_first_linked(views, n))) <= n_pictures:
        return np.arange(n)
    return _first_linked(copies, n)


def _first_linked(links: NDArray, n: int) -> NDArray:
    """Index of the first of n images that each is linked with, directly or through others: (n,)."""
    row, others = links[:2].astype(np.int64)
    graph = sparse.csr_array((np.ones(len(row)), (row, others)), shape=(n, n))
    _, first, component = np.unique(
        sparse.csgraph.connected_components(graph, directed=False)[1], return_index=True, return_inverse=True
    )
    return first[component]


def _corner_shifts(poses: NDArray, size: tuple[int, ...]) -> NDArray:
    """How far poses (..., 3, 3) move the corners of an image (h, w) at most, in pixels: (...)."""
    height, width = (side / 2 for side in size)
    corners = np.array([[-width, width, -width, width], [-height, -height, height, height], [1, 1, 1, 1]])
    moved = poses @ corners
    return np.linalg.norm(moved[..., :2, :] / moved[..., 2:, :] - corners[:2], axis=-2).max(-1)


def _deformations(poses: NDArray, side: int) -> NDArray:
    """How far poses (..., 3, 3) are from similarities, as a share at the edge of the image: (...)."""
    poses = poses / poses[..., 2:, 2:]
    stretch = np.linalg.svd(poses[..., :2, :2], compute_uv=False)
    tilt = np.abs(poses[..., 2, :2]).max(-1) * side / 2
    return np.maximum(stretch[..., 0] / stretch[..., 1] - 1, tilt)
