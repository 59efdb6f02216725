"""The separable encoding as a table on a GPU: on one where there is one, and by Triton's interpreter and compiler."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from absent_gpu import answer, child, compile_only, needs_gpu, needs_interpreter, needs_triton
from unpose.nn import GroupSelfAttention, LiftingSelfAttention, implementation, position_table
from unpose.nn.functional.group_attention import joint_table
from unpose.nn.ops.encoding import _table, _table_backward, has_table, separable_table

# group, channels, window; then what is special
CASES = {
    "published": dict(shape=("c4", 10, (5, 5))),
    "uneven": dict(shape=("d3", 7, (3, 5))),
    "lifting": dict(shape=("c3", 5, (5, 3)), lifting=True),
    "dilations": dict(shape=("dilations(3, 1.5)", 4, (9, 7))),
    "several tiles": dict(shape=("c2", 6, (13, 11)), programs=4),
    "wide heads": dict(shape=("c2", 37, (3, 3))),
    "one offset": dict(shape=("c1", 3, (1, 1))),
    "bfloat16": dict(shape=("c4", 10, (5, 5)), kind="bfloat16"),
}  # fmt: skip


def layer(case):
    """A layer with weights of which none is one or zero."""
    group, channels, _ = case["shape"]
    torch.manual_seed(3)
    if case.get("lifting", False):
        found = LiftingSelfAttention(group, 2, 3, heads=1, head_channels=channels, window=5)
    else:
        found = GroupSelfAttention(group, 2, 3, heads=1, head_channels=channels, window=5)
    for weight in found.encoding.parameters():
        torch.nn.init.normal_(weight)
    return found


def errors(case, device="cpu"):
    """Largest errors of the table's parts and of each weight's gradient, relative to the largest entry; the results."""
    held, window = layer(case).to(device), case["shape"][2]
    exact = copy.deepcopy(held).double()
    kind = getattr(torch, case.get("kind", "float32"))
    position, element = separable_table(held.encoding, held.inverses, held.relations, window, kind)
    table = position_table(exact.encoding, exact.inverses, exact.relations, window)
    whole = position if element is None else joint_table(position, element)
    assert whole.shape == table.shape
    c = position.shape[-1]
    parts, wanted = [position], [table[:, :, :1, ..., :c]]  # of all keys alike
    if element is not None:
        parts, wanted = [*parts, element], [*wanted, table[:, :, :, 0, 0, c:]]
    generator = torch.Generator().manual_seed(5)
    gradients = [torch.randn(part.shape, generator=generator).to(device).to(kind) for part in wanted]
    found = whole, *torch.autograd.grad(parts, list(held.encoding.parameters()), gradients)
    exact_gradients = [gradient.double() for gradient in gradients]
    there = table, *torch.autograd.grad(wanted, list(exact.encoding.parameters()), exact_gradients)
    pairs = [(a.detach().double(), b.detach()) for a, b in zip(found, there, strict=True)]
    if any(a.shape != b.shape for a, b in pairs) or whole.dtype != kind:
        return [1e9], found
    return [float((a - b).abs().max() / b.abs().max().clamp(min=1e-2)) for a, b in pairs], found


def check(found, case):
    assert found[0] < (1e-2 if "kind" in case else 1e-5), found
    assert max(found[1:]) < 1e-5, found  # sums of gradients are float32 whatever the table is


@pytest.fixture(scope="module")
def interpreted():
    return child(__file__, "interpret")


@needs_interpreter
@pytest.mark.parametrize("name", CASES)
def test_the_interpreted_table_is_torchs(name, interpreted):
    check(interpreted[name], CASES[name])


@needs_triton
def test_the_kernels_compile_for_a_gpu_that_is_not_here(tmp_path):
    # The interpreter takes what the compiler does not.
    expected = ["table_kernel", "weights_kernel", "rows_kernel"] * 3
    assert child(__file__, "compile", TRITON_CACHE_DIR=str(tmp_path)) == expected


@needs_gpu
@pytest.mark.parametrize("name", CASES)
def test_the_table_is_torchs(name):
    found, results = errors(CASES[name], "cuda")
    check(found, CASES[name])
    again = errors(CASES[name], "cuda")[1]
    assert all(torch.equal(first, second) for first, second in zip(results, again, strict=True)), "not the same bytes"


@needs_gpu
def test_a_table_for_global_attention():
    # 55 x 55 offsets and 12 x 12 pairs: many tiles a program, many rows of sums
    case = dict(shape=("c12", 10, (55, 55)))
    found, _ = errors(case, "cuda")
    assert max(found) < 1e-4, found


@needs_triton
def test_which_tables_are_fused():
    maps, exact = layer(CASES["published"]), layer(CASES["published"]).double()
    wide = GroupSelfAttention("c2", 2, 3, heads=1, head_channels=301, window=3)
    paper = GroupSelfAttention("c2", 2, 3, heads=1, head_channels=6, window=3, mode="paper")
    assert not has_table(maps.encoding, maps.inverses, maps.relations), "on the CPU"
    with FakeTensorMode(allow_non_fake_inputs=True):
        for module in (maps, exact, wide, paper):
            module.to_empty(device="cuda")
        assert has_table(maps.encoding, maps.inverses, maps.relations)
        assert not has_table(wide.encoding, wide.inverses, wide.relations)
        assert not has_table(paper.encoding, paper.inverses, paper.relations)
        with implementation("plain"):
            assert not has_table(maps.encoding, maps.inverses, maps.relations)
        assert not has_table(exact.encoding, exact.inverses, exact.relations)


def interpret():
    """Errors of every case in the interpreter; on the way, whether torch finds the operators to be what they say."""
    from unpose.nn.ops.cuda import encoding as encoding_cuda
    from unpose.nn.ops.cuda import reduce as sums_cuda

    found = {}
    for name, case in CASES.items():
        encoding_cuda._PROGRAMS, sums_cuda._ROWS = case.get("programs", 256), 4
        found[name] = errors(case)[0]
    held = layer(CASES["published"])
    numbers = 5, 3, 2.0, 1e-3
    weights = list(held.encoding.parameters())
    given = weights, held.inverses, held.relations, *numbers
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(_table, (*given, torch.bfloat16), test_utils=checks)
    fixed = [weight.detach() for weight in weights], *given[1:]
    gradients = [torch.ones_like(part) for part in _table(*fixed, torch.float32)]
    torch.library.opcheck(_table_backward, (*gradients, *fixed), test_utils=("test_schema", "test_faketensor"))
    return found


def compile_kernels():
    """Launches of three encodings, compiled to machine code for compute capability 9.0; the kernels' names."""
    from unpose.nn.ops.cuda import encoding as encoding_cuda

    names = compile_only()
    for name in ("bfloat16", "lifting", "several tiles"):
        encoding_cuda._PROGRAMS = CASES[name].get("programs", 256)
        held, kind = layer(CASES[name]), getattr(torch, CASES[name].get("kind", "float32"))
        weights, window = list(held.encoding.parameters()), CASES[name]["shape"][2]
        given = weights, held.inverses, held.relations, window, 2.0, 1e-3
        parts = encoding_cuda.forward(*given, kind)
        encoding_cuda.backward(*parts, *given)
    return names


if __name__ == "__main__":
    answer(interpret=interpret, compile=compile_kernels)
