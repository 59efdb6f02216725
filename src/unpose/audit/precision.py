"""How exactly a model computes: its working precision, a copy in double precision, and how much rounding changes it.

An error of equivariance is a mistake only if it is larger than rounding. How large rounding is depends on the type in
which the model computes and on how much it amplifies small changes. Both are measured here.
"""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unpose.audit.outputs import outputs_of

__all__ = ["measure_precision", "model_type"]

_MARGIN = {torch.float64: 64.0, torch.float32: 64.0}
_COARSE_MARGIN = 6.0
"""Rounding errors of all operations together, in units of the error that rounding the input once causes. In coarse
types the error is too large for a generous margin, and as an average over many numbers it varies little."""

_STORED = 16.0
"""Weights are stored in some type, and those that should be equal differ by rounding; also in a copy in float64. The
error that this causes is at most this many times that of rounding the input once to float32. Coarser types do not
count: their weights are rounded after they were made."""

_LARGEST_TOLERANCE = 0.1
"""A random function changes with every call; its tolerance must not hide that."""

_NUDGE = 1e-6
"""Relative size of the change of the input by which amplification is measured in double precision."""


_PRODUCTS = ("conv", "mm", "attention")
"""Parts of the names of torch operations that multiply matrices or convolve."""


class _CountTypes(TorchDispatchMode):
    """Counts the numbers that torch operations compute in every floating-point type, and those that are products."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Audits are not compiled; otherwise the first call would import the compiler, which takes seconds."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.numbers: Counter[torch.dtype] = Counter()
        self.products: Counter[torch.dtype] = Counter()

    @property
    def working(self) -> torch.dtype | None:
        """The type of most products of matrices, or of most numbers if there are none; None if torch does nothing.

        A sum in half precision between convolutions in float32 is a mistake, however many numbers it has.
        """
        most = (self.products or self.numbers).most_common(1)
        return most[0][0] if most else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_product = any(part in func.__name__ for part in _PRODUCTS)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.dtype.is_floating_point:
                self.numbers[tensor.dtype] += tensor.numel()
                if is_product:
                    self.products[tensor.dtype] += tensor.numel()
        return result


def computed_types(f: Callable[[Any], Any], inputs: Any) -> tuple[torch.dtype | None, list[torch.dtype]]:
    """Call f; returns the type in which torch mostly computes, None if it computes nothing, and all types it uses."""
    with _CountTypes() as counter:
        f(inputs)
    return counter.working, list(counter.numbers)


def coarsest(types: list[torch.dtype]) -> torch.dtype:
    """The type with the largest rounding error."""
    return max(types, key=lambda dtype: torch.finfo(dtype).eps)


def model_type(f: object, inputs: Tensor) -> torch.dtype:
    """The floating-point type of most parameters of a module; that of the inputs for anything else."""
    numbers: Counter[torch.dtype] = Counter()
    for parameter in f.parameters() if isinstance(f, nn.Module) else ():
        if parameter.dtype.is_floating_point:
            numbers[parameter.dtype] += parameter.numel()
    return numbers.most_common(1)[0][0] if numbers else inputs.dtype


def model_device(f: object, inputs: Tensor) -> torch.device:
    """The device of a module's first parameter; that of the inputs for anything else."""
    parameter = next(f.parameters(), None) if isinstance(f, nn.Module) else None
    return inputs.device if parameter is None else parameter.device


@dataclass(frozen=True)
class Precision:
    """How exactly a function computes."""

    working: torch.dtype  # in which it computes: the coarsest of that of most of its products and that of its output
    hidden: tuple[torch.dtype, ...]  # coarser types that it uses somewhere inside
    noise: dict[str, float]  # for every output, the relative change that rounding the input to the working type causes
    outputs: dict[str, Tensor]  # for the inputs

    def tolerance(self, name: str, allowed: torch.dtype | None = None) -> float:
        """The largest relative error of an output that counts as rounding.

        Types that are used somewhere inside count if they are not coarser than the allowed one, such as the working
        type of the model that this is a copy of in double precision.
        """
        inside = [dtype for dtype in self.hidden if allowed and torch.finfo(dtype).eps <= torch.finfo(allowed).eps]
        dtype = coarsest([self.working, *inside])
        noise = self.noise[name] * torch.finfo(dtype).eps / torch.finfo(self.working).eps
        stored = _STORED * self.noise[name] * torch.finfo(torch.float32).eps / torch.finfo(self.working).eps
        stored = stored if self.working == torch.float64 and allowed not in (None, torch.float64) else 0.0
        return min(max(_MARGIN.get(dtype, _COARSE_MARGIN) * noise, stored), _LARGEST_TOLERANCE)


