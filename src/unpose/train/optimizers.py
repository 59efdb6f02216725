"""How weights move: the optimizers as published and modern, the learning rate of a step, the moving average."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from unpose.train.muon import Muon, matrices_and_others
from unpose.train.recipe import OptimizerPart


def make_optimizer(network: nn.Module, part: OptimizerPart, *, recorded: bool = False) -> Optimizer:
    """The optimizer of a recipe over the parameters of a network, in their order.

    Where steps are ``recorded`` on CUDA, all that a step of it reads is on the device: moments, counters and the rate.
    """
    parameters = list(network.parameters())
    rate: Any = part.learning_rate
    options: dict[str, Any] = {}
    if recorded:
        rate = torch.tensor(rate, dtype=torch.float32, device=parameters[0].device)
        options = {"fused": True} | ({} if part.name == "sgd" else {"capturable": True})
    if part.name == "muon":
        matrices, others = matrices_and_others(network)
        return Muon(matrices, others, rate, share=part.share, weight_decay=part.weight_decay, momentum=part.momentum)
    if part.name == "sgd":
        return SGD(parameters, rate, part.momentum, weight_decay=part.weight_decay, **options)
    if part.name == "adam":
        return Adam(parameters, rate, weight_decay=part.weight_decay, **options)
    # Norms and biases are not pulled to zero.
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1]},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, rate, weight_decay=part.weight_decay, **options)


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
    """The same rate for all parameters; a rate that is a tensor is written in place, where a recorded step reads it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@torch.no_grad()
def move_average(average: nn.Module, network: nn.Module, decay: float, step: int | Tensor) -> None:
    """Draw a moving average of weights, and of the statistics of norms, nearer to the network.

    The decay starts small, ``(1 + step) / (10 + step)``, so that the first random weights are soon forgotten. A step
    that is a tensor is on the networks' device and is read there: nothing waits for it.
    """
    pairs = list(zip(average.state_dict().values(), network.state_dict().values(), strict=True))
    if isinstance(step, Tensor):
        _move_together(pairs, 1 - ((1 + step) / (10 + step)).clamp(max=decay))
        return
    share = 1 - min(decay, (1 + step) / (10 + step))
    for kept, new in pairs:
        if kept.is_floating_point():
            kept.lerp_(new, share)
        else:
            kept.copy_(new)


def _move_together(pairs: list[tuple[Tensor, Tensor]], share: Tensor) -> None:
    """Move each first tensor by a share of the way to the second, a few launches for all; counts are copied."""
    moved = [pair for pair in pairs if pair[0].is_floating_point()]
    counts = [pair for pair in pairs if not pair[0].is_floating_point()]
    if moved:
        kept, new = ([pair[side] for pair in moved] for side in (0, 1))
        way = torch._foreach_sub(new, kept)
        torch._foreach_mul_(way, share.to(kept[0].dtype))  # lerp would need the share as a number of the host
        torch._foreach_add_(kept, way)
    if counts:
        torch._foreach_copy_([kept for kept, _ in counts], [new for _, new in counts])
