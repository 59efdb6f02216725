"""A network for dilations: kernels seen at several scales, and the scale that answers strongest counts."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from unpose.groups import FiniteGroup
from unpose.nn.attention import check_window
from unpose.nn.checks import as_size, check_maps
from unpose.nn.encodings import harmonic_basis
from unpose.nn.layers import SpatialPool
from unpose.nn.network import Network
from unpose.nn.positions import dilated_radius, parse_finite, relative_positions

_RINGS = 3
"""Rings of the kernels, the innermost at the origin. In a window of 7 they stand 1.5 pixels apart, wide enough for sums
over pixels to stand in for integrals at scale one."""


def scaled_basis(scale: float, size: int) -> Tensor:
    """The functions that kernels are made of, seen at a scale: (functions, window, window) in float64.

    ``s^-2 phi(x / s)`` for the smooth functions ``phi`` of :func:`unpose.nn.encodings.harmonic_basis`, each with unit
    norm at scale one; the window grows with the scale. The factor keeps a response the same when kernel and image are
    enlarged together.
    """
    spacing = (size // 2) / (_RINGS - 1)
    window = 2 * dilated_radius(scale**2, size) + 1

    def at(factor: float, side: int) -> Tensor:
        shrink = torch.eye(2, dtype=torch.float64)[None] / (factor * spacing)
        return harmonic_basis(relative_positions(shrink, (side, side))[0], _RINGS).movedim(-1, 0)

    norm = at(1.0, size).square().sum((-2, -1), keepdim=True).sqrt()
    return at(scale, window) / (norm * scale**2)


class ScaleConv2d(nn.Module):
    """Convolution with one kernel seen at every scale of a bounded set of dilations.

    Lifting: ``out(i, s) = sum_j s^-2 psi((x_j - x_i) / s) f(j)``, (b, in, h, w) -> (b, out, scales, h, w). Between maps
    with scales each scale looks at itself: ``f(j, s)`` in place of ``f(j)``, (b, in, scales, h, w) -> (b, out, scales,
    h, w). What one scale says about an image, the next says about the image enlarged by the ratio.

    Parameters
    ----------
    group : ``dilations(COUNT, RATIO)`` or its FiniteGroup
    in_channels, out_channels : of the maps
    kernel_size : odd side of the kernel at scale one
    lifting : whether the input is a map on the plane

    Examples
    --------
    >>> ScaleConv2d("dilations(3, 1.5)", 2, 4, 5, lifting=True)(torch.rand(1, 2, 9, 13)).shape
    torch.Size([1, 4, 3, 9, 13])
    """

    def __init__(
        self, group: str | FiniteGroup, in_channels: int, out_channels: int, kernel_size: int, *, lifting: bool = False
    ) -> None:
        super().__init__()
        self.group = parse_finite(group)
        check_window((kernel_size, kernel_size))
        scales = self.group.elements[:, 0, 0]
        if not torch.equal(self.group.elements[:, 1, 1], scales) or (scales[1:] <= 1).any():
            raise ValueError(f"a network for scales needs dilations(COUNT, RATIO), got {self.group}")
        self.in_channels, self.lifting = in_channels, lifting
        bases = [scaled_basis(scale, kernel_size).float() for scale in scales.tolist()]
        functions = len(bases[0])
        fan = in_channels * functions
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, functions) * math.sqrt(2 / fan))
        for number, basis in enumerate(bases):
            self.register_buffer(f"basis{number}", basis, persistent=False)

    def extra_repr(self) -> str:
        return f"group={self.group}, {self.in_channels} -> {len(self.weight)}, lifting={self.lifting}"

    def forward(self, maps: Tensor) -> Tensor:
        check_maps(maps, self.in_channels, None if self.lifting else self.group)
        found = []
        for number in range(self.group.order):
            basis = self.get_buffer(f"basis{number}").to(maps.dtype)
            kernel = torch.einsum("oin,nyx->oiyx", self.weight.to(maps.dtype), basis)
            seen = maps if self.lifting else maps[:, :, number]
            found.append(conv2d(seen, kernel, padding=kernel.shape[-1] // 2))
        return torch.stack(found, dim=2)


class ScaleNet(Network):
    """See :func:`scale_net`."""

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
        layers: list[nn.Module] = []
        for index, (inside, outside) in enumerate(zip((in_channels, *widths), widths, strict=False)):
            if index == 1:
                layers.append(SpatialPool("max"))
            layers += [
                ScaleConv2d(group, inside, outside, kernel_size, lifting=index == 0),
                # Statistics over all scales together: a scale is not told from its neighbours.
                nn.BatchNorm3d(outside),
                nn.SiLU(),
            ]
        self.features = nn.Sequential(*layers)
        self.classify = nn.Linear(widths[-1], n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes)"""
        # A mean over the image would shrink with the object; a maximum does not.
        strongest = self.features(images).amax((-2, -1))  # (b, channels, scales)
        # Each scale judges by itself, so that evidence of one scale is not mixed with that of another.
        return self.classify(strongest.movedim(1, -1)).amax(1)


def scale_net(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    widths: Sequence[int] = (8, 16, 32),
    kernel_size: int = 7,
) -> ScaleNet:
    """A convolution network for dilations: (b, in_channels, h, w) -> (b, n_classes).

    One :class:`ScaleConv2d` for each width, maps halved after the first, the maximum over the image, one linear map,
    and for each class the scale that speaks for it most. The parameters do not depend on how many scales there are.

    Parameters
    ----------
    group : ``dilations(COUNT, RATIO)``, such as ``dilations(4, 1.4)``
    widths : channels of the layers
    kernel_size : side of the kernels at scale one

    Notes
    -----
    Bounded: an object larger than the largest scale, or smaller than scale one, is seen as by any other network. Pixels
    and borders make the symmetry approximate, unlike that of quarter turns.

    Examples
    --------
    >>> scale_net("dilations(3, 1.5)", 1, 10, 28, widths=(3, 4))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if not widths or min(widths) < 1:
        raise ValueError(f"widths must name at least one layer of at least one channel, got {tuple(widths)}")
    return ScaleNet(parse_finite(group), in_channels, n_classes, as_size(image_size), tuple(widths), kernel_size)
