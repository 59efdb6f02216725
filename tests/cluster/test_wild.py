"""Clustering by features: kinds that pixels do not tell apart, a few labels, other numbers of clusters."""

import copy
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from unpose.cluster import InvariantClustering, agreement_with_classes
from unpose.data import drawings, posed

SIDE = 25
HAS_EXTRA = find_spec("efficientnet_lite_pytorch") is not None


def lumps(each=14, seed=0):
    """Lumpy discs of three brightnesses: no two have the same pixels, and light, which tells the kinds, is removed."""
    rng = np.random.default_rng(seed)
    x = np.arange(SIDE) - SIDE // 2
    disc = np.exp(-((np.hypot(x, x[:, None]) / 9) ** 6))
    kind = np.arange(3 * each) % 3
    f = np.fft.fftfreq(SIDE)
    grains = np.fft.ifft2(
        np.fft.fft2(rng.standard_normal((len(kind), SIDE, SIDE))) * np.exp(-(f**2 + f[:, None] ** 2) * 80)
    )
    grains = grains.real / grains.real.std((1, 2), keepdims=True)
    level = np.array([0.25, 0.45, 0.8])[kind] * rng.uniform(0.97, 1.03, len(kind))
    return (level[:, None, None] * disc * (1 + 0.3 * grains)).astype(np.float32), kind


def textures(each=20, seed=0):
    """Discs of fine, middling and coarse grain: no two have the same pixels."""
    rng = np.random.default_rng(seed)
    kind = np.arange(3 * each) % 3
    x, f = np.arange(SIDE) - SIDE // 2, np.fft.fftfreq(SIDE)
    passed = np.exp(-(f**2 + f[:, None] ** 2) * np.array([2.0, 20.0, 200.0])[kind, None, None])
    grain = np.fft.ifft2(np.fft.fft2(rng.standard_normal((len(kind), SIDE, SIDE))) * passed).real
    grain /= grain.std((1, 2), keepdims=True)
    return ((1 + 0.3 * grain) * np.exp(-((np.hypot(x, x[:, None]) / 9) ** 6))).astype(np.float32), kind


def brightness(images):
    """How near the brightness of the disc is to each of twelve levels: it knows the kind, whatever the pose."""
    level = images.mean((1, 2))[:, None] * SIDE**2 / 250
    return np.exp(-(((level - np.linspace(0.1, 1.2, 12)) / 0.15) ** 2))


@pytest.fixture(scope="module")
def fitted():
    images, kind = lumps()
    return InvariantClustering(3, features=brightness, max_shift=1.0).fit(images), images, kind


def accuracy(labels, kind):
    return agreement_with_classes(kind, labels)["accuracy"]


def test_kinds_are_found_by_features_and_not_by_pixels(fitted):
    model, images, kind = fitted
    assert accuracy(model.labels_, kind) > 0.95
    pixels = InvariantClustering(3, features="pixels", max_shift=1.0).fit(images)
    assert accuracy(pixels.labels_, kind) < 0.8
    assert pixels.features_ is None
    assert model.features_.network == "brightness"
    assert model.features_.pixel_share < 0.5
    assert 0 <= model.features_.pose_change < 1
    assert model.means_.shape == (3, SIDE, SIDE)


def test_new_images_join_the_clusters_of_their_kind(fitted):
    model, _, kind = fitted
    images, new_kind = lumps(each=3, seed=1)
    assert accuracy(np.append(model.labels_, model.predict(images)), np.append(kind, new_kind)) > 0.95
    # Pixels do not know brightness, so only features can tell that a new one is of no known kind.
    assert (model.assign(images).p_values > 0.01).all()
    assert (model.assign(images[new_kind == 2] * 1.5).p_values < 0.01).all()


def test_saved_clusters_take_new_images_once_they_have_the_network_again(fitted, tmp_path):
    model, images, _ = fitted
    model.save(tmp_path)
    loaded = InvariantClustering.load(tmp_path)
    with pytest.raises(ValueError, match="features of brightness, which is not saved with them"):
        loaded.predict(images[:3])
    loaded.features = brightness
    assert np.array_equal(loaded.predict(images[:5]), model.predict(images[:5]))
    assert loaded.features_.pose_change == model.features_.pose_change


