"""One training step. It only enqueues work on the device, so that it can be captured as a CUDA graph."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unpose.train.optimizers import update_average
from unpose.train.processes import Processes, sum_gradients
from unpose.train.recipe import Recipe
from unpose.train.state import State


def training_step(
    state: State, recipe: Recipe, processes: Processes, batch: int, images: Tensor, labels: Tensor, step: int | Tensor,
    *, weights: Tensor | None = None,
) -> None:  # fmt: skip
    """Update the weights and their moving average; add loss, correct answers and image count to the state's totals.

    Parameters
    ----------
    state : State
    recipe : Recipe
    processes : Processes
    batch : int
        Images of the step over all processes.
    images, labels : (b, c, h, w) and (b,) tensors of this process
    step : int or 0-d tensor
        Number of the step from zero; a tensor where steps are captured.
    weights : (n_classes,) tensor, optional
        Weight of each class in the loss; by default they are equal.
    """
    state.optimizer.zero_grad(set_to_none=True)
    kind = images.device.type
    with torch.autocast(kind, torch.bfloat16, enabled=recipe.is_mixed_on(kind)):
        outputs = state.network(images)
    smoothing = recipe.label_smoothing
    loss = cross_entropy(outputs.float(), labels, weight=weights, label_smoothing=smoothing, reduction="sum")
    (loss / batch).backward()
    sum_gradients(state.network, processes)
    state.optimizer.step()
    if state.average is not None:
        update_average(state.average, state.network, recipe.average, step)
    correct = (outputs.detach().argmax(1) == labels).sum()
    own = torch.stack([loss.detach().double(), correct.double(), torch.full_like(correct, len(labels)).double()])
    state.totals += processes.sum(own)
