"""How an element acts on a tensor: it moves pixels, permutes a group axis, does both, or leaves all as it is.

Convention
----------
Images are ``(n, ..., h, w)``, feature maps on a group ``(n, c, order, h, w)``. Element a takes place b of a group axis
to place ``product[a, b]``: the regular representation. A quarter turn of a frame that is not square swaps its sides.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.audit.elements import Element
from unpose.groups import OUTSIDE, FiniteGroup, Group, inverse
from unpose.images import mirror, pixel_grid, quarter_turn, source_points, warp

KINDS = ("invariant", "image", "regular", "regular image")


@dataclass(frozen=True)
class Kind:
    """How a tensor moves when the image does: pixels in its last two axes, and the axis that a group permutes."""

    image: bool = False
    group_axis: int | None = None

    def __str__(self) -> str:
        name = KINDS[2 * (self.group_axis is not None) + self.image]
        return name if self.group_axis is None else f"{name}, axis {self.group_axis}"


def kind_of(name: str, group: Group, group_axis: int) -> Kind:
    """One of :data:`KINDS` as a :class:`Kind`; a group axis needs a finite group."""
    if name not in KINDS:
        raise ValueError(f"a kind must be one of {', '.join(map(repr, KINDS))}, got {name!r}")
    if "regular" not in name:
        return Kind(image="image" in name)
    if not isinstance(group, FiniteGroup):
        raise ValueError(f"kind {name!r} needs a finite group to permute its axis (c4, d4, ...), got {group}")
    return Kind("image" in name, group_axis)


def check_shape(tensor: Tensor, kind: Kind, order: int, what: str) -> None:
    """Raise where a tensor has no axes for its kind to act on."""
    needed = 1 + (2 if kind.image else 0) + (kind.group_axis is not None)
    if tensor.ndim < needed:
        raise ValueError(f"{what} of kind '{kind}' must have at least {needed} axes, got shape {tuple(tensor.shape)}")
    if kind.group_axis is None:
        return
    axes = range(1, tensor.ndim - (2 if kind.image else 0))
    if kind.group_axis % tensor.ndim not in axes or not -tensor.ndim <= kind.group_axis < tensor.ndim:
        raise ValueError(f"{what} of shape {tuple(tensor.shape)} has no group axis {kind.group_axis}: set group_axis")
    if tensor.shape[kind.group_axis] != order:
        raise ValueError(
            f"{what} must have {order} places along group axis {kind.group_axis}, one per element of the group, "
            f"got shape {tuple(tensor.shape)}"
        )


def act(tensor: Tensor, element: Element, kind: Kind, frame: tuple[int, int], way: int = 0) -> Tensor:
    """The tensor after the element: ``g f`` for one that stands over an image of this frame (height, width).

    Quarter turns and mirrors are exact permutations; anything else is resampled once, with zeros from outside.
    """
    if kind.group_axis is not None:
        order = element.orders[way].to(tensor.device)
        tensor = tensor.index_select(kind.group_axis, order.clamp(min=0))
    return _move_pixels(tensor, element, frame) if kind.image else tensor


def comparable(tensor: Tensor, element: Element, kind: Kind, frame: tuple[int, int], way: int = 0) -> Tensor:
    """Where ``act(tensor, ...)`` means something, as a bool tensor that broadcasts against it.

    Resampled maps count inside the disc that fits the frame, and where that disc was the source. Along the axis of a
    set that is not closed, places count that an element of the set reaches.
    """
    mask = torch.ones((), dtype=torch.bool)
    if kind.image and not element.is_exact:
        shape = (tensor.shape[-2], tensor.shape[-1])
        source = source_points(_pose_on(element, frame, shape)[None], shape)[0]  # (h, w, 2)
        radius = min(shape) / 2
        mask = (pixel_grid(shape, torch.float64).norm(dim=-1) <= radius) & (source.norm(dim=-1) <= radius)
    if kind.group_axis is not None:
        reached = element.orders[way] != OUTSIDE
        after = tensor.ndim - 1 - kind.group_axis % tensor.ndim
        mask = mask & reached.reshape(-1, *(1,) * after)
    return mask.to(tensor.device)


def there_and_back(tensor: Tensor, element: Element, frame: tuple[int, int]) -> Tensor:
    """Pixels moved by the element and by its inverse: what is lost on the way is interpolation's."""
    if element.is_exact or element.pose is None:
        return tensor
    back = Element(element.name, inverse(element.pose))
    return _move_pixels(_move_pixels(tensor, element, frame), back, frame)


def disc_window(shape: tuple[int, int], radius: float, like: Tensor) -> Tensor:
    """One inside three quarters of the radius, zero outside it, half a cosine between: (h, w).

    An image under this window may be turned without losing its corners, and has no edge that interpolation would smear.
    """
    distance = pixel_grid(shape, like.dtype, like.device).norm(dim=-1) / radius
    return torch.cos((4 * distance - 3).clamp(0, 1) * math.pi) / 2 + 0.5


def _move_pixels(tensor: Tensor, element: Element, frame: tuple[int, int]) -> Tensor:
    shape = (tensor.shape[-2], tensor.shape[-1])
    if element.pose is None:
        return tensor.roll((shape[0] // 2, shape[1] // 2), dims=(-2, -1))
    if element.quarter_turns is not None:
        turns, mirrored = element.quarter_turns
        return quarter_turn(mirror(tensor) if mirrored else tensor, turns)
    flat = tensor.reshape(len(tensor), -1, *shape)  # (n, everything else, h, w)
    return warp(flat, _pose_on(element, frame, shape).to(tensor)).reshape(tensor.shape)


def _pose_on(element: Element, frame: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """The pose in pixels of a map of this shape: lengths shrink by the whole stride nearest to the ratio of sizes.

    A map a little smaller than the frame is taken to have lost a border, not to have been resampled.
    """
    if element.pose is None:
        raise ValueError(f"{element.name} has no pose")
    down, across = (round(a / b) if a >= b else 1 / round(b / a) for a, b in zip(frame, shape, strict=True))
    scale = torch.tensor([1 / across, 1 / down, 1.0], dtype=torch.float64)
    return scale[:, None] * element.pose / scale
