"""The CUDA kernels of norms and pointwise products: in Triton's interpreter and compiler, and on a GPU if present."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import layer_norm, silu
from torch.utils._python_dispatch import TorchDispatchMode

from kit.kernels import (
    answer_job,
    compile_only,
    needs_interpreter,
    needs_triton,
    run_job,
    use_cuda_kernels_on_cpu,
)
from unpose.nn import ChannelNorm, GroupSelfAttention, PointwiseLinear, gsa_net, implementation
from unpose.nn.ops import pointwise as fused_pointwise
from unpose.nn.ops.norm import _norm, _norm_backward, channel_norm
from unpose.nn.ops.pointwise import _pointwise, _weight_gradient, pointwise

NORMS = {
    "published": dict(shape=(3, 20, 2, 7, 5), swish=True),
    "one channel": dict(shape=(3, 1, 5, 7), swish=True),
    "no positions": dict(shape=(5, 3)),
    "whole tiles": dict(shape=(2, 16, 512)),
    "one position more": dict(shape=(2, 16, 257), swish=True),
    "96 channels": dict(shape=(2, 96, 2, 5, 7), swish=True, dtype="bfloat16"),
    "192 channels": dict(shape=(2, 192, 1, 5, 7), dtype="float16"),
    "several blocks": dict(shape=(2, 601, 17), swish=True),
    "stream": dict(shape=(2, 20, 1, 7, 5), swish=True, result="bfloat16"),
    "off centre": dict(shape=(2, 5, 131), shift=1000.0),
    "channels last": dict(shape=(2, 5, 3, 7), last=True, swish=True),
}  # fmt: skip

# batch, in, positions..., then out; the interpreter has no products of bfloat16, the compiler and the GPU have
PRODUCTS = {
    "project": dict(shape=(2, 20, 1, 7, 5), out=79),
    "merge": dict(shape=(1, 90, 131), out=20, dtype="float16"),
    "stream": dict(shape=(2, 20, 3, 7, 5), out=10, bias=False),
    "image": dict(shape=(3, 1, 1, 7, 5), out=3, fixed=True),
    "whole blocks": dict(shape=(1, 64, 128), out=64, dtype="float16"),
    "channels last": dict(shape=(2, 5, 3, 7), out=2, last=True),
}  # fmt: skip


def draw(shape, dtype="float32", device="cpu", last=False, shift=0.0):
    """Draw maps of a type, with the channels last in memory if asked."""
    maps = (torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) + shift).to(getattr(torch, dtype))
    return (maps.movedim(1, -1).contiguous().movedim(-1, 1) if last else maps).to(device)


def weights(*shape, device="cpu"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(11)).to(device).requires_grad_()


def compared(out, wanted, inputs, exact):
    """Return the largest errors of a result and its gradients, relative to the largest entry, and the results."""
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out)
    found = (out, *torch.autograd.grad(out, inputs, gradient))
    there = (wanted, *torch.autograd.grad(wanted, exact, gradient.double()))
    result = {}
    for number, (a, b) in enumerate(zip(found, there, strict=True)):
        same = a.shape == b.shape and (number == 0 or a.dtype == inputs[number - 1].dtype)
        largest = b.detach().abs().max().clamp(min=1e-2)
        result[number] = float((a.detach().double() - b.detach()).abs().max() / largest) if same else 1e9
    return result, found


def norm_errors(case, device="cpu"):
    channels, dtype = case["shape"][1], getattr(torch, case.get("result", case.get("dtype", "float32")))
    maps = draw(case["shape"], case.get("dtype", "float32"), device, case.get("last", False), case.get("shift", 0.0))
    inputs = [maps.requires_grad_(), weights(channels, device=device), weights(2, channels, device=device)[1]]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    wanted = layer_norm(exact[0].movedim(1, -1), (channels,), *exact[1:]).movedim(-1, 1)
    swish = case.get("swish", False)
    return compared(_norm(*inputs, swish, 1e-5, dtype), silu(wanted) if swish else wanted, inputs, exact)


def product_errors(case, product, device="cpu"):
    product, inside = getattr(torch, product), case["shape"][1]
    maps = draw(case["shape"], case.get("dtype", "float32"), device, case.get("last", False))
    weight = weights(case["out"], inside, device=device)
    bias = weights(case["out"], device=device) if case.get("bias", True) else None
    inputs = [tensor for tensor in (maps, weight, bias) if tensor is not None]
    fixed = case.get("fixed", False)  # an image needs no gradient
    maps.requires_grad_(not fixed)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    wanted = torch.einsum("oi,bi...->bo...", exact[1], exact[0])
    if bias is not None:
        wanted = wanted + exact[2].view(-1, *[1] * (maps.ndim - 2))
    return compared(_pointwise(maps, weight, bias, product, product), wanted, inputs[fixed:], exact[fixed:])


def is_rough(case):
    """Return whether errors are larger than the rounding of float32.

    They are in half precision; far from zero, where the norm subtracts most digits; and with one channel, of which the
    norm leaves only rounding errors times 1 / sqrt(eps).
    """
    return "dtype" in case or "result" in case or "shift" in case or case["shape"][1] == 1


def check(found, half):
    assert {part: error for part, error in found.items() if not error < (1e-2 if half else 1e-5)} == {}


@pytest.fixture(scope="module")
def interpreted():
    return run_job(__file__, "interpret")


@needs_interpreter
@pytest.mark.parametrize("name", NORMS)
def test_interpreted_norms_agree_with_layer_norm(name, interpreted):
    case = NORMS[name]
    check(interpreted["norms"][name], half=is_rough(case))


@needs_interpreter
@pytest.mark.parametrize("name", PRODUCTS)
def test_interpreted_products_agree_with_linear(name, interpreted):
    check(interpreted["products"][name], half=True)


@needs_interpreter
def test_a_constant_position_is_finite(interpreted):
    assert interpreted["constant"] == [0.0, 0.0]


@pytest.mark.slow
@needs_triton
def test_the_kernels_compile_for_a_gpu_that_is_not_present(tmp_path):
    # The interpreter accepts code that the compiler does not.
    norms = ["forward_kernel", "backward_kernel", "sum_rows_kernel"]
    products = [*["forward_kernel on tensor cores"] * 2, "weight_kernel on tensor cores", "sum_rows_kernel"]
    assert run_job(__file__, "compile", TRITON_CACHE_DIR=str(tmp_path)) == 2 * norms + products


@pytest.mark.gpu
@pytest.mark.parametrize("name", NORMS)
def test_norms_agree_with_layer_norm(name):
    case = NORMS[name] | {"shape": (37, *NORMS[name]["shape"][1:])}
    found, results = norm_errors(case, "cuda")
    check(found, half=is_rough(case))
    again = norm_errors(case, "cuda")[1]
    assert all(torch.equal(first, second) for first, second in zip(results, again, strict=True)), "not the same bytes"


@pytest.mark.gpu
@pytest.mark.parametrize("product", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_agree_with_linear(name, product):
    case = PRODUCTS[name] | {"shape": (37, *PRODUCTS[name]["shape"][1:])}
    found, results = product_errors(case, product, "cuda")
    assert max(found.values()) < (4e-2 if product == "bfloat16" else 1e-2), found
    again = product_errors(case, product, "cuda")[1]
    assert all(torch.equal(first, second) for first, second in zip(results, again, strict=True)), "not the same bytes"


@pytest.mark.gpu
def test_a_cuda_graph_records_the_layers():
    torch.manual_seed(0)
    norm, linear, maps = ChannelNorm(20).cuda(), PointwiseLinear(20, 7).cuda(), torch.randn(3, 20, 4, 7, 5).cuda()
    norm.bias.data.normal_()

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            out = linear(norm(maps))
        return (out, *torch.autograd.grad(out.float().square().sum(), [*norm.parameters(), *linear.parameters()]))

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        with torch.cuda.graph(graph, stream=stream):
            recorded = step()
        maps.normal_()
        graph.replay()
        again = step()
    torch.cuda.synchronize()
    assert all(torch.equal(there, here) for there, here in zip(recorded, again, strict=True))


class OperatorLog(TorchDispatchMode):
    """Records the names of the operators of this package that run inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "unpose":
            self.names.append(function.name().split("::")[1])
        return function(*args, **(kwargs or {}))


