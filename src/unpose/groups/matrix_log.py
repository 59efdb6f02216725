"""The real logarithm of affine and perspective poses, differentiable and in batches.

There are two regimes. If a pose rotates by at most a quarter turn, inverse scaling and squaring is used: repeated
square roots bring the pose near the identity, where a short series gives the logarithm. Beyond a quarter turn square
roots lose digits, and at half a turn they fail. But there the real positive eigenvalue is well separated from the other
two, so the pose is split into its eigenvector and an invariant plane, whose logarithm has a closed form.
"""

import torch
from torch import Tensor

from unpose.groups.poses import adjugate

_SQUARE_ROOTS = 7
_DENMAN_BEAVERS_ITERATIONS = 12
_SERIES_TERMS = 8


def real_logarithm(matrices: Tensor) -> Tensor:
    """Real logarithm of nonsingular 3x3 matrices with positive determinant: (..., 3, 3) -> (..., 3, 3).

    Computed in float64 for every input type. Raises ``ValueError`` where no real logarithm exists.
    """
    dtype, shape = matrices.dtype, matrices.shape
    work = matrices.to(torch.float64).reshape(-1, 3, 3)
    # Shifts are measured in units of the largest one; otherwise a shift of 100 pixels would cost two digits.
    unit = work.detach()[:, :2, 2].abs().amax(-1).div(work.detach()[:, 2, 2].abs()).clamp(min=1.0)
    scale = torch.stack([1 / unit, 1 / unit, torch.ones_like(unit)], -1)  # (n, 3)
    work = work * scale[:, :, None] / scale[:, None, :]
    positive, middle = _spectrum(work)
    beyond_quarter = middle < 0
    logarithm = torch.zeros_like(work)
    if (~beyond_quarter).any():
        logarithm = logarithm.index_put((~beyond_quarter,), _by_square_roots(work[~beyond_quarter]))
    if beyond_quarter.any():
        tolerance = 1e3 * torch.finfo(dtype).eps
        split = _by_splitting(work[beyond_quarter], positive[beyond_quarter], tolerance)
        logarithm = logarithm.index_put((beyond_quarter,), split)
    logarithm = logarithm / scale[:, :, None] * scale[:, None, :]
    return logarithm.reshape(shape).to(dtype)


def _spectrum(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """The largest real eigenvalue and the mean of the other two: (n, 3, 3) -> (n,) and (n,)."""
    values = torch.linalg.eigvals(matrices.detach())
    is_real = values.imag.abs() <= 1e-7 * values.abs()
    largest = torch.where(is_real, values.real, torch.full_like(values.real, -torch.inf)).amax(-1)
    trace = matrices.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    return largest, (trace - largest) / 2


def _by_square_roots(matrices: Tensor) -> Tensor:
    """log(M) = 2^r log(M^(1/2^r)): roots by the Denman-Beavers iteration, then the series of the inverse tanh."""
    eye = torch.eye(3, dtype=matrices.dtype, device=matrices.device)
    root = matrices
    for _ in range(_SQUARE_ROOTS):
        y, z = root, eye.expand_as(root)
        for _ in range(_DENMAN_BEAVERS_ITERATIONS):
            y, z = (y + torch.linalg.inv(z)) / 2, (z + torch.linalg.inv(y)) / 2
        root = y
    ratio = torch.linalg.solve(root + eye, root - eye)
    square, power, total = ratio @ ratio, ratio, ratio
    for term in range(1, _SERIES_TERMS):
        power = power @ square
        total = total + power / (2 * term + 1)
    return 2 * 2**_SQUARE_ROOTS * total


def _by_splitting(matrices: Tensor, eigenvalue: Tensor, tolerance: float) -> Tensor:
    """Split along the positive eigenvalue; the remaining plane rotates by more than a quarter turn."""
    eye = torch.eye(3, dtype=matrices.dtype, device=matrices.device)
    eigenvalue = _polish_eigenvalue(matrices, eigenvalue)
    # The adjugate of M - c I has rank one: v w^T with the right and left eigenvectors of c.
    projector = adjugate(matrices - eigenvalue[:, None, None] * eye)
    projector = projector / _trace(projector)[:, None, None]
    plane = eye - projector
    middle = (_trace(matrices) - eigenvalue) / 2
    rest = matrices @ plane - middle[:, None, None] * plane  # traceless on the plane
    determinant = torch.linalg.det(matrices) / eigenvalue
    # rest^2 = discriminant * plane, negative where the plane rotates (middle^2 - determinant would cancel).
    discriminant = _trace(rest @ rest) / 2
    turn = _turn_in(plane)
    # At half a turn `rest` is only rounding noise, without a sense of rotation; that of a plain turn is used instead.
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
    return logarithm + torch.log(eigenvalue)[:, None, None] * projector


def _turn_in(plane: Tensor) -> Tensor:
    """The generator of turns in an invariant plane, scaled so that its square is minus the plane's projector."""
    turn = torch.zeros(3, 3, dtype=plane.dtype, device=plane.device)
    turn[0, 1], turn[1, 0] = 1.0, -1.0
    carried = plane @ turn @ plane
    carried = carried - _trace(carried)[:, None, None] / 2 * plane
    return carried / (-_trace(carried @ carried) / 2).sqrt()[:, None, None]


def _polish_eigenvalue(matrices: Tensor, eigenvalue: Tensor) -> Tensor:
    """One Newton step on the characteristic polynomial, which makes the eigenvalue differentiable."""
    eye = torch.eye(3, dtype=matrices.dtype, device=matrices.device)
    shifted = matrices - eigenvalue[:, None, None] * eye
    slope = _trace(adjugate(shifted)).detach()  # minus the derivative of det(M - c) in c
    return eigenvalue + torch.linalg.det(shifted) / slope


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
