"""A linear map of the channels as one operator of torch on CUDA in half precision; elsewhere a product as torch has it.

``torch.compile`` and ``torch.export`` see the operator ``unpose::pointwise`` and do not look inside.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from unpose.nn.ops.autocast import product_type
from unpose.nn.ops.norm import takes

_HALVES = (torch.bfloat16, torch.float16)


def pointwise(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear map of the channels, the same at each place: (b, in, ...) -> (b, out, ...), and so in memory.

    Applied to a last axis of channels, as torch has it, the maps would be copied on the way there and back.

    Parameters
    ----------
    weight : (out, in)
    bias : (out,), or None

    Notes
    -----
    Half precision on CUDA, autocast included, has kernels of its own, unless :func:`unpose.nn.implementation` says
    ``"plain"``: one pass over the maps, and gradients of weight and bias that are float32 sums.

    Examples
    --------
    >>> maps = torch.randn(2, 3, 4, 5, 7)
    >>> pointwise(maps, torch.ones(2, 3), None).allclose(maps.sum(1, keepdim=True).expand(-1, 2, -1, -1, -1), atol=1e-5)
    True
    """
    if maps.ndim == 2:
        return linear(maps, weight, bias)
    product = product_type(maps)
    if product in _HALVES and weight.shape[1] == maps.shape[1] and takes(maps, weight, bias):
        return _pointwise(maps, weight, bias, product, product)
    return _repeated(maps, weight, bias)


def _repeated(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A product for each image, the weight repeated as a view."""
    pixels = maps.flatten(2)  # (b, in, everything else)
    # Under autocast the weight is cast before it is repeated, not once for each image.
    repeated = weight.to(product_type(weight)).expand(maps.shape[0], -1, -1)  # (b, out, in)
    mapped = torch.bmm(repeated, pixels) if bias is None else torch.baddbmm(bias[:, None], repeated, pixels)
    return mapped.unflatten(2, maps.shape[2:])


def _loops() -> Any:
    """Imported on first use: Triton costs time, and is seldom there."""
    return import_module("unpose.nn.ops.cuda.pointwise")


@torch.library.custom_op("unpose::pointwise", mutates_args=())
def _pointwise(maps: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype, kind: torch.dtype) -> Tensor:
    return _loops().forward(maps, weight, bias, product, kind)


@torch.library.custom_op("unpose::pointwise_weight_gradient", mutates_args=())
def _weight_gradient(grad_out: Tensor, maps: Tensor, product: torch.dtype) -> Tensor:
    return _loops().weight_gradient(grad_out, maps, product)


@_pointwise.register_fake
def _pointwise_shape(
    maps: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype, kind: torch.dtype
) -> Tensor:
    return maps.new_empty(maps.shape[0], weight.shape[0], *maps.shape[2:], dtype=kind)


@_weight_gradient.register_fake
def _weight_gradient_shape(grad_out: Tensor, maps: Tensor, product: torch.dtype) -> Tensor:
    return maps.new_empty(grad_out.shape[1] * (maps.shape[1] + 1), dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    maps, weight, bias, ctx.product, _ = inputs
    ctx.save_for_backward(maps, weight)
    ctx.bias_type = None if bias is None else bias.dtype


def pointwise_gradients(
    gradient: Tensor, maps: Tensor, weight: Tensor, product: torch.dtype, for_maps: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of maps, or None where nobody asks, of weight and of bias, given that of the result; on CUDA."""
    to_maps = _pointwise(gradient, weight.t(), None, product, maps.dtype) if for_maps else None
    to_weight, to_bias = _weight_gradient(gradient, maps, product).split([weight.numel(), len(weight)])
    return to_maps, to_weight.view(weight.shape), to_bias


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    maps, weight = ctx.saved_tensors
    asked = ctx.needs_input_grad[0]
    to_maps, to_weight, to_bias = pointwise_gradients(gradient, maps, weight, ctx.product, asked)
    return to_maps, to_weight.to(weight.dtype), None if ctx.bias_type is None else to_bias.to(ctx.bias_type), None, None


def _no_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError(
        "the fused pointwise product has no second derivatives; compute it under unpose.nn.implementation('plain'), "
        "which has"
    )


_pointwise.register_autograd(_backward, setup_context=_save)
_weight_gradient.register_autograd(_no_second, setup_context=lambda ctx, inputs, output: None)
