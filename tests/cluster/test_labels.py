"""A few known classes: how they spread over the graph, and which images are worth a label."""

import numpy as np
from scipy import sparse

from unpose.cluster.graph import largest_entries
from unpose.cluster.labels import class_probabilities, most_instructive, spread_labels


def rings(n_rings=3, length=17):
    """Rings of images, each linked to its two neighbours on either side, without any link between rings."""
    n = n_rings * length
    weights = np.zeros((n, n))
    for ring in range(n_rings):
        for i in range(length):
            for step in (1, 2):
                a, b = ring * length + i, ring * length + (i + step) % length
                weights[a, b] = weights[b, a] = 1.0 / step
    return sparse.csr_array(weights), np.repeat(np.arange(n_rings), length)


def test_one_label_of_each_kind_reaches_its_whole_ring():
    weights, ring = rings()
    known = np.full(len(ring), -1)
    known[[3, 20, 50]] = ring[[3, 20, 50]]
    probabilities = spread_labels(weights, known, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    assert np.array_equal(probabilities.argmax(1), ring)
    assert (probabilities[[3, 20, 50], ring[[3, 20, 50]]] == 1.0).all()


def test_no_image_is_certain_unless_its_class_was_given():
    """Labels of one class alone reach most images of these rings, which may still hold other kinds."""
    weights, ring = rings()
    known = np.full(len(ring), -1)
    known[[0, 20]] = 0, 1
    spread = spread_labels(weights, known, 2)
    assert np.array_equal(spread.max(1) == 1.0, known >= 0)
    assert spread[ring == 0, 0].min() > 0.99
    only_one = class_probabilities(weights, np.where(known == 1, -1, known), 2, np.eye(3)[ring], 0.5)
    assert np.array_equal(only_one.max(1) == 1.0, known == 0)


def test_images_that_no_label_reaches_have_equal_probabilities():
    weights, ring = rings()
    known = np.full(len(ring), -1)
    known[[0, 20]] = 0, 1
    probabilities = spread_labels(weights, known, 2)
    np.testing.assert_allclose(probabilities[ring == 2], 0.5)


def test_a_class_with_many_labels_does_not_drown_one_with_few():
    weights, _ = rings(1, 40)
    known = np.full(40, -1)
    known[[0, 1, 2, 38, 39]], known[20] = 0, 1
    assert spread_labels(weights, known, 2).argmax(1)[[17, 18, 19, 21, 22, 23]].tolist() == [1] * 6


def two_classes_on_one_ring(seed=0, n=223):
    """A ring whose links ignore two classes, and points in which one of 19 directions tells them apart."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.arange(n) % 2)
    points = rng.normal(size=(n, 19))
    points[:, 4] += 5.0 * classes - 2.5
    known = np.full(n, -1)
    rows = np.concatenate([np.flatnonzero(classes == kind)[:10] for kind in (0, 1)])
    known[rows] = classes[rows]
    return rings(1, n)[0], points / np.linalg.norm(points, axis=1, keepdims=True), classes, known


def test_points_decide_where_the_graph_mixes_the_classes():
    weights, points, classes, known = two_classes_on_one_ring()
    others = known < 0
    graph_alone = (spread_labels(weights, known, 2).argmax(1) == classes)[others].mean()
    probabilities = class_probabilities(weights, known, 2, points, 0.9)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    assert (probabilities[~others, classes[~others]] == 1.0).all()
    assert graph_alone < 0.65
    assert (probabilities.argmax(1) == classes)[others].mean() > 0.85


def test_one_label_of_each_class_is_enough_and_no_warning():
    weights, ring = rings(29, 7)
    points = np.eye(29)[ring]
    known = np.full(len(ring), -1)
    known[::7] = ring[::7]
    assert np.array_equal(class_probabilities(weights, known, 29, points, 0.5).argmax(1), ring)


def test_points_without_weight_leave_the_graph_its_answer():
    weights, points, _, known = two_classes_on_one_ring()
    alone = spread_labels(weights, known, 2)
    joint = class_probabilities(weights, known, 2, points, 0.0)
    assert np.array_equal(joint.argmax(1), alone.argmax(1))
    with_a_third = class_probabilities(weights, known, 3, points, 0.9)  # whose only images are not in the graph
    assert set(with_a_third.argmax(1)) == {0, 1}
    one_class = np.where(known == 1, -1, known)
    assert np.array_equal(class_probabilities(weights, one_class, 1, points, 0.9), np.ones((len(known), 1)))


def test_suggestions_cover_every_ring_before_any_twice_and_skip_known_images():
    weights, ring = rings()
    uncertainty = np.ones(len(ring))
    chosen = most_instructive(weights, np.zeros(0, np.int64), uncertainty, 3)
    assert sorted(ring[chosen]) == [0, 1, 2]
    after = most_instructive(weights, np.array([5]), uncertainty, 2)
    assert sorted(ring[after]) == [1, 2]


def test_suggestions_are_distinct_and_end_with_the_images():
    weights, ring = rings()
    chosen = most_instructive(weights, np.array([0, 1]), np.ones(len(ring)), 1000)
    assert sorted(chosen) == list(range(2, len(ring)))


def test_certain_images_need_no_label():
    weights, ring = rings()
    chosen = most_instructive(weights, np.zeros(0, np.int64), (ring == 1).astype(float), 2)
    assert (ring[chosen] == 1).all()


def test_the_largest_entries_of_a_row_are_kept():
    matrix = np.random.default_rng(0).random((7, 11)) * (np.random.default_rng(1).random((7, 11)) < 0.6)
    kept = largest_entries(sparse.csr_array(matrix), 3).toarray()
    for row, small in zip(matrix, kept, strict=True):
        best = np.sort(row)[::-1][:3]
        assert np.array_equal(np.sort(small)[::-1][:3], best)
        assert np.count_nonzero(small) == np.count_nonzero(best)
