"""Cutting the tree of clusters at any number: exact counts, nested clusters, planted groups found again."""

import numpy as np
import pytest
from scipy import sparse

from unpose.cluster.tree import cut_tree


def planted(sizes=(23, 17, 11, 7), pairs=((0, 1), (2, 3)), seed=0):
    """A graph of dense groups; the two groups of each pair are also linked, weakly."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    together = np.array([[a == b or (a, b) in pairs or (b, a) in pairs for b in group] for a in group])
    strength = np.where(group[:, None] == group, 0.6, np.where(together, 0.06, 0.002))
    weights = np.triu(rng.random(strength.shape) < strength, 1) * rng.uniform(0.5, 1.0, strength.shape)
    return sparse.csr_array(weights + weights.T), group


def is_nested(fine, coarse):
    """Whether every cluster of the finer partition lies inside one cluster of the coarser one."""
    return all(len(np.unique(coarse[fine == cluster])) == 1 for cluster in np.unique(fine))


@pytest.mark.parametrize("n_clusters", [1, 3, 4, 5, 13, pytest.param(58, marks=pytest.mark.slow)])
def test_every_number_of_clusters_is_exact_and_nests_with_the_found_clusters(n_clusters):
    weights, group = planted()
    labels = cut_tree(weights, group, n_clusters, np.random.RandomState(0))
    assert np.array_equal(np.unique(labels), np.arange(n_clusters))
    assert is_nested(labels, group) if n_clusters >= 4 else is_nested(group, labels)
    assert (np.diff(np.bincount(labels)) <= 0).all(), "clusters are numbered from the largest down"


def test_the_number_that_was_found_changes_nothing():
    weights, group = planted()
    assert np.array_equal(cut_tree(weights, group, 4, np.random.RandomState(0)), group)


def test_clusters_that_attend_to_each_other_merge_first_and_separate_ones_split_first():
    weights, group = planted()
    merged = cut_tree(weights, group, 2, np.random.RandomState(0))
    assert np.array_equal(merged, np.where(group < 2, 0, 1))
    split = cut_tree(weights, np.where(group < 2, 0, 1), 4, np.random.RandomState(0))
    assert np.array_equal(split, group)


@pytest.mark.parametrize("n_clusters", [0, -1, 59])
def test_impossible_numbers_are_refused(n_clusters):
    weights, group = planted()
    with pytest.raises(ValueError, match="n_clusters must be between 1 and the number of images"):
        cut_tree(weights, group, n_clusters, np.random.RandomState(0))
