"""The orbit engine's door: nearest neighbours, alignments and distances over a whole group.

Two stages behind it: an exhaustive search of a grid of poses (:mod:`unpose.align.coarse`), then Gauss-Newton from the
best of them (:mod:`unpose.align.refine`). Whatever is returned was measured at the returned pose, at full size, with
Keys sampling.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.align import coarse
from unpose.align import neighbour_graph as mutual
from unpose.align.checkpoints import Arrays, Pieces, finished
from unpose.align.pipeline import Job, Progress, align_pairs, best_turns, finish, shortlist
from unpose.compiled import worker_pool
from unpose.groups import Group, inverse, translation
from unpose.images import pixel_grid, warp

_STARTS = 6
_STARTS_OF_MANY = 3
_STARTS_TO_MEANS = 2
"""Fewer where many pairs are aligned, fewest where an image is brought onto the mean of its like."""
_REFINE = 24
"""Candidates beyond half as many again as asked for that are refined."""
_BLOCK = {"cpu": 256, "cuda": 4096}
"""Images whose neighbours are refined at once: memory must not grow with the pairs."""


@dataclass(frozen=True)
class Neighbours:
    """The k nearest images of each of n images under the orbit distance, nearest first."""

    indices: NDArray  # (n, k)
    distances: NDArray  # (n, k)
    poses: NDArray  # (n, k, 3, 3): brings the neighbour onto the image


@dataclass(frozen=True)
class Alignment:
    """Poses that bring images onto references; shapes are (n,) for pairs and (n, K) for every reference."""

    poses: NDArray  # (..., 3, 3)
    distances: NDArray  # (...)
    margins: NDArray  # (...) how much larger the distance of the best different pose is; inf where none was found
    alternatives: list  # of arrays (a, 3, 3), one for each entry in order: other poses that fit as well
    converged: NDArray  # (...) bool; False also where there was nothing to align


def nearest(
    images: ArrayLike | Tensor,
    k: int,
    *,
    group: str | Group = "se2",
    others: ArrayLike | Tensor | None = None,
    max_angle: float = math.pi,
    max_shift: float | None = None,
    max_scale: float = 1.5,
    contrast: str = "none",
    mask: str | ArrayLike | None = None,
    candidates: int | None = None,
    refine: bool = True,
    quick: bool = False,
    device: str | torch.device = "cpu",
    n_jobs: int | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
    pieces: Pieces | None = None,
) -> Neighbours:
    """Each image's k nearest under the orbit distance, over all pairs and all poses.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c)
    k : neighbours wanted.
    group : translation, se2, similarity, affine or perspective, each also with ``+mirror``. Affine and perspective are
        refined from the best similarity.
    others : images to look among; without them the images themselves, each but itself.
    max_angle, max_shift, max_scale : bounds of the search in radians, pixels (a quarter of the larger side by default)
        and as a factor.
    contrast : {"none", "offset", "gain", "affine"}
        What light may change without counting; see :mod:`unpose.align.photometry`.
    mask : None, "disc" or an (h, w) array
        Where to look; the background outside does not count.
    candidates : keep this many candidates per image by comparing centred images at all turns before the whole search;
        None searches everything.
    refine : False stops after the coarse stage: poses of the grid, distances still measured at them.
    quick : True looks at every pair once, for both its images, and less closely (:mod:`unpose.align.neighbour_graph`): a good
        tenth of the k are then others, nearly as near, in about a third of the time. Enough for a graph of neighbours.
    device : where the search runs, such as ``"cuda"``.
    n_jobs : threads of the coarse stage; torch's own number by default, -1 for all processors, -2 for all but one.
    memory : budget such as ``"2GB"``; an error says so beforehand where it cannot be kept.
    progress : called with the stage, how much is done and of how much.
    pieces : where finished pieces are kept and found again; see :mod:`unpose.align.checkpoints`.

    Notes
    -----
    About ``n m V (4 C + 7 K A / 8)`` multiplications for V shifts (and scales), A = 72 angles, C = 64 functions in K
    frequencies; then ``(4 k + 160) n`` or more short refinements at half the size and ``(1.5 k + 24) n`` whole ones.
    Memory grows with the images, not with the pairs.
    """
    job = Job(images, others, group, max_angle, max_shift, max_scale, contrast, mask, device, n_jobs, memory, progress)
    n, m = len(job.fixed), len(job.moving)
    limit = m - 1 if others is None else m
    if not 1 <= k <= limit:
        raise ValueError(f"k must be between 1 and {limit} (the images to look among), got {k}")
    if candidates is not None and candidates < k:
        raise ValueError(f"candidates must be at least k ({k}), got {candidates}")
    if quick and (others is not None or not refine):
        raise ValueError("quick looks at pairs among the images themselves and refines them: not with others or refine")
    rough = min(limit, mutual.looks(n, k) if quick else 2 * k + _second_looks(m)) if refine else k
    index = coarse.build_index(job.plan, job.coarse_moving, job.coarse_fixed)

    def search() -> Arrays:
        if candidates is None:
            who, grid = _ranked(
                job, index, job.coarse_moving, job.coarse_fixed, rough, itself=others is None, stage="search"
            )
        else:
            who, grid = _search_candidates(
                job, index, min(rough, candidates), min(candidates, limit), itself=others is None
            )
        return {"who": who.numpy(), "grid": grid.numpy()}

    kept = finished(pieces, "search", search)
    listed, grid = torch.from_numpy(kept["who"]), torch.from_numpy(kept["grid"])

    def poses_of(points: Tensor) -> Tensor:
        poses = job.plan.poses(points)
        return poses if candidates is None else inverse(poses)  # those were searched the other way round

    if quick:
        return Neighbours(*mutual.settle(job, listed, grid, poses_of, k, pieces))
    at_rest = index.at_rest(job.coarse_moving)

    def block(fixed: Tensor) -> Arrays:
        moving, poses = listed[fixed], poses_of(grid[fixed])
        if refine:
            looks = best_turns(job, index, at_rest, fixed, moving)
            moving, poses = shortlist(job, fixed, moving, looks, k + k // 2 + _REFINE)
        parts = _finished(job, fixed, moving, poses, k, refined=refine)
        return {name: part.numpy() for name, part in zip(("indices", "distances", "poses"), parts, strict=True)}

    found = []
    size = _BLOCK.get(job.device.type, _BLOCK["cpu"])
    for start in range(0, n, size):
        rows = torch.arange(start, min(start + size, n))
        found.append(finished(pieces, f"neighbours-{start}", partial(block, rows)))
        job.report("refine", int(rows[-1]) + 1, n)
    return Neighbours(*(np.concatenate([part[name] for part in found]) for name in ("indices", "distances", "poses")))


def align(
    images: ArrayLike | Tensor,
    references: ArrayLike | Tensor,
    *,
    every: bool = False,
    to: ArrayLike | None = None,
    group: str | Group = "se2",
    max_angle: float = math.pi,
    max_shift: float | None = None,
    max_scale: float = 1.5,
    contrast: str = "none",
    mask: str | ArrayLike | None = None,
    device: str | torch.device = "cpu",
    n_jobs: int | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> Alignment:
    """The poses that bring images onto references, over the whole group.

    Pair by pair (one reference serves all images), with ``every=True`` each image onto each reference, or with ``to``
    (n,) each image onto the reference of that number: made for many images and few references, measured and bounded in
    the image's frame. Bounds, contrast, mask and the rest as for :func:`nearest`.

    Examples
    --------
    >>> upright = np.zeros((2, 16, 16), np.float32)
    >>> upright[:, 4:12, 6:9] = upright[:, 10:12, 6:12] = 1.0  # two Ls
    >>> turned = np.rot90(upright, axes=(1, 2)).copy()
    >>> found = align(upright, turned)
    >>> np.degrees(np.arctan2(found.poses[:, 0, 1], found.poses[:, 0, 0])).round(3)
    array([90., 90.])
    """
    if to is not None:
        if every:
            raise ValueError("to gives each image one reference, every=True all of them: not both")
        # Few references, many images: the references are put into all poses, and the poses found are turned round.
        one_each = np.asarray(to)
        job = Job(
            images, references, group, max_angle, max_shift, max_scale, contrast, mask, device, n_jobs, memory, progress
        )
        n, m = len(job.fixed), len(job.moving)
        if one_each.shape != (n,) or not np.issubdtype(one_each.dtype, np.integer):
            raise ValueError(f"to must hold one whole number for each of {n} images, got shape {one_each.shape}")
        if n and not (one_each.min() >= 0 and one_each.max() < m):
            raise ValueError(f"to must number one of {m} references, from 0; got {one_each.min()} to {one_each.max()}")
        order = np.argsort(one_each, kind="stable")  # pairs of one reference together: it is projected once
        found = align_pairs(
            job, torch.from_numpy(one_each[order].astype(np.int64)), torch.from_numpy(order), _STARTS_TO_MEANS
        )
        back = np.argsort(order)
        poses = inverse(found.poses)
        alternatives = [np.linalg.inv(found.alternatives[i]) for i in back]
        return Alignment(
            (poses / poses[:, 2:, 2:]).numpy()[back], found.distances.numpy()[back], found.margins.numpy()[back],
            alternatives, found.converged.numpy()[back],
        )  # fmt: skip
    job = Job(
        references, images, group, max_angle, max_shift, max_scale, contrast, mask, device, n_jobs, memory, progress
    )
    n, m = len(job.moving), len(job.fixed)
    if every:
        moving, fixed = (grid.flatten() for grid in torch.meshgrid(torch.arange(n), torch.arange(m), indexing="ij"))
        shape: tuple[int, ...] = (n, m)
    else:
        if m not in (1, n):
            raise ValueError(f"{n} images and {m} references do not pair up; use every=True for all combinations")
        moving, fixed, shape = torch.arange(n), torch.arange(n) % m, (n,)
    found = align_pairs(job, moving, fixed, _STARTS)
    return Alignment(
        poses=found.poses.reshape(*shape, 3, 3).numpy(),
        distances=found.distances.reshape(shape).numpy(),
        margins=found.margins.reshape(shape).numpy(),
        alternatives=found.alternatives,
        converged=found.converged.reshape(shape).numpy(),
    )


def orbit_distances(
    images: ArrayLike | Tensor,
    others: ArrayLike | Tensor | None = None,
    *,
    group: str | Group = "se2",
    max_angle: float = math.pi,
    max_shift: float | None = None,
    max_scale: float = 1.5,
    contrast: str = "none",
    mask: str | ArrayLike | None = None,
    device: str | torch.device = "cpu",
    n_jobs: int | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> tuple[NDArray, NDArray]:
    """The dense matrix of orbit distances (3.2) and the poses behind it: (n, m) and (n, m, 3, 3).

    ``poses[i, j]`` brings image i onto other j. Without others the matrix is of the images among themselves: symmetric,
    zero on the diagonal; where a group changes area, the better of both directions. For small sets: every pair is
    refined from several starts.
    """
    job = Job(
        images if others is None else others, images, group, max_angle, max_shift, max_scale, contrast, mask, device,
        n_jobs, memory, progress,
    )  # fmt: skip
    n, m = len(job.moving), len(job.fixed)
    distances = torch.zeros(n, m, dtype=torch.float64)
    poses = torch.eye(3, dtype=torch.float64).repeat(n, m, 1, 1)
    if others is None:
        moving, fixed = torch.triu_indices(n, n, offset=1)
        if not job.plan.group.is_isometric:
            moving, fixed = torch.cat([moving, fixed]), torch.cat([fixed, moving])
    else:
        moving, fixed = (grid.flatten() for grid in torch.meshgrid(torch.arange(n), torch.arange(m), indexing="ij"))
    found = align_pairs(job, moving, fixed, _STARTS_OF_MANY)
    distances[moving, fixed], poses[moving, fixed] = found.distances, found.poses
    if others is None:
        known = torch.full((n, n), torch.inf, dtype=torch.float64)
        known[moving, fixed] = found.distances
        turn = known > known.T
        distances = torch.where(turn, distances.T, distances)
        poses = torch.where(turn[..., None, None], inverse(poses).transpose(0, 1), poses)
    return distances.numpy(), poses.numpy()


def _second_looks(n: int) -> int:
    """How many candidates beyond twice those asked for get a second look among n images.

    The grid ranks only roughly, and the more images there are the more come between an image and its true neighbours:
    with this many, 95% of the true ten nearest digits are among them at 1,000 as at 20,000 images.
    """
    return max(80, int(1.8 * math.sqrt(n)))


def _finished(
    job: Job, fixed: Tensor, moving: Tensor, poses: Tensor, k: int, *, refined: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Refine and measure the candidates moving (n, c) of some fixed images (n,); the nearest k, nearest first."""
    count = moving.shape[1]
    poses, distances, _ = finish(
        job, moving.flatten(), fixed.repeat_interleave(count), poses.flatten(0, 1), refined=refined, stage=None
    )
    distances, poses = distances.reshape(-1, count), poses.reshape(-1, count, 3, 3)
    order = torch.argsort(distances, dim=1, stable=True)[:, :k]
    rows = torch.arange(len(fixed))[:, None]
    return moving[rows, order], distances[rows, order], poses[rows, order]


