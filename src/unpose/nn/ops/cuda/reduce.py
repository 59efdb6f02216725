"""The second, fixed sum of GPU kernels whose programs each leave a row of sums: one launch, in an order that stays."""

# mypy: disable-error-code="assignment, misc"

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 512
"""Rows that are read at once: as many reads under way as hide how long one takes, since there are few columns."""

_COLUMNS = 8
"""Columns of a program, the 32 bytes that memory is read in."""


def over_rows(sums: Tensor) -> Tensor:
    """(rows, ...) in float32 -> (...), added up in an order that depends on the shape alone."""
    sums = sums.contiguous()
    total = torch.empty(sums.shape[1:], dtype=torch.float32, device=sums.device)
    with torch.cuda.device_of(sums):
        rows_kernel[(triton.cdiv(total.numel(), _COLUMNS),)](
            sums, total, len(sums), total.numel(), ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=8
        )
    return total


@triton.jit
def rows_kernel(sums, total, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program for a few columns."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    found = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at = row.to(tl.int64) * columns + column[None]
        found += tl.sum(tl.load(sums + at, mask=(row < rows) & (column < columns)[None], other=0.0), 0)
    tl.store(total + column, found, mask=column < columns)
