"""The objective of a recipe with a ``[symmetry]`` table: classification, and how far symmetries hold."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unpose.data import Dataset
from unpose.images import as_batch
from unpose.train.batches import seed_for
from unpose.train.objective import Forward, Objective
from unpose.train.processes import Processes
from unpose.train.recipe import Recipe
from unpose.train.symmetry.base import Bounds, LearnedSymmetry
from unpose.train.symmetry.constrained import InvarianceConstrained
from unpose.train.symmetry.instance import InstanceAugment
from unpose.train.symmetry.soft import SoftEquivariance

_MOST_HELD = 4096
"""Validation images that are kept on the device."""


class SymmetryObjective(Objective):
    """Classification with a :class:`LearnedSymmetry`, whose tensors are saved with the state of the run."""

    def __init__(self, dataset: Dataset, recipe: Recipe, device: torch.device, processes: Processes) -> None:
        super().__init__(dataset, recipe, device, processes)
        self.symmetry = make_symmetry(recipe, dataset).to(device)
        self.extra = self.symmetry.state_dict()  # shares memory with the tensors themselves
        held = dataset.validation.sample(_MOST_HELD, np.random.default_rng(recipe.seed))
        self.held_images = as_batch(held.images, dtype=torch.float32).to(device)  # (n, c, h, w)
        self.held_labels = torch.from_numpy(held.labels).to(device)

    def step(self, forward: Forward, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a step minimises, the loss, both summed over the images, and the number of correct answers."""
        outputs, minimised = self.symmetry(forward, images, labels, self._losses)
        rows = torch.randint(len(self.held_labels), (max(1, len(images) // 2),), device=images.device)
        self.symmetry.measure(forward, self.held_images[rows], self.held_labels[rows], self._losses)
        return minimised, *self.loss(outputs.detach().float(), labels)

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each image, (b,)."""
        smoothing = self.recipe.label_smoothing
        return cross_entropy(outputs.float(), labels, self.weights, label_smoothing=smoothing, reduction="none")

    def adjust(self) -> None:
        """Update what is learned about the symmetries."""
        self.symmetry.adjust(self.processes)

    def notes(self) -> dict[str, Any]:
        """Return what was learned, for the notes of the network's file."""
        return {"symmetry": self.symmetry.strengths()}


def make_symmetry(recipe: Recipe, dataset: Dataset) -> LearnedSymmetry:
    """Build the method of a recipe, with weights from its seed."""
    part = recipe.symmetry
    bounds = Bounds(part.max_angle, part.max_shift, part.max_scale)
    if part.method == "soft":
        return SoftEquivariance(part.groups, part.strength, bounds)
    if part.method == "constrained":
        return InvarianceConstrained(part.groups, part.slack, bounds)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(recipe.seed, "symmetry"))
        return InstanceAugment(part.groups[0], dataset.channels, len(dataset.classes), part.spread, bounds)
