"""What every CPU kernel needs: numba decorators, threads, and the test for tracing.

=================================== ===============================================================================
``CACHE``                           whether numba can keep compiled kernels on disk, for kernels with other options
``NO_WRAPPERS``                     numba options for functions that only kernels call, for such with other options
``compiled``                        numba decorator for a kernel: releases the GIL, cached on disk, FMA allowed
``inner``                           the same for a function that only kernels call, which Python cannot
``inlined``                         numba decorator for a small function that is inlined into kernels
``llvm_intrinsic``                  makes hand-written LLVM vector code callable from a kernel
``in_threads``                      run a kernel on slices of a range, one slice per thread
``torch_threads``                   bound the threads of torch and of ``in_threads`` for a while
``worker_pool``                     a thread pool whose workers each run torch on one core
``is_transformed``                  whether a ``torch.func`` transform is active
``is_traced_or_transformed``        the same, or whether torch.compile or torch.export traces
=================================== ===============================================================================

Open ``decorators.py`` to change how kernels are compiled, ``threads.py`` for threads, ``tracing.py`` for the test for
tracing, ``llvm.py`` for vector code. This room imports no other room.
"""

from typing import TYPE_CHECKING, Any

from unpose.compiled.threads import in_threads, torch_threads, worker_pool
from unpose.compiled.tracing import is_traced_or_transformed, is_transformed

if TYPE_CHECKING:
    from unpose.compiled.decorators import CACHE, NO_WRAPPERS, compiled, inlined, inner
    from unpose.compiled.llvm import llvm_intrinsic

__all__ = [
    "CACHE",
    "NO_WRAPPERS",
    "compiled",
    "in_threads",
    "inlined",
    "inner",
    "is_traced_or_transformed",
    "is_transformed",
    "llvm_intrinsic",
    "torch_threads",
    "worker_pool",
]


def __getattr__(name: str) -> Any:
    # numba is slow to import, and threads and tracing do not need it.
    if name in ("CACHE", "NO_WRAPPERS", "compiled", "inlined", "inner"):
        from unpose.compiled import decorators

        return getattr(decorators, name)
    if name == "llvm_intrinsic":
        from unpose.compiled.llvm import llvm_intrinsic

        return llvm_intrinsic
    raise AttributeError(f"module 'unpose.compiled' has no attribute {name!r}; it has {', '.join(__all__)}")
