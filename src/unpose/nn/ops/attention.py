"""Group attention as one operator of torch, with compiled loops behind it: numba on the CPU, Triton on CUDA.

``torch.compile`` and ``torch.export`` see the operator ``unpose::group_attention``, or ``unpose::projected_attention``
where query, key and value lie in one tensor, or ``unpose::mapped_attention``, which makes that tensor too, and do not
look inside. No device keeps a score for the backward pass: that computes them again.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from unpose.compiled import is_transformed
from unpose.nn.ops.autocast import product_type
from unpose.nn.ops.norm import takes
from unpose.nn.ops.pointwise import pointwise_gradients
from unpose.nn.ops.reference.attention import unprojected

_LOOPS = {"cpu": "unpose.nn.ops.cpu.attention", "cuda": "unpose.nn.ops.cuda.attention"}
_HAS_TRITON = find_spec("triton") is not None  # asked once, here: torch.compile cannot look inside the question
_NARROW = 16
"""Channels of heads up to which kernels on CUDA hold what belongs to a pixel."""
_TYPES = {
    "cpu": (torch.float32, torch.float64, torch.bfloat16, torch.float16),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}


def attend_fused(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    """:func:`unpose.nn.ops.reference.attention.attend` in compiled loops; shapes already checked, and :func:`obstacle` found none."""
    tensors = _cast(query, key, value, position, bias)
    return _attention(*tensors, _seed(query, dropout), dropout)[0]


def attend_projected(
    projected: Tensor, position: Tensor, element: Tensor | None, bias: Tensor | None, dropout: float
) -> Tensor:
    """:func:`attend_fused` of (b, 3, n, d, elements, h, w): query, key and value as a layer projects them.

    The table may come in two parts, see :func:`unpose.nn.functional.group_attention.projected_attention`, where :func:`takes_parts`.
    """
    tensors = _cast(projected, position, element, bias)
    return _projected(*tensors, _seed(projected, dropout), dropout)[0]


def attend_mapped(
    maps: Tensor, weight: Tensor, offset: Tensor, heads: int, position: Tensor, element: Tensor | None, dropout: float
) -> Tensor:
    """:func:`attend_projected` of what a pointwise map of (b, channels, elements, h, w) gives, where
    :func:`takes_maps`: what is projected is written as kernels read it, and nowhere else."""
    kind = product_type(maps)
    element = None if element is None else element.to(kind)
    return _mapped(maps, weight, offset, heads, position.to(kind), element, _seed(maps, dropout), dropout, kind)[0]


def takes_maps(maps: Tensor, *weights: Tensor) -> bool:
    """Whether :func:`attend_mapped` takes these: on CUDA, in half precision, and not a single image."""
    return product_type(maps) in (torch.bfloat16, torch.float16) and len(maps) > 1 and takes(maps, *weights)


def takes_parts(tensor: Tensor, channels: int) -> bool:
    """Whether the compiled loops take a table in two parts: on CUDA only where heads are narrow."""
    return not tensor.is_cuda or channels <= _NARROW


def obstacle(query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None) -> str | None:
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
    if query.numel() == 0 or value.numel() == 0:
        return "there is nothing to attend to"
    if torch.onnx.is_in_onnx_export():
        return "ONNX has no such operator"
    if is_transformed():
        return "transforms of torch.func do not know its derivatives"
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
    projected: Tensor,
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    return _loops(projected).forward_projected(projected, position, element, bias, dropout, seed)


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
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    words = import_module("unpose.nn.ops.cuda.pointwise").forward_words(maps, weight, offset, kind)
    words = words.unflatten(1, (3 * heads, -1))
    return *_loops(maps).forward_words(words, len(maps), position, element, dropout, seed, kind), words


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
    to_projected, to_position, to_element, to_bias = _loops(projected).backward_projected(
        grad_out, projected, position, element, bias, out, logsumexp, dropout, seed
    )
    given = (position.new_empty(0) if found is None else found for found in (to_element, to_bias))
    return to_projected, to_position, *given


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
    projected: Tensor,
    position: Tensor,
    element: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    return _attention_shapes(*unprojected(projected), position, bias, seed, dropout)


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
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, keys, *size = maps.shape
    channels = len(weight) // (3 * heads)
    shape = (batch, heads, position.shape[1], *size)
    words = maps.new_empty((batch + 1) // 2, 3 * heads, channels, keys, *size, dtype=torch.int32)
    out = _map_like(maps, (*shape, channels)).to(kind)
    return out, maps.new_empty(shape, dtype=torch.float32), words


@_projected_backward.register_fake
def _projected_backward_shapes(
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
    to_element, to_bias = (position.new_empty(0 if table is None else table.shape) for table in (element, bias))
    rest = projected.shape[1:] if projected.dtype != torch.int32 else (3, projected.shape[1] // 3, *projected.shape[2:])
    return grad_out.new_empty(len(grad_out), *rest), position.new_empty(position.shape), to_element, to_bias


def _map_like(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A map as the loops return it: the pixels of a channel lie side by side."""
    batch, heads, elements, height, width, channels = shape
    return tensor.new_empty(batch, heads, channels, elements, height, width).permute(0, 1, 3, 4, 5, 2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, seed, dropout = inputs
    ctx.set_materialize_grads(False)  # that of the denominators would be a map of zeros
    ctx.save_for_backward(*tensors, *output, seed)
    ctx.dropout = dropout


def _save_mapped(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    maps, weight, offset, _, position, element, seed, ctx.dropout, ctx.kind = inputs
    out, logsumexp, words = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(maps, weight, words, position, element, None, out, logsumexp, seed)
    ctx.offset_type = offset.dtype


def _backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:  # what comes after had none to give
        return (None,) * 7
    *tensors, seed = ctx.saved_tensors
    *found, to_bias = _attention_backward(gradient, *tensors, seed, ctx.dropout)
    return *found, to_bias if tensors[4] is not None else None, None, None


def _backward_projected(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 6
    *tensors, seed = ctx.saved_tensors
    to_projected, to_position, *others = _projected_backward(gradient, *tensors, seed, ctx.dropout)
    given = (found if table is not None else None for found, table in zip(others, tensors[2:4], strict=True))
    return to_projected, to_position, *given, None, None


def _backward_mapped(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 9
    maps, weight, *tensors, seed = ctx.saved_tensors
    to_projected, to_position, to_element, _ = _projected_backward(gradient, *tensors, seed, ctx.dropout)
    to_mapped = to_projected.flatten(1, 3)  # (b, 3 n d, keys, h, w)
    to_maps, to_weight, to_offset = pointwise_gradients(to_mapped, maps, weight, ctx.kind, ctx.needs_input_grad[0])
    given = to_maps, to_weight.to(weight.dtype), to_offset.to(ctx.offset_type)
    return *given, None, to_position, None if tensors[2] is None else to_element, None, None, None


def _no_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError(
        "fused group attention has no second derivatives; compute it under unpose.nn.implementation('plain'), which has"
    )


_attention.register_autograd(_backward, setup_context=_save)
_attention_backward.register_autograd(_no_second, setup_context=lambda ctx, inputs, output: None)
_projected.register_autograd(_backward_projected, setup_context=_save)
_mapped.register_autograd(_backward_mapped, setup_context=_save_mapped)
_projected_backward.register_autograd(_no_second, setup_context=lambda ctx, inputs, output: None)
