"""Groups by name: ``parse("se2+mirror")``, ``parse("p4m")``; ``parse(repr(group)) == group``."""

import re

from unpose.groups.continuous import CONTINUOUS
from unpose.groups.finite import FiniteGroup, cyclic, dihedral, dilations
from unpose.groups.lie import LieGroup
from unpose.groups.space import SPACE

Group = LieGroup | FiniteGroup
"""A continuous or a finite group: what :func:`parse` returns."""

_ALIASES = {"p4": "c4", "p4m": "d4", "o3": "so3+mirror", "e3": "se3+mirror"}
_LARGEST_ORDER = 360

_KNOWN = (
    f"{', '.join(CONTINUOUS)} (each also with '+mirror'), c1, c2, ... c{_LARGEST_ORDER}, d1, d2, ... "
    f"d{_LARGEST_ORDER}, p4 (= c4), p4m (= d4), dilations(COUNT) or dilations(COUNT, RATIO), and in space so3, se3, o3 "
    f"(= so3+mirror), e3 (= se3+mirror)"
)


def parse(name: str | Group) -> Group:
    """The group with this name.

    Parameters
    ----------
    name : str or Group
        Name of a continuous group, optionally followed by ``+mirror``, or of a finite group. Upper and lower case are
        the same. A group is returned as it is.

    Returns
    -------
    LieGroup or FiniteGroup

    Examples
    --------
    >>> import torch
    >>> parse("se2").dim, parse("p4m").order
    (3, 8)
    >>> parse("similarity+mirror")
    similarity+mirror
    >>> parse("se3").exp(torch.zeros(6)).shape
    torch.Size([4, 4])
    """
    if isinstance(name, LieGroup | FiniteGroup):
        return name
    if not isinstance(name, str):
        raise ValueError(f"a group is given by its name, got {name!r}; known: {_KNOWN}")
    text = name.strip().lower()
    text = _ALIASES.get(text, text)
    kind, plus, rest = text.partition("+")
    continuous = CONTINUOUS | SPACE
    if kind in continuous and rest == ("mirror" if plus else ""):
        return continuous[kind](mirrored=bool(plus))
    if (match := re.fullmatch(r"([cd])(\d+)", text)) and 1 <= int(match[2]) <= _LARGEST_ORDER:
        return cyclic(int(match[2])) if match[1] == "c" else dihedral(int(match[2]))
    if match := re.fullmatch(r"dilations\((\d+)(?:,\s*([0-9.e+-]+))?\)", text):
        return dilations(int(match[1]), *([float(match[2])] if match[2] else []))
    raise ValueError(f"unknown group {name!r}; known: {_KNOWN}")


def parse_continuous(name: str | Group) -> LieGroup:
    """The continuous group of the plane with this name; finite groups and groups of space are refused.

    Parameters
    ----------
    name : str or Group
        As for :func:`parse`.

    Returns
    -------
    LieGroup

    Examples
    --------
    >>> parse_continuous("so2").generators.shape
    torch.Size([1, 3, 3])
    """
    group = parse(name)
    if not isinstance(group, LieGroup):
        raise ValueError(f"a continuous group is needed here ({', '.join(CONTINUOUS)}, or with '+mirror'), got {group}")
    if group.ndim != 2:
        raise ValueError(
            f"a group of the plane is needed here ({', '.join(CONTINUOUS)}, or with '+mirror'), got {group}, which "
            "acts on points in space"
        )
    return group


def parse_affine(name: str | Group) -> LieGroup:
    """The continuous group with this name, if its elements are shifts and linear maps; others are refused.

    Parameters
    ----------
    name : str or Group
        ``"translation"``, ``"se2"``, ``"similarity"`` or ``"affine"``, or one of them with ``"+mirror"``.

    Returns
    -------
    LieGroup

    Examples
    --------
    >>> parse_affine("similarity").dim
    4
    """
    group = parse_continuous(name)
    if group.is_projective or not group.shifts:
        raise ValueError(f"translation, se2, similarity or affine, or one with '+mirror', is needed here, got {group}")
    return group
