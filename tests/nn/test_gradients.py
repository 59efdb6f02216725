"""Gradients of every layer against finite differences, in the input and in the weights."""

import pytest
import torch

from unpose.nn import ChannelNorm, GroupConv2d, GroupPool, GroupSelfAttention, LiftingSelfAttention, SpatialPool

pytestmark = pytest.mark.gradients

SMALL = {"heads": 1, "head_channels": 3, "reach": 2.0}
LAYERS = {
    "lifting": (lambda: LiftingSelfAttention("c4", 1, 2, window=3, **SMALL), (1, 1, 3, 4)),
    "lifting, global": (lambda: LiftingSelfAttention("d1", 1, 2, window=None, **SMALL), (1, 1, 2, 3)),
    "group": (lambda: GroupSelfAttention("c3", 2, 1, window=3, **SMALL), (1, 2, 3, 3, 4)),
    "group, global, harmonic": (
        lambda: GroupSelfAttention("d1", 1, 1, window=None, encoding="harmonic", **SMALL),
        (1, 1, 2, 2, 3),
    ),
    "group, paper": (lambda: GroupSelfAttention("d1", 1, 1, window=3, mode="paper", **SMALL), (1, 1, 2, 2, 3)),
    "dilations": (lambda: GroupSelfAttention("dilations(2, 3)", 1, 1, window=1, **SMALL), (1, 1, 2, 2, 3)),
    "lifting convolution": (lambda: GroupConv2d("c8", 1, 1, 3, lifting=True), (1, 1, 3, 2)),
    "group convolution": (lambda: GroupConv2d("c4", 1, 1, 3), (1, 1, 4, 3, 2)),
    "norm": (lambda: ChannelNorm(3), (2, 3, 2, 2, 1)),
    "max pool": (lambda: SpatialPool("max"), (1, 2, 2, 3, 4)),
    "mean pool": (lambda: SpatialPool("mean"), (1, 2, 2, 3, 4)),
    "group max": (lambda: GroupPool("max"), (2, 2, 3, 2, 2)),
    "group mean": (lambda: GroupPool("mean"), (2, 2, 3, 2, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_equal_finite_differences(name, generator):
    make, shape = LAYERS[name]
    torch.manual_seed(1)
    layer = make().double()
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def call(inputs, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), inputs)

    weights = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]
    assert torch.autograd.gradcheck(call, (inputs, *weights), fast_mode=True)
    if len(weights) < 3:
        assert torch.autograd.gradcheck(call, (inputs, *weights))
