"""The latitude-longitude grid: directions, areas, and rotation of images on the sphere.

Convention
----------
Images are ``(b, c, h, w)``: row i has the colatitude ``pi (i + 1/2) / h`` from the north pole, column j the longitude
``2 pi (j + 1/2) / w``. Directions are ``(sin t cos p, sin t sin p, cos t)``; a rotation about z moves columns
cyclically.
"""

import math

import torch
from torch import Tensor

from unpose.images import sample

_BORDER = 3
"""Pixels by which an image is continued over the poles and around the globe before it is interpolated."""


def check_panorama(images: Tensor) -> tuple[int, int]:
    """Check images (b, c, h, w) that go around the globe, and return h and w."""
    if images.ndim != 4:
        raise ValueError(f"images on the sphere must be (b, c, h, w), got shape {tuple(images.shape)}")
    h, w = images.shape[-2:]
    if h < 4 or w < 4 or w % 2:
        raise ValueError(
            f"a latitude-longitude image needs at least 4 rows and an even number of columns, got {h} x {w}"
        )
    if not 1.5 <= w / h <= 3:
        raise ValueError(
            f"a latitude-longitude image covers 180 by 360 degrees and is about twice as wide as high, got {h} x {w}; "
            "an image that does not wrap around is not on the sphere"
        )
    return h, w


def directions(h: int, w: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Unit vectors of the pixels, (h, w, 3).

    Parameters
    ----------
    h, w : int
        Rows and columns.
    dtype : torch.dtype, default torch.float32

    Returns
    -------
    Tensor, shape (h, w, 3)

    Examples
    --------
    >>> directions(4, 8).norm(dim=-1).allclose(torch.ones(4, 8))
    True
    """
    colatitude = (torch.arange(h, dtype=torch.float64) + 0.5) * (math.pi / h)
    longitude = (torch.arange(w, dtype=torch.float64) + 0.5) * (2 * math.pi / w)
    sine, cosine = colatitude.sin()[:, None], colatitude.cos()[:, None]
    vectors = torch.stack([sine * longitude.cos(), sine * longitude.sin(), cosine.expand(h, w)], dim=-1)
    return vectors.to(dtype)


def areas(h: int, w: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Areas of the pixels on the unit sphere by rows, (h, 1); the whole grid sums to 4 pi.

    Parameters
    ----------
    h, w : int
        Rows and columns.
    dtype : torch.dtype, default torch.float32

    Returns
    -------
    Tensor, shape (h, 1)

    Examples
    --------
    >>> round(float(areas(16, 32).sum() * 32 / torch.pi), 5)
    4.0
    """
    edges = torch.cos(torch.arange(h + 1, dtype=torch.float64) * (math.pi / h))
    return ((edges[:-1] - edges[1:]) * (2 * math.pi / w))[:, None].to(dtype)


def sphere_mean(images: Tensor) -> Tensor:
    """The mean over the sphere, weighted by area: (b, c, h, w) -> (b, c).

    Parameters
    ----------
    images : Tensor, shape (b, c, h, w)

    Returns
    -------
    Tensor, shape (b, c)

    Examples
    --------
    >>> sphere_mean(torch.ones(1, 2, 8, 16)).round(decimals=4)
    tensor([[1., 1.]])
    """
    h, w = check_panorama(images)
    return (images * areas(h, w, images.dtype).to(images.device)).sum((2, 3)) / (4 * math.pi)


def rotate(images: Tensor, rotation: Tensor) -> Tensor:
    """Rotate images on the sphere: the value at a direction d is the given image's value at ``rotation^-1 d``.

    Parameters
    ----------
    images : Tensor, shape (b, c, h, w)
    rotation : Tensor, shape (3, 3) or (4, 4)
        An element of ``so3``.

    Returns
    -------
    Tensor, shape (b, c, h, w)

    Notes
    -----
    Rotations about z by whole columns are exact; others are interpolated once, cubically, across the poles and around
    the globe.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> panorama = torch.rand(1, 1, 8, 16)
    >>> turn = parse("so3").exp(torch.tensor([0, 0, torch.pi / 8]))
    >>> torch.equal(rotate(panorama, turn), panorama.roll(1, -1))
    True
    """
    h, w = check_panorama(images)
    linear = rotation[:3, :3].double().cpu()
    if linear.shape != (3, 3):
        raise ValueError(f"a rotation must be (3, 3) or (4, 4), got shape {tuple(rotation.shape)}")
    columns = math.atan2(float(linear[1, 0]), float(linear[0, 0])) * w / (2 * math.pi)
    if float(linear[2, 2]) > 1 - 1e-10 and abs(columns - round(columns)) < 1e-5:
        return images.roll(round(columns), -1)
    source = directions(h, w, torch.float64) @ linear  # rows times R are R^-1 d
    colatitude = torch.atan2(source[..., :2].norm(dim=-1), source[..., 2])
    longitude = torch.atan2(source[..., 1], source[..., 0]) % (2 * math.pi)
    x = longitude * (w / (2 * math.pi)) - 0.5 - (w - 1) / 2
    y = colatitude * (h / math.pi) - 0.5 - (h - 1) / 2
    points = torch.stack([x, y], dim=-1).to(images).reshape(1, -1, 2).expand(len(images), -1, 2)
    values = sample(_continued(images), points)  # (b, c, h * w)
    return values.reshape(images.shape)


def _continued(images: Tensor) -> Tensor:
    """The image with a border: beyond a pole the other side of the globe appears."""
    w = images.shape[-1]
    across = images.roll(w // 2, -1)
    tall = torch.cat([across[..., :_BORDER, :].flip(-2), images, across[..., -_BORDER:, :].flip(-2)], dim=-2)
    return torch.cat([tall[..., -_BORDER:], tall, tall[..., :_BORDER]], dim=-1)
