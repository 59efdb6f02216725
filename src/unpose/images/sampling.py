"""The one place that resamples pixels: Keys cubic convolution, warps by poses, exact quarter turns and mirrors.

Convention
----------
Images are ``(n, c, h, w)`` tensors (``(n, h, w)`` and ``(h, w)`` are taken as images without channels). Points are
``(x, y)`` in pixels from the image centre, x right, y down: column j lies at ``x = j - (w - 1) / 2``, row i at
``y = i - (h - 1) / 2``. Outside the image everything is zero.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from unpose.compiled import is_traced_or_transformed
from unpose.groups import inverse

_Tap = tuple[Tensor, Tensor, Tensor]
"""Index, weight, slope of the weight."""

_FAR = 1e6
"""A coordinate outside every image: where a homography sends what lies behind the camera."""


def pixel_grid(
    shape: tuple[int, int], dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """The pixel centres of an image of this (height, width): (h, w, 2) points (x, y)."""
    height, width = shape
    y = torch.arange(height, dtype=dtype, device=device) - (height - 1) / 2
    x = torch.arange(width, dtype=dtype, device=device) - (width - 1) / 2
    return torch.stack([x.expand(height, width), y[:, None].expand(height, width)], dim=-1)


def sample(images: Tensor, points: Tensor) -> Tensor:
    """Values of images between their pixels by Keys cubic convolution with a = -1/2 (section 2.1).

    Parameters
    ----------
    images : (n, c, h, w)
    points : (n, k, ..., 2)
        One image serves many sets of points and one set of points serves many images: n may be 1 in either.

    Returns
    -------
    (n, c, k, ...) tensor, differentiable twice in images and points.

    Notes
    -----
    ``[x o tau]_pq = sum_kl x_kl phi(tau_pq0 - k) phi(tau_pq1 - l)``. Third-order accurate, and exact on pixel centres.
    Cost: 16 reads per value. Points within rounding of a pixel centre are taken to lie on it, so that quarter turns,
    mirrors and whole-pixel shifts move values without changing them; gradients are untouched.
    """
    if (compiled := _compiled(images, points)) is not None:
        return compiled(images, points.flatten(1, -2), gradient=False)[0].unflatten(-1, points.shape[1:-1])
    flat, rows, columns = _prepare(images, points)
    total = torch.zeros((), dtype=images.dtype, device=images.device)
    for row, row_weight, _ in rows:
        for column, column_weight, _ in columns:
            values = _take(flat, row + column)  # (n, c, k)
            total = total + values * (row_weight * column_weight)[:, None]
    return total.unflatten(-1, points.shape[1:-1])


def sample_with_gradient(images: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Like :func:`sample`, and the derivative of each value along x and y: (n, c, ...) and (n, c, ..., 2).

    One pass over the same 16 reads, for solvers that bring their own chain rule.
    """
    shape = points.shape[1:-1]
    if (compiled := _compiled(images, points)) is not None:
        value, slope = compiled(images, points.flatten(1, -2), gradient=True)
        return value.unflatten(-1, shape), slope.unflatten(-2, shape)
    flat, rows, columns = _prepare(images, points)
    value = along_x = along_y = torch.zeros((), dtype=images.dtype, device=images.device)
    for row, row_weight, row_slope in rows:
        line = line_slope = torch.zeros((), dtype=images.dtype, device=images.device)
        for column, column_weight, column_slope in columns:
            values = _take(flat, row + column)
            line = line + values * column_weight[:, None]
            line_slope = line_slope + values * column_slope[:, None]
        value = value + line * row_weight[:, None]
        along_x = along_x + line_slope * row_weight[:, None]
        along_y = along_y + line * row_slope[:, None]
    return value.unflatten(-1, shape), torch.stack([along_x, along_y], dim=-1).unflatten(-2, shape)


