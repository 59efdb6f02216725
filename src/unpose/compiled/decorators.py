"""Numba decorators shared by all CPU kernels."""

import numba

inlined = numba.njit(nogil=True, cache=True, inline="always")
# "contract" lets the compiler fuse multiply and add; nothing may reorder sums.
compiled = numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
