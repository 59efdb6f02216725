"""A few known classes: how they spread over the graph, and which images are worth a label."""

import numpy as np
import pytest

from unpose.cluster import InvariantClustering
from unpose.cluster.labels import class_probabilities


def rings(count=3, length=17):
    """Points on circles, each linked to its four neighbours on either side and to no other circle, and the circles."""
    ring, angle = np.repeat(np.arange(count), length), np.tile(2 * np.pi * np.arange(length) / length, count)
    return np.stack([np.cos(angle) + 9 * ring, np.sin(angle)], axis=1), ring


def fitted(X, known):
    """A clustering that knows the classes of some images, which are the rows {index: class}."""
    y = np.full(len(X), -1)
    y[list(known)] = list(known.values())
    return InvariantClustering().fit(X, y)


def test_one_label_of_each_kind_reaches_its_whole_ring():
    X, ring = rings()
    found = fitted(X, {3: 0, 20: 1, 50: 2}).probabilities_
    np.testing.assert_allclose(found.sum(1), 1.0)
    assert np.array_equal(found.argmax(1), ring)
    assert (found[[3, 20, 50], [0, 1, 2]] == 1.0).all()


def test_no_image_is_certain_unless_its_class_was_given_and_those_that_no_label_reaches_are_open():
    """Labels of one class alone reach most images of these rings, which may still hold other kinds."""
    X, ring = rings()
    found = fitted(X, {0: 0, 20: 1}).probabilities_
    assert np.flatnonzero(found.max(1) == 1.0).tolist() == [0, 20]
    assert found[ring == 0, 0].min() > 0.99
    np.testing.assert_allclose(found[ring == 2], 0.5)


def test_a_class_with_many_labels_does_not_drown_one_with_few():
    known = dict.fromkeys([0, 1, 2, 3, 37, 38, 39], 0) | {20: 1}
    found = fitted(rings(1, 40)[0], known).probabilities_
    assert found.argmax(1)[[17, 18, 19, 21, 22, 23]].tolist() == [1] * 6


@pytest.fixture(scope="module")
def mixed():
    """A ring whose links ignore two classes, and points in which one of 19 directions tells them apart."""
    rng, n = np.random.default_rng(0), 223
    classes = rng.permutation(np.arange(n) % 2)
    points = rng.normal(size=(n, 19))
    points[:, 4] += 5.0 * classes - 2.5
    known = np.full(n, -1)
    rows = np.concatenate([np.flatnonzero(classes == kind)[:10] for kind in (0, 1)])
    known[rows] = classes[rows]
    model = InvariantClustering(2).fit(rings(1, n)[0], known)
    return model, points / np.linalg.norm(points, axis=1, keepdims=True), classes, known


def test_points_decide_where_the_graph_mixes_the_classes(mixed):
    model, points, classes, known = mixed
    others = known < 0
    assert (model.probabilities_.argmax(1) == classes)[others].mean() < 0.65
    found = class_probabilities(model.weights_, known, 2, points, 0.9)
    np.testing.assert_allclose(found.sum(1), 1.0)
    assert (found[~others, classes[~others]] == 1.0).all()
    assert (found.argmax(1) == classes)[others].mean() > 0.85


def test_points_without_weight_leave_the_graph_its_answer(mixed):
    model, points, _, known = mixed
    joint = class_probabilities(model.weights_, known, 2, points, 0.0)
    assert np.array_equal(joint.argmax(1), model.probabilities_.argmax(1))
    with_a_third = class_probabilities(model.weights_, known, 3, points, 0.9)  # its only images are not in the graph
    assert set(with_a_third.argmax(1)) == {0, 1}
    one_class = np.where(known == 1, -1, known)
    assert np.array_equal(class_probabilities(model.weights_, one_class, 1, points, 0.9), np.ones((len(known), 1)))


def test_one_label_of_each_class_is_enough_and_no_warning():
    X, ring = rings(29, 11)
    weights, known = InvariantClustering(29).fit(X).weights_, np.full(len(ring), -1)
    known[::11] = ring[::11]
    assert np.array_equal(class_probabilities(weights, known, 29, np.eye(29)[ring], 0.5).argmax(1), ring)


def test_suggestions_cover_every_ring_before_any_twice_and_skip_known_and_certain_images():
    X, ring = rings()
    model = InvariantClustering().fit(X)
    assert sorted(ring[model.suggest(3)]) == [0, 1, 2]
    assert sorted(model.suggest(1000)) == list(range(len(ring)))
    assert sorted(ring[fitted(X, {5: 0}).suggest(2)]) == [1, 2]
    both = fitted(X, {0: 0, 1: 0, 20: 1})
    assert sorted(both.suggest(1000)) == sorted(set(range(len(ring))) - {0, 1, 20})
    assert (ring[both.suggest(2)] == 2).all(), "the images of the other rings are nearly certain"