def warp(images: Tensor, dst_from_src: Tensor, shape: tuple[int, int] | None = None) -> Tensor:
    """The images as seen in destination coordinates: the value at p is sampled at ``inverse(dst_from_src) p``.

    Parameters
    ----------
    images : (n, c, h, w), (n, h, w) or (h, w)
    dst_from_src : (3, 3) or (n, 3, 3)
        A single pose is shared by all images, a single image is seen from all poses.
    shape : (height, width), optional
        Of the result; the images' own by default. Source and destination centres coincide.

    Returns
    -------
    Tensor like ``images`` with the batch of the two broadcast and the last axes of ``shape``.

    Notes
    -----
    One pose shared by many images costs 16 sequential reads of whole rows of images instead of scattered ones; that
    path is taken on the CPU when no gradient is asked for.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> image = torch.eye(3)
    >>> torch.equal(warp(image, parse("c4").elements[1].float()), quarter_turn(image))
    True
    """
    if images.ndim not in (2, 3, 4):
        raise ValueError(f"images must be (n, c, h, w), (n, h, w) or (h, w), got shape {tuple(images.shape)}")
    if dst_from_src.ndim not in (2, 3) or dst_from_src.shape[-2:] != (3, 3):
        raise ValueError(f"poses must be (3, 3) or (n, 3, 3), got shape {tuple(dst_from_src.shape)}")
    _check_floating(images)
    if images.ndim < 4:
        single = images.ndim == 2 and dst_from_src.ndim == 2
        batch = images[None] if images.ndim == 2 else images  # (n, h, w)
        warped = warp(batch[:, None], dst_from_src, shape)[:, 0]
        return warped[0] if single else warped
    shape = (images.shape[-2], images.shape[-1]) if shape is None else shape
    poses = dst_from_src if dst_from_src.ndim == 3 else dst_from_src[None]
    if images.dtype in (torch.float16, torch.bfloat16):  # which cannot tell pixels apart by their coordinates
        return warp(images.float(), poses, shape).to(images.dtype)
    points = source_points(poses.to(images.dtype), shape)
    is_plain = _needs_gradient(images, points) or is_traced_or_transformed()
    if images.device.type == "cpu" and poses.shape[0] == 1 < images.shape[0] and not is_plain:
        return _sample_shared(images, points)
    return sample(images, points)


def source_points(dst_from_src: Tensor, shape: tuple[int, int]) -> Tensor:
    """Where the pixels of a destination image of this shape come from: (n, 3, 3) -> (n, h, w, 2) points."""
    grid = pixel_grid(shape, dst_from_src.dtype, dst_from_src.device).flatten(0, 1)  # (h * w, 2)
    src_from_dst = inverse(dst_from_src)
    src_from_dst = src_from_dst / src_from_dst[:, 2:, 2:]
    points = grid @ src_from_dst[:, :2, :2].mT + src_from_dst[:, None, :2, 2]  # (n, h * w, 2)
    tilt = src_from_dst[:, 2, :2]
    # On a GPU to look would be to wait, a tracer has nothing to look at; a depth of one divides to the same bits.
    if is_traced_or_transformed() or tilt.requires_grad or tilt.device.type != "cpu" or tilt.any():
        depth = grid @ tilt[:, :, None] + 1  # (n, h * w, 1)
        ahead = depth > 1e-3
        points = torch.where(ahead, points / torch.where(ahead, depth, torch.ones_like(depth)), _FAR)
    return points.unflatten(1, shape)


def displacements(nodes: Tensor, shape: tuple[int, int]) -> Tensor:
    """A smooth field between displacements at the nodes of a coarse grid over the image: (n, k, l, 2) -> (n, h, w, 2).

    Added to :func:`source_points` it bends an image. Cubic, the outermost nodes on the outermost pixels.
    """
    field = interpolate(nodes.permute(0, 3, 1, 2), size=shape, mode="bicubic", align_corners=True)
    return field.permute(0, 2, 3, 1)


def quarter_turn(images: Tensor, turns: int = 1) -> Tensor:
    """Turn (..., h, w) images counter-clockwise by quarters, exactly: no value changes, it only moves."""
    return torch.rot90(images, turns, dims=(-2, -1))


def mirror(images: Tensor) -> Tensor:
    """Mirror (..., h, w) images left to right, exactly."""
    return images.flip(-1)


def _check_floating(images: Tensor) -> None:
    if not images.is_floating_point():
        raise ValueError(f"images must be floating point, got {images.dtype}; divide integers by their full scale")


