"""Residual group convolution networks: classifiers, and encoders that are learnt without labels."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import as_image_size, check_feature_maps, parse_point_group
from unpose.nn.layers.convolution import GroupConv2d, kernel_basis
from unpose.nn.layers.norm_and_pooling import GroupBatchNorm, SpatialPool
from unpose.nn.networks.base import Network, arguments_of

_STATISTICS = 4
"""Numbers for each channel: mean and deviation over the image, of the maximum and of the mean over the group."""
_FLOOR = 1e-5
"""Added to variances, whose root has no gradient at zero."""


class ResidualBlock(nn.Module):
    """Two group convolutions and what skips them: (b, in, order, h, w) -> (b, out, order, h, w)."""

    def __init__(self, group: FiniteGroup, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.first = GroupConv2d(group, in_channels, out_channels, kernel_size, bias=False)
        self.second = GroupConv2d(group, out_channels, out_channels, kernel_size, bias=False)
        # Statistics over batch, elements and pixels are the same for a rotated batch.
        self.first_norm, self.second_norm = GroupBatchNorm(out_channels), GroupBatchNorm(out_channels)
        self.skip = (
            nn.Identity()
            if in_channels == out_channels
            else GroupConv2d(group, in_channels, out_channels, 1, bias=False)
        )

    def forward(self, maps: Tensor) -> Tensor:
        inner = silu(self.first_norm(self.first(maps)))
        return silu(self.second_norm(self.second(inner)) + self.skip(maps))


class GroupResNet(Network):
    """The network of :func:`group_resnet`."""

    def __init__(
        self, group: FiniteGroup, in_channels: int, n_classes: int, image_size: tuple[int, int],
        widths: tuple[int, ...], depths: tuple[int, ...], kernel_size: int, head: str | None,
    ) -> None:  # fmt: skip
        super().__init__(network="group_resnet", **arguments_of(locals()))
        # Values around zero: then the zeros that convolutions see beyond the border are no edge.
        self.standardize = nn.BatchNorm2d(in_channels, affine=False)
        self.lift = GroupConv2d(group, in_channels, widths[0], 5, lifting=True, bias=False)
        self.lift_norm = GroupBatchNorm(widths[0])
        self.halve_first, self.halve = SpatialPool("max"), SpatialPool("mean")
        self.stages = nn.ModuleList()
        channels = widths[0]
        for width, depth in zip(widths, depths, strict=True):
            inputs = [channels, *[width] * (depth - 1)]
            self.stages.append(nn.Sequential(*(ResidualBlock(group, own, width, kernel_size) for own in inputs)))
            channels = width
        self.classify = nn.Linear(_STATISTICS * sum(widths), n_classes) if head == "classes" else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes), or the statistics (b, 4 sum(widths)) without a head"""
        check_feature_maps(images, self.standardize.num_features, None)
        maps, found = self.halve_first(silu(self.lift_norm(self.lift(self.standardize(images))))), []
        for number, stage in enumerate(self.stages):
            maps = stage(self.halve(maps) if number else maps)
            found.append(invariant_statistics(maps))
        scores: Tensor = self.classify(torch.cat(found, dim=1))
        return scores


def invariant_statistics(maps: Tensor) -> Tensor:
    """Mean and deviation over the image of the maximum and the mean over the group.

    (b, channels, order, h, w) -> (b, 4 channels). Deviations tell textures apart that have the same mean.
    """
    found = []
    for pooled in (maps.amax(2), maps.mean(2)):
        variance, mean = torch.var_mean(pooled.float(), (-2, -1), correction=0)
        found += [mean, (variance + _FLOOR).sqrt()]
    return torch.cat(found, dim=1).to(maps.dtype)


def group_resnet(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    widths: Sequence[int] = (16, 32, 64),
    depths: Sequence[int] = (2, 2, 2),
    kernel_size: int | None = None,
    head: str | None = "classes",
) -> GroupResNet:
    """Create a residual group convolution network, invariant to the group.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``; ``"c1"`` makes a plain residual network.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes; not used without a head.
    image_size : int or (int, int)
        Side, or (height, width), in pixels. Recorded only: other sizes work as well.
    widths : sequence of int, default (16, 32, 64)
        Channels of each stage, for each element of the group. Maps are halved before every stage.
    depths : sequence of int, default (2, 2, 2)
        Residual blocks of each stage.
    kernel_size : int, optional
        Odd side of the kernels. Default: 3 if the group maps pixels to pixels, 5 for finer angles.
    head : "classes" or None, default "classes"
        Class scores (b, n_classes), or None for the vector (b, 4 sum(widths)) that they are computed from: an encoder.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes), or (b, 4 sum(widths)) without a head.

    Notes
    -----
    The maps of every stage are pooled to their mean and deviation over the image, of the maximum and of the mean over
    the group. Learnt without labels, vectors of all stages have more neighbours of the same class than those of the
    last stage alone (``docs/benchmarks/unlabelled.md``).

    Examples
    --------
    >>> encoder = group_resnet("d4", 1, 0, 40, widths=(2, 4), depths=(1, 1), head=None)
    >>> image = torch.rand(1, 1, 40, 40)
    >>> vector = encoder.eval()(image)
    >>> vector.shape, torch.allclose(vector, encoder(image.rot90(1, (2, 3))), atol=1e-5)
    (torch.Size([1, 24]), True)
    """
    parsed = parse_point_group(group)
    if len(widths) != len(depths) or not widths or min(*widths, *depths) < 1:
        raise ValueError(f"widths and depths must be equally many positive numbers, got {widths} and {depths}")
    if head not in ("classes", None):
        raise ValueError(f"head of a group_resnet must be 'classes' or None, got {head!r}")
    if kernel_size is None:
        kernel_size = 3 if kernel_basis(parsed, 3).shape[1] == 9 else 5
    outputs = n_classes if head == "classes" else _STATISTICS * sum(widths)
    size = as_image_size(image_size)
    return GroupResNet(parsed, in_channels, outputs, size, tuple(widths), tuple(depths), kernel_size, head)
