"""What a training run optimizes and measures; the loop of :mod:`unpose.train.loop` is the same for every objective."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unpose.data import Dataset
from unpose.nn import Network
from unpose.train.batches import ImageStore, order_of_epoch, steps_in_epoch, training_batch
from unpose.train.evaluation import validate
from unpose.train.processes import Processes
from unpose.train.recipe import Recipe
from unpose.train.state import COLUMNS

Forward = Callable[[Tensor], Tensor]
"""The network: images (b, c, h, w) to outputs (b, classes)."""


class Objective:
    """Classification of labelled images, by cross entropy. :mod:`unpose.train.unlabelled` derives another from it."""

    columns: ClassVar[tuple[str, ...]] = COLUMNS
    """Entries of a row of the history."""

    def __init__(self, dataset: Dataset, recipe: Recipe, device: torch.device, processes: Processes) -> None:
        self.dataset, self.recipe, self.device, self.processes = dataset, recipe, device, processes
        self.weights = _class_weights(dataset, recipe, device)
        self.extra: dict[str, Tensor] = {}  # what must be known to resume; written in place and saved with the state

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the outputs of the network that is kept."""
        return tuple(self.dataset.classes)

    def trained(self, network: Network) -> Network:
        """Return what is trained, given the network of the recipe."""
        return network

    def kept(self, network: Network) -> Network:
        """Return what is kept in a file, given what was trained."""
        return network

    def steps_in_epoch(self, batch: int) -> int:
        """Return the number of steps of an epoch; ``batch`` is the number of images of a step over all processes."""
        return steps_in_epoch(len(self.dataset.train), batch)

    def order(self, epoch: int, batch: int) -> Tensor:
        """Return the images of an epoch by index, in the order in which its steps take them."""
        return order_of_epoch(len(self.dataset.train), self.recipe.seed, epoch)

    def batch(self, store: ImageStore, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return this process's images and labels of a step: (b, c, h, w) and (b,)."""
        return training_batch(store, rows, self.recipe.poses, self.recipe.seed, step, self.processes)

    def loss(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, summed over the images, and the number of correct answers: two 0-d tensors."""
        smoothing = self.recipe.label_smoothing
        loss = cross_entropy(outputs, labels, weight=self.weights, label_smoothing=smoothing, reduction="sum")
        return loss, (outputs.detach().argmax(1) == labels).sum()

    def step(self, forward: Forward, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a step minimises, the loss, both summed over the images, and the number of correct answers.

        ``forward`` is the network in the precision of training.
        """
        loss, correct = self.loss(forward(images).float(), labels)
        return loss, loss, correct

    def adjust(self) -> None:
        """Update ``extra`` after the gradients of a step were computed; by default nothing changes."""

    def notes(self) -> dict[str, Any]:
        """Return what the objective adds to the notes of the network's file."""
        return {}

    def figures(self, network: Network, loss: float, correct: float) -> dict[str, float]:
        """Measure the network after an epoch; ``loss`` and ``correct`` are means over the epoch's images.

        Every value must be finite, or the run is taken to have diverged.
        """
        # Validate in the precision of training: another would compile other kernels. The test uses float32.
        mixed = self.recipe.is_mixed_on(self.device.type)
        found = validate(network, self.dataset.validation, self.processes, self.device, mixed=mixed)
        values = (loss, correct, *found)
        return dict(
            zip(("train_loss", "train_accuracy", "validation_loss", "validation_accuracy"), values, strict=True)
        )


def _class_weights(dataset: Dataset, recipe: Recipe, device: torch.device) -> Tensor | None:
    """Return the weight of each class in the loss, whose mean over the training images is one; None for equal ones."""
    if recipe.class_weights == "none":
        return None
    counts = torch.bincount(torch.from_numpy(dataset.train.labels), minlength=len(dataset.classes)).float()
    return (len(dataset.train) / (int((counts > 0).sum()) * counts.clamp(min=1.0))).to(device)
