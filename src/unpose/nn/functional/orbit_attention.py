"""Invariant Attention among the patches of an image, as differentiable functions.

Patches attend to each other by the kernel of the best pose (2.2) and are replaced by the mean of the patches brought
into their own pose (2.5). The best pose of a pair is searched among the elements of a finite group, one matrix product
for each element, and then turned a little further by the parabola through three neighbouring distances. That step is a
smooth function of the two patches, so the gradient knows how the pose moves when a patch changes.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from unpose.groups import FiniteGroup, area_change, rotation
from unpose.images import pixel_grid, smooth, warp

_RIDGE = 1e-3
"""Share of a patch's energy added to the curvature of the parabola: where turning hardly changes a patch, such as a
disc, its pose is not known and stays on the grid."""

_MOST_NUMBERS = 2**26
"""In the matrices that turn patches: half a gigabyte, 16 turns of patches of 45 pixels."""


class Attended(NamedTuple):
    """Which patches each patch attends to, in what pose, and what comes of it."""

    means: Tensor  # (b, n, heads, c, p, p): the invariant means (2.5), in the pose of the patch they replace
    weights: Tensor  # (b, n, k, heads): sum to one over k
    moving: Tensor  # (b, n, k): the patches attended to, first the patch itself
    poses: Tensor  # (b, n, k, 3, 3): brings each of them onto the patch


def orbit_attention(
    patches: Tensor,
    group: FiniteGroup,
    bandwidth: Tensor,
    smoothing: Tensor,
    *,
    operators: Tensor | None = None,
    neighbours: int | None = None,
    candidates: Tensor | None = None,
) -> Attended:
    """One round of Invariant Attention among the n patches of each image.

    ``W_ij = gamma_ij / sum_l gamma_lj`` with ``gamma_ij = exp(-d_ij^2 / (2 bandwidth^2))`` (2.2), where ``d_ij`` is the
    root mean square over pixels of ``g_smoothing * (v_i o tau_ij - v_j)`` (2.6) at the best pose; then
    ``mu_j = sum_i W_ij v_i o tau_ij`` (2.5).

    Parameters
    ----------
    patches : (b, n, c, p, p)
        Zero where a turn would carry pixels out of the frame (:func:`turning_window`).
    group : turns, with or without mirror, among which poses are searched; three turns or more are refined in between.
    bandwidth : (heads,) positive, in units of the patches
    smoothing : () positive, in pixels
    operators : (order, p * p, p * p), those of :func:`turning_operators`, where they are kept
    neighbours : attend to this many nearest patches only, the patch itself included
    candidates : (n, w) patches that each patch may attend to, -1 for none; all by default

    Notes
    -----
    As in the first round of Algorithm 1 the poses are those that bring each patch onto the one that is replaced; the
    paper goes on to align them with their mean. Cost for each image: ``order n w c p^2`` for the search, which keeps
    no score, and ``n (k - 1)`` warped patches.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> patches = torch.rand(1, 5, 2, 7, 7)
    >>> attended = orbit_attention(patches, parse("c8"), torch.tensor([0.1, 1.0]), torch.tensor(0.5), neighbours=3)
    >>> attended.means.shape, attended.weights.shape
    (torch.Size([1, 5, 2, 2, 7, 7]), torch.Size([1, 5, 3, 2]))
    """
    if operators is None:
        operators = turning_operators(group, patches.shape[-1]).to(patches)
    seen = smooth(patches, smoothing).flatten(-2)  # (b, n, c, p * p)
    moving, elements, exists = nearest_in_orbit(seen, operators, neighbours, candidates)
    poses = refined_poses(seen, group, operators, moving, elements)  # (b, n, k, 3, 3)
    others = _picked(patches, moving[:, :, 1:])  # the first is the patch itself, as it is
    turned = warp(others.flatten(0, 2), poses[:, :, 1:].flatten(0, 2)).unflatten(0, others.shape[:3])
    aligned = torch.cat([patches[:, :, None], turned], dim=2)  # (b, n, k, c, p, p)
    squared = smooth(aligned - patches[:, :, None], smoothing).square().mean((-3, -2, -1))  # (b, n, k)
    weights = kernel_weights(squared, bandwidth, exists)
    return Attended(torch.einsum("bnkh,bnkcyx->bnhcyx", weights, aligned), weights, moving, poses)


def kernel_weights(squared: Tensor, bandwidth: Tensor, exists: Tensor) -> Tensor:
    """Attention from squared distances (b, n, k) and the bandwidth of each head (h,): (b, n, k, h), (2.1) and (2.2)."""
    logits = -squared[..., None] / (2 * bandwidth**2)
    return logits.masked_fill(~exists[..., None], -math.inf).softmax(2)


@torch.no_grad()
def nearest_in_orbit(
    seen: Tensor, operators: Tensor, neighbours: int | None = None, candidates: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest patches of each patch over a finite orbit, and the elements that bring them onto it.

    Parameters
    ----------
    seen : (b, n, c, s) flat patches

    Returns
    -------
    moving, elements, exists : (b, n, k)
        Patches, indices of operators, and whether there is such a patch: a window may hold fewer than k.

    Notes
    -----
    A patch finds itself, first and as it is, whatever symmetry it has. Choices have no gradient.
    """
    places = torch.arange(seen.shape[1], device=seen.device)[:, None]
    table = places.mT.expand(len(places), -1) if candidates is None else candidates  # (n, w)
    fixed = seen.flatten(2)
    best = torch.full((len(seen), *table.shape), math.inf, dtype=seen.dtype, device=seen.device)
    elements = torch.zeros_like(best, dtype=torch.long)
    for index, operator in enumerate(operators):
        turned = (seen @ operator.mT).flatten(2)  # (b, n, c * s)
        products = fixed @ turned.mT if candidates is None else _dots(fixed, turned[:, table])  # (b, n, w)
        # The length of the fixed patch is the same for all of its candidates.
        squared = turned.square().sum(-1)[:, table] - 2 * products
        elements = torch.where(squared < best, index, elements)
        best = torch.minimum(squared, best)
    own = table == places
    elements = elements.masked_fill(own, 0)
    best = best.masked_fill(table < 0, math.inf).masked_fill(own, -math.inf)
    count = table.shape[1] if neighbours is None else min(neighbours, table.shape[1])
    squared, chosen = best.topk(count, dim=2, largest=False)
    moving = table.clamp_min(0).expand_as(best).gather(2, chosen)
    return moving, elements.gather(2, chosen), squared < math.inf


