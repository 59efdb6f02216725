"""Call a model to measure it: its mode while it is called, and checks of what it returns."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unpose.compiled import is_traced_or_transformed

__all__ = ["checked_output", "evaluation", "first_line"]


@contextmanager
def evaluation(f: object) -> Iterator[None]:
    """Disable gradients and put a module into evaluation mode inside the context; restores its mode afterwards.

    Parameters
    ----------
    f : object
        A torch module; anything else only loses gradients.

    Yields
    ------
    None

    Examples
    --------
    >>> layer = torch.nn.Dropout()
    >>> with evaluation(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    modules = list(f.modules()) if isinstance(f, torch.nn.Module) else []
    trained = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, was in zip(modules, trained, strict=True):
            module.training = was


def first_line(error: BaseException) -> str:
    """The first line of the message of an error, or its class if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def checked_output(outputs: Any, n: int, name: str = "f", *, label_maps: bool = False) -> Tensor:
    """Check that a model returned finite real numbers, with one entry for each of n inputs: a tensor (n, ...).

    With ``label_maps``, whole numbers (n, ..., h, w) are allowed as well: the label of each pixel.

    The type, device and gradient of the outputs are kept. Values are not looked at while torch traces the call. Error
    messages call the model by its ``name``.

    >>> checked_output(np.ones((2, 3)), 2).shape
    torch.Size([2, 3])
    """
    if isinstance(outputs, np.ndarray):
        outputs = torch.from_numpy(outputs)
    if not isinstance(outputs, Tensor):
        raise ValueError(f"{name} must return a tensor or an array, got {type(outputs).__name__}; pick one in a lambda")
    are_labels = label_maps and outputs.ndim >= 3 and not outputs.is_complex()
    if not outputs.dtype.is_floating_point and not are_labels:
        raise ValueError(
            f"{name} must return real numbers, got {outputs.dtype}; return scores or a one-hot code instead of "
            "labels, and torch.view_as_real of complex numbers"
        )
    if outputs.ndim == 0 or outputs.shape[0] != n or outputs.numel() == 0:
        raise ValueError(f"{name} must return one output per input ({n}), got shape {tuple(outputs.shape)}")
    if not is_traced_or_transformed() and not outputs.isfinite().all():
        raise ValueError(f"{name} returns {int((~outputs.isfinite()).sum())} values that are NaN or infinite")
    return outputs
