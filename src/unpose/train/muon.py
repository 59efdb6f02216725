"""Muon: matrices move along orthogonal matrices, everything else by AdamW.

The momentum of a matrix is replaced by the nearest matrix with orthonormal rows or columns, so that all directions that
a layer can move in are moved in alike, not only the few that its gradients are large in (Jordan et al., 2024).
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
"""Of ``a x + b x^3 + c x^5``, which brings every singular value between 0 and 1 near to 1 in few rounds."""
_ROUNDS = 5

_MEAN, _SQUARE = 0.9, 0.999
"""Decay of AdamW's averages of gradients and of their squares."""


def orthogonalized(matrices: Tensor) -> Tensor:
    """Near to the matrix with the same singular vectors whose singular values are all 1: (n, rows, columns).

    Five rounds of a polynomial of the matrix (Newton and Schulz); singular values end between about 0.7 and 1.2.
    """
    is_tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.transpose(1, 2) if is_tall else matrices
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp(min=1e-20)  # all zeros stay
    a, b, c = _QUINTIC
    for _ in range(_ROUNDS):
        square = found @ found.transpose(1, 2)
        found = torch.baddbmm(found, torch.baddbmm(square, square, square, beta=b, alpha=c), found, beta=a)
    return found.transpose(1, 2) if is_tall else found


class Muon(Optimizer):
    """Muon for matrices, AdamW for other parameters.

    Parameters
    ----------
    matrices : (parameter, stacked): a parameter with two axes or more, the first of them outputs, and how many maps
        are stacked along that; each is moved by itself
    others : all other parameters
    rate : learning rate of matrices; a tensor where steps are recorded
    share : learning rate of the others as a share of it
    weight_decay : of matrices; each step they shrink by this times the rate
    momentum : of matrices, Nesterov's
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

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move all parameters that have a gradient."""
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            if moved:
                move = self._move_matrices if id(moved[0]) in self._stacked else self._move_others
                move(moved, group)

    def _move_matrices(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        momenta = [self._held(parameter, "momentum_buffer") for parameter in parameters]
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
        alike: dict[tuple[int, int], list[tuple[int, Tensor]]] = defaultdict(list)  # (parameter's number, one map)
        for number, (parameter, direction) in enumerate(zip(parameters, ahead, strict=True)):
            for part in direction.flatten(1).chunk(self._stacked[id(parameter)]):
                alike[part.shape[0], part.shape[1]].append((number, part))
        parts: list[list[Tensor]] = [[] for _ in parameters]
        for (rows, columns), members in alike.items():
            found = orthogonalized(torch.stack([part for _, part in members])) * math.sqrt(max(1.0, rows / columns))
            for (number, _), part in zip(members, found, strict=True):
                parts[number].append(part)
        steps = [torch.cat(part).view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
        _shrink_and_add(parameters, steps, group["lr"], group["weight_decay"])

    def _move_others(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        means = [self._held(parameter, "exp_avg") for parameter in parameters]
        squares = [self._held(parameter, "exp_avg_sq") for parameter in parameters]
        counts = [self._held(parameter, "step") for parameter in parameters]
        torch._foreach_add_(counts, 1)
        torch._foreach_lerp_(means, gradients, 1 - _MEAN)
        torch._foreach_mul_(squares, _SQUARE)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - _SQUARE)
        # Averages began at zero; all at the same step, so one count tells how much of the true ones they are by now.
        mean_share, square_share = (1 - torch.exp(counts[0] * math.log(decay)) for decay in (_MEAN, _SQUARE))
        sizes = torch._foreach_sqrt(torch._foreach_div(squares, square_share))
        torch._foreach_add_(sizes, 1e-8)
        steps = torch._foreach_div(torch._foreach_div(means, mean_share), sizes)
        _shrink_and_add(parameters, list(steps), group["lr"] * group["share"], 0.0)

    def _held(self, parameter: Tensor, name: str) -> Tensor:
        """What is remembered of a parameter, from zero: ``"step"`` is a count, all else is like it."""
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter) if name != "step" else torch.zeros((), device=parameter.device)
        return state[name]


def _shrink_and_add(parameters: list[Tensor], steps: list[Tensor], rate: float | Tensor, weight_decay: float) -> None:
    """Each parameter times 1 - rate * weight_decay, less rate * step."""
    torch._foreach_mul_(steps, rate)
    if weight_decay:
        torch._foreach_mul_(parameters, 1 - rate * weight_decay)
    torch._foreach_sub_(parameters, steps)


def matrices_and_others(network: nn.Module) -> tuple[list[tuple[Tensor, int]], list[Tensor]]:
    """What Muon takes of a network, and the rest: norms, biases, tables, vectors, and the last linear map."""
    modules = list(network.modules())
    linear = [module.weight for module in modules if isinstance(module, nn.Linear)]
    apart = {id(module.weight) for module in modules if isinstance(module, nn.Embedding)} | set(map(id, linear[-1:]))
    attention = [module for module in modules if isinstance(module, GroupSelfAttention | LiftingSelfAttention)]
    stacked = {id(module.project.weight): 3 for module in attention}  # of queries, keys and values
    matrices: list[tuple[Tensor, int]] = []
    others: list[Tensor] = []
    for parameter in network.parameters():
        is_matrix = parameter.ndim > 1 and min(parameter.flatten(1).shape) > 1
        if is_matrix and id(parameter) not in apart:
            matrices.append((parameter, stacked.get(id(parameter), 1)))
        else:
            others.append(parameter)
    return matrices, others
