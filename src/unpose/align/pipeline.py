"""The pipeline of the search: pairs of images through the coarse stage, re-ranking and refinement over a pyramid."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from unpose.align import coarse, photometry, refine
from unpose.align.blocks import Work, concatenate, run_blocks
from unpose.align.checkpoints import Arrays, Checkpoints
from unpose.align.memory import check_memory, needed_memory, pairs_at_once
from unpose.align.pyramid import Level
from unpose.align.search import Search
from unpose.compiled import worker_pool
from unpose.groups import inverse, transform, translation
from unpose.images import as_batch, downscale, pixel_grid, warp

_Result = TypeVar("_Result")

_PADDING = {"cpu": 64}
"""The last chunk of pairs is padded to a multiple of this; on other devices to a whole chunk. The CPU kernels compute
each pair by itself, so that only the vector instructions of torch must find complete vectors."""
_MAX_SCORES = 2**28
"""Scores of pairs and poses held at once when candidates are re-ranked on CUDA; the CPU holds those of one pair."""
_POSES_PER_CANDIDATE = 2
"""Poses of each candidate that are compared when candidates are re-ranked."""
_RERANKING_STEPS = 3
"""Gauss-Newton steps when candidates are re-ranked."""
_DIFFERENT = 0.09
"""Two poses are different if they move typical points of the image apart by more than this fraction of its larger
side."""
_EQUIVALENT = 0.1
"""A different pose fits equally well if its distance is larger by less than this fraction of the image's norm."""


class SharedInBlocks:
    """What all blocks of a stage share: an object with the settings of a search."""

    search: Search
    device: torch.device

    def run_blocks(
        self,
        work: Work,
        arguments: Callable[[slice], Mapping[str, Any]],
        total: int,
        size: int,
        *,
        stage: str,
        checkpoints: Checkpoints | None,
    ) -> Arrays:
        """Compute blocks that share this (:func:`unpose.align.blocks.run_blocks`), and join them.

        The arrays of a block have a row for each of its rows.
        """
        blocks = run_blocks(
            work, self, arguments, total, size, stage=stage,
            checkpoints=checkpoints, progress=self.search.progress, executor=self.search.executor,
        )  # fmt: skip
        return concatenate(blocks, total)


