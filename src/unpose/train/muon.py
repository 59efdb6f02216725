"""The Muon optimizer: orthogonalized momentum for matrices, AdamW for all other parameters.

The momentum of a matrix is replaced by the nearest semi-orthogonal matrix, which gives all singular directions the same
step size instead of favouring those with large gradients (Jordan et al., 2024).
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unpose.nn import GroupSelfAttention, LiftingSelfAttention

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of ``a x + b x^3 + c x^5``, which maps singular values in (0, 1] close to 1 in a few iterations."""
_ITERATIONS = 5

_BETA1, _BETA2 = 0.9, 0.999
"""AdamW's decay rates of the first and second moment."""


def orthogonalized(matrices: Tensor) -> Tensor:
    """Approximate the semi-orthogonal factor of each matrix: (n, rows, columns) -> the same shape.

    Five Newton-Schulz iterations; singular values end between about 0.7 and 1.2.
    """
    is_tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.transpose(1, 2) if is_tall else matrices
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp(min=1e-20)  # zero matrices stay zero
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        square = found @ found.transpose(1, 2)
        found = torch.baddbmm(found, torch.baddbmm(square, square, square, beta=b, alpha=c), found, beta=a)
    return found.transpose(1, 2) if is_tall else found


class Muon(Optimizer):
    """Muon for matrices, AdamW for other parameters.

    Parameters
    ----------
    matrices : iterable of (parameter, stacked)
        Parameters with at least two axes, outputs first, and how many matrices are stacked along that axis; each is
        orthogonalized separately.
    others : iterable of parameters
        All other parameters, updated by AdamW.
    rate : float or 0-d tensor
        Learning rate of matrices; a tensor where steps are captured as a CUDA graph.
    share : float
        Learning rate of the other parameters relative to ``rate``.
    weight_decay : float
        Decoupled weight decay of matrices.
    momentum : float
        Nesterov momentum of matrices.
    """

    def __init__(
        self,
        matrices: Iterable[tuple[Tensor, int]],
        others: Iterable[Tensor],
        rate: float | Tensor,
        *,
        share: float,
        weight_decay: float,
        momentum: float,
    ) -> None:
        pairs = list(matrices)
        self._stacked = {id(parameter): stacked for parameter, stacked in pairs}
        options: dict[str, Any] = {"lr": rate, "share": share, "weight_decay": weight_decay, "momentum": momentum}
        groups = [{"params": [parameter for parameter, _ in pairs]}, {"params": list(others)}]
        super().__init__([group for group in groups if group["params"]], options)

    @classmethod
    def of(
        cls, network: nn.Module, rate: float | Tensor, *, share: float, weight_decay: float, momentum: float
    ) -> "Muon":
        """The optimizer of a network. No matrices are norms, biases, embeddings, vectors and the last linear layer."""
        matrices, others = _matrices_and_others(network)
        return cls(matrices, others, rate, share=share, weight_decay=weight_decay, momentum=momentum)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            updated = [parameter for parameter in group["params"] if parameter.grad is not None]
            if updated:
                update = self._update_matrices if id(updated[0]) in self._stacked else self._update_others
                update(updated, group)

    def _update_matrices(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        momenta = [self._moment(parameter, "momentum_buffer") for parameter in parameters]
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
        # (rows, columns) -> (index of the parameter, one matrix)
        by_shape: dict[tuple[int, int], list[tuple[int, Tensor]]] = defaultdict(list)
        for number, (parameter, direction) in enumerate(zip(parameters, ahead, strict=True)):
            for part in direction.flatten(1).chunk(self._stacked[id(parameter)]):
                by_shape[part.shape[0], part.shape[1]].append((number, part))
        parts: list[list[Tensor]] = [[] for _ in parameters]
        for (rows, columns), members in by_shape.items():
            found = orthogonalized(torch.stack([part for _, part in members])) * math.sqrt(max(1.0, rows / columns))
            for (number, _), part in zip(members, found, strict=True):
                parts[number].append(part)
        steps = [torch.cat(part).view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
        _decay_and_step(parameters, steps, group["lr"], group["weight_decay"])

    def _update_others(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        means = [self._moment(parameter, "exp_avg") for parameter in parameters]
        squares = [self._moment(parameter, "exp_avg_sq") for parameter in parameters]
        counts = [self._moment(parameter, "step") for parameter in parameters]
        torch._foreach_add_(counts, 1)
        torch._foreach_lerp_(means, gradients, 1 - _BETA1)
        torch._foreach_mul_(squares, _BETA2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - _BETA2)
        # Bias correction; all parameters are at the same step.
        mean_correction, square_correction = (1 - torch.exp(counts[0] * math.log(decay)) for decay in (_BETA1, _BETA2))
        sizes = torch._foreach_sqrt(torch._foreach_div(squares, square_correction))
        torch._foreach_add_(sizes, 1e-8)
        steps = torch._foreach_div(torch._foreach_div(means, mean_correction), sizes)
        _decay_and_step(parameters, list(steps), group["lr"] * group["share"], 0.0)

    def _moment(self, parameter: Tensor, name: str) -> Tensor:
        """Return a moment of a parameter, created as zeros: a scalar for ``"step"``, else shaped like the parameter."""
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter) if name != "step" else torch.zeros((), device=parameter.device)
        return state[name]


def _decay_and_step(parameters: list[Tensor], steps: list[Tensor], rate: float | Tensor, weight_decay: float) -> None:
    """Apply ``parameter = (1 - rate * weight_decay) * parameter - rate * step``."""
    torch._foreach_mul_(steps, rate)
    if weight_decay:
        torch._foreach_mul_(parameters, 1 - rate * weight_decay)
    torch._foreach_sub_(parameters, steps)


def _matrices_and_others(network: nn.Module) -> tuple[list[tuple[Tensor, int]], list[Tensor]]:
    modules = list(network.modules())
    linear = [module.weight for module in modules if isinstance(module, nn.Linear)]
    excluded = {id(module.weight) for module in modules if isinstance(module, nn.Embedding)} | set(map(id, linear[-1:]))
    attention = [module for module in modules if isinstance(module, GroupSelfAttention | LiftingSelfAttention)]
    stacked = {id(module.project.weight): 3 for module in attention}  # queries, keys and values
    matrices: list[tuple[Tensor, int]] = []
    others: list[Tensor] = []
    for parameter in network.parameters():
        is_matrix = parameter.ndim > 1 and min(parameter.flatten(1).shape) > 1
        if is_matrix and id(parameter) not in excluded:
            matrices.append((parameter, stacked.get(id(parameter), 1)))
        else:
            others.append(parameter)
    return matrices, others
