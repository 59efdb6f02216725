"""What all networks share: they are invariant to a point group and can say how they were built."""

from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
from torch import nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.positions import parse_finite


class Network(nn.Module):
    """A classifier of images: (b, in_channels, h, w) -> (b, n_classes), plain tensors.

    ``description`` holds the name of the function that built it and its arguments, nothing but strings, numbers, lists
    and dictionaries; :func:`unpose.nn.rebuild` makes the same network with fresh weights from it.
    """

    def __init__(self, group: FiniteGroup, **arguments: Any) -> None:
        super().__init__()
        self.group = group
        self.description = {"group": group.name} | {name: _plain(value) for name, value in arguments.items()}


def parse_point_group(group: str | FiniteGroup) -> FiniteGroup:
    """The point group with this name; networks keep one map for each element and need all products inside."""
    found = parse_finite(group)
    if not found.is_group:
        raise ValueError(f"a network needs a group that is closed, such as c4, c8 or d4, got {found}")
    return found


def count_parameters(network: nn.Module) -> int:
    """How many numbers a network learns."""
    return sum(parameter.numel() for parameter in network.parameters())


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(part) for name, part in asdict(value).items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    # NumPy's numbers, such as a count of classes, have no place in JSON.
    return value.item() if isinstance(value, np.generic) else value
