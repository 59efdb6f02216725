"""Which transformations an audit applies: the elements of a group, and one control that lies outside it."""

import math
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from unpose.groups import OUTSIDE, FiniteGroup, Group, LieGroup, area_change, inverse, mirror, rotation, transform
from unpose.groups.finite import dihedral

_SAME = 1e-9
"""Entries of two poses that are closer than this are equal."""


@dataclass(frozen=True)
class Element:
    """One transformation, and how it permutes a group axis.

    ``orders`` holds, for each way it may permute a group axis, the place that each new place is read from
    (:data:`~unpose.groups.OUTSIDE` where nothing lands). An element of the group has one way. A control permutes an
    input the first way, and has all those that an equivariant function could answer with: it fails only when every one
    of them fails. Without a finite group there is none.
    """

    name: str
    pose: Tensor | None  # (3, 3) in float64; None swaps the quadrants of the frame
    orders: tuple[Tensor, ...] = ()

    @cached_property
    def quarter_turns(self) -> tuple[int, bool] | None:
        """The pose as so many quarter turns after a mirror or none; None where it is not made of these."""
        if self.pose is None:
            return None
        return next((made for made, pose in _made_of_quarters().items() if _same(pose, self.pose)), None)

    @property
    def is_exact(self) -> bool:
        """Whether it only moves pixels: quarter turns, mirrors, and the swap of quadrants."""
        return self.pose is None or self.quarter_turns is not None

    def keeps(self, frame: tuple[int, int]) -> bool:
        """Whether it is exact and leaves height and width of a frame what they are."""
        return self.is_exact and (frame[0] == frame[1] or self.quarter_turns is None or self.quarter_turns[0] % 2 == 0)


@cache
def _made_of_quarters() -> dict[tuple[int, bool], Tensor]:
    square = dihedral(4).elements  # the turns, then each after the mirror
    return {(turns, mirrored): square[turns + 4 * mirrored] for mirrored in (False, True) for turns in range(4)}


def elements_of(group: Group, frame: tuple[int, int], count: int, generator: torch.Generator) -> list[Element]:
    """All elements of a finite group; of a continuous one those that only move pixels in the frame, and some drawn.

    ``count`` are drawn. Their turns span the circle, shifts an eighth of the frame's smaller side either way, scales
    1.25 either way, stretches 1.2; a tilt changes the scale by at most a tenth at the frame's edge.
    """
    if isinstance(group, FiniteGroup):
        return _all(group)
    side = min(frame)
    drawn = group.random(
        count, generator=generator, max_shift=side / 8, max_scale=1.25, max_tilt=0.2 / side, dtype=torch.float64
    )
    fits = [element for element in exact_elements(group) if element.keeps(frame)]
    return [*fits, *(Element(_name(pose), pose) for pose in drawn.cpu())]


def exact_elements(group: Group) -> list[Element]:
    """The elements that only move pixels; of a continuous group, those of its quarter turns and mirrors it holds."""
    if isinstance(group, FiniteGroup):
        return [element for element in _all(group) if element.is_exact]
    return [Element(_name(pose), pose) for pose in dihedral(4).elements if _contains(group, pose)]


def control_for(group: Group) -> Element:
    """A transformation outside the group: the first of these that the group does not hold.

    The mirror; turns by 180, 90, 45, 22.5, ... degrees; a stretch by 1.3 of x against y; swapped quadrants. Where the
    control meets a group axis, every element and, if the control maps the group onto itself, its conjugation are tried.
    """
    turns = [_turn(math.pi / 2**halvings) for halvings in range(10)]
    turns[0], turns[1] = turns[0].round(), turns[1].round()  # half and quarter turns are exact
    stretch = torch.diag(torch.tensor([1.3**0.5, 1.3**-0.5, 1.0], dtype=torch.float64))
    for pose in (mirror(torch.float64), *turns, stretch):
        if not _contains(group, pose):
            return Element(_name(pose), pose, _answers(group, pose))
    return Element("quadrants swapped", None, _answers(group, torch.eye(3, dtype=torch.float64)))


def content_radius(elements: list[Element], frame: tuple[int, int]) -> float:
    """The largest radius of a disc about the centre that no element pushes out of the frame, in pixels."""
    poses = torch.stack([e.pose for e in elements if e.pose is not None and not e.is_exact])
    angle = torch.arange(64, dtype=torch.float64) * (2 * math.pi / 64)
    circle = torch.stack([angle.cos(), angle.sin()], dim=-1)  # (64, 2)
    height, width = frame
    room = min(frame) / 2
    for percent in range(100, 0, -2):
        radius = room * percent / 100
        moved = transform(poses, radius * circle)  # (k, 64, 2)
        slack = 1e-6 * room  # a turned disc touches the frame
        if (moved[..., 0].abs() <= width / 2 + slack).all() and (moved[..., 1].abs() <= height / 2 + slack).all():
            break
    if radius < 2:
        raise ValueError(
            f"the elements push all but a disc of {radius:.1f} pixels out of a frame of {height} x {width}; "
            "give larger images or a group with smaller scales"
        )
    return radius


def _all(group: FiniteGroup) -> list[Element]:
    return [Element(_name(pose), pose, (_order(row),)) for pose, row in zip(group.elements, group.product, strict=True)]


def _order(row: Tensor) -> Tensor:
    """Row a of the product table (place b goes to ab) -> the place that each place is read from."""
    places = torch.full_like(row, OUTSIDE)
    stays = row != OUTSIDE
    places[row[stays]] = torch.arange(len(row))[stays]
    return places


def _answers(group: Group, pose: Tensor) -> tuple[Tensor, ...]:
    if not isinstance(group, FiniteGroup):
        return ()
    rows = list(group.product)
    conjugate = [_index(group, pose @ element @ inverse(pose)) for element in group.elements]
    if OUTSIDE not in conjugate:
        rows = [row[torch.tensor(conjugate)] for row in rows] + rows
    return tuple(_order(row) for row in rows)


def _index(group: FiniteGroup, pose: Tensor) -> int:
    return next((i for i, element in enumerate(group.elements) if _same(element, pose)), OUTSIDE)


def _contains(group: Group, pose: Tensor) -> bool:
    if isinstance(group, LieGroup):
        return bool(group.contains(pose))
    return _index(group, pose) != OUTSIDE


def _same(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() < _SAME)


def _turn(angle: float) -> Tensor:
    return rotation(torch.tensor(angle, dtype=torch.float64))


def _name(pose: Tensor) -> str:
    """A pose in words: what happens first stands first."""
    pose = pose / pose[2, 2]
    parts = ["mirror"] if area_change(pose) < 0 else []
    linear = pose[:2, :2] @ mirror(torch.float64)[:2, :2] if parts else pose[:2, :2]
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