@pytest.fixture
def autocast_on_cuda():
    """Enable autocast as ``torch.autocast("cuda")`` does, which without a GPU only warns."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    yield
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


def on_cuda(*shape, **options):
    return torch.empty(shape, device="cuda", **options)


@needs_triton
def test_which_norms_are_fused():
    with FakeTensorMode(), OperatorLog() as log:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert channel_norm(on_cuda(2, 3, 5, dtype=dtype), on_cuda(3), on_cuda(3)).dtype == dtype
        assert log.names == ["channel_norm"] * 3
        channel_norm(on_cuda(2, 3, 5, dtype=torch.float64), *2 * [on_cuda(3, dtype=torch.float64)])
        channel_norm(on_cuda(0, 3, 5), on_cuda(3), on_cuda(3))
        channel_norm(torch.empty(2, 3, 5), torch.empty(3), torch.empty(3))
        with implementation("plain"):
            channel_norm(on_cuda(2, 3, 5), on_cuda(3), on_cuda(3))
        assert len(log.names) == 3
        with pytest.raises(RuntimeError, match="normalized_shape"):
            channel_norm(on_cuda(2, 4, 5), on_cuda(3), on_cuda(3))


@needs_triton
def test_which_products_are_fused(autocast_on_cuda, monkeypatch):
    # Without a GPU torch has no products on CUDA, not even of fake tensors.
    monkeypatch.setattr(fused_pointwise, "_batched_product", lambda maps, weight, bias: maps.dtype)
    with FakeTensorMode(), OperatorLog() as log:
        maps, given = on_cuda(2, 3, 5), (on_cuda(7, 3), on_cuda(7))
        assert pointwise(maps, *given).dtype == torch.bfloat16
        assert pointwise(maps.bfloat16(), given[0], None).shape == (2, 7, 5)
        assert log.names == ["pointwise"] * 2
        with implementation("plain"):
            assert pointwise(maps, *given) == torch.float32
        torch.set_autocast_enabled("cuda", False)
        assert pointwise(maps, *given) == torch.float32
        assert len(log.names) == 2


@needs_triton
def test_under_autocast_sums_of_blocks_are_float32_and_all_else_is_half(autocast_on_cuda):
    blocks = gsa_net("c2", 1, 3, 9, config={"lifted": 4, "stages": [[6, 6]], "heads": 2, "window": 3}).features[2:]
    types = {}

    def note(module, inputs, output):
        types.setdefault(type(module), []).append(output.dtype)

    for module in blocks.modules():
        module.register_forward_hook(note)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), OperatorLog() as log:
        for module in blocks.modules():  # not to_empty, which computes the constants of the group again
            for tensors in (module._parameters, module._buffers):
                tensors.update({name: on_cuda(*t.shape, dtype=t.dtype) for name, t in tensors.items()})
        blocks(on_cuda(2, 4, 2, 9, 9, dtype=torch.bfloat16))
    assert types[type(blocks[-1])] == [torch.float32] * 2
    assert types[ChannelNorm] == [torch.bfloat16] * 9
    assert types[PointwiseLinear] == [torch.bfloat16] * 5
    assert types[GroupSelfAttention] == [torch.bfloat16] * 2
    assert {name: log.names.count(name) for name in log.names} == {
        "channel_norm": 9,
        "pointwise": 9,
        "separable_table": 2,
        "projected_attention": 2,
    }


@pytest.mark.parametrize("swish", [False, True])
def test_on_the_cpu_the_norm_is_layer_norm(swish, generator):
    maps = torch.randn(2, 3, 4, 5, 7, generator=generator, dtype=torch.float64)
    norm = ChannelNorm(3, swish=swish).double()
    torch.nn.init.normal_(norm.weight, generator=generator)
    wanted = layer_norm(maps.movedim(1, -1), (3,), norm.weight, norm.bias).movedim(-1, 1)
    assert torch.equal(norm(maps), silu(wanted) if swish else wanted)
    assert f"swish={swish}" in repr(norm)


@pytest.mark.parametrize(
    "shape", [(2, 3), (2, 3, 5), (2, 3, 4, 5, 7), (0, 3, 4, 5)], ids=lambda shape: f"{len(shape)} axes"
)
@pytest.mark.parametrize("bias", [False, True])
def test_products_keep_the_channels_on_axis_1(shape, bias, generator):
    layer = PointwiseLinear(3, 2, bias=bias).double()
    maps = torch.randn(shape, generator=generator, dtype=torch.float64)
    wanted = torch.nn.functional.linear(maps.movedim(1, -1), layer.weight, layer.bias).movedim(-1, 1)
    found = layer(maps)
    torch.testing.assert_close(found, wanted)
    assert found.is_contiguous()


def test_names_of_saved_weights_stay():
    names = set(gsa_net("c2", 1, 3, 9, config={"lifted": 4, "stages": [[6]], "heads": 2, "window": 3}).state_dict())
    assert {"features.2.weight", "features.4.attention.2.project.weight", "features.4.attention.3.bias"} <= names
    assert {"features.4.pointwise.1.weight", "features.4.pointwise.3.bias", "features.4.pointwise.4.weight"} <= names


def interpret():
    """Return the errors of every case in the interpreter, and check that torch accepts the operators."""
    from unpose.nn.ops.cuda import norm as norm_kernels
    from unpose.nn.ops.cuda import pointwise as pointwise_kernels
    from unpose.nn.ops.cuda import reduce

    use_cuda_kernels_on_cpu()
    norm_kernels._PROGRAMS, pointwise_kernels._PROGRAMS = 3, 7
    reduce._BLOCK_ROWS, reduce._BLOCK_COLUMNS = 4, 256  # few programs: each takes the interpreter long
    checks = ("test_schema", "test_faketensor")
    maps, weight, gradient = draw((2, 5, 3, 7)), weights(5).detach(), draw((2, 3, 3, 7), "float16")
    torch.library.opcheck(_norm, (maps, weight, weight, True, 1e-5, torch.bfloat16), test_utils=checks)
    torch.library.opcheck(_norm_backward, (maps, maps, weight, weight, True, 1e-5), test_utils=checks)
    half = torch.float16
    torch.library.opcheck(_pointwise, (maps, weights(3, 5).detach(), None, half, half), test_utils=checks)
    torch.library.opcheck(_weight_gradient, (gradient, maps, half), test_utils=checks)
    constant = torch.ones(2, 3, 5, requires_grad=True)
    normed = _norm(constant, torch.ones(3), torch.zeros(3), False, 1e-5, torch.float32)
    (grad_constant,) = torch.autograd.grad(normed.sum(), constant)
    return {
        "norms": {name: norm_errors(case)[0] for name, case in NORMS.items()},
        "products": {name: product_errors(case, "float16")[0] for name, case in PRODUCTS.items()},
        "constant": [normed.detach().abs().max().item(), grad_constant.abs().max().item()],
    }


def compile_kernels():
    """Compile the launches of a network's layers for compute capability 9.0, and return the names of the kernels."""
    from unpose.nn.ops.cuda import norm as norm_kernels
    from unpose.nn.ops.cuda import pointwise as pointwise_kernels

    names = compile_only()
    half = torch.bfloat16
    for channels, dtype in ((20, torch.float32), (300, half)):
        maps, weight = torch.empty(2, channels, 4, 28, 28, dtype=dtype), torch.empty(channels)
        out = norm_kernels.forward(maps, weight, weight, True, 1e-5, half)
        norm_kernels.backward(out, maps, weight, weight, True, 1e-5)
    maps, weight = torch.empty(2, 20, 4, 28, 28), torch.empty(270, 20)
    out = pointwise_kernels.forward(maps, weight, weight[:, 0].contiguous(), half, half)
    pointwise_kernels.forward(out, weight.t(), None, half, torch.float32)
    pointwise_kernels.weight_gradient(out, maps, half)
    return names


if __name__ == "__main__":
    answer_job(interpret=interpret, compile=compile_kernels)
