"""Position encodings, relative elements, and the bias of dilations."""

import math

import pytest
import torch

from unpose.groups import parse
from unpose.nn import GroupSelfAttention, HarmonicEncoding, LiftingSelfAttention, SeparableEncoding, group_attention
from unpose.nn.functional.positions import dilation_bias, preserves_area, widest_window
from unpose.nn.layers.encodings import harmonic_basis


def relative_elements(group):
    """The index of each relative element h^-1 k, as a layer has it, and their number."""
    relations = GroupSelfAttention(group, 1, 1, heads=1, head_channels=3, window=1).relations
    return relations, int(relations.max()) + 1


def encodings():
    torch.manual_seed(2)
    return [
        SeparableEncoding(7, 4, reach=2.0).double(),
        SeparableEncoding(5, None, reach=2.0).double(),
        HarmonicEncoding(3, 4, heads=2, reach=2.0).double(),
    ]


@pytest.mark.parametrize("encoding", encodings(), ids=lambda e: type(e).__name__)
def test_encodings_are_smooth_at_the_origin(encoding):
    # The derivative at zero is moderate and equals that nearby: no pole, no kink, no 0 / 0.
    def slopes(points):
        return torch.autograd.functional.jacobian(lambda p: encoding(p).sum((0, 1, 2)), points)

    zero = slopes(torch.zeros(1, 2, dtype=torch.float64))
    assert torch.isfinite(zero).all()
    assert zero.abs().max() < 100
    step = torch.full((1, 2), 1e-6, dtype=torch.float64)
    torch.testing.assert_close(slopes(step), zero, atol=1e-3, rtol=1e-3)
    # The gradients of the weights are finite too.
    encoding(torch.zeros(1, 2, dtype=torch.float64)).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().max() < 1e3 for p in encoding.parameters())


def test_the_harmonic_basis_steers(generator):
    # At rotated points the two functions of one frequency are mixed by the angle.
    points = torch.randn(11, 2, generator=generator, dtype=torch.float64)
    angle = torch.tensor(0.7, dtype=torch.float64)
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    before, after = harmonic_basis(points, 3), harmonic_basis(points @ turn.mT, 3)
    at = 0
    for top in (0, 2, 3):  # highest frequency on each ring
        torch.testing.assert_close(after[:, at], before[:, at])
        for m in range(1, top + 1):
            cos, sin = before[:, at + m], before[:, at + top + m]
            torch.testing.assert_close(after[:, at + m], cos * (m * angle).cos() - sin * (m * angle).sin())
        at += 2 * top + 1
    assert at == before.shape[1]


@pytest.mark.parametrize("name", ["c1", "c5", "d3", "d4"])
def test_relative_elements_of_a_group(name):
    group = parse(name)
    relations, n_relations = relative_elements(group)
    assert n_relations == group.order
    torch.testing.assert_close(
        group.elements[:, None] @ group.elements[relations], group.elements.expand(n_relations, -1, -1, -1)
    )


def test_relative_elements_of_dilations():
    relations, n_relations = relative_elements(parse("dilations(3, 1.5)"))
    assert n_relations == 5
    # There is one index for each ratio k / h.
    ratios = {}
    for h in range(3):
        for k in range(3):
            ratios.setdefault(k - h, set()).add(int(relations[h, k]))
    assert all(len(found) == 1 for found in ratios.values())
    assert len({found.pop() for found in ratios.values()}) == 5


def test_neighbourhoods_grow_with_the_scale():
    group = parse("dilations(3, 3)")
    assert not preserves_area(group)
    assert preserves_area(parse("d6"))
    assert widest_window(parse("d6"), 5) == 5
    assert widest_window(group, 3) == 27
    bias = dilation_bias(group, 3, (27, 27), 3)  # (h, k, y, x)
    inside = torch.isfinite(bias)
    assert [int(inside[h, h].sum()) for h in range(3)] == [9, 81, 729]
    # one scale up and down
    assert [[bool(inside[h, k].any()) for k in range(3)] for h in range(3)] == [
        [True, True, False],
        [True, True, True],
        [False, True, True],
    ]


def test_keys_are_weighted_by_their_haar_measure():
    # With equal scores the weight of a key at scale k is 1 / k^2.
    group = parse("dilations(2, 3)")
    bias = dilation_bias(group, 1, (3, 3), 2)[None]
    maps = torch.zeros(1, 1, 2, 7, 7, 1, dtype=torch.float64)
    value = torch.zeros(1, 1, 2, 7, 7, 2, dtype=torch.float64)
    value[:, :, 0, ..., 0] = 1
    value[:, :, 1, ..., 1] = 1
    position = torch.zeros(1, 2, 2, 3, 3, 1, dtype=torch.float64)
    weights = group_attention(maps, maps, value, position, bias=bias)[0, 0, :, 3, 3]
    torch.testing.assert_close(weights, torch.tensor([[0.9, 0.1]] * 2, dtype=torch.float64))


