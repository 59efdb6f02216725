"""The base class of all networks, which records how a network was built."""

from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
from torch import nn

from unpose.groups import FiniteGroup


class Network(nn.Module):
    """Base class of image classifiers: (b, in_channels, h, w) -> (b, n_classes).

    Its attribute ``description`` holds the name of the function that built the network and its arguments, as plain
    strings, numbers, lists and dictionaries that JSON can hold; :func:`unpose.nn.rebuild` builds the same network with
    new weights from it.

    Parameters
    ----------
    group : FiniteGroup
        The group to which the network is invariant.
    **arguments : Any
        The other entries of the description.

    Examples
    --------
    >>> from unpose.nn import group_cnn
    >>> group_cnn("c4", 1, 10, 28, width=5).description["width"]
    5
    """

    def __init__(self, group: FiniteGroup, **arguments: Any) -> None:
        super().__init__()
        self.group = group
        self.description = {"group": group.name} | {name: _as_json(value) for name, value in arguments.items()}


def count_parameters(network: nn.Module) -> int:
    """Count the learnt parameters of a module.

    Parameters
    ----------
    network : torch.nn.Module
        Any module.

    Returns
    -------
    int

    Examples
    --------
    >>> count_parameters(nn.Linear(3, 5))
    20
    """
    return sum(parameter.numel() for parameter in network.parameters())


def _as_json(value: Any) -> Any:
    """Convert dataclasses, tuples and NumPy numbers to values that JSON can hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _as_json(part) for name, part in asdict(value).items()}
    if isinstance(value, tuple | list):
        return [_as_json(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value
