"""Figures by class agree with scikit-learn, and a class that is never recognised is named."""

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_score, recall_score

from unpose.data import Split
from unpose.train import ClassFigures, class_figures, majority_accuracy, train


def test_figures_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    images, labels = rng.random((41, 5, 7)).astype(np.float32), rng.integers(0, 3, 41)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(35, 4))
    found = class_figures(network, Split(images, labels), ("a", "b", "c", "none of these"))
    answers = network(torch.from_numpy(images)[:, None]).argmax(1).numpy()
    np.testing.assert_array_equal(found.confusion, confusion_matrix(labels, answers, labels=range(4)))
    np.testing.assert_allclose(found.recall[:3], recall_score(labels, answers, labels=range(3), average=None))
    wanted = precision_score(labels, answers, labels=range(4), average=None, zero_division=np.nan)
    np.testing.assert_allclose(found.precision, wanted)
    assert found.balanced_accuracy == pytest.approx(recall_score(labels, answers, labels=range(3), average="macro"))
    assert np.isnan(found.recall[3])
    assert found.as_dictionary()["classes"][3]["recall"] is None


def test_classes_that_are_never_right_are_named():
    figures = ClassFigures(("neutrophil", "eosinophil", "basophil"), np.array([[90, 3, 0], [30, 0, 4], [2, 0, 1]]))
    assert figures.worst() == "no eosinophil is right: 0 of 34, 30 taken for neutrophil"
    assert figures.table().splitlines()[1].split() == ["eosinophil", "0", "34", "0%", "0%"]
    better = ClassFigures(("a", "b"), np.array([[9, 1], [3, 7]]))
    assert better.worst() == "the worst class is b: 7 of 10 right, 3 taken for a"
    assert "all images" in ClassFigures(("a", "b"), np.eye(2, dtype=int)).worst()


def test_many_classes_are_cut_short():
    figures = ClassFigures(tuple(map(str, range(30))), np.eye(30, dtype=int))
    assert figures.table().endswith("and 10 more classes, with a higher recall")


def test_majority_is_chosen_on_training_images():
    blank = np.zeros((4, 3, 3))
    assert majority_accuracy(Split(blank, np.array([0, 1, 1, 2])), Split(blank, np.array([0, 0, 0, 1]))) == 0.25


def test_equal_classes_need_no_weights_and_unequal_ones_change_the_training(problem, small_recipe):
    order = np.argsort(problem.train.labels, kind="stable")[:51]
    even = problem.train.take(np.concatenate([np.flatnonzero(problem.train.labels == k)[:17] for k in range(3)]))
    odd = problem.train.take(order)
    for part, same in ((even, True), (odd, False)):
        data = type(problem)("marks", "made up", problem.classes, part, problem.validation, problem.test)
        losses = [
            train(data, small_recipe(epochs=1, class_weights=weights)).history[0]["train_loss"]
            for weights in ("none", "balanced")
        ]
        assert (losses[0] == pytest.approx(losses[1], rel=1e-6)) == same
