"""Networks that come with the package, by name: trained, measured and ready."""

import difflib
from pathlib import Path

import torch

from unpose.nn import Network
from unpose.train.checkpoint import load_network

WEIGHTS = Path(__file__).parent / "weights"
"""Where they lie: one safetensors file for each, its card inside; see :mod:`unpose.train.card`."""


def pretrained_names() -> list[str]:
    """The networks that come with the package."""
    return sorted(path.stem for path in WEIGHTS.glob("*.safetensors"))


def pretrained_file(name: str) -> Path:
    """The file of a network that comes with the package."""
    names = pretrained_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"unknown model {name!r}; models that come along: {', '.join(names)}{meant}")
    return WEIGHTS / f"{name}.safetensors"


def pretrained(name: str, *, device: str | torch.device = "cpu") -> Network:
    """A trained network that comes with the package, in evaluation mode.

    :func:`pretrained_names` lists them; :func:`unpose.train.describe` of :func:`pretrained_file` says what each is.

    Examples
    --------
    >>> pretrained("mnist-c8")(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    """
    return load_network(pretrained_file(name), device=device)
