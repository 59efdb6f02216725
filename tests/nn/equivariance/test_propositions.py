"""The paper's propositions, checked numerically: with which transformations attention commutes."""

import pytest
import torch

from unpose.audit import equivariance_error
from unpose.groups import parse
from unpose.images import warp
from unpose.nn import GroupSelfAttention, HarmonicEncoding, LiftingSelfAttention, group_attention, position_table
from unpose.nn.functional.positions import inverse_elements, relative_elements

pytestmark = pytest.mark.equivariance

HEIGHT, WIDTH = 5, 7


@pytest.fixture
def maps(generator):
    """Queries, keys and values of two heads on one group element, whose attention is far from uniform."""
    return 2 * torch.randn(3, 1, 2, 1, HEIGHT, WIDTH, 4, generator=generator, dtype=torch.float64)


@pytest.fixture
def table(generator):
    """A relative encoding for all offsets of the image, without any symmetry."""
    return torch.randn(2, 1, 1, 2 * HEIGHT - 1, 2 * WIDTH - 1, 4, generator=generator, dtype=torch.float64)


def permuted(maps, order):
    return maps.flatten(-3, -2)[..., order, :].unflatten(-2, (HEIGHT, WIDTH))


def attend(maps, position):
    return group_attention(*maps, position)


def relative_error(a, b):
    return float(((a - b).norm() / b.norm()).detach())


def test_4_1_without_positions_attention_commutes_with_permutations(maps, table, generator):
    order = torch.randperm(HEIGHT * WIDTH, generator=generator)
    zeros = torch.zeros_like(table)
    assert relative_error(attend(permuted(maps, order), zeros), permuted(attend(maps, zeros), order)) < 1e-12
    # A constant encoding carries no position either.
    constant = table[:, :, :, :1, :1].expand_as(table)
    assert relative_error(attend(permuted(maps, order), constant), permuted(attend(maps, constant), order)) < 1e-12


def test_4_1_local_attention_does_not_commute_with_permutations(maps, table, generator):
    order = torch.randperm(HEIGHT * WIDTH, generator=generator)
    local = torch.zeros_like(table[:, :, :, :3, :3])
    assert relative_error(attend(permuted(maps, order), local), permuted(attend(maps, local), order)) > 1e-2


def test_4_2_an_absolute_encoding_commutes_with_nothing(maps, table, generator):
    order = torch.randperm(HEIGHT * WIDTH, generator=generator)
    place = torch.randn(1, 2, 1, HEIGHT, WIDTH, 4, generator=generator, dtype=torch.float64)
    zeros = torch.zeros_like(table)

    def absolute(maps):
        query, key, value = maps
        return group_attention(query + place, key + place, value, zeros)

    assert relative_error(absolute(permuted(maps, order)), permuted(absolute(maps), order)) > 1e-2
    assert relative_error(absolute(maps.roll(1, -2)), absolute(maps).roll(1, -2)) > 1e-2  # a cyclic shift: no border


def test_4_3_a_relative_encoding_commutes_with_translations(generator):
    # The content stays so far from the border that windows of radius one never reach it.
    content = torch.zeros(3, 1, 2, 1, 11, 13, 4, dtype=torch.float64)
    content[..., 4:7, 4:8, :] = 2 * torch.randn(3, 1, 2, 1, 3, 4, 4, generator=generator, dtype=torch.float64)
    position = torch.randn(2, 1, 1, 3, 3, 4, generator=generator, dtype=torch.float64)
    shifted = content.roll((-2, 3), (-3, -2))
    inner = (..., slice(1, -1), slice(1, -1), slice(None))
    result = attend(content, position).roll((-2, 3), (-3, -2))
    assert relative_error(attend(shifted, position)[inner], result[inner]) < 1e-12


def test_4_3_a_relative_encoding_commutes_with_no_other_permutation(maps, table, generator):
    order = torch.randperm(HEIGHT * WIDTH, generator=generator)
    assert relative_error(attend(permuted(maps, order), table), permuted(attend(maps, table), order)) > 1e-2
    assert relative_error(attend(maps.flip(-2), table), attend(maps, table).flip(-2)) > 1e-2


@pytest.mark.parametrize("name", ["d1", "c4", "d4"])
def test_5_1_and_5_2_the_encoding_is_invariant_to_its_group_only(name):
    # Both propositions rest on L_g[rho] = rho: applying g to elements and offsets does not change the table.
    group = parse(name)
    relations, n_relations = relative_elements(group)
    encoding = HarmonicEncoding(3, n_relations, heads=2, reach=2.0).double()
    table = position_table(encoding, inverse_elements(group), relations, (5, 5))  # (heads, h, k, y, x, d)

    def transformed(element):
        return warp(table.movedim(-1, 3).flatten(0, 2), element).unflatten(0, table.shape[:3]).movedim(3, -1)

    for row, element in zip(group.product, group.elements, strict=True):
        moved = torch.empty_like(table)
        moved[:, row[:, None], row[None, :]] = transformed(element)
        torch.testing.assert_close(moved, table)
    outside = {"d1": "c4", "c4": "d1", "d4": None}[name]
    if outside:
        moved = transformed(parse(outside).elements[1])
        rows = group.product
        closest = min(relative_error(moved, table[:, a[:, None], b[None, :]]) for a in rows for b in rows)
        assert closest > 1e-2


@pytest.mark.parametrize("mode", ["relative", "paper"])
def test_5_2_attention_on_a_group_is_not_equivariant_to_a_larger_one(mode, contrast, generator):
    # Unique equivariance: a layer for half turns commutes with half turns and not with quarter turns.
    layer = contrast(GroupSelfAttention("c2", 3, 3, heads=2, head_channels=4, window=3, mode=mode).double(), gain=4.0)
    maps = torch.randn(2, 3, 2, 6, 6, generator=generator, dtype=torch.float64)
    assert equivariance_error(layer, maps, "c2", "regular image", input="regular image").worst_exact < 1e-12
    with torch.no_grad():
        result, quarter = layer(maps), layer(maps.rot90(1, (-2, -1)))
        for swap in ([0, 1], [1, 0]):
            assert relative_error(quarter, result.rot90(1, (-2, -1))[:, :, swap]) > 1e-2


def test_5_1_lifting_with_an_unrotated_encoding_gives_equal_maps(contrast, generator):
    # If the encoding is the same for all elements, all elements have the same output.
    layer = contrast(LiftingSelfAttention("c4", 2, 3, heads=2, head_channels=4, window=3).double())
    images = torch.randn(1, 2, 6, 5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        assert relative_error(layer(images)[:, :, 1], layer(images)[:, :, 0]) > 1e-2
        layer.inverses[:] = torch.eye(2)
        assert relative_error(layer(images)[:, :, 1], layer(images)[:, :, 0]) < 1e-12


@pytest.mark.parametrize("name", ["c4", "c8", "d4"])
def test_the_papers_sum_is_equivariant_with_our_relative_elements_and_not_as_printed(name, contrast, generator):
    # Equation 16 as printed has the relative element h^-1 (h~^-1 k), which is not invariant.
    group = parse(name)
    options = {"heads": 1, "head_channels": 4, "window": 3}
    maps = torch.randn(2, 3, group.order, 5, 5, generator=generator)
    errors = {}
    for mode in ("paper", "printed"):
        layer = contrast(GroupSelfAttention(group, 3, 3, mode=mode, **options), gain=4.0)
        errors[mode] = equivariance_error(layer, maps, group, "regular image", input="regular image").worst_exact
    assert errors["paper"] < 1e-5
    assert errors["printed"] > 1e-2
