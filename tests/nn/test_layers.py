"""Layers: errors for wrong arguments, and properties that users rely on."""

import pytest
import torch

from unpose.groups import parse
from unpose.nn import (
    GroupConv2d,
    GroupPool,
    GroupSelfAttention,
    LiftingSelfAttention,
    SeparableEncoding,
    SpatialPool,
    group_attention,
    swivel_net,
)


def layer(kind=GroupSelfAttention, group="c4", **options):
    return kind(group, 2, 3, **({"heads": 2, "head_channels": 3, "window": 3} | options))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 5, 4, 7, 7), "2 channels, got 5"),
        ((1, 2, 8, 7, 7), "c4 has 4 elements, these maps have 8"),
        ((1, 2, 7, 7), "lifting layer first"),
        ((2, 4, 7), "must be"),
    ],
)
def test_group_layers_refuse_wrong_maps(shape, message):
    for module in (layer(), GroupConv2d("c4", 2, 3, 3)):
        with pytest.raises(ValueError, match=message):
            module(torch.rand(shape))


def test_lifting_layers_refuse_wrong_images():
    for module in (layer(LiftingSelfAttention), GroupConv2d("c4", 2, 3, 3, lifting=True)):
        with pytest.raises(ValueError, match="2 channels, got 3"):
            module(torch.rand(1, 3, 7, 7))
        with pytest.raises(ValueError, match="already on a group"):
            module(torch.rand(1, 2, 4, 7, 7))
        with pytest.raises(ValueError, match="floating point"):
            module(torch.zeros(1, 2, 7, 7, dtype=torch.uint8))


@pytest.mark.parametrize("window", [0, 2, 4, -3])
def test_windows_must_be_odd(window):
    for make in (lambda: layer(window=window), lambda: GroupConv2d("c4", 1, 1, window)):
        with pytest.raises(ValueError, match="odd"):
            make()


def test_windows_must_fit_the_image():
    module = layer(window=9)
    assert module(torch.rand(1, 2, 4, 5, 6)).shape == (1, 3, 4, 5, 6)  # 2 * 5 - 1 = 9: reaches across
    with pytest.raises(ValueError, match="9 x 9 is larger than an image of 4 x 9"):
        module(torch.rand(1, 2, 4, 4, 9))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": None}, "reach"),
        ({"encoding": "learned"}, "separable"),
        ({"mode": "other"}, "relative"),
        ({"group": "se2"}, "finite group"),
        ({"heads": 0}, "heads"),
        ({"head_channels": 2}, "at least 3 channels"),
    ],
)
def test_wrong_options_raise_errors_that_say_what_is_needed(options, message):
    with pytest.raises(ValueError, match=message):
        layer(**options)


def test_convolution_needs_a_closed_group():
    with pytest.raises(ValueError, match="closed"):
        GroupConv2d("dilations(3)", 1, 1, 3)


@pytest.mark.parametrize("kind", [SpatialPool, GroupPool])
def test_pools_are_max_or_mean(kind):
    with pytest.raises(ValueError, match="'max' or 'mean'"):
        kind("median")


def test_group_pooling_needs_a_group_axis():
    with pytest.raises(ValueError, match="order"):
        GroupPool()(torch.rand(2, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": (2, 3, 5, 5, 4)}, "query must be"),
        ({"key": (2, 3, 4, 5, 6, 4)}, "query and key"),
        ({"value": (2, 3, 2, 5, 5, 4)}, "key and value"),
        ({"position": (1, 8, 4, 3, 3, 4)}, "same group"),
        ({"position": (1, 4, 8, 3, 3, 4)}, "same group"),
        ({"position": (2, 4, 4, 3, 3, 4)}, "1 or 3 heads"),
        ({"position": (1, 4, 4, 3, 3, 5)}, "4 channels"),
        ({"position": (1, 4, 4, 2, 3, 4)}, "odd"),
        ({"position": (1, 4, 4, 3, 11, 4)}, "larger than an image"),
        ({"bias": (1, 4, 4, 3, 5)}, "bias must be"),
    ],
)
def test_group_attention_refuses_shapes_that_do_not_fit(change, message):
    maps = (2, 3, 4, 5, 5, 4)
    shapes = {"query": maps, "key": maps, "value": maps, "position": (1, 4, 4, 3, 3, 4)} | change
    tensors = {name: torch.rand(shape) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=message):
        group_attention(**tensors)


