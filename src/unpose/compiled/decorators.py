"""Numba decorators shared by all CPU kernels, and the message that kernels are being compiled.

Numba compiles a kernel when it is first called and keeps the machine code beside the source, in the user's cache folder
if the source cannot be written to, or where the environment variable ``NUMBA_CACHE_DIR`` says. Kernels are compiled
again in every process if none of these can be written to.
"""

import logging
from typing import Any

import numba
from numba.core import event

_log = logging.getLogger("unpose")


def can_cache(probe: Any = lambda: None) -> bool:
    """Whether there is a folder in which numba can keep the machine code of a function."""
    try:
        numba.njit(cache=True)(probe)
    except RuntimeError:  # "no locator available for file ..."
        return False
    return True


CACHE = can_cache()
"""Whether machine code is kept between processes."""
NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of functions that only kernels call: what would let Python call them takes a seventh of the compilation."""
# "contract" allows fused multiply-add. Sums are never reordered.
compiled = numba.njit(nogil=True, cache=CACHE, fastmath={"contract"}, error_model="numpy")
"""Decorator of kernels: compiled on the first call, without the interpreter's lock."""
inner = numba.njit(nogil=True, cache=CACHE, fastmath={"contract"}, error_model="numpy", **NO_WRAPPERS)
"""Decorator of functions that only kernels call."""
# LLVM inlines them: numba's own ``inline="always"`` infers the types of every copy again, which takes most of the time.
inlined = numba.njit(
    nogil=True, cache=CACHE, fastmath={"contract"}, error_model="numpy", forceinline=True, **NO_WRAPPERS
)
"""Decorator of small functions that are inlined into a kernel."""


class _Announcement(event.Listener):
    """Says once in a process that kernels are compiled; a kernel that is loaded from the cache says nothing.

    A message of the level "warning" reaches stderr unless the program has set up logging of its own.
    """

    _said = False

    def on_start(self, event: Any) -> None:
        kernel = event.data["dispatcher"]
        if self._said or not kernel.py_func.__module__.startswith("unpose."):
            return
        self._said = True
        if folder := kernel.stats.cache_path:
            kept = f"which takes up to a minute once; the result is kept in {folder}"
        else:
            kept = "which takes up to a minute in every process, because no cache folder can be written to; set "
            kept += "NUMBA_CACHE_DIR to a folder that can"
        _log.warning("unpose compiles code for this machine, %s", kept)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Announcement())
