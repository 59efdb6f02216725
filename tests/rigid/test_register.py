"""Registration recovers known motions over all rotations, says when a shape is symmetric, and refuses bad clouds."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from unpose.groups import parse
from unpose.points import register


def star(n, seed=0, d=3):
    """Points on a star-shaped surface without symmetry."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(n, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    bumps = rng.normal(size=(5, d))
    bumps /= np.linalg.norm(bumps, axis=1, keepdims=True)
    return directions * (1 + (rng.uniform(0.3, 0.7, 5) * np.exp(4 * (directions @ bumps.T - 1))).sum(1))[:, None]


def motion(seed, d=3, mirrors=False):
    name = {2: "se2", 3: "se3"}[d] + ("+mirror" if mirrors else "")
    drawn = parse(name).random(1, generator=torch.Generator().manual_seed(seed), max_shift=3.0, dtype=torch.float64)
    return drawn[0].numpy()


def moved(pose, points):
    return points @ pose[:-1, :-1].T + pose[:-1, -1]


def matched(source, target):
    """The motion that brings points onto those of the same number with the least square error."""
    start, end = source.mean(0), target.mean(0)
    left, _, right = np.linalg.svd((target - end).T @ (source - start))
    left[:, -1] *= np.linalg.det(left @ right)
    pose = np.eye(len(start) + 1)
    pose[:-1, :-1], pose[:-1, -1] = left @ right, end - left @ right @ start
    return pose


def independently_matched(cloud, target, noise):
    """The motion by soft correspondence in which several points may be matched with one, from the identity."""
    pose = np.eye(cloud.shape[1] + 1)
    for _ in range(30):
        weights = np.exp(-0.5 * (cdist(target, moved(pose, cloud)) / noise) ** 2)
        pose = matched(weights @ cloud / weights.sum(1, keepdims=True), target)
    return pose


def degrees(one, other):
    gap = np.linalg.norm(one[:-1, :-1] - other[:-1, :-1])
    return math.degrees(2 * math.asin(min(1.0, gap / math.sqrt(8))))


@pytest.mark.parametrize(("n", "d", "mirrors"), [(10, 3, False), (111, 3, False), (100, 2, True)])
def test_known_motions_are_recovered_exactly(n, d, mirrors):
    cloud, pose = star(n, seed=n, d=d), motion(n, d, mirrors)
    found = register(cloud, moved(pose, cloud)[::-1], mirrors=mirrors)
    assert degrees(found.pose, pose) < 1e-3
    np.testing.assert_allclose(found.pose[:-1, -1], pose[:-1, -1], atol=1e-4)
    assert found.residual < 1e-4


def test_noise_is_averaged_out():
    cloud, pose = star(250, seed=3) + 300, motion(4)  # far from the origin
    noise = 0.05 * np.random.default_rng(1).normal(size=cloud.shape)
    found = register(cloud, moved(pose, cloud) + noise)
    known = matched(cloud, moved(pose, cloud) + noise)  # told which points correspond
    centre = cloud.mean(0)
    shift, least = (np.linalg.norm(moved(each, centre) - moved(pose, centre)) for each in (found.pose, known))
    assert degrees(found.pose, pose) < 1.5 * degrees(known, pose) + 0.2
    assert shift < 1.2 * least
    assert 0.06 < found.residual < 0.11  # root mean square of three coordinates
    assert found.reliable
    assert found.overlap > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_noise_that_exceeds_the_distance_of_neighbours_is_averaged_out(seed):
    cloud = star(500, seed=seed)
    target = cloud + 0.15 * np.random.default_rng(seed + 100).normal(size=cloud.shape)
    centre = cloud.mean(0)
    poses = register(cloud, target).pose, matched(cloud, target), independently_matched(cloud, target, 0.15)
    found, least, independent = (np.linalg.norm(moved(pose, centre) - centre) for pose in poses)
    assert found < 1.2 * least
    assert independent > 1.3 * least  # the control


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_outliers(seed):
    rng = np.random.default_rng(seed)
    cloud, pose = star(800, seed=seed + 10), motion(seed)
    target = moved(pose, cloud) + 0.01 * rng.normal(size=cloud.shape)
    spoiled = target.copy()
    spoiled[:160] = rng.uniform(target.min(0) - 1, target.max(0) + 1, (160, 3))
    found = register(cloud, spoiled)
    assert degrees(found.pose, pose) < 2
    assert 0.7 < found.overlap < 0.9


@pytest.mark.slow
def test_most_partly_overlapping_clouds_are_registered():
    right = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        cloud, pose = star(800, seed=seed + 10), motion(seed)
        target = moved(pose, cloud) + 0.01 * rng.normal(size=cloud.shape)
        part = target[np.argsort(target @ rng.normal(size=3))[:560]]
        right += degrees(register(cloud, part).pose, pose) < 2
    assert right >= 4


@pytest.mark.slow
def test_all_points_of_a_large_noisy_copy_are_used():
    cloud, pose = star(50_000, seed=5), motion(6)
    rng = np.random.default_rng(0)
    target = moved(pose, rng.permutation(cloud)) + 0.01 * rng.normal(size=cloud.shape)
    assert degrees(register(cloud, target).pose, pose) < 0.02
    assert degrees(register(cloud, target[:10_000]).pose, pose) > 0.02  # the control


def test_a_symmetric_shape_has_alternatives():
    half = star(40, seed=2)
    turn = np.diag([-1.0, -1.0, 1.0])  # half a turn about z
    found = register(np.concatenate([half, half @ turn]), moved(motion(3), np.concatenate([half @ turn, half])))
    assert len(found.alternatives) >= 1
    assert found.margin < 0.05
    assert any("symmetric" in note for note in found.notes)
    assert not found.reliable


@pytest.mark.slow
def test_unrelated_clouds_are_doubtful():
    found = register(np.random.default_rng(1).normal(size=(90, 3)), star(90, seed=4))
    assert not found.reliable


@pytest.mark.slow
def test_points_on_a_line_and_in_a_plane():
    line = np.linspace(0, 1, 20)[:, None] ** 2 * np.array([1.0, 2.0, 0.5])
    found = register(line, moved(motion(1), line))
    assert any("one line" in note for note in found.notes)
    np.testing.assert_allclose(moved(found.pose, line), moved(motion(1), line), atol=1e-3)
    flat = np.concatenate([star(40, d=2), np.zeros((40, 1))], axis=1)
    found = register(flat, moved(motion(2), flat))
    assert any("one plane" in note for note in found.notes)
    np.testing.assert_allclose(moved(found.pose, flat), moved(motion(2), flat), atol=1e-2)


def test_bad_clouds_are_refused():
    good = star(20)
    bad = good.copy()
    bad[3, 1] = np.nan
    for cloud, message in [
        (bad, "1 points of a hold NaN"),
        (good[:2], "at least three points"),
        (np.ones((9, 3)), "coincide"),
        (np.ones((9, 4)), r"\(n, 2\) or \(n, 3\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            register(cloud, good)
    with pytest.raises(ValueError, match="one dimension"):
        register(good, good[:, :2])
