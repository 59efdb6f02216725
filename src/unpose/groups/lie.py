"""The continuous groups: translation, se2, similarity, affine, perspective, each with or without mirror.

A group says which matrices are poses. It stores nothing per element: elements are plain ``(..., 3, 3)`` tensors
(see :mod:`unpose.groups.poses` for the convention), coordinates in the Lie algebra are ``(..., dim)`` tensors in the
order ``x, y, turn, log scale, stretch, shear, tilt x, tilt y``, cut off at the group's dimension.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.groups import matrix_log, poses

_DIM = {"translation": 2, "se2": 3, "similarity": 4, "affine": 6, "perspective": 8}


@dataclass(frozen=True, repr=False)
class LieGroup:
    """A group of plane transformations with a Lie algebra; made by :func:`unpose.groups.parse`.

    Parameters
    ----------
    kind : {"translation", "se2", "similarity", "affine", "perspective"}
        Each contains the ones before it.
    mirrored : bool
        Whether the left-right mirror belongs to the group too. ``exp`` always gives elements that do not mirror:
        the mirrored half of the group has no logarithm.

    Notes
    -----
    Perspective poses are homographies of determinant one that keep the image centre in front of the camera and do not
    mirror there. They form a group only near the identity (a long chain can push the centre behind the camera);
    ``contains`` says so where it happens.
    """

    kind: str
    mirrored: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind}+mirror" if self.mirrored else self.kind

    def __repr__(self) -> str:
        return self.name

    @property
    def dim(self) -> int:
        """Dimension of the Lie algebra."""
        return _DIM[self.kind]

    @property
    def is_isometric(self) -> bool:
        """Whether every element keeps areas and lengths."""
        return self.kind in ("translation", "se2")

    @property
    def generators(self) -> Tensor:
        """Basis of the Lie algebra, (dim, 3, 3) in float64."""
        basis = torch.zeros(8, 3, 3, dtype=torch.float64)
        basis[0, 0, 2] = basis[1, 1, 2] = 1.0  # x, y
        basis[2, 0, 1], basis[2, 1, 0] = 1.0, -1.0  # turn, counter-clockwise on screen
        basis[3, 0, 0] = basis[3, 1, 1] = 1.0  # log scale
        basis[4, 0, 0], basis[4, 1, 1] = 1.0, -1.0  # stretch along x against y
        basis[5, 0, 1] = basis[5, 1, 0] = 1.0  # shear: stretch along a diagonal against the other
        basis[6, 2, 0] = basis[7, 2, 1] = 1.0  # tilt
        if self.kind == "perspective":
            # Homographies are matrices up to a factor; without a trace they stay in SL(3), where the factor is fixed.
            basis[3] -= torch.eye(3, dtype=torch.float64) * 2 / 3
        return basis[: self.dim]

    def hat(self, coordinates: Tensor) -> Tensor:
        """The algebra element with these coordinates: (..., dim) -> (..., 3, 3)."""
        self._check_coordinates(coordinates)
        return torch.einsum("...d,dij->...ij", coordinates, self.generators.to(coordinates))

    def exp(self, coordinates: Tensor) -> Tensor:
        """The pose reached by following an algebra element for unit time: (..., dim) -> (..., 3, 3).

        Closed form up to similarity; affine takes one small matrix exponential that does not see the shift, so that a
        shift of hundreds of pixels costs no digits.
        """
        self._check_coordinates(coordinates)
        if self.kind == "perspective":
            # Entries span five orders of magnitude (shifts against tilts): single precision would lose three digits.
            return torch.matrix_exp(self.hat(coordinates).double()).to(coordinates.dtype)
        if self.kind == "affine":
            linear, integral = _affine_exp(self.hat(coordinates)[..., :2, :2])
        else:
            padded = torch.nn.functional.pad(coordinates, (0, 4 - self.dim))
            linear, integral = _similarity_exp(padded[..., 2], padded[..., 3])
        return _assemble(linear, integral @ coordinates[..., :2, None])

    def log(self, elements: Tensor) -> Tensor:
        """The coordinates whose ``exp`` is this element: (..., 3, 3) -> (..., dim).

        Half a turn comes back as plus or minus pi. Raises ``ValueError`` where no real logarithm exists: for mirrored
        elements, and for affine or perspective ones that reverse two axes by different amounts.
        """
        self._check_elements(elements)
        if (poses.area_change(elements) <= 0).any():
            raise ValueError(f"a mirrored or singular element of {self} has no logarithm; factor the mirror out first")
        elements = elements / elements[..., 2:, 2:]
        if self.kind in ("affine", "perspective"):
            return self._vee(matrix_log.real_logarithm(elements))
        cos, sin = _rotation_part(elements)
        turn, scale = torch.atan2(sin, cos), 0.5 * torch.log(cos**2 + sin**2)
        if self.kind != "similarity":
            scale = torch.zeros_like(scale)
        _, integral = _similarity_exp(turn, scale)
        shift = torch.linalg.solve(integral, elements[..., :2, 2])
        return torch.cat([shift, turn[..., None], scale[..., None]], dim=-1)[..., : self.dim]

    def identity(self, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Tensor:
        """The pose that leaves everything where it is: (3, 3)."""
        return torch.eye(3, dtype=dtype, device=device)

    def inverse(self, elements: Tensor) -> Tensor:
        """The inverse elements, (..., 3, 3) -> (..., 3, 3)."""
        return poses.inverse(elements)

    def project(self, matrices: Tensor) -> Tensor:
        """The nearest element of the group to each matrix: (..., 3, 3) -> (..., 3, 3).

        Nearest in the Frobenius norm of the linear part, after dividing by the lower right entry; the shift is kept.
        An affine or perspective matrix is an element already if it does not mirror or collapse the plane; where it
        does there is no nearest element (the set is open) and a ``ValueError`` says so.
        """
        self._check_elements(matrices)
        if self.kind == "perspective":
            self._refuse_unless_contained(matrices)
            sign = matrices[..., 2:, 2:].sign()  # the centre stays in front of the camera
            return sign * matrices / torch.linalg.det(matrices).abs().pow(1 / 3)[..., None, None]
        matrices = matrices / matrices[..., 2:, 2:]
        linear, shift = matrices[..., :2, :2], matrices[..., :2, 2:]
        if self.kind == "affine":
            nearest = _assemble(linear, shift)
            self._refuse_unless_contained(nearest)
            return nearest
        nearest_linear = self._nearest_linear(linear)
        if self.mirrored:
            flip = poses.mirror(matrices.dtype, matrices.device)[:2, :2]
            mirrored = self._nearest_linear(linear @ flip) @ flip
            nearer = (linear - mirrored).square().sum((-1, -2)) < (linear - nearest_linear).square().sum((-1, -2))
            nearest_linear = torch.where(nearer[..., None, None], mirrored, nearest_linear)
        return _assemble(nearest_linear, shift)

    def contains(self, matrices: Tensor, atol: float | None = None) -> Tensor:
        """Which matrices are elements of the group: (..., 3, 3) -> (...) bool. Homographies count up to a factor."""
        self._check_elements(matrices)
        atol = 1e3 * torch.finfo(matrices.dtype).eps if atol is None else atol
        area = poses.area_change(matrices)
        inside = torch.isfinite(matrices).all(-1).all(-1) & torch.isfinite(area) & (area.abs() > atol)
        if not self.mirrored:
            inside &= area > 0
        if self.kind == "perspective":
            return inside
        matrices = matrices / matrices[..., 2:, 2:]
        inside &= (matrices[..., 2, :2].abs() <= atol).all(-1)
        linear = matrices[..., :2, :2]
        if self.mirrored:
            flip = poses.mirror(matrices.dtype, matrices.device)[:2, :2]
            linear = torch.where((area < 0)[..., None, None], linear @ flip, linear)
        if self.kind != "affine":
            a, b, c, d = linear.flatten(-2).unbind(-1)  # [[a, b], [c, d]]
            inside &= ((a - d).abs() <= atol * area.abs().clamp(min=1)) & (
                (b + c).abs() <= atol * area.abs().clamp(min=1)
            )
            if self.is_isometric:
                inside &= (area.abs() - 1).abs() <= 2 * atol
            if self.kind == "translation":
                inside &= (b.abs() <= atol) & (a > 0)
        return inside

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

        Parameters
        ----------
        max_angle : radians either way; pi is the full circle.
        max_shift : pixels either way, along x and along y.
        max_scale : largest factor; the smallest is its inverse.
        max_stretch : largest ratio by which an affine element lengthens one axis and shortens the other.
        max_tilt : largest perspective entry along x and along y, in 1/pixel.

        A mirrored group mirrors every element with probability one half. Drawn on the generator's device in float64,
        so that the same seed gives the same poses in every precision.
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
        unit = 2 * torch.rand(n, 9, generator=generator, dtype=torch.float64, device=drawn_on) - 1  # (n, 9)
        element = poses.translation(unit[:, :2] * max_shift)
        if self.dim >= 3:
            element = element @ poses.rotation(unit[:, 2] * max_angle)
        if self.dim >= 4:
            element = element @ poses.scaling(max_scale ** unit[:, 3])
        if self.dim >= 6:
            axis = poses.rotation(unit[:, 4] * math.pi)
            ratio = math.sqrt(max_stretch) ** unit[:, 5]
            stretch = torch.diag_embed(torch.stack([ratio, 1 / ratio, torch.ones_like(ratio)], dim=-1))
            element = element @ axis @ stretch @ axis.mT
        if self.dim == 8:
            tilt = torch.eye(3, dtype=torch.float64, device=drawn_on).repeat(n, 1, 1)
            tilt[:, 2, :2] = unit[:, 6:8] * max_tilt
            element = element @ tilt
        if self.mirrored:
            flip = poses.mirror(torch.float64, element.device)
            element = torch.where((unit[:, 8] < 0)[:, None, None], element @ flip, element)
        if self.kind == "perspective":
            element = self.project(element)
        return element.to(dtype=dtype, device=device)

    def _vee(self, algebra: Tensor) -> Tensor:
        """Coordinates of an algebra element; for homographies, after taking the trace out."""
        if self.kind == "perspective":
            trace = algebra.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
            algebra = algebra - trace / 3 * torch.eye(3, dtype=algebra.dtype, device=algebra.device)
        # The basis is orthogonal in the Frobenius inner product, so each coordinate is one projection.
        basis = self.generators.to(algebra)
        return torch.einsum("...ij,dij->...d", algebra, basis) / basis.square().sum((-1, -2))

    def _nearest_linear(self, linear: Tensor) -> Tensor:
        if self.kind == "translation":
            return torch.eye(2, dtype=linear.dtype, device=linear.device).expand_as(linear)
        cos, sin = _rotation_part(linear)
        length = torch.hypot(cos, sin)
        if self.kind == "se2":
            cos = torch.where(length > 0, cos, torch.ones_like(cos))  # equally far from every turn: take none
            length = torch.where(length > 0, length, torch.ones_like(length))
            cos, sin = cos / length, sin / length
        elif not self.mirrored and (length == 0).any():
            raise ValueError("a matrix whose nearest multiple of a turn is zero has no nearest similarity")
        return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)

    def _refuse_unless_contained(self, matrices: Tensor) -> None:
        if not self.contains(matrices, atol=0.0).all():
            raise ValueError(f"a matrix that mirrors or collapses the plane has no nearest element in {self}")

    def _check_coordinates(self, coordinates: Tensor) -> None:
        if coordinates.shape[-1] != self.dim:
            raise ValueError(f"coordinates of {self} must end in {self.dim}, got shape {tuple(coordinates.shape)}")

    def _check_elements(self, elements: Tensor) -> None:
        if elements.shape[-2:] != (3, 3):
            raise ValueError(f"poses must end in (3, 3), got shape {tuple(elements.shape)}")


def _similarity_exp(turn: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """exp of the linear part and its integral over unit time, both (..., 2, 2).

    With ``z = scale - i turn`` these are multiplication by ``e^z`` and by ``(e^z - 1) / z`` (y points down, so a
    counter-clockwise turn is a negative phase).
    """
    turn, scale = -turn, scale
    growth = scale.exp()
    cos, sin = growth * turn.cos(), growth * turn.sin()
    # e^z - 1 without cancellation near zero
    real = torch.expm1(scale) * turn.cos() - 2 * (turn / 2).sin() ** 2
    size = scale**2 + turn**2
    small = size < 1e-6
    safe = torch.where(small, torch.ones_like(size), size)
    quotient_real = (real * scale + sin * turn) / safe
    quotient_imag = (sin * scale - real * turn) / safe
    series_real, series_imag = _series(scale, turn)
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


def _affine_exp(linear: Tensor) -> tuple[Tensor, Tensor]:
    """exp(A) and its integral over unit time, read off exp([[A, I], [0, 0]])."""
    block = torch.zeros(*linear.shape[:-2], 4, 4, dtype=linear.dtype, device=linear.device)
    eye = torch.eye(2, dtype=linear.dtype, device=linear.device).expand_as(linear)
    block = torch.cat([torch.cat([linear, eye], -1), block[..., 2:, :]], -2)  # (..., 4, 4)
    result = torch.matrix_exp(block)
    return result[..., :2, :2], result[..., :2, 2:]


def _rotation_part(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients (cos, sin) of the nearest multiple of a turn, counter-clockwise on screen."""
    cos = (matrices[..., 0, 0] + matrices[..., 1, 1]) / 2
    sin = (matrices[..., 0, 1] - matrices[..., 1, 0]) / 2
    return cos, sin


def _assemble(linear: Tensor, shift: Tensor) -> Tensor:
    """(..., 2, 2) and (..., 2, 1) -> (..., 3, 3)."""
    top = torch.cat([linear, shift], dim=-1)
    last = torch.zeros_like(top[..., :1, :])
    last = torch.cat([last[..., :2], torch.ones_like(last[..., 2:])], dim=-1)
    return torch.cat([top, last], dim=-2)
