"""Layer norm over channels: one operator with kernels on CUDA, PyTorch's ``layer_norm`` elsewhere.

``torch.compile`` and ``torch.export`` see the operator ``unpose::channel_norm`` and do not trace into it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, silu

from unpose.nn.ops.autocast import product_type
from unpose.nn.ops.dispatch import drawn, first_derivatives_only, kernels, operator, use_kernels


@operator(example=lambda: (drawn(2, 3, 5, 7), drawn(3), drawn(3)))
def channel_norm(maps: Tensor, weight: Tensor, bias: Tensor, *, swish: bool = False, eps: float = 1e-5) -> Tensor:
    """Normalise the channels of each position, (b, channels, ...) -> the same; ``swish`` applies SiLU to the result.

    ``eps`` is added to the variance.

    Notes
    -----
    The CUDA kernels normalise float32, bfloat16 and float16 maps without moving the channels; the result has the type
    of the maps or, under autocast, that of matrix products. :func:`unpose.nn.implementation` ``"plain"`` selects
    PyTorch's layer norm, which has derivatives of any order; on CUDA it moves the channels last and back, and under
    autocast it returns float32.

    Examples
    --------
    >>> maps = torch.randn(2, 3, 4, 5, 7)
    >>> normed = channel_norm(maps, torch.ones(3), torch.zeros(3))
    >>> normed.shape, bool(normed.mean(1).abs().max() < 1e-5)
    (torch.Size([2, 3, 4, 5, 7]), True)
    """
    if weight.shape == bias.shape == maps.shape[1:2] and use_kernels("channel_norm", maps, weight, bias):
        return _norm(maps, weight, bias, swish, eps, product_type(maps))  # a matrix product follows the norm
    normed = layer_norm(maps.movedim(1, -1), weight.shape, weight, bias, eps).movedim(-1, 1)
    return silu(normed) if swish else normed


@torch.library.custom_op("unpose::channel_norm", mutates_args=())
def _norm(maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float, dtype: torch.dtype) -> Tensor:
    return kernels("channel_norm", maps).forward(maps, weight, bias, swish, eps, dtype)


@torch.library.custom_op("unpose::channel_norm_backward", mutates_args=())
def _norm_backward(
    grad_out: Tensor, maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float
) -> tuple[Tensor, Tensor]:
    return kernels("channel_norm", maps).backward(grad_out, maps, weight, bias, swish, eps)


@_norm.register_fake
def _norm_shape(maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float, dtype: torch.dtype) -> Tensor:
    return maps.new_empty(maps.shape, dtype=dtype)


@_norm_backward.register_fake
def _norm_backward_shapes(
    grad_out: Tensor, maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float
) -> tuple[Tensor, Tensor]:
    return maps.new_empty(maps.shape), maps.new_empty(2, maps.shape[1], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.swish, ctx.eps, _ = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    maps, weight, bias = ctx.saved_tensors
    grad_maps, (grad_weight, grad_bias) = _norm_backward(grad_out, maps, weight, bias, ctx.swish, ctx.eps)
    return grad_maps, grad_weight.to(weight.dtype), grad_bias.to(bias.dtype), None, None, None


_norm.register_autograd(_backward, setup_context=_save)
first_derivatives_only(_norm_backward, "the fused channel norm")
