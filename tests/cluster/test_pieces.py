"""Images that are read in pieces are clustered as those in memory are."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from kit.images import posed_things
from unpose.cluster import InvariantClustering
from unpose.cluster.estimator import fit_within
from unpose.cluster.limits import Limits
from unpose.files import images_in_pieces, open_images, store_images

FEW = Limits(in_memory=10, piece_pixels=9 * 400, aligned_at_once=11)
"""Sets of more than ten images are read in pieces, which hold nine images."""


ASSIGNED = ("labels", "confidences", "p_values", "second", "distances", "poses")


def clustering(light="ignore", **options):
    return InvariantClustering(3, features="pixels", light=light, n_jobs=1, **options)


def shapes(copies=13):
    found = posed_things(copies, size=20, noise=0.01)
    return found.images, found.sources


@pytest.mark.parametrize("light", ["ignore", "local", "keep"])
def test_light_is_removed_as_in_memory(light):
    images, _ = shapes(8)
    images[5] = 0.5
    if light != "keep":
        images[7] *= 2e38  # squares overflow, and 1e-6 of its pixels is more than all others have
    whole, parts = clustering(light).fit(images), fit_within(FEW, clustering(light), images_in_pieces(images))
    assert np.flatnonzero(parts.labels_ < 0).tolist() == [5]
    np.testing.assert_allclose(parts.references_, whole.references_, rtol=1e-5, atol=1e-6)
    assert adjusted_rand_score(whole.labels_, parts.labels_) == 1.0


def test_averages_in_blocks_are_those_of_all_images():
    images, _ = shapes(7)
    model = fit_within(FEW, clustering(), images)  # an array is in memory, however many images it has
    whole, poses = model.means_, model.poses_
    model.regroup(images_in_pieces(images), model.labels_)
    np.testing.assert_allclose(model.means_, whole, atol=0.02 * np.abs(whole).max())
    np.testing.assert_allclose(model.poses_, poses, atol=0.1)


def test_rounds_of_attention_in_pieces_average_noise_as_in_memory():
    noisy = posed_things(9, size=20, noise=0.5)
    whole, parts = clustering().fit(noisy.images), fit_within(FEW, clustering(), images_in_pieces(noisy.images))
    assert whole.history_[0].averaged
    assert parts.history_[0].averaged
    assert parts.history_[-1].mean_distance == pytest.approx(whole.history_[-1].mean_distance, rel=0.1)


def test_a_fit_in_pieces_finds_the_clusters():
    images, sources = shapes(8)
    model = fit_within(FEW, clustering(), store_images([(255 * images.clip(0, 1)).astype(np.uint8)]))
    assert adjusted_rand_score(sources, model.labels_) > 0.8
    assert model.means_.shape == (3, 20, 20)
    assert model.references_.shape[1:] == (1, 20, 20)


@pytest.mark.slow
def test_every_kind_of_array_gives_the_same_bytes(tmp_path):
    images, _ = shapes()
    dask = pytest.importorskip("dask.array")
    np.save(tmp_path / "stack.npy", images)
    given = [
        open_images(tmp_path / "stack.npy"), np.load(tmp_path / "stack.npy", mmap_mode="r"),
        dask.from_array(images, chunks=(5, 20, 20)), store_images([images]),
    ]  # fmt: skip
    first, *others = (fit_within(FEW, clustering(), each) for each in given)
    for other in others:
        np.testing.assert_array_equal(other.labels_, first.labels_)
        np.testing.assert_array_equal(other.poses_, first.poses_)
        np.testing.assert_array_equal(other.means_, first.means_)
    np.testing.assert_array_equal(first.predict(images[:4]), first.labels_[:4])
    assert first.regroup(given[0], np.where(first.labels_ == 2, 1, first.labels_)).means_.shape == (2, 20, 20)


class OnDisk:
    """Stands in for an array on disk, and counts the rows that are read at once."""

    def __init__(self, images):
        self.images, self.shape, self.dtype, self.ndim, self.most = images, images.shape, images.dtype, images.ndim, 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, rows):
        found = self.images[rows]
        self.most = max(self.most, len(found))
        return found

    def __array__(self, *args, **options):
        return self[:]


def test_new_images_are_read_in_pieces():
    """Most are constant, which takes no time."""
    images, _ = shapes(6)
    model = clustering("keep")
    model.fit(images[::2].repeat(2, 1).repeat(2, 2))
    many = np.full((4200, 40, 40), 0.5, np.float32)
    rows = np.arange(9) * 450
    many[rows] = images[1::2].repeat(2, 1).repeat(2, 2)
    stored = OnDisk(many)
    found, whole = model.assign(stored), model.assign(many[rows])
    np.testing.assert_array_equal(np.flatnonzero(found.labels >= 0), rows)
    np.testing.assert_array_equal(found.labels[rows], whole.labels)
    np.testing.assert_allclose(found.distances[rows], whole.distances, atol=1e-4)
    np.testing.assert_array_equal(model.predict(stored), found.labels)
    np.testing.assert_allclose(model.transform(stored)[rows], model.transform(many[rows]), atol=1e-4)
    assert len(model.partial_fit(stored).labels_) == 4209
    assert 0 < stored.most < 2000


def test_few_images_are_read_at_once():
    images, _ = shapes(5)
    stored = OnDisk(images)
    assert clustering().fit(stored).means_.tobytes() == clustering().fit(images).means_.tobytes()
    assert stored.most == 15


@pytest.mark.slow
def test_a_sample_of_the_references_still_assigns():
    images, _ = shapes(25)
    images = images.reshape(3, 25, 20, 20).swapaxes(0, 1).reshape(75, 20, 20)  # one of each kind after the other
    full = clustering().fit(images[:60]).assign(images[60:])
    model = fit_within(Limits(reference_bytes=30 * 4 * 400), clustering(), images[:60])
    assert len(model.references_) == 30
    found = model.assign(images[60:])
    np.testing.assert_array_equal(found.labels, full.labels)
    assert np.nanmedian(found.p_values) > 0.05  # the images are no outliers, though their neighbours are farther


def moments(images):
    """Vectors of the values of images, as a network gives them."""
    return np.stack([images.mean((1, 2)), images.std((1, 2)), (images**3).mean((1, 2)), images.max((1, 2))], axis=1)


@pytest.mark.parametrize("features", ["pixels", "statistics", moments])
def test_the_number_of_threads_changes_no_bit_of_what_is_saved_assigned_and_added(tmp_path, features):
    images, _ = shapes(copies=10)
    old, new = np.arange(30) % 10 < 9, posed_things(5, size=20, noise=0.01, seed=5).images
    threads, saved, found = torch.get_num_threads(), [], []
    try:
        for jobs in (1, 3):
            torch.set_num_threads(jobs)  # as the command does
            model = InvariantClustering(3, features=features, n_jobs=jobs).fit(images[old])
            found.append([getattr(model.assign(new), name).tobytes() for name in ASSIGNED])
            model.partial_fit(images[~old]).save(tmp_path)
            saved.append([path.read_bytes() for path in sorted(tmp_path.iterdir())])
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]
    assert saved[0] == saved[1]
