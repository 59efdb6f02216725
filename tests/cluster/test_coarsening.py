"""Large graphs are contracted: clusters, their number and the map are as good as those of the whole graph."""

from functools import partial

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import adjusted_rand_score, homogeneity_score

from unpose.cluster import graph_layout, layout, readout
from unpose.cluster.coarsening import contract
from unpose.cluster.graph import attention_matrix
from unpose.cluster.modularity import RESOLUTION, aggregate, modularity
from unpose.cluster.stability import subset_stability


def planted(n=1501, n_clusters=5, k=9, wrong=0.1, seed=0):
    """Neighbours (n, k) of points on a circle in each cluster, a tenth of them anywhere, and the clusters."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_clusters, n)
    indices = np.empty((n, k), np.int64)
    for cluster in range(n_clusters):
        members = np.flatnonzero(labels == cluster)
        steps = rng.integers(1, 30, (len(members), k)) * rng.choice([-1, 1], (len(members), k))
        indices[members] = members[(np.arange(len(members))[:, None] + steps) % len(members)]
    strays = rng.random((n, k)) < wrong
    indices[strays] = rng.integers(0, n, strays.sum())
    return indices, np.sort(rng.gamma(20, 0.05, (n, k)), axis=1), labels


@pytest.fixture
def small(monkeypatch):
    for module in (readout, layout):
        monkeypatch.setattr(module, "LARGE_GRAPH", 1000)
    monkeypatch.setattr(readout, "N_GROUPS", 300)


def test_groups_are_few_and_linked():
    indices, distances, labels = planted()
    graph = attention_matrix(indices, distances)
    member = contract(graph, np.random.RandomState(0), 200)
    count = member.max() + 1
    assert 50 < count <= 200
    assert np.bincount(member).max() < 100
    for group in range(count):
        inside = np.flatnonzero(member == group)
        assert sparse.csgraph.connected_components(graph[inside][:, inside])[0] == 1
    purity = sum(np.bincount(labels[member == group]).max() for group in range(count)) / len(labels)
    assert purity > 0.9
    small = aggregate(graph, member)
    assert small.sum() == pytest.approx(graph.sum())
    assert modularity(small, np.arange(count), 2.0) == pytest.approx(modularity(graph, member, 2.0))


def test_components_are_never_joined():
    graph = sparse.csr_array(sparse.block_diag([np.ones((3, 3))] * 50))
    assert contract(graph, np.random.RandomState(0), 10).max() + 1 == 50


@pytest.mark.parametrize("n_clusters", [5, None])
def test_clusters_of_the_contracted_graph(small, n_clusters):
    indices, distances, labels = planted()
    found, *_ = readout.read_out(indices, distances, n_clusters, np.random.RandomState(0))
    if n_clusters is not None:
        assert found.max() + 1 == n_clusters
        assert adjusted_rand_score(labels, found) > 0.9
    assert homogeneity_score(labels, found) > 0.9  # without the number, a ring may be cut into arcs
    again, *_ = readout.read_out(indices, distances, n_clusters, np.random.RandomState(0))
    np.testing.assert_array_equal(again, found)


@pytest.mark.slow
def test_stability_of_a_large_graph(small):
    indices, distances, labels = planted()
    found = subset_stability(indices, distances, labels, 5, RESOLUTION, np.random.RandomState(0))
    assert found.agreement > 0.8
    assert found.confidences.min() > 0.5
    assert found.n_clusters == (5, 5)


def test_singletons_join_what_they_attend_to_most():
    def one_by_one(graph, labels):
        """The definition: as long as there is a cluster of one image, merge the first."""
        labels = np.unique(labels, return_inverse=True)[1]
        while len(alone := np.flatnonzero(np.bincount(labels) == 1)) and labels.max() > 0:
            image = int(np.flatnonzero(labels == alone[0])[0])
            attention = np.bincount(labels, graph[[image]].toarray().ravel())
            attention[alone[0]] = -1.0
            labels[image] = attention.argmax()
            labels = np.unique(labels, return_inverse=True)[1]
        return labels

    rng = np.random.default_rng(3)
    for _ in range(30):
        n = int(rng.integers(3, 23))
        dense = rng.random((n, n)) * (rng.random((n, n)) < 0.3)
        graph = sparse.csr_array(np.triu(dense, 1) + np.triu(dense, 1).T)
        labels = rng.integers(0, n, n)
        np.testing.assert_array_equal(readout._merge_singletons(graph, labels), one_by_one(graph, labels))


def test_subspace_iteration_finds_the_leading_eigenvectors():
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.standard_normal((41, 41)))[0]
    values = np.concatenate([np.linspace(-1, 0.5, 37), [0.8, 0.9, 1.0, 1.0]])  # the largest occurs twice
    found = readout.subspace_iteration(sparse.csr_array((vectors * values) @ vectors.T), rng.standard_normal((41, 4)))
    np.testing.assert_allclose(found @ found.T, vectors[:, -4:] @ vectors[:, -4:].T, atol=1e-6)


def test_a_graph_of_many_components_is_read_out(monkeypatch):
    """All leading eigenvalues are one, for which the solver may not converge."""

    def no_convergence(matrix, k, **_):
        raise readout.ArpackNoConvergence("no", np.zeros(0), np.zeros((matrix.shape[0], 0)))

    monkeypatch.setattr(readout, "eigsh", no_convergence)
    graph = sparse.csr_array(sparse.block_diag([np.ones((60, 60)) - np.eye(60)] * 9))
    found, _ = readout.partition(graph, 9, np.random.RandomState(0))
    assert adjusted_rand_score(np.repeat(np.arange(9), 60), found) == 1.0


def test_the_map_of_a_large_graph_separates_its_clusters(small, monkeypatch):
    monkeypatch.setattr(layout, "_EPOCHS", 60)
    monkeypatch.setattr(layout, "contract", partial(contract, n_groups=300))
    indices, distances, labels = planted(wrong=0.02)
    positions = graph_layout(attention_matrix(indices, distances))
    assert np.isfinite(positions).all()
    nearest = np.argsort(np.linalg.norm(positions[:200, None] - positions[None, :], axis=2), axis=1)[:, 1]
    assert (labels[nearest] == labels[:200]).mean() > 0.8
