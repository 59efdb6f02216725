"""What the equivariance tests share: exact actions of grid elements, contrasted weights, relative errors."""

import pytest
import torch

from unpose.groups import parse
from unpose.images import mirror, quarter_turn

_QUARTERS = parse("c4").elements[:, :2, :2]
_MIRROR = torch.diag(torch.tensor([-1.0, 1.0], dtype=torch.float64))


class Grid:
    """Moves pixels by the elements of a group that map the grid onto itself; no value is ever computed."""

    def elements(self, group):
        """Indices of the elements that are quarter turns, mirrors or both."""
        linear = group.elements[:, :2, :2]
        return [g for g in range(group.order) if torch.equal(linear[g], linear[g].round())]

    def images(self, images, group, g):
        """Element g on (..., h, w)."""
        linear = group.elements[g, :2, :2]
        if torch.linalg.det(linear) < 0:
            images, linear = mirror(images), linear @ _MIRROR
        turns = next(n for n in range(4) if torch.equal(_QUARTERS[n], linear))
        return quarter_turn(images, turns)

    def maps(self, maps, group, g):
        """Element g on (b, c, order, h, w): what was at k is found, moved, at g k."""
        moved = torch.empty_like(self.images(maps, group, g))
        moved[:, :, group.product[g]] = self.images(maps, group, g)
        return moved


@pytest.fixture
def grid():
    return Grid()


@pytest.fixture
def contrast():
    """Gives a module weights under which attention is sharp and norms are uneven, unlike any initialisation."""

    def contrast(module, gain=2.5):
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                if parameter.ndim == 1:
                    parameter.copy_(("weight" in name) + 0.5 * noise)
                else:
                    fan = parameter[0].numel()
                    parameter.copy_(noise * (gain if "project" in name else 1.5) / fan**0.5)
        return module.eval()

    return contrast


@pytest.fixture
def relative_error():
    def relative_error(found, wanted):
        assert wanted.norm() > 0
        return float((found - wanted).norm() / wanted.norm())

    return relative_error


@pytest.fixture
def train():
    """Takes a module some steps from its start; says so where they do not lower the loss."""

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
