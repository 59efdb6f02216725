"""What each module of a network is given and gives back during one call of the network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass
class Call:
    """One call of a module: what went in, what came out, and the calls it made in turn."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None
    calls: list["Call"] = field(default_factory=list)

    @property
    def given(self) -> list[Tensor]:
        """The floating tensors among the arguments, in order."""
        return floats((self.args, self.kwargs))

    @property
    def gave(self) -> list[Tensor]:
        """The floating tensors of the output, in order."""
        return floats(self.output)

    def again(self, given: list[Tensor]) -> list[Tensor]:
        """Call the module with these tensors in place of those it was given."""
        new = iter(given)
        # a copy, because a module may work in place
        args, kwargs = map_floats((self.args, self.kwargs), lambda _: next(new).clone())
        return floats(self.module(*args, **kwargs))

    def walk(self) -> list["Call"]:
        """This call and all below it, in the order in which they began."""
        return [self, *(below for call in self.calls for below in call.walk())]


def trace(network: nn.Module, inputs: Tensor) -> Call:
    """Call a network and record every call of a module on the way, as a tree.

    Tensors are copied as they pass: what a later module changes in place is not seen.
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
        if output is None and stack:  # it failed, or has nothing to judge
            del stack[-1].calls[-1]

    handles = []
    for module in names:
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        # also after an error, which a module above may catch
        handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
    try:
        network(inputs.clone())
    finally:
        for handle in handles:
            handle.remove()
    return roots[0]


def floats(value: object) -> list[Tensor]:
    """The floating tensors in nested tuples, lists and dictionaries."""
    found: list[Tensor] = []
    map_floats(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def map_floats(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the floating tensors in nested tuples, lists and dictionaries; the rest stays."""
    if isinstance(value, Tensor):
        return function(value) if value.dtype.is_floating_point else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_floats(item, function) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(map_floats(item, function) for item in value)
    if isinstance(value, dict):
        return {key: map_floats(item, function) for key, item in value.items()}
    return value
