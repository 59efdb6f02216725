"""Group convolution networks: the baseline beside attention."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import as_image_size, parse_point_group, stem_halvings
from unpose.nn.layers.convolution import GroupConv2d, kernel_basis
from unpose.nn.layers.heads import ClassHead
from unpose.nn.layers.norm_and_pooling import GroupBatchNorm, SpatialPool
from unpose.nn.networks.base import GroupNetwork, arguments_of


class GroupCNN(GroupNetwork):
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
        stem: int,
        head: str | None,
    ) -> None:
        super().__init__(network="group_cnn", **arguments_of(locals()))
        halvings = stem_halvings(stem)
        layers: list[nn.Module] = []
        for index, depth in enumerate(stages):
            if index > 0:
                layers.append(SpatialPool("max"))
            for _ in range(depth):
                lifting = not layers
                layers += [
                    GroupConv2d(
                        group,
                        in_channels if lifting else width,
                        width,
                        kernel_size,
                        lifting=lifting,
                        bias=False,
                        stride=2 if lifting and stem > 1 else 1,
                    ),
                    # Statistics over batch, elements and pixels are the same for a rotated batch.
                    GroupBatchNorm(width),
                    nn.SiLU(),
                    nn.Dropout(dropout),
                ]
                if lifting:
                    layers += [SpatialPool("max") for _ in range(halvings - 1)]
        self.features = nn.Sequential(*layers)
        if head == "classes":
            self.classify = ClassHead(width, n_classes)
        self.set_head(head, width, n_classes, halvings + len(stages) - 1)

    def scores(self, features: Tensor) -> Tensor:
        """(b, channels, order, h, w) -> (b, n_classes)"""
        return self.classify(features)


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
    stem: int = 1,
    head: str | None = "classes",
) -> GroupCNN:
    """Create a group convolution network of a given size, invariant to the group.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"c8"`` or ``"d4"``.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes, or of vectors; not used without a head.
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
    stem : {1, 2, 4, 8}, default 1
        For large images, such as 4 for 224 pixels: the first layer, a convolution with ``stride=2``, makes the
        maps this many times smaller.
    head : {"classes", "mask", "vectors", "field"} or None, default "classes"
        What the network gives: class scores (b, n_classes); scores of every pixel (b, n_classes, h, w), which move with
        the image (:class:`unpose.nn.MaskHead`); vectors (b, n_classes, 2) or a field of them (b, n_classes, 2, h, w),
        which turn with it (:class:`unpose.nn.VectorHead`); None for the maps (b, channels, order, h, w) themselves.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes), or as ``head`` says.

    Notes
    -----
    Seven layers, as in the group convolution networks with which the attention paper compares. The head takes the
    maximum over the group, the mean over the image and one linear map.

    Examples
    --------
    >>> import torch
    >>> group_cnn("p4", 1, 10, 28)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    >>> group_cnn("p4", 3, 2, 112, width=4, stem=4, head="mask")(torch.rand(1, 3, 112, 112)).shape
    torch.Size([1, 2, 112, 112])
    """
    parsed = parse_point_group(group)
    if not stages or min(stages) < 1:
        raise ValueError(f"every stage needs at least one convolution, got {tuple(stages)}")
    if kernel_size is None:
        kernel_size = 3 if kernel_basis(parsed, 3).shape[1] == 9 else 5
    if width is None:
        weights, biases = _head_parameters(head, n_classes)
        width = _largest_width(parameters, in_channels, weights, biases, parsed, sum(stages), kernel_size)
    size = as_image_size(image_size)
    return GroupCNN(parsed, in_channels, n_classes, size, width, tuple(stages), kernel_size, dropout, stem, head)


def _head_parameters(head: str | None, outputs: int) -> tuple[int, int]:
    """Return the number of parameters of a head for each channel, and the number of its biases."""
    if head is None:
        return 0, 0
    return (2 * outputs, 0) if head in ("vectors", "field") else (outputs, outputs)


def _largest_width(
    parameters: int, in_channels: int, head: int, biases: int, group: FiniteGroup, depth: int, kernel_size: int
) -> int:
    """Return the largest width w with ``a w^2 + b w + biases <= parameters``."""
    functions = kernel_basis(group, kernel_size).shape[1]
    a = (depth - 1) * group.order * functions
    b = in_channels * functions + 2 * depth + head
    spare = parameters - biases
    width = int((math.sqrt(b * b + 4 * a * spare) - b) / (2 * a)) if a and spare > 0 else spare // b
    if width < 1:
        raise ValueError(f"{parameters} parameters are too few for one channel; at least {a + b + biases} are needed")
    return width
