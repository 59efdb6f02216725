"""Layers beside attention and convolution: norm and pooling that keep the symmetry. Swish is ``torch.nn.SiLU``.

On a GPU what lies between the attention layers is bound by memory: maps stay where they are, the places of a channel
side by side, as the loops of attention read and write them.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from unpose.nn.ops.norm import channel_norm
from unpose.nn.ops.pointwise import pointwise


class ChannelNorm(nn.Module):
    """Layer norm over the channels of each pixel and element: (b, channels, ...) -> the same.

    Statistics never mix places or elements, so moving them and norming commute. With ``swish`` the result goes through
    Swish, in the same pass on a GPU. ``eps`` is added to the variance.
    """

    def __init__(self, channels: int, *, swish: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.swish, self.eps = swish, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, swish={self.swish}, eps={self.eps}"

    def forward(self, maps: Tensor) -> Tensor:
        return channel_norm(maps, self.weight, self.bias, swish=self.swish, eps=self.eps)


def norm_swish(channels: int, *, eps: float = 1e-5) -> tuple[nn.Module, nn.Module]:
    """Norm and Swish as two members of ``nn.Sequential``. The second is empty: it keeps the names in saved files."""
    return ChannelNorm(channels, swish=True, eps=eps), nn.Identity()


class PointwiseLinear(nn.Linear):
    """A linear map of the channels, the same at each pixel and element: (b, in, ...) -> (b, out, ...)."""

    def forward(self, maps: Tensor) -> Tensor:
        return pointwise(maps, self.weight, self.bias)


class _Pool(nn.Module):
    """What pools by the ``"max"`` or the ``"mean"``."""

    def __init__(self, kind: str = "max") -> None:
        super().__init__()
        if kind not in ("max", "mean"):
            raise ValueError(f"pooling must be 'max' or 'mean', got {kind!r}")
        self.kind = kind

    def extra_repr(self) -> str:
        return self.kind


class SpatialPool(_Pool):
    """Halve height and width by the ``"max"`` or ``"mean"`` of neighbours: (b, c, ..., h, w) -> ceil(h/2), ceil(w/2).

    An even side is cut into pairs. An odd side would lose its last row to pairs, and a turned image another one; there
    three neighbours around every second pixel are taken, and those outside of the image do not count. Either way the
    windows are symmetric about the centre, so turns and mirrors commute with pooling at every size.
    """

    def forward(self, maps: Tensor) -> Tensor:
        kernel = [3 if side % 2 else 2 for side in maps.shape[-2:]]
        padding = [side % 2 for side in maps.shape[-2:]]
        flat = maps.flatten(1, -3)  # (b, channels, h, w)
        if self.kind == "max":
            pooled = max_pool2d(flat, kernel, stride=2, padding=padding)
        else:
            pooled = avg_pool2d(flat, kernel, stride=2, padding=padding, count_include_pad=False)
        return pooled.unflatten(1, maps.shape[1:-2])


class GroupPool(_Pool):
    """The ``"max"`` or ``"mean"`` over the group axis: (b, c, order, ...) -> (b, c, ...), maps on the plane."""

    def forward(self, maps: Tensor) -> Tensor:
        if maps.ndim < 3:
            raise ValueError(f"pooling over a group needs (batch, channels, order, ...), got {tuple(maps.shape)}")
        return maps.amax(2) if self.kind == "max" else maps.mean(2)
