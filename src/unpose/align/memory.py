"""How much memory a search needs, estimated before it starts; ``benchmarks/memory.py`` compares it with the peak."""

import math
from collections.abc import Callable
from dataclasses import replace

from unpose.align import coarse
from unpose.align.search import Search
from unpose.files import in_bytes, readable_bytes

__all__ = ["MemoryBudgetError", "check_memory", "needed_memory"]

_INTERPRETER = 450 * 10**6
"""Python with torch and numba, and the kernels."""
_CHUNK = 50 * 10**6
"""One chunk of pairs that are refined."""
_PER_IMAGE = 16_000
"""Candidates of an image, with their poses."""
_VIEW_COPIES = 6
"""Copies of the views of one tile of images that a thread holds at once, without mirror."""
_COEFFICIENTS = 64
_PER_INDEXED_IMAGE = 5_000
"""Signature, candidates and pairs of an image in the search with an index."""
_PIXELS_IN_BLOCK = 2**23
"""Pixels of all images of a block of pairs of that search."""
_MIN_SIDE = 8


class MemoryBudgetError(ValueError):
    """A search that is estimated to need more memory than its budget.

    Attributes
    ----------
    needed, budget : int
        Bytes.
    what : str
        What needs it, such as "400 images of 48 x 48".
    fitting_side : int or None
        Longer side, in pixels, of images that fit the budget; None if not even small ones do.

    Examples
    --------
    >>> import numpy as np
    >>> from unpose.align import nearest
    >>> try:
    ...     nearest(np.random.default_rng(0).random((9, 40, 40)), 2, memory="500MB")
    ... except MemoryBudgetError as error:
    ...     print(error.what, error.fitting_side)
    9 images of 40 x 40 None
    """

    def __init__(self, needed: int, budget: int, what: str, fitting_side: int | None) -> None:
        self.needed, self.budget, self.what, self.fitting_side = needed, budget, what, fitting_side
        smaller = f", images of at most {fitting_side} pixels" if fitting_side else ""
        super().__init__(
            f"about {readable_bytes(needed)} are needed for {what}, more than the budget of {readable_bytes(budget)}; "
            f"give memory={readable_bytes(needed)!r}{smaller}, or smaller bounds (max_shift, max_scale)"
        )


def needed_memory(n_fixed: int, n_moving: int, shape: tuple[int, int], channels: int, search: Search) -> int:
    """Estimate the peak memory of a search in bytes; beyond the images, all work is done in chunks of fixed size.

    ``n_moving`` is 0 if the images are searched among themselves.
    """
    plan = coarse.make_plan(shape, search)
    views, copies = len(plan.unmirrored), _VIEW_COPIES * (2 if plan.group.mirrored else 1)
    images = 4 * (n_fixed + n_moving) * math.prod(shape) * channels * (2 + 2 / plan.factor**2)
    analysis = 8 * (_COEFFICIENTS // channels or 1) * math.prod(plan.shape) * views
    n_threads = min(search.n_threads, math.ceil(max(n_fixed, n_moving) / coarse.TILE))
    tiles = n_threads * coarse.TILE * (8 * _COEFFICIENTS * views * copies + 16 * n_fixed)
    return int(_INTERPRETER + images + analysis + tiles + _CHUNK + _PER_IMAGE * n_fixed)


def needed_by_index(n: int, shape: tuple[int, int], channels: int, search: Search) -> int:
    """Estimate the peak memory of a search with an index in bytes; images are read in blocks of fixed size."""
    factor = coarse.make_plan(shape, search).factor
    pixels = min(_PIXELS_IN_BLOCK, n * math.prod(shape) * channels)
    return int(_INTERPRETER + _CHUNK + 4 * pixels * (4 + 4 / factor**2) + _PER_INDEXED_IMAGE * n)


def check_memory(n_fixed: int, n_moving: int, shape: tuple[int, int], channels: int, search: Search) -> None:
    """Refuse a search that is estimated to need more memory than its budget, if it has one.

    Parameters
    ----------
    n_fixed : int
        Number of images whose neighbours are searched, or onto which others are brought.
    n_moving : int
        Number of images on the other side; 0 if the images are searched among themselves.
    shape : (int, int)
        Height and width of the images.
    channels : int
        Number of their channels.
    search : Search
        Its ``memory`` is the budget.

    Raises
    ------
    MemoryBudgetError
        With the memory that is needed and the size of images that fits the budget.

    Examples
    --------
    >>> check_memory(100, 0, (48, 48), 1, Search(memory="4GB"))
    """
    _refuse_above_budget(lambda *of: needed_memory(n_fixed, n_moving, *of), n_fixed, shape, channels, search)


def check_index_memory(n: int, shape: tuple[int, int], channels: int, search: Search) -> None:
    """:func:`check_memory` of a search with an index among n images."""
    _refuse_above_budget(lambda *of: needed_by_index(n, *of), n, shape, channels, search)


def _refuse_above_budget(
    need: Callable[[tuple[int, int], int, Search], int], n: int, shape: tuple[int, int], channels: int, search: Search
) -> None:
    if search.memory is None:
        return
    budget, needed = in_bytes(search.memory), need(shape, channels, search)
    if needed <= budget:
        return
    longer, fitting = max(shape), None
    for side in range((longer - 1) // 8 * 8, _MIN_SIDE, -8):
        small = tuple(math.ceil(each * side / longer) for each in shape)
        shift = None if search.max_shift is None else search.max_shift * side / longer
        scaled = replace(search, max_shift=shift, mask=None)
        if need((small[0], small[1]), channels, scaled) <= budget:
            fitting = side
            break
    raise MemoryBudgetError(needed, budget, f"{n:,} images of {shape[0]} x {shape[1]}", fitting)
