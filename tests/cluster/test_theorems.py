"""Theorems 3.1 and 4.1: they hold where their assumptions do, and are seen to fail outside of them."""

import math

import numpy as np
import pytest

from unpose.cluster import published, theorems
from unpose.data.experiments import marked_stars, one_class
from unpose.reproduce.kernel import quarter_turn_kernels
from unpose.reproduce.uniqueness import means_from_starts


def distances(points):
    flat = np.reshape(points, (len(points), -1))
    return np.linalg.norm(flat[:, None] - flat, axis=-1)


@pytest.mark.laws
@pytest.mark.parametrize("product", [0.1, 0.5, 1.0, 1.9])
def test_kernel_attention_keeps_the_bound_for_any_points(product, rng):
    for _ in range(20):
        points = rng.normal(size=(7, 3)) * rng.uniform(0.1, 10, 3)
        before = distances(points)
        beta = product / theorems.radius(before) ** 2
        ratio = theorems.contraction(before, distances(published.kernel_attention(points, beta, 1)[1]))
        assert ratio <= theorems.contraction_bound(beta, theorems.radius(before)) * (1 + 1e-9)


def test_the_bound_is_sharp_and_beyond_it_points_can_move_apart():
    # Two groups of points with a pair at the middle of the gap between them: the derivative is 2 beta R^2 / 4.
    points = np.array([[-0.5]] * 300 + [[0.5]] * 300 + [[-1e-3], [1e-3]])
    before = distances(points)
    for beta in (1.0, 8.0):
        after = distances(published.kernel_attention(points, beta, 1)[1])
        assert after[-1, -2] / before[-1, -2] == pytest.approx(theorems.contraction_bound(beta, 1.0), rel=0.1)
    assert theorems.contraction(before, after) > 2  # beta R^2 = 8


@pytest.fixture(scope="module")
def near_class():
    """Four small images of one class over the whole circle, with R below the reach."""
    return one_class(1, spread=0.3, count=4, size=28).points


@pytest.mark.slow
def test_one_class_contracts_as_the_theorem_says_and_not_with_a_narrow_kernel(near_class):
    start = theorems.radius(published.invariant_attention(near_class, n_iter=0).distances[0])
    assert start < theorems.orbit_reach(near_class[0])
    ratios = {}
    for product in (1.0, 25.0):
        found = published.invariant_attention(near_class, beta=product / start**2, n_iter=1, mean_steps=8)
        ratios[product] = theorems.contraction(*found.distances)
    assert ratios[1.0] < 0.5  # the bound beta R^2 / 2
    assert ratios[25.0] > 0.95  # beta is outside of the assumption: hardly anything moves


def test_pairs_of_different_classes_do_not_count():
    before = np.array([[0.0, 1.0, 4.0], [1.0, 0.0, 4.0], [4.0, 4.0, 0.0]])
    after = np.array([[0.0, 0.5, 8.0], [0.5, 0.0, 8.0], [8.0, 8.0, 0.0]])
    assert theorems.contraction(before, after) == 2
    assert theorems.contraction(before, after, [0, 0, 1]) == 0.5
    assert theorems.radius(after, [0, 0, 1]) == 0.5
    assert math.isnan(theorems.contraction(before, after, [0, 1, 2]))
    assert theorems.contraction(before, after, floor=2.0) == 2
    assert math.isnan(theorems.contraction(before, after, [0, 0, 1], floor=1.0))


def blob(size=41, sigma=3.0, at=(0.0, 0.0)):
    y, x = np.indices((size, size)) - (size - 1) / 2
    return np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / (2 * sigma**2))


class TestReach:
    def test_of_a_gaussian_under_translations_is_known(self):
        # Federer's formula in closed form: |b - a|^2 = 2 E (1 - q) with q = exp(-s^2 / 4 sigma^2), least for s -> 0.
        assert theorems.orbit_reach(blob(), "translation") == pytest.approx(
            np.linalg.norm(blob()) / math.sqrt(3), rel=0.01
        )

    def test_scales_with_the_image_and_ignores_its_pose(self):
        image = blob(at=(5, 0)) + 0.7 * blob(at=(-4, 3)) + 0.4 * blob(at=(0, -7))
        reach = theorems.orbit_reach(image, n_angles=12)
        assert theorems.orbit_reach(3 * image, n_angles=12) == pytest.approx(3 * reach)
        assert theorems.orbit_reach(np.rot90(image).copy(), n_angles=12) == pytest.approx(reach, rel=1e-6)

    def test_is_small_next_to_a_symmetry(self):
        # Two blobs, one slightly brighter: half a turn brings the orbit to within sqrt(2) * 0.1 of itself.
        even = blob(at=(7, 0)) + blob(at=(-7, 0))
        odd = even + 0.1 * blob(at=(7, 0))
        gap = np.linalg.norm(odd - odd[::-1, ::-1])
        assert theorems.orbit_reach(odd, "so2", n_angles=24) <= 0.51 * gap
        assert theorems.orbit_reach(even, "so2", n_angles=24) > 5 * gap  # a true symmetry is none of its neighbours

    @pytest.mark.slow
    def test_of_combinations_is_the_least(self):
        right, left = blob(29, at=(6, 0)), blob(29, at=(-6, 0))
        first, second = right + 2 * left, 2 * right + left
        images = np.stack([first, second])
        # Their mean is symmetric; combinations next to it are nearly so.
        least = theorems.combination_reach(images, "so2", count=6)
        assert least < 0.7 * theorems.orbit_reach(first, "so2")

    def test_other_groups_are_refused(self):
        with pytest.raises(ValueError, match="isometries without mirrors"):
            theorems.orbit_reach(blob(), "similarity")


def same(means):
    """Whether all means are the same up to pose."""
    found = published.invariant_attention(means, n_iter=0).distances[0]
    return found.max() < 0.1 * np.linalg.norm(means[0])


def test_all_starts_reach_one_mean_where_orbits_are_near(near_class):
    means, objectives = means_from_starts(near_class, 2)
    assert np.ptp(objectives) < 0.1 * objectives.min()
    assert same(means)


@pytest.mark.slow
def test_stars_without_asymmetry_have_several_means_that_are_equally_good():
    stars = marked_stars(0, asymmetry=0.0, size=30).points
    found = published.invariant_attention(stars, n_iter=0)
    assert theorems.radius(found.distances[0]) > 1.8 * theorems.orbit_reach(stars[0])  # outside of the assumption (3.4)
    means, objectives = means_from_starts(stars, 3)
    assert np.ptp(objectives) < 0.02 * objectives.min()
    assert not same(means)


def test_the_maximum_kernel_is_not_positive_definite_and_the_average_is(rng):
    least = []
    for _ in range(50):
        kernels = quarter_turn_kernels(rng.random((8, 2, 2)), beta=1.0)
        least.append([np.linalg.eigvalsh(kernel)[0] for kernel in kernels])
    maximum, average = np.transpose(least)
    assert maximum.min() < -0.01
    assert average.min() > -1e-12