class Job(SharedInBlocks):
    """The checked input of one call, on its device: settings, images of both sides, mask and plan.

    What only some searches need, such as images at the coarse size, is computed when it is first used.

    It is pickled as its input, images and settings, and computes the rest again where it arrives.
    """

    def __init__(
        self, fixed: ArrayLike | Tensor, moving: ArrayLike | Tensor | None, search: Search, chunk: int | None = None
    ) -> None:
        self.search, self.contrast, self.device = search, search.contrast, torch.device(search.device)
        one = as_batch(fixed, dtype=torch.float32).detach()
        two = one if moving is None else as_batch(moving, dtype=torch.float32).detach()
        if one.shape[1:] != two.shape[1:]:
            raise ValueError(
                "both sets must have images of one size and number of channels, got "
                f"{tuple(one.shape[2:])} with {one.shape[1]} and {tuple(two.shape[2:])} with {two.shape[1]}"
            )
        shape = (one.shape[2], one.shape[3])
        self.plan = coarse.make_plan(shape, search)
        self.mask = search.mask_for(shape).to(self.device)
        self.n_threads = search.n_threads if self.device.type == "cpu" else 1
        self._sizes = len(one), 0 if two is one else len(two), shape, one.shape[1]
        check_memory(*self._sizes, search)
        if chunk is None:
            chunk = pairs_at_once(needed_memory(*self._sizes, search), one[0].numel(), search)
        self.chunk = chunk  # pairs that are refined at once
        self.fixed = self._prepare(one)
        self.moving = self.fixed if moving is None else self._prepare(two)

    def __reduce__(self) -> tuple[Any, ...]:
        fixed, moving = (side.movedim(1, -1).cpu().numpy() for side in (self.fixed, self.moving))
        # Another process reports no progress, and computes on one thread and the GPU that it sees: it may be one of
        # many on its machine.
        search = replace(self.search, n_jobs=1, device=self.device.type, progress=None, executor=None, memory=None)
        return Job, (fixed, None if self.moving is self.fixed else moving, search, self.chunk)

    def check_pairs(self, n_starts: int) -> None:
        """Refuse to refine pairs from so many poses if that is estimated to need more memory than the budget."""
        check_memory(*self._sizes, self.search, n_starts=n_starts)

    @cached_property
    def coarse_fixed(self) -> Tensor:
        """The fixed images at the size of the coarse stage."""
        return self._coarse(self.fixed)

    @cached_property
    def coarse_moving(self) -> Tensor:
        """The moving images at the size of the coarse stage."""
        return self.coarse_fixed if self.moving is self.fixed else self._coarse(self.moving)

    @cached_property
    def fixed_is_constant(self) -> Tensor:
        """Which fixed images are constant inside the mask, so that no pose can be found: (n,) bool."""
        return self._is_constant(self.fixed)

    @cached_property
    def moving_is_constant(self) -> Tensor:
        """Which moving images are constant inside the mask: (m,) bool."""
        return self.fixed_is_constant if self.moving is self.fixed else self._is_constant(self.moving)

    @cached_property
    def index(self) -> coarse.Index:
        """The basis of the coarse stage and the views in it."""
        return _on_one_thread(coarse.build_index, self.plan, self.coarse_moving, self.coarse_fixed)

    @cached_property
    def moving_coefficients(self) -> Tensor:
        """Coefficients of the moving images in the basis, (m, C)."""
        return _on_one_thread(self.index.coefficients, self.coarse_moving)

    @cached_property
    def fixed_coefficients(self) -> Tensor:
        """Coefficients of the fixed images in the basis, (n, C)."""
        if self.coarse_moving is self.coarse_fixed:
            return self.moving_coefficients
        return _on_one_thread(self.index.coefficients, self.coarse_fixed)

    @cached_property
    def centred(self) -> "CentredImages":
        """Both sides with the centroid of each image at its centre."""
        return _on_one_thread(_centred_images, self.index, self.coarse_moving, self.coarse_fixed)

    def grid_poses(self, points: Tensor, *, inverted: bool) -> Tensor:
        """Poses of grid points, or the inverses if they were found the other way round: (...) -> (..., 3, 3)."""
        poses = self.plan.poses(points)
        return inverse(poses) if inverted else poses

    @cached_property
    def pyramid(self) -> list[Level]:
        """Levels from coarse to full size; a single level if images are small."""
        factors = [1.0]
        while factors[0] * 2 <= self.plan.factor * 1.01:
            factors.insert(0, factors[0] * 2)
        return [self._level(factor) for factor in factors]

    @cached_property
    def half_coarse(self) -> Level:
        """A level of half the coarse size, at which candidates are re-ranked."""
        return self._level(2 * self.plan.factor)

    def _level(self, factor: float) -> Level:
        fixed = downscale(self.fixed, factor)
        moving = fixed if self.moving is self.fixed else downscale(self.moving, factor)
        mask = (downscale(self.mask[None, None], factor)[0, 0] > 0.5).to(fixed.dtype)
        return Level(factor, moving, fixed, mask)

    def _prepare(self, images: Tensor) -> Tensor:
        """Full-size images on the device, masked where the comparison does not leave out what is outside."""
        images = images.to(self.device).contiguous()
        return images if photometry.uses_overlap(self.contrast) else images * self.mask

    def _coarse(self, images: Tensor) -> Tensor:
        return downscale(photometry.coarse_images(images, self.contrast, self.mask), self.plan.factor)

    def _is_constant(self, images: Tensor) -> Tensor:
        flat = images[:, :, self.mask > 0].flatten(1)
        return (flat.amax(1) - flat.amin(1) <= 1e-6 * flat.abs().amax(1).clamp(min=1e-12)).cpu()


