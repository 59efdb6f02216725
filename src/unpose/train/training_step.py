"""One training step. It only enqueues work on the device, so that it can be captured as a CUDA graph."""

import torch
from torch import Tensor

from unpose.train.objective import Objective
from unpose.train.optimizers import update_average
from unpose.train.processes import Processes, sum_gradients
from unpose.train.recipe import Recipe
from unpose.train.state import State


def training_step(
    state: State, recipe: Recipe, processes: Processes, batch: int, objective: Objective, images: Tensor,
    labels: Tensor, step: int | Tensor,
) -> None:  # fmt: skip
    """Update the weights and their moving average; add loss, correct answers and image count to the state's totals.

    Images (b, c, h, w) and labels (b,) are those of this process, of ``batch`` images over all processes. ``step``
    counts from zero; it is a 0-d tensor where steps are captured.
    """
    state.optimizer.zero_grad(set_to_none=True)
    kind = images.device.type

    def forward(images: Tensor) -> Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=recipe.is_mixed_on(kind)):
            outputs: Tensor = state.network(images)
        return outputs

    minimised, loss, correct = objective.step(forward, images, labels)
    (minimised / batch).backward()
    sum_gradients(state.network, processes)
    state.optimizer.step()
    objective.adjust()
    if state.average is not None:
        update_average(state.average, state.network, recipe.average, step)
    own = torch.stack([loss.detach().double(), correct.double(), torch.full_like(correct, len(labels)).double()])
    state.totals += processes.sum(own)
