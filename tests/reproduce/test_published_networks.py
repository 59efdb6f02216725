"""The settings of appendix F of the paper, as tables 1 and 2 are trained with them."""

import pytest

from kit.trainings import blank
from unpose.nn import count_parameters
from unpose.reproduce.published_networks import TABLE2
from unpose.train import build_network

CELLS = {
    "rotated-mnist": TABLE2["rotmnist-r4"], "cifar-10": TABLE2["cifar10-z2m"], "patch-camelyon": TABLE2["pcam-r4"]
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "epochs", "batch", "optimizer", "rate", "schedule", "mixed", "parameters"),
    [
        ("rotated-mnist", 300, 8, "adam", 1e-3, "constant", True, 44_428),
        ("cifar-10", 350, 24, "sgd", 1e-2, "cosine", False, 2_999_888),
        ("patch-camelyon", 100, 8, "sgd", 1e-2, "cosine", False, 206_602),
    ],
)
def test_the_published_numbers(data, epochs, batch, optimizer, rate, schedule, mixed, parameters):
    recipe = CELLS[data].recipe("published", "relative")
    assert (recipe.epochs, recipe.batch_size) == (epochs, batch)
    assert (recipe.optimizer.name, recipe.optimizer.learning_rate) == (optimizer, rate)
    assert recipe.optimizer.weight_decay == 1e-4
    assert recipe.optimizer.momentum == 0.9
    assert recipe.optimizer.schedule == schedule
    assert recipe.mixed_precision == mixed
    assert recipe.poses.is_identity
    assert not recipe.average
    size, colours, classes = {"rotated-mnist": (28, 1, 10), "cifar-10": (32, 3, 10), "patch-camelyon": (96, 3, 2)}[data]
    assert count_parameters(build_network(recipe, blank(size, colours, classes))) == parameters


def test_he_draws_linear_maps_with_variance_two_over_inputs():
    network = build_network(CELLS["cifar-10"].recipe("published", "relative"), blank(32, 3, 10))
    weight = network.features[1].merge.weight
    assert weight.std().item() == pytest.approx((2 / weight.shape[1]) ** 0.5, rel=0.02)
