"""Views of images: resampled by poses, exactly where pixels map to pixels, with a choice of what lies outside.

Convention
----------
Images are ``(n, c, h, w)`` tensors. A pose maps coordinates of the image to coordinates of its view.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from unpose.groups import as_quarter_turns
from unpose.images import mirror, quarter_turn, warp

BORDERS = ("zero", "reflect", "replicate")


def check_border(border: str) -> str:
    """Return the name of a border if it is one of :data:`BORDERS`."""
    if border not in BORDERS:
        raise ValueError(f"border must be one of {', '.join(map(repr, BORDERS))}, got {border!r}")
    return border


@dataclass(frozen=True)
class View:
    """One pose as plain numbers, which can be applied to images while torch traces."""

    matrix: tuple[tuple[float, ...], ...]
    quarter_turns: tuple[int, bool] | None

    @classmethod
    def at(cls, pose: Tensor) -> "View":
        """The view at a pose (3, 3)."""
        return cls(tuple(tuple(row) for row in pose.tolist()), as_quarter_turns(pose))

    def of(self, images: Tensor, border: str = "zero") -> Tensor:
        """All images resampled by the pose; quarter turns and mirrors permute pixels, and may swap the sides."""
        if self.quarter_turns is None:
            return resampled(images, self.pose(images), border)
        turns, mirrored = self.quarter_turns
        return quarter_turn(mirror(images) if mirrored else images, turns)

    def pose(self, like: Tensor) -> Tensor:
        """The pose (3, 3) with the type and device of a tensor."""
        return torch.tensor(self.matrix, dtype=like.dtype, device=like.device)


def resampled(images: Tensor, poses: Tensor, border: str = "zero") -> Tensor:
    """Images resampled by poses (n, 3, 3) or (3, 3), once, at their own size.

    With a border other than "zero", images are first continued by a quarter of their larger side, so that the corners
    of a rotated photograph are not black.
    """
    if torch.is_autocast_enabled(images.device.type):  # would round coordinates to eight bits
        with torch.autocast(images.device.type, enabled=False):
            return resampled(images.float(), poses.float(), border)
    if border == "zero":
        return warp(images, poses)
    shape = (images.shape[-2], images.shape[-1])
    margin = min(math.ceil(max(shape) / 4) + 2, min(shape) - 1)
    return warp(pad(images, (margin,) * 4, mode=border), poses, shape)


def no_larger(images: Tensor, size: int | None) -> Tensor:
    """Images whose smaller side is above the size, scaled down to it; None leaves all as they are."""
    side = min(images.shape[-2:])
    if size is None or side <= size:
        return images
    shape = (round(images.shape[-2] * size / side), round(images.shape[-1] * size / side))
    return interpolate(images, shape, mode="bilinear", antialias=True)


def disc(shape: tuple[int, int], like: Tensor) -> Tensor:
    """The pixels (h, w) inside the inscribed circle, as zeros and ones: what no rotation moves out of the image."""
    height, width = shape
    y = torch.arange(height, dtype=like.dtype, device=like.device) - (height - 1) / 2
    x = torch.arange(width, dtype=like.dtype, device=like.device) - (width - 1) / 2
    return (x.square() + y.square()[:, None] <= min(shape) ** 2 / 4).to(like.dtype)


def erased(images: Tensor) -> Tensor:
    """Images (n, c, h, w) with a square of half their side set to zero, centred on a random pixel of each."""
    n, _, height, width = images.shape
    reach = min(height, width) // 4
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    y = torch.randint(height, (n, 1, 1, 1), device=images.device)
    x = torch.randint(width, (n, 1, 1, 1), device=images.device)
    return images * (((rows[:, None] - y).abs() > reach) | ((columns - x).abs() > reach))  # (n, 1, h, w)
