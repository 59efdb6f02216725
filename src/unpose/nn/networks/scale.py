"""A convolution network for dilations: the same layers process an image at several scales."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, silu

from unpose.groups import FiniteGroup, scaling
from unpose.images import smooth, warp
from unpose.nn.functional.checks import as_image_size, check_feature_maps, check_window, parse_finite
from unpose.nn.functional.positions import relative_positions
from unpose.nn.layers.constants import ConstantTables
from unpose.nn.layers.encodings import harmonic_basis
from unpose.nn.layers.norm_and_pooling import SpatialPool
from unpose.nn.networks.base import Network, arguments_of

_RINGS = 3
"""Number of rings of the kernels, the innermost at the origin."""
_PIXEL_BLUR = 0.5
"""Standard deviation, in pixels, of the blur that an image is assumed to have."""
_OCTAVE_PENALTY = 6.0
"""Subtracted from the scores during training, for each octave between a scale and the preferred scale of an image."""


def scale_pyramid(images: Tensor, scales: Sequence[float]) -> list[Tensor]:
    """Resample images at several scales: ``f(s x)`` for each scale s.

    Level s of an image is level ``s r`` of the image enlarged by r. Before it is subsampled, the image is smoothed from
    the blur of one pixel to the blur of s pixels, so steps of ``s`` and ``t`` equal one step of ``s t``. Every level is
    resampled once, from the original.

    Parameters
    ----------
    images : (b, c, h, w) tensor
        The images.
    scales : sequence of float
        The scales, 1 for the image itself, larger for smaller levels.

    Returns
    -------
    list of (b, c, round(h / s), round(w / s)) tensors
        One level for each scale s.

    Examples
    --------
    >>> [level.shape[-1] for level in scale_pyramid(torch.rand(2, 1, 28, 28), [1, 2, 4])]
    [28, 14, 7]
    """
    levels = []
    for scale in scales:
        if scale == 1:
            levels.append(images)
            continue
        height, width = (max(1, round(side / scale)) for side in images.shape[-2:])
        blurred = smooth(images, _PIXEL_BLUR * math.sqrt(max(0.0, scale**2 - 1)))
        shrink = scaling(torch.tensor(1 / scale, dtype=images.dtype, device=images.device))
        levels.append(warp(blurred, shrink, (height, width)))
    return levels


def smooth_kernel_basis(size: int) -> Tensor:
    """Return the basis of the kernels: (functions, size, size) in float64, each of unit norm.

    The functions of :func:`unpose.nn.layers.encodings.harmonic_basis` with the outermost ring at the edge of the
    window. They vary slowly from pixel to pixel, so kernels do not respond to the artefacts of resampling.
    """
    spacing = (size // 2) / (_RINGS - 1)
    shrink = torch.eye(2, dtype=torch.float64)[None] / spacing
    functions = harmonic_basis(relative_positions(shrink, (size, size))[0], _RINGS).movedim(-1, 0)
    return functions / functions.square().sum((-2, -1), keepdim=True).sqrt()


def scale_penalty(group: FiniteGroup) -> Tensor:
    """Return what training subtracts from the scores of each scale: (preferred scales, scales) in float64.

    An image prefers the finest scale or one of the next third of all scales, drawn anew in every step. Without this
    prior the finest scale learns most, and no scale is left for objects smaller than those of the training images.
    """
    scales = group.elements[:, 0, 0]
    octaves = (scales / scales[: group.order // 3 + 1, None]).log2().abs()
    return _OCTAVE_PENALTY * octaves


def combine_scales(scores: Tensor, penalty: Tensor | None) -> Tensor:
    """Sum the evidence of all scales: (b, scales, n_classes) -> (b, n_classes), with :func:`scale_penalty` in training.

    The score of a class is ``log sum_s exp(score(s, class))``.
    """
    if penalty is not None:
        preferred = torch.randint(len(penalty), scores.shape[:1], device=scores.device)
        scores = scores - penalty[preferred][..., None]  # (b, scales, 1)
    return scores.logsumexp(1)


class ScaleLayer(ConstantTables):
    """Convolution, batch norm and Swish with the same weights at every scale, each on its own pixel grid.

    A list of (b, in, h_s, w_s) -> a list of (b, out, h_s, w_s). Kernels are measured in pixels of their scale, so they
    grow with the scale while the cost decreases.
    """

    functions: Tensor

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        check_window((kernel_size, kernel_size))
        self.kernel_size = kernel_size
        shape = (out_channels, in_channels, len(smooth_kernel_basis(kernel_size)))
        self.weight = nn.Parameter(torch.randn(shape) * math.sqrt(2 / math.prod(shape[1:])))
        self.norm = nn.BatchNorm1d(out_channels)
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        return {"functions": smooth_kernel_basis(self.kernel_size)}

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        kernel = torch.einsum("oin,nyx->oiyx", self.weight, self.functions)
        convolved = [conv2d(level, kernel, padding=kernel.shape[-1] // 2) for level in maps]
        # The statistics are taken over all scales together, so that all scales are treated alike.
        flat = silu(self.norm(torch.cat([level.flatten(2) for level in convolved], dim=2)))  # (b, out, all pixels)
        parts = flat.split([math.prod(level.shape[2:]) for level in convolved], dim=2)
        return [part.unflatten(2, level.shape[2:]) for part, level in zip(parts, convolved, strict=True)]


class ScaleNet(ConstantTables, Network):
    """The network of :func:`scale_net`."""

    scale_penalty: Tensor

    def __init__(
        self,
        group: FiniteGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        widths: tuple[int, ...],
        kernel_size: int,
    ) -> None:
        super().__init__(network="scale_net", **arguments_of(locals()))
        scales = group.elements[:, 0, 0]
        if not torch.equal(group.elements[:, 1, 1], scales) or (scales[1:] <= 1).any():
            raise ValueError(f"a network for scales needs dilations(COUNT, RATIO), got {group}")
        self.in_channels, self.scales = in_channels, scales.tolist()
        self.layers = nn.ModuleList(
            ScaleLayer(before, after, kernel_size) for before, after in pairwise((in_channels, *widths))
        )
        self.pool = SpatialPool("max")
        self.classify = nn.Linear(widths[-1], n_classes)
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        return {"scale_penalty": scale_penalty(self.group)}

    def features(self, images: Tensor) -> list[Tensor]:
        """(b, in_channels, h, w) -> (b, channels, h_s, w_s) for each scale"""
        check_feature_maps(images, self.in_channels, None)
        maps = scale_pyramid(images, self.scales)
        for index, layer in enumerate(self.layers):
            maps = layer([self.pool(level) for level in maps] if index == 1 else maps)
        return maps

    def scores(self, images: Tensor) -> Tensor:
        """Return the scores of every scale: (b, in_channels, h, w) -> (b, scales, n_classes)"""
        # The maximum over the image does not depend on the size of the object; the mean would.
        maxima = [level.amax((-2, -1)) for level in self.features(images)]
        return self.classify(torch.stack(maxima, dim=1))

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes)"""
        return combine_scales(self.scores(images), self.scale_penalty if self.training else None)


