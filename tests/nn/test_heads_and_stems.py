"""Heads and stems: masks move with the image, vectors turn with it, and strides keep the symmetry at every size."""

import json

import pytest
import torch

from unpose.audit import equivariance_error
from unpose.groups import parse
from unpose.images import mirror, pixel_grid, quarter_turn
from unpose.nn import (
    ClassHead,
    GroupConv2d,
    GroupSelfAttention,
    MaskHead,
    SpatialPool,
    VectorHead,
    example_network,
    position_table,
    rebuild,
)

KINDS = {"gsa_net": {}, "group_cnn": {"stages": (1, 2)}, "swivel_net": {}}
SIZES = [(8, 8), (7, 11)]


def network(name, group="d4", size=(12, 12), outputs=2, **options):
    torch.manual_seed(0)
    given = {"group": group, "in_channels": 1, "n_classes": outputs, "image_size": size} | KINDS[name] | options
    return example_network(name, **given).double().eval()


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def check(report, control=1e-2):
    """Exact for the group, and far from it for the control."""
    assert report.holds(1e-10), report
    assert report.control_error >= control, report


def along_elements(vectors, group):
    """Project vectors (b, v, 2, ...) on the first axis of every element: (b, v, order, ...), which the group permutes.

    The audit knows the regular representation. If ``v' = g v``, then ``<v', g h e> = <v, h e>``.
    """
    axes = parse(group).elements[:, :2, :2] @ torch.tensor([0.8, 0.6], dtype=torch.float64)  # on no mirror line
    return torch.einsum("gi,bvi...->bvg...", axes, vectors)


@pytest.mark.equivariance
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "gsa_net" else ()) for name in KINDS]
)
def test_masks_move_with_the_image(name):
    built = network(name, head="mask")
    for size in SIZES:
        images = noise(3, 1, *size)
        assert built(images).shape == (3, 2, *size)
        report = equivariance_error(built, images, "d4", "image")
        check(report)


@pytest.mark.equivariance
@pytest.mark.parametrize("group", ["c4", "d4", "c8"])
def test_vectors_turn_with_the_image(group):
    maps = noise(3, 5, parse(group).order, 8, 8)
    for head, kind in ((VectorHead(group, 5, 2), "regular"), (VectorHead(group, 5, 2, dense=True), "regular image")):
        head = head.double()
        report = equivariance_error(
            lambda maps, head=head: along_elements(head(maps), group), maps, group, kind, input="regular image"
        )
        check(report)


@pytest.mark.parametrize("name", KINDS)
def test_networks_give_vectors_in_image_coordinates(name):
    # Without the audit: a quarter turn takes (x, y) to (y, -x), because y points down, and the mirror x to -x.
    built, images = network(name, head="vectors"), noise(3, 1, 9, 9)
    x, y = built(images).unbind(-1)
    torch.testing.assert_close(built(quarter_turn(images, 1)), torch.stack([y, -x], -1), rtol=0, atol=1e-12)
    torch.testing.assert_close(built(mirror(images)), torch.stack([-x, y], -1), rtol=0, atol=1e-12)
    assert built(images).norm(dim=-1).min() > 1e-5  # attention is nearly uniform at first, and the vectors are short
    field = network(name, head="field")
    found = field(images)
    assert found.shape == (3, 2, 2, 9, 9)
    x, y = quarter_turn(found, 1).unbind(2)
    torch.testing.assert_close(field(quarter_turn(images, 1)), torch.stack([y, -x], 2), rtol=0, atol=1e-12)


def test_without_a_head_a_network_gives_its_maps():
    built = network("group_cnn", head=None, outputs=0)
    assert built(noise(2, 1, 9, 13)).shape == (2, 3, 8, 5, 7)
    assert not [name for name in built.state_dict() if "classify" in name or "head" in name]


def test_the_class_head_is_invariant():
    head, maps = ClassHead(5, 3).double(), noise(3, 5, 8, 7, 11)
    report = equivariance_error(head, maps, "d4", input="regular image")
    check(report, control=0)  # a control of one element would be exact here: everything is pooled
    assert head(maps).shape == (3, 3)


@pytest.mark.parametrize("size", [(16, 24), (13, 21), (15, 18), (14, 11)])
def test_interpolated_maps_have_no_shift(size):
    # A mean of pixels halves a linear ramp to the same ramp; interpolation must bring back what was there.
    ramp = pixel_grid(size, torch.float64).movedim(-1, 0)[None]  # (1, 2, h, w): x and y
    halved = SpatialPool("mean")(SpatialPool("mean")(ramp))
    inner = (..., slice(6, -6), slice(6, -6)) if min(size) > 13 else (..., slice(5, -5), slice(5, -5))
    head = MaskHead(2, 2, halvings=2).double()
    with torch.no_grad():
        head.classify.weight.copy_(torch.eye(2))
        head.classify.bias.zero_()
    torch.testing.assert_close(head(halved[:, :, None], size)[inner], ramp[inner])


@pytest.mark.equivariance
@pytest.mark.parametrize("group", ["d4", pytest.param("c8", marks=pytest.mark.slow)])
def test_strided_convolution_keeps_the_symmetry_at_every_size(group):
    torch.manual_seed(0)
    lifting = GroupConv2d(group, 2, 3, 5, lifting=True, stride=2).double()
    inner = GroupConv2d(group, 2, 3, 3, stride=2).double()
    order = parse(group).order
    for size in [(8, 8), (9, 9), (7, 14)]:
        images, maps = noise(3, 2, *size), noise(3, 2, order, *size)
        assert lifting(images).shape[-2:] == SpatialPool()(images).shape[-2:]
        for report in (
            equivariance_error(lifting, images, group, "regular image"),
            equivariance_error(inner, maps, group, "regular image", input="regular image"),
        ):
            check(report)


