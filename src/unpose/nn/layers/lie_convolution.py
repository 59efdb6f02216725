"""Convolution on a continuous group of affine maps, with linear parts sampled by the Haar measure.

The kernel is a small network of the coordinates of a relative element, so it can be evaluated at any sample: nothing is
interpolated. After Mironenco and Forre, Lie Group Decompositions for Equivariant Neural Networks (2024).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from unpose.groups import Group, area_change, inverse, parse_affine, polar_coordinates
from unpose.images import pixel_grid
from unpose.nn.functional.checks import check_positive

_HIDDEN = 32
"""Sines in the network of the kernel."""


class LieConv2d(nn.Module):
    """Convolution on the group of shifts and sampled linear parts, whose kernel is a network of relative elements.

    ``out(x, A) = sum_yB psi(A^-1 (y - x), A^-1 B) f(y, B) / (n |det B|)`` over pixels y and n samples B: a Monte Carlo
    integral over the left Haar measure. Lifting, ``out(x, A) = sum_y psi(A^-1 (y - x)) f(y) / |det A|``. The arguments
    of psi and the measure do not change if all elements are multiplied by an element of the group from the left, so
    the integral is equivariant, and its sum over pixels and samples approximately so. It is exact if the element maps
    pixels to pixels and samples to samples, such as a quarter turn with 8 samples of ``"se2"``.

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
        Number of functions, made by one network, of which all kernels are linear combinations.
    reach : float, default 2.0
        Largest factor by which a sample lengthens a vector; kernels are cut beyond ``reach * radius``.

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
        self.position = nn.Linear(2, _HIDDEN)
        # Sines of at most about a quarter of a period between pixels.
        nn.init.normal_(self.position.weight, std=radius * math.pi / 4)
        coordinates = 0 if lifting else polar_coordinates(self.group, torch.eye(3, device="cpu")).numel() - 2
        self.relative = nn.Linear(coordinates, _HIDDEN, bias=False) if coordinates else None
        self.functions = nn.Linear(_HIDDEN, functions, bias=False)
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, functions) / math.sqrt(in_channels))

    def extra_repr(self) -> str:
        return f"group={self.group}, radius={self.radius}, stride={self.stride}, lifting={self.lifting}"

    def kernels(self, samples: Tensor, offsets: Tensor) -> Tensor:
        """The kernels of all samples at these offsets: (n, 3, 3) and (p, 2) -> (out, n, in, n or 1, p)."""
        back = inverse(samples)
        points = torch.einsum("kij,pj->kpi", back[:, :2, :2], offsets) / self.radius  # (n, p, 2)
        phase = self.position(points)[:, None]  # (n, 1, p, hidden)
        weight = 1 / area_change(samples).abs()[:, None]  # of the lifting layer, (n, 1)
        if not self.lifting:
            weight = weight.mT / len(samples)  # (1, n)
            if self.relative is not None:
                coordinates = polar_coordinates(self.group, back[:, None] @ samples)[..., 2:]  # (n, n, coordinates)
                phase = phase + self.relative(coordinates)[:, :, None]
        # Zero at the radius, with a continuous derivative; its integral is a third of that of the disc.
        bump = (1 - points.square().sum(-1)).clamp(min=0).square() * (3 / (math.pi * self.radius**2))  # (n, p)
        values = self.functions(phase.sin()) * (weight[..., None] * bump[:, None])[..., None]  # (n, n or 1, p, f)
        return torch.einsum("oif,klpf->okilp", self.weight, values)

    def forward(self, maps: Tensor, samples: Tensor) -> Tensor:
        """(b, in, n, h, w), or (b, in, h, w) if lifting, and (n, 3, 3) -> (b, out, n, h', w')"""
        if self.lifting:
            maps = maps[:, :, None]
        n = 1 if self.lifting else len(samples)
        if maps.ndim != 5 or maps.shape[1:3] != (self.in_channels, n):
            wanted = f"(b, {self.in_channels}, h, w)" if self.lifting else f"(b, {self.in_channels}, {n}, h, w)"
            raise ValueError(
                f"expected maps {wanted}, got shape {tuple(maps.shape[:2] + maps.shape[2 + self.lifting :])}"
            )
        sizes, padding = zip(*(self._window(side) for side in maps.shape[-2:]), strict=True)
        offsets = pixel_grid(sizes, maps.dtype, maps.device).flatten(0, 1)  # (p, 2)
        kernels = self.kernels(samples, offsets)  # (out, n, in, n or 1, p)
        out = conv2d(
            maps.flatten(1, 2),
            kernels.flatten(2, 3).flatten(0, 1).unflatten(-1, sizes),  # (out * n, in * n, size, size)
            stride=self.stride,
            padding=padding,
        )
        return out.unflatten(1, (-1, len(samples)))

    def _window(self, side: int) -> tuple[int, int]:
        """Pixels of the kernel along a side of an image, and the padding, for positions symmetric about the centre.

        The positions lie at pixels or between them, which an odd or an even kernel meets.
        """
        positions = -(-side // self.stride)
        twice_first = side - 1 - self.stride * (positions - 1)  # twice the index of the first position
        reach = self.reach * self.radius
        size = 2 * math.floor(reach + 0.5) if twice_first % 2 else 2 * math.floor(reach) + 1
        return size, (size - 1 - twice_first) // 2
