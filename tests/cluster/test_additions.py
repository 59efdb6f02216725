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


def test_the_same_images_again_are_copies_as_in_a_fit(tmp_path):
    X, new = blobs()[0], blobs(6, seed=2)[0]
    model = InvariantClustering(3).fit(X).partial_fit(np.concatenate([new, X[[7, 3]], new[[4]]]))
    assert model.copies_[60:].tolist() == [60, 61, 62, 63, 64, 65, 7, 3, 64]
    model.save(tmp_path)
    model = InvariantClustering.load(tmp_path).partial_fit(new[:2])
    assert model.copies_[69:].tolist() == [60, 61]
    copies = np.flatnonzero(model.copies_ != np.arange(71))
    for values in (model.labels_, model.confidences_, model.poses_):
        assert np.array_equal(values[copies], values[model.copies_[copies]])
    assert model.weights_[copies].nnz == 0
    assert (model.neighbours_.indices[copies] == -1).all()
    assert any("5 images are copies" in note for note in model.notes_)
    everything = np.concatenate([X, new, X[[7, 3]], new[[4]], new[:2]])
    assert np.array_equal(InvariantClustering(3).fit(everything).copies_, model.copies_)


def test_groups_that_were_made_have_the_stability_and_confidences_of_themselves():
    X, kind = blobs()
    model = InvariantClustering(3).fit(X)
    stability, confidences = model.stability_, model.confidences_.copy()
    model.regroup(X, np.array([2, 0, 1])[model.labels_])  # the same clusters with other numbers
    assert model.stability_ == stability > 0.9
    assert np.array_equal(model.confidences_, confidences)
    model.regroup(X, np.arange(60) % 3)
    assert model.stability_ < 0.2
    assert model.confidences_.max() < 0.5
    assert any("not stable" in note for note in model.notes_)
    model.regroup(X, kind)
    assert model.stability_ > 0.9
    assert model.confidences_.min() > 0.9


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
