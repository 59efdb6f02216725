"""Invariant Attention among the patches of an image, as differentiable functions.

Patches attend to each other by the kernel at the best pose (2.2) and are replaced by the mean of the aligned patches
(2.5). The best pose of a pair is searched among the elements of a finite group, perhaps each at several shifts, with
one matrix product for each pose, and then refined by a parabola through the distances at three adjacent angles. The
refinement is a smooth function of both patches, so gradients also flow through the pose.
"""

import math
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from unpose.groups import FiniteGroup, area_change, rotation, translation
from unpose.images import pixel_grid, sample, smooth, source_points, warp

_RIDGE = 1e-3
"""Share of a patch's energy that is added to the curvature of the parabola: if rotation hardly changes a patch, such
as a disc, its pose is undetermined and stays at the group element."""

_MAX_OPERATOR_ENTRIES = 2**26
"""Largest total size of the pose operators: half a gigabyte, as for 16 rotations of patches of 45 pixels."""


class OrbitAttentionResult(NamedTuple):
    """The result of :func:`orbit_attention`: for each patch its mean, and which patches it attends to in which pose.

    Parameters
    ----------
    means : (b, n, heads, c, p, p) tensor
        The invariant means (2.5), each in the pose of the patch that it replaces.
    weights : (b, n, k, heads) tensor
        Attention weights, which sum to one over k.
    neighbours : (b, n, k) tensor of int64
        The patches attended to; the first is the patch itself.
    poses : (b, n, k, 3, 3) tensor
        Each brings a neighbour onto the patch.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> result = orbit_attention(torch.rand(1, 5, 2, 7, 7), parse("c8"), torch.ones(1), torch.tensor(0.5))
    >>> result.poses.shape, result.neighbours[0, :, 0].tolist()
    (torch.Size([1, 5, 5, 3, 3]), [0, 1, 2, 3, 4])
    """

    means: Tensor
    weights: Tensor
    neighbours: Tensor
    poses: Tensor


def orbit_attention(
    patches: Tensor,
    group: FiniteGroup,
    bandwidth: Tensor,
    smoothing: Tensor,
    *,
    operators: Tensor | None = None,
    shift: float = 0.0,
    neighbours: int | None = None,
    candidates: Tensor | None = None,
) -> OrbitAttentionResult:
    """Compute one round of Invariant Attention among the n patches of each image.

    ``W_ij = gamma_ij / sum_l gamma_lj`` with ``gamma_ij = exp(-d_ij^2 / (2 bandwidth^2))`` (2.2), where ``d_ij`` is the
    root mean square over pixels of ``g_smoothing * (v_i o tau_ij - v_j)`` (2.6) at the best pose; then
    ``mu_j = sum_i W_ij v_i o tau_ij`` (2.5).

    Parameters
    ----------
    patches : (b, n, c, p, p) tensor
        Zero outside the inscribed disc if the group has three rotations or more, which move corners out of the patch.
    group : FiniteGroup
        Rotations, with or without mirrors, among which poses are searched. With three rotations or more, poses are
        refined between the elements.
    bandwidth : (heads,) tensor
        Positive, in units of the patches.
    smoothing : () tensor
        Standard deviation sigma of the Gaussian, positive, in pixels.
    operators : (order, p * p, p * p) or (9 * order, p * p, p * p) tensor, optional
        The poses as matrices on flat patches, if the caller keeps them; computed by default.
    shift : float, default 0.0
        Search each element also shifted by this many pixels in eight directions; 0 searches no shifts.
    neighbours : int, optional
        Attend only to this many nearest patches, the patch itself included; to all by default.
    candidates : (n, w) tensor of int64, optional
        The patches that each patch may attend to, -1 for none; all by default.

    Returns
    -------
    OrbitAttentionResult
        Means, weights, neighbours and poses.

    Notes
    -----
    As in the first round of Algorithm 1, the poses bring each patch onto the one that is replaced; the paper then
    aligns them with their mean in further rounds. Cost per image: ``order n w c p^2`` for the search, which keeps no
    scores, and ``n (k - 1)`` warped patches.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> patches = torch.rand(1, 5, 2, 7, 7)
    >>> attended = orbit_attention(patches, parse("c8"), torch.tensor([0.1, 1.0]), torch.tensor(0.5), neighbours=3)
    >>> attended.means.shape, attended.weights.shape
    (torch.Size([1, 5, 2, 2, 7, 7]), torch.Size([1, 5, 3, 2]))
    """
    if operators is None:
        operators = group_operators(group, patches.shape[-1], shift).to(patches)
    smoothed = smooth(patches, smoothing).flatten(-2)  # (b, n, c, p * p)
    nearest, elements, exists = nearest_in_orbit(smoothed, operators, neighbours, candidates)  # (b, n, k) each
    poses = refine_poses(smoothed, group, operators, nearest, elements, shift)  # (b, n, k, 3, 3)
    others = _gather_patches(patches, nearest[:, :, 1:])  # (b, n, k - 1, c, p, p); the first is the patch itself
    wide = torch.promote_types(patches.dtype, torch.float32)  # half precision is too coarse for coordinates
    points = source_points(poses[:, :, 1:].flatten(0, 2).to(wide), (patches.shape[-2], patches.shape[-1]))
    # Plain: the compiled kernel rounds differently, and a prediction must not depend on whether gradients are recorded.
    warped = sample(others.flatten(0, 2).to(wide), points, plain=True).to(patches.dtype).unflatten(0, others.shape[:3])
    aligned = torch.cat([patches[:, :, None], warped], dim=2)  # (b, n, k, c, p, p)
    squared = smooth(aligned - patches[:, :, None], smoothing).square().mean((-3, -2, -1))  # (b, n, k)
    weights = kernel_weights(squared, bandwidth, exists)
    return OrbitAttentionResult(torch.einsum("bnkh,bnkcyx->bnhcyx", weights, aligned), weights, nearest, poses)


