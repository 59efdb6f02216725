"""Group attention on a GPU: the sums of :mod:`unpose.nn.windowed`, in kernels that never write a score.

Heads are small, ten channels in the published networks, and each pixel has its own neighbours: tensor cores would
mostly multiply padding. So a thread is a pixel. It keeps the queries of a few output elements in registers and walks
over the keys of its window; what it reads of a key serves all of these outputs. Channels lie apart in memory, in the
order ``(b, n, d, elements, h, w)``, so that neighbouring threads read neighbouring pixels; a tensor that lies so
already, as a view, is not copied. What takes the time is arithmetic, ``2 d + dv`` multiplications and additions a score
and about three times that in the backward pass, and reading keys, not memory.

Tensors in bfloat16 or float16 are multiplied two channels at a time in float16, which has more digits than bfloat16;
exponentials, their sums and the table's gradient are float32. Gradients are scaled to the range of float16 by their
largest entry. Tensor cores do not help: in matrix products every key would pass through shared memory for each query
that sees it, which takes longer than the arithmetic here.

Nothing is added up in an order that can change: the backward pass goes over the queries for their gradients, over the
keys for theirs, over the table for its block sums, and adds those in a second, fixed sum. No block
size depends on the machine, and no number that a kernel needs passes through the host: a CUDA graph can hold them.

Written in Triton, which comes with torch builds for CUDA; imported only when a CUDA tensor is attended to.
"""

import math
from typing import Any

import torch
import triton
from torch import Tensor

from unpose.nn.lanes_cuda import forward_kernel, keys_kernel, queries_kernel, table_kernel
from unpose.nn.words_cuda import pack_kernel

_LANES = 32
"""Pixels of one program, a single warp: none waits for another, and the tail of a launch is short."""

_REGISTERS = {"forward": 80, "queries": 120, "table": 80, "keys": 160}
"""Registers that hold the channels of a thread's elements, at most; how many elements that are says how often what is
read serves."""

_ELEMENTS = 4
"""Elements a thread holds, at most: with more a kernel takes minutes to compile."""

_UNROLLED = 100
"""Channels of keys and values that are read in one go: a row of the window's, or fewer where heads are wide."""

_PACKED = 1024
"""Words that a program packs."""

