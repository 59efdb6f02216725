"""Best pose of every pair of images on a GPU: one matrix product with all poses, whose maximum is taken in registers.

Every pose of a moving image, a view turned by an angle, is one row of real half-precision coefficients. The rows of
some moving images form a bank ``(images, rows, depth)``. One Triton program takes one moving image and _FIXED fixed
images, goes through the rows in blocks of _POSES, multiplies each block with the fixed images on the tensor cores, and
keeps for each of the _FIXED x _POSES products the largest value and its block. At the end the _POSES columns are
compared. Scores of single poses are never written to memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_FIXED, _POSES = 128, 64  # fixed images of a program, poses of a block


def best_poses(
    views: Tensor, fixed: Tensor, frequencies: Tensor, angles: Tensor, *, bank_bytes: int = 2**29
) -> tuple[Tensor, Tensor]:
    """views (n, V, C), fixed (m, C), frequencies (C,), angles (A,) -> score (n, m), grid point (n, m) int32.

    See :func:`unpose.align.kernels.search_cpu.best_poses` for the score. A grid point is ``view * A + angle``.
    A bank, the rows of some moving images, has at most ``bank_bytes`` unless one image needs more.
    """
    n, n_views, size = views.shape
    m, n_angles = len(fixed), len(angles)
    n_poses = n_views * n_angles
    depth = triton.cdiv(2 * size, 16) * 16
    rows = triton.cdiv(n_poses, _POSES) * _POSES
    # Unit vectors fit half precision whatever the brightness of the images; the score is multiplied by the norms.
    norm = views.abs().square().sum(-1).sqrt().amax(-1).clamp(min=1e-30)  # (n,)
    fixed_norm = fixed.abs().square().sum(-1).sqrt().clamp(min=1e-30)  # (m,)
    goal = _as_real(fixed / fixed_norm[:, None], depth).half()  # (m, D)
    turns = torch.outer(angles, frequencies.to(angles))  # (A, C)
    phases = torch.polar(torch.ones_like(turns), -turns).to(views)
    score = torch.empty(n, m, device=views.device)
    pose = torch.empty(n, m, dtype=torch.int32, device=views.device)
    chunk = max(1, bank_bytes // (rows * depth * 2))
    for start in range(0, n, chunk):
        some = views[start : start + chunk] / norm[start : start + chunk, None, None]
        bank = torch.zeros(len(some), rows, depth, dtype=torch.half, device=views.device)
        bank[:, :n_poses] = _as_real((some[:, :, None] * phases).flatten(1, 2), depth).half()
        grid = (triton.cdiv(m, _FIXED), len(some))
        with torch.cuda.device_of(views):  # Triton launches on the current GPU, whichever holds the tensors
            _kernel[grid](
                bank, goal, score[start:], pose[start:], m, n_poses, rows, depth,
                FIXED=_FIXED, POSES=_POSES, DEPTH=triton.next_power_of_2(depth), num_warps=8, num_stages=3,
            )  # fmt: skip
    return score * norm[:, None] * fixed_norm, pose


def _as_real(values: Tensor, depth: int) -> Tensor:
    """(..., C) complex -> (..., depth) real and imaginary parts, padded with zeros."""
    flat = torch.view_as_real(values).flatten(-2)
    return torch.nn.functional.pad(flat, (0, depth - flat.shape[-1]))


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    bank, goal, score, pose, m, n_poses, rows, depth,
    FIXED: tl.constexpr, POSES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """bank (images, rows, depth), goal (m, depth) -> score and pose (images, m)."""
    j = tl.program_id(0) * FIXED + tl.arange(0, FIXED)
    i = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, DEPTH)
    row = tl.arange(0, POSES)
    is_coefficient = k < depth
    goals = tl.load(
        goal + j[:, None] * depth + k[None, :], (j < m)[:, None] & is_coefficient[None, :], 0.0
    )  # (FIXED, DEPTH)
    block_pointer = bank + i * rows * depth + row[None, :] * depth + k[:, None]  # (DEPTH, POSES)
    best = tl.full((FIXED, POSES), float("-inf"), tl.float32)
    best_block = tl.zeros((FIXED, POSES), tl.int32)
    for block in range(rows // POSES):
        poses = tl.load(block_pointer, is_coefficient[:, None], 0.0)
        value = tl.dot(goals, poses)
        is_better = value > best
        best = tl.where(is_better, value, best)
        best_block = tl.where(is_better, block, best_block)
        block_pointer += POSES * depth
    # Rows after the last pose are zeros and must not be chosen.
    index = best_block * POSES + row[None, :]
    best = tl.where(index < n_poses, best, float("-inf"))
    maximum = tl.max(best, axis=1)
    first = tl.min(tl.where(best == maximum[:, None], index, n_poses), axis=1)  # ties: the smallest grid point
    tl.store(score + i * m + j, maximum, j < m)
    tl.store(pose + i * m + j, first, j < m)
