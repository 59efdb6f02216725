"""The CUDA kernels of separable tables: in Triton's interpreter and compiler, and on a GPU where there is one."""

import copy

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
from unpose.nn import GroupSelfAttention, LiftingSelfAttention, implementation, position_table
from unpose.nn.functional.group_attention import joint_table
from unpose.nn.ops.encoding import _table, _table_backward, separable_table, use_separable_table

# group, channels, window; then what is special
CASES = {
    "published": dict(shape=("c4", 10, (5, 5))),
    "uneven": dict(shape=("d1", 7, (3, 5))),
    "lifting": dict(shape=("c3", 5, (5, 3)), lifting=True),
    "dilations": dict(shape=("dilations(3, 1.5)", 4, (5, 3))),
    "several blocks": dict(shape=("c2", 6, (5, 7)), programs=4),
    "wide heads": dict(shape=("c2", 37, (3, 3))),
    "one offset": dict(shape=("c1", 3, (1, 1))),
    "bfloat16": dict(shape=("c2", 10, (5, 5)), dtype="bfloat16"),
}  # fmt: skip


def layer(case):
    """Make a layer none of whose weights is 1 or 0."""
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
    """Return the largest relative errors of the table and of the gradient of each weight, and the results."""
    module, window = layer(case).to(device), case["shape"][2]
    exact = copy.deepcopy(module).double()
    dtype, weights = getattr(torch, case.get("dtype", "float32")), list(module.encoding.parameters())
    constants = {"reach": module.encoding.reach, "eps": module.encoding.along_x[1].eps, "dtype": dtype}
    position, element = separable_table(weights, module.inverses, module.relations, window, **constants)
    table = position_table(exact.encoding, exact.inverses, exact.relations, window)
    whole = position if element is None else joint_table(position, element)
    assert whole.shape == table.shape
    c = position.shape[-1]
    parts, wanted = [position], [table[:, :, :1, ..., :c]]  # the same for all keys
    if element is not None:
        parts, wanted = [*parts, element], [*wanted, table[:, :, :, 0, 0, c:]]
    generator = torch.Generator().manual_seed(5)
    gradients = [torch.randn(part.shape, generator=generator).to(device).to(dtype) for part in wanted]
    found = whole, *torch.autograd.grad(parts, weights, gradients)
    exact_gradients = [gradient.double() for gradient in gradients]
    there = table, *torch.autograd.grad(wanted, list(exact.encoding.parameters()), exact_gradients)
    pairs = [(a.detach().double(), b.detach()) for a, b in zip(found, there, strict=True)]
    if any(a.shape != b.shape for a, b in pairs) or whole.dtype != dtype:
        return [1e9], found
    return [float((a - b).abs().max() / b.abs().max().clamp(min=1e-2)) for a, b in pairs], found


def check(found, case):
    assert found[0] < (1e-2 if "dtype" in case else 1e-5), found
    assert max(found[1:]) < 1e-5, found  # gradients are summed in float32 whatever the type of the table


@pytest.fixture(scope="module")
def interpreted():
    return run_job(__file__, "interpret")


@needs_interpreter
@pytest.mark.parametrize("name", CASES)
def test_the_interpreted_table_agrees_with_pytorch(name, interpreted):
    check(interpreted[name], CASES[name])


@pytest.mark.slow
@needs_triton
def test_the_kernels_compile_for_a_gpu_that_is_not_present(tmp_path):
    # The interpreter accepts code that the compiler does not.
    expected = ["table_kernel", "weight_gradient_kernel", "sum_rows_kernel"] * 3
    assert run_job(__file__, "compile", TRITON_CACHE_DIR=str(tmp_path)) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_table_agrees_with_pytorch(name):
    found, results = errors(CASES[name], "cuda")
    check(found, CASES[name])
    again = errors(CASES[name], "cuda")[1]
    assert all(torch.equal(first, second) for first, second in zip(results, again, strict=True)), "not the same bytes"


@pytest.mark.gpu
def test_a_table_for_global_attention():
    # 55 x 55 offsets and 12 x 12 pairs: many blocks a program, many partial sums
    case = dict(shape=("c12", 10, (55, 55)))
    found, _ = errors(case, "cuda")
    assert max(found) < 1e-4, found


@needs_triton
def test_which_tables_are_fused():
    def is_fused(module, device="cuda"):
        tensors = *module.encoding.parameters(), module.inverses, module.relations
        *weights, inverses, relations = (torch.empty(t.shape, dtype=t.dtype, device=device) for t in tensors)
        return use_separable_table(weights, inverses, relations)

    published, exact = layer(CASES["published"]), layer(CASES["published"]).double()
    wide = GroupSelfAttention("c2", 2, 3, heads=1, head_channels=301, window=3)
    paper = GroupSelfAttention("c2", 2, 3, heads=1, head_channels=6, window=3, mode="paper")
    with FakeTensorMode():
        assert is_fused(published)
        assert not is_fused(published, "cpu")
        assert not is_fused(wide)
        assert not is_fused(paper)
        assert not is_fused(exact)
        with implementation("plain"):
            assert not is_fused(published)


def interpret():
    """Return the errors of every case in the interpreter, and check that torch accepts the operators."""
    from unpose.nn.ops.cuda import encoding as kernels
    from unpose.nn.ops.cuda import reduce

    use_cuda_kernels_on_cpu()
    found = {}
    reduce._BLOCK_ROWS, reduce._BLOCK_COLUMNS = 4, 128  # few programs: each takes the interpreter long
    for name, case in CASES.items():
        kernels._PROGRAMS = case.get("programs", 256)
        found[name] = errors(case)[0]
    module = layer(CASES["published"])
    weights = list(module.encoding.parameters())
    given = weights, module.inverses, module.relations, 5, 3, 2.0, 1e-3
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(_table, (*given, torch.bfloat16), test_utils=checks)
    fixed = [weight.detach() for weight in weights], *given[1:]
    gradients = [torch.ones_like(part) for part in _table(*fixed, torch.float32)]
    torch.library.opcheck(_table_backward, (*gradients, *fixed), test_utils=("test_schema", "test_faketensor"))
    return found


def compile_kernels():
    """Compile the launches of three encodings for compute capability 9.0, and return the names of the kernels."""
    from unpose.nn.ops.cuda import encoding as kernels

    names = compile_only()
    for name in ("bfloat16", "lifting", "several blocks"):
        kernels._PROGRAMS = CASES[name].get("programs", 256)
        module, dtype = layer(CASES[name]), getattr(torch, CASES[name].get("dtype", "float32"))
        weights, window = list(module.encoding.parameters()), CASES[name]["shape"][2]
        given = weights, module.inverses, module.relations, window, 2.0, 1e-3
        parts = kernels.forward(*given, dtype)
        kernels.backward(*parts, *given)
    return names


if __name__ == "__main__":
    answer_job(interpret=interpret, compile=compile_kernels)
