"""Canonical coordinates: resample images so that a one-parameter group becomes a shift.

============ ============================ =====================================================================
rotation     polar                        the angle is shifted
size         log-polar                    the logarithm of the radius is shifted as well
shear        (x / y, y)                   ``x -> x + s y`` shifts x / y by s
============ ============================ =====================================================================

The pose relative to a reference is then the peak of a correlation, over all shifts at once by the FFT (Tai, Bailis and
Valiant 2019, "Equivariant Transformer Networks", have these coordinates). Their coordinates of perspective are left
out: they found tilts, but on digits gained nothing.
"""

import math

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import pad

from unpose.adapt.canonicalizers import Canonicalizer, are_different, as_images, pose_from_scores
from unpose.adapt.frames import from_cell
from unpose.adapt.poses import Pose
from unpose.groups import Group, parse_continuous, rotation, scaling
from unpose.images import sample

_RATIO = 3.0
"""Log-polar coordinates cover radii from the largest down to this fraction of it, and beyond it by as much."""
_ROWS, _SLOPES = 24, 65
"""Samples of (y, x / y) for shears; slopes x / y go from -2 to 2."""
_LARGEST_SHEAR = 0.8


def polar(images: Tensor, angles: int = 64, radii: int = 16, *, logarithmic: bool = False) -> Tensor:
    """Images in polar coordinates about the image centre.

    Parameters
    ----------
    images : (n, c, h, w) tensor
        Images.
    angles, radii : int, default 64 and 16
        Samples along both coordinates.
    logarithmic : bool, default False
        Whether radii grow geometrically, so that a change of size becomes a shift.

    Returns
    -------
    (n, c, angles, radii) tensor
        Row i is the ray at ``2 pi i / angles``, counter-clockwise from the right.

    Examples
    --------
    >>> image = torch.rand(1, 1, 17, 17)
    >>> turned = polar(image.rot90(1, (2, 3)), angles=8)
    >>> torch.allclose(turned, polar(image, angles=8).roll(2, dims=2), atol=1e-5)
    True
    """
    largest = (min(images.shape[-2:]) - 1) / 2
    angle = torch.arange(angles, dtype=images.dtype, device=images.device) * (2 * math.pi / angles)
    place = torch.arange(radii, dtype=images.dtype, device=images.device)
    radius = largest * (_RATIO ** (place / (radii - 1) - 1) if logarithmic else (place + 0.5) / radii)
    x, y = angle.cos()[:, None] * radius, -angle.sin()[:, None] * radius
    return sample(images, torch.stack([x, y], dim=-1)[None].expand(1, -1, -1, -1))


