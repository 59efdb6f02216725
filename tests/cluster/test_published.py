"""Invariant Attention as published: its equations, its theorems on small cases, its traps, and bad input."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from unpose.align.descent import Bounds, _gradient, descend
from unpose.cluster import published
from unpose.data import posed
from unpose.groups import parse
from unpose.images import pixel_grid, sample, sample_with_gradient, smooth

# These tests use the published solver; those of the default solver are at the end.
invariant_weights = partial(published.invariant_weights, solver="descent")
invariant_attention = partial(published.invariant_attention, solver="descent")


def glyph(size=15):
    """A small L with a dot: no symmetry."""
    image = np.zeros((size, size), np.float32)
    image[4:11, 5:7] = 1
    image[9:11, 5:10] = 1
    image[5, 8] = 0.7
    return image


def hook(size=15):
    image = np.zeros((size, size), np.float32)
    image[4:6, 4:11] = 1
    image[4:10, 9:11] = 0.8
    image[9:11, 6:11] = 0.6
    return image


class TestKernelAttention:
    def test_equals_the_double_loop(self, rng):
        points = rng.normal(size=(7, 3))
        expected = np.zeros_like(points)
        for j in range(7):
            scores = [math.exp(-0.7 * ((points[i] - points[j]) ** 2).sum()) for i in range(7)]
            expected[j] = sum(s * p for s, p in zip(scores, points, strict=True)) / sum(scores)
        np.testing.assert_allclose(published.kernel_attention(points, 0.7, 1)[1], expected)

    def test_blobs_collapse_to_their_means(self, rng):
        centres = np.array([[0.0, 0.0], [9.0, 0.0]])
        points = np.repeat(centres, 20, axis=0) + 0.5 * rng.normal(size=(40, 2))
        last = published.kernel_attention(points, 0.5, 6)[-1]
        for part in (slice(0, 20), slice(20, 40)):
            assert np.ptp(last[part], axis=0).max() < 1e-3
            np.testing.assert_allclose(last[part].mean(0), points[part].mean(0), atol=0.2)

    def test_images_are_points(self, rng):
        images = rng.random((5, 4, 3, 2))
        flat = published.kernel_attention(images.reshape(5, -1), 0.3, 2)[-1]
        np.testing.assert_allclose(published.kernel_attention(images, 0.3, 2)[-1].reshape(5, -1), flat)

    def test_any_radial_kernel(self, rng):
        points = rng.normal(size=(6, 2))
        laplace = published.kernel_attention(points, kernel=lambda d: np.exp(-d))[-1]
        weights = np.exp(-np.linalg.norm(points[:, None] - points, axis=-1))
        np.testing.assert_allclose(laplace, (weights / weights.sum(0)).T @ points)
        by_name, by_hand = (
            published.kernel_attention(points, 0.7, kernel=k)[-1] for k in ("rbf", lambda d: np.exp(-0.7 * d**2))
        )
        np.testing.assert_allclose(by_name, by_hand)

    @pytest.mark.parametrize(
        ("kernel", "message"),
        [
            ("laplace", "'rbf' or a function"),
            (lambda d: d, "must not rise"),
            (lambda d: d[0], "one finite number"),
            (lambda d: -d, "at least zero"),
            (lambda d: 0 * d, "positive at distance zero"),
        ],
    )
    def test_kernels_that_make_no_sense_are_refused(self, kernel, message):
        with pytest.raises(ValueError, match=message):
            published.kernel_attention([[0.0], [1.0], [3.0]], kernel=kernel)

    @pytest.mark.parametrize(
        ("points", "beta", "n_iter", "message"),
        [
            ([[1.0]], -1.0, 1, "beta"),
            ([[1.0]], math.nan, 1, "beta"),
            ([[1.0]], 1.0, -1, "n_iter"),
            ([[math.nan]], 1.0, 1, "finite"),
            (np.zeros((0, 2)), 1.0, 1, "at least one point"),
            ([1.0, 2.0], 1.0, 1, "shape"),
        ],
    )
    def test_refuses_with_a_reason(self, points, beta, n_iter, message):
        with pytest.raises(ValueError, match=message):
            published.kernel_attention(points, beta, n_iter)


@pytest.mark.parametrize("kind", ["translation", "se2", "similarity", "affine"])
@pytest.mark.parametrize("sigma", [0.0, 1.5])
def test_the_gradient_through_the_field_is_the_gradient(kind, sigma):
    """(2.7) through the field, then A, b, then the angle, against automatic differentiation."""
    group = parse(kind)
    generator = torch.Generator().manual_seed(2)
    images, targets = torch.rand(2, 3, 2, 9, 11, generator=generator, dtype=torch.float64)
    tau = group.random(3, generator=generator, max_shift=1.5, dtype=torch.float64)
    grid = pixel_grid((9, 11), torch.float64)

    def read(fields):
        homogeneous = torch.cat([grid, torch.ones(9, 11, 1, dtype=torch.float64)], -1)
        return torch.einsum("mij,hwj->mhwi", fields[:, :2], homogeneous)

    moved, slopes = sample_with_gradient(images, read(tau))
    found = _gradient(moved - targets, slopes, tau, sigma, group, grid)
    twist = torch.zeros(3, group.dim, dtype=torch.float64, requires_grad=True)
    residual = sample(images, read(tau @ group.exp(twist))) - targets
    objective = smooth(torch.nn.functional.pad(residual, [6] * 4), sigma).square().sum()  # on the whole plane
    (expected,) = torch.autograd.grad(objective, twist)
    torch.testing.assert_close(found, expected)


class TestInvariantWeights:
    def test_columns_sum_to_one_and_scores_are_symmetric(self, rng):
        images = np.stack([glyph(), hook(), np.roll(glyph(), 1, 0), rng.random((15, 15)).astype(np.float32)])
        found = invariant_weights(images, "se2", beta=0.1, n_steps=10)
        np.testing.assert_allclose(found.weights.sum(0), 1)
        np.testing.assert_allclose(found.gamma, found.gamma.T)
        np.testing.assert_allclose(found.gamma, np.exp(-0.1 * found.distances**2))
        np.testing.assert_allclose(np.diag(found.gamma), 1)
        np.testing.assert_allclose(found.weights, found.gamma / found.gamma.sum(0))

    @pytest.mark.slow
    def test_the_poses_bring_images_onto_each_other(self):
        copies = posed(glyph()[None], "se2", copies=4, shape=(21, 21), max_angle=0.5, max_shift=2.0, random_state=3)
        found = invariant_weights(copies.images, "se2", beta=1.0, n_steps=40)
        for i in range(4):
            for j in range(4):
                expected = copies.poses[j] @ np.linalg.inv(copies.poses[i])
                np.testing.assert_allclose(found.poses[i, j], expected, atol=0.3)
        assert found.distances.max() < 0.25 * np.linalg.norm(glyph())

    @pytest.mark.slow
    def test_invariant_to_exact_turns_where_descent_reaches(self):
        """A quarter turn of all images permutes pixels only: the same distances must come back."""
        images = posed(
            np.stack([glyph(), hook()]), "se2", copies=2, shape=(21, 21), max_angle=0.4, max_shift=2.0
        ).images
        turned = np.rot90(images, axes=(1, 2)).copy()
        straight, quarter = (invariant_weights(x, "se2", beta=0.1, n_steps=15).distances for x in (images, turned))
        np.testing.assert_allclose(quarter, straight, atol=1e-3)

    @pytest.mark.parametrize("kind", ["se2", "similarity", "affine"])
    def test_leaving_the_frame_or_shrinking_does_not_win(self, kind):
        """The canvas trap: two unlike images stay unlike, however far the solver is allowed to push them."""
        images = np.stack([glyph(), hook()])
        found = invariant_weights(images, kind, beta=0.1, n_steps=60, max_shift=40.0, max_scale=4.0)
        smaller = min(np.linalg.norm(glyph()), np.linalg.norm(hook()))
        assert found.distances[0, 1] > 0.4 * smaller
        # Unlike images gain by overlapping, so the pose found still overlaps.
        corners = found.poses[0, 1] @ np.array([0.0, 0.0, 1.0])
        assert np.linalg.norm(corners[:2]) < 12

    def test_scale_is_found_in_both_directions(self):
        small_large = posed(
            glyph()[None],
            "similarity",
            copies=2,
            shape=(25, 25),
            max_angle=0.2,
            max_shift=1.0,
            max_scale=1.3,
            random_state=5,
        )
        found = invariant_weights(small_large.images, "similarity", beta=0.1, n_steps=60)
        expected = small_large.poses[1] @ np.linalg.inv(small_large.poses[0])
        np.testing.assert_allclose(found.poses[0, 1], expected, atol=0.2)
        np.testing.assert_allclose(found.poses[1, 0] @ found.poses[0, 1], np.eye(3), atol=0.05)

    @pytest.mark.slow
    def test_the_order_of_the_images_does_not_matter(self):
        """Each direction of a descent ends in its own minimum; the better one counts."""
        images = posed(
            np.stack([glyph(), hook()]), "se2", copies=2, shape=(21, 21), max_shift=2.0, random_state=1
        ).images
        found = invariant_weights(images, beta=0.1, n_steps=10)
        back = invariant_weights(images[::-1].copy(), beta=0.1, n_steps=10)
        np.testing.assert_allclose(back.gamma[::-1, ::-1], found.gamma, atol=1e-5)
        for i, j in ((0, 2), (3, 1)):
            pair = (torch.from_numpy(images[[i, j]])[:, None], torch.from_numpy(images[[j, i]])[:, None])
            both = descend(
                pair[0], torch.arange(2), torch.ones(2), parse("se2"), targets=pair[1], n_steps=10,
                bounds=Bounds(0.375 * 21),
            ).errors  # fmt: skip
            np.testing.assert_allclose(found.distances[i, j] ** 2, both.min(), rtol=1e-4)

    @pytest.mark.parametrize("solver", ["search", "descent"])
    def test_angles_beyond_the_bound_are_not_used(self, solver):
        turned = posed(glyph()[None], "so2", copies=2, shape=(21, 21), max_angle=0.0).images
        turned[1] = posed(turned[:1], "so2", random_state=3, max_angle=0.6).images[0]
        free, bound = (
            published.invariant_weights(turned, "so2", 0.1, solver=solver, max_angle=limit) for limit in (math.pi, 0.1)
        )
        angles = [abs(math.atan2(found.poses[0, 1, 0, 1], found.poses[0, 1, 0, 0])) for found in (free, bound)]
        assert angles[0] > 0.2
        assert angles[1] < 0.1001
        assert bound.distances[0, 1] > free.distances[0, 1]

    def test_one_image_and_constant_images(self):
        alone = invariant_weights(glyph()[None], "se2", beta=1.0)
        np.testing.assert_array_equal(alone.weights, [[1.0]])
        flat = invariant_weights(np.full((3, 8, 8), 0.5), "se2", beta=1.0, n_steps=3)
        assert np.isfinite(flat.weights).all()
        np.testing.assert_allclose(flat.weights, 1 / 3, atol=1e-6)
        black = invariant_weights(np.zeros((2, 8, 8)), "similarity", beta=1.0, n_steps=3)
        np.testing.assert_allclose(black.weights, 0.5)

    def test_integer_images_are_brought_to_one(self):
        bytes_, floats = (glyph() * 255).astype(np.uint8)[None], glyph()[None]
        pair = np.concatenate([bytes_, np.rot90(bytes_, axes=(1, 2))])
        same = np.concatenate([floats, np.rot90(floats, axes=(1, 2))])
        np.testing.assert_allclose(
            invariant_weights(pair, n_steps=5).gamma, invariant_weights(same, n_steps=5).gamma, atol=1e-2
        )

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"beta": -1.0}, "beta must be a positive number"),
            ({"beta": 0.0}, "beta must be a positive number"),
            ({"group": "c4"}, "continuous group"),
            ({"group": "se9"}, "unknown group"),
            ({"group": "se2+mirror"}, "published descent supports"),
            ({"solver": "magic"}, "solver"),
            ({"max_shift": -1.0}, "max_shift"),
            ({"group": "affine", "max_scale": 0.5}, "max_scale"),
            ({"images": np.full((2, 5, 5), np.nan)}, "image 0 has pixels that are NaN"),
            ({"images": np.zeros((0, 5, 5))}, "no images"),
            ({"images": [np.zeros((5, 5)), np.zeros((5, 6))]}, "image 1 is"),
        ],
    )
    def test_refuses_with_a_reason(self, change, message):
        arguments = {"images": np.stack([glyph(), hook()]), "group": "se2", "beta": 1.0, "solver": "descent"} | change
        with pytest.raises(ValueError, match=message):
            invariant_weights(**arguments)


class TestInvariantMean:
    def test_the_mean_is_sharp_and_the_objective_falls(self):
        copies = posed(glyph()[None], "se2", copies=6, shape=(21, 21), max_angle=0.6, max_shift=2.0, random_state=1)
        result = published.invariant_mean(copies.images, group="se2", n_iter=60, snapshots=(0, 10))
        assert (np.diff(result.objective) <= 1e-6).all()
        assert result.objective[-1] < 0.05 * result.objective[0]
        blurred = copies.images.mean(0)
        np.testing.assert_allclose(result.snapshots[0], blurred, atol=1e-6)
        # The plain mean has lost energy to blur; the invariant one has kept it.
        kept = np.linalg.norm(result.mean) / np.linalg.norm(glyph())
        assert kept > 0.9 > np.linalg.norm(blurred) / np.linalg.norm(glyph())

    def test_the_poses_agree_up_to_one_common_pose(self):
        copies = posed(glyph()[None], "se2", copies=5, shape=(21, 21), max_angle=0.5, max_shift=2.0, random_state=2)
        result = published.invariant_mean(copies.images, group="se2", n_iter=80)
        common = result.poses @ copies.poses  # mean from source: the same for all
        np.testing.assert_allclose(common, np.broadcast_to(common[:1], common.shape), atol=0.12)

    def test_weights_decide_who_counts(self):
        images = np.stack([glyph(), glyph(), hook()])
        result = published.invariant_mean(images, [0.5, 0.5, 0.0], n_iter=5)
        np.testing.assert_allclose(result.mean, glyph(), atol=1e-5)

    @pytest.mark.parametrize("kind", ["similarity", "affine"])
    def test_shrinking_everything_does_not_win(self, kind):
        images = np.stack([glyph(), hook(), np.rot90(glyph()).copy()])
        result = published.invariant_mean(images, group=kind, n_iter=40, max_scale=3.0)
        areas = np.linalg.det(result.poses[:, :2, :2])
        np.testing.assert_allclose(np.log(areas).mean(), 0, atol=1e-3)
        assert result.mean.sum() > 0.7 * images.sum((1, 2)).mean()

    def test_pushing_everything_out_of_the_frame_does_not_win(self):
        images = np.stack([glyph(), hook()])
        result = published.invariant_mean(images, n_iter=40, max_shift=60.0)
        assert result.mean.sum() > 0.9 * images.sum((1, 2)).mean()

    def test_colour_and_one_image(self):
        image = np.stack([glyph(), hook(), 0.5 * glyph()], axis=-1)
        result = published.invariant_mean(image[None], n_iter=3)
        np.testing.assert_allclose(result.mean, image, atol=1e-6)
        np.testing.assert_allclose(result.poses, np.eye(3)[None], atol=1e-6)

    @pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [np.nan, 1.0]])
    def test_refuses_weights_that_make_no_sense(self, weights):
        with pytest.raises(ValueError, match="weights must be"):
            published.invariant_mean(np.stack([glyph(), hook()]), weights)


class TestInvariantAttention:
    @pytest.fixture(scope="class")
    @staticmethod
    def two_classes():
        images = posed(np.stack([glyph(), hook()]), "se2", copies=3, shape=(21, 21), max_angle=0.5, max_shift=2.0)
        scale = 2 / np.sqrt((images.images**2).sum((1, 2)).mean())
        return images.images * scale, images.sources

    @pytest.mark.slow
    def test_finds_the_classes_where_plain_kernel_attention_does_not(self, two_classes):
        images, labels = two_classes
        result = invariant_attention(images, "se2", beta=2.0, n_iter=2)
        assert len(set(zip(result.labels, labels, strict=True))) == 2
        assert len(result.images) == len(result.weights) == len(result.distances) == 3
        assert result.images[-1].shape == images.shape
        # Within a class the weights are even at the end, across classes they are nothing.
        same = labels[:, None] == labels
        assert result.weights[-1][~same].max() < 0.01 < 0.2 < result.weights[-1][same].min()
        plain = published.kernel_attention(images, 2.0, 2)[-1].reshape(6, -1)
        gaps = np.linalg.norm(plain[:, None] - plain, axis=-1)
        assert (gaps[same & ~np.eye(6, dtype=bool)] > 0.5).any()

    @pytest.mark.slow
    def test_one_class_contracts(self, two_classes):
        """(4.1): with one class and small variation every round brings all orbits closer."""
        images = two_classes[0][:3]
        result = invariant_attention(images, "se2", beta=0.2, n_iter=2)
        assert result.distances[0].max() > result.distances[1].max()

    def test_the_same_bytes_come_back(self, two_classes):
        runs = [
            invariant_attention(two_classes[0][:3], "se2", n_iter=1, weight_steps=5, mean_steps=5) for _ in range(2)
        ]
        assert all(np.array_equal(a, b) for a, b in zip(runs[0].images, runs[1].images, strict=True))

    def test_one_image(self):
        result = invariant_attention(glyph()[None], n_iter=1)
        assert result.labels.tolist() == [0]
        np.testing.assert_allclose(result.images[-1][0], glyph(), atol=1e-5)


def test_labels_are_connected_components():
    gamma = np.eye(5)
    gamma[0, 1] = gamma[1, 0] = gamma[1, 4] = gamma[4, 1] = 0.6
    gamma[2, 3] = gamma[3, 2] = 0.4
    assert published.labels_from(gamma).tolist() == [0, 0, 1, 2, 0]


def test_problems_side_by_side_do_not_touch_each_other():
    images = torch.from_numpy(np.stack([glyph(), np.roll(glyph(), 2, 1), hook(), np.roll(hook(), 1, 0)]))[:, None]
    problem, weights = torch.tensor([0, 0, 1, 1]), torch.ones(4)
    arguments = {"n_steps": 10, "bounds": Bounds(5.0)}
    together = descend(images, problem, weights, parse("se2"), **arguments)
    first = descend(images[:2], problem[:2], weights[:2], parse("se2"), **arguments)
    torch.testing.assert_close(together.targets[0], first.targets[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together.poses[:2], first.poses, atol=1e-5, rtol=1e-5)


class TestWithTheOrbitEngine:
    """The default solver: the same functions over the whole circle."""

    @pytest.fixture(scope="class")
    @staticmethod
    def circle():
        copies = posed(np.stack([glyph(), hook()]), "se2", copies=4, shape=(25, 25), max_shift=2.0, random_state=3)
        return copies.images * (2 / np.sqrt((copies.images**2).sum((1, 2)).mean())), copies

    @pytest.mark.slow
    def test_weights_over_the_whole_circle(self, circle):
        images, copies = circle
        found = published.invariant_weights(images, "se2", beta=2.0)
        same = copies.sources[:, None] == copies.sources
        assert found.gamma[same].min() > 0.5 > found.gamma[~same].max()
        expected = copies.poses[None] @ np.linalg.inv(copies.poses)[:, None]
        np.testing.assert_allclose(found.poses[same], expected[same], atol=0.15)
        as_published = invariant_weights(images, "se2", beta=2.0)
        assert as_published.gamma[same].min() < 0.1  # descent from the identity does not come round

    def test_attention_clusters_over_the_whole_circle(self, circle):
        images, copies = circle
        found = published.invariant_attention(images, "se2", beta=2.0, n_iter=1)
        assert len(set(zip(found.labels, copies.sources, strict=True))) == 2 == found.labels.max() + 1
        assert found.distances[-1].max() <= found.distances[0].max()

    def test_mirrors_can_be_told_apart_or_not(self):
        images = np.stack([glyph(), glyph()[:, ::-1]])
        apart = published.invariant_weights(images, "se2", beta=0.5).distances[0, 1]
        alike = published.invariant_weights(images, "se2+mirror", beta=0.5).distances[0, 1]
        assert alike < 0.1 < 0.5 < apart

    def test_one_image(self):
        assert published.invariant_weights(glyph()[None]).weights.tolist() == [[1.0]]


def test_a_common_shift_of_all_points_does_not_matter():
    points = np.array([[0.0, 1.0], [0.25, 1.0], [5.0, -2.0]])
    near, far = published.kernel_attention(points, 2.0, 2), published.kernel_attention(points + 2.0**26, 2.0, 2)
    assert np.allclose(far[-1] - 2.0**26, near[-1], atol=1e-6)
