"""The settings of a search over poses, as one value that is checked when it is made."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from unpose.align.blocks import Executor
from unpose.align.photometry import CONTRASTS
from unpose.files import in_bytes
from unpose.groups import Group, parse_continuous
from unpose.images import pixel_grid

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, how much of it is done, and of how much."""


@dataclass(frozen=True)
class Limits:
    """How much of a search is computed at once, and stored as one checkpoint.

    The defaults are those of the CPU. Results do not depend on them, but for the last two, of a search with an index.

    Parameters
    ----------
    searched : int, default 2048
        Images whose coarse neighbours are searched among all others. The views of the other images are computed again
        for every block, which costs 6 % of its time on the CPU.
    gridded : int, default 1024
        Images whose candidates are searched on the whole grid.
    refined : int, default 256
        Images whose neighbours are refined; memory must not grow with the pairs.
    pairs : int, default 32768
        Pairs that are compared or refined once for both of their images.
    aligned : int, default 1024
        Pairs that are aligned where other processes compute blocks.
    indexed : int, default 2048
        Images that are described, or whose candidates are searched, in a search with an index.
    tile : int, default 256
        Those of them that a thread describes.
    sorted : int, default 65536
        Images whose pairs are sorted.
    pixels : int, default 8388608
        Pixels of all images of a block of pairs in a search with an index; on a GPU the fewest.
    sample : int, default 2048
        Images that the index is fitted to.
    cell : int, default 256
        Images of a cell of the index on average.

    Examples
    --------
    >>> Search(limits=Limits(refined=64)).limits.refined
    64
    """

    searched: int = 2**11
    gridded: int = 2**10
    refined: int = 2**8
    pairs: int = 2**15
    aligned: int = 2**10
    indexed: int = 2**11
    tile: int = 2**8
    sorted: int = 2**16
    pixels: int = 2**23
    sample: int = 2**11
    cell: int = 2**8


_ON_GPU = Limits(
    searched=2**14, gridded=2**14, refined=2**12, pairs=2**20, aligned=2**16, indexed=2**15, tile=2**13, sorted=2**21
)


class SearchSettings(TypedDict, total=False):
    """The fields of :class:`Search` as keyword arguments of a function, for type checkers.

    Examples
    --------
    >>> settings: SearchSettings = {"group": "affine", "max_angle": 0.5}
    >>> Search(**settings).max_angle
    0.5
    """

    group: str | Group
    max_angle: float
    max_shift: float | None
    max_scale: float
    contrast: str
    mask: str | ArrayLike | None
    device: str | torch.device
    n_jobs: int | None
    memory: int | str | None
    progress: Progress | None
    executor: Executor | None
    limits: Limits | None


@dataclass(frozen=True, eq=False)
class Search:
    """Which poses are searched, how images are compared at them, and with what resources.

    Parameters
    ----------
    group : str or Group, default "se2"
        Poses to search: translation, so2, se2, similarity, affine or perspective, each also with ``+mirror``. Affine
        and perspective poses are refined from the best similarity.
    max_angle : float, default pi
        Largest rotation in radians.
    max_shift : float, optional
        Largest shift in pixels; a quarter of the larger side of the images by default.
    max_scale : float, default 1.5
        Largest factor of scale; scales from ``1 / max_scale`` to ``max_scale`` are searched.
    contrast : {"none", "offset", "gain", "affine"}, default "none"
        Changes of brightness that the distance ignores; see :mod:`unpose.align.photometry`.
    mask : None, "disc" or array of shape (h, w), default None
        Pixels that are compared, those with positive entries; the background outside is ignored.
    device : str or torch.device, default "cpu"
        Where the search runs, such as ``"cuda"``.
    n_jobs : int, optional
        Number of threads on the CPU: torch's own number by default, -1 for all processors, -2 for all but one.
        Results do not depend on it.
    memory : int or str, optional
        Memory budget in bytes or such as ``"2GB"``; a search that is estimated to need more raises an error before it
        starts. On the CPU results do not depend on it. A GPU refines fewer pairs at once within a smaller budget, and
        results differ by rounding.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.
    executor : Executor, optional
        Where the blocks of a search for neighbours are computed (:mod:`unpose.align.blocks`): in this process by
        default. Results do not depend on it.
    limits : Limits, optional
        How much is computed at once; by default what suits the device.

    Examples
    --------
    >>> from dataclasses import replace
    >>> search = Search(group="similarity", max_scale=1.2)
    >>> replace(search, max_angle=0.5).max_scale
    1.2
    """

    group: str | Group = "se2"
    max_angle: float = math.pi
    max_shift: float | None = None
    max_scale: float = 1.5
    contrast: str = "none"
    mask: str | ArrayLike | None = None
    device: str | torch.device = "cpu"
    n_jobs: int | None = None
    memory: int | str | None = None
    progress: Progress | None = None
    executor: Executor | None = None
    limits: Limits | None = None

    def __post_init__(self) -> None:
        parse_continuous(self.group)
        for name, least in (("max_angle", 0.0), ("max_shift", 0.0), ("max_scale", 1.0)):
            value = getattr(self, name)
            if value is None and name == "max_shift":
                continue
            if not isinstance(value, Real) or not least <= float(value) < math.inf:
                raise ValueError(f"{name} must be a number of at least {least:g}, got {value!r}")
        if self.contrast not in CONTRASTS:
            raise ValueError(f"contrast must be one of {', '.join(CONTRASTS)}, got {self.contrast!r}")
        if isinstance(self.mask, str) and self.mask != "disc":
            raise ValueError(f"mask must be 'disc', an array of shape (h, w) or None, got {self.mask!r}")
        if self.n_jobs is not None and not isinstance(self.n_jobs, Integral):
            raise ValueError(f"n_jobs must be a whole number or None, got {self.n_jobs!r}")
        if self.n_jobs == 0:
            raise ValueError("n_jobs must be at least 1, or -1 for all processors, got 0")
        if self.memory is not None:
            in_bytes(self.memory)

    @property
    def n_threads(self) -> int:
        """Number of CPU threads, counted as scikit-learn counts ``n_jobs``."""
        if self.n_jobs is None:
            return torch.get_num_threads()
        return int(self.n_jobs) if self.n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + self.n_jobs)

    @property
    def at_once(self) -> Limits:
        """How much is computed at once: ``limits``, or what suits the device."""
        return self.limits or (_ON_GPU if torch.device(self.device).type == "cuda" else Limits())

    def mask_for(self, shape: tuple[int, int]) -> Tensor:
        """Return the mask for images of a shape (h, w), as zeros and ones."""
        if self.mask is None:
            return torch.ones(shape)
        if isinstance(self.mask, str):
            return (pixel_grid(shape).norm(dim=-1) <= min(shape) / 2).float()
        mask = torch.as_tensor(np.asarray(self.mask, dtype=np.float32))
        if mask.shape != shape or not torch.isfinite(mask).all() or not (mask > 0).any():
            raise ValueError(f"mask must be an array of shape {shape} with a positive entry, got {tuple(mask.shape)}")
        return (mask > 0).float()

    def report(self, stage: str, done: int, total: int) -> None:
        """Call ``progress``, if there is one."""
        if self.progress is not None:
            self.progress(stage, done, total)
