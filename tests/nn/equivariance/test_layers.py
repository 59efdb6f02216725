"""Every layer commutes with every element of its group that maps pixels to pixels, and not with the audit's control."""

import pytest
import torch

from unpose.audit import equivariance_error
from unpose.groups import parse
from unpose.images import smooth
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

pytestmark = pytest.mark.equivariance

GROUPS = [(name, torch.float32) for name in ("d1", "c4")]
GROUPS += [pytest.param(name, torch.float32, marks=pytest.mark.slow) for name in ("c1", "d4", "c8", "c12", "c16")]
# d4 in double precision is among the sizes too.
GROUPS += [pytest.param(name, torch.float64, marks=pytest.mark.slow) for name in ("d4", "c8")]
SIZES = [((4, 5), torch.float64)]
SIZES += [pytest.param(size, torch.float32, marks=pytest.mark.slow) for size in ((7, 11), (8, 8))]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
LARGER_SYMMETRY = {"pointwise", "norm", "max pooling", "mean pooling", "group max", "group mean"}
"""Layers that also commute with transformations outside every group here."""


def attention(kind, group, **options):
    """A layer with few channels, so that many elements and pixels take little time."""
    in_channels = 2 if kind is LiftingSelfAttention else 3
    return kind(group, in_channels, 3, **({"window": 3, "heads": 2, "head_channels": 3, "reach": 4.0} | options))


def layers(group):
    """Name -> (layer, kind of input, kind of output)."""
    lifted, inner = ("image", "regular image"), ("regular image", "regular image")
    found = {
        "lifting": (attention(LiftingSelfAttention, group), *lifted),
        "lifting, global": (attention(LiftingSelfAttention, group, window=None, heads=1), *lifted),
        "group, separable": (attention(GroupSelfAttention, group), *inner),
        "group, harmonic": (attention(GroupSelfAttention, group, heads=1, encoding="harmonic"), *inner),
        "group, global": (attention(GroupSelfAttention, group, window=None, heads=1, encoding="harmonic"), *inner),
        "group, paper": (attention(GroupSelfAttention, group, heads=1, mode="paper"), *inner),
        "lifting convolution": (GroupConv2d(group, 2, 3, 5, lifting=True), *lifted),
        "group convolution": (GroupConv2d(group, 3, 2, 3), *inner),
        "pointwise": (PointwiseLinear(3, 2), *inner),
        "norm": (ChannelNorm(3), *inner),
        "max pooling": (SpatialPool("max"), *inner),
        "mean pooling": (SpatialPool("mean"), *inner),
        "group max": (GroupPool("max"), "regular image", "image"),
        "group mean": (GroupPool("mean"), "regular image", "image"),
    }
    return found if group.order <= 8 else {name: found[name] for name in ("lifting", "group, separable")}


def audit(layer, takes, gives, group, size, dtype, generator):
    shape = (2, 2, *size) if takes == "image" else (2, 3, group.order, *size)
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return equivariance_error(layer.to(dtype), inputs, group, gives, input=takes)


@pytest.mark.parametrize(("name", "dtype"), GROUPS, ids=str)
def test_layers_commute_with_their_group_and_no_more(name, dtype, contrast, generator):
    # In float32 attention runs in the fused kernels, in float64 in the reference.
    group = parse(name)
    for what, (layer, takes, gives) in layers(group).items():
        report = audit(contrast(layer), takes, gives, group, (5, 5), dtype, generator)
        assert report.worst_exact < TOLERANCE[dtype], f"{what}: {report}"
        assert what in LARGER_SYMMETRY or report.control_error > 1e-2, f"{what}: {report}"


@pytest.mark.parametrize(("size", "dtype"), SIZES, ids=str)
def test_layers_commute_at_every_size(size, dtype, contrast, generator):
    group = parse("d4")
    for what, (layer, takes, gives) in layers(group).items():
        report = audit(contrast(layer), takes, gives, group, size, dtype, generator)
        assert report.worst_exact < TOLERANCE[dtype], f"{what}: {report}"


@pytest.mark.slow
def test_attention_in_plain_pytorch_commutes_in_single_precision(contrast, generator):
    group = parse("d4")
    with implementation("plain"):
        for what, (layer, takes, gives) in layers(group).items():
            if isinstance(layer, LiftingSelfAttention | GroupSelfAttention):
                report = audit(contrast(layer), takes, gives, group, (7, 7), torch.float32, generator)
                assert report.worst_exact < 1e-5, f"{what}: {report}"


@pytest.mark.slow
def test_layers_commute_with_the_group_after_training(contrast, train, generator):
    # Trained at one size, audited at another, in both precisions.
    group = parse("d4")
    torch.manual_seed(6)
    for what, (layer, takes, gives) in layers(group).items():
        if not list(layer.parameters()):
            continue
        inputs = torch.randn((2, 2, 5, 4) if takes == "image" else (1, 3, group.order, 5, 4), generator=generator)
        target = torch.randn(layer(inputs).shape, generator=generator)
        train(contrast(layer), lambda layer, x=inputs, y=target: (layer(x) - y).square().mean(), steps=5)
        for dtype, tolerance in TOLERANCE.items():
            report = audit(layer, takes, gives, group, (5, 5), dtype, generator)
            assert report.worst_exact < tolerance, f"{what}: {report}"


