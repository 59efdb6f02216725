"""Whether embeddings have collapsed: within classes, onto few directions, or onto few points."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unpose.audit.embeddings import checked_features, unit
from unpose.audit.orbit import OrbitOutputs
from unpose.audit.results import Plain

_ROUNDING = {np.dtype(np.float64): 1e-11}
"""Type of the features -> singular values below this share of the largest are rounding errors; 1e-5 for other types."""


@dataclass(frozen=True)
class CollapseReport(Plain):
    """The result of :func:`collapse` and :func:`pose_collapse`.

    Parameters
    ----------
    index : float
        Variability collapse index: 0 if all embeddings of a class are equal, near 1 if classes explain nothing.
    chance : float
        The expected index of random labels, ``1 - rank / (n - 1)``. An index far below it says that classes matter; if
        it is near 0 there are too few embeddings for their dimension, and the index says nothing.
    within : float
        Share of the variance that lies within classes, each direction as long as it is: large directions decide it,
        where the index counts all directions alike.
    rank : int
        Number of directions that the embeddings span.
    effective_rank : float
        Exponential of the eigenvalue entropy: 1 if all embeddings lie on one line, the dimension if isotropic.
    tree_length : float
        Mean edge of the minimum spanning tree of the embeddings scaled to length 1; 0 if all are equal.
    tree_reference : float
        The same for as many isotropic random embeddings of that dimension.

    Examples
    --------
    >>> report = collapse([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], [0, 0, 1, 1])
    >>> round(report.index, 6), report.rank
    (0.0, 1)
    """

    index: float
    chance: float
    within: float
    rank: int
    effective_rank: float
    tree_length: float
    tree_reference: float

    def __str__(self) -> str:
        lines = [
            f"variability collapse index {self.index:.3f} (0: a class is one point; random labels: {self.chance:.3f})",
            f"variance within classes {self.within:.1%}",
            f"effective rank {self.effective_rank:.1f} of {self.rank}",
            f"spanning tree edge {self.tree_length:.3f} (isotropic: {self.tree_reference:.3f})",
        ]
        if self.chance < 0.1:
            lines.append("note: too few embeddings for their dimension: the index is near 0 for any labels")
        return "\n".join(lines)


def collapse(features: ArrayLike, labels: ArrayLike) -> CollapseReport:
    """Measure the collapse of embeddings: within classes, onto few directions and onto few points.

    Parameters
    ----------
    features : (n, d) array
    labels : (n,) array
        Classes, or the number of the image that each embedding is a moved copy of.

    Returns
    -------
    CollapseReport

    Examples
    --------
    >>> features = np.random.default_rng(0).standard_normal((200, 5))
    >>> report = collapse(features, np.arange(200) % 4)
    >>> bool(report.index > 0.9), bool(report.effective_rank > 4.5)
    (True, True)
    """
    checked, directions = checked_features(features), _directions(features)
    rank = directions.shape[1]
    reference = np.random.default_rng(0).standard_normal(checked.shape)
    return CollapseReport(
        index=_collapse_index(directions, labels),
        chance=1 - rank / (len(checked) - 1),
        within=_within(checked, labels),
        rank=rank,
        effective_rank=effective_rank(checked),
        tree_length=spanning_tree_length(checked),
        tree_reference=spanning_tree_length(reference),
    )


def pose_collapse(orbit: OrbitOutputs) -> CollapseReport:
    """Measure whether pose has vanished from embeddings: the collapse of every orbit onto one point.

    Parameters
    ----------
    orbit : OrbitOutputs
        From :func:`orbit_outputs` of a function that returns embeddings.

    Returns
    -------
    CollapseReport
        With the images as classes. Only exact elements are used, or only the others, whichever are more, because images
        fade to zero for the latter.

    Examples
    --------
    >>> import torch
    >>> from unpose.audit import orbit_outputs
    >>> images = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> pose_collapse(orbit_outputs(lambda x: x.mean((2, 3)), images, "d4")).index < 1e-6
    True
    """
    n = len(orbit.upright)
    resampled = [row for row in orbit.rows if not row.exact]
    exact = [row for row in orbit.rows if row.exact]
    rows = resampled if len(resampled) > len(exact) else exact
    if len(rows) < 2:
        raise ValueError(
            f"pose_collapse needs at least two elements besides the identity, got {len(orbit.rows)} in all"
        )
    copies = [row.after.reshape(n, -1) for row in rows]
    if rows is resampled:
        copies.append(rows[0].before.reshape(n, -1))
    # Rounding errors of networks in float32 must not count as directions.
    return collapse(np.concatenate(copies).astype(np.float32), np.tile(np.arange(n), len(copies)))


def variability_collapse(features: ArrayLike, labels: ArrayLike) -> float:
    """The variability collapse index ``1 - tr(pinv(total) between) / rank(between)`` (Xu and Liu 2023).

    Parameters
    ----------
    features : (n, d) array
    labels : (n,) array
        At least two classes.

    Returns
    -------
    float
        In [0, 1]; 0 at full collapse. Invertible linear maps of the features do not change it.

    Notes
    -----
    With singular vectors U (n, r) of the centred features the trace is ``sum_c |sum_{i in c} U_i|^2 / n_c``: neither
    covariance is formed nor inverted, so that badly scaled features lose no digits.

    Examples
    --------
    >>> variability_collapse([[0.0], [0.0], [1.0], [1.0]], [0, 0, 1, 1])
    0.0
    """
    return _collapse_index(_directions(features), labels)


def _collapse_index(directions: NDArray, labels: ArrayLike) -> float:
    """The variability collapse index of features with these directions (n, r)."""
    classes, members = np.unique(np.asarray(labels), return_inverse=True)
    if members.shape != (len(directions),) or len(classes) < 2:
        raise ValueError(
            f"labels must be ({len(directions)},), one per embedding, and name at least two classes, "
            f"got shape {np.shape(labels)} and {len(classes)} classes"
        )
    if not directions.shape[1]:
        raise ValueError("all embeddings are equal: nothing varies, so no share of it can lie between classes")
    sums = np.zeros((len(classes), directions.shape[1]))
    np.add.at(sums, members, directions)
    explained = np.linalg.svd(sums / np.sqrt(np.bincount(members))[:, None], compute_uv=False) ** 2  # in [0, 1]
    value = 1 - explained.sum() / max((explained > 1e-12).sum(), 1)
    return float(max(value, 0.0)) if value > 1e-12 else 0.0


def effective_rank(features: ArrayLike) -> float:
    """Exponential of the von Neumann entropy of the autocorrelation of embeddings scaled to length 1 (Kim et al. 2023).

    Parameters
    ----------
    features : (n, d) array

    Returns
    -------
    float
        1 if all embeddings lie on one line, d if they are isotropic.

    Examples
    --------
    >>> round(effective_rank(np.eye(4)), 6), round(effective_rank(np.ones((3, 5))), 6)
    (4.0, 1.0)
    """
    scaled = unit(checked_features(features))
    eigenvalues = np.linalg.svd(scaled, compute_uv=False) ** 2
    if not eigenvalues.sum():
        raise ValueError("all embeddings are zero: they have no directions")
    shares = eigenvalues[eigenvalues > 0] / eigenvalues.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def spanning_tree_length(features: ArrayLike) -> float:
    """Mean edge of the Euclidean minimum spanning tree of embeddings scaled to length 1 (Mordacq et al. 2025).

    Parameters
    ----------
    features : (n, d) array
        At least two embeddings.

    Returns
    -------
    float
        0 if all embeddings are equal up to their length.

    Notes
    -----
    Prim's algorithm, n^2 distances. Sparse graph libraries take equal points, at distance 0, as unconnected.

    Examples
    --------
    >>> round(spanning_tree_length(np.eye(3)), 6)
    1.414214
    """
    points = unit(checked_features(features))
    if len(points) < 2:
        raise ValueError(f"a spanning tree needs at least two embeddings, got {len(points)}")
    outside = np.ones(len(points), dtype=bool)
    distance, current, total = np.full(len(points), np.inf), 0, 0.0
    for _ in range(len(points) - 1):
        outside[current] = False
        distance = np.minimum(distance, np.linalg.norm(points - points[current], axis=1))
        current = int(np.where(outside, distance, np.inf).argmin())
        total += distance[current]
    return float(total / (len(points) - 1))


def _within(features: NDArray, labels: ArrayLike) -> float:
    """Share of the variance (n, d) within classes; NaN if nothing varies."""
    members = np.unique(np.asarray(labels), return_inverse=True)[1]
    sums = np.zeros((members.max() + 1, features.shape[1]))
    np.add.at(sums, members, features)
    residuals = features - (sums / np.bincount(members)[:, None])[members]
    total = np.square(features - features.mean(0)).sum()
    return float(np.square(residuals).sum() / total) if total else np.nan


def _directions(features: ArrayLike) -> NDArray:
    """Left singular vectors (n, r) of the centred features; their span does not change under invertible maps."""
    smallest = _ROUNDING.get(np.asarray(features).dtype, 1e-5)
    checked = checked_features(features)
    left, values, _ = np.linalg.svd(checked - checked.mean(0), full_matrices=False)
    size = max(values[0], smallest * np.abs(checked).max())  # of equal features only rounding errors are left
    directions: NDArray = left[:, values > smallest * size]
    return directions
