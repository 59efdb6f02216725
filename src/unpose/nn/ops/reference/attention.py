"""Group attention in PyTorch operations: the reference that every other implementation is tested against.

The scores take more memory than everything else: order^2 or order^3 times the window for each pixel. They are therefore
computed for a chunk of images, heads and rows at a time, small enough for a cache, and never stored: the backward pass
computes them again. The formulas for one chunk are in :mod:`unpose.nn.ops.reference.window_sums`.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unpose.compiled import is_traced_or_transformed
from unpose.nn.ops.autocast import is_autocast
from unpose.nn.ops.reference.window_sums import RowBlock, Terms, gather_neighbours, gradients, scores, weighted_sum

_WORKING_BYTES = {"cpu": 2**23, "cuda": 2**31}
"""Bytes of scores and copied neighbours that may be alive at once; larger problems are computed in chunks."""

_MIN_CHUNKS = 3
"""Smaller problems are split too, so that a small batch needs a fraction of the memory of its scores."""


def split_projected(projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split (b, 3, n, d, elements, h, w) into views of query, key and value, (b, n, elements, h, w, d) each."""
    query, key, value = (part.permute(0, 1, 3, 4, 5, 2) for part in projected.unbind(1))
    return query, key, value


def attend(query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """Compute :func:`unpose.nn.group_attention` for a position table of six axes; shapes are already checked."""
    is_shared = query.shape[2] == 1
    axis = 1 if is_shared else 2  # a shared query serves all outputs, others that of their own element
    bias = None if bias is None else bias.unsqueeze(axis)
    query, key, value = _channels_last(query, key, value)
    return _attend(Terms(query, key, value, position.unsqueeze(axis), bias), dropout, is_shared)


def attend_double(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    """Compute the paper's double sum, :func:`unpose.nn.group_attention` for a table of seven axes."""
    query, key, value = _channels_last(query, key, value)
    query = query.expand(-1, -1, position.shape[2], -1, -1, -1)
    bias = None if bias is None else bias[:, None]
    return _attend(Terms(query, key, value, position.transpose(1, 2), bias), dropout, True)


def _channels_last(*maps: Tensor) -> list[Tensor]:
    """Make the channels of a pixel adjacent in memory: products sum over them, and layers leave them planar."""
    return [tensor.contiguous() for tensor in maps]


def _attend(terms: Terms, dropout: float, is_summed: bool) -> Tensor:
    """Compute attention, summed over queries if ``is_summed``: (b, n, outputs, h, w, v)."""
    query, key, value = terms[:3]
    device = query.device.type
    if is_autocast(query):
        # Both passes compute in the type of products; autocast is off when the backward pass runs.
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return _attend(terms.map(lambda tensor: tensor.to(dtype)), dropout, is_summed)
    if is_traced_or_transformed() or query.is_meta:
        # One chunk: a compiler plans memory itself, the batch size may be symbolic, and transforms need operations.
        block = _whole_image(terms)
        weights = scores(terms, gather_neighbours(key, block), block).softmax(-1)
        weights = torch.nn.functional.dropout(weights, dropout)
        return weighted_sum(weights, gather_neighbours(value, block), block, is_summed)
    seed = int(torch.randint(2**62, (), device="cpu")) if dropout else 0
    return _Recomputed.apply(_Settings(dropout, is_summed, seed), *terms)


class _Settings(NamedTuple):
    """What both passes need besides the terms."""

    dropout: float
    is_summed: bool
    seed: int


class _Recomputed(torch.autograd.Function):
    """Attention in chunks, whose scores are computed again in the backward pass.

    ``torch.utils.checkpoint`` does this for any function, but keeps everything that a forward pass computes during its
    backward pass, and imports the compiler (seconds and 200 MB) on its first call.
    """

    @staticmethod
    def forward(ctx: Any, settings: _Settings, *terms: Any) -> Tensor:
        ctx.settings = settings
        ctx.save_for_backward(*terms)
        return _attend_in_chunks(settings, Terms(*terms))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        terms, needed = Terms(*ctx.saved_tensors), ctx.needs_input_grad[1:]
        if not torch.is_grad_enabled():
            return None, *_gradients_in_chunks(ctx.settings, gradient.contiguous(), terms)
        # A second derivative is wanted: autograd computes both.
        inputs = [tensor for tensor, wanted in zip(terms, needed, strict=True) if wanted and tensor is not None]
        out = _attend_in_chunks(ctx.settings, terms)
        found = iter(torch.autograd.grad(out, inputs, gradient, create_graph=True))
        return None, *(next(found) if wanted else None for wanted in needed)


def _attend_in_chunks(settings: _Settings, terms: Terms) -> Tensor:
    """Compute the result chunk by chunk: (b, n, outputs, h, w, v)."""
    query, _, value, table, _ = terms
    outputs = table.shape[2] if settings.is_summed else table.shape[1]
    out = value.new_empty(*query.shape[:2], outputs, *query.shape[3:5], value.shape[-1])
    generator = torch.Generator(query.device).manual_seed(settings.seed)
    for images, heads, block in _chunks(terms):
        chunk = _chunk_of(terms, images, heads, block)
        weights = scores(chunk, gather_neighbours(chunk.key, block), block).softmax(-1)
        if settings.dropout:
            weights = weights * _dropout_factors(settings, chunk, block, generator)
        values = gather_neighbours(chunk.value, block)
        out[images, heads, :, block.rows] = weighted_sum(weights, values, block, settings.is_summed)
    return out


def _gradients_in_chunks(settings: _Settings, gradient: Tensor, terms: Terms) -> Terms:
    """Sum the gradients of all chunks, in float32 or float64."""
    totals = terms.map(lambda t: torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32)))
    generator = torch.Generator(gradient.device).manual_seed(settings.seed)
    for images, heads, block in _chunks(terms):
        chunk = _chunk_of(terms, images, heads, block)
        factors = _dropout_factors(settings, chunk, block, generator) if settings.dropout else None
        found = gradients(gradient[images, heads, :, block.rows], chunk, block, settings.is_summed, factors)
        for total, addend in zip(_chunk_of(totals, images, heads, block), found, strict=True):
            if total is not None and addend is not None:
                total += addend
    return totals


