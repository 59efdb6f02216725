"""best_poses against the plain sum, and the promise that splitting the work changes no byte."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from unpose.align.kernels.search_cpu import best_poses

RADIAL = (6, 5, 5, 4, 3, 3, 2, 2, 1, 1, 1)  # 11 frequencies


def coefficients(rng, *shape):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def problem(n=7, m=13, n_views=5, radial=RADIAL, seed=0):
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(radial)]).astype(np.int64)
    return coefficients(rng, n, n_views, starts[-1]), coefficients(rng, m, starts[-1]), starts


def all_scores(moving, fixed, starts, n_angles, gain=None, bias=None):
    """The slow obvious way in float64: a product per view and frequency, then a transform over the angles."""
    n, n_views, _ = moving.shape
    moving, fixed = moving.astype(complex), fixed.astype(complex)
    spectrum = np.zeros((n, len(fixed), n_views, n_angles), complex)
    for v in range(n_views):
        for k in range(len(starts) - 1):
            block = slice(starts[k], starts[k + 1])
            spectrum[:, :, v, k] = moving[:, v, block] @ fixed[:, block].conj().T
    scores = np.fft.fft(spectrum, axis=-1).real  # sum_k exp(-2 pi i k a / A) c_k
    gains = np.broadcast_to(1.0 if gain is None else gain, (n, n_views))
    biases = np.broadcast_to(0.0 if bias is None else bias, n_views)
    return scores * gains[:, None, :, None] + biases[:, None]


def check(moving, fixed, starts, n_angles, gain=None, bias=None):
    score, pose = best_poses(moving, fixed, starts, n_angles, gain, bias)
    scores = all_scores(moving, fixed, starts, n_angles, gain, bias)
    scores = scores.reshape(*scores.shape[:2], -1)  # (n, m, V, A) -> (n, m, V * A)
    best = scores.max(-1)
    assert score.dtype == np.float32
    assert pose.dtype == np.int32
    assert np.abs(score / best - 1).max() < 1e-5
    # Where rounding picks another pose, that pose is as good.
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


@pytest.mark.parametrize("gain_shape", [None, (5,), (7, 5)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gain_and_bias(gain_shape, with_bias):
    rng = np.random.default_rng(1)
    gain = None if gain_shape is None else rng.uniform(-2, 2, gain_shape).astype(np.float32)
    bias = rng.uniform(20, 40, 5).astype(np.float32) if with_bias else None
    check(*problem(), 28, gain, bias)


def test_a_bias_of_minus_infinity_leaves_a_view_out():
    moving, fixed, starts = problem()
    bias = np.array([-np.inf, 0, 0, -np.inf, -np.inf], np.float32)
    score, pose = best_poses(moving, fixed, starts, 28, bias=bias)
    only, at = best_poses(moving[:, 1:3], fixed, starts, 28)
    assert score.tobytes() == only.tobytes()
    assert (pose == at + 28).all()
    score, pose = best_poses(moving, fixed, starts, 28, bias=np.full(5, -np.inf, np.float32))
    assert (score == -np.inf).all()
    assert (pose == 0).all()


def test_recovers_a_known_pose():
    _, fixed, starts = problem()
    frequency = np.repeat(np.arange(len(RADIAL)), RADIAL)
    moving = fixed[:, None] * np.array([0.5, 1.0])[:, None] * np.exp(2j * np.pi / 28 * 5 * frequency)
    _, pose = best_poses(moving.astype(np.complex64), fixed, starts, 28)
    assert (np.diag(pose) == 1 * 28 + 5).all()


def test_ties_go_to_the_smallest_pose():
    moving, fixed, starts = problem()
    _, pose = best_poses(np.zeros_like(moving), fixed, starts, 28)
    assert (pose == 0).all()
    repeated = np.repeat(moving[:, :1], 6, axis=1)
    _, pose = best_poses(repeated, fixed, starts, 28)
    assert (pose < 28).all()
    frequency = np.repeat(np.arange(len(RADIAL)), RADIAL)
    for fold in (2, 4):  # the score repeats every 28 / fold angles
        _, pose = best_poses(moving * (frequency % fold == 0), fixed, starts, 28)
        assert (pose % 28 < 28 // fold).all()
    _, pose = best_poses(moving.real, fixed.real, starts, 28)  # the score at -phi is that at phi
    assert (pose % 28 <= 14).all()


def test_pieces_give_the_bytes_of_the_whole():
    moving, fixed, starts = problem(n=9, m=101, n_views=7)
    rng = np.random.default_rng(2)
    gain, bias = rng.uniform(0.5, 2, (9, 7)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    whole = best_poses(moving, fixed, starts, 28, gain, bias)
    for cuts in ([1], [4, 5], [8]):
        pairs = zip(np.split(moving, cuts), np.split(gain, cuts), strict=True)
        pieces = [best_poses(part, fixed, starts, 28, factor, bias) for part, factor in pairs]
        for result, parts in zip(whole, zip(*pieces, strict=True), strict=True):
            assert result.tobytes() == np.concatenate(parts).tobytes()
    for cuts in ([1], [16, 32], [31, 64, 65], [7, 50, 100]):
        pieces = [best_poses(moving, part, starts, 28, gain, bias) for part in np.split(fixed, cuts)]
        for result, parts in zip(whole, zip(*pieces, strict=True), strict=True):
            assert result.tobytes() == np.concatenate(parts, axis=1).tobytes()


def test_threads_give_the_same_bytes():
    moving, fixed, starts = problem(n=12, m=40)
    score, pose = best_poses(moving, fixed, starts, 28)
    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(lambda part: best_poses(part, fixed, starts, 28), np.split(moving, 12)))
    assert score.tobytes() == np.concatenate([piece[0] for piece in pieces]).tobytes()
    assert pose.tobytes() == np.concatenate([piece[1] for piece in pieces]).tobytes()


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0)])
def test_no_images_no_poses(n, m):
    score, pose = best_poses(*problem(n, m), 28)
    assert score.shape == pose.shape == (n, m)


def test_leaves_the_inputs_alone():
    moving, fixed, starts = problem()
    for array in (moving, fixed, starts):
        array.setflags(write=False)
    check(moving, fixed, starts, 28)


def test_errors_say_what_must_hold():
    moving, fixed, starts = problem()
    with pytest.raises(ValueError, match="multiple of 4, got 30"):
        best_poses(moving, fixed, starts, 30)
    with pytest.raises(ValueError, match="multiple of 4, got 0"):
        best_poses(moving, fixed, starts, 0)
    with pytest.raises(ValueError, match="at most n_angles / 2 = 10 frequencies, got 11"):
        best_poses(moving, fixed, starts, 20)
    with pytest.raises(ValueError, match="need moving"):
        best_poses(moving, fixed[:, :-1], starts, 28)
    with pytest.raises(ValueError, match="need moving"):
        best_poses(moving[:, :0], fixed, starts, 28)
    for wrong in (starts[1:], starts[:-1], starts[::-1], starts[:1], starts + 1):
        with pytest.raises(ValueError, match="starts must rise from 0 to C"):
            best_poses(moving, fixed, wrong, 28)
    for shape in ((), (4,), (5, 7), (1, 5)):
        with pytest.raises(ValueError, match="gain must be"):
            best_poses(moving, fixed, starts, 28, gain=np.ones(shape))
    with pytest.raises(ValueError, match="bias must be"):
        best_poses(moving, fixed, starts, 28, bias=np.ones((7, 5)))
