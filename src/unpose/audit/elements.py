"""The transformations that an audit applies: elements of a group, and one control outside the group."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unpose.groups import (
    NO_ELEMENT,
    FiniteGroup,
    Group,
    LieGroup,
    area_change,
    as_quarter_turns,
    dihedral,
    inverse,
    parse,
    parse_continuous,
    reflection,
    rotation,
    transform,
)

_SAME = 1e-9
"""Two poses are equal if their entries differ by less than this."""


@dataclass(frozen=True)
class Element:
    """One transformation of the plane, and the permutations of a group axis that may go with it.

    ``permutations`` are candidate permutations of the group axis: one for a group element, all possible ones for a
    control, whose error is the smallest over them. An input is permuted by the first. Entry i of a permutation is the
    index that new entry i is read from, or :data:`~unpose.groups.NO_ELEMENT` if no element maps there. Continuous
    groups have no permutations.
    """

    name: str
    pose: Tensor | None  # (3, 3) in float64; None swaps the quadrants of the image
    permutations: tuple[Tensor, ...] = ()

    @cached_property
    def quarter_turns(self) -> tuple[int, bool] | None:
        """(number of quarter turns, whether a mirror comes first), or None if the pose is not made of these."""
        return None if self.pose is None else as_quarter_turns(self.pose)

    @property
    def is_exact(self) -> bool:
        """Whether it permutes pixels without interpolation: quarter turns, mirrors, and the swap of quadrants."""
        return self.pose is None or self.quarter_turns is not None

    def preserves(self, frame: tuple[int, int]) -> bool:
        """Whether it is exact and preserves the (height, width) of a frame."""
        return self.is_exact and (frame[0] == frame[1] or self.quarter_turns is None or self.quarter_turns[0] % 2 == 0)


def plane_group(name: str | Group) -> Group:
    """The group of the plane with this name; groups of space are refused."""
    group = parse(name)
    return group if isinstance(group, FiniteGroup) else parse_continuous(group)


def order_of(group: Group) -> int:
    """Number of elements of a finite group; 0 for a continuous one."""
    return len(group) if isinstance(group, FiniteGroup) else 0


def elements_of(group: Group, frame: tuple[int, int], count: int, generator: torch.Generator) -> list[Element]:
    """All elements of a finite group, or the exact ones that preserve the frame plus ``count`` random ones.

    Random elements of a continuous group rotate by any angle, shift by up to an eighth of the frame's smaller side,
    scale by up to 1.25 and stretch by up to 1.2; a perspective tilt changes the scale at the edge by at most a tenth.
    """
    if isinstance(group, FiniteGroup):
        return finite_elements(group)
    side = min(frame)
    drawn = group.random(
        count, generator=generator, max_shift=side / 8, max_scale=1.25, max_tilt=0.2 / side, dtype=torch.float64
    )
    fits = [element for element in exact_elements(group) if element.preserves(frame)]
    return [*fits, *(Element(_name(pose), pose) for pose in drawn.cpu())]


def exact_elements(group: Group) -> list[Element]:
    """The elements of a group that permute pixels without interpolation: its quarter turns and mirrors."""
    if isinstance(group, FiniteGroup):
        return [element for element in finite_elements(group) if element.is_exact]
    return [Element(_name(pose), pose) for pose in dihedral(4).elements if _contains(group, pose)]


def control_for(group: Group) -> Element:
    """The control: the first of the following transformations that is not in the group.

    They are the mirror, rotations by 180, 90, 45, 22.5, ... degrees, a stretch of x against y by 1.3, and a swap of
    quadrants. On a group axis every left multiplication is a candidate and, if the control normalises the group, every
    one of them after the conjugation by the control.
    """
    turns = [rotation(torch.tensor(math.pi / 2**halvings, dtype=torch.float64)) for halvings in range(10)]
    turns[0], turns[1] = turns[0].round(), turns[1].round()  # half and quarter turns are exact
    stretch = torch.diag(torch.tensor([1.3**0.5, 1.3**-0.5, 1.0], dtype=torch.float64))
    for pose in (reflection(torch.float64), *turns, stretch):
        if not _contains(group, pose):
            return Element(_name(pose), pose, _candidate_permutations(group, pose))
    return Element("quadrants swapped", None, _candidate_permutations(group, torch.eye(3, dtype=torch.float64)))


def content_radius(elements: list[Element], frame: tuple[int, int]) -> float:
    """The radius in pixels of the largest centred disc that no element moves out of the frame."""
    poses = torch.stack([e.pose for e in elements if e.pose is not None and not e.is_exact])
    angle = torch.arange(64, dtype=torch.float64) * (2 * math.pi / 64)
    circle = torch.stack([angle.cos(), angle.sin()], dim=-1)  # (64, 2)
    height, width = frame
    largest = min(frame) / 2
    for percent in range(100, 0, -2):
        radius = largest * percent / 100
        moved = transform(poses, radius * circle)  # (k, 64, 2)
        slack = 1e-6 * largest  # a rotated disc touches the frame
        if (moved[..., 0].abs() <= width / 2 + slack).all() and (moved[..., 1].abs() <= height / 2 + slack).all():
            break
    if radius < 2:
        raise ValueError(
            f"the elements move all but a disc of {radius:.1f} pixels out of an image of {height} x {width}; "
            "give larger images or a group with smaller scales"
        )
    return radius


def finite_elements(group: FiniteGroup) -> list[Element]:
    """All elements of a finite group, in its order."""
    rows = zip(group.elements, group.product, strict=True)
    return [Element(_name(pose), pose, (_source_indices(row),)) for pose, row in rows]


def _source_indices(row: Tensor) -> Tensor:
    """Invert row a of the product table, which maps b to ab: the index that each new entry is read from."""
    source = torch.full_like(row, NO_ELEMENT)
    stays = row != NO_ELEMENT
    source[row[stays]] = torch.arange(len(row))[stays]
    return source


def _candidate_permutations(group: Group, pose: Tensor) -> tuple[Tensor, ...]:
    if not isinstance(group, FiniteGroup):
        return ()
    rows = list(group.product)
    conjugate = [_index(group, pose @ element @ inverse(pose)) for element in group.elements]
    if NO_ELEMENT not in conjugate:
        rows = [row[torch.tensor(conjugate)] for row in rows] + rows
    return tuple(_source_indices(row) for row in rows)


def _index(group: FiniteGroup, pose: Tensor) -> int:
    distances = (group.elements - pose).abs().amax((1, 2)).tolist()
    return next((i for i, distance in enumerate(distances) if distance < _SAME), NO_ELEMENT)


def _contains(group: Group, pose: Tensor) -> bool:
    if isinstance(group, LieGroup):
        return bool(group.contains(pose))
    return _index(group, pose) != NO_ELEMENT


def _name(pose: Tensor) -> str:
    """Describe a pose in words, in the order in which its parts are applied."""
    pose = pose / pose[2, 2]
    parts = ["mirror"] if area_change(pose) < 0 else []
    linear = pose[:2, :2] @ reflection(torch.float64)[:2, :2] if parts else pose[:2, :2]
    long, short = torch.linalg.svdvals(linear).tolist()
    degrees = math.degrees(math.atan2(linear[0, 1] - linear[1, 0], linear[0, 0] + linear[1, 1])) % 360
    if long / short > 1 + _SAME:
        parts.append(f"stretch {long / short:.3g}")
    if abs(math.sqrt(long * short) - 1) > _SAME:
        parts.append(f"scale {math.sqrt(long * short):.3g}")
    if min(degrees, 360 - degrees) > 1e-6:
        parts.append(f"turn {degrees:.4g}")
    if pose[:2, 2].abs().max() > _SAME:
        parts.append("shift ({:+.1f}, {:+.1f})".format(*pose[:2, 2].tolist()))
    if pose[2, :2].abs().max() > _SAME:
        parts.append("tilt")
    return ", ".join(parts) or "identity"
