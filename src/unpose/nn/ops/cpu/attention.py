"""Group attention on the CPU: compiled forward and backward passes that never write all scores to memory.

Computes the same sums as :mod:`unpose.nn.ops.reference.attention`. This module prepares the arrays, divides the work
and reduces partial sums; the other files of this folder hold the kernels, from the outside in:

=================== ====================================================================================================
``passes.py``       the forward and backward loops over row blocks, query blocks and chunks of neighbours
``layout.py``       padded maps: the memory layout, block sizes, copies into and out of it
``microkernels.py`` inner loops for one query block and one chunk: scores, exponentials, weighted sums, gradients
``rows.py``         vector copies of image rows
``simd.py``         SIMD vectors of pixels as LLVM instructions, block size constants
=================== ====================================================================================================

**Threads and determinism.** The forward pass divides (image, head, row block) among threads; each result is computed by
one thread. In the backward pass a row block adds to the gradients of keys and values in the rows around it, which also
belong to the windows of adjacent row blocks; row blocks are therefore processed in phases in which no two windows
overlap. Gradients of the tables are summed in a fixed number of parts, and the parts are added in a fixed order. The
work is divided by shapes alone: no byte of a result depends on the number of threads.
"""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from unpose.compiled import in_threads
from unpose.nn.ops.cpu.layout import HUGE, Layout, flat_view, make_layout
from unpose.nn.ops.cpu.microkernels import QUERY_BLOCK
from unpose.nn.ops.cpu.passes import LOG2_E, backward_row_blocks, forward_row_blocks
from unpose.nn.ops.cpu.simd import OUTPUT_BLOCK, SIMD_LANES
from unpose.nn.ops.reference.attention import split_projected

_PARTS = 8  # partial sums of the table gradients of each head


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Group attention as in :func:`unpose.nn.ops.reference.attention.attend`, and the logsumexp of each query's scores.

    Shapes as there; bfloat16 and half precision are computed in float32. With dropout, a hash of the seed and of a
    weight's index in (batch, heads, outputs, height, width, keys, window_y, window_x) decides whether the weight is
    dropped, here and in :func:`backward`.

    Returns
    -------
    out : Tensor (batch, heads, outputs, height, width, value channels)
        In the dtype of the query; the pixels of a channel are contiguous in memory.
    logsumexp : Tensor (batch, heads, outputs, height, width)
        Natural logarithm of the sum of the exponentials of each query's scores, in float32 or float64.
    """
    return _attend((query, key, value), position, None, bias, dropout, seed)


def forward_projected(
    projected: Tensor,
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`forward` with query, key and value in one tensor (b, 3, n, d, elements, h, w).

    With an element table (heads or 1, outputs, keys, e), the position table has one key axis entry for all keys and
    d - e channels; the last e channels of a query go with the element table.
    """
    return _attend(split_projected(projected), position, element, bias, dropout, seed)