@pytest.mark.parametrize("size", [(7, 7), (8, 8), (9, 13), (6, 7), (3, 2)], ids=str)
@pytest.mark.parametrize("kind", ["max", "mean"])
def test_pooling_halves_every_size(kind, size, generator):
    maps = torch.randn(2, 3, 8, *size, generator=generator, dtype=torch.float64)
    pool = SpatialPool(kind)
    assert pool(maps).shape[-2:] == ((size[0] + 1) // 2, (size[1] + 1) // 2)
    for axes in ([-1], [-2], [-2, -1]):
        torch.testing.assert_close(pool(maps.flip(axes)), pool(maps).flip(axes))
    torch.testing.assert_close(pool(maps.rot90(1, (-2, -1))), pool(maps).rot90(1, (-2, -1)))


def test_pooling_in_pairs_would_break_odd_sizes():
    maps = torch.arange(49.0).view(1, 1, 7, 7)
    pairs = torch.nn.functional.max_pool2d
    assert not torch.equal(pairs(maps.rot90(1, (-2, -1)), 2), pairs(maps, 2).rot90(1, (-2, -1)))


def test_one_layer_serves_changing_sizes(contrast, generator):
    # Nothing that was computed for one size may be kept for the next.
    group = parse("d4")
    layer = contrast(attention(GroupSelfAttention, group, window=5).double())
    for size in [(5, 7), (6, 4), (5, 7)]:
        report = audit(layer, "regular image", "regular image", group, size, torch.float64, generator)
        assert report.worst_exact < 1e-10, str(report)


@pytest.mark.parametrize("name", ["c8", pytest.param("c12", marks=pytest.mark.slow)])
def test_finer_angles_stay_near_what_interpolation_allows(name, contrast, generator):
    # Rotating a smooth image by less than a quarter turn: the maps follow up to the error of interpolation.
    group = parse(name)
    images = smooth(torch.randn(2, 2, 31, 31, generator=generator, dtype=torch.float64), 2.0)
    for layer in (
        GroupConv2d(group, 2, 3, 7, lifting=True).double(),
        contrast(attention(LiftingSelfAttention, group, window=7, heads=1, encoding="harmonic").double()),
    ):
        report = equivariance_error(layer, images, group, "regular image")
        assert report.errors.max() < 0.1, f"{type(layer).__name__}: {report}"
        assert (report.errors <= 3 * report.floors + 1e-12).all(), f"{type(layer).__name__}: {report}"
        assert report.errors.max() < 0.3 * report.discrimination, f"{type(layer).__name__}: {report}"


@pytest.mark.parametrize("mode", ["relative", "paper"])
def test_attention_on_a_group_is_not_equivariant_to_a_larger_one(mode, contrast, generator):
    # Proposition 5.2: a layer for half turns commutes with half turns and not with quarter turns.
    layer = contrast(attention(GroupSelfAttention, "c2", mode=mode).double(), gain=4.0)
    maps = torch.randn(2, 3, 2, 6, 6, generator=generator, dtype=torch.float64)
    assert equivariance_error(layer, maps, "c2", "regular image", input="regular image").worst_exact < 1e-12
    with torch.no_grad():
        result, quarter = layer(maps), layer(maps.rot90(1, (-2, -1)))
    for swap in ([0, 1], [1, 0]):
        wanted = result.rot90(1, (-2, -1))[:, :, swap]
        assert (quarter - wanted).norm() > 1e-2 * wanted.norm()


def test_lifting_with_an_unrotated_encoding_gives_equal_maps(contrast, generator):
    layer = contrast(attention(LiftingSelfAttention, "c4").double())
    images = torch.randn(1, 2, 6, 5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        assert (layer(images)[:, :, 1] - layer(images)[:, :, 0]).norm() > 1e-2 * layer(images)[:, :, 0].norm()
        layer.inverses[:] = torch.eye(2)
        torch.testing.assert_close(layer(images)[:, :, 1], layer(images)[:, :, 0])


@pytest.mark.parametrize("name", ["c4", "c8", "d4"])
def test_the_papers_sum_as_printed_is_not_equivariant(name, contrast, generator):
    # Equation 16 as printed has the relative element h^-1 (h~^-1 k), which is not invariant.
    layer = contrast(attention(GroupSelfAttention, name, heads=1, mode="printed"), gain=4.0)
    maps = torch.randn(2, 3, layer.group.order, 5, 5, generator=generator)
    assert equivariance_error(layer, maps, name, "regular image", input="regular image").worst_exact > 1e-2
