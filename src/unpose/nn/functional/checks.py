"""Parsing and checking of the arguments that layers and networks share; every error tells the caller what to do."""

from collections.abc import Sequence
from numbers import Real

import numpy as np
from torch import Tensor

from unpose.groups import FiniteGroup, parse


def parse_finite(group: str | FiniteGroup) -> FiniteGroup:
    """Parse the name of a finite group, for layers that keep one feature map per group element."""
    parsed = parse(group)
    if not isinstance(parsed, FiniteGroup):
        raise ValueError(
            f"a finite group is needed here, such as c1, c4, d4 or dilations(3), got {parsed}; c8 or c16 approximate "
            "the continuous rotations"
        )
    return parsed


def parse_point_group(group: str | FiniteGroup) -> FiniteGroup:
    """Parse the name of a finite group that is closed under products: rotations, with or without mirrors."""
    parsed = parse_finite(group)
    if not parsed.is_group:
        raise ValueError(f"a group that is closed is needed here, such as c4, c8 or d4, got {parsed}")
    return parsed


def check_tensor(given: object) -> None:
    """Raise a ``TypeError`` unless a network or a layer is given a tensor."""
    if not isinstance(given, Tensor):
        raise TypeError(
            f"the input must be a tensor (batch, channels, height, width), got {type(given).__name__}; instead of an "
            "array of images (n, h, w, c), give torch.from_numpy(images).movedim(-1, 1)"
        )


def check_feature_maps(maps: Tensor, channels: int, group: FiniteGroup | None) -> None:
    """Raise a ``ValueError`` unless ``maps`` is (b, channels, order, h, w), or (b, channels, h, w) without a group.

    What is no tensor is a ``TypeError``.
    """
    check_tensor(maps)
    expected = f"(batch, {channels}, height, width)" if group is None else f"(batch, {channels}, {group.order}, h, w)"
    if maps.ndim != (4 if group is None else 5):
        hint = ""
        if group is None and maps.ndim == 5:
            hint = "; maps that are already on a group go to a group layer"
        elif group is not None and maps.ndim == 4:
            hint = "; images go through a lifting layer first"
        raise ValueError(f"the input must be {expected}, got shape {tuple(maps.shape)}{hint}")
    if maps.shape[1] != channels:
        raise ValueError(f"the input must be {expected}: {channels} channels, got {maps.shape[1]}")
    if group is not None and maps.shape[2] != group.order:
        raise ValueError(
            f"the input must be {expected}: {group} has {group.order} elements, these maps have {maps.shape[2]}; were "
            "they made for another group?"
        )
    if not maps.is_floating_point():
        raise ValueError(
            f"the input must be floating point, got {maps.dtype}; divide integer images by their full scale"
        )


def check_positive(**counts: int) -> None:
    """Raise a ``ValueError`` that names the first count below one, or what is no number."""
    for name, count in counts.items():
        if not isinstance(count, Real) or count < 1:
            raise ValueError(f"{name} must be at least 1, got {count!r}")


def check_dropout(probability: float) -> None:
    """Raise a ``ValueError`` unless the dropout probability of attention weights lies in [0, 1)."""
    if not 0 <= probability < 1:
        raise ValueError(f"the dropout of attention weights must be at least 0 and below 1, got {probability}")


def check_window(window: tuple[int, int], image_size: tuple[int, int] | None = None) -> None:
    """Raise a ``ValueError`` unless a (height, width) window is odd and at most ``2 side - 1`` in each direction."""
    if any(side < 1 or side % 2 == 0 for side in window):
        raise ValueError(
            f"a window needs odd height and width, so that the query is in its middle, got {window[0]} x {window[1]}"
        )
    if image_size is not None and any(side > 2 * full - 1 for side, full in zip(window, image_size, strict=True)):
        height, width = image_size
        raise ValueError(
            f"a window of {window[0]} x {window[1]} is larger than an image of {height} x {width} can fill: at most "
            f"{2 * height - 1} x {2 * width - 1}, which is global attention"
        )


def as_image_size(image_size: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) from one side or from (height, width)."""
    both = image_size if isinstance(image_size, Sequence | np.ndarray) else (image_size, image_size)
    sides = tuple(int(side) for side in both)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"image_size must be a side or (height, width) in pixels, got {image_size}")
    return sides[0], sides[1]


def stem_halvings(stem: int) -> int:
    """Return how often a stem halves the image, which makes it ``stem`` times smaller."""
    if stem not in (1, 2, 4, 8):
        raise ValueError(f"stem must be 1 (none), 2, 4 or 8, how many times smaller the maps are made, got {stem}")
    return int(stem).bit_length() - 1


def pooled_size(image_size: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) of a map after :class:`unpose.nn.SpatialPool`."""
    return (image_size[0] + 1) // 2, (image_size[1] + 1) // 2
