"""Numba decorators shared by all CPU kernels."""

import numba

inlined = numba.njit(nogil=True, cache=True, inline="always")
# "contract" allows fused multiply-add. Sums are never reordered.
compiled = numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
