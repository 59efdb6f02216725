"""Best pose of every pair of images on one CPU core, without storing the scores of all poses.

An image is given by its coefficients in a steerable basis: a turn by phi multiplies the coefficients of angular
frequency k by ``exp(-i k phi)``. A moving image comes in V views, one per shift, scale and mirror image. For a view and
a fixed image the *cross spectrum* c_k is the sum of ``view * conj(fixed)`` over the coefficients of frequency k, and
the score at phi is ``Re sum_k exp(-i k phi) c_k``.

Loop order: moving image, block of fixed images, block of views, then for each view all angles. One SIMD lane is one
fixed image. Memory layout, all float32, with 2 = (real, imaginary):

===================  ===================================================================================================
fixed blocks         ``(blocks, C, 2, _FIXED_BLOCK)``
view blocks          ``(blocks, C, 2, _VIEW_BLOCK)``
cross spectra        ``(frequencies, _VIEW_BLOCK + 1, 2, _FIXED_BLOCK)``; the last view is the best one so far
cosines and sines    ``(n_octant, n_groups, 8)``: cos and sin of four frequencies at the angles up to pi/4
===================  ===================================================================================================

The sums of a cross spectrum and the sums over frequencies at one angle stay in registers. For each view only the
maximum over the angles is kept; the angle of the best view is found at the end from its cross spectrum.

The two inner loops are emitted as LLVM vector instructions, because numba's own loop vectoriser uses half of the
register width on AVX-512 and keeps no sums in registers. Every lane runs the same operations in the same order whatever
the other lanes hold: no byte of a result depends on how the inputs are split or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils

from unpose.compiled import CACHE, llvm_intrinsic

_FEATURES = binding.get_host_cpu_features()
_LANES = 16 if _FEATURES.get("avx512f", False) else 8 if _FEATURES.get("avx", False) else 4
# Two vectors use every broadcast factor twice, but need 32 registers (AVX-512, NEON).
_VECTORS = 1 if _LANES == 8 else 2
_FIXED_BLOCK = _LANES * _VECTORS  # fixed images computed together
_VIEW_BLOCK = 4  # views computed together: a loaded coefficient of a fixed image serves all of them
_SPECTRUM_ROWS = 2 * (_VIEW_BLOCK + 1)  # rows per frequency: (real, imaginary) of each view, then of the best view

_I32 = ir.IntType(32)
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_INTS = ir.VectorType(_I32, _LANES)
_ZERO, _MINUS_INFINITY, _ZERO_INTS = _FLOATS([0.0] * _LANES), _FLOATS([-np.inf] * _LANES), _INTS([0] * _LANES)

_vector_code = llvm_intrinsic(lambda context, builder, types: builder)


def _advance(builder: Any, pointer: Any, index: Any, size: int = 1) -> Any:
    """Pointer to the element ``index * size`` positions further on."""
    return builder.gep(pointer, [builder.mul(index, index.type(size))])


def _vector_pointer(builder: Any, pointer: Any, row: int, vector: int, kind: Any = _FLOATS) -> Any:
    """Pointer to a vector in a row of a (rows, _FIXED_BLOCK) array."""
    start = _advance(builder, pointer, _I32(row * _FIXED_BLOCK + vector * _LANES))
    return builder.bitcast(start, kind.as_pointer())


def _load(builder: Any, pointer: Any, row: int, vector: int, kind: Any = _FLOATS) -> Any:
    return builder.load(_vector_pointer(builder, pointer, row, vector, kind), align=4)


def _store(builder: Any, value: Any, pointer: Any, row: int, vector: int) -> None:
    builder.store(value, _vector_pointer(builder, pointer, row, vector, value.type), align=4)


def _broadcast(builder: Any, scalar: Any, kind: Any) -> Any:
    """Vector with ``scalar`` in every lane."""
    empty = kind(ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(empty, scalar, _I32(0)), empty, _ZERO_INTS)


def _broadcast_element(builder: Any, pointer: Any, index: int) -> Any:
    """Vector with ``pointer[index]`` in every lane."""
    return _broadcast(builder, builder.load(_advance(builder, pointer, _I32(index))), _FLOATS)


def _call_llvm(builder: Any, name: str, *args: Any) -> Any:
    """Call one of LLVM's element-wise vector intrinsics."""
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"{name}.v{_LANES}f32"), args)


