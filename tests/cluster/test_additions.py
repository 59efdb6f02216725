"""Images that arrive later are added to a fitted clustering."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from unpose.cluster import InvariantClustering
from unpose.data import posed


def blobs(n=60, seed=0):
    return make_blobs(n, centers=[[0, 0], [9, 0], [0, 9]], cluster_std=0.8, random_state=seed)


def test_added_vectors_have_the_labels_of_their_votes_and_extend_every_attribute():
    X, _ = blobs()
    new, _ = blobs(17, seed=1)
    model = InvariantClustering(3).partial_fit(X)  # the first call is a fit
    means, references = model.means_.copy(), model.references_.copy()
    expected = model.predict(new)
    assert model.partial_fit(new) is model
    np.testing.assert_array_equal(model.labels_[60:], expected)
    np.testing.assert_array_equal(model.added_.labels, expected)
    for name in ("labels_", "confidences_", "poses_", "copies_"):
        assert len(getattr(model, name)) == 77, name
    assert model.weights_.shape == (77, 77)
    assert (model.weights_ != model.weights_.T).nnz == 0
    assert model.weights_[60:].sum(1).min() > 0
    assert (model.weights_[60:][:, 60:]).nnz == 0
    inside = model.weights_[[60]].indices
    assert (model.labels_[inside] == model.labels_[60]).all()
    np.testing.assert_array_equal(model.means_, means)
    np.testing.assert_array_equal(model.references_, references)


def test_the_order_of_arrival_does_not_matter():
    X, _ = blobs()
    new, _ = blobs(20, seed=1)
    together = InvariantClustering(3).fit(X).partial_fit(new)
    apart = InvariantClustering(3).fit(X).partial_fit(new[:7]).partial_fit(new[7:])
    np.testing.assert_array_equal(apart.labels_, together.labels_)
    np.testing.assert_allclose(apart.weights_.toarray(), together.weights_.toarray())
    np.testing.assert_array_equal(apart.predict(X), together.predict(X))


def test_what_was_added_is_saved(tmp_path):
    model = InvariantClustering(3).fit(blobs()[0]).partial_fit(blobs(9, seed=2)[0])
    model.save(tmp_path)
    again = InvariantClustering.load(tmp_path)
    np.testing.assert_array_equal(again.labels_, model.labels_)
    np.testing.assert_array_equal(again.predict(blobs(5, seed=3)[0]), model.predict(blobs(5, seed=3)[0]))
    assert len(again.partial_fit(blobs(4, seed=4)[0]).labels_) == 73


def test_other_clusters_can_be_cut_from_the_extended_graph():
    model = InvariantClustering(3).fit(blobs()[0]).partial_fit(blobs(12, seed=2)[0])
    labels = model.cut(2)
    assert len(labels) == 72
    assert labels.max() == 1


def test_wrong_vectors_are_refused():
    model = InvariantClustering(3).fit(blobs()[0])
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(np.zeros((3, 5)))
    assert len(model.labels_) == 60


@pytest.mark.slow
def test_added_images_are_aligned_to_the_averages():
    shapes = np.zeros((3, 20, 20), np.float32)
    shapes[0, 4:16, 9:11] = shapes[1, 6:14, 6:14] = shapes[2, 5:15, 8:10] = shapes[2, 13:15, 8:15] = 1
    old, new = (posed(shapes, copies=copies, max_shift=2.0, random_state=copies) for copies in (8, 3))
    model = InvariantClustering(3, n_jobs=1).fit(old.images)
    kind = {int(source): int(label) for source, label in zip(old.sources, model.labels_, strict=True)}
    blank = np.zeros((1, 20, 20), np.float32)
    model.partial_fit(np.concatenate([new.images, blank]))
    assert model.labels_[24:33].tolist() == [kind[int(source)] for source in new.sources]
    assert model.labels_[33] == -1
    assert model.neighbours_.indices[33].tolist() == [-1] * model.neighbours_.indices.shape[1]
    everything = np.concatenate([old.images, new.images, blank])
    assert model.aligned(everything, 0).shape[0] == (model.labels_ == 0).sum()
    assert model.regroup(everything, model.labels_).means_.shape == (3, 20, 20)
