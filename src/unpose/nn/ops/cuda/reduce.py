"""Sums over the partial sums of programs, in an order that depends on the shape alone: no atomic addition.

One program sums a few columns over all rows; each row is what one program of another kernel left.
"""

# mypy: disable-error-code="assignment, misc"

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_ROWS = 512
"""Rows that are loaded at once: there are few columns, so many loads must be in flight to hide their latency."""

_BLOCK_COLUMNS = 8
"""Columns of a program: 32 bytes, one sector of memory."""


def sum_rows(partial: Tensor) -> Tensor:
    """Sum (rows, ...) in float32 over the first axis, in an order that depends on the shape alone."""
    partial = partial.contiguous()
    total = torch.empty(partial.shape[1:], dtype=torch.float32, device=partial.device)
    with torch.cuda.device_of(partial):
        sum_rows_kernel[(triton.cdiv(total.numel(), _BLOCK_COLUMNS),)](
            partial, total, len(partial), total.numel(), BLOCK_ROWS=_BLOCK_ROWS, BLOCK_COLUMNS=_BLOCK_COLUMNS,
            num_warps=8,
        )  # fmt: skip
    return total


@triton.jit
def sum_rows_kernel(  # type: ignore[no-untyped-def]
    partial, total, n_rows, n_columns, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):
    """Sum BLOCK_COLUMNS columns over all rows."""
    column = tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    accumulator = tl.zeros((BLOCK_COLUMNS,), tl.float32)
    for first in range(0, n_rows, BLOCK_ROWS):
        row = first + tl.arange(0, BLOCK_ROWS)[:, None]
        offset = row.to(tl.int64) * n_columns + column[None]
        exists = (row < n_rows) & (column < n_columns)[None]
        accumulator += tl.sum(tl.load(partial + offset, mask=exists, other=0.0), 0)
    tl.store(total + column, accumulator, mask=column < n_columns)
