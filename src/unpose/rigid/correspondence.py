"""Rigid motions from matched points, from soft correspondence and from tangent planes.

Clouds are arrays (n, d) of about unit size; poses bring the cloud a onto the cloud b.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import LinearOperator, cg
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

_NEAREST = 48  # nearest components of the mixture that can explain a point
_MERGED = 1.2  # side of the cells whose points are merged, in standard deviations of the noise
_BALANCED = 10  # conjugate gradient iterations in each Newton step that balances the mixture
_COPY = 0.9  # variance of the loads, relative to independent samples, below which b is a noisy copy of a
_STALE = 0.25  # the nearest components are found again when points have moved by so many standard deviations
_LOCAL, _MEMORY = 0.3, 5  # steps below so many standard deviations are accelerated, from so many of the last ones
_FEW = 10_000  # points of b that take part unless b is a copy of a
_LEAST = 1e-7  # least standard deviation of the mixture
_PLANE, _FLAT = 12, 0.25  # neighbours that span a tangent plane; ratio of variances across and along it on a surface


@dataclass(frozen=True)
class Fit:
    """A pose with the parameters of the mixture."""

    pose: NDArray
    variance: float  # of each coordinate
    outliers: float  # share of b
    cost: float = math.inf  # negative log-likelihood per point
    is_copy: bool = False  # whether every point of a has its own counterpart in b

    @property
    def noise(self) -> float:
        """Root mean square distance of matched points."""
        return math.sqrt((len(self.pose) - 1) * self.variance)


class Mixture:
    """The likelihood of b as a sample of Gaussians around the moved points of a, with uniform outliers."""

    def __init__(self, a: NDArray, b: NDArray, noise: float = 0.0) -> None:
        # Points much closer together than the noise are merged, so that few components explain a point completely.
        self.a, self.counts = _merge(a, _MERGED * noise)
        self.b = b
        self.axes = np.ascontiguousarray(self.a.T)
        self.tree = cKDTree(self.a)
        self.uniform = 1 / float(np.prod(np.ptp(b, axis=0) + 1e-6))

    def maximise(self, fit: Fit, steps: int, one_to_one: bool = False) -> Fit:
        """Expectation maximisation over pose, variance and share of outliers.

        With ``one_to_one`` the prior weight of each component is set so that it explains as many points of b as it has
        points: Sinkhorn's scaling, an approximation of the likelihood over all permutations. Where b is a noisy copy
        of a this averages the noise about as well as known correspondence does; independent samples forget that the
        counts are not random. Ambiguous correspondence makes the steps small; Anderson's method accelerates them.
        """
        pose, variance, outliers = fit.pose, max(fit.variance, _LEAST**2), fit.outliers
        d, total = len(pose) - 1, self.counts.sum()
        handed = np.sign(np.linalg.det(pose[:-1, :-1]))
        relative = np.ones(len(self.a))  # prior weight of each component for each of its points
        index, placed = np.empty((0, 0), int), np.full_like(self.b, math.inf)
        past: list[tuple[NDArray, NDArray]] = []
        for _ in range(steps):
            back = move(np.linalg.inv(pose), self.b)
            if np.abs(back - placed).max() > _STALE * math.sqrt(variance):
                index, placed = self.tree.query(back, k=min(_NEAREST, len(self.a)))[1].reshape(len(back), -1), back
            gaps = (axis[index] - x[:, None] for axis, x in zip(self.axes, back.T, strict=True))  # (n, k) each
            squares = sum(np.square(gap) for gap in gaps).ravel()
            density = (1 - outliers) / total * (2 * math.pi * variance) ** (-d / 2) * np.exp(-0.5 * squares / variance)
            density *= self.counts[index].ravel()
            places = np.arange(0, index.size + 1, index.shape[1])
            weights = csr_matrix((density, index.ravel(), places), (len(back), len(self.a)))
            if one_to_one:
                relative = self._balance(weights, relative, outliers)
            explained = weights @ relative + outliers * self.uniform
            weights.data *= (relative[index] / explained[:, None]).ravel()
            matched = np.asarray(weights.sum(1)).ravel()  # (n,), one less the probability of an outlier
            if matched.sum() < 3:
                break
            new = rigid(weights @ self.a / np.maximum(matched, 1e-300)[:, None], self.b, matched, handed)
            next_variance = max(float(weights.data @ squares / (d * matched.sum())), _LEAST**2)
            outliers = float(np.clip(1 - matched.mean(), 1e-4, 0.9))
            moved = np.abs(new - pose).max() / math.sqrt(variance)
            settled = moved < 2e-4 and abs(next_variance / variance - 1) < 1e-3
            if one_to_one and moved < _LOCAL:  # far from its end the iteration would leave for another maximum
                new = _accelerate(past, pose, new, handed)
            pose, variance = new, next_variance
            if settled:
                break
        # The loads of independent samples vary as sums of independent weights do; those of a copy vary less.
        loads = np.asarray(weights.sum(0)).ravel()
        spread = np.square(loads - self.counts / total * loads.sum()).sum() / max(np.square(weights.data).sum(), 1e-300)
        is_copy = outliers < 0.05 and abs(len(self.b) / total - 1) < 0.05 and spread < _COPY
        return Fit(pose, variance, outliers, float(-np.log(explained).mean()), bool(is_copy))

    def _balance(self, weights: csr_matrix, relative: NDArray, outliers: float) -> NDArray:
        """One Newton step towards the prior weights at which each component explains as many points as it has."""
        share = 1 / (weights @ relative + outliers * self.uniform)
        loads, lost = relative * (weights.T @ share), outliers * self.counts * relative
        scale = 1 / np.sqrt(loads + lost)

        def curvature(x: NDArray) -> NDArray:
            inner = scale * relative
            return x - inner * (weights.T @ (share**2 * (weights @ (inner * x))))

        system = LinearOperator((len(self.a),) * 2, curvature, dtype=float)
        change = scale * cg(system, scale * (self.counts - lost - loads), maxiter=_BALANCED)[0]
        return relative * np.exp(np.clip(change, -1, 1))


def _accelerate(past: list[tuple[NDArray, NDArray]], pose: NDArray, new: NDArray, handed: float) -> NDArray:
    """The next pose by Anderson's method: the combination of the last poses whose steps nearly cancel."""
    past.append((new[:-1].ravel(), (new - pose)[:-1].ravel()))
    del past[:-_MEMORY]
    if len(past) > 1:
        points, moves = (np.diff(each, axis=0).T for each in zip(*past, strict=True))
        ahead = past[-1][0] - points @ np.linalg.lstsq(moves, past[-1][1], rcond=1e-2)[0]
        ahead = ahead.reshape(new[:-1].shape)
        return as_pose(procrustes(ahead[:, :-1].T, handed), ahead[:, -1])
    return new


