"""Small group-convolution networks in plain torch, and parts that break them: what the audit is tested on."""

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


class PoolPixels(nn.Module):
    """Halve the last two axes; an odd side loses its last row."""

    def forward(self, x):
        return nn.functional.max_pool2d(x.flatten(1, -3), 2).unflatten(1, x.shape[1:-2])


class AbsolutePositions(nn.Module):
    """Adds its own number to every pixel."""

    def __init__(self, size, strength=0.3):
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.code = nn.Parameter(strength * torch.randn(size, size, generator=generator))

    def forward(self, x):
        return x + self.code


class PoolGroupAndPixels(nn.Module):
    def forward(self, x):
        return x.amax(2).mean((-2, -1))


class Block(nn.Module):
    """A residual block: one module inside another, and an activation called twice, in place."""

    def __init__(self, convolution, inside=None):
        super().__init__()
        self.act = nn.ReLU(inplace=True)
        self.inside = inside if inside is not None else nn.Identity()
        self.convolution = convolution

    def forward(self, x):
        return self.act(x + self.convolution(self.inside(self.act(x.clone()))))


class Network(nn.Module):
    """Lift, block, convolve, pool, classify; ``extra`` is put between the convolutions, ``inside`` inside the block."""

    def __init__(self, group="c4", channels=2, extra=None, inside=None, last=GroupConvolution):
        super().__init__()
        self.lift = Lifting(group, channels, 3)
        self.block = Block(GroupConvolution(group, 3, 3), inside)
        self.extra = extra if extra is not None else nn.Identity()
        self.last = last(group, 3, 5, seed=3)
        self.pool = PoolGroupAndPixels()
        torch.manual_seed(4)
        self.head = nn.Linear(5, 7)

    def forward(self, x):
        return self.head(self.pool(self.last(self.extra(self.block(self.lift(x))).tanh())))