def refined_poses(seen: Tensor, group: FiniteGroup, operators: Tensor, moving: Tensor, elements: Tensor) -> Tensor:
    """The poses of chosen pairs between the elements of the group: (b, n, k, 3, 3), differentiable.

    Through the squared distances at the best element and one step of the circle before and after it goes one parabola;
    its lowest point is at most half a step away. With fewer than three turns the element itself is the pose.

    Parameters
    ----------
    seen : (b, n, c, s) flat patches
    moving, elements : (b, n, k), from :func:`nearest_in_orbit`
    """
    found = group.elements.to(seen)[elements]
    after, before, turns = _neighbouring_turns(group)
    if turns < 3:
        return found
    bank = torch.einsum("bncs,ats->bnact", seen, operators).flatten(3)  # (b, n, order, c * s)
    batch = torch.arange(len(seen), device=seen.device)[:, None, None]

    def squared(index: Tensor) -> Tensor:
        return (bank[batch, moving, index] - seen.flatten(2)[:, :, None]).square().sum(-1)  # (b, n, k)

    ahead, behind = squared(after.to(elements.device)[elements]), squared(before.to(elements.device)[elements])
    energy = seen.square().sum((-2, -1))[:, :, None]
    curvature = ahead + behind - 2 * squared(elements) + _RIDGE * energy + torch.finfo(seen.dtype).tiny
    offset = 0.5 * (behind - ahead) / curvature
    own = moving == torch.arange(seen.shape[1], device=seen.device)[:, None]
    return rotation(2 * math.pi / turns * offset.masked_fill(own, 0.0)) @ found


@cache
def turning_operators(group: FiniteGroup, size: int) -> Tensor:
    """Each element as a matrix on flat patches: (order, p * p, p * p) in float64, ``turned = patch @ operator.mT``.

    For patches of some tens of pixels one dense product turns all of them, many times faster than sampling each.
    """
    if (numbers := group.order * size**4) > _MOST_NUMBERS:
        raise ValueError(
            f"{group.order} poses of patches of {size} pixels take matrices of {numbers:,} numbers, at most "
            f"{_MOST_NUMBERS:,} are made; take smaller patches or fewer turns"
        )
    pixels = torch.eye(size * size, dtype=torch.float64, device="cpu").reshape(-1, 1, size, size)
    return torch.stack([warp(pixels, element).flatten(1).mT for element in group.elements])


def turning_window(group: FiniteGroup, size: int) -> Tensor:
    """What of a patch stays in its frame at every angle: (p, p) in float64, one in the inscribed disc, zero outside.

    The edge is one pixel soft. All ones for a group of fewer than three turns, which carries nothing out of the frame.
    """
    if _neighbouring_turns(group)[2] < 3:
        return torch.ones(size, size, dtype=torch.float64, device="cpu")
    radius = pixel_grid((size, size), torch.float64, "cpu").norm(dim=-1)
    return (size / 2 - radius).clamp(0, 1)


def window_candidates(rows: int, columns: int, window: int) -> Tensor:
    """The patches in a square window around each patch of a grid: (rows * columns, window^2), -1 for none."""
    reach = torch.arange(window) - window // 2
    row = torch.arange(rows)[:, None, None, None] + reach[:, None]  # (rows, 1, window, 1)
    column = torch.arange(columns)[:, None, None] + reach  # (columns, 1, window)
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    return torch.where(inside, row * columns + column, -1).flatten(2).flatten(0, 1)


@cache
def _neighbouring_turns(group: FiniteGroup) -> tuple[Tensor, Tensor, int]:
    """For each element those one turn further and one turn back, and the number of turns in a circle."""
    matrices = group.elements
    proper = area_change(matrices) > 0
    turns = int(proper.sum())
    angle = torch.atan2(matrices[:, 0, 1], matrices[:, 0, 0])
    step = int(torch.where(proper, (angle - 2 * math.pi / turns).abs(), math.inf).argmin())
    return group.product[step], group.product[group.inverse[step]], turns


def _picked(patches: Tensor, index: Tensor) -> Tensor:
    """patches (b, n, ...), index (b, n, k) -> (b, n, k, ...)"""
    return patches[torch.arange(len(patches), device=patches.device)[:, None, None], index]


def _dots(fixed: Tensor, moving: Tensor) -> Tensor:
    """fixed (b, n, d), moving (b, n, w, d) -> (b, n, w)"""
    return (moving @ fixed[..., None])[..., 0]
