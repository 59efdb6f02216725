"""Group attention on a GPU: the sums of :mod:`unpose.nn.windowed`, in kernels that never write a score.

Heads are small, ten channels in the published networks, and each pixel has its own neighbours: tensor cores would
mostly multiply padding. So a thread is a pixel. It keeps the queries of a few output elements in registers and walks
over the keys of its window; what it reads of a key serves all of these outputs. Channels lie apart in memory, in the
order ``(b, n, d, elements, h, w)``, so that neighbouring threads read neighbouring pixels; a tensor that lies so
already, as a view, is not copied. What takes the time is arithmetic, ``2 d + dv`` multiplications and additions a score
and about three times that in the backward pass, not memory.

Nothing is added up in an order that can change: the backward pass goes over the queries for the gradients of the
queries and of the table, over the keys for theirs, and adds the table's block sums in a second, fixed sum. No block
size depends on the machine.

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

_REGISTERS = {"forward": 80, "queries": 60, "keys": 160}
"""Channels one thread holds at once; how many elements that are says how often what is read serves twice."""

_GROUP = {"forward": 4, "queries": 8}
"""Scores between two rescalings of the running sums; table entries whose gradients are one small matrix product."""

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
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of each softmax's denominator.

    Parameters are those of :func:`unpose.nn.group_attention` with a table of six axes, shapes already checked, in
    float32, bfloat16 or float16; sums are taken in float32. A weight is dropped by a hash of ``seed`` and its place in
    the array (batch, heads, outputs, height, width, keys, window_y, window_x): the same one in :func:`backward`.

    Returns
    -------
    out : (batch, heads, outputs, height, width, dv), a view of memory in the order (batch, heads, dv, outputs, h, w)
    logsumexp : (batch, heads, outputs, height, width), float32

    Notes
    -----
    Memory is that of the results, and of copies of query, key and value where their pixels do not lie side by side.
    """
    _check_types(query, key, value)
    outputs = position.shape[1]
    query, key, value = _planar(query).expand(-1, -1, -1, outputs, -1, -1), _planar(key), _planar(value)
    batch, heads, _, _, height, width = query.shape
    count = batch * height * width
    out = torch.empty(batch, heads, value.shape[2], outputs, height, width, dtype=value.dtype, device=value.device)
    logsumexp = torch.empty(batch, heads, outputs, height, width, device=value.device)
    shape = _shape(query, key, value, position, bias, dropout)
    shared = _divisor(outputs, _REGISTERS["forward"] // (shape["D"] + shape["DV"]))
    grid = (triton.cdiv(count, _LANES) * (outputs // shared) * heads,)
    with torch.cuda.device_of(value):
        forward_kernel[grid](
            query, key, value, *_tables(position, bias, heads), out, logsumexp, count, *_dropping(dropout, seed),
            Q=query.stride()[:4], K=key.stride()[:4], V=value.stride()[:4], R=out.stride()[:4],
            **shape, LANES=_LANES, SHARED=shared, GROUP=_GROUP["forward"], num_warps=1, num_stages=1,
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
    seed: int = 0,
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
    outputs = position.shape[1]
    is_shared = query.shape[2] < outputs
    query, key, value = _planar(query).expand(-1, -1, -1, outputs, -1, -1), _planar(key), _planar(value)
    grad_out, out = _planar(grad_out), _planar(out)
    heads = query.shape[1]
    tables = _tables(position, bias, heads)
    shape = _shape(query, key, value, position, bias, dropout)
    strides = {"Q": query.stride()[:4], "K": key.stride()[:4], "V": value.stride()[:4], "G": grad_out.stride()[:4]}
    delta = torch.empty_like(logsumexp)
    with torch.cuda.device_of(value):
        grad_query, grad_table = _backward_queries(
            (query, key, value, *tables, grad_out, out, logsumexp, delta), _dropping(dropout, seed), strides, shape
        )
        grad_key, grad_value = _backward_keys(
            (query, key, value, *tables, grad_out, logsumexp, delta), _dropping(dropout, seed), strides, shape
        )
    if is_shared:
        grad_query = grad_query.sum(3, keepdim=True)
    channels = position.shape[-1]
    grad_position = _over_blocks(grad_table[:, :, :, :channels], position) / math.sqrt(channels)
    grad_bias = None if bias is None else _over_blocks(grad_table[:, :, :, channels:], bias[..., None])[..., 0]
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
    tensors: tuple[Tensor, ...], dropping: tuple[int, int, float], strides: dict[str, Any], shape: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Gradients of the queries, planar, and of the table, (blocks, heads, outputs, d and one for the bias, entries).

    Both come out of one pass over the scores where the block sums of the table are small; a table as large as that of
    global attention takes a pass of its own, in which a program has few entries and many pixels.
    """
    query, logsumexp = tensors[0], tensors[-2]
    heads, outputs, entries = query.shape[1], query.shape[3], shape["KEYS"] * shape["WY"] * shape["WX"]
    shared = _divisor(outputs, _REGISTERS["queries"] // (2 * shape["D"] + shape["DV"]))
    columns, places = shape["D"] + shape["HAS_BIAS"], heads * (outputs // shared)
    count = logsumexp[:, 0, 0].numel()
    tiles, groups = triton.cdiv(count, _LANES), triton.cdiv(entries, _GROUP["queries"])
    table_bytes = 4 * heads * outputs * entries * columns
    blocks = min(tiles, triton.cdiv(_PROGRAMS, places))
    grad_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)

    def launch(blocks: int, splits: int, want_query: bool, want_table: bool) -> Tensor:
        sums = torch.empty(
            blocks if want_table else 0, heads, outputs, columns, entries, dtype=torch.float32, device=query.device
        )
        queries_kernel[(blocks * splits * places,)](
            *tensors, grad_query, sums, count, blocks, splits,
            triton.cdiv(tiles, blocks), triton.cdiv(groups, splits), *dropping,
            **strides, R=tensors[-3].stride()[:4], GQ=grad_query.stride()[:4], **shape, LANES=_LANES, SHARED=shared,
            GROUP=_GROUP["queries"], COLUMNS=columns, WIDE=max(16, triton.next_power_of_2(columns)),
            WANT_QUERY=want_query, WANT_TABLE=want_table,
            PRECISION="tf32x3" if query.dtype == torch.float32 else "tf32", num_warps=1, num_stages=1,
        )  # fmt: skip
        return sums

    if blocks * table_bytes <= _TABLE_BYTES:
        return grad_query, launch(blocks, 1, True, True)
    launch(tiles, 1, True, False)
    few = max(1, min(tiles, _TABLE_BYTES // table_bytes))
    return grad_query, launch(few, min(groups, triton.cdiv(_PROGRAMS, few * places)), False, True)


def _backward_keys(
    tensors: tuple[Tensor, ...], dropping: tuple[int, int, float], strides: dict[str, Any], shape: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Gradients of keys and values, planar: each gathers from the queries whose window it is in."""
    key, value, logsumexp = tensors[1], tensors[2], tensors[-2]
    grad_key = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    grad_value = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    heads, keys, count = key.shape[1], key.shape[3], logsumexp[:, 0, 0].numel()
    shared = _divisor(keys, _REGISTERS["keys"] // (2 * (shape["D"] + shape["DV"])))
    grid = (triton.cdiv(count, _LANES) * (keys // shared) * heads,)
    keys_kernel[grid](
        *tensors, grad_key, grad_value, count, *dropping,
        **strides, GK=grad_key.stride()[:4], GV=grad_value.stride()[:4], **shape, LANES=_LANES, SHARED=shared,
        num_warps=1, num_stages=1,
    )  # fmt: skip
    return grad_key, grad_value


def _check_types(*tensors: Tensor) -> None:
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1 or not types <= {torch.float32, torch.bfloat16, torch.float16}:
        raise TypeError(
            f"query, key and value must be all float32, all bfloat16 or all float16 on a GPU, got "
            f"{', '.join(str(tensor.dtype) for tensor in tensors)}; float64 is the plain version's"
        )


def _planar(tensor: Tensor) -> Tensor:
    """(b, n, g, h, w, d) -> (b, n, d, g, h, w), pixels side by side; a copy only where they are not."""
    planar = tensor.permute(0, 1, 5, 2, 3, 4)
    return planar if planar.stride()[-2:] == (tensor.shape[4], 1) else planar.contiguous()


def _pixels_first(planar: Tensor) -> Tensor:
    """(b, n, d, g, h, w) -> (b, n, g, h, w, d), a view."""
    return planar.permute(0, 1, 3, 4, 5, 2)


def _tables(position: Tensor, bias: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """The encoding (heads, outputs, pairs of channels, entries) and the bias (heads, outputs, entries), in float32.

    A pair is one number of 64 bits. The bias is multiplied with sqrt(d), by which all scores are divided.
    Where there is none, nothing reads the second table.
    """
    pairs = torch.nn.functional.pad(position.float(), (0, position.shape[-1] % 2)).flatten(2, 4).unflatten(-1, (-1, 2))
    encoding = pairs.transpose(2, 3).expand(heads, -1, -1, -1, -1).contiguous().view(torch.int64).squeeze(-1)
    if bias is None:
        return encoding, encoding
    return encoding, (math.sqrt(position.shape[-1]) * bias.float()).flatten(2).expand(heads, -1, -1).contiguous()


def _dropping(dropout: float, seed: int) -> tuple[int, int, float]:
    """Seed, smallest hash that is kept, and what the kept weights are multiplied with.

    Numbers of 32 bits, signed: of one kind whatever their value, so that a new seed compiles nothing anew.
    """
    least = min(math.ceil(dropout * 2**32), 2**32 - 1)
    return (seed + 2**31) % 2**32 - 2**31, (least + 2**31) % 2**32 - 2**31, 1 / (1 - dropout)


def _divisor(number: int, limit: int) -> int:
    """The largest divisor that is not above the limit, or one."""
    return max(size for size in range(1, max(1, limit) + 1) if number % size == 0)


def _shape(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float
) -> dict[str, Any]:
    """What all kernels are compiled for."""
    return {
        "HEADS": query.shape[1], "OUTPUTS": query.shape[3], "KEYS": key.shape[3], "H": key.shape[4], "W": key.shape[5],
        "WY": position.shape[3], "WX": position.shape[4], "D": query.shape[2], "DV": value.shape[2],
        "HAS_BIAS": bias is not None, "DROPS": dropout > 0,
    }  # fmt: skip
