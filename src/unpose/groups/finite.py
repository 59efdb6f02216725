"""Finite groups of the plane: cyclic c1, c2, ..., dihedral d1, d2, ..., and bounded sets of dilations.

Everything beyond the elements is derived from the product table, so it holds for any group, abelian or not.
"""

import math
import sys
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NO_ELEMENT = -1
"""Entry of a product or inverse table whose result is not in the set (only for bounded dilations)."""


@dataclass(frozen=True, repr=False)
class FiniteGroup:
    """A finite set of poses about the image centre with its product table; made by :func:`unpose.groups.parse`.

    Parameters
    ----------
    name : str
        What :func:`unpose.groups.parse` reads.
    matrices : tuple of tuple of tuple of float
        The elements as 3x3 matrices, identity first; :attr:`elements` is the same as a tensor.

    Notes
    -----
    ``product[a, b]`` is the index of ``elements[a] @ elements[b]``. In a set that is not closed (bounded dilations)
    ``is_group`` is false, and the tables hold :data:`NO_ELEMENT` where a product or inverse leaves the set.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> p4m = parse("p4m")
    >>> p4m.order, p4m.is_abelian, p4m.product[1].tolist()
    (8, False, [1, 2, 3, 0, 5, 6, 7, 4])
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

    @property
    def mirrored(self) -> bool:
        """Whether some element mirrors the image, as for :class:`unpose.groups.LieGroup`."""
        return any(a * d < b * c for (a, b, _), (c, d, _), _ in self.matrices)

    @cached_property
    def elements(self) -> Tensor:
        """The elements as poses, (order, 3, 3) in float64; quarter turns and mirrors are exact."""
        # On the CPU even if the default device is another one, such as "meta", which holds no values.
        return torch.tensor(self.matrices, dtype=torch.float64, device="cpu")

    @cached_property
    def product(self) -> Tensor:
        """Product table, (order, order) of indices."""
        # Row by row, because all products at once would need order^3 distances.
        return torch.stack([self._index_of(element @ self.elements) for element in self.elements])

    @cached_property
    def inverse(self) -> Tensor:
        """Inverse table, (order,) of indices: ``product[inverse[a], a]`` is the identity, 0."""
        is_identity = self.product == 0
        return torch.where(is_identity.any(0), is_identity.int().argmax(0), NO_ELEMENT)

    @property
    def is_group(self) -> bool:
        """Whether the set is closed under products and inverses."""
        return bool((self.product != NO_ELEMENT).all())

    @property
    def is_abelian(self) -> bool:
        """Whether all elements commute."""
        return bool((self.product == self.product.T).all())

    @cached_property
    def regular_representation(self) -> Tensor:
        """Left multiplication as permutation matrices, (order, order, order).

        ``regular_representation[a] @ e_b = e_{ab}``: this is how element ``a`` permutes the group axis of a feature
        map. In a set that is not closed, entries whose product leaves the set are dropped.
        """
        columns = torch.arange(self.order, device="cpu")
        matrices = self.elements.new_zeros(self.order, self.order, self.order)
        for a in range(self.order):
            is_inside = self.product[a] != NO_ELEMENT
            matrices[a, self.product[a][is_inside], columns[is_inside]] = 1.0
        return matrices

    def _index_of(self, poses: Tensor) -> Tensor:
        """The index of each pose among the elements, or NO_ELEMENT: (n, 3, 3) -> (n,)."""
        distances = torch.cdist(poses.flatten(1), self.elements.flatten(1), p=math.inf)  # (n, order)
        nearest, index = distances.min(-1)
        # Elements are at least 2 sin(pi / N) apart: far more than this tolerance at any order. It is relative to the
        # largest entry, 1 of a turn or mirror, because entries of dilations are rounded in proportion to their size.
        return torch.where(nearest < 1e-9 * poses.abs().amax((1, 2)), index, NO_ELEMENT)


def cyclic(order: int) -> FiniteGroup:
    """The rotations by multiples of ``2 pi / order``, counter-clockwise on screen.

    Parameters
    ----------
    order : int
        Number of rotations.

    Returns
    -------
    FiniteGroup

    Examples
    --------
    >>> cyclic(4).product[1].tolist()
    [1, 2, 3, 0]
    """
    return FiniteGroup(f"c{order}", tuple(_turn(step, order) for step in range(order)))


def dihedral(order: int) -> FiniteGroup:
    """The rotations of ``cyclic(order)``, then each of them after the left-right mirror.

    Parameters
    ----------
    order : int
        Number of rotations; the group has twice as many elements.

    Returns
    -------
    FiniteGroup

    Examples
    --------
    >>> dihedral(1).elements[:, 0, 0].tolist()
    [1.0, -1.0]
    """
    turns = tuple(_turn(step, order) for step in range(order))
    mirrored = tuple(tuple((-row[0], *row[1:]) for row in turn) for turn in turns)
    return FiniteGroup(f"d{order}", turns + mirrored)


def dilations(count: int, ratio: float = 2.0) -> FiniteGroup:
    """The scales ``1, ratio, ..., ratio^(count - 1)``: a bounded part of the dilation group, not itself a group.

    Parameters
    ----------
    count : int
        Number of scales.
    ratio : float, default 2.0
        Ratio of neighbouring scales, above one.

    Returns
    -------
    FiniteGroup

    Examples
    --------
    >>> dilations(3).product.tolist()  # -1 is NO_ELEMENT
    [[0, 1, 2], [1, 2, -1], [2, -1, -1]]
    """
    if count < 1:
        raise ValueError(f"dilations needs at least one scale, got {count}")
    if not ratio > 1 or not math.isfinite(ratio):
        raise ValueError(f"the ratio of neighbouring scales must be a finite number above 1, got {ratio}")
    if (count - 1) * math.log(ratio) > math.log(sys.float_info.max):
        raise ValueError(f"the largest of {count} scales with a ratio of {ratio} overflows")
    scales = [float(ratio) ** step for step in range(count)]
    return FiniteGroup(
        f"dilations({count}, {repr(float(ratio)).removesuffix('.0')})",  # all digits: the name is parsed back
        tuple(((s, 0.0, 0.0), (0.0, s, 0.0), (0.0, 0.0, 1.0)) for s in scales),
    )


def as_quarter_turns(pose: Tensor) -> tuple[int, bool] | None:
    """Write a pose as quarter turns after an optional mirror, which permute pixels without interpolation.

    Parameters
    ----------
    pose : Tensor, shape (3, 3)

    Returns
    -------
    (int, bool) or None
        Number of quarter turns and whether the mirror comes first; None if the pose is not made of these.

    Examples
    --------
    >>> as_quarter_turns(dihedral(4).elements[5])
    (1, True)
    >>> as_quarter_turns(cyclic(8).elements[1]) is None
    True
    """
    distances = (dihedral(4).elements - pose.detach().to("cpu", torch.float64)).abs().amax((1, 2))  # (8,)
    nearest = int(distances.argmin())
    return (nearest % 4, nearest >= 4) if distances[nearest] < 1e-9 else None


def _turn(step: int, order: int) -> tuple[tuple[float, ...], ...]:
    cos, sin = _exact(math.cos, step, order), _exact(math.sin, step, order)
    return ((cos, sin, 0.0), (-sin, cos, 0.0), (0.0, 0.0, 1.0))


def _exact(function, step: int, order: int) -> float:  # type: ignore[no-untyped-def]
    """cos or sin of ``2 pi step / order`` with the multiples of a quarter turn exact."""
    value = function(2 * math.pi * step / order)
    return float(round(value)) if 4 * step % order == 0 else value
