"""A network for images at any resolution, of layers that commute with ideal downscaling."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.images import fourier_resize
from unpose.nn.functional.checks import as_image_size, check_feature_maps, check_positive, parse_finite
from unpose.nn.layers.scale_fourier import ScaleFourier2d, scale_activation
from unpose.nn.networks.base import Network, arguments_of


class ScaleFourierNet(Network):
    """The network of :func:`scale_fourier_net`."""

    def __init__(
        self,
        group: FiniteGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        width: int,
        spacings: tuple[int, ...],
        kernel_size: int,
    ) -> None:
        super().__init__(network="scale_fourier_net", **arguments_of(locals()))
        scales = group.elements[:, 0, 0]
        if not torch.equal(group.elements[:, 1, 1], scales) or (scales[1:] <= 1).any():
            raise ValueError(f"a network for sizes needs dilations(COUNT, RATIO), got {group}")
        self.in_channels, self.scales = in_channels, scales.tolist()
        self.layers = nn.ModuleList(
            ScaleFourier2d(
                width if index else in_channels, width, kernel_size, max(image_size), spacing=spacing, bias=False
            )
            for index, spacing in enumerate(spacings)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in spacings)
        self.classify = nn.Linear(width, n_classes)

    def features(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, width, h, w)"""
        check_feature_maps(images, self.in_channels, None)
        maps = images
        for layer, norm in zip(self.layers, self.norms, strict=True):
            maps = scale_activation(norm(layer(maps)))
        return maps

    def scores(self, features: Tensor) -> Tensor:
        """(b, width, h, w) -> (b, n_classes)"""
        # The mean over the image is frequency zero, which knows of no other frequency.
        return self.classify(features.amax((-2, -1)))

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes)"""
        features = self.features(images)
        if not self.training or len(self.scales) == 1:
            return self.scores(features)
        sizes = [tuple(max(1, round(side / scale)) for side in images.shape[-2:]) for scale in self.scales]
        scores = torch.stack([self.scores(fourier_resize(features, size)) for size in sizes], dim=1)
        drawn = torch.randint(len(sizes), (len(images), 1, 1), device=images.device)
        return scores.take_along_dim(drawn, dim=1)[:, 0]


def scale_fourier_net(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    width: int = 16,
    spacings: Sequence[int] = (1, 2, 3),
    kernel_size: int = 5,
) -> ScaleFourierNet:
    """Create a network whose features of a shrunk image are the shrunk features, at every size.

    Each layer is a :class:`unpose.nn.ScaleFourier2d`, batch norm and :func:`unpose.nn.scale_activation`; the maximum
    over the image and one linear map give the scores. In training, the features of each image are read at one of
    several sizes, drawn anew in every step. As these are the features of the shrunk image, the network learns to read
    smaller images that it is never shown.

    Parameters
    ----------
    group : str or FiniteGroup
        ``dilations(COUNT, RATIO)``: the scales at which features are read in training; ``dilations(1)`` reads them at
        the size of the images only.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes.
    image_size : int or (int, int)
        Side, or (height, width), in pixels, of the images that the kernels are measured in. Other sizes are the same
        images at another resolution.
    width : int, default 16
        Channels of the maps.
    spacings : sequence of int, default (1, 2, 3)
        Pixels between the taps of the kernel of each layer, at ``image_size``.
    kernel_size : int, default 5
        Odd number of taps along each side.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes).

    Notes
    -----
    The law holds in evaluation, to rounding, for square images; images are taken as periodic. It concerns the
    resolution of an image: an object that is smaller in the same frame is another image, for which there is
    :func:`unpose.nn.scale_net`.

    Examples
    --------
    >>> from unpose.images import fourier_resize
    >>> network, images = scale_fourier_net("dilations(3, 1.5)", 1, 10, 20).eval(), torch.rand(2, 1, 20, 20)
    >>> shrunk = network.features(fourier_resize(images, (9, 9)))
    >>> torch.allclose(shrunk, fourier_resize(network.features(images), (9, 9)), atol=1e-5)
    True
    """
    check_positive(width=width)
    if not spacings:
        raise ValueError("spacings must name at least one layer")
    return ScaleFourierNet(
        parse_finite(group), in_channels, n_classes, as_image_size(image_size), width, tuple(spacings), kernel_size
    )
