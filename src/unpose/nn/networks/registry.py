"""All networks by name; a new network is added to ``NETWORKS``."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from unpose.nn.networks.base import Network
from unpose.nn.networks.group_cnn import group_cnn
from unpose.nn.networks.gsa import gsa_net
from unpose.nn.networks.lie import lie_cnn, lie_transformer
from unpose.nn.networks.patch import patch_net
from unpose.nn.networks.resnet import group_resnet
from unpose.nn.networks.scale import scale_net
from unpose.nn.networks.scale_fourier import scale_fourier_net
from unpose.nn.networks.swivel import swivel_net
from unpose.nn.networks.unet import equivariant_unet
from unpose.nn.networks.vit import equivariant_vit

NETWORKS: dict[str, Callable[..., Network]] = {
    "gsa_net": gsa_net,
    "group_cnn": group_cnn,
    "group_resnet": group_resnet,
    "swivel_net": swivel_net,
    "scale_net": scale_net,
    "patch_net": patch_net,
    "equivariant_vit": equivariant_vit,
    "equivariant_unet": equivariant_unet,
    "lie_cnn": lie_cnn,
    "lie_transformer": lie_transformer,
    "scale_fourier_net": scale_fourier_net,
}
"""The functions that build networks, by name; recipes and saved files refer to networks by these names."""


def create_network(name: str, **options: Any) -> Network:
    """Create a network by its name, with new weights.

    Parameters
    ----------
    name : str
        ``"gsa_net"`` (group self-attention), ``"group_cnn"`` (group convolution), ``"group_resnet"`` (residual group
        convolution), ``"swivel_net"`` (convolution, then attention), ``"scale_net"`` (dilations), ``"patch_net"``
        (attention among patches), ``"equivariant_vit"`` (a vision transformer in the irrep basis),
        ``"equivariant_unet"`` (masks and vectors at every pixel), ``"lie_cnn"`` and ``"lie_transformer"`` (convolution
        and attention on continuous groups) or ``"scale_fourier_net"`` (images at any resolution).
    **options : Any
        Arguments of the function of that name, such as :func:`unpose.nn.gsa_net`. The ``gsa_net``, ``group_cnn`` and
        ``swivel_net`` take ``head``, for masks or vectors instead of classes, the first two also ``stem``, for large
        images.

    Returns
    -------
    Network

    Examples
    --------
    >>> network = create_network("group_cnn", group="p4", in_channels=1, n_classes=10, image_size=28)
    >>> network.group.name
    'c4'
    >>> import torch
    >>> masks = create_network("group_cnn", group="p4", in_channels=3, n_classes=2, image_size=40, head="mask")
    >>> masks(torch.rand(1, 3, 40, 40)).shape
    torch.Size([1, 2, 40, 40])
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; known: {', '.join(NETWORKS)}")
    return NETWORKS[name](**options)


def rebuild(description: dict[str, Any]) -> Network:
    """Build the network that a description stands for, with new weights.

    Parameters
    ----------
    description : dict
        The attribute ``description`` of a network, or the same read from JSON.

    Returns
    -------
    Network

    Examples
    --------
    >>> network = group_cnn("p4", 1, 10, 28)
    >>> rebuild(network.description).description == network.description
    True
    """
    options = dict(description)
    name = options.pop("network", None)
    if name in NETWORKS:
        try:
            signature(NETWORKS[name]).bind(**options)
        except TypeError as error:
            raise ValueError(f"the description of a {name} does not fit: {error}") from error
    return create_network(name, **options)
