"""U-Nets of group convolutions: dense answers, such as masks and fields of vectors, that move with the image."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import as_image_size, check_feature_maps, check_positive, parse_point_group
from unpose.nn.layers.convolution import GroupConv2d
from unpose.nn.layers.heads import MaskHead, VectorHead
from unpose.nn.layers.norm_and_pooling import GroupBatchNorm, PointwiseLinear, SpatialPool, upsample
from unpose.nn.networks.base import Network, arguments_of

OUTPUTS = ("scalar", "regular", "vector")
"""How the answer at a pixel transforms: not at all, by permutation of the elements, or like a vector in the image."""


class _TwoConvolutions(nn.Sequential):
    """Two group convolutions with norm and Swish; the first may lift an image to the group."""

    def __init__(self, group: FiniteGroup, in_channels: int, channels: int, kernel_size: int, lifting: bool) -> None:
        layers: list[nn.Module] = []
        for first, given in ((True, in_channels), (False, channels)):
            lifts = lifting and first
            layers += [
                GroupConv2d(group, given, channels, kernel_size, lifting=lifts, bias=False),
                GroupBatchNorm(channels),  # statistics over batch, elements and pixels
                nn.SiLU(),
            ]
        super().__init__(*layers)


class EquivariantUNet(Network):
    """The network of :func:`equivariant_unet`."""

    def __init__(
        self,
        group: FiniteGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        *,
        width: int,
        levels: int,
        kernel_size: int,
        output: str,
    ) -> None:
        super().__init__(network="equivariant_unet", **arguments_of(locals()))
        self.in_channels, self.output = in_channels, output
        widths = [width * 2**level for level in range(levels)]
        given = [in_channels, *widths]
        self.down = nn.ModuleList(
            _TwoConvolutions(group, given[level], widths[level], kernel_size, lifting=level == 0)
            for level in range(levels)
        )
        self.up = nn.ModuleList(
            _TwoConvolutions(group, widths[level] + widths[level + 1], widths[level], kernel_size, lifting=False)
            for level in reversed(range(levels - 1))
        )
        self.pool = SpatialPool("mean")
        self.head: nn.Module
        if output == "vector":
            self.head = VectorHead(group, width, n_classes, dense=True)
        elif output == "regular":
            self.head = PointwiseLinear(width, n_classes)
        else:
            self.head = MaskHead(width, n_classes)

    def features(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, width, order, h, w)"""
        check_feature_maps(images, self.in_channels, None)
        maps, skipped = images, []
        for level, block in enumerate(self.down):
            maps = block(maps if level == 0 else self.pool(maps))
            skipped.append(maps)
        skipped.pop()
        for block in self.up:
            wide = skipped.pop()
            maps = block(torch.cat([wide, upsample(maps, (wide.shape[-2], wide.shape[-1]))], 1))
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes, ..., h, w)"""
        features = self.features(images)
        return self.head(features, images.shape[-2:]) if self.output == "scalar" else self.head(features)


def equivariant_unet(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    width: int = 8,
    levels: int = 3,
    kernel_size: int = 3,
    output: str = "scalar",
) -> EquivariantUNet:
    """Create a U-Net of group convolutions, whose masks or vectors move with the image.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``; ``"c1"`` gives an ordinary U-Net.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes, or of other answers, for each pixel.
    image_size : int or (int, int)
        Side, or (height, width), in pixels. Recorded only: all sizes work, even or odd.
    width : int, default 8
        Channels of each element of the group on the first level; they double from level to level.
    levels : int, default 3
        Number of resolutions; maps are halved between levels.
    kernel_size : int, default 3
        Odd side of the kernels; 5 for groups with angles finer than quarter turns.
    output : {"scalar", "regular", "vector"}, default "scalar"
        What each answer is: a number, which moves with its pixel, such as the score of a class; one number for each
        element of the group, which are also permuted; or a vector (x, y), which also turns, such as an offset or flow.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes, h, w) for scalars, (b, n_classes, order, h, w) for
        regular answers, (b, n_classes, 2, h, w) for vectors.

    Notes
    -----
    Halving and its inverse take positions that are symmetric about the centre of the image (see
    :class:`unpose.nn.SpatialPool`), so the network is exact for quarter turns and mirrors at every size.

    Examples
    --------
    >>> masks = equivariant_unet("d4", 3, 2, 40, width=4)
    >>> masks(torch.rand(1, 3, 40, 37)).shape
    torch.Size([1, 2, 40, 37])
    >>> equivariant_unet("c4", 1, 1, 16, width=2, output="vector")(torch.rand(1, 1, 16, 16)).shape
    torch.Size([1, 1, 2, 16, 16])
    """
    check_positive(in_channels=in_channels, n_classes=n_classes, width=width, levels=levels)
    if output not in OUTPUTS:
        raise ValueError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}")
    return EquivariantUNet(
        parse_point_group(group), in_channels, n_classes, as_image_size(image_size), width=width, levels=levels,
        kernel_size=kernel_size, output=output,
    )  # fmt: skip
