"""Group attention on CUDA: :mod:`unpose.nn.ops.reference.attention` in Triton kernels that never store a score.

**One thread is one pixel.** Heads are small (ten channels in the published networks) and every pixel has its own
neighbours, so matrix products do not pay: on tensor cores every key would pass through shared memory once for each
query that sees it. A thread keeps the queries of a few output elements in registers and loops over the keys of its
window; one load of a key serves all of these outputs. Maps are planar, ``(b, n, d, elements, h, w)``, so that
neighbouring threads read neighbouring addresses; a view with this layout is not copied. The time goes into arithmetic
(``2 d + dv`` fused multiply-adds for each score, about three times that in the backward pass) and into loading keys,
not into memory bandwidth.

**Half precision.** bfloat16 and float16 tensors are computed in float16, which has more digits than bfloat16, and for
two images at a time: the same pixel of both is packed into one 32-bit register, and one instruction computes both
(:mod:`unpose.nn.ops.cuda.packed`). Denominators and the gradient of the table are summed in float32. Gradients are
scaled to the range of float16 by their largest magnitude.

**Table in two parts.** If some channels of an encoding depend on the offset alone and the others on the elements alone,
the product of the query and a table entry is computed once for all key elements, and so is the entry's gradient.

**Backward pass.** The scores are computed twice. The first kernel computes the gradients of the queries and stores the
gradients of the scores, summed over key elements, from which a matrix product gives the gradient of the table
(:mod:`unpose.nn.ops.cuda.position_tables`). The second computes the gradients of keys and values.

**Determinism.** No sum is atomic. Every program owns what it writes, and sums over programs are taken by a second
kernel in an order that depends on the shape alone. No block size depends on the GPU, and nothing is read back to the
host, so that a CUDA graph can record the kernels.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from unpose.nn.ops.cuda.attention_kernels import forward_kernel, key_value_gradient_kernel, query_gradient_kernel
from unpose.nn.ops.cuda.packed import pack_kernel
from unpose.nn.ops.cuda.position_tables import Encoding, add_block_sums, empty_block_sums, table_gradients

_BLOCK_PIXELS = 32
"""Pixels of a program, which is one warp: no warp waits for another, and few are idle at the end of a launch."""

_REGISTERS = {"forward": 80, "queries": 160, "keys": 160}
"""Most registers for the channels of a thread's elements. The more elements a thread has, the more each load serves."""

_MAX_ELEMENTS = 4
"""Most elements of a thread."""

_UNROLLED = 100
"""Most channels of keys and values in one segment, whose loads are unrolled: a window row, or less for wide heads."""

_PACK_BLOCK = 1024
"""Pairs that a program packs."""

_SCRATCH = 2**25, 3
"""Memory for gradients of scores: bytes, or the size of this many maps if that is more. In any case one segment of as
many images as fill the GPU fits."""

_PROGRAMS = 2**10
"""Programs that fill the GPU. Where memory holds all segments of too few images, some segments of more are computed."""


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention and the natural logarithm of the denominator of every softmax.

    Parameters are those of :func:`unpose.nn.group_attention` with a table of six axes, shapes already checked, in
    float32, bfloat16 or float16. ``seed`` is an integer on the device of the tensors. A hash of the seed and of the
    index of a weight decides whether it is dropped, the same in :func:`backward`.

    Returns
    -------
    out : (batch, heads, outputs, height, width, dv), a view of memory in the order (batch, heads, dv, outputs, h, w)
    logsumexp : (batch, heads, outputs, height, width), float32

    Notes
    -----
    Memory: the results, and copies of query, key and value that are not planar or have to be packed.
    """
    planar = [_planar(tensor) for tensor in (query, key, value)]
    packed = [_packed(tensor) for tensor in planar]
    return _run_forward(packed, len(query), query.dtype, Encoding(position, None, bias), dropout, seed)


def forward_projected(
    projected: Tensor,
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`forward` of a query, key and value in one tensor, (b, 3, n, d, elements, h, w).

    With ``element``, (heads or 1, outputs, keys, e), the table has d - e channels and one entry for all key elements,
    and the vectors of the pairs of elements have the other channels.
    """
    joined = _joined(projected)
    packed, dtype = _packed(joined), projected.dtype
    return _run_forward(packed.chunk(3, 1), len(joined), dtype, Encoding(position, element, bias), dropout, seed)


def is_packed(tensor: Tensor) -> bool:
    """Return whether the kernels read this tensor as packed pairs: if it has half precision and two images or more."""
    return tensor.dtype != torch.float32 and len(tensor) > 1


