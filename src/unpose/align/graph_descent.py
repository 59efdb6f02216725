"""Better neighbours from rough ones: the neighbours of an image's neighbours are likely to be its own neighbours.

This is nearest-neighbour descent (Dong, Moses and Li, 2011) for the orbit distance. If one pose brings c onto b and
another b onto a, their product brings c nearly onto a: new pairs need no search over poses, only a short refinement.
Every pair is compared once, for both of its images, and its distance is taken to be the same both ways.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.align.checkpoints import Arrays, Checkpoints
from unpose.align.neighbour_graph import compare_pairs, unique_pairs
from unpose.align.pipeline import Job, SharedInBlocks, refine_and_measure
from unpose.align.refine import Tolerance
from unpose.align.search import Search
from unpose.groups import inverse

_ROUNDS = 2
"""Rounds in which neighbours of neighbours are compared."""
_NEAREST = 6
"""Nearest neighbours of an image, and of each of these, that a round goes through."""
_PROPOSED = 20
"""New pairs of each image in a round, those of the shortest way through a neighbour."""
_REFINED = 4
"""Neighbours beyond k that are refined."""
_STEPS = 6
"""Gauss-Newton steps at full size."""
_TOLERANCE = Tolerance(step=0.1, error=5e-3)
_COMPOSED = 2**18
"""Poses that are composed at once."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of images, each once: ``poses`` bring the moving images onto the fixed ones."""

    fixed: NDArray  # (p,) int32
    moving: NDArray  # (p,) int32
    distances: NDArray  # (p,) float32
    poses: NDArray  # (p, 3, 3) float32

    def __add__(self, other: "Pairs") -> "Pairs":
        return Pairs(*(np.concatenate([getattr(each, name) for each in (self, other)]) for name in _FIELDS))

    def nearest(self, n: int, count: int, search: Search) -> tuple[NDArray, NDArray]:
        """The entries of the nearest pairs of each of n images and whether it is the moving one, (n, count) each.

        Every image must be in at least ``count`` pairs. They are sorted on the device, some images at a time.
        """
        device, step = torch.device(search.device), search.at_once.sorted
        sides = [torch.from_numpy(side).to(device) for side in (self.fixed, self.moving)]
        distance = torch.from_numpy(self.distances).to(device).view(torch.int32)  # in the order of the floats, if >= 0
        found = []
        for start in range(0, n, step):
            rows = [((side >= start) & (side < start + step)).nonzero()[:, 0] for side in sides]
            images = torch.cat([side[some] for side, some in zip(sides, rows, strict=True)]).long() - start
            order = torch.argsort((images << 32) + distance[torch.cat(rows)], stable=True)
            sizes = torch.bincount(images, minlength=min(step, n - start))
            first = torch.cumsum(sizes, 0) - sizes
            chosen = order[first[:, None] + torch.arange(count, device=device)]
            entry, is_moving = torch.cat(rows)[chosen], chosen >= len(rows[0])
            found.append((entry.cpu().numpy(), is_moving.cpu().numpy()))
        return np.concatenate([entry for entry, _ in found]), np.concatenate([is_moving for _, is_moving in found])

    def best(self, n: int, count: int, search: Search) -> "Pairs":
        """The pairs that are among the ``count`` nearest of either of their images."""
        kept = np.unique(self.nearest(n, count, search)[0])
        return Pairs(*(getattr(self, name)[kept] for name in _FIELDS))

    def block(self, rows: slice) -> Mapping[str, Any]:
        """Some of the pairs, as a block of pairs takes them."""
        sides = {name: torch.from_numpy(getattr(self, name)[rows]).long() for name in ("moving", "fixed")}
        return sides | {"poses": torch.from_numpy(self.poses[rows])}

    def others(self, entry: NDArray, is_moving: NDArray) -> NDArray:
        """The other image of each pair."""
        return np.where(is_moving, self.fixed[entry], self.moving[entry])

    def poses_onto(self, entry: NDArray, is_moving: NDArray, device: torch.device) -> Tensor:
        """Poses (..., 3, 3) that bring the other image onto the one that ``is_moving`` tells, on the device."""
        poses = torch.from_numpy(self.poses[entry]).to(device)
        back = inverse(poses.double())
        back = (back / back[..., 2:, 2:]).to(poses)
        return torch.where(torch.from_numpy(is_moving).to(device)[..., None, None], back, poses)


_FIELDS = ("fixed", "moving", "distances", "poses")


