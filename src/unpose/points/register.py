"""Register two point clouds: the rigid motion that brings one onto the other, with unknown correspondence.

Three stages. *Seeds*: moments of invariant functions of the points give rotations in closed form, without any
correspondence; rotations of a uniform grid join them, because moments fail for symmetric and for partly overlapping
clouds. *Trimmed iterated closest points* from the best seeds, on small samples, leave a few distinct candidates. The
best is then *refined* by maximum likelihood: the second cloud is a sample of a Gaussian mixture around the moved first
one, plus uniform outliers. Soft correspondence is unbiased where noise exceeds the distance of neighbouring points,
which closest points are not.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.spatial import cKDTree
from torch import Tensor

_GRID = {2: 48, 3: 576}
"""Rotations of the uniform grid: 7.5 degrees apart in the plane, about 25 in space."""
_SCORED = 160
"""Points of a sample at which every seed is scored."""
_SAMPLE = 600
"""Points of a sample in closest-point iterations."""
_FINALISTS = 24
"""Seeds that closest-point iterations start from; four times as many where the first result is doubtful."""
_KEPT = 0.7
"""Share of the points that are compared while the overlap is unknown."""
_REFINED = 10_000
"""Points of b that take part in the refinement; ten times as many of a, so that most of them have a counterpart."""
_MIXTURE = 32
"""Nearest components of the mixture that can explain a point."""
_MERGED = 0.8
"""Side of the cells whose points are merged, in standard deviations of the noise."""
_TIED, _TRIED = 1.4, 4
"""Candidates within this factor of the best residual are refined, at most so many; the likelihood decides."""
_SAME = 1.15
"""Candidates whose residual is within this factor of the best one's are reported as alternatives."""
_LEAST = 1e-7
"""Least standard deviation of the mixture, in units of the size."""
_PLANE, _FLAT = 12, 0.25
"""Neighbours that span a tangent plane; ratio of variances across and along it below which clouds are surfaces."""


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
        motion = {
            **{f"linear {axis}": self.pose[:d, axis].tolist() for axis in range(d)},
            "shift": self.pose[:d, d].tolist(),
        }
        fit = f"residual {self.residual:.3g}; {self.overlap:.0%} of b explained; margin {self.margin:.3g}"
        return table_html(motion, title=title, notes=[fit, *self.notes])


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
    from_centre, centre, size = _spatial_median(first), _spatial_median(second), _size(second)
    ours, theirs = (first - from_centre) / size, (second - centre) / size
    pair = _Pair(_some(ours, 4 * _SAMPLE, rng), _some(theirs, 4 * _SAMPLE, rng))
    samples = _some(ours, 10 * _REFINED, rng), _some(theirs, _REFINED, rng)
    found = _search(ours, theirs, pair, samples, mirrors, _FINALISTS)
    if found.notes:  # partial overlap needs more starts; symmetric shapes stay doubtful
        more = _search(ours, theirs, pair, samples, mirrors, 4 * _FINALISTS)
        found = more if more.residual <= found.residual or not more.notes else found
    return replace(
        found,
        pose=_in_units(found.pose, from_centre, centre, size),
        residual=found.residual * size,
        alternatives=np.array([_in_units(pose, from_centre, centre, size) for pose in found.alternatives]).reshape(
            -1, *found.pose.shape
        ),
    )


def _search(
    a: NDArray, b: NDArray, pair: "_Pair", samples: tuple[NDArray, NDArray], mirrors: bool, finalists: int
) -> Registration:
    """Register clouds of unit size from the best seeds."""
    candidates = _distinct([pair.iterate(pose) for pose in _best_seeds(a, b, pair, mirrors, finalists)])
    near_ties = [pose for pose, residual in candidates if residual <= _TIED * candidates[0][1]][:_TRIED]
    fits = sorted((_fit_sample(pose, pair) for pose in near_ties), key=lambda fit: fit.cost)
    best = _refine(fits[0], pair, samples)
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
    d = a.shape[1]
    shells = [_shell_moments(cloud) for cloud in (a, b)]  # (k, d) each
    found = [_procrustes(shells[0].T @ shells[1], mirrors)]
    axes = [np.linalg.eigh(cloud.T @ cloud / len(cloud))[1] for cloud in (a, b)]  # columns, smallest first
    for signs in np.ndindex(*(2,) * d):
        rotation = axes[1] @ np.diag(1.0 - 2.0 * np.array(signs)) @ axes[0].T
        if mirrors or np.linalg.det(rotation) > 0:
            found.append(rotation)
    return found


