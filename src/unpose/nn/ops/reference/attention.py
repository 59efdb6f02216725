"""Group attention in plain PyTorch: the reference that every other implementation is held to.

Scores outweigh everything else: order^2 or order^3 times the window for each pixel. So they are made for some images,
heads and rows at a time, few enough for a cache, and never kept: the backward pass makes them again.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unpose.compiled import is_traced_or_transformed
from unpose.nn.ops.autocast import is_autocast
from unpose.nn.ops.reference.window_sums import Place, Terms, gradients, mix, near, scores

_WORKING_BYTES = {"cpu": 2**23, "cuda": 2**31}
"""Scores and copied neighbours that may be alive at once; what needs more goes piece by piece."""
_FEWEST_PIECES = 3
"""What would fit is cut all the same: a small batch, too, is trained in a fraction of the memory of its scores."""


def unprojected(projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(b, 3, n, d, elements, h, w) -> query, key and value, (b, n, elements, h, w, d) each, as views."""
    query, key, value = (planes.permute(0, 1, 3, 4, 5, 2) for planes in projected.unbind(1))
    return query, key, value


def attend(query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """:func:`unpose.nn.group_attention` for a position table of six axes, shapes already checked."""
    is_shared = query.shape[2] == 1
    axis = 1 if is_shared else 2  # a shared query asks for all outputs, others for that of their own element
    bias = None if bias is None else bias.unsqueeze(axis)
    query, key, value = _side_by_side(query, key, value)
    return _attend(Terms(query, key, value, position.unsqueeze(axis), bias), dropout, is_shared)


def attend_double(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    """:func:`unpose.nn.group_attention` for a table of seven axes, the paper's double sum, shapes already checked."""
    query, key, value = _side_by_side(query, key, value)
    query = query.expand(-1, -1, position.shape[2], -1, -1, -1)
    bias = None if bias is None else bias[:, None]
    return _attend(Terms(query, key, value, position.transpose(1, 2), bias), dropout, True)


def _side_by_side(*maps: Tensor) -> list[Tensor]:
    """The channels of a pixel side by side in memory, since products go over them; layers leave planes of pixels."""
    return [tensor.contiguous() for tensor in maps]


def _attend(terms: Terms, dropout: float, is_summed: bool) -> Tensor:
    query, key, value = terms[:3]
    kind = query.device.type
    if is_autocast(query):
        # Both passes in the precision that products would have; autocast is off by the time of the second.
        precision = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            return _attend(terms.map(lambda tensor: tensor.to(precision)), dropout, is_summed)
    if is_traced_or_transformed() or query.is_meta:
        # A compiler plans memory by itself, and the batch may be a symbol; a transform needs operations: one piece.
        place = _all_rows(terms)
        weights = scores(terms, near(key, place), place).softmax(-1)
        return mix(torch.nn.functional.dropout(weights, dropout), near(value, place), place, is_summed)
    seed = int(torch.randint(2**62, (), device="cpu")) if dropout else 0
    return _Recomputed.apply(_Job(dropout, is_summed, seed), *terms)


class _Job(NamedTuple):
    """What both passes must know beside the terms."""

    dropout: float
    is_summed: bool
    seed: int


class _Recomputed(torch.autograd.Function):
    """Attention piece by piece, with the scores made again in the backward pass.

    torch.utils.checkpoint does the same for any function, but holds all that one forward pass makes while it goes
    back, and imports the compiler, seconds and 200 MB, on its first call.
    """

    @staticmethod
    def forward(ctx: Any, job: _Job, *terms: Any) -> Tensor:
        ctx.job = job
        ctx.save_for_backward(*terms)
        return _by_pieces(job, Terms(*terms))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        terms, needed = Terms(*ctx.saved_tensors), ctx.needs_input_grad[1:]
        if not torch.is_grad_enabled():
            return None, *_gradients_by_pieces(ctx.job, gradient.contiguous(), terms)
        # A derivative of this derivative is wanted: both are left to autograd.
        inputs = [tensor for tensor, wanted in zip(terms, needed, strict=True) if wanted and tensor is not None]
        found = iter(torch.autograd.grad(_by_pieces(ctx.job, terms), inputs, gradient, create_graph=True))
        return None, *(next(found) if wanted else None for wanted in needed)


def _by_pieces(job: _Job, terms: Terms) -> Tensor:
    """(b, n, outputs, h, w, v)"""
    query, _, value, table, _ = terms
    outputs = table.shape[2] if job.is_summed else table.shape[1]
    found = value.new_empty(*query.shape[:2], outputs, *query.shape[3:5], value.shape[-1])
    generator = torch.Generator(query.device).manual_seed(job.seed)
    for images, heads, place in _pieces(terms):
        part = _cut(terms, images, heads, place)
        weights = scores(part, near(part.key, place), place).softmax(-1)
        if job.dropout:
            weights = weights * _drop(job, part, place, generator)
        found[images, heads, :, place.rows] = mix(weights, near(part.value, place), place, job.is_summed)
    return found


def _gradients_by_pieces(job: _Job, gradient: Tensor, terms: Terms) -> Terms:
    # Sums over pieces, in float32 at least.
    totals = terms.map(lambda t: torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32)))
    generator = torch.Generator(gradient.device).manual_seed(job.seed)
    for images, heads, place in _pieces(terms):
        part = _cut(terms, images, heads, place)
        drop = _drop(job, part, place, generator) if job.dropout else None
        found = gradients(gradient[images, heads, :, place.rows], part, place, job.is_summed, drop)
        for total, more in zip(_cut(totals, images, heads, place), found, strict=True):
            if total is not None and more is not None:
                total += more
    return totals


