"""Optimizers, learning-rate schedule and moving average of the weights."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from unpose.train.muon import Muon
from unpose.train.recipe import OptimizerPart


def make_optimizer(network: nn.Module, part: OptimizerPart, *, capturable: bool = False) -> Optimizer:
    """Build the optimizer of a recipe for the parameters of a network.

    With ``capturable``, moments, counters and learning rate live on the device, so that a step can be captured as a
    CUDA graph.
    """
    parameters = list(network.parameters())
    rate: Any = part.learning_rate
    options: dict[str, Any] = {}
    if capturable:
        rate = torch.tensor(rate, dtype=torch.float32, device=parameters[0].device)
        options = {"fused": True} | ({} if part.name == "sgd" else {"capturable": True})
    if part.name == "muon":
        return Muon.of(network, rate, share=part.share, weight_decay=part.weight_decay, momentum=part.momentum)
    if part.name == "sgd":
        return SGD(parameters, rate, part.momentum, weight_decay=part.weight_decay, **options)
    if part.name == "adam":
        return Adam(parameters, rate, weight_decay=part.weight_decay, **options)
    # No weight decay for norms and biases.
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1]},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, rate, weight_decay=part.weight_decay, **options)


def learning_rate(part: OptimizerPart, step: int, steps_per_epoch: int, epochs: int) -> float:
    """Return the learning rate of a step, counted from zero: linear warm-up, then constant or cosine decay to zero."""
    total = steps_per_epoch * epochs
    warmup = part.warmup_epochs * steps_per_epoch
    if step < warmup:
        return part.learning_rate * (step + 1) / (math.floor(warmup) + 1)
    if part.schedule == "constant":
        return part.learning_rate
    return part.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters; tensors are written in place, where a captured step reads them."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@torch.no_grad()
def update_average(average: nn.Module, network: nn.Module, decay: float, step: int | Tensor) -> None:
    """Update an exponential moving average of weights and batch-norm statistics.

    The decay ramps up as ``min(decay, (1 + step) / (10 + step))``, so that the initial weights are soon forgotten. A
    ``step`` on the device is read there, without synchronisation.
    """
    pairs = list(zip(average.state_dict().values(), network.state_dict().values(), strict=True))
    if isinstance(step, Tensor):
        _lerp_all(pairs, 1 - ((1 + step) / (10 + step)).clamp(max=decay))
        return
    share = 1 - min(decay, (1 + step) / (10 + step))
    for kept, new in pairs:
        if kept.is_floating_point():
            kept.lerp_(new, share)
        else:
            kept.copy_(new)


def _lerp_all(pairs: list[tuple[Tensor, Tensor]], share: Tensor) -> None:
    """Interpolate each first tensor towards the second with few kernel launches; integer counters are copied."""
    floats = [pair for pair in pairs if pair[0].is_floating_point()]
    counts = [pair for pair in pairs if not pair[0].is_floating_point()]
    if floats:
        kept, new = ([pair[side] for pair in floats] for side in (0, 1))
        difference = torch._foreach_sub(new, kept)
        torch._foreach_mul_(difference, share.to(kept[0].dtype))  # torch._foreach_lerp_ needs a weight on the host
        torch._foreach_add_(kept, difference)
    if counts:
        torch._foreach_copy_([kept for kept, _ in counts], [new for _, new in counts])
