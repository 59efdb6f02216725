"""Group attention in plain PyTorch: the reference that every other implementation is held to.

Two ways to the same sums. Few keys for each query: neighbours are copied next to each query and the scores are small
products. A window as large as the image: all pixels are scored at once and the position scores are picked by offset.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

_WORKING_BYTES = {"cpu": 2**25, "cuda": 2**31}
"""Scores and copied neighbours that may be alive at once; larger batches go piece by piece."""


def attend(query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """:func:`unpose.nn.group_attention` for one position table, shapes already checked.

    What would not fit the working memory is cut along the batch and then along the heads; when gradients are wanted,
    the scores of each piece are computed again in the backward pass instead of kept. The cut depends on shapes alone.
    """
    height, width = query.shape[3:5]
    is_local = position.shape[-3] * position.shape[-2] < height * width
    method = _attend_neighbours if is_local else _attend_everywhere
    query = query / math.sqrt(query.shape[-1])
    pieces = 1 if torch.compiler.is_compiling() else _pieces(query, key, value, position, is_local)
    if pieces == 1:
        return method(query, key, value, position, bias, dropout)
    batch, heads = query.shape[:2]
    by_batch, by_head = min(pieces, batch), min(math.ceil(pieces / batch), heads)
    position = position.expand(heads, *position.shape[1:])
    bias = None if bias is None else bias.expand(heads, *bias.shape[1:])
    rows = []
    for images in zip(*(tensor.tensor_split(by_batch) for tensor in (query, key, value)), strict=True):
        done = []
        for piece in zip(
            *(tensor.tensor_split(by_head, dim=1) for tensor in images),
            position.tensor_split(by_head),
            (None,) * by_head if bias is None else bias.tensor_split(by_head),
            strict=True,
        ):
            done.append(_Recomputed.apply(method, dropout, *piece))
        rows.append(torch.cat(done, dim=1))
    return torch.cat(rows)


class _Recomputed(torch.autograd.Function):
    """A method whose intermediate results are not kept but computed again when gradients are asked for.

    torch.utils.checkpoint does the same but imports the compiler, seconds and 200 MB, on its first call.
    """

    @staticmethod
    def forward(ctx: Any, method: Callable[..., Tensor], dropout: float, *tensors: Tensor | None) -> Tensor:
        # The same weights must be dropped both times.
        ctx.method, ctx.dropout, ctx.seed = method, dropout, int(torch.randint(2**62, ())) if dropout else None
        ctx.save_for_backward(*tensors)
        kind = next(tensor.device.type for tensor in tensors if tensor is not None)
        ctx.precision = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        return method(*tensors, dropout, ctx.seed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[2:]
        with torch.enable_grad(), torch.autocast(*ctx.precision):
            tensors = [
                None if tensor is None else tensor.detach().requires_grad_(needed)
                for tensor, needed in zip(ctx.saved_tensors, wanted, strict=True)
            ]
            result = ctx.method(*tensors, ctx.dropout, ctx.seed)
        inputs = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
        found = iter(torch.autograd.grad(result, inputs, gradient))
        return None, None, *(next(found) if needed else None for needed in wanted)


def _attend_neighbours(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    dropout: float,
    seed: int | None = None,
) -> Tensor:
    height, width = query.shape[3:5]
    keys, window_y, window_x = position.shape[2:5]
    near = query.permute(0, 1, 3, 4, 2, 5).flatten(2, 3)  # (b, n, h * w, q, d)
    content = near @ _neighbours(key, window_y, window_x).mT  # (b, n, h * w, q, keys * window)
    placed = torch.einsum("bngsd,ngod->bnsgo", query.flatten(3, 4), position.flatten(2, 4))
    scores = (content + placed).unflatten(-1, (keys, -1))  # (b, n, h * w, outputs, keys, window)
    if bias is not None:
        scores = scores + bias.flatten(-2)[:, None]  # (n or 1, 1, outputs, keys, window)
    outside = _outside(height, width, window_y, window_x, query.device)
    scores = scores.masked_fill_(outside[:, None, None], -math.inf)
    weights = _drop(scores.flatten(-2).softmax(-1), dropout, seed)
    found = weights @ _neighbours(value, window_y, window_x)  # (b, n, h * w, outputs, d)
    return found.unflatten(2, (height, width)).permute(0, 1, 4, 2, 3, 5)


def _attend_everywhere(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    dropout: float,
    seed: int | None = None,
) -> Tensor:
    height, width = query.shape[3:5]
    outputs, keys, window_y, window_x = position.shape[1:5]
    content = query.flatten(2, 4) @ key.flatten(2, 4).mT  # (b, n, q * h * w, keys * h * w)
    content = content.unflatten(-1, (keys, -1)).unflatten(2, (query.shape[2], -1))  # (b, n, q, h * w, keys, h * w)
    placed = torch.einsum("bngsd,ngkod->bngsko", query.flatten(3, 4), position.flatten(3, 4))
    if bias is not None:
        placed = placed + bias.flatten(-2)[:, :, None]  # (n or 1, outputs, 1, keys, window)
    offset, outside = _offsets(height, width, window_y, window_x, query.device)  # (h * w, h * w) each
    placed = placed.gather(-1, offset[:, None].expand(*placed.shape[:-1], -1))
    scores = (content + placed).masked_fill_(outside[:, None], -math.inf)
    weights = _drop(scores.flatten(-2).softmax(-1), dropout, seed)
    found = weights.flatten(2, 3) @ value.flatten(2, 4)  # (b, n, outputs * h * w, d)
    return found.unflatten(2, (outputs, height, width))


def _drop(weights: Tensor, dropout: float, seed: int | None) -> Tensor:
    if dropout == 0 or seed is None:
        return torch.nn.functional.dropout(weights, dropout, training=dropout > 0)
    generator = torch.Generator(weights.device).manual_seed(seed)
    kept = torch.rand(weights.shape, generator=generator, device=weights.device) >= dropout
    return weights * kept / (1 - dropout)


def _neighbours(tensor: Tensor, window_y: int, window_x: int) -> Tensor:
    """(b, n, k, h, w, d) -> (b, n, h * w, k * window, d), zeros where there is no pixel."""
    around = pad(tensor, (0, 0, window_x // 2, window_x // 2, window_y // 2, window_y // 2))
    views = around.unfold(3, window_y, 1).unfold(4, window_x, 1)  # (b, n, k, h, w, d, window_y, window_x)
    return views.permute(0, 1, 3, 4, 2, 6, 7, 5).flatten(4, 6).flatten(2, 3)


def _outside(height: int, width: int, window_y: int, window_x: int, device: torch.device) -> Tensor:
    """Which neighbours are not in the image, (h * w, window)."""
    y = torch.arange(height, device=device)[:, None] + torch.arange(window_y, device=device) - window_y // 2
    x = torch.arange(width, device=device)[:, None] + torch.arange(window_x, device=device) - window_x // 2
    out_y, out_x = (y < 0) | (y >= height), (x < 0) | (x >= width)
    return (out_y[:, None, :, None] | out_x[None, :, None, :]).flatten(2).flatten(0, 1)


def _offsets(height: int, width: int, window_y: int, window_x: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For every pair of pixels the entry of the window that holds their offset, and whether it has none."""
    y = torch.arange(height, device=device)
    x = torch.arange(width, device=device)
    step_y = y[None, :] - y[:, None] + window_y // 2  # (h, h): query, key
    step_x = x[None, :] - x[:, None] + window_x // 2
    out_y, out_x = (step_y < 0) | (step_y >= window_y), (step_x < 0) | (step_x >= window_x)
    entry = step_y.clamp(0, window_y - 1)[:, None, :, None] * window_x + step_x.clamp(0, window_x - 1)[None, :, None, :]
    outside = out_y[:, None, :, None] | out_x[None, :, None, :]
    return entry.flatten(2).flatten(0, 1), outside.flatten(2).flatten(0, 1)


def _pieces(query: Tensor, key: Tensor, value: Tensor, position: Tensor, is_local: bool) -> int:
    batch, heads, _, height, width, _ = query.shape
    outputs, keys, window_y, window_x = position.shape[1:5]
    window = window_y * window_x
    if is_local:
        numbers = window * keys * (key.shape[-1] + value.shape[-1] + 3 * outputs)
    else:
        numbers = keys * outputs * (window + 3 * height * width)
    total = batch * heads * height * width * numbers * query.element_size()
    return min(batch * heads, math.ceil(total / _WORKING_BYTES.get(query.device.type, 2**28)))
