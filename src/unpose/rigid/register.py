"""Register two point clouds: the rigid motion that brings one onto the other, with unknown correspondence.

Three stages. *Seeds*: moments of invariant functions of the points give rotations in closed form, without any
correspondence; rotations of a uniform grid join them, because moments fail for symmetric and for partly overlapping
clouds. *Trimmed iterated closest points* from the best seeds, on small samples, leave a few distinct candidates. The
best is then *refined* by maximum likelihood with soft correspondence, which is unbiased where noise exceeds the
distance of neighbouring points, as closest points are not.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation
from torch import Tensor

from unpose.rigid.correspondence import Fit, Mixture, as_pose, move, procrustes, refine, rigid

_GRID = {2: 48, 3: 576}  # rotations of the uniform grid: 7.5 degrees apart in the plane, about 25 in space
_SCORED, _SAMPLE = 160, 600  # points at which seeds are scored, and that take part in closest-point iterations
_FINALISTS = 24  # seeds that closest-point iterations start from; four times as many where the first result is doubtful
_KEPT = 0.7  # share of the points that are compared while the overlap is unknown
_REFINED = 100_000  # points of each cloud in the refinement
_TIED, _TRIED = 1.4, 4  # candidates within this factor of the best residual are refined, at most so many
_SAME = 1.15  # candidates within this factor of the best residual are reported as alternatives


@dataclass(frozen=True)
class Registration:
    """The result of :func:`register`.

    Parameters
    ----------
    pose : array of shape (d + 1, d + 1)
        ``b_from_a``: brings the first cloud onto the second.
    residual : float
        Root mean square distance between matched points, in the unit of the clouds.
    overlap : float
        Share of the points of ``b`` that the moved cloud ``a`` explains; the others are outliers or not in ``a``.
    margin : float
        How much larger the residual of the best clearly different pose is, relative to the best; 0 for symmetric
        shapes, infinite if all searches ended in one pose.
    alternatives : array of shape (k, d + 1, d + 1)
        Other poses that fit about equally well: those of a symmetric shape.
    notes : tuple of str
        What makes the result doubtful, in words; empty if nothing does.

    Examples
    --------
    >>> a = np.random.default_rng(0).normal(size=(50, 3)) * (1, 2, 3)
    >>> found = register(a, a + 1)
    >>> np.allclose(found.pose[:3, 3], 1), found.reliable
    (True, True)
    """

    pose: NDArray
    residual: float
    overlap: float
    margin: float
    alternatives: NDArray
    notes: tuple[str, ...]

    @property
    def reliable(self) -> bool:
        """Whether nothing speaks against the result: see ``notes``."""
        return not self.notes

    def _repr_html_(self) -> str:
        """The motion and how well it fits, for notebooks."""
        from unpose.report import table_html

        d = len(self.pose) - 1
        title = "b_from_a, found and reliable" if self.reliable else "b_from_a, found but doubtful"
        motion = {f"linear {axis}": self.pose[:d, axis].tolist() for axis in range(d)}
        fit = f"residual {self.residual:.3g}; {self.overlap:.0%} of b explained; margin {self.margin:.3g}"
        return table_html({**motion, "shift": self.pose[:d, d].tolist()}, title=title, notes=[fit, *self.notes])


def register(
    a: ArrayLike | Tensor, b: ArrayLike | Tensor, *, mirrors: bool = False, random_state: int = 0
) -> Registration:
    """Find the rigid motion that brings the cloud ``a`` onto the cloud ``b``; nobody says which points correspond.

    Parameters
    ----------
    a, b : arrays of shape (n, d) and (m, d), d = 2 or 3
        Point clouds in one unit; at least three points each.
    mirrors : bool, default False
        Whether motions with a mirror are tried, too.
    random_state : int, default 0
        Seed of the samples that are drawn from large clouds.

    Returns
    -------
    Registration
        Pose, residual, overlap, margin, alternatives and what is doubtful about them.

    Notes
    -----
    The search covers all rotations. Shifts start from the centroids and from the spatial medians, so that clouds should
    share about half of their points or more. Scale is not estimated.

    Examples
    --------
    >>> from unpose.groups import parse, transform
    >>> import torch
    >>> generator = torch.Generator().manual_seed(1)
    >>> motion = parse("se3").random(1, generator=generator, dtype=torch.float64)[0]
    >>> cloud = torch.rand(100, 3, generator=generator, dtype=torch.float64) ** 2
    >>> found = register(cloud, transform(motion, cloud).flip(0))
    >>> bool(np.abs(found.pose - motion.numpy()).max() < 1e-6)
    True
    """
    first, second = _as_cloud(a, "a"), _as_cloud(b, "b")
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"both clouds must have points of one dimension, got {first.shape[1]} and {second.shape[1]}")
    rng = np.random.default_rng(random_state)
    # One unit for all thresholds, the size of the cloud, and both clouds at the origin: neither sees outliers.
    from_centre, centre = _spatial_median(first), _spatial_median(second)
    distances = np.linalg.norm(second - centre, axis=1)
    size = float(np.median(distances) or distances.mean())  # most points may coincide
    # In random order, so that the first points are a sample.
    ours, theirs = (rng.permutation(cloud) / size for cloud in (first - from_centre, second - centre))
    pair = _Pair(ours[: 4 * _SAMPLE], theirs[: 4 * _SAMPLE])
    refined: list[tuple[NDArray, Fit]] = []
    found = _search(ours, theirs, pair, mirrors, _FINALISTS, refined)
    if found.notes:  # partial overlap needs more starts; symmetric shapes stay doubtful
        more = _search(ours, theirs, pair, mirrors, 4 * _FINALISTS, refined)
        found = more if more.residual <= found.residual or not more.notes else found

    def in_units(pose: NDArray) -> NDArray:
        rotation = pose[:-1, :-1]
        return as_pose(rotation, size * pose[:-1, -1] + centre - rotation @ from_centre)

    others = np.array([in_units(pose) for pose in found.alternatives]).reshape(-1, *found.pose.shape)
    return replace(found, pose=in_units(found.pose), residual=found.residual * size, alternatives=others)


def _search(
    a: NDArray, b: NDArray, pair: "_Pair", mirrors: bool, finalists: int, refined: list[tuple[NDArray, Fit]]
) -> Registration:
    """Register clouds of unit size from the best seeds; ``refined`` keeps the results of refinement."""
    candidates = _distinct([pair.iterate(pose) for pose in _best_seeds(a, b, pair, mirrors, finalists)])
    near_ties = [pose for pose, residual in candidates if residual <= _TIED * candidates[0][1]][:_TRIED]
    mixture = Mixture(pair.a, pair.b)
    fits = [mixture.maximise(Fit(pose, pair.residual(pose) ** 2, 0.1), steps=60) for pose in near_ties]
    fits = sorted(fits, key=lambda fit: fit.cost)
    same = [fit for start, fit in refined if np.allclose(start, fits[0].pose, atol=1e-2)]
    best = same[0] if same else refine(fits[0], a[:_REFINED], b[:_REFINED])
    refined.append((fits[0].pose, best))
    residual = pair.residual(best.pose)
    others = _distinct([(fit.pose, pair.residual(fit.pose)) for fit in fits] + candidates[len(near_ties) :])
    others = [each for each in others if not _is_near(each[0], best.pose)]
    alike = [pose for pose, other in others if other <= _SAME * residual + 1e-9]
    margin = max(0.0, min((other for _, other in others), default=math.inf) / max(residual, 1e-9) - 1)
    notes = _doubts(a, b, best, residual, pair.wrong_residual(best.pose), len(alike))
    return Registration(best.pose, best.noise, 1 - best.outliers, margin, np.array(alike), notes)


def moment_rotations(a: NDArray, b: NDArray, mirrors: bool = False) -> list[NDArray]:
    """Rotations (d, d) that bring moments of centred clouds (n, d), (m, d) onto each other, in closed form.

    A function of the distance from the centroid is invariant, so that the moments ``E[w_k(|x|) x]`` turn with the
    cloud: matched over shells k they give one rotation by orthogonal Procrustes. Principal axes give the others, one
    for every combination of signs.
    """
    shells = [_shell_moments(cloud) for cloud in (a, b)]  # (k, d) each
    found = [procrustes(shells[0].T @ shells[1], 0 if mirrors else 1)]
    axes = [np.linalg.eigh(cloud.T @ cloud / len(cloud))[1] for cloud in (a, b)]  # columns, smallest first
    for signs in np.ndindex(*(2,) * a.shape[1]):
        rotation = axes[1] @ np.diag(1.0 - 2.0 * np.array(signs)) @ axes[0].T
        if mirrors or np.linalg.det(rotation) > 0:
            found.append(rotation)
    return found


def _shell_moments(cloud: NDArray) -> NDArray:
    """First moments of a centred cloud (n, d) weighted by functions of the distance: (6, d)."""
    radius = np.linalg.norm(cloud, axis=1)
    radius = radius / max(math.sqrt(float((radius**2).mean())), 1e-300)
    weights = np.exp(-0.5 * ((radius[:, None] - np.array([0.3, 0.6, 0.9, 1.2, 1.5, 1.8])) / 0.2) ** 2)  # (n, 6)
    return weights.T @ cloud / len(cloud)


class _Pair:
    """Samples of two clouds with their trees: closest-point residuals in both directions, trimmed."""

    def __init__(self, a: NDArray, b: NDArray) -> None:
        self.a, self.b = a, b
        self.tree_a, self.tree_b = cKDTree(a), cKDTree(b)
        self.few_a, self.few_b = a[:_SAMPLE], b[:_SAMPLE]

    def scores(self, poses: NDArray) -> NDArray:
        """Trimmed mean square distances of some points of a, moved by each of the poses (p, d + 1, d + 1): (p,)."""
        points = self.a[:_SCORED]
        moved = np.einsum("pij,nj->pni", poses[:, :-1, :-1], points) + poses[:, None, :-1, -1]
        distances = self.tree_b.query(moved.reshape(-1, points.shape[1]))[0].reshape(len(poses), -1)
        kept = _kept(points)
        return np.square(np.partition(distances, kept - 1, axis=1)[:, :kept]).mean(1)

    def residual(self, pose: NDArray) -> float:
        """Root of the trimmed mean square distance, over both directions."""
        total = 0.0
        for points, tree, motion in ((self.few_a, self.tree_b, pose), (self.few_b, self.tree_a, np.linalg.inv(pose))):
            distances = np.sort(tree.query(move(motion, points))[0])
            total += float(np.square(distances[: _kept(points)]).mean())
        return math.sqrt(total / 2)

    def wrong_residual(self, pose: NDArray) -> float:
        """The residual that closest-point iterations typically reach from a wrong pose."""
        d, centre = len(pose) - 1, self.few_a.mean(0)
        turns = _grid(d, False)[:: _GRID[d] // 12]
        ends = [self.iterate(pose @ as_pose(turn, centre - turn @ centre), 8) for turn in turns]
        wrong = [residual for end, residual in ends if not _is_near(end, pose)]
        return float(np.median(wrong)) if wrong else math.inf

    def iterate(self, pose: NDArray, steps: int = 20) -> tuple[NDArray, float]:
        """Trimmed closest-point iterations in both directions, with the residual at their end."""
        handed = np.sign(np.linalg.det(pose[:-1, :-1]))
        for _ in range(steps):
            near_b, index_b = self.tree_b.query(move(pose, self.few_a))
            near_a, index_a = self.tree_a.query(move(np.linalg.inv(pose), self.few_b))
            rows_a, rows_b = np.argsort(near_b)[: _kept(near_b)], np.argsort(near_a)[: _kept(near_a)]
            source = np.concatenate([self.few_a[rows_a], self.a[index_a[rows_b]]])
            target = np.concatenate([self.b[index_b[rows_a]], self.few_b[rows_b]])
            new = rigid(source, target, np.ones(len(source)), handed)
            change, pose = np.abs(new - pose).max(), new
            if change < 1e-4:
                break
        return pose, self.residual(pose)


def _best_seeds(a: NDArray, b: NDArray, pair: _Pair, mirrors: bool, count: int) -> list[NDArray]:
    """The poses at which closest-point iterations start: the best of moments and grid, with two choices of centres."""
    seeds = []
    for from_a, from_b in ((a.mean(0), b.mean(0)), (_spatial_median(a), _spatial_median(b))):
        for rotation in (*moment_rotations(a - from_a, b - from_b, mirrors), *_grid(a.shape[1], mirrors)):
            seeds.append(as_pose(rotation, from_b - rotation @ from_a))
    poses = np.array(seeds)
    return list(poses[np.argsort(pair.scores(poses), kind="stable")[:count]])


def _grid(d: int, mirrors: bool) -> NDArray:
    """Rotations spread evenly over the circle, or over SO(3) by super-Fibonacci spirals (Alexa, 2022)."""
    s = np.arange(_GRID[d]) + 0.5
    share = s / _GRID[d]
    if d == 2:
        rotations = Rotation.from_rotvec(np.outer(2 * math.pi * share, [0, 0, 1])).as_matrix()[:, :2, :2]
    else:
        low, high = np.sqrt(share), np.sqrt(1 - share)
        alpha, beta = 2 * math.pi * s / math.sqrt(2), 2 * math.pi * s / 1.533751168755204288
        quaternions = (low * np.sin(alpha), low * np.cos(alpha), high * np.sin(beta), high * np.cos(beta))
        rotations = Rotation.from_quat(np.stack(quaternions, axis=1)).as_matrix()
    mirrored = rotations * np.array([-1.0] + [1.0] * (d - 1))
    return np.concatenate([rotations, mirrored]) if mirrors else rotations


def _distinct(candidates: list[tuple[NDArray, float]]) -> list[tuple[NDArray, float]]:
    """The candidates that differ clearly from all better ones: by 15 degrees or by a third of the size."""
    kept: list[tuple[NDArray, float]] = []
    for pose, residual in sorted(candidates, key=lambda each: each[1]):
        if not any(_is_near(pose, other) for other, _ in kept):
            kept.append((pose, residual))
    return kept


def _is_near(one: NDArray, other: NDArray) -> bool:
    turn = one[:-1, :-1].T @ other[:-1, :-1]
    # |R - 1|^2 = 8 sin^2(angle / 2), in the plane and in space
    is_turned = np.linalg.norm(turn - np.eye(len(turn))) >= math.sqrt(8) * math.sin(math.radians(7.5))
    return not is_turned and bool(np.linalg.norm(one[:-1, -1] - other[:-1, -1]) < 1 / 3)


def _doubts(a: NDArray, b: NDArray, best: Fit, residual: float, wrong: float, n_alike: int) -> tuple[str, ...]:
    notes = []
    for cloud, name in ((a, "a"), (b, "b")):
        spread = np.linalg.svd(cloud - cloud.mean(0), compute_uv=False)
        if spread[1] < 1e-6 * spread[0]:
            notes.append(f"the points of {name} lie on one line: the rotation about it is undetermined")
        elif len(spread) == 3 and spread[2] < 1e-6 * spread[0]:
            notes.append(f"the points of {name} lie in one plane: a mirror image fits as well as the cloud itself")
    if n_alike:
        notes.append(f"{n_alike} other poses fit about as well: the shape is symmetric, or nearly")
    if best.outliers > 0.5:
        notes.append(f"only {(1 - best.outliers):.0%} of the points of b are explained")
    if residual > 0.8 * wrong:
        notes.append("the best pose fits hardly better than a typical wrong one: the clouds may show different things")
    return tuple(notes)


def _as_cloud(points: ArrayLike | Tensor, name: str) -> NDArray:
    array = points.detach().cpu().numpy() if isinstance(points, Tensor) else np.asarray(points)
    if array.ndim != 2 or array.shape[1] not in (2, 3):
        raise ValueError(f"{name} must be an array (n, 2) or (n, 3) of points, got shape {array.shape}")
    array = array.astype(np.float64)
    if len(array) < 3:
        raise ValueError(f"{name} must have at least three points, got {len(array)}")
    if bad := int((~np.isfinite(array)).any(1).sum()):
        raise ValueError(f"{bad} points of {name} hold NaN or infinity; remove them first")
    if not np.ptp(array, axis=0).max() > 0:
        raise ValueError(f"all points of {name} coincide, so that no rotation can be found")
    return array


def _spatial_median(cloud: NDArray, steps: int = 30) -> NDArray:
    """The point with the least sum of distances (Weiszfeld); it turns with the cloud and hardly sees outliers."""
    centre = np.asarray(cloud.mean(0))
    floor = 1e-6 * float(np.ptp(cloud, axis=0).max())
    for _ in range(steps):
        weights = 1 / np.maximum(np.linalg.norm(cloud - centre, axis=1), floor)
        centre = weights @ cloud / weights.sum()
    return np.asarray(centre)


def _kept(points: NDArray) -> int:
    """How many points are compared while the overlap is unknown."""
    return max(min(3, len(points)), round(_KEPT * len(points)))