class _Coordinates(Canonicalizer):
    templates: Tensor

    def __init__(self, references: Tensor, angles: int, radii: int, scales: bool) -> None:
        super().__init__()
        self.angles, self.radii, self.scales = angles, radii, scales
        maps = self._maps(references)
        self.register_buffer("templates", maps / maps.flatten(1).norm(dim=1)[:, None, None, None].clamp(min=1e-12))

    def _maps(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c, angles, radii) with mean zero, weighted by the area that each sample stands for."""
        maps = polar(images, self.angles, self.radii, logarithmic=self.scales)
        weight = torch.arange(self.radii, dtype=maps.dtype, device=maps.device)
        weight = _RATIO ** (weight / (self.radii - 1) - 1) if self.scales else ((weight + 0.5) / self.radii).sqrt()
        return (maps - (maps * weight).mean((1, 2, 3), keepdim=True) / weight.mean()) * weight

    def forward(self, images: Tensor) -> Pose:
        maps = self._maps(images)
        maps = maps / maps.flatten(1).norm(dim=1)[:, None, None, None].clamp(min=1e-12)
        size = 2 * self.radii if self.scales else self.radii  # shifts of the radius do not wrap around
        spectrum = torch.fft.rfft2(maps.mT, s=(size, self.angles))  # (n, c, radii, frequencies)
        reference = torch.fft.rfft2(self.templates.to(maps).mT, s=(size, self.angles))
        product = torch.einsum("ncrf,mcrf->nmrf", spectrum, reference.conj())
        scores = torch.fft.irfft2(product, s=(size, self.angles)).amax(1)  # (n, size, angles), the best template
        shifts = [0, *(sign * k for k in range(1, self.radii // 2) for sign in (1, -1))] if self.scales else [0]
        curve, chosen = scores[:, shifts].max(1)  # (n, angles)
        best = curve.argmax(1, keepdim=True)
        fraction = from_cell(*(curve.gather(1, (best + step) % self.angles) for step in (-1, 0, 1)))
        fraction = torch.zeros_like(curve).scatter(1, best, fraction)
        grid = torch.arange(self.angles, dtype=maps.dtype, device=maps.device)
        elements = rotation(-(grid + fraction) * (2 * math.pi / self.angles))  # (n, angles, 3, 3)
        if self.scales:
            step = math.log(_RATIO) / (self.radii - 1)
            log_scale = torch.tensor(shifts, dtype=maps.dtype, device=maps.device)[chosen] * step
            elements = elements @ scaling((-log_scale).exp())
        different = are_different(rotation(-grid * (2 * math.pi / self.angles)))
        return pose_from_scores(curve, elements, scores[:, 0, 0], different)


class _ShearCoordinates(Canonicalizer):
    """Shears relative to references."""

    templates: Tensor

    def __init__(self, references: Tensor) -> None:
        super().__init__()
        self.register_buffer("templates", self._maps(references))

    def _maps(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c, slopes, rows) of length 1, weighted by the area that each sample stands for."""
        half = (min(images.shape[-2:]) - 1) / 2
        slope = torch.linspace(-2, 2, _SLOPES, dtype=images.dtype, device=images.device)[:, None]
        y = (torch.arange(_ROWS, dtype=images.dtype, device=images.device) + 0.5) * (2 / _ROWS) - 1
        x = slope * y
        # dx dy = |y| d(slope) dy, and maps are multiplied in pairs. The mean is not subtracted: the weights would then
        # show in every map, at the same place.
        weight = y.abs().sqrt() * (x.abs() <= 1)
        maps = sample(images, half * torch.stack([x, y.expand_as(x)], dim=-1)[None]) * weight
        return maps / maps.flatten(1).norm(dim=1)[:, None, None, None].clamp(min=1e-12)

    def forward(self, images: Tensor) -> Pose:
        step, size = 4 / (_SLOPES - 1), 2 * _SLOPES
        spectrum, reference = (torch.fft.rfft(m, size, dim=2) for m in (self._maps(images), self.templates.to(images)))
        product = torch.einsum("ncfy,mcfy->nmf", spectrum, reference.conj())
        scores = torch.fft.irfft(product, size, dim=2).amax(1)  # (n, size), the best template
        cells = math.ceil(_LARGEST_SHEAR / step)
        curve = scores.roll(cells, 1)[:, : 2 * cells + 1]  # shifts from -cells to cells
        best = curve.argmax(1, keepdim=True)
        around = pad(curve, (1, 1), mode="replicate")
        fraction = from_cell(*(around.gather(1, best + place) for place in range(3)))
        grid = torch.arange(-cells, cells + 1, dtype=curve.dtype, device=curve.device)
        elements = torch.eye(3, dtype=curve.dtype, device=curve.device).repeat(*curve.shape, 1, 1)
        elements[..., 0, 1] = -(grid + torch.zeros_like(curve).scatter(1, best, fraction)) * step
        different = (grid[:, None] - grid).abs() * step > _LARGEST_SHEAR / 3
        return pose_from_scores(curve, elements, curve[:, cells], different)


def coordinates(
    group: str | Group, references: ArrayLike | Tensor, *, angles: int = 72, radii: int = 16
) -> Canonicalizer:
    """Canonicalize in coordinates in which the group is a shift, which the FFT searches at once.

    For images that are centred: shifts of the object are not searched. "shear" needs a dark ground.

    Parameters
    ----------
    group : {"so2", "similarity", "shear"}
        "so2" searches rotations, "similarity" also changes of size, by up to a factor of about 1.7. "shear" searches
        ``x -> x + s y`` for s up to 0.8, which is 39 degrees.
    references : (m, h, w) or (m, h, w, c) array, or (m, c, h, w) tensor
        Upright images or prototypes of them.
    angles, radii : int, default 72 and 16
        Samples along both polar coordinates.

    Returns
    -------
    Canonicalizer

    Examples
    --------
    >>> from unpose.images import warp
    >>> upright = torch.zeros(1, 1, 33, 33); upright[..., 8:25, 14:19] = 1; upright[..., 20:25, 14:25] = 1
    >>> pose = coordinates("so2", upright)(warp(upright, rotation(torch.tensor(0.5))))
    >>> round(float(torch.atan2(pose.element[0, 0, 1], pose.element[0, 0, 0])), 1)
    -0.5
    """
    if group == "shear":
        return _ShearCoordinates(as_images(references).float())
    parsed = parse_continuous(group)
    if parsed.name not in ("so2", "similarity"):
        raise ValueError(f"canonical coordinates exist here for so2, similarity and shear, got {parsed}")
    if angles < 8 or radii < 4:
        raise ValueError(f"at least 8 angles and 4 radii are needed, got {angles} and {radii}")
    return _Coordinates(as_images(references).float(), angles, radii, parsed.scales)
