"""One step of learning, from a batch to moved weights: all of it work on the device, so that it can be recorded."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unpose.train.optimizers import move_average
from unpose.train.processes import Processes, sum_gradients
from unpose.train.recipe import Recipe
from unpose.train.state import State


def learn(
    state: State, recipe: Recipe, processes: Processes, batch: int, images: Tensor, labels: Tensor, step: int | Tensor
) -> None:
    """Move the weights and their average; loss, right answers and images are added to the state's totals.

    Parameters
    ----------
    batch : images of the step in all processes
    images, labels : (b, c, h, w) and (b,), of this process
    step : the number of the step, counted from zero; a tensor without axes where steps are recorded
    """
    state.optimizer.zero_grad(set_to_none=True)
    kind = images.device.type
    with torch.autocast(kind, torch.bfloat16, enabled=recipe.is_mixed_on(kind)):
        outputs = state.network(images)
    loss = cross_entropy(outputs.float(), labels, label_smoothing=recipe.label_smoothing, reduction="sum")
    (loss / batch).backward()
    sum_gradients(state.network, processes)
    state.optimizer.step()
    if state.average is not None:
        move_average(state.average, state.network, recipe.average, step)
    right = (outputs.detach().argmax(1) == labels).sum()
    own = torch.stack([loss.detach().double(), right.double(), torch.full_like(right, len(labels)).double()])
    state.totals += processes.sum(own)
