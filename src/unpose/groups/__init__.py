"""Which transformations: poses as plain 3x3 matrices, and the groups that say which matrices are meant.

Get a group by its name with :func:`parse`: continuous ones such as ``"se2"`` or ``"similarity+mirror"``, finite ones
such as ``"c8"`` or ``"p4m"``, and ``"so3"``, ``"o3"``, ``"se3"``, ``"e3"`` for points in space. Files, by what you want
to change:

================= ===================================================================================================
``continuous.py`` the continuous groups; declare a new one here, nothing else changes
``lie.py``        the base class of continuous groups: exp, log, project, contains, random, what a search asks
``matrix_log.py`` the logarithm of affine and perspective poses
``space.py``      the groups of space, whose poses are 4x4: so3, o3, se3, e3
``finite.py``     finite groups with product tables: cyclic, dihedral, dilations
``haar.py``       samples by the Haar measure, coordinates by polar factors
``irreps.py``     irreducible representations and the Fourier basis of finite groups
``names.py``      names of groups
``poses.py``      functions that make, invert and apply poses
================= ===================================================================================================
"""

from unpose.groups.continuous import CONTINUOUS
from unpose.groups.finite import NO_ELEMENT, FiniteGroup, as_quarter_turns, cyclic, dihedral, dilations
from unpose.groups.haar import haar_samples, polar_coordinates
from unpose.groups.irreps import Irreps, fourier_basis, irreducible_representations
from unpose.groups.lie import LieGroup
from unpose.groups.names import Group, parse, parse_affine, parse_continuous
from unpose.groups.poses import (
    adjugate,
    area_change,
    inverse,
    pose_parts,
    reflection,
    rotation,
    scaling,
    transform,
    translation,
)
from unpose.groups.space import SPACE, SpaceGroup

__all__ = [
    "CONTINUOUS",
    "NO_ELEMENT",
    "SPACE",
    "FiniteGroup",
    "Group",
    "Irreps",
    "LieGroup",
    "SpaceGroup",
    "adjugate",
    "area_change",
    "as_quarter_turns",
    "cyclic",
    "dihedral",
    "dilations",
    "fourier_basis",
    "haar_samples",
    "inverse",
    "irreducible_representations",
    "parse",
    "parse_affine",
    "parse_continuous",
    "polar_coordinates",
    "pose_parts",
    "reflection",
    "rotation",
    "scaling",
    "transform",
    "translation",
]
