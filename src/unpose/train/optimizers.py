"""How weights move: the optimizers as published and modern, the learning rate of a step, the moving average."""

import math
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from unpose.train.recipe import OptimizerPart


def make_optimizer(network: nn.Module, part: OptimizerPart) -> Optimizer:
    """The optimizer of a recipe over the parameters of a network, in their order."""
    parameters = list(network.parameters())
    if part.name == "sgd":
        return SGD(parameters, part.learning_rate, part.momentum, weight_decay=part.weight_decay)
    if part.name == "adam":
        return Adam(parameters, part.learning_rate, weight_decay=part.weight_decay)
    # Norms and biases are not pulled to zero.
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return AdamW(groups, part.learning_rate, weight_decay=part.weight_decay)


def learning_rate(part: OptimizerPart, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The learning rate of a step, counted from zero: a straight warm-up, then constant or half a cosine to zero."""
    total = steps_per_epoch * epochs
    warm = part.warmup_epochs * steps_per_epoch
    if step < warm:
        return part.learning_rate * (step + 1) / (math.floor(warm) + 1)
    if part.schedule == "constant":
        return part.learning_rate
    return part.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """The same rate for all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


@torch.no_grad()
def move_average(average: nn.Module, network: nn.Module, decay: float, step: int) -> None:
    """Draw a moving average of weights, and of the statistics of norms, nearer to the network.

    The decay starts small, ``(1 + step) / (10 + step)``, so that the first random weights are soon forgotten.
    """
    share = 1 - min(decay, (1 + step) / (10 + step))
    for kept, new in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
        if kept.is_floating_point():
            kept.lerp_(new, share)
        else:
            kept.copy_(new)
