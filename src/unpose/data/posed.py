"""Posed copies of images with the true poses: ground truth for tests, benchmarks and demonstrations."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.groups import Group, parse_continuous
from unpose.images import as_batch, from_batch, warp


@dataclass(frozen=True)
class Posed:
    """Posed copies of images.

    Parameters
    ----------
    images : ndarray, shape (n * copies, h, w) or (n * copies, h, w, c)
        The copies, in floats.
    poses : ndarray, shape (n * copies, 3, 3)
        The pose of each copy, ``copy_from_source``.
    sources : ndarray, shape (n * copies,)
        The index of the image of which each is a copy.

    Examples
    --------
    >>> posed(np.eye(5)[None], copies=2).sources
    array([0, 0])
    """

    images: NDArray
    poses: NDArray
    sources: NDArray

    def __repr__(self) -> str:
        return f"Posed({len(self.images):,} images of {'x'.join(map(str, self.images.shape[1:]))})"

    def _repr_html_(self) -> str:
        """Some of the copies, for notebooks."""
        from unpose.report import evenly_spaced, pictures_html

        shown = evenly_spaced(len(self.images), 12)
        return pictures_html(self.images[shown], [f"copy of {source}" for source in self.sources[shown]])


def posed(
    images: ArrayLike | Tensor,
    group: str | Group = "se2",
    *,
    copies: int = 1,
    shape: tuple[int, int] | None = None,
    random_state: int | torch.Generator = 0,
    **bounds: Any,
) -> Posed:
    """Make copies of images at random poses, each resampled once from its original.

    Parameters
    ----------
    images : array_like, shape (n, h, w) or (n, h, w, c)
        The originals.
    group : str or Group, default "se2"
        The group from which poses are drawn.
    copies : int, default 1
        How many copies to make of each image; copies of one image are adjacent.
    shape : (int, int), optional
        Height and width of the copies, for a larger canvas; by default that of the images.
    random_state : int or torch.Generator, default 0
        A seed, or a generator, whose state advances.
    **bounds : float
        ``max_angle`` (radians), ``max_shift`` (pixels), ``max_scale`` and so on, as for the group's ``random``.

    Returns
    -------
    Posed
        Copies, true poses and the index of the original of each.

    Examples
    --------
    >>> copies = posed(np.eye(5)[None], "se2", copies=3, shape=(9, 9), max_shift=1.0)
    >>> copies.images.shape, copies.poses.shape
    ((3, 9, 9), (3, 3, 3))
    """
    batch = as_batch(images)
    if copies < 1:
        raise ValueError(f"copies must be at least 1, got {copies}")
    sources = torch.arange(len(batch)).repeat_interleave(copies)
    generator = random_state
    if not isinstance(generator, torch.Generator):
        generator = torch.Generator().manual_seed(int(generator))
    poses = parse_continuous(group).random(len(sources), generator=generator, dtype=torch.float64, **bounds)
    warped = warp(batch[sources], poses.to(batch), shape)
    channels = np.ndim(images[0]) == 3  # type: ignore[index]
    return Posed(from_batch(warped, channels=channels), poses.numpy(), sources.numpy())
