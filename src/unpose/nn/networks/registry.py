"""All networks by name; a new network is declared here, with the arguments of a tiny one for the tests."""

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

_DECLARED: dict[str, tuple[Callable[..., Network], dict[str, Any]]] = {
    "gsa_net": (gsa_net, {"group": "c4", "config": {"lifted": 6, "stages": ((6,), (8,)), "window": 3, "heads": 2}}),
    "group_cnn": (group_cnn, {"group": "c8", "width": 3, "stages": (1, 1, 1)}),
    "group_resnet": (group_resnet, {"group": "d4", "widths": (2, 3), "depths": (1, 1)}),
    "swivel_net": (swivel_net, {"group": "d1", "widths": (3, 4), "depths": (1,), "heads": 2, "window": 3}),
    "scale_net": (scale_net, {"group": "dilations(2, 1.5)", "widths": (3, 4)}),
    "patch_net": (patch_net, {"group": "c8", "hidden": 5, "patch_size": 5, "window": 3}),
    "equivariant_vit": (equivariant_vit, {"group": "d4", "patch": 5, "depth": 2, "width": 32, "heads": 8}),
    "equivariant_unet": (equivariant_unet, {"group": "c4", "width": 2, "levels": 2}),
    "lie_cnn": (lie_cnn, {"group": "se2+mirror", "samples": 8, "width": 3, "radii": (2, 1), "strides": (2, 2)}),
    "lie_transformer": (
        lie_transformer,
        {"group": "se2", "samples": 4, "patch": 5, "depth": 1, "width": 6, "heads": 2},
    ),
    "scale_fourier_net": (scale_fourier_net, {"group": "dilations(2, 1.5)", "width": 3, "spacings": (1, 2)}),
}
"""The function that builds a network, and the arguments of a tiny one, with which :func:`example_network` calls it."""

NETWORKS: dict[str, Callable[..., Network]] = {name: build for name, (build, _) in _DECLARED.items()}
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


def example_network(name: str, **options: Any) -> Network:
    """Create a tiny network of a kind, with new weights: for tests and examples, in which it takes milliseconds.

    Parameters
    ----------
    name : str
        A name that :func:`create_network` knows.
    **options : Any
        Arguments in place of those of the tiny network, such as ``group``.

    Returns
    -------
    Network
        For images of 2 channels and 10 x 15 pixels, and for other sizes of which both sides are multiples of 5, with 3
        classes, or maps of 3 channels.

    Examples
    --------
    >>> network = example_network("gsa_net", group="d4")
    >>> import torch
    >>> network(torch.rand(5, 2, 10, 15)).shape
    torch.Size([5, 3])
    """
    example = _DECLARED[name][1] if name in _DECLARED else {}
    return create_network(name, **{"in_channels": 2, "n_classes": 3, "image_size": (10, 15)} | example | options)


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
