"""Heads: from maps on a group to class scores, masks or vectors, each of which transforms as it should.

Maps on a group are (b, channels, order, h, w). Under an element g the pixels move and the group axis is permuted. Class
scores must not change, masks must move with the image, and vectors must turn with it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import check_feature_maps, check_positive, parse_point_group, pooled_size
from unpose.nn.layers.constants import ConstantTables
from unpose.nn.layers.norm_and_pooling import GroupPool, PointwiseLinear, upsample

HEADS = ("classes", "mask", "vectors", "field")
"""The heads by the names that networks take."""


class ClassHead(nn.Linear):
    """Invariant class scores: (b, channels, order, h, w) -> (b, n_classes).

    The maximum over the group, the mean over the image and one linear map.

    Parameters
    ----------
    channels : int
        Channels of the maps.
    n_classes : int
        Number of classes.

    Examples
    --------
    >>> ClassHead(5, 3)(torch.rand(2, 5, 4, 7, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(self, channels: int, n_classes: int) -> None:
        super().__init__(channels, n_classes)

    def forward(self, maps: Tensor) -> Tensor:
        return linear(maps.amax(2).mean((-2, -1)), self.weight, self.bias)


class MaskHead(nn.Module):
    """Scores of every pixel, which move with the image: (b, channels, order, h, w) -> (b, n_classes, height, width).

    The maximum over the group, one linear map of the channels, and linear interpolation to the size of the image.

    Parameters
    ----------
    channels : int
        Channels of the maps.
    n_classes : int
        Number of classes.
    halvings : int, default 0
        How often the maps were halved, by :class:`unpose.nn.SpatialPool` or by a convolution with ``stride=2``.

    Notes
    -----
    Each halving is undone by itself, because its positions depend on whether the side was even or odd. So a mask has no
    shift, and it commutes with quarter turns and mirrors at every size. It is as fine as the maps: a network that
    halves them less often gives finer masks.

    Examples
    --------
    >>> MaskHead(5, 3, halvings=2)(torch.rand(2, 5, 4, 7, 8), (27, 32)).shape
    torch.Size([2, 3, 27, 32])
    """

    def __init__(self, channels: int, n_classes: int, halvings: int = 0) -> None:
        super().__init__()
        self.pool = GroupPool("max")
        self.classify = PointwiseLinear(channels, n_classes)
        self.halvings = halvings

    def extra_repr(self) -> str:
        return f"halvings={self.halvings}"

    def forward(self, maps: Tensor, image_size: Sequence[int]) -> Tensor:
        return undo_halvings(self.classify(self.pool(maps)), image_size, self.halvings)


class VectorHead(ConstantTables):
    """Vectors (x, y) that turn with the image: (b, channels, order, h, w) -> (b, vectors, 2), or one for each pixel.

    ``v = 1 / order  sum_h  h A f(h)`` with a learnt matrix A from channels to two coordinates for each vector: every
    element of the group contributes a vector in its own frame. This is the general linear map from maps on a group to
    vectors. A transformed image has ``f'(g h) = f(h)``, and so ``v' = g v``.

    Parameters
    ----------
    group : str or FiniteGroup
        The group of the maps.
    channels : int
        Channels of the maps.
    vectors : int, default 1
        Number of vectors.
    dense : bool, default False
        Whether to give a field of vectors, (b, vectors, 2, height, width), instead of its mean over the image.
    halvings : int, default 0
        How often the maps were halved, for a field at the size of the image; see :class:`unpose.nn.MaskHead`.

    Notes
    -----
    Coordinates are (x, y) in the image, x to the right and y down. A group without rotations allows a constant vector
    (``c1``, and along y ``d1``); with rotations, an image that is symmetric has the vector zero.

    Examples
    --------
    >>> VectorHead("c4", 5)(torch.rand(2, 5, 4, 7, 8)).shape
    torch.Size([2, 1, 2])
    >>> VectorHead("c4", 5, dense=True, halvings=1)(torch.rand(2, 5, 4, 7, 8), (14, 15)).shape
    torch.Size([2, 1, 2, 14, 15])
    """

    elements: Tensor  # (order, 2, 2)

    def __init__(
        self, group: str | FiniteGroup, channels: int, vectors: int = 1, *, dense: bool = False, halvings: int = 0
    ) -> None:
        super().__init__()
        check_positive(channels=channels, vectors=vectors)
        self.group, self.channels, self.dense, self.halvings = parse_point_group(group), channels, dense, halvings
        self.weight = nn.Parameter(torch.randn(vectors, 2, channels) / channels**0.5)
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        return {"elements": self.group.elements[:, :2, :2].contiguous()}

    def extra_repr(self) -> str:
        return f"group={self.group}, {self.channels} -> {len(self.weight)} vectors, dense={self.dense}"

    def forward(self, maps: Tensor, image_size: Sequence[int] | None = None) -> Tensor:
        check_feature_maps(maps, self.channels, self.group)
        # v vector, i and j coordinates, c channel, g element
        readout = torch.einsum("gij,vjc->vicg", self.elements.to(self.weight.dtype), self.weight) / self.group.order
        readout = readout.to(maps.dtype)
        if not self.dense:
            return torch.einsum("vicg,bcg->bvi", readout, maps.mean((-2, -1)))
        field = torch.einsum("vicg,bcgyx->bviyx", readout, maps)
        return undo_halvings(field, field.shape[-2:] if image_size is None else image_size, self.halvings)


def undo_halvings(maps: Tensor, image_size: Sequence[int], halvings: int) -> Tensor:
    """Interpolate maps that were halved some number of times to the size of the image, one halving after the other."""
    sizes = [(image_size[0], image_size[1])]
    for _ in range(halvings):
        sizes.append(pooled_size(sizes[-1]))
    # ``torch.export`` cannot prove this for a free size, and would refuse it.
    is_known = not any(isinstance(side, torch.SymInt) for side in (*maps.shape[-2:], *image_size))
    if is_known and tuple(maps.shape[-2:]) != sizes[-1]:
        raise ValueError(
            f"an image of {image_size[0]} x {image_size[1]} halved {halvings} times gives maps of {sizes[-1][0]} x "
            f"{sizes[-1][1]}, got {maps.shape[-2]} x {maps.shape[-1]}; give the size of the image and `halvings`"
        )
    for size in reversed(sizes[:-1]):
        maps = upsample(maps, size)
    return maps


def make_head(kind: str | None, group: FiniteGroup, channels: int, outputs: int, halvings: int) -> nn.Module | None:
    """Create the head with this name; None for ``"classes"``, which every network does in its own way, and for None."""
    if kind == "mask":
        return MaskHead(channels, outputs, halvings)
    if kind in ("vectors", "field"):
        return VectorHead(group, channels, outputs, dense=kind == "field", halvings=halvings)
    if kind is not None and kind != "classes":
        raise ValueError(f"head must be one of {', '.join(HEADS)} or None, got {kind!r}")
    return None
