"""Names of groups round-trip; the error for an unknown name lists the known ones."""

import pytest

from unpose.groups import parse, parse_continuous

pytestmark = pytest.mark.laws

NAMES = [
    "translation",
    "so2",
    "se2",
    "similarity",
    "affine",
    "perspective",
    "so2+mirror",
    "se2+mirror",
    "perspective+mirror",
    "c1",
    "c12",
    "d1",
    "d7",
    "p4",
    "p4m",
    "so3",
    "o3",
    "se3",
    "e3",
    "dilations(3)",
    "dilations(4, 1.25)",
    "dilations(3, 1.41421356)",
    "dilations(2, 1e+20)",
]


@pytest.mark.parametrize("name", NAMES)
def test_repr_round_trips(name):
    group = parse(name)
    assert parse(repr(group)) == group
    assert parse(group) is group
    assert parse(name.upper()) == group


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