@dataclass(frozen=True)
class _Fit:
    """A pose with the parameters of the mixture."""

    pose: NDArray
    variance: float  # of each coordinate
    outliers: float  # share of b
    cost: float = math.inf  # negative log-likelihood per point

    @property
    def noise(self) -> float:
        """Root mean square distance of matched points."""
        return math.sqrt((len(self.pose) - 1) * self.variance)


class _Pair:
    """Samples of two clouds with their trees: closest-point residuals in both directions, trimmed."""

    def __init__(self, a: NDArray, b: NDArray) -> None:
        self.a, self.b = a, b
        self.tree_a, self.tree_b = cKDTree(a), cKDTree(b)
        # The points of a sample come in no order, so that its first ones are a sample, too.
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
            distances = np.sort(tree.query(_move(motion, points))[0])
            total += float(np.square(distances[: _kept(points)]).mean())
        return math.sqrt(total / 2)

    def wrong_residual(self, pose: NDArray) -> float:
        """The residual that closest-point iterations typically reach from a wrong pose."""
        d = len(pose) - 1
        turns = _grid(d, False)[:: _GRID[d] // 12]
        centre = self.few_a.mean(0)
        starts = [pose @ _pose(turn, centre - turn @ centre) for turn in turns]
        ends = [each for each in (self.iterate(start, 8) for start in starts) if not _is_near(each[0], pose)]
        return float(np.median([residual for _, residual in ends])) if ends else math.inf

    def iterate(self, pose: NDArray, steps: int = 20) -> tuple[NDArray, float]:
        """Trimmed closest-point iterations in both directions, with the residual at their end."""
        mirrored = np.linalg.det(pose[:-1, :-1]) < 0
        for _ in range(steps):
            near_b, index_b = self.tree_b.query(_move(pose, self.few_a))
            near_a, index_a = self.tree_a.query(_move(np.linalg.inv(pose), self.few_b))
            rows_a, rows_b = np.argsort(near_b)[: _kept(near_b)], np.argsort(near_a)[: _kept(near_a)]
            source = np.concatenate([self.few_a[rows_a], self.a[index_a[rows_b]]])
            target = np.concatenate([self.b[index_b[rows_a]], self.few_b[rows_b]])
            new = _rigid(source, target, np.ones(len(source)), mirrored)
            change, pose = np.abs(new - pose).max(), new
            if change < 1e-4:
                break
        return pose, self.residual(pose)


def _fit_sample(pose: NDArray, pair: _Pair) -> _Fit:
    """Maximise the likelihood on the small samples."""
    return _Mixture(pair.a, pair.b).maximise(_Fit(pose, pair.residual(pose) ** 2, 0.1), steps=60)


def _refine(fit: _Fit, pair: _Pair, samples: tuple[NDArray, NDArray]) -> _Fit:
    """Maximise the likelihood on larger samples; clouds that sample a surface then slide along its tangent planes."""
    mixture = _Mixture(*samples, noise=math.sqrt(fit.variance))
    if len(samples[0]) > len(pair.a) or len(samples[1]) > len(pair.b):
        fit = mixture.maximise(fit, steps=4)
    fit = mixture.climb(fit)
    return replace(fit, pose=_slide(fit.pose, *samples, reach=3 * fit.noise))


class _Mixture:
    """The likelihood of b as a sample of Gaussians around the moved points of a, with uniform outliers."""

    def __init__(self, a: NDArray, b: NDArray, noise: float = 0.0) -> None:
        # Points much closer together than the noise are merged, so that few components explain a point completely.
        self.a, shares = _merge(a, _MERGED * noise)
        self.log_shares = np.log(shares)
        self.b, self.d = b, a.shape[1]
        self.tree = cKDTree(self.a)
        self.volume = float(np.prod(np.ptp(b, axis=0) + 1e-6))
        self.index: NDArray | None = None

    def maximise(self, fit: _Fit, steps: int) -> _Fit:
        """Expectation maximisation over pose, variance and share of outliers."""
        pose, variance, outliers = fit.pose, max(fit.variance, _LEAST**2), fit.outliers
        mirrored = np.linalg.det(pose[:-1, :-1]) < 0
        for step in range(steps):
            if step % 5 == 0:
                self.index = None  # the nearest components hardly change from step to step
            weights, index, _ = self.explain(pose, variance, outliers)
            matched = weights.sum(1)
            total = float(matched.sum())
            if total < 3:
                break
            means = np.einsum("nk,nkd->nd", weights, self.a[index]) / np.maximum(matched, 1e-300)[:, None]
            new = _rigid(means, self.b, matched, mirrored)
            squares = np.square(_move(np.linalg.inv(new), self.b)[:, None] - self.a[index]).sum(2)
            next_variance = max(float((weights * squares).sum() / (self.d * total)), _LEAST**2)
            outliers = float(np.clip(1 - total / len(self.b), 1e-4, 0.9))
            settled = np.abs(new - pose).max() < 1e-6 and abs(next_variance / variance - 1) < 1e-3
            pose, variance = new, next_variance
            if settled:
                break
        return _Fit(pose, variance, outliers, self.explain(pose, variance, outliers)[2])

    def climb(self, fit: _Fit) -> _Fit:
        """Quasi-Newton end of the pose: expectation maximisation is slow where noise exceeds the spacing of points."""
        pose, variance, outliers = fit.pose, fit.variance, fit.outliers
        if variance < (10 * _LEAST) ** 2:
            return fit
        unit = math.sqrt(variance / len(self.b))

        def cost(step: NDArray) -> tuple[float, NDArray]:
            self.index = None  # components of an earlier pose would hold the points back
            moved = _small_motion(step * unit, self.d) @ pose
            weights, index, value = self.explain(moved, variance, outliers)
            means = np.einsum("nk,nkd->nd", weights, self.a[index])  # (n, d), times the sum of the weights
            force = (weights.sum(1)[:, None] * _move(np.linalg.inv(moved), self.b) - means) @ moved[:-1, :-1].T
            gradient = np.concatenate([force.sum(0), _torque(self.b, force)])
            return value * len(self.b), -gradient * unit / variance

        found = minimize(cost, np.zeros(self.d * (self.d + 1) // 2), jac=True, method="BFGS", options={"maxiter": 12})
        return replace(fit, pose=_small_motion(found.x * unit, self.d) @ pose)

    def explain(self, pose: NDArray, variance: float, outliers: float) -> tuple[NDArray, NDArray, float]:
        """Posterior weights (n, k) of the components (n, k) for each point of b, and the cost per point."""
        back = _move(np.linalg.inv(pose), self.b)
        if self.index is None:
            k = min(_MIXTURE, len(self.a))
            self.index = self.tree.query(back, k=k)[1].reshape(len(self.b), k)
        squares = np.square(back[:, None] - self.a[self.index]).sum(2)  # (n, k)
        log_norm = math.log(1 - outliers) - 0.5 * self.d * math.log(2 * math.pi * variance)
        exponent = log_norm + self.log_shares[self.index] - 0.5 * squares / variance
        uniform = math.log(outliers / self.volume)
        top = np.maximum(exponent.max(1, keepdims=True), uniform)
        values = np.exp(exponent - top)
        total = values.sum(1, keepdims=True) + np.exp(uniform - top)
        return values / total, self.index, float(-(np.log(total) + top).mean())


def _slide(pose: NDArray, a: NDArray, b: NDArray, reach: float) -> NDArray:
    """Point-to-plane iterations, if the clouds are different samples of one surface.

    They are if closest points differ along the surface much more than across it. Isotropic noise on the same points
    does not do that, and the likelihood is then the better criterion.
    """
    tree, d = cKDTree(a), a.shape[1]
    k = min(_PLANE, len(a))
    if k < 2 * d:
        return pose
    for step in range(10):
        moved_back = _move(np.linalg.inv(pose), b)
        distances, nearest = tree.query(moved_back)
        rows = distances <= max(reach, 1e-9)
        if rows.sum() < 4 * d:
            return pose
        if step == 0:
            hoods = a[tree.query(a[nearest[rows]], k=k)[1]]  # (m, k, d)
            centred = hoods - hoods.mean(1, keepdims=True)
            normals = np.zeros_like(a)
            normals[nearest[rows]] = np.linalg.eigh(np.einsum("mkd,mke->mde", centred, centred))[1][:, :, 0]
        normal = normals[nearest[rows]]
        gap = moved_back[rows] - a[nearest[rows]]
        across = (gap * normal).sum(1)
        along = np.square(gap).sum(1) - np.square(across)
        # Medians, as outliers are among the points; 0.455 and 1.386 are the medians of chi-square with 1 and 2 degrees.
        if step == 0 and np.median(np.square(across)) / 0.455 > _FLAT * np.median(along) / (0.455 if d == 2 else 1.386):
            return pose
        weights = np.exp(-0.5 * np.square(across) / max(2 * float(np.median(np.square(across))), 1e-18))
        weights *= (normal != 0).any(1)
        # The gap after a small left motion of the points of b: n . (gap + shift + turn x point).
        points = moved_back[rows]
        lever = np.cross(points, normal).reshape(len(points), -1)
        system = np.concatenate([normal, lever], axis=1)  # (m, d (d + 1) / 2)
        scaled = system * weights[:, None]
        motion = np.linalg.lstsq(scaled.T @ system, -scaled.T @ across, rcond=1e-9)[0]
        change = _small_motion(motion, d)
        pose = pose @ np.linalg.inv(change)
        if np.abs(motion).max() < 1e-7:
            break
    return pose


def _best_seeds(a: NDArray, b: NDArray, pair: _Pair, mirrors: bool, count: int) -> list[NDArray]:
    """The poses at which closest-point iterations start: the best of moments and grid, with two choices of centres."""
    d = a.shape[1]
    seeds = []
    for centre in (lambda cloud: cloud.mean(0), _spatial_median):
        from_a, from_b = centre(a), centre(b)
        rotations = moment_rotations(a - from_a, b - from_b, mirrors)
        for rotation in (*rotations, *_grid(d, mirrors)):
            seeds.append(_pose(rotation, from_b - rotation @ from_a))
    poses = np.array(seeds)
    return list(poses[np.argsort(pair.scores(poses), kind="stable")[:count]])


def _grid(d: int, mirrors: bool) -> NDArray:
    """Rotations spread evenly over the circle, or over SO(3) by super-Fibonacci spirals (Alexa, 2022)."""
    n = _GRID[d]
    if d == 2:
        angles = 2 * math.pi * np.arange(n) / n
        c, s = np.cos(angles), np.sin(angles)
        rotations = np.stack([np.stack([c, -s], -1), np.stack([s, c], -1)], -2)
    else:
        s = np.arange(n) + 0.5
        low, high = np.sqrt(s / n), np.sqrt(1 - s / n)
        alpha, beta = 2 * math.pi * s / math.sqrt(2), 2 * math.pi * s / 1.533751168755204288
        rotations = _from_quaternions(
            low * np.sin(alpha), low * np.cos(alpha), high * np.sin(beta), high * np.cos(beta)
        )
    if not mirrors:
        return rotations
    return np.concatenate([rotations, rotations * np.array([-1.0] + [1.0] * (d - 1))])


def _from_quaternions(x: NDArray, y: NDArray, z: NDArray, w: NDArray) -> NDArray:
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(row, -1) for row in rows], -2)


def _shell_moments(cloud: NDArray) -> NDArray:
    """First moments of a centred cloud (n, d) weighted by functions of the distance: (6, d)."""
    radius = np.linalg.norm(cloud, axis=1)
    radius = radius / max(math.sqrt(float((radius**2).mean())), 1e-300)
    weights = np.exp(-0.5 * ((radius[:, None] - np.array([0.3, 0.6, 0.9, 1.2, 1.5, 1.8])) / 0.2) ** 2)  # (n, 6)
    return weights.T @ cloud / len(cloud)


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


def _doubts(a: NDArray, b: NDArray, best: _Fit, residual: float, wrong: float, n_alike: int) -> tuple[str, ...]:
    notes = []
    for cloud, name in ((a, "a"), (b, "b")):
        spread = np.linalg.svd(cloud - cloud.mean(0), compute_uv=False)
        if spread[1] < 1e-6 * spread[0]:
            notes.append(f"the points of {name} lie on one line: the rotation about it is undetermined")
        elif len(spread) == 3 and spread[2] < 1e-6 * spread[0]:
            notes.append(f"the points of {name} lie in one plane: a mirror image fits as well as the cloud itself")
    if n_alike:
        notes.append(f"{n_alike} other poses fit about as well: the shape is symmetric, or nearly")
    if (1 - best.outliers) < 0.5:
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
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).any(1).sum())
        raise ValueError(f"{bad} points of {name} hold NaN or infinity; remove them first")
    if not np.ptp(array, axis=0).max() > 0:
        raise ValueError(f"all points of {name} coincide, so that no rotation can be found")
    return array


