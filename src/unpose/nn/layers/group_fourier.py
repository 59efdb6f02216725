"""Spectral layers tied over a point group: image-to-image maps that commute with quarter turns, at any resolution.

The layer multiplies low frequencies by learned matrices and drops the others, as Fourier neural operators do; the
weights of one element of the group are those of the identity at rotated frequencies (after Helwig et al., 2023).
Frequencies count periods in the image and not in a pixel, so that a network can be used at other resolutions than it
was trained at.
"""

import math

import torch
from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import check_positive, parse_point_group
from unpose.nn.layers.constants import ConstantTables


class GroupFourier2d(ConstantTables):
    """Multiplication of low frequencies by weights that are tied over a group of quarter turns and mirrors.

    ``out(k, h) = sum_j W(h^-1 k, h^-1 j) in(k, j)`` for frequencies k of up to ``modes`` periods along each side; for
    lifting there is no j.

    Parameters
    ----------
    group : str or FiniteGroup
        c1, c2, c4, d1, d2 or d4 (p4, p4m): what maps the grid of frequencies onto itself.
    in_channels, out_channels : int
        Channels of the input and output maps.
    modes : int
        Largest frequency along each side; the image must have at least ``2 modes + 1`` pixels.
    lifting : bool, default False
        Whether the input is an image (b, c, h, w) and not a map on the group (b, c, order, h, w).

    Examples
    --------
    >>> layer, image = GroupFourier2d("c4", 1, 2, modes=3, lifting=True), torch.rand(1, 1, 9, 9)
    >>> turned = layer(torch.rot90(image, 1, (-2, -1)))
    >>> torch.allclose(turned, torch.rot90(layer(image), 1, (-2, -1)).roll(1, 2), atol=1e-6)
    True
    """

    frequency: Tensor
    relative: Tensor

    def __init__(
        self, group: str | FiniteGroup, in_channels: int, out_channels: int, modes: int, *, lifting: bool = False
    ) -> None:
        super().__init__()
        self.group = parse_point_group(group)
        check_positive(in_channels=in_channels, out_channels=out_channels, modes=modes)
        elements = self.group.elements[:, :2, :2]
        if not torch.equal(elements, elements.round()):
            raise ValueError(
                f"frequencies lie on a grid that only quarter turns and mirrors preserve, got {self.group}"
            )
        self.modes, self.lifting = modes, lifting
        side = 2 * modes + 1
        across = 1 if lifting else self.group.order
        scale = 1 / math.sqrt(in_channels * across)
        self.weight = nn.Parameter(scale * torch.randn(out_channels, in_channels, across, side, side, 2))
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        # Frequencies (x, y), x along columns; index of h^-1 k for every element h.
        steps, order = torch.arange(-self.modes, self.modes + 1), self.group.order
        points = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1).reshape(-1, 2).double()
        source = (points @ self.group.elements[:, :2, :2]).round().long() + self.modes  # h is orthogonal: h^-1 k
        relative = torch.zeros(order, 1).long() if self.lifting else self.group.product[self.group.inverse]
        return {
            "frequency": source[..., 1] * len(steps) + source[..., 0],  # (order, side^2)
            "relative": relative,  # (order, order): h^-1 j
        }

    def spectral_weights(self) -> Tensor:
        """The weights of every element: complex (out, in, order, j, side^2)."""
        weight = torch.view_as_complex(self.weight)
        weight = 0.5 * (weight + weight.flip(-2, -1).conj())  # real maps stay real
        flat = weight.flatten(3)[:, :, self.relative]  # (out, in, order, j, side^2)
        index = self.frequency[:, None].expand(flat.shape[2:])
        return flat.gather(4, index.expand(flat.shape))

    def forward(self, maps: Tensor) -> Tensor:
        """(b, in, order, h, w), or (b, in, h, w) if lifting -> (b, out, order, h, w)"""
        if self.lifting:
            maps = maps[:, :, None]
        if maps.ndim != 5 or maps.shape[2] != (1 if self.lifting else self.group.order):
            wanted = "an image (b, c, h, w)" if self.lifting else f"maps on {self.group} (b, c, order, h, w)"
            raise ValueError(f"expected {wanted}, got shape {tuple(maps.shape)}")
        h, w = maps.shape[-2:]
        if min(h, w) < 2 * self.modes + 1:
            raise ValueError(
                f"{self.modes} modes need at least {2 * self.modes + 1} pixels along each side, got {h} x {w}; use "
                "fewer modes"
            )
        rows, columns = (torch.arange(-self.modes, self.modes + 1, device=maps.device) % size for size in (h, w))
        spectrum = torch.fft.fft2(maps, norm="forward")[..., rows[:, None], columns].flatten(3)  # (b, in, j, side^2)
        product = torch.einsum("bijp,oihjp->bohp", spectrum, self.spectral_weights())
        full = torch.zeros(*product.shape[:3], h, w, dtype=product.dtype, device=maps.device)
        full[..., rows[:, None], columns] = product.unflatten(3, (rows.numel(), columns.numel()))
        return torch.fft.ifft2(full, norm="forward").real


class GroupFourierNet(nn.Module):
    """A Fourier neural operator that commutes with a point group; made by :func:`group_fourier`.

    Parameters
    ----------
    group : str or FiniteGroup
        Quarter turns, with or without mirrors.
    in_channels, out_channels, width : int
        Channels of the input, output and hidden maps.
    modes, depth : int
        Largest frequency, and number of layers after lifting.

    Examples
    --------
    >>> GroupFourierNet("c4", 1, 1, 4, 3, 1)(torch.rand(1, 1, 9, 9)).shape
    torch.Size([1, 1, 9, 9])
    """

    def __init__(
        self, group: str | FiniteGroup, in_channels: int, out_channels: int, width: int, modes: int, depth: int
    ) -> None:
        super().__init__()
        self.lift = GroupFourier2d(group, in_channels, width, modes, lifting=True)
        self.skip = nn.Conv3d(in_channels, width, 1)  # 1 x 1 x 1: the same map at every pixel and element
        self.spectral = nn.ModuleList(GroupFourier2d(group, width, width, modes) for _ in range(depth))
        self.local = nn.ModuleList(nn.Conv3d(width, width, 1) for _ in range(depth))
        self.out = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, out_channels, 1))

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, out_channels, h, w)"""
        maps = nn.functional.gelu(self.lift(images) + self.skip(images[:, :, None]))
        for spectral, local in zip(self.spectral, self.local, strict=True):
            maps = nn.functional.gelu(spectral(maps) + local(maps))
        return self.out(maps.mean(2))


def group_fourier(
    group: str | FiniteGroup, in_channels: int, out_channels: int, *, width: int = 12, modes: int = 8, depth: int = 2
) -> GroupFourierNet:
    """A Fourier neural operator that commutes with quarter turns (and mirrors), for periodic images of any resolution.

    Parameters
    ----------
    group : str or FiniteGroup
        ``"p4"`` or ``"p4m"``, for example.
    in_channels, out_channels : int
        Channels of the input and output images.
    width : int, default 12
        Channels of the hidden maps.
    modes : int, default 8
        Largest frequency, in periods along each side.
    depth : int, default 2
        Layers after lifting.

    Returns
    -------
    GroupFourierNet

    Examples
    --------
    >>> net, image = group_fourier("p4m", 1, 1, modes=3), torch.rand(1, 1, 8, 8)
    >>> torch.allclose(net(image.flip(-1)), net(image).flip(-1), atol=1e-5)
    True
    """
    return GroupFourierNet(group, in_channels, out_channels, width, modes, depth)
