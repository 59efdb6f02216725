"""How elements act outside of plane images: on point clouds, on contours and on images of the sphere.

Each world declares its group elements, its control and its output kinds here, and nothing else knows about them;
:func:`unpose.audit.equivariance_error` and :func:`unpose.audit.assert_equivariant` take the name of a world as
``input``.

=========== ==================== ========================== ================================ ==========================
input       tensor               groups                     outputs                          control
=========== ==================== ========================== ================================ ==========================
"points"    (n, k, d), d = 2, 3  so3, o3, se3, e3, so2, ... "invariant", "points", "vectors" stretch along x by 1.3
"contour"   (n, k) complex       so2, so2+mirror, cN, dN    "invariant", "contour"           stretch along x by 1.3
"sphere"    (n, c, h, w)         so3                        "invariant", "sphere"            rows moved by a quarter
=========== ==================== ========================== ================================ ==========================

Points are permuted, and contours begin at other points, along with every second element.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.groups import FiniteGroup, LieGroup, inverse, parse, transform
from unpose.sphere import rotate

OUTPUTS = {
    "points": ("invariant", "points", "vectors"),
    "contour": ("invariant", "contour"),
    "sphere": ("invariant", "sphere"),
}
"""The worlds, and how their outputs may transform."""


@dataclass(frozen=True)
class WorldElement:
    """One transformation of a world: ``act(tensor, kind)``, and for what needs interpolation also ``undo``."""

    name: str
    act: Callable[[Tensor, str], Tensor]
    undo: Callable[[Tensor, str], Tensor] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether it needs no interpolation."""
        return self.undo is None


def check_world(inputs: Tensor, world: str, output: str) -> None:
    """Raise a ValueError unless inputs and the kind of the output fit the world."""
    if output not in OUTPUTS[world]:
        known = ", ".join(map(repr, OUTPUTS[world]))
        raise ValueError(f"the output of a function on {world!r} must be one of {known}, got {output!r}")
    shapes = {"points": (3, "(n, k, 2) or (n, k, 3)"), "contour": (2, "(n, k), complex"), "sphere": (4, "(n, c, h, w)")}
    ndim, shape = shapes[world]
    fits = inputs.ndim == ndim and (world != "points" or inputs.shape[2] in (2, 3))
    if not fits or inputs.is_complex() != (world == "contour"):
        raise ValueError(f"inputs of kind {world!r} must be {shape}, got {inputs.dtype} {tuple(inputs.shape)}")
    finite = torch.view_as_real(inputs) if inputs.is_complex() else inputs
    if len(inputs) < 2 or not finite.isfinite().all() or not (inputs != inputs[:1]).any():
        raise ValueError("at least two different inputs without NaN are needed")


def world_elements(
    inputs: Tensor, world: str, group: str | LieGroup | FiniteGroup, count: int, seed: int
) -> tuple[str, list[WorldElement], WorldElement]:
    """The name of the group, the identity with ``count`` elements, and the control."""
    parsed = parse(group)
    generator = torch.Generator().manual_seed(seed)
    identity = WorldElement("identity", lambda tensor, kind: tensor)
    makers = {"points": _point_elements, "contour": _contour_elements, "sphere": _sphere_elements}
    elements, control = makers[world](inputs, parsed, count, generator)
    return parsed.name, [identity, *elements], control


def _draw(group: LieGroup | FiniteGroup, count: int, generator: torch.Generator, size: float) -> Tensor:
    if isinstance(group, FiniteGroup):
        return group.elements[torch.randint(len(group), (count,), generator=generator)]
    return group.random(count, generator=generator, max_shift=size, dtype=torch.float64)


def _point_elements(
    inputs: Tensor, group: LieGroup | FiniteGroup, count: int, generator: torch.Generator
) -> tuple[list[WorldElement], WorldElement]:
    n_points, d = inputs.shape[1:]
    if (group.ndim if isinstance(group, LieGroup) else 2) != d:
        raise ValueError(f"points with {d} coordinates need a group of as many dimensions, got {group}")
    elements = []
    for k, pose in enumerate(_draw(group, count, generator, float(inputs.std()))):
        order = torch.randperm(n_points, generator=generator) if k % 2 else torch.arange(n_points)
        elements.append(WorldElement(f"{_angle(pose)}{', permuted' if k % 2 else ''}", _point_action(pose, order)))
    stretch = torch.diag(torch.tensor([1.3] + [1.0] * d, dtype=torch.float64))
    return elements, WorldElement("stretch of x by 1.3", _point_action(stretch, torch.arange(n_points)))


