"""Change of basis, GELU and rotary positions for d4 on CUDA, without frames in memory.

A token has eight rows of channels, in the irrep basis A1, A2, B1, B2 and E (component 0 with two copies, component 1
with two copies), in frames the four turns and the four turns after the mirror. A thread loads the eight numbers of a
channel, changes their basis with 20 additions, applies its function and changes back. All of these kernels are bound by
memory: they read and write each number once, 16 bytes at a time. Nothing is summed over tokens, so results are the same
in every run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
"""Channels of all tokens together that a program processes: eight of 16 bits for each thread."""

_ROTARY_BLOCK = 512
"""Pairs of channels that a program processes."""


def gelu_forward(features: Tensor, bias: Tensor) -> Tensor:
    """Apply GELU in frames to (..., 8 * c) features in the irrep basis, after adding (c,) to the first row."""
    features = features.contiguous()
    out = torch.empty_like(features)
    _launch(gelu_kernel, features, features, bias, out, len(bias), False)
    return out


def gelu_backward(grad_out: Tensor, features: Tensor, bias: Tensor) -> Tensor:
    """Return the gradient of the features."""
    features, grad_out = features.contiguous(), grad_out.contiguous()
    gradient = torch.empty_like(features)
    _launch(gelu_kernel, grad_out, features, bias, gradient, len(bias), True)
    return gradient


def change_basis(features: Tensor, to_frames: bool) -> Tensor:
    """Change (..., 8 * c) from the irrep basis to frames, or back."""
    features = features.contiguous()
    out = torch.empty_like(features)
    channels = features.shape[-1] // 8
    n = features.numel() // 8
    with torch.cuda.device_of(features):
        change_kernel[(triton.cdiv(n, _BLOCK),)](
            features, out, n, CHANNELS=channels, TO_FRAMES=to_frames, BLOCK=_BLOCK, num_warps=4
        )
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


def _launch(kernel, given: Tensor, features: Tensor, bias: Tensor, out: Tensor, channels: int, backward: bool) -> None:  # type: ignore[no-untyped-def]
    n = features.numel() // 8
    with torch.cuda.device_of(features):
        kernel[(triton.cdiv(n, _BLOCK),)](
            given, features, bias, out, n, CHANNELS=channels, BACKWARD=backward, BLOCK=_BLOCK, num_warps=4
        )


def _launch_rotary(
    features: Tensor, bias: Tensor, query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, backward: bool
) -> None:
    tokens, _, heads, half = cos.shape
    n = features.shape[0] * tokens * heads * half
    with torch.cuda.device_of(features):
        rotary_kernel[(triton.cdiv(n, _ROTARY_BLOCK), 3)](
            features, bias, query, key, value, cos.contiguous(), sin.contiguous(), n, tokens,
            HEADS=heads, HALF=half, BACKWARD=backward, BLOCK=_ROTARY_BLOCK, num_warps=4,
        )  # fmt: skip


@triton.jit
def gelu_kernel(  # type: ignore[no-untyped-def]
    given, features, bias, out, n, CHANNELS: tl.constexpr, BACKWARD: tl.constexpr, BLOCK: tl.constexpr
):
    """GELU in frames, or its gradient: ``given`` is then the gradient of the result."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = index % CHANNELS
    offset = index // CHANNELS * (8 * CHANNELS) + channel
    exists = index < n
    a1, a2, b1, b2, e00, e01, e10, e11 = _load(features, offset, exists, CHANNELS)
    a1 += tl.load(bias + channel, mask=exists, other=0.0).to(tl.float32)
    f0, f1, f2, f3, f4, f5, f6, f7 = _frames(a1, a2, b1, b2, e00, e01, e10, e11)
    if BACKWARD:
        a1, a2, b1, b2, e00, e01, e10, e11 = _load(given, offset, exists, CHANNELS)
        g0, g1, g2, g3, g4, g5, g6, g7 = _frames(a1, a2, b1, b2, e00, e01, e10, e11)
        f0, f1, f2, f3 = g0 * _slope(f0), g1 * _slope(f1), g2 * _slope(f2), g3 * _slope(f3)
        f4, f5, f6, f7 = g4 * _slope(f4), g5 * _slope(f5), g6 * _slope(f6), g7 * _slope(f7)
    else:
        f0, f1, f2, f3, f4, f5, f6, f7 = (
            _gelu(f0), _gelu(f1), _gelu(f2), _gelu(f3), _gelu(f4), _gelu(f5), _gelu(f6), _gelu(f7)
        )  # fmt: skip
    a1, a2, b1, b2, e00, e01, e10, e11 = _irreps(f0, f1, f2, f3, f4, f5, f6, f7)
    _store(out, offset, exists, CHANNELS, a1, a2, b1, b2, e00, e01, e10, e11)


