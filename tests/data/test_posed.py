"""Posed copies carry their true poses."""

import numpy as np
import pytest
import torch

from unpose.data import experiments, posed
from unpose.images import warp


def test_warping_by_the_poses_gives_the_copies(rng):
    images = rng.random((3, 9, 11, 2)).astype(np.float32)
    copies = posed(images, "similarity", copies=2, shape=(15, 15), random_state=4, max_shift=1.0)
    assert copies.images.shape == (6, 15, 15, 2)
    assert copies.sources.tolist() == [0, 0, 1, 1, 2, 2]
    for image, pose, source in zip(copies.images, copies.poses, copies.sources, strict=True):
        again = warp(torch.from_numpy(images[source]).movedim(-1, 0)[None], torch.from_numpy(pose).float(), (15, 15))
        np.testing.assert_allclose(image, again[0].movedim(0, -1).numpy(), atol=1e-5)


def test_the_seed_determines_the_copies(rng):
    images = rng.random((2, 5, 5))
    first, same, other = (posed(images, random_state=seed).poses for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    from_generator = posed(images, random_state=torch.Generator().manual_seed(1)).poses
    assert np.array_equal(first, from_generator)


def test_zero_copies_are_rejected(rng):
    with pytest.raises(ValueError, match="copies"):
        posed(rng.random((2, 5, 5)), copies=0)


@pytest.mark.slow
def test_the_data_of_the_papers_figures():
    assert experiments.blobs(3).points.shape == (300, 2)
    drawn = experiments.three_classes(3)
    assert drawn.points.shape == (18, 64, 64, 3)
    np.testing.assert_allclose((drawn.points**2).sum((1, 2, 3)).mean(), 4, rtol=1e-5)
    digits = experiments.threes(3)
    assert digits.points.shape == (10, 44, 44)
    assert not np.array_equal(experiments.threes(3).points, experiments.threes(4).points)
    np.testing.assert_array_equal(experiments.threes(3).points, digits.points)
