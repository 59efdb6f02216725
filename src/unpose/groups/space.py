"""The groups of space: rotations and rigid motions of three-dimensional points, with and without mirrors.

Elements are plain ``(..., 4, 4)`` tensors that map points ``(x, y, z)``; they compose with ``@`` as poses of the plane
do. Axes are right-handed: a positive angle about z turns x towards y. Coordinates in the Lie algebra are the shift, if
the group shifts, and then the rotation vector: the axis times the angle in radians.

All closed forms are functions of the squared angle and have a series near zero, so that values and gradients are right
at the identity; the logarithm goes through the quaternion with its largest entry, so that half a turn loses no digits.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from unpose.groups.lie import Coordinate, LieGroup, assemble


def _unit(row: int, column: int, sign: int = 0) -> tuple[tuple[float, ...], ...]:
    """The 4x4 matrix with a one at (row, column) and ``sign`` at (column, row)."""
    entries = [[0.0] * 4 for _ in range(4)]
    entries[row][column] = 1.0
    if sign:
        entries[column][row] = float(sign)
    return tuple(map(tuple, entries))


SHIFTS = tuple(Coordinate(name, _unit(axis, 3), power=0) for axis, name in enumerate("xyz"))
TURNS = (
    Coordinate("turn x", _unit(2, 1, -1), power=1),
    Coordinate("turn y", _unit(0, 2, -1), power=1),
    Coordinate("turn z", _unit(1, 0, -1), power=1),
)


class SpaceGroup(LieGroup):
    """A group of transformations of space; made by :func:`unpose.groups.parse`.

    Parameters
    ----------
    mirrored : bool, default False
        Whether the mirror x -> -x belongs to the group too.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> parse("se3").log(parse("se3").exp(torch.tensor([4.0, -1.0, 2.0, 0.0, 0.0, 0.5])))
    tensor([ 4.0000, -1.0000,  2.0000,  0.0000,  0.0000,  0.5000])
    """

    ndim: ClassVar[int] = 3
    mirrored_name: ClassVar[str]

    @property
    def name(self) -> str:
        """What :func:`unpose.groups.parse` reads."""
        return self.mirrored_name if self.mirrored else self.kind

    @property
    def shifts(self) -> bool:
        return SHIFTS[0] in self.coordinates

    @property
    def turns(self) -> bool:
        return True

    @property
    def scales(self) -> bool:
        return False

    @property
    def deforms(self) -> bool:
        return False

    @property
    def is_projective(self) -> bool:
        return False

    def exp(self, coordinates: Tensor) -> Tensor:
        """The exponential map, in closed form and exact at zero: (..., dim) -> (..., 4, 4)."""
        self._check_coordinates(coordinates)
        turn = coordinates[..., -3:]
        square = turn.square().sum(-1)[..., None, None]
        skew = cross_matrix(turn)
        sine, versine, excess = _angle_functions(square)
        eye = torch.eye(3, dtype=turn.dtype, device=turn.device)
        linear = eye + sine * skew + versine * (skew @ skew)
        if not self.shifts:
            return assemble(linear, torch.zeros_like(linear[..., :1]))
        integral = eye + versine * skew + excess * (skew @ skew)
        return assemble(linear, integral @ coordinates[..., :3, None])

    def log(self, elements: Tensor) -> Tensor:
        """The coordinates whose ``exp`` is this element: (..., 4, 4) -> (..., dim).

        The rotation vector is at most pi long; at half a turn one of its two signs comes back. Raises ``ValueError``
        for mirrored elements, which have no logarithm.
        """
        self._check_elements(elements)
        linear = elements[..., :3, :3]
        if (_determinant(linear) <= 0).any():
            raise ValueError(f"a mirrored or singular element of {self} has no logarithm; factor the mirror out first")
        turn = _rotation_vector(linear)
        if not self.shifts:
            return turn
        skew = cross_matrix(turn)
        bend = _inverse_integral(turn.square().sum(-1))[..., None, None]
        shift = elements[..., :3, 3:]
        straight = shift - 0.5 * (skew @ shift) + bend * (skew @ (skew @ shift))
        return torch.cat([straight[..., 0], turn], dim=-1)

    def identity(self, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Tensor:
        """The pose that leaves everything where it is: (4, 4)."""
        return torch.eye(4, dtype=dtype, device=device)

    def project(self, matrices: Tensor) -> Tensor:
        """The nearest element of the group to each matrix: (..., 4, 4) -> (..., 4, 4).

        Nearest in the Frobenius norm of the linear part (orthogonal Procrustes). The shift is kept if the group shifts,
        and dropped otherwise.
        """
        self._check_elements(matrices)
        left, _, right = torch.linalg.svd(matrices[..., :3, :3])
        if not self.mirrored:
            sign = _determinant(left @ right)
            left = torch.cat([left[..., :2], left[..., 2:] * sign[..., None, None]], dim=-1)
        shift = matrices[..., :3, 3:]
        return assemble(left @ right, shift if self.shifts else torch.zeros_like(shift))

    def contains(self, matrices: Tensor, atol: float | None = None) -> Tensor:
        """Which matrices are elements of the group: (..., 4, 4) -> (...) bool.

        ``atol`` is the tolerance for each entry, by default a thousand times the machine epsilon.
        """
        self._check_elements(matrices)
        atol = 1e3 * torch.finfo(matrices.dtype).eps if atol is None else atol
        linear, eye = matrices[..., :3, :3], torch.eye(4, dtype=matrices.dtype, device=matrices.device)
        inside = torch.isfinite(matrices).all(-1).all(-1)
        inside &= ((linear @ linear.mT - eye[:3, :3]).abs() <= 2 * atol).all(-1).all(-1)
        inside &= ((matrices[..., 3, :] - eye[3]).abs() <= atol).all(-1)
        if not self.mirrored:
            inside &= _determinant(linear) > 0
        if not self.shifts:
            inside &= (matrices[..., :3, 3].abs() <= atol).all(-1)
        return inside

    def random(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        max_angle: float = math.pi,
        max_shift: float = 10.0,
        max_scale: float = 1.0,
        max_stretch: float = 1.0,
        max_tilt: float = 0.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw ``n`` elements, (n, 4, 4): rotations uniform (Haar) among those by up to ``max_angle``, uniform shifts.

        A mirrored group mirrors every element with probability one half. Elements are drawn in float64, so that the
        same seed gives the same poses in every precision. Parameters are those of
        :meth:`unpose.groups.LieGroup.random`; bounds on what a rigid motion does not do have no effect.
        """
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        if not 0 <= max_angle <= math.pi:
            raise ValueError(f"max_angle must be between 0 and pi, got {max_angle}")
        if not max_shift >= 0:
            raise ValueError(f"max_shift must be at least 0, got {max_shift}")
        drawn_on = generator.device if generator is not None else "cpu"
        unit = torch.rand(n, 7, generator=generator, dtype=torch.float64, device=drawn_on)
        height, around = 2 * unit[:, 0] - 1, 2 * math.pi * unit[:, 1]
        flat = (1 - height.square()).clamp(min=0).sqrt()
        axis = torch.stack([flat * around.cos(), flat * around.sin(), height], dim=-1)  # (n, 3), uniform on the sphere
        turn = _haar_angle(unit[:, 2], max_angle)[:, None] * axis
        linear = SO3().exp(turn)[..., :3, :3]
        if self.mirrored:
            flip = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64, device=linear.device))
            linear = torch.where((unit[:, 6] < 0.5)[:, None, None], linear @ flip, linear)
        shift = (2 * unit[:, 3:6, None] - 1) * (max_shift if self.shifts else 0.0)
        return assemble(linear, shift).to(dtype=dtype, device=device)

    def _check_elements(self, elements: Tensor) -> None:
        if elements.shape[-2:] != (4, 4):
            raise ValueError(f"poses of {self} must end in (4, 4), got shape {tuple(elements.shape)}")


