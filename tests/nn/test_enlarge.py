"""Carrying the weights of a network over to a group with more rotations."""

import dataclasses
import math

import pytest
import torch

from unpose.audit import equivariance_error
from unpose.groups import parse
from unpose.nn import GSANetConfig, group_cnn, gsa_net, rebuild, with_larger_group

SMALL = GSANetConfig(8, ((8,), (8,)), window=3, heads=2)


def small(group):
    torch.manual_seed(3)
    return gsa_net(group, 1, 4, 10, config=SMALL).double()


@pytest.mark.parametrize("group", ["c1", "c4", "d2"])
def test_the_same_group_gives_the_same_network(group, generator):
    network = small(group).eval()
    images = torch.randn(2, 1, 10, 10, generator=generator, dtype=torch.float64)
    again = with_larger_group(network, group)
    assert not again.training
    assert torch.equal(again(images), network(images))
    assert rebuild(again.description).description == network.description


@pytest.mark.parametrize(("coarse", "fine"), [("c4", "c8"), ("c4", "c12"), ("c2", "c6"), ("d2", "d6"), ("c1", "c4")])
def test_shared_elements_keep_their_embedding(coarse, fine):
    network = small(coarse)
    larger = with_larger_group(network, fine)
    assert larger.group.name == fine
    name = "features.4.attention.2.encoding.element.weight"
    before, after = network.state_dict()[name], larger.state_dict()[name]
    for number, element in enumerate(parse(coarse).elements):
        (same,) = (number for number, other in enumerate(parse(fine).elements) if torch.allclose(element, other))
        assert torch.allclose(after[same], before[number])


@pytest.mark.parametrize(("coarse", "fine"), [("c4", "c8"), ("c4", "c12"), ("c8", "c12"), ("c1", "c8"), ("d4", "d8")])
def test_embeddings_are_interpolated_linearly(coarse, fine):
    network, name = small(coarse), "features.4.attention.2.encoding.element.weight"
    turns = parse(coarse).order // (2 if coarse.startswith("d") else 1)
    angles = [torch.atan2(group.elements[:, 1, 0], group.elements[:, 0, 0]) for group in (parse(coarse), parse(fine))]
    with torch.no_grad():
        network.state_dict()[name].copy_(angles[0].cos()[:, None])
    values = with_larger_group(network, fine).state_dict()[name]
    assert torch.equal(values, values[:, :1].expand_as(values))
    # The interpolant is linear from each element to the next.
    step = 2 * math.pi / turns
    for angle, value in zip(angles[1].tolist(), values[:, 0].tolist(), strict=True):
        low = math.floor(angle / step + 1e-9)
        part = angle / step - low
        assert value == pytest.approx((1 - part) * math.cos(low * step) + part * math.cos((low + 1) * step), abs=1e-9)


def test_the_result_is_invariant_to_its_own_group(generator):
    images = torch.randn(2, 1, 10, 10, generator=generator)
    assert equivariance_error(with_larger_group(small("c2").float().eval(), "c4"), images, parse("c4")).holds()


def test_other_networks_and_groups_are_refused():
    with pytest.raises(ValueError, match="mirrors"):
        with_larger_group(small("c2"), "d2")
    with pytest.raises(ValueError, match="closed"):
        with_larger_group(small("c2"), "dilations(3)")
    with pytest.raises(ValueError, match="only mode 'relative'"):
        with_larger_group(gsa_net("c2", 1, 3, 8, config=dataclasses.replace(SMALL, mode="paper")), "c4")
    with pytest.raises(ValueError, match=r"a group_cnn learns features\.\S+ for c4 alone"):
        with_larger_group(group_cnn("c4", 1, 3, 16), "c8")