def enlarged(maps):
    """Every pixel becomes 3 x 3 of the same value: (..., h, w, d) -> (..., 3 h, 3 w, d)."""
    return maps.repeat_interleave(3, -3).repeat_interleave(3, -2)


def coarse_table(base, group, window):
    """An encoding that is constant over the cells of its own scale, P(round(h^-1 o)): sums over cells are exact.

    base (relations, y, x, d) -> (1, order, keys, window, window, d)
    """
    relations, _ = relative_elements(group)
    scales = group.elements[:, 0, 0]
    steps = torch.arange(window) - window // 2
    rows = []
    for h in range(group.order):
        cell = (steps / scales[h]).round().long().clamp(-(base.shape[1] // 2), base.shape[1] // 2) + base.shape[1] // 2
        rows.append(base[:, cell][:, :, cell])  # (relations, window, window, d)
    stacked = torch.stack(rows, dim=1)  # (relations, order, window, window, d)
    return stacked[
        relations if len(base) > 1 else torch.zeros_like(relations[:, :1]), torch.arange(group.order)[:, None]
    ][None]


def test_an_enlarged_image_lifts_to_the_next_scale(generator):
    # Equation 20: out(s x, s h) of the enlarged image is out(x, h), exactly, for an encoding with no detail to sample.
    group = parse("dilations(2, 3)")
    query, key, value = torch.randn(3, 1, 2, 1, 7, 8, 3, generator=generator, dtype=torch.float64)
    table = coarse_table(torch.randn(1, 3, 3, 3, generator=generator, dtype=torch.float64), group, 9)
    bias = dilation_bias(group, 3, (9, 9), 1)[None]
    small = group_attention(query, key, value, table, bias=bias)
    large = group_attention(*(enlarged(maps) for maps in (query, key, value)), table, bias=bias)
    middles = large[..., 1::3, 1::3, :]
    torch.testing.assert_close(middles[:, :, 1], small[:, :, 0])
    assert (middles[:, :, 0] - small[:, :, 0]).norm() > 1e-2 * small[:, :, 0].norm()  # the same scale differs
    # The factor 1 / h^2 outside of the softmax, as printed in equation 20, would not be equivariant.
    assert not torch.allclose(middles[:, :, 1] / 9, small[:, :, 0])


def test_maps_on_scales_move_to_the_next_scale(generator):
    # Equation 21 at a scale with all neighbours; the keys of scale 0 are removed where scale -1 was missing.
    group = parse("dilations(3, 3)")
    maps = torch.randn(3, 1, 1, 3, 5, 6, 2, generator=generator, dtype=torch.float64)
    moved = torch.cat([torch.zeros_like(enlarged(maps[:, :, :, :1])), enlarged(maps[:, :, :, :2])], dim=3)
    table = coarse_table(torch.randn(5, 1, 1, 2, generator=generator, dtype=torch.float64), group, 9)
    bias = dilation_bias(group, 1, (9, 9), 3)[None]
    small = group_attention(*maps, table, bias=bias)
    bias = bias.clone()
    bias[:, 1, 0] = -math.inf
    large = group_attention(*moved, table, bias=bias)
    torch.testing.assert_close(large[:, :, 1, 1::3, 1::3], small[:, :, 0])


def test_layers_for_dilations_are_nearly_equivariant_on_a_smooth_image():
    # A scene drawn at two sizes: the coarse scale of the large one equals the fine scale of the small one.
    def scene(size, scale):
        at = (torch.arange(size, dtype=torch.float64) - (size - 1) / 2) / scale
        y, x = at[:, None], at[None, :]
        blob = torch.exp(-((x - 1.5) ** 2 + (y + 1) ** 2) / 8) - 0.7 * torch.exp(-((x + 2) ** 2 + (y - 2) ** 2) / 6)
        return torch.stack([blob, x * blob / 3])[None]

    torch.manual_seed(0)
    layer = LiftingSelfAttention(
        "dilations(2, 3)", 2, 4, heads=2, head_channels=4, window=5, encoding="harmonic"
    ).double()
    with torch.no_grad():
        layer.project.weight *= 3
        small, large = layer(scene(15, 1)), layer(scene(45, 3))
    wanted = small[:, :, 0]
    error = (large[:, :, 1, 1::3, 1::3] - wanted).norm() / wanted.norm()
    same_scale = (large[:, :, 0, 1::3, 1::3] - wanted).norm() / wanted.norm()
    assert error < 0.1
    assert error < 0.3 * same_scale, (error, same_scale)


def test_group_layers_for_dilations_have_finite_gradients(generator):
    layer = GroupSelfAttention("dilations(2, 2)", 3, 3, heads=1, head_channels=3, window=3)
    maps = torch.randn(1, 3, 2, 9, 7, generator=generator)
    result = layer(maps)
    assert result.shape == maps.shape
    result.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())
