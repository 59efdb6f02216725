"""What ``torch.autocast`` means for tensors whose products are computed here."""

import torch
from torch import Tensor

_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def is_autocast(tensor: Tensor) -> bool:
    """Whether autocast is on for this tensor: for its device, and its type is one that is cast."""
    is_cast = tensor.dtype in _TYPES and not tensor.is_meta  # of tensors without memory autocast may not be asked
    return is_cast and torch.is_autocast_enabled(tensor.device.type)


def product_type(tensor: Tensor) -> torch.dtype:
    """The type in which a matrix product takes this tensor: its own, or what autocast gives it."""
    return torch.get_autocast_dtype(tensor.device.type) if is_autocast(tensor) else tensor.dtype


def full_precision(maps: Tensor) -> Tensor:
    """Maps in float32 under autocast, as they are without: what adds up over many blocks keeps its digits."""
    return maps.float() if is_autocast(maps) else maps