_PROGRAMS = 4096
"""Programs that are enough for any GPU: three rounds of what an H200 holds at once. More of them share the sums of the
table's gradient, and each has its own."""


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
    of it and of the weight's place: the same one in :func:`backward`.

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
    outputs, pair = position.shape[1], _pair(value)
    query, key, value = (_planar(tensor) for tensor in (query, key, value))
    batch, heads, channels, _, height, width = value.shape
    count = batch * height * width
    out = torch.empty(batch, heads, channels, outputs, height, width, dtype=value.dtype, device=value.device)
    logsumexp = torch.empty(batch, heads, outputs, height, width, device=value.device)
    shape = _shape(query, key, value, position, bias, dropout)
    query, key, value = (_words(tensor, pair) for tensor in (query, key, value))
    query = query.expand(-1, -1, -1, outputs, -1, -1)
    shared = _divisor(outputs, _REGISTERS["forward"] * pair // (shape["D"] + shape["DV"]))
    tables = _encoding(position, heads, pair), _bias(position, bias, heads)
    grid = (triton.cdiv(count, _LANES) * (outputs // shared) * heads,)
    with torch.cuda.device_of(value):
        forward_kernel[grid](
            query, key, value, *tables, out, logsumexp, _seed(seed, value), count, _least(dropout), 1 - dropout,
            Q=query.stride()[:4], K=key.stride()[:4], V=value.stride()[:4], R=out.stride()[:4],
            **shape, LANES=_LANES, SHARED=shared, PAIR=pair, GROUP=_group(shape, pair), num_warps=1, num_stages=1,
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
    Beside the results, memory is the copies :func:`forward` makes, one of the gradient, one number a query, and block
    sums of the table's gradient: about a thousand floats for each of 4,096 programs, or one table for each head where
    that is more.
    """
    _check_types(query, key, value)
    is_shared, pair = query.shape[2] < position.shape[1], _pair(value)
    grad_out, query, key, value, out = (_planar(tensor) for tensor in (grad_out, query, key, value, out))
    kinds = query.dtype, key.dtype, value.dtype
    shape = _shape(query, key, value, position, bias, dropout)
    scale, unit = _scale(grad_out, dropout)
    channels = query.expand(-1, -1, -1, shape["OUTPUTS"], -1, -1)
    query, key, value = (_words(tensor, pair) for tensor in (query, key, value))
    query = query.expand(-1, -1, -1, shape["OUTPUTS"], -1, -1)
    grad_out = _words(grad_out, pair, scale)
    strides = {"Q": query.stride()[:4], "K": key.stride()[:4], "V": value.stride()[:4], "G": grad_out.stride()[:4]}
    tables = _encoding(position, shape["HEADS"], pair), _bias(position, bias, shape["HEADS"])
    seed, delta = _seed(seed, value), torch.empty_like(logsumexp)
    settings = {"LANES": _LANES, "PAIR": pair, "GROUP": _group(shape, pair), "num_warps": 1, "num_stages": 1} | shape
    tensors = (query, key, value, *tables, grad_out)
    with torch.cuda.device_of(value):
        grad_query = _backward_queries(tensors, out, logsumexp, delta, seed, unit, dropout, kinds[0], strides, settings)
        grad_table = _backward_table(tensors, channels, logsumexp, delta, seed, dropout, strides, settings)
        grad_key, grad_value = _backward_keys(
            tensors, logsumexp, delta, seed, unit, dropout, kinds[1:], strides, settings
        )
    if is_shared:
        grad_query = grad_query.sum(3, keepdim=True)
    d = position.shape[-1]
    grad_position = _over_blocks(grad_table[:, :, :, :d], position) * (unit / math.sqrt(d))
    grad_bias = None if bias is None else _over_blocks(grad_table[:, :, :, d:], bias[..., None])[..., 0] * unit
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
    out: Tensor,
    logsumexp: Tensor,
    delta: Tensor,
    seed: Tensor,
    unit: Tensor,
    dropout: float,
    kind: torch.dtype,
    strides: dict[str, Any],
    settings: dict[str, Any],
) -> Tensor:
    """Gradients of the queries, planar; writes ``delta``."""
    batch, heads, _, outputs, height, width = out.shape
    grad_query = torch.empty(batch, heads, settings["D"], outputs, height, width, dtype=kind, device=out.device)
    shared = _divisor(outputs, _REGISTERS["queries"] * settings["PAIR"] // (2 * settings["D"] + settings["DV"]))
    count = batch * height * width
    queries_kernel[(triton.cdiv(count, _LANES) * (outputs // shared) * heads,)](
        *tensors, out, logsumexp, delta, grad_query, seed, unit, count, _least(dropout), 1 - dropout,
        **strides, R=out.stride()[:4], GQ=grad_query.stride()[:4], SHARED=shared, **settings,
    )  # fmt: skip
    return grad_query


def _backward_table(
    tensors: tuple[Tensor, ...],
    channels: Tensor,
    logsumexp: Tensor,
    delta: Tensor,
    seed: Tensor,
    dropout: float,
    strides: dict[str, Any],
    settings: dict[str, Any],
) -> Tensor:
    """Block sums of the table's gradient, (blocks, heads, outputs, d and one for the bias, entries).

    A program has few entries and many pixels and keeps its sums to the end: scores are computed once more for it, which
    takes less time than to bring sums in and out for every few pixels.
    """
    heads, outputs, group = settings["HEADS"], settings["OUTPUTS"], settings["GROUP"]
    window = settings["KEYS"] * settings["WY"]
    columns = settings["D"] + settings["HAS_BIAS"]
    shared = _divisor(outputs, _REGISTERS["table"] * settings["PAIR"] // (settings["D"] + settings["DV"]))
    programs = window * triton.cdiv(settings["WX"], group) * (outputs // shared) * heads
    images, pixels = len(logsumexp), logsumexp[0, 0, 0].numel()
    tiles = images * triton.cdiv(pixels, _LANES)
    blocks = min(tiles, triton.cdiv(_PROGRAMS, programs))
    sums = torch.empty(blocks, heads, outputs, columns, window * settings["WX"], device=channels.device)
    table_kernel[(programs * blocks,)](
        *tensors, channels, logsumexp, delta, sums, seed, images, blocks, triton.cdiv(tiles, blocks), _least(dropout),
        **strides, C=channels.stride()[:4], SHARED=shared, COLUMNS=columns,
        WIDE=max(16, triton.next_power_of_2(columns)), PRECISION="tf32x3" if settings["PAIR"] == 1 else "tf32",
        **settings,
    )  # fmt: skip
    return sums


def _backward_keys(
    tensors: tuple[Tensor, ...],
    logsumexp: Tensor,
    delta: Tensor,
    seed: Tensor,
    unit: Tensor,
    dropout: float,
    kinds: tuple[torch.dtype, ...],
    strides: dict[str, Any],
    settings: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Gradients of keys and values, planar: each gathers from the queries whose window it is in."""
    batch, heads, _, keys, height, width = tensors[1].shape
    grad_key, grad_value = (
        torch.empty(batch, heads, settings[name], keys, height, width, dtype=kind, device=delta.device)
        for name, kind in zip(("D", "DV"), kinds, strict=True)
    )
    shared = _divisor(keys, _REGISTERS["keys"] * settings["PAIR"] // (2 * (settings["D"] + settings["DV"])))
    count = batch * height * width
    keys_kernel[(triton.cdiv(count, _LANES) * (keys // shared) * heads,)](
        *tensors, logsumexp, delta, grad_key, grad_value, seed, unit, count, _least(dropout),
        **strides, GK=grad_key.stride()[:4], GV=grad_value.stride()[:4], SHARED=shared, **settings,
    )  # fmt: skip
    return grad_key, grad_value


def _check_types(*tensors: Tensor) -> None:
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1 or not types <= {torch.float32, torch.bfloat16, torch.float16}:
        raise TypeError(
            f"query, key and value must be all float32, all bfloat16 or all float16 on a GPU, got "
            f"{', '.join(str(tensor.dtype) for tensor in tensors)}; float64 is the plain version's"
        )


def _pair(tensor: Tensor) -> int:
    """How many channels are multiplied at once."""
    return 1 if tensor.dtype == torch.float32 else 2


def _planar(tensor: Tensor) -> Tensor:
    """(b, n, g, h, w, d) -> (b, n, d, g, h, w), pixels side by side; a copy only where it must be."""
    planar = tensor.permute(0, 1, 5, 2, 3, 4)
    return planar if planar.stride()[-2:] == (tensor.shape[4], 1) else planar.contiguous()


def _words(planar: Tensor, pair: int, scale: Tensor | None = None) -> Tensor:
    """A planar map as kernels read it: itself, or two channels in 32 bits, (b, n, ceil(d / 2), g, h, w)."""
    if pair == 1:
        return planar
    batch, heads, channels, elements, height, width = planar.shape
    words = torch.empty(
        batch, heads, -(-channels // 2), elements, height, width, dtype=torch.int32, device=planar.device
    )
    scale = torch.ones((), device=planar.device) if scale is None else scale
    with torch.cuda.device_of(planar):
        pack_kernel[(triton.cdiv(words.numel(), _PACKED),)](
            planar, words, scale, words.numel(), S=planar.stride()[:4], HEADS=heads, CHANNELS=channels,
            ELEMENTS=elements, PIXELS=height * width, BLOCK=_PACKED,
        )  # fmt: skip
    return words


def _pixels_first(planar: Tensor) -> Tensor:
    """(b, n, d, g, h, w) -> (b, n, g, h, w, d), a view."""
    return planar.permute(0, 1, 3, 4, 5, 2)


def _scale(gradient: Tensor, dropout: float) -> tuple[Tensor | None, Tensor]:
    """What a gradient is multiplied with before it is rounded, and what everything computed from it is in the end.

    The second also holds the factor of the weights which dropout keeps.
    """
    unit = torch.full((), 1 / (1 - dropout), device=gradient.device)
    if gradient.dtype == torch.float32:
        return None, unit
    # A power of two, exactly: the largest entry comes to lie between 2^-5 and 2^-4, far from both ends of float16.
    _, exponent = torch.frexp(gradient.detach().abs().amax().float())
    scale = torch.ldexp(torch.ones_like(unit), -4 - exponent)
    return scale, unit / scale


def _encoding(position: Tensor, heads: int, pair: int) -> Tensor:
    """The table as kernels read it, (heads, outputs, keys, window_y * window_x, columns), columns padded to fours.

    A column is a channel in float32, or two of float16 in 32 bits.
    """
    table = torch.nn.functional.pad(position, (0, -position.shape[-1] % (4 * pair))).flatten(3, 4)
    table = table.expand(heads, -1, -1, -1, -1)
    return table.float().contiguous() if pair == 1 else table.to(torch.float16).contiguous().view(torch.int32)


def _bias(position: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """(heads, outputs, entries), times sqrt(d), by which scores are divided; nothing reads it where there is none."""
    if bias is None:
        return position
    return (math.sqrt(position.shape[-1]) * bias.float()).flatten(2).expand(heads, -1, -1).contiguous()


def _seed(seed: Tensor | None, tensor: Tensor) -> Tensor:
    """One number of 32 bits on the device; any address where nothing is dropped."""
    return torch.zeros((), dtype=torch.int32, device=tensor.device) if seed is None else seed.to(torch.int32)


def _least(dropout: float) -> int:
    """The smallest hash that keeps a weight, as a signed number of the same 32 bits."""
    least = min(round(dropout * 2**32), 2**32 - 1)
    return least - 2**32 if least >= 2**31 else least


def _group(shape: dict[str, Any], pair: int) -> int:
    """How many entries of a row of the window are scored at once, at most eight: few wasted, few groups."""
    most = min(8, shape["WX"], max(1, _UNROLLED * pair // (shape["D"] + shape["DV"])))
    return min(range(most, 0, -1), key=lambda size: -(-shape["WX"] // size) * (size + 1))


def _divisor(number: int, limit: int) -> int:
    """The largest divisor that is not above the limits, or 1."""
    return max(size for size in range(1, max(1, min(limit, _ELEMENTS)) + 1) if number % size == 0)


def _shape(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float
) -> dict[str, Any]:
    """What all kernels are compiled for."""
    return {
        "HEADS": query.shape[1], "OUTPUTS": position.shape[1], "KEYS": key.shape[3], "H": key.shape[4],
        "W": key.shape[5], "WY": position.shape[3], "WX": position.shape[4], "D": query.shape[2], "DV": value.shape[2],
        "HAS_BIAS": bias is not None, "DROPS": dropout > 0,
    }  # fmt: skip
