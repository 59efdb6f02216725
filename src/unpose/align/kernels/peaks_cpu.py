"""The best few poses of given pairs on the CPU: the highest local maxima of the score along the angle.

Gives the same result as ``local_maxima`` of ``all_scores`` in :mod:`unpose.align.kernels.reference`. For each pair it
computes the cross spectrum of every view (see :mod:`unpose.align.kernels.search_cpu`), the scores of all angles from
it, and the maximum over the views that differ only in shift. The result is one curve of scores over the angle for each
scale and mirror image, in which the local maxima are found. All arrays of a pair stay in the cache; each pair is
computed by one thread in a fixed order.
"""

import numpy as np

from unpose.align.kernels.pixels_cpu import compiled_sum
from unpose.compiled import compiled, inner


def peaks(
    views: np.ndarray,
    fixed: np.ndarray,
    starts: np.ndarray,
    angles: np.ndarray,
    n_shifts: int,
    full_circle: bool,
    count: int,
) -> np.ndarray:
    """views (p, V, C), fixed (p, m, C) complex64, starts (K + 1,), angles (A,) -> grid points (p, m, count) int64.

    Fixed images ``fixed[p]`` are compared with ``views[p]``. A grid point is ``view * A + angle``.
    """
    n_frequencies = len(starts) - 1
    # Half a turn changes the sign of the odd frequencies only. On a full circle, the sums over even and over odd
    # frequencies therefore serve two angles each. Both lists are padded to multiples of four with empty frequencies.
    by_parity = [[*range(parity, n_frequencies, 2)] for parity in (0, 1)]
    padded = [frequencies + [-1] * (-len(frequencies) % 4) for frequencies in by_parity]
    order = np.array(padded[0] + padded[1], np.int64)
    pairs_angles = full_circle and len(angles) % 2 == 0
    phases = np.outer(order, angles[: len(angles) // 2] if pairs_angles else angles)
    waves = np.stack([np.cos(phases), np.sin(phases)], axis=1).astype(np.float32)  # (K, 2, A or A / 2)
    out = np.empty((*fixed.shape[:2], count), np.int64)
    parts = np.ascontiguousarray(np.stack([views.real, views.imag]).transpose(1, 0, 3, 2))  # (p, 2, C, V)
    _find_peaks(parts, fixed.view(np.float32).reshape(*fixed.shape, 2), starts, order, len(padded[0]), waves,
                n_shifts, full_circle, pairs_angles, out)  # fmt: skip
    return out


@compiled
def _find_peaks(  # type: ignore[no-untyped-def]
    views, fixed, starts, order, n_even, waves, n_shifts, full_circle, pairs_angles, out
):  # fmt: skip
    """views (p, 2, C, V), fixed (p, m, C, 2), order (K,) frequencies, even ones first -> out (p, m, count)."""
    n_views, n_half = views.shape[3], waves.shape[2]
    n_angles = 2 * n_half if pairs_angles else n_half
    spectra = np.zeros((len(order), 2, n_views), np.float32)
    even, odd = np.empty(n_half, np.float32), np.empty(n_half, np.float32)
    curves = np.empty((n_views // n_shifts, n_angles), np.float32)
    best_view = np.empty(curves.shape, np.int32)
    for p in range(out.shape[0]):
        for m in range(out.shape[1]):
            spectra[:] = 0
            for row in range(len(order)):
                if order[row] >= 0:
                    for c in range(starts[order[row]], starts[order[row] + 1]):
                        _add_product(views[p, 0, c], views[p, 1, c], fixed[p, m, c, 0], fixed[p, m, c, 1], spectra[row])
            curves[:] = -np.inf
            for v in range(n_views):
                even[:] = 0
                odd[:] = 0
                for row in range(0, n_even, 4):
                    _add_frequencies(spectra, waves, row, v, even)
                for row in range(n_even, len(order), 4):
                    _add_frequencies(spectra, waves, row, v, odd)
                curve = v // n_shifts
                _raise_curve(even, odd, np.int32(v), pairs_angles, curves[curve], best_view[curve])
            _highest_maxima(curves, best_view, full_circle, out[p, m])


@compiled_sum
def _add_product(real, imaginary, x, y, spectrum):  # type: ignore[no-untyped-def]
    """Add ``conj(x + iy) (real + i imaginary)`` of all views (V,) to the spectrum (2, V)."""
    for v in range(real.size):
        spectrum[0, v] += x * real[v] + y * imaginary[v]
        spectrum[1, v] += x * imaginary[v] - y * real[v]


@compiled_sum
def _add_frequencies(spectra, waves, row, v, scores):  # type: ignore[no-untyped-def]
    """Add four frequencies of one view to its scores at all angles, (A,)."""
    a, b, c, d = spectra[row, 0, v], spectra[row + 1, 0, v], spectra[row + 2, 0, v], spectra[row + 3, 0, v]
    e, f, g, h = spectra[row, 1, v], spectra[row + 1, 1, v], spectra[row + 2, 1, v], spectra[row + 3, 1, v]
    for t in range(scores.size):
        scores[t] += (
            a * waves[row, 0, t] + b * waves[row + 1, 0, t] + c * waves[row + 2, 0, t] + d * waves[row + 3, 0, t]
        ) + (e * waves[row, 1, t] + f * waves[row + 1, 1, t] + g * waves[row + 2, 1, t] + h * waves[row + 3, 1, t])


@compiled_sum
def _raise_curve(even, odd, v, pairs_angles, curve, best_view):  # type: ignore[no-untyped-def]
    """Raise the curve (A,) to the scores of view v where they are larger, and store the view there."""
    count = even.size
    for t in range(count):
        score = even[t] + odd[t]
        is_better = score > curve[t]
        curve[t] = score if is_better else curve[t]
        best_view[t] = v if is_better else best_view[t]
    if pairs_angles:  # half a turn further
        for t in range(count):
            score = even[t] - odd[t]
            is_better = score > curve[count + t]
            curve[count + t] = score if is_better else curve[count + t]
            best_view[count + t] = v if is_better else best_view[count + t]


@inner
def _highest_maxima(curves, best_view, full_circle, out):  # type: ignore[no-untyped-def]
    """Grid points (count,) of the highest local maxima of curves (scales, A), highest first.

    Where there are fewer maxima than requested, the highest is repeated.
    """
    n_curves, n_angles = curves.shape
    heights = np.full(len(out), -np.inf)
    for curve in range(n_curves):
        for a in range(n_angles):
            value = curves[curve, a]
            if (a > 0 or full_circle) and curves[curve, a - 1] > value:
                continue
            if (a < n_angles - 1 or full_circle) and curves[curve, (a + 1) % n_angles] > value:
                continue
            rank = len(out)
            while rank > 0 and value > heights[rank - 1]:
                rank -= 1
            for later in range(len(out) - 1, rank, -1):
                heights[later], out[later] = heights[later - 1], out[later - 1]
            if rank < len(out):
                heights[rank], out[rank] = value, np.int64(best_view[curve, a]) * n_angles + a
    for rank in range(1, len(out)):
        if heights[rank] == -np.inf:
            out[rank] = out[0]
