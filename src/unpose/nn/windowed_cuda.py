"""Group attention on a GPU: the sums of :mod:`unpose.nn.windowed`, in kernels that never write a score.

Heads are small, ten channels in the published networks, and each pixel has its own neighbours. So a thread is a pixel.
It keeps the queries of a few output elements in registers and walks over the keys of its window; what it reads of a key
serves all of these outputs. Channels lie apart in memory, in the order ``(b, n, d, elements, h, w)``, so that
neighbouring threads read neighbouring pixels; a tensor that lies so already, as a view, is not copied. What takes the
time is arithmetic, ``2 d + dv`` multiplications and additions a score and about three times that in the backward pass,
and reading keys, not memory. Tensor cores do not help: in matrix products every key passes through shared memory for
each query that sees it, which takes longer.

Tensors in bfloat16 or float16 are computed with in float16, which has more digits than bfloat16, for two images at a
time: what a pixel of one image does, the same pixel of the next does too, and one instruction does both. Denominators
are summed in float32, and the table's gradient over a few dozen pixels in float16, then in float32. Gradients are
scaled to the range of float16 by their largest entry.

Nothing is added up in an order that can change: the backward pass goes over the queries for their gradients, over the
keys for theirs, over the table for its block sums, and adds those in a second, fixed sum. No block size depends on the
machine, and no number that a kernel needs passes through the host: a CUDA graph can hold them.

Written in Triton, which comes with torch builds for CUDA; imported only when a CUDA tensor is attended to.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from unpose.nn.lanes_cuda import forward_kernel, keys_kernel, queries_kernel, table_kernel
from unpose.nn.words_cuda import pack_kernel

_LANES = 32
"""Pixels of one program, a single warp: none waits for another, and the tail of a launch is short."""

_REGISTERS = {"forward": 80, "queries": 120, "table": 60, "keys": 160}
"""Registers that hold the channels of a thread's elements, at most; how many elements that are says how often what is
read serves."""

_ELEMENTS = 4
"""Elements a thread holds, at most."""

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
    planar = [_planar(tensor) for tensor in (query, key, value)]
    return _attend(planar, [_words(tensor) for tensor in planar], position, bias, dropout, seed)


def forward_projected(
    projected: Tensor, position: Tensor, bias: Tensor | None, dropout: float = 0.0, seed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """:func:`forward` of query, key and value in one tensor, (b, 3, n, d, elements, h, w)."""
    joined = _joined(projected)
    return _attend(joined.chunk(3, 1), _words(joined).chunk(3, 1), position, bias, dropout, seed)


def _attend(
    planar: Sequence[Tensor],
    words: Sequence[Tensor],
    position: Tensor,
    bias: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """:func:`forward` of query, key and value, given planar and as kernels read them."""
    value = planar[2]
    batch, heads, channels, _, height, width = value.shape
    outputs, pair = position.shape[1], _pair(value)
    out = torch.empty(batch, heads, channels, outputs, height, width, dtype=value.dtype, device=value.device)
    logsumexp = torch.empty(batch, heads, outputs, height, width, device=value.device)
    shape = _shape(planar, position, bias, dropout)
    query, key, value = words[0].expand(-1, -1, -1, outputs, -1, -1), words[1], words[2]
    shared = _divisor(outputs, _REGISTERS["forward"] // (shape["D"] + shape["DV"]))
    tables = _encoding(position, heads, pair), _bias(position, bias, heads)
    grid = (_tiles(batch, shape, pair) * (outputs // shared) * heads,)
    with torch.cuda.device_of(value):
        forward_kernel[grid](
            query, key, value, *tables, out, logsumexp, _seed(seed, value), batch, _least(dropout, pair), 1 - dropout,
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
    Beside the results, memory is the copies :func:`forward` makes, one of the gradient, two numbers a query, and block
    sums of the table's gradient: about a thousand floats for each of 4,096 programs, or one table for each head where
    that is more.
    """
    _check_types(query, key, value)
    planar = [_planar(tensor) for tensor in (query, key, value)]
    to_maps = [torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in planar]
    words = [_words(tensor) for tensor in planar]
    to_tables = _gradients(grad_out, planar, words, to_maps, position, bias, out, logsumexp, dropout, seed)
    to_query, to_key, to_value = (_pixels_first(tensor) for tensor in to_maps)
    return to_query, to_key, to_value, *to_tables


