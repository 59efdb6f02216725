"""The laws of every finite group, by its product table."""

import pytest
import torch

from unpose.groups import NO_ELEMENT, FiniteGroup, parse

pytestmark = pytest.mark.laws

NAMES = ["c1", "c2", "c3", "c4", "c7", "c8", "c12", "c16", "d1", "d2", "d3", "d4", "d6", "d8", "p4", "p4m"]


@pytest.fixture(params=NAMES)
def group(request):
    return parse(request.param)


def test_order(group):
    turns = int(group.name[1:])
    assert len(group) == group.order == turns * (2 if group.name[0] == "d" else 1)
    assert group.elements.shape == (group.order, 3, 3)


def test_the_table_is_matrix_multiplication(group):
    products = group.elements[:, None] @ group.elements[None, :]
    torch.testing.assert_close(group.elements[group.product], products)


def test_axioms(group):
    table, everything = group.product, torch.arange(group.order)
    assert group.is_group
    assert torch.equal(table[0], everything)
    assert torch.equal(table[:, 0], everything)
    assert (table[group.inverse, everything] == 0).all()
    assert (table[everything, group.inverse] == 0).all()
    a, b, c = torch.meshgrid(everything, everything, everything, indexing="ij")
    assert torch.equal(table[table[a, b], c], table[a, table[b, c]])


def test_the_regular_representation_multiplies_like_the_group(group):
    matrices = group.regular_representation
    products = matrices[:, None] @ matrices[None, :]
    assert torch.equal(products, matrices[group.product])
    assert torch.equal(matrices[0], torch.eye(group.order, dtype=torch.float64))
    # A permutation, and a faithful one: only the identity has fixed points.
    assert (matrices.sum(1) == 1).all()
    assert (matrices[1:].diagonal(dim1=1, dim2=2) == 0).all()


def test_which_groups_are_abelian():
    assert all(parse(name).is_abelian for name in ("c1", "c4", "c12", "d1", "d2"))
    assert not any(parse(name).is_abelian for name in ("d3", "d4", "d8"))


def test_quarter_turns_and_mirrors_are_exact():
    for name in ("c4", "c8", "c12", "d4"):
        elements = parse(name).elements
        quarter = elements[parse(name).order // (8 if name[0] == "d" else 4)]
        assert torch.equal(quarter[:2, :2], torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64))


def test_any_set_of_matrices_with_a_closed_product_is_a_group():
    quarter = parse("c4").elements
    mirror_only = FiniteGroup(
        "top-bottom",
        tuple(tuple(map(tuple, m.tolist())) for m in (quarter[0], torch.diag(torch.tensor([1.0, -1.0, 1.0])))),
    )
    assert mirror_only.is_group
    assert mirror_only.inverse.tolist() == [0, 1]


def test_dilations_are_a_bounded_part_of_a_group():
    group = parse("dilations(3, 1.5)")
    torch.testing.assert_close(group.elements[:, 0, 0], torch.tensor([1.0, 1.5, 2.25], dtype=torch.float64))
    assert not group.is_group
    assert group.product.tolist() == [[0, 1, 2], [1, 2, NO_ELEMENT], [2, NO_ELEMENT, NO_ELEMENT]]
    assert group.inverse.tolist() == [0, NO_ELEMENT, NO_ELEMENT]
    assert parse("dilations(1)").is_group
    # the shift by one scale drops what leaves the set
    assert group.regular_representation[1].sum() == 2


@pytest.mark.parametrize(("count", "ratio"), [(60, 1.5), (7, 2), (400, 1.5), (1000, 2)])
def test_products_of_large_dilations_are_found(count, ratio):
    step = torch.arange(count)
    expected = torch.where(step[:, None] + step < count, step[:, None] + step, -1)
    assert torch.equal(parse(f"dilations({count}, {ratio})").product, expected)


@pytest.mark.parametrize("bad", ["dilations(0)", "dilations(3, 1)", "dilations(3, 0.5)"])
def test_dilations_refuse_invalid_counts_and_ratios(bad):
    with pytest.raises(ValueError, match="scale"):
        parse(bad)


def test_the_table_of_a_large_group_is_index_arithmetic():
    group = parse("d120")
    turn, other = torch.meshgrid(torch.arange(120), torch.arange(120), indexing="ij")
    assert torch.equal(group.product[:120, :120], (turn + other) % 120)
    assert torch.equal(group.product[120:, 120:] < 120, torch.ones(120, 120, dtype=bool))  # two mirrors are a turn


def test_tables_hold_values_even_if_the_default_device_is_meta():
    with torch.device("meta"):
        group = parse("d3")
        assert group.is_group
        assert group.regular_representation.device == group.product.device == torch.device("cpu")
