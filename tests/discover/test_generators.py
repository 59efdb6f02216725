"""Generators found from images: a planted rotation, a planted shear, and nothing where nothing is planted."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from unpose.discover import Generator, Generators, find_generators
from unpose.groups import parse_continuous
from unpose.images import as_batch, warp

COORDINATES = {"turn": (0, 0, 1, 0, 0, 0), "shear": (0, 0, 0, 0, 0, 1)}


def moved_digits(name, most, count=300):
    """Digits of 8 x 8 pixels, enlarged by two onto 24 x 24, moved by random elements of a one-parameter group."""
    digits = load_digits().images[:count].astype(np.float32) / 16
    batch = torch.nn.functional.pad(as_batch(np.kron(digits, np.ones((2, 2), np.float32))), [4] * 4)
    strength = most * (2 * torch.rand(count, 1, generator=torch.Generator().manual_seed(3)) - 1)
    return warp(batch, parse_continuous("affine").exp(strength * torch.tensor(COORDINATES[name]).float()))[:, 0].numpy()


@pytest.mark.parametrize(("name", "most"), [("turn", math.pi), pytest.param("shear", 0.7, marks=pytest.mark.slow)])
def test_a_planted_generator_is_found(name, most):
    found = find_generators(moved_digits(name, most))
    assert found.all[0].name == name
    assert found.all[0].cosine(name) > 0.98
    assert found.all[0].spread > 2 * found.all[1].spread


def test_upright_digits_have_no_generator():
    upright = moved_digits("turn", 0.0)
    found = find_generators(upright)
    assert not found.free
    assert found.group is None


def test_matrices_are_in_pixels_of_the_images():
    shift = Generator(np.array([1.0, 0, 0, 0, 0, 0]), 5.0, 0.4)
    np.testing.assert_allclose(shift.matrix, [[0, 0, 5], [0, 0, 0], [0, 0, 0]])
    turn = Generator(np.array([0, 0, 1.0, 0, 0, 0]), 5.0, math.inf)
    np.testing.assert_allclose(turn.matrix, [[0, 1, 0], [-1, 0, 0], [0, 0, 0]])
    assert Generators((shift,)).group == "translation"
    assert Generators((turn, shift)).group == "se2"


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match="got 5"):
        find_generators(np.zeros((5, 8, 8)))
