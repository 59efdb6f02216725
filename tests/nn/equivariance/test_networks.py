"""Whole networks after training, at their published size, and their gradients; new ones: ``nn/test_contract.py``."""

import pytest
import torch

from unpose.audit import equivariance_error
from unpose.images import quarter_turn
from unpose.nn import GSANetConfig, group_cnn, gsa_net, swivel_net

pytestmark = pytest.mark.equivariance

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def small_networks(name, size):
    """One thin network of each kind; a window of 3 fits what a pooling leaves of 7 pixels."""
    config = GSANetConfig(6, ((6,), (8,)), window=3, heads=1, attention_dropout=0.0, value_dropout=0.0)
    return [
        gsa_net(name, 1, 3, size, config=config),
        group_cnn(name, 1, 3, size, width=3, stages=(1, 1, 1)),
        swivel_net(name, 1, 3, size, widths=(3, 4, 4), depths=(1, 1), heads=1, window=3, dropout=0.0),
    ]


def check(network, size, dtype, generator):
    """Audit the features and the logits of a network on noise of this size."""
    network, group = network.to(dtype), network.group
    images = (2 * torch.randn(2, 1, *size, generator=generator, dtype=torch.float64)).to(dtype)
    features = equivariance_error(network.features, images, group, "regular image")
    logits = equivariance_error(network, images, group)
    assert features.discrimination > 1e-2  # the network tells images apart
    for report in (features, logits):
        assert report.worst_exact < TOLERANCE[dtype], f"{type(network).__name__}: {report}"
    assert features.control_error > 1e-2, f"{type(network).__name__}: {features}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["c4", "d4"])
def test_networks_are_invariant_after_training(name, train, generator):
    # Trained at one size, audited at others, in both precisions.
    torch.manual_seed(5)
    images = 2 * torch.randn(6, 1, 8, 9, generator=generator)
    labels = torch.arange(6) % 3
    for network in small_networks(name, (8, 9)):
        train(network, lambda network: torch.nn.functional.cross_entropy(network(images), labels), steps=8)
        check(network, (7, 7), torch.float32, generator)
        check(network, (8, 8), torch.float64, generator)


@pytest.mark.slow
def test_the_published_network_is_invariant_at_its_own_size(contrast, generator):
    network = contrast(gsa_net("c4", 1, 10, 28), gain=1.5)
    images = torch.rand(2, 1, 28, 28, generator=generator)
    assert equivariance_error(network, images, "c4").worst_exact < 1e-5


def test_a_rotated_batch_gives_the_same_gradients(generator):
    # Batch statistics and gradients, not only results: a training step from a rotated batch is the same.
    images = torch.rand(3, 1, 7, 7, generator=generator, dtype=torch.float64)
    for network in small_networks("c4", (7, 7)):
        network.double().train()
        gradients = []
        for batch in (images, quarter_turn(images, 3)):
            network.zero_grad()
            network(batch).square().sum().backward()
            gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-7, atol=1e-9)
