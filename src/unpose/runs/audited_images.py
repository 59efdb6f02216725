"""The images of an audit, with their names and classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.images import from_batch


@dataclass(frozen=True)
class AuditedImages:
    """The images of an audit, and what is known about them.

    Parameters
    ----------
    batch : (n, c, h, w) tensor
        At least two images, as the model takes them.
    names : sequence of n str
        Their names.
    labels : sequence of n int, optional
        Their classes.
    class_names : sequence of str, default ()
        Names of the model's classes, in the order of its scores.
    source : str, default ""
        Where they come from, in words.
    offset, scale : tuple of float, default (0.0,) and (1.0,)
        ``pixels * scale + offset`` are the pixels as people see them; one number, or one per channel.

    Examples
    --------
    >>> len(AuditedImages(torch.zeros(2, 1, 8, 8), ["a.png", "b.png"]))
    2
    """

    batch: Tensor
    names: Sequence[str]
    labels: Sequence[int] | None = None
    class_names: Sequence[str] = ()
    source: str = ""
    offset: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)

    def __len__(self) -> int:
        return len(self.batch)

    def subset(self, rows: Sequence[int] | NDArray) -> "AuditedImages":
        """Some of the images, by their positions."""
        index = [int(row) for row in rows]
        labels = None if self.labels is None else [self.labels[i] for i in index]
        names = [self.names[i] for i in index]
        return AuditedImages(self.batch[index], names, labels, self.class_names, self.source, self.offset, self.scale)

    def visible(self, batch: NDArray) -> NDArray:
        """Pictures (n, c, h, w) that the model takes as pictures for people, (n, h, w) or (n, h, w, c)."""
        shape = (1, -1, 1, 1)
        pixels = batch * np.reshape(self.scale, shape) + np.reshape(self.offset, shape)
        return from_batch(torch.from_numpy(pixels).float(), channels=batch.shape[1] > 1)
