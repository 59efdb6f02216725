"""What the methods that learn how far a symmetry holds share: the step's interface, and random elements of a group."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from unpose.groups import FiniteGroup, parse
from unpose.images import warp
from unpose.train.objective import Forward
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


def at_poses(images: Tensor, elements: Tensor) -> Tensor:
    """Images (b, c, h, w) moved by elements (b, 3, 3); outside of its frame one continues at the median of its border.

    All of it runs on the device, so that a step can be captured as a CUDA graph.
    """
    sides = (images[..., 0, :], images[..., -1, :], images[..., 0], images[..., -1])
    border = torch.cat(sides, dim=-1).sort(dim=-1).values  # of even length
    middle = border.shape[-1] // 2
    level = border[..., middle - 1 : middle + 1].mean(-1)[..., None, None]  # (b, c, 1, 1)
    return warp(images - level, elements) + level


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

    def measure(self, network: Forward, images: Tensor, labels: Tensor, losses: Losses) -> None:
        """Replace what the step measured on its own images by what images that are not trained on say.

        By default nothing is measured so.
        """

    def adjust(self, processes: Processes | None = None) -> None:
        """Update what is learned about the symmetries, over all processes that train together."""
        raise NotImplementedError

    def strengths(self) -> dict[str, Any]:
        """Return what was learned, as plain values for JSON."""
        raise NotImplementedError


class Candidate:
    """A group whose elements can be drawn on any device, within bounds."""

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.group = parse(name)
        self.limits: tuple[float, ...] = ()  # of the coordinates of a continuous group
        if isinstance(self.group, FiniteGroup):
            if self.group.order == 1:
                raise ValueError(f"candidates must contain more than the identity, got {name!r}")
        else:
            known = {"x": bounds.max_shift, "y": bounds.max_shift, "turn": bounds.max_angle}
            known |= {"log scale": math.log(bounds.max_scale)}
            if self.group.mirrored or not {each.name for each in self.group.coordinates} <= known.keys():
                raise ValueError(
                    "candidates must be finite groups (the mirror is d1), translation, so2, se2 or similarity, got "
                    f"{name!r}"
                )
            self.limits = tuple(known[each.name] for each in self.group.coordinates)

    def __repr__(self) -> str:
        return repr(self.group)

    def draw(self, like: Tensor, reach: Tensor | None = None) -> Tensor:
        """Draw an element for each entry of a tensor, on its device and in its precision: (len(like), 3, 3).

        Coordinates of a continuous group are uniform within plus or minus ``reach`` times their limits. Of a finite
        group any element but the identity is drawn, and replaced by the identity with a probability of ``1 - reach``.
        Random numbers come from the global generator of the device, so that a step can be captured as a CUDA graph.
        """
        n, device = len(like), like.device
        if isinstance(self.group, FiniteGroup):
            chosen = torch.randint(1, self.group.order, (n,), device=device)
            if reach is not None:
                chosen = torch.where(torch.rand(n, device=device) < reach, chosen, 0)
            return _elements(self.group, like.dtype, device)[chosen]
        share = 2 * torch.rand(n, self.group.dim, dtype=like.dtype, device=device) - 1
        if reach is not None:
            share = share * reach
        return self.group.exp(share * _limits(self.limits, like.dtype, device))


def parse_candidates(groups: Sequence[str], bounds: Bounds | None) -> list[Candidate]:
    """Parse the names of candidate groups."""
    if isinstance(groups, str) or not groups:
        raise ValueError(f"groups must be a list of at least one name, such as ['so2', 'd1'], got {groups!r}")
    return [Candidate(name, bounds or Bounds()) for name in groups]


# Constants are kept on the device, because a captured step cannot copy from the host.
@lru_cache(maxsize=64)
def _elements(group: FiniteGroup, dtype: torch.dtype, device: torch.device) -> Tensor:
    return group.elements.to(dtype=dtype, device=device)  # (order, 3, 3)


@lru_cache(maxsize=64)
def _limits(limits: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(limits, dtype=dtype, device=device)  # (dim,)


def by_group(groups: Sequence[Candidate], values: Tensor) -> dict[str, float]:
    """Return one rounded number for each group."""
    return {repr(group): round(value, 4) for group, value in zip(groups, values.tolist(), strict=True)}
