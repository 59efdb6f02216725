"""A network for dilations: one set of layers looks at an image at several scales, and all that they say counts."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, silu

from unpose.groups import FiniteGroup, scaling
from unpose.images import smooth, warp
from unpose.nn.functional.checks import as_size, check_maps
from unpose.nn.functional.group_attention import check_window
from unpose.nn.functional.positions import parse_finite, relative_positions
from unpose.nn.layers.encodings import harmonic_basis
from unpose.nn.layers.norm_and_pooling import SpatialPool
from unpose.nn.networks.base import Network

_RINGS = 3
"""Rings of the kernels, the innermost at the origin."""
_PIXEL_BLUR = 0.5
"""Standard deviation, in pixels, of the blur that an image is taken to have come with."""
_HELD_BACK = 6.0
"""By how much, for each octave from an image's favoured scale, scores are lowered while the network learns."""


def scale_pyramid(images: Tensor, scales: Sequence[float]) -> list[Tensor]:
    """Images as each scale sees them, ``f(s x)``: (b, c, h, w) -> for each scale s (b, c, round(h / s), round(w / s)).

    What one scale sees of an image, the next sees of the image enlarged by their ratio. Before pixels are left out, the
    image is smoothed from the blur of a pixel to the blur of s pixels, so two steps of ``s`` and ``t`` are one of
    ``s t``. It is resampled once for each scale, from the original.
    """
    seen = []
    for scale in scales:
        if scale == 1:
            seen.append(images)
            continue
        height, width = (max(1, round(side / scale)) for side in images.shape[-2:])
        blurred = smooth(images, _PIXEL_BLUR * math.sqrt(max(0.0, scale**2 - 1)))
        shrink = scaling(torch.tensor(1 / scale, dtype=images.dtype, device=images.device))
        seen.append(warp(blurred, shrink, (height, width)))
    return seen


