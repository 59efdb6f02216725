"""Keys sampling on a GPU without gradients: the same sums as :mod:`unpose.images.sampling`, in one kernel.

Written in Triton, which comes with torch builds for CUDA; imported only when a CUDA tensor is sampled.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


def sample(images: Tensor, points: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor]:
    """images (n or 1, c, h, w), points (n or 1, k, 2) -> values (n, c, k) and slopes (n, c, k, 2), or none of them."""
    n, (channels, height, width), count = max(len(images), len(points)), images.shape[1:], points.shape[1]
    images, points = images.detach().contiguous(), points.detach().contiguous()
    values = torch.empty(n, channels, count, dtype=images.dtype, device=images.device)
    slopes = torch.empty(n if gradient else 0, channels, count, 2, dtype=images.dtype, device=images.device)
    # Image numbers go along the first axis of the launch grid, which is not limited to 65,535.
    with torch.cuda.device(images.device):
        _kernel[(n, triton.cdiv(count, _BLOCK))](
            images, points, values, slopes, count, channels, height, width,
            int(len(images) > 1), int(len(points) > 1), 2 * torch.finfo(images.dtype).eps,
            GRADIENT=gradient, BLOCK=_BLOCK,
        )  # fmt: skip
    return values, slopes


@triton.jit
def _split(position, size, epsilon):  # type: ignore[no-untyped-def]
    """The pixel below a position and the fraction beyond it; within rounding of a pixel there is no fraction."""
    position = tl.minimum(tl.maximum(position, -4.0), size + 4.0)
    base = tl.floor(position)
    t = position - base
    up = 1.0 - t <= epsilon * size
    t = tl.where(up | (t <= epsilon * size), 0.0, t)
    return (base + tl.where(up, 1.0, 0.0)).to(tl.int32), t


@triton.jit
def _weight(t, tap: tl.constexpr):  # type: ignore[no-untyped-def]
    if tap == 0:
        return ((-0.5 * t + 1.0) * t - 0.5) * t
    if tap == 1:
        return (1.5 * t - 2.5) * t * t + 1.0
    if tap == 2:
        return ((-1.5 * t + 2.0) * t + 0.5) * t
    return (0.5 * t - 0.5) * t * t


@triton.jit
def _slope(t, tap: tl.constexpr):  # type: ignore[no-untyped-def]
    if tap == 0:
        return (-1.5 * t + 2.0) * t - 0.5
    if tap == 1:
        return (4.5 * t - 5.0) * t
    if tap == 2:
        return (-4.5 * t + 4.0) * t + 0.5
    return (1.5 * t - 1.0) * t


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    images, points, values, slopes, count, channels, height, width, many_images, many_points, epsilon,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = k < count
    place = points + 2 * (i * many_points * count + k)
    x, tx = _split(tl.load(place, live, 0.0) + (width - 1) * 0.5, width, epsilon)
    y, ty = _split(tl.load(place + 1, live, 0.0) + (height - 1) * 0.5, height, epsilon)
    for c in range(channels):
        image = images + (i * many_images * channels + c) * height * width
        value = tl.zeros((BLOCK,), values.dtype.element_ty)
        along_x = tl.zeros((BLOCK,), values.dtype.element_ty)
        along_y = tl.zeros((BLOCK,), values.dtype.element_ty)
        for a in tl.static_range(4):
            row = y + (a - 1)
            in_row = live & (row >= 0) & (row < height)
            line = tl.zeros((BLOCK,), values.dtype.element_ty)
            line_slope = tl.zeros((BLOCK,), values.dtype.element_ty)
            for b in tl.static_range(4):
                column = x + (b - 1)
                pixel = tl.load(image + row * width + column, in_row & (column >= 0) & (column < width), 0.0)
                line += pixel * _weight(tx, b)
                if GRADIENT:
                    line_slope += pixel * _slope(tx, b)
            value += line * _weight(ty, a)
            if GRADIENT:
                along_x += line_slope * _weight(ty, a)
                along_y += line * _slope(ty, a)
        at = (i * channels + c) * count + k
        tl.store(values + at, value, live)
        if GRADIENT:
            tl.store(slopes + 2 * at, along_x, live)
            tl.store(slopes + 2 * at + 1, along_y, live)
