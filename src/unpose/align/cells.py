"""An index of signatures: k-means divides them into cells of some hundred images, and near cells are compared.

Images are renumbered by cell, so that near images have near numbers: *places*. All images of a cell are compared with
all images of the same near cells, which is one matrix product. Blocks of places then read few different images.
"""

import math
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.compiled import worker_pool

_PROBED = 48
"""Cells nearest to the centre of a cell in which candidates of its images are searched."""
_TRAINING = 48
"""Signatures of each cell on average that the centres are fitted to."""
_ITERATIONS = 8
_CHUNK = 2**22
"""Distances computed at once."""


@dataclass(frozen=True)
class Cells:
    """Images sorted by cell."""

    order: NDArray  # (n,) image at each place
    starts: NDArray  # (cells + 1,) first place of each cell
    near: NDArray  # (cells, probed) nearest cells of each cell, itself first

    def members(self, cell: int) -> NDArray:
        """Places of the images of a cell's nearest cells, in order."""
        return np.sort(np.concatenate([np.arange(self.starts[c], self.starts[c + 1]) for c in self.near[cell]]))


def divide(signatures: Tensor, n_candidates: int, n_threads: int, size: int) -> Cells:
    """Divide signatures (n, d) into cells, so that every image finds ``n_candidates`` others in the near ones.

    A cell holds ``size`` images on average.
    """
    n = len(signatures)
    count = max(1, n // size)
    sample = signatures[_evenly(n, _TRAINING * count)]
    centres = sample[_evenly(len(sample), count)]
    points = sample.cpu().double()  # summed on the CPU, because the order of additions on a GPU varies
    with worker_pool(n_threads) as threads:
        for _ in range(_ITERATIONS):
            cell = _nearest_centre(sample, centres, threads).cpu()
            sizes = torch.bincount(cell, minlength=len(centres))
            totals = torch.zeros(centres.shape, dtype=torch.float64).index_add_(0, cell, points)
            centres = (totals / sizes.clamp(min=1)[:, None])[sizes > 0].to(sample)
        centres = centres[threads.submit(_in_order_of_nearness, centres).result()]
        cells = _nearest_centre(signatures, centres, threads).cpu().numpy()
        order = np.argsort(cells, kind="stable")
        starts = np.searchsorted(cells[order], np.arange(len(centres) + 1))
        return Cells(order, starts, threads.submit(_near_cells, centres, np.diff(starts), n_candidates + 1).result())


def _evenly(n: int, count: int) -> Tensor:
    """Up to ``count`` evenly spaced numbers below n."""
    return torch.linspace(0, n - 1, min(n, count), dtype=torch.float64).round().long()


def _in_order_of_nearness(centres: Tensor) -> Tensor:
    """An order of centres (m, d) in which near numbers are near each other.

    They are halved again and again, across the direction in which they vary most.
    """
    points = centres.double().cpu()
    parts, length = [torch.arange(len(points))], len(points)
    while length > 1:
        length = -(-length // 2)
        parts = [half for part in parts for half in (_halves(points, part) if len(part) > 1 else (part,))]
    return torch.cat(parts)


def _halves(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    spread = points[rows] - points[rows].mean(0)
    along = spread @ torch.linalg.eigh(spread.T @ spread).eigenvectors[:, -1]
    order = rows[torch.argsort(along, stable=True)]
    return order[: -(-len(rows) // 2)], order[-(-len(rows) // 2) :]


def _near_cells(centres: Tensor, sizes: NDArray, least: int) -> NDArray:
    """The nearest cells of each cell, (cells, probed): as many as hold ``least`` images for each."""
    probed = min(len(centres), _PROBED)
    while True:
        near = np.concatenate(
            [
                _squared_distances(part, centres).topk(probed, largest=False).indices.cpu().numpy()
                for part in centres.split(max(1, _CHUNK // len(centres)))
            ]
        )
        if probed == len(centres) or sizes[near].sum(1).min() >= least:
            return near
        probed = min(len(centres), 2 * probed)


def _nearest_centre(signatures: Tensor, centres: Tensor, threads: Executor) -> Tensor:
    parts = signatures.split(max(1, _CHUNK // len(centres)))
    return torch.cat(list(threads.map(lambda part: _squared_distances(part, centres).argmin(1), parts)))


def _squared_distances(some: Tensor, others: Tensor) -> Tensor:
    """Squared distances (m, n) without the norm of the first side, which ranks nothing."""
    return others.square().sum(1) - 2 * some @ others.T


def nearest_signatures(some: Tensor, own: Tensor, others: Tensor, count: int) -> Tensor:
    """The nearest of the signatures ``others`` (m, d) for each of ``some`` (n, d), without itself: (n, count).

    ``own`` (n,) says where in ``others`` each signature itself is.
    """
    found = []
    for part, place in zip(*(each.split(max(1, _CHUNK // len(others))) for each in (some, own)), strict=True):
        squared = _squared_distances(part, others)
        squared[torch.arange(len(part), device=squared.device), place] = math.inf
        found.append(squared.topk(count, largest=False).indices)
    return torch.cat(found)
