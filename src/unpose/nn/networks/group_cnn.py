"""Group convolution networks: the baseline beside attention."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import as_image_size, parse_point_group
from unpose.nn.layers.convolution import GroupConv2d, kernel_basis
from unpose.nn.layers.norm_and_pooling import GroupPool, SpatialPool
from unpose.nn.networks.base import Network


class GroupCNN(Network):
    """The network of :func:`group_cnn`."""

    def __init__(
        self,
        group: FiniteGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        width: int,
        stages: tuple[int, ...],
        kernel_size: int,
        dropout: float,
    ) -> None:
        super().__init__(
            group,
            network="group_cnn",
            in_channels=in_channels,
            n_classes=n_classes,
            image_size=image_size,
            width=width,
            stages=stages,
            kernel_size=kernel_size,
            dropout=dropout,
        )
        layers: list[nn.Module] = []
        for index, depth in enumerate(stages):
            if index > 0:
                layers.append(SpatialPool("max"))
            for _ in range(depth):
                lifting = not layers
                layers += [
                    GroupConv2d(
                        group, in_channels if lifting else width, width, kernel_size, lifting=lifting, bias=False
                    ),
                    # Statistics over batch, elements and pixels are the same for a rotated batch.
                    nn.BatchNorm3d(width),
                    nn.SiLU(),
                    nn.Dropout(dropout),
                ]
        self.features = nn.Sequential(*layers)
        self.pool = GroupPool("max")
        self.classify = nn.Linear(width, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes)"""
        return self.classify(self.pool(self.features(images)).mean((-2, -1)))


def group_cnn(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    parameters: int = 44_668,
    width: int | None = None,
    stages: Sequence[int] = (2, 3, 2),
    kernel_size: int | None = None,
    dropout: float = 0.0,
) -> GroupCNN:
    """Create a group convolution network of a given size, invariant to the group.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes.
    image_size : int or (int, int)
        Side, or (height, width), in pixels. Recorded only: other sizes work as well.
    parameters : int, default 44_668
        The network has as many channels as fit into this number of parameters; the default is that of the
        rotated-MNIST :func:`unpose.nn.gsa_net`.
    width : int, optional
        Channels of all layers, instead of ``parameters``.
    stages : sequence of int, default (2, 3, 2)
        Number of convolutions in each stage; maps are halved between stages.
    kernel_size : int, optional
        Odd side of the kernels. Default: 3 if the group maps pixels to pixels, 5 for finer angles.
    dropout : float, default 0.0
        Dropout probability after every convolution.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes).

    Notes
    -----
    Seven layers, as in the group convolution networks with which the attention paper compares. The head takes the
    maximum over the group, the mean over the image and one linear map.

    Examples
    --------
    >>> import torch
    >>> group_cnn("p4", 1, 10, 28)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    parsed = parse_point_group(group)
    if not stages or min(stages) < 1:
        raise ValueError(f"every stage needs at least one convolution, got {tuple(stages)}")
    if kernel_size is None:
        kernel_size = 3 if kernel_basis(parsed, 3).shape[1] == 9 else 5
    if width is None:
        width = _largest_width(parameters, in_channels, n_classes, parsed, sum(stages), kernel_size)
    size = as_image_size(image_size)
    return GroupCNN(parsed, in_channels, n_classes, size, width, tuple(stages), kernel_size, dropout)


def _largest_width(
    parameters: int, in_channels: int, n_classes: int, group: FiniteGroup, depth: int, kernel_size: int
) -> int:
    """Return the largest width w with ``a w^2 + b w + n_classes <= parameters``."""
    functions = kernel_basis(group, kernel_size).shape[1]
    a = (depth - 1) * group.order * functions
    b = in_channels * functions + 2 * depth + n_classes
    spare = parameters - n_classes
    width = int((math.sqrt(b * b + 4 * a * spare) - b) / (2 * a)) if a and spare > 0 else spare // b
    if width < 1:
        raise ValueError(
            f"{parameters} parameters are too few for one channel; at least {a + b + n_classes} are needed"
        )
    return width
