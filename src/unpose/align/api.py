"""The public functions of the search: nearest neighbours, alignments and distances over a whole group.

They have two stages: an exhaustive search of a grid of poses (:mod:`unpose.align.coarse`), then Gauss-Newton refinement
of the best of them (:mod:`unpose.align.refine`). Every distance that is returned is measured at the returned pose, at
full size, with Keys sampling.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from numbers import Integral
from typing import Literal, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.align import coarse, neighbour_graph
from unpose.align.checkpoints import Arrays, Checkpoints
from unpose.align.indexed_search import nearest_by_index
from unpose.align.pipeline import Job, align_pairs, candidate_poses, refine_and_measure, rerank
from unpose.align.search import Search, SearchSettings
from unpose.compiled import worker_pool
from unpose.groups import inverse, pose_parts

# Refinement starts per pair: 6 for explicit pairs, 3 for dense matrices, 2 for image-to-mean.
_STARTS = 6
_STARTS_DENSE = 3
_STARTS_TO_MEAN = 2
_EXTRA_REFINED = 24
"""Refine 1.5 k + 24 candidates."""
_DEFAULT = Search()


@dataclass(frozen=True)
class Neighbours:
    """The k nearest images of each of n images under the orbit distance, nearest first.

    Parameters
    ----------
    indices : int64 array of shape (n, k)
        Indices of the neighbours.
    distances : float64 array of shape (n, k)
        Orbit distances to the neighbours.
    poses : float64 array of shape (n, k, 3, 3)
        ``poses[i, j]`` brings neighbour j of image i onto image i.

    Examples
    --------
    >>> bars = np.zeros((3, 12, 12), np.float32)
    >>> bars[0, 2:10, 5:7] = bars[1, 5:7, 2:10] = bars[2, 4:8, 4:8] = 1
    >>> nearest(bars, 1).indices.ravel()
    array([1, 0, 1])
    """

    indices: NDArray
    distances: NDArray
    poses: NDArray

    def _repr_html_(self) -> str:
        """The neighbours of each image with their distances, for notebooks."""
        from unpose.report import MOST_ROWS, table_html

        n, k = self.indices.shape
        first = slice(MOST_ROWS)
        ranks = {
            f"neighbour {rank + 1}": [
                f"{index} ({distance:.3g})"
                for index, distance in zip(self.indices[first, rank], self.distances[first, rank], strict=True)
            ]
            for rank in range(min(k, 8))
        }
        title = f"{k} nearest of each of {n:,} images: index (distance)"
        return table_html({"image": list(range(n))[first], **ranks}, title=title, n_rows=n)


@dataclass(frozen=True)
class Alignment:
    """Poses that bring images onto references. The leading shape is (n,) for pairs, (n, m) for every reference.

    Parameters
    ----------
    poses : array of shape (..., 3, 3)
        Bring each image onto its reference.
    distances : array of shape (...)
        Distances at these poses; with the contrast "offset" or "affine" infinite where too little overlaps.
    margins : array of shape (...)
        How much larger the distance of the best clearly different pose is; infinite where none was found, zero where
        the distance itself is infinite.
    alternatives : list of arrays of shape (a, 3, 3)
        For each entry, in order, other poses that fit equally well: those of a symmetric object.
    converged : bool array of shape (...)
        Whether refinement converged; False also for constant images, which fit at every pose, and where the distance is
        infinite.

    Examples
    --------
    >>> bar = np.zeros((1, 16, 16), np.float32)
    >>> bar[:, 3:13, 7:9] = 1
    >>> found = align(bar, bar)
    >>> found.distances.shape, len(found.alternatives[0])  # a bar fits after half a turn, too
    ((1,), 1)
    """

    poses: NDArray
    distances: NDArray
    margins: NDArray
    alternatives: list[NDArray]
    converged: NDArray

    def _repr_html_(self) -> str:
        """The poses as angle, shift and scale, with their distances, for notebooks."""
        from unpose.report import MOST_ROWS, table_html

        first = slice(MOST_ROWS)
        parts = [pose_parts(pose) for pose in self.poses.reshape(-1, 3, 3)[first]]
        where = [", ".join(map(str, index)) for index in islice(np.ndindex(self.distances.shape), MOST_ROWS)]
        columns = {
            "image" if self.distances.ndim < 2 else "image, reference": where,
            "angle in degrees": [part["angle"] for part in parts],
            "shift in pixels": [f"{part['shift_x']:.1f}, {part['shift_y']:.1f}" for part in parts],
            "scale": [part["scale"] for part in parts],
            "mirrored": [part["mirrored"] for part in parts],
            "distance": self.distances.ravel()[first].tolist(),
            "margin": self.margins.ravel()[first].tolist(),
            "other poses": [len(others) for others in self.alternatives[first]],
        }
        return table_html(columns, bars=["distance"], n_rows=self.distances.size)


def nearest(
    images: ArrayLike | Tensor,
    k: int,
    *,
    others: ArrayLike | Tensor | None = None,
    candidates: int | Literal["index"] | None = None,
    refine: bool = True,
    quick: bool = False,
    checkpoints: Checkpoints | None = None,
    search: Search = _DEFAULT,
    **settings: Unpack[SearchSettings],
) -> Neighbours:
    """Find the k nearest images of each image under the orbit distance, over all pairs and all poses.

    Parameters
    ----------
    images : array of shape (n, h, w) or (n, h, w, c)
        Images whose neighbours are searched.
    k : int
        Number of neighbours.
    others : array of shape (m, h, w) or (m, h, w, c), optional
        Images to search among; by default the images themselves, without the image in question.
    candidates : int or "index", optional
        Search only among this many candidates per image, which a comparison of centred images at all angles selects.
        By default the whole grid is searched for all pairs. "index" is for many images: candidates come from an index
        of signatures, in a time that grows hardly faster than the number of images. What it finds is near, but not
        always the nearest: of the ten nearest of 5,000 digits 58 %, of 100,000 digits 38 %.
        The images may then be any object with ``shape``, ``len`` and ``[]`` for slices and sorted arrays of integers,
        such as an array of HDF5 or Zarr: they are read in blocks (:mod:`unpose.align.indexed_search`).
    refine : bool, default True
        False stops after the coarse stage: poses are those of the grid, with the distances measured there.
    quick : bool, default False
        True compares every pair once, for both of its images, and with less refinement
        (:mod:`unpose.align.neighbour_graph`). About three times faster; roughly 10 % of the neighbours differ from
        those of the full search, at nearly the same distances. Good enough for a graph of neighbours.
    checkpoints : Checkpoints, optional
        Where finished parts are stored and loaded from; see :mod:`unpose.align.checkpoints`.
    search : Search, default Search()
        Poses, comparison of images and resources.
    **settings : optional
        Single settings, which replace those of ``search``: group, max_angle, max_shift, max_scale, contrast, mask,
        device, n_jobs, memory and progress; :class:`Search` describes them.

    Returns
    -------
    Neighbours

    Notes
    -----
    The cost is about ``n m V (4 C + 7 K A / 8)`` multiplications for V shifts (and scales), A = 72 angles and C = 64
    functions in K frequencies; then at least ``(4 k + 160) n`` short refinements at half the coarse size and
    ``(1.5 k + 24) n`` full ones. Memory grows with the number of images, not of pairs.

    Examples
    --------
    >>> from unpose.data import posed
    >>> shapes = np.zeros((2, 20, 20), np.float32)
    >>> shapes[0, 4:16, 9:11] = shapes[0, 14:16, 9:15] = shapes[1, 6:14, 6:14] = 1
    >>> turned = posed(shapes, copies=3, max_shift=2.0)
    >>> found = nearest(turned.images, 2, group="se2", max_shift=5.0)
    >>> turned.sources[found.indices].tolist() == [[i, i] for i in turned.sources]
    True
    """
    if not isinstance(k, Integral):
        raise ValueError(f"k must be a whole number, got {k!r}")
    if candidates is not None and not isinstance(candidates, Integral) and candidates != "index":
        raise ValueError(f'candidates must be a whole number, "index" or None, got {candidates!r}')
    if candidates == "index":
        if others is not None or not refine:
            raise ValueError('candidates="index" searches among the images themselves: leave out others and refine')
        indices, distances, poses = nearest_by_index(images, k, replace(search, **settings), checkpoints)
        return Neighbours(indices, distances.astype(np.float64), poses.astype(np.float64))
    job = Job(images, others, replace(search, **settings))
    n, m = len(job.fixed), len(job.moving)
    limit = m - 1 if others is None else m
    if not 1 <= k <= limit:
        raise ValueError(f"k must be between 1 and {limit} (the number of images to search among), got {k}")
    if candidates is not None and candidates < k:
        raise ValueError(f"candidates must be at least k ({k}), got {candidates}")
    if quick and (others is not None or not refine):
        raise ValueError("quick refines pairs among the images themselves: leave out others and refine=False")
    listed = min(limit, neighbour_graph.n_candidates(n, k) if quick else 2 * k + _extra_reranked(m)) if refine else k
    if candidates is None:
        found = _search_all(job, listed, centred=False, checkpoints=checkpoints)
    else:
        found = _search_candidates(job, min(listed, candidates), min(candidates, limit), checkpoints)
    ranked, points = torch.from_numpy(found["indices"]), torch.from_numpy(found["points"])
    inverted = candidates is not None  # candidates are searched in the opposite direction
    if quick:

        def start_poses(moving: Tensor, fixed: Tensor, entry: Tensor) -> Tensor:
            return job.grid_poses(points.flatten()[entry], inverted=inverted)

        return Neighbours(*neighbour_graph.neighbours_from_pairs(job, ranked, start_poses, k, checkpoints))
    final = job.run_blocks(
        partial(_refine_rows, k=k, refine=refine, inverted=inverted),
        lambda rows: {"rows": rows, "moving": ranked[rows], "points": points[rows]},
        n, job.search.at_once.refined, stage="refine", checkpoints=checkpoints,
    )  # fmt: skip
    return Neighbours(**final)


def align(
    images: ArrayLike | Tensor,
    references: ArrayLike | Tensor,
    *,
    every: bool = False,
    to: ArrayLike | None = None,
    search: Search = _DEFAULT,
    **settings: Unpack[SearchSettings],
) -> Alignment:
    """Find the poses that bring images onto references, over the whole group.

    By default image i is brought onto reference i, or all images onto one reference.

    Parameters
    ----------
    images : array of shape (n, h, w) or (n, h, w, c)
        Images to bring onto the references.
    references : array of shape (m, h, w) or (m, h, w, c)
        References; without ``every`` and ``to``, m is n or 1.
    every : bool, default False
        Bring each image onto each reference; the results then have the shape (n, m).
    to : int array of shape (n,), optional
        Bring image i onto reference ``to[i]``. Made for many images and few references: distances and bounds are then
        those of the inverse pose, which brings the reference onto the image.
    search : Search, default Search()
        Poses, comparison of images and resources.
    **settings : optional
        Single settings, which replace those of ``search``: group, max_angle, max_shift, max_scale, contrast, mask,
        device, n_jobs, memory and progress; :class:`Search` describes them.

    Returns
    -------
    Alignment

    Examples
    --------
    >>> upright = np.zeros((2, 16, 16), np.float32)
    >>> upright[:, 4:12, 6:9] = upright[:, 10:12, 6:12] = 1.0  # two Ls
    >>> turned = np.rot90(upright, axes=(1, 2)).copy()
    >>> found = align(upright, turned)
    >>> np.degrees(np.arctan2(found.poses[:, 0, 1], found.poses[:, 0, 0])).round(3)
    array([90., 90.])
    """
    search = replace(search, **settings)
    if to is not None:
        if every:
            raise ValueError("to gives each image one reference, every=True all of them: use one or the other")
        return _align_to(images, references, np.asarray(to), search)
    job = Job(references, images, search)
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
    search: Search = _DEFAULT,
    **settings: Unpack[SearchSettings],
) -> tuple[NDArray, NDArray]:
    """Compute the dense matrix of orbit distances (3.2) and the poses at which they are reached.

    For small sets: every pair is refined from several starts.

    Parameters
    ----------
    images : array of shape (n, h, w) or (n, h, w, c)
        Images.
    others : array of shape (m, h, w) or (m, h, w, c), optional
        Images to measure the distances to; by default the images themselves. The matrix is then symmetric, with zeros
        on the diagonal; if the group changes area, the smaller distance of both directions is taken.
    search : Search, default Search()
        Poses, comparison of images and resources.
    **settings : optional
        Single settings, which replace those of ``search``: group, max_angle, max_shift, max_scale, contrast, mask,
        device, n_jobs, memory and progress; :class:`Search` describes them.

    Returns
    -------
    distances : array of shape (n, m)
        Orbit distances.
    poses : array of shape (n, m, 3, 3)
        ``poses[i, j]`` brings image i onto other image j.

    Examples
    --------
    >>> bars = np.zeros((2, 12, 12), np.float32)
    >>> bars[0, 2:10, 5:7] = bars[1, 5:7, 2:10] = 1  # the same bar, turned by 90 degrees
    >>> distances, poses = orbit_distances(bars)
    >>> distances.shape, bool(distances[0, 1] < 0.01)
    ((2, 2), True)
    """
    job = Job(images if others is None else others, images, replace(search, **settings))
    n, m = len(job.moving), len(job.fixed)
    distances = torch.zeros(n, m, dtype=torch.float64)
    poses = torch.eye(3, dtype=torch.float64).repeat(n, m, 1, 1)
    if others is None:
        moving, fixed = torch.triu_indices(n, n, offset=1)
        if not job.plan.group.is_isometric:
            moving, fixed = torch.cat([moving, fixed]), torch.cat([fixed, moving])
    else:
        moving, fixed = (grid.flatten() for grid in torch.meshgrid(torch.arange(n), torch.arange(m), indexing="ij"))
    found = align_pairs(job, moving, fixed, _STARTS_DENSE)
    distances[moving, fixed], poses[moving, fixed] = found.distances, found.poses
    if others is None:
        known = torch.full((n, n), torch.inf, dtype=torch.float64)
        known[moving, fixed] = found.distances
        opposite = known > known.T
        distances = torch.where(opposite, distances.T, distances)
        poses = torch.where(opposite[..., None, None], inverse(poses).transpose(0, 1), poses)
    return distances.numpy(), poses.numpy()


def _align_to(images: ArrayLike | Tensor, references: ArrayLike | Tensor, to: NDArray, search: Search) -> Alignment:
    """Bring image i onto reference ``to[i]``.

    There are few references and many images, so the views are those of the references, and the poses are inverted.
    """
    job = Job(images, references, search)
    n, m = len(job.fixed), len(job.moving)
    if to.shape != (n,) or not np.issubdtype(to.dtype, np.integer):
        raise ValueError(f"to must have one integer for each of {n} images, got shape {to.shape} of {to.dtype}")
    if n and not (to.min() >= 0 and to.max() < m):
        raise ValueError(f"to must have indices of {m} references, from 0; got {to.min()} to {to.max()}")
    order = np.argsort(to, kind="stable")  # pairs of one reference together: its views are computed once
    found = align_pairs(job, torch.from_numpy(to[order].astype(np.int64)), torch.from_numpy(order), _STARTS_TO_MEAN)
    back = np.argsort(order)
    poses = inverse(found.poses)
    return Alignment(
        poses=(poses / poses[:, 2:, 2:]).numpy()[back],
        distances=found.distances.numpy()[back],
        margins=found.margins.numpy()[back],
        alternatives=[np.linalg.inv(found.alternatives[i]) for i in back],
        converged=found.converged.numpy()[back],
    )


def _extra_reranked(n: int) -> int:
    """Re-rank 2 k + max(80, 1.8 sqrt(n)) candidates of each image among n images.

    The grid ranks only roughly, and with more images more of them come between an image and its true neighbours. With
    this many candidates, 95 % of the true ten nearest digits are among them for 1,000 and for 20,000 images.
    """
    return max(80, int(1.8 * math.sqrt(n)))


def _refine_rows(
    job: Job, rows: slice, moving: Tensor, points: Tensor, *, k: int, refine: bool, inverted: bool
) -> Arrays:
    """The k nearest of the candidates ``moving`` (n, c) of the fixed images ``rows``, nearest first.

    points (n, c) are the grid points of the candidates. Without ``refine``, distances are measured at their poses.
    """
    fixed, poses = torch.arange(rows.start, rows.stop), job.grid_poses(points, inverted=inverted)
    if refine:
        several = candidate_poses(job, fixed, moving)
        moving, poses = rerank(job, fixed, moving, several, k + k // 2 + _EXTRA_REFINED)
    count = moving.shape[1]
    poses, distances, _ = refine_and_measure(
        job, moving.flatten(), fixed.repeat_interleave(count), poses.flatten(0, 1), refined=refine, stage=None
    )
    distances, poses = distances.reshape(-1, count), poses.reshape(-1, count, 3, 3)
    order = torch.argsort(distances, dim=1, stable=True)[:, :k]
    each = torch.arange(len(fixed))[:, None]
    return {
        "indices": moving[each, order].numpy(),
        "distances": distances[each, order].numpy(),
        "poses": poses[each, order].numpy(),
    }


def _search_candidates(job: Job, keep: int, n_candidates: int, checkpoints: Checkpoints | None) -> Arrays:
    """Search in two steps: centred images at all angles, then the whole grid among the best candidates of that.

    Returns moving indices and grid points (n, keep) of the poses that bring the fixed image onto the moving one.
    """
    candidates = torch.from_numpy(_search_all(job, n_candidates, centred=True, checkpoints=checkpoints)["indices"])
    job.__dict__.pop("centred", None)  # its memory is not needed any more
    return job.run_blocks(
        partial(_search_grid_rows, keep=keep),
        lambda rows: {"rows": rows, "candidates": candidates[rows]},
        len(candidates), job.search.at_once.gridded, stage="search", checkpoints=checkpoints,
    )  # fmt: skip


def _search_grid_rows(job: Job, rows: slice, candidates: Tensor, *, keep: int) -> Arrays:
    """Search the whole grid for the candidates (n, c) of the fixed images ``rows``, and keep the nearest (n, keep)."""
    # The views are those of the fixed images, so the poses found are the inverses of the poses wanted.
    index, moving = job.index, job.moving_coefficients
    norms = moving.abs().square().sum(-1)

    def search_tile(start: int) -> tuple[Tensor, Tensor]:
        first = rows.start + start
        views = index.view_coefficients(job.coarse_fixed[first : min(first + coarse.TILE, rows.stop)])
        chosen, points = [], []
        for view, row in zip(views, candidates[start : start + coarse.TILE].to(moving.device), strict=True):
            scores, grid = coarse.best_poses(view[None], moving[row], index.basis, job.plan)
            order = torch.argsort(norms[row] - 2 * scores[0], stable=True)[:keep]
            chosen.append(row[order].cpu())
            points.append(grid[0, order].cpu())
        return torch.stack(chosen), torch.stack(points)

    with worker_pool(job.n_threads) as threads:
        found = list(threads.map(search_tile, range(0, len(candidates), coarse.TILE)))
    return {
        "indices": torch.cat([chosen for chosen, _ in found]).numpy(),
        "points": torch.cat([points for _, points in found]).numpy(),
    }


def _search_all(job: Job, keep: int, *, centred: bool, checkpoints: Checkpoints | None) -> Arrays:
    """Search the grid for all pairs and keep the nearest moving images: their indices and grid points, (n, keep) each.

    ``centred`` compares centred images, with a few small shifts.
    """
    return job.run_blocks(
        partial(_search_all_rows, keep=keep, centred=centred),
        lambda rows: {"rows": rows},
        len(job.fixed), job.search.at_once.searched, stage="candidates" if centred else "search",
        checkpoints=checkpoints,
    )  # fmt: skip


def _search_all_rows(job: Job, rows: slice, *, keep: int, centred: bool) -> Arrays:
    """Search the grid for pairs of the fixed images ``rows`` and all moving images; see :func:`_search_all`."""
    is_same = job.moving is job.fixed
    index = job.centred.index if centred else job.index
    moving = job.centred.moving if centred else job.coarse_moving
    fixed_coefficients = job.centred.fixed_coefficients if centred else job.fixed_coefficients
    moving_coefficients = job.centred.moving_coefficients if centred else job.moving_coefficients
    norms = moving_coefficients.abs().square().sum(-1)  # (m,)
    count, n, stage = rows.stop - rows.start, len(job.fixed), "candidates" if centred else "search"
    best = torch.full((count, keep), torch.inf, device=job.device)
    indices = torch.zeros(count, keep, dtype=torch.long, device=job.device)
    points = torch.zeros(count, keep, dtype=torch.int32, device=job.device)
    for start, scores, grid in coarse.search_all_pairs(
        index,
        moving,
        fixed_coefficients[rows],
        n_threads=job.n_threads,
        progress=lambda done, total: job.search.report(stage, rows.start + count * done // total, n),
    ):
        new = torch.arange(start, start + len(scores), device=job.device)
        squared = norms[new, None] - 2 * scores  # (t, count), without the norm of the fixed image, which ranks nothing
        if is_same:  # an image is no neighbour of its own
            own = new[(new >= rows.start) & (new < rows.stop)]
            squared[own - start, own - rows.start] = torch.inf
        best, place = torch.cat([best, squared.T], dim=1).topk(keep, dim=1, largest=False)
        indices = torch.cat([indices, new.expand(count, -1)], dim=1).gather(1, place)
        points = torch.cat([points, grid.T], dim=1).gather(1, place)
    return {"indices": indices.cpu().numpy(), "points": points.cpu().numpy()}
