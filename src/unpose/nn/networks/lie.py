"""Networks on continuous groups: Lie convolution and Lie self-attention on sampled elements."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from unpose.groups import Group, LieGroup, haar_samples, parse_affine, translation
from unpose.images import pixel_grid
from unpose.nn.functional.checks import as_image_size, check_feature_maps, check_positive
from unpose.nn.layers.constants import ConstantTables
from unpose.nn.layers.heads import ClassHead
from unpose.nn.layers.lie_attention import LieBlock
from unpose.nn.layers.lie_convolution import LieConv2d
from unpose.nn.layers.norm_and_pooling import GroupBatchNorm
from unpose.nn.networks.base import Network, arguments_of
from unpose.nn.ops.autocast import without_autocast


class LieNetwork(ConstantTables, Network):
    """Base class: linear parts sampled by the Haar measure, fixed in evaluation and drawn anew in training."""

    fixed_samples: Tensor
    layers: nn.ModuleList
    norms: nn.ModuleList
    classify: nn.Module

    def __init__(
        self, group: LieGroup, *, samples: int, max_scale: float, max_stretch: float, in_channels: int, **arguments: Any
    ) -> None:
        super().__init__(
            group, samples=samples, max_scale=max_scale, max_stretch=max_stretch, in_channels=in_channels, **arguments
        )
        has_linear_parts = group.turns or group.mirrored
        self.count, self.in_channels = samples if has_linear_parts else 1, in_channels
        self.bounds: dict[str, Any] = {"max_scale": max_scale, "max_stretch": max_stretch}
        factor = (max_scale if group.scales else 1.0) * (math.sqrt(max_stretch) if group.deforms else 1.0)
        self.reach = factor * (1 + 1e-6)  # rounding must not change the size of a kernel

    def constant_tables(self) -> dict[str, Tensor]:
        return {"fixed_samples": haar_samples(self.group, self.count, dtype=torch.float64, **self.bounds)}

    def samples(self) -> Tensor:
        """The linear parts of a forward pass: (n, 3, 3)."""
        fixed = self.fixed_samples
        if not self.training or self.count == 1:
            return fixed
        offset = torch.rand(4, device=fixed.device)
        return haar_samples(self.group, self.count, offset=offset, dtype=fixed.dtype, **self.bounds)

    def convolve(self, images: Tensor, samples: Tensor) -> Tensor:
        """Lie convolutions, each with norm and Swish: (b, in_channels, h, w) -> (b, width, samples, h', w')"""
        check_feature_maps(images, self.in_channels, None)
        maps = images
        for layer, norm in zip(self.layers, self.norms, strict=True):
            maps = silu(norm(layer(maps, samples)))
        return maps

    def features(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, width, samples, h', w')"""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes)"""
        return self.classify(self.features(images))


def _convolutions(
    group: LieGroup, in_channels: int, width: int, radii: Sequence[float], strides: Sequence[int], reach: float
) -> tuple[nn.ModuleList, nn.ModuleList]:
    """Create the layers and norms of :meth:`LieNetwork.convolve`; statistics are over batch, samples and pixels."""
    layers = [
        LieConv2d(group, width if place else in_channels, width, radius, lifting=not place, stride=stride, reach=reach)
        for place, (radius, stride) in enumerate(zip(radii, strides, strict=True))
    ]
    return nn.ModuleList(layers), nn.ModuleList(GroupBatchNorm(width) for _ in layers)


class LieCNN(LieNetwork):
    """The network of :func:`lie_cnn`."""

    def __init__(
        self,
        group: LieGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        samples: int,
        width: int,
        radii: tuple[float, ...],
        strides: tuple[int, ...],
        max_scale: float,
        max_stretch: float,
    ) -> None:
        super().__init__(network="lie_cnn", **arguments_of(locals()))
        self.layers, self.norms = _convolutions(group, in_channels, width, radii, strides, self.reach)
        self.classify = ClassHead(width, n_classes)
        self.compute_tables()

    def features(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, width, samples, h', w')"""
        return self.convolve(images, self.samples())


