"""Batch norm of maps on a group on a GPU: statistics over batch, elements and pixels, by many blocks for each channel.

The kernel of torch gives one block of threads to a channel. Maps on a group have few channels with many entries each,
so that most of a GPU waits: a training step of ``group_resnet`` spent 74 % of its time in batch norms. Here every
element and an eighth of the batch is a channel of its own for the kernels, and their statistics are combined, by the
operators with which torch combines those of several processes (``torch.nn.SyncBatchNorm``).
"""

import math
from typing import Any

import torch
from torch import Tensor

_PARTS = 8
"""Parts of the batch with blocks of their own, where the batch can be divided so."""


def is_split(maps: Tensor, weight: Tensor) -> bool:
    """Whether :func:`batch_norm_of_parts` takes these maps (b, channels, order, h, w)."""
    types = (torch.float32, torch.bfloat16, torch.float16)
    return maps.is_cuda and maps.dtype in types and weight.dtype == torch.float32 and maps.numel() > maps.shape[1]


def batch_norm_of_parts(
    maps: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> Tensor:
    """Normalize maps (b, channels, order, h, w) as in training, and update the running mean and variance in place."""
    found: Tensor = _BatchNormOfParts.apply(maps, weight, bias, mean, variance, momentum, eps)
    return found


class _BatchNormOfParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_variance: Tensor,
        momentum: float, eps: float,
    ) -> Tensor:  # fmt: skip
        split = _split(maps)  # (b / parts, parts * channels * order, h, w)
        shape = math.gcd(len(maps), _PARTS), *maps.shape[1:3]  # (parts, channels, order)
        means, inverses = (_by_channel(each, shape) for each in torch.batch_norm_stats(split, eps))
        counts = torch.full((len(means),), maps.numel() / means.numel(), device=maps.device)
        mean, inverse = torch.batch_norm_gather_stats_with_counts(
            split, means, inverses, running_mean, running_variance, momentum, eps, counts
        )  # mean and 1 / sqrt(variance + eps), each (channels,)
        ctx.save_for_backward(maps, weight, mean, inverse)
        weights, biases, means, inverses = (_to_parts(each, shape) for each in (weight, bias, mean, inverse))
        return torch.batch_norm_elemt(split, weights, biases, means, inverses, eps).view(maps.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, mean, inverse = ctx.saved_tensors
        split, above = _split(maps), _split(gradients[0])
        shape = math.gcd(len(maps), _PARTS), *maps.shape[1:3]
        weights, means, inverses = (_to_parts(each, shape) for each in (weight, mean, inverse))
        sums = torch.batch_norm_backward_reduce(above, split, means, inverses, None, True, False, False)
        # Sums of the gradient, and of the gradient times (maps - mean), over the channel
        total, product = (_by_channel(each, shape).sum(0) for each in sums[:2])
        count = torch.full((1,), maps.numel() // len(mean), dtype=torch.int32, device=maps.device)
        below = torch.batch_norm_backward_elemt(
            above, split, means, inverses, weights, _to_parts(total, shape), _to_parts(product, shape), count
        )
        return below.view(maps.shape), product * inverse, total, None, None, None, None


def _split(maps: Tensor) -> Tensor:
    """View (b, channels, order, h, w) as (b / parts, parts * channels * order, h, w); copied if not contiguous."""
    parts = math.gcd(len(maps), _PARTS)
    return maps.contiguous().view(len(maps) // parts, -1, *maps.shape[3:])


def _by_channel(vector: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """(parts * channels * order,) -> (parts * order, channels)"""
    return vector.view(shape).transpose(1, 2).reshape(-1, shape[1])


def _to_parts(vector: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Repeat the value of each channel: (channels,) -> (parts * channels * order,)"""
    return vector[None, :, None].expand(shape).reshape(-1)
