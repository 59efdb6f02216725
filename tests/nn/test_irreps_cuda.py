"""The CUDA kernels of layers in the irrep basis: in Triton's interpreter and compiler, and on a GPU if present."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kit.kernels import (
    answer_job,
    compile_only,
    needs_interpreter,
    needs_triton,
    run_job,
    use_cuda_kernels_on_cpu,
)
from unpose.groups import fourier_basis, irreducible_representations, parse
from unpose.nn import equivariant_vit, implementation
from unpose.nn.ops.frames import change_basis, frame_gelu, rotary_frames
from unpose.nn.ops.irrep_linear import irrep_linear

# group, channels, output channels, tokens; prime or uneven sizes, so that no tile is whole, and one of whole tiles
LINEAR = {
    "d4": ("d4", 6, 11, 150), "c4": ("c4", 5, 7, 131), "d8": ("d8", 3, 4, 70), "d1": ("d1", 24, 80, 33),
    "whole tiles": ("d4", 32, 64, 128), "library": ("d4", 97, 101, 67),
}  # fmt: skip
FRAMES = {"uneven": (3, 7, 11), "power of two": (2, 5, 64), "three blocks": (1, 3, 384)}  # b, n, channels
ROTARY = {"one head": (2, 7, 1, 24), "three heads": (2, 5, 3, 5), "one pair": (1, 3, 2, 1)}  # b, n, heads, d / 2


def tensor(*shape, seed=3, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype).requires_grad_()


def errors(function, inputs):
    """Return the largest errors of results and gradients against float64 in PyTorch operations, and the results."""
    exact = [each.detach().double().requires_grad_() for each in inputs]
    with implementation("plain"):
        wanted = function(*exact)
    found = function(*inputs)
    wanted, found = (each if isinstance(each, tuple) else (each,) for each in (wanted, found))
    gradients = [torch.randn(each.shape, generator=torch.Generator().manual_seed(5)) for each in wanted]
    pairs = []
    for results, parameters in ((found, inputs), (wanted, exact)):
        given = [gradient.to(result) for gradient, result in zip(gradients, results, strict=True)]
        pairs.append([*results, *torch.autograd.grad(results, parameters, given)])
    sizes = [float(b.detach().abs().max().clamp(min=1e-2)) for b in pairs[1]]
    differences = [float((a.detach().double() - b.detach()).abs().max()) for a, b in zip(*pairs, strict=True)]
    return [difference / size for difference, size in zip(differences, sizes, strict=True)], pairs[0]


def linear_errors(name, dtype=torch.float16, device="cpu"):
    group, channels, out, tokens = LINEAR[name]
    irreps = irreducible_representations(parse(group))
    s, p = len(irreps.singles), len(irreps.pairs)
    inputs = [
        tensor(tokens, parse(group).order * channels, dtype=dtype, device=device),
        tensor(s, out, channels, seed=4, dtype=dtype, device=device),
    ]
    pairs = tensor(p, 2 * out, 2 * channels, seed=5, dtype=dtype, device=device)
    if not p:  # mirrors alone have no pairs
        return errors(lambda x, a: irrep_linear(x, a, pairs.detach().to(a), None, irreps.copies), inputs)
    return errors(lambda x, a, b: irrep_linear(x, a, b, None, irreps.copies), [*inputs, pairs])


def gelu_errors(name, device="cpu"):
    b, n, channels = FRAMES[name]
    basis = fourier_basis(parse("d4")).to(device)
    inputs = [tensor(b, n, 8 * channels, device=device), tensor(channels, seed=4, device=device)]
    return errors(lambda x, bias: frame_gelu(x, bias, basis, "d4"), inputs)


def paired_basis(device):
    """The basis with neighbouring frames h and h m, m the mirror, as attention uses it."""
    return fourier_basis(parse("d4"))[:, [0, 4, 1, 5, 2, 6, 3, 7]].to(device)


def change_errors(name, device="cpu"):
    basis = paired_basis(device)
    b, n, channels = FRAMES[name]
    return errors(lambda x: change_basis(x, basis, "d4"), [tensor(b, n, 8, channels, device=device)])


def rotary_errors(name, device="cpu"):
    b, n, heads, half = ROTARY[name]
    basis, angle = paired_basis(device), tensor(n, 8, heads, half, seed=6, device=device).detach()
    inputs = [tensor(b, n, 48 * heads * half, device=device), tensor(6 * heads * half, seed=4, device=device)]
    return errors(lambda x, bias: rotary_frames(x, bias, angle.cos(), angle.sin(), basis, "d4"), inputs)


CASES = [
    *[(linear_errors, name, 2e-3) for name in LINEAR],
    *[(gelu_errors, name, 2e-6) for name in FRAMES],
    *[(change_errors, name, 2e-6) for name in FRAMES],
    *[(rotary_errors, name, 2e-6) for name in ROTARY],
]


@pytest.fixture(scope="module")
def interpreted():
    return run_job(__file__, "interpret")


@needs_interpreter
@pytest.mark.parametrize("number", range(len(CASES)))
def test_interpreted_kernels_agree_with_plain_operations(number, interpreted):
    assert max(interpreted[number]) < CASES[number][2], interpreted[number]


@pytest.mark.slow
@needs_triton
def test_the_kernels_compile_for_a_gpu_that_is_not_present(tmp_path):
    wanted = ["weight_kernel on tensor cores", "sum_rows_kernel", *["gelu_kernel"] * 2, *["change_kernel"] * 2]
    assert run_job(__file__, "compile", TRITON_CACHE_DIR=str(tmp_path)) == [*wanted, *["rotary_kernel"] * 2]


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(len(CASES)))
def test_kernels_agree_with_plain_operations_and_repeat(number):
    function, name, limit = CASES[number]
    found, results = function(name, device="cuda")
    assert max(found) < limit, found
    again = function(name, device="cuda")[1]
    assert all(torch.equal(first, second) for first, second in zip(results, again, strict=True)), "not the same bytes"


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
        mapped = irrep_linear(tokens, torch.empty(4, 7, 6), torch.empty(1, 14, 12), torch.empty(7), 2)
        assert (mapped.shape, mapped.dtype) == ((2, 5, 56), torch.bfloat16)
        assert frame_gelu(tokens, torch.empty(6), basis, "d4").shape == tokens.shape
        angle = torch.empty(5, 8, 2, 3)
        assert rotary_frames(half, None, angle, angle, basis, "d4")[2].shape == (2, 5, 8, 2, 6)
        assert change_basis(torch.empty(2, 5, 8, 3), basis, "d4").shape == (2, 5, 24)


def interpret():
    use_cuda_kernels_on_cpu()
    return [function(name)[0] for function, name, _ in CASES]


def compile_kernels():
    """Compile what a training step launches, in bfloat16."""
    names = compile_only()
    from unpose.nn.ops.cuda import frames, irrep_linear

    with torch.no_grad():
        bias, angle = torch.empty(48), torch.empty(7, 8, 1, 24)
        tokens = torch.empty(2, 7, 8 * 48, dtype=torch.bfloat16)
        irrep_linear.weight_gradient(tokens, tokens, 4, 1, 2)
        frames.gelu_backward(frames.gelu_forward(tokens, bias), tokens, bias)
        frames.change_basis(frames.change_basis(tokens, True), False)
        parts = frames.rotary_forward(torch.empty(2, 7, 24 * 48, dtype=torch.bfloat16), bias.repeat(3), angle, angle)
        frames.rotary_backward(*parts, angle, angle)
    return names


if __name__ == "__main__":
    answer_job(interpret=interpret, compile=compile_kernels)
