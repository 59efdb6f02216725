"""Images that are read in pieces are clustered as those in memory are."""

import numpy as np
import pytest
import torch

from unpose.cluster import InvariantClustering, agreement_with_classes, pieces
from unpose.cluster.averaging import average_groups
from unpose.cluster.light import has_content, normalise_light
from unpose.cluster.pieces import Batch, as_pieces, normalise_pieces
from unpose.cluster.rounds import average_neighbours
from unpose.data import posed
from unpose.files import images_in_pieces, open_images, store_images


def shapes(copies=13):
    images = np.zeros((3, 20, 20), np.float32)
    images[0, 4:16, 9:11] = images[1, 6:14, 6:14] = images[2, 5:15, 8:10] = images[2, 13:15, 8:15] = 1
    rng = np.random.default_rng(0)
    found = posed(images, copies=copies, max_shift=2.0)
    return (found.images + 0.01 * rng.standard_normal(found.images.shape)).astype(np.float32), found.sources


@pytest.fixture
def few(monkeypatch):
    """Sets of more than ten images are read in pieces, which hold nine images."""
    monkeypatch.setattr(pieces, "FEWEST_IN_PIECES", 10)
    monkeypatch.setattr(pieces, "_PIECE_PIXELS", 9 * 400)


@pytest.mark.parametrize("light", ["ignore", "local", "keep"])
def test_light_is_removed_as_in_memory(light, few):
    images, _ = shapes()
    images[5] = 0.5
    images[7] *= 2e38  # squares overflow, and 1e-6 of its pixels is more than all others have
    batch = torch.from_numpy(images)[:, None]
    expected = normalise_light(batch, light)
    found, shown = normalise_pieces(Batch(images_in_pieces(images)), light)
    torch.testing.assert_close(found[:], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(shown, has_content(expected))
    np.testing.assert_array_equal(shown, np.arange(len(images)) != 5)
    torch.testing.assert_close(found.take(np.array([7, 3]))[1:], expected[3:4], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_averages_in_blocks_are_those_of_all_images(few, monkeypatch):
    from unpose.align import Search, nearest
    from unpose.cluster import averaging

    monkeypatch.setattr(averaging, "BLOCK", 11)
    images, labels = shapes(7)
    batch, order = torch.from_numpy(images)[:, None], np.argsort(labels, kind="stable")
    exemplars = order[np.unique(labels[order], return_index=True)[1]]
    whole = average_groups(batch, labels, exemplars, Search(n_jobs=1), None)
    parts = average_groups(Batch(images_in_pieces(images)), labels, exemplars, Search(n_jobs=1), None)
    torch.testing.assert_close(parts.means, whole.means, rtol=0, atol=0.02)
    np.testing.assert_allclose(parts.distances, whole.distances, atol=0.02)
    near = nearest(images, 3, n_jobs=1)
    torch.testing.assert_close(
        average_neighbours(Batch(images_in_pieces(images)), near)[:], average_neighbours(batch, near)
    )


def test_a_fit_in_pieces_finds_the_clusters(few):
    images, sources = shapes(8)
    stored = store_images([(255 * images.clip(0, 1)).astype(np.uint8)])
    model = InvariantClustering(3, features="pixels", n_jobs=1).fit(stored)
    assert agreement_with_classes([str(source) for source in sources], model.labels_)["accuracy"] > 0.9
    assert model.means_.shape == (3, 20, 20)
    assert model.references_.shape[1:] == (1, 20, 20)


@pytest.mark.slow
def test_every_kind_of_array_gives_the_same_bytes(few, tmp_path):
    images, _ = shapes()
    dask = pytest.importorskip("dask.array")
    np.save(tmp_path / "stack.npy", images)
    given = [
        open_images(tmp_path / "stack.npy"), np.load(tmp_path / "stack.npy", mmap_mode="r"),
        dask.from_array(images, chunks=(5, 20, 20)), store_images([images]),
    ]  # fmt: skip
    first, *others = (InvariantClustering(3, features="pixels", n_jobs=1).fit(each) for each in given)
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
    model = InvariantClustering(3, features="pixels", light="keep", n_jobs=1)
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


def test_few_images_and_arrays_in_memory_are_read_at_once():
    images = np.zeros((50, 8, 8), np.float32)
    assert as_pieces(images) is None
    assert as_pieces(torch.from_numpy(images)) is None
    assert as_pieces(images_in_pieces(images)) is None
    assert as_pieces([images[0]]) is None


@pytest.mark.slow
def test_a_sample_of_the_references_still_assigns(monkeypatch):
    from unpose.cluster import estimator

    images, _ = shapes(25)
    images = images.reshape(3, 25, 20, 20).swapaxes(0, 1).reshape(75, 20, 20)  # one of each kind after the other
    model = InvariantClustering(3, features="pixels", n_jobs=1).fit(images[:60])
    full = model.assign(images[60:])
    monkeypatch.setattr(estimator, "_MAX_REFERENCE_BYTES", 30 * 4 * 400)
    model = InvariantClustering(3, features="pixels", n_jobs=1).fit(images[:60])
    assert len(model.references_) == 30
    found = model.assign(images[60:])
    np.testing.assert_array_equal(found.labels, full.labels)
    assert np.nanmedian(found.p_values) > 0.05  # the images are no outliers, though their neighbours are farther


@pytest.mark.parametrize("features", ["pixels", "statistics"])
def test_the_number_of_threads_changes_no_bit_of_what_is_saved(tmp_path, features):
    images, _ = shapes(copies=14)
    threads, saved = torch.get_num_threads(), []
    try:
        for jobs in (1, 2, 3):
            torch.set_num_threads(jobs)  # as the command does
            InvariantClustering(3, features=features, n_jobs=jobs).fit(images).save(tmp_path)
            saved.append([path.read_bytes() for path in sorted(tmp_path.iterdir())])
    finally:
        torch.set_num_threads(threads)
    assert saved[0] == saved[1] == saved[2]