def smooth_functions(size: int) -> Tensor:
    """What the kernels of a window are made of: (functions, size, size) in float64, each of unit norm.

    The functions of :func:`unpose.nn.layers.encodings.harmonic_basis` with the outermost ring at the edge of the window. They
    vary little from pixel to pixel, so that a kernel does not answer to what resampling leaves or takes.
    """
    spacing = (size // 2) / (_RINGS - 1)
    shrink = torch.eye(2, dtype=torch.float64)[None] / spacing
    functions = harmonic_basis(relative_positions(shrink, (size, size))[0], _RINGS).movedim(-1, 0)
    return functions / functions.square().sum((-2, -1), keepdim=True).sqrt()


class ScaleLayer(nn.Module):
    """Convolution, batch norm and Swish with the same weights at every scale, each scale on its own grid.

    A list of (b, in, h_s, w_s) -> a list of (b, out, h_s, w_s). Distances count in the pixels of the scale, so kernels
    grow with it, at less cost and not more.
    """

    functions: Tensor

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        check_window((kernel_size, kernel_size))
        functions = smooth_functions(kernel_size).to(torch.get_default_dtype())
        fan = in_channels * len(functions)
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, len(functions)) * math.sqrt(2 / fan))
        self.register_buffer("functions", functions, persistent=False)
        self.norm = nn.BatchNorm1d(out_channels)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        kernel = torch.einsum("oin,nyx->oiyx", self.weight, self.functions)
        found = [conv2d(each, kernel, padding=kernel.shape[-1] // 2) for each in maps]
        # Statistics over all scales together: a scale is not told from its neighbours.
        flat = silu(self.norm(torch.cat([each.flatten(2) for each in found], dim=2)))  # (b, out, pixels of all scales)
        parts = flat.split([math.prod(each.shape[2:]) for each in found], dim=2)
        return [part.unflatten(2, each.shape[2:]) for part, each in zip(parts, found, strict=True)]


class ScaleNet(Network):
    """See :func:`scale_net`."""

    held_back: Tensor

    def __init__(
        self,
        group: FiniteGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        widths: tuple[int, ...],
        kernel_size: int,
    ) -> None:
        super().__init__(
            group,
            network="scale_net",
            in_channels=in_channels,
            n_classes=n_classes,
            image_size=image_size,
            widths=widths,
            kernel_size=kernel_size,
        )
        scales = group.elements[:, 0, 0]
        if not torch.equal(group.elements[:, 1, 1], scales) or (scales[1:] <= 1).any():
            raise ValueError(f"a network for scales needs dilations(COUNT, RATIO), got {group}")
        # The finest scale, and a third of all after it, can be an image's favourite.
        octaves = (scales / scales[: group.order // 3 + 1, None]).log2().abs()  # (favourites, scales)
        self.register_buffer("held_back", (_HELD_BACK * octaves).to(torch.get_default_dtype()), persistent=False)
        self.in_channels, self.scales = in_channels, scales.tolist()
        self.layers = nn.ModuleList(
            ScaleLayer(inside, outside, kernel_size) for inside, outside in pairwise((in_channels, *widths))
        )
        self.pool = SpatialPool("max")
        self.classify = nn.Linear(widths[-1], n_classes)

    def features(self, images: Tensor) -> list[Tensor]:
        """(b, in_channels, h, w) -> for each scale (b, channels, h_s, w_s)"""
        check_maps(images, self.in_channels, None)
        maps = scale_pyramid(images, self.scales)
        for index, layer in enumerate(self.layers):
            maps = layer([self.pool(each) for each in maps] if index == 1 else maps)
        return maps

    def scores(self, images: Tensor) -> Tensor:
        """What each scale says by itself: (b, in_channels, h, w) -> (b, scales, n_classes)"""
        # A mean over the image would shrink with the object; a maximum does not.
        strongest = [each.amax((-2, -1)) for each in self.features(images)]
        return self.classify(torch.stack(strongest, dim=1))

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes)"""
        scores = self.scores(images)
        if self.training:
            # Left alone, the finest scale learns most, and none is left for what is smaller than the training images.
            drawn = torch.randint(len(self.held_back), images.shape[:1], device=images.device)
            scores = scores - self.held_back[drawn][..., None]  # (b, scales, 1)
        return scores.logsumexp(1)


def scale_net(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    widths: Sequence[int] = (8, 16, 32),
    kernel_size: int = 5,
) -> ScaleNet:
    """A convolution network for dilations: (b, in_channels, h, w) -> (b, n_classes).

    The image is looked at by every scale (:func:`scale_pyramid`) with the same layers: one :class:`ScaleLayer` for each
    width, maps halved after the first, the maximum over the image, one linear map. Its scores are those of
    pairs of scale and class, and ``log sum_s exp(score(s, class))`` is the score of a class at any scale. The
    parameters depend neither on how many scales there are nor on the kernel size.

    While it learns, each image favours one scale, drawn anew from the finest and a third of all after it: a prior on
    the size of the training images, which is dropped in use. So the same layers learn them from near and from further,
    and scales are left for smaller and larger ones.

    Parameters
    ----------
    group : ``dilations(COUNT, RATIO)``, such as ``dilations(5, 1.41)``; scale one sees the image as it is
    widths : channels of the layers
    kernel_size : odd side of the kernels in pixels of their scale

    Notes
    -----
    Bounded: an object that is out of the reach of all scales is seen as by any other network. Pixels and borders make
    the symmetry approximate, unlike that of quarter turns. With ratio r the cost is at most ``r^2 / (r^2 - 1)`` times
    that of one scale: twice for ``2 ** 0.5``.

    Examples
    --------
    >>> scale_net("dilations(3, 1.5)", 1, 10, 28, widths=(3, 4))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if kernel_size < 3:
        raise ValueError(f"kernel_size must be odd and at least 3, so that its rings lie apart, got {kernel_size}")
    if not widths or min(widths) < 1:
        raise ValueError(f"widths must name at least one layer of at least one channel, got {tuple(widths)}")
    return ScaleNet(parse_finite(group), in_channels, n_classes, as_size(image_size), tuple(widths), kernel_size)
