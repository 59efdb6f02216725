"""Linear parts of continuous groups: samples by the Haar measure, and coordinates that hold everywhere.

A linear map with a positive determinant is a rotation after a symmetric positive matrix, its polar factors:
``A = R(turn) exp(log_scale I + stretch [[1, 0], [0, -1]] + shear [[0, 1], [1, 0]])``. The factors are unique, and they
exist for every such map, unlike the logarithm of A. With ``r = hypot(stretch, shear)`` the Haar measure is
``sinh(2 r) / (2 r)  d turn  d log_scale  d stretch  d shear``.
"""

import math

import torch
from torch import Tensor

from unpose.groups import poses
from unpose.groups.names import Group, parse_affine

_PLASTIC = 1.2207440846057596
"""The root of x^4 = x + 1; its powers make a sequence of points that fills a cube of three dimensions evenly."""


def haar_samples(
    group: str | Group,
    n: int,
    *,
    offset: Tensor | None = None,
    max_scale: float = 1.5,
    max_stretch: float = 1.5,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw the linear parts of elements of a group evenly by its Haar measure, within bounds of scale and stretch.

    Angles are equally spaced, the other coordinates follow a sequence of low discrepancy. For ``"se2"`` this gives the
    cyclic group with n elements, for ``"se2+mirror"`` the dihedral group with n elements.

    Parameters
    ----------
    group : str or Group
        A continuous group of affine maps, such as ``"se2"``, ``"similarity"`` or ``"affine+mirror"``.
    n : int
        Number of elements; even if the group has the mirror.
    offset : Tensor of shape (4,), optional
        Shifts all points of the unit cube from which the elements are made, modulo one. If it is drawn uniformly, every
        element has the distribution of the Haar measure. Without it, the elements are always the same.
    max_scale : float, default 1.5
        Largest scale factor; the smallest is its inverse.
    max_stretch : float, default 1.5
        Largest ratio by which an element lengthens one axis and shortens the other.
    dtype : torch.dtype, default torch.float32
        Type of the result.
    device : torch.device or str, optional
        Device of the result; by default that of the offset.

    Returns
    -------
    Tensor, shape (n, 3, 3)
        Poses that leave the image centre where it is.

    Notes
    -----
    Scales and stretches are unbounded, so no uniform distribution over all of them exists. Within the bounds the
    density is that of the Haar measure: multiplying by an element of the group changes it only near the bounds.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> torch.allclose(haar_samples("se2", 4), parse("c4").elements.float(), atol=1e-6)
    True
    >>> haar_samples("affine", 16).shape
    torch.Size([16, 3, 3])
    """
    group = parse_affine(group)
    if n < 1 or (group.mirrored and n % 2):
        raise ValueError(f"n must be {'even and ' if group.mirrored else ''}at least 1, got {n}")
    for bound, value in (("max_scale", max_scale), ("max_stretch", max_stretch)):
        if not 1 <= value < math.inf:
            raise ValueError(f"{bound} must be at least 1 and finite, got {value}")
    if offset is not None and device is None:
        device = offset.device
    count = n // 2 if group.mirrored else n
    place = torch.arange(count, dtype=torch.float64, device=device)
    steps = (1 / count, *(_PLASTIC**-power for power in (1, 2, 3)))
    begin = (offset if offset is not None else place.new_zeros(4)).to(place).unbind()
    turn, scale, radius, direction = ((place * step + b) % 1.0 for step, b in zip(steps, begin, strict=True))
    elements = torch.eye(3, dtype=torch.float64, device=device).expand(count, 3, 3)
    if group.turns:
        elements = elements @ poses.rotation(2 * math.pi * turn)
    if group.scales:
        elements = elements @ poses.scaling(max_scale ** (2 * scale - 1))
    if group.deforms:
        # The density sinh(2 r) of the radius has the distribution function (cosh(2 r) - 1) / (cosh(2 r_max) - 1), and
        # 2 r_max is the logarithm of max_stretch.
        twice = torch.acosh(1 + radius * (math.cosh(math.log(max_stretch)) - 1))
        ratio = (twice / 2).exp()
        along = torch.stack([ratio, 1 / ratio, torch.ones_like(ratio)], dim=-1)
        axis = poses.rotation(math.pi * direction)
        elements = elements @ (axis * along[:, None, :]) @ axis.mT
    if group.mirrored:
        elements = torch.cat([elements, elements @ poses.reflection(torch.float64, device)])
    return elements.to(dtype)


def polar_coordinates(group: str | Group, elements: Tensor) -> Tensor:
    """Coordinates of affine elements that are defined and continuous everywhere, by polar factors.

    A shift has two, x and y; a turn two, its cosine and sine; then log scale, stretch and shear, and -1 for elements
    that mirror or 1 for others: as far as the group has them. Unlike the logarithm, they do not jump at half a turn
    and they exist for all affine maps.

    Parameters
    ----------
    group : str or Group
        A continuous group of affine maps.
    elements : Tensor, shape (..., 3, 3)
        Elements of the group.

    Returns
    -------
    Tensor, shape (..., k)
        k is 2 for ``"translation"``, 4 for ``"se2"``, 5 for ``"similarity"``, 7 for ``"affine"``, and one more with the
        mirror.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> shear = parse("affine").exp(torch.tensor([0.0, 0.0, 0.0, 0.1, 0.2, 0.3]))
    >>> polar_coordinates("affine", shear)
    tensor([0.0000, 0.0000, 1.0000, 0.0000, 0.1000, 0.2000, 0.3000])
    """
    group = parse_affine(group)
    if elements.shape[-2:] != (3, 3):
        raise ValueError(f"poses must end in (3, 3), got shape {tuple(elements.shape)}")
    a, b, c, d = elements[..., :2, :2].flatten(-2).unbind(-1)  # [[a, b], [c, d]]
    sign = torch.ones_like(a)
    if group.mirrored:
        sign = (a * d - b * c).sign()
        a, c = sign * a, sign * c  # the mirror is factored out on the right
    size = torch.hypot(a + d, b - c)  # the sum of the singular values
    cos, sin = (a + d) / size, (b - c) / size
    found = [elements[..., 0, 2], elements[..., 1, 2]]
    if group.turns:
        found += [cos, sin]
    if group.scales:
        found.append(0.5 * torch.log(a * d - b * c))
    if group.deforms:
        # The symmetric factor is R^-1 A; without its trace it is [[stretch, shear], [shear, -stretch]] up to a factor.
        stretch = (cos * a - sin * c - (sin * b + cos * d)) / size
        shear = (cos * b - sin * d + sin * a + cos * c) / size
        factor = _atanh_over(stretch**2 + shear**2)
        found += [factor * stretch, factor * shear]
    if group.mirrored:
        found.append(sign)
    return torch.stack(found, dim=-1)


def _atanh_over(square: Tensor) -> Tensor:
    """atanh(t) / t as a function of t^2, which is smooth at zero."""
    small = square < 1e-3
    t = torch.where(small, torch.full_like(square, 0.25), square).sqrt()
    return torch.where(small, 1 + square * (1 / 3 + square * (1 / 5 + square / 7)), torch.atanh(t) / t)