def test_a_stride_blurs_and_then_takes_every_second_value():
    torch.manual_seed(0)
    strided = GroupConv2d("c4", 1, 2, 3, lifting=True, stride=2).double()
    plain = GroupConv2d("c4", 1, 2, 3, lifting=True).double()
    plain.load_state_dict(strided.state_dict())
    images = noise(1, 1, 12, 13)
    images[..., :4, :] = images[..., -4:, :] = images[..., :4] = images[..., -4:] = 0  # no influence of the border
    maps = plain(images)
    # Output i lies at 2 i + 1/2 along the even side and at 2 i along the odd one; those at the border are left out.
    first, second, third, fourth = (maps[..., start : start + 7 : 2, :] for start in (1, 2, 3, 4))
    rows = (first + 3 * second + 3 * third + fourth) / 8
    left, middle, right = (rows[..., start : start + 9 : 2] for start in (1, 2, 3))
    wanted = (left + 2 * middle + right) / 4
    torch.testing.assert_close(strided(images)[..., 1:-1, 1:-1], wanted)


@pytest.mark.equivariance
@pytest.mark.parametrize(
    ("name", "stem"),
    [
        pytest.param("gsa_net", 4, marks=pytest.mark.slow),
        ("group_cnn", 2),
        pytest.param("group_cnn", 8, marks=pytest.mark.slow),
    ],
)
def test_networks_with_a_stem_are_invariant_and_smaller(name, stem):
    built = network(name, size=(24, 24), stem=stem, outputs=3)
    for size in [(24, 24), (25, 30)]:
        images = noise(3, 1, *size)
        check(equivariance_error(built, images, "d4"), control=1e-3)
    halvings = stem.bit_length()  # one more between the stages
    assert built.features(noise(1, 1, 24, 24)).shape[-1] == -(-24 // 2**halvings)
    masks = network(name, size=(24, 24), stem=stem, head="mask")
    assert equivariance_error(masks, noise(2, 1, 25, 30), "d4", "image").holds(1e-10)


def test_networks_with_heads_and_stems_are_described_and_loaded():
    for name, options in (("gsa_net", {"stem": 2, "head": "field"}), ("group_cnn", {"stem": 2, "head": "mask"})):
        built = network(name, "c4", size=(24, 24), **options)
        again = rebuild(json.loads(json.dumps(built.description))).double().to_empty(device="cpu").eval()
        again.load_state_dict(built.state_dict())
        images = noise(2, 1, 25, 30)
        assert torch.equal(again(images), built(images))


@pytest.mark.slow
def test_networks_with_heads_and_stems_are_exported_with_free_sides():
    built = network("group_cnn", "c4", size=(24, 24), stem=2, head="mask")
    sides = {axis: torch.export.Dim(f"side{axis}", min=17, max=64) for axis in (2, 3)}
    program = torch.export.export(built, (noise(2, 1, 24, 26),), dynamic_shapes=(sides,)).module()
    for size in ((24, 26), (21, 33)):
        torch.testing.assert_close(program(noise(2, 1, *size)), built(noise(2, 1, *size)))


def test_the_width_counts_the_head():
    for head in ("classes", "mask", "vectors", None):
        counts = [
            sum(p.numel() for p in network("group_cnn", head=head, outputs=7, **options).parameters())
            for options in ({"width": None, "parameters": 5000}, {"width": None, "parameters": 7000})
        ]
        assert 3000 < counts[0] <= 5000 < counts[1] <= 7000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: network("group_cnn", head="boxes"), "classes, mask, vectors, field or None, got 'boxes'"),
        (lambda: network("gsa_net", stem=3), "stem must be 1"),
        (lambda: GroupConv2d("c4", 1, 1, 3, stride=4), "stride must be 1 or 2"),
        (lambda: MaskHead(2, 1, halvings=2)(torch.rand(1, 2, 4, 8, 8), (17, 32)), "5 x 8, got 8 x 8"),
        (lambda: VectorHead("c4", 2)(torch.rand(1, 2, 8, 5, 5)), "c4 has 4 elements"),
    ],
)
def test_wrong_heads_and_stems_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_the_constant_basis_of_harmonic_encodings_is_that_of_the_encoding():
    torch.manual_seed(0)
    layer = GroupSelfAttention("d3", 4, 4, heads=2, head_channels=3, window=5, encoding="harmonic")
    maps, found = torch.rand(1, 4, layer.group.order, 6, 7), []

    def record(module, example):
        found.append(module)
        return module

    with torch.no_grad():
        assert torch.equal(torch.compile(layer, backend=record, fullgraph=True)(maps), layer(maps))
    operations = {str(node.target) for node in found[0].graph.nodes}
    assert not [name for name in operations if "exp of" in name or "sqrt" in name]  # the rings are not traced
    for module in (layer, layer.double()):
        dtype = module.project.weight.dtype
        kept = position_table(
            lambda _, m=module: m.encoding.combine(m.basis), module.inverses, module.relations, (5, 5)
        )
        fresh = position_table(module.encoding, module.inverses, module.relations, (5, 5))
        torch.testing.assert_close(kept, fresh, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)
