"""The quick classifier: what it is fitted to, and files that hold all of it."""

import json

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from unpose.data import Dataset, InputError, Split
from unpose.train import accuracy, class_figures, load_network, predict_logits, read_classes, save_quick, train_quick


@pytest.fixture(scope="module")
def fitted(problem):
    return train_quick(problem)


def test_it_learns_and_does_not_depend_on_the_angle(fitted, problem):
    majority = np.bincount(problem.test.labels).max() / len(problem.test)
    for angle in (0.0, 0.4, np.pi / 2):
        assert accuracy(fitted.network, problem.test, angle=angle) > majority + 0.2
    assert fitted.accuracy > majority + 0.2
    assert fitted.images == len(problem.train)
    quarter = np.rot90(problem.test.images, 1, (1, 2))
    upright, turned = (predict_logits(fitted.network, images) for images in (problem.test.images, quarter))
    torch.testing.assert_close(turned, upright, atol=1e-3, rtol=1e-3)


def test_the_same_seed_gives_the_same_classifier(fitted, problem):
    for name, tensor in train_quick(problem).network.state_dict().items():
        assert torch.equal(tensor, fitted.network.state_dict()[name])


def test_a_file_holds_all_of_it(fitted, problem, tmp_path):
    path = save_quick(tmp_path / "quick.safetensors", fitted, problem)
    again = load_network(path)
    assert again.description == fitted.network.description
    assert read_classes(path) == problem.classes
    images = problem.test.images
    assert torch.equal(predict_logits(again, images), predict_logits(fitted.network, images))


def test_a_file_that_promises_other_sizes_is_refused(fitted, problem, tmp_path):
    path = save_quick(tmp_path / "quick.safetensors", fitted, problem)
    with safetensors.safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["unpose"])
    for change in ({"centres": 4000}, {"centres": 10**9}, {"in_channels": 3}, {"colour": 1}):
        lie = about | {"description": about["description"] | change}
        weights = safetensors.torch.load_file(path)
        safetensors.torch.save_file(weights, tmp_path / "lie.safetensors", metadata={"unpose": json.dumps(lie)})
        with pytest.raises(ValueError, match="is not a network that unpose can read"):
            load_network(tmp_path / "lie.safetensors")


def test_balanced_weights_find_more_of_a_rare_class():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [285, 15])
    images = rng.random((300, 9, 9)).astype(np.float32)
    images[:, 3:6, 3:6] += 0.15 * labels[:, None, None]
    part = Split(images, labels)
    dataset = Dataset("rare", "made up", ("common", "rare"), part, part, part)
    found = {}
    for weights in ("none", "balanced"):
        network = train_quick(dataset, class_weights=weights).network
        found[weights] = class_figures(network, part, dataset.classes).recall[1]
    assert found["balanced"] > found["none"]


def test_a_class_without_training_images_is_never_the_answer():
    rng = np.random.default_rng(0)
    part = Split(rng.random((9, 9, 9)).astype(np.float32), np.array([0, 2] * 4 + [0]))
    dataset = Dataset("noise", "made up", ("a", "b", "c"), part, part, part)
    assert class_figures(train_quick(dataset).network, part, dataset.classes).confusion[:, 1].sum() == 0


@pytest.mark.parametrize("seed", range(2))
def test_one_image_of_each_class_is_enough(problem, seed):
    few = problem.train.take(np.array([0, 1, 2]))
    dataset = Dataset("few", "made up", problem.classes, few, few, few)
    result = train_quick(dataset, random_state=seed)
    assert accuracy(result.network, few) == 1.0


def test_wrong_calls(problem):
    with pytest.raises(ValueError, match="class_weights must be"):
        train_quick(problem, class_weights="some")
    one = problem.train.take(problem.train.labels == 0)
    with pytest.raises(InputError, match="all training images are of one class"):
        train_quick(Dataset("one", "made up", problem.classes, one, one, one))
