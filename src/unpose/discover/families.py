"""Candidate symmetries: families of transformations with one strength, and how each moves images."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.groups import parse_continuous, reflection, rotation
from unpose.images import warp


@dataclass(frozen=True)
class Family:
    """Transformations of one kind, ordered by their strength.

    Parameters
    ----------
    name : str
        What the transformations are called.
    strengths : tuple of float
        Strengths that are tried, ascending; empty for a single transformation such as the mirror.
    unit : str
        Unit of the strengths, written after the number.
    least : float
        A symmetry that holds only up to less than this is said not to hold.
    move : callable
        ``move(images, centred, strength, share)`` gives the images, (n, c, h, w), after ``share`` (from -1 to 1) of the
        transformation of this strength. ``centred``, (n, 3, 3), brings the centre of each object to the image centre
        and is applied first, in the same resampling.

    Examples
    --------
    >>> from unpose.discover import FAMILIES
    >>> [family.name for family in FAMILIES][:4]
    ['turns', 'mirror', 'half turn', 'quarter turn']
    """

    name: str
    strengths: tuple[float, ...]
    unit: str
    least: float
    move: Callable[[Tensor, Tensor, float, float], Tensor]

    @property
    def is_single(self) -> bool:
        """Whether the family is one transformation, which has no strength."""
        return not self.strengths

    def written(self, strength: float) -> str:
        """A strength with its unit."""
        return f"{strength:.3g}{self.unit}"

    def sides(self, images: Tensor, centred: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        """Images before and after the transformation, both resampled alike.

        A distribution is symmetric under ``g`` exactly if moving it by half of ``g`` forwards and backwards gives the
        same: both sides are then blurred by the same interpolation. A single transformation only permutes pixels, and
        is applied to one side.
        """
        before, after = (0.0, 1.0) if self.is_single else (-0.5, 0.5)
        return self.move(images, centred, strength, before), self.move(images, centred, strength, after)


def _along(coordinate: int, amount: Callable[[float], float]) -> Callable[[Tensor, Tensor, float, float], Tensor]:
    """A one-parameter subgroup: ``coordinate`` of the Lie algebra of homographies, ``amount`` of it at a strength."""
    group = parse_continuous("perspective" if coordinate >= 6 else "affine")

    def move(images: Tensor, centred: Tensor, strength: float, share: float) -> Tensor:
        vector = torch.zeros(group.dim, dtype=images.dtype)
        half_side = min(images.shape[-2:]) / 2
        vector[coordinate] = share * amount(strength) * {0: 2 * half_side, 6: 1 / half_side}.get(coordinate, 1.0)
        return warp(images, group.exp(vector) @ centred)

    return move


def _shift(images: Tensor, centred: Tensor, strength: float, share: float) -> Tensor:
    """Move sideways by a share of the image's side. Objects are not centred, because their place is in question."""
    return _along(0, lambda s: s)(images, torch.eye(3, dtype=images.dtype), strength, share)


def _single(pose: Callable[[torch.dtype], Tensor]) -> Callable[[Tensor, Tensor, float, float], Tensor]:
    """One transformation: all of it, or with a share of 0 nothing."""

    def move(images: Tensor, centred: Tensor, strength: float, share: float) -> Tensor:
        return warp(images, (pose(images.dtype) if share else torch.eye(3, dtype=images.dtype)) @ centred)

    return move


def _brighten(images: Tensor, centred: Tensor, strength: float, share: float) -> Tensor:
    """Multiply grey values, which are measured from the background."""
    return warp(images, centred) * strength**share


def _turned(degrees: float) -> Callable[[torch.dtype], Tensor]:
    return lambda dtype: rotation(torch.tensor(math.radians(degrees), dtype=dtype))


FAMILIES: tuple[Family, ...] = (
    Family("turns", (5, 10, 15, 20, 30, 45, 60, 90, 135, 180), " degrees", 15, _along(2, math.radians)),
    Family("mirror", (), "", 0, _single(lambda dtype: reflection(dtype))),
    Family("half turn", (), "", 0, _single(_turned(180))),
    Family("quarter turn", (), "", 0, _single(_turned(90))),
    Family("scale", (1.05, 1.1, 1.2, 1.4, 2.0), " times", 1.1, _along(3, math.log)),
    Family("shift", (0.02, 0.05, 0.1, 0.2), " of the side", 0.05, _shift),
    Family("stretch", (1.05, 1.1, 1.2, 1.4), " times", 1.1, _along(4, math.log)),
    Family("shear", (0.05, 0.1, 0.2, 0.4), "", 0.1, _along(5, lambda s: s)),
    Family("perspective", (0.05, 0.1, 0.2, 0.4), "", 0.1, _along(6, lambda s: s)),
    Family("brightness", (1.1, 1.25, 1.5, 2.0), " times", 1.25, _brighten),
)
"""The candidates, in the order in which they are reported."""