def _point_action(pose: Tensor, order: Tensor) -> Callable[[Tensor, str], Tensor]:
    def act(tensor: Tensor, kind: str) -> Tensor:
        if kind == "invariant":
            return tensor
        matrix = pose.to(tensor)
        if kind == "vectors":
            return tensor @ matrix[:-1, :-1].mT
        return transform(matrix, tensor)[:, order.to(tensor.device)]

    return act


def _contour_elements(
    inputs: Tensor, group: LieGroup | FiniteGroup, count: int, generator: torch.Generator
) -> tuple[list[WorldElement], WorldElement]:
    if isinstance(group, LieGroup) and group.kind != "so2":
        raise ValueError(f"contours are audited under so2, so2+mirror and finite groups, got {group}")
    elements = []
    for k, pose in enumerate(_draw(group, count, generator, 0.0)):
        start = int(torch.randint(inputs.shape[1], (1,), generator=generator)) if k % 2 else 0
        elements.append(WorldElement(f"{_angle(pose)}, start {start}", _contour_action(pose, start)))
    stretch = torch.diag(torch.tensor([1.3, 1.0, 1.0], dtype=torch.float64))
    return elements, WorldElement("stretch of x by 1.3", _contour_action(stretch, 0))


def _contour_action(pose: Tensor, start: int) -> Callable[[Tensor, str], Tensor]:
    def act(tensor: Tensor, kind: str) -> Tensor:
        if kind == "invariant":
            return tensor
        points = torch.view_as_real(tensor) * torch.tensor([1.0, -1.0]).to(tensor.real)  # x and y, y down
        moved = (points @ pose[:2, :2].to(points).mT) * torch.tensor([1.0, -1.0]).to(points)
        curve = torch.view_as_complex(moved.contiguous())
        if torch.linalg.det(pose[:2, :2]) < 0:
            curve = curve.flip(-1)  # contours run counter-clockwise
        return curve.roll(-start, -1)

    return act


def _sphere_elements(
    inputs: Tensor, group: LieGroup | FiniteGroup, count: int, generator: torch.Generator
) -> tuple[list[WorldElement], WorldElement]:
    if not isinstance(group, LieGroup) or group.name != "so3":
        raise ValueError(f"images of the sphere are audited under so3, got {group}")
    h, w = inputs.shape[-2:]
    shifts = torch.randint(1, w, (max(1, count // 4),), generator=generator).tolist()
    elements = [WorldElement(f"longitude {360 * s / w:.0f}", _roll(s, -1)) for s in shifts]
    for pose in group.random(max(1, count - len(shifts)), generator=generator, dtype=torch.float64):
        elements.append(WorldElement(_angle(pose), _rotation(pose), _rotation(inverse(pose))))
    return elements, WorldElement("rows moved by a quarter", _roll(max(1, h // 4), -2))


def _roll(step: int, axis: int) -> Callable[[Tensor, str], Tensor]:
    return lambda tensor, kind: tensor if kind == "invariant" else tensor.roll(step, axis)


def _rotation(pose: Tensor) -> Callable[[Tensor, str], Tensor]:
    return lambda tensor, kind: tensor if kind == "invariant" else rotate(tensor, pose)


def _angle(pose: Tensor) -> str:
    """A name: the angle of the linear part in degrees, and whether it mirrors."""
    linear = pose[:-1, :-1]
    mirrored = bool(torch.linalg.det(linear) < 0)
    if mirrored:
        linear = linear @ torch.diag(torch.tensor([-1.0] + [1.0] * (len(linear) - 1), dtype=linear.dtype))
    size = float((linear - torch.eye(len(linear), dtype=linear.dtype)).norm()) / math.sqrt(8)
    return f"turn {2 * math.degrees(math.asin(min(1.0, size))):.0f}{', mirrored' if mirrored else ''}"
