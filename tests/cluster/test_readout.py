"""Graphs and their groups, and the theorem behind the rounds."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from unpose.align import nearest, orbit_distances
from unpose.cluster.graph import attention_matrix
from unpose.cluster.modularity import improve, louvain, merge_clusters, modularity
from unpose.cluster.published import kernel_attention
from unpose.cluster.readout import by_size, read_out
from unpose.cluster.rounds import average_neighbours
from unpose.data import posed
from unpose.images import as_batch, from_batch


def planted(sizes, rng, inside=0.6, outside=0.02):
    """A graph with more edges within groups than between them, and the groups."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    chance = np.where(truth[:, None] == truth, inside, outside)
    edges = np.triu(rng.random(chance.shape) < chance, 1)
    return sparse.csr_array((edges | edges.T).astype(float)), truth


def slow_modularity(graph, labels, resolution):
    """The definition, pair by pair."""
    dense = graph.toarray()
    degree, total = dense.sum(1), dense.sum()
    same = labels[:, None] == labels
    return ((dense - resolution * np.outer(degree, degree) / total) * same).sum() / total


def test_modularity_is_its_definition():
    rng = np.random.default_rng(0)
    graph, _ = planted([7, 11, 5], rng)
    labels = rng.integers(0, 4, 23)
    assert modularity(graph, labels, 1.7) == pytest.approx(slow_modularity(graph, labels, 1.7))


def test_improving_never_lowers_it_and_keeps_the_groups():
    rng = np.random.default_rng(1)
    graph, truth = planted([13, 17, 11], rng)
    for _ in range(5):
        start = rng.integers(0, 3, len(truth))
        better = improve(graph, start, 1.0, rng.permutation(len(truth)))
        assert modularity(graph, better, 1.0) >= modularity(graph, start, 1.0)
        assert set(better) == {0, 1, 2}


def test_planted_groups_are_found():
    rng = np.random.default_rng(2)
    graph, truth = planted([23, 19, 17], rng)
    found = louvain(graph, 1.0, np.random.RandomState(0))
    assert len({(a, b) for a, b in zip(truth, found, strict=True)}) == 3
    split = np.where(rng.random(len(truth)) < 0.5, truth, truth + 3)
    assert len({(a, b) for a, b in zip(truth, merge_clusters(graph, split, 3), strict=True)}) == 3


def blobs(rng, centres=4, each=25):
    points = rng.normal(0, 0.4, (centres * each, 2)) + np.repeat(6 * rng.standard_normal((centres, 2)), each, axis=0)
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    np.fill_diagonal(distances, np.inf)
    indices = np.argsort(distances, axis=1)[:, :12]
    return indices, np.take_along_axis(distances, indices, axis=1), np.repeat(np.arange(centres), each)


def test_reading_out():
    indices, distances, truth = blobs(np.random.default_rng(5))
    for count in (4, None):
        labels, graph, _ = read_out(indices, distances, count, np.random.RandomState(0))
        assert len({(a, b) for a, b in zip(truth, labels, strict=True)}) == 4
        again, *_ = read_out(indices, distances, count, np.random.RandomState(0))
        assert np.array_equal(labels, again)
        assert abs(graph - graph.T).max() == 0
    for count in (1, 7, 100):
        labels, *_ = read_out(indices, distances, count, np.random.RandomState(0))
        sizes = np.bincount(labels)
        assert len(sizes) == count
        assert (np.diff(sizes) <= 0).all()
        assert sizes.min() > 0


def test_labels_go_by_size_whatever_they_were():
    labels = np.array([5, 2, 2, 9, 9, 9])
    assert by_size(labels).tolist() == [2, 1, 1, 0, 0, 0]


def test_attention_is_the_self_tuned_kernel():
    indices, distances, _ = blobs(np.random.default_rng(7))
    graph = attention_matrix(indices, distances, 8).toarray()
    scale = distances[:, 6]
    i, j = 3, indices[3, 4]
    assert graph[i, j] == pytest.approx(np.exp(-(distances[i, 4] ** 2) / (scale[i] * scale[j])))
    assert (graph == graph.T).all()
    assert ((graph > 0).sum(1) >= 8).all()
    np.testing.assert_allclose(
        attention_matrix(indices, 3 * distances, 8).toarray(), graph
    )  # no unit of distance matters


def test_one_class_contracts_over_the_orbit_and_not_without():
    """(4.1): with one class of small variation the largest orbit distance shrinks every round.

    Plain attention, blind to pose, keeps the images apart (small bandwidth) or gives up their shape (large bandwidth).
    """
    hook = np.zeros((23, 23), np.float32)
    hook[5:18, 10:13] = hook[5:8, 10:17] = 1.0
    rng = np.random.default_rng(0)
    varied = hook + 0.15 * np.stack([np.roll(hook, shift, axis) for shift, axis in rng.integers(0, 2, (6, 2))])
    images = posed(varied, "se2", max_shift=2.0, random_state=4).images
    largest = [orbit_distances(images)[0].max()]
    batch = as_batch(images)
    for _ in range(3):
        batch = average_neighbours(batch, nearest(from_batch(batch, channels=False), 5))
        largest.append(orbit_distances(from_batch(batch, channels=False))[0].max())
    assert all(after < before for before, after in pairwise(largest)), largest
    strength = np.linalg.norm(images.reshape(6, -1), axis=1).mean()
    scale = np.median(np.linalg.norm(images[:, None] - images, axis=(2, 3)))
    for bandwidth in (0.2 * scale, scale):
        last = kernel_attention(images, beta=bandwidth**-2, n_iter=3)[-1]
        apart = orbit_distances(last.astype(np.float32))[0].max()
        assert apart > 0.9 * largest[0] or np.linalg.norm(last.reshape(6, -1), axis=1).mean() < 0.8 * strength
