"""Convolution on a continuous group of affine maps, with linear parts sampled by the Haar measure.

Kernels are functions of the coordinates of a relative element and can be evaluated at any sample: nothing is
interpolated. After Mironenco and Forré, Lie Group Decompositions for Equivariant Neural Networks (2024).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from unpose.groups import Group, area_change, inverse, parse_affine, polar_coordinates
from unpose.images import pixel_grid
from unpose.nn.functional.checks import check_positive
from unpose.nn.layers.encodings import harmonic_basis
from unpose.nn.ops.autocast import without_autocast

_RINGS = 3
"""Number of rings of the functions of position, the innermost at the origin."""
_HIDDEN = 32
"""Sines in the network of relative linear parts."""


class LieConv2d(nn.Module):
    """Convolution on the group of shifts and sampled linear parts, whose kernels are functions of relative elements.

    ``out(x, A) = sum_y psi(A^-1 (y - x)) g(y, A) / |det A|`` over pixels y. Lifting, ``g(y, A) = f(y)`` is the image;
    on the group, ``g(y, A) = f(y, A) + 1 / n  sum_B chi(A^-1 B) f(y, B)`` over the n samples B, a Monte Carlo integral
    over the Haar measure. The term of A itself has no sampling error, so that training does not begin in noise. The
    kernel is a product of a function of positions, in circular harmonics on rings, and one of linear parts, a small
    network of polar coordinates: a general function of both costs ten times as much.

    Parameters
    ----------
    group : str or Group
        ``"translation"``, ``"se2"``, ``"similarity"`` or ``"affine"``, or one of them with ``"+mirror"``.
    in_channels, out_channels : int
        Channels of the input and output maps.
    radius : float
        Radius of the kernel in pixels, in the frame of the identity.
    lifting : bool, default False
        Whether the input is an image and not a map on the group.
    stride : int, default 1
        Pixels between neighbouring positions of the output, which lie symmetrically about the image centre.
    functions : int, default 12
        Outputs of the network of relative linear parts, of which all chi are linear combinations.
    reach : float, default 2.0
        Largest factor by which a sample lengthens a vector; kernels are cut beyond ``reach * radius``.

    Notes
    -----
    The arguments of psi and chi do not change if all elements are multiplied by an element of the group from the left,
    and the areas change as those of the image, so the integral is equivariant, and its sum over pixels and samples is
    so approximately. It is exact for elements that map pixels to pixels and samples to samples, such as a quarter turn
    with 4 or 8 samples of ``"se2"``.

    Examples
    --------
    >>> from unpose.groups import haar_samples
    >>> samples = haar_samples("affine", 6)
    >>> lift = LieConv2d("affine", 1, 3, radius=3, lifting=True, stride=2)
    >>> maps = lift(torch.rand(2, 1, 11, 14), samples)
    >>> maps.shape
    torch.Size([2, 3, 6, 6, 7])
    >>> LieConv2d("affine", 3, 5, radius=2)(maps, samples).shape
    torch.Size([2, 5, 6, 6, 7])
    """

    def __init__(
        self,
        group: str | Group,
        in_channels: int,
        out_channels: int,
        radius: float,
        *,
        lifting: bool = False,
        stride: int = 1,
        functions: int = 12,
        reach: float = 2.0,
    ) -> None:
        super().__init__()
        self.group = parse_affine(group)
        check_positive(in_channels=in_channels, out_channels=out_channels, stride=stride, functions=functions)
        if not radius >= stride / 2 or radius < 1 or not reach >= 1:
            raise ValueError(
                f"radius must be at least 1 pixel and half of the stride, so that kernels cover the image, and reach "
                f"at least 1, got radius {radius}, stride {stride} and reach {reach}"
            )
        self.in_channels, self.radius, self.stride, self.lifting, self.reach = (
            in_channels, radius, stride, lifting, reach,
        )  # fmt: skip
        functions_of_position = harmonic_basis(torch.zeros(1, 2, device="cpu"), _RINGS).shape[-1]
        scale = math.sqrt(2 / (in_channels * functions_of_position))
        self.weight = nn.Parameter(scale * torch.randn(out_channels, in_channels, functions_of_position))
        coordinates = polar_coordinates(self.group, torch.eye(3, device="cpu")).numel() - 2
        self.relative = None
        if not lifting and coordinates:
            self.relative = nn.Linear(coordinates, _HIDDEN)
            nn.init.normal_(self.relative.weight, std=2.0)
            self.relative_functions = nn.Linear(_HIDDEN, functions, bias=False)
            shape = (in_channels, in_channels, functions)
            self.relative_weight = nn.Parameter(0.3 * torch.randn(shape) / math.sqrt(in_channels))

    def extra_repr(self) -> str:
        return f"group={self.group}, radius={self.radius}, stride={self.stride}, lifting={self.lifting}"

    def kernels(self, samples: Tensor, offsets: Tensor) -> Tensor:
        """psi in the frame of every sample, over its area: (n, 3, 3) and (p, 2) -> (n, out, in, p)"""
        points = torch.einsum("kij,pj->kpi", inverse(samples)[:, :2, :2], offsets) / self.radius  # (n, p, 2)
        window = (1 - points.square().sum(-1)).clamp(min=0) / area_change(samples).abs()[:, None]  # (n, p)
        values = harmonic_basis(_RINGS * points, _RINGS) * window[..., None]  # (n, p, functions)
        return torch.einsum("oif,kpf->koip", self.weight, values)

    def mixing(self, samples: Tensor) -> Tensor:
        """The sum of identity and chi of all relative samples, over their number: (n, 3, 3) -> (n, in, in, n)"""
        n = len(samples)
        channels, frames = (
            torch.eye(size, dtype=samples.dtype, device=samples.device) for size in (self.in_channels, n)
        )
        own = channels[:, :, None] * frames[:, None, None]
        if self.relative is None:  # shifts alone
            return own
        relative = inverse(samples)[:, None] @ samples  # (n, n, 3, 3)
        values = self.relative_functions(self.relative(polar_coordinates(self.group, relative)[..., 2:]).sin())
        return own + torch.einsum("oif,klf->koil", self.relative_weight, values) / n

    def forward(self, maps: Tensor, samples: Tensor) -> Tensor:
        """(b, in, n, h, w), or (b, in, h, w) if lifting, and (n, 3, 3) -> (b, out, n, h', w')"""
        n, wanted = len(samples), (self.in_channels,) if self.lifting else (self.in_channels, len(samples))
        if maps.ndim != len(wanted) + 3 or maps.shape[1:-2] != wanted:
            expected = ", ".join(map(str, wanted))
            raise ValueError(f"expected maps (b, {expected}, h, w), got shape {tuple(maps.shape)}")
        sizes, padding = zip(*(self._window(side) for side in maps.shape[-2:]), strict=True)
        offsets = pixel_grid(sizes, samples.dtype, samples.device).flatten(0, 1)  # (p, 2)
        with without_autocast(samples):
            kernels = self.kernels(samples, offsets).flatten(0, 1).unflatten(-1, sizes)  # (n * out, in, size, size)
            mixing = None if self.lifting else self.mixing(samples)
        if mixing is not None:
            maps = torch.einsum("koil,bilyx->bkoyx", mixing, maps).flatten(1, 2)  # (b, n * in, h, w)
        out = conv2d(maps, kernels, stride=self.stride, padding=padding, groups=1 if self.lifting else n)
        return out.unflatten(1, (n, -1)).transpose(1, 2)

    def _window(self, side: int) -> tuple[int, int]:
        """Pixels of the kernel along a side of an image, and the padding, for positions symmetric about the centre.

        The positions lie at pixels or between them, which an odd or an even kernel meets.
        """
        positions = -(-side // self.stride)
        twice_first = side - 1 - self.stride * (positions - 1)  # twice the index of the first position
        reach = self.reach * self.radius
        size = 2 * math.floor(reach + 0.5) if twice_first % 2 else 2 * math.floor(reach) + 1
        return size, (size - 1 - twice_first) // 2