def backward_projected(
    grad_out: Tensor,
    projected: Tensor,
    position: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of projected, position and bias, as :func:`backward`; the first is written where it belongs."""
    joined = _joined(projected)
    to_joined = torch.empty(joined.shape, dtype=joined.dtype, device=joined.device)
    planar, words, to_maps = (tensor.chunk(3, 1) for tensor in (joined, _words(joined), to_joined))
    to_tables = _gradients(grad_out, planar, words, to_maps, position, bias, out, logsumexp, dropout, seed)
    return to_joined.view(projected.shape), *to_tables


def _gradients(
    grad_out: Tensor,
    planar: Sequence[Tensor],
    words: Sequence[Tensor],
    to_maps: Sequence[Tensor],
    position: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of position and bias; those of query, key and value are written to ``to_maps``, planar."""
    grad_out, out = _planar(grad_out), _planar(out)
    shape, pair = _shape(planar, position, bias, dropout), _pair(planar[2])
    query, key, value = words[0].expand(-1, -1, -1, shape["OUTPUTS"], -1, -1), words[1], words[2]
    grad_out, unit = _scaled(grad_out, dropout)
    strides = {"Q": query.stride()[:4], "K": key.stride()[:4], "V": value.stride()[:4], "G": grad_out.stride()[:4]}
    tables = _encoding(position, shape["HEADS"], pair), _bias(position, bias, shape["HEADS"])
    settings = {"LANES": _LANES, "PAIR": pair, "GROUP": _group(shape), "num_warps": 1, "num_stages": 1}
    given = _Given(
        (query, key, value, *tables, grad_out), logsumexp, _levels(logsumexp, pair), _seed(seed, value), unit, dropout,
        strides | settings | shape,
    )  # fmt: skip
    to_query, to_key, to_value = to_maps
    is_shared = to_query.shape[3] < shape["OUTPUTS"]
    to_queries = to_query if not is_shared else to_query.new_empty(*out.shape[:2], shape["D"], *out.shape[3:])
    with torch.cuda.device_of(value):
        _backward_queries(given, out, to_queries)
        grad_table = _backward_table(given)
        _backward_keys(given, to_key, to_value)
    if is_shared:
        torch.sum(to_queries, 3, keepdim=True, out=to_query)
    d = position.shape[-1]
    to_position = _over_blocks(grad_table[:, :, :, :d], position, unit / math.sqrt(d))
    return to_position, None if bias is None else _over_blocks(grad_table[:, :, :, d:], bias[..., None], unit)[..., 0]


def _over_blocks(sums: Tensor, table: Tensor, size: Tensor) -> Tensor:
    """The second sum: (blocks, heads, outputs, columns, entries) -> the table's shape, whose heads may be one.

    It is multiplied, rounded and laid out in one pass.
    """
    total = sums.sum(0) if len(table) == sums.shape[1] else sums.sum((0, 1))[None]
    found = torch.empty(table.shape, dtype=table.dtype, device=table.device)
    torch.mul(total.transpose(-1, -2), size, out=found.flatten(2, 4))
    return found


@dataclass(frozen=True)
class _Given:
    """What all kernels of the backward pass are given."""

    tensors: tuple[Tensor, ...]  # query, key, value, table, bias and the result's gradient, as kernels read them
    logsumexp: Tensor
    levels: Tensor  # what the queries' kernel writes for the others, see there
    seed: Tensor
    unit: Tensor
    dropout: float
    settings: dict[str, Any]  # strides, shapes and how kernels run

    @property
    def batch(self) -> int:
        return len(self.logsumexp)

    @property
    def tiles(self) -> int:
        return _tiles(self.batch, self.settings, self.settings["PAIR"])

    @property
    def least(self) -> int:
        return _least(self.dropout, self.settings["PAIR"])

    def shared(self, elements: int, kernel: str, channels: int) -> int:
        """Elements that a lane holds, which take so many channels each."""
        return _divisor(elements, _REGISTERS[kernel] // channels)


def _backward_queries(given: _Given, out: Tensor, grad_query: Tensor) -> None:
    """Writes ``levels`` and gradients of the queries, planar."""
    heads, outputs, d, dv = (given.settings[name] for name in ("HEADS", "OUTPUTS", "D", "DV"))
    shared = given.shared(outputs, "queries", 2 * d + dv)
    queries_kernel[(given.tiles * (outputs // shared) * heads,)](
        *given.tensors, out, given.logsumexp, given.levels, grad_query, given.seed, given.unit, given.batch,
        given.least, 1 - given.dropout,
        R=out.stride()[:4], GQ=grad_query.stride()[:4], SHARED=shared, **given.settings,
    )  # fmt: skip


def _backward_table(given: _Given) -> Tensor:
    """Block sums of the table's gradient, (blocks, heads, outputs, d and one for the bias, entries).

    A program has few entries and many pixels and keeps its sums to the end: scores are computed once more for it, which
    takes less time than to bring sums in and out for every few pixels.
    """
    settings = given.settings
    heads, outputs, d = settings["HEADS"], settings["OUTPUTS"], settings["D"]
    window = settings["KEYS"] * settings["WY"]
    shared = given.shared(outputs, "table", d * settings["GROUP"])
    programs = window * triton.cdiv(settings["WX"], settings["GROUP"]) * (outputs // shared) * heads
    tiles = triton.cdiv(given.batch, settings["PAIR"]) * triton.cdiv(settings["H"] * settings["W"], _LANES)
    tiles_each = triton.cdiv(tiles, triton.cdiv(_PROGRAMS, programs))
    blocks = triton.cdiv(tiles, tiles_each)  # none of them empty
    columns, entries = d + settings["HAS_BIAS"], window * settings["WX"]
    sums = torch.empty(blocks, heads, outputs, columns, entries, device=given.levels.device)
    table_kernel[(programs * blocks,)](
        *given.tensors, given.levels, sums, given.seed, given.batch, blocks, tiles_each, given.least,
        SHARED=shared, **settings,
    )  # fmt: skip
    return sums


def _backward_keys(given: _Given, grad_key: Tensor, grad_value: Tensor) -> None:
    """Writes gradients of keys and values, planar: each gathers from the queries whose window it is in."""
    heads, keys, d, dv = (given.settings[name] for name in ("HEADS", "KEYS", "D", "DV"))
    shared = given.shared(keys, "keys", 2 * (d + dv))
    keys_kernel[(given.tiles * (keys // shared) * heads,)](
        *given.tensors, given.levels, grad_key, grad_value, given.seed, given.unit, given.batch, given.least,
        GK=grad_key.stride()[:4], GV=grad_value.stride()[:4], SHARED=shared, **given.settings,
    )  # fmt: skip


def _check_types(*tensors: Tensor) -> None:
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1 or not types <= {torch.float32, torch.bfloat16, torch.float16}:
        raise TypeError(
            f"query, key and value must be all float32, all bfloat16 or all float16 on a GPU, got "
            f"{', '.join(str(tensor.dtype) for tensor in tensors)}; float64 is the plain version's"
        )


def _pair(tensor: Tensor) -> int:
    """How many images a thread works on: two in half precision, but one where there is only one."""
    return 1 if tensor.dtype == torch.float32 or len(tensor) == 1 else 2


def _tiles(batch: int, shape: dict[str, Any], pair: int) -> int:
    """Programs that all pixels of one head and one group of outputs take."""
    return triton.cdiv(triton.cdiv(batch, pair) * shape["H"] * shape["W"], _LANES)


def _levels(logsumexp: Tensor, pair: int) -> Tensor:
    """Memory for what the queries' kernel writes for the others."""
    batch, *rest = logsumexp.shape
    kind = torch.float32 if pair == 1 else torch.int32
    return torch.empty(pair + 1, triton.cdiv(batch, pair), *rest, dtype=kind, device=logsumexp.device)


def _planar(tensor: Tensor) -> Tensor:
    """(b, n, g, h, w, d) -> (b, n, d, g, h, w), pixels side by side; a copy only where it must be."""
    planar = tensor.permute(0, 1, 5, 2, 3, 4)
    return planar if planar.stride()[-2:] == (tensor.shape[4], 1) else planar.contiguous()


def _joined(projected: Tensor) -> Tensor:
    """(b, 3, n, d, g, h, w) -> (b, 3 n, d, g, h, w), planar: query, key and value as further heads."""
    joined = projected.flatten(1, 2)
    return joined if joined.stride()[-2:] == (joined.shape[-1], 1) else joined.contiguous()


def _words(planar: Tensor, largest: Tensor | None = None, unit: Tensor | None = None, keep: float = 1.0) -> Tensor:
    """A planar map as kernels read it: itself, or two images in 32 bits, (ceil(b / 2), n, d, g, h, w).

    Given its largest entry, the map is scaled first, and ``unit`` becomes what undoes it, over ``keep``.
    """
    if _pair(planar) == 1:
        return planar
    batch, heads, channels, elements, height, width = planar.shape
    words = torch.empty(triton.cdiv(batch, 2), *planar.shape[1:], dtype=torch.int32, device=planar.device)
    with torch.cuda.device_of(planar):
        pack_kernel[(triton.cdiv(words.numel(), _PACKED),)](
            planar, words, largest, unit, 1 / keep, batch, words.numel(), S=planar.stride()[:4], HEADS=heads,
            CHANNELS=channels, ELEMENTS=elements, PIXELS=height * width, BLOCK=_PACKED,
        )  # fmt: skip
    return words


def _pixels_first(planar: Tensor) -> Tensor:
    """(b, n, d, g, h, w) -> (b, n, g, h, w, d), a view."""
    return planar.permute(0, 1, 3, 4, 5, 2)


def _scaled(gradient: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """A planar gradient as kernels read it, and what everything computed from it is multiplied with in the end.

    The second also holds the factor of the weights which dropout keeps.
    """
    if _pair(gradient) == 1:
        return gradient, torch.full((), 1 / (1 - dropout), device=gradient.device)
    unit = torch.empty((), device=gradient.device)
    return _words(gradient, torch.linalg.vector_norm(gradient, math.inf), unit, 1 - dropout), unit


def _encoding(position: Tensor, heads: int, pair: int) -> Tensor:
    """The table as kernels read it, (heads, outputs, keys, window_y * window_x, columns), columns padded to fours.

    A column is a channel in float32, or two of float16 in 32 bits.
    """
    channels = position.shape[-1]
    make = torch.zeros if channels % pair else torch.empty  # padding is not read, but for half of a last word
    table = make(
        heads, *position.shape[1:5], channels + -channels % (4 * pair),
        dtype=torch.float32 if pair == 1 else torch.float16, device=position.device,
    )  # fmt: skip
    table[..., :channels] = position
    return table.view(torch.int32).flatten(3, 4)


def _bias(position: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """(heads, outputs, entries), times sqrt(d), by which scores are divided; nothing reads it where there is none."""
    if bias is None:
        return position
    return (math.sqrt(position.shape[-1]) * bias.float()).flatten(2).expand(heads, -1, -1).contiguous()


def _seed(seed: Tensor | None, tensor: Tensor) -> Tensor:
    """One number of 32 bits on the device; any address where nothing is dropped."""
    return torch.empty((), dtype=torch.int32, device=tensor.device) if seed is None else seed.to(torch.int32)


def _least(dropout: float, pair: int) -> int:
    """The smallest hash that keeps a weight, as a signed number of the same 32 bits; 14 bits for each of two images."""
    if pair == 2:
        return min(round(dropout * 2**14), 2**14 - 1) * 0x10001
    least = min(round(dropout * 2**32), 2**32 - 1)
    return least - 2**32 if least >= 2**31 else least


def _group(shape: dict[str, Any]) -> int:
    """How many entries of a row of the window are scored at once, at most eight: few wasted, few groups."""
    most = min(8, shape["WX"], max(1, _UNROLLED // (shape["D"] + shape["DV"])))
    return min(range(most, 0, -1), key=lambda size: -(-shape["WX"] // size) * (size + 1))


def _divisor(number: int, limit: int) -> int:
    """The largest divisor that is not above the limits, or 1."""
    return max(size for size in range(1, max(1, min(limit, _ELEMENTS)) + 1) if number % size == 0)


def _shape(planar: Sequence[Tensor], position: Tensor, bias: Tensor | None, dropout: float) -> dict[str, Any]:
    """What all kernels are compiled for."""
    query, key, value = planar
    return {
        "HEADS": query.shape[1], "OUTPUTS": position.shape[1], "KEYS": key.shape[3], "H": key.shape[4],
        "W": key.shape[5], "WY": position.shape[3], "WX": position.shape[4], "D": query.shape[2], "DV": value.shape[2],
        "HAS_BIAS": bias is not None, "DROPS": dropout > 0,
    }  # fmt: skip
