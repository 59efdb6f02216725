"""What is special to single finite groups; test_contract.py has what every group must be."""

import pytest
import torch

from unpose.groups import NO_ELEMENT, FiniteGroup, parse

pytestmark = pytest.mark.laws


@pytest.mark.parametrize("turns", [1, 2, 3, 8, 12])
def test_orders_are_those_of_the_names(turns):
    assert (parse(f"c{turns}").order, parse(f"d{turns}").order) == (turns, 2 * turns)


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