def kernel_weights(squared: Tensor, bandwidth: Tensor, exists: Tensor) -> Tensor:
    """Return the weights (2.1) and (2.2): squared distances (b, n, k), bandwidths (heads,) -> (b, n, k, heads)."""
    logits = -squared[..., None] / (2 * bandwidth**2)
    return logits.masked_fill(~exists[..., None], -math.inf).softmax(2)


@torch.no_grad()
def nearest_in_orbit(
    flat: Tensor, operators: Tensor, neighbours: int | None = None, candidates: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the nearest patches of each patch over a finite orbit, and the elements that bring them onto it.

    Flat patches (b, n, c, s) -> (b, n, k) each: indices of patches, indices of operators, and whether there is such a
    patch at all, because a window may hold fewer than k. The first is always the patch itself at the identity, even if
    the patch is symmetric. The result has no gradient.
    """
    index = torch.arange(flat.shape[1], device=flat.device)[:, None]
    table = index.mT.expand(index.shape[0], -1) if candidates is None else candidates  # (n, w)
    fixed = flat.flatten(2)  # (b, n, c * s)
    best = torch.full((flat.shape[0], *table.shape), math.inf, dtype=flat.dtype, device=flat.device)
    elements = torch.zeros_like(best, dtype=torch.long)
    for element, operator in enumerate(operators):
        moved = (flat @ operator.mT).flatten(2)  # (b, n, c * s)
        products = fixed @ moved.mT if candidates is None else _dot_products(fixed, moved[:, table])  # (b, n, w)
        # Squared distance without the norm of the fixed patch, which is the same for all of its candidates.
        squared = moved.square().sum(-1)[:, table] - 2 * products
        elements = torch.where(squared < best, element, elements)
        best = torch.minimum(squared, best)
    own = table == index
    elements = elements.masked_fill(own, 0)
    best = best.masked_fill(table < 0, math.inf).masked_fill(own, -math.inf)
    count = table.shape[1] if neighbours is None else min(neighbours, table.shape[1])
    squared, chosen = best.topk(count, dim=2, largest=False)
    nearest = table.clamp_min(0).expand_as(best).gather(2, chosen)
    return nearest, elements.gather(2, chosen), squared < math.inf


def refine_poses(
    flat: Tensor, group: FiniteGroup, operators: Tensor, nearest: Tensor, elements: Tensor, shift: float = 0.0
) -> Tensor:
    """Refine the poses of :func:`nearest_in_orbit` between the elements of the group, differentiably.

    Flat patches (b, n, c, s), patches and elements (b, n, k) -> poses (b, n, k, 3, 3). A parabola is fitted to the
    squared distances at the best element and at the next rotation on either side; its minimum is at most half a step
    away. With fewer than three rotations the pose is the element itself.
    """
    poses = group.elements.to(flat)[elements % group.order]
    shifts = shift_poses(shift).to(flat)[elements // group.order]
    following, preceding, rotations = _adjacent_rotations(group)
    if rotations < 3:
        return shifts @ poses if shift else poses
    first = elements // group.order * group.order  # the identity at the same shift
    orbit = torch.einsum("bncs,ats->bnact", flat, operators).flatten(3)  # (b, n, order, c * s)
    batch = torch.arange(flat.shape[0], device=flat.device)[:, None, None]

    def squared_distance(element: Tensor) -> Tensor:
        return (orbit[batch, nearest, element] - flat.flatten(2)[:, :, None]).square().sum(-1)  # (b, n, k)

    after = squared_distance(first + following.to(elements.device)[elements % group.order])
    before = squared_distance(first + preceding.to(elements.device)[elements % group.order])
    energy = flat.square().sum((-2, -1))[:, :, None]
    curvature = after + before - 2 * squared_distance(elements) + _RIDGE * energy + torch.finfo(flat.dtype).tiny
    steps = 0.5 * (before - after) / curvature
    own = nearest == torch.arange(flat.shape[1], device=flat.device)[:, None]
    poses = rotation(2 * math.pi / rotations * steps.masked_fill(own, 0.0)) @ poses
    return shifts @ poses if shift else poses


def shift_poses(shift: float) -> Tensor:
    """Shifts by ``shift`` pixels in eight directions, the identity first: (9, 3, 3), or (1, 3, 3) for no shift."""
    grid = torch.tensor([0.0, -shift, shift] if shift else [0.0], dtype=torch.float64, device="cpu")
    return translation(torch.cartesian_prod(grid, grid))


@lru_cache(maxsize=2)  # up to 512 MiB each; all layers of a network ask for the same one
def group_operators(group: FiniteGroup, size: int, shift: float = 0.0) -> Tensor:
    """Return each element at each shift as a matrix on flat patches: (order or 9 order, p * p, p * p) in float64.

    ``flat @ operator.mT`` is the transformed patch. For patches of some tens of pixels, one dense product is many
    times faster than resampling each patch.
    """
    poses = (shift_poses(shift)[:, None] @ group.elements).flatten(0, 1)
    count = len(poses)
    if (entries := count * size**4) > _MAX_OPERATOR_ENTRIES:
        raise ValueError(
            f"{count} poses of patches of {size} pixels need matrices of {entries:,} numbers, and at most "
            f"{_MAX_OPERATOR_ENTRIES:,} are allowed; use smaller patches or fewer turns"
        )
    pixels = torch.eye(size * size, dtype=torch.float64, device="cpu").reshape(-1, 1, size, size)
    return torch.stack([warp(pixels, pose).flatten(1).mT for pose in poses])


def orbit_mask(group: FiniteGroup, size: int) -> Tensor:
    """Return the mask of what stays inside a patch at every pose: (p, p) in float64, one in the inscribed disc.

    The edge is one pixel soft. All ones for fewer than three rotations, which move nothing out of the patch.
    """
    if _adjacent_rotations(group)[2] < 3:
        return torch.ones(size, size, dtype=torch.float64, device="cpu")
    radius = pixel_grid((size, size), torch.float64, "cpu").norm(dim=-1)
    return (size / 2 - radius).clamp(0, 1)


def window_candidates(rows: int, columns: int, window: int, device: torch.device | None = None) -> Tensor:
    """List the patches in a square window around each patch of a grid: (rows * columns, window^2), -1 for none."""
    reach = torch.arange(window, device=device) - window // 2
    row = torch.arange(rows, device=device)[:, None, None, None] + reach[:, None]  # (rows, 1, window, 1)
    column = torch.arange(columns, device=device)[:, None, None] + reach  # (columns, 1, window)
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    return torch.where(inside, row * columns + column, -1).flatten(2).flatten(0, 1)


@cache
def _adjacent_rotations(group: FiniteGroup) -> tuple[Tensor, Tensor, int]:
    """Return for each element those one rotation step further and back, (order,) each, and the number of rotations."""
    matrices = group.elements
    proper = area_change(matrices) > 0
    rotations = int(proper.sum())
    angle = torch.atan2(matrices[:, 0, 1], matrices[:, 0, 0])
    step = int(torch.where(proper, (angle - 2 * math.pi / rotations).abs(), math.inf).argmin())
    return group.product[step], group.product[group.inverse[step]], rotations


def _gather_patches(patches: Tensor, index: Tensor) -> Tensor:
    """patches (b, n, ...), index (b, n, k) -> (b, n, k, ...)"""
    return patches[torch.arange(patches.shape[0], device=patches.device)[:, None, None], index]


def _dot_products(fixed: Tensor, moving: Tensor) -> Tensor:
    """fixed (b, n, d), moving (b, n, w, d) -> (b, n, w)"""
    return (moving @ fixed[..., None])[..., 0]
