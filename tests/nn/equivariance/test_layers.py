"""Every layer commutes with every element of its group that maps pixels to pixels, and with none outside."""

import pytest
import torch

from unpose.groups import parse
from unpose.nn import (
    ChannelNorm,
    GroupConv2d,
    GroupPool,
    GroupSelfAttention,
    LiftingSelfAttention,
    PointwiseLinear,
    SpatialPool,
    implementation,
)

GROUPS = ["c1", "d1", "c4", "d4", "c8", "c12", "c16"]
SIZES = [(7, 7), (8, 8), (9, 13), (28, 28)]
POINTWISE = {"pointwise", "norm", "max pooling", "mean pooling"}  # these commute with more than any group here


def attention(kind, group, **options):
    """A small layer; few channels, so that many elements and pixels fit the time."""
    inside = 2 if kind is LiftingSelfAttention else 3
    options = {"window": 3, "heads": 2, "head_channels": 3} | options
    return kind(group, inside, 3, reach=4.0, **options)


def layers(group, size, most=3e7):
    """Layers to test at this size, name -> (layer, lifts); not those that make more than ``most`` scores in a call."""
    pixels = size[0] * size[1]
    lift, relative, paper = group.order, group.order**2, group.order**3
    found = {
        "lifting": (9 * lift, attention(LiftingSelfAttention, group), True),
        "lifting, global": (pixels * lift, attention(LiftingSelfAttention, group, window=None, heads=1), True),
        "group, separable": (9 * relative, attention(GroupSelfAttention, group), False),
        "group, harmonic": (25 * relative, attention(GroupSelfAttention, group, window=5, encoding="harmonic"), False),
        "group, global": (
            pixels * relative,
            attention(GroupSelfAttention, group, window=None, heads=1, encoding="harmonic"),
            False,
        ),
        "group, paper": (9 * paper, attention(GroupSelfAttention, group, heads=1, mode="paper"), False),
        "lifting convolution": (0, GroupConv2d(group, 2, 3, 5, lifting=True), True),
        "group convolution": (0, GroupConv2d(group, 3, 2, 3), False),
        "pointwise": (0, PointwiseLinear(3, 2), False),
        "norm": (0, ChannelNorm(3), False),
        "max pooling": (0, SpatialPool("max"), False),
        "mean pooling": (0, SpatialPool("mean"), False),
    }
    return {name: (layer, lifts) for name, (scores, layer, lifts) in found.items() if scores * pixels <= most}


def inputs(group, size, dtype, generator):
    images = torch.randn(2, 2, *size, generator=generator, dtype=torch.float64).to(dtype)
    maps = torch.randn(1, 3, group.order, *size, generator=generator, dtype=torch.float64).to(dtype)
    return images, maps


def worst_error(layer, lifts, images, maps, group, grid, relative_error):
    errors = []
    with torch.no_grad():
        result = layer(images if lifts else maps)
        for g in grid.elements(group)[1:] or [0]:
            moved = grid.images(images, group, g) if lifts else grid.maps(maps, group, g)
            errors.append(relative_error(layer(moved), grid.maps(result, group, g)))
    return max(errors)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", GROUPS)
def test_layers_commute_with_the_group(name, size, grid, contrast, relative_error, generator):
    group = parse(name)
    images, maps = inputs(group, size, torch.float32, generator)
    for what, (layer, lifts) in layers(group, size).items():
        error = worst_error(contrast(layer), lifts, images, maps, group, grid, relative_error)
        assert error < 1e-5, f"{what}: {error}"


@pytest.mark.parametrize("name", GROUPS)
def test_attention_in_plain_pytorch_commutes_too(name, grid, contrast, relative_error, generator):
    # Compiled loops serve the other tests wherever they can run.
    group = parse(name)
    images, maps = inputs(group, (9, 13), torch.float32, generator)
    with implementation("plain"):
        for what, (layer, lifts) in layers(group, (9, 13), most=2e6).items():
            if not isinstance(layer, LiftingSelfAttention | GroupSelfAttention):
                continue
            error = worst_error(contrast(layer), lifts, images, maps, group, grid, relative_error)
            assert error < 1e-5, f"{what}: {error}"


@pytest.mark.parametrize("size", [*SIZES, (4, 5)], ids=str)
@pytest.mark.parametrize("name", GROUPS)
def test_layers_commute_to_the_last_digits_in_double_precision(name, size, grid, contrast, relative_error, generator):
    group = parse(name)
    images, maps = inputs(group, size, torch.float64, generator)
    for what, (layer, lifts) in layers(group, size, most=3e6).items():
        error = worst_error(contrast(layer.double()), lifts, images, maps, group, grid, relative_error)
        assert error < 1e-10, f"{what}: {error}"


@pytest.mark.parametrize("name", GROUPS)
def test_layers_commute_with_the_group_after_training(name, grid, contrast, train, relative_error, generator):
    # Trained at one size, tested at all, in both precisions.
    group = parse(name)
    torch.manual_seed(6)
    images, maps = inputs(group, (5, 6), torch.float32, generator)
    for what, (layer, lifts) in layers(group, (5, 6), most=1e6).items():
        if not list(layer.parameters()):
            continue
        given = images if lifts else maps
        target = torch.randn(layer(given).shape, generator=generator)
        train(contrast(layer), lambda layer, x=given, y=target: (layer(x) - y).square().mean(), steps=5)
        for size in SIZES:
            if what not in layers(group, size, most=3e6):
                continue
            fresh = inputs(group, size, torch.float32, generator)
            error = worst_error(layer, lifts, *fresh, group, grid, relative_error)
            assert error < 1e-5, f"{what} at {size}: {error}"
        fresh = inputs(group, (7, 7), torch.float64, generator)
        error = worst_error(layer.double(), lifts, *fresh, group, grid, relative_error)
        assert error < 1e-10, f"{what}: {error}"