def _accumulate(builder: Any, total: Any, a: Any, b: Any) -> None:
    """``total += a * b``, rounded once where the CPU has the instruction."""
    builder.store(_call_llvm(builder, "llvm.fmuladd", a, b, builder.load(total)), total)


@_vector_code
def _cross_spectrum(
    builder: Any, views: Any, view_start: Any, fixed: Any, fixed_start: Any, count: Any, spectra: Any, start: Any
) -> None:
    """Cross spectra at one frequency, for a block of views and a block of fixed images.

    views (count, 2, _VIEW_BLOCK), fixed (count, 2, _FIXED_BLOCK) -> spectra (_VIEW_BLOCK, 2, _FIXED_BLOCK), each from
    its start index on; ``count`` is the number of coefficients of the frequency.
    """
    views, fixed = _advance(builder, views, view_start), _advance(builder, fixed, fixed_start)
    spectra = _advance(builder, spectra, start)
    vectors, rows = range(_VECTORS), range(2 * _VIEW_BLOCK)
    totals = [[cgutils.alloca_once_value(builder, _ZERO) for _ in rows] for _ in vectors]
    with cgutils.for_range(builder, count) as coefficient:
        view = _advance(builder, views, coefficient.index, 2 * _VIEW_BLOCK)
        image = _advance(builder, fixed, coefficient.index, 2 * _FIXED_BLOCK)
        parts = [(_load(builder, image, 0, i), _load(builder, image, 1, i)) for i in vectors]
        for w in range(_VIEW_BLOCK):
            re, im = _broadcast_element(builder, view, w), _broadcast_element(builder, view, _VIEW_BLOCK + w)
            for total, (x, y) in zip(totals, parts, strict=True):  # (re + i im) (x - i y)
                _accumulate(builder, total[2 * w], re, x)
                _accumulate(builder, total[2 * w + 1], im, x)
                _accumulate(builder, total[2 * w], im, y)
                _accumulate(builder, total[2 * w + 1], builder.fneg(re), y)
    for i in vectors:
        for row in rows:
            _store(builder, builder.load(totals[i][row]), spectra, row, i)


def _for_all_angles(
    builder: Any, spectrum: Any, cos_sin: Any, n_octant: Any, n_groups: Any, visit: Callable[..., None]
) -> None:
    """Emit the loop that computes the scores of one view at all angles from its cross spectrum.

    With c_k = x_k + i y_k the score at phi is E + O and at -phi it is E - O, where E = sum x_k cos(k phi) and O = sum
    y_k sin(k phi). The sums over the classes k mod 4 of E and O at phi give, up to signs, those at pi - phi, and with
    two more sums those at pi/2 - phi and pi/2 + phi. So one angle phi <= pi/4 yields eight:
    ``visit(vector, angle, ((E, O) at phi, pi - phi, pi/2 - phi, pi/2 + phi))``.
    """
    # E and O of k mod 4 = 0, of k mod 4 = 2, of odd k, and of odd k at pi/2 - phi.
    totals = [[cgutils.alloca_once(builder, _FLOATS) for _ in range(8)] for _ in range(_VECTORS)]
    with cgutils.for_range(builder, n_octant) as angle:
        for total in chain(*totals):
            builder.store(_ZERO, total)
        start = _advance(builder, cos_sin, builder.mul(angle.index, n_groups), 8)
        with cgutils.for_range(builder, n_groups) as group:
            waves = _advance(builder, start, group.index, 8)
            cos, sin = ([_broadcast_element(builder, waves, 2 * r + part) for r in range(4)] for part in range(2))
            rows = _advance(builder, spectrum, group.index, 4 * _SPECTRUM_ROWS * _FIXED_BLOCK)
            for i, (e0, o0, e2, o2, e1, o1, f1, p1) in enumerate(totals):
                x, y = ([_load(builder, rows, r * _SPECTRUM_ROWS + part, i) for r in range(4)] for part in range(2))
                _accumulate(builder, e0, cos[0], x[0])
                _accumulate(builder, o0, sin[0], y[0])
                _accumulate(builder, e2, cos[2], x[2])
                _accumulate(builder, o2, sin[2], y[2])
                for r in (1, 3):  # at pi/2 - phi cosine and sine are exchanged, with a minus for k mod 4 = 3
                    _accumulate(builder, e1, cos[r], x[r])
                    _accumulate(builder, o1, sin[r], y[r])
                    _accumulate(builder, f1, sin[r] if r == 1 else builder.fneg(sin[r]), x[r])
                    _accumulate(builder, p1, cos[r] if r == 1 else builder.fneg(cos[r]), y[r])
        add, sub = builder.fadd, builder.fsub
        for i, total in enumerate(totals):
            e0, o0, e2, o2, e1, o1, f1, p1 = (builder.load(part) for part in total)
            e, o, f, p = add(e0, e2), add(o0, o2), sub(e0, e2), sub(o2, o0)
            first = (add(e, e1), add(o, o1)), (sub(e, e1), sub(o1, o))
            second = (add(f, f1), add(p, p1)), (sub(f, f1), sub(p1, p))
            visit(i, angle.index, first + second)