def _size(cloud: NDArray) -> float:
    """Median distance from the spatial median, or the mean distance where most points coincide."""
    distances = np.linalg.norm(cloud - _spatial_median(cloud), axis=1)
    return float(np.median(distances) or distances.mean())


def _spatial_median(cloud: NDArray, steps: int = 30) -> NDArray:
    """The point with the least sum of distances (Weiszfeld); it turns with the cloud and hardly sees outliers."""
    centre = np.asarray(cloud.mean(0))
    floor = 1e-6 * float(np.ptp(cloud, axis=0).max())
    for _ in range(steps):
        weights = 1 / np.maximum(np.linalg.norm(cloud - centre, axis=1), floor)
        centre = weights @ cloud / weights.sum()
    return np.asarray(centre)


def _some(cloud: NDArray, count: int, rng: np.random.Generator) -> NDArray:
    """Up to so many points of a cloud, in random order."""
    return cloud[rng.permutation(len(cloud))[:count]]


def _merge(cloud: NDArray, side: float) -> tuple[NDArray, NDArray]:
    """Centroids of the points in each cell of a cubic grid, and their shares of all points."""
    cells = np.floor((cloud - cloud.min(0)) / side).astype(np.int64) if side > 1e-6 else np.arange(len(cloud))[:, None]
    _, cell, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    cell = cell.reshape(-1)
    sums = np.stack([np.bincount(cell, weights=axis, minlength=len(counts)) for axis in cloud.T], axis=1)
    return sums / counts[:, None], counts / len(cloud)