def _search_candidates(
    job: Job, index: coarse.Index, keep: int, candidates: int, *, itself: bool
) -> tuple[Tensor, Tensor]:
    """The nearest in two steps: all turns of centred images, then the whole grid among the best of those.

    Returns moving indices and grid points (n, keep) of the poses that bring the fixed image onto the moving one.
    """
    centred_fixed = _centred(job.coarse_fixed)
    centred_moving = centred_fixed if job.coarse_moving is job.coarse_fixed else _centred(job.coarse_moving)
    listed, _ = _ranked(
        job, coarse.centred_only(index), centred_moving, centred_fixed, candidates, itself=itself, stage="candidates"
    )
    # Each fixed image, in all its views, against its own candidates: the pose found is the inverse of the one wanted.
    moving = index.at_rest(job.coarse_moving)
    norms = moving.abs().square().sum(-1)

    def among(start: int) -> tuple[Tensor, Tensor]:
        views = index.views_of(job.coarse_fixed[start : start + coarse.TILE])
        chosen, points = [], []
        for view, row in zip(views, listed[start : start + coarse.TILE].to(moving.device), strict=True):
            score, grid = coarse.best_poses(view[None], moving[row], index.basis, job.plan)
            order = torch.argsort(norms[row] - 2 * score[0], stable=True)[:keep]
            chosen.append(row[order].cpu())
            points.append(grid[0, order].cpu())
        return torch.stack(chosen), torch.stack(points)

    found = []
    with worker_pool(job.workers if job.device.type == "cpu" else 1) as threads:
        for result in threads.map(among, range(0, len(listed), coarse.TILE)):
            found.append(result)
            job.report("search", sum(len(who) for who, _ in found), len(listed))
    who, grid = torch.cat([who for who, _ in found]), torch.cat([grid for _, grid in found])
    return who, grid


