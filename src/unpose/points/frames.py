"""Frames from the points themselves: coordinates that do not change when the cloud is moved.

:func:`invariant_coordinates` gives a whole cloud one frame, :func:`local_frames` every point its own. Any network on
the new coordinates is invariant. Frames are discontinuous where they are not determined, at symmetric clouds and
symmetric neighbourhoods; ``margin`` says how near that is.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.points.clouds import centred, check_cloud


@dataclass(frozen=True)
class InvariantCoordinates:
    """The result of :func:`invariant_coordinates`.

    Parameters
    ----------
    points : Tensor, shape (b, n, d)
        The clouds in their own frames; zero in the padding.
    poses : Tensor, shape (b, d + 1, d + 1)
        ``upright_from_input``: bring the given clouds to ``points``.
    margin : Tensor, shape (b,)
        How well the frame is determined: the least gap of two variances and the least skewness of an axis, whichever is
        smaller, relative to the size. Near 0 a small change of the points may turn the frame by much.

    Examples
    --------
    >>> invariant_coordinates(torch.rand(1, 20, 3)).poses.shape
    torch.Size([1, 4, 4])
    """

    points: Tensor
    poses: Tensor
    margin: Tensor


def invariant_coordinates(points: Tensor, mask: Tensor | None = None, *, mirrors: bool = True) -> InvariantCoordinates:
    """Coordinates of each cloud along its principal axes, signs chosen by the third moments.

    They are the classical multidimensional scaling of the pairwise distances (Zhang et al., 2021), with a rule that
    settles the signs of the axes.

    Parameters
    ----------
    points : Tensor, shape (b, n, d)
    mask : bool Tensor, shape (b, n), optional
        Which points exist; all by default.
    mirrors : bool, default True
        Whether a cloud and its mirror image get the same coordinates. If not, frames are right-handed: the sign of the
        axis with the smallest skewness follows from the others.

    Returns
    -------
    InvariantCoordinates

    Examples
    --------
    >>> cloud = torch.rand(1, 20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> found = invariant_coordinates(cloud)
    >>> torch.allclose(invariant_coordinates(2 - cloud).points, found.points)
    True
    """
    mask = check_cloud(points, mask)
    d = points.shape[2]
    local, centre, size = centred(points, mask)
    scaled, count = local / size, mask.sum(1)[:, None].to(points)
    variances, axes = torch.linalg.eigh(scaled.mT @ scaled / count[..., None])  # ascending; axes are columns
    axes = axes.flip(-1)
    skew = (scaled @ axes).pow(3).sum(1) / count  # (b, d)
    signs = torch.where(skew < 0, -torch.ones_like(skew), torch.ones_like(skew))
    decisive = skew.abs().amin(1)
    if not mirrors:
        handed = torch.linalg.det(axes * signs[:, None])  # +1 or -1
        least = skew.abs().argmin(1, keepdim=True)
        signs = signs.scatter(1, least, signs.gather(1, least) * handed.sign()[:, None])
        decisive = skew.abs().sort(1).values[:, 1]
    frame = (axes * signs[:, None]).mT  # rows are axes
    gaps = variances.diff(dim=1).amin(1)
    poses = torch.eye(d + 1, dtype=points.dtype, device=points.device).repeat(len(points), 1, 1)
    poses[:, :d, :d] = frame
    poses[:, :d, d] = -(frame @ centre.mT)[..., 0]
    return InvariantCoordinates(local @ frame.mT, poses, torch.minimum(gaps, decisive))


def local_frames(
    points: Tensor, directions: Tensor | None = None, mask: Tensor | None = None, *, mirrors: bool = False
) -> tuple[Tensor, Tensor]:
    """A frame for each point, and all other points seen in it (Kofinas, Nagaraja and Gavves, 2021).

    Parameters
    ----------
    points : Tensor, shape (b, n, d)
    directions : Tensor, shape (b, n, m, d), optional
        Vectors that turn with the cloud, such as velocities: m = d - 1 of them, or d with ``mirrors``. By default sums
        of the differences to all other points, weighted by functions of their distance.
    mask : bool Tensor, shape (b, n), optional
        Which points exist; all by default.
    mirrors : bool, default False
        Whether frames follow mirrors too. If not, the last axis completes a right-handed frame.

    Returns
    -------
    frames : Tensor, shape (b, n, d, d)
        Rows are the axes of each point's frame. Directions that vanish or are parallel give zero or unstable axes.
    relative : Tensor, shape (b, n, n, d)
        ``relative[:, i, j]`` is the difference from point i to point j in the frame of i; it is the same for every
        rotation and shift of the cloud.

    Examples
    --------
    >>> cloud = torch.rand(1, 7, 2, dtype=torch.float64)
    >>> turned = torch.stack([-cloud[..., 1], cloud[..., 0]], -1)
    >>> torch.allclose(local_frames(cloud)[1], local_frames(turned)[1])
    True
    """
    mask = check_cloud(points, mask)
    d = points.shape[2]
    points = torch.where(mask[..., None], points, torch.zeros_like(points))
    difference = points[:, None] - points[:, :, None]  # (b, i, j, d)
    there = mask[:, None, :] & mask[:, :, None]
    difference = torch.where(there[..., None], difference, torch.zeros_like(difference))
    wanted = d if mirrors else d - 1
    if directions is None:
        directions = _default_directions(difference, there, wanted)
    if directions.shape != (*points.shape[:2], wanted, d):
        raise ValueError(
            f"directions must be {(*points.shape[:2], wanted, d)} for d = {d} and mirrors = {mirrors}, got "
            f"{tuple(directions.shape)}"
        )
    axes: list[Tensor] = []
    for vector in directions.unbind(2):
        for axis in axes:
            vector = vector - (vector * axis).sum(-1, keepdim=True) * axis
        axes.append(vector / vector.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(points.dtype).tiny))
    if not mirrors:
        last = torch.linalg.cross(*axes) if d == 3 else torch.stack([-axes[0][..., 1], axes[0][..., 0]], dim=-1)
        axes.append(last)
    frames = torch.stack(axes, dim=2)  # (b, n, d, d)
    return frames, torch.einsum("bide,bije->bijd", frames, difference)


def _default_directions(difference: Tensor, there: Tensor, count: int) -> Tensor:
    """Weighted sums of differences (b, i, j, d) over j: (b, i, count, d)."""
    square = difference.square().sum(-1)
    scale = (square * there).sum((1, 2), keepdim=True) / there.sum((1, 2), keepdim=True).clamp(min=1)
    ratio = square / scale.clamp(min=torch.finfo(square.dtype).tiny)
    weights = [(-ratio * steep).exp() * there for steep in (1.0, 4.0, 16.0)[:count]]
    return torch.stack([torch.einsum("bij,bijd->bid", weight, difference) for weight in weights], dim=2)