@triton.jit
def change_kernel(  # type: ignore[no-untyped-def]
    features, out, n, CHANNELS: tl.constexpr, TO_FRAMES: tl.constexpr, BLOCK: tl.constexpr
):
    """Change the basis of a block of channels."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offset = index // CHANNELS * (8 * CHANNELS) + index % CHANNELS
    exists = index < n
    r0, r1, r2, r3, r4, r5, r6, r7 = _load(features, offset, exists, CHANNELS)
    if TO_FRAMES:
        r0, r1, r2, r3, r4, r5, r6, r7 = _frames(r0, r1, r2, r3, r4, r5, r6, r7)
    else:
        r0, r1, r2, r3, r4, r5, r6, r7 = _irreps(r0, r1, r2, r3, r4, r5, r6, r7)
    _store(out, offset, exists, CHANNELS, r0, r1, r2, r3, r4, r5, r6, r7)


@triton.jit
def rotary_kernel(  # type: ignore[no-untyped-def]
    features, bias, query, key, value, cos, sin, n, tokens, HEADS: tl.constexpr, HALF: tl.constexpr,
    BACKWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Change a block of pairs of channels to frames and rotate them; backwards from frames to the irrep basis.

    The second axis of the grid is queries, keys, values.
    """
    part = tl.program_id(1)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = index < n
    token = index // (HEADS * HALF)
    pair = index % (HEADS * HALF)
    channel = pair // HALF * (2 * HALF) + pair % HALF  # of the first number of the pair, among heads * d
    CHANNELS: tl.constexpr = HEADS * HALF * 2
    offset = token * (24 * CHANNELS) + part * CHANNELS + channel
    frame = query
    if part == 1:
        frame = key
    if part == 2:
        frame = value
    frame_offset = token * (8 * CHANNELS) + channel
    angle_offset = token % tokens * (8 * HEADS * HALF) + pair
    if BACKWARD:
        f0, f1, f2, f3, f4, f5, f6, f7 = _load(frame, frame_offset, exists, CHANNELS)
        s0, s1, s2, s3, s4, s5, s6, s7 = _load(frame, frame_offset + HALF, exists, CHANNELS)
    else:
        f0, f1, f2, f3, f4, f5, f6, f7 = _load(features, offset, exists, 3 * CHANNELS)
        f0 += tl.load(bias + part * CHANNELS + channel, mask=exists, other=0.0).to(tl.float32)
        f0, f1, f2, f3, f4, f5, f6, f7 = _frames(f0, f1, f2, f3, f4, f5, f6, f7)
        s0, s1, s2, s3, s4, s5, s6, s7 = _load(features, offset + HALF, exists, 3 * CHANNELS)
        s0 += tl.load(bias + part * CHANNELS + channel + HALF, mask=exists, other=0.0).to(tl.float32)
        s0, s1, s2, s3, s4, s5, s6, s7 = _frames(s0, s1, s2, s3, s4, s5, s6, s7)
    if part < 2:  # values are not rotated
        f0, s0 = _turn(f0, s0, cos, sin, angle_offset, exists, BACKWARD)
        f1, s1 = _turn(f1, s1, cos, sin, angle_offset + HEADS * HALF, exists, BACKWARD)
        f2, s2 = _turn(f2, s2, cos, sin, angle_offset + 2 * HEADS * HALF, exists, BACKWARD)
        f3, s3 = _turn(f3, s3, cos, sin, angle_offset + 3 * HEADS * HALF, exists, BACKWARD)
        f4, s4 = _turn(f4, s4, cos, sin, angle_offset + 4 * HEADS * HALF, exists, BACKWARD)
        f5, s5 = _turn(f5, s5, cos, sin, angle_offset + 5 * HEADS * HALF, exists, BACKWARD)
        f6, s6 = _turn(f6, s6, cos, sin, angle_offset + 6 * HEADS * HALF, exists, BACKWARD)
        f7, s7 = _turn(f7, s7, cos, sin, angle_offset + 7 * HEADS * HALF, exists, BACKWARD)
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
    """Change from frames (turns 0 to 3, then mirrored) to A1, A2, B1, B2, E00, E01, E10, E11.

    The signs are those of :func:`unpose.groups.fourier_basis`; rows are scaled by 1 / sqrt(8) and 1 / 2.
    """
    s0, s1, s2, s3 = f0 + f4, f1 + f5, f2 + f6, f3 + f7
    d0, d1, d2, d3 = f0 - f4, f1 - f5, f2 - f6, f3 - f7
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
    return s0 + d0, s1 + d1, s2 + d2, s3 + d3, s0 - d0, s1 - d1, s2 - d2, s3 - d3


@triton.jit
def _gelu(x):  # type: ignore[no-untyped-def]
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _slope(x):  # type: ignore[no-untyped-def]
    """The derivative of GELU."""
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327


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