def _drop(job: _Job, terms: Terms, place: Place, generator: torch.Generator) -> Tensor:
    """What weights are multiplied by, (n, q, b, s, o, w); both passes draw the same, as they go in the same order."""
    images, heads, queries, rows, width = terms.query.shape[:5]
    outputs, keys = terms.table.shape[2:4]
    shape = (heads, queries, images, rows * width, outputs, keys * place.places)
    draws = torch.rand(shape, generator=generator, device=terms.query.device)
    return (draws >= job.dropout).to(terms.query.dtype) / (1 - job.dropout)


def _cut(terms: Terms, images: slice, heads: slice, place: Place) -> Terms:
    """What a piece needs, as views."""
    query, key, value, table, bias = terms
    return Terms(
        query[images, heads, :, place.rows],
        key[images, heads, :, place.key_rows],
        value[images, heads, :, place.key_rows],
        table[heads] if len(table) > 1 else table,
        bias[heads] if bias is not None and len(bias) > 1 else bias,
    )


def _pieces(terms: Terms) -> Iterator[tuple[slice, slice, Place]]:
    """Images, heads and place of each piece: the batch is cut, then the heads, then the rows, by shapes alone."""
    query, key, value, table, _ = terms
    batch, heads, queries, height, width, _ = query.shape
    whole = _all_rows(terms)
    pairs = queries * table.shape[2] * table.shape[3]
    numbers = 3 * pairs * whole.places  # scores, weights and a gradient, for one pixel
    if whole.is_local:
        numbers += whole.places * table.shape[3] * (key.shape[-1] + value.shape[-1])
    else:
        numbers += math.prod(whole.window) * pairs
    row = width * numbers * query.element_size()
    limit = min(_WORKING_BYTES.get(query.device.type, 2**28), batch * heads * height * row // _FEWEST_PIECES)
    some_rows = max(min(height, limit // row), 1)
    some_heads = max(min(heads, limit // (row * height)), 1)
    some_images = max(min(batch, limit // (row * height * heads)), 1)
    for image in range(0, batch, some_images):
        for head in range(0, heads, some_heads):
            for top in range(0, height, some_rows):
                rows = slice(top, min(top + some_rows, height))
                yield slice(image, image + some_images), slice(head, head + some_heads), whole._replace(rows=rows)


def _all_rows(terms: Terms) -> Place:
    height, width = terms.query.shape[3:5]
    window_y, window_x = terms.table.shape[4:6]
    return Place(slice(0, height), (height, width), (window_y, window_x))
