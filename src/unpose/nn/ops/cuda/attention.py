"""Group attention on a GPU: the sums of :mod:`unpose.nn.ops.reference.attention`, in kernels that never keep a score.

Heads are small, ten channels in the published networks, and each pixel has its own neighbours. So a thread is a pixel.
It keeps the queries of a few output elements in registers and walks over the keys of its window; what it reads of a key
serves all of these outputs. Channels lie apart in memory, in the order ``(b, n, d, elements, h, w)``, so that
neighbouring threads read neighbouring pixels; a tensor that lies so already, as a view, is not copied. What takes the
time is arithmetic, ``2 d + dv`` multiplications and additions a score and about three times that in the backward pass,
and reading keys, not memory. Tensor cores do not help: in matrix products every key passes through shared memory for
each query that sees it, which takes longer.

Tensors in bfloat16 or float16 are computed with in float16, which has more digits than bfloat16, for two images at a
time: what a pixel of one image does, the same pixel of the next does too, and one instruction does both. Denominators
and the table's gradient are summed in float32. Gradients are scaled to the range of float16 by their largest entry.

An encoding often has channels that depend on the offset alone and others that depend on the elements alone. Then what a
query has with an entry of the table is computed once for all key elements, and so is the entry's gradient.

The forward pass writes no score. The backward pass computes them twice: for the gradients of the queries, which leaves
sums of the scores' gradients over key elements for a matrix product that gives the table's, and for those of the keys.

Nothing is added up in an order that can change: the backward pass goes over the queries for their gradients, over the
keys for theirs, over the table for its block sums, and adds those in a second, fixed sum. No block size depends on the
machine, and no number that a kernel needs passes through the host: a CUDA graph can hold them.

Written in Triton, which comes with torch builds for CUDA; imported only when a CUDA tensor is attended to.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from unpose.nn.ops.cuda.attention_kernels import forward_kernel, keys_kernel, queries_kernel
from unpose.nn.ops.cuda.packed import pack_kernel
from unpose.nn.ops.cuda.position_tables import Encoding, add_up, empty_sums, gradients

_LANES = 32
"""Pixels of one program, a single warp: none waits for another, and the tail of a launch is short."""

_REGISTERS = {"forward": 80, "queries": 160, "keys": 160}
"""Registers that hold the channels of a thread's elements, at most; how many elements that are says how often what is
read serves."""

_ELEMENTS = 4
"""Elements a thread holds, at most."""

_UNROLLED = 100
"""Channels of keys and values that are read in one go: a row of the window's, or fewer where heads are wide."""

_PACKED = 1024
"""Words that a program packs."""

_ROOM = 2**25, 3
"""For gradients of scores there are so many bytes, or those of so many maps where that is more, and room for one line's
of as many images as fill the GPU in any case."""

_PROGRAMS = 2**10
"""Programs that fill it. Of large windows few images have room for all lines: then some lines of more images."""


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
    words = [_words(tensor) for tensor in planar]
    return _attend(words, len(query), query.dtype, Encoding(position, None, bias), dropout, seed)


