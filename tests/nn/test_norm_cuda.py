"""The CUDA kernels of norms and pointwise products: in Triton's interpreter and compiler, and on a GPU if present."""

from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import layer_norm, silu
from torch.utils._python_dispatch import TorchDispatchMode

from kit.kernels import Kernel, kernel_tests, needs_triton, results_and_gradients
from unpose.nn import ChannelNorm, GroupSelfAttention, PointwiseLinear, gsa_net, implementation
from unpose.nn.ops.dispatch import OPERATORS


@dataclass(frozen=True)
class Norm:
    """Maps (batch, channels, ...); ``result`` is the type of the result, that of the maps by default."""

    shape: tuple
    dtype: str = "float32"
    result: str | None = None
    swish: bool = False
    shift: float = 0.0
    last: bool = False

    @property
    def is_rough(self):
        """Whether errors are larger than the rounding of float32.

        They are in half precision; far from zero, where the norm subtracts most digits; and with one channel, of which
        the norm leaves only rounding errors times 1 / sqrt(eps).
        """
        return self.dtype != "float32" or bool(self.result) or self.shift != 0 or self.shape[1] == 1


@dataclass(frozen=True)
class Product:
    """Maps (batch, in, ...) to ``out`` channels; ``last``: the channels are last in memory; ``fixed``: an image."""

    shape: tuple
    out: int
    dtype: str = "float32"
    product: str = "float16"  # the interpreter has no products of bfloat16, the compiler and the GPU have
    bias: bool = True
    fixed: bool = False
    last: bool = False
    shift: float = 0.0


NORMS = {
    "published": Norm((3, 20, 2, 7, 5), swish=True),
    "one channel": Norm((3, 1, 5, 7), swish=True),
    "no positions": Norm((5, 3)),
    "whole tiles": Norm((2, 16, 512)),
    "one position more": Norm((2, 16, 257), swish=True),
    "96 channels": Norm((2, 96, 2, 5, 7), swish=True, dtype="bfloat16"),
    "192 channels": Norm((2, 192, 1, 5, 7), dtype="float16"),
    "several blocks": Norm((2, 601, 17), swish=True),
    "stream": Norm((2, 20, 1, 7, 5), swish=True, result="bfloat16"),
    "off centre": Norm((2, 5, 131), shift=1000.0),
    "channels last": Norm((2, 5, 3, 7), last=True, swish=True),
}
PRODUCTS = {
    "project": Product((2, 20, 1, 7, 5), out=79),
    "merge": Product((1, 90, 131), out=20, dtype="float16"),
    "stream": Product((2, 20, 3, 7, 5), out=10, bias=False),
    "image": Product((3, 1, 1, 7, 5), out=3, fixed=True),
    "whole blocks": Product((1, 64, 128), out=64, dtype="float16"),
    "channels last": Product((2, 5, 3, 7), out=2, last=True),
}


def draw(case, device):
    """Draw maps, with the channels last in memory if asked."""
    maps = torch.randn(case.shape, generator=torch.Generator().manual_seed(len(case.shape))) + case.shift
    maps = maps.to(getattr(torch, case.dtype))
    return (maps.movedim(1, -1).contiguous().movedim(-1, 1) if case.last else maps).to(device)


def weights(*shape, device="cpu"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(11)).to(device).requires_grad_()


def norm_inputs(case, device):
    channels = case.shape[1]
    others = weights(channels, device=device), weights(2, channels, device=device)[1].detach().requires_grad_()
    return [draw(case, device).requires_grad_(), *others]


def norm(case, device):
    few_programs(device)
    dtype = getattr(torch, case.result or case.dtype)
    return results_and_gradients(
        lambda *given: torch.ops.unpose.channel_norm(*given, case.swish, 1e-5, dtype), norm_inputs(case, device)
    )


def plain_norm(case, device):
    def normed(maps, weight, bias):
        found = layer_norm(maps.movedim(1, -1), weight.shape, weight, bias).movedim(-1, 1)
        return silu(found) if case.swish else found

    return results_and_gradients(normed, doubles(norm_inputs(case, device)))


