"""A classifier of latitude-longitude images whose answer does not depend on where the poles are."""

from torch import Tensor, nn

from unpose.sphere.attention import SphereAttention
from unpose.sphere.grid import check_panorama, sphere_mean


class SphereNetwork(nn.Module):
    """Blocks of attention on the sphere and maps of each pixel, with a mean by area; made by :func:`sphere_net`.

    Parameters
    ----------
    n_out, in_channels, channels, depth, heads : int
        Outputs, channels of the images and of the maps, blocks, attention heads.
    radius : float
        Geodesic radius of the attention in radians.

    Examples
    --------
    >>> import torch
    >>> SphereNetwork(3, 1, 8, 1, 2, 0.5)(torch.rand(2, 1, 12, 24)).shape
    torch.Size([2, 3])
    """

    def __init__(self, n_out: int, in_channels: int, channels: int, depth: int, heads: int, radius: float) -> None:
        super().__init__()
        # Everything but the attention acts on single pixels (kernels of size 1), and hence rotates with the image.
        self.lift = _each_pixel(in_channels, channels)
        self.attend = nn.ModuleList(SphereAttention(channels, heads, radius) for _ in range(depth))
        self.each = nn.ModuleList(_each_pixel(channels, channels) for _ in range(depth))
        self.answer = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, n_out))

    def maps(self, images: Tensor) -> Tensor:
        """Equivariant maps before the mean: (b, c, h, w) -> (b, channels, h, w)"""
        check_panorama(images)
        maps = self.lift(images)
        for attend, each in zip(self.attend, self.each, strict=True):
            maps = attend(maps)
            maps = maps + each(maps)
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """(b, c, h, w) -> (b, n_out)"""
        return self.answer(sphere_mean(self.maps(images)))


def sphere_net(
    n_out: int, *, in_channels: int = 1, channels: int = 24, depth: int = 3, heads: int = 4, radius: float = 0.5
) -> SphereNetwork:
    """A classifier of latitude-longitude images: shifts of the longitude are exact, other rotations converge.

    Parameters
    ----------
    n_out : int
        Outputs, for example classes.
    in_channels : int, default 1
        Channels of the images.
    channels : int, default 24
        Channels of the maps, a multiple of ``heads``.
    depth : int, default 3
        Blocks of attention.
    heads : int, default 4
        Attention heads.
    radius : float, default 0.5
        Geodesic radius of the attention in radians; at least about two rows of the image.

    Returns
    -------
    SphereNetwork

    Examples
    --------
    >>> import torch
    >>> net, panorama = sphere_net(4).eval(), torch.rand(1, 1, 12, 24)
    >>> torch.allclose(net(panorama.roll(7, -1)), net(panorama), atol=1e-5)
    True
    """
    return SphereNetwork(n_out, in_channels, channels, depth, heads, radius)


def _each_pixel(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, 2 * out, 1), nn.GELU(), nn.Conv2d(2 * out, out, 1))
