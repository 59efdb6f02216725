"""Fixtures of the equivariance tests: contrasted weights and a few training steps."""

import pytest
import torch


@pytest.fixture
def contrast():
    """Gives a module weights with which attention is sharp and norms are uneven, unlike any initialisation."""

    def contrast(module, gain=2.5):
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                if parameter.ndim == 1:
                    parameter.copy_(("weight" in name) + 0.5 * noise)
                else:
                    fan_in = parameter[0].numel()
                    parameter.copy_(noise * (gain if "project" in name else 1.5) / fan_in**0.5)
        return module.eval()

    return contrast


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
