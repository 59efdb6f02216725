"""The base classes of all networks, which record how a network was built."""

from dataclasses import asdict, is_dataclass
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor, nn

from unpose.groups import FiniteGroup, Group
from unpose.nn.functional.checks import check_positive, check_tensor
from unpose.nn.layers.heads import make_head


class Network(nn.Module):
    """Base class of all networks; most are image classifiers: (b, in_channels, h, w) -> (b, n_classes).

    Its attribute ``description`` holds the name of the function that built the network and its arguments, as plain
    strings, numbers, lists and dictionaries that JSON can hold; :func:`unpose.nn.rebuild` builds the same network with
    new weights from it.

    Parameters
    ----------
    group : Group
        The group to which the network is invariant.
    **arguments : Any
        The other entries of the description.

    Examples
    --------
    >>> from unpose.nn import group_cnn
    >>> group_cnn("c4", 1, 10, 28, width=5).description["width"]
    5
    """

    def __init__(self, group: Group, **arguments: Any) -> None:
        super().__init__()
        if "in_channels" in arguments:
            check_positive(in_channels=arguments["in_channels"])
        if not isinstance(n_classes := arguments.get("n_classes", 0), Real) or n_classes < 0:
            raise ValueError(f"n_classes must be at least 0, got {n_classes!r}")
        self.group: Any = group  # each network knows which kind of group it has
        self.description = {"group": group.name} | {name: _as_json(value) for name, value in arguments.items()}


class GroupNetwork(Network):
    """Base class of networks that compute maps on a group, ``features``, and read them with a head.

    A subclass sets ``features``, calls :meth:`set_head` at the end of its constructor and defines :meth:`scores`.
    """

    group: FiniteGroup
    features: nn.Module
    head: nn.Module | None

    def set_head(self, kind: str | None, channels: int, outputs: int, halvings: int) -> None:
        """Create the head with this name for features that have ``channels`` and were halved ``halvings`` times."""
        self.head = make_head(kind, self.group, channels, outputs, halvings)
        self.gives_scores = kind == "classes"

    def scores(self, features: Tensor) -> Tensor:
        """(b, channels, order, h, w) -> (b, n_classes)"""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes), or what the head of the network gives"""
        check_tensor(images)
        features = self.features(images)
        if self.gives_scores:
            return self.scores(features)
        return features if self.head is None else self.head(features, images.shape[-2:])


def arguments_of(scope: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor by name, in order, from its ``locals()`` at the first line."""
    return {name: value for name, value in scope.items() if name not in ("self", "__class__")}


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