def product_inputs(case, device):
    maps = draw(case, device).requires_grad_(not case.fixed)
    return [maps, weights(case.out, case.shape[1], device=device), weights(case.out, device=device)][: 2 + case.bias]


def product(case, device):
    few_programs(device)
    dtype = getattr(torch, case.product)
    return results_and_gradients(
        lambda maps, weight, bias=None: torch.ops.unpose.pointwise(maps, weight, bias, dtype, dtype),
        product_inputs(case, device),
    )


def plain_product(case, device):
    def mapped(maps, weight, bias=None):
        found = torch.einsum("oi,bi...->bo...", weight, maps)
        return found if bias is None else found + bias.view(-1, *[1] * (maps.ndim - 2))

    return results_and_gradients(mapped, doubles(product_inputs(case, device)))


def doubles(inputs):
    return [each.detach().double().requires_grad_(each.requires_grad) for each in inputs]


def few_programs(device):
    """In the interpreter, let each program take several tiles, and sum in few programs: each takes long."""
    if device == "cpu":
        from unpose.nn.ops.cuda import norm, pointwise, reduce

        norm._PROGRAMS, pointwise._PROGRAMS, reduce._BLOCK_ROWS, reduce._BLOCK_COLUMNS = 3, 7, 4, 256


def on_gpu(cases, **changes):
    return {name: replace(case, shape=(37, *case.shape[1:]), **changes) for name, case in cases.items()}


STEP = ["forward_kernel", "backward_kernel", "sum_rows_kernel"]
PRODUCT_STEP = [*["forward_kernel on tensor cores"] * 2, "weight_kernel on tensor cores", "sum_rows_kernel"]
KERNELS = {
    "norm": Kernel(
        norm,
        plain_norm,
        NORMS,
        lambda case: 1e-2 if case.is_rough else 1e-5,
        on_gpu(NORMS),
        {"of float32": STEP, "of many channels": STEP},
        {
            "of float32": Norm((2, 20, 4, 28, 28), swish=True, result="bfloat16"),
            "of many channels": Norm((2, 300, 4, 28, 28), swish=True, dtype="bfloat16"),
        },
    ),
    "product": Kernel(
        product,
        plain_product,
        PRODUCTS,
        lambda case: 4e-2 if case.product == "bfloat16" else 1e-2,
        on_gpu(PRODUCTS) | {f"{name}, bfloat16": case for name, case in on_gpu(PRODUCTS, product="bfloat16").items()},
        {"of a layer": PRODUCT_STEP},
        {"of a layer": Product((2, 20, 4, 28, 28), out=270, product="bfloat16")},
    ),
}
test_interpreted, test_compiled, test_on_a_gpu = kernel_tests(__file__, KERNELS)


@pytest.mark.gpu
def test_a_constant_position_is_finite():
    constant = torch.ones(2, 3, 5, device="cuda", requires_grad=True)
    given = constant, torch.ones(3, device="cuda"), torch.zeros(3, device="cuda"), False, 1e-5, torch.float32
    normed = torch.ops.unpose.channel_norm(*given)
    # The mean of ones may err in the last bit, which the inverse deviation of a constant, 316, enlarges.
    assert normed.abs().max() < 1e-4
    assert torch.autograd.grad(normed.sum(), constant)[0].abs().max() < 1e-2


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
    channel_norm = OPERATORS["channel_norm"].run
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
def test_which_products_are_fused(autocast_on_cuda):
    pointwise = OPERATORS["pointwise"].run
    with FakeTensorMode(), OperatorLog() as log:
        maps, given = on_cuda(2, 3, 5), (on_cuda(7, 3), on_cuda(7))
        assert pointwise(maps, *given).dtype == torch.bfloat16
        assert pointwise(maps.bfloat16(), given[0], None).shape == (2, 7, 5)
        assert log.names == ["pointwise"] * 2
        with suppress(RuntimeError):  # without a GPU torch has no products on CUDA, not even of fake tensors
            OPERATORS["pointwise"].plain(maps, *given)
        torch.set_autocast_enabled("cuda", False)
        with suppress(RuntimeError):
            pointwise(maps, *given)
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