def _compiled(images: Tensor, points: Tensor) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """Check the shapes; where no gradient is asked for there is a compiled loop for the CPU and one for CUDA."""
    if images.ndim != 4 or points.shape[-1] != 2 or points.ndim < 3:
        raise ValueError(
            "images must be (n, c, h, w) and points (n, k, ..., 2), got "
            f"{tuple(images.shape)} and {tuple(points.shape)}"
        )
    _check_floating(images)
    if not (images.shape[0] == points.shape[0] or 1 in (images.shape[0], points.shape[0])):
        raise ValueError(f"{len(images)} images and {len(points)} sets of points do not go together")
    if images.dtype != points.dtype or images.device != points.device:
        raise ValueError(
            f"images and points must agree in type and device, got {images.dtype} on {images.device} "
            f"and {points.dtype} on {points.device}"
        )
    if images.dtype not in (torch.float32, torch.float64) or _needs_gradient(images, points):
        return None
    if not images.shape[0] or not points.shape[0] or is_traced_or_transformed():
        return None
    return _compiled_for(images.device.type)


@cache
def _compiled_for(device: str) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The compiled loop for a kind of device, imported when it is first used: compilers are slow to import, a CPU build
    of torch has no Triton, and without either the plain version does the work."""
    compiler, module = {"cpu": ("numba", "keys_cpu"), "cuda": ("triton", "keys_cuda")}.get(device, ("", ""))
    if not compiler or find_spec(compiler) is None:
        return None
    return import_module(f"unpose.images.kernels.{module}").sample


def _prepare(images: Tensor, points: Tensor) -> tuple[Tensor, list[_Tap], list[_Tap]]:
    """Flat images and the four taps along each axis; row taps carry their offset into the flat image."""
    height, width = images.shape[-2:]
    x, y = points.flatten(1, -2).unbind(-1)  # (n, k) each
    columns = _taps(x + (width - 1) / 2, width)
    rows = [(index * width, weight, slope) for index, weight, slope in _taps(y + (height - 1) / 2, height)]
    n = points.shape[0] if images.shape[0] == 1 else images.shape[0]  # either may be none at all
    return images.flatten(-2).expand(n, -1, -1), rows, columns


def _taps(position: Tensor, size: int) -> list[_Tap]:
    """The four pixels around each position (n, k) along one axis: index, weight and the weight's slope.

    Pixels outside get a zero weight and slope, and an index inside so that reading them is harmless.
    """
    rounded = position.detach().round()
    # Twice the rounding error of a coordinate of this size: below it the point is meant to be on the pixel.
    on_pixel = (position.detach() - rounded).abs() <= 2 * size * torch.finfo(position.dtype).eps
    position = torch.where(on_pixel, position + (rounded - position).detach(), position)
    base = position.detach().floor().clamp(-4, size + 4)
    t = (position - base).clamp(-1, 2)  # the clamp only touches points far outside, whose weights are zero
    first = base.long()
    weights = (
        ((-0.5 * t + 1) * t - 0.5) * t,
        (1.5 * t - 2.5) * t * t + 1,
        ((-1.5 * t + 2) * t + 0.5) * t,
        (0.5 * t - 0.5) * t * t,
    )
    slopes = (
        (-1.5 * t + 2) * t - 0.5,
        (4.5 * t - 5) * t,
        (-4.5 * t + 4) * t + 0.5,
        (1.5 * t - 1) * t,
    )
    taps = []
    for offset, weight, slope in zip((-1, 0, 1, 2), weights, slopes, strict=True):
        index = first + offset
        inside = (index >= 0) & (index < size)
        taps.append((index.clamp(0, size - 1), weight * inside, slope * inside))
    return taps


def _take(flat: Tensor, index: Tensor) -> Tensor:
    """flat (n, c, h * w), index (n or 1, k) -> (n, c, k)"""
    n, channels, _ = flat.shape
    return flat.gather(2, index[:, None].expand(n, channels, -1))


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _sample_shared(images: Tensor, points: Tensor) -> Tensor:
    """:func:`sample` for one set of points (1, h, w, 2): a weighted sum of 16 pixel rows, each a row of all images."""
    n, channels = images.shape[:2]
    _, rows, columns = _prepare(images, points)
    index = torch.stack([row + column for row, _, _ in rows for column, _, _ in columns], dim=-1)[0]  # (k, 16)
    weight = torch.stack([rw * cw for _, rw, _ in rows for _, cw, _ in columns], dim=-1)[0]
    pixels = images.reshape(n * channels, -1).T.contiguous()  # (h * w, n * c)
    summed = torch.nn.functional.embedding_bag(index, pixels, per_sample_weights=weight, mode="sum")  # (k, n * c)
    return summed.T.reshape(n, channels, *points.shape[1:-1])