def test_another_number_of_clusters_needs_no_new_fit(fitted):
    model, _, _ = fitted
    assert np.array_equal(model.cut(3), model.labels_)
    for count in (1, 2, 5):
        assert np.array_equal(np.unique(model.cut(count)), np.arange(count))


def test_a_few_labels_name_the_clusters(fitted):
    model, images, kind = fitted
    chosen = model.suggest(3)
    assert sorted(kind[chosen]) == [0, 1, 2], "one image of every kind is the most instructive choice"
    y = np.full(len(kind), -1)
    y[chosen] = 10 + kind[chosen]
    taught = InvariantClustering(features=brightness, max_shift=1.0).fit(images, y)
    assert taught.classes_.tolist() == [10, 11, 12]
    np.testing.assert_allclose(taught.probabilities_.sum(1), 1.0)
    assert (taught.classes_[taught.probabilities_.argmax(1)] == 10 + kind).mean() > 0.95
    assert len(set(taught.labels_[chosen])) == 3
    assert not set(taught.suggest(5)) & set(chosen.tolist())


def test_added_images_attend_to_what_their_features_are_like(fitted):
    """Pixels say nothing here; weights of added images are of the size of those that walks over the graph gave."""
    model, new, kinds = copy.deepcopy(fitted[0]), *lumps(5, seed=1)
    n = len(model.labels_)
    model.partial_fit(new)
    weights = model.weights_[n:].toarray()[:, :n]
    own = (weights * (fitted[2] == kinds[:, None])).sum(1) / weights.sum(1)
    assert own.min() > 0.8
    rows = np.sort(fitted[0].weights_.toarray(), axis=1)[:, -8:]
    assert 0.7 < np.sort(weights, axis=1)[:, -8:].mean() / rows.mean() < 1.4
    assert (np.count_nonzero(weights, axis=1) == 8).all()


def test_suggestions_leave_out_what_was_labelled_and_nothing_else(tmp_path):
    """Two kinds in one part of the graph, of which one is labelled: images of the other must be asked for, too."""
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 30, 60], [9, 9, 8])
    X = groups[:, None] + rng.normal(size=(26, 2))
    y = np.full(26, -1)
    y[[2, 10]] = 5, 7
    model = InvariantClustering().fit(X, y)
    assert sorted(model.suggest(99)) == sorted(set(range(26)) - {2, 10})
    assert (model.probabilities_.max(1) == 1.0).sum() == 2
    model.save(tmp_path)
    assert np.array_equal(InvariantClustering.load(tmp_path).suggest(99), model.suggest(99))
    model.partial_fit(X[:1] + 0.1)
    assert 26 in model.suggest(99)
    one_class = InvariantClustering().fit(X, np.where(y == 7, -1, y))
    assert set(groups[one_class.suggest(2)]) == {30, 60}, "one class says nothing about the others"


def test_known_classes_must_fit_the_number_of_clusters():
    X = np.repeat([0.0, 9.0, 18.0, 27.0], 6)[:, None] + np.random.default_rng(1).normal(size=(24, 2))
    y = np.full(24, -1)
    y[[0, 6, 12, 18]] = 0, 1, 2, 3
    with pytest.raises(ValueError, match="at least 4, the number of classes in y"):
        InvariantClustering(3).fit(X, y)
    assert InvariantClustering(4).fit(X, y).n_clusters_ == 4
    more = InvariantClustering(4).fit(X, np.where(np.arange(24) < 2, np.arange(24), -1))  # both in one of the four
    assert more.n_clusters_ == 5
    assert any("there are 5 groups; 4 were asked for" in note for note in more.notes_)


