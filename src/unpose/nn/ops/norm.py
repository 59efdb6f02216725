"""Layer norm over channels as one operator of torch on CUDA, with Triton kernels behind it; elsewhere as torch has it.

``torch.compile`` and ``torch.export`` see the operator ``unpose::channel_norm`` and do not look inside.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, silu

from unpose.compiled import is_transformed
from unpose.nn.ops.autocast import product_type
from unpose.nn.ops.dispatch import chosen

_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_HAS_TRITON = find_spec("triton") is not None  # asked once, here: torch.compile cannot look inside the question


def channel_norm(maps: Tensor, weight: Tensor, bias: Tensor, *, swish: bool = False, eps: float = 1e-5) -> Tensor:
    """Layer norm over the channels of each place, (b, channels, ...) -> the same; ``swish`` applies SiLU to the result.

    ``eps`` is added to the variance.

    Notes
    -----
    On CUDA float32, bfloat16 and float16 are normed where they lie; the result has the type of the maps or, under
    autocast, that of matrix products. :func:`unpose.nn.implementation` ``"plain"`` takes torch's own layer norm, which
    has derivatives of any order; on CUDA it moves the channels last and back, and under autocast returns float32.

    Examples
    --------
    >>> maps = torch.randn(2, 3, 4, 5, 7)
    >>> normed = channel_norm(maps, torch.ones(3), torch.zeros(3))
    >>> normed.shape, bool(normed.mean(1).abs().max() < 1e-6)
    (torch.Size([2, 3, 4, 5, 7]), True)
    """
    if weight.shape == bias.shape == maps.shape[1:2] and takes(maps, weight, bias):
        return _norm(maps, weight, bias, swish, eps, product_type(maps))  # what follows a norm is a product
    normed = layer_norm(maps.movedim(1, -1), weight.shape, weight, bias, eps).movedim(-1, 1)
    return silu(normed) if swish else normed


def takes(maps: Tensor, *weights: Tensor | None) -> bool:
    """Whether the kernels between attention layers take these tensors; not under ``implementation("plain")``."""
    given = [maps, *(weight for weight in weights if weight is not None)]
    return (
        maps.device.type == "cuda"
        and _HAS_TRITON
        and chosen() != "plain"
        and all(tensor.dtype in _TYPES and tensor.device == maps.device for tensor in given)
        and maps.numel() > 0
        and not torch.onnx.is_in_onnx_export()
        and not is_transformed()
    )


def _loops() -> Any:
    """Imported on first use: Triton costs time, and is seldom there."""
    return import_module("unpose.nn.ops.cuda.norm")


@torch.library.custom_op("unpose::channel_norm", mutates_args=())
def _norm(maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float, kind: torch.dtype) -> Tensor:
    return _loops().forward(maps, weight, bias, swish, eps, kind)


@torch.library.custom_op("unpose::channel_norm_backward", mutates_args=())
def _norm_backward(
    grad_out: Tensor, maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float
) -> tuple[Tensor, Tensor]:
    return _loops().backward(grad_out, maps, weight, bias, swish, eps)


@_norm.register_fake
def _norm_shape(maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float, kind: torch.dtype) -> Tensor:
    return maps.new_empty(maps.shape, dtype=kind)


@_norm_backward.register_fake
def _norm_backward_shapes(
    grad_out: Tensor, maps: Tensor, weight: Tensor, bias: Tensor, swish: bool, eps: float
) -> tuple[Tensor, Tensor]:
    return maps.new_empty(maps.shape), maps.new_empty(2, maps.shape[1], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.swish, ctx.eps, _ = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    maps, weight, bias = ctx.saved_tensors
    to_maps, (to_weight, to_bias) = _norm_backward(gradient, maps, weight, bias, ctx.swish, ctx.eps)
    return to_maps, to_weight.to(weight.dtype), to_bias.to(bias.dtype), None, None, None


def _no_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError(
        "the fused channel norm has no second derivatives; compute it under unpose.nn.implementation('plain'), which "
        "has"
    )


_norm.register_autograd(_backward, setup_context=_save)
_norm_backward.register_autograd(_no_second, setup_context=lambda ctx, inputs, output: None)
