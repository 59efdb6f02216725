"""A network with more directions, from one with fewer."""

import math

import pytest
import torch

from unpose.audit import equivariance_error
from unpose.groups import parse
from unpose.nn import GSAConfig, group_cnn, gsa_net, rebuild, refined
from unpose.nn.networks.enlarge import _between

SMALL = GSAConfig(8, ((8,), (8,)), window=3, heads=2)


def small(group):
    torch.manual_seed(3)
    return gsa_net(group, 1, 4, 10, config=SMALL).double()


@pytest.mark.parametrize("group", ["c1", "c4", "d2"])
def test_the_same_group_gives_the_same_network(group, generator):
    network = small(group).eval()
    images = torch.randn(2, 1, 10, 10, generator=generator, dtype=torch.float64)
    again = refined(network, group)
    assert not again.training
    assert torch.equal(again(images), network(images))
    assert rebuild(again.description).description == network.description


@pytest.mark.parametrize(("coarse", "fine"), [("c4", "c8"), ("c4", "c12"), ("c2", "c6"), ("d2", "d6"), ("c1", "c4")])
def test_elements_that_both_have_keep_what_they_learnt(coarse, fine):
    network = small(coarse)
    finer = refined(network, fine)
    assert finer.group.name == fine
    name = "features.4.attention.2.encoding.element.weight"
    before, after = network.state_dict()[name], finer.state_dict()[name]
    for number, element in enumerate(parse(coarse).elements):
        (same,) = (number for number, other in enumerate(parse(fine).elements) if torch.allclose(element, other))
        assert torch.allclose(after[same], before[number])


@pytest.mark.parametrize(("coarse", "fine"), [("c4", "c8"), ("c4", "c12"), ("c8", "c12"), ("c1", "c8"), ("d4", "d8")])
def test_between_two_elements_a_line(coarse, fine):
    weights = _between(parse(coarse), parse(fine))
    assert torch.allclose(weights.sum(1), torch.ones(len(weights), dtype=weights.dtype))
    assert (weights > 1e-12).sum(1).max() <= 2
    turns = parse(coarse).order // (2 if coarse.startswith("d") else 1)
    angles = [torch.atan2(group.elements[:, 1, 0], group.elements[:, 0, 0]) for group in (parse(coarse), parse(fine))]
    # A function that is linear from each element to the next.
    values = weights @ torch.cos(angles[0])
    step = 2 * math.pi / turns
    for angle, value in zip(angles[1].tolist(), values.tolist(), strict=True):
        low = math.floor(angle / step + 1e-9)
        part = angle / step - low
        assert value == pytest.approx((1 - part) * math.cos(low * step) + part * math.cos((low + 1) * step), abs=1e-9)


def test_it_is_invariant_to_its_own_group(generator):
    images = torch.randn(2, 1, 10, 10, generator=generator)
    assert equivariance_error(refined(small("c2").float().eval(), "c4"), images, parse("c4")).holds()


def test_what_cannot_be_refined():
    with pytest.raises(ValueError, match="mirrors"):
        refined(small("c2"), "d2")
    with pytest.raises(ValueError, match="closed"):
        refined(small("c2"), "dilations(3)")
    with pytest.raises(ValueError, match=r"a group_cnn learns features\.\S+ for c4 alone"):
        refined(group_cnn("c4", 1, 3, 16), "c8")
