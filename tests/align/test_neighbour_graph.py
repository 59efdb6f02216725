"""Quick neighbours: each pair is compared once, right for both of its images, and close to the full search."""

import numpy as np
import pytest
import torch

from unpose.align import nearest
from unpose.images import warp


def test_copies_find_each_other(copies):
    found = nearest(copies.images, 8, quick=True)
    assert (copies.sources[found.indices] == copies.sources[:, None]).all()
    assert (np.diff(found.distances, axis=1) >= 0).all()
    assert (found.indices != np.arange(len(copies.images))[:, None]).all()


@pytest.mark.parametrize(
    ("group", "candidates"),
    [("se2", 20)]
    + [
        pytest.param(*each, marks=pytest.mark.slow)
        for each in (("se2", None), ("similarity+mirror", None), ("similarity+mirror", 20))
    ],
)
def test_distances_are_those_at_the_poses(copies, group, candidates):
    found = nearest(copies.images, 5, group=group, candidates=candidates, quick=True)
    for rank in (0, 4):
        poses = torch.from_numpy(found.poses[:, rank]).float()
        moved = warp(torch.from_numpy(copies.images[found.indices[:, rank]]), poses).numpy()
        area = np.abs(np.linalg.det(found.poses[:, rank, :2, :2]))
        apart = np.linalg.norm((moved - copies.images).reshape(len(moved), -1), axis=1) / area**0.25
        np.testing.assert_allclose(found.distances[:, rank], apart, rtol=0.03, atol=0.02)


@pytest.mark.slow
def test_most_neighbours_are_those_of_the_full_search(copies):
    rng = np.random.default_rng(0)
    images = copies.images + 0.3 * rng.random(copies.images.shape, np.float32)  # no two copies are equal
    quick, full = (nearest(images, 10, group="affine", quick=quick).indices for quick in (True, False))
    shared = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(quick.tolist(), full.tolist(), strict=True)])
    assert shared > 0.85


def test_with_the_largest_k_all_other_images_are_neighbours(copies):
    found = nearest(copies.images[:11], 10, quick=True)
    assert (np.sort(found.indices, axis=1) == [[j for j in range(11) if j != i] for i in range(11)]).all()


def test_the_same_bytes_for_any_number_of_workers(copies):
    one, three = (nearest(copies.images, 4, quick=True, n_jobs=n) for n in (1, 3))
    for name in ("indices", "distances", "poses"):
        assert getattr(one, name).tobytes() == getattr(three, name).tobytes()


@pytest.mark.parametrize("other", [{"others": np.ones((3, 24, 24), np.float32)}, {"refine": False}])
def test_it_refuses_other_images_and_the_coarse_stage_alone(copies, other):
    with pytest.raises(ValueError, match="among the images themselves"):
        nearest(copies.images, 2, quick=True, **other)
