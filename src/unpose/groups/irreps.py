"""Real irreducible representations of the finite point groups, and the Fourier transform on a group.

A function on a group of n elements is a sum of matrix entries of irreducible representations. In this basis an
equivariant linear map is block diagonal, with one block for each representation.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from unpose.groups.finite import FiniteGroup


@dataclass(frozen=True)
class Irreps:
    """The real irreducible representations of a cyclic or dihedral group; made by :func:`irreducible_representations`.

    Parameters
    ----------
    singles : (s, order) Tensor
        The one-dimensional representations, entries 1 and -1; the first is trivial.
    pairs : (p, order, 2, 2) Tensor
        The two-dimensional ones: rotations by multiples of the angle and, for mirrors, reflections.
    copies : int
        How often each two-dimensional representation occurs in the regular representation: once in a cyclic group,
        whose pairs are of complex type (maps that commute with them are complex numbers), twice in a dihedral one.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> irreps = irreducible_representations(parse("d4"))
    >>> len(irreps.singles), len(irreps.pairs), irreps.copies
    (4, 1, 2)
    """

    singles: Tensor
    pairs: Tensor
    copies: int


def irreducible_representations(group: FiniteGroup) -> Irreps:
    """Return all real irreducible representations of a cyclic or dihedral group.

    Parameters
    ----------
    group : FiniteGroup
        ``cN`` or ``dN``.

    Returns
    -------
    Irreps

    Notes
    -----
    For the element ``r^k m^s`` (mirror, then k turns) the one-dimensional representations are 1 and, with mirrors,
    ``(-1)^s``; for even N these are also multiplied by ``(-1)^k``. The two-dimensional ones are ``R(2 pi j k / N)
    diag(1, -1)^s`` with a rotation R and ``0 < j < N / 2``.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> irreducible_representations(parse("d1")).singles.tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    if not group.is_group or group.name[0] not in "cd":
        raise ValueError(f"irreducible representations are known of cyclic and dihedral groups, got {group}")
    n = group.order // 2 if group.mirrored else group.order
    turns = torch.arange(group.order, device="cpu") % n  # k of r^k m^s, in the order of the elements
    mirrored = torch.arange(group.order, device="cpu") >= n
    signs = [torch.ones(group.order, dtype=torch.float64, device="cpu")]
    if group.mirrored:
        signs.append(1.0 - 2.0 * mirrored.double())
    if n % 2 == 0:
        signs += [sign * (1.0 - 2.0 * (turns % 2).double()) for sign in signs]
    pairs = [_pair(turns, mirrored, frequency, n) for frequency in range(1, (n + 1) // 2)]
    empty = torch.zeros(0, group.order, 2, 2, dtype=torch.float64, device="cpu")
    return Irreps(torch.stack(signs), torch.stack(pairs) if pairs else empty, 2 if group.mirrored else 1)


@lru_cache(maxsize=64)
def fourier_basis(group: FiniteGroup) -> Tensor:
    """Return the orthogonal matrix that decomposes functions on a group into irreducible parts.

    Parameters
    ----------
    group : FiniteGroup
        ``cN`` or ``dN``.

    Returns
    -------
    (order, order) Tensor
        In float64; row k holds a basis function over the elements. First the one-dimensional representations, then for
        each two-dimensional one its first component and its second component, each with all copies.

    Notes
    -----
    The basis functions are ``sqrt(d / order) rho(h)_ij``: component i transforms under the group, copy j does not. With
    ``F`` this matrix and ``P(g)`` the regular representation, ``F P(g) F^T`` is block diagonal with the blocks
    ``rho(g)``, in which each block of a two-dimensional representation occurs ``copies`` times.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> basis = fourier_basis(parse("d4"))
    >>> bool((basis @ basis.T - torch.eye(8)).abs().max() < 1e-12)
    True
    """
    irreps = irreducible_representations(group)
    singles = irreps.singles / math.sqrt(group.order)  # (s, order)
    entries = irreps.pairs[..., : irreps.copies] * math.sqrt(2 / group.order)  # (p, order, component, copy)
    return torch.cat([singles, entries.permute(0, 2, 3, 1).reshape(-1, group.order)])


def _pair(turns: Tensor, mirrored: Tensor, frequency: int, n: int) -> Tensor:
    """Return ``R(2 pi frequency k / n) diag(1, -1)^s`` for all elements, (order, 2, 2); quarter turns are exact."""
    step = frequency * turns % n
    angle = 2 * math.pi * step.double() / n
    is_exact = 4 * step % n == 0
    cos, sin = (torch.where(is_exact, value.round(), value) for value in (angle.cos(), angle.sin()))
    sign = 1.0 - 2.0 * mirrored.double()
    return torch.stack([torch.stack([cos, -sin * sign], -1), torch.stack([sin, cos * sign], -1)], -2)
