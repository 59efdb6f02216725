"""Trained networks that come with the package, by name."""

import difflib
from pathlib import Path

import torch

from unpose.nn import Network
from unpose.train.checkpoint import load_network

WEIGHTS = Path(__file__).parent / "weights"
"""One safetensors file for each network, with its card inside; see :mod:`unpose.train.cards`."""


def pretrained_names() -> list[str]:
    """Return the names of the trained networks that come with the package.

    Returns
    -------
    list of str

    Examples
    --------
    >>> pretrained_names()
    ['cifar10-d4', 'mnist-c8', 'rotmnist-attention', 'rotmnist-modern']
    """
    return sorted(path.stem for path in WEIGHTS.glob("*.safetensors"))


def pretrained_file(name: str) -> Path:
    """Return the file of a network that comes with the package.

    Parameters
    ----------
    name : str
        One of :func:`pretrained_names`.

    Returns
    -------
    pathlib.Path

    Examples
    --------
    >>> pretrained_file("mnist-c8").name
    'mnist-c8.safetensors'
    """
    names = pretrained_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"unknown model {name!r}; models in this package: {', '.join(names)}{meant}")
    return WEIGHTS / f"{name}.safetensors"


def pretrained(name: str, *, device: str | torch.device = "cpu") -> Network:
    """Load a trained network that comes with the package, in evaluation mode.

    Parameters
    ----------
    name : str
        One of :func:`pretrained_names`. ``unpose models NAME`` shows its card.
    device : str or torch.device, default "cpu"

    Returns
    -------
    Network

    Examples
    --------
    >>> pretrained("mnist-c8")(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    """
    return load_network(pretrained_file(name), device=device)
