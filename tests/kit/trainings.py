"""Runs of training, compared by what they leave."""

import safetensors.torch
import torch


def state_file(folder):
    """The tensors of the state of a run."""
    return safetensors.torch.load_file(folder / "state.safetensors")


def differing(one, other):
    """Names of tensors that are not equal bit for bit, and by how much."""
    assert one.keys() == other.keys()
    pairs = {name: (one[name].cpu().double(), other[name].cpu().double()) for name in one}
    return {name: float((a - b).abs().max()) for name, (a, b) in pairs.items() if not torch.equal(a, b)}
