"""A small vision transformer with Invariant Attention among patches, or with ordinary attention."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import as_image_size, check_feature_maps, check_positive, parse_point_group
from unpose.nn.layers.invariant_attention import InvariantAttentionBlock, OrbitEmbedding
from unpose.nn.networks.base import Network, arguments_of, count_parameters


class _Residual(nn.Module):
    """A residual connection around a layer norm and the given modules."""

    def __init__(self, width: int, *modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.LayerNorm(width), *modules)

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.parts(tokens)


class _TokenAttention(nn.Module):
    """Multi-head self-attention among tokens: (b, n, width) -> (b, n, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        projected = self.project(tokens).unflatten(-1, (3, self.heads, -1))  # (b, n, 3, heads, d)
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # (b, heads, n, d) each
        return self.merge(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class _AppendAttention(nn.Module):
    """Concatenate the output of attention to the channels of the patches.

    (b, rows, columns, c, p, p) -> (b, rows, columns, c + out_channels, p, p)
    """

    def __init__(self, attention: InvariantAttentionBlock) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, patches: Tensor) -> Tensor:
        return torch.cat([patches, self.attention(patches)], dim=3)


class PatchNet(Network):
    """The network of :func:`patch_net`."""

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
        shift: float,
    ) -> None:
        super().__init__(network="patch_net", **arguments_of(locals()))
        self.in_channels, self.patch_size = in_channels, patch_size
        attention_blocks: list[nn.Module] = []
        layers: list[nn.Module] = []
        patch_channels = in_channels
        for _ in range(depth):
            if attention == "invariant":
                block = InvariantAttentionBlock(
                    group,
                    patch_channels,
                    patch_size,
                    out_channels=channels,
                    heads=heads,
                    neighbours=neighbours,
                    window=window,
                    shift=shift,
                )
                attention_blocks.append(_AppendAttention(block))
                patch_channels += channels
            else:
                layers.append(_Residual(width, _TokenAttention(width, heads)))
            layers.append(_Residual(width, nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)))
        self.relate = nn.Sequential(*attention_blocks)
        self.embed = OrbitEmbedding(group, patch_channels, patch_size, width)
        self.layers = nn.Sequential(*layers)
        self.classify = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_classes))

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes)"""
        check_feature_maps(images, self.in_channels, None)
        tokens = self.embed(self.relate(split_into_patches(images, self.patch_size)))  # (b, rows * columns, width)
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
    shift: float = 0.0,
) -> PatchNet:
    """Create a small vision transformer of a given size, invariant to the pose of every patch.

    With ``attention="invariant"`` the patches first attend to each other up to pose, and the output of
    :class:`unpose.nn.InvariantAttentionBlock` is concatenated to their channels; then each patch becomes a token
    (:class:`unpose.nn.OrbitEmbedding`), which pointwise layers process. With ``attention="ordinary"`` patches become
    tokens first, and tokens attend to each other before each pointwise layer, as in any transformer. Either way the
    head takes the mean of the tokens.

    Parameters
    ----------
    group : str or FiniteGroup
        Rotations, with or without mirrors, over which patches are compared and embedded. With ``c1`` patches are
        compared as they are (kernel attention, (2.1)) and the embedding is the ordinary linear one.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes.
    image_size : int or (int, int)
        Side, or (height, width), in pixels. Must be a multiple of the patch size; other multiples
        work as well.
    patch_size : int, default 8
        Side of a patch in pixels.
    attention : {"invariant", "ordinary"}, default "invariant"
        The kind of attention.
    parameters : int, default 30_000
        The pointwise layers are as wide as fits into this number of parameters, so that both kinds of attention can be
        compared at one size.
    width : int, default 32
        Channels of a token.
    hidden : int, optional
        Width of the pointwise layers, instead of ``parameters``.
    depth : int, default 1
        Number of blocks.
    heads : int, default 4
        Heads of each attention.
    channels : int, default 2
        Channels that each invariant block adds to the patches.
    neighbours : int or None, default 4
        Patches that each patch attends to, itself included; None for all.
    window : int, optional
        Odd side, in patches, of the square in which a patch attends; the whole image by default.
    shift : float, default 0.0
        Patches are also compared shifted by this many pixels in eight directions.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes).

    Notes
    -----
    Tokens carry no position: the output is the same for patches in any order and, with invariant attention, also if
    each patch is transformed by an element of the group, exactly for quarter turns and up to interpolation for others.

    Examples
    --------
    >>> patch_net("c8", 1, 10, (16, 24))(torch.rand(2, 1, 16, 24)).shape
    torch.Size([2, 10])
    """
    parsed = parse_point_group(group)
    size = as_image_size(image_size)
    _check_divides(size, patch_size)
    if attention not in ("invariant", "ordinary"):
        raise ValueError(f"attention must be 'invariant' or 'ordinary', got {attention!r}")
    check_positive(depth=depth)
    if attention == "ordinary" and width % heads:
        raise ValueError(f"the width of a token must be a multiple of heads: {width} is not a multiple of {heads}")
    build = partial(
        PatchNet, parsed, in_channels, n_classes, size, patch_size=patch_size, attention=attention,
        width=width, depth=depth, heads=heads, channels=channels, neighbours=neighbours, window=window, shift=shift,
    )  # fmt: skip
    if hidden is not None:
        return build(hidden=hidden)
    with torch.device("meta"):
        minimum, second = (count_parameters(build(hidden=hidden)) for hidden in (1, 2))
    if parameters < minimum:
        raise ValueError(f"{parameters} parameters are too few for this network; at least {minimum} are needed")
    return build(hidden=1 + (parameters - minimum) // (second - minimum))  # the count is linear in hidden


def split_into_patches(images: Tensor, patch_size: int) -> Tensor:
    """Split images into patches that do not overlap: (b, c, h, w) -> (b, rows, columns, c, p, p)."""
    _check_divides((images.shape[-2], images.shape[-1]), patch_size)
    split = images.unflatten(3, (-1, patch_size)).unflatten(2, (-1, patch_size))  # (b, c, rows, p, columns, p)
    return split.permute(0, 2, 4, 1, 3, 5)


def _check_divides(image_size: tuple[int, int], patch_size: int) -> None:
    """Raise a ``ValueError`` unless patches fill an image of (height, width)."""
    height, width = image_size
    if patch_size < 1 or height % patch_size or width % patch_size:
        raise ValueError(f"patches of {patch_size} pixels do not fill an image of {height} x {width}; crop or pad it")