@dataclass(frozen=True)
class CentredImages:
    """Centred coarse images, their coefficients, and the few views in which they are compared."""

    index: coarse.Index
    moving: Tensor  # (m, c, h, w)
    moving_coefficients: Tensor  # (m, C)
    fixed_coefficients: Tensor  # (n, C)


@dataclass(frozen=True)
class PairAlignments:
    """The best pose of each of p pairs, and how it compares with the other poses that were found."""

    poses: Tensor  # (p, 3, 3) float64
    distances: Tensor  # (p,) float64
    margins: Tensor  # (p,) float64: how much larger the distance of the best different pose is
    alternatives: list[np.ndarray]  # (a, 3, 3) each: different poses that fit equally well
    converged: Tensor  # (p,) bool


def refine_and_measure(
    job: Job,
    moving: Tensor,
    fixed: Tensor,
    poses: Tensor,
    *,
    refined: bool = True,
    n_steps: int = refine.MAX_STEPS,
    tolerance: refine.Tolerance = refine.DEFAULT_TOLERANCE,
    keep_better: bool = True,
    stage: str | None = "refine",
) -> tuple[Tensor, Tensor, Tensor]:
    """Refine the poses (p, 3, 3) of pairs of indices (p,) over the pyramid, and measure the distances at full size.

    Returns poses (p, 3, 3), distances (p,) and converged (p,). With ``keep_better``, a pose whose refinement does not
    lower the distance is kept as it was.
    """

    def work(rows: Tensor) -> tuple[Tensor, ...]:
        return _refine_chunk(job, moving[rows], fixed[rows], poses[rows], refined, n_steps, tolerance, keep_better)

    if len(moving) == 0:
        return poses.double(), torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.bool)
    size = job.chunk
    found, distances, converged = _in_chunks(job, work, len(moving), size, stage, _PADDING.get(job.device.type, size))
    return found, distances, converged