def _attend(
    maps: tuple[Tensor, Tensor, Tensor],
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    layout = make_layout(*maps, position)
    query = maps[0]
    dtype = _compute_dtype(query)
    tables = _pack_tables(layout, position, element, bias, dtype)
    batch, heads, outputs, _, _, height, width, _, value_channels = layout.shape
    out = torch.empty(batch, heads, value_channels, outputs, height, width, dtype=dtype)
    row_max, row_sum = torch.empty(2, batch, heads, 1, outputs, height, width, dtype=dtype).unbind(0)
    inputs = tuple(flat_view(tensor.to(dtype)) for tensor in maps)
    neighbours, dropout_parameters = _neighbours(layout), _dropout_parameters(dropout, seed, dtype)
    results = out.numpy(), row_max.numpy(), row_sum.numpy()

    def run(start: int, stop: int) -> None:
        forward_row_blocks(inputs, tables, layout, neighbours, dropout_parameters, start, stop, results)

    in_threads(run, batch * heads * layout.n_row_blocks)
    # The kernels work in base 2, the saved statistic is a natural logarithm.
    logsumexp = (row_max + row_sum.log2_()).mul_(1 / LOG2_E)[:, :, 0]
    return _channels_last(out).to(query.dtype), logsumexp


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
    """Gradients of query, key, value, position and bias (None without one), from the results of :func:`forward`."""
    inputs = query, key, value
    grads = [_zeros_channels_first(tensor) for tensor in inputs]
    grad_position, _, grad_bias = _backward(
        grads, grad_out, inputs, position, None, bias, out, logsumexp, dropout, seed
    )
    grad_query, grad_key, grad_value = (_channels_last(grad).to(query.dtype) for grad in grads)
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
    """Gradients of projected, position, element and bias, from the results of :func:`forward_projected`."""
    inputs = split_projected(projected)
    grad = torch.zeros(projected.shape, dtype=_compute_dtype(projected))
    grad_tables = _backward([grad] * 3, grad_out, inputs, position, element, bias, out, logsumexp, dropout, seed)
    return grad.to(projected.dtype), *grad_tables


def _backward(
    grads: list[Tensor],
    grad_out: Tensor,
    maps: tuple[Tensor, Tensor, Tensor],
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of position, element and bias; those of query, key and value are added to ``grads``.

    ``grads`` are zeros, (b, n, d, elements, h, w) each, or three times the same tensor (b, 3, n, d, elements, h, w).
    """
    layout = make_layout(*maps, position)
    dtype = _compute_dtype(maps[0])
    inputs = tuple(flat_view(tensor.to(dtype)) for tensor in (*maps, grad_out, out, logsumexp))
    tables = _pack_tables(layout, position, element, bias, dtype)
    neighbours, dropout_parameters = _neighbours(layout), _dropout_parameters(dropout, seed, dtype)
    batch, heads, outputs = layout.shape[:3]
    parts = min(_PARTS, batch * layout.n_row_blocks)
    table_channels = position.shape[-1] + (bias is not None), tables[1].shape[3] - 1
    partial = [
        np.zeros((heads, parts, outputs, table.shape[2], channels), table.dtype)
        for table, channels in zip(tables, table_channels, strict=True)
    ]
    is_projected = int(grads[0].ndim == 7)
    results = (*(grad.flatten(0, -6).numpy() for grad in grads), *partial)
    # Row blocks that are this far apart do not add to the same rows.
    n_phases = min(layout.n_row_blocks, 1 + math.ceil(2 * layout.radius[0] / layout.block_rows))
    for phase in range(n_phases):

        def run(start: int, stop: int, phase: int = phase) -> None:
            backward_row_blocks(
                inputs, tables, layout, neighbours, dropout_parameters, is_projected, phase, n_phases, start, stop,
                results,
            )  # fmt: skip

        in_threads(run, heads * parts)
    keys, window_y, window_x = position.shape[2:5]
    by_position, by_element = (_sum_parts(table) for table in partial)  # (heads, outputs, entries, channels)
    by_position = by_position[:, :, : window_y * window_x * keys]
    by_position = by_position.unflatten(2, (window_y, window_x, keys)).movedim(4, 2)
    grad_position = _sum_heads(by_position[..., : position.shape[-1]], len(position)).to(position.dtype)
    grad_bias = None if bias is None else _sum_heads(by_position[..., -1], len(bias)).to(bias.dtype)
    grad_element = None if element is None else _sum_heads(by_element, len(element)).to(element.dtype)
    return grad_position, grad_element, grad_bias


def peak_bytes(query: Tensor, key: Tensor, value: Tensor, position: Tensor, threads: int) -> int:
    """Bytes alive at the end of :func:`backward`: inputs, results, gradients, table sums and thread workspaces."""
    layout, number_bytes = make_layout(query, key, value, position), 8 if query.dtype == torch.float64 else 4
    batch, heads, outputs, queries, keys, _, _, channels, value_channels = layout.shape
    n_queries = batch * heads * outputs * query.shape[3] * query.shape[4]
    maps = query.numel() + key.numel() + value.numel() + n_queries * value_channels
    # Inputs, output and the gradients of all; copies in the compute dtype where that is wider; logsumexp.
    tensors = 2 * maps * query.element_size() + n_queries * number_bytes
    if query.element_size() < number_bytes:
        tensors += 2 * maps * number_bytes
    parts = min(_PARTS, batch * layout.n_row_blocks)
    entries = -(-math.prod(position.shape[2:5]) // layout.unit) * layout.unit
    per_output = entries * (channels + 1)
    table, packed_table = outputs * per_output, -(-outputs // OUTPUT_BLOCK) * OUTPUT_BLOCK * per_output
    tables = 3 * position.numel() + 2 * len(position) * packed_table + heads * (parts + 1) * table
    workers = min(threads, max(heads * parts, batch * heads * layout.n_row_blocks))
    padded_maps = (queries + 2 * keys) * (channels + 1) + (2 * keys + outputs) * value_channels + 2 * outputs + 1
    workspace = padded_maps * layout.map_size + table * SIMD_LANES
    return tensors + number_bytes * (tables + workers * workspace)


def _zeros_channels_first(tensor: Tensor) -> Tensor:
    """Zeros (b, n, d, g, h, w) for the gradient of a tensor (b, n, g, h, w, d)."""
    batch, heads, elements, height, width, channels = tensor.shape
    return torch.zeros(batch, heads, channels, elements, height, width, dtype=_compute_dtype(tensor))


def _channels_last(tensor: Tensor) -> Tensor:
    """(b, n, d, g, h, w) -> (b, n, g, h, w, d), a view."""
    return tensor.permute(0, 1, 3, 4, 5, 2)


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _dropout_parameters(dropout: float, seed: Tensor | None, dtype: torch.dtype) -> tuple[int, int, np.ndarray]:
    """Seed, threshold of the 16-bit hash (0 without dropout) and the factor (1,) of the weights that are kept."""
    threshold = min(math.ceil(dropout * 2**16), 2**16 - 1)
    factor = np.array([1 / (1 - threshold / 2**16)], np.float64 if dtype == torch.float64 else np.float32)
    return 0 if seed is None else int(seed), threshold, factor


def _pack_tables(
    layout: Layout, position: Tensor, element: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Position and element table as (heads or 1, output blocks, entries, channels + 1, OUTPUT_BLOCK) arrays.

    The last channel holds the bias, times log2(e). Entries of the position table are ordered by window row, window
    column and key: the neighbours inside the image are then consecutive, and so are those that share an entry of the
    element table or of the position table. Entries that fill the last unit have a bias of -HUGE. Without an element
    table the second array has no channels, and a bias of zero.
    """
    shape = (max(len(position), 1 if bias is None else len(bias)), *position.shape[1:5])
    biases = torch.zeros(shape, dtype=dtype) if bias is None else LOG2_E * bias.detach().to(dtype).expand(shape)
    full = torch.cat([position.detach().to(dtype).expand(*shape, -1), biases[..., None]], -1)
    entries = full.permute(0, 1, 3, 4, 2, 5).flatten(2, 4)  # (heads, outputs, entries, channels + 1)
    n_padding = -entries.shape[2] % (layout.unit // layout.keys_per_position)
    padding = torch.zeros(*entries.shape[:2], n_padding, entries.shape[3], dtype=dtype)
    padding[..., -1] = -HUGE
    if element is None:
        elements = torch.zeros(1, shape[1], layout.shape[4], 1, dtype=dtype)
    else:
        elements = torch.nn.functional.pad(element.detach().to(dtype), (0, 1))
    return _in_output_blocks(torch.cat([entries, padding], 2)), _in_output_blocks(elements)


def _in_output_blocks(table: Tensor) -> np.ndarray:
    """(heads, outputs, entries, channels) -> (heads, output blocks, entries, channels, OUTPUT_BLOCK)"""
    padded = torch.nn.functional.pad(table, (0, 0, 0, 0, 0, -table.shape[1] % OUTPUT_BLOCK))
    return padded.unflatten(1, (-1, OUTPUT_BLOCK)).permute(0, 1, 3, 4, 2).contiguous().numpy()


@lru_cache(maxsize=64)
def _neighbours(layout: Layout) -> tuple[np.ndarray, ...]:
    """Index arrays of the neighbours: key_offsets, value_offsets, weight_index, position_rows, element_rows.

    For each neighbour, in the order of the position table: the offsets of its key and its value in the padded maps,
    relative to the query's pixel, and the index of its weight among those of a query. For each neighbour of a chunk:
    where its row of position scores and its row of element scores start.
    """
    keys, channels, value_channels = layout.shape[4], layout.shape[7], layout.shape[8]
    window_y, window_x = 2 * layout.radius[0] + 1, 2 * layout.radius[1] + 1
    y, x, element = (
        axis.ravel() for axis in np.meshgrid(np.arange(window_y), np.arange(window_x), np.arange(keys), indexing="ij")
    )
    shift = (y - layout.radius[0]) * layout.row_stride + x - layout.radius[1]
    key_offsets = element * (channels + 1) * layout.map_size + shift
    value_offsets = element * value_channels * layout.map_size + shift
    weight_index = element * window_y * window_x + y * window_x + x
    n_padding, in_chunk = -len(y) % layout.unit, np.arange(layout.chunk)
    padded = (np.pad(array, (0, n_padding)) for array in (key_offsets, value_offsets, weight_index))
    position_rows = in_chunk // layout.keys_per_position * QUERY_BLOCK
    element_rows = in_chunk % keys * QUERY_BLOCK
    return tuple(array.astype(np.int64) for array in (*padded, position_rows, element_rows))


def _sum_parts(partial: np.ndarray) -> Tensor:
    """(heads, parts, outputs, entries, channels) -> (heads, outputs, entries, channels), added in a fixed order."""
    parts = torch.from_numpy(partial).unbind(1)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _sum_heads(gradient: Tensor, heads: int) -> Tensor:
    """Sum over the first axis where the heads share one table (``heads`` is 1), added in order."""
    if heads == len(gradient):  # a copy: gradients of position and bias are views of the same array
        return gradient.clone(memory_format=torch.contiguous_format)
    total = gradient[:1].clone(memory_format=torch.contiguous_format)
    for head in gradient[1:]:
        total += head
    return total
