"""Fixtures of the equivariance tests: contrasted weights and a few training steps."""

import pytest
import torch

from kit.networks import contrasted


@pytest.fixture
def contrast():
    """Gives a module weights with which attention is sharp and norms are uneven, unlike any initialisation."""

    return lambda module, gain=2.5: contrasted(module, 3, gain)


@pytest.fixture
def train():
    """Trains a module for some steps and checks that the loss decreases."""

    def train(module, loss_of, steps):
        module.train()
        optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(module)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0], type(module).__name__
        return module.eval()

    return train