class LieTransformer(LieNetwork):
    """The network of :func:`lie_transformer`."""

    def __init__(
        self,
        group: LieGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        samples: int,
        patch: int,
        depth: int,
        width: int,
        heads: int,
        max_scale: float,
        max_stretch: float,
    ) -> None:
        super().__init__(network="lie_transformer", **arguments_of(locals()))
        self.patch = patch
        strides = (2, patch // 2) if patch % 2 == 0 else (1, patch)
        radii = (3.5, max(2.5, float(strides[1])))
        self.layers, self.norms = _convolutions(group, in_channels, width, radii, strides, self.reach)
        self.blocks = nn.ModuleList(LieBlock(group, width, heads, unit=float(patch)) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.classify = ClassHead(width, n_classes)
        self.compute_tables()

    def features(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, width, samples, h', w')"""
        samples = self.samples()
        maps = self.convolve(images, samples)
        height, width = maps.shape[-2:]
        grid = pixel_grid((height, width), samples.dtype, samples.device).flatten(0, 1) * self.patch  # (positions, 2)
        with without_autocast(samples):
            elements = (translation(grid) @ samples[:, None]).flatten(0, 1)  # (samples * positions, 3, 3)
        tokens = maps.flatten(2).mT  # (b, samples * positions, width)
        for block in self.blocks:
            tokens = block(tokens, elements)
        return self.norm(tokens).mT.unflatten(2, (len(samples), height, width))


def lie_cnn(
    group: str | Group,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    samples: int = 16,
    width: int = 16,
    radii: Sequence[float] = (3.5, 2.5, 2.5, 2.5),
    strides: Sequence[int] = (2, 1, 2, 1),
    max_scale: float = 1.3,
    max_stretch: float = 1.3,
) -> LieCNN:
    """Create a network of Lie convolutions that recognises objects under unseen affine maps.

    The first :class:`unpose.nn.LieConv2d` lifts the image to the group, the others are convolutions on it, each with
    batch norm and Swish. The maximum over samples, the mean over positions and one linear map give the scores. In
    training, the samples of the linear parts are drawn anew at every step; in evaluation they are fixed.

    Parameters
    ----------
    group : str or Group
        ``"affine"``, ``"similarity"``, ``"se2"`` or ``"translation"``, or one of them with ``"+mirror"``.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes.
    image_size : int or (int, int)
        Side, or (height, width), in pixels. Recorded only: other sizes work as well.
    samples : int, default 16
        Linear parts; even if the group has the mirror. The cost grows with its square.
    width : int, default 16
        Channels of the maps.
    radii : sequence of float, default (3.5, 2.5, 2.5, 2.5)
        Radius of the kernel of each layer, in pixels of its input.
    strides : sequence of int, default (2, 1, 2, 1)
        Stride of each layer.
    max_scale : float, default 1.3
        Largest scale factor of the samples; the smallest is its inverse.
    max_stretch : float, default 1.3
        Largest ratio by which a sample lengthens one axis and shortens the other.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes).

    Notes
    -----
    With ``"se2"`` and a number of samples that 4 divides, the network is exactly invariant to quarter turns in
    evaluation. Otherwise the invariance is that of a Monte Carlo integral, and beyond the bounds of scale and stretch
    there is none by construction.

    Examples
    --------
    >>> lie_cnn("affine", 1, 10, 28, samples=4, width=3)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    check_positive(samples=samples, width=width)
    if not radii or len(radii) != len(strides):
        raise ValueError(f"every layer needs a radius and a stride, got radii {radii} and strides {strides}")
    return LieCNN(
        parse_affine(group), in_channels, n_classes, as_image_size(image_size), samples, width, tuple(radii),
        tuple(strides), max_scale, max_stretch,
    )  # fmt: skip


def lie_transformer(
    group: str | Group,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    samples: int = 8,
    patch: int = 4,
    depth: int = 3,
    width: int = 24,
    heads: int = 4,
    max_scale: float = 1.3,
    max_stretch: float = 1.3,
) -> LieTransformer:
    """Create a transformer whose tokens are sampled elements of a continuous group (LieTransformer).

    Two layers of :class:`unpose.nn.LieConv2d` give a token to every pair of a position and a sampled linear part, and
    :class:`unpose.nn.LieBlock` relates all of them. The maximum over samples, the mean over positions and one linear
    map give the scores. In training, the samples are drawn anew at every step; in evaluation they are fixed.

    Parameters
    ----------
    group : str or Group
        ``"se2"``, ``"similarity"``, ``"affine"`` or ``"translation"``, or one of them with ``"+mirror"``.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes.
    image_size : int or (int, int)
        Side, or (height, width), in pixels. Recorded only: other sizes work as well.
    samples : int, default 8
        Linear parts at every position; even if the group has the mirror. The cost grows with its square.
    patch : int, default 4
        Pixels between neighbouring positions.
    depth : int, default 3
        Number of blocks.
    width : int, default 24
        Channels of the tokens.
    heads : int, default 4
        Attention heads; they divide the width.
    max_scale : float, default 1.3
        Largest scale factor of the samples; the smallest is its inverse.
    max_stretch : float, default 1.3
        Largest ratio by which a sample lengthens one axis and shortens the other.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes).

    Notes
    -----
    With ``"se2"`` and a number of samples that 4 divides, the network is exactly invariant to quarter turns in
    evaluation.

    Examples
    --------
    >>> lie_transformer("se2", 1, 10, 28, samples=2, patch=7, depth=1)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    check_positive(samples=samples, patch=patch, depth=depth)
    return LieTransformer(
        parse_affine(group), in_channels, n_classes, as_image_size(image_size), samples, patch, depth, width, heads,
        max_scale, max_stretch,
    )  # fmt: skip