def _run_forward(
    packed: Sequence[Tensor], batch: int, dtype: torch.dtype, encoding: Encoding, dropout: float, seed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute :func:`forward` of ``batch`` images, planar or packed; ``dtype`` is that of the result."""
    _, heads, channels, _, height, width = packed[2].shape
    shape, pack = _kernel_shape(packed, encoding, dropout), 2 if packed[2].dtype == torch.int32 else 1
    outputs = shape["OUTPUTS"]
    out = torch.empty(batch, heads, channels, outputs, height, width, dtype=dtype, device=packed[2].device)
    logsumexp = torch.empty(batch, heads, outputs, height, width, device=out.device)
    query, key, value = packed[0].expand(-1, -1, -1, outputs, -1, -1), packed[1], packed[2]
    each = shape["D"] + shape["DV"] + (2 * _segment_size(shape) if shape["KEYS_PER_ENTRY"] > 1 else 0)
    elements = _largest_divisor(outputs, _REGISTERS["forward"] // each)
    grid = (_n_programs(batch, shape, pack) * (outputs // elements),)
    with torch.cuda.device_of(value):
        forward_kernel[grid](
            query, key, value, *encoding.tables(heads, pack), out, logsumexp, _seed_tensor(seed, value), batch,
            _dropout_threshold(dropout, pack), 1 - dropout, Q=query.stride()[:4], K=key.stride()[:4],
            V=value.stride()[:4], R=out.stride()[:4], **shape, **_launch_options(shape, pack), ELEMENTS=elements,
        )  # fmt: skip
    return _channels_last(out), logsumexp


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
    """Compute the gradients of query, key, value, position and bias from that of ``out``.

    ``out`` and ``logsumexp`` are the results of :func:`forward`; the weights are computed again from the scores and
    ``logsumexp``. The same input gives the same bytes on the same machine.

    Notes
    -----
    Memory, besides the results: the copies that :func:`forward` makes, one of the gradient, a few numbers for each
    query, ``_SCRATCH`` for gradients of scores, and one table for each head, image and 1,024 pixels.
    """
    planar = [_planar(tensor) for tensor in (query, key, value)]
    grad_maps = [torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in planar]
    packed, encoding = [_packed(tensor) for tensor in planar], Encoding(position, None, bias)
    grad_position, _, grad_bias = _run_backward(grad_out, packed, grad_maps, encoding, out, logsumexp, dropout, seed)
    grad_query, grad_key, grad_value = (_channels_last(tensor) for tensor in grad_maps)
    return grad_query, grad_key, grad_value, grad_position, grad_bias


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
    """Compute the gradients of projected, position, element and bias, as :func:`backward` does."""
    packed = _packed(_joined(projected))
    grad_joined = torch.empty(len(out), *packed.shape[1:], dtype=out.dtype, device=out.device)
    encoding = Encoding(position, element, bias)
    grad_tables = _run_backward(
        grad_out, packed.chunk(3, 1), grad_joined.chunk(3, 1), encoding, out, logsumexp, dropout, seed
    )
    return grad_joined.unflatten(1, (3, -1)), *grad_tables


def _run_backward(
    grad_out: Tensor,
    packed: Sequence[Tensor],
    grad_maps: Sequence[Tensor],
    encoding: Encoding,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of position, element and bias, and write those of the maps to ``grad_maps``."""
    grad_out, out = _planar(grad_out), _planar(out)
    shape, pack, batch = _kernel_shape(packed, encoding, dropout), 2 if is_packed(out) else 1, len(out)
    heads, outputs = shape["HEADS"], shape["OUTPUTS"]
    query, key, value = packed[0].expand(-1, -1, -1, outputs, -1, -1), packed[1], packed[2]
    grad_out, gradient_scale = _scale_gradient(grad_out, dropout)
    tables, seed = encoding.tables(heads, pack), _seed_tensor(seed, value)
    dtype = torch.float32 if pack == 1 else torch.int32
    statistics_shape = pack + 1 + shape["HAS_DROPOUT"], triton.cdiv(batch, pack), *logsumexp.shape[1:]
    statistics = torch.empty(statistics_shape, dtype=dtype, device=out.device)
    grad_query, grad_key, grad_value = grad_maps
    is_shared = grad_query.shape[3] < outputs
    grad_queries = grad_query if not is_shared else grad_query.new_empty(*out.shape[:2], shape["D"], *out.shape[3:])
    strides = {
        "Q": query.stride()[:4], "K": key.stride()[:4], "V": value.stride()[:4], "G": grad_out.stride()[:4],
    }  # fmt: skip
    with torch.cuda.device_of(value):
        given = (query, key, value, *tables, grad_out)
        block_sums = _query_gradients(
            given, out, logsumexp, statistics, grad_queries, seed, gradient_scale, dropout, shape, pack, strides
        )
        elements = _largest_divisor(shape["KEYS"], _REGISTERS["keys"] // (2 * (shape["D"] + shape["DV"])))
        key_value_gradient_kernel[(_n_programs(batch, shape, pack) * (shape["KEYS"] // elements),)](
            *given, statistics, grad_key, grad_value, gradient_scale, batch, _dropout_threshold(dropout, pack),
            GK=grad_key.stride()[:4], GV=grad_value.stride()[:4], **strides, **shape, **_launch_options(shape, pack),
            ELEMENTS=elements,
        )  # fmt: skip
        grad_tables = table_gradients(
            block_sums, encoding, gradient_scale, shape, _segment_size(shape), *_segments(shape)
        )
    if is_shared:
        torch.sum(grad_queries, 3, keepdim=True, out=grad_query)
    return grad_tables


def _query_gradients(
    given: Sequence[Tensor],
    out: Tensor,
    logsumexp: Tensor,
    statistics: Tensor,
    grad_query: Tensor,
    seed: Tensor,
    gradient_scale: Tensor,
    dropout: float,
    shape: dict[str, Any],
    pack: int,
    strides: dict[str, Any],
) -> Tensor:
    """Write the gradients and the statistics of the queries; return block sums for the gradient of the table.

    The block sums are (blocks, heads, outputs, slots of all segments, d + 1 if there is a bias).
    """
    heads, outputs, pixels = shape["HEADS"], shape["OUTPUTS"], shape["H"] * shape["W"]
    launch = _launch_options(shape, pack)
    n_segments, slots_per_segment = _segments(shape)
    packed_images = triton.cdiv(len(out), pack)
    segment_bytes = 4 * heads * outputs * slots_per_segment * pixels
    registers_each = 2 * shape["D"] + shape["DV"] + 2 * launch["SEGMENT_SIZE"]
    elements = _largest_divisor(outputs, _REGISTERS["queries"] // registers_each)
    # As many images as fit in memory or as fill the GPU, about equally many in each launch, and as many segments as
    # fit.
    scratch_bytes = max(_SCRATCH[0], _SCRATCH[1] * 4 * given[0].numel())
    images_to_fill = triton.cdiv(_PROGRAMS * _BLOCK_PIXELS, heads * (outputs // elements) * pixels)
    most_images = max(images_to_fill, scratch_bytes // (n_segments * segment_bytes))
    images = triton.cdiv(packed_images, triton.cdiv(packed_images, most_images))
    segments_each = max(1, min(n_segments, scratch_bytes // (images * segment_bytes)))
    slots = segments_each * slots_per_segment
    score_gradients = torch.empty(images, heads, slots, outputs, pixels, dtype=statistics.dtype, device=out.device)
    programs = triton.cdiv(images * pixels, _BLOCK_PIXELS) * heads
    n_partial_sums = programs * _BLOCK_PIXELS * outputs * shape["D"] if segments_each < n_segments else 0
    partial_sums = statistics.new_empty(n_partial_sums)
    block_sums = empty_block_sums(packed_images, n_segments * slots_per_segment, shape, out.device)
    for first_image in range(0, packed_images, images):
        count = min(images, packed_images - first_image)
        for begin in range(0, n_segments, segments_each):
            end = min(begin + segments_each, n_segments)
            query_gradient_kernel[(triton.cdiv(count * pixels, _BLOCK_PIXELS) * heads * (outputs // elements),)](
                *given, out, logsumexp, statistics, score_gradients, partial_sums, grad_query, seed, gradient_scale,
                len(out), first_image, count, begin, end, _dropout_threshold(dropout, pack), 1 - dropout,
                R=out.stride()[:4], GQ=grad_query.stride()[:4], SLOTS=slots, **strides, **shape, **launch,
                ELEMENTS=elements,
            )  # fmt: skip
            slot_range = begin * slots_per_segment, end * slots_per_segment
            add_block_sums(given[0], score_gradients, block_sums, (first_image, count), slot_range, shape, pack)
    return block_sums


def _segments(shape: dict[str, Any]) -> tuple[int, int]:
    """Return the number of segments of a table and of slots for gradients in each; see the kernel of the queries."""
    size = _segment_size(shape)
    n_segments = shape["KEYS"] // shape["KEYS_PER_ENTRY"] * shape["WY"] * triton.cdiv(shape["WX"], size)
    return n_segments, size + (shape["KEYS_PER_ENTRY"] if shape["POSITION_CHANNELS"] < shape["D"] else 0)


def _n_programs(batch: int, shape: dict[str, Any], pack: int) -> int:
    """Return the number of programs for all pixels of all heads, for the elements of one program."""
    return triton.cdiv(triton.cdiv(batch, pack) * shape["H"] * shape["W"], _BLOCK_PIXELS) * shape["HEADS"]


def _launch_options(shape: dict[str, Any], pack: int) -> dict[str, Any]:
    """Return the compile-time options, besides shapes, of the kernels whose threads are pixels."""
    return {
        "BLOCK_PIXELS": _BLOCK_PIXELS,
        "PACK": pack,
        "SEGMENT_SIZE": _segment_size(shape),
        "num_warps": 1,
        "num_stages": 1,
    }


def _planar(tensor: Tensor) -> Tensor:
    """(b, n, g, h, w, d) -> (b, n, d, g, h, w) with adjacent pixels; copied only if necessary."""
    planar = tensor.permute(0, 1, 5, 2, 3, 4)
    return planar if planar.stride()[-2:] == (tensor.shape[4], 1) else planar.contiguous()


def _joined(projected: Tensor) -> Tensor:
    """(b, 3, n, d, g, h, w) -> (b, 3 n, d, g, h, w), planar: query, key and value as further heads."""
    joined = projected.flatten(1, 2)
    return joined if joined.stride()[-2:] == (joined.shape[-1], 1) else joined.contiguous()


def _packed(
    planar: Tensor, largest: Tensor | None = None, gradient_scale: Tensor | None = None, keep_probability: float = 1.0
) -> Tensor:
    """Pack a planar map into pairs of images, (ceil(b / 2), n, d, g, h, w); float32 and single images stay as they are.

    If the largest magnitude of the map is given, it is scaled first, and ``gradient_scale`` is set to what undoes the
    scaling, divided by ``keep_probability``.
    """
    if not is_packed(planar):
        return planar
    batch, heads, channels, elements, height, width = planar.shape
    packed = torch.empty(triton.cdiv(batch, 2), *planar.shape[1:], dtype=torch.int32, device=planar.device)
    with torch.cuda.device_of(planar):
        pack_kernel[(triton.cdiv(packed.numel(), _PACK_BLOCK),)](
            planar, packed, largest, gradient_scale, 1 / keep_probability, batch, packed.numel(),
            S=planar.stride()[:4], HEADS=heads, CHANNELS=channels, ELEMENTS=elements, PIXELS=height * width,
            BLOCK=_PACK_BLOCK,
        )  # fmt: skip
    return packed


def _channels_last(planar: Tensor) -> Tensor:
    """(b, n, d, g, h, w) -> (b, n, g, h, w, d), a view."""
    return planar.permute(0, 1, 3, 4, 5, 2)


def _scale_gradient(gradient: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """Scale and pack a planar gradient; also return what everything computed from it is multiplied by at the end.

    The factor includes that of the weights which dropout keeps.
    """
    if not is_packed(gradient):
        return gradient, torch.full((), 1 / (1 - dropout), device=gradient.device)
    gradient_scale = torch.empty((), device=gradient.device)
    return _packed(gradient, torch.linalg.vector_norm(gradient, math.inf), gradient_scale, 1 - dropout), gradient_scale


def _seed_tensor(seed: Tensor | None, tensor: Tensor) -> Tensor:
    """Return the seed as int32; without dropout, an address that is never read."""
    return torch.empty((), dtype=torch.int32, device=tensor.device) if seed is None else seed.to(torch.int32)


def _dropout_threshold(dropout: float, pack: int) -> int:
    """Return the smallest hash that keeps a weight, as a signed 32-bit number; 14 bits for each packed image."""
    if pack == 2:
        return min(round(dropout * 2**14), 2**14 - 1) * 0x10001
    threshold = min(round(dropout * 2**32), 2**32 - 1)
    return threshold - 2**32 if threshold >= 2**31 else threshold


def _segment_size(shape: dict[str, Any]) -> int:
    """Return how many entries of a window row are scored together, at most 8: few segments, few wasted entries."""
    limit = min(8, shape["WX"], max(1, _UNROLLED // (shape["D"] + shape["DV"])))
    return min(range(limit, 0, -1), key=lambda size: -(-shape["WX"] // size) * (size + 1))


def _largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of a number that is at most the limit and ``_MAX_ELEMENTS``, or 1."""
    return max(size for size in range(1, max(1, min(limit, _MAX_ELEMENTS)) + 1) if number % size == 0)


def _kernel_shape(maps: Sequence[Tensor], encoding: Encoding, dropout: float) -> dict[str, Any]:
    """Return the sizes for which all kernels are compiled."""
    query, key, value = maps
    position = encoding.position
    return {
        "HEADS": query.shape[1], "OUTPUTS": position.shape[1], "KEYS": key.shape[3], "H": key.shape[4],
        "W": key.shape[5], "WY": position.shape[3], "WX": position.shape[4], "D": query.shape[2], "DV": value.shape[2],
        "POSITION_CHANNELS": position.shape[5], "KEYS_PER_ENTRY": key.shape[3] // position.shape[2],
        "HAS_BIAS": encoding.bias is not None, "HAS_DROPOUT": dropout > 0,
    }  # fmt: skip
