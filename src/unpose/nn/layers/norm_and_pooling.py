"""Norm, pointwise linear layer and pooling, all equivariant. Swish is ``torch.nn.SiLU``.

These layers are bound by memory on a GPU. They keep the memory layout of the attention kernels, in which the pixels of
a channel are contiguous, and so need no copies.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from unpose.nn.ops.batch_norm import batch_norm_of_parts, is_split
from unpose.nn.ops.norm import channel_norm
from unpose.nn.ops.pointwise import pointwise


class ChannelNorm(nn.Module):
    """Layer norm over the channels of each pixel and group element: (b, channels, ...) -> (b, channels, ...).

    Statistics never mix pixels or elements, so the norm commutes with every permutation of them.

    Parameters
    ----------
    channels : int
        Channels of the maps.
    swish : bool, default False
        Whether to apply Swish to the result, in the same pass on a GPU.
    eps : float, default 1e-5
        Added to the variance.

    Examples
    --------
    >>> ChannelNorm(3)(torch.rand(2, 3, 4, 5, 7)).shape
    torch.Size([2, 3, 4, 5, 7])
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
    """Return norm with Swish and an empty module, for ``nn.Sequential``; the second keeps the names in saved files."""
    return ChannelNorm(channels, swish=True, eps=eps), nn.Identity()


class GroupBatchNorm(nn.BatchNorm3d):
    """Batch norm of maps on a group: (b, channels, order, h, w) -> the same.

    Statistics over batch, elements and pixels are the same for a transformed batch, so the norm is equivariant in
    training as well. Weights and results are those of :class:`torch.nn.BatchNorm3d`. On a GPU forward and
    backward pass of :func:`unpose.nn.group_resnet` take a third of the time for ``d4`` and ``c4``,
    because more of the GPU takes part.

    Parameters
    ----------
    num_features : int
        Channels of the maps.
    eps, momentum : float, default 1e-5 and 0.1
        As for :class:`torch.nn.BatchNorm3d`.

    Examples
    --------
    >>> GroupBatchNorm(3)(torch.rand(2, 3, 4, 5, 7)).shape
    torch.Size([2, 3, 4, 5, 7])
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps, momentum)

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training or not is_split(maps, self.weight):
            return super().forward(maps)
        self.num_batches_tracked.add_(1)
        return batch_norm_of_parts(
            maps, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps
        )


class PointwiseLinear(nn.Linear):
    """Linear map of the channels, the same at every pixel and group element: (b, in, ...) -> (b, out, ...).

    Parameters
    ----------
    in_features, out_features : int
        Channels of the input and output maps.
    bias : bool, default True
        Whether to add a learnt constant to each output channel.
    device, dtype : optional
        As for :class:`torch.nn.Linear`.

    Examples
    --------
    >>> PointwiseLinear(3, 11)(torch.rand(2, 3, 4, 5, 7)).shape
    torch.Size([2, 11, 4, 5, 7])
    """

    def forward(self, maps: Tensor) -> Tensor:
        return pointwise(maps, self.weight, self.bias)


class _Pool(nn.Module):
    """The shared constructor of the pooling layers."""

    def __init__(self, kind: str = "max") -> None:
        super().__init__()
        if kind not in ("max", "mean"):
            raise ValueError(f"pooling must be 'max' or 'mean', got {kind!r}")
        self.kind = kind

    def extra_repr(self) -> str:
        return self.kind


class SpatialPool(_Pool):
    """Halve height and width: (b, c, ..., h, w) -> (b, c, ..., ceil(h / 2), ceil(w / 2)).

    An even side is pooled in pairs. On an odd side, pairs would drop the last row, which is another row in the rotated
    image; there, windows of three pixels around every second pixel are pooled, without those outside the image. Either
    way the windows are symmetric about the centre, so pooling commutes with quarter turns and mirrors at every size.

    Parameters
    ----------
    kind : {"max", "mean"}, default "max"
        What to take of each window.

    Examples
    --------
    >>> SpatialPool("max")(torch.rand(2, 3, 4, 5, 8)).shape
    torch.Size([2, 3, 4, 3, 4])
    """

    def forward(self, maps: Tensor) -> Tensor:
        if any(isinstance(side, torch.SymInt) for side in maps.shape[-2:]):
            return _halve(_halve(maps, -2, self.kind), -1, self.kind)
        kernel = [3 if side % 2 else 2 for side in maps.shape[-2:]]
        padding = [side % 2 for side in maps.shape[-2:]]
        flat = maps.flatten(1, -3)  # (b, c * ..., h, w)
        if self.kind == "max":
            pooled = max_pool2d(flat, kernel, stride=2, padding=padding)
        else:
            pooled = avg_pool2d(flat, kernel, stride=2, padding=padding, count_include_pad=False)
        return pooled.unflatten(1, maps.shape[1:-2])


class GroupPool(_Pool):
    """Pool over the group axis, which turns equivariant maps into invariant ones: (b, c, order, ...) -> (b, c, ...).

    Parameters
    ----------
    kind : {"max", "mean"}, default "max"
        What to take over the elements.

    Examples
    --------
    >>> GroupPool("mean")(torch.rand(2, 3, 4, 5, 7)).shape
    torch.Size([2, 3, 5, 7])
    """

    def forward(self, maps: Tensor) -> Tensor:
        if maps.ndim < 3:
            raise ValueError(f"pooling over a group needs (batch, channels, order, ...), got {tuple(maps.shape)}")
        return maps.amax(2) if self.kind == "max" else maps.mean(2)


def _halve(maps: Tensor, axis: int, kind: str) -> Tensor:
    """Pool one axis like :class:`SpatialPool`, for a side whose parity is not known while ``torch.export`` traces.

    The pooling operators of torch must know the size of their windows. Here the pixels of window i are
    ``2 i - odd, 2 i + 1 - odd, 2 i + 1``, of which the last is one of the others for an even side.
    """
    side = maps.shape[axis]
    odd = side % 2
    last = 2 * torch.arange((side + 1) // 2, device=maps.device) + 1  # (ceil(side / 2),)
    first, middle = last - 1 - odd, last - odd
    members = [maps.index_select(axis, index.clamp(0, side - 1)) for index in (first, middle, last)]
    if kind == "max":
        return members[0].maximum(members[1]).maximum(members[2])
    weights = [first >= 0, middle >= 0, (last < side) * odd]
    weights = [weight.to(maps.dtype).view(-1, *[1] * (-1 - axis)) for weight in weights]
    weighted = [weight * member for weight, member in zip(weights, members, strict=True)]
    return (weighted[0] + weighted[1] + weighted[2]) / (weights[0] + weights[1] + weights[2])


def upsample(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Undo one halving of :class:`SpatialPool` by linear interpolation: (..., h, w) -> (..., *size).

    The values stay at the positions where the halving took them: between the pixels of a pair along an even side, at
    every second pixel along an odd one.
    """
    return _double(_double(maps, -2, size[0]), -1, size[1])


def _double(maps: Tensor, axis: int, side: int) -> Tensor:
    """Interpolate one axis from ``ceil(side / 2)`` to ``side`` pixels; also traced with an unknown side."""
    odd = side % 2
    position = torch.arange(side, device=maps.device) * 2 + odd - 1  # four times the position among the given pixels
    first = position.div(4, rounding_mode="floor")
    share = (position - 4 * first).to(maps.dtype).view(-1, *[1] * (-1 - axis)) / 4
    last = maps.shape[axis] - 1
    below, above = (maps.index_select(axis, index.clamp(0, last)) for index in (first, first + 1))
    return below + share * (above - below)
