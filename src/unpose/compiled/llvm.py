"""Code written for a vector unit, callable from compiled loops, for those that a compiler does not see through."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from numba import types
from numba.extending import intrinsic


def vector_code(begin: Callable[[Any, Any, Any], Any]) -> Callable[[Callable[..., None]], Any]:
    """Make ``emit(begun, ...)`` callable from compiled code; arrays reach it as addresses.

    ``begin(context, builder, kinds)`` makes what every emit takes first, from numba's types of the arguments.
    """

    def address(context: Any, builder: Any, kind: Any, arg: Any) -> Any:
        return context.make_array(kind)(context, builder, arg).data if isinstance(kind, types.Array) else arg

    def decorate(emit: Callable[..., None]) -> Any:
        @wraps(emit)  # numba counts the arguments by the signature, where its own context stands for the first
        def define(typing: Any, *kinds: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                places = (address(context, builder, kind, arg) for kind, arg in zip(kinds, args, strict=True))
                emit(begin(context, builder, kinds), *places)
                return context.get_dummy_value()

            return types.void(*kinds), codegen

        return intrinsic(define)

    return decorate
