"""The network of this library: group convolutions extract features, group attention relates them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import as_image_size, check_positive, check_window, parse_point_group, pooled_size
from unpose.nn.layers.attention import GroupSelfAttention
from unpose.nn.layers.convolution import GroupConv2d
from unpose.nn.layers.norm_and_pooling import ChannelNorm, GroupBatchNorm, GroupPool, PointwiseLinear, SpatialPool
from unpose.nn.networks.base import GroupNetwork, arguments_of


class _ConvBlock(nn.Sequential):
    """Group convolution, batch norm over elements and pixels together, Swish."""

    def __init__(
        self, group: FiniteGroup, in_channels: int, out_channels: int, kernel_size: int, lifting: bool = False
    ) -> None:
        super().__init__(
            GroupConv2d(group, in_channels, out_channels, kernel_size, lifting=lifting, bias=False),
            GroupBatchNorm(out_channels),
            nn.SiLU(),
        )


class _AttentionBlock(nn.Module):
    """Attention, then two pointwise layers, each with a norm before and a residual connection."""

    def __init__(self, group: FiniteGroup, channels: int, heads: int, window: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            ChannelNorm(channels),
            GroupSelfAttention(
                group,
                channels,
                channels,
                heads=heads,
                head_channels=max(channels // heads, 1),
                window=window,
                encoding="harmonic",
                value_dropout=dropout,
            ),
        )
        self.pointwise = nn.Sequential(
            ChannelNorm(channels),
            PointwiseLinear(channels, 2 * channels),
            nn.SiLU(),
            PointwiseLinear(2 * channels, channels),
            nn.Dropout(dropout),
        )

    def forward(self, maps: Tensor) -> Tensor:
        maps = maps + self.attention(maps)
        return maps + self.pointwise(maps)


class SwivelNet(GroupNetwork):
    """The network of :func:`swivel_net`."""

    def __init__(
        self,
        group: FiniteGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        widths: tuple[int, ...],
        depths: tuple[int, ...],
        heads: int,
        window: int,
        dropout: float,
        head: str | None,
    ) -> None:
        super().__init__(network="swivel_net", **arguments_of(locals()))
        layers: list[nn.Module] = [
            _ConvBlock(group, in_channels, widths[0], 7, lifting=True),
            _ConvBlock(group, widths[0], widths[0], 5),
        ]
        size = image_size
        for before, width, depth in zip(widths, widths[1:], depths, strict=False):
            layers += [SpatialPool("max"), _ConvBlock(group, before, width, 5)]
            size = pooled_size(size)
            if depth:
                check_window((window, window), size)
            layers += [_AttentionBlock(group, width, heads, window, dropout) for _ in range(depth)]
        self.features = nn.Sequential(*layers)
        if head == "classes":
            self.max_pool, self.mean_pool = GroupPool("max"), GroupPool("mean")
            self.classify = nn.Sequential(
                nn.LayerNorm(2 * widths[-1]),
                nn.Dropout(dropout),
                nn.Linear(2 * widths[-1], n_classes),
            )
        self.set_head(head, widths[-1], n_classes, len(widths) - 1)

    def scores(self, features: Tensor) -> Tensor:
        """(b, channels, order, h, w) -> (b, n_classes)"""
        means = features.mean((-2, -1))  # (b, channels, order)
        return self.classify(torch.cat([self.max_pool(means), self.mean_pool(means)], dim=1))


def swivel_net(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    widths: Sequence[int] = (24, 48, 72),
    depths: Sequence[int] = (2, 2),
    heads: int = 6,
    window: int = 5,
    dropout: float = 0.1,
    head: str | None = "classes",
) -> SwivelNet:
    """Create a network with a convolution stem and group attention blocks, invariant to the group.

    Two convolutions at full size (7 pixels, lifting; 5 pixels). Then for each further width: halve the maps, one
    5-pixel convolution, and ``depth`` attention blocks (norm first, residual, harmonic encodings). The head takes the
    mean over the image, the maximum and the mean over the group, and one linear map.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes, or of vectors; not used without a head.
    image_size : int or (int, int)
        Side, or (height, width), in pixels. Windows must fit it; other sizes work as well.
    widths : sequence of int, default (24, 48, 72)
        Channels of the stem and of each stage.
    depths : sequence of int, default (2, 2)
        Number of attention blocks of each stage, one entry fewer than ``widths``.
    heads : int, default 6
        Number of heads; each has ``width // heads`` channels.
    window : int, default 5
        Odd side of the attention window in pixels.
    dropout : float, default 0.1
        Dropout probability after attention, after pointwise layers and before the last linear map.
    head : {"classes", "mask", "vectors", "field"} or None, default "classes"
        What the network gives: class scores (b, n_classes); scores of every pixel (b, n_classes, h, w), which move with
        the image (:class:`unpose.nn.MaskHead`); vectors (b, n_classes, 2) or a field of them (b, n_classes, 2, h, w),
        which turn with it (:class:`unpose.nn.VectorHead`); None for the maps (b, channels, order, h, w) themselves.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes), or as ``head`` says.

    Notes
    -----
    The convolutions have batch norm: in short trials on a few hundred digits it learnt much faster than norms of single
    images. Its running averages lag behind weights that change fast, so train with a learning rate that decays to zero;
    before that, results in evaluation mode can be far below those of training.

    Examples
    --------
    >>> swivel_net("c4", 1, 10, 28, widths=(4, 6, 8), heads=2)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if len(widths) < 2 or len(depths) != len(widths) - 1:
        raise ValueError(
            f"widths must have an entry for the stem and at least one stage, depths one for each stage; got "
            f"{tuple(widths)} and {tuple(depths)}"
        )
    check_positive(heads=heads)
    return SwivelNet(
        parse_point_group(group),
        in_channels,
        n_classes,
        as_image_size(image_size),
        tuple(widths),
        tuple(depths),
        heads,
        window,
        dropout,
        head,
    )
