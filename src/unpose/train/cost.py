"""How much a training costs, counted in operations, and a recipe that two CPU cores finish in minutes."""

from dataclasses import replace

import torch

from unpose.data import Dataset
from unpose.nn import create_network
from unpose.train.batches import steps_in_epoch
from unpose.train.loop import objective_of, step_seconds
from unpose.train.recipe import Recipe

__all__ = ["fit_to_cpu", "measured_seconds", "training_operations"]

CPU_BUDGET = 6e12
"""Floating-point operations of a training on the CPU: about four minutes on two cores of 15 GFLOP/s each."""
_LARGEST_SIZE, _SMALLER_SIZES = 64, (48, 40, 32)
"""Longer sides of the images that are tried, in pixels."""
_FEWEST_EPOCHS = 12


def training_operations(recipe: Recipe, images: int, channels: int, n_classes: int, size: int) -> float:
    """Count the floating-point operations of the convolutions and matrix products of a training.

    Attention in fused loops is not counted. ``size`` is the side of the images in pixels.

    >>> recipe = Recipe(epochs=10)
    >>> small, large = (training_operations(recipe, 100, 1, 3, size) for size in (32, 64))
    >>> 3.5 < large / small < 4.5
    True
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, which only this function needs

    part = recipe.network
    with torch.device("meta"):
        network = create_network(
            part.kind, group=part.group, in_channels=channels, n_classes=n_classes, image_size=size, **part.options
        )
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network.eval()(torch.empty(1, channels, size, size))
    return 3.0 * counter.get_total_flops() * images * recipe.epochs  # a backward pass costs two forward passes


def fit_to_cpu(
    recipe: Recipe, images: int, channels: int, n_classes: int, size: int, *, may_resize: bool = True
) -> Recipe:
    """Choose image size and epochs such that two CPU cores finish the training in minutes.

    The largest size of at most 64 pixels within the budget is taken; if none is, the smallest and fewer epochs, at
    least 12. The choice counts operations, so it is the same on every machine. Recipes of other networks than
    ``group_cnn``, whose operations are not counted, are returned as they are. ``size`` is the longer side of the images
    as they are; ``may_resize`` says whether they can be made smaller.

    >>> from unpose.train import named_recipe
    >>> recipe = named_recipe("folder")
    >>> fit_to_cpu(recipe, 281, 1, 5, 64).data.size, fit_to_cpu(recipe, 5000, 1, 5, 64).epochs
    (48, 12)
    """
    if recipe.network.kind != "group_cnn":
        return recipe
    largest = min(size, _LARGEST_SIZE) if may_resize else size
    for side in (largest, *(each for each in _SMALLER_SIZES if may_resize and each < largest)):
        operations = training_operations(recipe, images, channels, n_classes, side)
        if operations <= CPU_BUDGET:
            break
    epochs = min(recipe.epochs, max(_FEWEST_EPOCHS, int(recipe.epochs * CPU_BUDGET / operations)))
    data = replace(recipe.data, size=side) if side < size else recipe.data
    return replace(recipe.changed(epochs=epochs), data=data)


def measured_seconds(recipe: Recipe, dataset: Dataset, device: torch.device | str = "cpu") -> float:
    """Estimate the duration of a training from its first steps; one pass forward is a third of a step.

    >>> from unpose.data import load
    >>> measured_seconds(Recipe(epochs=1), load("digits")) > 0
    True
    """
    steps = steps_in_epoch(len(dataset.train), recipe.batch_size) + len(dataset.validation) / recipe.batch_size / 3
    return step_seconds(recipe, dataset, kind=objective_of(recipe), device=device) * steps * recipe.epochs
