"""The images of an audit, with their names and classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.images import from_batch


@dataclass(frozen=True)
class AuditedImages:
    """At least two images of an audit, and what is known about them.

    ``pixels * scale + offset`` are the pixels as people see them; ``scale`` and ``offset`` have one number, or one for
    each channel.
    """

    batch: Tensor  # (n, c, h, w), as the model takes them
    names: Sequence[str]
    labels: Sequence[int] | None = None  # their classes
    class_names: Sequence[str] = ()  # of the model's classes, in the order of its scores
    source: str = ""  # where they come from, in words
    offset: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    are_noise: bool = False  # so that answers mean nothing

    def __len__(self) -> int:
        return len(self.batch)

    def subset(self, rows: Sequence[int] | NDArray) -> "AuditedImages":
        """Some of the images, by their positions."""
        index = [int(row) for row in rows]
        labels = None if self.labels is None else [self.labels[i] for i in index]
        return replace(self, batch=self.batch[index], names=[self.names[i] for i in index], labels=labels)

    def visible(self, batch: NDArray) -> NDArray:
        """Pictures (n, c, h, w) that the model takes as pictures for people, (n, h, w) or (n, h, w, c)."""
        shape = (1, -1, 1, 1)
        pixels = batch * np.reshape(self.scale, shape) + np.reshape(self.offset, shape)
        return from_batch(torch.from_numpy(pixels).float(), channels=batch.shape[1] > 1)
