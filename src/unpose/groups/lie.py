"""The base class of the continuous groups: what all groups share, and closed forms for turns, scales and shifts.

A group says which matrices are poses. It stores nothing per element: elements are plain ``(..., 3, 3)`` tensors (see
:mod:`unpose.groups.poses` for the convention), and coordinates in the Lie algebra are ``(..., dim)`` tensors, one
entry per :class:`Coordinate` of the group. The groups themselves are declared in :mod:`unpose.groups.continuous`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unpose.groups import poses


@dataclass(frozen=True)
class Coordinate:
    """One coordinate of a Lie algebra: its generator, and what the refinement of a pose needs to know about it."""

    name: str
    generator: tuple[tuple[float, ...], ...]  # 3x3 matrix; 4x4 in space
    power: int  # a unit step moves a pixel at distance r from the centre by about r**power pixels
    prior: float = 0.0  # pull back to the start, as a share of the image's stiffness; in groups that deform only


X = Coordinate("x", ((0, 0, 1), (0, 0, 0), (0, 0, 0)), power=0)
Y = Coordinate("y", ((0, 0, 0), (0, 0, 1), (0, 0, 0)), power=0)
TURN = Coordinate("turn", ((0, 1, 0), (-1, 0, 0), (0, 0, 0)), power=1)  # counter-clockwise on screen
LOG_SCALE = Coordinate("log scale", ((1, 0, 0), (0, 1, 0), (0, 0, 0)), power=1, prior=0.02)


@dataclass(frozen=True, repr=False)
class LieGroup:
    """A group of plane transformations with a Lie algebra; made by :func:`unpose.groups.parse`.

    Parameters
    ----------
    mirrored : bool, default False
        Whether the left-right mirror belongs to the group too. ``exp`` always gives elements that do not mirror:
        the mirrored half of the group has no logarithm.

    Attributes
    ----------
    kind : str
        Name of the group without ``+mirror``.
    coordinates : tuple of Coordinate
        Coordinates of the Lie algebra, in order.

    Notes
    -----
    The methods of this class serve every group made of :data:`X`, :data:`Y`, :data:`TURN` and :data:`LOG_SCALE`. Groups
    with other coordinates override what differs.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> se2 = parse("se2")
    >>> se2.dim, se2.turns, se2.scales
    (3, True, False)
    >>> se2.log(se2.exp(torch.tensor([4.0, -1.0, 0.5])))
    tensor([ 4.0000, -1.0000,  0.5000])
    """

    mirrored: bool = False

    kind: ClassVar[str]
    ndim: ClassVar[int] = 2  # of what the group acts on
    coordinates: ClassVar[tuple[Coordinate, ...]]

    @property
    def name(self) -> str:
        """What :func:`unpose.groups.parse` reads."""
        return f"{self.kind}+mirror" if self.mirrored else self.kind

    def __repr__(self) -> str:
        return self.name

    @property
    def dim(self) -> int:
        """Dimension of the Lie algebra."""
        return len(self.coordinates)

    @property
    def shifts(self) -> bool:
        """Whether the group moves the image centre; if not, a search tries no shifts."""
        return X in self.coordinates

    @property
    def turns(self) -> bool:
        """Whether the group holds rotations; if not, a search tries no angles."""
        return TURN in self.coordinates

    @property
    def scales(self) -> bool:
        """Whether the group holds dilations; if not, a search tries no scales."""
        return LOG_SCALE in self.coordinates

    @property
    def deforms(self) -> bool:
        """Whether the group changes shapes: refinement then holds the coordinates near their start by a prior."""
        return not {X, Y, TURN, LOG_SCALE}.issuperset(self.coordinates)

    @property
    def is_isometric(self) -> bool:
        """Whether every element keeps areas and lengths."""
        return not self.scales and not self.deforms

    @property
    def is_projective(self) -> bool:
        """Whether elements are homographies, which need not keep parallel lines parallel."""
        return any(coordinate.generator[2] != (0, 0, 0) for coordinate in self.coordinates)

    @property
    def generators(self) -> Tensor:
        """Basis of the Lie algebra, (dim, 3, 3) in float64."""
        return torch.tensor([coordinate.generator for coordinate in self.coordinates], dtype=torch.float64)

    def units(self, radius: float) -> Tensor:
        """How many pixels a unit step along each coordinate moves a pixel at this distance from the centre: (dim,)."""
        return torch.tensor([radius**coordinate.power for coordinate in self.coordinates])

    @property
    def priors(self) -> Tensor:
        """Pull of each coordinate back to the start of a refinement, as a share of the image's stiffness: (dim,)."""
        return torch.tensor([coordinate.prior * self.deforms for coordinate in self.coordinates])

    def hat(self, coordinates: Tensor) -> Tensor:
        """The algebra element with these coordinates: (..., dim) -> (..., 3, 3)."""
        self._check_coordinates(coordinates)
        return torch.einsum("...d,dij->...ij", coordinates, self.generators.to(coordinates))

    def exp(self, coordinates: Tensor) -> Tensor:
        """The exponential map, in closed form and exact at zero: (..., dim) -> (..., 3, 3)."""
        self._check_coordinates(coordinates)
        x, y, turn, log_scale = (
            coordinates[..., self.coordinates.index(each)]
            if each in self.coordinates
            else torch.zeros_like(coordinates[..., 0])
            for each in (X, Y, TURN, LOG_SCALE)
        )
        linear, integral = _similarity_exp(turn, log_scale)
        return assemble(linear, integral @ torch.stack([x, y], dim=-1)[..., None])

    def log(self, elements: Tensor) -> Tensor:
        """The coordinates whose ``exp`` is this element: (..., 3, 3) -> (..., dim).

        Half a turn comes back as plus or minus pi. Raises ``ValueError`` where no real logarithm exists: for mirrored
        elements, and for affine or perspective ones that reverse two axes by different amounts.
        """
        self._check_elements(elements)
        if (poses.area_change(elements) <= 0).any():
            raise ValueError(f"a mirrored or singular element of {self} has no logarithm; factor the mirror out first")
        return self._log(elements / elements[..., 2:, 2:])

    def identity(self, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Tensor:
        """The pose that leaves everything where it is: (3, 3)."""
        return torch.eye(3, dtype=dtype, device=device)

    def inverse(self, elements: Tensor) -> Tensor:
        """The inverse elements, (..., 3, 3) -> (..., 3, 3)."""
        return poses.inverse(elements)

    def project(self, matrices: Tensor) -> Tensor:
        """The nearest element of the group to each matrix: (..., 3, 3) -> (..., 3, 3).

        Nearest in the Frobenius norm of the linear part, after division by the lower right entry. The shift is kept if
        the group shifts, and dropped otherwise. An affine or perspective matrix is already an element unless it
        mirrors or collapses the plane; then there is no nearest element (the set is open), which raises ``ValueError``.
        """
        self._check_elements(matrices)
        matrices = matrices / matrices[..., 2:, 2:]
        linear, shift = matrices[..., :2, :2], matrices[..., :2, 2:]
        nearest = self._nearest_linear(linear)
        if self.mirrored:
            flip = poses.reflection(matrices.dtype, matrices.device)[:2, :2]
            mirrored = self._nearest_linear(linear @ flip) @ flip
            nearer = (linear - mirrored).square().sum((-1, -2)) < (linear - nearest).square().sum((-1, -2))
            nearest = torch.where(nearer[..., None, None], mirrored, nearest)
        return assemble(nearest, shift if self.shifts else torch.zeros_like(shift))

    def contains(self, matrices: Tensor, atol: float | None = None) -> Tensor:
        """Which matrices are elements of the group, up to a factor: (..., 3, 3) -> (...) bool.

        ``atol`` is the tolerance for each entry, by default a thousand times the machine epsilon.
        """
        self._check_elements(matrices)
        atol = 1e3 * torch.finfo(matrices.dtype).eps if atol is None else atol
        area = poses.area_change(matrices)
        inside = torch.isfinite(matrices).all(-1).all(-1) & torch.isfinite(area) & (area.abs() > atol)
        if not self.mirrored:
            inside &= area > 0
        return inside & self._has_form(matrices / matrices[..., 2:, 2:], area, atol)

    def random(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        max_angle: float = math.pi,
        max_shift: float = 10.0,
        max_scale: float = 1.5,
        max_stretch: float = 1.2,
        max_tilt: float = 0.002,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw ``n`` elements, (n, 3, 3): uniform angle and shift, log-uniform scale, each within its bound.

        A bound on something that the group does not do has no effect. A mirrored group mirrors every element with
        probability one half. Elements are drawn on the generator's device in float64, so that the same seed gives the
        same poses in every precision.

        Parameters
        ----------
        n : int
            Number of elements.
        generator : torch.Generator, optional
            Source of randomness; torch's global one by default.
        max_angle : float, default pi
            Largest angle either way, in radians; pi is the full circle.
        max_shift : float, default 10
            Largest shift either way along x and along y, in pixels.
        max_scale : float, default 1.5
            Largest scale factor; the smallest is its inverse.
        max_stretch : float, default 1.2
            Largest ratio by which an element lengthens one axis and shortens the other.
        max_tilt : float, default 0.002
            Largest perspective entry along x and along y, in 1/pixel.
        dtype : torch.dtype, default torch.float32
            Type of the result.
        device : torch.device or str, optional
            Device of the result.
        """
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        for bound, value, least in (
            ("max_angle", max_angle, 0.0),
            ("max_shift", max_shift, 0.0),
            ("max_scale", max_scale, 1.0),
            ("max_stretch", max_stretch, 1.0),
            ("max_tilt", max_tilt, 0.0),
        ):
            if not value >= least:
                raise ValueError(f"{bound} must be at least {least}, got {value}")
        drawn_on = generator.device if generator is not None else "cpu"
        # All nine numbers are drawn for every group, so that a seed gives the same angle in each of them.
        unit = 2 * torch.rand(n, 9, generator=generator, dtype=torch.float64, device=drawn_on) - 1  # (n, 9)
        element = poses.translation(unit[:, :2] * (max_shift if self.shifts else 0.0))
        if self.turns:
            element = element @ poses.rotation(unit[:, 2] * max_angle)
        if self.scales:
            element = element @ poses.scaling(max_scale ** unit[:, 3])
        if self.deforms:
            axis = poses.rotation(unit[:, 4] * math.pi)
            ratio = math.sqrt(max_stretch) ** unit[:, 5]
            stretch = torch.diag_embed(torch.stack([ratio, 1 / ratio, torch.ones_like(ratio)], dim=-1))
            element = element @ axis @ stretch @ axis.mT
        if self.is_projective:
            tilt = torch.eye(3, dtype=torch.float64, device=drawn_on).repeat(n, 1, 1)
            tilt[:, 2, :2] = unit[:, 6:8] * max_tilt
            element = element @ tilt
        if self.mirrored:
            flip = poses.reflection(torch.float64, element.device)
            element = torch.where((unit[:, 8] < 0)[:, None, None], element @ flip, element)
        if self.is_projective:
            element = self.project(element)
        return element.to(dtype=dtype, device=device)

    def _log(self, elements: Tensor) -> Tensor:
        """Logarithm of elements that do not mirror and have a lower right entry of one."""
        cos, sin = _rotation_part(elements)
        turn, log_scale = torch.atan2(sin, cos), 0.5 * torch.log(cos**2 + sin**2)
        if not self.scales:
            log_scale = torch.zeros_like(log_scale)
        _, integral = _similarity_exp(turn, log_scale)
        x, y = torch.linalg.solve(integral, elements[..., :2, 2]).unbind(-1)
        value = {X: x, Y: y, TURN: turn, LOG_SCALE: log_scale}
        return torch.stack([value[coordinate] for coordinate in self.coordinates], dim=-1)

    def _vee(self, algebra: Tensor) -> Tensor:
        """The coordinates of an algebra element, the inverse of ``hat``: (..., 3, 3) -> (..., dim)."""
        # The basis is orthogonal in the Frobenius inner product, so each coordinate is one projection.
        basis = self.generators.to(algebra)
        return torch.einsum("...ij,dij->...d", algebra, basis) / basis.square().sum((-1, -2))

    def _nearest_linear(self, linear: Tensor) -> Tensor:
        """The nearest linear part of an element that does not mirror: (..., 2, 2) -> (..., 2, 2)."""
        if not self.turns:
            return torch.eye(2, dtype=linear.dtype, device=linear.device).expand_as(linear)
        cos, sin = _rotation_part(linear)
        length = torch.hypot(cos, sin)
        if not self.scales:
            cos = torch.where(length > 0, cos, torch.ones_like(cos))  # every turn is equally far: choose none
            length = torch.where(length > 0, length, torch.ones_like(length))
            cos, sin = cos / length, sin / length
        elif not self.mirrored and (length == 0).any():
            raise ValueError("a matrix whose nearest multiple of a turn is zero has no nearest similarity")
        return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)

    def _has_form(self, matrices: Tensor, area: Tensor, atol: float) -> Tensor:
        """Which matrices with a lower right entry of one have the form of an element, mirrored or not: (...) bool."""
        inside = is_affine(matrices, atol)
        linear = matrices[..., :2, :2]
        if self.mirrored:
            flip = poses.reflection(matrices.dtype, matrices.device)[:2, :2]
            linear = torch.where((area < 0)[..., None, None], linear @ flip, linear)
        a, b, c, d = linear.flatten(-2).unbind(-1)  # [[a, b], [c, d]]
        tolerance = atol * area.abs().clamp(min=1)
        inside &= ((a - d).abs() <= tolerance) & ((b + c).abs() <= tolerance)
        if not self.scales:
            inside &= (area.abs() - 1).abs() <= 2 * atol
        if not self.turns:
            inside &= (b.abs() <= atol) & (a > 0)
        if not self.shifts:
            inside &= (matrices[..., :2, 2].abs() <= atol).all(-1)
        return inside

    def _refuse_unless_contained(self, matrices: Tensor) -> None:
        if not self.contains(matrices, atol=0.0).all():
            raise ValueError(f"a matrix that mirrors or collapses the plane has no nearest element in {self}")

    def _check_coordinates(self, coordinates: Tensor) -> None:
        if coordinates.shape[-1] != self.dim:
            raise ValueError(f"coordinates of {self} must end in {self.dim}, got shape {tuple(coordinates.shape)}")

    def _check_elements(self, elements: Tensor) -> None:
        if elements.shape[-2:] != (3, 3):
            raise ValueError(f"poses must end in (3, 3), got shape {tuple(elements.shape)}")


def assemble(linear: Tensor, shift: Tensor) -> Tensor:
    """A pose from its linear part and its shift: (..., d, d) and (..., d, 1) -> (..., d + 1, d + 1)."""
    top = torch.cat([linear, shift], dim=-1)
    last = torch.zeros_like(top[..., :1, :])
    last = torch.cat([last[..., :-1], torch.ones_like(last[..., -1:])], dim=-1)
    return torch.cat([top, last], dim=-2)


def is_affine(matrices: Tensor, atol: float) -> Tensor:
    """Which matrices with a lower right entry of one have (0, 0, 1) as their last row: (..., 3, 3) -> (...) bool."""
    return (matrices[..., 2, :2].abs() <= atol).all(-1)


def _similarity_exp(turn: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """exp of the linear part and its integral over unit time, both (..., 2, 2).

    With ``z = log_scale - i turn`` these are multiplication by ``e^z`` and by ``(e^z - 1) / z`` (y points down, so a
    counter-clockwise turn is a negative phase).
    """
    phase = -turn
    growth = log_scale.exp()
    cos, sin = growth * phase.cos(), growth * phase.sin()
    # e^z - 1 without cancellation near zero
    real = torch.expm1(log_scale) * phase.cos() - 2 * (phase / 2).sin() ** 2
    size = log_scale**2 + phase**2
    small = size < 1e-6
    safe = torch.where(small, torch.ones_like(size), size)
    quotient_real = (real * log_scale + sin * phase) / safe
    quotient_imag = (sin * log_scale - real * phase) / safe
    series_real, series_imag = _series(log_scale, phase)
    integral_real = torch.where(small, series_real, quotient_real)
    integral_imag = torch.where(small, series_imag, quotient_imag)
    return _complex_matrix(cos, sin), _complex_matrix(integral_real, integral_imag)


def _series(real: Tensor, imag: Tensor) -> tuple[Tensor, Tensor]:
    """(e^z - 1) / z near zero by Horner's rule: 1 + z/2 (1 + z/3 (1 + z/4 (1 + z/5)))."""
    out_real, out_imag = torch.ones_like(real), torch.zeros_like(imag)
    for order in (5, 4, 3, 2):
        out_real, out_imag = (
            1 + (out_real * real - out_imag * imag) / order,
            (out_real * imag + out_imag * real) / order,
        )
    return out_real, out_imag


def _complex_matrix(real: Tensor, imag: Tensor) -> Tensor:
    """Multiplication by a complex number as a real matrix, (...) -> (..., 2, 2)."""
    return torch.stack([torch.stack([real, -imag], -1), torch.stack([imag, real], -1)], -2)


def _rotation_part(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients (cos, sin) of the nearest multiple of a turn, counter-clockwise on screen."""
    cos = (matrices[..., 0, 0] + matrices[..., 1, 1]) / 2
    sin = (matrices[..., 0, 1] - matrices[..., 1, 0]) / 2
    return cos, sin
