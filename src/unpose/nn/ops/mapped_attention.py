"""Projection to query, key and value and group attention as one operator, on CUDA in half precision.

``torch.compile`` and ``torch.export`` see the operator ``unpose::mapped_attention``. The projection writes its result
in the packed form that the attention kernels read, so that it is never stored in another form.
"""

from typing import Any

import torch
from torch import Tensor

from unpose.nn.ops.attention import dropout_seed, empty_map, projected_backward
from unpose.nn.ops.autocast import product_type
from unpose.nn.ops.dispatch import kernels, use_kernels
from unpose.nn.ops.pointwise import pointwise_gradients


def use_mapped(maps: Tensor, *weights: Tensor) -> bool:
    """Return whether :func:`attend_mapped` takes these maps; it packs pairs of images, so one alone is not enough."""
    return use_kernels("mapped_attention", maps, *weights) and maps.shape[0] > 1


def attend_mapped(
    maps: Tensor, weight: Tensor, offset: Tensor, heads: int, position: Tensor, element: Tensor | None, dropout: float
) -> Tensor:
    """Project maps of (b, channels, elements, h, w) with a linear map of the channels, and attend, see
    :func:`unpose.nn.ops.attention.attend_projected`."""
    dtype = product_type(maps)
    element, seed = None if element is None else element.to(dtype), dropout_seed(maps, dropout)
    return _mapped(maps, weight, offset, heads, position.to(dtype), element, seed, dropout, dtype)[0]


@torch.library.custom_op("unpose::mapped_attention", mutates_args=())
def _mapped(
    maps: Tensor,
    weight: Tensor,
    offset: Tensor,
    heads: int,
    position: Tensor,
    element: Tensor | None,
    seed: Tensor | None,
    dropout: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    packed = kernels("pointwise", maps).forward_packed(maps, weight, offset, dtype).unflatten(1, (3 * heads, -1))
    attention = kernels("mapped_attention", maps)
    return *attention.forward_packed(packed, len(maps), position, element, dropout, seed, dtype), packed


@_mapped.register_fake
def _mapped_shapes(
    maps: Tensor,
    weight: Tensor,
    offset: Tensor,
    heads: int,
    position: Tensor,
    element: Tensor | None,
    seed: Tensor | None,
    dropout: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, keys, *size = maps.shape
    channels = len(weight) // (3 * heads)
    shape = (batch, heads, position.shape[1], *size)
    packed = maps.new_empty((batch + 1) // 2, 3 * heads, channels, keys, *size, dtype=torch.int32)
    return empty_map(maps, (*shape, channels)).to(dtype), maps.new_empty(shape, dtype=torch.float32), packed


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    maps, weight, offset, _, position, element, seed, ctx.dropout, ctx.dtype = inputs
    out, logsumexp, packed = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(maps, weight, packed, position, element, None, out, logsumexp, seed)
    ctx.offset_dtype = offset.dtype


def _backward(ctx: Any, grad_out: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_out is None:
        return (None,) * 9
    maps, weight, *tensors, seed = ctx.saved_tensors
    grad_projected, grad_position, grad_element, _ = projected_backward(grad_out, *tensors, seed, ctx.dropout)
    needs_maps, to_mapped = ctx.needs_input_grad[0], grad_projected.flatten(1, 3)  # (b, 3 n d, keys, h, w)
    grad_maps, grad_weight, grad_offset = pointwise_gradients(to_mapped, maps, weight, ctx.dtype, needs_maps)
    projection = grad_maps, grad_weight.to(weight.dtype), grad_offset.to(ctx.offset_dtype)
    return *projection, None, grad_position, None if tensors[2] is None else grad_element, None, None, None


_mapped.register_autograd(_backward, setup_context=_save)
