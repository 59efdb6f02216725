"""Confidence by subsets of the images."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from unpose.cluster.readout import read_out
from unpose.cluster.resolution import UNSTABLE
from unpose.cluster.stability import reliability_notes, subset_stability


def measured(points, n_clusters):
    distances, indices = NearestNeighbors(n_neighbors=12).fit(points).kneighbors()
    labels, _, resolution = read_out(indices, distances, n_clusters, np.random.RandomState(0))
    found = subset_stability(indices, distances, labels, n_clusters, resolution, np.random.RandomState(0))
    return found.agreement, found.confidences


@pytest.mark.parametrize("n_clusters", [4, pytest.param(None, marks=pytest.mark.slow)])
def test_separate_kinds_are_stable_and_a_continuum_is_not(n_clusters):
    rng = np.random.default_rng(0)
    kinds = np.repeat(rng.normal(0, 30, (4, 2)), 40, axis=0) + rng.normal(size=(160, 2))
    stability, confidences = measured(kinds, 4)
    assert stability > 0.95
    assert confidences.min() > 0.9
    stability, confidences = measured(rng.random((500, 2)), n_clusters)
    assert stability < UNSTABLE
    assert confidences.mean() < UNSTABLE
    assert confidences.min() >= 0
    assert "not stable" in reliability_notes(stability, 500, 0, (5, 5))[0]