@_vector_code
def _update_best(
    builder: Any, spectra: Any, cos_sin: Any, n_octant: Any, n_groups: Any, view: Any, best_score: Any, best_view: Any
) -> None:
    """Maximum of one view over all angles; where it exceeds ``best_score``, keep it, the view and its cross spectrum.

    ``best_score`` and ``best_view`` are (_FIXED_BLOCK,).
    """
    spectrum = _advance(builder, spectra, builder.urem(view, view.type(_VIEW_BLOCK)), 2 * _FIXED_BLOCK)
    best_spectrum = _advance(builder, spectra, view.type(_VIEW_BLOCK), 2 * _FIXED_BLOCK)
    maxima = [cgutils.alloca_once_value(builder, _MINUS_INFINITY) for _ in range(_VECTORS)]

    def visit(i: int, angle: Any, values: Any) -> None:
        for even, odd in values:  # max(E + O, E - O) = E + |O|
            value, largest = builder.fadd(even, _call_llvm(builder, "llvm.fabs", odd)), builder.load(maxima[i])
            builder.store(builder.select(builder.fcmp_ordered(">", value, largest), value, largest), maxima[i])

    _for_all_angles(builder, spectrum, cos_sin, n_octant, n_groups, visit)
    view_index = _broadcast(builder, builder.trunc(view, _I32), _INTS)
    masks, any_better = [], ir.IntType(_LANES)(0)
    for i, maximum in enumerate(maxima):
        new, old = builder.load(maximum), _load(builder, best_score, 0, i)
        old_view = _load(builder, best_view, 0, i, _INTS)
        # Strictly larger: of equal views the first is kept, and NaN never.
        masks.append(builder.fcmp_ordered(">", new, old))
        any_better = builder.or_(any_better, builder.bitcast(masks[i], any_better.type))
        _store(builder, builder.select(masks[i], new, old), best_score, 0, i)
        _store(builder, builder.select(masks[i], view_index, old_view), best_view, 0, i)
    with (  # late views are seldom better for any image of the block
        builder.if_then(builder.icmp_unsigned("!=", any_better, any_better.type(0))),
        cgutils.for_range(builder, builder.mul(n_groups, n_groups.type(4))) as k,
    ):
        new, old = (_advance(builder, p, k.index, _SPECTRUM_ROWS * _FIXED_BLOCK) for p in (spectrum, best_spectrum))
        for row in range(2):
            for i, mask in enumerate(masks):
                value = builder.select(mask, _load(builder, new, row, i), _load(builder, old, row, i))
                _store(builder, value, old, row, i)