def _dropout_factors(settings: _Settings, terms: Terms, block: RowBlock, generator: torch.Generator) -> Tensor:
    """Draw the factors of the weights, (n, q, b, s, o, w); both passes visit the chunks in the same order."""
    images, heads, queries, rows, width = terms.query.shape[:5]
    outputs, keys = terms.table.shape[2:4]
    shape = (heads, queries, images, rows * width, outputs, keys * block.n_neighbours)
    draws = torch.rand(shape, generator=generator, device=terms.query.device)
    return (draws >= settings.dropout).to(terms.query.dtype) / (1 - settings.dropout)


def _chunk_of(terms: Terms, images: slice, heads: slice, block: RowBlock) -> Terms:
    """Return views of the terms of one chunk."""
    query, key, value, table, bias = terms
    return Terms(
        query[images, heads, :, block.rows],
        key[images, heads, :, block.key_rows],
        value[images, heads, :, block.key_rows],
        table[heads] if len(table) > 1 else table,
        bias[heads] if bias is not None and len(bias) > 1 else bias,
    )


def _chunks(terms: Terms) -> Iterator[tuple[slice, slice, RowBlock]]:
    """Yield images, heads and rows of each chunk: the batch is split first, then the heads, then the rows."""
    query, key, value, table, _ = terms
    batch, heads, queries, height, width, _ = query.shape
    whole = _whole_image(terms)
    pairs = queries * table.shape[2] * table.shape[3]
    per_pixel = 3 * pairs * whole.n_neighbours  # numbers for one pixel: scores, weights and a gradient
    if whole.is_local:
        per_pixel += whole.n_neighbours * table.shape[3] * (key.shape[-1] + value.shape[-1])
    else:
        per_pixel += math.prod(whole.window) * pairs
    row_bytes = width * per_pixel * query.element_size()
    limit = min(_WORKING_BYTES.get(query.device.type, 2**28), batch * heads * height * row_bytes // _MIN_CHUNKS)
    chunk_rows = max(min(height, limit // row_bytes), 1)
    chunk_heads = max(min(heads, limit // (row_bytes * height)), 1)
    chunk_images = max(min(batch, limit // (row_bytes * height * heads)), 1)
    for image in range(0, batch, chunk_images):
        for head in range(0, heads, chunk_heads):
            for top in range(0, height, chunk_rows):
                rows = slice(top, min(top + chunk_rows, height))
                yield slice(image, image + chunk_images), slice(head, head + chunk_heads), whole._replace(rows=rows)


def _whole_image(terms: Terms) -> RowBlock:
    height, width = terms.query.shape[3:5]
    window_y, window_x = terms.table.shape[4:6]
    return RowBlock(slice(0, height), (height, width), (window_y, window_x))
