"""Whole networks: feature maps follow the group, logits do not move; before and after training."""

import pytest
import torch

from unpose.groups import parse
from unpose.nn import GSAConfig, group_cnn, gsa_net, swivel_net

GROUPS = ["c1", "d1", "c4", "d4", "c8", "c12", "c16"]
SIZES = [(7, 7), (8, 8), (9, 13), (28, 28)]


def small_networks(name, size):
    """One of each kind, thin; the window of 3 fits what is left of 7 pixels after a halving."""
    config = GSAConfig(6, ((6,), (8,)), window=3, heads=1, attention_dropout=0.0, value_dropout=0.0)
    return [
        gsa_net(name, 1, 3, size, config=config),
        group_cnn(name, 1, 3, size, width=3, stages=(1, 1, 1)),
        swivel_net(name, 1, 3, size, widths=(3, 4, 4), depths=(1, 1), heads=1, window=3, dropout=0.0),
    ]


def check(network, images, group, grid, relative_error, tolerance):
    with torch.no_grad():
        features, logits = network.features(images), network(images)
        assert relative_error(features[0], features[1]) > 1e-2  # it tells images apart
        for g in grid.elements(group)[1:]:
            moved = grid.images(images, group, g)
            for found, wanted in (
                (network.features(moved), grid.maps(features, group, g)),
                (network(moved), logits),
            ):
                error = relative_error(found, wanted)
                assert error < tolerance, f"{type(network).__name__}, element {g}: {error}"


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", GROUPS)
def test_networks_follow_the_group(name, size, grid, contrast, relative_error, generator):
    group = parse(name)
    images = 2 * torch.randn(2, 1, *size, generator=generator)
    for network in small_networks(name, size):
        check(contrast(network, gain=1.5), images, group, grid, relative_error, 1e-5)


@pytest.mark.parametrize("size", [(7, 7), (8, 8), (9, 13)], ids=str)
@pytest.mark.parametrize("name", GROUPS)
def test_networks_in_double_precision(name, size, grid, contrast, relative_error, generator):
    images = 2 * torch.randn(2, 1, *size, generator=generator, dtype=torch.float64)
    for network in small_networks(name, size):
        check(contrast(network.double()), images, parse(name), grid, relative_error, 1e-10)


def notices(network, images, relative_error):
    """The error of a transformation outside of the group, however the group axis is read."""
    group = network.group
    if group.name == "d4":  # has every symmetry of the grid; a shift around the edge is none, however far maps follow
        outside, follow = (lambda pixels: pixels.roll(3, -1)), [lambda maps, n=n: maps.roll(n, -1) for n in range(4)]
    elif group.name == "d1":
        outside, follow = (lambda pixels: pixels.rot90(1, (-2, -1))), [lambda maps: maps.rot90(1, (-2, -1))]
    else:
        outside, follow = (lambda pixels: pixels.flip(-1)), [lambda maps: maps.flip(-1)]
    with torch.no_grad():
        moved, result = network.features(outside(images)), network.features(images)
    return min(relative_error(moved, way(result)[:, :, group.product[g]]) for way in follow for g in range(group.order))


@pytest.mark.parametrize("name", GROUPS)
def test_networks_notice_what_is_not_in_the_group(name, contrast, relative_error, generator):
    images = 2 * torch.randn(2, 1, 8, 8, generator=generator, dtype=torch.float64)
    for network in small_networks(name, (8, 8)):
        assert notices(contrast(network.double()), images, relative_error) > 1e-2, type(network).__name__


@pytest.mark.parametrize("name", GROUPS)
def test_networks_follow_the_group_after_training(name, grid, train, relative_error, generator):
    # Trained at one size, tested at all, in both precisions.
    group = parse(name)
    torch.manual_seed(5)
    images = 2 * torch.randn(6, 1, 8, 9, generator=generator)
    labels = torch.arange(6) % 3
    for network in small_networks(name, (8, 9)):
        train(network, lambda network: torch.nn.functional.cross_entropy(network(images), labels), steps=12)
        for size in SIZES:
            check(network, 2 * torch.randn(2, 1, *size, generator=generator), group, grid, relative_error, 1e-5)
        fresh = 2 * torch.randn(2, 1, 8, 8, generator=generator, dtype=torch.float64)
        check(network.double(), fresh, group, grid, relative_error, 1e-10)
        assert notices(network, fresh, relative_error) > 1e-2, type(network).__name__


def test_the_published_network_at_its_own_size(grid, contrast, relative_error, generator):
    images = torch.rand(1, 1, 28, 28, generator=generator)
    network = contrast(gsa_net("c4", 1, 10, 28), gain=1.5)
    with torch.no_grad():
        features, logits = network.features(images), network(images)
        turned = grid.images(images, network.group, 1)
        assert relative_error(network.features(turned), grid.maps(features, network.group, 1)) < 1e-5
        assert relative_error(network(turned), logits) < 1e-5


def test_training_treats_a_turned_batch_alike(grid, generator):
    # Batch statistics and gradients, not only results: the same step from a turned batch.
    images = torch.rand(3, 1, 7, 7, generator=generator, dtype=torch.float64)
    for network in small_networks("c4", (7, 7)):
        network.double().train()
        gradients = []
        for batch in (images, grid.images(images, network.group, 3)):
            network.zero_grad()
            network(batch).square().sum().backward()
            gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-7, atol=1e-9)
