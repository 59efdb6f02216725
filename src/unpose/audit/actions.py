"""How a group element acts on a tensor: on its pixels, on its group axis, on both, or not at all.

Convention
----------
Images are ``(n, ..., h, w)``, feature maps on a group ``(n, c, order, h, w)``. Element a moves entry b of a group axis
to entry ``product[a, b]``, which is the regular representation. A quarter turn of a non-square image swaps its height
and width. A frame is the (height, width) of the network's input, in whose pixels poses are measured.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.audit.elements import Element
from unpose.groups import NO_ELEMENT, FiniteGroup, Group, inverse
from unpose.images import mirror, pixel_grid, quarter_turn, source_points, warp

KINDS = ("invariant", "image", "regular", "regular image")


@dataclass(frozen=True)
class Kind:
    """How a tensor transforms: whether its last two axes are pixels, and which axis the group permutes."""

    image: bool = False
    group_axis: int | None = None

    def __str__(self) -> str:
        name = KINDS[2 * (self.group_axis is not None) + self.image]
        return name if self.group_axis is None else f"{name}, axis {self.group_axis}"


def kind_of(name: str, group: Group, group_axis: int) -> Kind:
    """Parse one of :data:`KINDS`; the kinds with a group axis need a finite group."""
    if name not in KINDS:
        raise ValueError(f"a kind must be one of {', '.join(map(repr, KINDS))}, got {name!r}")
    if "regular" not in name:
        return Kind(image="image" in name)
    if not isinstance(group, FiniteGroup):
        raise ValueError(f"kind {name!r} needs a finite group to permute its axis (c4, d4, ...), got {group}")
    return Kind("image" in name, group_axis)


def check_shape(tensor: Tensor, kind: Kind, order: int, what: str) -> None:
    """Raise a ValueError if a tensor lacks the axes that its kind acts on."""
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
            f"{what} must have {order} entries along group axis {kind.group_axis}, one per element of the group, "
            f"got shape {tuple(tensor.shape)}"
        )


def act(tensor: Tensor, element: Element, kind: Kind, frame: tuple[int, int], candidate: int = 0) -> Tensor:
    """Apply an element to a tensor, ``g f``.

    ``frame`` is the (height, width) of the image that the tensor was computed from; ``candidate`` selects one of
    ``element.permutations``. Quarter turns and mirrors are exact permutations of pixels. Any other element resamples
    the pixels once, with zeros outside the image.
    """
    if kind.group_axis is not None:
        source = element.permutations[candidate].to(tensor.device)
        tensor = tensor.index_select(kind.group_axis, source.clamp(min=0))
    return _move_pixels(tensor, element, frame) if kind.image else tensor


def valid_mask(tensor: Tensor, element: Element, kind: Kind, frame: tuple[int, int], candidate: int = 0) -> Tensor:
    """Where the values of ``act(tensor, ...)`` can be compared: a bool tensor that broadcasts against the tensor.

    After resampling, pixels are valid inside the disc inscribed in the image if they also come from inside that disc.
    Along the axis of a set of elements that is not closed under products, entries are valid if an element maps to them.
    """
    mask = torch.ones((), dtype=torch.bool)
    if kind.image and not element.is_exact:
        shape = (tensor.shape[-2], tensor.shape[-1])
        source = source_points(_pose_on(element, frame, shape)[None], shape)[0]  # (h, w, 2)
        radius = min(shape) / 2
        mask = (pixel_grid(shape, torch.float64).norm(dim=-1) <= radius) & (source.norm(dim=-1) <= radius)
    if kind.group_axis is not None:
        reached = element.permutations[candidate] != NO_ELEMENT
        axes_after = tensor.ndim - 1 - kind.group_axis % tensor.ndim
        mask = mask & reached.reshape(-1, *(1,) * axes_after)
    return mask.to(tensor.device)


def round_trip(tensor: Tensor, element: Element, frame: tuple[int, int]) -> Tensor:
    """Move the pixels by an element and then by its inverse; only interpolation changes the result."""
    if element.is_exact or element.pose is None:
        return tensor
    back = Element(element.name, inverse(element.pose))
    return _move_pixels(_move_pixels(tensor, element, frame), back, frame)


def disc_window(shape: tuple[int, int], radius: float, like: Tensor) -> Tensor:
    """Window (h, w): 1 up to three quarters of the radius, 0 beyond the radius, half a cosine between.

    A windowed image can be rotated without losing its corners and has no edge that interpolation would smear.
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
    flat = tensor.reshape(len(tensor), -1, *shape)  # (n, all other axes, h, w)
    return warp(flat, _pose_on(element, frame, shape).to(tensor)).reshape(tensor.shape)


def _pose_on(element: Element, frame: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """Convert a pose from pixels of the frame to pixels of a feature map of this shape.

    Lengths are divided by the integer stride nearest to the ratio of the sizes. A map that is only a little smaller
    than the frame is therefore taken to have lost its border, not to have been downsampled.
    """
    if element.pose is None:
        raise ValueError(f"{element.name} has no pose")
    down, across = (round(a / b) if a >= b else 1 / round(b / a) for a, b in zip(frame, shape, strict=True))
    scale = torch.tensor([1 / across, 1 / down, 1.0], dtype=torch.float64)
    return scale[:, None] * element.pose / scale
