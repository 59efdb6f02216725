"""Images as people look at them: aligned, averaged, and after rounds of invariant attention, with their background.

Clusters are found on images whose background was removed. Here the background stays, so that a photograph looks like
one: pixels from outside an image take the median of its border.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from unpose.align import Neighbours
from unpose.cluster.graph import N_ATTENDED, SEARCH_SIDE
from unpose.cluster.rounds import attended_means
from unpose.images import as_batch, downscale, from_batch, warp

_CHUNK = 256


def apply_poses(images: NDArray, poses: NDArray) -> NDArray:
    """Warp images by poses, each on its own background.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c) array
        Images.
    poses : (n, 3, 3) array
        Poses, such as ``InvariantClustering.poses_``.

    Returns
    -------
    array, float32, of the same shape
        The aligned images.

    Examples
    --------
    >>> image = np.full((1, 9, 9), 0.5, np.float32); image[0, 2, 4] = 1
    >>> turned = apply_poses(image, np.diag([-1.0, -1.0, 1.0])[None])  # half a turn
    >>> round(float(turned[0, 6, 4]), 3), round(float(turned[0, 0, 0]), 3)
    (1.0, 0.5)
    """
    done = [
        from_batch(_warp_on_background(as_batch(images[start : start + _CHUNK]), poses[start : start + _CHUNK]),
                   channels=images.ndim == 4)
        for start in range(0, len(images), _CHUNK)
    ]  # fmt: skip
    return np.concatenate(done)


def group_means(images: NDArray, labels: NDArray, poses: NDArray, n_groups: int) -> tuple[NDArray, NDArray]:
    """Average the aligned images of each group.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c) array
        Images.
    labels : (n,) array of int
        Group of each image from 0 to ``n_groups - 1``, or -1.
    poses : (n, 3, 3) array
        Bring each image onto the mean of its group.
    n_groups : int
        Number of groups K.

    Returns
    -------
    means : (K, h, w) or (K, h, w, c) array
        Mean of each group.
    distances : (n,) array
        Root mean square difference of the pixels of each aligned image from its mean; NaN for images without a group.

    Examples
    --------
    >>> images = np.stack([np.zeros((5, 5)), np.ones((5, 5))]).astype(np.float32)
    >>> means, distances = group_means(images, np.zeros(2, int), np.tile(np.eye(3), (2, 1, 1)), 1)
    >>> means.shape, distances.tolist()
    ((1, 5, 5), [0.5, 0.5])
    """
    means = np.zeros((n_groups, *images.shape[1:]), np.float32)
    distances = np.full(len(images), np.nan)
    for group in range(n_groups):
        rows = np.flatnonzero(labels == group)
        chunks = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
        total = np.zeros(images.shape[1:], np.float64)
        for chunk in chunks:
            total += apply_poses(images[chunk], poses[chunk]).sum(0, dtype=np.float64)
        means[group] = total / max(len(rows), 1)
        for chunk in chunks:
            difference = (apply_poses(images[chunk], poses[chunk]) - means[group]).reshape(len(chunk), -1)
            distances[chunk] = np.sqrt((difference.astype(np.float64) ** 2).mean(1))
    return means, distances


def attention_frames(
    images: NDArray, neighbours: Neighbours, weights: sparse.csr_array, rows: NDArray, *, n_rounds: int = 2
) -> list[NDArray]:
    """Show some images before and after rounds of invariant attention (3.3).

    In each round every image is replaced by the mean of itself and its eight nearest neighbours, aligned to it and
    weighted by attention. Only the images that the shown ones depend on are computed.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c) array
        All images.
    neighbours : Neighbours
        ``InvariantClustering.neighbours_``, whose poses belong to images of at most 48 pixels; frames have that size.
    weights : (n, n) sparse array
        ``InvariantClustering.weights_``.
    rows : (m,) array of int
        Indices of the images to show.
    n_rounds : int, default 2
        Number of rounds.

    Returns
    -------
    list of n_rounds + 1 arrays (m, h, w) or (m, h, w, c)
        The images as found, then after each round.

    Examples
    --------
    >>> images = np.random.default_rng(0).random((3, 8, 8)).astype(np.float32)
    >>> none = Neighbours(np.zeros((3, 0), int), np.zeros((3, 0)), np.zeros((3, 0, 3, 3)))
    >>> [frame.shape for frame in attention_frames(images, none, sparse.csr_array((3, 3)), np.array([0, 2]))]
    [(2, 8, 8), (2, 8, 8), (2, 8, 8)]
    """
    needed = [np.asarray(rows)]  # images whose values are needed after the last round, after the one before, ...
    for _ in range(n_rounds):
        needed.append(np.union1d(needed[-1], neighbours.indices[needed[-1], :N_ATTENDED]))
    known = needed.pop()
    batch = as_batch(images[known], dtype=torch.float32)
    background = _border_median(batch)
    current = downscale(batch - background, max(1.0, max(batch.shape[-2:]) / SEARCH_SIDE))
    shown = np.searchsorted(known, needed[0])
    frames = [current[shown]]
    for updated in reversed(needed):
        current[np.searchsorted(known, updated)] = attended_means(
            lambda some: current[np.searchsorted(known, some)], neighbours, weights, updated
        )
        frames.append(current[shown])
    return [from_batch(frame + background[shown], channels=images.ndim == 4) for frame in frames]


def _warp_on_background(batch: Tensor, poses: NDArray) -> Tensor:
    background = _border_median(batch)
    return warp(batch - background, torch.from_numpy(poses).to(batch)) + background


def _border_median(batch: Tensor) -> Tensor:
    """The median of each image's outermost pixels per channel: (n, c, h, w) -> (n, c, 1, 1)."""
    edge = torch.cat([batch[..., 0, :], batch[..., -1, :], batch[..., :, 0], batch[..., :, -1]], dim=-1)
    return edge.median(-1).values[..., None, None]
