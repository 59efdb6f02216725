"""What layers and networks ask of their input, in words for the caller."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from unpose.groups import FiniteGroup


def check_maps(maps: Tensor, channels: int, group: FiniteGroup | None) -> None:
    """Raise a ``ValueError`` unless these are (b, channels, order, h, w) maps on the group, or (b, channels, h, w)."""
    wanted = f"(batch, {channels}, height, width)" if group is None else f"(batch, {channels}, {group.order}, h, w)"
    if maps.ndim != (4 if group is None else 5):
        hint = ""
        if group is None and maps.ndim == 5:
            hint = "; maps that are already on a group go to a group layer"
        elif group is not None and maps.ndim == 4:
            hint = "; images go through a lifting layer first"
        raise ValueError(f"the input must be {wanted}, got shape {tuple(maps.shape)}{hint}")
    if maps.shape[1] != channels:
        raise ValueError(f"the input must be {wanted}: {channels} channels, got {maps.shape[1]}")
    if group is not None and maps.shape[2] != group.order:
        raise ValueError(
            f"the input must be {wanted}: {group} has {group.order} elements, these maps have {maps.shape[2]}; were "
            "they made for another group?"
        )
    if not maps.is_floating_point():
        raise ValueError(
            f"the input must be floating point, got {maps.dtype}; divide integer images by their full scale"
        )


def check_counts(**counts: int) -> None:
    """Raise a ``ValueError`` that names the first count below one."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def check_dropout(probability: float) -> None:
    """Raise a ``ValueError`` unless attention weights can be dropped with this probability: not all of them."""
    if not 0 <= probability < 1:
        raise ValueError(f"the dropout of attention weights must be at least 0 and below 1, got {probability}")


def as_size(image_size: int | Sequence[int]) -> tuple[int, int]:
    """A side or (height, width) as (height, width)."""
    both = image_size if isinstance(image_size, Sequence | np.ndarray) else (image_size, image_size)
    sides = tuple(int(side) for side in both)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"image_size must be a side or (height, width) in pixels, got {image_size}")
    return sides[0], sides[1]


def halved(size: tuple[int, int]) -> tuple[int, int]:
    """The (height, width) that :class:`unpose.nn.SpatialPool` leaves."""
    return (size[0] + 1) // 2, (size[1] + 1) // 2
