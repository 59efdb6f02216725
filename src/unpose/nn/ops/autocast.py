"""Which types ``torch.autocast`` gives to tensors whose products the operators here compute."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_CAST_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def is_autocast(tensor: Tensor) -> bool:
    """Return whether autocast applies to this tensor: it is enabled for the device, and casts this type."""
    is_cast = tensor.dtype in _CAST_DTYPES and not tensor.is_meta  # autocast cannot be queried for the meta device
    return is_cast and torch.is_autocast_enabled(tensor.device.type)


def product_type(tensor: Tensor) -> torch.dtype:
    """Return the type in which a matrix product takes this tensor: its own, or the one autocast gives it."""
    return torch.get_autocast_dtype(tensor.device.type) if is_autocast(tensor) else tensor.dtype


def full_precision(maps: Tensor) -> Tensor:
    """Return maps in float32 under autocast, unchanged without it: sums over many blocks keep their digits."""
    return maps.float() if is_autocast(maps) else maps


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast for the device of this tensor: poses and positions need all their digits."""
    return torch.autocast(tensor.device.type, enabled=False) if is_autocast(tensor) else nullcontext()