@_vector_code
def _best_angle(
    builder: Any, spectra: Any, cos_sin: Any, n_octant: Any, n_groups: Any, n_angles: Any, best_angle: Any
) -> None:
    """Index of the angle at which the best view has its maximum, the smallest on ties: (_FIXED_BLOCK,) int32."""
    maxima = [cgutils.alloca_once_value(builder, _MINUS_INFINITY) for _ in range(_VECTORS)]
    indices = [cgutils.alloca_once_value(builder, _ZERO_INTS) for _ in range(_VECTORS)]
    full = builder.trunc(n_angles, _I32)
    half, quarter = builder.lshr(full, _I32(1)), builder.lshr(full, _I32(2))

    def compare(i: int, value: Any, angle: Any) -> None:
        new, maximum, index = _broadcast(builder, angle, _INTS), builder.load(maxima[i]), builder.load(indices[i])
        is_tie = builder.and_(builder.fcmp_ordered("==", value, maximum), builder.icmp_signed("<", new, index))
        is_better = builder.or_(builder.fcmp_ordered(">", value, maximum), is_tie)
        builder.store(builder.select(is_better, value, maximum), maxima[i])
        builder.store(builder.select(is_better, new, index), indices[i])

    def visit(i: int, angle: Any, values: Any) -> None:
        a = builder.trunc(angle, _I32)
        angles = a, builder.sub(half, a), builder.sub(quarter, a), builder.add(quarter, a)
        for (even, odd), positive in zip(values, angles, strict=True):
            compare(i, builder.fadd(even, odd), positive)
            compare(i, builder.fsub(even, odd), builder.urem(builder.sub(full, positive), full))

    best_spectrum = _advance(builder, spectra, _I32(_VIEW_BLOCK), 2 * _FIXED_BLOCK)
    _for_all_angles(builder, best_spectrum, cos_sin, n_octant, n_groups, visit)
    for i, index in enumerate(indices):
        _store(builder, builder.load(index), best_angle, 0, i)


@numba.njit(nogil=True, cache=CACHE)
def _search_all_pairs(
    moving: Any, fixed_blocks: Any, starts: Any, cos_sin: Any, n_angles: int, workspace: Any, results: Any
) -> None:
    """Loop over moving images (n, V, C), blocks of fixed images and blocks of views; shapes as in the module docs."""
    (view_blocks, spectra, best_score, best_view, best_angle), (score, pose) = workspace, results
    n_views, n_coefficients, (n_octant, n_groups) = moving.shape[1], fixed_blocks.shape[1], cos_sin.shape[:2]
    for i in range(moving.shape[0]):
        for v in range(n_views):
            block, w = v // _VIEW_BLOCK, v % _VIEW_BLOCK
            for c in range(n_coefficients):
                view_blocks[block, c, 0, w] = moving[i, v, c].real
                view_blocks[block, c, 1, w] = moving[i, v, c].imag
        for t in range(fixed_blocks.shape[0]):
            best_score[:], best_view[:] = -np.inf, 0
            spectra[:, 2 * _VIEW_BLOCK :] = 0.0  # if all scores are NaN, the pose is 0
            for block in range(view_blocks.shape[0]):
                for k in range(len(starts) - 1):
                    view_start = (block * n_coefficients + starts[k]) * 2 * _VIEW_BLOCK
                    fixed_start = (t * n_coefficients + starts[k]) * 2 * _FIXED_BLOCK
                    count, start = starts[k + 1] - starts[k], k * _SPECTRUM_ROWS * _FIXED_BLOCK
                    _cross_spectrum(view_blocks, view_start, fixed_blocks, fixed_start, count, spectra, start)
                for v in range(block * _VIEW_BLOCK, min((block + 1) * _VIEW_BLOCK, n_views)):
                    _update_best(spectra, cos_sin, n_octant, n_groups, v, best_score, best_view)
            _best_angle(spectra, cos_sin, n_octant, n_groups, n_angles, best_angle)
            for lane in range(min(_FIXED_BLOCK, score.shape[1] - t * _FIXED_BLOCK)):
                score[i, t * _FIXED_BLOCK + lane] = best_score[lane]
                pose[i, t * _FIXED_BLOCK + lane] = best_view[lane] * n_angles + best_angle[lane]


def _aligned_zeros(*shape: int, dtype: Any = np.float32) -> Any:
    """Zeros that start on a cache line: a vector load across two lines costs twice as much."""
    memory = np.zeros(int(np.prod(shape)) + 16, dtype)  # 16 elements of 4 bytes are one line
    skip = -memory.ctypes.data % 64 // 4
    return memory[skip : skip + memory.size - 16].reshape(shape)


