"""Encoders that are learnt from the images that are to be clustered, for ``features="learn"``."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unpose.align import Progress
from unpose.cluster.pieces import Batch, as_stored

LEARN = "learn"
"""Features of an encoder that is learnt from the images themselves."""
_MOST_IMAGES = 20_000
"""More images are not learnt from; the others get their vectors all the same."""


def learn_encoder(
    images: Tensor | Batch,
    group: str,
    max_angle: float = math.pi,
    *,
    device: str | torch.device = "cpu",
    random_state: int = 0,
    progress: Progress | None = None,
    steps: int | None = None,
) -> Any:
    """Learn an encoder from images (n, c, h, w), of which at most 20,000 are read; returns a network.

    On a CPU the small recipe is taken, which costs minutes for images of 40 pixels. ``steps`` of an epoch are
    those of the recipe if they are not given.
    """
    from unpose.train import train_unlabelled, unlabelled_recipe

    small = torch.device(device).type == "cpu"
    recipe = unlabelled_recipe(group, max_angle=max_angle, small=small, seed=random_state)
    if steps is not None:
        recipe = replace(recipe, unlabelled=replace(recipe.unlabelled, steps=steps))
    report = None if progress is None else lambda step: progress("learn", step.step, step.steps)
    rows = np.linspace(0, len(images) - 1, min(len(images), _MOST_IMAGES)).round().astype(np.int64)
    some = np.ascontiguousarray(as_stored(images[rows].cpu()))
    return train_unlabelled(some, recipe, device=device, progress=report).encoder
