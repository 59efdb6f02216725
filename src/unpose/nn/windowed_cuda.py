"""Group attention on a GPU: the sums of :mod:`unpose.nn.windowed`, in kernels that never write a score.

Heads are small, ten channels in the published networks, and each pixel has its own neighbours: tensor cores would
mostly multiply padding. So a thread is a pixel. It keeps the queries of a few output elements in registers and walks
over the keys of its window; what it reads of a key serves all of these outputs. Channels lie apart in memory, in the
order ``(b, n, d, elements, h, w)``, so that neighbouring threads read neighbouring pixels; a tensor that lies so
already, as a view, is not copied. What takes the time is arithmetic, ``2 d + dv`` multiplications and additions a score
and about three times that in the backward pass, and reading keys, not memory.

Tensors in bfloat16 or float16 with an even number of elements are multiplied two elements at a time in float16, which
has more digits than bfloat16; exponentials, their sums and the table's gradient are float32. Gradients are scaled to
the range of float16 by their largest entry.

Nothing is added up in an order that can change: the backward pass goes over the queries for the gradients of the
queries and of the table, over the keys for theirs, and adds the table's block sums in a second, fixed sum. No block
size depends on the machine, and no number that a kernel needs passes through the host: a CUDA graph can hold them.

Written in Triton, which comes with torch builds for CUDA; imported only when a CUDA tensor is attended to.
"""

import math
from typing import Any

import torch
import triton
from torch import Tensor

from unpose.nn.lanes_cuda import forward_kernel, keys_kernel, queries_kernel

_LANES = 32
"""Pixels of one program, a single warp: none waits for another, and the tail of a launch is short."""

_REGISTERS = {"forward": 80, "queries": 120, "keys": 160}
"""Registers that hold the channels of a thread's elements, at most; how many elements that are says how often what is
read serves."""

_ELEMENTS = 4
"""Elements a thread holds, at most: with more a kernel takes minutes to compile."""

_UNROLLED = 100
"""Channels of keys and values that are read in one go: a row of the window's, or fewer where heads are wide."""

_PROGRAMS = 4096
"""Programs that are enough for any GPU: three rounds of what an H200 holds at once."""

