"""Record the inputs and outputs of every module during one call of a network."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
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

    @property
    def inputs(self) -> list[Tensor]:
        """All tensors among the arguments, in order: masks and indices too."""
        return tensors_in((self.args, self.kwargs))

    @property
    def outputs(self) -> list[Tensor]:
        """All tensors in the output, in order."""
        return tensors_in(self.output)

    def call_with(self, tensors: list[Tensor]) -> list[Tensor]:
        """Call the module again with these tensors in place of its :attr:`input_tensors`; its float outputs."""
        new = iter(tensors)
        # The module may modify its inputs in place.
        args, kwargs = map_floats((self.args, self.kwargs), lambda _: next(new).clone())
        return floats(self.module(*args, **kwargs))

    def call_again(self, tensors: list[Tensor]) -> list[Tensor]:
        """Call the module again with these tensors in place of all its :attr:`inputs`; all its outputs."""
        new = iter(tensors)
        args, kwargs = map_tensors((self.args, self.kwargs), lambda _: next(new).clone())
        return tensors_in(self.module(*args, **kwargs))

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
        call = Call(names[module], module, *map_tensors((args, kwargs), Tensor.clone))
        (stack[-1].calls if stack else roots).append(call)
        stack.append(call)

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        stack.pop().output = map_tensors(output, Tensor.clone)
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
    """Collect the floating-point tensors in nested tuples, lists, dictionaries and dataclasses."""
    return [tensor for tensor in tensors_in(value) if tensor.dtype.is_floating_point]


def map_floats(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the floating-point tensors in nested tuples, lists, dictionaries and dataclasses."""
    return map_tensors(value, lambda tensor: function(tensor) if tensor.dtype.is_floating_point else tensor)


def tensors_in(value: object) -> list[Tensor]:
    """Collect the tensors in nested tuples, lists, dictionaries and dataclasses."""
    found: list[Tensor] = []
    map_tensors(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the tensors in nested tuples, lists, dictionaries and dataclasses."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(item, function) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: map_tensors(getattr(value, field.name), function) for field in fields(value) if field.init}
        return replace(value, **parts)
    return value
