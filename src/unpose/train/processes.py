"""Several processes that train one network: started by ``torchrun``, they share gradients and batch statistics.

Each step the processes take their shares of one batch of ``batch_size`` times their number. Losses are divided by the
size of the whole batch and gradients summed, and batch norms use the mean and variance of the whole batch: up to
rounding, the weights are those of one process with the larger batch. Dropout masks are each process's own, so with
dropout the two runs are alike but not equal.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.functional import batch_norm

_PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others; the first may be downloading."""


@dataclass(frozen=True)
class Processes:
    """This process among those that train together."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes files and speaks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """The processes that ``torchrun`` started, or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes()
        return
    # The store outlives a restart, and with it the addresses of processes that are gone: names of its own for each.
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, count = next(rendezvous("env://"))
    store = dist.PrefixStore(f"attempt {_restarts()}", store)  # type: ignore[attr-defined]
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=count, timeout=_PATIENCE
    )
    try:
        yield Processes(rank, count)
    finally:
        dist.destroy_process_group()


def was_restarted() -> bool:
    """Whether ``torchrun`` has started these processes anew after one of them died."""
    return _restarts() > 0


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def sum_gradients(network: nn.Module, processes: Processes) -> None:
    """Every gradient summed over the processes, in one message."""
    if processes.count == 1:
        return
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    flat = processes.sum(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def share_batch_statistics(network: nn.Module, processes: Processes) -> None:
    """Let batch norms, while they train, take mean and variance over the batches of all processes.

    torch's own synchronised batch norm runs on CUDA only.
    """
    if processes.count == 1:
        return
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.forward = partial(_shared_norm, module)  # type: ignore[method-assign]


class _Sum(torch.autograd.Function):
    """The sum over processes. Each process's loss depends on it, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].clone()
        dist.all_reduce(summed)
        return summed


def _shared_norm(module: nn.modules.batchnorm._BatchNorm, maps: Tensor) -> Tensor:
    """Batch norm of (b, channels, ...) with the statistics of all processes' maps while training."""
    mean_kept, variance_kept = module.running_mean, module.running_var
    if not module.training or mean_kept is None or variance_kept is None:
        return batch_norm(maps, mean_kept, variance_kept, module.weight, module.bias, False, 0.0, module.eps)
    axes = [0, *range(2, maps.ndim)]
    shape = (1, -1, *[1] * (maps.ndim - 2))  # of statistics beside maps
    own = torch.tensor([maps.numel() / maps.shape[1]], dtype=maps.dtype, device=maps.device)
    summed = _Sum.apply(torch.cat([maps.sum(axes), own]))
    count = summed[-1].detach()
    mean = summed[:-1] / count
    centred = maps - mean.view(shape)
    variance = _Sum.apply(centred.square().sum(axes)) / count
    with torch.no_grad():
        share = 0.1 if module.momentum is None else module.momentum
        mean_kept.lerp_(mean.to(mean_kept), share)
        variance_kept.lerp_((variance * count / (count - 1)).to(variance_kept), share)
        if module.num_batches_tracked is not None:
            module.num_batches_tracked += 1
    normed = centred * (variance + module.eps).rsqrt().view(shape)
    return normed if module.weight is None else normed * module.weight.view(shape) + module.bias.view(shape)
