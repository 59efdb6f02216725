"""Best pose of every pair on a GPU: one product with the bank of all poses, its maximum taken in registers.

Every pose of a moving image is a row of half-precision coefficients; a program multiplies the rows, a block at a
time, with a block of fixed images on the tensor cores and keeps the best value and its row for each slot of the block.
Only at the end are the slots compared, so the score of a pose is never written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_FIXED, _POSES = 128, 64
_BANK_BYTES = 512 * 2**20


def best_poses(views: Tensor, fixed: Tensor, frequencies: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """views (n, V, C), fixed (m, C), frequencies (C,), angles (A,) -> score (n, m), grid point (n, m) int32."""
    n, n_views, size = views.shape
    m, n_angles = len(fixed), len(angles)
    n_poses = n_views * n_angles
    depth = triton.cdiv(2 * size, 16) * 16
    rows = triton.cdiv(n_poses, _POSES) * _POSES
    # Unit vectors fit half precision whatever the images' brightness; the lengths come back at the end.
    length = views.abs().square().sum(-1).sqrt().amax(-1).clamp(min=1e-30)  # (n,)
    fixed_length = fixed.abs().square().sum(-1).sqrt().clamp(min=1e-30)  # (m,)
    goal = _real(fixed / fixed_length[:, None], depth).half()  # (m, D)
    turns = torch.outer(angles, frequencies.to(angles))  # (A, C)
    phases = torch.polar(torch.ones_like(turns), -turns).to(views)
    score = torch.empty(n, m, device=views.device)
    pose = torch.empty(n, m, dtype=torch.int32, device=views.device)
    tile = max(1, _BANK_BYTES // (rows * depth * 2))
    for start in range(0, n, tile):
        some = views[start : start + tile] / length[start : start + tile, None, None]
        bank = torch.zeros(len(some), rows, depth, dtype=torch.half, device=views.device)
        bank[:, :n_poses] = _real((some[:, :, None] * phases).flatten(1, 2), depth).half()
        grid = (triton.cdiv(m, _FIXED), len(some))
        _kernel[grid](
            bank, goal, score[start:], pose[start:], m, n_poses, rows, depth,
            FIXED=_FIXED, POSES=_POSES, DEPTH=triton.next_power_of_2(depth), num_warps=8, num_stages=3,
        )  # fmt: skip
    return score * length[:, None] * fixed_length, pose


def _real(values: Tensor, depth: int) -> Tensor:
    """(..., C) complex -> (..., depth) real and imaginary parts, padded with zeros."""
    flat = torch.view_as_real(values).flatten(-2)
    return torch.nn.functional.pad(flat, (0, depth - flat.shape[-1]))


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    bank, goal, score, pose, m, n_poses, rows, depth,
    FIXED: tl.constexpr, POSES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * FIXED + tl.arange(0, FIXED)
    i = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, DEPTH)
    row = tl.arange(0, POSES)
    inside = k < depth
    goal_tile = tl.load(
        goal + column[:, None] * depth + k[None, :], (column < m)[:, None] & inside[None, :], 0.0
    )  # (FIXED, DEPTH)
    at = bank + i * rows * depth + row[None, :] * depth + k[:, None]  # (DEPTH, POSES)
    best = tl.full((FIXED, POSES), float("-inf"), tl.float32)
    where = tl.zeros((FIXED, POSES), tl.int32)
    for block in range(rows // POSES):
        poses = tl.load(at, inside[:, None], 0.0)
        value = tl.dot(goal_tile, poses)
        better = value > best
        best = tl.where(better, value, best)
        where = tl.where(better, block, where)
        at += POSES * depth
    # Rows past the last pose are zeros: never let them win.
    number = where * POSES + row[None, :]
    best = tl.where(number < n_poses, best, float("-inf"))
    top = tl.max(best, axis=1)
    first = tl.min(tl.where(best == top[:, None], number, n_poses), axis=1)  # ties: the smallest grid point
    tl.store(score + i * m + column, top, column < m)
    tl.store(pose + i * m + column, first, column < m)
