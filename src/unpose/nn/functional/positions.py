"""Where a key lies as seen from a query: relative positions ``h^-1 (x_j - x_i)`` and relative elements ``h^-1 k``.

Convention
----------
Offsets are ``(x, y)`` in pixels, x right and y down, the key minus the query. A window is (height, width), both odd,
with the query in its middle; entry ``[y, x]`` of a window belongs to the offset ``(x - width // 2, y - height // 2)``.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.functional import embedding

from unpose.groups import FiniteGroup, area_change, inverse, parse
from unpose.nn.ops.autocast import is_autocast


def parse_finite(group: str | FiniteGroup) -> FiniteGroup:
    """The finite group with this name, for what keeps one feature map for each element."""
    found = parse(group)
    if not isinstance(found, FiniteGroup):
        raise ValueError(
            f"a finite group is needed here, such as c1, c4, d4 or dilations(3), got {found}; c8 or c16 stand in for "
            "the continuous rotations"
        )
    return found


def relative_elements(group: FiniteGroup) -> tuple[Tensor, int]:
    """Index of the relative element ``h^-1 k`` for all pairs, (order, order), and how many different ones there are.

    For a group these are its own elements, read off the product table. A bounded set of dilations has differences that
    are not in it; they are numbered by the pair of elements in which they first appear.
    """
    if group.is_group:
        return group.product[group.inverse], group.order
    relative = (inverse_elements(group)[:, None] @ group.elements[None, :, :2, :2]).flatten(0, 1)  # (order^2, 2, 2)
    size = relative.abs().amax((1, 2))  # (order^2,)
    same = (relative[:, None] - relative[None]).abs().amax((2, 3)) <= 1e-9 * size[:, None]
    kinds, index = same.int().argmax(1).unique(return_inverse=True)
    return index.unflatten(0, (group.order, group.order)), len(kinds)


def inverse_elements(group: FiniteGroup) -> Tensor:
    """The inverse of every element as it acts on offsets, (order, 2, 2) in float64; quarter turns stay exact."""
    turned = group.elements[group.inverse] if group.is_group else inverse(group.elements)
    return turned[:, :2, :2]


def relative_positions(inverses: Tensor, window: tuple[int, int]) -> Tensor:
    """The offsets of a window as each element sees them, ``h^-1 (x_j - x_i)``: (order, height, width, 2)."""
    y, x = (
        torch.arange(-(extent // 2), extent - extent // 2, dtype=inverses.dtype, device=inverses.device)
        for extent in window
    )
    along_x, along_y = inverses[:, None, None].unbind(-1)  # (order, 1, 1, 2) each
    return torch.addcmul(along_x * x[:, None], along_y, y[:, None, None])


def position_table(
    encoding: Callable[[Tensor], Tensor], inverses: Tensor, relations: Tensor, window: tuple[int, int]
) -> Tensor:
    """An encoding written out for every pair of elements and every offset of a window.

    Parameters
    ----------
    encoding : maps positions (..., 2) to (heads or 1, relative elements, ..., channels)
    inverses : (order, 2, 2), from :func:`inverse_elements`
    relations : (order, ..., keys) of indices
        Which relative element the encoding is asked for: ``[h, k]`` holds that of ``h^-1 k``.
    window : (height, width), odd

    Returns
    -------
    (heads or 1, order, ..., keys, height, width, channels): ``P(h^-1 (x_j - x_i), h^-1 k)``
    """
    kind, order = inverses.device.type, len(inverses)
    with torch.autocast(kind, enabled=False) if is_autocast(inverses) else nullcontext():
        # Half precision would round the positions, and casting takes longer than computing so little.
        values = encoding(relative_positions(inverses, window))  # (heads, relative, order, height, width, channels)
    rows = values.permute(1, 2, 0, 3, 4, 5).flatten(2).flatten(0, 1)  # (relative * order, everything else)
    own = torch.arange(order, device=relations.device).view(-1, *[1] * (relations.ndim - 1))
    # As a look-up, whose gradient is one kernel on a GPU; that of an index sorts first.
    found = embedding(torch.add(own, relations, alpha=order), rows)  # (order, ..., keys, everything else)
    return found.unflatten(-1, (len(values), *window, values.shape[-1])).movedim(-4, 0)


def is_unimodular(group: FiniteGroup) -> bool:
    """Whether no element changes areas; dilations do."""
    return bool((_areas(group) - 1).abs().max() < 1e-9)


def widest_window(group: FiniteGroup, window: int) -> int:
    """The window that holds the neighbourhood ``h N`` of every element: ``window`` itself unless the group dilates."""
    return 2 * max(dilated_radius(area, window) for area in _areas(group).tolist()) + 1


def dilated_neighbourhood(group: FiniteGroup, window: int | None, table: tuple[int, int], keys: int) -> Tensor:
    """What a dilation changes in the sums of attention: added to the scores, (order, keys, height, width).

    The neighbourhood of output scale h is ``h N`` (appendix E): N has the given window (everything where there is
    none) and reaches one scale up and down. What lies outside is minus infinity. A key at scale k counts with its share
    of the left Haar measure of the plane with dilations, ``dx dk / k^(d + 1)`` with d = 2; scales are spaced evenly in
    ``log k``, which leaves ``1 / k^2``.

    Notes
    -----
    Equations 20 and 21 write the factors ``1 / h^d`` and ``1 / h^(d + 1)`` outside of the softmax. The softmax already
    divides by a sum over the same neighbourhood, so a factor outside makes coarse outputs smaller and breaks the
    equivariance it is there for. Inside, where numerator and denominator both carry it, what depends on h alone cancels
    and the measure of the keys stays.
    """
    height, width = table
    scales = _areas(group).sqrt()  # (order,)
    if window is None:
        inside = torch.ones(group.order, height, width, dtype=torch.bool)
    else:
        radii = torch.tensor([dilated_radius(area, window) for area in _areas(group).tolist()])[:, None, None]
        y = (torch.arange(height) - height // 2).abs()[:, None]
        x = (torch.arange(width) - width // 2).abs()
        inside = (y <= radii) & (x <= radii)
    allowed = inside[:, None].expand(-1, keys, -1, -1)
    log_measure = torch.zeros(keys, dtype=torch.float64)
    if keys == group.order:
        steps = scales.log()
        nearest = steps.diff().abs().min() if group.order > 1 else torch.tensor(1.0)
        allowed = allowed & ((steps[:, None] - steps).abs() <= nearest * (1 + 1e-9))[:, :, None, None]
        log_measure = -2 * steps
    return torch.where(allowed, log_measure[:, None, None], -math.inf)


def _areas(group: FiniteGroup) -> Tensor:
    return area_change(group.elements).abs()


def dilated_radius(area: float, window: int) -> int:
    """Whole offsets strictly inside half of the dilated window: a window of 3 dilated 3 times is one of 9."""
    return math.ceil(math.sqrt(area) * window / 2 - 1e-9) - 1