_TABLE_BYTES = 2**27
"""Block sums of the table's gradient that may be written in one launch with the gradient of the queries."""


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of each softmax's denominator.

    Parameters are those of :func:`unpose.nn.group_attention` with a table of six axes, shapes already checked, in
    float32, bfloat16 or float16. ``seed`` is one whole number, on the tensors' device. A weight is dropped by a hash
    of it and of the weight's place: the same one in :func:`backward`. Probabilities are rounded to 2^-16.

    Returns
    -------
    out : (batch, heads, outputs, height, width, dv), a view of memory in the order (batch, heads, dv, outputs, h, w)
    logsumexp : (batch, heads, outputs, height, width), float32

    Notes
    -----
    Memory is that of the results, and of copies of query, key and value where their pixels do not lie side by side or
    their type is not the one that is multiplied.
    """
    _check_types(query, key, value)
    outputs, kind = position.shape[1], value.dtype
    pair = _pair(outputs, value, bias)
    query, key, value = (_planar(tensor, pair) for tensor in (query, key, value))
    query = query.expand(-1, -1, -1, outputs, -1, -1)
    batch, heads, _, _, height, width = query.shape
    count = batch * height * width
    out = torch.empty(batch, heads, value.shape[2], outputs, height, width, dtype=kind, device=value.device)
    logsumexp = torch.empty(batch, heads, outputs, height, width, device=value.device)
    shape = _shape(query, key, value, position, bias, dropout)
    shared = _divisor(outputs, _REGISTERS["forward"] * pair // (shape["D"] + shape["DV"]), pair)
    tables = _encoding(position, heads, pair, 1), _bias(position, bias, heads)
    grid = (triton.cdiv(count, _LANES) * (outputs // shared) * heads,)
    with torch.cuda.device_of(value):
        forward_kernel[grid](
            query, key, value, *tables, out, logsumexp, _seed(seed, value), count, _least(dropout), 1 - dropout,
            Q=query.stride()[:4], K=key.stride()[:4], V=value.stride()[:4], R=out.stride()[:4],
            **shape, LANES=_LANES, SHARED=shared, PAIR=pair, GROUP=_group(shape), num_warps=1, num_stages=1,
        )  # fmt: skip
    return _pixels_first(out), logsumexp


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value, position and bias, given that of ``out`` and what :func:`forward` returned.

    Weights are computed again from the scores and ``logsumexp``. The same input gives the same bytes on the same
    machine.

    Notes
    -----
    Beside the results, memory is the copies :func:`forward` makes, one number a query, and block sums of the table's
    gradient: at most 128 MiB, or one table for each head where that is more.
    """
    _check_types(query, key, value)
    outputs, keys = position.shape[1:3]
    is_shared = query.shape[2] < outputs
    pairs = _pair(outputs, value, bias), _pair(keys, value, bias)
    kinds = query.dtype, key.dtype, value.dtype
    query, key, value = (_planar(tensor, max(pairs)) for tensor in (query, key, value))
    query = query.expand(-1, -1, -1, outputs, -1, -1)
    grad_out, unit = _scaled(grad_out, dropout, max(pairs))
    out = _planar(out, 1)
    heads = query.shape[1]
    shape = _shape(query, key, value, position, bias, dropout)
    strides = {"Q": query.stride()[:4], "K": key.stride()[:4], "V": value.stride()[:4], "G": grad_out.stride()[:4]}
    bias_table, seed = _bias(position, bias, heads), _seed(seed, value)
    delta = torch.empty_like(logsumexp)
    with torch.cuda.device_of(value):
        grad_query, grad_table = _backward_queries(
            (query, key, value, _encoding(position, heads, pairs[0], 1), bias_table, grad_out, out, logsumexp, delta),
            (seed, unit), dropout, kinds[0], pairs[0], strides, shape,
        )  # fmt: skip
        grad_key, grad_value = _backward_keys(
            (query, key, value, _encoding(position, heads, pairs[1], 2), bias_table, grad_out, logsumexp, delta),
            (seed, unit), dropout, kinds[1:], pairs[1], strides, shape,
        )  # fmt: skip
    if is_shared:
        grad_query = grad_query.sum(3, keepdim=True)
    channels = position.shape[-1]
    grad_position = _over_blocks(grad_table[:, :, :, :channels], position) * (unit / math.sqrt(channels))
    grad_bias = None if bias is None else _over_blocks(grad_table[:, :, :, channels:], bias[..., None])[..., 0] * unit
    return (
        _pixels_first(grad_query),
        _pixels_first(grad_key),
        _pixels_first(grad_value),
        grad_position.to(position.dtype),
        None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
    )


def _over_blocks(sums: Tensor, table: Tensor) -> Tensor:
    """The second sum: (blocks, heads, outputs, columns, entries) -> the table's shape, whose heads may be one."""
    total = sums.sum(0) if len(table) == sums.shape[1] else sums.sum((0, 1))[None]
    return total.transpose(-1, -2).contiguous().view(table.shape)