def test_complete_labels_are_ignored_and_wrong_ones_are_refused(fitted):
    model, images, kind = fitted
    again = InvariantClustering(3, features=brightness, max_shift=1.0).fit(images, kind)
    assert np.array_equal(again.weights_.toarray(), model.weights_.toarray()), "the same seed gives the same results"
    assert np.array_equal(again.labels_, model.labels_)
    assert again.probabilities_ is None
    for y, message in (
        (kind[:5], "y must be 42 integers"),
        (np.where(kind, kind + 0.5, -1), "y must be"),
        (kind - 3, "at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            InvariantClustering(3, features="pixels").fit(images, y)


def test_features_are_computed_by_as_many_threads_as_n_jobs(fitted):
    seen, before = set(), torch.get_num_threads()

    def counted(batch):
        seen.add(torch.get_num_threads())
        return brightness(batch)

    try:
        torch.set_num_threads(3)
        model = InvariantClustering(3, features=counted, max_shift=1.0, n_jobs=2).fit(fitted[1][:24])
        assert max(seen) == 2
        seen.clear()
        model.set_params(n_jobs=1).predict(fitted[1][:2])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert max(seen) == 1


def test_a_network_that_fails_says_so():
    images, _ = lumps(each=9)
    with pytest.raises(ValueError, match="NaN"):
        InvariantClustering(3, features=lambda batch: brightness(batch) * np.nan).fit(images)


def test_unstable_clusters_say_what_the_extra_would_gain(fitted):
    model = copy.copy(fitted[0])
    model.stability_, model.features_ = 0.3, None
    for features, wanted in (("auto", True), ("pixels", False)):
        model.features = features
        assert any("unpose[features]" in note for note in model.notes_) == wanted


@pytest.mark.skipif(HAS_EXTRA, reason="the network of the extra is compared by then")
def test_statistics_are_compared_unasked_where_they_tell_kinds_apart(tmp_path):
    images, kind = textures()
    model = InvariantClustering(3, group="se2+mirror", max_shift=1.0).fit(images)
    assert model.features_.network == "statistics"
    assert model.features_.pixel_share < 0.5
    assert accuracy(model.labels_, kind) > 0.95
    pixels = InvariantClustering(3, features="pixels", max_shift=1.0).fit(images)
    assert accuracy(pixels.labels_, kind) < 0.8
    assert any("statistics of texture and shape" in note for note in model.notes_)
    assert not any("do not see" in note for note in model.notes_)
    model.save(tmp_path / "model.npz")
    new, new_kind = textures(each=3, seed=1)
    found = InvariantClustering.load(tmp_path / "model.npz").predict(new)
    assert accuracy(np.append(model.labels_, found), np.append(kind, new_kind)) > 0.95


@pytest.mark.skipif(HAS_EXTRA, reason="the network of the extra is compared by then")
@pytest.mark.parametrize("bounds", [{"group": "se2+mirror"}, {}, {"group": "so2+mirror", "max_angle": 0.3}])
def test_unasked_statistics_change_nothing_where_pixels_decide(bounds):
    """Shapes; and images whose mirror image or angle counts, which the statistics do not see."""
    shapes = bounds == {"group": "se2+mirror"}
    images = posed(drawings(SIDE), copies=9, max_shift=1.0, random_state=3).images if shapes else textures()[0]
    model = InvariantClustering(3, **bounds).fit(images)
    pixels = InvariantClustering(3, features="pixels", **bounds).fit(images)
    assert model.features_ is None
    assert model.means_.tobytes() == pixels.means_.tobytes()
    assert model.confidences_.tobytes() == pixels.confidences_.tobytes()


@pytest.mark.parametrize(
    ("features", "group", "lost"),
    [("statistics", "se2", "mirror images"), ("contour", "translation", "rotations and mirror images and sizes")],
)
def test_features_that_were_asked_for_say_what_they_do_not_see(features, group, lost):
    model = InvariantClustering(3, features=features, group=group, max_shift=1.0).fit(textures(9)[0])
    assert any(f"do not see {lost}, which count as differences in the group {group}" in note for note in model.notes_)
