"""What the methods that learn how far a symmetry holds share: the step's interface, and random elements of a group."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from unpose.groups import FiniteGroup, LieGroup, parse
from unpose.train.processes import Processes

Losses = Callable[[Tensor, Tensor], Tensor]
"""The loss of each image, (b,), from outputs (b, classes) and labels (b,)."""


@dataclass(frozen=True)
class Bounds:
    """How far elements of a continuous group reach; finite groups are not affected.

    Parameters
    ----------
    max_angle : float, default pi
        Largest angle either way, in radians.
    max_shift : float, default 2
        Largest shift either way, in pixels.
    max_scale : float, default 1.2
        Largest factor of scale; the smallest is its inverse.

    Examples
    --------
    >>> Bounds(max_angle=0.5).max_scale
    1.2
    """

    max_angle: float = math.pi
    max_shift: float = 2.0
    max_scale: float = 1.2


class LearnedSymmetry(nn.Module):
    """A part of the training step that learns how far symmetries hold, while the network learns.

    Calling it with the network, images (b, c, h, w), labels (b,) and a function that gives the loss of each image
    returns the outputs (b, classes) that are counted, and the objective to minimise, a sum over the images. Once the
    gradients are there, :meth:`adjust` updates what is learned; every tensor is written in place. Random numbers come
    from torch's global generator of the device, which the training loop seeds for each step.

    Examples
    --------
    >>> from torch.nn.functional import cross_entropy
    >>> from unpose.train import SoftEquivariance
    >>> network, labels = nn.Sequential(nn.Flatten(), nn.Linear(49, 3)), torch.tensor([0, 2, 1, 0, 2])
    >>> symmetry = SoftEquivariance(["d1"])  # any other method in the same way
    >>> outputs, objective = symmetry(
    ...     network, torch.rand(5, 1, 7, 7), labels, lambda o, y: cross_entropy(o, y, reduction="none")
    ... )
    >>> objective.backward()
    >>> symmetry.adjust()
    >>> outputs.shape, list(symmetry.strengths()["weights"])
    (torch.Size([5, 3]), ['d1'])
    """

    def adjust(self, processes: Processes | None = None) -> None:
        """Update what is learned about the symmetries, over all processes that train together."""
        raise NotImplementedError

    def strengths(self) -> dict[str, Any]:
        """Return what was learned, as plain values for JSON."""
        raise NotImplementedError


def parse_candidates(groups: Sequence[str]) -> list[FiniteGroup | LieGroup]:
    """Parse the names of candidate groups of the plane."""
    if isinstance(groups, str) or not groups:
        raise ValueError(f"groups must be a list of at least one name, such as ['so2', 'd1'], got {groups!r}")
    parsed = [parse(name) for name in groups]
    for group in parsed:
        if isinstance(group, LieGroup) and group.ndim != 2:
            raise ValueError(f"candidates must be groups of the plane, got {group}")
        if isinstance(group, FiniteGroup) and group.order == 1:
            raise ValueError(f"candidates must contain more than the identity, got {group}")
    return parsed


def random_elements(group: FiniteGroup | LieGroup, bounds: Bounds, like: Tensor) -> Tensor:
    """Draw an element for each entry of a tensor on its device, (len(like), 3, 3); of a finite group no identities.

    The global generator of the device is used, so that a step can be captured as a CUDA graph.
    """
    if isinstance(group, FiniteGroup):
        chosen = torch.randint(1, group.order, (len(like),), device=like.device)
        return _elements(group, like.dtype, like.device)[chosen]
    generator = torch.cuda.default_generators[like.device.index or 0] if like.is_cuda else torch.default_generator
    return group.random(
        len(like),
        generator=generator,
        max_angle=bounds.max_angle,
        max_shift=bounds.max_shift,
        max_scale=bounds.max_scale,
        dtype=like.dtype,
        device=like.device,
    )


@lru_cache(maxsize=64)
def _elements(group: FiniteGroup, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The elements on a device, (order, 3, 3); kept, because a captured step cannot copy from the host."""
    return group.elements.to(dtype=dtype, device=device)


def by_group(groups: Sequence[FiniteGroup | LieGroup], values: Tensor) -> dict[str, float]:
    """Return one rounded number for each group."""
    return {repr(group): round(value, 4) for group, value in zip(groups, values.tolist(), strict=True)}