def _backward_queries(
    tensors: tuple[Tensor, ...],
    numbers: tuple[Tensor, Tensor],
    dropout: float,
    kind: torch.dtype,
    pair: int,
    strides: dict[str, Any],
    shape: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Gradients of the queries, planar, and of the table, (blocks, heads, outputs, d and one for the bias, entries).

    Both come out of one pass over the scores where the block sums of the table are small; a table as large as that of
    global attention takes a pass of its own, in which a program has few entries and many pixels.
    """
    query, logsumexp = tensors[0], tensors[-2]
    heads, outputs, group = query.shape[1], query.shape[3], _group(shape)
    entries, lines = shape["KEYS"] * shape["WY"] * shape["WX"], shape["KEYS"] * shape["WY"] * -(-shape["WX"] // group)
    shared = _divisor(outputs, _REGISTERS["queries"] * pair // (2 * shape["D"] + shape["DV"]), pair)
    columns, places = shape["D"] + shape["HAS_BIAS"], heads * (outputs // shared)
    count = logsumexp[:, 0, 0].numel()
    tiles = triton.cdiv(count, _LANES)
    table_bytes = 4 * heads * outputs * entries * columns
    blocks = min(tiles, triton.cdiv(_PROGRAMS, places))
    grad_query = torch.empty(query.shape, dtype=kind, device=query.device)

    def launch(blocks: int, splits: int, want_query: bool, want_table: bool) -> Tensor:
        sums = torch.empty(
            blocks if want_table else 0, heads, outputs, columns, entries, dtype=torch.float32, device=query.device
        )
        queries_kernel[(blocks * splits * places,)](
            *tensors, grad_query, sums, *numbers, count, blocks, splits,
            triton.cdiv(tiles, blocks), triton.cdiv(lines, splits), _least(dropout), 1 - dropout,
            **strides, R=tensors[-3].stride()[:4], GQ=grad_query.stride()[:4], **shape, LANES=_LANES, SHARED=shared,
            PAIR=pair, GROUP=group, COLUMNS=columns, WIDE=max(16, triton.next_power_of_2(columns)),
            WANT_QUERY=want_query, WANT_TABLE=want_table,
            PRECISION="tf32x3" if kind == torch.float32 else "tf32", num_warps=1, num_stages=1,
        )  # fmt: skip
        return sums

    if blocks * table_bytes <= _TABLE_BYTES:
        return grad_query, launch(blocks, 1, True, True)
    launch(tiles, 1, True, False)
    few = max(1, min(tiles, _TABLE_BYTES // table_bytes))
    return grad_query, launch(few, min(lines, triton.cdiv(_PROGRAMS, few * places)), False, True)


def _backward_keys(
    tensors: tuple[Tensor, ...],
    numbers: tuple[Tensor, Tensor],
    dropout: float,
    kinds: tuple[torch.dtype, ...],
    pair: int,
    strides: dict[str, Any],
    shape: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Gradients of keys and values, planar: each gathers from the queries whose window it is in."""
    key, value, logsumexp = tensors[1], tensors[2], tensors[-2]
    grad_key = torch.empty(key.shape, dtype=kinds[0], device=key.device)
    grad_value = torch.empty(value.shape, dtype=kinds[1], device=value.device)
    heads, keys, count = key.shape[1], key.shape[3], logsumexp[:, 0, 0].numel()
    shared = _divisor(keys, _REGISTERS["keys"] * pair // (2 * (shape["D"] + shape["DV"])), pair)
    grid = (triton.cdiv(count, _LANES) * (keys // shared) * heads,)
    keys_kernel[grid](
        *tensors, grad_key, grad_value, *numbers, count, _least(dropout),
        **strides, GK=grad_key.stride()[:4], GV=grad_value.stride()[:4], **shape, LANES=_LANES, SHARED=shared,
        PAIR=pair, GROUP=_group(shape), num_warps=1, num_stages=1,
    )  # fmt: skip
    return grad_key, grad_value


def _check_types(*tensors: Tensor) -> None:
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1 or not types <= {torch.float32, torch.bfloat16, torch.float16}:
        raise TypeError(
            f"query, key and value must be all float32, all bfloat16 or all float16 on a GPU, got "
            f"{', '.join(str(tensor.dtype) for tensor in tensors)}; float64 is the plain version's"
        )


def _pair(elements: int, tensor: Tensor, bias: Tensor | None) -> int:
    """How many elements are multiplied at once: two in half precision, where they can be paired."""
    return 2 if tensor.dtype != torch.float32 and bias is None and elements % 2 == 0 else 1


def _planar(tensor: Tensor, pair: int) -> Tensor:
    """(b, n, g, h, w, d) -> (b, n, d, g, h, w), pixels side by side, pairs in float16; a copy only where it must be."""
    planar = tensor.permute(0, 1, 5, 2, 3, 4)
    if pair == 2:
        planar = planar.to(torch.float16)
    return planar if planar.stride()[-2:] == (tensor.shape[4], 1) else planar.contiguous()


def _pixels_first(planar: Tensor) -> Tensor:
    """(b, n, d, g, h, w) -> (b, n, g, h, w, d), a view."""
    return planar.permute(0, 1, 3, 4, 5, 2)


def _scaled(gradient: Tensor, dropout: float, pair: int) -> tuple[Tensor, Tensor]:
    """A gradient, planar, scaled for its type; and what everything computed from it is multiplied with in the end.

    That number also holds the factor of the weights which dropout keeps.
    """
    unit = torch.full((), 1 / (1 - dropout), device=gradient.device)
    if pair == 1:
        return _planar(gradient, 1), unit
    # A power of two, exactly: the largest entry comes to lie between 2^-5 and 2^-4, far from both ends of float16.
    _, exponent = torch.frexp(gradient.detach().abs().amax().float())
    scale = torch.ldexp(torch.ones_like(unit), -4 - exponent)
    return _planar((gradient * scale).to(torch.float16), 1), unit / scale


def _encoding(position: Tensor, heads: int, pair: int, axis: int) -> Tensor:
    """The table as kernels read it, (heads, outputs, keys, window_y * window_x, channels), channels padded to fours.

    In float32, or where ``axis`` (1 for outputs, 2 for keys) is paired half as long there, two numbers of float16 in 32
    bits.
    """
    table = torch.nn.functional.pad(position, (0, -position.shape[-1] % 4)).flatten(3, 4)
    table = table.expand(heads, -1, -1, -1, -1)
    if pair == 1:
        return table.float().contiguous()
    halves = table.to(torch.float16).unflatten(axis, (-1, 2)).movedim(axis + 1, -1)
    return halves.contiguous().view(torch.int32).squeeze(-1)


def _bias(position: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """(heads, outputs, entries), times sqrt(d), by which scores are divided; nothing reads it where there is none."""
    if bias is None:
        return position
    return (math.sqrt(position.shape[-1]) * bias.float()).flatten(2).expand(heads, -1, -1).contiguous()


def _seed(seed: Tensor | None, tensor: Tensor) -> Tensor:
    """One number of 32 bits on the device; any address where nothing is dropped."""
    return torch.zeros((), dtype=torch.int32, device=tensor.device) if seed is None else seed.to(torch.int32)


def _least(dropout: float) -> int:
    """The smallest 16 bits of a hash that keep a weight."""
    return round(dropout * 2**16)


def _group(shape: dict[str, Any]) -> int:
    """How many entries of a row of the window are scored at once, at most eight: few wasted, few groups."""
    most = min(8, shape["WX"], max(1, _UNROLLED // (shape["D"] + shape["DV"])))
    return min(range(most, 0, -1), key=lambda size: -(-shape["WX"] // size) * (size + 1))


def _divisor(number: int, limit: int, pair: int) -> int:
    """The largest divisor that is a multiple of ``pair`` and not above the limits, or ``pair``."""
    return max(size for size in range(pair, max(pair, min(limit, _ELEMENTS)) + 1, pair) if number % size == 0)


def _shape(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float
) -> dict[str, Any]:
    """What all kernels are compiled for."""
    return {
        "HEADS": query.shape[1], "OUTPUTS": query.shape[3], "KEYS": key.shape[3], "H": key.shape[4], "W": key.shape[5],
        "WY": position.shape[3], "WX": position.shape[4], "D": query.shape[2], "DV": value.shape[2],
        "HAS_BIAS": bias is not None, "DROPS": dropout > 0,
    }  # fmt: skip
