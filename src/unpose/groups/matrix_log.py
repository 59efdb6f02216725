"""The real logarithm of affine and perspective poses, differentiable, in batches.

Two regimes. Where the turning part of a pose stays within a quarter turn, inverse scaling and squaring: square roots
until the pose is near the identity, then a short series. Beyond that square roots lose their digits and fail at half a
turn, but there the fixed direction is well apart from the two that turn, so the pose is split into a line and a plane
and the plane's logarithm has a closed form.
"""

import torch
from torch import Tensor

from unpose.groups.poses import adjugate

_ROOTS = 7
_ITERATIONS = 12
_TERMS = 8


def real_logarithm(matrices: Tensor) -> Tensor:
    """Real logarithm of nonsingular 3x3 matrices with positive determinant, (..., 3, 3) -> (..., 3, 3).

    Computed in float64 whatever comes in. Raises ``ValueError`` where no real logarithm exists.
    """
    dtype, shape = matrices.dtype, matrices.shape
    work = matrices.to(torch.float64).reshape(-1, 3, 3)
    # Measure shifts in units of the largest one: a shift of 100 pixels would otherwise cost two digits.
    unit = work.detach()[:, :2, 2].abs().amax(-1).div(work.detach()[:, 2, 2].abs()).clamp(min=1.0)
    scale = torch.stack([1 / unit, 1 / unit, torch.ones_like(unit)], -1)  # (n, 3)
    work = work * scale[:, :, None] / scale[:, None, :]
    fixed, middle = _spectrum(work)
    turned = middle < 0
    logarithm = torch.zeros_like(work)
    if (~turned).any():
        logarithm = logarithm.index_put((~turned,), _by_square_roots(work[~turned]))
    if turned.any():
        tolerance = 1e3 * torch.finfo(dtype).eps
        logarithm = logarithm.index_put((turned,), _by_splitting(work[turned], fixed[turned], tolerance))
    logarithm = logarithm / scale[:, :, None] * scale[:, None, :]
    return logarithm.reshape(shape).to(dtype)


def _spectrum(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """The positive eigenvalue farthest to the right and the mean of the other two, each (n,)."""
    values = torch.linalg.eigvals(matrices.detach())
    is_real = values.imag.abs() <= 1e-7 * values.abs()
    candidate = torch.where(is_real, values.real, torch.full_like(values.real, -torch.inf))
    fixed = candidate.amax(-1)
    trace = matrices.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    return fixed, (trace - fixed) / 2


def _by_square_roots(matrices: Tensor) -> Tensor:
    """log(M) = 2^r log(M^(1/2^r)); roots by the Denman-Beavers iteration, log by the series of the inverse tanh."""
    eye = torch.eye(3, dtype=matrices.dtype, device=matrices.device)
    root = matrices
    for _ in range(_ROOTS):
        y, z = root, eye.expand_as(root)
        for _ in range(_ITERATIONS):
            y, z = (y + torch.linalg.inv(z)) / 2, (z + torch.linalg.inv(y)) / 2
        root = y
    ratio = torch.linalg.solve(root + eye, root - eye)
    square, power, total = ratio @ ratio, ratio, ratio
    for term in range(1, _TERMS):
        power = power @ square
        total = total + power / (2 * term + 1)
    return 2 * 2**_ROOTS * total


def _by_splitting(matrices: Tensor, fixed: Tensor, tolerance: float) -> Tensor:
    """Split along the eigenvalue that stays positive; the plane left over turns by more than a quarter."""
    eye = torch.eye(3, dtype=matrices.dtype, device=matrices.device)
    fixed = _polish_eigenvalue(matrices, fixed)
    # The adjugate of M - c has rank one, v w^T for the right and left eigenvectors of c.
    projector = adjugate(matrices - fixed[:, None, None] * eye)
    projector = projector / _trace(projector)[:, None, None]
    plane = eye - projector
    middle = (_trace(matrices) - fixed) / 2
    rest = matrices @ plane - middle[:, None, None] * plane  # traceless on the plane
    determinant = torch.linalg.det(matrices) / fixed
    # rest^2 = discriminant * plane; negative where the plane turns. (middle^2 - determinant would cancel.)
    discriminant = _trace(rest @ rest) / 2
    turn = _turn_in(plane)
    # Near half a turn `rest` is rounding noise without a direction of its own: take that of the plain turn.
    scalar = rest.detach().square().sum((-1, -2)).sqrt() <= tolerance * middle.detach().abs()
    if (~scalar & (discriminant >= 0)).any():
        raise ValueError(
            "no real logarithm: the pose reverses two axes by different amounts (two distinct negative eigenvalues)"
        )
    speed = torch.where(scalar, torch.ones_like(discriminant), -discriminant).sqrt()
    angle = torch.atan2(speed, middle)
    turning = (angle / speed)[:, None, None] * rest
    component = (rest * turn.mT).sum((-1, -2)) / (turn * turn.mT).sum((-1, -2))
    half = torch.atan2(component, middle)[:, None, None] * turn
    logarithm = 0.5 * torch.log(determinant)[:, None, None] * plane + torch.where(scalar[:, None, None], half, turning)
    return logarithm + torch.log(fixed)[:, None, None] * projector


def _turn_in(plane: Tensor) -> Tensor:
    """The turn generator carried into an invariant plane, scaled so that its square is minus the plane's projector."""
    turn = torch.zeros(3, 3, dtype=plane.dtype, device=plane.device)
    turn[0, 1], turn[1, 0] = 1.0, -1.0
    carried = plane @ turn @ plane
    carried = carried - _trace(carried)[:, None, None] / 2 * plane
    return carried / (-_trace(carried @ carried) / 2).sqrt()[:, None, None]


def _polish_eigenvalue(matrices: Tensor, fixed: Tensor) -> Tensor:
    """One Newton step on the characteristic polynomial, through which the gradient flows."""
    eye = torch.eye(3, dtype=matrices.dtype, device=matrices.device)
    shifted = matrices - fixed[:, None, None] * eye
    slope = _trace(adjugate(shifted)).detach()  # minus the derivative of det(M - c) in c
    return fixed + torch.linalg.det(shifted) / slope


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
