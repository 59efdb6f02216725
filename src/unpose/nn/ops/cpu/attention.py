"""Group attention on the CPU in compiled loops that never write a score to memory, forward and backward.

The same sums as :mod:`unpose.nn.ops.reference.attention`. A band of rows of one image and head is copied into planes with a margin,
then tiles of neighbouring pixels go through the entries of the window, a chunk at a time (:mod:`unpose.nn.ops.cpu.microkernels`).
Besides its channels a key has a mask, a query a one and the table a bias. What a query has with the table is computed
for each of its codes: an entry has one of its own, or one for its offset and one for its key, which others share.

Backward the scores are computed again, once, and each tile gives its keys and values their part of the gradient. Bands
whose windows meet the same rows are not computed at the same time. Work is divided by shapes alone and the table's
partial sums are added in a fixed order: no byte depends on the number of threads.
"""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from unpose.compiled import in_threads
from unpose.nn.ops.cpu.layout import FAR, Plan, flat, make_plan
from unpose.nn.ops.cpu.microkernels import ROW
from unpose.nn.ops.cpu.passes import LOG2_E, backward_bands, forward_bands
from unpose.nn.ops.cpu.simd import HALF, SHARE
from unpose.nn.ops.reference.attention import unprojected

_PARTS = 8  # partial sums of the table's gradient for each head


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The attention of :func:`unpose.nn.ops.reference.attention.attend`, and the logarithm to base two of each query's sum of weights.

    Shapes as there; bfloat16 and half precision are computed in float32. A weight is dropped where a hash of seed and
    its place in (batch, heads, outputs, height, width, keys, window_y, window_x) says so, here and in :func:`backward`.

    Returns
    -------
    (batch, heads, outputs, height, width, value channels) in the type of the query, the pixels of a channel side by
    side in memory, and (batch, heads, outputs, height, width) in the type of the sums
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
    """:func:`forward` of query, key and value in one tensor, (b, 3, n, d, elements, h, w).

    Given ``element``, (heads or 1, outputs, keys, e), the table has one entry for all keys, of d - e channels, and the
    vectors of each pair of elements have the rest.
    """
    return _attend(unprojected(projected), position, element, bias, dropout, seed)


