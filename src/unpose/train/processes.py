"""Data-parallel training under ``torchrun``: processes share gradients and batch-norm statistics.

In each step the processes share one batch of ``batch_size`` times their number. Losses are divided by the size of the
whole batch, gradients are summed and batch norms use the statistics of the whole batch. Up to rounding, the weights
equal those of one process with the larger batch. Dropout masks differ between processes, so with dropout the two runs
agree only statistically.
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

__all__ = ["Processes", "joined_processes", "was_restarted"]

_TIMEOUT = timedelta(minutes=30)
"""Timeout of collective operations; the first process may be downloading data."""


@dataclass(frozen=True)
class Processes:
    """The rank of this process and the number of processes that train together."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """Join the processes that ``torchrun`` started, as a context manager; without ``torchrun``, this process alone.

    >>> with joined_processes(torch.device("cpu")) as processes:
    ...     processes.count
    1
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes()
        return
    # The store outlives a restart and keeps addresses of dead processes: prefix its keys with the attempt.
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, count = next(rendezvous("env://"))
    store = dist.PrefixStore(f"attempt {_restarts()}", store)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=count, timeout=_TIMEOUT
    )
    try:
        yield Processes(rank, count)
    finally:
        dist.destroy_process_group()


def was_restarted() -> bool:
    """Whether ``torchrun`` has restarted these processes after one of them died."""
    return _restarts() > 0


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def sum_gradients(network: nn.Module, processes: Processes) -> None:
    """Sum all gradients over the processes, in one message."""
    if processes.count == 1:
        return
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    flat = processes.sum(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def share_batch_statistics(network: nn.Module, processes: Processes) -> None:
    """Make batch norms use the statistics of all processes while training.

    torch's SyncBatchNorm runs on CUDA only.
    """
    if processes.count == 1:
        return
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.forward = partial(_shared_norm, module)  # type: ignore[method-assign]


class _Sum(torch.autograd.Function):
    """Differentiable sum over processes: every loss depends on the sum, so gradients are summed too."""

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
    """Batch norm of (b, channels, ...) with statistics over all processes while training.

    Maps in half precision are summed and centred in float32, as torch does: eight bits hold no mean of many sigma.
    """
    mean_kept, variance_kept = module.running_mean, module.running_var
    if not module.training or mean_kept is None or variance_kept is None:
        return batch_norm(maps, mean_kept, variance_kept, module.weight, module.bias, False, 0.0, module.eps)
    axes = [0, *range(2, maps.ndim)]
    shape = (1, -1, *[1] * (maps.ndim - 2))  # broadcasts statistics over maps
    exact = maps.to(torch.promote_types(maps.dtype, torch.float32))
    own = torch.tensor([maps.numel() / maps.shape[1]], dtype=exact.dtype, device=maps.device)
    summed = _Sum.apply(torch.cat([exact.sum(axes), own]))
    count = summed[-1].detach()
    mean = summed[:-1] / count
    centred = exact - mean.view(shape)
    variance = _Sum.apply(centred.square().sum(axes)) / count
    with torch.no_grad():
        share = 0.1 if module.momentum is None else module.momentum
        mean_kept.lerp_(mean.to(mean_kept), share)
        variance_kept.lerp_((variance * count / (count - 1)).to(variance_kept), share)
        if module.num_batches_tracked is not None:
            module.num_batches_tracked += 1
    normed = centred * (variance + module.eps).rsqrt().view(shape)
    if module.weight is not None:
        normed = normed * module.weight.view(shape) + module.bias.view(shape)
    return normed.to(maps.dtype)
