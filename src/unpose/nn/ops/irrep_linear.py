"""A linear map that commutes with a finite group, in the irrep basis: block-diagonal, with kernels on CUDA.

Channels of a token are ``[singles x c | pairs x components x 2 c]``: c channels for each one-dimensional
representation, then for each two-dimensional one its components, each with 2 c channels. A block of the weight maps the
channels of one representation, and all components of a representation share their block.

``torch.compile`` sees the operator ``unpose::irrep_linear`` and does not trace into it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from unpose.nn.ops.autocast import product_type
from unpose.nn.ops.dispatch import drawn, first_derivatives_only, kernels, operator, use_kernels


@operator(example=lambda: (drawn(5, 8 * 3), drawn(4, 2, 3), drawn(1, 4, 6), drawn(2), 2))
def irrep_linear(tokens: Tensor, singles: Tensor, pairs: Tensor, bias: Tensor | None, components: int) -> Tensor:
    """Apply a block-diagonal linear map to the channels of every token: (..., order * c) -> (..., order * out).

    Parameters
    ----------
    tokens : (..., order * c) tensor
    singles : (s, out, c) tensor
        The blocks of the one-dimensional representations.
    pairs : (p, 2 * out, 2 * c) tensor
        The blocks of the two-dimensional ones.
    bias : (out,) tensor, or None
        Added to the channels of the trivial representation, the first: all others must not have a constant.
    components : int
        Components of a two-dimensional representation that share a block: 2 for dihedral groups; 1 for cyclic ones,
        whose blocks map both components together.

    Notes
    -----
    For d4 there are 12 c out products for each token, and 64 c out in an ordinary linear map of the same width. On CUDA
    in half precision the blocks write into the rows of the result, without a concatenation.

    Examples
    --------
    >>> tokens = torch.randn(5, 7, 8 * 3)
    >>> irrep_linear(tokens, torch.randn(4, 2, 3), torch.randn(1, 4, 6), None, 2).shape
    torch.Size([5, 7, 16])
    """
    if len(singles) == 1 and not len(pairs):  # the trivial group
        return linear(tokens, singles[0], bias)
    if use_kernels("irrep_linear", tokens, singles):
        dtype = product_type(tokens)
        mapped = _irrep_linear(tokens.to(dtype), singles.to(dtype), pairs.to(dtype), components)
        return mapped if bias is None else mapped + pad(bias.to(dtype), (0, mapped.shape[-1] - len(bias)))
    if not len(pairs):
        return _products(tokens, singles, bias)
    channels, single = singles.shape[2], singles.shape[0] * singles.shape[2]
    first = _products(tokens[..., :single], singles, bias)
    rest = tokens[..., single:].unflatten(-1, (len(pairs), components, 2 * channels))  # (..., p, components, 2 c)
    if len(pairs) == 1:
        second = linear(rest, pairs[0]).flatten(-3)
    else:
        second = torch.einsum("...pic,poc->...pio", rest, pairs).flatten(-3)
    return torch.cat([first, second], -1)


def _products(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply (s, out, c) blocks to s groups of channels: (..., s * c) -> (..., s * out)."""
    groups = tokens.reshape(-1, len(weight), weight.shape[2]).transpose(0, 1)  # (s, tokens, c)
    if bias is None:
        mapped = torch.bmm(groups, weight.mT)
    else:
        constant = pad(bias[None, None], (0, 0, 0, 0, 0, len(weight) - 1))  # (s, 1, out), zero but for the first
        mapped = torch.baddbmm(constant, groups, weight.mT)
    return mapped.transpose(0, 1).reshape(*tokens.shape[:-1], len(weight) * weight.shape[1])


@torch.library.custom_op("unpose::irrep_linear", mutates_args=())
def _irrep_linear(tokens: Tensor, singles: Tensor, pairs: Tensor, components: int) -> Tensor:
    return kernels("irrep_linear", tokens).forward(tokens, singles, pairs, components)


@torch.library.custom_op("unpose::irrep_linear_weight_gradient", mutates_args=())
def _weight_gradient(grad_out: Tensor, tokens: Tensor, s: int, p: int, components: int) -> Tensor:
    return kernels("irrep_linear", tokens).weight_gradient(grad_out, tokens, s, p, components)


@_irrep_linear.register_fake
def _irrep_linear_shape(tokens: Tensor, singles: Tensor, pairs: Tensor, components: int) -> Tensor:
    order = singles.shape[0] + 2 * pairs.shape[0] * components
    return tokens.new_empty(*tokens.shape[:-1], order * singles.shape[1])


@_weight_gradient.register_fake
def _weight_gradient_shape(grad_out: Tensor, tokens: Tensor, s: int, p: int, components: int) -> Tensor:
    order = s + 2 * p * components
    out, channels = grad_out.shape[-1] // order, tokens.shape[-1] // order
    return tokens.new_empty((s + 4 * p) * out * channels, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tokens, singles, pairs, ctx.components = inputs
    ctx.save_for_backward(tokens, singles, pairs)


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    tokens, singles, pairs = ctx.saved_tensors
    grad_tokens = _irrep_linear(grad_out, singles.mT, pairs.mT, ctx.components) if ctx.needs_input_grad[0] else None
    both = _weight_gradient(grad_out, tokens, len(singles), len(pairs), ctx.components)
    grad_singles, grad_pairs = both.split([singles.numel(), pairs.numel()])
    return (
        grad_tokens,
        grad_singles.view(singles.shape).to(singles.dtype),
        grad_pairs.view(pairs.shape).to(pairs.dtype),
        None,
    )


_irrep_linear.register_autograd(_backward, setup_context=_save)
first_derivatives_only(_weight_gradient, "the fused irrep linear map")
