"""Poses: homogeneous 3x3 matrices as plain values.

Convention
----------
A pose ``dst_from_src`` is a ``(..., 3, 3)`` tensor that maps points ``(x, y)`` in pixels from the image centre, x to
the right and y down. ``c_from_b @ b_from_a`` is ``c_from_a``. Positive angles turn counter-clockwise as seen on
screen, so the linear part of a turn is ``[[cos, sin], [-sin, cos]]``.
"""

import torch
from torch import Tensor


def inverse(poses: Tensor) -> Tensor:
    """The inverse poses: ``inverse(dst_from_src)`` is ``src_from_dst``, (..., 3, 3) -> (..., 3, 3).

    The adjugate over the determinant: exact for quarter turns and mirrors, where an elimination would round, and
    differentiable any number of times.
    """
    adjoint = adjugate(poses)
    determinant = (poses[..., 0, :] * adjoint[..., :, 0]).sum(-1)
    return adjoint / determinant[..., None, None]


def adjugate(matrices: Tensor) -> Tensor:
    """The adjugate, ``det(M) M^-1``: its columns are the cross products of the rows, (..., 3, 3) -> (..., 3, 3)."""
    rows = matrices.unbind(-2)
    return torch.stack([torch.linalg.cross(rows[(i + 1) % 3], rows[(i + 2) % 3]) for i in range(3)], dim=-1)


def transform(poses: Tensor, points: Tensor) -> Tensor:
    """Apply poses (..., 3, 3) to points (..., k, 2): the points' places in destination coordinates, (..., k, 2)."""
    moved = points @ poses[..., :2, :2].mT + poses[..., None, :2, 2]
    depth = points @ poses[..., 2:, :2].mT + poses[..., None, 2:, 2]
    return moved / depth


def rotation(angle: Tensor) -> Tensor:
    """Turns about the image centre by ``angle`` radians, counter-clockwise on screen: (...) -> (..., 3, 3)."""
    cos, sin = angle.cos(), angle.sin()
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    return _rows((cos, sin, zero), (-sin, cos, zero), (zero, zero, one))


def translation(shift: Tensor) -> Tensor:
    """Shifts by ``shift`` = (x, y) pixels, x right and y down: (..., 2) -> (..., 3, 3)."""
    x, y = shift.unbind(-1)
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    return _rows((one, zero, x), (zero, one, y), (zero, zero, one))


def scaling(factor: Tensor) -> Tensor:
    """Dilations about the image centre; a factor above one makes things larger: (...) -> (..., 3, 3)."""
    zero, one = torch.zeros_like(factor), torch.ones_like(factor)
    return _rows((factor, zero, zero), (zero, factor, zero), (zero, zero, one))


def mirror(dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Tensor:
    """The left-right mirror, x -> -x: (3, 3)."""
    return torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=dtype, device=device))


def area_change(poses: Tensor) -> Tensor:
    """How much a pose multiplies area at the image centre; negative for a mirrored pose: (..., 3, 3) -> (...).

    For a homography this is the Jacobian determinant at the centre, ``det(H) / h33^3``; for an affine pose it is the
    determinant of the linear part everywhere.
    """
    determinant = (poses[..., 0, :] * torch.linalg.cross(poses[..., 1, :], poses[..., 2, :])).sum(-1)
    return determinant / poses[..., 2, 2] ** 3


def _rows(*rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
