"""The compiled search for the best poses: equal to the plain sum, and the same bytes however the work is split."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from unpose.align.kernels import search_cpu

RADIAL = (6, 5, 5, 4, 3, 3, 2, 2, 1, 1, 1)  # 11 frequencies


def coefficients(rng, *shape):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def problem(n=7, m=13, n_views=5, radial=RADIAL, seed=0):
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(radial)]).astype(np.int64)
    return coefficients(rng, n, n_views, starts[-1]), coefficients(rng, m, starts[-1]), starts


def all_scores(moving, fixed, starts, n_angles):
    """The direct computation in float64: a product per view and frequency, then a Fourier transform over the angles."""
    n, n_views, _ = moving.shape
    moving, fixed = moving.astype(complex), fixed.astype(complex)
    spectrum = np.zeros((n, len(fixed), n_views, n_angles), complex)
    for v in range(n_views):
        for k in range(len(starts) - 1):
            block = slice(starts[k], starts[k + 1])
            spectrum[:, :, v, k] = moving[:, v, block] @ fixed[:, block].conj().T
    return np.fft.fft(spectrum, axis=-1).real  # sum_k exp(-2 pi i k a / A) c_k


def check(moving, fixed, starts, n_angles):
    score, pose = search_cpu.best_poses(moving, fixed, starts, n_angles)
    scores = all_scores(moving, fixed, starts, n_angles)
    scores = scores.reshape(*scores.shape[:2], -1)  # (n, m, V, A) -> (n, m, V * A)
    best = scores.max(-1)
    assert score.dtype == np.float32
    assert pose.dtype == np.int32
    assert np.abs(score / best - 1).max() < 1e-5
    # Where rounding selects another pose, its score is equally good.
    at_pose = np.take_along_axis(scores, pose[..., None].astype(np.int64), -1)[..., 0]
    assert np.abs(at_pose / best - 1).max() < 1e-5
    assert (pose == scores.argmax(-1)).mean() > 0.99


@pytest.mark.parametrize(
    ("n", "m", "n_views", "radial", "n_angles"),
    [
        (7, 13, 5, RADIAL, 28),
        (3, 67, 8, (8, 7, 7, 6, 6, 5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 1), 64),
        (2, 5, 1, (3, 0, 2, 4), 8),  # as many frequencies as the angles carry, one of them empty
        (2, 5, 3, (4,), 4),
        (5, 33, 6, (3, 2), 60),
    ],
)
def test_equals_the_plain_sum(n, m, n_views, radial, n_angles):
    check(*problem(n, m, n_views, radial), n_angles)


def test_recovers_a_known_pose():
    _, fixed, starts = problem()
    frequency = np.repeat(np.arange(len(RADIAL)), RADIAL)
    moving = fixed[:, None] * np.array([0.5, 1.0])[:, None] * np.exp(2j * np.pi / 28 * 5 * frequency)
    _, pose = search_cpu.best_poses(moving.astype(np.complex64), fixed, starts, 28)
    assert (np.diag(pose) == 1 * 28 + 5).all()


def test_ties_go_to_the_smallest_pose():
    moving, fixed, starts = problem()
    _, pose = search_cpu.best_poses(np.zeros_like(moving), fixed, starts, 28)
    assert (pose == 0).all()
    repeated = np.repeat(moving[:, :1], 6, axis=1)
    _, pose = search_cpu.best_poses(repeated, fixed, starts, 28)
    assert (pose < 28).all()
    frequency = np.repeat(np.arange(len(RADIAL)), RADIAL)
    for fold in (2, 4):  # the score repeats every 28 / fold angles
        _, pose = search_cpu.best_poses(moving * (frequency % fold == 0), fixed, starts, 28)
        assert (pose % 28 < 28 // fold).all()
    _, pose = search_cpu.best_poses(moving.real, fixed.real, starts, 28)  # the score at -phi is that at phi
    assert (pose % 28 <= 14).all()


def test_splitting_the_inputs_gives_the_same_bytes():
    moving, fixed, starts = problem(n=9, m=101, n_views=7)
    whole = search_cpu.best_poses(moving, fixed, starts, 28)
    for cuts in ([1], [4, 5], [8]):
        split = [search_cpu.best_poses(part, fixed, starts, 28) for part in np.split(moving, cuts)]
        for result, parts in zip(whole, zip(*split, strict=True), strict=True):
            assert result.tobytes() == np.concatenate(parts).tobytes()
    for cuts in ([1], [16, 32], [31, 64, 65], [7, 50, 100]):
        split = [search_cpu.best_poses(moving, part, starts, 28) for part in np.split(fixed, cuts)]
        for result, parts in zip(whole, zip(*split, strict=True), strict=True):
            assert result.tobytes() == np.concatenate(parts, axis=1).tobytes()


def test_threads_give_the_same_bytes():
    moving, fixed, starts = problem(n=12, m=40)
    score, pose = search_cpu.best_poses(moving, fixed, starts, 28)
    with ThreadPoolExecutor(4) as pool:
        split = list(pool.map(lambda part: search_cpu.best_poses(part, fixed, starts, 28), np.split(moving, 12)))
    assert score.tobytes() == np.concatenate([part[0] for part in split]).tobytes()
    assert pose.tobytes() == np.concatenate([part[1] for part in split]).tobytes()


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0)])
def test_empty_inputs_give_empty_results(n, m):
    score, pose = search_cpu.best_poses(*problem(n, m), 28)
    assert score.shape == pose.shape == (n, m)


def test_inputs_may_be_read_only():
    moving, fixed, starts = problem()
    for array in (moving, fixed, starts):
        array.setflags(write=False)
    check(moving, fixed, starts, 28)


def test_bad_input_is_refused_with_a_reason():
    moving, fixed, starts = problem()
    with pytest.raises(ValueError, match="multiple of 4, got 30"):
        search_cpu.best_poses(moving, fixed, starts, 30)
    with pytest.raises(ValueError, match="multiple of 4, got 0"):
        search_cpu.best_poses(moving, fixed, starts, 0)
    with pytest.raises(ValueError, match="at most n_angles / 2 = 10 frequencies, got 11"):
        search_cpu.best_poses(moving, fixed, starts, 20)
    with pytest.raises(ValueError, match="need moving"):
        search_cpu.best_poses(moving, fixed[:, :-1], starts, 28)
    with pytest.raises(ValueError, match="need moving"):
        search_cpu.best_poses(moving[:, :0], fixed, starts, 28)
    for wrong in (starts[1:], starts[:-1], starts[::-1], starts[:1], starts + 1):
        with pytest.raises(ValueError, match="starts must rise from 0 to C"):
            search_cpu.best_poses(moving, fixed, wrong, 28)
