"""From a graph of neighbours to clusters: weights, read-out, their number, their stability, finer and coarser ones."""

import copy
from itertools import pairwise

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, homogeneity_score

from kit.graphs import planted
from unpose.align import orbit_distances
from unpose.cluster import InvariantClustering, attention_frames, graph_layout, published
from unpose.cluster.estimator import fit_within
from unpose.cluster.limits import Limits
from unpose.cluster.resolution import mean_agreement
from unpose.data import posed


def scattered(sizes, apart, *, spread=1.0, dimensions=5, seed=0):
    """Points around random centres, and the centre of each."""
    rng = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(len(sizes)), sizes)
    centres = apart * rng.normal(size=(len(sizes), dimensions))
    return centres[kinds] + spread * rng.normal(size=(len(kinds), dimensions)), kinds


def circles(count=5, each=120, seed=0):
    """Points on circles that do not touch, in random order, and the circle of each."""
    rng = np.random.default_rng(seed)
    ring = rng.permutation(np.repeat(np.arange(count), each))
    angle = rng.uniform(0, 2 * np.pi, len(ring))
    points = np.stack([np.cos(angle) + 4 * ring, np.sin(angle)], axis=1)
    return points + 0.03 * rng.normal(size=points.shape), ring


def slow_modularity(weights, labels, resolution=2.0):
    """The definition, pair by pair."""
    degree, total = weights.sum(1), weights.sum()
    same = labels[:, None] == labels
    return ((weights - resolution * np.outer(degree, degree) / total) * same).sum() / total


def test_attention_is_the_self_tuned_kernel():
    points, _ = scattered([25] * 4, 6.0, dimensions=2)
    model = InvariantClustering(4).fit(points)
    weights, near = model.weights_.toarray(), model.neighbours_
    scale = near.distances[:, 6]
    i, j = 3, near.indices[3, 4]
    assert weights[i, j] == pytest.approx(np.exp(-(near.distances[i, 4] ** 2) / (scale[i] * scale[j])))
    assert (weights == weights.T).all()
    assert ((weights > 0).sum(1) >= 8).all()
    np.testing.assert_allclose(InvariantClustering(4).fit(3 * points).weights_.toarray(), weights)  # no unit matters


def test_no_image_would_raise_modularity_by_moving_to_another_cluster():
    points, kinds = scattered([17, 13, 11], 1.5)
    model = InvariantClustering(3).fit(points)
    weights, labels = model.weights_.toarray(), model.labels_
    found = slow_modularity(weights, labels)
    assert found >= slow_modularity(weights, kinds) - 1e-9
    for image in np.flatnonzero(np.bincount(labels)[labels] > 1):
        for cluster in range(3):
            moved = labels.copy()
            moved[image] = cluster
            assert slow_modularity(weights, moved) <= found + 1e-9


@pytest.mark.parametrize("n_clusters", [4, None, 1, 7, 100])
def test_any_number_of_clusters_is_exact_and_they_go_by_size(n_clusters):
    points, kinds = scattered([28, 25, 25, 22], 6.0)
    labels = InvariantClustering(n_clusters).fit(points).labels_
    sizes = np.bincount(labels)
    assert len(sizes) == (n_clusters or 4)
    assert (np.diff(sizes) <= 0).all()
    assert sizes.min() > 0
    first = [int(np.flatnonzero(labels == k)[0]) for k in range(len(sizes))]
    assert all(first[k] < first[k + 1] for k in range(len(sizes) - 1) if sizes[k] == sizes[k + 1])
    if n_clusters in (4, None):
        assert adjusted_rand_score(kinds, labels) == 1.0


@pytest.mark.parametrize(("n_kinds", "each"), [(3, 40), (30, 14)])
def test_few_and_many_kinds_are_counted(n_kinds, each):
    points, kinds = scattered([each] * n_kinds, 6.0)
    model = InvariantClustering().fit(points)
    assert model.n_clusters_ == n_kinds
    assert adjusted_rand_score(kinds, model.labels_) > 0.95


def test_kinds_that_touch_are_not_cut_into_parts():
    model = InvariantClustering().fit(scattered([80] * 5, 2.4)[0])
    assert 4 <= model.n_clusters_ <= 7
    assert model.n_clusters_range_[0] <= model.n_clusters_ <= model.n_clusters_range_[1] <= 8


def test_no_cluster_that_was_found_is_one_image():
    for seed in range(3):
        points = np.random.default_rng(seed).standard_cauchy((31, 2))  # some are far from all others
        assert np.bincount(InvariantClustering().fit(points).labels_).min() > 1


def test_a_number_that_was_given_is_not_uncertain_and_one_that_differs_among_subsets_is():
    points, _ = scattered([10, 10], 6.0)
    for count in (2, 18):  # 18 is more than a subset of 14 images can have
        model = InvariantClustering(count).fit(points)
        assert model.n_clusters_range_ == (count, count)
    assert not any("uncertain" in note for note in model.notes_)
    model = copy.copy(model)
    model.n_clusters_range_ = 9, 12
    assert any("uncertain" in note and "9 to 12" in note for note in model.notes_)


def test_a_graph_of_many_components_is_read_out():
    """All leading eigenvalues are one, for which a solver may not converge."""
    points, kinds = scattered([30] * 15, 60.0)
    assert adjusted_rand_score(kinds, InvariantClustering(15).fit(points).labels_) == 1.0


