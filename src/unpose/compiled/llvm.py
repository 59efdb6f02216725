"""Makes hand-written LLVM vector code callable from numba kernels, for loops that LLVM vectorises badly by itself."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from numba import types
from numba.extending import intrinsic


def llvm_intrinsic(make_builder: Callable[[Any, Any, Any], Any]) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that turns a function which emits LLVM instructions into a numba intrinsic.

    Numba calls the decorated ``emit(builder, *arguments)`` once while it compiles a kernel that uses the intrinsic; the
    instructions that ``emit`` appends become part of the kernel. Integers and floats reach ``emit`` as LLVM values,
    arrays as pointers to their first element. The intrinsic returns nothing.

    Parameters
    ----------
    make_builder : callable
        ``make_builder(context, ir_builder, numba_types)`` returns the first argument of ``emit``: the llvmlite IR
        builder itself, or an object around it. ``numba_types`` are the types of the arguments.

    Returns
    -------
    callable
        A decorator for functions ``emit(builder, *arguments)``.

    Examples
    --------
    >>> import numba
    >>> import numpy as np
    >>> from unpose.compiled import llvm_intrinsic
    >>> @llvm_intrinsic(lambda context, builder, numba_types: builder)
    ... def store_first(builder, array, value):
    ...     builder.store(value, array)
    >>> @numba.njit
    ... def overwrite(array):
    ...     store_first(array, 7.0)
    >>> array = np.zeros(2)
    >>> overwrite(array)
    >>> array
    array([7., 0.])
    """

    def pointer_or_value(context: Any, builder: Any, kind: Any, argument: Any) -> Any:
        if isinstance(kind, types.Array):
            return context.make_array(kind)(context, builder, argument).data
        return argument

    def decorate(emit: Callable[..., None]) -> Any:
        # Numba reads the number of arguments from the signature, and passes its typing context as the first.
        @wraps(emit)
        def define(typing: Any, *kinds: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                pairs = zip(kinds, arguments, strict=True)
                values = [pointer_or_value(context, builder, kind, argument) for kind, argument in pairs]
                emit(make_builder(context, builder, kinds), *values)
                return context.get_dummy_value()

            return types.void(*kinds), codegen

        return intrinsic(define)

    return decorate