def test_zero_biases_as_published_have_a_pole_and_random_ones_have_none():
    # With zero biases and a tiny eps, as in the published code, the norm computes 0 / 0 at coordinate zero.
    def slope(encoding):
        x = torch.zeros(1, 2, requires_grad=True)
        encoding(x).sum().backward()
        return float(x.grad.abs().max())

    torch.manual_seed(0)
    encoding = SeparableEncoding(6, None, reach=2.0)
    assert slope(encoding) < 10
    for network in (encoding.along_x, encoding.along_y):
        torch.nn.init.zeros_(network[0].bias)
        network[1].eps = 1e-12
    assert slope(encoding) > 1e4


@pytest.mark.parametrize("name", ["c4", "d1", "d4"])
def test_grid_groups_have_exact_kernels(name):
    # Every kernel is a permutation of the first.
    module = GroupConv2d(name, 1, 1, 3, lifting=True)
    kernels = module.kernels()[0, :, 0, 0].detach()
    values = kernels[0].flatten().sort().values
    assert all(torch.equal(kernel.flatten().sort().values, values) for kernel in kernels)
    if name == "c4":
        assert all(torch.equal(kernels[g], kernels[0].rot90(g)) for g in range(4))


def test_finer_kernels_agree_on_their_quarter_turns():
    kernels = GroupConv2d("c12", 1, 2, 5, lifting=True).double().kernels()[0, :, 0, 0].detach()
    for g in range(12):
        torch.testing.assert_close(kernels[(g + 3) % 12], kernels[g].rot90(1))


@pytest.mark.parametrize("lifting", [False, True])
def test_the_gradient_of_kernels_sorts_nothing(lifting):
    """That of an index sorts first on a GPU."""
    steps, names = [GroupConv2d("d4", 2, 3, 3, lifting=lifting).kernels().grad_fn], set()
    while steps:
        step = steps.pop()
        names.add(type(step).__name__)
        steps += [each for each, _ in step.next_functions if each is not None]
    assert "AccumulateGrad" in names
    assert "IndexBackward0" not in names


def test_group_convolution_equals_its_definition(generator):
    # Element by element, for a non-commutative group.
    group = parse("d4")
    module = GroupConv2d(group, 2, 1, 3).double()
    maps = torch.randn(1, 2, 8, 4, 5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        first = module.kernels()[0, 0]  # psi(o, r): (in, element, y, x)
        wanted = torch.zeros(8, 4, 5, dtype=torch.float64) + module.bias
        for h in range(8):
            back = group.elements[group.inverse[h], :2, :2]
            for y in range(4):
                for x in range(5):
                    for j_y in range(max(y - 1, 0), min(y + 2, 4)):
                        for j_x in range(max(x - 1, 0), min(x + 2, 5)):
                            a, b = (back @ torch.tensor([j_x - x, j_y - y]).double()).long().tolist()
                            for k in range(8):
                                r = group.product[group.inverse[h], k]
                                wanted[h, y, x] += first[:, r, b + 1, a + 1] @ maps[0, :, k, j_y, j_x]
        torch.testing.assert_close(module(maps)[0, 0], wanted)


def test_constants_of_the_group_are_not_saved():
    assert not any("inverses" in name or "relations" in name for name in layer().state_dict())


def test_layers_show_what_they_are():
    assert "group=c4" in repr(layer())
    assert "lifting=True" in repr(GroupConv2d("c4", 1, 2, 3, lifting=True))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: GroupConv2d("c4", 0, 4, 3), "in_channels must be at least 1, got 0"),
        (lambda: swivel_net("c4", 1, 3, 28, heads=0), "heads must be at least 1, got 0"),
        (lambda: LiftingSelfAttention("c4", 1, 4, heads=2, head_channels=0, window=3), "head_channels must be"),
        (lambda: LiftingSelfAttention("c4", 1, 4, heads=2, head_channels=2, window=3, reach=0), "reach must be"),
    ],
)
def test_counts_and_distances_that_are_not_positive_are_named(make, why):
    with pytest.raises(ValueError, match=why):
        make()
