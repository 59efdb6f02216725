"""Pairs of images through both stages: what a call works on, refinement over levels, several starts for each pair."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from unpose.align import coarse, photometry, refine
from unpose.align.pyramid import Level
from unpose.compiled import worker_pool
from unpose.files.byte_sizes import in_bytes
from unpose.groups import Group, inverse, parse_continuous, transform
from unpose.images import as_batch, pixel_grid

Progress = Callable[[str, int, int], None]

_CHUNK = {"cpu": 256, "cuda": 65536}
"""Pairs of 40-pixel images worked on at once; fixed for each kind of device and size, whatever the budget, so that the
same bytes come back."""
_GRID_AT_ONCE = 2**28
"""Scores of pairs and poses held at once in a second look on CUDA; the CPU holds those of one pair."""
_SECOND_LOOKS = 2
"""Poses of each candidate that get a second look."""
_LOOK_STEPS = 3
"""Gauss-Newton steps of a second look."""
_DIFFERENT = 0.09
"""Poses are different where they part typical points of the image by more than this fraction of its larger side."""
_EQUIVALENT = 0.1
"""A different pose fits as well where its distance is larger by less than this fraction of the image's norm."""


class Job:
    """Checked input of a call, on its device: both sides at full and at coarse size, mask, plan, workers."""

    def __init__(
        self,
        fixed: ArrayLike | Tensor,
        moving: ArrayLike | Tensor | None,
        group: str | Group,
        max_angle: float,
        max_shift: float | None,
        max_scale: float,
        contrast: str,
        mask: str | ArrayLike | None,
        device: str | torch.device,
        n_jobs: int | None,
        memory: int | str | None,
        progress: Progress | None,
    ) -> None:
        if contrast not in photometry.CONTRASTS:
            raise ValueError(f"contrast must be one of {', '.join(photometry.CONTRASTS)}, got {contrast!r}")
        self.workers = _threads(n_jobs)
        self.contrast, self.progress = contrast, progress
        self.device = torch.device(device)
        one = as_batch(fixed, dtype=torch.float32).detach()
        two = one if moving is None else as_batch(moving, dtype=torch.float32).detach()
        if one.shape[1:] != two.shape[1:]:
            raise ValueError(
                "both sets must have images of one size and number of channels, got "
                f"{tuple(one.shape[2:])} with {one.shape[1]} and {tuple(two.shape[2:])} with {two.shape[1]}"
            )
        shape = (one.shape[2], one.shape[3])
        self.plan = coarse.plan(
            shape, parse_continuous(group), max_angle=max_angle, max_shift=max_shift, max_scale=max_scale
        )
        self.mask = _mask(mask, shape).to(self.device)
        self._check_memory(one, two, memory)
        self.fixed, self.coarse_fixed, self.fixed_empty = self._side(one)
        if moving is None:
            self.moving, self.coarse_moving, self.moving_empty = self.fixed, self.coarse_fixed, self.fixed_empty
        else:
            self.moving, self.coarse_moving, self.moving_empty = self._side(two)

    @cached_property
    def levels(self) -> list[Level]:
        """From coarse to full size; one level where images are small."""
        factors = [1.0]
        while factors[0] * 2 <= self.plan.factor * 1.01:
            factors.insert(0, factors[0] * 2)
        return [self._level(factor) for factor in factors]

    @cached_property
    def half(self) -> Level:
        """Half the coarse size, for a second look at many pairs."""
        return self._level(2 * self.plan.factor)

    def _level(self, factor: float) -> Level:
        fixed = coarse.reduce(self.fixed, factor)
        moving = fixed if self.moving is self.fixed else coarse.reduce(self.moving, factor)
        mask = (coarse.reduce(self.mask[None, None], factor)[0, 0] > 0.5).to(fixed.dtype)
        return Level(factor, moving, fixed, mask)

    def report(self, stage: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(stage, done, total)

    def _side(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Full-size images, coarse images, and which have nothing to align."""
        images = images.to(self.device).contiguous()
        if not photometry.uses_overlap(self.contrast):
            images = images * self.mask
        small = coarse.reduce(photometry.coarse_images(images, self.contrast, self.mask), self.plan.factor)
        flat = images[:, :, self.mask > 0].flatten(1)
        empty = flat.amax(1) - flat.amin(1) <= 1e-6 * flat.abs().amax(1).clamp(min=1e-12)
        return images, small, empty.cpu()

    def _check_memory(self, one: Tensor, two: Tensor, memory: int | str | None) -> None:
        """Estimate the peak beforehand; all work beyond the images is done in pieces of fixed size."""
        if memory is None:
            return
        budget = in_bytes(memory)
        sides = one.numel() + (0 if two is one else two.numel())
        views, pixels = len(self.plan.views), self.plan.shape[0] * self.plan.shape[1]
        held = 4 * sides * (2 + 2 / self.plan.factor**2)
        pieces = 512 * pixels * views + self.workers * 128 * (512 * views + 8 * len(one))
        pairs = _CHUNK["cpu"] * 1600 * 4 * 30 + 16_000 * len(one)  # a chunk of them, and each image's list
        need = held + pieces + pairs + 500 * 2**20  # the last: the interpreter with torch and its compilers
        if need > budget:
            raise ValueError(
                f"about {need / 1e9:.1f} GB are needed for {len(one)} images of {one.shape[2]} x {one.shape[3]}, more "
                f"than the budget of {budget / 1e9:.1f} GB; give fewer or smaller images, less room for shifts and "
                "scales (max_shift, max_scale), or a larger budget (memory)"
            )


@dataclass(frozen=True)
class Found:
    """The best pose of each pair, what else was found, and how sure it is."""

    poses: Tensor  # (p, 3, 3) float64
    distances: Tensor  # (p,) float64
    margins: Tensor  # (p,) float64
    alternatives: list[np.ndarray]  # (a, 3, 3) each
    converged: Tensor  # (p,) bool


def finish(
    job: Job,
    moving: Tensor,
    fixed: Tensor,
    poses: Tensor,
    *,
    refined: bool = True,
    at_rest: tuple[float, float] = (refine.SMALL, refine.AT_REST),
    stage: str | None = "refine",
) -> tuple[Tensor, Tensor, Tensor]:
    """Refine poses of pairs (given by indices) level by level and measure them: poses, distances, converged.

    Where refinement does not bring a pair closer, the pose it started from is kept.
    """

    def work(rows: Tensor) -> tuple[Tensor, ...]:
        return _finish_chunk(job, moving[rows], fixed[rows], poses[rows], refined, at_rest)

    if len(moving) == 0:
        return poses.double(), torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.bool)
    found, distances, converged = _in_chunks(job, work, len(moving), _chunk(job), stage)
    return found, distances, converged


def best_turns(job: Job, index: coarse.Index, at_rest: Tensor, fixed: Tensor, who: Tensor) -> Tensor:
    """The best few poses of candidates who (n, c) of some fixed images (n,) on the grid: (n, c, looks, 3, 3).

    The search gives one pose; a near-symmetric shape may fit better at another, once refined. ``at_rest`` are the
    coefficients of all moving images.
    """
    n, count = who.shape

    # Scores are held for as many candidates at once as keep them small.
    few = max(1, _GRID_AT_ONCE // (count * len(job.plan.views) * len(job.plan.angles)))

    def look(rows: Tensor) -> tuple[Tensor, ...]:
        # Each fixed image in all its views against its candidates at rest: the inverse of the pose wanted.
        views = index.views_of(job.coarse_fixed[fixed[rows].to(job.device)])
        others = who[rows].to(job.device)
        found = [
            coarse.peaks(view, at_rest[which], index.basis, job.plan, _SECOND_LOOKS).cpu()
            for view, which in zip(views.split(few), others.split(few), strict=True)
        ]
        return (torch.cat(found),)

    (grid,) = _in_chunks(job, look, n, coarse.TILE, None)
    return inverse(job.plan.poses(grid))


def shortlist(job: Job, fixed: Tensor, who: Tensor, poses: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """The best ``keep`` of candidates who (n, c) of some fixed images (n,), and a pose each, by a cheap second look.

    The grid ranks only roughly; how far apart a second look at the poses (n, c, looks, 3, 3) leaves images decides.
    """
    n, count, looks = poses.shape[:3]
    left, right = fixed.repeat_interleave(count * looks), who.flatten().repeat_interleave(looks)
    found, distances = second_look(job, right, left, poses.reshape(-1, 3, 3), _LOOK_STEPS)
    distance, best = distances.reshape(n, count, looks).min(2)
    order = torch.argsort(distance, dim=1, stable=True)[:, :keep]
    rows = torch.arange(n)[:, None]
    return who[rows, order], found.reshape(n, count, looks, 3, 3)[rows, order, best[rows, order]]


def second_look(job: Job, moving: Tensor, fixed: Tensor, poses: Tensor, n_steps: int) -> tuple[Tensor, Tensor]:
    """Poses (p, 3, 3) of pairs of numbers (p,) after some steps at half the coarse size, and distances there (p,)."""
    level = job.half

    def compare(rows: Tensor) -> tuple[Tensor, ...]:
        m, f = moving[rows].to(job.device), fixed[rows].to(job.device)
        start = poses[rows].to(job.device, torch.float32)
        found, _ = level.refine(m, f, start, job.plan.group, contrast=job.contrast, n_steps=n_steps, **_bounds(job))
        return found.cpu(), level.distances(m, f, found, job.contrast).cpu()

    found, distances = _in_chunks(job, compare, len(moving), 4 * _chunk(job), None)
    return found, distances


def _in_chunks(
    job: Job, work: Callable[[Tensor], tuple[Tensor, ...]], total: int, chunk: int, stage: str | None
) -> list[Tensor]:
    """Apply work to pieces of ``range(total)`` and join the results.

    Every piece has the same size (the last is filled up): sums must not depend on how many there happen to be.
    """
    starts = range(0, total, chunk)

    def piece(start: int) -> tuple[Tensor, ...]:
        count = min(chunk, total - start)
        rows = torch.arange(start, start + chunk).clamp(max=total - 1)
        return tuple(part[:count] for part in work(rows))

    results = []
    with worker_pool(job.workers if job.device.type == "cpu" else 1) as threads:
        for start, result in zip(starts, threads.map(piece, starts), strict=True):
            results.append(result)
            if stage is not None:
                job.report(stage, min(start + chunk, total), total)
    return [torch.cat(parts) for parts in zip(*results, strict=True)]


def _chunk(job: Job) -> int:
    return max(16, int(_CHUNK.get(job.device.type, _CHUNK["cpu"]) * 1600 / job.fixed[0].numel()))


def _finish_chunk(
    job: Job, moving: Tensor, fixed: Tensor, poses: Tensor, refined: bool, at_rest: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor]:
    moving, fixed = moving.to(job.device), fixed.to(job.device)
    start = poses.to(job.device, torch.float32)

    full = job.levels[-1]
    distances = full.distances(moving, fixed, start, job.contrast)
    best, converged = start, torch.zeros(len(start), dtype=torch.bool, device=job.device)
    if refined:
        current = start
        for level in job.levels:
            current, converged = level.refine(
                moving, fixed, current, job.plan.group, contrast=job.contrast, at_rest=at_rest, **_bounds(job)
            )
        reached = full.distances(moving, fixed, current, job.contrast)
        better = reached <= distances
        best = torch.where(better[:, None, None], current, start)
        distances = torch.where(better, reached, distances)
        converged = converged & better
    return best.double().cpu(), distances.double().cpu(), converged.cpu()


def align_pairs(job: Job, moving: Tensor, fixed: Tensor, starts: int) -> Found:
    """Search the whole grid for each pair, refine the best local maxima, and compare what they lead to."""
    index = coarse.build_index(job.plan, job.coarse_moving, job.coarse_fixed)
    at_rest = index.at_rest(job.coarse_fixed)
    if len(moving) == 0:
        empty = torch.zeros(0, dtype=torch.float64)
        return Found(torch.zeros(0, 3, 3, dtype=torch.float64), empty, empty, [], torch.zeros(0, dtype=torch.bool))
    chunk = max(1, _chunk(job) // (8 * max(1, len(job.plan.views) // 64)))
    unique, where = torch.unique(moving, return_inverse=True)
    grid = torch.empty(len(moving), starts, dtype=torch.long)
    done = 0
    for tile in range(0, len(unique), coarse.TILE):  # every image is put into all its views once
        views = _views(job, index, unique[tile : tile + coarse.TILE])
        for pairs in ((where >= tile) & (where < tile + coarse.TILE)).nonzero()[:, 0].split(chunk):
            rows = pairs[torch.arange(chunk).clamp(max=len(pairs) - 1)]  # as many in every piece
            seen = views[(where[rows] - tile).to(job.device)]
            peaks = coarse.peaks(seen, at_rest[fixed[rows].to(job.device), None], index.basis, job.plan, starts)
            grid[pairs] = peaks[: len(pairs), 0].cpu()
            done += len(pairs)
            job.report("search", done, len(moving))
    begin = job.plan.poses(grid)
    poses, distances, converged = finish(
        job, moving.repeat_interleave(starts), fixed.repeat_interleave(starts), begin.flatten(0, 1)
    )
    shape = (len(moving), starts)
    found = _compare(job, fixed, poses.reshape(*shape, 3, 3), distances.reshape(shape), converged.reshape(shape))
    return _nothing_to_align(job, moving, fixed, found)


def _views(job: Job, index: coarse.Index, moving: Tensor) -> Tensor:
    """All views of some moving images, projected as a whole tile: sums must not depend on their number."""
    padding = (0, coarse.TILE - len(moving))
    return index.views_of(job.coarse_moving[torch.nn.functional.pad(moving, padding).to(job.device)])


def _compare(job: Job, fixed: Tensor, poses: Tensor, distances: Tensor, converged: Tensor) -> Found:
    """Choose among the starts; say how much worse the best different pose is and which fit as well."""
    distances, order = distances.sort(dim=1, stable=True)
    rows = torch.arange(len(poses))[:, None]
    poses, converged = poses[rows, order], converged[rows, order]
    height, width = job.fixed.shape[-2:]
    reach = 0.35 * max(height, width)
    corners = reach * torch.tensor([[1.0, 0.0], [-0.5, 0.75], [-0.5, -0.75]], dtype=torch.float64)
    places = transform(poses, corners)  # (p, starts, 3, 2)
    gap = (places[:, :, None] - places[:, None]).norm(dim=-1).mean(-1)  # (p, starts, starts)
    apart = gap > _DIFFERENT * max(height, width)
    second = torch.where(apart[:, 0], distances, torch.inf).amin(1)
    if job.contrast in ("none", "offset"):
        size = job.fixed.square().sum((1, 2, 3)).sqrt().double().cpu()[fixed]
    else:
        size = torch.ones(len(poses), dtype=torch.float64)
    fits = apart[:, 0] & (distances <= distances[:, :1] + _EQUIVALENT * size[:, None])
    alternatives = []
    for pair in range(len(poses)):
        chosen = [0]
        for start in fits[pair].nonzero().flatten().tolist():
            if apart[pair, start, chosen].all():
                chosen.append(start)
        alternatives.append(poses[pair, chosen[1:]].numpy())
    return Found(poses[:, 0], distances[:, 0], second - distances[:, 0], alternatives, converged[:, 0])


def _nothing_to_align(job: Job, moving: Tensor, fixed: Tensor, found: Found) -> Found:
    """Constant images fit in every pose alike: identity, a zero margin, and not converged."""
    flat = job.moving_empty[moving] | job.fixed_empty[fixed]
    if not flat.any():
        return found
    rows = flat.nonzero().flatten()
    identity = torch.eye(3, dtype=torch.float64).repeat(len(rows), 1, 1)
    _, distances, _ = finish(job, moving[rows], fixed[rows], identity, refined=False)
    return Found(
        found.poses.index_put((rows,), identity),
        found.distances.index_put((rows,), distances),
        torch.where(flat, 0.0, found.margins),
        [found.alternatives[i][:0] if flat[i] else found.alternatives[i] for i in range(len(flat))],
        found.converged & ~flat,
    )


def _bounds(job: Job) -> dict[str, Any]:
    """The bounds of refinement; affine and perspective poses may breathe around their similarity."""
    plan = job.plan
    scale = plan.max_scale * 1.2 if plan.group.deforms else plan.max_scale
    return {"max_angle": plan.max_angle, "max_shift": plan.max_shift, "max_scale": scale}


def _threads(n_jobs: int | None) -> int:
    """How many threads are meant, as scikit-learn counts them: -1 is all processors, -2 all but one."""
    if n_jobs is None:
        return torch.get_num_threads()
    if n_jobs == 0:
        raise ValueError("n_jobs must be at least 1, or -1 for all processors, got 0")
    return n_jobs if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + n_jobs)


def _mask(mask: str | ArrayLike | None, shape: tuple[int, int]) -> Tensor:
    if mask is None:
        return torch.ones(shape)
    if isinstance(mask, str):
        if mask != "disc":
            raise ValueError(f"mask must be 'disc', an array of shape {shape} or None, got {mask!r}")
        return (pixel_grid(shape).norm(dim=-1) <= min(shape) / 2).float()
    array = torch.as_tensor(np.asarray(mask, dtype=np.float32))
    if array.shape != shape or not torch.isfinite(array).all() or not (array > 0).any():
        raise ValueError(f"mask must be an array of shape {shape} with some positive entries, got {tuple(array.shape)}")
    return (array > 0).float()
