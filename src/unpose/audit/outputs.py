"""What a model returns, as named tensors: every entry of a dictionary, tuple or dataclass is an output of its own."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["output_named", "outputs_of"]


def outputs_of(answer: Any, n: int) -> dict[str, Tensor]:
    """Flatten what a model returned for n inputs into named tensors, on the CPU and without gradients.

    Entries of nested dictionaries, tuples, lists and dataclasses that are no numbers, or have not one row per input,
    are left out. The name of a single output is "", of an entry its key or index; names of nested entries are joined by
    dots.

    >>> found = outputs_of({"scores": torch.ones(2, 3), "aux": (np.zeros((2, 4)), "text")}, 2)
    >>> {name: tuple(tensor.shape) for name, tensor in found.items()}
    {'scores': (2, 3), 'aux.0': (2, 4)}
    """
    found: dict[str, Tensor] = {}
    _collect(answer, "", found)
    kept = {name: tensor for name, tensor in found.items() if tensor.ndim and tensor.shape[0] == n and tensor.numel()}
    if not kept:
        shapes = ", ".join(f"{name or 'output'} {tuple(tensor.shape)}" for name, tensor in found.items())
        raise ValueError(
            f"a model must return numbers with one row per input ({n}), got {shapes or type(answer).__name__}"
        )
    return kept


def _collect(answer: Any, name: str, found: dict[str, Tensor]) -> None:
    if isinstance(answer, np.ndarray | np.generic) and np.asarray(answer).dtype.kind in "fiub":
        answer = torch.from_numpy(np.array(answer))
    if isinstance(answer, Tensor):
        if answer.is_complex():
            answer = torch.view_as_real(answer)
        found[name] = answer.detach().to("cpu")
        return
    if isinstance(answer, list) and answer and all(isinstance(value, int | float) for value in answer):
        found[name] = torch.tensor(answer)
        return
    for key, value in _entries(answer).items():
        _collect(value, f"{name}.{key}" if name else key, found)


def output_named(answer: Any, name: str) -> Any:
    """The entry of what a model returned that :func:`outputs_of` gives this name, as it is.

    >>> output_named({"scores": torch.ones(2, 3), "aux": (torch.zeros(2, 4), "text")}, "aux.1")
    'text'
    """
    entries = _entries(answer)
    fits = [key for key in entries if f"{name}.".startswith(f"{key}.")]
    if not fits:
        raise ValueError(f"the model's answer has no entry {name!r}; it has {', '.join(entries) or 'one output'}")
    key = max(fits, key=len)
    rest = name[len(key) + 1 :]
    return output_named(entries[key], rest) if rest else entries[key]


def _entries(answer: Any) -> dict[str, Any]:
    """The entries of a dictionary, tuple, list or dataclass by name; empty for anything else."""
    if isinstance(answer, dict):
        return {str(key): value for key, value in answer.items()}
    if isinstance(answer, tuple | list):
        keys = getattr(answer, "_fields", range(len(answer)))
        return {str(key): value for key, value in zip(keys, answer, strict=True)}
    if is_dataclass(answer) and not isinstance(answer, type):
        return {field.name: getattr(answer, field.name) for field in fields(answer)}
    return {}
