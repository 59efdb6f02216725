"""Fused group attention as a PyTorch operator, and the estimate of the memory it needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from unpose.nn import GroupSelfAttention, estimate_memory, group_attention, implementation
from unpose.nn.ops.dispatch import OPERATORS

projected_attention = OPERATORS["projected_attention"].run


def layer_and_maps(generator, dropout=0.0):
    torch.manual_seed(0)
    layer = GroupSelfAttention("c3", 2, 3, heads=2, head_channels=3, window=3, attention_dropout=dropout)
    return layer, torch.rand(2, 2, 3, 5, 7, generator=generator)


def operators(graph):
    """Names of our operators in a graph."""
    return [str(node.target) for node in graph.nodes if "unpose" in str(node.target)]


@pytest.mark.parametrize("bias", [False, True])
def test_the_operator_passes_the_checks_of_torch(bias, generator):
    def draw(*shape):
        return torch.randn(shape, generator=generator, requires_grad=True)

    given = [draw(2, 3, 1, 5, 7, 4), draw(2, 3, 2, 5, 7, 4), draw(2, 3, 2, 5, 7, 6), draw(1, 3, 2, 3, 5, 4)]
    given += [draw(1, 3, 2, 3, 5) if bias else None]
    check_operators("group_attention", given)


def check_operators(name, given):
    """Run torch's own checks on an operator and on its backward operator; ``given`` are tensors and Nones."""
    forward, backward = getattr(torch.ops.unpose, name), getattr(torch.ops.unpose, f"{name}_backward")
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    seed_and_dropout = torch.tensor(11), 0.25
    torch.library.opcheck(forward, (*given, *seed_and_dropout), test_utils=checks)
    tensors = [tensor if tensor is None else tensor.detach() for tensor in given]
    out, logsumexp, *_ = forward(*tensors, *seed_and_dropout)
    backward_inputs = (torch.ones_like(out), *tensors, out, logsumexp, *seed_and_dropout)
    torch.library.opcheck(backward, backward_inputs, test_utils=("test_schema", "test_faketensor"))


def test_the_saved_logsumexp_is_a_natural_logarithm(generator):
    # Scores of zero: the logsumexp is the logarithm of the number of keys in the window.
    maps, position = torch.zeros(1, 1, 2, 5, 7, 3), torch.randn(1, 2, 2, 3, 3, 3, generator=generator)
    _, logsumexp = torch.ops.unpose.group_attention(maps, maps, maps, position, None, None, 0.0)
    inside = torch.nn.functional.conv2d(torch.ones(1, 1, 5, 7), torch.ones(1, 1, 3, 3), padding=1)
    torch.testing.assert_close(logsumexp, (2 * inside).log().expand(1, 1, 2, 5, 7))


@pytest.mark.parametrize("bias", [False, True])
def test_the_projected_operator_passes_the_checks_of_torch(bias, generator):
    projected = torch.randn(2, 3, 3, 4, 2, 5, 7, generator=generator, requires_grad=True)
    position = torch.randn(1, 2, 2, 3, 5, 4, generator=generator, requires_grad=True)
    extra = torch.randn(1, 2, 2, 3, 5, generator=generator, requires_grad=True) if bias else None
    check_operators("projected_attention", (projected, position, None, extra))