def measure_precision(f: Callable[[Tensor], Any], inputs: Tensor, *, may_be_double: bool = True) -> Precision:
    """Measure the working precision of a function and the noise of each output: two calls, four in a coarse type.

    ``may_be_double`` says whether float64 inputs and outputs prove that it computes in float64; that of a function
    outside of torch does not.
    """
    with _CountTypes() as counter:
        answer = f(inputs.clone())
    base = outputs_of(answer, len(inputs))
    numbers, seen = counter.numbers, counter.working or torch.float32
    given = [tensor.dtype for tensor in base.values() if tensor.dtype.is_floating_point]
    working = coarsest([seen, *given]) if may_be_double or numbers else coarsest([torch.float32, *given])
    eps = torch.finfo(working).eps
    hidden = tuple(dtype for dtype in numbers if torch.finfo(dtype).eps > 2 * eps)
    step = max(eps / 2, _NUDGE if working == torch.float64 else 0.0)
    coarse = working not in _MARGIN
    # In a coarse type a nudge changes few numbers by a whole step: the largest of several responses is taken, and the
    # error of one rounding is an average over many numbers.
    gains = [_gains(f, inputs, base, step, seed) for seed in range(3 if coarse else 1)]
    smallest = 0.25 if coarse else 1.0
    noise = {name: eps / 2 * max(smallest, *(gain[name] for gain in gains)) for name in base}
    return Precision(working, hidden, noise, base)


def _gains(
    f: Callable[[Tensor], Any], inputs: Tensor, base: dict[str, Tensor], step: float, seed: int
) -> dict[str, float]:
    """How much larger the relative change of every output is than a random relative change of the inputs."""
    wide = inputs.double()
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(inputs.shape, generator=generator, dtype=torch.float64).to(wide.device)
    moved = (wide + step * wide.square().mean().sqrt() * direction).to(inputs.dtype)
    nudge = float((moved.double() - wide).norm() / wide.norm().clamp(min=1e-300))
    outputs = outputs_of(f(moved), len(inputs))
    gains = {}
    for name, tensor in base.items():
        change, size = (outputs[name].double() - tensor.double()).norm(), tensor.double().norm()
        gain = float(change / size) / nudge if size > 0 and nudge > 0 else 1.0
        gains[name] = gain if tensor.dtype.is_floating_point and gain == gain else 1.0
    return gains


def in_double(f: object, inputs: Tensor) -> Callable[[Tensor], Any] | None:
    """A function that computes the same in float64: a copy of a module, or a function that takes such inputs itself.

    None if there is none: the module cannot be copied or has steps of one type, or the answer is another one.
    """
    if isinstance(f, nn.Module):
        try:
            wide = copy.deepcopy(f).double()
        except Exception:  # modules may hold what cannot be copied, such as locks and sessions
            return None
    elif callable(f):
        wide = f  # type: ignore[assignment]
    else:
        return None
    try:
        n = len(inputs)
        base, answer = outputs_of(f(inputs.clone()), n), outputs_of(wide(inputs.double()), n)
    except Exception:  # types that do not fit raise many kinds of errors
        return None
    if base.keys() != answer.keys():
        return None
    for name, tensor in base.items():
        if not tensor.dtype.is_floating_point:
            continue
        if answer[name].shape != tensor.shape:
            return None
        allowed = 0.1 if torch.finfo(tensor.dtype).eps > 1e-6 else 1e-2
        if float((answer[name] - tensor.double()).norm()) > allowed * float(tensor.double().norm()):
            return None
    return wide