def _ranked(
    job: Job, index: coarse.Index, moving: Tensor, fixed: Tensor, keep: int, *, itself: bool, stage: str
) -> tuple[Tensor, Tensor]:
    """A running list of the nearest over tiles of the moving side: moving indices and grid points, (n, keep) each."""
    at_rest = index.at_rest(fixed)
    norms = (at_rest if moving is fixed else index.at_rest(moving)).abs().square().sum(-1)  # (m,)
    n = len(fixed)
    best = torch.full((n, keep), torch.inf, device=job.device)
    who = torch.zeros(n, keep, dtype=torch.long, device=job.device)
    grid = torch.zeros(n, keep, dtype=torch.int32, device=job.device)
    for start, score, pose in coarse.search(
        index, moving, at_rest, workers=job.workers, progress=lambda done, total: job.report(stage, done, total)
    ):
        numbers = torch.arange(start, start + len(score), device=job.device)
        squared = norms[numbers, None] - 2 * score  # (t, n); the fixed image's own norm ranks nothing
        if itself:
            squared[numbers - start, numbers] = torch.inf
        best, place = torch.cat([best, squared.T], dim=1).topk(keep, dim=1, largest=False)
        who = torch.cat([who, numbers.expand(n, -1)], dim=1).gather(1, place)
        grid = torch.cat([grid, pose.T], dim=1).gather(1, place)
    return who.cpu(), grid.cpu()


def _centred(images: Tensor) -> Tensor:
    """Images moved so that the centroid of their energy is the image centre."""
    energy = images.square().sum(1)  # (n, h, w)
    grid = pixel_grid((images.shape[-2], images.shape[-1]), images.dtype, images.device)
    centroid = torch.einsum("nhw,hwi->ni", energy, grid) / energy.sum((1, 2)).clamp(min=1e-20)[:, None]
    return warp(images, translation(-centroid))
