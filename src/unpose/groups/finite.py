"""Finite groups of the plane: rotations c1, c2, ..., rotations with mirrors d1, d2, ..., and bounded dilations.

Everything beyond the elements is read off the product table, so it holds for any group, abelian or not.
"""

import math
import sys
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

OUTSIDE = -1
"""Entry of a product or inverse table where the result is not in the set (bounded dilations only)."""


@dataclass(frozen=True, repr=False)
class FiniteGroup:
    """A finite set of poses about the image centre with its product table; made by :func:`unpose.groups.parse`.

    Parameters
    ----------
    name : str
        What :func:`unpose.groups.parse` reads.
    matrices : tuple
        The elements as nested tuples, identity first; :attr:`elements` gives the tensor.

    Notes
    -----
    ``product[a, b]`` is the index of ``elements[a] @ elements[b]``. A set that is not closed (dilations between
    bounds) has ``is_group`` false and :data:`OUTSIDE` where a product or inverse leaves it.
    """

    name: str
    matrices: tuple[tuple[tuple[float, ...], ...], ...]

    def __repr__(self) -> str:
        return self.name

    def __len__(self) -> int:
        return self.order

    @property
    def order(self) -> int:
        """Number of elements."""
        return len(self.matrices)

    @cached_property
    def elements(self) -> Tensor:
        """The elements as poses, (order, 3, 3) in float64; quarter turns and mirrors are exact."""
        # On the CPU whatever device is the default: networks may be outlined on one that holds no numbers.
        return torch.tensor(self.matrices, dtype=torch.float64, device="cpu")

    @cached_property
    def product(self) -> Tensor:
        """Product table, (order, order) of indices."""
        # Row by row: all gaps at once would be order^3 of them.
        return torch.stack([self._index_of(element @ self.elements) for element in self.elements])

    @cached_property
    def inverse(self) -> Tensor:
        """Inverse table, (order,) of indices: ``product[inverse[a], a]`` is the identity, 0."""
        is_identity = self.product == 0
        return torch.where(is_identity.any(0), is_identity.int().argmax(0), OUTSIDE)

    @property
    def is_group(self) -> bool:
        """Whether products and inverses stay inside."""
        return bool((self.product != OUTSIDE).all())

    @property
    def is_abelian(self) -> bool:
        """Whether the order of a product does not matter."""
        return bool((self.product == self.product.T).all())

    @cached_property
    def regular_representation(self) -> Tensor:
        """Left multiplication as permutation matrices, (order, order, order).

        ``regular_representation[a] @ e_b = e_{ab}``: element ``a`` permutes the group axis of a feature map this way.
        In a set that is not closed, what leaves it goes to zero.
        """
        columns = torch.arange(self.order, device="cpu")
        matrices = self.elements.new_zeros(self.order, self.order, self.order)
        for a in range(self.order):
            stays = self.product[a] != OUTSIDE
            matrices[a, self.product[a][stays], columns[stays]] = 1.0
        return matrices

    def _index_of(self, poses: Tensor) -> Tensor:
        """Which elements these poses are: (n, 3, 3) -> (n,)"""
        gaps = torch.cdist(poses.flatten(1), self.elements.flatten(1), p=math.inf)  # (n, order)
        nearest, index = gaps.min(-1)
        # Elements lie at least 2 sin(pi / N) apart, so half of the smallest gap tells them apart at any order.
        return torch.where(nearest < 1e-9, index, OUTSIDE)


def cyclic(order: int) -> FiniteGroup:
    """The rotations by multiples of ``2 pi / order``, counter-clockwise on screen."""
    return FiniteGroup(f"c{order}", tuple(_turn(step, order) for step in range(order)))


def dihedral(order: int) -> FiniteGroup:
    """The rotations of ``cyclic(order)`` and each of them after the left-right mirror; ``2 * order`` elements."""
    turns = tuple(_turn(step, order) for step in range(order))
    mirrored = tuple(tuple((-row[0], *row[1:]) for row in turn) for turn in turns)
    return FiniteGroup(f"d{order}", turns + mirrored)


def dilations(count: int, ratio: float = 2.0) -> FiniteGroup:
    """The scales ``1, ratio, ..., ratio^(count - 1)``: a bounded piece of the dilation group, not a group itself."""
    if count < 1:
        raise ValueError(f"dilations needs at least one scale, got {count}")
    if not ratio > 1 or not math.isfinite(ratio):
        raise ValueError(f"the ratio of neighbouring scales must be a finite number above 1, got {ratio}")
    if (count - 1) * math.log(ratio) > math.log(sys.float_info.max):
        raise ValueError(f"the largest of {count} scales with a ratio of {ratio} is beyond all numbers")
    scales = [float(ratio) ** step for step in range(count)]
    return FiniteGroup(
        f"dilations({count}, {repr(float(ratio)).removesuffix('.0')})",  # all digits: the name is the way back
        tuple(((s, 0.0, 0.0), (0.0, s, 0.0), (0.0, 0.0, 1.0)) for s in scales),
    )


def _turn(step: int, order: int) -> tuple[tuple[float, ...], ...]:
    cos, sin = _exact(math.cos, step, order), _exact(math.sin, step, order)
    return ((cos, sin, 0.0), (-sin, cos, 0.0), (0.0, 0.0, 1.0))


def _exact(function, step: int, order: int) -> float:  # type: ignore[no-untyped-def]
    """cos or sin of ``2 pi step / order`` with the multiples of a quarter turn exact."""
    value = function(2 * math.pi * step / order)
    return float(round(value)) if 4 * step % order == 0 else value