@pytest.mark.parametrize("name", GROUPS)
def test_layers_do_not_commute_with_more(name, grid, contrast, relative_error, generator):
    # A quarter turn for the mirror group, a mirror for rotations; for d4, which has them all, a shift around the edge.
    group = parse(name)
    images, maps = inputs(group, (8, 8), torch.float64, generator)
    outside = {
        "d1": lambda pixels: torch.rot90(pixels, 1, (-2, -1)),
        "d4": lambda pixels: pixels.roll(3, -1),
    }.get(name, lambda pixels: pixels.flip(-1))
    for what, (layer, lifts) in layers(group, (8, 8), most=3e6).items():
        if what in POINTWISE:
            continue
        contrast(layer.double())
        with torch.no_grad():
            result = outside(layer(images if lifts else maps))
            moved = layer(outside(images if lifts else maps))
        # however the group axis is read
        error = min(relative_error(moved, result[:, :, group.product[g]]) for g in range(group.order))
        assert error > 1e-2, f"{what}: {error}"


@pytest.mark.parametrize("size", [(7, 7), (8, 8), (9, 13), (6, 7), (1, 2)], ids=str)
@pytest.mark.parametrize("kind", ["max", "mean"])
def test_pooling_commutes_at_every_size(kind, size, grid, generator):
    group = parse("d4")
    maps = torch.randn(2, 3, 8, *size, generator=generator, dtype=torch.float64)
    pool = SpatialPool(kind)
    assert pool(maps).shape[-2:] == ((size[0] + 1) // 2, (size[1] + 1) // 2)
    for g in range(8):
        torch.testing.assert_close(pool(grid.maps(maps, group, g)), grid.maps(pool(maps), group, g))


def test_pooling_in_pairs_would_break_odd_sizes(grid):
    maps = torch.arange(49.0).view(1, 1, 7, 7)
    pairs = torch.nn.functional.max_pool2d
    assert not torch.equal(pairs(maps.rot90(1, (-2, -1)), 2), pairs(maps, 2).rot90(1, (-2, -1)))


@pytest.mark.parametrize("name", GROUPS)
def test_norm_and_group_pooling(name, grid, contrast, generator):
    group = parse(name)
    maps = torch.randn(2, 3, group.order, 5, 6, generator=generator)
    norm = contrast(ChannelNorm(3))
    for g in grid.elements(group):
        moved = grid.maps(maps, group, g)
        assert torch.equal(norm(moved), grid.maps(norm(maps), group, g))
        assert torch.equal(GroupPool("max")(moved), grid.images(GroupPool("max")(maps), group, g))
        torch.testing.assert_close(GroupPool("mean")(moved), grid.images(GroupPool("mean")(maps), group, g))


def test_one_layer_serves_changing_sizes(grid, contrast, relative_error, generator):
    # What was computed for one size must not be kept for the next.
    group = parse("d4")
    layer = contrast(attention(GroupSelfAttention, group, window=5).double())
    for size in [(9, 13), (5, 4), (13, 9), (8, 8), (9, 13)]:
        images, maps = inputs(group, size, torch.float64, generator)
        assert worst_error(layer, False, images, maps, group, grid, relative_error) < 1e-10


@pytest.mark.parametrize("name", ["c8", "c12"])
def test_finer_angles_stay_near_what_interpolation_allows(name, contrast, relative_error, generator):
    # Turning a smooth image by one step of a finer group: the maps follow, up to the error of turning pixels at all.
    from unpose.images import smooth, warp

    group = parse(name)
    noise = torch.randn(1, 2, 41, 41, generator=generator, dtype=torch.float64)
    inside = (torch.linspace(-1, 1, 41, dtype=torch.float64)[:, None] ** 2 + torch.linspace(-1, 1, 41) ** 2) < 0.5
    images = smooth(noise * inside, 2.0)
    pose = group.elements[1]
    floor = relative_error(warp(warp(images, pose), group.elements[group.inverse[1]]), images)
    middle = slice(10, 31)
    for layer in (
        GroupConv2d(group, 2, 3, 7, lifting=True).double(),
        contrast(attention(LiftingSelfAttention, group, window=7, heads=1, encoding="harmonic").double()),
    ):
        with torch.no_grad():
            turned = layer(warp(images, pose))
            result = layer(images)
        moved = torch.empty_like(result)
        moved[:, :, group.product[1]] = warp(result.flatten(1, 2), pose).unflatten(1, (3, -1))
        error = relative_error(turned[..., middle, middle], moved[..., middle, middle])
        wrong = relative_error(turned[..., middle, middle], result[..., middle, middle])
        assert error < 0.2 * wrong, (type(layer).__name__, error, wrong, floor)
        assert error < 0.1, (type(layer).__name__, error, wrong, floor)
