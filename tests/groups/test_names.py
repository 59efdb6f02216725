"""Names of groups: the error for an unknown name lists the known ones."""

import pytest

from unpose.groups import parse, parse_continuous

pytestmark = pytest.mark.laws


def test_aliases():
    assert parse("p4") == parse("c4")
    assert parse("p4m") == parse("d4")
    assert parse("so3+mirror") == parse("o3")
    assert parse("se3+mirror") == parse("e3")


@pytest.mark.parametrize(
    "bad", ["", "se4", "se2+", "se2+flip", "c0", "d0", "c", "c-4", "c100000", "dilations", "+mirror"]
)
def test_unknown_names_list_the_known_ones(bad):
    with pytest.raises(ValueError, match=r"unknown group .*translation, so2, se2, similarity, affine, perspective"):
        parse(bad)


def test_what_is_neither_a_name_nor_a_group_is_refused():
    with pytest.raises(ValueError, match="by its name"):
        parse(4)


def test_parse_continuous_refuses_finite_groups_and_space():
    assert parse_continuous("se2").dim == 3
    with pytest.raises(ValueError, match="continuous group is needed"):
        parse_continuous("c4")
    with pytest.raises(ValueError, match="group of the plane is needed"):
        parse_continuous("se3")


def test_scales_that_overflow_are_refused():
    with pytest.raises(ValueError, match="overflows"):
        parse("dilations(2000)")
