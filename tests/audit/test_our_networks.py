"""Our own layers and networks under the audit; and one of them, spoilt, with the spoilt module named."""

import pytest
from torch import nn

from kit.group_networks import PoolPixels
from kit.networks import contrasted
from kit.tensors import normal
from unpose.audit import audit_modules, equivariance_error, smooth_noise
from unpose.groups import parse
from unpose.nn import (
    ChannelNorm,
    GroupConv2d,
    GroupPool,
    GroupSelfAttention,
    GSANetConfig,
    LiftingSelfAttention,
    SpatialPool,
    gsa_net,
)

ATTENTION = {"heads": 2, "head_channels": 5, "window": 3}
OUR_LAYERS = {
    "lifting attention": (lambda g: LiftingSelfAttention(g, 2, 3, **ATTENTION), "image", "regular image"),
    "group attention": (lambda g: GroupSelfAttention(g, 2, 3, **ATTENTION), "regular image", "regular image"),
    "lifting convolution": (lambda g: GroupConv2d(g, 2, 3, 3, lifting=True), "image", "regular image"),
    "group convolution": (lambda g: GroupConv2d(g, 2, 3, 3), "regular image", "regular image"),
    "norm": (lambda g: ChannelNorm(2), "regular image", "regular image"),
    "pooling of pixels": (lambda g: SpatialPool("max"), "regular image", "regular image"),
    "pooling of elements": (lambda g: GroupPool("mean"), "regular image", "image"),
}


@pytest.mark.parametrize("layer", OUR_LAYERS)
@pytest.mark.parametrize("group", ["d4", "c8"])
def test_layers(layer, group):
    make, takes, gives = OUR_LAYERS[layer]
    shape = (2, 2, 9, 13) if takes == "image" else (2, 2, parse(group).order, 9, 13)
    if group == "c8":
        shape = (*shape[:-2], 9, 9)
    found = equivariance_error(contrasted(make(group)), normal(*shape), group, gives, input=takes)
    assert found.worst_exact < 1e-5, str(found)
    assert found.discrimination > 0.1


@pytest.fixture(scope="module")
def small_network():
    small = GSANetConfig(lifted=4, stages=((6,), (6,)), window=3, heads=2)
    return contrasted(gsa_net("c4", in_channels=2, n_classes=5, image_size=7, config=small))


def test_a_network_is_invariant_and_so_is_each_of_its_modules(small_network):
    images = smooth_noise(3, 2, (7, 7))
    found = equivariance_error(small_network, images, "c4")
    assert found.holds(), str(found)
    # mean pooling at the end leaves little that tells inputs apart; the mirror changes a good part of that
    assert found.control_error > 1e-2 * found.discrimination > 10 * found.worst_exact
    assert not found.remarks()
    audit = audit_modules(small_network, images, "c4")
    assert audit.culprits == ()
    assert all(row.own_error < 1e-5 for row in audit.rows), str(audit)


def test_a_spoilt_module_of_it_is_named(small_network):
    parts = list(small_network.features)
    at = next(i for i, part in enumerate(parts) if isinstance(part, SpatialPool))
    parts[at] = PoolPixels()
    small_network.features, whole = nn.Sequential(*parts), small_network.features
    try:
        audit = audit_modules(small_network, smooth_noise(3, 2, (7, 7)), "c4")
    finally:
        small_network.features = whole
    assert audit.culprits == (f"features.{at}",), str(audit)
