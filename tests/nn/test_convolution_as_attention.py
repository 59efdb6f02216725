"""Section 5.3: a group convolution is a group attention with one head for each entry of its kernel."""

import pytest
import torch

from unpose.nn import GroupConv2d, attention_from_convolution


def interior(maps, radius):
    height, width = maps.shape[-2:]
    return maps[..., radius : height - radius, radius : width - radius]


@pytest.mark.parametrize(
    ("group", "size", "lifting"),
    [("c4", 3, False), ("d4", 3, False), ("d4", 5, True), ("c4", 5, True), ("d1", 3, False), ("c4", 1, False)],
)
def test_the_attention_equals_the_convolution_in_the_interior(group, size, lifting, generator):
    torch.manual_seed(0)
    convolution = GroupConv2d(group, 2, 3, size, lifting=lifting).double()
    torch.nn.init.normal_(convolution.bias)
    attention = attention_from_convolution(convolution)
    order = () if lifting else (convolution.group.order,)
    maps = torch.randn(2, 2, *order, 7, 8, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        found, wanted = attention(maps), convolution(maps)
    assert attention.heads == size**2 * (1 if lifting else convolution.group.order)
    torch.testing.assert_close(interior(found, size // 2), interior(wanted, size // 2), rtol=0, atol=1e-10)
    if size > 1:  # at the border attention has no zeros to attend to
        assert (found - wanted).abs().max() > 1e-2


def test_it_keeps_type_mode_and_a_missing_bias(generator):
    convolution = GroupConv2d("c2", 2, 3, 3, bias=False).eval()
    attention = attention_from_convolution(convolution)
    maps = torch.randn(1, 2, 2, 5, 6, generator=generator)
    assert not attention.training
    assert {parameter.dtype for parameter in attention.parameters()} == {torch.float32}
    with torch.no_grad():
        torch.testing.assert_close(interior(attention(maps), 1), interior(convolution(maps), 1), rtol=0, atol=1e-5)


def test_groups_that_need_interpolation_are_refused():
    with pytest.raises(ValueError, match="map the pixel grid onto itself"):
        attention_from_convolution(GroupConv2d("c8", 1, 1, 3))
