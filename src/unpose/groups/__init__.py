"""Which transformations: poses as plain matrices, and the groups that say which matrices are meant."""

from unpose.groups.finite import OUTSIDE, FiniteGroup
from unpose.groups.lie import LieGroup
from unpose.groups.names import Group, parse, parse_continuous
from unpose.groups.poses import (
    adjugate,
    area_change,
    inverse,
    mirror,
    rotation,
    scaling,
    transform,
    translation,
)

__all__ = [
    "OUTSIDE",
    "FiniteGroup",
    "Group",
    "LieGroup",
    "adjugate",
    "area_change",
    "inverse",
    "mirror",
    "parse",
    "parse_continuous",
    "rotation",
    "scaling",
    "transform",
    "translation",
]