def candidate_poses(job: Job, fixed: Tensor, candidates: Tensor) -> Tensor:
    """Find the best few poses on the grid of candidates (n, c) of some fixed images (n,): (n, c, poses, 3, 3).

    The search over all pairs gives one pose per pair; a nearly symmetric shape may fit better at another one after
    refinement.
    """
    n, count = candidates.shape
    index, moving_coefficients = job.index, job.moving_coefficients
    rows_at_once = max(1, _MAX_SCORES // (count * len(job.plan.views) * len(job.plan.angles)))

    def work(rows: Tensor) -> tuple[Tensor, ...]:
        # The views are those of the fixed images, so the poses found are the inverses of the poses wanted.
        views = index.view_coefficients(job.coarse_fixed[fixed[rows].to(job.device)])
        moving = candidates[rows].to(job.device)
        found = [
            coarse.peaks(view, moving_coefficients[some], index.basis, job.plan, _POSES_PER_CANDIDATE).cpu()
            for view, some in zip(views.split(rows_at_once), moving.split(rows_at_once), strict=True)
        ]
        return (torch.cat(found),)

    (points,) = _in_chunks(job, work, n, coarse.TILE, None, coarse.TILE)
    return inverse(job.plan.poses(points))


def rerank(job: Job, fixed: Tensor, candidates: Tensor, poses: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Select the best candidates (n, c) of some fixed images (n,): indices (n, keep) and poses (n, keep, 3, 3).

    The grid ranks candidates only roughly; here they are ranked by their distances after a short refinement from each
    of their poses (n, c, poses, 3, 3).
    """
    n, count, n_poses = poses.shape[:3]
    left, right = fixed.repeat_interleave(count * n_poses), candidates.flatten().repeat_interleave(n_poses)
    found, distances = refine_briefly(job, right, left, poses.reshape(-1, 3, 3), _RERANKING_STEPS)
    distance, best = distances.reshape(n, count, n_poses).min(2)
    order = torch.argsort(distance, dim=1, stable=True)[:, :keep]
    rows = torch.arange(n)[:, None]
    return candidates[rows, order], found.reshape(n, count, n_poses, 3, 3)[rows, order, best[rows, order]]


def refine_briefly(job: Job, moving: Tensor, fixed: Tensor, poses: Tensor, n_steps: int) -> tuple[Tensor, Tensor]:
    """Refine poses (p, 3, 3) of pairs (p,) by a few steps at half the coarse size: poses and distances (p,) there."""
    level = job.half_coarse

    def work(rows: Tensor) -> tuple[Tensor, ...]:
        m, f = moving[rows].to(job.device), fixed[rows].to(job.device)
        start = poses[rows].to(job.device, torch.float32)
        found, _ = level.refine(
            m, f, start, job.plan.group, contrast=job.contrast, bounds=job.plan.refinement_bounds, n_steps=n_steps
        )
        return found.cpu(), level.distances(m, f, found, job.contrast).cpu()

    size = 4 * job.chunk
    found, distances = _in_chunks(job, work, len(moving), size, None, _PADDING.get(job.device.type, size))
    return found, distances


def _in_chunks(
    job: Job, work: Callable[[Tensor], tuple[Tensor, ...]], total: int, size: int, stage: str | None, padding: int
) -> list[Tensor]:
    """Apply ``work`` to chunks of ``range(total)`` and concatenate the results.

    All chunks have the same size, the last one is padded to a multiple of ``padding``: the rounding of sums must not
    depend on the number of pairs.
    """
    starts = range(0, total, size)

    def chunk(start: int) -> tuple[Tensor, ...]:
        count = min(size, total - start)
        padded = min(size, -(-count // padding) * padding)
        rows = torch.arange(start, start + padded).clamp(max=total - 1)
        return tuple(part[:count] for part in work(rows))

    results = []
    with worker_pool(job.n_threads) as threads:
        for start, result in zip(starts, threads.map(chunk, starts), strict=True):
            results.append(result)
            if stage is not None:
                job.search.report(stage, min(start + size, total), total)
    return [torch.cat(parts) for parts in zip(*results, strict=True)]


def _refine_chunk(
    job: Job,
    moving: Tensor,
    fixed: Tensor,
    poses: Tensor,
    refined: bool,
    n_steps: int,
    tolerance: refine.Tolerance,
    keep_better: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Refine and measure one chunk; see :func:`refine_and_measure`."""
    moving, fixed = moving.to(job.device), fixed.to(job.device)
    start = current = poses.to(job.device, torch.float32)

    full = job.pyramid[-1]
    best, converged = start, torch.zeros(len(start), dtype=torch.bool, device=job.device)
    if refined:
        for level in job.pyramid:
            current, converged = level.refine(
                moving, fixed, current, job.plan.group, contrast=job.contrast, bounds=job.plan.refinement_bounds,
                n_steps=n_steps, tolerance=tolerance,
            )  # fmt: skip
    distances = full.distances(moving, fixed, start if keep_better else current, job.contrast)
    if not keep_better:
        best = current
    elif refined:
        refined_distances = full.distances(moving, fixed, current, job.contrast)
        better = refined_distances <= distances
        best = torch.where(better[:, None, None], current, start)
        distances = torch.where(better, refined_distances, distances)
        converged = converged & better
    return best.double().cpu(), distances.double().cpu(), converged.cpu()


def align_pairs(job: Job, moving: Tensor, fixed: Tensor, starts: int) -> PairAlignments:
    """Search the whole grid for each pair (p,), refine the best ``starts`` local maxima, and choose the best."""
    job.check_pairs(starts * len(moving))
    if job.search.executor is None or len(moving) <= job.search.at_once.aligned:
        return _align_pairs_here(job, moving, fixed, starts)
    found = job.run_blocks(
        partial(_align_block, starts=starts),
        lambda rows: {"moving": moving[rows], "fixed": fixed[rows]},
        len(moving), job.search.at_once.aligned, stage="align", checkpoints=None,
    )  # fmt: skip
    counts = found.pop("n_alternatives")
    alternatives = [poses[:count] for poses, count in zip(found.pop("alternatives"), counts, strict=True)]
    tensors = {name: torch.from_numpy(array) for name, array in found.items()}
    return PairAlignments(alternatives=alternatives, **tensors)


def _align_block(job: Job, moving: Tensor, fixed: Tensor, *, starts: int) -> Arrays:
    """:func:`align_pairs` for one block of pairs, as arrays."""
    found = _align_pairs_here(job, moving, fixed, starts)
    alternatives = np.zeros((len(moving), starts, 3, 3))
    for row, poses in zip(alternatives, found.alternatives, strict=True):
        row[: len(poses)] = poses
    return {
        "poses": found.poses.numpy(),
        "distances": found.distances.numpy(),
        "margins": found.margins.numpy(),
        "alternatives": alternatives,
        "n_alternatives": np.array([len(poses) for poses in found.alternatives]),
        "converged": found.converged.numpy(),
    }


def _align_pairs_here(job: Job, moving: Tensor, fixed: Tensor, starts: int) -> PairAlignments:
    """:func:`align_pairs` in this process."""
    if len(moving) == 0:
        none = torch.zeros(0, dtype=torch.float64)
        return PairAlignments(none.reshape(0, 3, 3), none, none, [], none.bool())
    points = _search_pairs(job, moving, fixed, starts)
    poses, distances, converged = refine_and_measure(
        job, moving.repeat_interleave(starts), fixed.repeat_interleave(starts), job.plan.poses(points).flatten(0, 1)
    )
    shape = (len(moving), starts)
    found = _choose_best(job, fixed, poses.reshape(*shape, 3, 3), distances.reshape(shape), converged.reshape(shape))
    return _reset_constant_images(job, moving, fixed, found)


def _search_pairs(job: Job, moving: Tensor, fixed: Tensor, starts: int) -> Tensor:
    """Grid points of the best ``starts`` local maxima of each pair (p,): (p, starts)."""
    index, fixed_coefficients = job.index, job.fixed_coefficients
    chunk = max(1, job.chunk // (8 * max(1, len(job.plan.views) // 64)))
    unique, where = torch.unique(moving, return_inverse=True)
    tiles = list(range(0, len(unique), coarse.TILE))
    in_tiles = torch.argsort(where // coarse.TILE, stable=True)
    pairs_of_tile = in_tiles.split(torch.bincount(where // coarse.TILE).tolist())
    points = torch.empty(len(moving), starts, dtype=torch.long)

    def views_of(tile: int) -> Tensor:  # padded to a whole tile: the rounding of sums must not depend on their number
        images = unique[tile : tile + coarse.TILE]
        padded = torch.nn.functional.pad(images, (0, coarse.TILE - len(images)))
        return index.view_coefficients(job.coarse_moving[padded.to(job.device)])

    def search_chunk(tile: int, views: Tensor, pairs: Tensor) -> Tensor:
        rows = pairs[torch.arange(chunk).clamp(max=len(pairs) - 1)]  # every chunk has the same size
        goals = fixed_coefficients[fixed[rows].to(job.device), None]
        peaks = coarse.peaks(views[(where[rows] - tile).to(job.device)], goals, index.basis, job.plan, starts)
        points[pairs] = peaks[: len(pairs), 0].cpu()
        return pairs

    done = 0
    with worker_pool(job.n_threads) as threads:
        # The views of every image are computed once, and those of one tile for each thread are held at once.
        for first in range(0, len(tiles), job.n_threads):
            some = tiles[first : first + job.n_threads]
            chunks = [
                (tile, views, pairs)
                for tile, views in zip(some, threads.map(views_of, some), strict=True)
                for pairs in pairs_of_tile[tile // coarse.TILE].split(chunk)
            ]
            for pairs in threads.map(search_chunk, *zip(*chunks, strict=True)):
                done += len(pairs)
                job.search.report("search", done, len(moving))
    return points


def _choose_best(job: Job, fixed: Tensor, poses: Tensor, distances: Tensor, converged: Tensor) -> PairAlignments:
    """Choose the best of the starts of each pair, with its margin over different poses and those that fit equally well.

    poses (p, starts, 3, 3), distances and converged (p, starts).
    """
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
    if job.contrast in ("none", "offset"):  # without the constant that the distance ignores, too
        shown = photometry.coarse_images(job.fixed, job.contrast, job.mask)
        size = shown.square().sum((1, 2, 3)).sqrt().double().cpu()[fixed]
    else:
        size = torch.ones(len(poses), dtype=torch.float64)
    overlaps = torch.isfinite(distances[:, 0])  # else no pose was found, and none is better than another
    fits = apart[:, 0] & overlaps[:, None] & (distances <= distances[:, :1] + _EQUIVALENT * size[:, None])
    alternatives = []
    for pair in range(len(poses)):
        chosen = [0]
        for start in fits[pair].nonzero().flatten().tolist():
            if apart[pair, start, chosen].all():
                chosen.append(start)
        alternatives.append(poses[pair, chosen[1:]].numpy())
    margins = torch.where(overlaps, second - distances[:, 0], 0.0)
    return PairAlignments(poses[:, 0], distances[:, 0], margins, alternatives, converged[:, 0] & overlaps)


def _reset_constant_images(job: Job, moving: Tensor, fixed: Tensor, found: PairAlignments) -> PairAlignments:
    """Give pairs with a constant image, which fits in every pose, the identity, a zero margin and converged = False."""
    flat = job.moving_is_constant[moving] | job.fixed_is_constant[fixed]
    if not flat.any():
        return found
    rows = flat.nonzero().flatten()
    identity = torch.eye(3, dtype=torch.float64).repeat(len(rows), 1, 1)
    _, distances, _ = refine_and_measure(job, moving[rows], fixed[rows], identity, refined=False)
    return PairAlignments(
        found.poses.index_put((rows,), identity),
        found.distances.index_put((rows,), distances),
        torch.where(flat, 0.0, found.margins),
        [found.alternatives[i][:0] if flat[i] else found.alternatives[i] for i in range(len(flat))],
        found.converged & ~flat,
    )


def _on_one_thread(compute: Callable[..., _Result], *arguments: Any) -> _Result:
    """Compute without torch's own threads, whose number changes the rounding of matrix products."""
    with worker_pool(1) as one:
        return one.submit(compute, *arguments).result()


def _centred_images(index: coarse.Index, moving: Tensor, fixed: Tensor) -> CentredImages:
    """Centre coarse images (n, c, h, w) of both sides, and compute their coefficients."""
    near, centred_fixed = coarse.centred_only(index), _centred(fixed)
    coefficients = near.coefficients(centred_fixed)
    if moving is fixed:
        return CentredImages(near, centred_fixed, coefficients, coefficients)
    centred_moving = _centred(moving)
    return CentredImages(near, centred_moving, near.coefficients(centred_moving), coefficients)


def _centred(images: Tensor) -> Tensor:
    """Shift images (n, c, h, w) so that the centroid of their energy is the image centre."""
    energy = images.square().sum(1)  # (n, h, w)
    grid = pixel_grid((images.shape[-2], images.shape[-1]), images.dtype, images.device)
    centroid = torch.einsum("nhw,hwi->ni", energy, grid) / energy.sum((1, 2)).clamp(min=1e-20)[:, None]
    return warp(images, translation(-centroid))