def forward_projected(
    projected: Tensor,
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`forward` of query, key and value in one tensor, (b, 3, n, d, elements, h, w).

    Given ``element``, (heads or 1, outputs, keys, e), the table has one entry for all key elements, of d - e channels,
    and the vectors of each pair of elements have the rest: scores begin alike for all key elements, and the gradient of
    the table is that of a sum over them.
    """
    joined = _joined(projected)
    words, kind = _words(joined), projected.dtype
    return _attend(words.chunk(3, 1), len(joined), kind, Encoding(position, element, bias), dropout, seed)


def forward_words(
    words: Tensor,
    batch: int,
    position: Tensor,
    element: Tensor | None,
    dropout: float,
    seed: Tensor | None,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """:func:`forward_projected` of as many images, (ceil(b / 2), 3 n, d, elements, h, w) of words; out is ``kind``."""
    return _attend(words.chunk(3, 1), batch, kind, Encoding(position, element, None), dropout, seed)


def has_words(tensor: Tensor) -> bool:
    """Whether kernels read words instead of a tensor's numbers: in half precision, but not of a single image."""
    return tensor.dtype != torch.float32 and len(tensor) > 1


def _attend(
    words: Sequence[Tensor],
    batch: int,
    kind: torch.dtype,
    encoding: Encoding,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """:func:`forward` of query, key and value as kernels read them, of so many images; the result is of this kind."""
    _, heads, channels, _, height, width = words[2].shape
    shape, pair = _shape(words, encoding, dropout), 2 if words[2].dtype == torch.int32 else 1
    outputs = shape["OUTPUTS"]
    out = torch.empty(batch, heads, channels, outputs, height, width, dtype=kind, device=words[2].device)
    logsumexp = torch.empty(batch, heads, outputs, height, width, device=out.device)
    query, key, value = words[0].expand(-1, -1, -1, outputs, -1, -1), words[1], words[2]
    each = shape["D"] + shape["DV"] + (2 * _group(shape) if shape["SHARES"] > 1 else 0)
    shared = _divisor(outputs, _REGISTERS["forward"] // each)
    grid = (_tiles(batch, shape, pair) * (outputs // shared),)
    with torch.cuda.device_of(value):
        forward_kernel[grid](
            query, key, value, *encoding.tables(heads, pair), out, logsumexp, _seed(seed, value), batch,
            _least(dropout, pair), 1 - dropout, Q=query.stride()[:4], K=key.stride()[:4], V=value.stride()[:4],
            R=out.stride()[:4], **shape, **_launch(shape, pair), SHARED=shared,
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
    Beside the results, memory is the copies :func:`forward` makes, one of the gradient, a few numbers a
    query, ``_ROOM`` for gradients of scores, and one table for each head, image and 1,024 pixels.
    """
    _check_types(query, key, value)
    planar = [_planar(tensor) for tensor in (query, key, value)]
    to_maps = [torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in planar]
    words, encoding = [_words(tensor) for tensor in planar], Encoding(position, None, bias)
    to_position, _, to_bias = _gradients(grad_out, words, to_maps, encoding, out, logsumexp, dropout, seed)
    to_query, to_key, to_value = (_pixels_first(tensor) for tensor in to_maps)
    return to_query, to_key, to_value, to_position, to_bias


def backward_projected(
    grad_out: Tensor,
    projected: Tensor,
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of projected, position, element and bias, as :func:`backward`; the first is written where it belongs.

    ``projected`` may be the words that :func:`forward_words` was given.
    """
    words = projected if projected.dtype == torch.int32 else _words(_joined(projected))
    to_joined = torch.empty(len(out), *words.shape[1:], dtype=out.dtype, device=out.device)
    encoding = Encoding(position, element, bias)
    to_tables = _gradients(grad_out, words.chunk(3, 1), to_joined.chunk(3, 1), encoding, out, logsumexp, dropout, seed)
    return to_joined.unflatten(1, (3, -1)), *to_tables


def _gradients(
    grad_out: Tensor,
    words: Sequence[Tensor],
    to_maps: Sequence[Tensor],
    encoding: Encoding,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of position, element and bias; those of the maps, given as kernels read them, go to ``to_maps``.

    The kernel of the queries computes the gradients of the scores; what the table needs of them it writes, for a few
    images at a time, and a matrix product reads. The kernel of the keys computes them again.
    """
    grad_out, out = _planar(grad_out), _planar(out)
    shape, pair, batch = _shape(words, encoding, dropout), 2 if has_words(out) else 1, len(out)
    heads, outputs = shape["HEADS"], shape["OUTPUTS"]
    query, key, value = words[0].expand(-1, -1, -1, outputs, -1, -1), words[1], words[2]
    grad_out, unit = _scaled(grad_out, dropout)
    tables, seed = encoding.tables(heads, pair), _seed(seed, value)
    kind = torch.float32 if pair == 1 else torch.int32
    planes = pair + 1 + shape["DROPS"]
    levels = torch.empty(planes, triton.cdiv(batch, pair), *logsumexp.shape[1:], dtype=kind, device=out.device)
    to_query, to_key, to_value = to_maps
    is_shared = to_query.shape[3] < outputs
    to_queries = to_query if not is_shared else to_query.new_empty(*out.shape[:2], shape["D"], *out.shape[3:])
    strides = {
        "Q": query.stride()[:4], "K": key.stride()[:4], "V": value.stride()[:4], "G": grad_out.stride()[:4],
    }  # fmt: skip
    with torch.cuda.device_of(value):
        given = (query, key, value, *tables, grad_out)
        sums = _over_queries(given, out, logsumexp, levels, to_queries, seed, unit, dropout, shape, pair, strides)
        shared = _divisor(shape["KEYS"], _REGISTERS["keys"] // (2 * (shape["D"] + shape["DV"])))
        keys_kernel[(_tiles(batch, shape, pair) * (shape["KEYS"] // shared),)](
            *given, levels, to_key, to_value, unit, batch, _least(dropout, pair),
            GK=to_key.stride()[:4], GV=to_value.stride()[:4], **strides, **shape, **_launch(shape, pair), SHARED=shared,
        )  # fmt: skip
        to_tables = gradients(sums, encoding, unit, shape, _group(shape), *_lines(shape))
    if is_shared:
        torch.sum(to_queries, 3, keepdim=True, out=to_query)
    return to_tables


def _over_queries(
    given: Sequence[Tensor],
    out: Tensor,
    logsumexp: Tensor,
    levels: Tensor,
    to_query: Tensor,
    seed: Tensor,
    unit: Tensor,
    dropout: float,
    shape: dict[str, Any],
    pair: int,
    strides: dict[str, Any],
) -> Tensor:
    """Writes the gradient of the queries and their levels; block sums for the table, (blocks, heads, outputs, slots,
    d and one for the bias), where slots are the sums of all lines."""
    heads, outputs, pixels, launch = shape["HEADS"], shape["OUTPUTS"], shape["H"] * shape["W"], _launch(shape, pair)
    lines, sums_each = _lines(shape)
    columns = triton.cdiv(len(out), pair)
    line_bytes = 4 * heads * outputs * sums_each * pixels
    shared = _divisor(outputs, _REGISTERS["queries"] // (2 * shape["D"] + shape["DV"] + 2 * launch["GROUP"]))
    # As many images as there is room for or as fill the GPU, all times about equally many, and as many lines.
    room = max(_ROOM[0], _ROOM[1] * 4 * given[0].numel())
    filling = triton.cdiv(_PROGRAMS * _LANES, heads * (outputs // shared) * pixels)
    images = triton.cdiv(columns, triton.cdiv(columns, max(filling, room // (lines * line_bytes))))
    lines_each = max(1, min(lines, room // (images * line_bytes)))
    slots = lines_each * sums_each
    slopes = torch.empty(images, heads, slots, outputs, pixels, dtype=levels.dtype, device=out.device)
    programs = triton.cdiv(images * pixels, _LANES) * heads
    carry = levels.new_empty(programs * _LANES * outputs * shape["D"] if lines_each < lines else 0)
    sums = empty_sums(columns, lines * sums_each, shape, out.device)
    for begun in range(0, columns, images):
        own = min(images, columns - begun)
        for begin in range(0, lines, lines_each):
            end = min(begin + lines_each, lines)
            queries_kernel[(triton.cdiv(own * pixels, _LANES) * heads * (outputs // shared),)](
                *given, out, logsumexp, levels, slopes, carry, to_query, seed, unit, len(out), begun, own, begin, end,
                _least(dropout, pair), 1 - dropout, R=out.stride()[:4], GQ=to_query.stride()[:4], SLOTS=slots,
                **strides, **shape, **launch, SHARED=shared,
            )  # fmt: skip
            add_up(given[0], slopes, sums, (begun, own), (begin * sums_each, end * sums_each), shape, pair)
    return sums


def _lines(shape: dict[str, Any]) -> tuple[int, int]:
    """Groups of entries in a table, and the sums of gradients of scores that each has; see the queries' kernel."""
    group = _group(shape)
    lines = shape["KEYS"] // shape["SHARES"] * shape["WY"] * triton.cdiv(shape["WX"], group)
    return lines, group + (shape["SHARES"] if shape["SPACE"] < shape["D"] else 0)


def _check_types(*tensors: Tensor) -> None:
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1 or not types <= {torch.float32, torch.bfloat16, torch.float16}:
        raise TypeError(
            f"query, key and value must be all float32, all bfloat16 or all float16 on a GPU, got "
            f"{', '.join(str(tensor.dtype) for tensor in tensors)}; float64 is the plain version's"
        )


def _tiles(batch: int, shape: dict[str, Any], pair: int) -> int:
    """Programs that all pixels of all heads take, for one group of elements."""
    return triton.cdiv(triton.cdiv(batch, pair) * shape["H"] * shape["W"], _LANES) * shape["HEADS"]


def _launch(shape: dict[str, Any], pair: int) -> dict[str, Any]:
    """What the kernels whose lanes are pixels are compiled for besides shapes."""
    return {"LANES": _LANES, "PAIR": pair, "GROUP": _group(shape), "num_warps": 1, "num_stages": 1}


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
    if not has_words(planar):
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
    if not has_words(gradient):
        return gradient, torch.full((), 1 / (1 - dropout), device=gradient.device)
    unit = torch.empty((), device=gradient.device)
    return _words(gradient, torch.linalg.vector_norm(gradient, math.inf), unit, 1 - dropout), unit


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


def _shape(maps: Sequence[Tensor], encoding: Encoding, dropout: float) -> dict[str, Any]:
    """What all kernels are compiled for."""
    query, key, value = maps
    position = encoding.position
    return {
        "HEADS": query.shape[1], "OUTPUTS": position.shape[1], "KEYS": key.shape[3], "H": key.shape[4],
        "W": key.shape[5], "WY": position.shape[3], "WX": position.shape[4], "D": query.shape[2], "DV": value.shape[2],
        "SPACE": position.shape[5], "SHARES": key.shape[3] // position.shape[2],
        "HAS_BIAS": encoding.bias is not None, "DROPS": dropout > 0,
    }  # fmt: skip
