"""The group so2, turns about the image centre: search, posed copies and audit use it without code of their own."""

import numpy as np
import pytest
import torch

from kit.images import scribbles
from unpose.align import align, nearest, orbit_distances
from unpose.audit import equivariance_error
from unpose.cluster import InvariantClustering
from unpose.data import posed
from unpose.images import pixel_grid


@pytest.fixture(scope="module")
def shapes():
    """Four different shapes on 31 pixels, off centre and without symmetry."""
    return np.pad(scribbles(4, 23, seed=3), ((0, 0), (4, 4), (4, 4)))


@pytest.mark.parametrize("group", ["so2", "so2+mirror"])
def test_align_recovers_turns_and_does_not_shift(shapes, group):
    copies = posed(shapes, group, copies=5, random_state=1)
    assert (copies.poses[:, :2, 2] == 0).all()
    found = align(shapes[copies.sources], copies.images, group=group)
    np.testing.assert_allclose(found.poses, copies.poses, atol=0.01)
    assert (found.poses[:, :2, 2] == 0).all()


def test_copies_that_are_shifted_too_are_matched_by_turns_alone(shapes):
    copies = posed(shapes, "se2", copies=2, random_state=2, max_shift=3.0)
    turned = align(shapes[copies.sources], copies.images, group="so2", max_shift=5.0)
    moved = align(shapes[copies.sources], copies.images, group="se2", max_shift=5.0)
    assert (turned.poses[:, :2, 2] == 0).all()
    assert (turned.distances > 2 * moved.distances).all()


@pytest.mark.parametrize("settings", [{}, {"candidates": 9}, {"quick": True}], ids=["all", "candidates", "quick"])
def test_nearest_neighbours_are_found_without_shifts(shapes, settings):
    copies = posed(shapes, "so2", copies=4, random_state=3)
    found = nearest(copies.images, 3, group="so2", **settings)
    assert (found.poses[..., :2, 2] == 0).all()
    assert (copies.sources[found.indices] == copies.sources[:, None]).all()


def test_orbit_distances_are_symmetric(shapes):
    distances, poses = orbit_distances(shapes, group="so2")
    np.testing.assert_array_equal(distances, distances.T)
    assert (poses[..., :2, 2] == 0).all()


def test_clusters_of_turned_copies(shapes):
    copies = posed(shapes, "so2", copies=6, random_state=4)
    found = InvariantClustering(4, group="so2", random_state=0).fit(copies.images)
    assert all(len(set(found.labels_[copies.sources == i])) == 1 for i in range(4))
    assert (found.poses_[:, :2, 2] == 0).all()


def test_audit_measures_turns_about_the_centre(shapes):
    radius = pixel_grid((31, 31)).norm(dim=-1)

    def mean_radius(images):
        return (images * radius).sum((2, 3)) / images.sum((2, 3))

    images = torch.from_numpy(shapes)[:, None]
    turns = equivariance_error(mean_radius, images, "so2")
    motions = equivariance_error(mean_radius, images, "se2")
    assert turns.errors.max() < 0.02 < 0.1 < motions.errors.max()