def refine(fit: Fit, a: NDArray, b: NDArray) -> Fit:
    """Maximise the likelihood on large samples; different samples of a surface slide along its tangent planes."""
    few = b[:_FEW]
    mixture = Mixture(a, few, noise=math.sqrt(fit.variance))
    fit = mixture.maximise(fit, steps=20)
    if len(b) > len(few):
        mixture = Mixture(a, b, noise=math.sqrt(fit.variance))
        fit = replace(fit, is_copy=mixture.maximise(fit, steps=4).is_copy)
    if fit.is_copy:
        return replace(mixture.maximise(fit, steps=40, one_to_one=True), outliers=fit.outliers)
    return replace(fit, pose=_slide(fit.pose, a, few, reach=3 * fit.noise))


def _slide(pose: NDArray, a: NDArray, b: NDArray, reach: float) -> NDArray:
    """Point-to-plane iterations, if the clouds are different samples of one surface.

    They are if closest points differ along the surface much more than across it.
    """
    tree, d = cKDTree(a), a.shape[1]
    if len(a) < 2 * d:
        return pose
    normals = np.zeros_like(a)
    for step in range(10):
        back = move(np.linalg.inv(pose), b)
        distances, nearest = tree.query(back)
        near = distances <= max(reach, 1e-9)
        if near.sum() < 4 * d:
            return pose
        points, nearest = back[near], nearest[near]
        if step == 0:
            hoods = a[tree.query(a[nearest], k=min(_PLANE, len(a)))[1]]  # (m, k, d)
            hoods = hoods - hoods.mean(1, keepdims=True)
            normals[nearest] = np.linalg.eigh(np.einsum("mkd,mke->mde", hoods, hoods))[1][:, :, 0]
        normal, gap = normals[nearest], points - a[nearest]
        across = (gap * normal).sum(1)
        along = np.square(gap).sum(1) - np.square(across)
        # Medians, as outliers are among the points; 0.455 and 1.386 are the medians of chi-square with 1 and 2 degrees.
        if step == 0 and np.median(np.square(across)) / 0.455 > _FLAT * np.median(along) / (0.455 if d == 2 else 1.386):
            return pose
        weights = np.exp(-0.5 * np.square(across) / max(2 * float(np.median(np.square(across))), 1e-18))
        # The gap after a small left motion of the points of b: n . (gap + shift + turn x point).
        system = np.concatenate([normal, np.cross(points, normal).reshape(len(points), -1)], axis=1)
        scaled = system * weights[:, None]
        motion = np.linalg.lstsq(scaled.T @ system, -scaled.T @ across, rcond=1e-9)[0]
        turn = Rotation.from_rotvec(motion[d:] if d == 3 else [0, 0, motion[2]]).as_matrix()[:d, :d]
        pose = pose @ np.linalg.inv(as_pose(turn, motion[:d]))
        if np.abs(motion).max() < 1e-7:
            break
    return pose


def _merge(cloud: NDArray, side: float) -> tuple[NDArray, NDArray]:
    """Centroids of the points in each cell of a cubic grid, and how many they are."""
    if side <= 1e-6:
        return cloud, np.ones(len(cloud))
    cells = np.floor((cloud - cloud.min(0)) / side).astype(np.int64)
    _, cell, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    sums = [np.bincount(cell.reshape(-1), weights=axis, minlength=len(counts)) for axis in cloud.T]
    return np.stack(sums, axis=1) / counts[:, None], counts.astype(float)


def rigid(source: NDArray, target: NDArray, weights: NDArray, handed: float) -> NDArray:
    """The motion that brings source (n, d) onto target (n, d) with the least weighted square error."""
    share = weights / weights.sum()
    from_mean, to_mean = share @ source, share @ target
    rotation = procrustes(((source - from_mean) * share[:, None]).T @ (target - to_mean), handed)
    return as_pose(rotation, to_mean - rotation @ from_mean)


def procrustes(covariance: NDArray, handed: float) -> NDArray:
    """The orthogonal R of largest trace(R C) for C = sum of x y^T: a rotation (1), a mirror (-1) or either (0)."""
    left, _, right = np.linalg.svd(covariance.T)
    if np.linalg.det(left @ right) * handed < 0:
        left[:, -1] *= -1
    return left @ right


def as_pose(rotation: NDArray, shift: NDArray) -> NDArray:
    """The homogeneous matrix (d + 1, d + 1)."""
    pose = np.eye(len(shift) + 1)
    pose[:-1, :-1], pose[:-1, -1] = rotation, shift
    return pose


def move(pose: NDArray, points: NDArray) -> NDArray:
    """(n, d) -> (n, d)"""
    return points @ pose[:-1, :-1].T + pose[:-1, -1]
