"""The CUDA kernels of layers in the irrep basis: in Triton's interpreter and compiler, and on a GPU if present."""

from dataclasses import dataclass

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kit.kernels import kernel_tests, needs_triton, operator_kernel
from unpose.groups import fourier_basis, irreducible_representations, parse
from unpose.nn import equivariant_vit, implementation
from unpose.nn.ops.dispatch import OPERATORS


@dataclass(frozen=True)
class Linear:
    group: str
    channels: int
    out: int
    tokens: int
    dtype: str = "float16"  # the interpreter has no products of bfloat16


@dataclass(frozen=True)
class Frames:
    batch: int
    tokens: int
    channels: int
    dtype: str = "float32"


@dataclass(frozen=True)
class Rotary:
    batch: int
    tokens: int
    heads: int
    half: int
    dtype: str = "float32"


# Prime or uneven sizes, so that no tile is whole, and one of whole tiles
LINEAR = {
    "d4": Linear("d4", channels=6, out=11, tokens=150),
    "c4": Linear("c4", channels=5, out=7, tokens=131),
    "d8": Linear("d8", channels=3, out=4, tokens=70),
    "d1": Linear("d1", channels=24, out=80, tokens=33),
    "whole tiles": Linear("d4", channels=32, out=64, tokens=128),
    "library": Linear("d4", channels=97, out=101, tokens=67),
}
FRAMES = {
    "uneven": Frames(batch=3, tokens=7, channels=11),
    "power of two": Frames(batch=2, tokens=5, channels=64),
    "three blocks": Frames(batch=1, tokens=3, channels=384),
}
ROTARY = {
    "one head": Rotary(batch=2, tokens=7, heads=1, half=24),
    "three heads": Rotary(batch=2, tokens=5, heads=3, half=5),
    "one pair": Rotary(batch=1, tokens=3, heads=2, half=1),
}
BASIS = fourier_basis(parse("d4"))
PAIRED = BASIS[:, [0, 4, 1, 5, 2, 6, 3, 7]]
"""The basis with neighbouring frames h and h m, m the mirror, as attention uses it."""


def draw(case, device, *shape, seed=3):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(device, getattr(torch, case.dtype)).requires_grad_()


def linear_inputs(case, device):
    irreps, order = irreducible_representations(parse(case.group)), parse(case.group).order
    pairs = draw(case, device, len(irreps.pairs), 2 * case.out, 2 * case.channels, seed=5)
    return [
        draw(case, device, case.tokens, order * case.channels),
        draw(case, device, len(irreps.singles), case.out, case.channels, seed=4),
        pairs if pairs.numel() else pairs.detach(),  # mirrors alone have no pairs
    ]


def frames_inputs(case, device):
    return [
        draw(case, device, case.batch, case.tokens, 8 * case.channels),
        draw(case, device, case.channels, seed=4).detach().float().requires_grad_(),
    ]


def rotary_inputs(case, device):
    angle = draw(case, device, case.tokens, 8, case.heads, case.half, seed=6).detach().float()
    bias = draw(case, device, 6 * case.heads * case.half, seed=4).detach().float().requires_grad_()
    features = draw(case, device, case.batch, case.tokens, 48 * case.heads * case.half)
    return [features, bias, angle.cos(), angle.sin()]


KERNELS = {
    "linear": operator_kernel(
        OPERATORS["irrep_linear"], linear_inputs, LINEAR, 2e-3,
        call=lambda function, case, *given: function(
            *given, None, irreducible_representations(parse(case.group)).copies
        ),
        others={"a step in bfloat16": Linear("d4", channels=48, out=48, tokens=14, dtype="bfloat16")},
        compiled={"a step in bfloat16": ["weight_kernel on tensor cores", "sum_rows_kernel"]},
    ),
    "gelu": operator_kernel(
        OPERATORS["frame_gelu"], frames_inputs, FRAMES, 2e-6,
        call=lambda function, _, x, bias: function(x, bias, BASIS.to(x.device), "d4"),
        others={"a step in bfloat16": Frames(batch=2, tokens=7, channels=48, dtype="bfloat16")},
        compiled={"a step in bfloat16": ["gelu_kernel"] * 2},
    ),
    "change": operator_kernel(
        OPERATORS["change_basis"], lambda case, device: frames_inputs(case, device)[:1], FRAMES, 2e-6,
        call=lambda function, _, x: function(x.unflatten(-1, (8, -1)), PAIRED.to(x.device), "d4"),
        others={"a step in bfloat16": Frames(batch=2, tokens=7, channels=48, dtype="bfloat16")},
        compiled={"a step in bfloat16": ["change_kernel"] * 2},
    ),
    "rotary": operator_kernel(
        OPERATORS["rotary_frames"], rotary_inputs, ROTARY, 2e-6,
        call=lambda function, _, *given: function(*given, PAIRED.to(given[0].device), "d4"),
        others={"a step in bfloat16": Rotary(batch=2, tokens=7, heads=1, half=24, dtype="bfloat16")},
        compiled={"a step in bfloat16": ["rotary_kernel"] * 2},
    ),
}  # fmt: skip
test_interpreted, test_compiled, test_on_a_gpu = kernel_tests(__file__, KERNELS)


@pytest.mark.gpu
def test_a_network_in_half_precision_agrees_with_the_plain_one():
    torch.manual_seed(0)
    network = equivariant_vit("d4", 3, 10, 32, patch=4, depth=2, width=192).cuda()
    images = torch.rand(3, 3, 32, 32, device="cuda")
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        fused = network(images)
        with implementation("plain"):
            plain = network(images)
    assert torch.allclose(fused, plain, atol=2e-2 * plain.abs().max().item())


@pytest.mark.slow
@needs_triton
def test_which_operators_are_fused():
    # Shapes and types of the operators; nothing is computed.
    with FakeTensorMode(), torch.device("cuda"):
        basis = torch.empty(8, 8)
        tokens = torch.empty(2, 5, 8 * 6, dtype=torch.bfloat16)
        half = torch.empty(2, 5, 8 * 36, dtype=torch.bfloat16)
        blocks = torch.empty(4, 7, 6), torch.empty(1, 14, 12), torch.empty(7)
        mapped = OPERATORS["irrep_linear"].run(tokens, *blocks, 2)
        assert (mapped.shape, mapped.dtype) == ((2, 5, 56), torch.bfloat16)
        assert OPERATORS["frame_gelu"].run(tokens, torch.empty(6), basis, "d4").shape == tokens.shape
        angle = torch.empty(5, 8, 2, 3)
        parts = OPERATORS["rotary_frames"].run(half, None, angle, angle, basis, "d4")
        assert parts[2].shape == (2, 5, 8, 2, 6)
        assert OPERATORS["change_basis"].run(torch.empty(2, 5, 8, 3), basis, "d4").shape == (2, 5, 24)
