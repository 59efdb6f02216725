"""Group attention as one operator of torch, with compiled loops behind it: numba on the CPU, Triton on CUDA.

``torch.compile`` and ``torch.export`` see the operator ``unpose::group_attention``, or ``unpose::projected_attention``
where query, key and value lie in one tensor, and do not look inside. Neither device writes a score to memory; backward,
scores are computed again.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_LOOPS = {"cpu": "unpose.nn.windowed_cpu", "cuda": "unpose.nn.windowed_cuda"}
_HAS_TRITON = find_spec("triton") is not None  # asked once, here: torch.compile cannot look inside the question
_TYPES = {
    "cpu": (torch.float32, torch.float64, torch.bfloat16, torch.float16),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}


def attend_fused(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    """:func:`unpose.nn.windowed.attend` in compiled loops; shapes already checked, and :func:`obstacle` found none."""
    tensors = _cast(query, key, value, position, bias)
    return _attention(*tensors, _seed(query, dropout), dropout)[0]


def attend_projected(projected: Tensor, position: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """:func:`attend_fused` of (b, 3, n, d, elements, h, w): query, key and value as a layer projects them."""
    tensors = _cast(projected, position, bias)
    return _projected(*tensors, _seed(projected, dropout), dropout)[0]


def unprojected(projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(b, 3, n, d, elements, h, w) -> query, key and value, (b, n, elements, h, w, d) each, as views."""
    query, key, value = (planes.permute(0, 1, 3, 4, 5, 2) for planes in projected.unbind(1))
    return query, key, value


def obstacle(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float
) -> str | None:
    """Why the compiled loops cannot take these tensors, in words that end a sentence; None where they can."""
    given = [tensor for tensor in (query, key, value, position, bias) if tensor is not None]
    device = query.device.type
    if device not in _LOOPS:
        return f"there are no compiled loops for {device}"
    if device == "cuda" and not _HAS_TRITON:
        return "on CUDA they need Triton, which is not installed"
    cast = _cast(*given)
    if any(tensor.dtype not in _TYPES[device] or tensor.dtype != cast[0].dtype for tensor in cast):
        names = ", ".join(sorted({str(tensor.dtype) for tensor in cast}))
        return f"all tensors must have one type among {', '.join(map(str, _TYPES[device]))}, not {names}"
    if any(tensor.device != query.device for tensor in given):
        return "all tensors must be on one device"
    if not 0 <= dropout < 1:
        return f"dropout must be in [0, 1), not {dropout}"
    if query.numel() == 0 or value.numel() == 0:
        return "there is nothing to attend to"
    if torch.onnx.is_in_onnx_export():
        return "ONNX has no such operator"
    return None


def _cast(*tensors: Any) -> tuple[Any, ...]:
    """Under autocast attention takes the type that matrix products take."""
    kind = next(tensor.device.type for tensor in tensors if tensor is not None)
    if not torch.is_autocast_enabled(kind):
        return tensors
    wanted = torch.get_autocast_dtype(kind)
    return tuple(t if t is None or t.dtype == torch.float64 else t.to(wanted) for t in tensors)


def _seed(tensor: Tensor, dropout: float) -> Tensor | None:
    """Which weights are dropped: 32 bits, as kernels read it."""
    return torch.randint(2**31, (), device=tensor.device, dtype=torch.int32) if dropout else None


def _loops(tensor: Tensor) -> Any:
    """The module of a device: imported on first use, since numba and Triton cost time and are seldom both there."""
    return import_module(_LOOPS[tensor.device.type])


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
    return _loops(query).forward(query, key, value, position, bias, dropout, seed)


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
    *found, to_bias = _loops(query).backward(grad_out, query, key, value, position, bias, out, logsumexp, dropout, seed)
    return *found, position.new_empty(0) if to_bias is None else to_bias


@torch.library.custom_op("unpose::projected_attention", mutates_args=())
def _projected(
    projected: Tensor, position: Tensor, bias: Tensor | None, seed: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    loops = _loops(projected)
    if projected.is_cuda:
        return loops.forward_projected(projected, position, bias, dropout, seed)
    return loops.forward(*unprojected(projected), position, bias, dropout, seed)


@torch.library.custom_op("unpose::projected_attention_backward", mutates_args=())
def _projected_backward(
    grad_out: Tensor,
    projected: Tensor,
    position: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    loops = _loops(projected)
    if projected.is_cuda:  # written where they belong: at full size, stacking takes as long as a kernel
        to_projected, to_position, to_bias = loops.backward_projected(
            grad_out, projected, position, bias, out, logsumexp, dropout, seed
        )
    else:
        *found, to_position, to_bias = loops.backward(
            grad_out, *unprojected(projected), position, bias, out, logsumexp, dropout, seed
        )
        to_projected = torch.stack([maps.permute(0, 1, 5, 2, 3, 4) for maps in found], dim=1)
    return to_projected, to_position, position.new_empty(0) if to_bias is None else to_bias


@_attention.register_fake
def _attention_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    shape = (query.shape[0], query.shape[1], position.shape[1], query.shape[3], query.shape[4])
    sums = query.dtype if query.dtype == torch.float64 else torch.float32
    return _map_like(query, (*shape, value.shape[-1])), query.new_empty(shape, dtype=sums)


@_attention_backward.register_fake
def _attention_backward_shapes(
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
    to_query, to_key, to_value = (_map_like(tensor, tensor.shape) for tensor in (query, key, value))
    to_bias = position.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return to_query, to_key, to_value, position.new_empty(position.shape), to_bias


@_projected.register_fake
def _projected_shapes(
    projected: Tensor, position: Tensor, bias: Tensor | None, seed: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    return _attention_shapes(*unprojected(projected), position, bias, seed, dropout)


@_projected_backward.register_fake
def _projected_backward_shapes(
    grad_out: Tensor,
    projected: Tensor,
    position: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    to_bias = position.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return projected.new_empty(projected.shape), position.new_empty(position.shape), to_bias


def _map_like(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A map as the loops return it: the pixels of a channel lie side by side."""
    batch, heads, elements, height, width, channels = shape
    return tensor.new_empty(batch, heads, channels, elements, height, width).permute(0, 1, 3, 4, 5, 2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, seed, dropout = inputs
    ctx.set_materialize_grads(False)  # that of the denominators would be a map of zeros
    ctx.save_for_backward(*tensors, *output, seed)
    ctx.dropout = dropout


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, seed = ctx.saved_tensors
    *found, to_bias = _attention_backward(gradient, *tensors, seed, ctx.dropout)
    return *found, to_bias if tensors[4] is not None else None, None, None


def _backward_projected(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, seed = ctx.saved_tensors
    *found, to_bias = _projected_backward(gradient, *tensors, seed, ctx.dropout)
    return *found, to_bias if tensors[2] is not None else None, None, None


def _no_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError(
        "fused group attention has no second derivatives; compute it under unpose.nn.implementation('plain'), which has"
    )


_attention.register_autograd(_backward, setup_context=_save)
_attention_backward.register_autograd(_no_second, setup_context=lambda ctx, inputs, output: None)
_projected.register_autograd(_backward_projected, setup_context=_save)
_projected_backward.register_autograd(_no_second, setup_context=lambda ctx, inputs, output: None)
