"""The sums of group attention for one piece of the work: some images, heads and rows of queries, forward and backward.

A query of element q asks for an output of its own, or for all outputs o at once; in the second case outputs add up over
the queries.

Letters in the sums: b images, n heads, q elements of queries, s pixels that ask, o outputs, w keys that a
pixel sees (element and place), d channels of keys, v channels of values.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Terms(NamedTuple):
    """What attention is made of, or its gradients."""

    query: Tensor  # (b, n, q, h, w, d)
    key: Tensor  # (b, n, k, h, w, d)
    value: Tensor  # (b, n, k, h, w, v)
    table: Tensor  # (n or 1, q, o, k, window_y, window_x, d)
    bias: Tensor | None  # (n or 1, q or 1, o, k, window_y, window_x)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Terms":
        query, key, value, table, bias = self
        return Terms(change(query), change(key), change(value), change(table), None if bias is None else change(bias))


class Place(NamedTuple):
    """Where the queries of a piece stand: some rows of an image, in a window around each pixel its keys.

    Two ways to the same sums. Few keys for each query: neighbours are copied beside each query. A window as large as
    the image: all pixels serve all queries, and position scores are picked by offset.
    """

    rows: slice
    size: tuple[int, int]
    window: tuple[int, int]

    @property
    def is_local(self) -> bool:
        return math.prod(self.window) < math.prod(self.size)

    @property
    def places(self) -> int:
        """How many places each query scores."""
        return math.prod(self.window if self.is_local else self.size)

    @property
    def key_rows(self) -> slice:
        """The rows of an image that windows around these queries see."""
        if not self.is_local:
            return slice(0, self.size[0])
        reach = self.window[0] // 2
        return slice(max(self.rows.start - reach, 0), min(self.rows.stop + reach, self.size[0]))

    @property
    def _letters(self) -> str:
        """Axes of what :func:`near` makes."""
        return "bnsw" if self.is_local else "bnw"


def near(maps: Tensor, place: Place) -> Tensor:
    """Keys or values, (b, n, k, rows, width, d), where queries find them: (b, n, s, w, d), or (b, n, w, d) for all."""
    if not place.is_local:
        return maps.flatten(2, 4)
    window_y, window_x = place.window
    above, below = _rows_missing(place)
    around = pad(maps, (0, 0, window_x // 2, window_x // 2, above, below))
    views = around.unfold(3, window_y, 1).unfold(4, window_x, 1)  # (b, n, k, rows, width, d, window_y, window_x)
    return views.permute(0, 1, 3, 4, 2, 6, 7, 5).flatten(4, 6).flatten(2, 3)


def put_back(found: Tensor, elements: int, place: Place) -> Tensor:
    """The gradient of :func:`near`: what all queries have for one pixel, summed."""
    width = place.size[1]
    if not place.is_local:
        return found.unflatten(2, (elements, -1, width))
    (window_y, window_x), (above, below) = place.window, _rows_missing(place)
    found = found.unflatten(3, (elements, window_y, window_x)).unflatten(2, (-1, width))
    found = found.permute(5, 6, 0, 1, 4, 2, 3, 7)  # (window_y, window_x, b, n, k, rows, width, d)
    # Across, then down: a pass over the copies for each of the two, not for each offset.
    across = found.new_zeros(window_y, *found.shape[2:6], width + window_x - 1, found.shape[-1])
    for x in range(window_x):
        across[..., x : x + width, :] += found[:, x]
    across = across[..., window_x // 2 : window_x // 2 + width, :]
    rows = found.shape[5]
    down = found.new_zeros(*found.shape[2:5], rows + window_y - 1, *found.shape[6:])
    for y in range(window_y):
        down[:, :, :, y : y + rows] += across[y]
    return down[:, :, :, above : down.shape[3] - below]


def scores(terms: Terms, near_key: Tensor, place: Place) -> Tensor:
    """``<q, key + P> / sqrt(d)`` of equations 14 and 16, minus infinity outside of the image: (n, q, b, s, o, w)."""
    query, _, _, table, bias = terms
    asking = _asking(query)
    keys = table.shape[3]
    content = torch.einsum(f"bnqsd,{place._letters}d->nqbsw", asking, near_key)  # once for all outputs
    placed = torch.einsum("bnqsd,nqowd->nqbsow", asking, _by_head(table, asking))
    if bias is not None:
        placed = placed + bias.flatten(3)[:, :, None, None]
    if place.is_local:
        outside = _outside(place, query.device)
    else:
        offset, outside = _offsets(place, query.device)  # (s, p) each
        placed = placed.unflatten(-1, (keys, -1))
        placed = placed.gather(-1, offset[:, None, None].expand(*placed.shape[:-1], -1)).flatten(-2)
    content = content.unflatten(-1, (keys, -1)).masked_fill(outside[:, None], -math.inf).flatten(-2)
    return placed.add_(content.unsqueeze(4))


def mix(weights: Tensor, near_value: Tensor, place: Place, is_summed: bool) -> Tensor:
    """Weights (n, q, b, s, o, w) and the values they weigh -> (b, n, outputs, rows, width, v)."""
    joined = _join(weights, is_summed)
    found = torch.einsum(f"nbsow,{place._letters}v->bnosv", joined, near_value)
    return found.unflatten(3, (-1, place.size[1]))


def gradients(gradient: Tensor, terms: Terms, place: Place, is_summed: bool, drop: Tensor | None) -> Terms:
    """From the gradient in the result of :func:`mix`; ``drop`` is what weights were multiplied by, where they were.

    With softmax weights W and the gradient G in them, that in the scores is ``W (G - sum_w W G)``.
    """
    query, key, value, table, bias = terms
    letters = place._letters
    near_key = near(key, place)
    weights = scores(terms, near_key, place).softmax(-1)
    given = gradient.flatten(3, 4)  # (b, n, outputs, s, v)
    to_weights = torch.einsum(f"bnosv,{letters}v->nbsow", given, near(value, place))
    to_weights = to_weights[:, None] if is_summed else to_weights.movedim(3, 1).unsqueeze(4)  # (n, q or 1, b, s, o, w)
    to_scores = weights * (to_weights if drop is None else to_weights * drop)
    to_scores.addcmul_(weights, to_scores.sum(-1, keepdim=True), value=-1)
    joined = _join(weights if drop is None else weights * drop, is_summed)
    to_value = put_back(torch.einsum(f"nbsow,bnosv->{letters}v", joined, given), value.shape[2], place)
    del weights, joined, to_weights  # the largest tensors here: make room

    asking = _asking(query)
    to_content = _sum(to_scores, 4)  # (n, q, b, s, w)
    to_asking = torch.einsum(f"nqbsw,{letters}d->bnqsd", to_content, near_key)
    to_key = put_back(torch.einsum(f"nqbsw,bnqsd->{letters}d", to_content, asking), key.shape[2], place)
    if not place.is_local:
        offset, _ = _offsets(place, query.device)
        picked = to_scores.unflatten(-1, (table.shape[3], -1))
        placed = picked.new_zeros(*picked.shape[:-1], math.prod(place.window))
        to_scores = placed.scatter_add_(-1, offset[:, None, None].expand_as(picked), picked).flatten(-2)
    to_asking += torch.einsum("nqbsow,nqowd->bnqsd", to_scores, _by_head(table, asking))
    to_table = torch.einsum("nqbsow,bnqsd->nqowd", to_scores, asking).unflatten(3, table.shape[3:6])
    to_query = to_asking.unflatten(3, (-1, place.size[1])) / math.sqrt(query.shape[-1])
    to_bias = None
    if bias is not None:
        to_bias = to_scores.sum((2, 3)).unflatten(-1, bias.shape[3:]).sum_to_size(bias.shape)
    return Terms(to_query, to_key, to_value, to_table.sum_to_size(table.shape), to_bias)


def _asking(query: Tensor) -> Tensor:
    """(b, n, q, rows, width, d) -> (b, n, q, s, d), scaled."""
    return query.flatten(3, 4) / math.sqrt(query.shape[-1])


def _by_head(table: Tensor, asking: Tensor) -> Tensor:
    """(n or 1, q, o, k, window_y, window_x, d) -> (n, q, o, k * window, d)"""
    return table.flatten(3, 5).expand(asking.shape[1], -1, -1, -1, -1)


def _join(weights: Tensor, is_summed: bool) -> Tensor:
    """(n, q, b, s, o, w) -> (n, b, s, outputs, w)"""
    return _sum(weights, 1) if is_summed else weights.squeeze(4).movedim(1, 3)


def _sum(tensor: Tensor, axis: int) -> Tensor:
    """Sum over an axis, without a pass over the numbers where it holds one."""
    return tensor.squeeze(axis) if tensor.shape[axis] == 1 else tensor.sum(axis)


def _rows_missing(place: Place) -> tuple[int, int]:
    """How many rows of the windows lie above and below the image."""
    reach = place.window[0] // 2
    return max(reach - place.rows.start, 0), max(place.rows.stop + reach - place.size[0], 0)


def _outside(place: Place, device: torch.device) -> Tensor:
    """Which neighbours are not in the image, (s, window)."""
    (height, width), (window_y, window_x) = place.size, place.window
    rows = torch.arange(place.rows.start, place.rows.stop, device=device)
    y = rows[:, None] + torch.arange(window_y, device=device) - window_y // 2  # (rows, window_y)
    x = torch.arange(width, device=device)[:, None] + torch.arange(window_x, device=device) - window_x // 2
    return _either((y < 0) | (y >= height), (x < 0) | (x >= width))


def _offsets(place: Place, device: torch.device) -> tuple[Tensor, Tensor]:
    """For every query and pixel the entry of the window that holds their offset, and whether it has none."""
    (height, width), (window_y, window_x) = place.size, place.window
    rows = torch.arange(place.rows.start, place.rows.stop, device=device)
    y = torch.arange(height, device=device) - rows[:, None] + window_y // 2  # (rows, height): query, key
    x = torch.arange(width, device=device)
    x = x - x[:, None] + window_x // 2
    entry = y.clamp(0, window_y - 1)[:, None, :, None] * window_x + x.clamp(0, window_x - 1)[None, :, None, :]
    return entry.flatten(2).flatten(0, 1), _either((y < 0) | (y >= window_y), (x < 0) | (x >= window_x))


def _either(down: Tensor, across: Tensor) -> Tensor:
    """(rows, a) and (width, b) -> (rows * width, a * b)"""
    return (down[:, None, :, None] | across[None, :, None, :]).flatten(2).flatten(0, 1)
