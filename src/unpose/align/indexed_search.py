"""The search among many images: an index of signatures gives candidates, and only they are compared.

1. Images are read block by block, brought to normal position and described by their coefficients and signatures
   (:mod:`unpose.align.signatures`).
2. The signatures are divided into cells (:mod:`unpose.align.cells`); the nearest signatures in near cells are the
   candidates of an image.
3. Candidates are compared on the grid of poses in normal position, all angles and five shifts, and the best are kept.
4. Pairs are compared and refined (:mod:`unpose.align.graph_descent`).

The time grows hardly faster than the number of images. Beside a block of images, the memory holds up to five kilobytes
for each image, whatever its size (:mod:`unpose.align.memory`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.align import coarse
from unpose.align.blocks import Work
from unpose.align.cells import Cells, divide, nearest_signatures
from unpose.align.checkpoints import Arrays, Checkpoints
from unpose.align.graph_descent import descend
from unpose.align.memory import check_index_memory, needed_by_index, pairs_at_once, pixels_in_block
from unpose.align.pipeline import Job, SharedInBlocks
from unpose.align.search import Search
from unpose.align.signatures import Normaliser, fit_normaliser, in_normal_position, normal_poses
from unpose.compiled import worker_pool
from unpose.files import in_bytes
from unpose.groups import inverse, scaling
from unpose.images import as_batch

_CANDIDATES = 200
"""Candidates that the index gives for each image."""
_COMPARED = 18
"""Candidates of each image that remain after the grid of poses; their pairs are compared."""
_RESIDENT_SHARE = 0.3
"""Share of the free memory of a GPU, and of the budget, up to which all images are kept there."""
_HALF = 0.5
"""Share of what the budget leaves on a GPU that chunks of pairs fill; blocks of images fill the other half."""


class IndexedJob(SharedInBlocks):
    """Many images that are searched among themselves: their source, the settings, and what signatures need.

    The source is an array, a tensor, or any object with ``shape``, ``len`` and ``[]`` for slices and for sorted arrays
    of integers, such as an array of HDF5 or Zarr. It is pickled as it is.
    """

    def __init__(
        self,
        images: ArrayLike | Tensor,
        search: Search,
        normaliser: Normaliser | None = None,
        sizes: tuple[int, int] | None = None,
    ) -> None:
        source: Any = images if hasattr(images, "shape") else np.asarray(images)
        self.images = source
        self.search, self.device = search, torch.device(search.device)
        first = as_batch(_as_array(source[:1]))
        self.n, self.shape = len(source), (first.shape[2], first.shape[3])
        self.n_threads = search.n_threads if self.device.type == "cpu" else 1
        check_index_memory(self.n, self.shape, first.shape[1], search)
        if sizes is None:
            needed = needed_by_index(self.n, self.shape, first.shape[1], search)
            chunk = pairs_at_once(needed, first[0].numel(), search, _HALF)
            sizes = chunk, pixels_in_block(needed, self.shape, search, _HALF)
        self.chunk, self.pixels = sizes  # of pairs refined at once, of images of a block of pairs
        if normaliser is not None:
            self.normaliser = normaliser

    def __reduce__(self) -> tuple[Any, ...]:
        images = self.images.cpu().numpy() if isinstance(self.images, Tensor) else self.images
        search = self._local_search(n_jobs=1, device=self.device.type)
        return IndexedJob, (images, search, self.normaliser, (self.chunk, self.pixels))

    def _local_search(self, **changes: Any) -> Search:
        """The settings without what a part of the search must not do again: report, distribute, refuse."""
        return replace(self.search, progress=None, executor=None, memory=None, **changes)

    @cached_property
    def normaliser(self) -> Normaliser:
        """Fitted to a sample of the images, evenly spaced."""
        rows = np.linspace(0, self.n - 1, min(self.n, self.search.at_once.sample)).round().astype(np.int64)
        local = self.local(rows)
        return fit_normaliser(local.plan, local.coarse_fixed, self.n_threads)

    @cached_property
    def _resident(self) -> Tensor | None:
        """All images on the GPU, if they are small enough."""
        if self.device.type != "cuda":
            return None
        size = 1 if getattr(self.images, "dtype", None) in (np.uint8, torch.uint8) else 4
        budget = math.inf if self.search.memory is None else in_bytes(self.search.memory)
        free = min(budget, torch.cuda.mem_get_info(self.device)[0])
        if size * math.prod(self.images.shape) > _RESIDENT_SHARE * free:
            return None
        step = self.search.at_once.indexed
        parts = (torch.as_tensor(_as_array(self.images[start : start + step])) for start in range(0, self.n, step))
        kept = torch.uint8 if size == 1 else torch.float32
        all_images = torch.empty(tuple(self.images.shape), dtype=kept, device=self.device)
        for number, part in enumerate(parts):
            scaled = part if size == 1 else as_batch(part).movedim(1, -1).reshape(part.shape)
            all_images[number * step : number * step + len(part)] = scaled.to(self.device)
        return all_images

    def local(self, rows: NDArray) -> Job:
        """The job of some images, sorted rows (m,)."""
        if self._resident is not None:
            images: Any = self._resident[torch.from_numpy(rows).to(self.device)]
        elif isinstance(self.images, Tensor):
            images = self.images[torch.from_numpy(rows)]
        else:
            images = _as_array(self.images[rows])
        return Job(images, None, self._local_search(), self.chunk)

    def describe(self, rows: NDArray) -> tuple[Tensor, Tensor]:
        """Images (m, c, h, w) in normal position, and the poses (m, 3, 3) that bring them there, in coarse pixels."""
        job = self.local(rows)
        poses = normal_poses(job.coarse_fixed, scales=job.plan.group.scales and job.plan.max_scale > 1)
        return in_normal_position(job.coarse_fixed, poses), poses

    def views(self, rows: NDArray) -> Tensor:
        """Coefficients of images (m,) in normal position in each view, (m, V, C)."""
        order, step = np.argsort(rows), self.search.at_once.tile

        def tile(start: int) -> Tensor:
            return self.normaliser.index.view_coefficients(self.describe(rows[order[start : start + step]])[0])

        with worker_pool(self.n_threads) as threads:
            parts = list(threads.map(tile, range(0, len(rows), step)))
        return torch.cat(parts)[torch.from_numpy(np.argsort(order)).to(self.device)]


@dataclass(frozen=True)
class Description:
    """What is kept of each image while candidates are searched."""

    coefficients: NDArray  # (n, C, 2) float16, in normal position
    signatures: NDArray  # (n, d) float32
    poses: NDArray  # (n, 3, 3) float32, into normal position, coarse pixels


def nearest_by_index(
    images: ArrayLike | Tensor, k: int, search: Search, checkpoints: Checkpoints | None
) -> tuple[NDArray, NDArray, NDArray]:
    """Find nearly the k nearest of each image: (n, k) indices, (n, k) distances, (n, k, 3, 3) poses, float32."""
    job = IndexedJob(images, search)
    n = job.n
    if not 1 <= k < n:
        raise ValueError(f"k must be between 1 and {n - 1} (the number of images to search among), got {k}")
    plan = job.normaliser.index.plan
    candidates, points, normal, order = _candidates(job, k, checkpoints)
    # Grid points bring an image onto its candidate; the poses wanted go the other way.
    grid_poses = inverse(plan.poses(torch.arange(len(plan.views) * len(plan.angles)))).to(job.device)

    def start_poses(moving: Tensor, fixed: Tensor, entry: Tensor) -> Tensor:
        moving, fixed, entry = (each.to(job.device) for each in (moving, fixed, entry))
        return _start_poses(plan, grid_poses[points[entry].long()], normal[moving], normal[fixed])

    places, distances, poses = descend(_PairsInOrder(job, order), candidates, start_poses, k, checkpoints)
    back = np.argsort(order)
    return order[places[back]], distances[back], poses[back]


def _candidates(job: IndexedJob, k: int, checkpoints: Checkpoints | None) -> tuple[Tensor, Tensor, Tensor, NDArray]:
    """The best candidates of each image on the grid of poses, for the images in the order of their cells.

    Returns the places of the candidates in this order (n, c), the grid points (n * c,), the poses into normal position
    (n, 3, 3), and the images at the places (n,). Descriptions, most of the memory so far, are freed on return.
    """
    n, size = job.n, job.search.at_once.indexed
    known = Description(
        **job.run_blocks(
            _describe_rows, lambda rows: {"rows": rows}, n, size, stage="describe", checkpoints=checkpoints
        )
    )
    # As many as k neighbours need, and never more than there are.
    compared, offered = (
        min(n - 1, max(count, int(factor * k))) for count, factor in ((_COMPARED, 1.5), (_CANDIDATES, 8))
    )
    cells = divide(torch.from_numpy(known.signatures).to(job.device), offered, job.n_threads, job.search.at_once.cell)
    work = partial(_candidate_rows, offered=offered, kept=compared)
    block = partial(_candidate_block, known, cells)
    grid = job.run_blocks(work, block, n, size, stage="candidates", checkpoints=checkpoints)
    normal, points = (
        torch.from_numpy(each).to(job.device) for each in (known.poses[cells.order], grid["points"].ravel())
    )
    return torch.from_numpy(grid["places"]).long(), points, normal, cells.order


class _PairsInOrder(SharedInBlocks):
    """Runs blocks of pairs of images, given by their places in an order (n,), each with a job of its images alone."""

    def __init__(self, job: IndexedJob, order: NDArray) -> None:
        self.job, self.order, self.search, self.device = job, order, job.search, job.device

    def run_blocks(
        self, work: Work, arguments: Callable[[slice], Mapping[str, Any]], *sizes: Any, **settings: Any
    ) -> Arrays:
        def of_images(rows: slice) -> Mapping[str, Any]:
            given = dict(arguments(rows))
            return given | {side: torch.from_numpy(self.order[given[side].numpy()]) for side in ("moving", "fixed")}

        return self.job.run_blocks(partial(_on_few_images, work=work), of_images, *sizes, **settings)


def _on_few_images(job: IndexedJob, moving: Tensor, fixed: Tensor, poses: Tensor, *, work: Work) -> Arrays:
    """Compute a block of pairs (p,) of images with a job of their images alone; results in single precision.

    A block with too many different images is halved, which changes no byte of the results.
    """
    images, where = np.unique(np.concatenate([moving.numpy(), fixed.numpy()]), return_inverse=True)
    most = job.pixels // math.prod(job.images.shape[1:])
    if len(images) > max(2, most):
        middle = len(moving) // 2
        parts = [
            _on_few_images(job, moving[rows], fixed[rows], poses[rows], work=work)
            for rows in (slice(middle), slice(middle, None))
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    left, right = torch.from_numpy(where).split(len(moving))
    found = work(job.local(images), moving=left, fixed=right, poses=poses)
    return {name: np.asarray(array, np.float32) for name, array in found.items()}


def _describe_rows(job: IndexedJob, rows: slice) -> Arrays:
    """Describe a block of images; see :class:`Description`."""
    step = job.search.at_once.tile

    def tile(start: int) -> tuple[Tensor, ...]:
        images, poses = job.describe(np.arange(start, min(start + step, rows.stop)))
        coefficients = job.normaliser.index.coefficients(images)
        padded = torch.nn.functional.pad(coefficients, (0, 0, 0, step - len(images)))  # products of one shape
        signatures = job.normaliser.signatures(padded)[: len(images)]
        return torch.view_as_real(coefficients).half().cpu(), signatures.cpu(), poses.cpu()

    with worker_pool(job.n_threads) as threads:
        parts = list(zip(*threads.map(tile, range(rows.start, rows.stop, step)), strict=True))
    names = ("coefficients", "signatures", "poses")
    return {name: torch.cat(part).numpy() for name, part in zip(names, parts, strict=True)}


def _candidate_block(known: Description, cells: Cells, rows: slice) -> Mapping[str, Any]:
    """Arguments of :func:`_candidate_rows` for the places ``rows``: the images of all near cells."""
    first, last = np.searchsorted(cells.starts, (rows.start, rows.stop - 1), side="right") - 1
    touched = [cell for cell in range(first, last + 1) if cells.starts[cell] < cells.starts[cell + 1]]
    members = [cells.members(cell) for cell in touched]
    near = np.unique(np.concatenate(members))
    images = cells.order[near]
    return {
        "rows": rows,
        "images": cells.order[rows],
        "bounds": [(max(rows.start, cells.starts[c]), min(rows.stop, cells.starts[c + 1])) for c in touched],
        "members": [np.searchsorted(near, each) for each in members],
        "places": near,
        "signatures": known.signatures[images],
        "coefficients": known.coefficients[images],
    }


def _candidate_rows(
    job: IndexedJob,
    rows: slice,
    images: NDArray,
    bounds: list[tuple[int, int]],
    members: list[NDArray],
    places: NDArray,
    signatures: NDArray,
    coefficients: NDArray,
    *,
    offered: int,
    kept: int,
) -> Arrays:
    """The best candidates of the images at the places ``rows``: their places and grid points, (m, kept) each.

    ``bounds`` are the first and last places of each cell in this block, ``members`` the images of its near cells as
    positions in ``places``, ``signatures`` and ``coefficients``. Grid points bring an image onto its candidate, in
    normal position.
    """
    index, views = job.normaliser.index, job.views(images)
    signature = torch.from_numpy(signatures).to(job.device)
    near = torch.view_as_complex(torch.from_numpy(coefficients).to(job.device).float())  # (m, C)
    norms = near.abs().square().sum(-1)

    def search_cell(number: int) -> tuple[Tensor, Tensor]:
        (start, stop), others = bounds[number], torch.from_numpy(members[number]).to(job.device)
        own = torch.from_numpy(np.searchsorted(places, np.arange(start, stop))).to(job.device)
        itself = torch.searchsorted(others, own)
        candidates = others[nearest_signatures(signature[own], itself, signature[others], offered)]  # (r, offered)
        scores, points = coarse.best_poses_of_candidates(
            views[start - rows.start : stop - rows.start], near, candidates, index.basis, index.plan
        )
        best = torch.argsort(norms[candidates] - 2 * scores, dim=1, stable=True)[:, :kept]
        return candidates.gather(1, best).cpu(), points.gather(1, best).cpu()

    with worker_pool(job.n_threads) as threads:
        found = list(threads.map(search_cell, range(len(bounds))))
    return {
        "places": places[torch.cat([chosen for chosen, _ in found]).numpy()].astype(np.int32),
        "points": torch.cat([points for _, points in found]).numpy().astype(np.int32),
    }


def _start_poses(plan: coarse.Plan, grid: Tensor, moving: Tensor, fixed: Tensor) -> Tensor:
    """Poses (p, 3, 3) that bring candidates onto images, in full-size pixels and within the bounds of the plan.

    grid (p, 3, 3) brings the candidates onto the images in normal position; moving and fixed (p, 3, 3) bring both into
    normal position, in coarse pixels.
    """
    resize = scaling(torch.tensor(plan.factor, dtype=torch.float64, device=grid.device))
    found = resize @ inverse(fixed.double()) @ inverse(resize) @ grid @ resize @ moving.double() @ inverse(resize)
    scale = torch.linalg.det(found[:, :2, :2]).abs().sqrt()
    found[:, :2, :2] *= (scale.clamp(1 / plan.max_scale, plan.max_scale) / scale)[:, None, None]
    shift = found[:, :2, 2].norm(dim=1)
    found[:, :2, 2] *= (plan.max_shift / shift.clamp(min=1e-12)).clamp(max=1.0)[:, None]
    return found.cpu()


def _as_array(images: Any) -> Any:
    """Images that were read, as a tensor or an array."""
    return images if isinstance(images, Tensor) else np.asarray(images)
