"""The resolution of the read-out if the number of clusters is not given."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors

from unpose.cluster import resolution
from unpose.cluster.readout import read_out
from unpose.cluster.stability import reliability_notes, subset_stability


def scattered(n_kinds, each, apart, seed=0):
    """Neighbours of points in five dimensions around random centres, and their kinds."""
    rng = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(n_kinds), each)
    points = apart * rng.normal(size=(n_kinds, 5))[kinds] + rng.normal(size=(len(kinds), 5))
    distances, indices = NearestNeighbors(n_neighbors=12).fit(points).kneighbors()
    return indices, distances, kinds


@pytest.mark.parametrize(("n_kinds", "each"), [(3, 40), (30, 14)])
def test_few_and_many_kinds_are_counted(n_kinds, each):
    indices, distances, kinds = scattered(n_kinds, each, apart=6.0)
    labels, _, _ = read_out(indices, distances, None, np.random.RandomState(0))
    assert labels.max() + 1 == n_kinds
    assert adjusted_rand_score(kinds, labels) > 0.95


def test_kinds_that_touch_are_not_cut_into_parts():
    indices, distances, _ = scattered(5, 80, apart=2.4)
    labels, _, chosen = read_out(indices, distances, None, np.random.RandomState(0))
    assert 4 <= labels.max() + 1 <= 7
    again = subset_stability(indices, distances, labels, None, chosen, np.random.RandomState(0))
    assert again.n_clusters[0] <= labels.max() + 1 <= again.n_clusters[1]
    assert again.n_clusters[1] <= 8


def test_a_number_that_was_given_is_not_uncertain():
    indices, distances, _ = scattered(2, 10, apart=6.0)
    for count in (2, 18):  # 18 is more than a subset of 14 images can have
        labels, _, used = read_out(indices, distances, count, np.random.RandomState(0))
        found = subset_stability(indices, distances, labels, count, used, np.random.RandomState(0))
        assert found.n_clusters == (count, count)


def test_a_number_that_differs_among_subsets_is_said_to_be_uncertain():
    assert reliability_notes(0.9, 500, 0, (5, 5)) == []
    (note,) = reliability_notes(0.9, 500, 0, (9, 12))
    assert "uncertain" in note
    assert "9 to 12" in note


def test_subsets_that_are_not_divided_agree_with_nothing():
    undivided, halves = np.zeros((2, 6), np.int64), np.array([[0, 0, 0, 1, 1, 1]] * 2)
    assert resolution.mean_agreement(undivided, trivial=0.0) == 0.0
    assert resolution.mean_agreement(undivided) == resolution.mean_agreement(halves, trivial=0.0) == 1.0


def test_agreement_is_the_adjusted_rand_index_of_scikit_learn():
    rng = np.random.default_rng(4)
    for n, n_labels in ((2, 2), (7, 3), (97, 5), (97, 60)):
        rows = rng.integers(0, n_labels, (2, n))
        assert resolution.mean_agreement(rows) == pytest.approx(adjusted_rand_score(*rows), abs=1e-12)
        left_out = np.concatenate([rows, [[-1], [0]]], axis=1)
        assert resolution.mean_agreement(left_out) == resolution.mean_agreement(rows)
    assert resolution.mean_agreement(np.array([range(5)] * 2)) == 1.0


def test_every_image_is_left_out_equally_often():
    for n in (10, 11, 97):
        counts = sum(
            np.bincount(kept, minlength=n) for kept in resolution.random_subsets(n, 5, np.random.RandomState(1))
        )
        assert set(counts) <= {3, 4}


def test_a_continuum_has_the_usual_resolution():
    points = np.random.default_rng(2).random((300, 8))
    indices, distances = NearestNeighbors(n_neighbors=12).fit(points).kneighbors()[::-1]
    assert read_out(indices, distances, None, np.random.RandomState(0))[2] == 1.0


def test_few_images_have_the_usual_resolution():
    graph = sparse.csr_array(np.ones((4, 4)) - np.eye(4))
    assert resolution.choose_resolution(graph, np.random.RandomState(0)) == resolution.RESOLUTION
