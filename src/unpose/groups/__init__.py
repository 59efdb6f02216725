"""Which transformations: poses as plain 3x3 matrices, and the groups that say which matrices are meant.

Get a group by its name with :func:`parse`: continuous ones such as ``"se2"`` or ``"similarity+mirror"``, finite ones
such as ``"c8"`` or ``"p4m"``. Files, by what you want to change:

================= ===================================================================================================
``continuous.py`` the continuous groups; declare a new one here, nothing else changes
``lie.py``        the base class of continuous groups: exp, log, project, contains, random, what a search asks
``matrix_log.py`` the logarithm of affine and perspective poses
``finite.py``     finite groups with product tables: cyclic, dihedral, dilations
``names.py``      names of groups
``poses.py``      functions that make, invert and apply poses
================= ===================================================================================================
"""

from unpose.groups.continuous import CONTINUOUS
from unpose.groups.finite import NO_ELEMENT, FiniteGroup, as_quarter_turns, cyclic, dihedral, dilations
from unpose.groups.lie import LieGroup
from unpose.groups.names import Group, parse, parse_continuous
from unpose.groups.poses import (
    adjugate,
    area_change,
    inverse,
    reflection,
    rotation,
    scaling,
    transform,
    translation,
)

__all__ = [
    "CONTINUOUS",
    "NO_ELEMENT",
    "FiniteGroup",
    "Group",
    "LieGroup",
    "adjugate",
    "area_change",
    "as_quarter_turns",
    "cyclic",
    "dihedral",
    "dilations",
    "inverse",
    "parse",
    "parse_continuous",
    "reflection",
    "rotation",
    "scaling",
    "transform",
    "translation",
]
