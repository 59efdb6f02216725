"""What a person looks at: images as they were read, upright on their own background, and what attention makes of them.

Groups are found on images whose background was taken away; here the background stays, so that a photograph looks like
one. Outside its frame an image goes on with the median of its border.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from unpose.align import Neighbours, coarse
from unpose.images import as_batch, from_batch, warp

_AT_ONCE = 256
_ATTENDED = 8
_WORKING = 48
"""Larger side of the images whose poses :class:`InvariantClustering` keeps with the neighbours."""


def upright(images: NDArray, poses: NDArray) -> NDArray:
    """Images (n, h, w) or (n, h, w, c) at their poses (n, 3, 3), each on its own background; float32, shaped alike."""
    done = [
        from_batch(_warped(as_batch(images[start : start + _AT_ONCE]), poses[start : start + _AT_ONCE]),
                   channels=images.ndim == 4)
        for start in range(0, len(images), _AT_ONCE)
    ]  # fmt: skip
    return np.concatenate(done)


def averages(images: NDArray, labels: NDArray, poses: NDArray, count: int) -> tuple[NDArray, NDArray]:
    """The mean of each group's upright images (K, ...), and every image's RMS difference from it (n,); NaN for none."""
    means = np.zeros((count, *images.shape[1:]), np.float32)
    distances = np.full(len(images), np.nan)
    for group in range(count):
        rows = np.flatnonzero(labels == group)
        parts = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
        total = np.zeros(images.shape[1:], np.float64)
        for part in parts:
            total += upright(images[part], poses[part]).sum(0, dtype=np.float64)
        means[group] = total / max(len(rows), 1)
        for part in parts:
            off = (upright(images[part], poses[part]) - means[group]).reshape(len(part), -1)  # (m, pixels)
            distances[part] = np.sqrt((off.astype(np.float64) ** 2).mean(1))
    return means, distances


def film(
    images: NDArray, neighbours: Neighbours, weights: sparse.csr_array, rows: NDArray, *, rounds: int = 2
) -> list[NDArray]:
    """Some images as found and after each round of invariant attention (3.3): ``rounds + 1`` arrays (m, h, w, ...).

    Every image is replaced by the mean of itself and its eight nearest, brought to its pose and weighted by attention.
    Neighbours and their weights are those of the estimator, which looks for them on images of at most 48 pixels; the
    film is as large. Only what the shown images depend on is computed.
    """
    layers = [np.asarray(rows)]  # whose values are needed after the last round, after the one before, ...
    for _ in range(rounds):
        layers.append(np.union1d(layers[-1], neighbours.indices[layers[-1], :_ATTENDED]))
    known = layers.pop()
    batch = as_batch(images[known], dtype=torch.float32)
    ground = _ground(batch)
    now = coarse.reduce(batch - ground, max(1.0, max(batch.shape[-2:]) / _WORKING))
    shown = np.searchsorted(known, layers[0])
    frames = [now[shown]]
    for layer in reversed(layers):
        mine = np.searchsorted(known, layer)
        total, mass = now[mine], torch.ones(len(layer), 1, 1, 1)
        for rank in range(min(_ATTENDED, neighbours.indices.shape[1])):
            others = neighbours.indices[layer, rank]
            weight = torch.from_numpy(np.asarray(weights[layer, others])).to(now)[:, None, None, None]
            near = now[np.searchsorted(known, others)]
            total = total + weight * warp(near, torch.from_numpy(neighbours.poses[layer, rank]).to(now))
            mass = mass + weight
        now = now.clone()
        now[mine] = total / mass
        frames.append(now[shown])
    return [from_batch(frame + ground[shown], channels=images.ndim == 4) for frame in frames]


def _warped(batch: Tensor, poses: NDArray) -> Tensor:
    ground = _ground(batch)
    return warp(batch - ground, torch.from_numpy(poses).to(batch)) + ground


def _ground(batch: Tensor) -> Tensor:
    """The median of each image's border, channel by channel: (n, c, h, w) -> (n, c, 1, 1)."""
    edge = torch.cat([batch[..., 0, :], batch[..., -1, :], batch[..., :, 0], batch[..., :, -1]], dim=-1)
    return edge.median(-1).values[..., None, None]