def descend(
    job: SharedInBlocks,
    candidates: Tensor,
    start_poses: Callable[[Tensor, Tensor, Tensor], Tensor],
    k: int,
    checkpoints: Checkpoints | None,
) -> tuple[NDArray, NDArray, NDArray]:
    """Find nearly the k nearest of each image, nearest first: (n, k) indices, (n, k) distances, (n, k, 3, 3) poses.

    The arguments are those of :func:`unpose.align.neighbour_graph.neighbours_from_pairs`.
    """
    n, refined = len(candidates), min(k + _REFINED, candidates.shape[1])
    pairs = _compare_candidates(job, candidates, start_poses, checkpoints)
    for number in range(_ROUNDS):
        new = _compare_proposed(job, pairs, n, min(_NEAREST, candidates.shape[1]), f"descend{number}", checkpoints)
        pairs = pairs.best(n, refined, job.search)  # a line of its own frees the others before they are joined
        pairs = pairs + new
        del new
    pairs = pairs.best(n, refined, job.search)
    final = job.run_blocks(
        _refine, pairs.block, len(pairs.fixed), job.search.at_once.pairs, stage="refine", checkpoints=checkpoints
    )
    pairs = Pairs(pairs.fixed, pairs.moving, **final)
    entry, is_moving = pairs.nearest(n, k, job.search)
    parts = np.array_split(np.arange(n), n * k // _COMPOSED + 1)
    poses = [pairs.poses_onto(entry[rows], is_moving[rows], job.device).cpu().numpy() for rows in parts]
    return pairs.others(entry, is_moving), pairs.distances[entry], np.concatenate(poses)


def _compare_candidates(
    job: SharedInBlocks,
    candidates: Tensor,
    start_poses: Callable[[Tensor, Tensor, Tensor], Tensor],
    checkpoints: Checkpoints | None,
) -> Pairs:
    """Compare images and their candidates (n, c)."""
    fixed, moving, entry = unique_pairs(candidates)

    def poses(rows: slice) -> Tensor:
        return start_poses(moving[rows], fixed[rows], entry[rows])

    return _compare(job, fixed.int().numpy(), moving.int().numpy(), poses, "compare", checkpoints)


def _compare_proposed(
    job: SharedInBlocks, pairs: Pairs, n: int, count: int, stage: str, checkpoints: Checkpoints | None
) -> Pairs:
    """Compare the pairs that :func:`propose` finds."""
    fixed, moving, poses = propose(pairs, n, count, job.search)
    if len(fixed) == 0:
        return Pairs(fixed, moving, np.zeros(0, np.float32), np.zeros((0, 3, 3), np.float32))
    return _compare(job, fixed, moving, poses.__getitem__, stage, checkpoints)


def _compare(
    job: SharedInBlocks,
    fixed: NDArray,
    moving: NDArray,
    start_poses: Callable[[slice], Tensor],
    stage: str,
    checkpoints: Checkpoints | None,
) -> Pairs:
    def rough(rows: slice) -> Mapping[str, Any]:
        sides = torch.from_numpy(moving[rows]).long(), torch.from_numpy(fixed[rows]).long()
        return {"moving": sides[0], "fixed": sides[1], "poses": start_poses(rows)}

    size = job.search.at_once.pairs
    found = job.run_blocks(compare_pairs, rough, len(fixed), size, stage=stage, checkpoints=checkpoints)
    return Pairs(fixed, moving, found["distances"], found["poses"])


def _refine(job: Job, moving: Tensor, fixed: Tensor, poses: Tensor) -> Arrays:
    """Refined poses (p, 3, 3) and distances (p,) of pairs (p,)."""
    poses, distances, _ = refine_and_measure(
        job, moving, fixed, poses, n_steps=_STEPS, tolerance=_TOLERANCE, keep_better=False, stage=None
    )
    return {"distances": distances.numpy(), "poses": poses.numpy()}


def propose(pairs: Pairs, n: int, count: int, search: Search) -> tuple[NDArray, NDArray, Tensor]:
    """New pairs of n images by way of a common neighbour: fixed and moving images (p,), and poses (p, 3, 3).

    The ``count`` nearest neighbours of each image are gone through. Pairs that are known already are left out.
    """
    device = torch.device(search.device)
    entry, is_moving = pairs.nearest(n, count, search)  # (n, m) each
    other, distance = pairs.others(entry, is_moving).astype(np.int64), pairs.distances[entry]
    known = _keys(pairs.fixed, pairs.moving, n)
    known.sort()
    parts = []
    step = max(1, 2**19 // count**2)
    for start in range(0, n, step):
        rows = np.arange(start, min(start + step, n))
        far = other[other[rows]].reshape(len(rows), -1)  # (r, m * m)
        length = (distance[rows][:, :, None] + distance[other[rows]]).reshape(len(rows), -1)
        shortest = np.argsort(length, axis=1, kind="stable")
        image, way = np.repeat(rows, far.shape[1]), shortest.ravel()
        end = np.take_along_axis(far, shortest, axis=1).ravel()
        first = np.zeros(len(end), bool)
        first[np.unique(image * n + end, return_index=True)[1]] = True  # the shortest way to each end
        new = first & (image != end) & ~_among(_keys(image, end, n), known)
        ahead = np.cumsum(new.reshape(len(rows), -1), axis=1).ravel() <= _PROPOSED
        chosen = np.flatnonzero(new & ahead)
        parts.append((image[chosen].astype(np.int32), end[chosen].astype(np.int32), way[chosen].astype(np.int16)))
    del known
    fixed, moving, way = (np.concatenate(part) for part in zip(*parts, strict=True))
    del parts
    # Each pair once: of those that both images propose, that of the first.
    upward = fixed < moving
    proposed = _keys(fixed[upward], moving[upward], n)
    proposed.sort()
    once = upward.copy()
    once[~upward] = ~_among(_keys(fixed[~upward], moving[~upward], n), proposed)
    fixed, moving, way = fixed[once], moving[once], way[once]
    poses = torch.empty(len(fixed), 3, 3)
    for start in range(0, len(fixed), _COMPOSED):
        some = slice(start, start + _COMPOSED)
        first, second = np.divmod(way[some], count)
        middle = other[fixed[some], first]
        one = pairs.poses_onto(entry[fixed[some], first], is_moving[fixed[some], first], device)
        two = pairs.poses_onto(entry[middle, second], is_moving[middle, second], device)
        product = one @ two
        poses[some] = (product / product[:, 2:, 2:]).cpu()
    return fixed, moving, poses


def _keys(one: NDArray, two: NDArray, n: int) -> NDArray:
    """A number for each pair of images below n, the same both ways, int64."""
    keys = np.minimum(one, two).astype(np.int64)
    keys *= n
    keys += np.maximum(one, two)
    return keys


def _among(keys: NDArray, known: NDArray) -> NDArray:
    """Which of the keys (p,) are among ``known`` (m,), which are sorted."""
    if len(known) == 0:
        return np.zeros(len(keys), bool)
    return known[np.searchsorted(known, keys).clip(max=len(known) - 1)] == keys
