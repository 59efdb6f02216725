"""The continuous groups. To add one, declare it here: everything else asks the group.

A group made of shifts, turns and dilations is a class with a name and its coordinates. One with other generators also
declares its coordinates, and overrides the methods whose closed forms in :class:`~unpose.groups.lie.LieGroup` do not
hold for it. Put it into :data:`CONTINUOUS`: names, search, refinement, audit and the laws in the tests follow.
"""

import torch
from torch import Tensor

from unpose.groups.lie import LOG_SCALE, TURN, Coordinate, LieGroup, X, Y, assemble, is_affine
from unpose.groups.matrix_log import real_logarithm

STRETCH = Coordinate("stretch", ((1, 0, 0), (0, -1, 0), (0, 0, 0)), power=1, prior=0.05)  # along x against y
SHEAR = Coordinate("shear", ((0, 1, 0), (1, 0, 0), (0, 0, 0)), power=1, prior=0.05)  # along one diagonal
TILT_X = Coordinate("tilt x", ((0, 0, 0), (0, 0, 0), (1, 0, 0)), power=2, prior=0.05)
TILT_Y = Coordinate("tilt y", ((0, 0, 0), (0, 0, 0), (0, 1, 0)), power=2, prior=0.05)


class Translation(LieGroup):
    """Shifts."""

    kind = "translation"
    coordinates = (X, Y)


class SO2(LieGroup):
    """Turns about the image centre, for objects that are already centred."""

    kind = "so2"
    coordinates = (TURN,)


class SE2(LieGroup):
    """Turns and shifts: the rigid motions."""

    kind = "se2"
    coordinates = (X, Y, TURN)


class Similarity(LieGroup):
    """Turns, shifts and dilations."""

    kind = "similarity"
    coordinates = (X, Y, TURN, LOG_SCALE)


class Affine(LieGroup):
    """All affine transformations."""

    kind = "affine"
    coordinates = (X, Y, TURN, LOG_SCALE, STRETCH, SHEAR)

    def exp(self, coordinates: Tensor) -> Tensor:
        """The exponential map: (..., dim) -> (..., 3, 3).

        The shift does not enter the matrix exponential, so that a shift of hundreds of pixels costs no digits.
        """
        linear, integral = _affine_exp(self.hat(coordinates)[..., :2, :2])
        return assemble(linear, integral @ coordinates[..., :2, None])

    def project(self, matrices: Tensor) -> Tensor:
        self._check_elements(matrices)
        matrices = matrices / matrices[..., 2:, 2:]
        nearest = assemble(matrices[..., :2, :2], matrices[..., :2, 2:])
        self._refuse_unless_contained(nearest)
        return nearest

    def _log(self, elements: Tensor) -> Tensor:
        return self._vee(real_logarithm(elements))

    def _has_form(self, matrices: Tensor, area: Tensor, atol: float) -> Tensor:
        return is_affine(matrices, atol)


class Perspective(LieGroup):
    """Homographies of determinant one that keep the image centre in front of the camera.

    They form a group only near the identity: a long chain can push the centre behind the camera, and ``contains`` is
    false where it happens.
    """

    kind = "perspective"
    coordinates = (X, Y, TURN, LOG_SCALE, STRETCH, SHEAR, TILT_X, TILT_Y)

    @property
    def generators(self) -> Tensor:
        """Basis of the Lie algebra, (8, 3, 3) in float64, each of trace zero.

        Homographies are matrices up to a factor; without a trace they stay in SL(3), where the factor is fixed.
        """
        return _without_trace(super().generators)

    def exp(self, coordinates: Tensor) -> Tensor:
        """The exponential map: (..., 8) -> (..., 3, 3)."""
        # Entries span five orders of magnitude (shifts against tilts): single precision would lose three digits.
        return torch.matrix_exp(self.hat(coordinates).double()).to(coordinates.dtype)

    def project(self, matrices: Tensor) -> Tensor:
        self._check_elements(matrices)
        self._refuse_unless_contained(matrices)
        sign = matrices[..., 2:, 2:].sign()  # the centre stays in front of the camera
        return sign * matrices / torch.linalg.det(matrices).abs().pow(1 / 3)[..., None, None]

    def _log(self, elements: Tensor) -> Tensor:
        return self._vee(_without_trace(real_logarithm(elements)))

    def _has_form(self, matrices: Tensor, area: Tensor, atol: float) -> Tensor:
        return torch.ones_like(area, dtype=torch.bool)


CONTINUOUS: dict[str, type[LieGroup]] = {
    group.kind: group for group in (Translation, SO2, SE2, Similarity, Affine, Perspective)
}
"""Classes of the continuous groups of the plane, by name."""


def _affine_exp(linear: Tensor) -> tuple[Tensor, Tensor]:
    """exp(A) and its integral over unit time, read off exp([[A, I], [0, 0]])."""
    block = torch.zeros(*linear.shape[:-2], 4, 4, dtype=linear.dtype, device=linear.device)
    eye = torch.eye(2, dtype=linear.dtype, device=linear.device).expand_as(linear)
    block = torch.cat([torch.cat([linear, eye], -1), block[..., 2:, :]], -2)  # (..., 4, 4)
    result = torch.matrix_exp(block)
    return result[..., :2, :2], result[..., :2, 2:]


def _without_trace(matrices: Tensor) -> Tensor:
    """Matrices less the multiple of the identity that gives them a trace of zero: (..., 3, 3) -> (..., 3, 3)."""
    trace = matrices.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return matrices - trace / 3 * torch.eye(3, dtype=matrices.dtype, device=matrices.device)
