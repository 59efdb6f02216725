"""Constant tables of a layer, such as the elements of its group: computed from its arguments, never saved."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn


class ConstantTables(nn.Module):
    """Base class of layers with constant tables, which are computed again whenever the weights move or are loaded.

    The tables are buffers on the device of the weights, and floating tables have their type. They are not saved with
    the weights. They are computed again, not converted, so they are right after ``to_empty``, which leaves memory
    undefined, after ``load_state_dict`` into a network on the meta device, and after a cast to half precision and back.

    A subclass defines :meth:`constant_tables` and calls :meth:`compute_tables` at the end of its constructor.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_load_state_dict_post_hook(_compute_after_loading)

    def constant_tables(self) -> dict[str, Tensor]:
        """Return the tables by name, with floating tables in float64; called with the CPU as default device."""
        raise NotImplementedError

    def compute_tables(self) -> None:
        """Compute all tables and register them as buffers, on the device and in the type of the weights."""
        weight = next(self.parameters())
        # The tables outlive the context of this call, which may be the meta device or inference mode.
        with torch.inference_mode(False), torch.device("cpu"):
            for name, table in self.constant_tables().items():
                dtype = weight.dtype if table.is_floating_point() else table.dtype
                self.register_buffer(name, table.to(weight.device, dtype), persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.compute_tables()
        return self


def _compute_after_loading(module: ConstantTables, _: Any) -> None:
    module.compute_tables()
