"""How a training uses the machine. What is learnt does not depend on it but for rounding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Capture = Callable[[Callable[[], None], Callable[[], list[Tensor]], torch.device], Any]
"""Records a function once, given the tensors that it changes and their device, as :func:`.cuda_graph.capture` does.

It returns an object with a method ``replay``, or None where the function cannot be recorded."""


@dataclass(frozen=True)
class Limits:
    """When a run of :func:`unpose.train.train` saves, waits and captures, and what it keeps in memory and in files.

    Parameters
    ----------
    checkpoint_seconds : float, default 300.0
        Time after which the state is saved between two epochs.
    loss_interval : int, default 20
        Steps between reads of the loss on a GPU, where every read synchronises.
    resident_fraction : float, default 0.25
        Largest fraction of a GPU's free memory that training images may occupy to stay resident there.
    listed_images : int, default 50_000
        Largest number of training images whose hashes a network's file lists: 400 kB, a tenth of the header limit.
    capture : callable, optional
        How a training step is recorded; by default as a CUDA graph on a single GPU, and nowhere else.
    """

    checkpoint_seconds: float = 300.0
    loss_interval: int = 20
    resident_fraction: float = 0.25
    listed_images: int = 50_000
    capture: Capture | None = None
