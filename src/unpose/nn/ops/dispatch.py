"""Chooses, for every operator of the layers, between plain PyTorch operations and compiled kernels.

One table, ``KERNELS``, maps an operator and a device type to the module with the kernels. One predicate,
:func:`unsupported`, says whether these kernels can run on given tensors, and if not, why not. One function,
:func:`use_kernels`, adds what the user asked for with :func:`implementation`; every operator calls it.

To add a backend, write one file, such as ``ops/mps/norm.py``, with the same functions as the operator's other files
(``ops/cuda/norm.py``: ``forward`` and ``backward``), and add one line to ``KERNELS``. Nothing else changes: the
operators fetch the module with :func:`kernels`.

A second table, ``OPERATORS``, lists the functions that layers call, each with small arguments as an example. Tests go
through it: whatever is registered with :func:`operator` is compared with its plain form.

``torch.compile`` and ``torch.export`` trace through the questions asked here, but not into the operators. The table
therefore holds plain data, and which packages are installed is found out once, on import: a compiler cannot trace
``find_spec``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from threading import local
from typing import Any, TypeVar

import torch
from torch import Tensor

from unpose.compiled import is_transformed
from unpose.nn.ops.autocast import product_type

HALF = (torch.bfloat16, torch.float16)
SINGLE_AND_HALF = (torch.float32, *HALF)


@dataclass(frozen=True)
class Kernels:
    """One line of the table of kernels: which module to import, and what its kernels support.

    ``dtypes`` are the types of the first tensor, as ``torch.autocast`` casts it. The other tensors must have the same
    type, unless ``converts`` says that the kernels convert them from single or half precision. ``limits`` are the
    largest sizes, by the names under which the operator passes them to :func:`use_kernels`.
    """

    module: str
    package: str
    dtypes: tuple[torch.dtype, ...]
    converts: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)


_CUDA, _CPU = "unpose.nn.ops.cuda.", "unpose.nn.ops.cpu."
_CPU_DTYPES = (torch.float32, torch.float64, *HALF)

# fmt: off
KERNELS = {
    ("group_attention", "cpu"): Kernels(_CPU + "attention", "numba", _CPU_DTYPES),
    ("group_attention", "cuda"): Kernels(_CUDA + "attention", "triton", SINGLE_AND_HALF),
    # With a position table in two parts. On CUDA what belongs to a pixel must then fit in registers.
    ("split_table_attention", "cpu"): Kernels(_CPU + "attention", "numba", _CPU_DTYPES),
    ("split_table_attention", "cuda"): Kernels(_CUDA + "attention", "triton", SINGLE_AND_HALF, limits={"channels": 16}),
    ("channel_norm", "cuda"): Kernels(_CUDA + "norm", "triton", SINGLE_AND_HALF, converts=True),
    ("pointwise", "cuda"): Kernels(_CUDA + "pointwise", "triton", HALF, converts=True),
    ("irrep_linear", "cuda"): Kernels(_CUDA + "irrep_linear", "triton", HALF, converts=True),
    ("frames", "cuda"): Kernels(_CUDA + "frames", "triton", SINGLE_AND_HALF, converts=True),
    # A program holds the channels of each part of the table, and for every relative element a vector of them.
    ("separable_table", "cuda"): Kernels(
        _CUDA + "encoding", "triton", SINGLE_AND_HALF, converts=True, limits={"channels": 32, "vector_entries": 1024}
    ),
}
# fmt: on
"""(operator, device type) -> kernels."""

_INSTALLED = {entry.package: find_spec(entry.package) is not None for entry in KERNELS.values()}

_ON_DEMAND = ("group_attention",)
"""Operators for which ``implementation("fused")`` raises an error where their kernels cannot run."""


class _Requested(local):
    """The implementation requested in this thread. ``torch.compile`` cannot read a context variable instead."""

    name = "auto"


_REQUESTED = _Requested()


@contextmanager
def implementation(name: str) -> Iterator[None]:
    """Choose how layers and networks are computed inside a ``with`` block, in this thread.

    Other threads are not affected, also those that are started inside the block, such as the workers of
    ``torch.nn.DataParallel`` or of a thread pool: they begin with ``"auto"`` and enter a block of their own.

    Parameters
    ----------
    name : {"auto", "plain", "fused"}
        ``"plain"`` uses PyTorch operations: the reference, for any device, with derivatives of any order. ``"fused"``
        demands, for group attention, compiled kernels that write no scores to memory, on the CPU and, except for
        float64, on CUDA; they have first derivatives only, and an error says why where they cannot run. ``"auto"``,
        the default, uses the kernels where they can run, and plain operations in float64, which is for checking.
        Norms, pointwise layers and the tables of separable encodings have kernels on CUDA, which are used where they
        can run unless the name is ``"plain"``.

    Examples
    --------
    >>> import torch
    >>> from unpose.nn import group_attention
    >>> maps, table = torch.randn(1, 2, 4, 5, 7, 6), torch.randn(1, 4, 4, 3, 3, 6)
    >>> with implementation("plain"):
    ...     reference = group_attention(maps, maps, maps, table)
    >>> torch.allclose(group_attention(maps, maps, maps, table), reference, atol=1e-5)
    True
    """
    if name not in ("auto", "plain", "fused"):
        raise ValueError(f"the implementation must be 'auto', 'plain' or 'fused', got {name!r}")
    before, _REQUESTED.name = _REQUESTED.name, name
    try:
        yield
    finally:
        _REQUESTED.name = before


def requested() -> str:
    """Return the implementation requested in this thread: ``"auto"``, ``"plain"`` or ``"fused"``."""
    return _REQUESTED.name


def use_kernels(operator: str, tensor: Tensor, *others: Tensor | None, **sizes: int) -> bool:
    """Return whether an operator runs in compiled kernels, by the tensors it gets and by what the user requested.

    Under ``implementation("fused")`` group attention raises a ``ValueError`` where the kernels cannot run.
    """
    if requested() == "plain":
        return False
    reason = unsupported(operator, tensor, *others, **sizes)
    if requested() == "auto":
        return reason is None and tensor.dtype != torch.float64
    if reason is not None and operator in _ON_DEMAND:
        name = operator.replace("_", " ")
        raise ValueError(f"fused {name} cannot run here: {reason}; use implementation('auto') or 'plain'")
    return reason is None


def unsupported(operator: str, tensor: Tensor, *others: Tensor | None, **sizes: int) -> str | None:
    """Say why the kernels of an operator cannot take these tensors, as a clause; None where they can.

    The first tensor decides on the device. ``sizes`` are what the line of the operator in ``KERNELS`` limits.
    """
    device, dtype = tensor.device, product_type(tensor)
    entry = KERNELS.get((operator, device.type))
    if entry is None:
        return f"there are no compiled kernels for {device.type}"
    if not _INSTALLED[entry.package]:
        return f"on {device.type} they need {entry.package}, which is not installed"
    given = [tensor, *(other for other in others if other is not None)]
    allowed = SINGLE_AND_HALF if entry.converts else (dtype,)
    if dtype not in entry.dtypes or any(product_type(other) not in allowed for other in given[1:]):
        found = ", ".join(sorted({str(product_type(each)) for each in given}))
        return f"all tensors must have one type among {', '.join(map(str, entry.dtypes))}, not {found}"
    if any(other.device != device for other in given):
        return "all tensors must be on one device"
    for name, limit in entry.limits.items():
        if sizes[name] > limit:
            return f"they support at most {limit} {name.replace('_', ' ')}, not {sizes[name]}"
    if any(each.numel() == 0 for each in given):
        return "a tensor is empty"
    if torch.onnx.is_in_onnx_export():
        return "ONNX has no such operator"
    if is_transformed():
        return "transforms of torch.func do not know their derivatives"
    return None


def kernels(operator: str, tensor: Tensor) -> Any:
    """Return the module with the kernels of an operator for the device of a tensor.

    It is imported on first use: numba and Triton take time to import, and few machines need both.
    """
    return import_module(KERNELS[operator, tensor.device.type].module)


def first_derivatives_only(backward: Any, name: str) -> None:
    """Register with a backward operator that its own derivatives raise an error which says what to do instead."""

    def raise_error(ctx: Any, *gradients: Tensor) -> None:
        raise RuntimeError(
            f"{name} has no second derivatives; compute it under unpose.nn.implementation('plain'), which has them"
        )

    backward.register_autograd(raise_error, setup_context=lambda ctx, inputs, output: None)


@dataclass(frozen=True)
class Operator:
    """A function that runs in kernels where they can run, and in PyTorch operations elsewhere.

    ``example`` returns small arguments, whose tensors are float32 and on the CPU; those that :func:`drawn` made have
    gradients.
    """

    run: Callable[..., Any]
    example: Callable[[], tuple[Any, ...]]

    def plain(self, *arguments: Any, **options: Any) -> Any:
        """Compute the same in PyTorch operations."""
        with implementation("plain"):
            return self.run(*arguments, **options)


OPERATORS: dict[str, Operator] = {}
"""Name of a function -> the function and an example."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def operator(example: Callable[[], tuple[Any, ...]]) -> Callable[[_Function], _Function]:
    """List a function in ``OPERATORS``; the function stays as it is."""

    def register(run: _Function) -> _Function:
        OPERATORS[run.__name__] = Operator(run, example)
        return run

    return register


def drawn(*shape: int) -> Tensor:
    """Draw a tensor with gradients, for an example."""
    return torch.randn(shape, requires_grad=True)
