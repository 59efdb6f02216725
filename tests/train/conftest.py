"""A small problem that a small network learns in a second: which of three marks an image shows."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from unpose.data import Dataset, Split
from unpose.nn import Network
from unpose.train import recipe_from


def marks(count, seed):
    """Bars, corners and dots at random places on a 9 x 11 canvas, with noise: (count, 9, 11) and labels."""
    rng = np.random.default_rng(seed)
    images = 0.1 * rng.random((count, 9, 11)).astype(np.float32)
    labels = np.arange(count) % 3
    for image, label in zip(images, labels, strict=True):
        y, x = rng.integers(1, 5), rng.integers(1, 7)
        shape = [np.ones((1, 4)), np.array([[1, 0, 0], [1, 0, 0], [1, 1, 1]]), np.ones((2, 2))][label]
        turned = np.rot90(shape, rng.integers(4))
        image[y : y + turned.shape[0], x : x + turned.shape[1]] += turned[: 9 - y, : 11 - x]
    return Split(images, labels)


@pytest.fixture(scope="session")
def problem():
    return Dataset("marks", "made for tests", ("bar", "corner", "dot"), marks(53, 0), marks(20, 1), marks(31, 2))


@pytest.fixture
def small_recipe():
    def make(**changes):
        table = {
            "epochs": 3,
            "batch_size": 8,
            "seed": 5,
            "network": {"group": "c4", "options": {"width": 3, "stages": [1, 1]}},
            "optimizer": {"learning_rate": 0.02},
        }
        for name, value in changes.items():
            table[name] = table[name] | value if isinstance(value, dict) and name in table else value
        return recipe_from(table)

    return make


FULL = {  # everything that has a state: dropout, poses, an average, moments
    "average": 0.9,
    "label_smoothing": 0.1,
    "network": {"options": {"width": 3, "stages": [1, 1], "dropout": 0.2}},
    "poses": {"max_angle": 30, "max_shift": 1, "mirror": True},
}


@pytest.fixture
def full_recipe(small_recipe):
    """A recipe with everything that has a state, for an optimizer."""

    def make(optimizer="adamw", **changes):
        return small_recipe(**FULL | changes, optimizer={"name": optimizer, "learning_rate": 0.02})

    return make


@pytest.fixture
def watched():
    """What networks are given: batches of images ``trained`` on and ``evaluated``, and the ``steps`` of optimizers."""
    found = SimpleNamespace(trained=[], evaluated=[], steps=0)

    def look(module, given):
        if isinstance(module, Network):
            images = given[0].clone() if given[0].device.type == "cpu" else given[0]  # nothing more to be captured
            (found.trained if module.training else found.evaluated).append(images)

    def count(*_):
        found.steps += 1

    hooks = register_module_forward_pre_hook(look), register_optimizer_step_post_hook(count)
    yield found
    for hook in hooks:
        hook.remove()


@pytest.fixture
def outputs_changed():
    """A context in which networks that are trained give ``change(outputs, steps of optimizers so far)``."""

    @contextmanager
    def changed(change):
        steps = []

        def instead(module, given, outputs):
            return change(outputs, len(steps)) if isinstance(module, Network) and module.training else None

        with (
            register_module_forward_hook(instead),
            register_optimizer_step_post_hook(lambda *_: steps.append(1)),
        ):
            yield

    return changed
