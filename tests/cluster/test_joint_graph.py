"""Joined and diffused graphs: against a dense reference, and who counts when one of the two graphs says nothing."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.neighbors import NearestNeighbors

from kit.doubles import InMemory
from unpose.cluster import InvariantClustering
from unpose.cluster.estimator import fit_within
from unpose.cluster.joint_graph import diffused_neighbours, join_graphs, share_of_pixels
from unpose.cluster.limits import Limits


def sphere(points):
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def kinds(n_kinds=5, each=23, spread=0.2, seed=0):
    """Points on a sphere around a centre per kind, and the kinds."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(np.arange(n_kinds), each)
    centres = sphere(rng.standard_normal((n_kinds, 16)))
    return sphere(centres[kind] + spread * rng.standard_normal((len(kind), 16))), kind


def near(points, k=12):
    """The k nearest of points, and their distances."""
    return NearestNeighbors(n_neighbors=k).fit(points).kneighbors()[::-1]


def attention(indices, distances):
    """The symmetric self-tuned kernel of neighbours (n, k) as a sparse matrix."""
    scale, rows = distances[:, 6], np.repeat(np.arange(len(indices)), indices.shape[1])
    values = np.exp(-(distances**2) / (scale[:, None] * scale[indices]))
    directed = sparse.csr_array((values.ravel(), (rows, indices.ravel())), shape=(len(indices),) * 2)
    return sparse.csr_array(directed.maximum(directed.T))


def joined(pixels, points):
    return join_graphs(pixels, points, share_of_pixels(pixels, points, np.random.RandomState(0)))


def same_kind(indices, kind):
    return float((kind[indices] == kind[:, None]).mean())


def test_diffusion_agrees_with_the_inverse_of_the_whole_matrix():
    points, _ = kinds()
    weights = attention(*near(points))
    degree = np.asarray(weights.sum(1)).ravel()
    walk = weights.toarray() / np.sqrt(np.outer(degree, degree))
    visits = sphere(np.linalg.inv(np.eye(len(walk)) - 0.9 * walk))
    cosines = visits @ visits.T
    np.fill_diagonal(cosines, -1.0)
    indices, distances = diffused_neighbours(weights, 7)
    exact = np.sqrt(2 - 2 * np.take_along_axis(cosines, indices, 1))
    np.testing.assert_allclose(distances, exact, atol=0.03)
    best = np.sqrt(2 - 2 * -np.sort(-cosines, axis=1)[:, :7])
    assert np.abs(exact - best).max() < 0.03, "the neighbours are the nearest, up to what short walks leave out"
    assert (np.diff(distances) >= 0).all()
    assert (indices != np.arange(len(points))[:, None]).all()


def test_diffusion_does_not_depend_on_the_number_of_threads():
    points, _ = kinds()
    weights, threads = attention(*near(points)), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = diffused_neighbours(weights, 12)
        torch.set_num_threads(5)
        together = diffused_neighbours(weights, 12)
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_diffusion_follows_chains():
    """Two chains of points that come close in the middle: direct neighbours cross over, walks stay on their chain."""
    t = np.linspace(-1, 1, 31)
    chains = np.concatenate([np.stack([t, 0.1 + t**2], 1), np.stack([t, -0.1 - t**2], 1)])
    kind = np.repeat([0, 1], 31)
    apart = np.linalg.norm(chains[:, None] - chains, axis=-1)
    np.fill_diagonal(apart, np.inf)
    direct = np.argsort(apart, axis=1)[:, :7]
    weights = attention(direct, np.take_along_axis(apart, direct, 1))
    assert same_kind(diffused_neighbours(weights, 6)[0], kind) > same_kind(direct, kind)


def test_images_without_common_walks_still_have_neighbours():
    pairs = sparse.csr_array(np.kron(np.eye(3), [[0.0, 1.0], [1.0, 0.0]]) + 1e-12 * (1 - np.eye(6)))
    indices, distances = diffused_neighbours(pairs, 4)
    assert indices[:, 0].tolist() == [1, 0, 3, 2, 5, 4]
    assert distances[:, 0].max() < 0.5 < 1.4 < distances[:, 1:].min()


@pytest.mark.parametrize("informed", ["pixels", "features"])
def test_the_graph_that_falls_into_communities_counts(informed):
    points, kind = kinds()
    noise = sphere(np.random.default_rng(1).standard_normal(points.shape))
    first, second = (points, noise) if informed == "pixels" else (noise, points)
    found = joined(near(first), second)
    assert found.pixel_share > 0.9 if informed == "pixels" else found.pixel_share < 0.1
    assert same_kind(found.indices, kind) > 0.97


def test_graphs_that_know_different_things_are_better_together():
    left, kind = kinds(6, seed=2, spread=0.3)
    right, _ = kinds(6, seed=3, spread=0.3)
    left[kind % 2 == 0] = kinds(1, int((kind % 2 == 0).sum()), seed=4)[0]  # knows the odd kinds only
    right[kind % 2 == 1] = kinds(1, int((kind % 2 == 1).sum()), seed=5)[0]  # knows the even kinds only
    alone = near(left)
    found = joined(alone, right)
    assert same_kind(found.indices, kind) > same_kind(alone[0], kind) + 0.1


def test_whitening_removes_directions_in_which_neighbours_differ():
    points, kind = kinds(spread=0.15)
    shaky = points.copy()
    shaky[:, 0] += np.random.default_rng(1).standard_normal(len(points))  # a direction that says nothing
    shaky = sphere(shaky)
    found = join_graphs(near(shaky), shaky, 0.0)
    whitened = sphere(shaky @ found.whitening)
    assert same_kind(near(whitened)[0], kind) > same_kind(near(shaky)[0], kind) + 0.05


def test_a_graph_gains_weight_as_its_kinds_are_separated():
    other = near(kinds(spread=0.5, seed=1)[0])
    found = [share_of_pixels(other, kinds(spread=s)[0], np.random.RandomState(0)) for s in (0.2, 0.5, 3.0)]
    assert found[0] < found[1] < found[2]


def test_the_features_of_many_images_are_not_lost_when_a_fit_is_stopped():
    """The function fails on the image of this value; what was computed before is in a checkpoint."""

    def moments(images):
        if images.max() > 5:
            raise KeyboardInterrupt
        seen.append(len(images))
        return np.stack([images.mean((1, 2)), images[:, 2, 3], images[:, 1, 1]], axis=1)

    images = np.random.default_rng(0).random((40, 9, 9)).astype(np.float32)
    images[2] = np.eye(9) * 9
    store, seen = InMemory(), []
    for counts in ([30], []):
        seen.clear()
        model = InvariantClustering(2, features=moments, group="translation", max_shift=1.0)
        with pytest.raises(KeyboardInterrupt):
            fit_within(Limits(space_vectors=30), model, images, checkpoints=store)  # without the third image
        assert seen == counts
