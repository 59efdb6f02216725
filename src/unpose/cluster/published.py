"""Invariant Attention exactly as published: kernel attention, invariant weights, invariant mean, and the iteration.

Pure functions with the paper's equation numbers. Images come through the public door, ``(n, h, w)`` or
``(n, h, w, c)``; poses are ``dst_from_src`` (see CONVENTIONS). The kernel is ``exp(-beta ||u - v||^2)`` on the images
as given, so ``beta`` must suit their scale: with images of unit norm and beta = 2 even unrelated images keep a tenth of
the weight and everything flows together; with a norm of two (energy four) they keep a thousandth.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse.csgraph
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.align import orbit_distances
from unpose.align.descent import SMOOTHING_LEVELS, Bounds, descend
from unpose.groups import Group, LieGroup, inverse, parse_continuous
from unpose.images import as_batch, from_batch

_NEGLIGIBLE = 1e-3
"""Images whose weight is below this fraction of the largest are left out of a mean: they cannot change it visibly."""


@dataclass(frozen=True)
class InvariantWeights:
    """Similarity up to pose of all pairs of n images."""

    gamma: NDArray  # (n, n) similarity scores (2.2)
    weights: NDArray  # (n, n) attention: gamma with columns that sum to one
    distances: NDArray  # (n, n) orbit distances (3.2)
    poses: NDArray  # (n, n, 3, 3): poses[i, j] brings image i onto image j


@dataclass(frozen=True)
class InvariantMean:
    """The mean of images after each was brought to the pose in which it fits best (2.3)."""

    mean: NDArray  # (h, w) or (h, w, c)
    poses: NDArray  # (n, 3, 3): brings each image onto the mean
    objective: NDArray  # (iterations + 1,)
    snapshots: dict[int, NDArray]  # the mean after the iterations asked for


@dataclass(frozen=True)
class InvariantAttention:
    """Every round of Invariant Attention; entry 0 is what came in."""

    images: list[NDArray]  # rounds + 1 stacks
    weights: list[NDArray]  # rounds + 1 matrices W, of the images of the same entry
    distances: list[NDArray]  # rounds + 1 matrices of orbit distances (3.2)
    radii: NDArray  # (rounds + 1,) the largest orbit distance R
    contractions: NDArray  # (rounds,) the largest ratio d(S_j+, S_k+) / d(S_j, S_k) over pairs, 1 - epsilon of (4.1)
    labels: NDArray  # (n,) read off the last W


def kernel_attention(points: ArrayLike, beta: float, n_iter: int) -> list[NDArray]:
    """Plain kernel attention (2.1): replace each point by the kernel-weighted mean of all, ``n_iter`` times.

    Parameters
    ----------
    points : (n, ...) vectors or images; everything after the first axis is one point.
    beta : of the kernel ``exp(-beta d^2)``: the larger, the fewer neighbours count.
    n_iter : how often.

    Returns
    -------
    The points before the first and after every iteration, ``n_iter + 1`` arrays of the same shape.

    Examples
    --------
    >>> trace = kernel_attention([[0.0], [0.2], [5.0]], beta=2.0, n_iter=3)
    >>> [round(float(x), 2) for x in trace[-1][:, 0]]
    [0.1, 0.1, 5.0]
    """
    beta = _checked_beta(beta)
    _check_count("n_iter", n_iter)
    state = np.asarray(points, dtype=np.float64)
    if state.ndim < 2 or len(state) == 0:
        raise ValueError(f"points must be (n, ...) with at least one point, got shape {state.shape}")
    if not np.isfinite(state).all():
        raise ValueError("points must be finite, got NaN or infinite entries")
    trace = [state]
    for _ in range(n_iter):
        flat = state.reshape(len(state), -1)
        flat = flat - flat.mean(0)  # what all have in common would drown the differences below
        energy = (flat**2).sum(1)
        distances = np.maximum(energy[:, None] + energy - 2 * flat @ flat.T, 0)
        weights = _column_normalised(np.exp(-beta * distances))
        state = np.tensordot(weights.T, state, axes=1)  # v_j+ = sum_i v_i W_ij
        trace.append(state)
    return trace


def invariant_weights(
    images: ArrayLike | Tensor,
    group: str | Group = "se2",
    beta: float = 2.0,
    *,
    solver: str = "search",
    n_steps: int = 30,
    step: float = 1.0,
    sigmas: Sequence[float] = SMOOTHING_LEVELS,
    max_shift: float | None = None,
    max_scale: float = 1.5,
    device: str | torch.device = "cpu",
) -> InvariantWeights:
    """Similarity of all pairs up to pose: ``max over tau of exp(-beta ||v_i o tau - v_j||^2)`` (2.2).

    Parameters
    ----------
    solver : {"search", "descent"}
        ``"search"`` is the orbit engine, over the whole group. ``"descent"`` is the paper's gradient descent from the
        identity, which finds its way over some tens of degrees.
    n_steps, step, sigmas : the descent's steps, learning rate and smoothing levels; the search has none of them.
    max_shift : largest shift in pixels; three eighths of the larger side by default.
    max_scale : largest scale factor, for groups that have one.

    Notes
    -----
    One side is held fixed and poses are bounded, and what leaves the frame still counts: with both sides free,
    pushing both out of the frame, or shrinking both, makes any two images equal. For an isometric group that is the
    paper's maximum over both sides. Where poses change area the squared distance is divided by the square root of the
    change and the better of both directions counts. Cost: n (n - 1) / 2 descents, twice that with area.
    """
    beta = _checked_beta(beta)
    batch = as_batch(images).detach().to(device)
    lie, bounds = _prepared(batch, group, max_shift, max_scale)
    if solver == "search":
        distances, found_poses = orbit_distances(
            batch.movedim(1, -1), group=lie, max_shift=bounds.max_shift, max_scale=bounds.max_scale, device=device
        )
        gamma = np.exp(-beta * distances**2)
        return InvariantWeights(gamma, _column_normalised(gamma), distances, found_poses)
    if solver != "descent":
        raise ValueError(f"solver must be 'search' or 'descent', got {solver!r}")
    n = len(batch)
    moving, fixed = torch.triu_indices(n, n, offset=1, device=batch.device)
    if not lie.is_isometric:
        moving, fixed = torch.cat([moving, fixed]), torch.cat([fixed, moving])
    squared = torch.zeros(n, n, dtype=batch.dtype, device=batch.device)
    poses = torch.eye(3, dtype=batch.dtype, device=batch.device).repeat(n, n, 1, 1)
    if len(moving):
        found = descend(
            batch[moving], torch.arange(len(moving), device=batch.device), torch.ones_like(batch[moving, 0, 0, 0]), lie,
            targets=batch[fixed], n_steps=n_steps, step=step, sigmas=tuple(sigmas), bounds=bounds,
        )  # fmt: skip
        squared[moving, fixed] = found.errors
        poses[moving, fixed] = found.poses
        missing = torch.zeros(n, n, dtype=torch.bool, device=batch.device)
        missing[moving, fixed] = True
        # The other direction is the inverse pose where it was not searched, or where this one is better.
        known = squared.where(missing, torch.inf)
        turn = (known > known.T) & ~torch.eye(n, dtype=torch.bool, device=batch.device)
        squared = torch.where(turn, squared.T, squared)
        poses = torch.where(turn[..., None, None], inverse(poses).transpose(0, 1), poses)
    gamma = torch.exp(-beta * squared.double()).cpu().numpy()
    return InvariantWeights(
        gamma=gamma,
        weights=_column_normalised(gamma),
        distances=squared.double().sqrt().cpu().numpy(),
        poses=poses.cpu().numpy(),
    )


def invariant_mean(
    images: ArrayLike | Tensor,
    weights: ArrayLike | None = None,
    group: str | Group = "se2",
    *,
    n_iter: int = 50,
    step: float = 1.0,
    sigmas: Sequence[float] = SMOOTHING_LEVELS,
    max_shift: float | None = None,
    max_scale: float = 1.5,
    snapshots: Sequence[int] = (),
    device: str | torch.device = "cpu",
) -> InvariantMean:
    """The mean of images up to pose: Algorithm 1, with (2.5) for the mean and (2.6), (2.7) for the poses.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c)
    weights : (n,) weights of the images, one column of W; equal by default.
    group, max_shift, max_scale : as for :func:`invariant_weights`.
    n_iter, step : how many descents' steps, and their learning rate.
    sigmas : smoothing levels; every step takes the one that lowers the objective (2.3) most (section 5).
    snapshots : iterations after which to keep the mean.

    Examples
    --------
    >>> blob = np.exp(-((np.indices((9, 9)) - 4.0) ** 2).sum(0) / 4)
    >>> shifted = np.stack([np.roll(blob, 1, axis=0), np.roll(blob, -1, axis=0)])
    >>> result = invariant_mean(shifted, n_iter=20)
    >>> bool(result.objective[-1] < 0.05 * result.objective[0])
    True
    """
    batch = as_batch(images).detach().to(device)
    channels = np.ndim(images[0]) == 3  # type: ignore[index]
    lie, bounds = _prepared(batch, group, max_shift, max_scale)
    _check_count("n_iter", n_iter)
    share = _checked_weights(weights, len(batch)).to(batch)
    kept: dict[int, NDArray] = {}

    def watch(done: int, target: Tensor) -> None:
        if done in snapshots:
            kept[done] = from_batch(target[0], channels=channels)

    found = descend(
        batch, torch.zeros(len(batch), dtype=torch.long, device=batch.device), share, lie,
        n_steps=n_iter, step=step, sigmas=tuple(sigmas), bounds=bounds, watch=watch,
    )  # fmt: skip
    return InvariantMean(
        mean=from_batch(found.targets[0], channels=channels),
        poses=found.poses.cpu().numpy(),
        objective=found.objective[:, 0].cpu().numpy(),
        snapshots=kept,
    )


def invariant_attention(
    images: ArrayLike | Tensor,
    group: str | Group = "se2",
    beta: float = 2.0,
    n_iter: int = 2,
    *,
    solver: str = "search",
    weight_steps: int = 30,
    mean_steps: int = 30,
    step: float = 1.0,
    sigmas: Sequence[float] = SMOOTHING_LEVELS,
    max_shift: float | None = None,
    max_scale: float = 1.5,
    progress: Callable[[str, int, int], None] | None = None,
    device: str | torch.device = "cpu",
) -> InvariantAttention:
    """Invariant Attention (section 2): weights (2.2), then every image becomes its invariant mean (2.3); repeat.

    Parameters
    ----------
    n_iter : rounds.
    solver : who finds the weights' poses, as for :func:`invariant_weights`. With ``"descent"`` means start from the
        identity as published; with ``"search"`` from the poses the search found.
    weight_steps, mean_steps : descent steps of a pair and of a mean.
    progress : called with a stage ("weights" or "means"), the round, and the number of rounds.

    Notes
    -----
    Labels are read off the last W: i and j are joined where ``gamma_ij`` is at least one half, that is where each gives
    the other at least half the weight it gives itself; clusters are what hangs together.
    """
    batch = as_batch(images).detach().to(device)
    channels = np.ndim(images[0]) == 3  # type: ignore[index]
    lie, bounds = _prepared(batch, group, max_shift, max_scale)
    _check_count("n_iter", n_iter)

    def weigh(batch: Tensor) -> InvariantWeights:
        return invariant_weights(
            batch.movedim(1, -1), lie, beta, solver=solver, n_steps=weight_steps, step=step, sigmas=sigmas,
            max_shift=max_shift, max_scale=max_scale, device=device,
        )  # fmt: skip

    stacks, found = [batch], [weigh(batch)]
    for done in range(n_iter):
        if progress is not None:
            progress("means", done, n_iter)
        weights = torch.from_numpy(found[-1].weights).to(batch)
        source, problem = (weights > _NEGLIGIBLE * weights.amax(0)).nonzero(as_tuple=True)
        order = torch.argsort(problem, stable=True)
        source, problem = source[order], problem[order]
        means = descend(
            stacks[-1][source], problem, weights[source, problem], lie,
            start=torch.from_numpy(found[-1].poses).to(batch)[source, problem] if solver == "search" else None,
            n_steps=mean_steps, step=step, sigmas=tuple(sigmas), bounds=bounds,
        )  # fmt: skip
        stacks.append(means.targets)
        if progress is not None:
            progress("weights", done + 1, n_iter)
        found.append(weigh(stacks[-1]))
    distances = [weights.distances for weights in found]
    return InvariantAttention(
        images=[from_batch(stack, channels=channels) for stack in stacks],
        weights=[weights.weights for weights in found],
        distances=distances,
        radii=np.array([matrix.max() for matrix in distances]),
        contractions=np.array([_contraction(*pair) for pair in itertools.pairwise(distances)]),
        labels=labels_from(found[-1].gamma),
    )


def labels_from(gamma: NDArray) -> NDArray:
    """Clusters of a similarity matrix: what hangs together through scores of at least one half, numbered by size."""
    _, labels = scipy.sparse.csgraph.connected_components(gamma >= 0.5, directed=False)
    order = np.argsort(-np.bincount(labels), kind="stable")
    return np.argsort(order)[labels]


def _contraction(before: NDArray, after: NDArray) -> float:
    """The largest factor by which a distance changed; pairs that had none cannot contract and do not count."""
    counts = before > 1e-6 * max(before.max(), np.finfo(float).tiny)
    return float((after[counts] / before[counts]).max()) if counts.any() else 0.0


def _column_normalised(gamma: NDArray) -> NDArray:
    return gamma / gamma.sum(0, keepdims=True)


def _prepared(batch: Tensor, group: str | Group, max_shift: float | None, max_scale: float) -> tuple[LieGroup, Bounds]:
    lie = parse_continuous(group)
    shift = 0.375 * max(batch.shape[-2:]) if max_shift is None else max_shift
    return lie, Bounds(shift, 1.0 if lie.is_isometric else max_scale)


def _checked_beta(beta: float) -> float:
    if not (np.isfinite(beta) and beta > 0):
        raise ValueError(f"beta must be a positive number, got {beta}")
    return float(beta)


def _checked_weights(weights: ArrayLike | None, n: int) -> Tensor:
    share = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    if share.shape != (n,):
        raise ValueError(f"weights must be one number for each of the {n} images, got shape {share.shape}")
    if not np.isfinite(share).all() or (share < 0).any() or not share.sum() > 0:
        raise ValueError("weights must be finite, not negative, and not all zero")
    return torch.from_numpy(share)


def _check_count(name: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
