"""Change of basis, GELU and rotary positions for d4 on CUDA, without frames in memory.

A token has eight rows of channels, in the irrep basis A1, A2, B1, B2 and E (component 0 with two copies, component 1
with two copies), in frames each of the four turns followed by the same turn after the mirror. A thread loads the eight
numbers of a channel, changes their basis with 20 additions, applies its function and changes back. All of these kernels
are bound by memory: they read and write each number once, 16 bytes at a time. Nothing is summed over tokens, so results
are the same in every run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512
"""Channels of some tokens that a program processes: four for each thread, measured faster than eight."""

_MOST_CHANNELS = 256
"""Most neighbouring channels of a token that a program processes."""

_PAIRS = 256
"""Pairs of channels of some tokens that a program rotates."""


def gelu_forward(features: Tensor, bias: Tensor) -> Tensor:
    """Apply GELU in frames to (..., 8 * c) features in the irrep basis, after adding (c,) to the first row."""
    features = features.contiguous()
    out = torch.empty_like(features)
    _launch(gelu_kernel, out, features, features, bias, out, BACKWARD=False)
    return out


def gelu_backward(grad_out: Tensor, features: Tensor, bias: Tensor) -> Tensor:
    """Return the gradient of the features."""
    features, grad_out = features.contiguous(), grad_out.contiguous()
    gradient = torch.empty_like(features)
    _launch(gelu_kernel, gradient, grad_out, features, bias, gradient, BACKWARD=True)
    return gradient


def change_basis(features: Tensor, to_frames: bool) -> Tensor:
    """Change (..., 8 * c) from the irrep basis to frames, or back."""
    features = features.contiguous()
    out = torch.empty_like(features)
    _launch(change_kernel, out, features, out, TO_FRAMES=to_frames)
    return out


def rotary_forward(features: Tensor, bias: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values in frames, (b, n, 8, heads, d); queries and keys are rotated."""
    features = features.contiguous()
    order, heads, half = cos.shape[1:]
    query, key, value = (features.new_empty(*features.shape[:2], order, heads, 2 * half) for _ in range(3))
    _launch_rotary(features, bias, query, key, value, cos, sin, False)
    return query, key, value


