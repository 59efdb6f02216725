"""Best pose of every pair of images on one CPU core, without writing the scores of all poses.

The two inner loops (cross-products, angle synthesis) are emitted as explicit vector code, because the
compiler's own loop vectoriser stays at half the register width on AVX-512 and keeps no sums in registers.
One vector lane is one fixed image, and every lane runs the same operations in the same order whatever its
neighbours hold: no byte of a result depends on how the inputs are split or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils

from unpose.compiled import llvm_intrinsic

_FEATURES = binding.get_host_cpu_features()
_LANES = 16 if _FEATURES.get("avx512f", False) else 8 if _FEATURES.get("avx", False) else 4
# Two vectors side by side use every broadcast factor twice, but need 32 registers (AVX-512, NEON).
_COLUMNS = 1 if _LANES == 8 else 2
_WIDTH = _LANES * _COLUMNS  # fixed images in a tile
_BLOCK = 4  # views in a block: a loaded coefficient of a fixed image serves all of them
_ROWS = 2 * (_BLOCK + 1)  # rows of sums per frequency: (re, im) of each view, then of the winning views

_I32 = ir.IntType(32)
_VEC = ir.VectorType(ir.FloatType(), _LANES)
_INT = ir.VectorType(_I32, _LANES)
_ZERO, _LOW, _FIRST = _VEC([0.0] * _LANES), _VEC([-np.inf] * _LANES), _INT([0] * _LANES)


_vector_code = llvm_intrinsic(lambda context, builder, kinds: builder)


def _step(builder: Any, pointer: Any, index: Any, size: int = 1) -> Any:
    """Address ``index * size`` elements further on."""
    return builder.gep(pointer, [builder.mul(index, index.type(size))])


def _place(builder: Any, pointer: Any, row: int, column: int, kind: Any = _VEC) -> Any:
    """Address of vector ``column`` in row ``row`` of a (rows, _WIDTH) array."""
    return builder.bitcast(_step(builder, pointer, _I32(row * _WIDTH + column * _LANES)), kind.as_pointer())


def _load(builder: Any, pointer: Any, row: int, column: int, kind: Any = _VEC) -> Any:
    return builder.load(_place(builder, pointer, row, column, kind), align=4)


def _store(builder: Any, value: Any, pointer: Any, row: int, column: int) -> None:
    builder.store(value, _place(builder, pointer, row, column, value.type), align=4)


def _splat(builder: Any, scalar: Any, kind: Any) -> Any:
    """A vector with ``scalar`` in every lane."""
    empty = kind(ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(empty, scalar, _I32(0)), empty, _FIRST)


def _factor(builder: Any, pointer: Any, index: int) -> Any:
    """Element ``index`` behind ``pointer`` in every lane."""
    return _splat(builder, builder.load(_step(builder, pointer, _I32(index))), _VEC)


def _call(builder: Any, name: str, *args: Any) -> Any:
    """A lane-wise operation of the compiler."""
    kind = ir.FunctionType(_VEC, [_VEC] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"{name}.v{_LANES}f32"), args)


def _accumulate(builder: Any, total: Any, a: Any, b: Any) -> None:
    """``total += a * b``, rounded once where the machine can."""
    builder.store(_call(builder, "llvm.fmuladd", a, b, builder.load(total)), total)


@_vector_code
def _cross(
    builder: Any, views: Any, views_at: Any, tile: Any, tile_at: Any, count: Any, sums: Any, sums_at: Any
) -> None:
    """Sums over the radial coefficients of one frequency, for a block of views and a tile of fixed images.

    views (count, 2, _BLOCK), tile (count, 2, _WIDTH) -> sums (_BLOCK, 2, _WIDTH), each from its offset on;
    2 = real, imaginary.
    """
    views, tile = _step(builder, views, views_at), _step(builder, tile, tile_at)
    sums = _step(builder, sums, sums_at)
    columns, rows = range(_COLUMNS), range(2 * _BLOCK)
    totals = [[cgutils.alloca_once_value(builder, _ZERO) for _ in rows] for _ in columns]
    with cgutils.for_range(builder, count) as loop:
        factors = _step(builder, views, loop.index, 2 * _BLOCK)
        image = _step(builder, tile, loop.index, 2 * _WIDTH)
        parts = [(_load(builder, image, 0, c), _load(builder, image, 1, c)) for c in columns]
        for w in range(_BLOCK):
            re, im = _factor(builder, factors, w), _factor(builder, factors, _BLOCK + w)
            for total, (x, y) in zip(totals, parts, strict=True):  # (re + i im) (x - i y)
                _accumulate(builder, total[2 * w], re, x)
                _accumulate(builder, total[2 * w + 1], im, x)
                _accumulate(builder, total[2 * w], im, y)
                _accumulate(builder, total[2 * w + 1], builder.fneg(re), y)
    for c in columns:
        for row in rows:
            _store(builder, builder.load(totals[c][row]), sums, row, c)


def _angles(builder: Any, sums: Any, table: Any, steps: Any, groups: Any, visit: Callable[..., None]) -> None:
    """Emit the synthesis of all angles from the sums of one view.

    With c_k = x_k + i y_k the score at phi is E + O, at -phi it is E - O, where E = sum x_k cos(k phi) and
    O = sum y_k sin(k phi).  The classes k mod 4 of E and O at phi give, up to signs, those at pi - phi, and
    with two sums more those at pi/2 - phi and pi/2 + phi.  So one step in phi <= pi/4 yields 8 angles:
    ``visit(column, step, ((E, O) at phi, pi - phi, pi/2 - phi, pi/2 + phi))``.
    """
    # E, O of k mod 4 = 0, of k mod 4 = 2, of odd k, and of odd k at pi/2 - phi
    totals = [[cgutils.alloca_once(builder, _VEC) for _ in range(8)] for _ in range(_COLUMNS)]
    with cgutils.for_range(builder, steps) as step:
        for place in chain(*totals):
            builder.store(_ZERO, place)
        start = _step(builder, table, builder.mul(step.index, groups), 8)
        with cgutils.for_range(builder, groups) as group:
            waves = _step(builder, start, group.index, 8)
            cos, sin = ([_factor(builder, waves, 2 * r + part) for r in range(4)] for part in range(2))
            rows = _step(builder, sums, group.index, 4 * _ROWS * _WIDTH)
            for c, (e0, o0, e2, o2, e1, o1, f1, p1) in enumerate(totals):
                x, y = ([_load(builder, rows, r * _ROWS + part, c) for r in range(4)] for part in range(2))
                _accumulate(builder, e0, cos[0], x[0])
                _accumulate(builder, o0, sin[0], y[0])
                _accumulate(builder, e2, cos[2], x[2])
                _accumulate(builder, o2, sin[2], y[2])
                for r in (1, 3):  # at pi/2 - phi cosine and sine change places, with a minus for k mod 4 = 3
                    _accumulate(builder, e1, cos[r], x[r])
                    _accumulate(builder, o1, sin[r], y[r])
                    _accumulate(builder, f1, sin[r] if r == 1 else builder.fneg(sin[r]), x[r])
                    _accumulate(builder, p1, cos[r] if r == 1 else builder.fneg(cos[r]), y[r])
        add, sub = builder.fadd, builder.fsub
        for c, total in enumerate(totals):
            e0, o0, e2, o2, e1, o1, f1, p1 = (builder.load(place) for place in total)
            e, o, f, p = add(e0, e2), add(o0, o2), sub(e0, e2), sub(o2, o0)
            first = (add(e, e1), add(o, o1)), (sub(e, e1), sub(o1, o))
            second = (add(f, f1), add(p, p1)), (sub(f, f1), sub(p1, p))
            visit(c, step.index, first + second)


@_vector_code
def _keep_larger(
    builder: Any, sums: Any, table: Any, steps: Any, groups: Any, view: Any, best: Any, chosen: Any
) -> None:
    """Maximum of one view over all angles; where it beats ``best``: keep it, its view number and its sums."""
    source = _step(builder, sums, builder.urem(view, view.type(_BLOCK)), 2 * _WIDTH)
    kept = _step(builder, sums, view.type(_BLOCK), 2 * _WIDTH)
    tops = [cgutils.alloca_once_value(builder, _LOW) for _ in range(_COLUMNS)]

    def visit(c: int, step: Any, values: Any) -> None:
        for even, odd in values:  # max(E + O, E - O) = E + |O|
            value, top = builder.fadd(even, _call(builder, "llvm.fabs", odd)), builder.load(tops[c])
            builder.store(builder.select(builder.fcmp_ordered(">", value, top), value, top), tops[c])

    _angles(builder, source, table, steps, groups, visit)
    number = _splat(builder, builder.trunc(view, _I32), _INT)
    masks, some = [], ir.IntType(_LANES)(0)
    for c, place in enumerate(tops):
        top, old, last = builder.load(place), _load(builder, best, 0, c), _load(builder, chosen, 0, c, _INT)
        # Of equal views the first is kept.
        masks.append(builder.fcmp_ordered(">", top, old))
        some = builder.or_(some, builder.bitcast(masks[c], some.type))
        _store(builder, builder.select(masks[c], top, old), best, 0, c)
        _store(builder, builder.select(masks[c], number, last), chosen, 0, c)
    with (  # late views seldom win anywhere in the tile
        builder.if_then(builder.icmp_unsigned("!=", some, some.type(0))),
        cgutils.for_range(builder, builder.mul(groups, groups.type(4))) as k,
    ):
        new, old = (_step(builder, p, k.index, _ROWS * _WIDTH) for p in (source, kept))
        for row in range(2):
            for c, mask in enumerate(masks):
                value = builder.select(mask, _load(builder, new, row, c), _load(builder, old, row, c))
                _store(builder, value, old, row, c)


@_vector_code
def _resolve(builder: Any, sums: Any, table: Any, steps: Any, groups: Any, n_angles: Any, angle: Any) -> None:
    """Angle index of the maximum of the kept sums over all angles, the smallest one on ties."""
    tops = [cgutils.alloca_once_value(builder, _LOW) for _ in range(_COLUMNS)]
    picks = [cgutils.alloca_once_value(builder, _FIRST) for _ in range(_COLUMNS)]
    full = builder.trunc(n_angles, _I32)
    half, quarter = builder.lshr(full, _I32(1)), builder.lshr(full, _I32(2))

    def consider(c: int, value: Any, index: Any) -> None:
        number, top, pick = _splat(builder, index, _INT), builder.load(tops[c]), builder.load(picks[c])
        tie = builder.and_(builder.fcmp_ordered("==", value, top), builder.icmp_signed("<", number, pick))
        take = builder.or_(builder.fcmp_ordered(">", value, top), tie)
        builder.store(builder.select(take, value, top), tops[c])
        builder.store(builder.select(take, number, pick), picks[c])

    def visit(c: int, step: Any, values: Any) -> None:
        a = builder.trunc(step, _I32)
        turns = a, builder.sub(half, a), builder.sub(quarter, a), builder.add(quarter, a)
        for (even, odd), turn in zip(values, turns, strict=True):
            consider(c, builder.fadd(even, odd), turn)
            consider(c, builder.fsub(even, odd), builder.urem(builder.sub(full, turn), full))

    _angles(builder, _step(builder, sums, _I32(_BLOCK), 2 * _WIDTH), table, steps, groups, visit)
    for c, place in enumerate(picks):
        _store(builder, builder.load(place), angle, 0, c)


@numba.njit(nogil=True, cache=True)
def _all_pairs(moving: Any, tiles: Any, starts: Any, table: Any, turns: int, scratch: Any, out: Any) -> None:
    """Loop over moving images, tiles of fixed images and blocks of views."""
    (views, sums, best, chosen, angle), (score, pose) = scratch, out
    n_views, n_coefficients, (steps, groups) = moving.shape[1], tiles.shape[1], table.shape[:2]
    for i in range(moving.shape[0]):
        for v in range(n_views):
            block, w = v // _BLOCK, v % _BLOCK
            for c in range(n_coefficients):
                views[block, c, 0, w] = moving[i, v, c].real
                views[block, c, 1, w] = moving[i, v, c].imag
        for t in range(tiles.shape[0]):
            best[:], chosen[:] = -np.inf, 0
            sums[:, 2 * _BLOCK :] = 0.0  # if all scores are NaN, the pose is 0
            for block in range(views.shape[0]):
                for k in range(len(starts) - 1):
                    views_at = (block * n_coefficients + starts[k]) * 2 * _BLOCK
                    tile_at = (t * n_coefficients + starts[k]) * 2 * _WIDTH
                    count = starts[k + 1] - starts[k]
                    _cross(views, views_at, tiles, tile_at, count, sums, k * _ROWS * _WIDTH)
                for v in range(block * _BLOCK, min((block + 1) * _BLOCK, n_views)):
                    _keep_larger(sums, table, steps, groups, v, best, chosen)
            _resolve(sums, table, steps, groups, turns, angle)
            for lane in range(min(_WIDTH, score.shape[1] - t * _WIDTH)):
                score[i, t * _WIDTH + lane] = best[lane]
                pose[i, t * _WIDTH + lane] = chosen[lane] * turns + angle[lane]


def _aligned(*shape: int, dtype: Any = np.float32) -> Any:
    """Zeros that start on a cache line: a vector load across two lines costs twice."""
    room = np.zeros(int(np.prod(shape)) + 16, dtype)  # 16 elements of 4 bytes are one line
    skip = -room.ctypes.data % 64 // 4
    return room[skip : skip + room.size - 16].reshape(shape)


def _waves(n_frequencies: int, n_angles: int) -> Any:
    """cos and sin of k phi_a for 0 <= phi_a <= pi/4: (A // 8 + 1, ceil(K / 4), 8) float32."""
    groups = -(-n_frequencies // 4)
    phase = 2 * np.pi / n_angles * (np.arange(n_angles // 8 + 1)[:, None] * np.arange(4 * groups) % n_angles)
    table = _aligned(len(phase), groups, 8)
    table[...] = np.stack([np.cos(phase), np.sin(phase)], -1).reshape(table.shape)  # (a, k, 2) -> (a, g, 8)
    return table


def _checked(moving: Any, fixed: Any, starts: Any, n_angles: int) -> tuple[Any, ...]:
    """The inputs as contiguous arrays of the dtypes the kernel reads."""
    moving, fixed = np.ascontiguousarray(moving, np.complex64), np.asarray(fixed, np.complex64)
    if moving.ndim != 3 or fixed.ndim != 2 or moving.shape[2] != fixed.shape[1] or moving.shape[1] == 0:
        raise ValueError(f"need moving (n, V >= 1, C) and fixed (m, C), got {moving.shape} and {fixed.shape}")
    size, starts = (
        moving.shape[2],
        np.array(starts, np.int64),
    )  # a copy: for a read-only array the kernel would be compiled again
    if starts.ndim != 1 or len(starts) < 2 or np.any(np.diff(starts) < 0) or starts[0] or starts[-1] != size:
        raise ValueError(f"starts must rise from 0 to C = {size}, got {starts.tolist()}")
    if n_angles < 4 or n_angles % 4:
        raise ValueError(f"n_angles must be a positive multiple of 4, got {n_angles}")
    if 2 * (len(starts) - 1) > n_angles:
        raise ValueError(f"need at most n_angles / 2 = {n_angles // 2} frequencies, got {len(starts) - 1}")
    return moving, fixed, starts


def best_poses(
    moving: np.ndarray, fixed: np.ndarray, starts: np.ndarray, n_angles: int
) -> tuple[np.ndarray, np.ndarray]:
    """Best view and turn of every moving image against every fixed image.

    The maximum over the views v and the turns phi_a = 2 pi a / A, a = 0..A-1, of

        Re sum_k exp(-i k phi_a) sum_{c in block k} moving[i, v, c] * conj(fixed[j, c])

    Runs on one core without the interpreter lock: call it from several threads on pieces of ``moving`` or
    ``fixed``.  The pieces give the bytes of the whole.

    Parameters
    ----------
    moving : (n, V, C) complex64
        Coefficients of n images in V views each.
    fixed : (m, C) complex64
        Coefficients of m images.
    starts : (K + 1,) int64
        Block k, of angular frequency k, is ``[starts[k]:starts[k + 1]]``; from 0 to C.
    n_angles : int
        Number A of turns, a multiple of 4 with K <= A / 2.

    Returns
    -------
    score : (n, m) float32
        The maximum.
    pose : (n, m) int32
        ``v * n_angles + a`` of the maximum, the smallest one where several are equal.
    """
    moving, fixed, starts = _checked(moving, fixed, starts, n_angles)
    n, n_views, size = moving.shape
    m, n_tiles, n_blocks = len(fixed), -(-len(fixed) // _WIDTH), -(-n_views // _BLOCK)
    padded = np.zeros((n_tiles * _WIDTH, size), np.complex64)
    padded[:m] = fixed
    planes = padded.reshape(n_tiles, _WIDTH, size).transpose(0, 2, 1)  # (tile, coefficient, lane)
    tiles, table = _aligned(n_tiles, size, 2, _WIDTH), _waves(len(starts) - 1, n_angles)
    tiles[:, :, 0], tiles[:, :, 1] = planes.real, planes.imag
    views = _aligned(n_blocks, size, 2, _BLOCK)
    sums = _aligned(4 * table.shape[1], _ROWS, _WIDTH)  # frequencies above K - 1 stay 0
    state = _aligned(_WIDTH), _aligned(_WIDTH, dtype=np.int32), _aligned(_WIDTH, dtype=np.int32)
    score, pose = np.empty((n, m), np.float32), np.empty((n, m), np.int32)
    _all_pairs(moving, tiles, starts, table, n_angles, (views, sums, *state), (score, pose))
    return score, pose
