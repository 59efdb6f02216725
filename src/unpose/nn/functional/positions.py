"""Relative positions ``h^-1 (x_j - x_i)`` and relative elements ``h^-1 k`` of a key as seen from a query.

Convention
----------
Offsets are ``(x, y)`` in pixels, x right and y down, key minus query. A window is (height, width), both odd, with the
query in its middle; entry ``[y, x]`` of a window belongs to the offset ``(x - width // 2, y - height // 2)``.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.functional import embedding

from unpose.groups import FiniteGroup, area_change, inverse
from unpose.nn.ops.autocast import is_autocast


def relative_elements(group: FiniteGroup) -> tuple[Tensor, int]:
    """Return the index of ``h^-1 k`` for all pairs, (order, order), and the number of distinct relative elements.

    For a group these are its own elements, read off the product table. A bounded set of dilations also has quotients
    outside the set; those are numbered in the order of the pairs in which they first appear.
    """
    if group.is_group:
        return group.product[group.inverse], group.order
    relative = (inverse_elements(group)[:, None] @ group.elements[None, :, :2, :2]).flatten(0, 1)  # (order^2, 2, 2)
    size = relative.abs().amax((1, 2))  # (order^2,)
    same = (relative[:, None] - relative[None]).abs().amax((2, 3)) <= 1e-9 * size[:, None]
    distinct, index = same.int().argmax(1).unique(return_inverse=True)
    return index.unflatten(0, (group.order, group.order)), len(distinct)


def inverse_elements(group: FiniteGroup) -> Tensor:
    """Return the linear part of every inverse element, (order, 2, 2) in float64; quarter turns stay exact."""
    inverses = group.elements[group.inverse] if group.is_group else inverse(group.elements)
    return inverses[:, :2, :2]


def relative_positions(inverses: Tensor, window: tuple[int, int]) -> Tensor:
    """Return ``h^-1 (x_j - x_i)`` for all offsets of a window: (order, 2, 2) -> (order, height, width, 2)."""
    y, x = (
        torch.arange(-(side // 2), side - side // 2, dtype=inverses.dtype, device=inverses.device) for side in window
    )
    along_x, along_y = inverses[:, None, None].unbind(-1)  # (order, 1, 1, 2) each
    return torch.addcmul(along_x * x[:, None], along_y, y[:, None, None])


def position_table(
    encoding: Callable[[Tensor], Tensor], inverses: Tensor, relations: Tensor, window: tuple[int, int]
) -> Tensor:
    """Evaluate a position encoding for every pair of group elements and every offset of a window.

    Entry ``[n, h, k, y, x]`` of the result is ``P(h^-1 (x_j - x_i), h^-1 k)`` of head n, the position term of
    :func:`unpose.nn.group_attention`.

    Parameters
    ----------
    encoding : callable
        Maps positions (..., 2) in pixels to (heads or 1, relative elements, ..., channels), such as
        :class:`unpose.nn.SeparableEncoding`.
    inverses : (order, 2, 2) tensor
        The linear parts of the inverse elements ``h^-1``.
    relations : (order, ..., keys) tensor of int64
        Which relative element the encoding is evaluated for; ``[h, k]`` is the index of ``h^-1 k``. All zero for a
        lifting layer, which has one key element.
    window : (int, int)
        Odd height and width.

    Returns
    -------
    (heads or 1, order, ..., keys, height, width, channels) tensor

    Examples
    --------
    >>> from unpose.groups import parse
    >>> from unpose.nn import HarmonicEncoding
    >>> group = parse("c4")
    >>> inverses = group.elements[group.inverse, :2, :2].float()
    >>> encoding = HarmonicEncoding(channels=5, relations=4, heads=2, reach=1.0)
    >>> position_table(encoding, inverses, group.product[group.inverse], (3, 3)).shape
    torch.Size([2, 4, 4, 3, 3, 5])
    """
    device, order = inverses.device.type, len(inverses)
    with torch.autocast(device, enabled=False) if is_autocast(inverses) else nullcontext():
        # Half precision would round the positions, and casting takes longer than this small computation.
        values = encoding(relative_positions(inverses, window))  # (heads, relative, order, height, width, channels)
    rows = values.permute(1, 2, 0, 3, 4, 5).flatten(2).flatten(0, 1)  # (relative * order, everything else)
    own = torch.arange(order, device=relations.device).view(-1, *[1] * (relations.ndim - 1))
    # ``embedding`` and not indexing: its gradient is one kernel on a GPU, while that of an index sorts first.
    table = embedding(torch.add(own, relations, alpha=order), rows)  # (order, ..., keys, everything else)
    return table.unflatten(-1, (len(values), *window, values.shape[-1])).movedim(-4, 0)


def preserves_area(group: FiniteGroup) -> bool:
    """Return whether every element preserves areas, as rotations and mirrors do and dilations do not."""
    return bool((_areas(group) - 1).abs().max() < 1e-9)


def widest_window(group: FiniteGroup, window: int) -> int:
    """Return the side of a window that holds the neighbourhood ``h N`` of every element; larger only for dilations."""
    return 2 * max(_dilated_radius(area, window) for area in _areas(group).tolist()) + 1


def dilation_bias(group: FiniteGroup, window: int | None, table: tuple[int, int], keys: int) -> Tensor:
    """Return what dilations add to the attention scores: (order, keys, *table) in float64.

    The neighbourhood of output scale h is ``h N`` (appendix E): N has the given window (the whole image for None) and
    extends one scale up and down. The bias is minus infinity outside. A key at scale k is weighted by its share of the
    left Haar measure of the plane with dilations, ``dx dk / k^(d + 1)`` with d = 2; scales are spaced evenly in
    ``log k``, which leaves ``1 / k^2``.

    Notes
    -----
    Equations 20 and 21 write the factors ``1 / h^d`` and ``1 / h^(d + 1)`` outside of the softmax. The softmax already
    divides by a sum over the same neighbourhood, so a factor outside makes coarse outputs smaller and breaks the
    equivariance it is meant to give. Inside, numerator and denominator both carry it: what depends on h alone cancels,
    and the measure of the keys remains.
    """
    height, width = table
    scales = _areas(group).sqrt()  # (order,)
    if window is None:
        inside = torch.ones(group.order, height, width, dtype=torch.bool, device="cpu")
    else:
        radii = torch.tensor([_dilated_radius(area, window) for area in _areas(group).tolist()], device="cpu")[
            :, None, None
        ]
        y = (torch.arange(height, device="cpu") - height // 2).abs()[:, None]
        x = (torch.arange(width, device="cpu") - width // 2).abs()
        inside = (y <= radii) & (x <= radii)
    allowed = inside[:, None].expand(-1, keys, -1, -1)
    log_measure = torch.zeros(keys, dtype=torch.float64, device="cpu")
    if keys == group.order:
        log_scales = scales.log()
        step = log_scales.diff().abs().min() if group.order > 1 else torch.tensor(1.0, device="cpu")
        allowed = allowed & ((log_scales[:, None] - log_scales).abs() <= step * (1 + 1e-9))[:, :, None, None]
        log_measure = -2 * log_scales
    return torch.where(allowed, log_measure[:, None, None], -math.inf)


def _areas(group: FiniteGroup) -> Tensor:
    return area_change(group.elements).abs()


def _dilated_radius(area: float, window: int) -> int:
    """Return the largest whole offset strictly inside half of the dilated window: 3 dilated 3 times is 9 wide."""
    return math.ceil(math.sqrt(area) * window / 2 - 1e-9) - 1
