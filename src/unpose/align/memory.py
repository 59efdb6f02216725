"""How much memory a search needs, estimated before it starts; ``benchmarks/memory.py`` compares it with the peak."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

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
_PER_START = 900
"""A pose from which a pair is refined, with what is found there."""
_PAIRS = {"cpu": 256, "cuda": 65536}
"""Pairs of 40-pixel images that are refined at once, by device type."""
_FEWEST_PAIRS = 2048
"""Pairs of 40-pixel images that a GPU refines at once within the smallest budget."""
_PER_PIXEL_OF_PAIR = 80
"""On a GPU, where all arrays of all pairs of a chunk are held at once; on an H200 the peak was 60 to 76 bytes."""
_BANK = 10**9
"""What the search of the grid holds on a GPU."""
_SHARE_OF_GPU = 0.8
_VIEW_COPIES = 6
"""Copies of the views of one tile of images that a thread holds at once, without mirror."""
_COEFFICIENTS = 64
_PER_INDEXED_IMAGE = 5_000
"""Signature, candidates and pairs of an image in the search with an index."""
_MOST_PIXELS_IN_BLOCK = 2**30
"""Pixels of all images of a block of pairs in that search on a GPU."""
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


def needed_memory(
    n_fixed: int, n_moving: int, shape: tuple[int, int], channels: int, search: Search, n_starts: int = 0
) -> int:
    """Estimate the peak memory of a search in bytes; beyond images and pairs, all work is done in chunks.

    ``n_moving`` is 0 if the images are searched among themselves; ``n_starts`` poses of given pairs are refined. On a
    GPU the estimate is that of the smallest chunks.
    """
    plan = coarse.make_plan(shape, search)
    views, copies = len(plan.unmirrored), _VIEW_COPIES * (2 if plan.group.mirrored else 1)
    images = 4 * (n_fixed + n_moving) * math.prod(shape) * channels * (2 + 2 / plan.factor**2)
    analysis = 8 * (_COEFFICIENTS // channels or 1) * math.prod(plan.shape) * views
    n_threads = 1 if _on_gpu(search) else min(search.n_threads, math.ceil(max(n_fixed, n_moving) / coarse.TILE))
    tiles = n_threads * coarse.TILE * (8 * _COEFFICIENTS * views * copies + 16 * n_fixed)
    held = max(_PER_IMAGE * n_fixed, _PER_START * n_starts)
    return int(_INTERPRETER + images + analysis + tiles + _chunk(search) + held)


def needed_by_index(n: int, shape: tuple[int, int], channels: int, search: Search) -> int:
    """Estimate the peak memory of a search with an index in bytes; images are read in blocks of fixed size."""
    factor = coarse.make_plan(shape, search).factor
    pixels = min(search.at_once.pixels, n * math.prod(shape) * channels)
    return int(_INTERPRETER + _chunk(search) + pixels * _per_pixel_in_block(factor) + _PER_INDEXED_IMAGE * n)


def pairs_at_once(needed: int, pixels: int, search: Search, share: float = 1.0) -> int:
    """Pairs of images with this number of pixels, all channels, that are refined at once in a search.

    On the CPU it depends on the size of the images alone, so that results are the same bytes whatever the budget. On a
    GPU it follows the budget and the memory of the GPU: it fills a share of what ``needed``, the estimate with the
    smallest chunks, leaves.
    """
    kind = torch.device(search.device).type
    most = max(16, int(_PAIRS.get(kind, _PAIRS["cpu"]) * 1600 / pixels))
    if kind != "cuda":
        return most
    fewest = max(16, int(_FEWEST_PAIRS * 1600 / pixels))
    return fewest + int(
        min(max(0, most - fewest), share * _left_on_gpu(needed, search) / (_PER_PIXEL_OF_PAIR * pixels))
    )


def pixels_in_block(needed: int, shape: tuple[int, int], search: Search, share: float) -> int:
    """Pixels of all images of a block of pairs in a search with an index; like :func:`pairs_at_once`."""
    if not _on_gpu(search):
        return search.at_once.pixels
    more = share * _left_on_gpu(needed, search) / _per_pixel_in_block(coarse.make_plan(shape, search).factor)
    return int(min(_MOST_PIXELS_IN_BLOCK, search.at_once.pixels + more))


def _left_on_gpu(needed: int, search: Search) -> float:
    """What the budget and the memory of the GPU leave beside ``needed``."""
    limits = [math.inf if search.memory is None else in_bytes(search.memory)]
    if torch.cuda.is_available():
        limits.append(_SHARE_OF_GPU * torch.cuda.get_device_properties(torch.device(search.device)).total_memory)
    return max(0.0, min(limits) - needed)


def _on_gpu(search: Search) -> bool:
    return torch.device(search.device).type == "cuda"


def _chunk(search: Search) -> int:
    """What one chunk of pairs takes at least."""
    return _BANK + 1600 * _FEWEST_PAIRS * _PER_PIXEL_OF_PAIR if _on_gpu(search) else _CHUNK


def _per_pixel_in_block(factor: float) -> float:
    return 4 * (4 + 4 / factor**2)


def check_memory(
    n_fixed: int, n_moving: int, shape: tuple[int, int], channels: int, search: Search, *, n_starts: int = 0
) -> None:
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
    n_starts : int, default 0
        Number of poses from which given pairs of images are refined: three for each pair of a matrix of distances.

    Raises
    ------
    MemoryBudgetError
        With the memory that is needed and the size of images that fits the budget.

    Examples
    --------
    >>> check_memory(100, 0, (48, 48), 1, Search(memory="4GB"))
    """

    def need(shape: tuple[int, int], channels: int, search: Search) -> int:
        return needed_memory(n_fixed, n_moving, shape, channels, search, n_starts)

    _refuse_above_budget(need, n_fixed, shape, channels, search, n_starts)


def check_index_memory(n: int, shape: tuple[int, int], channels: int, search: Search) -> None:
    """:func:`check_memory` of a search with an index among n images."""
    _refuse_above_budget(lambda *of: needed_by_index(n, *of), n, shape, channels, search)


def _refuse_above_budget(
    need: Callable[[tuple[int, int], int, Search], int],
    n: int,
    shape: tuple[int, int],
    channels: int,
    search: Search,
    n_starts: int = 0,
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
    pairs = f" and {n_starts:,} poses of their pairs" if n_starts else ""
    raise MemoryBudgetError(needed, budget, f"{n:,} images of {shape[0]} x {shape[1]}{pairs}", fitting)
