"""Posed copies of images, with the true poses: the ground truth of tests, benchmarks and demonstrations."""

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
    """Posed copies of images."""

    images: NDArray  # (n * copies, h, w) or (n * copies, h, w, c), float
    poses: NDArray  # (n * copies, 3, 3): brings the source onto the copy
    sources: NDArray  # (n * copies,) which image each is a copy of


def posed(
    images: ArrayLike | Tensor,
    group: str | Group = "se2",
    *,
    copies: int = 1,
    shape: tuple[int, int] | None = None,
    random_state: int | torch.Generator = 0,
    **bounds: Any,
) -> Posed:
    """Copies of images at random poses, each resampled once from its original.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c)
    group : whose elements are drawn
    copies : how many of each image; copies of one image stand together.
    shape : (height, width) of the copies, for a canvas with room to move; the images' own by default.
    random_state : seed, or torch's own generator, which moves on
    bounds : ``max_angle`` (radians), ``max_shift`` (pixels), ``max_scale`` and so on, as for the group's ``random``.

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