@pytest.mark.parametrize("n_clusters", [5, None])
def test_clusters_of_a_contracted_graph_are_those_of_the_whole(n_clusters):
    points, ring = circles()
    limits = Limits(large_graph=200, groups=120)
    model = fit_within(limits, InvariantClustering(n_clusters), points)
    if n_clusters is not None:
        assert model.n_clusters_ == n_clusters
        assert adjusted_rand_score(ring, model.labels_) == 1.0  # components are never joined
        assert model.stability_ > 0.95
        assert model.confidences_.min() > 0.9
        assert model.n_clusters_range_ == (5, 5)
    assert homogeneity_score(ring, model.labels_) > 0.95  # without the number, a ring may be cut into arcs
    again = fit_within(limits, InvariantClustering(n_clusters), points)
    np.testing.assert_array_equal(again.labels_, model.labels_)


def test_the_map_of_a_contracted_graph_separates_its_clusters():
    graph, kinds = planted([150] * 4, inside=0.1, outside=0.001)
    places = graph_layout(graph, limits=Limits(large_graph=200, groups=120))
    assert np.isfinite(places).all()
    nearest = np.argsort(np.linalg.norm(places[:, None] - places, axis=2), axis=1)[:, 1]
    assert (kinds[nearest] == kinds).mean() > 0.8


def test_separate_kinds_are_stable_and_a_continuum_is_not():
    model = InvariantClustering(4).fit(scattered([40] * 4, 30.0, dimensions=2)[0])
    assert model.stability_ > 0.95
    assert model.confidences_.min() > 0.9
    continuum = np.random.default_rng(0).random((500, 2))
    for n_clusters in (4, None):
        model = InvariantClustering(n_clusters).fit(continuum)
        assert model.stability_ < 0.7
        assert 0 <= model.confidences_.min() < model.confidences_.mean() < 0.7  # every image is in some subset
        assert "not stable" in model.notes_[0]


def test_agreement_is_the_adjusted_rand_index_of_scikit_learn():
    rng = np.random.default_rng(4)
    for n, n_labels in ((2, 2), (7, 3), (97, 5), (97, 60)):
        rows = rng.integers(0, n_labels, (2, n))
        assert mean_agreement(rows) == pytest.approx(adjusted_rand_score(*rows), abs=1e-12)
        left_out = np.concatenate([rows, [[-1], [0]]], axis=1)
        assert mean_agreement(left_out) == mean_agreement(rows)
    assert mean_agreement(np.array([range(5)] * 2)) == 1.0
    undivided, halves = np.zeros((2, 6), np.int64), np.array([[0, 0, 0, 1, 1, 1]] * 2)
    assert mean_agreement(undivided, trivial=0.0) == 0.0  # subsets that are not divided agree with nothing
    assert mean_agreement(undivided) == mean_agreement(halves, trivial=0.0) == 1.0


@pytest.fixture(scope="module")
def nested():
    """Four kinds of points, of which the first two and the last two are near each other, and the kinds."""
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(4), (17, 8, 13, 8))  # the eighth neighbour of some is in the group beside theirs
    centres = np.array([[0.0, 0.0], [5.0, 0.0], [40.0, 0.0], [45.0, 0.0]])
    return centres[kinds] + rng.normal(0, 0.8, (len(kinds), 2)), kinds


@pytest.mark.parametrize("n_clusters", [1, 3, 4, 5, 13])
def test_every_number_of_clusters_is_exact_and_nests_with_the_found_clusters(nested, n_clusters):
    points, kinds = nested
    labels = InvariantClustering(4).fit(points).cut(n_clusters)
    assert np.array_equal(np.unique(labels), np.arange(n_clusters))
    fine, coarse = (labels, kinds) if n_clusters >= 4 else (kinds, labels)
    assert all(len(np.unique(coarse[fine == cluster])) == 1 for cluster in np.unique(fine))
    assert (np.diff(np.bincount(labels)) <= 0).all(), "clusters are numbered from the largest down"


def test_clusters_that_attend_to_each_other_merge_first_and_separate_ones_split_first(nested):
    points, kinds = nested
    model = InvariantClustering(4).fit(points)
    assert np.array_equal(model.labels_, model.cut(4))
    assert adjusted_rand_score(kinds < 2, model.cut(2)) == 1.0
    assert adjusted_rand_score(kinds, InvariantClustering(2).fit(points).cut(4)) == 1.0
    for impossible in (0, -1, 47):
        with pytest.raises(ValueError, match="n_clusters must be between 1 and the number of images"):
            model.cut(impossible)


def test_one_class_contracts_over_the_orbit_and_not_without():
    """(4.1): with one class of small variation the largest orbit distance shrinks every round.

    Plain attention, blind to pose, keeps the images apart (small bandwidth) or gives up their shape (large bandwidth).
    """
    hook = np.zeros((23, 23), np.float32)
    hook[5:18, 10:13] = hook[5:8, 10:17] = 1.0
    rng = np.random.default_rng(0)
    varied = hook + 0.15 * np.stack([np.roll(hook, shift, axis) for shift, axis in rng.integers(0, 2, (6, 2))])
    images = averaged = posed(varied, "se2", max_shift=2.0, random_state=4).images
    largest = [orbit_distances(images)[0].max()]
    for _ in range(3):
        model = InvariantClustering(1, light="keep", features="pixels").fit(averaged)
        averaged = attention_frames(averaged, model.neighbours_, model.weights_, np.arange(6), n_rounds=1)[1]
        largest.append(orbit_distances(averaged)[0].max())
    assert all(after < before for before, after in pairwise(largest)), largest
    strength = np.linalg.norm(images.reshape(6, -1), axis=1).mean()
    scale = np.median(np.linalg.norm(images[:, None] - images, axis=(2, 3)))
    for bandwidth in (0.2 * scale, scale):
        last = published.kernel_attention(images, beta=bandwidth**-2, n_iter=3)[-1]
        apart = orbit_distances(last.astype(np.float32))[0].max()
        assert apart > 0.9 * largest[0] or np.linalg.norm(last.reshape(6, -1), axis=1).mean() < 0.8 * strength
