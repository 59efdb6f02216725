"""The networks by name, and a network from its description."""

from collections.abc import Callable
from typing import Any

from unpose.nn.networks.base import Network
from unpose.nn.networks.group_cnn import group_cnn
from unpose.nn.networks.gsa import gsa_net
from unpose.nn.networks.patch import patch_net
from unpose.nn.networks.scale import scale_net
from unpose.nn.networks.swivel import swivel_net

NETWORKS: dict[str, Callable[..., Network]] = {
    "gsa_net": gsa_net,
    "group_cnn": group_cnn,
    "swivel_net": swivel_net,
    "scale_net": scale_net,
    "patch_net": patch_net,
}


def rebuild(description: dict[str, Any]) -> Network:
    """The network that a description stands for, with fresh weights.

    Examples
    --------
    >>> network = group_cnn("p4", 1, 10, 28)
    >>> rebuild(network.description).description == network.description
    True
    """
    arguments = dict(description)
    name = arguments.pop("network", None)
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; known: {', '.join(NETWORKS)}")
    try:
        return NETWORKS[name](**arguments)
    except TypeError as error:
        raise ValueError(f"the description of a {name} does not fit: {error}") from error
