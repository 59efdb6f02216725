"""The published group self-attention networks (figure F.1 and appendix F), with a group layer that is equivariant."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import as_image_size, check_window, parse_finite, pooled_size, stem_halvings
from unpose.nn.functional.positions import widest_window
from unpose.nn.layers.attention import GroupSelfAttention, LiftingSelfAttention
from unpose.nn.layers.constants import ConstantTables
from unpose.nn.layers.convolution import GroupConv2d
from unpose.nn.layers.norm_and_pooling import ChannelNorm, GroupPool, PointwiseLinear, SpatialPool, norm_swish
from unpose.nn.networks.base import GroupNetwork, arguments_of
from unpose.nn.networks.scale import combine_scales, scale_penalty
from unpose.nn.ops.autocast import full_precision


@dataclass(frozen=True)
class GSANetConfig:
    """The architecture of a :func:`gsa_net`: what differs between the published networks.

    Parameters
    ----------
    lifted : int
        Channels of the lifting layer, at least 4.
    stages : tuple of tuples of int
        Channels of the attention blocks of each stage, at least 6; maps are halved between stages.
    window : int or None, default 5
        Odd side of the attention window; None, or 0 in TOML, which has no null, for global attention.
    heads : int, default 9
        Number of heads; each has half of a block's channels.
    attention_dropout : float, default 0.1
        Dropout probability of attention weights.
    value_dropout : float, default 0.1
        Dropout probability after every attention layer.
    input_dropout : float, default 0.0
        Dropout probability of the image.
    stage_dropout : float, default 0.0
        Dropout probability after every halving.
    pool_last : bool, default False
        Whether maps are halved after the last stage too.
    mode : {"relative", "paper", "printed"}, default "relative"
        Version of group self-attention, see :class:`unpose.nn.GroupSelfAttention`: our smaller sum, the paper's sum
        made equivariant, or the paper's sum as printed, which is not equivariant.

    Examples
    --------
    >>> config = GSANetConfig(lifted=6, stages=((6,), (8, 8)), window=3, heads=2)
    >>> gsa_net("c4", 1, 10, 28, config=config).description["config"]["stages"]
    [[6], [8, 8]]
    """

    lifted: int
    stages: tuple[tuple[int, ...], ...]
    window: int | None = 5
    heads: int = 9
    attention_dropout: float = 0.1
    value_dropout: float = 0.1
    input_dropout: float = 0.0
    stage_dropout: float = 0.0
    pool_last: bool = False
    mode: str = "relative"

    def __post_init__(self) -> None:
        # JSON gives lists; tuples make the configuration comparable and hashable.
        object.__setattr__(self, "stages", tuple(tuple(stage) for stage in self.stages))
        object.__setattr__(self, "window", self.window or None)
        if self.lifted < 4 or any(channels < 6 for stage in self.stages for channels in stage):
            raise ValueError(
                f"a lifting layer needs at least 4 channels and a block 6, because half of them encode x, y and the "
                f"element; got {self.lifted} and {self.stages}"
            )


GSA_NET_CONFIGS = {
    "rotated-mnist": GSANetConfig(20, ((20, 20), (20, 20, 20))),
    "cifar-10": GSANetConfig(96, ((96, 96), (192, 192), (192, 192)), input_dropout=0.3, stage_dropout=0.2),
    "patch-camelyon": GSANetConfig(12, ((), (24,), (48, 48), (96,)), pool_last=True),
}
"""The published architectures of appendix F.1, F.2 and F.3 by name."""


_STEM_KERNEL = 5
"""Side, in pixels, of the kernels of a convolution stem."""


class _Block(nn.Module):
    """One block of figure F.1: attention, then two pointwise layers, each with a residual connection."""

    def __init__(
        self, group: FiniteGroup, in_channels: int, out_channels: int, config: GSANetConfig, reach: float | None
    ) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            *norm_swish(in_channels),
            GroupSelfAttention(
                group,
                in_channels,
                out_channels,
                heads=config.heads,
                head_channels=out_channels // 2,
                window=config.window,
                reach=reach,
                attention_dropout=config.attention_dropout,
                mode=config.mode,
            ),
            *norm_swish(out_channels),
            nn.Dropout(config.value_dropout),
        )
        self.pointwise = nn.Sequential(
            PointwiseLinear(out_channels, out_channels // 2),
            *norm_swish(out_channels // 2),
            PointwiseLinear(out_channels // 2, out_channels),
            ChannelNorm(out_channels),
        )
        self.shortcut = nn.Identity() if in_channels == out_channels else PointwiseLinear(in_channels, out_channels)

    def forward(self, maps: Tensor) -> Tensor:
        maps = full_precision(self.shortcut(maps)) + self.attention(maps)
        return maps + self.pointwise(maps)


class GSANet(ConstantTables, GroupNetwork):
    """The network of :func:`gsa_net`."""

    scale_penalty: Tensor

    def __init__(
        self,
        group: FiniteGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        config: GSANetConfig,
        stem: int,
        head: str | None,
    ) -> None:
        super().__init__(network="gsa_net", **arguments_of(locals()))
        halvings = stem_halvings(stem)
        channels, size = config.lifted, image_size
        for _ in range(halvings):
            size = pooled_size(size)
        reach = None if config.window is not None else max(size) / 2
        lifting: nn.Module
        if stem > 1:
            lifting = GroupConv2d(group, in_channels, config.lifted, _STEM_KERNEL, lifting=True, stride=2)
        else:
            lifting = LiftingSelfAttention(
                group,
                in_channels,
                config.lifted,
                heads=config.heads,
                head_channels=config.lifted // 2,
                window=config.window,
                reach=reach,
                attention_dropout=config.attention_dropout,
            )
        blocks: list[nn.Module] = [nn.Dropout(config.input_dropout), lifting, *norm_swish(config.lifted)]
        blocks += [SpatialPool("max") for _ in range(halvings - 1)]
        for index, stage in enumerate(config.stages):
            for width in stage:
                blocks.append(_Block(group, channels, width, config, reach))
                channels = width
                if config.window is not None:
                    check_window((widest_window(group, config.window),) * 2, size)
            if index < len(config.stages) - 1 or config.pool_last:
                blocks += [SpatialPool("max"), nn.Dropout(config.stage_dropout)]
                size = pooled_size(size)
                halvings += 1
                reach = reach and max(reach / 2, 1.0)
        self.features = nn.Sequential(*blocks)
        if head == "classes":
            self.classify = PointwiseLinear(channels, n_classes, bias=False)
            self.pool = GroupPool("max")
        self.set_head(head, channels, n_classes, halvings)
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        return {"scale_penalty": scale_penalty(self.group)} if self._is_for_dilations() else {}

    def _is_for_dilations(self) -> bool:
        return self.group.name.startswith("dilations")  # dilations(1), the baseline, too

    def scores(self, features: Tensor) -> Tensor:
        """(b, channels, order, h, w) -> (b, n_classes)"""
        classes = self.classify(features)
        if not self._is_for_dilations():
            return self.pool(classes).mean((-2, -1))
        # The maximum over the image does not depend on the size of the object; the mean would.
        maxima = classes.amax((-2, -1)).transpose(1, 2)  # (b, scales, n_classes)
        return combine_scales(maxima, self.scale_penalty if self.training else None)


def gsa_net(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    config: str | GSANetConfig | dict[str, Any] = "rotated-mnist",
    stem: int = 1,
    head: str | None = "classes",
) -> GSANet:
    """Create a group self-attention network (figure F.1), invariant to the group.

    Parameters
    ----------
    group : str or FiniteGroup
        The paper's Z2 is ``c1``, M is ``d1``, R4, R8, R12 and R16 are ``c4``, ``c8``, ``c12``, ``c16``, R4M is ``d4``.
        ``dilations(COUNT, RATIO)`` is appendix E: objects at several sizes.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes, or of vectors; not used without a head.
    image_size : int or (int, int)
        Side, or (height, width), in pixels. Windows must fit it, and global attention scales its
        encoding by it. Other sizes work as well.
    config : str, GSANetConfig or dict, default "rotated-mnist"
        A published architecture, ``"rotated-mnist"``, ``"cifar-10"`` or ``"patch-camelyon"``, or one of your own, or
        the fields of one.
    stem : {1, 2, 4, 8}, default 1
        For large images, such as 4 for 224 pixels: the first layer, a convolution instead of attention, makes the
        maps this many times smaller.
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
    Number of parameters, here and as published:

    ================  =========================================  =========
    network           here                                       published
    ================  =========================================  =========
    rotated-mnist     44,368 (c1), 44,428 (c4) ... 44,668 (c16)  44.67K
    cifar-10          2,999,728 (c1), 2,999,888 (d1)             2.99M
    patch-camelyon    206,494 (c1), 206,602 (c4), 206,746 (d4)   205.66K
    ================  =========================================  =========

    The paper gives one number for all groups. The first is that of 16 rotations (each element has an embedding in each
    layer), the second that of either group, truncated after two digits. The third cannot be reproduced from the text,
    which names four blocks and lists five widths: there are 0.4 to 0.5 % more here. The published code of the second
    and third also has norms between blocks (3.00M and 207K), and that of the first and third crops borders between
    layers; neither is in the paper, and neither is here. The paper gives no window for the second and third; 5 is our
    choice.

    The head is the paper's: a linear map, the maximum over the group, the mean over the image. The paper has no network
    for dilations; here its head is that of :func:`unpose.nn.scale_net`, the maximum over the image for each scale, then
    ``log sum exp`` over scales, because a mean over the image depends on the size of the object. Windows grow with the
    scale, so the largest must fit the smallest map, and the cost grows with its square.

    Examples
    --------
    >>> import torch
    >>> config = GSANetConfig(lifted=6, stages=((6,), (8,)), window=3, heads=2)
    >>> gsa_net("c4", 1, 10, 28, config=config)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if isinstance(config, str):
        if config not in GSA_NET_CONFIGS:
            raise ValueError(
                f"unknown configuration {config!r}; known: {', '.join(GSA_NET_CONFIGS)}, or pass a GSANetConfig"
            )
        config = GSA_NET_CONFIGS[config]
    elif not isinstance(config, GSANetConfig):
        config = GSANetConfig(**config)
    return GSANet(parse_finite(group), in_channels, n_classes, as_image_size(image_size), config, stem, head)
