"""Names of groups: ``parse("se2+mirror")``, ``parse("p4m")``; ``parse(repr(group)) == group``."""

import re

from unpose.groups.finite import FiniteGroup, cyclic, dihedral, dilations
from unpose.groups.lie import LieGroup

Group = LieGroup | FiniteGroup

_CONTINUOUS = ("translation", "se2", "similarity", "affine", "perspective")
_ALIASES = {"p4": "c4", "p4m": "d4"}
_LARGEST_ORDER = 360

KNOWN = (
    f"{', '.join(_CONTINUOUS)} (each also with '+mirror'), c1, c2, ... c{_LARGEST_ORDER}, d1, d2, ... "
    f"d{_LARGEST_ORDER}, p4 (= c4), p4m (= d4), dilations(COUNT) or dilations(COUNT, RATIO)"
)


def parse(name: str | Group) -> Group:
    """The group with this name; a group comes back as it is.

    Examples
    --------
    >>> parse("se2").dim, parse("p4m").order
    (3, 8)
    >>> parse("similarity+mirror")
    similarity+mirror
    """
    if isinstance(name, LieGroup | FiniteGroup):
        return name
    if not isinstance(name, str):
        raise ValueError(f"a group is given by its name, got {name!r}; known: {KNOWN}")
    text = name.strip().lower()
    text = _ALIASES.get(text, text)
    kind, plus, rest = text.partition("+")
    if kind in _CONTINUOUS and rest == ("mirror" if plus else ""):
        return LieGroup(kind, mirrored=bool(plus))
    if (match := re.fullmatch(r"([cd])(\d+)", text)) and 1 <= int(match[2]) <= _LARGEST_ORDER:
        return cyclic(int(match[2])) if match[1] == "c" else dihedral(int(match[2]))
    if match := re.fullmatch(r"dilations\((\d+)(?:,\s*([0-9.e+-]+))?\)", text):
        return dilations(int(match[1]), *([float(match[2])] if match[2] else []))
    raise ValueError(f"unknown group {name!r}; known: {KNOWN}")


def parse_continuous(name: str | Group) -> LieGroup:
    """Like :func:`parse`, for what needs a Lie algebra."""
    group = parse(name)
    if not isinstance(group, LieGroup):
        raise ValueError(
            f"a continuous group is needed here ({', '.join(_CONTINUOUS)}, or with '+mirror'), got {group}"
        )
    return group
