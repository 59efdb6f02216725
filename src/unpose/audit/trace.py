"""Record the inputs and outputs of every module during one call of a network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass
class Call:
    """One call of a module: its arguments, its output, and the calls of submodules it made."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None
    calls: list["Call"] = field(default_factory=list)

    @property
    def input_tensors(self) -> list[Tensor]:
        """The floating-point tensors among the arguments, in order."""
        return floats((self.args, self.kwargs))

    @property
    def output_tensors(self) -> list[Tensor]:
        """The floating-point tensors in the output, in order."""
        return floats(self.output)

    def call_with(self, tensors: list[Tensor]) -> list[Tensor]:
        """Call the module again with these tensors in place of the recorded input tensors."""
        new = iter(tensors)
        # The module may modify its inputs in place.
        args, kwargs = map_floats((self.args, self.kwargs), lambda _: next(new).clone())
        return floats(self.module(*args, **kwargs))

    def walk(self) -> list["Call"]:
        """This call and all calls below it, in the order in which they started."""
        return [self, *(below for call in self.calls for below in call.walk())]


def trace(network: nn.Module, inputs: Tensor) -> Call:
    """Call a network and record all calls of its modules as a tree.

    Tensors are copied when they are recorded, so that later in-place changes do not affect them.
    """
    stack: list[Call] = []
    roots: list[Call] = []
    names = {module: name for name, module in network.named_modules()}

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = Call(names[module], module, *map_floats((args, kwargs), Tensor.clone))
        (stack[-1].calls if stack else roots).append(call)
        stack.append(call)

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        stack.pop().output = map_floats(output, Tensor.clone)
        if output is None and stack:  # the module raised an error or has no output to compare
            del stack[-1].calls[-1]

    handles = []
    for module in names:
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        # Runs after an error too, because an enclosing module may catch the error.
        handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
    try:
        network(inputs.clone())
    finally:
        for handle in handles:
            handle.remove()
    return roots[0]


def floats(value: object) -> list[Tensor]:
    """Collect the floating-point tensors in nested tuples, lists and dictionaries."""
    found: list[Tensor] = []
    map_floats(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def map_floats(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the floating-point tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return function(value) if value.dtype.is_floating_point else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_floats(item, function) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(map_floats(item, function) for item in value)
    if isinstance(value, dict):
        return {key: map_floats(item, function) for key, item in value.items()}
    return value