@pytest.mark.parametrize("kind", ["fused", "plain"])
@pytest.mark.parametrize(("keys", "bias", "dropout"), [(3, True, 0.25), (1, False, 0.0)], ids=["group", "lifting"])
def test_a_projected_tensor_gives_the_bytes_of_three_tensors(kind, keys, bias, dropout, generator):
    projected = torch.randn(2, 3, 2, 5, keys, 7, 6, generator=generator, requires_grad=True)
    position = torch.randn(1, 3, keys, 3, 5, 5, generator=generator, requires_grad=True)
    extra = torch.randn(2, 3, keys, 3, 5, generator=generator) if bias else None

    def results(attend):
        torch.manual_seed(3)
        out = attend()
        gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        return out, *torch.autograd.grad(out, (projected, position), gradient)

    with implementation(kind):
        found = results(lambda: projected_attention(projected, position, bias=extra, dropout=dropout))
        wanted = results(
            lambda: group_attention(*projected.permute(1, 0, 2, 4, 5, 6, 3), position, bias=extra, dropout=dropout)
        )
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_projected_tensor_is_checked_and_has_no_second_derivative(generator):
    projected = torch.randn(1, 3, 1, 2, 2, 3, 5, generator=generator, requires_grad=True)
    with pytest.raises(ValueError, match="same group"):
        projected_attention(projected, torch.zeros(1, 3, 3, 3, 3, 2))
    out = projected_attention(projected, torch.zeros(1, 2, 2, 3, 3, 2))
    (gradient,) = torch.autograd.grad(out.square().sum(), projected, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        gradient.sum().backward()


def test_compiled_graphs_contain_one_operator(generator):
    layer, maps = layer_and_maps(generator, dropout=0.25)
    recorded = []

    def record(module, inputs):
        recorded.extend(operators(module.graph))
        return module.forward

    compiled = torch.compile(layer, backend=record, fullgraph=True)
    torch.manual_seed(5)
    found = compiled(maps)
    assert recorded == ["unpose.projected_attention"] or recorded == ["unpose.projected_attention.default"], recorded
    torch.manual_seed(5)
    wanted = layer(maps)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), layer.parameters()),
        torch.autograd.grad(wanted.square().sum(), layer.parameters()),
    )


@pytest.mark.slow
def test_exported_programs_contain_one_operator(generator):
    layer, maps = layer_and_maps(generator)
    program = torch.export.export(layer.eval(), (maps,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=9)},))
    assert operators(program.graph) == ["unpose.projected_attention.default"]
    more = torch.rand(5, 2, 3, 5, 7, generator=generator)
    torch.testing.assert_close(program.module()(more), layer(more))
    with implementation("plain"):
        program = torch.export.export(layer, (maps,))
    assert operators(program.graph) == []


def shapes(batch, heads, order, size, window=5, channels=10):
    maps = torch.empty(batch, heads, order, *size, channels, device="meta")
    return maps, maps, maps, torch.empty(1, order, order, window, window, channels, device="meta")


def test_memory_grows_with_pixels_and_elements_but_hardly_with_the_window():
    one = estimate_memory(*shapes(4, 9, 4, (64, 64)), threads=2)
    assert 3.4 < estimate_memory(*shapes(4, 9, 4, (128, 128)), threads=2) / one < 4.1
    assert 1.8 < estimate_memory(*shapes(4, 9, 8, (64, 64)), threads=2) / one < 2.3
    assert estimate_memory(*shapes(4, 9, 4, (64, 64), window=11), threads=2) / one < 1.5
    assert estimate_memory(*shapes(1, 9, 8, (256, 256)), threads=2) < 2 * 2**30
    with pytest.raises(ValueError, match="odd height and width"):
        estimate_memory(*shapes(1, 1, 2, (8, 8), window=4))


MEASURE = """
import json, torch
from unpose.nn import estimate_memory, group_attention
def attend(*shape):
    maps = [torch.rand(*shape, 10).requires_grad_() for _ in range(3)]
    table = torch.rand(1, shape[2], shape[2], 5, 5, 10).requires_grad_()
    out = group_attention(*maps, table)
    out.backward(torch.rand(out.shape))
    return estimate_memory(*maps, table)
def resident(name):
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(name))
torch.set_num_threads(1)
attend(1, 1, 3, 7, 7)
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")  # resets the peak
before = resident("VmRSS")
print(json.dumps([attend(2, 3, 6, 101, 97), resident("VmHWM") - before]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc to read the peak of a process from")
def test_a_process_takes_as_much_memory_as_estimated():
    answer = subprocess.run([sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True)
    estimate, measured = json.loads(answer.stdout)
    assert 0.8 < measured / estimate < 1.2, (estimate, measured)
