"""Makes hand-written LLVM vector code callable from numba kernels, for loops that LLVM vectorises badly by itself."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def llvm_intrinsic(
    make_builder: Callable[[Any, Any, Any], Any], *, inline: bool = True
) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that turns a function which emits LLVM instructions into a numba intrinsic.

    Numba calls the decorated ``emit(builder, *arguments)`` once while it compiles a kernel that uses the intrinsic; the
    instructions that ``emit`` appends become part of the kernel. Integers and floats reach ``emit`` as LLVM values,
    arrays as pointers to their first element. The intrinsic returns nothing.

    Parameters
    ----------
    make_builder : callable
        ``make_builder(context, ir_builder, numba_types)`` returns the first argument of ``emit``: the llvmlite IR
        builder itself, or an object around it. ``numba_types`` are the types of the arguments.
    inline : bool, default True
        Whether every call has a copy of the instructions. Otherwise they become a function that all calls in a kernel
        share, of which there is less to compile.

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
                if inline:
                    emit(make_builder(context, builder, kinds), *values)
                else:
                    builder.call(shared_function(context, builder.module, [value.type for value in values]), values)
                return context.get_dummy_value()

            def shared_function(context: Any, module: Any, value_types: list[Any]) -> Any:
                name = f"{emit.__module__}.{emit.__name__}({', '.join(map(str, value_types))})"
                function = cgutils.get_or_insert_function(module, ir.FunctionType(ir.VoidType(), value_types), name)
                if not function.blocks:
                    function.linkage = "internal"
                    function.attributes.add("noinline")
                    builder = ir.IRBuilder(function.append_basic_block())
                    emit(make_builder(context, builder, kinds), *function.args)
                    builder.ret_void()
                return function

            return types.void(*kinds), codegen

        return intrinsic(define)

    return decorate
