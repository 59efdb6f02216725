"""Group convolutions in plain torch, of which the networks with planted defects are made."""

import torch
from torch import nn

from unpose.groups import parse
from unpose.images import warp


def turned_kernels(kernels, group):
    """(..., 3, 3) kernels -> (order, ..., 3, 3): each seen from every element; exact for quarter turns and mirrors."""
    flat = kernels.reshape(-1, 1, *kernels.shape[-2:])
    return torch.stack([warp(flat, pose.to(kernels)).reshape(kernels.shape) for pose in group.elements])


class Lifting(nn.Module):
    """(n, c, h, w) -> (n, d, order, h, w)"""

    def __init__(self, group, channels, features, seed=0):
        super().__init__()
        self.group = parse(group)
        generator = torch.Generator().manual_seed(seed)
        kernels = torch.randn(features, channels, 3, 3, generator=generator) / channels**0.5
        self.kernels = turned_kernels(kernels, self.group)  # (order, d, c, 3, 3)

    def forward(self, x):
        return torch.stack([nn.functional.conv2d(x, kernel, padding=1) for kernel in self.kernels], dim=2)


class GroupConvolution(nn.Module):
    """(n, c, order, h, w) -> (n, d, order, h, w): out[h] = sum_k x[k] * h w[h^-1 k]"""

    def __init__(self, group, channels, features, seed=1):
        super().__init__()
        self.group = parse(group)
        generator = torch.Generator().manual_seed(seed)
        order = self.group.order
        kernels = torch.randn(features, channels, order, 3, 3, generator=generator)
        self.kernels = turned_kernels(kernels / (channels * order) ** 0.5, self.group)  # (order, d, c, order, 3, 3)

    def relative(self, h):
        """The place h^-1 k of every k."""
        return self.group.product[self.group.inverse[h]]

    def forward(self, x):
        outs = [
            nn.functional.conv2d(x.flatten(1, 2), self.kernels[h][:, :, self.relative(h)].flatten(1, 2), padding=1)
            for h in range(self.group.order)
        ]
        return torch.stack(outs, dim=2)


class PoolGroupAndPixels(nn.Module):
    def forward(self, x):
        return x.amax(2).mean((-2, -1))
