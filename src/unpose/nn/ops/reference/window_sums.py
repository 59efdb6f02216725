"""Scores, weighted sums and gradients of group attention for one chunk: some images, heads and rows of queries.

A query of element q has one output of its own, or all outputs o; then the outputs are sums over the queries.

Letters in shapes and sums: b images, n heads, q query elements, s query pixels, o outputs, k key elements, w keys that
a query sees (element and pixel), d channels of keys, v channels of values.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Terms(NamedTuple):
    """The tensors that attention is computed from, or their gradients."""

    query: Tensor  # (b, n, q, h, w, d)
    key: Tensor  # (b, n, k, h, w, d)
    value: Tensor  # (b, n, k, h, w, v)
    table: Tensor  # (n or 1, q, o, k, window_y, window_x, d)
    bias: Tensor | None  # (n or 1, q or 1, o, k, window_y, window_x)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Terms":
        """Apply a function to every tensor."""
        query, key, value, table, bias = self
        return Terms(change(query), change(key), change(value), change(table), None if bias is None else change(bias))


class RowBlock(NamedTuple):
    """The rows of an image whose queries form a chunk, and the window around each query.

    There are two ways to compute the same sums. With a small window the neighbours of each query are copied. With a
    window as large as the image every query scores all pixels, and its position scores are gathered by offset.
    """

    rows: slice
    size: tuple[int, int]
    window: tuple[int, int]

    @property
    def is_local(self) -> bool:
        return math.prod(self.window) < math.prod(self.size)

    @property
    def n_neighbours(self) -> int:
        """The number of pixels that each query scores."""
        return math.prod(self.window if self.is_local else self.size)

    @property
    def key_rows(self) -> slice:
        """The rows of the image that lie in the windows of these queries."""
        if not self.is_local:
            return slice(0, self.size[0])
        reach = self.window[0] // 2
        return slice(max(self.rows.start - reach, 0), min(self.rows.stop + reach, self.size[0]))

    @property
    def axes(self) -> str:
        """The axes of the result of :func:`gather_neighbours`, without channels."""
        return "bnsw" if self.is_local else "bnw"


def gather_neighbours(maps: Tensor, block: RowBlock) -> Tensor:
    """Gather keys or values of each query: (b, n, k, rows, width, d) -> (b, n, s, w, d), or (b, n, w, d) for all."""
    if not block.is_local:
        return maps.flatten(2, 4)
    window_y, window_x = block.window
    above, below = _padding_rows(block)
    padded = pad(maps, (0, 0, window_x // 2, window_x // 2, above, below))
    views = padded.unfold(3, window_y, 1).unfold(4, window_x, 1)  # (b, n, k, rows, width, d, window_y, window_x)
    return views.permute(0, 1, 3, 4, 2, 6, 7, 5).flatten(4, 6).flatten(2, 3)


def scatter_neighbours(gradient: Tensor, elements: int, block: RowBlock) -> Tensor:
    """Sum the gradients of all queries for each pixel: the adjoint of :func:`gather_neighbours`."""
    width = block.size[1]
    if not block.is_local:
        return gradient.unflatten(2, (elements, -1, width))
    (window_y, window_x), (above, below) = block.window, _padding_rows(block)
    gradient = gradient.unflatten(3, (elements, window_y, window_x)).unflatten(2, (-1, width))
    gradient = gradient.permute(5, 6, 0, 1, 4, 2, 3, 7)  # (window_y, window_x, b, n, k, rows, width, d)
    # Along x, then along y: two passes over the copies instead of one for each offset.
    along_x = gradient.new_zeros(window_y, *gradient.shape[2:6], width + window_x - 1, gradient.shape[-1])
    for x in range(window_x):
        along_x[..., x : x + width, :] += gradient[:, x]
    along_x = along_x[..., window_x // 2 : window_x // 2 + width, :]
    rows = gradient.shape[5]
    along_y = gradient.new_zeros(*gradient.shape[2:5], rows + window_y - 1, *gradient.shape[6:])
    for y in range(window_y):
        along_y[:, :, :, y : y + rows] += along_x[y]
    return along_y[:, :, :, above : along_y.shape[3] - below]


def scores(terms: Terms, near_keys: Tensor, block: RowBlock) -> Tensor:
    """Compute ``<q, key + P> / sqrt(d)`` of equations 14 and 16, minus infinity outside: (n, q, b, s, o, w)."""
    query, _, _, table, bias = terms
    scaled = _scaled_query(query)
    keys = table.shape[3]
    content_scores = torch.einsum(f"bnqsd,{block.axes}d->nqbsw", scaled, near_keys)  # once for all outputs
    position_scores = torch.einsum("bnqsd,nqowd->nqbsow", scaled, _table_by_head(table, scaled))
    if bias is not None:
        position_scores = position_scores + bias.flatten(3)[:, :, None, None]
    if block.is_local:
        is_outside = _outside_window(block, query.device)
    else:
        entry, is_outside = _window_entries(block, query.device)  # (s, p) each
        position_scores = position_scores.unflatten(-1, (keys, -1))
        entry = entry[:, None, None].expand(*position_scores.shape[:-1], -1)
        position_scores = position_scores.gather(-1, entry).flatten(-2)
    content_scores = content_scores.unflatten(-1, (keys, -1)).masked_fill(is_outside[:, None], -math.inf).flatten(-2)
    return position_scores.add_(content_scores.unsqueeze(4))


def weighted_sum(weights: Tensor, near_values: Tensor, block: RowBlock, is_summed: bool) -> Tensor:
    """Sum values with weights (n, q, b, s, o, w): (b, n, outputs, rows, width, v)."""
    combined = _combine_queries(weights, is_summed)
    result = torch.einsum(f"nbsow,{block.axes}v->bnosv", combined, near_values)
    return result.unflatten(3, (-1, block.size[1]))


def gradients(gradient: Tensor, terms: Terms, block: RowBlock, is_summed: bool, factors: Tensor | None) -> Terms:
    """Compute the gradients of all terms from that of the result; ``factors`` are those of dropout, if any.

    With softmax weights W and their gradient G, the gradient of the scores is ``W (G - sum_w W G)``.
    """
    query, key, value, table, bias = terms
    axes = block.axes
    near_keys = gather_neighbours(key, block)
    weights = scores(terms, near_keys, block).softmax(-1)
    grad_out = gradient.flatten(3, 4)  # (b, n, outputs, s, v)
    grad_weights = torch.einsum(f"bnosv,{axes}v->nbsow", grad_out, gather_neighbours(value, block))
    # (n, b, s, outputs, w) -> (n, q or 1, b, s, o, w)
    grad_weights = grad_weights[:, None] if is_summed else grad_weights.movedim(3, 1).unsqueeze(4)
    grad_scores = weights * (grad_weights if factors is None else grad_weights * factors)
    grad_scores.addcmul_(weights, grad_scores.sum(-1, keepdim=True), value=-1)
    combined = _combine_queries(weights if factors is None else weights * factors, is_summed)
    grad_value = scatter_neighbours(torch.einsum(f"nbsow,bnosv->{axes}v", combined, grad_out), value.shape[2], block)
    del weights, combined, grad_weights  # free the largest tensors

    scaled = _scaled_query(query)
    grad_content = _sum(grad_scores, 4)  # (n, q, b, s, w)
    grad_scaled = torch.einsum(f"nqbsw,{axes}d->bnqsd", grad_content, near_keys)
    grad_key = scatter_neighbours(torch.einsum(f"nqbsw,bnqsd->{axes}d", grad_content, scaled), key.shape[2], block)
    if not block.is_local:
        entry, _ = _window_entries(block, query.device)
        entry_gradients = grad_scores.unflatten(-1, (table.shape[3], -1))
        by_entry = entry_gradients.new_zeros(*entry_gradients.shape[:-1], math.prod(block.window))
        entry = entry[:, None, None].expand_as(entry_gradients)
        grad_scores = by_entry.scatter_add_(-1, entry, entry_gradients).flatten(-2)
    grad_scaled += torch.einsum("nqbsow,nqowd->bnqsd", grad_scores, _table_by_head(table, scaled))
    grad_table = torch.einsum("nqbsow,bnqsd->nqowd", grad_scores, scaled).unflatten(3, table.shape[3:6])
    grad_query = grad_scaled.unflatten(3, (-1, block.size[1])) / math.sqrt(query.shape[-1])
    grad_bias = None
    if bias is not None:
        grad_bias = grad_scores.sum((2, 3)).unflatten(-1, bias.shape[3:]).sum_to_size(bias.shape)
    return Terms(grad_query, grad_key, grad_value, grad_table.sum_to_size(table.shape), grad_bias)


def _scaled_query(query: Tensor) -> Tensor:
    """(b, n, q, rows, width, d) -> (b, n, q, s, d), divided by sqrt(d)"""
    return query.flatten(3, 4) / math.sqrt(query.shape[-1])


def _table_by_head(table: Tensor, scaled: Tensor) -> Tensor:
    """(n or 1, q, o, k, window_y, window_x, d) -> (n, q, o, k * window, d)"""
    return table.flatten(3, 5).expand(scaled.shape[1], -1, -1, -1, -1)


def _combine_queries(weights: Tensor, is_summed: bool) -> Tensor:
    """(n, q, b, s, o, w) -> (n, b, s, outputs, w)"""
    return _sum(weights, 1) if is_summed else weights.squeeze(4).movedim(1, 3)


def _sum(tensor: Tensor, axis: int) -> Tensor:
    """Sum over an axis; an axis of one entry is removed without reading the tensor."""
    return tensor.squeeze(axis) if tensor.shape[axis] == 1 else tensor.sum(axis)


def _padding_rows(block: RowBlock) -> tuple[int, int]:
    """Return how many rows of the windows lie above and below the image."""
    reach = block.window[0] // 2
    return max(reach - block.rows.start, 0), max(block.rows.stop + reach - block.size[0], 0)


def _outside_window(block: RowBlock, device: torch.device) -> Tensor:
    """Return which neighbours lie outside the image, (s, window)."""
    (height, width), (window_y, window_x) = block.size, block.window
    rows = torch.arange(block.rows.start, block.rows.stop, device=device)
    y = rows[:, None] + torch.arange(window_y, device=device) - window_y // 2  # (rows, window_y)
    x = torch.arange(width, device=device)[:, None] + torch.arange(window_x, device=device) - window_x // 2
    return _outer_or((y < 0) | (y >= height), (x < 0) | (x >= width))


def _window_entries(block: RowBlock, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return, for every query and pixel, the window entry of their offset, and whether the window has none."""
    (height, width), (window_y, window_x) = block.size, block.window
    rows = torch.arange(block.rows.start, block.rows.stop, device=device)
    y = torch.arange(height, device=device) - rows[:, None] + window_y // 2  # (rows, height): query, key
    x = torch.arange(width, device=device)
    x = x - x[:, None] + window_x // 2
    entry = y.clamp(0, window_y - 1)[:, None, :, None] * window_x + x.clamp(0, window_x - 1)[None, :, None, :]
    return entry.flatten(2).flatten(0, 1), _outer_or((y < 0) | (y >= window_y), (x < 0) | (x >= window_x))


def _outer_or(down: Tensor, across: Tensor) -> Tensor:
    """Combine (rows, a) and (width, b) masks by "or": (rows * width, a * b)"""
    return (down[:, None, :, None] | across[None, :, None, :]).flatten(2).flatten(0, 1)
