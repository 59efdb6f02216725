"""The highest peaks along the angle, for given pairs on the CPU, compiled: the scores of a pair never leave the cache.

The same answer as :func:`unpose.align.coarse.local_maxima` of :func:`unpose.align.coarse.all_scores`, which remain the
oracle and serve every other device.
"""

import numpy as np

from unpose.align.kernels.pixels_cpu import summing
from unpose.compiled import compiled


def peaks(
    views: np.ndarray,
    fixed: np.ndarray,
    starts: np.ndarray,
    angles: np.ndarray,
    n_shifts: int,
    circle: bool,
    count: int,
) -> np.ndarray:
    """views (p, V, C), for each of them fixed (p, m, C) complex64, angles (A,) -> grid points (p, m, count) int64."""
    n_frequencies = len(starts) - 1
    # Half a turn changes the sign of odd frequencies alone: on a whole circle, the sums of even and of odd frequencies
    # serve two angles each. Each kind is filled up to whole fours, with frequencies that are nowhere.
    kinds = [[*range(odd, n_frequencies, 2)] for odd in (0, 1)]
    order = np.concatenate([np.array(kind + [-1] * (-len(kind) % 4), np.int64) for kind in kinds])
    paired = circle and len(angles) % 2 == 0
    phases = np.outer(order, angles[: len(angles) // 2] if paired else angles)
    turns = np.stack([np.cos(phases), np.sin(phases)], axis=1).astype(np.float32)  # (K, 2, A or A / 2)
    out = np.empty((*fixed.shape[:2], count), np.int64)
    parts = np.ascontiguousarray(np.stack([views.real, views.imag]).transpose(1, 0, 3, 2))  # (p, 2, C, V)
    n_even = len(kinds[0]) + -len(kinds[0]) % 4
    _peaks(parts, fixed.view(np.float32).reshape(*fixed.shape, 2), starts, order, n_even, turns, n_shifts, circle,
           paired, out)  # fmt: skip
    return out


@compiled
def _peaks(views, fixed, starts, order, n_even, turns, n_shifts, circle, paired, out):  # type: ignore[no-untyped-def]
    n_views, n_turns = views.shape[3], turns.shape[2]
    n_angles = 2 * n_turns if paired else n_turns
    cross = np.zeros((len(order), 2, n_views), np.float32)
    even, odd = np.empty(n_turns, np.float32), np.empty(n_turns, np.float32)
    curve = np.empty((n_views // n_shifts, n_angles), np.float32)
    shift = np.empty(curve.shape, np.int32)
    for p in range(out.shape[0]):
        for m in range(out.shape[1]):
            cross[:] = 0
            for row in range(len(order)):
                if order[row] >= 0:
                    for c in range(starts[order[row]], starts[order[row] + 1]):
                        _add_product(views[p, 0, c], views[p, 1, c], fixed[p, m, c, 0], fixed[p, m, c, 1], cross[row])
            curve[:] = -np.inf
            for v in range(n_views):
                even[:] = 0
                odd[:] = 0
                for row in range(0, n_even, 4):
                    _add_turned(cross, turns, row, v, even)
                for row in range(n_even, len(order), 4):
                    _add_turned(cross, turns, row, v, odd)
                group = v // n_shifts
                _keep_better(even, odd, np.int32(v), paired, curve[group], shift[group])
            _highest(curve, shift, circle, out[p, m])


@summing
def _add_product(real, imaginary, x, y, out):  # type: ignore[no-untyped-def]
    """Add ``conj(x + iy) (real + i imaginary)`` to (2, V)."""
    for v in range(real.size):
        out[0, v] += x * real[v] + y * imaginary[v]
        out[1, v] += x * imaginary[v] - y * real[v]


@summing
def _add_turned(cross, turns, row, v, out):  # type: ignore[no-untyped-def]
    """Add four frequencies of one view at all angles."""
    a, b, c, d = cross[row, 0, v], cross[row + 1, 0, v], cross[row + 2, 0, v], cross[row + 3, 0, v]
    e, f, g, h = cross[row, 1, v], cross[row + 1, 1, v], cross[row + 2, 1, v], cross[row + 3, 1, v]
    for t in range(out.size):
        out[t] += (
            a * turns[row, 0, t] + b * turns[row + 1, 0, t] + c * turns[row + 2, 0, t] + d * turns[row + 3, 0, t]
        ) + (e * turns[row, 1, t] + f * turns[row + 1, 1, t] + g * turns[row + 2, 1, t] + h * turns[row + 3, 1, t])


@summing
def _keep_better(even, odd, v, paired, curve, shift):  # type: ignore[no-untyped-def]
    """Raise the curve (A,) of best scores by those of one view, and note the view."""
    count = even.size
    for t in range(count):
        score = even[t] + odd[t]
        better = score > curve[t]
        curve[t] = score if better else curve[t]
        shift[t] = v if better else shift[t]
    if paired:
        for t in range(count):
            score = even[t] - odd[t]
            better = score > curve[count + t]
            curve[count + t] = score if better else curve[count + t]
            shift[count + t] = v if better else shift[count + t]


@compiled
def _highest(curve, shift, circle, out):  # type: ignore[no-untyped-def]
    """The grid points of the highest local maxima, highest first; the highest again where there are no more."""
    n_curves, n_angles = curve.shape
    height = np.full(len(out), -np.inf)
    for group in range(n_curves):
        for a in range(n_angles):
            value = curve[group, a]
            if (a > 0 or circle) and curve[group, a - 1] > value:
                continue
            if (a < n_angles - 1 or circle) and curve[group, (a + 1) % n_angles] > value:
                continue
            place = len(out)
            while place > 0 and value > height[place - 1]:
                place -= 1
            for later in range(len(out) - 1, place, -1):
                height[later], out[later] = height[later - 1], out[later - 1]
            if place < len(out):
                height[place], out[place] = value, np.int64(shift[group, a]) * n_angles + a
    for place in range(1, len(out)):
        if height[place] == -np.inf:
            out[place] = out[0]