def _kept(points: NDArray) -> int:
    """How many points are compared while the overlap is unknown."""
    return max(min(3, len(points)), round(_KEPT * len(points)))


def _rigid(source: NDArray, target: NDArray, weights: NDArray, mirrored: bool) -> NDArray:
    """The motion that brings source (n, d) onto target (n, d) with the least weighted square error."""
    share = weights / weights.sum()
    from_mean, to_mean = share @ source, share @ target
    covariance = ((source - from_mean) * share[:, None]).T @ (target - to_mean)
    rotation = _procrustes(covariance, None if mirrored else False, mirrored)
    return _pose(rotation, to_mean - rotation @ from_mean)


def _procrustes(covariance: NDArray, mirrors: bool | None, mirrored: bool = False) -> NDArray:
    """The orthogonal matrix R of largest trace(R C) for C = sum of x y^T: a rotation, a mirror, or either."""
    left, _, right = np.linalg.svd(covariance.T)
    wanted = -1.0 if mirrored else 1.0
    if mirrors is not True and np.linalg.det(left @ right) * wanted < 0:
        left = left * np.array([1.0] * (len(left) - 1) + [-1.0])
    return left @ right


def _small_motion(step: NDArray, d: int) -> NDArray:
    """The motion with this shift and this rotation about the origin: (3,) -> (3, 3) or (6,) -> (4, 4)."""
    if d == 2:
        c, s = math.cos(step[2]), math.sin(step[2])
        rotation = np.array([[c, -s], [s, c]])
    else:
        angle = float(np.linalg.norm(step[3:]))
        half = np.sinc(angle / (2 * math.pi)) / 2  # sin(angle / 2) / angle
        x, y, z = half * step[3:]
        rotation = _from_quaternions(x, y, z, np.asarray(math.cos(angle / 2)))
    return _pose(rotation, step[:d])


def _torque(points: NDArray, force: NDArray) -> NDArray:
    if points.shape[1] == 2:
        return np.array([(points[:, 0] * force[:, 1] - points[:, 1] * force[:, 0]).sum()])
    return np.cross(points, force).sum(0)


def _pose(rotation: NDArray, shift: NDArray) -> NDArray:
    pose = np.eye(len(shift) + 1)
    pose[:-1, :-1], pose[:-1, -1] = rotation, shift
    return pose


def _move(pose: NDArray, points: NDArray) -> NDArray:
    return points @ pose[:-1, :-1].T + pose[:-1, -1]


def _in_units(pose: NDArray, from_centre: NDArray, centre: NDArray, size: float) -> NDArray:
    """A pose of clouds that were centred and scaled, as a pose of the clouds themselves."""
    rotation = pose[:-1, :-1]
    return _pose(rotation, size * pose[:-1, -1] + centre - rotation @ from_centre)