class SO3(SpaceGroup):
    """Rotations about the origin; with mirrors ``o3``."""

    kind = "so3"
    mirrored_name = "o3"
    coordinates = TURNS


class SE3(SpaceGroup):
    """Rotations and shifts: the rigid motions; with mirrors ``e3``."""

    kind = "se3"
    mirrored_name = "e3"
    coordinates = (*SHIFTS, *TURNS)


SPACE: dict[str, type[SpaceGroup]] = {group.kind: group for group in (SO3, SE3)}
"""Classes of the groups of space, by name."""


def cross_matrix(vectors: Tensor) -> Tensor:
    """The matrix of the cross product with a vector: (..., 3) -> (..., 3, 3)."""
    x, y, z = vectors.unbind(-1)
    zero = torch.zeros_like(x)
    rows = ((zero, -z, y), (z, zero, -x), (-y, x, zero))
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def _angle_functions(square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """sin(a) / a, (1 - cos(a)) / a^2 and (a - sin(a)) / a^3 as functions of a^2."""
    small = square < 0.05
    safe = torch.where(small, torch.ones_like(square), square)
    angle = safe.sqrt()
    exact = (
        angle.sin() / angle,
        2 * (angle / 2).sin().square() / safe,  # without the cancellation of 1 - cos(a)
        (angle - angle.sin()) / (safe * angle),
    )
    near = torch.where(small, square, torch.zeros_like(square))
    return tuple(torch.where(small, _series(near, first), value) for first, value in enumerate(exact))  # type: ignore[return-value]


def _series(square: Tensor, first: int) -> Tensor:
    """The sum over k of (-a^2)^k / (2 k + 1 + first)!, by Horner's rule; the rest is below 1e-17 for a^2 < 0.05."""
    total = torch.zeros_like(square)
    for k in reversed(range(7)):
        total = 1 / math.factorial(2 * k + 1 + first) - square * total
    return total


def _inverse_integral(square: Tensor) -> Tensor:
    """(1 - (a/2) cot(a/2)) / a^2 as a function of a^2: the coefficient of the inverse of the integral of exp."""
    small = square < 0.05
    safe = torch.where(small, torch.ones_like(square), square)
    half = safe.sqrt() / 2
    exact = (1 - half * half.cos() / half.sin()) / safe
    total = torch.zeros_like(square)
    for coefficient in (691 / 1307674368000, 1 / 47900160, 1 / 1209600, 1 / 30240, 1 / 720, 1 / 12):  # |B_2k| / (2k)!
        total = coefficient + torch.where(small, square, torch.zeros_like(square)) * total
    return torch.where(small, total, exact)


def _rotation_vector(linear: Tensor) -> Tensor:
    """The rotation vectors, at most pi long, of rotation matrices: (..., 3, 3) -> (..., 3)."""
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(-1) for row in linear.unbind(-2))
    # 4 q q^T for the quaternion q = (w, x, y, z): every row is a multiple of q, the one of the largest entry is used.
    outer = (
        (1 + a + e + i, h - f, c - g, d - b),
        (h - f, 1 + a - e - i, b + d, c + g),
        (c - g, b + d, 1 - a + e - i, f + h),
        (d - b, c + g, f + h, 1 - a - e + i),
    )
    rows = torch.stack([torch.stack(row, dim=-1) for row in outer], dim=-2)  # (..., 4, 4)
    largest = rows.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None]
    row = rows.gather(-2, largest.expand(*largest.shape[:-1], 4))[..., 0, :]
    quaternion = row / row.norm(dim=-1, keepdim=True)
    quaternion = torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)
    cosine, vector = quaternion[..., 0], quaternion[..., 1:]  # of half the angle
    square = vector.square().sum(-1)
    small = square < 1e-3
    sine = torch.where(small, torch.ones_like(square), square).sqrt()
    exact = 2 * torch.atan2(sine, cosine) / sine
    near, series = torch.where(small, square, torch.zeros_like(square)), torch.zeros_like(square)
    for coefficient in (231 / 13312, 63 / 2816, 35 / 1152, 5 / 112, 3 / 40, 1 / 6, 1):  # arcsine
        series = coefficient + near * series
    return torch.where(small, 2 * series, exact)[..., None] * vector


def _haar_angle(unit: Tensor, largest: float) -> Tensor:
    """Angles in [0, largest] with density 1 - cos, that of uniform rotations, from uniform numbers: (n,) -> (n,)."""
    low, high = torch.zeros_like(unit), torch.full_like(unit, largest)
    wanted = unit * (largest - math.sin(largest))
    for _ in range(60):
        middle = (low + high) / 2
        above = middle - middle.sin() > wanted
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2


def _determinant(linear: Tensor) -> Tensor:
    """Determinants of (..., 3, 3) matrices, differentiable any number of times."""
    return (linear[..., 0, :] * torch.linalg.cross(linear[..., 1, :], linear[..., 2, :])).sum(-1)
