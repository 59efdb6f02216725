"""Poses: homogeneous 3x3 matrices as plain tensors, and 4x4 matrices in space (see :mod:`unpose.groups.space`).

Convention
----------
A pose ``dst_from_src`` is a ``(..., 3, 3)`` tensor that maps points ``(x, y)`` in pixels from the image centre, x to
the right and y down. ``c_from_b @ b_from_a`` is ``c_from_a``. Positive angles turn counter-clockwise as seen on
screen, so the linear part of a turn is ``[[cos, sin], [-sin, cos]]``.
"""

import math
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def inverse(poses: Tensor) -> Tensor:
    """The inverse poses: ``inverse(dst_from_src)`` is ``src_from_dst``.

    The adjugate divided by the determinant: exact for quarter turns and mirrors, where elimination would round, and
    differentiable any number of times.

    Parameters
    ----------
    poses : Tensor, shape (..., 3, 3), or (..., 4, 4) for affine poses of space

    Returns
    -------
    Tensor, shape (..., 3, 3) or (..., 4, 4)

    Examples
    --------
    >>> shift = translation(torch.tensor([2.0, -1.0]))
    >>> torch.equal(inverse(shift) @ shift, torch.eye(3))
    True
    """
    if poses.shape[-1] == 4:
        linear = inverse(poses[..., :3, :3])
        top = torch.cat([linear, -linear @ poses[..., :3, 3:]], dim=-1)
        return torch.cat([top, poses[..., 3:, :]], dim=-2)
    adjoint = adjugate(poses)
    determinant = (poses[..., 0, :] * adjoint[..., :, 0]).sum(-1)
    return adjoint / determinant[..., None, None]


def adjugate(matrices: Tensor) -> Tensor:
    """The adjugate ``det(M) M^-1``, whose columns are the cross products of the rows of M.

    Parameters
    ----------
    matrices : Tensor, shape (..., 3, 3)

    Returns
    -------
    Tensor, shape (..., 3, 3)

    Examples
    --------
    >>> adjugate(torch.diag(torch.tensor([1.0, 2.0, 3.0]))).diagonal()
    tensor([6., 3., 2.])
    """
    rows = matrices.unbind(-2)
    return torch.stack([torch.linalg.cross(rows[(i + 1) % 3], rows[(i + 2) % 3]) for i in range(3)], dim=-1)


def transform(poses: Tensor, points: Tensor) -> Tensor:
    """Map points by poses, from source to destination coordinates.

    Parameters
    ----------
    poses : Tensor, shape (..., 3, 3), or (..., 4, 4) in space
    points : Tensor, shape (..., k, 2) or (..., k, 3)
        Points (x, y) in pixels from the image centre; in space (x, y, z) in any unit.

    Returns
    -------
    Tensor, shape (..., k, 2) or (..., k, 3)

    Examples
    --------
    >>> transform(translation(torch.tensor([2.0, -1.0])), torch.zeros(1, 2))
    tensor([[ 2., -1.]])
    """
    moved = points @ poses[..., :-1, :-1].mT + poses[..., None, :-1, -1]
    depth = points @ poses[..., -1:, :-1].mT + poses[..., None, -1:, -1]
    return moved / depth


def rotation(angle: Tensor) -> Tensor:
    """Rotations about the image centre, counter-clockwise on screen.

    Parameters
    ----------
    angle : Tensor, shape (...)
        Radians.

    Returns
    -------
    Tensor, shape (..., 3, 3)

    Examples
    --------
    >>> transform(rotation(torch.tensor(torch.pi / 2)), torch.tensor([[1.0, 0.0]])).round()  # y points down
    tensor([[-0., -1.]])
    """
    cos, sin = angle.cos(), angle.sin()
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    return _from_rows((cos, sin, zero), (-sin, cos, zero), (zero, zero, one))


def translation(shift: Tensor) -> Tensor:
    """Shifts, x to the right and y down.

    Parameters
    ----------
    shift : Tensor, shape (..., 2)
        (x, y) in pixels.

    Returns
    -------
    Tensor, shape (..., 3, 3)

    Examples
    --------
    >>> translation(torch.tensor([2.0, -1.0]))[:2, 2]
    tensor([ 2., -1.])
    """
    x, y = shift.unbind(-1)
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    return _from_rows((one, zero, x), (zero, one, y), (zero, zero, one))


def scaling(factor: Tensor) -> Tensor:
    """Dilations about the image centre; a factor above one enlarges.

    Parameters
    ----------
    factor : Tensor, shape (...)

    Returns
    -------
    Tensor, shape (..., 3, 3)

    Examples
    --------
    >>> scaling(torch.tensor(2.0)).diagonal()
    tensor([2., 2., 1.])
    """
    zero, one = torch.zeros_like(factor), torch.ones_like(factor)
    return _from_rows((factor, zero, zero), (zero, factor, zero), (zero, zero, one))


def reflection(dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Tensor:
    """The pose of the left-right mirror, x -> -x; :func:`unpose.images.mirror` mirrors pixels.

    Parameters
    ----------
    dtype : torch.dtype, default torch.float32
    device : torch.device or str, optional

    Returns
    -------
    Tensor, shape (3, 3)

    Examples
    --------
    >>> reflection().diagonal()
    tensor([-1.,  1.,  1.])
    """
    return torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=dtype, device=device))


def area_change(poses: Tensor) -> Tensor:
    """The factor by which a pose multiplies areas at the image centre; negative if it mirrors.

    For an affine pose this is the determinant of the linear part, and the same everywhere; for a homography it is the
    Jacobian determinant at the centre, ``det(H) / h33^3``.

    Parameters
    ----------
    poses : Tensor, shape (..., 3, 3)

    Returns
    -------
    Tensor, shape (...)

    Examples
    --------
    >>> area_change(reflection() @ scaling(torch.tensor(2.0)))
    tensor(-4.)
    """
    determinant = (poses[..., 0, :] * torch.linalg.cross(poses[..., 1, :], poses[..., 2, :])).sum(-1)
    return determinant / poses[..., 2, 2] ** 3


def pose_parts(pose: NDArray | Tensor) -> dict[str, Any]:
    """Decompose a pose into a mirror, a rotation, a scale and a shift, applied in this order, for people to read.

    The mirror maps ``x`` to ``-x``. Shear and perspective are left out of the decomposition.

    Parameters
    ----------
    pose : array or Tensor of shape (3, 3)

    Returns
    -------
    dict
        ``angle`` in degrees, counter-clockwise on screen; ``shift_x`` and ``shift_y`` in pixels; ``scale`` as a
        factor; ``mirrored`` as a bool.

    Examples
    --------
    >>> pose_parts(torch.tensor([[0.0, 1, 3], [-1, 0, 0], [0, 0, 1]]))
    {'angle': 90.0, 'shift_x': 3.0, 'shift_y': 0.0, 'scale': 1.0, 'mirrored': False}
    """
    (a, c, x), (b, d, y) = (pose[:2] / pose[2, 2]).tolist()
    area = a * d - b * c
    if area < 0:
        a, b = -a, -b
    return {
        "angle": math.degrees(math.atan2(c - b, a + d)), "shift_x": x, "shift_y": y, "scale": math.sqrt(abs(area)),
        "mirrored": area < 0,
    }  # fmt: skip


def _from_rows(*rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
