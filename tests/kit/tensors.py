"""Seeded random tensors, and how far one tensor is from another."""

import torch


def normal(*shape, seed=1, dtype=torch.float32):
    """Standard normal numbers, the same in every precision up to rounding."""
    exact = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=exact).to(dtype)


def uniform(*shape, seed=1, dtype=torch.float32):
    """Numbers from 0 to 1, the same in every precision up to rounding."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def relative_error(found, expected, where=1):
    """The norm of the difference relative to that of what is expected, both only ``where`` a mask says so."""
    return float((((found - expected) * where).norm() / (expected * where).norm()).detach())