def rotary_backward(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the gradient of the features from those of queries, keys and values."""
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    gradient = query.new_empty(*query.shape[:2], 3 * query[0, 0].numel())
    _launch_rotary(gradient, gradient, query, key, value, cos, sin, True)
    return gradient


def _launch(kernel, features: Tensor, *arguments: Tensor, **flags: bool) -> None:  # type: ignore[no-untyped-def]
    """Launch a kernel over tiles of tokens and channels."""
    channels = features.shape[-1] // 8
    n_tokens = features.numel() // features.shape[-1]
    # A power of two that divides the channels, if it is not too small: then no thread is idle.
    block = min(_MOST_CHANNELS, max(channels & -channels, min(32, triton.next_power_of_2(channels))))
    rows = _BLOCK // block
    with torch.cuda.device_of(features):
        kernel[(triton.cdiv(n_tokens, rows), triton.cdiv(channels, block))](
            *arguments, n_tokens, CHANNELS=channels, BLOCK_CHANNELS=block, BLOCK_TOKENS=rows, num_warps=4, **flags
        )


def _launch_rotary(
    features: Tensor, bias: Tensor, query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, backward: bool
) -> None:
    tokens, _, heads, half = cos.shape
    n_tokens = features.shape[0] * tokens
    block = max(16, triton.next_power_of_2(half))
    rows = max(1, _PAIRS // block)
    with torch.cuda.device_of(features):
        rotary_kernel[(triton.cdiv(n_tokens, rows), 3 * heads)](
            features, bias, query, key, value, cos.contiguous(), sin.contiguous(), n_tokens, tokens,
            HEADS=heads, HALF=half, BACKWARD=backward, BLOCK_PAIRS=block, BLOCK_TOKENS=rows, num_warps=4,
        )  # fmt: skip


@triton.jit
def _tile(n_tokens, CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_TOKENS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the offsets of the first row of a tile of tokens and channels, which of them exist, and the channels."""
    token = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    exists = (token < n_tokens)[:, None] & (channel < CHANNELS)[None]
    return token[:, None] * (8 * CHANNELS) + channel[None], exists, channel


@triton.jit
def gelu_kernel(  # type: ignore[no-untyped-def]
    given, features, bias, out, n_tokens, CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """GELU in frames, or its gradient: ``given`` is then the gradient of the result."""
    offset, exists, channel = _tile(n_tokens, CHANNELS, BLOCK_CHANNELS, BLOCK_TOKENS)
    a1, a2, b1, b2, e00, e01, e10, e11 = _load(features, offset, exists, CHANNELS)
    a1 += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)[None]
    f0, f1, f2, f3, f4, f5, f6, f7 = _frames(a1, a2, b1, b2, e00, e01, e10, e11)
    if BACKWARD:
        a1, a2, b1, b2, e00, e01, e10, e11 = _load(given, offset, exists, CHANNELS)
        g0, g1, g2, g3, g4, g5, g6, g7 = _frames(a1, a2, b1, b2, e00, e01, e10, e11)
        f0, f1, f2, f3 = g0 * _slope(f0), g1 * _slope(f1), g2 * _slope(f2), g3 * _slope(f3)
        f4, f5, f6, f7 = g4 * _slope(f4), g5 * _slope(f5), g6 * _slope(f6), g7 * _slope(f7)
    else:
        f0, f1, f2, f3 = _gelu(f0), _gelu(f1), _gelu(f2), _gelu(f3)
        f4, f5, f6, f7 = _gelu(f4), _gelu(f5), _gelu(f6), _gelu(f7)
    a1, a2, b1, b2, e00, e01, e10, e11 = _irreps(f0, f1, f2, f3, f4, f5, f6, f7)
    _store(out, offset, exists, CHANNELS, a1, a2, b1, b2, e00, e01, e10, e11)


@triton.jit
def change_kernel(  # type: ignore[no-untyped-def]
    features, out, n_tokens, CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    TO_FRAMES: tl.constexpr,
):  # fmt: skip
    """Change the basis of a tile."""
    offset, exists, _ = _tile(n_tokens, CHANNELS, BLOCK_CHANNELS, BLOCK_TOKENS)
    r0, r1, r2, r3, r4, r5, r6, r7 = _load(features, offset, exists, CHANNELS)
    if TO_FRAMES:
        r0, r1, r2, r3, r4, r5, r6, r7 = _frames(r0, r1, r2, r3, r4, r5, r6, r7)
    else:
        r0, r1, r2, r3, r4, r5, r6, r7 = _irreps(r0, r1, r2, r3, r4, r5, r6, r7)
    _store(out, offset, exists, CHANNELS, r0, r1, r2, r3, r4, r5, r6, r7)


@triton.jit
def rotary_kernel(  # type: ignore[no-untyped-def]
    features, bias, query, key, value, cos, sin, n_tokens, tokens, HEADS: tl.constexpr, HALF: tl.constexpr,
    BACKWARD: tl.constexpr, BLOCK_PAIRS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    """Change pairs of channels of one head to frames and rotate them; backwards from frames to the irrep basis.

    The second axis of the grid is queries, keys and values of each head.
    """
    part, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    CHANNELS: tl.constexpr = HEADS * HALF * 2
    ANGLES: tl.constexpr = HEADS * HALF
    token = tl.program_id(0) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    pair = tl.arange(0, BLOCK_PAIRS)
    exists = (token < n_tokens)[:, None] & (pair < HALF)[None]
    channel = part * CHANNELS + head * (2 * HALF) + pair  # of the first number of a pair
    row = token.to(tl.int64)[:, None]
    offset = row * (24 * CHANNELS) + channel[None]
    frame = query
    if part == 1:
        frame = key
    if part == 2:
        frame = value
    frame_offset = row * (8 * CHANNELS) + (head * (2 * HALF) + pair)[None]
    angle = (token % tokens)[:, None] * (8 * ANGLES) + (head * HALF + pair)[None]
    if BACKWARD:
        f0, f1, f2, f3, f4, f5, f6, f7 = _load(frame, frame_offset, exists, CHANNELS)
        s0, s1, s2, s3, s4, s5, s6, s7 = _load(frame, frame_offset + HALF, exists, CHANNELS)
    else:
        f0, f1, f2, f3, f4, f5, f6, f7 = _load(features, offset, exists, 3 * CHANNELS)
        f0 += tl.load(bias + channel, mask=pair < HALF, other=0.0).to(tl.float32)[None]
        f0, f1, f2, f3, f4, f5, f6, f7 = _frames(f0, f1, f2, f3, f4, f5, f6, f7)
        s0, s1, s2, s3, s4, s5, s6, s7 = _load(features, offset + HALF, exists, 3 * CHANNELS)
        s0 += tl.load(bias + channel + HALF, mask=pair < HALF, other=0.0).to(tl.float32)[None]
        s0, s1, s2, s3, s4, s5, s6, s7 = _frames(s0, s1, s2, s3, s4, s5, s6, s7)
    if part < 2:  # values are not rotated
        f0, s0 = _turn(f0, s0, cos, sin, angle, exists, BACKWARD)
        f1, s1 = _turn(f1, s1, cos, sin, angle + ANGLES, exists, BACKWARD)
        f2, s2 = _turn(f2, s2, cos, sin, angle + 2 * ANGLES, exists, BACKWARD)
        f3, s3 = _turn(f3, s3, cos, sin, angle + 3 * ANGLES, exists, BACKWARD)
        f4, s4 = _turn(f4, s4, cos, sin, angle + 4 * ANGLES, exists, BACKWARD)
        f5, s5 = _turn(f5, s5, cos, sin, angle + 5 * ANGLES, exists, BACKWARD)
        f6, s6 = _turn(f6, s6, cos, sin, angle + 6 * ANGLES, exists, BACKWARD)
        f7, s7 = _turn(f7, s7, cos, sin, angle + 7 * ANGLES, exists, BACKWARD)
    if BACKWARD:
        f0, f1, f2, f3, f4, f5, f6, f7 = _irreps(f0, f1, f2, f3, f4, f5, f6, f7)
        _store(features, offset, exists, 3 * CHANNELS, f0, f1, f2, f3, f4, f5, f6, f7)
        s0, s1, s2, s3, s4, s5, s6, s7 = _irreps(s0, s1, s2, s3, s4, s5, s6, s7)
        _store(features, offset + HALF, exists, 3 * CHANNELS, s0, s1, s2, s3, s4, s5, s6, s7)
    else:
        _store(frame, frame_offset, exists, CHANNELS, f0, f1, f2, f3, f4, f5, f6, f7)
        _store(frame, frame_offset + HALF, exists, CHANNELS, s0, s1, s2, s3, s4, s5, s6, s7)


@triton.jit
def _turn(first, second, cos, sin, offset, exists, BACKWARD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rotate pairs of numbers by their angles, or back."""
    c = tl.load(cos + offset, mask=exists, other=1.0).to(tl.float32)
    s = tl.load(sin + offset, mask=exists, other=0.0).to(tl.float32)
    if BACKWARD:
        s = -s
    return first * c - second * s, first * s + second * c


@triton.jit
def _irreps(f0, f1, f2, f3, f4, f5, f6, f7):  # type: ignore[no-untyped-def]
    """Change from frames (turn 0, turn 0 after the mirror, turn 1, ...) to A1, A2, B1, B2, E00, E01, E10, E11.

    The signs are those of :func:`unpose.groups.fourier_basis`; rows are scaled by 1 / sqrt(8) and 1 / 2.
    """
    s0, s1, s2, s3 = f0 + f1, f2 + f3, f4 + f5, f6 + f7
    d0, d1, d2, d3 = f0 - f1, f2 - f3, f4 - f5, f6 - f7
    even, odd = s0 + s2, s1 + s3
    even_mirrored, odd_mirrored = d0 + d2, d1 + d3
    norm: tl.constexpr = 0.3535533905932738
    a1, b1 = (even + odd) * norm, (even - odd) * norm
    a2, b2 = (even_mirrored + odd_mirrored) * norm, (even_mirrored - odd_mirrored) * norm
    return a1, a2, b1, b2, (s0 - s2) * 0.5, (d3 - d1) * 0.5, (s1 - s3) * 0.5, (d0 - d2) * 0.5


@triton.jit
def _frames(a1, a2, b1, b2, e00, e01, e10, e11):  # type: ignore[no-untyped-def]
    """Change back: the transpose of :func:`_irreps`."""
    norm: tl.constexpr = 0.3535533905932738
    even, odd = (a1 + b1) * norm, (a1 - b1) * norm
    even_mirrored, odd_mirrored = (a2 + b2) * norm, (a2 - b2) * norm
    s0, s2 = even + 0.5 * e00, even - 0.5 * e00
    s1, s3 = odd + 0.5 * e10, odd - 0.5 * e10
    d0, d2 = even_mirrored + 0.5 * e11, even_mirrored - 0.5 * e11
    d1, d3 = odd_mirrored - 0.5 * e01, odd_mirrored + 0.5 * e01
    return s0 + d0, s0 - d0, s1 + d1, s1 - d1, s2 + d2, s2 - d2, s3 + d3, s3 - d3


@triton.jit
def _normal(x):  # type: ignore[no-untyped-def]
    """Return distribution and density of the standard normal law, the first to 1e-7.

    Abramowitz and Stegun 7.1.26 writes ``erf`` with the same exponential as the density: one exponential and one
    division in place of the two long branches of ``tl.erf``, which would make these kernels wait for arithmetic.
    """
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * z)
    exponential = tl.exp(-0.5 * x * x)
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * series * exponential
    return tl.where(x < 0, tail, 1.0 - tail), 0.3989422804014327 * exponential


@triton.jit
def _gelu(x):  # type: ignore[no-untyped-def]
    distribution, _ = _normal(x)
    return x * distribution


@triton.jit
def _slope(x):  # type: ignore[no-untyped-def]
    """The derivative of GELU."""
    distribution, density = _normal(x)
    return distribution + x * density


@triton.jit
def _load(rows, offset, exists, STRIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the eight numbers of each channel as float32."""
    return (
        tl.load(rows + offset, mask=exists, other=0.0).to(tl.float32),
        tl.load(rows + offset + STRIDE, mask=exists, other=0.0).to(tl.float32),
        tl.load(rows + offset + 2 * STRIDE, mask=exists, other=0.0).to(tl.float32),
        tl.load(rows + offset + 3 * STRIDE, mask=exists, other=0.0).to(tl.float32),
        tl.load(rows + offset + 4 * STRIDE, mask=exists, other=0.0).to(tl.float32),
        tl.load(rows + offset + 5 * STRIDE, mask=exists, other=0.0).to(tl.float32),
        tl.load(rows + offset + 6 * STRIDE, mask=exists, other=0.0).to(tl.float32),
        tl.load(rows + offset + 7 * STRIDE, mask=exists, other=0.0).to(tl.float32),
    )


@triton.jit
def _store(rows, offset, exists, STRIDE: tl.constexpr, r0, r1, r2, r3, r4, r5, r6, r7):  # type: ignore[no-untyped-def]
    """Store the eight numbers of each channel."""
    tl.store(rows + offset, r0.to(rows.dtype.element_ty), mask=exists)
    tl.store(rows + offset + STRIDE, r1.to(rows.dtype.element_ty), mask=exists)
    tl.store(rows + offset + 2 * STRIDE, r2.to(rows.dtype.element_ty), mask=exists)
    tl.store(rows + offset + 3 * STRIDE, r3.to(rows.dtype.element_ty), mask=exists)
    tl.store(rows + offset + 4 * STRIDE, r4.to(rows.dtype.element_ty), mask=exists)
    tl.store(rows + offset + 5 * STRIDE, r5.to(rows.dtype.element_ty), mask=exists)
    tl.store(rows + offset + 6 * STRIDE, r6.to(rows.dtype.element_ty), mask=exists)
    tl.store(rows + offset + 7 * STRIDE, r7.to(rows.dtype.element_ty), mask=exists)