def _cosines_and_sines(n_frequencies: int, n_angles: int) -> Any:
    """cos and sin of k phi_a for 0 <= phi_a <= pi/4: (A // 8 + 1, ceil(K / 4), 8) float32."""
    n_groups = -(-n_frequencies // 4)
    phase = 2 * np.pi / n_angles * (np.arange(n_angles // 8 + 1)[:, None] * np.arange(4 * n_groups) % n_angles)
    table = _aligned_zeros(len(phase), n_groups, 8)
    table[...] = np.stack([np.cos(phase), np.sin(phase)], -1).reshape(table.shape)  # (a, k, 2) -> (a, g, 8)
    return table


def _checked(moving: Any, fixed: Any, starts: Any, n_angles: int) -> tuple[Any, ...]:
    """The inputs as contiguous arrays of the dtypes that the kernel reads."""
    moving, fixed = np.ascontiguousarray(moving, np.complex64), np.asarray(fixed, np.complex64)
    if moving.ndim != 3 or fixed.ndim != 2 or moving.shape[2] != fixed.shape[1] or moving.shape[1] == 0:
        raise ValueError(f"need moving (n, V >= 1, C) and fixed (m, C), got {moving.shape} and {fixed.shape}")
    starts = np.array(starts, np.int64)  # a copy: for a read-only array the kernel would be compiled again
    size = moving.shape[2]
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
    """Best view and angle of every moving image against every fixed image.

    The maximum over the views v and the angles phi_a = 2 pi a / A, a = 0..A-1, of

        Re sum_k exp(-i k phi_a) sum_{c of frequency k} moving[i, v, c] * conj(fixed[j, c])

    Runs on one core and releases the GIL: call it from several threads on slices of ``moving`` or ``fixed``, whose
    results have the same bytes as those of the whole.

    Parameters
    ----------
    moving : (n, V, C) complex64
        Coefficients of n images in V views each.
    fixed : (m, C) complex64
        Coefficients of m images.
    starts : (K + 1,) int64
        The coefficients of angular frequency k are ``[starts[k]:starts[k + 1]]``; from 0 to C.
    n_angles : int
        Number A of angles, a multiple of 4 with K <= A / 2.

    Returns
    -------
    score : (n, m) float32
        The maximum.
    pose : (n, m) int32
        ``v * n_angles + a`` of the maximum, the smallest where several are equal.
    """
    moving, fixed, starts = _checked(moving, fixed, starts, n_angles)
    moving = moving.view()
    moving.flags.writeable = False  # read-only arrays are another type for numba: it compiles for one of the two
    n, n_views, size = moving.shape
    m, n_blocks = len(fixed), -(-len(fixed) // _FIXED_BLOCK)
    padded = np.zeros((n_blocks * _FIXED_BLOCK, size), np.complex64)
    padded[:m] = fixed
    packed = padded.reshape(n_blocks, _FIXED_BLOCK, size).transpose(0, 2, 1)  # (block, coefficient, lane)
    fixed_blocks, cos_sin = (
        _aligned_zeros(n_blocks, size, 2, _FIXED_BLOCK),
        _cosines_and_sines(len(starts) - 1, n_angles),
    )
    fixed_blocks[:, :, 0], fixed_blocks[:, :, 1] = packed.real, packed.imag
    workspace = (
        _aligned_zeros(-(-n_views // _VIEW_BLOCK), size, 2, _VIEW_BLOCK),
        _aligned_zeros(4 * cos_sin.shape[1], _SPECTRUM_ROWS, _FIXED_BLOCK),  # frequencies above K - 1 stay 0
        _aligned_zeros(_FIXED_BLOCK),
        _aligned_zeros(_FIXED_BLOCK, dtype=np.int32),
        _aligned_zeros(_FIXED_BLOCK, dtype=np.int32),
    )
    score, pose = np.empty((n, m), np.float32), np.empty((n, m), np.int32)
    _search_all_pairs(moving, fixed_blocks, starts, cos_sin, n_angles, workspace, (score, pose))
    return score, pose
