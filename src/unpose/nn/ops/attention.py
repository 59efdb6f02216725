"""Group attention in compiled kernels, as operators of torch: numba on the CPU, Triton on CUDA.

``torch.compile`` and ``torch.export`` see one operator and do not trace into it:

- ``unpose::group_attention`` for query, key and value in three tensors;
- ``unpose::projected_attention`` for the three in one tensor, as a layer projects them, whose gradient is one tensor
  too; its position table may come in two parts.

Both return the result and ``logsumexp``, the natural logarithm of the denominator of every softmax, which the backward
pass needs. No kernel stores a score: the backward pass computes them again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unpose.nn.ops.autocast import product_type
from unpose.nn.ops.dispatch import first_derivatives_only, kernels
from unpose.nn.ops.reference.attention import split_projected


def attend_fused(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    """Compute :func:`unpose.nn.ops.reference.attention.attend` in kernels; shapes and support are already checked."""
    tensors = [_as_product(tensor) for tensor in (query, key, value, position, bias)]
    return _attention(*tensors, _dropout_seed(query, dropout), dropout)[0]


def attend_projected(
    projected: Tensor, position: Tensor, element: Tensor | None, bias: Tensor | None, dropout: float
) -> Tensor:
    """Compute :func:`attend_fused` of a query, key and value in one tensor, (b, 3, n, d, elements, h, w).

    With ``element`` the position table comes in two parts, see
    :func:`unpose.nn.functional.group_attention.projected_attention`.
    """
    tensors = [_as_product(tensor) for tensor in (projected, position, element, bias)]
    return _projected(*tensors, _dropout_seed(projected, dropout), dropout)[0]


def _as_product(tensor: Tensor | None) -> Tensor | None:
    """Cast a tensor as autocast does for matrix products."""
    return None if tensor is None else tensor.to(product_type(tensor))


def _dropout_seed(tensor: Tensor, dropout: float) -> Tensor | None:
    """Draw the 32-bit seed that decides which weights are dropped, on the device of a tensor."""
    return torch.randint(2**31, (), device=tensor.device, dtype=torch.int32) if dropout else None


@torch.library.custom_op("unpose::group_attention", mutates_args=())
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    return kernels("group_attention", query).forward(query, key, value, position, bias, dropout, seed)


@torch.library.custom_op("unpose::group_attention_backward", mutates_args=())
def _attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    backend = kernels("group_attention", query)
    *others, grad_bias = backend.backward(grad_out, query, key, value, position, bias, out, logsumexp, dropout, seed)
    return *others, _or_empty(grad_bias, position)


@torch.library.custom_op("unpose::projected_attention", mutates_args=())
def _projected(
    projected: Tensor,
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    if element is not None and bias is not None:
        raise ValueError("a position table in two parts takes no bias: join the parts, or leave the bias out")
    backend = kernels("group_attention", projected)
    return backend.forward_projected(projected, position, element, bias, dropout, seed)


@torch.library.custom_op("unpose::projected_attention_backward", mutates_args=())
def _projected_backward(
    grad_out: Tensor,
    projected: Tensor,
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of projected, position, element and bias; the last two are empty where there are none."""
    backend = kernels("group_attention", projected)
    grad_projected, grad_position, grad_element, grad_bias = backend.backward_projected(
        grad_out, projected, position, element, bias, out, logsumexp, dropout, seed
    )
    return grad_projected, grad_position, _or_empty(grad_element, position), _or_empty(grad_bias, position)


def _or_empty(gradient: Tensor | None, position: Tensor) -> Tensor:
    """An operator of torch returns tensors, so an empty one stands for None."""
    return position.new_empty(0) if gradient is None else gradient


@_attention.register_fake
def _attention_shapes(query: Tensor, key: Tensor, value: Tensor, position: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shape = (query.shape[0], query.shape[1], position.shape[1], query.shape[3], query.shape[4])
    accumulator = query.dtype if query.dtype == torch.float64 else torch.float32
    return _empty_map(query, (*shape, value.shape[-1])), query.new_empty(shape, dtype=accumulator)


@_attention_backward.register_fake
def _attention_backward_shapes(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_query, grad_key, grad_value = (_empty_map(tensor, tensor.shape) for tensor in (query, key, value))
    grad_bias = position.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return grad_query, grad_key, grad_value, position.new_empty(position.shape), grad_bias


@_projected.register_fake
def _projected_shapes(projected: Tensor, position: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _attention_shapes(*split_projected(projected), position)


@_projected_backward.register_fake
def _projected_backward_shapes(
    grad_out: Tensor, projected: Tensor, position: Tensor, element: Tensor | None, bias: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_element, grad_bias = (position.new_empty(0 if table is None else table.shape) for table in (element, bias))
    return grad_out.new_empty(projected.shape), position.new_empty(position.shape), grad_element, grad_bias


def _empty_map(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Allocate a (b, n, elements, h, w, d) map as the kernels return it: the pixels of one channel are adjacent."""
    batch, heads, elements, height, width, channels = shape
    return tensor.new_empty(batch, heads, channels, elements, height, width).permute(0, 1, 3, 4, 5, 2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, seed, ctx.dropout = inputs
    ctx.set_materialize_grads(False)  # the gradient of logsumexp would be a map of zeros
    ctx.save_for_backward(*tensors, *output, seed)


def _backward(ctx: Any, grad_out: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_out is None:  # nothing that follows depends on the result
        return (None,) * 7
    *tensors, seed = ctx.saved_tensors
    *others, grad_bias = _attention_backward(grad_out, *tensors, seed, ctx.dropout)
    return *others, grad_bias if tensors[4] is not None else None, None, None


def _backward_projected(ctx: Any, grad_out: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_out is None:
        return (None,) * 6
    *tensors, seed = ctx.saved_tensors
    grad_projected, grad_position, *optional = _projected_backward(grad_out, *tensors, seed, ctx.dropout)
    given = (found if table is not None else None for found, table in zip(optional, tensors[2:4], strict=True))
    return grad_projected, grad_position, *given, None, None


_attention.register_autograd(_backward, setup_context=_save)
_projected.register_autograd(_backward_projected, setup_context=_save)
first_derivatives_only(_attention_backward, "fused group attention")
first_derivatives_only(_projected_backward, "fused group attention")
