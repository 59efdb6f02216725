"""Runs of training, compared by what they leave."""

import numpy as np
import safetensors.torch
import torch

from unpose.data import Dataset, Split

SYMMETRIES = {
    "soft": {"method": "soft", "groups": ["so2", "d1"]},
    "constrained": {"method": "constrained", "groups": ["c4", "similarity"]},
    "instance": {"method": "instance", "groups": ["se2"]},
}
"""A table ``[symmetry]`` of a recipe for each method."""


def state_file(folder):
    """The tensors of the state of a run."""
    return safetensors.torch.load_file(folder / "state.safetensors")


def differing(one, other):
    """Names of tensors that are not equal bit for bit, and by how much."""
    assert one.keys() == other.keys()
    pairs = {name: (one[name].cpu().double(), other[name].cpu().double()) for name in one}
    return {name: float((a - b).abs().max()) for name, (a, b) in pairs.items() if not torch.equal(a, b)}


def assert_close(one, other, **tolerances):
    """Compare tensors by name."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, **tolerances, msg=lambda told, n=name: f"{n}: {told}")


def blank(size, colours, classes):
    """A data set of black images, one of each class: as much as building a network needs to know."""
    shape = (classes, size, size) if colours == 1 else (classes, size, size, colours)
    part = Split(np.zeros(shape, np.uint8), np.arange(classes))
    return Dataset("blank", "", tuple(map(str, range(classes))), part, part, part)
