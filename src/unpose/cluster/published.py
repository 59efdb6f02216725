"""Invariant Attention as published: kernel attention, invariant weights, invariant mean, and their iteration.

These are pure functions with the equation numbers of the paper. Images are ``(n, h, w)`` or ``(n, h, w, c)``, poses are
``dst_from_src`` (see CONVENTIONS). The kernel is ``exp(-beta ||u - v||^2)`` on the images as given, so ``beta`` must
suit their scale. With images of norm 1 and beta = 2, unrelated images still have about a tenth of the full weight and
all images converge to one mean; with norm 2 they have about a thousandth. Any other radial kernel can be given as a
function of the distance. ``solver="descent"`` is our reading of the published descent; :mod:`unpose.cluster.theorems`
has the quantities of the paper's theorems.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse.csgraph
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.align import orbit_distances
from unpose.align.descent import SMOOTHING_LEVELS, Bounds, descend
from unpose.groups import Group, LieGroup, parse_continuous
from unpose.images import as_batch, from_batch

__all__ = [
    "InvariantAttention",
    "InvariantMean",
    "InvariantWeights",
    "invariant_attention",
    "invariant_mean",
    "invariant_weights",
    "kernel_attention",
]

Kernel = Callable[[NDArray], NDArray]
"""A radial kernel: maps distances to scores, elementwise, and never rises."""

_NEGLIGIBLE = 1e-3
"""Images with less than this fraction of the largest weight are left out of a mean: they do not change it visibly."""


@dataclass(frozen=True)
class InvariantWeights:
    """Similarity up to pose of all pairs of n images, the result of :func:`invariant_weights`.

    Parameters
    ----------
    gamma : (n, n) array
        Similarity scores (2.2).
    weights : (n, n) array
        Attention: gamma with columns normalised to sum 1.
    distances : (n, n) array
        Orbit distances (3.2).
    poses : (n, n, 3, 3) array
        ``poses[i, j]`` brings image i onto image j.

    Examples
    --------
    >>> invariant_weights(np.eye(9)[None]).weights
    array([[1.]])
    """

    gamma: NDArray
    weights: NDArray
    distances: NDArray
    poses: NDArray


@dataclass(frozen=True)
class InvariantMean:
    """The mean of images that are aligned to it (2.3), the result of :func:`invariant_mean`.

    Parameters
    ----------
    mean : (h, w) or (h, w, c) array
        The mean.
    poses : (n, 3, 3) array
        Bring each image onto the mean.
    objective : (n_iter + 1,) array
        The objective (2.3) before the first iteration and after each.
    snapshots : dict of int to array
        The mean after the requested iterations.

    Examples
    --------
    >>> invariant_mean(np.eye(9)[None], n_iter=2).objective.shape
    (3,)
    """

    mean: NDArray
    poses: NDArray
    objective: NDArray
    snapshots: dict[int, NDArray]


@dataclass(frozen=True)
class InvariantAttention:
    """All rounds of Invariant Attention, the result of :func:`invariant_attention`; entry 0 is the input.

    Parameters
    ----------
    images : list of n_iter + 1 arrays
        The images after each round.
    weights : list of n_iter + 1 (n, n) arrays
        Attention W of the images of the same entry.
    distances : list of n_iter + 1 (n, n) arrays
        Orbit distances (3.2).
    labels : (n,) array of int
        Clusters, read from the last W.

    Examples
    --------
    >>> invariant_attention(np.eye(9)[None], n_iter=1).labels
    array([0])
    """

    images: list[NDArray]
    weights: list[NDArray]
    distances: list[NDArray]
    labels: NDArray


def kernel_attention(
    points: ArrayLike, beta: float = 2.0, n_iter: int = 1, *, kernel: str | Kernel = "rbf"
) -> list[NDArray]:
    """Plain kernel attention (2.1): replace each point by the kernel-weighted mean of all, ``n_iter`` times.

    Parameters
    ----------
    points : (n, ...) array
        Vectors or images; the axes after the first form one point.
    beta : float, default 2.0
        Of the kernel ``exp(-beta d^2)``; larger values give distant points less weight.
    n_iter : int, default 1
        Number of iterations.
    kernel : "rbf" or callable, default "rbf"
        The kernel: ``exp(-beta d^2)``, or a function of an array of distances that never rises; it ignores beta.

    Returns
    -------
    list of n_iter + 1 arrays
        The points before the first iteration and after each.

    Examples
    --------
    >>> trace = kernel_attention([[0.0], [0.2], [5.0]], beta=2.0, n_iter=3)
    >>> [round(float(x), 2) for x in trace[-1][:, 0]]
    [0.1, 0.1, 5.0]
    >>> kernel_attention([[0.0], [0.2], [5.0]], kernel=lambda d: 1.0 * (d < 1))[-1][:, 0]  # mean shift, flat kernel
    array([0.1, 0.1, 5. ])
    """
    score = _kernel(kernel, beta)
    _check_count("n_iter", n_iter)
    state = np.asarray(points, dtype=np.float64)
    if state.ndim < 2 or len(state) == 0:
        raise ValueError(f"points must be (n, ...) with at least one point, got shape {state.shape}")
    if not np.isfinite(state).all():
        raise ValueError("points must be finite, got NaN or infinite entries")
    trace = [state]
    for _ in range(n_iter):
        flat = state.reshape(len(state), -1)
        flat = flat - flat.mean(0)  # a large common part would cancel in the differences below
        energy = (flat**2).sum(1)
        squared = np.maximum(energy[:, None] + energy - 2 * flat @ flat.T, 0)
        np.fill_diagonal(squared, 0.0)
        weights = _column_normalised(score(np.sqrt(squared)))
        state = np.tensordot(weights.T, state, axes=1)  # v_j+ = sum_i v_i W_ij
        trace.append(state)
    return trace


def invariant_weights(
    images: ArrayLike | Tensor,
    group: str | Group = "se2",
    beta: float = 2.0,
    *,
    kernel: str | Kernel = "rbf",
    solver: str = "search",
    n_steps: int = 30,
    step: float = 1.0,
    sigmas: Sequence[float] = SMOOTHING_LEVELS,
    max_angle: float = math.pi,
    max_shift: float | None = None,
    max_scale: float = 1.5,
    device: str | torch.device = "cpu",
) -> InvariantWeights:
    """Similarity of all pairs up to pose: ``max over tau of exp(-beta ||v_i o tau - v_j||^2)`` (2.2).

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c) array
        Images.
    group : str or Group, default "se2"
        Continuous group of the poses tau.
    beta : float, default 2.0
        Of the kernel; see the module's docstring.
    kernel : "rbf" or callable, default "rbf"
        The kernel: ``exp(-beta d^2)``, or a function of an array of distances that never rises; it ignores beta.
    solver : {"search", "descent"}, default "search"
        ``"search"`` searches the whole group. ``"descent"`` is our reading of the published gradient descent from the
        identity, which converges from some tens of degrees.
    n_steps : int, default 30
        Steps of the descent; the search ignores it, ``step`` and ``sigmas``.
    step : float, default 1.0
        Learning rate of the descent.
    sigmas : sequence of float, default (0, 1, 2, 4)
        Smoothing levels of the descent in pixels.
    max_angle : float, default pi
        Largest rotation in radians; with less than pi the poses are a subset of the group (footnote 2).
    max_shift : float, optional
        Largest shift in pixels; three eighths of the larger side by default.
    max_scale : float, default 1.5
        Largest factor of scale, for groups with scales.
    device : str or torch.device, default "cpu"
        Where to compute.

    Returns
    -------
    InvariantWeights

    Notes
    -----
    Only one image of a pair moves, poses are bounded, and pixels that leave the frame still count. If both images could
    move, pushing both out of the frame or shrinking both would make any two images equal. Every pair is solved in both
    directions, and the better one counts: the two end in different local minima, and one pair of drawings scored 0.005
    in one order and 0.693 in the other. For an isometric group the result is then the paper's maximum over both sides.
    For poses that change area, the squared distance is divided by the square root of the change. Cost: n (n - 1)
    descents or searches.

    Examples
    --------
    >>> bars = np.zeros((2, 12, 12)); bars[0, 2:10, 5:7] = bars[1, 5:7, 2:10] = 1  # the same bar, turned
    >>> bool(invariant_weights(bars).gamma[0, 1] > 0.95)
    True
    """
    score = _kernel(kernel, beta)
    batch = as_batch(images).detach().to(device)
    lie, bounds = _prepared(batch, group, max_angle, max_shift, max_scale)
    if solver == "search":
        stack = batch.movedim(1, -1)
        distances, poses = orbit_distances(
            stack, stack, group=lie, max_angle=bounds.max_angle, max_shift=bounds.max_shift,
            max_scale=bounds.max_scale, device=device,
        )  # fmt: skip
    elif solver == "descent":
        distances, poses = _descended(batch, lie, bounds, n_steps, step, tuple(sigmas))
    else:
        raise ValueError(f"solver must be 'search' or 'descent', got {solver!r}")
    distances, poses = _better_direction(distances, poses)
    gamma = score(distances)
    return InvariantWeights(gamma, _column_normalised(gamma), distances, poses)


def _descended(
    batch: Tensor, group: LieGroup, bounds: Bounds, n_steps: int, step: float, sigmas: tuple[float, ...]
) -> tuple[NDArray, NDArray]:
    """Distances (n, n) and poses (n, n, 3, 3) of all ordered pairs, by the descent."""
    n = len(batch)
    distances, poses = np.zeros((n, n)), np.tile(np.eye(3, dtype=batch.cpu().numpy().dtype), (n, n, 1, 1))
    moving, fixed = (~torch.eye(n, dtype=torch.bool)).nonzero(as_tuple=True)
    if len(moving):
        found = descend(
            batch[moving], torch.arange(len(moving), device=batch.device), torch.ones_like(batch[moving, 0, 0, 0]),
            group, targets=batch[fixed], n_steps=n_steps, step=step, sigmas=sigmas, bounds=bounds,
        )  # fmt: skip
        distances[moving, fixed] = found.errors.double().sqrt().cpu().numpy()
        poses[moving, fixed] = found.poses.cpu().numpy()
    return distances, poses


def _better_direction(distances: NDArray, poses: NDArray) -> tuple[NDArray, NDArray]:
    """Take the smaller distance of both directions of each pair, with its pose or the inverse; zero on the diagonal."""
    opposite = distances > distances.T
    distances = np.minimum(distances, distances.T)
    poses = np.where(opposite[..., None, None], np.linalg.inv(poses).swapaxes(0, 1), poses)
    np.fill_diagonal(distances, 0.0)
    poses[np.arange(len(poses)), np.arange(len(poses))] = np.eye(3)
    return distances, poses


def invariant_mean(
    images: ArrayLike | Tensor,
    weights: ArrayLike | None = None,
    group: str | Group = "se2",
    *,
    n_iter: int = 50,
    step: float = 1.0,
    sigmas: Sequence[float] = SMOOTHING_LEVELS,
    start: ArrayLike | None = None,
    max_angle: float = math.pi,
    max_shift: float | None = None,
    max_scale: float = 1.5,
    snapshots: Sequence[int] = (),
    device: str | torch.device = "cpu",
) -> InvariantMean:
    """The mean of images up to pose: Algorithm 1, with (2.5) for the mean and (2.6), (2.7) for the poses.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c) array
        Images.
    weights : (n,) array, optional
        Weights of the images, a column of W; equal by default.
    group : str or Group, default "se2"
        Continuous group of the poses.
    n_iter : int, default 50
        Number of descent steps.
    step : float, default 1.0
        Learning rate.
    sigmas : sequence of float, default (0, 1, 2, 4)
        Smoothing levels; every step uses the one that lowers the objective (2.3) most (section 5).
    start : (n, 3, 3) array, optional
        Poses to start from; by default the identity, as published.
    max_angle : float, default pi
        Largest rotation in radians; with less than pi the poses are a subset of the group (footnote 2).
    max_shift : float, optional
        Largest shift in pixels; three eighths of the larger side by default.
    max_scale : float, default 1.5
        Largest factor of scale, for groups with scales.
    snapshots : sequence of int, default ()
        Iterations after which the mean is kept.
    device : str or torch.device, default "cpu"
        Where to compute.

    Returns
    -------
    InvariantMean

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
    lie, bounds = _prepared(batch, group, max_angle, max_shift, max_scale)
    _check_count("n_iter", n_iter)
    share = _checked_weights(weights, len(batch)).to(batch)
    kept: dict[int, NDArray] = {}

    def keep_snapshot(done: int, target: Tensor) -> None:
        if done in snapshots:
            kept[done] = from_batch(target[0], channels=channels)

    found = descend(
        batch, torch.zeros(len(batch), dtype=torch.long, device=batch.device), share, lie,
        start=None if start is None else torch.as_tensor(start).to(batch), n_steps=n_iter, step=step,
        sigmas=tuple(sigmas), bounds=bounds, watch=keep_snapshot,
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
    kernel: str | Kernel = "rbf",
    solver: str = "search",
    weight_steps: int = 30,
    mean_steps: int = 30,
    step: float = 1.0,
    sigmas: Sequence[float] = SMOOTHING_LEVELS,
    max_angle: float = math.pi,
    max_shift: float | None = None,
    max_scale: float = 1.5,
    progress: Callable[[str, int, int], None] | None = None,
    device: str | torch.device = "cpu",
) -> InvariantAttention:
    """Invariant Attention (section 2): compute weights (2.2), replace images by invariant means (2.3), and repeat.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c) array
        Images.
    group : str or Group, default "se2"
        Continuous group of the poses.
    beta : float, default 2.0
        Of the kernel; see the module's docstring.
    n_iter : int, default 2
        Number of rounds.
    kernel : "rbf" or callable, default "rbf"
        The kernel: ``exp(-beta d^2)``, or a function of an array of distances that never rises; it ignores beta.
    solver : {"search", "descent"}, default "search"
        How the poses of the weights are found, as for :func:`invariant_weights`. With ``"descent"`` the means start
        from the identity, as published; with ``"search"`` from the poses that the search found.
    weight_steps, mean_steps : int, default 30
        Descent steps of a pair, and of a mean.
    step : float, default 1.0
        Learning rate.
    sigmas : sequence of float, default (0, 1, 2, 4)
        Smoothing levels in pixels.
    max_angle : float, default pi
        Largest rotation in radians; with less than pi the poses are a subset of the group (footnote 2).
    max_shift : float, optional
        Largest shift in pixels; three eighths of the larger side by default.
    max_scale : float, default 1.5
        Largest factor of scale, for groups with scales.
    progress : callable, optional
        Called as ``progress(stage, round, n_iter)`` with the stages "weights" and "means".
    device : str or torch.device, default "cpu"
        Where to compute.

    Returns
    -------
    InvariantAttention

    Notes
    -----
    Labels are the connected components of the pairs that give each other at least half the weight that they give
    themselves.

    Examples
    --------
    >>> bars = np.zeros((3, 12, 12)); bars[0, 2:10, 5:7] = bars[1, 5:7, 2:10] = 1; bars[2, 3:9, 3:9] = 1
    >>> invariant_attention(bars, beta=2.0, n_iter=1, mean_steps=3).labels
    array([0, 0, 1])
    """
    batch = as_batch(images).detach().to(device)
    channels = np.ndim(images[0]) == 3  # type: ignore[index]
    lie, bounds = _prepared(batch, group, max_angle, max_shift, max_scale)
    _check_count("n_iter", n_iter)

    def weigh(batch: Tensor) -> InvariantWeights:
        return invariant_weights(
            batch.movedim(1, -1), lie, beta, kernel=kernel, solver=solver, n_steps=weight_steps, step=step,
            sigmas=sigmas, max_angle=max_angle, max_shift=max_shift, max_scale=max_scale, device=device,
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
    return InvariantAttention(
        images=[from_batch(stack, channels=channels) for stack in stacks],
        weights=[weights.weights for weights in found],
        distances=[weights.distances for weights in found],
        labels=labels_from(found[-1].gamma),
    )


def labels_from(gamma: NDArray) -> NDArray:
    """Connected components of the pairs with at least half the score of an image with itself, numbered by size."""
    _, labels = scipy.sparse.csgraph.connected_components(gamma >= 0.5 * gamma.diagonal().max(), directed=False)
    order = np.argsort(-np.bincount(labels), kind="stable")
    return np.argsort(order)[labels]


def _kernel(kernel: str | Kernel, beta: float) -> Kernel:
    """The kernel as a function of an array of distances, which checks its own values."""
    if not (np.isfinite(beta) and beta > 0):
        raise ValueError(f"beta must be a positive number, got {beta}")
    if kernel == "rbf":
        return lambda distances: np.exp(-beta * distances**2)
    if not callable(kernel):
        raise ValueError(f"kernel must be 'rbf' or a function of an array of distances, got {kernel!r}")

    def checked(distances: NDArray) -> NDArray:
        scores = np.asarray(kernel(distances), dtype=np.float64)
        if scores.shape != distances.shape or not np.isfinite(scores).all() or (scores < 0).any():
            raise ValueError("kernel must return one finite number of at least zero for each distance")
        if (np.diff(scores.ravel()[np.argsort(distances, axis=None)]) > 1e-12 * scores.max()).any():
            raise ValueError("kernel must not rise with the distance: the best pose is the one of least distance")
        if not (scores.diagonal() > 0).all():
            raise ValueError("kernel must be positive at distance zero")
        return scores

    return checked


def _column_normalised(gamma: NDArray) -> NDArray:
    return gamma / gamma.sum(0, keepdims=True)


def _prepared(
    batch: Tensor, group: str | Group, max_angle: float, max_shift: float | None, max_scale: float
) -> tuple[LieGroup, Bounds]:
    lie = parse_continuous(group)
    shift = 0.375 * max(batch.shape[-2:]) if max_shift is None else max_shift
    return lie, Bounds(shift, 1.0 if lie.is_isometric else max_scale, max_angle)


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
