"""Images that do not fit into memory: read in pieces, and kept without effects of light in a file.

:class:`Batch` takes the place of the tensor of all images in :class:`InvariantClustering`: it has the shape of that
tensor, and its rows are read as tensors.
"""

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.cluster.light import LIGHT_CONTRAST, bounded, local_contrast, varies, without_background
from unpose.cluster.limits import DEFAULT, Limits
from unpose.files import ImagesInPieces, images_in_pieces, store_images
from unpose.images import as_batch

Folder = str | os.PathLike[str] | None
"""Where files of the size of the images are written; None for a temporary folder."""


class Batch:
    """Images in pieces as tensors (m, c, h, w); ``images`` are the same as an array-like with the channels last."""

    def __init__(self, images: ImagesInPieces, *, channels_first: bool = False, limits: Limits = DEFAULT) -> None:
        self.images, self._channels_first, self.limits = images, channels_first, limits

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(n, c, h, w)"""
        if self.images.ndim == 3:
            return self.images.shape[0], 1, self.images.shape[1], self.images.shape[2]
        n, *sides = self.images.shape
        channels, height, width = sides if self._channels_first else (sides[2], sides[0], sides[1])
        return n, channels, height, width

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Any) -> Tensor:
        images = self.images[rows]
        if len(images) == 0:
            return torch.zeros(0, *self.shape[1:])
        return bounded(as_batch(images, dtype=torch.float32, channels_first=self._channels_first))

    def __iter__(self) -> Iterator[Tensor]:
        for piece in self.pieces():
            yield from piece

    def pieces(self) -> Iterator[Tensor]:
        """All images as tensors (m, c, h, w)."""
        length = max(1, self.limits.piece_pixels // math.prod(self.shape[1:]))
        for start in range(0, len(self), length):
            yield self[start : start + length]

    def take(self, rows: NDArray) -> "Batch":
        """Some of the images, which are not read yet."""
        return Batch(self.images.take(rows), channels_first=self._channels_first, limits=self.limits)

    def map(self, function: Callable[[Tensor], Tensor], folder: Folder = None) -> "Batch":
        """A function (m, c, h, w) -> (m, c, h', w') of the images, computed piece by piece and kept in a file."""
        stored = store_images((as_stored(function(piece)) for piece in self.pieces()), folder)
        return Batch(stored, limits=self.limits)


def as_stored(batch: Tensor) -> NDArray:
    """Images (m, c, h, w) with the channels last, (m, h, w) if there is only one."""
    array = batch.movedim(1, -1).numpy()
    return array[..., 0] if array.shape[-1] == 1 else array


def as_pieces(X: Any, limits: Limits = DEFAULT) -> ImagesInPieces | None:
    """Many images that are not an array in memory as :class:`ImagesInPieces`; None for anything else.

    These are arrays of Dask, Zarr and h5py, memory maps, and :class:`unpose.files.ImagesInPieces`.
    """
    is_sliceable = all(hasattr(X, name) for name in ("shape", "dtype", "__getitem__"))
    in_memory = isinstance(X, Tensor) or (isinstance(X, np.ndarray) and not isinstance(X, np.memmap))
    if in_memory or not is_sliceable or hasattr(X, "iloc") or len(X.shape) not in (3, 4):
        return None
    return images_in_pieces(X) if X.shape[0] > limits.in_memory else None


def take(images: "Tensor | Batch", rows: NDArray) -> Any:
    """Some of the images: of a tensor they are copied, of a batch in pieces they are not read yet."""
    return images.take(rows) if isinstance(images, Batch) else images[rows]


def normalise_pieces(given: Batch, light: str, folder: Folder = None) -> tuple[Batch, NDArray]:
    """Images without effects of light, and which of them are not constant, (n,).

    The same values, up to rounding, as those of ``normalise_light`` and ``has_content`` in :mod:`unpose.cluster.light`.
    Images are kept in a file before they are scaled to one norm; the factors are applied whenever they are read.
    """
    if light not in LIGHT_CONTRAST:
        raise ValueError(f"light must be one of {', '.join(map(repr, LIGHT_CONTRAST))}, got {light!r}")
    n = len(given)
    norm, before, low, high = (torch.empty(n) for _ in range(4))
    start = 0

    def flatten(piece: Tensor) -> Tensor:
        nonlocal start
        flat = piece if light == "keep" else without_background(piece)
        rows = slice(start, start + len(piece))
        before[rows] = torch.linalg.vector_norm(piece.flatten(1), dim=1)
        norm[rows] = torch.linalg.vector_norm(flat.flatten(1), dim=1)
        signal[rows] = norm[rows] > 1e-5 * before[rows].clamp(min=1e-12)
        if light == "local":
            flat = local_contrast(flat)
            norm[rows] = torch.linalg.vector_norm(flat.flatten(1), dim=1)
        low[rows], high[rows] = flat.flatten(1).amin(1), flat.flatten(1).amax(1)
        start += len(piece)
        return flat

    signal = torch.ones(n, dtype=torch.bool)
    found, factor = given.map(flatten, folder), torch.ones(n)
    if light != "keep":
        typical = norm[signal].median() if signal.any() else torch.zeros(())
        factor = torch.where(signal, typical / norm.clamp(min=1e-30), 0.0)
        found = Batch(found.images.scaled(factor.numpy()), limits=given.limits)
    return found, varies(low * factor, high * factor).numpy()