def scale_net(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    widths: Sequence[int] = (8, 16, 32),
    kernel_size: int = 5,
) -> ScaleNet:
    """Create a convolution network that recognises objects at sizes it was not trained on.

    Every level of a :func:`scale_pyramid` goes through the same layers: one convolution for each width, maps halved
    after the first, the maximum over the image, one linear map. This gives a score for each pair of scale and class,
    and ``log sum_s exp(score(s, class))`` is the score of a class. The number of parameters depends neither on the
    number of scales nor on the kernel size.

    In training, each image prefers one scale, drawn anew from the finest and the next third of all scales: a prior on
    the size of the training images that is dropped in evaluation. So the same layers learn the objects at several
    scales, and scales remain for smaller and larger objects.

    Parameters
    ----------
    group : str or FiniteGroup
        ``dilations(COUNT, RATIO)``, such as ``dilations(5, 1.41)``; scale one is the image itself.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes.
    image_size : int or (int, int)
        Side, or (height, width), in pixels. Recorded only: other sizes work as well.
    widths : sequence of int, default (8, 16, 32)
        Channels of the layers.
    kernel_size : int, default 5
        Odd side of the kernels, at least 3, in pixels of their scale.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes).

    Notes
    -----
    The range is bounded: beyond it, an object is treated as by any other network. Pixels and borders make the symmetry
    approximate, unlike that of quarter turns. With ratio r the cost is at most ``r^2 / (r^2 - 1)`` times that of one
    scale: twice for ``2 ** 0.5``.

    Examples
    --------
    >>> scale_net("dilations(3, 1.5)", 1, 10, 28, widths=(3, 4))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if kernel_size < 3:
        raise ValueError(f"kernel_size must be odd and at least 3, so that its rings are distinct, got {kernel_size}")
    if not widths or min(widths) < 1:
        raise ValueError(f"widths must name at least one layer of at least one channel, got {tuple(widths)}")
    return ScaleNet(parse_finite(group), in_channels, n_classes, as_image_size(image_size), tuple(widths), kernel_size)
