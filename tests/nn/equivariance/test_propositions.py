"""The paper's propositions, as far as numbers can show them: with which transformations attention commutes."""

import pytest
import torch

from unpose.groups import parse
from unpose.nn import GroupSelfAttention, HarmonicEncoding, LiftingSelfAttention, group_attention, position_table
from unpose.nn.functional.positions import inverse_elements, relative_elements

HEIGHT, WIDTH = 5, 7


@pytest.fixture
def maps(generator):
    """Queries, keys and values of two heads on one group element, far from uniform."""
    return 2 * torch.randn(3, 1, 2, 1, HEIGHT, WIDTH, 4, generator=generator, dtype=torch.float64)


@pytest.fixture
def everywhere(generator):
    """A relative encoding for all offsets of the image, with no symmetry of its own."""
    return torch.randn(2, 1, 1, 2 * HEIGHT - 1, 2 * WIDTH - 1, 4, generator=generator, dtype=torch.float64)


def permuted(maps, order):
    return maps.flatten(-3, -2)[..., order, :].unflatten(-2, (HEIGHT, WIDTH))


def attend(maps, position):
    return group_attention(*maps, position)


def differs(a, b):
    return float(((a - b).norm() / b.norm()).detach())


def test_4_1_without_positions_attention_commutes_with_permutations(maps, everywhere, generator):
    order = torch.randperm(HEIGHT * WIDTH, generator=generator)
    nowhere = torch.zeros_like(everywhere)
    assert differs(attend(permuted(maps, order), nowhere), permuted(attend(maps, nowhere), order)) < 1e-12
    # constant encodings are no positions either
    constant = everywhere[:, :, :, :1, :1].expand_as(everywhere)
    assert differs(attend(permuted(maps, order), constant), permuted(attend(maps, constant), order)) < 1e-12


def test_4_1_only_global_attention_does(maps, everywhere, generator):
    order = torch.randperm(HEIGHT * WIDTH, generator=generator)
    near = torch.zeros_like(everywhere[:, :, :, :3, :3])
    assert differs(attend(permuted(maps, order), near), permuted(attend(maps, near), order)) > 1e-2


def test_4_2_an_absolute_encoding_commutes_with_nothing(maps, everywhere, generator):
    order = torch.randperm(HEIGHT * WIDTH, generator=generator)
    place = torch.randn(1, 2, 1, HEIGHT, WIDTH, 4, generator=generator, dtype=torch.float64)
    nowhere = torch.zeros_like(everywhere)

    def absolute(maps):
        query, key, value = maps
        return group_attention(query + place, key + place, value, nowhere)

    assert differs(absolute(permuted(maps, order)), permuted(absolute(maps), order)) > 1e-2
    assert differs(absolute(maps.roll(1, -2)), absolute(maps).roll(1, -2)) > 1e-2  # all pixels moved: no border


def test_4_3_a_relative_encoding_commutes_with_translations(generator):
    # Content that stays two pixels away from the border: its neighbourhoods of radius one never see it.
    content = torch.zeros(3, 1, 2, 1, 11, 13, 4, dtype=torch.float64)
    content[..., 4:7, 4:8, :] = 2 * torch.randn(3, 1, 2, 1, 3, 4, 4, generator=generator, dtype=torch.float64)
    position = torch.randn(2, 1, 1, 3, 3, 4, generator=generator, dtype=torch.float64)
    shifted = content.roll((-2, 3), (-3, -2))
    inner = (..., slice(1, -1), slice(1, -1), slice(None))
    result = attend(content, position).roll((-2, 3), (-3, -2))
    assert differs(attend(shifted, position)[inner], result[inner]) < 1e-12


def test_4_3_and_with_no_permutation_beyond(maps, everywhere, generator):
    order = torch.randperm(HEIGHT * WIDTH, generator=generator)
    assert differs(attend(permuted(maps, order), everywhere), permuted(attend(maps, everywhere), order)) > 1e-2
    assert differs(attend(maps.flip(-2), everywhere), attend(maps, everywhere).flip(-2)) > 1e-2


@pytest.mark.parametrize("name", ["d1", "c4", "d4"])
def test_5_1_and_5_2_the_encoding_is_invariant_and_only_to_its_group(name, generator, grid):
    # Both propositions rest on L_g[rho] = rho. Here for the written-out table: moving both sides by g changes nothing.
    group = parse(name)
    relations, kinds = relative_elements(group)
    encoding = HarmonicEncoding(3, kinds, heads=2, reach=2.0).double()
    table = position_table(encoding, inverse_elements(group), relations, (5, 5))  # (heads, h, k, y, x, d)
    for g in range(group.order):
        moved = torch.empty_like(table)
        turned = grid.images(table.movedim(-1, 0), group, g).movedim(0, -1)
        moved[:, group.product[g][:, None], group.product[g][None, :]] = turned
        torch.testing.assert_close(moved, table)
    wider = {"d1": "c4", "c4": "d1", "d4": None}[name]
    if wider:
        turned = grid.images(table.movedim(-1, 0), parse(wider), 1).movedim(0, -1)
        rows = group.product
        closest = min(
            differs(turned, table[:, rows[a][:, None], rows[b][None, :]])
            for a in range(group.order)
            for b in range(group.order)
        )
        assert closest > 1e-2


@pytest.mark.parametrize("mode", ["relative", "paper"])
def test_5_2_attention_on_a_group_is_not_equivariant_to_a_larger_one(mode, contrast, grid, generator):
    # Unique equivariance: a layer for half turns commutes with half turns and not with quarter turns.
    group = parse("c2")
    layer = contrast(GroupSelfAttention(group, 3, 3, heads=2, head_channels=4, window=3, mode=mode).double(), gain=4.0)
    maps = torch.randn(1, 3, 2, 6, 6, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        result = layer(maps)
        assert differs(layer(grid.maps(maps, group, 1)), grid.maps(result, group, 1)) < 1e-12
        quarter = layer(maps.rot90(1, (-2, -1)))
        for swap in ([0, 1], [1, 0]):
            assert differs(quarter, result.rot90(1, (-2, -1))[:, :, swap]) > 1e-2


def test_5_1_lifting_without_a_lifted_encoding_is_blind_to_orientation(contrast, generator):
    # An encoding that is the same for all elements makes every element see the same thing.
    layer = contrast(LiftingSelfAttention("c4", 2, 3, heads=2, head_channels=4, window=3).double())
    images = torch.randn(1, 2, 6, 5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        assert differs(layer(images)[:, :, 1], layer(images)[:, :, 0]) > 1e-2
        layer.inverses[:] = torch.eye(2)
        assert differs(layer(images)[:, :, 1], layer(images)[:, :, 0]) < 1e-12


def test_the_published_relative_element_is_not_invariant(contrast, grid, generator):
    # Equation 16 as printed asks for h^-1 (h~^-1 k). Put in place of ours, the same layer loses its equivariance.
    group = parse("d4")
    layer = contrast(
        GroupSelfAttention(group, 3, 3, heads=1, head_channels=4, window=3, mode="paper").double(), gain=4.0
    )
    maps = torch.randn(1, 3, 8, 5, 5, generator=generator, dtype=torch.float64)
    inverse, product = group.inverse, group.product
    printed = product[inverse][:, product[inverse]]  # (h, h~, k)
    with torch.no_grad():
        assert differs(layer(grid.maps(maps, group, 1)), grid.maps(layer(maps), group, 1)) < 1e-12
        layer.relations = printed
        errors = [differs(layer(grid.maps(maps, group, g)), grid.maps(layer(maps), group, g)) for g in range(1, 8)]
    assert max(errors) > 1e-2
