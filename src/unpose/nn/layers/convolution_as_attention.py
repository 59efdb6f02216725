"""Section 5.3 of the paper, constructively: a group convolution is a group self-attention with enough heads."""

import math

import torch
from torch import nn

from unpose.nn.functional.positions import inverse_elements, relative_positions
from unpose.nn.layers.attention import GroupSelfAttention, LiftingSelfAttention
from unpose.nn.layers.convolution import GroupConv2d
from unpose.nn.layers.encodings import HarmonicEncoding, harmonic_basis

_MARGIN = 100.0
"""Score of the key that a head attends to; all others have zero, so their weights are below 1e-43."""


def attention_from_convolution(convolution: GroupConv2d) -> GroupSelfAttention | LiftingSelfAttention:
    """Build the self-attention layer that computes a given group convolution (section 5.3).

    There is one head for each entry of the kernel, an offset and a relative element. Its query is a constant, its
    position encoding is 1 at that entry and 0 at all others, so its softmax selects one key; its value is the input,
    and the kernel becomes the matrix that merges the heads.

    Parameters
    ----------
    convolution : GroupConv2d
        A lifting or group convolution for a group that maps the pixel grid onto itself: c1, c2, c4, d1, d2 or d4.

    Returns
    -------
    GroupSelfAttention or LiftingSelfAttention
        With ``kernel_size^2`` heads, times the order of the group for maps on the group, in the type and on the device
        of the convolution. It can be trained further, but its softmax is saturated: gradients reach only values and
        the merging matrix until the query bias is reduced.

    Notes
    -----
    Equal up to rounding in the interior, where windows lie inside the image. At the border the convolution pads with
    zeros, while attention sees only keys inside of the image: a head whose key lies outside averages the others.

    Examples
    --------
    >>> convolution = GroupConv2d("c4", 2, 3, 3).double()
    >>> attention = attention_from_convolution(convolution)
    >>> maps = torch.rand(1, 2, 4, 9, 8, dtype=torch.float64)
    >>> difference = (attention(maps) - convolution(maps))[..., 1:-1, 1:-1]
    >>> attention.heads, bool(difference.abs().max() < 1e-12)
    (36, True)
    """
    if convolution.stride != 1:
        raise ValueError(f"attention keeps the size of maps, so the stride must be 1, got {convolution.stride}")
    group, size = convolution.group, convolution.kernel_size
    inverses = inverse_elements(group)
    if not torch.equal(inverses, inverses.round()):
        raise ValueError(f"the group must map the pixel grid onto itself, as c4 and d4 do, got {group}")
    weight = convolution.weight  # (out, in, relative elements, size^2): one basis function for each pixel
    out_channels, channels, relations, pixels = weight.shape
    kind = LiftingSelfAttention if convolution.lifting else GroupSelfAttention
    layer = kind(
        group,
        channels,
        out_channels,
        heads=relations * pixels,
        head_channels=channels,
        window=size,
        encoding="harmonic",
    )
    layer.encoding = _selecting_encoding(relations, size, channels, lifting=convolution.lifting)
    layer.to(weight.device, weight.dtype)  # this also computes the tables of the new encoding
    with torch.no_grad():
        query, key, value = layer.project.weight.unflatten(0, (3, relations * pixels, channels)).unbind(0)
        query.zero_()
        key.zero_()
        value.copy_(torch.eye(channels, device=weight.device))
        layer.project.bias.zero_()
        layer.project.bias.unflatten(0, (3, -1, channels))[0, :, 0] = _MARGIN * math.sqrt(channels)
        layer.merge.weight.copy_(weight.permute(0, 2, 3, 1).flatten(1))  # (out, heads * in)
        layer.merge.bias.zero_()
        if convolution.bias is not None:
            layer.merge.bias.copy_(convolution.bias)
    return layer.train(convolution.training)


def _selecting_encoding(relations: int, size: int, channels: int, *, lifting: bool) -> HarmonicEncoding:
    """Create an encoding whose first channel is, for head (r, p), 1 at element r and offset p, and 0 elsewhere.

    The harmonics are sampled at the offsets of the window, so as many functions as offsets interpolate any values.
    """
    rings = 2
    reach = max(size // 2, 1)
    points = relative_positions(torch.eye(2, dtype=torch.float64)[None], (size, size))[0].flatten(0, 1)  # (pixels, 2)
    while True:
        encoding = HarmonicEncoding(channels, None if lifting else relations, relations * len(points), reach, rings)
        basis = harmonic_basis(points / encoding.spacing, rings)  # (pixels, functions)
        if torch.linalg.matrix_rank(basis) == len(points):
            break
        rings += 1
    selectors = torch.linalg.pinv(basis)  # (functions, pixels)
    weight = torch.zeros(relations, len(points), relations, basis.shape[1], channels, dtype=torch.float64)
    for relation in range(relations):
        weight[relation, :, relation, :, 0] = selectors.T
    encoding.weight = nn.Parameter(weight.flatten(0, 1))
    return encoding