def _attend(
    maps: tuple[Tensor, Tensor, Tensor],
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    plan = make_plan(*maps, position)
    query = maps[0]
    dtype = _working(query)
    tables = _tables(plan, position, element, bias, dtype)
    batch, heads, outputs, _, _, height, width, _, value_channels = plan.shape
    out = torch.empty(batch, heads, value_channels, outputs, height, width, dtype=dtype)
    top, total = torch.empty(2, batch, heads, 1, outputs, height, width, dtype=dtype).unbind(0)
    inputs = tuple(flat(tensor.to(dtype)) for tensor in maps)
    entries, chance = _entries(plan), _chance(dropout, seed, dtype)
    results = out.numpy(), top.numpy(), total.numpy()

    def run(start: int, stop: int) -> None:
        forward_bands(inputs, tables, plan, entries, chance, start, stop, results)

    in_threads(run, batch * heads * plan.bands)
    return _pixels_first(out).to(query.dtype), (top + total.log2_())[:, :, 0]


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
    """Gradients of query, key, value, position and bias (where there is one), from what :func:`forward` returned."""
    given = query, key, value
    maps = [_planar_like(tensor) for tensor in given]
    to_position, _, to_bias = _slopes(maps, grad_out, given, position, None, bias, out, logsumexp, dropout, seed)
    to_query, to_key, to_value = (_pixels_first(planar).to(query.dtype) for planar in maps)
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
    """Gradients of projected, position, element and bias, as :func:`backward`."""
    given = unprojected(projected)
    maps = torch.zeros(projected.shape, dtype=_working(projected))
    slopes = _slopes([maps] * 3, grad_out, given, position, element, bias, out, logsumexp, dropout, seed)
    return maps.to(projected.dtype), *slopes


def _slopes(
    maps: list[Tensor],
    grad_out: Tensor,
    given: tuple[Tensor, Tensor, Tensor],
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of position, of element and of bias; those of query, key and value are added to ``maps``.

    Zeros (b, n, d, elements, h, w) for each of them, or three times the same (b, 3, n, d, elements, h, w).
    """
    plan = make_plan(*given, position)
    dtype = _working(given[0])
    inputs = tuple(flat(tensor.to(dtype)) for tensor in (*given, grad_out, out, logsumexp))
    tables, chance = _tables(plan, position, element, bias, dtype), _chance(dropout, seed, dtype)
    entries = _entries(plan)
    batch, heads, outputs = plan.shape[:3]
    parts = min(_PARTS, batch * plan.bands)
    channels = position.shape[-1] + (bias is not None), tables[1].shape[3] - 1
    partial = [
        np.zeros((heads, parts, outputs, table.shape[2], count), table.dtype)
        for table, count in zip(tables, channels, strict=True)
    ]
    joined = int(maps[0].ndim == 7)
    written = (*(planar.flatten(0, -6).numpy() for planar in maps), *partial)
    # The rows that a band's window reaches belong to other bands too: only every so many are computed together.
    phases = min(plan.bands, 1 + math.ceil(2 * plan.reach[0] / plan.band))
    for phase in range(phases):

        def run(start: int, stop: int, first: int = phase) -> None:
            backward_bands(inputs, tables, plan, entries, chance, joined, first, phases, start, stop, written)

        in_threads(run, heads * parts)
    keys, window_y, window_x = position.shape[2:5]
    codes, kinds = (_reduced_parts(table) for table in partial)  # (heads, outputs, codes or keys, channels)
    codes = codes[:, :, : window_y * window_x * keys].unflatten(2, (window_y, window_x, keys)).movedim(4, 2)
    to_position = _reduced_heads(codes[..., : position.shape[-1]], len(position)).to(position.dtype)
    to_bias = None if bias is None else _reduced_heads(codes[..., -1], len(bias)).to(bias.dtype)
    to_element = None if element is None else _reduced_heads(kinds, len(element)).to(element.dtype)
    return to_position, to_element, to_bias


def peak_bytes(query: Tensor, key: Tensor, value: Tensor, position: Tensor, threads: int) -> int:
    """What is alive at the end of :func:`backward`: all that goes in and comes out, the table's sums and the planes."""
    plan, number = make_plan(query, key, value, position), 8 if query.dtype == torch.float64 else 4
    batch, heads, outputs, queries, keys, _, _, channels, value_channels = plan.shape
    level = batch * heads * outputs * query.shape[3] * query.shape[4]
    maps = query.numel() + key.numel() + value.numel() + level * value_channels
    # Inputs and result, and the gradients of all; where their type is shorter than that of the sums, copies in that.
    held = 2 * maps * query.element_size() + level * number
    if query.element_size() < number:
        held += 2 * maps * number
    parts = min(_PARTS, batch * plan.bands)
    entries = -(-math.prod(position.shape[2:5]) // plan.unit) * plan.unit
    row = entries * (channels + 1)
    table, padded = outputs * row, -(-outputs // SHARE) * SHARE * row
    tables = 3 * position.numel() + 2 * len(position) * padded + heads * (parts + 1) * table
    workers = min(threads, max(heads * parts, batch * heads * plan.bands))
    planes = (queries + 2 * keys) * (channels + 1) + (2 * keys + outputs) * value_channels + 2 * outputs + 1
    return held + number * (tables + workers * (planes * plan.size + table * HALF))


def _planar_like(tensor: Tensor) -> Tensor:
    """Zeros for a map (b, n, g, h, w, d), as (b, n, d, g, h, w)."""
    batch, heads, elements, height, width, channels = tensor.shape
    return torch.zeros(batch, heads, channels, elements, height, width, dtype=_working(tensor))


def _pixels_first(planar: Tensor) -> Tensor:
    """(b, n, d, g, h, w) -> (b, n, g, h, w, d), a view."""
    return planar.permute(0, 1, 3, 4, 5, 2)


def _working(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _chance(dropout: float, seed: Tensor | None, dtype: torch.dtype) -> tuple[int, int, np.ndarray]:
    """Seed, threshold of the hash and the factor of what is kept."""
    threshold = min(math.ceil(dropout * 2**16), 2**16 - 1)
    factor = np.array([1 / (1 - threshold / 2**16)], np.float64 if dtype == torch.float64 else np.float32)
    return 0 if seed is None else int(seed), threshold, factor


def _tables(
    plan: Plan, position: Tensor, element: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Codes by offset and key, or by offset, and codes by key: (heads, outputs / SHARE, codes, channels + 1, SHARE).

    Behind the channels stands the bias. The first are ordered by row of the window, so that the rows inside of the
    image are consecutive, and by key last: neighbours lie in planes of their own. What fills a unit of entries is
    infinitely far. Where keys have no codes of their own the second have no channels.
    """
    shape = (max(len(position), 1 if bias is None else len(bias)), *position.shape[1:5])
    added = torch.zeros(shape, dtype=dtype) if bias is None else LOG2_E * bias.detach().to(dtype).expand(shape)
    full = torch.cat([position.detach().to(dtype).expand(*shape, -1), added[..., None]], -1)
    codes = full.permute(0, 1, 3, 4, 2, 5).flatten(2, 4)  # (heads, outputs, codes, channels + 1)
    spare = torch.zeros(*codes.shape[:2], -codes.shape[2] % (plan.unit // plan.share), codes.shape[3])
    spare[..., -1] = -FAR
    if element is None:
        kinds = torch.zeros(1, shape[1], plan.shape[4], 1, dtype=dtype)
    else:
        kinds = torch.nn.functional.pad(element.detach().to(dtype), (0, 1))
    first, second = (_in_groups(table) for table in (torch.cat([codes, spare.to(dtype)], 2), kinds))
    return first, second


def _in_groups(table: Tensor) -> np.ndarray:
    """(heads, outputs, codes, channels) -> (heads, outputs / SHARE, codes, channels, SHARE)"""
    padded = torch.nn.functional.pad(table, (0, 0, 0, 0, 0, -table.shape[1] % SHARE))
    return padded.unflatten(1, (-1, SHARE)).permute(0, 1, 3, 4, 2).contiguous().numpy()


@lru_cache(maxsize=64)
def _entries(plan: Plan) -> tuple[np.ndarray, ...]:
    """For each entry how far from the tile its key and its value lie in their planes, and the index of its weight; for
    each of a chunk, from its start, the row of its code and that of its key."""
    keys, channels, value_channels = plan.shape[4], plan.shape[7], plan.shape[8]
    window_y, window_x = 2 * plan.reach[0] + 1, 2 * plan.reach[1] + 1
    y, x, element = (
        axis.ravel() for axis in np.meshgrid(np.arange(window_y), np.arange(window_x), np.arange(keys), indexing="ij")
    )
    shift = (y - plan.reach[0]) * plan.line + x - plan.reach[1]
    key, value = (element * planes * plan.size + shift for planes in (channels + 1, value_channels))
    index = element * window_y * window_x + y * window_x + x
    spare, within = -len(y) % plan.unit, np.arange(plan.chunk)
    padded = (np.pad(array, (0, spare)) for array in (key, value, index))
    return tuple(array.astype(np.int64) for array in (*padded, within // plan.share * ROW, within % keys * ROW))


def _reduced_parts(partial: np.ndarray) -> Tensor:
    """(heads, parts, outputs, codes, channels) -> (heads, outputs, codes, channels), added in their order."""
    parts = torch.from_numpy(partial).unbind(1)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _reduced_heads(gradient: Tensor, heads: int) -> Tensor:
    if heads == len(gradient):  # an own copy: the table's and the bias's come as parts of one array
        return gradient.clone(memory_format=torch.contiguous_format)
    total = gradient[:1].clone(memory_format=torch.contiguous_format)
    for head in gradient[1:]:
        total += head
    return total
