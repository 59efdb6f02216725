"""What a person looks at: upright images on their own background, the film of rounds, the map, agreement."""

import numpy as np
import pytest
from scipy import sparse

from unpose.cluster import (
    InvariantClustering,
    agreement_with_classes,
    apply_poses,
    attention_frames,
    graph_layout,
    group_means,
)
from unpose.data import posed


@pytest.fixture(scope="module")
def model_and_images():
    """Two things, eight copies of each, on a canvas larger than the 48 pixels that neighbours are looked for at."""
    things = np.zeros((2, 61, 59), np.float32)
    things[0, 15:45, 26:32] = things[0, 15:21, 26:44] = 1
    things[1, 18:42, 18:42] = 1
    things[1, 25:35, 25:42] = 0
    images = posed(things, copies=8, max_shift=3.0, random_state=2).images.clip(0, 1)
    return InvariantClustering(2, max_shift=9.0).fit(images), images


def test_upright_images_agree_and_keep_their_background(model_and_images):
    model, images = model_and_images
    for ground in (0.0, 0.7):
        lifted = images * 0.3 + ground
        aligned = apply_poses(lifted, model.poses_)
        assert aligned.shape == images.shape
        for label in range(2):
            stack = aligned[model.labels_ == label]
            assert stack.std(0).mean() < 0.25 * lifted[model.labels_ == label].std(0).mean()
        assert np.abs(aligned[:, [0, 0, -1, -1], [0, -1, 0, -1]] - ground).max() < 0.01


def test_averages_are_means_of_upright_images(model_and_images):
    model, images = model_and_images
    labels = model.labels_.copy()
    labels[3] = -1
    means, distances = group_means(images, labels, model.poses_, 2)
    aligned = apply_poses(images, model.poses_)
    for label in range(2):
        inside = labels == label
        assert np.allclose(means[label], aligned[inside].mean(0), atol=1e-6)
        off = aligned[inside] - means[label]
        assert np.allclose(distances[inside], np.sqrt((off**2).mean((1, 2))), atol=1e-6)
    assert np.isnan(distances[3])


def test_rounds_of_the_film_keep_what_copies_share(model_and_images):
    """Copies of one thing average to the thing itself, at its own pose: if poses are read at their scale."""
    model, images = model_and_images
    rows = np.array([0, 9, 15])
    frames = attention_frames(images, model.neighbours_, model.weights_, rows)
    assert len(frames) == 3
    assert frames[0].shape[0] == 3
    assert max(frames[0].shape[1:]) == 48
    for frame in frames[1:]:
        assert np.abs(frame - frames[0]).mean() < 0.1 * frames[0].std()
    noisy = (images + np.random.default_rng(0).normal(0, 0.2, images.shape)).astype(np.float32)
    first, _, last = attention_frames(noisy, model.neighbours_, model.weights_, rows)
    assert np.abs(last - frames[0]).mean() < 0.6 * np.abs(first - frames[0]).mean()


def test_the_map_puts_linked_images_together(rng):
    blocks = sparse.block_diag([np.ones((20, 20)) - np.eye(20)] * 3 + [np.zeros((2, 2))]).tocsr()
    weights = sparse.csr_array(blocks)
    places = graph_layout(weights)
    assert places.shape == (62, 2)
    assert np.isfinite(places).all()
    assert (graph_layout(weights) == places).all()
    groups = places[:60].reshape(3, 20, 2)
    centres = groups.mean(1)
    within = np.linalg.norm(groups - centres[:, None], axis=2).mean()
    apart = min(np.linalg.norm(centres[a] - centres[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert apart > 3 * within
    assert (places[60:, 1] > places[:60, 1].max()).all()  # without links: in a row below
    order = rng.permutation(62)
    assert graph_layout(sparse.csr_array(weights[order][:, order])).shape == (62, 2)
    assert np.isfinite(graph_layout(sparse.csr_array((3, 3)))).all()


def test_agreement_counts_as_defined():
    classes = ["a"] * 4 + ["b"] * 4
    assert agreement_with_classes(classes, [1] * 4 + [0] * 4) == {
        "accuracy": 1.0,
        "purity": 1.0,
        "adjusted Rand index": 1.0,
    }
    split = agreement_with_classes(classes, [0, 0, 2, 2, 1, 1, 1, 1])
    assert split["accuracy"] == 0.75
    assert split["purity"] == 1.0
    assert agreement_with_classes(classes, [0, 0, 0, -1, 1, 1, 1, -1])["accuracy"] == 0.75
    fused = agreement_with_classes(classes, [0] * 8)
    assert (fused["accuracy"], fused["purity"], fused["adjusted Rand index"]) == (0.5, 0.5, 0.0)
