"""Resamples pixels: Keys cubic convolution, warps by poses, exact quarter turns and mirrors.

All resampling in the package is done here. There are three implementations of the same sums: one in plain torch, which
is differentiable and can be traced; a numba kernel for the CPU; and a Triton kernel for CUDA. ``_kernel_for`` chooses.

Convention
----------
Images are ``(n, c, h, w)`` tensors (``(n, h, w)`` and ``(h, w)`` are images without channels). Points are ``(x, y)`` in
pixels from the image centre, x right, y down: column j lies at ``x = j - (w - 1) / 2``, row i at
``y = i - (h - 1) / 2``. Outside the frame an image is zero.
"""

from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from unpose.compiled import is_traced_or_transformed
from unpose.groups import inverse
from unpose.images.kernels import KERNELS

_Tap = tuple[Tensor, Tensor, Tensor]
"""One of the four pixels that contribute along an axis: index, weight, derivative of the weight."""

_FAR = 1e6
"""A coordinate outside every image, for points that a homography sends behind the camera."""


def pixel_grid(
    shape: tuple[int, int], dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """The coordinates of the pixel centres of an image.

    Parameters
    ----------
    shape : (int, int)
        Height and width.
    dtype : torch.dtype, default torch.float32
    device : torch.device or str, optional

    Returns
    -------
    Tensor, shape (h, w, 2)
        Points (x, y) in pixels from the centre.

    Examples
    --------
    >>> pixel_grid((1, 3))[0].tolist()
    [[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    """
    height, width = shape
    y = torch.arange(height, dtype=dtype, device=device) - (height - 1) / 2
    x = torch.arange(width, dtype=dtype, device=device) - (width - 1) / 2
    return torch.stack([x.expand(height, width), y[:, None].expand(height, width)], dim=-1)


def sample(images: Tensor, points: Tensor, *, plain: bool = False) -> Tensor:
    """Values of images between their pixels, by Keys cubic convolution with a = -1/2 (section 2.1).

    Parameters
    ----------
    images : Tensor, shape (n, c, h, w)
        With n = 1, one image is sampled at all sets of points.
    points : Tensor, shape (n, k, ..., 2)
        Points (x, y) in pixels from the centre. With n = 1, all images are sampled at the same points.
    plain : bool, default False
        Use plain torch operations even if no gradient is recorded: slower, but the same bits as with gradients.

    Returns
    -------
    Tensor, shape (n, c, k, ...)
        Twice differentiable in images and points.

    Notes
    -----
    ``[x o tau]_pq = sum_kl x_kl phi(tau_pq0 - k) phi(tau_pq1 - l)``. Third-order accurate, and exact on pixel centres.
    Cost: 16 reads per value. Points within rounding error of a pixel centre are moved onto it, so that quarter turns,
    mirrors and whole-pixel shifts move values without changing them; gradients are not affected.

    Examples
    --------
    >>> image = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).expand(4, 4)[None, None]
    >>> sample(image, torch.tensor([[[0.0, 0.0], [0.5, 0.5]]])).flatten()
    tensor([1.5000, 2.0000])
    """
    _check_images_and_points(images, points)
    if not plain and (kernel := _kernel_for(images, points)) is not None:
        return kernel(images, points.flatten(1, -2), gradient=False)[0].unflatten(-1, points.shape[1:-1])
    flat, rows, columns = _prepare(images, points)
    total = torch.zeros((), dtype=images.dtype, device=images.device)
    for row, row_weight, _ in rows:
        for column, column_weight, _ in columns:
            values = _take(flat, row + column)  # (n, c, k)
            total = total + values * (row_weight * column_weight)[:, None]
    return total.unflatten(-1, points.shape[1:-1])


def sample_with_gradient(images: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Like :func:`sample`, with the derivatives of each value along x and y.

    Both come from one pass over the same 16 pixels, for solvers that apply the chain rule themselves.

    Parameters
    ----------
    images : Tensor, shape (n, c, h, w)
    points : Tensor, shape (n, k, ..., 2)

    Returns
    -------
    values : Tensor, shape (n, c, k, ...)
    slopes : Tensor, shape (n, c, k, ..., 2)

    Examples
    --------
    >>> image = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).expand(4, 4)[None, None]
    >>> values, slopes = sample_with_gradient(image, torch.tensor([[[0.5, 0.5]]]))
    >>> values.item(), slopes.flatten().tolist()
    (2.0, [1.0, 0.0])
    """
    _check_images_and_points(images, points)
    shape = points.shape[1:-1]
    if (kernel := _kernel_for(images, points)) is not None:
        value, slope = kernel(images, points.flatten(1, -2), gradient=True)
        return value.unflatten(-1, shape), slope.unflatten(-2, shape)
    flat, rows, columns = _prepare(images, points)
    value = along_x = along_y = torch.zeros((), dtype=images.dtype, device=images.device)
    for row, row_weight, row_slope in rows:
        in_row = in_row_slope = torch.zeros((), dtype=images.dtype, device=images.device)
        for column, column_weight, column_slope in columns:
            values = _take(flat, row + column)
            in_row = in_row + values * column_weight[:, None]
            in_row_slope = in_row_slope + values * column_slope[:, None]
        value = value + in_row * row_weight[:, None]
        along_x = along_x + in_row_slope * row_weight[:, None]
        along_y = along_y + in_row * row_slope[:, None]
    return value.unflatten(-1, shape), torch.stack([along_x, along_y], dim=-1).unflatten(-2, shape)


def warp(images: Tensor, dst_from_src: Tensor, shape: tuple[int, int] | None = None) -> Tensor:
    """Transform images by poses: the value at a point p of the result is read at ``inverse(dst_from_src) p``.

    Parameters
    ----------
    images : Tensor, shape (n, c, h, w), (n, h, w) or (h, w)
        Floating point.
    dst_from_src : Tensor, shape (3, 3) or (n, 3, 3)
        Poses that map source to destination coordinates. One pose is applied to all images; one image is
        transformed by all poses.
    shape : (int, int), optional
        Height and width of the result, by default those of the images. The centres of images and result coincide.

    Returns
    -------
    Tensor, like ``images``
        With one entry per image or pose, whichever are more, and the height and width of ``shape``.

    Notes
    -----
    On the CPU, without gradients, one pose for many images reads the pixels of all images together, 16 sequential
    reads per value instead of scattered ones.

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
    if images.dtype in (torch.float16, torch.bfloat16):  # too coarse for coordinates
        return warp(images.float(), poses, shape).to(images.dtype)
    points = source_points(poses.to(images.dtype), shape)
    if images.device.type == "cpu" and poses.shape[0] == 1 < images.shape[0] and _needs_values_only(images, points):
        return _sample_shared(images, points)
    return sample(images, points)


def source_points(dst_from_src: Tensor, shape: tuple[int, int]) -> Tensor:
    """The source coordinates of the pixels of destination images: where :func:`warp` reads them.

    Parameters
    ----------
    dst_from_src : Tensor, shape (n, 3, 3)
    shape : (int, int)
        Height and width of the destination.

    Returns
    -------
    Tensor, shape (n, h, w, 2)
        Points (x, y). Points behind the camera of a homography are placed far outside the image.

    Examples
    --------
    >>> from unpose.groups import translation
    >>> source_points(translation(torch.tensor([[2.0, 0.0]])), (1, 1)).flatten().tolist()
    [-2.0, 0.0]
    """
    grid = pixel_grid(shape, dst_from_src.dtype, dst_from_src.device).flatten(0, 1)  # (h * w, 2)
    src_from_dst = inverse(dst_from_src)
    src_from_dst = src_from_dst / src_from_dst[:, 2:, 2:]
    points = grid @ src_from_dst[:, :2, :2].mT + src_from_dst[:, None, :2, 2]  # (n, h * w, 2)
    tilt = src_from_dst[:, 2, :2]
    # For affine poses the division is skipped: a depth of one divides to the same bits. On a GPU the test would wait
    # for the device, and under tracing there are no values to test.
    if is_traced_or_transformed() or tilt.requires_grad or tilt.device.type != "cpu" or tilt.any():
        depth = grid @ tilt[:, :, None] + 1  # (n, h * w, 1)
        in_front = depth > 1e-3
        points = torch.where(in_front, points / torch.where(in_front, depth, torch.ones_like(depth)), _FAR)
    return points.unflatten(1, shape)


def displacements(nodes: Tensor, shape: tuple[int, int]) -> Tensor:
    """Interpolate displacements between the nodes of a coarse grid over the image.

    Added to :func:`source_points`, the smooth field deforms an image elastically. Bicubic, with the outermost nodes on
    the outermost pixels.

    Parameters
    ----------
    nodes : Tensor, shape (n, k, l, 2)
        Displacement (x, y) in pixels at each node.
    shape : (int, int)
        Height and width of the field.

    Returns
    -------
    Tensor, shape (n, h, w, 2)

    Examples
    --------
    >>> displacements(torch.ones(1, 3, 3, 2), (9, 11)).shape
    torch.Size([1, 9, 11, 2])
    """
    field = interpolate(nodes.permute(0, 3, 1, 2), size=shape, mode="bicubic", align_corners=True)
    return field.permute(0, 2, 3, 1)


def quarter_turn(images: Tensor, turns: int = 1) -> Tensor:
    """Rotate images counter-clockwise by quarter turns, exactly: pixels move and keep their values.

    Parameters
    ----------
    images : Tensor, shape (..., h, w)
    turns : int, default 1
        Number of quarter turns.

    Returns
    -------
    Tensor, shape (..., h, w), or (..., w, h) for an odd number of turns

    Examples
    --------
    >>> quarter_turn(torch.tensor([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    return torch.rot90(images, turns, dims=(-2, -1))


def mirror(images: Tensor) -> Tensor:
    """Mirror images left to right, exactly; :func:`unpose.groups.reflection` is the pose that does the same.

    Parameters
    ----------
    images : Tensor, shape (..., h, w)

    Returns
    -------
    Tensor, shape (..., h, w)

    Examples
    --------
    >>> mirror(torch.tensor([[1, 2], [3, 4]])).tolist()
    [[2, 1], [4, 3]]
    """
    return images.flip(-1)


def _check_floating(images: Tensor) -> None:
    if not images.is_floating_point():
        raise ValueError(f"images must be floating point, got {images.dtype}; divide integers by their full scale")


def _check_images_and_points(images: Tensor, points: Tensor) -> None:
    if images.ndim != 4 or points.shape[-1] != 2 or points.ndim < 3:
        raise ValueError(
            "images must be (n, c, h, w) and points (n, k, ..., 2), got "
            f"{tuple(images.shape)} and {tuple(points.shape)}"
        )
    _check_floating(images)
    if not (images.shape[0] == points.shape[0] or 1 in (images.shape[0], points.shape[0])):
        raise ValueError(
            f"images and points must be equal in number, or one of them single, got {len(images)} and {len(points)}"
        )
    if images.dtype != points.dtype or images.device != points.device:
        raise ValueError(
            f"images and points must agree in type and device, got {images.dtype} on {images.device} "
            f"and {points.dtype} on {points.device}"
        )


def _needs_values_only(*tensors: Tensor) -> bool:
    """Whether no gradient is recorded and nothing traces or transforms the operations."""
    is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not is_recorded and not is_traced_or_transformed()


def _kernel_for(images: Tensor, points: Tensor) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The compiled kernel that samples these images at these points, or None for plain torch operations.

    It is imported on first use: numba and Triton are slow to import.
    """
    is_supported = (
        images.device.type in KERNELS
        and images.dtype in (torch.float32, torch.float64)
        and _needs_values_only(images, points)  # before len, which would fix a traced batch size
        and len(images) > 0
        and len(points) > 0
    )
    return import_module(f"unpose.images.kernels.{KERNELS[images.device.type]}").sample if is_supported else None


def _prepare(images: Tensor, points: Tensor) -> tuple[Tensor, list[_Tap], list[_Tap]]:
    """Images with flattened pixels, and the four taps along each axis; the index of a row tap is a flat offset."""
    height, width = images.shape[-2:]
    x, y = points.flatten(1, -2).unbind(-1)  # (n, k) each
    columns = _taps(x + (width - 1) / 2, width)
    rows = [(index * width, weight, slope) for index, weight, slope in _taps(y + (height - 1) / 2, height)]
    n = points.shape[0] if images.shape[0] == 1 else images.shape[0]  # either may be zero
    return images.flatten(-2).expand(n, -1, -1), rows, columns


def _taps(position: Tensor, size: int) -> list[_Tap]:
    """The four pixels around each position (n, k) along one axis: index, weight and derivative of the weight.

    Pixels outside the image get weight and derivative zero, and an index inside so that they can be read safely.
    """
    rounded = position.detach().round()
    # Within twice the rounding error of a coordinate of this size, a point is taken to lie on the pixel.
    on_pixel = (position.detach() - rounded).abs() <= 2 * size * torch.finfo(position.dtype).eps
    position = torch.where(on_pixel, position + (rounded - position).detach(), position)
    base = position.detach().floor().clamp(-4, size + 4)
    t = (position - base).clamp(-1, 2)  # only affects points far outside, whose weights are zero
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
    """Read pixels: flat (n, c, h * w), index (n or 1, k) -> (n, c, k)."""
    n, channels, _ = flat.shape
    return flat.gather(2, index[:, None].expand(n, channels, -1))


def _sample_shared(images: Tensor, points: Tensor) -> Tensor:
    """:func:`sample` at one set of points (1, h, w, 2): sums over 16 pixels, each read for all images at once."""
    n, channels = images.shape[:2]
    _, rows, columns = _prepare(images, points)
    index = torch.stack([row + column for row, _, _ in rows for column, _, _ in columns], dim=-1)[0]  # (k, 16)
    weight = torch.stack([rw * cw for _, rw, _ in rows for _, cw, _ in columns], dim=-1)[0]
    pixels = images.reshape(n * channels, -1).T.contiguous()  # (h * w, n * c)
    summed = torch.nn.functional.embedding_bag(index, pixels, per_sample_weights=weight, mode="sum")  # (k, n * c)
    return summed.T.reshape(n, channels, *points.shape[1:-1])
