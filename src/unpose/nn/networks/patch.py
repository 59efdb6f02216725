"""A small vision transformer whose patches attend to each other up to pose, or in the ordinary way."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import as_size, check_maps
from unpose.nn.layers.invariant_attention import InvariantAttentionBlock, OrbitEmbedding
from unpose.nn.networks.base import Network, count_parameters, parse_point_group


class _Residual(nn.Module):
    """What its parts make of the normed tokens, added to the tokens."""

    def __init__(self, width: int, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.LayerNorm(width), *parts)

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.parts(tokens)


class _TokenAttention(nn.Module):
    """Ordinary attention among tokens: (b, n, width) -> (b, n, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.project(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (3, b, heads, n, d)
        return self.merge(scaled_dot_product_attention(*parts.unbind()).transpose(1, 2).flatten(2))


class _Beside(nn.Module):
    """What attention makes of patches, as further channels beside those they have."""

    def __init__(self, attention: InvariantAttentionBlock) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, patches: Tensor) -> Tensor:
        return torch.cat([patches, self.attention(patches)], dim=3)


class PatchNet(Network):
    """See :func:`patch_net`."""

    def __init__(
        self,
        group: FiniteGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        *,
        patch_size: int,
        attention: str,
        width: int,
        hidden: int,
        depth: int,
        heads: int,
        channels: int,
        neighbours: int | None,
        window: int | None,
    ) -> None:
        super().__init__(
            group,
            network="patch_net",
            in_channels=in_channels,
            n_classes=n_classes,
            image_size=image_size,
            patch_size=patch_size,
            attention=attention,
            width=width,
            hidden=hidden,
            depth=depth,
            heads=heads,
            channels=channels,
            neighbours=neighbours,
            window=window,
        )
        self.in_channels, self.patch_size = in_channels, patch_size
        before: list[nn.Module] = []
        layers: list[nn.Module] = []
        inside = in_channels
        for _ in range(depth):
            if attention == "invariant":
                block = InvariantAttentionBlock(
                    group, inside, patch_size, out_channels=channels, heads=heads, neighbours=neighbours, window=window
                )
                before.append(_Beside(block))
                inside += channels
            else:
                layers.append(_Residual(width, _TokenAttention(width, heads)))
            layers.append(_Residual(width, nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)))
        self.relate = nn.Sequential(*before)
        self.embed = OrbitEmbedding(group, inside, patch_size, width)
        self.layers = nn.Sequential(*layers)
        self.classify = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_classes))

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes)"""
        check_maps(images, self.in_channels, None)
        tokens = self.embed(self.relate(cut(images, self.patch_size)))  # (b, rows * columns, width)
        return self.classify(self.layers(tokens).mean(1))


def patch_net(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    patch_size: int = 8,
    attention: str = "invariant",
    parameters: int = 30_000,
    width: int = 32,
    hidden: int | None = None,
    depth: int = 1,
    heads: int = 4,
    channels: int = 2,
    neighbours: int | None = 4,
    window: int | None = None,
) -> PatchNet:
    """A small vision transformer of a given size: (b, in_channels, h, w) -> (b, n_classes).

    With ``attention="invariant"`` the patches first attend to each other up to pose, and what
    :class:`unpose.nn.InvariantAttentionBlock` makes of them stands beside their pixels as further channels; then each
    patch becomes a token (:class:`unpose.nn.OrbitEmbedding`) and goes through pointwise layers. With ``"ordinary"``
    patches become tokens at once, and tokens attend to each other before each pointwise layer, as in any transformer.
    Either way the head takes the mean of the tokens.

    Parameters
    ----------
    group : turns, with or without mirror, over which patches are compared and embedded. With ``c1`` they are compared
        as they are (kernel attention, (2.1)) and the embedding is the ordinary linear one.
    image_size : side or (height, width), which patches must fill; other sizes that they fill go through as well
    patch_size : side of a patch in pixels
    attention : ``"invariant"`` or ``"ordinary"``
    parameters : the pointwise layers are as wide as this number allows, so that both kinds can be had of one size
    width : of a token
    hidden : width of the pointwise layers, where it is to be given instead
    depth : blocks
    heads : of each attention
    channels : that each invariant block adds to the patches
    neighbours, window : see :class:`unpose.nn.InvariantAttentionBlock`

    Notes
    -----
    Tokens carry no position: the answer is the same for patches in any order, and with invariant attention also for
    patches each turned by an element of the group, exactly for quarter turns and up to interpolation for others.

    Examples
    --------
    >>> patch_net("c8", 1, 10, (16, 24))(torch.rand(2, 1, 16, 24)).shape
    torch.Size([2, 10])
    """
    found = parse_point_group(group)
    height, across = as_size(image_size)
    _check_filled(height, across, patch_size)
    if attention not in ("invariant", "ordinary"):
        raise ValueError(f"attention must be 'invariant' or 'ordinary', got {attention!r}")
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    if attention == "ordinary" and width % heads:
        raise ValueError(f"the {heads} heads share the width of a token, and {width} is not a multiple of {heads}")
    build = partial(
        PatchNet, found, in_channels, n_classes, (height, across), patch_size=patch_size, attention=attention,
        width=width, depth=depth, heads=heads, channels=channels, neighbours=neighbours, window=window,
    )  # fmt: skip
    if hidden is not None:
        return build(hidden=hidden)
    with torch.device("meta"):
        least, next_larger = (count_parameters(build(hidden=hidden)) for hidden in (1, 2))
    if parameters < least:
        raise ValueError(f"{parameters} parameters are too few for this network; at least {least} are needed")
    return build(hidden=1 + (parameters - least) // (next_larger - least))


def cut(images: Tensor, patch_size: int) -> Tensor:
    """Images in patches that do not overlap: (b, c, h, w) -> (b, rows, columns, c, p, p)."""
    _check_filled(images.shape[-2], images.shape[-1], patch_size)
    split = images.unflatten(3, (-1, patch_size)).unflatten(2, (-1, patch_size))  # (b, c, rows, p, columns, p)
    return split.permute(0, 2, 4, 1, 3, 5)


def _check_filled(height: int, width: int, patch_size: int) -> None:
    if patch_size < 1 or height % patch_size or width % patch_size:
        raise ValueError(f"patches of {patch_size} pixels do not fill an image of {height} x {width}; crop or pad it")
