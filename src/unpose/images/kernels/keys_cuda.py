"""Keys sampling on a GPU without gradients: the same sums as :mod:`unpose.images.sampling`, in one Triton kernel.

A program samples one image, all channels, at _BLOCK points: it loads the 4 x 4 taps of each point, with zeros outside
the image, and sums them in registers. Imported only when a CUDA tensor is sampled.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


def sample(images: Tensor, points: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor]:
    """images (n or 1, c, h, w), points (n or 1, k, 2) -> values (n, c, k) and their gradients (n, c, k, 2).

    Without ``gradient`` the second tensor is empty.
    """
    n, (channels, height, width), count = max(len(images), len(points)), images.shape[1:], points.shape[1]
    images, points = images.detach().contiguous(), points.detach().contiguous()
    values = torch.empty(n, channels, count, dtype=images.dtype, device=images.device)
    gradients = torch.empty(n if gradient else 0, channels, count, 2, dtype=images.dtype, device=images.device)
    # Image indices go along the first axis of the launch grid, which is not limited to 65,535.
    with torch.cuda.device_of(images):
        _kernel[(n, triton.cdiv(count, _BLOCK))](
            images, points, values, gradients, count, channels, height, width,
            int(len(images) > 1), int(len(points) > 1), 2 * torch.finfo(images.dtype).eps,
            GRADIENT=gradient, BLOCK=_BLOCK,
        )  # fmt: skip
    return values, gradients


@triton.jit
def _split(position, size, epsilon):  # type: ignore[no-untyped-def]
    """The pixel below a position and the fraction beyond it, which is zero within rounding of a pixel."""
    position = tl.minimum(tl.maximum(position, -4.0), size + 4.0)
    base = tl.floor(position)
    t = position - base
    rounds_up = 1.0 - t <= epsilon * size
    t = tl.where(rounds_up | (t <= epsilon * size), 0.0, t)
    return (base + tl.where(rounds_up, 1.0, 0.0)).to(tl.int32), t


@triton.jit
def _weight(t, tap: tl.constexpr):  # type: ignore[no-untyped-def]
    """Keys weight of one of the four taps at a fraction t."""
    if tap == 0:
        return ((-0.5 * t + 1.0) * t - 0.5) * t
    if tap == 1:
        return (1.5 * t - 2.5) * t * t + 1.0
    if tap == 2:
        return ((-1.5 * t + 2.0) * t + 0.5) * t
    return (0.5 * t - 0.5) * t * t


@triton.jit
def _weight_derivative(t, tap: tl.constexpr):  # type: ignore[no-untyped-def]
    if tap == 0:
        return (-1.5 * t + 2.0) * t - 0.5
    if tap == 1:
        return (4.5 * t - 5.0) * t
    if tap == 2:
        return (-4.5 * t + 4.0) * t + 0.5
    return (1.5 * t - 1.0) * t


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    images, points, values, gradients, count, channels, height, width, has_many_images, has_many_points, epsilon,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """images (n or 1, c, h, w), points (n or 1, k, 2) -> values (n, c, k) and gradients (n, c, k, 2)."""
    i = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_point = k < count
    point = points + 2 * (i * has_many_points * count + k)
    x, tx = _split(tl.load(point, is_point, 0.0) + (width - 1) * 0.5, width, epsilon)
    y, ty = _split(tl.load(point + 1, is_point, 0.0) + (height - 1) * 0.5, height, epsilon)
    for c in range(channels):
        image = images + (i * has_many_images * channels + c) * height * width
        value = tl.zeros((BLOCK,), values.dtype.element_ty)
        derivative_x = tl.zeros((BLOCK,), values.dtype.element_ty)
        derivative_y = tl.zeros((BLOCK,), values.dtype.element_ty)
        for a in tl.static_range(4):
            row = y + (a - 1)
            is_in_row = is_point & (row >= 0) & (row < height)
            row_value = tl.zeros((BLOCK,), values.dtype.element_ty)
            row_derivative = tl.zeros((BLOCK,), values.dtype.element_ty)
            for b in tl.static_range(4):
                column = x + (b - 1)
                pixel = tl.load(image + row * width + column, is_in_row & (column >= 0) & (column < width), 0.0)
                row_value += pixel * _weight(tx, b)
                if GRADIENT:
                    row_derivative += pixel * _weight_derivative(tx, b)
            value += row_value * _weight(ty, a)
            if GRADIENT:
                derivative_x += row_derivative * _weight(ty, a)
                derivative_y += row_value * _weight_derivative(ty, a)
        at = (i * channels + c) * count + k
        tl.store(values + at, value, is_point)
        if GRADIENT:
            tl.store(gradients + 2 * at, derivative_x, is_point)
            tl.store(gradients + 2 * at + 1, derivative_y, is_point)
