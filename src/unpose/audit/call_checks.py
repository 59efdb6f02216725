"""Whether a model is a function of its input at all: not random, without memory, and image by image."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unpose.audit.modules import NETWORK
from unpose.audit.outputs import outputs_of
from unpose.audit.trace import Call, trace

_SAME = 1e-6
"""Outputs of two calls on the same images that differ by less than this, relative to their norm, count as equal."""

_SAME_IN_BATCHES = {torch.float64: 1e-6, torch.float32: 1e-4}
_SAME_IN_COARSE_BATCHES = 0.05
"""The same for another number of images in the call, for which kernels round differently."""


_REPEATS = 16
"""Calls of a model that cannot be copied, to tell chance from memory."""


@dataclass(frozen=True)
class CallChecks:
    """What calling a model several times shows; the result of :func:`check_calls`.

    Parameters
    ----------
    cause : {"", "random", "stateful", "batch"}
        "random": two calls on the same images differ unless the random numbers are the same. "stateful": they differ
        although the random numbers are the same, because the model remembers earlier calls. "batch": the output of an
        image depends on the other images of the same call.
    difference : float
        Relative difference of the outputs that should be equal.
    module : str
        The module that is random, keeps state or mixes the images; "" if it is not known.
    notes : tuple of str, default ()
        What else was seen, such as buffers that change when the model is called.
    changed : float, default 0.0
        Share of the images whose answer, the largest entry, differs between two calls.

    Examples
    --------
    >>> check_calls(lambda x: x.mean((1, 2, 3)), torch.rand(4, 1, 8, 8)).cause
    ''
    >>> check_calls(lambda x: torch.nn.functional.dropout(x), torch.rand(4, 1, 8, 8)).cause
    'random'
    """

    cause: str
    difference: float
    module: str
    notes: tuple[str, ...] = ()
    changed: float = 0.0

    @property
    def repeats(self) -> bool:
        """Whether two calls on the same images give the same outputs."""
        return self.cause not in ("random", "stateful")

    def __str__(self) -> str:
        where = f" (module {self.module})" if self.module else ""
        by = f"{self.difference:.2g} of their norm"
        return {
            "": "the same images give the same outputs",
            "random": f"random: two calls on the same images differ by {by}{where}; switch off dropout",
            "stateful": f"keeps state: the same images give outputs that differ by {by} after other calls{where}",
            "batch": f"the output of an image depends on the other images of the call, by {by}{where}; "
            "batch normalisation must use its running statistics",
        }[self.cause]


def check_calls(f: Callable[[Tensor], Any], inputs: Tensor) -> CallChecks:
    """Call a model several times and check that its output depends on the image alone.

    A torch module is copied if possible, so that its state does not change; it is called in the mode that it is in.
    The random state of torch, NumPy and Python is restored.

    Parameters
    ----------
    f : callable
        Torch module or function on tensors; what it returns may be a dictionary or tuple.
    inputs : (n, ...) tensor
        At least two inputs.

    Returns
    -------
    CallChecks

    Examples
    --------
    >>> check_calls(lambda x: (x - x.mean(0)).flatten(1), torch.rand(4, 1, 8, 8)).cause
    'batch'
    """
    with _kept_random_state(), torch.no_grad():
        fresh = _copies(f)
        model = fresh()
        before = _buffers(model)
        first = _outputs(model, inputs, 0)
        notes = _changed_buffers(model, before)
        _outputs(model, inputs.flip(0), 1)
        second = _outputs(model, inputs, 2)
        # A GPU, and a program of which nothing is known, may add in any order.
        is_ordered = inputs.device.type == "cpu" and isinstance(f, nn.Module)
        limit = _SAME if is_ordered else _batch_limit(first)
        changed = _changed_answers(first, second)
        if (difference := _difference(first, second)) > limit:
            cause = "random" if _is_random(fresh, model, inputs, first, limit) else "stateful"
            module = _where(fresh, inputs, limit, seeds=(0, 1) if cause == "random" else (0, 0))
            return CallChecks(cause, difference, module, notes, changed)
        batch = _batch_difference(model, inputs, first)
        if batch > (limit := _batch_limit(first)):
            return CallChecks("batch", batch, _where_batch(model, inputs, limit), notes)
    return CallChecks("", difference, "", notes)


def _copies(f: Callable[[Tensor], Any]) -> Callable[[], Callable[[Tensor], Any]]:
    """A function that returns a fresh copy of a module, or f itself if it cannot be copied."""
    if not isinstance(f, nn.Module):
        return lambda: f
    try:
        kept = copy.deepcopy(f)
    except Exception:  # modules may hold what cannot be copied
        return lambda: f
    return lambda: copy.deepcopy(kept)


def _is_random(
    fresh: Callable[[], Callable[[Tensor], Any]], called: Callable[[Tensor], Any], inputs: Tensor,
    first: dict[str, Tensor], limit: float,
) -> bool:  # fmt: skip
    """Whether chance, rather than memory, makes two calls differ."""
    model = fresh()
    again = [_outputs(model, each, 0) for each in (inputs, inputs.flip(0), inputs)]
    if _difference(again[0], again[2]) <= limit:
        return True  # equal random numbers give equal outputs
    if model is not called:  # a copy repeats what its original remembers, but not numbers that no seed controls
        return _difference(first, again[0]) > limit
    # Differences of successive independent outputs have a cosine of -1/2; memory grows, decays or alternates.
    runs = [torch.cat([out.double().flatten() for out in _outputs(model, inputs, 0).values()]) for _ in range(_REPEATS)]
    steps = torch.stack(runs).diff(dim=0)
    cosine = float((steps[1:] * steps[:-1]).sum() / (steps[1:].norm() * steps[:-1].norm()).clamp(min=1e-300))
    return -0.9 < cosine < -0.1


def _buffers(model: Callable[[Tensor], Any]) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in model.named_buffers()} if isinstance(model, nn.Module) else {}


def _changed_buffers(model: Callable[[Tensor], Any], before: dict[str, Tensor]) -> tuple[str, ...]:
    after = _buffers(model)
    changed = [name for name, old in before.items() if name in after and not torch.equal(after[name], old)]
    return (f"calling the model changes its buffers: {', '.join(changed[:3])}",) if changed else ()


def _where(fresh: Callable[[], Callable[[Tensor], Any]], inputs: Tensor, limit: float, seeds: tuple[int, int]) -> str:
    """The innermost module whose outputs differ between two calls although its inputs are equal."""
    model = fresh()
    if not isinstance(model, nn.Module):
        return ""
    runs = []
    for seed in seeds:
        _seed(seed)
        runs.append(trace(model, inputs))
        _outputs(model, inputs.flip(0), seed)

    return _innermost(runs[0], runs[1], limit, lambda tensors: tensors)


def _where_batch(model: Callable[[Tensor], Any], inputs: Tensor, limit: float) -> str:
    """The innermost module whose output for the first input depends on the others although its input does not."""
    if not isinstance(model, nn.Module):
        return ""
    try:
        whole, part = trace(model, inputs), trace(model, inputs[:1])
    except Exception:  # a module that needs a whole batch
        return ""
    n = len(inputs)

    def rows(tensors: list[Tensor]) -> list[Tensor]:
        return [tensor[:1] if tensor.ndim and tensor.shape[0] == n else tensor for tensor in tensors]

    return _innermost(whole, part, limit, rows)


def _innermost(a: Call, b: Call, limit: float, rows: Callable[[list[Tensor]], list[Tensor]]) -> str:
    """The innermost call whose outputs differ between two runs although its inputs do not; ``rows`` cuts those of a."""
    if len(a.calls) == len(b.calls):
        for one, other in zip(a.calls, b.calls, strict=True):
            same = _tensors_differ(rows(one.inputs), other.inputs) <= limit
            if same and _tensors_differ(rows(one.outputs), other.outputs) > limit:
                return _innermost(one, other, limit, rows)
    return a.name or NETWORK


def _batch_difference(model: Callable[[Tensor], Any], inputs: Tensor, whole: dict[str, Tensor]) -> float:
    try:
        alone = _outputs(model, inputs[:1], 0)
    except Exception:  # a model that takes batches of one size only
        return 0.0
    # Labels such as those of a clustering of the batch may well depend on it.
    numbers = {name: tensor[:1] for name, tensor in whole.items() if tensor.dtype.is_floating_point and name in alone}
    return _difference(numbers, alone)


def _outputs(model: Callable[[Tensor], Any], inputs: Tensor, seed: int) -> dict[str, Tensor]:
    _seed(seed)
    return outputs_of(model(inputs.clone()), len(inputs))


def _difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    return max((_relative(tensor, second[name]) for name, tensor in first.items() if name in second), default=0.0)


def _changed_answers(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Share of the inputs whose answer, the largest entry of an output, differs; the largest of all outputs."""
    shares = [
        float((tensor.flatten(1).argmax(1) != second[name].flatten(1).argmax(1)).double().mean())
        for name, tensor in first.items()
        if name in second and tensor.ndim > 1 and tensor.shape == second[name].shape and tensor.dtype.is_floating_point
    ]
    return max(shares, default=0.0)


def _tensors_differ(first: list[Tensor], second: list[Tensor]) -> float:
    if len(first) != len(second):
        return np.inf
    return max((_relative(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def _relative(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return np.inf
    a, b = (tensor.detach().to("cpu", torch.float64).nan_to_num() for tensor in (a, b))
    size = float(a.norm())
    return float((a - b).norm()) / size if size else float((b != 0).any())


def _batch_limit(outputs: dict[str, Tensor]) -> float:
    types = [tensor.dtype for tensor in outputs.values() if tensor.dtype.is_floating_point]
    return max((_SAME_IN_BATCHES.get(dtype, _SAME_IN_COARSE_BATCHES) for dtype in types), default=_SAME)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  models may use NumPy's global generator
    random.seed(seed)


@contextmanager
def _kept_random_state() -> Iterator[None]:
    with torch.random.fork_rng():
        numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
