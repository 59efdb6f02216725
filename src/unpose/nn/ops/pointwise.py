"""A linear map of the channels: one operator with kernels on CUDA in half precision, ``torch.bmm`` elsewhere.

``torch.compile`` and ``torch.export`` see the operator ``unpose::pointwise`` and do not trace into it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from unpose.nn.ops.autocast import product_type
from unpose.nn.ops.dispatch import drawn, first_derivatives_only, kernels, operator, use_kernels


@operator(example=lambda: (drawn(2, 3, 5, 7), drawn(2, 3), drawn(2)))
def pointwise(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear map to the channels of every position: (b, in, ...) -> (b, out, ...), contiguous.

    The channels stay on axis 1: moving them last for ``torch.nn.functional.linear`` would copy the maps twice.

    Parameters
    ----------
    maps : (b, in, ...) tensor
    weight : (out, in) tensor
    bias : (out,) tensor, or None

    Notes
    -----
    The CUDA kernels for half precision, autocast included, read and write the maps once and sum the gradients of weight
    and bias in float32; :func:`unpose.nn.implementation` ``"plain"`` avoids them.

    Examples
    --------
    >>> maps = torch.randn(2, 3, 4, 5, 7)
    >>> pointwise(maps, torch.ones(2, 3), None).allclose(maps.sum(1, keepdim=True).expand(-1, 2, -1, -1, -1), atol=1e-5)
    True
    """
    if maps.ndim == 2:
        return linear(maps, weight, bias)
    if weight.shape[1] == maps.shape[1] and use_kernels("pointwise", maps, weight, bias):
        dtype = product_type(maps)
        return _pointwise(maps, weight, bias, dtype, dtype)
    return _batched_product(maps, weight, bias)


def _batched_product(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute one matrix product for each image, the weight expanded to the batch as a view."""
    pixels = maps.flatten(2)  # (b, in, everything else)
    # Under autocast the weight is cast before it is expanded, not once for each image.
    expanded = weight.to(product_type(weight)).expand(maps.shape[0], -1, -1)  # (b, out, in)
    mapped = torch.bmm(expanded, pixels) if bias is None else torch.baddbmm(bias[:, None], expanded, pixels)
    return mapped.unflatten(2, maps.shape[2:])


@torch.library.custom_op("unpose::pointwise", mutates_args=())
def _pointwise(maps: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype, dtype: torch.dtype) -> Tensor:
    return kernels("pointwise", maps).forward(maps, weight, bias, product, dtype)


@torch.library.custom_op("unpose::pointwise_weight_gradient", mutates_args=())
def _weight_gradient(grad_out: Tensor, maps: Tensor, product: torch.dtype) -> Tensor:
    return kernels("pointwise", maps).weight_gradient(grad_out, maps, product)


@_pointwise.register_fake
def _pointwise_shape(
    maps: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype, dtype: torch.dtype
) -> Tensor:
    return maps.new_empty(maps.shape[0], weight.shape[0], *maps.shape[2:], dtype=dtype)


@_weight_gradient.register_fake
def _weight_gradient_shape(grad_out: Tensor, maps: Tensor, product: torch.dtype) -> Tensor:
    return maps.new_empty(grad_out.shape[1] * (maps.shape[1] + 1), dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    maps, weight, bias, ctx.product, _ = inputs
    ctx.save_for_backward(maps, weight)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    maps, weight = ctx.saved_tensors
    needs_maps = ctx.needs_input_grad[0]
    grad_maps = _pointwise(grad_out, weight.t(), None, ctx.product, maps.dtype) if needs_maps else None
    grad_weight, grad_bias = _weight_gradient(grad_out, maps, ctx.product).split([weight.numel(), len(weight)])
    to_bias = None if ctx.bias_dtype is None else grad_bias.to(ctx.bias_dtype)
    return grad_maps, grad_weight.view(weight.shape).to(weight.dtype), to_bias, None, None


_pointwise.register_autograd(_backward, setup_context=_save)
first_derivatives_only(_weight_gradient, "the fused pointwise product")
