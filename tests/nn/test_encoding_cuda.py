"""The CUDA kernels of separable tables: in Triton's interpreter and compiler, and on a GPU where there is one."""

import copy
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kit.kernels import Kernel, kernel_tests, needs_triton, results_and_gradients
from unpose.nn import GroupSelfAttention, LiftingSelfAttention, implementation, position_table
from unpose.nn.ops.encoding import use_separable_table


@dataclass(frozen=True)
class Case:
    group: str
    channels: int
    window: tuple
    lifting: bool = False
    dtype: str = "float32"
    programs: int = 256
    tolerance: float = 1e-5


CASES = {
    "published": Case("c4", 10, (5, 5)),
    "uneven": Case("d1", 7, (3, 5)),
    "lifting": Case("c3", 5, (5, 3), lifting=True),
    "dilations": Case("dilations(3, 1.5)", 4, (5, 3)),
    "several blocks": Case("c2", 6, (5, 7), programs=4),
    "wide heads": Case("c2", 37, (3, 3)),
    "one offset": Case("c1", 3, (1, 1)),
    "bfloat16": Case("c2", 10, (5, 5), dtype="bfloat16", tolerance=1e-2),
}
# 55 x 55 offsets and 12 x 12 pairs: many blocks a program, many partial sums
GLOBAL = Case("c12", 10, (55, 55), tolerance=1e-4)


def layer(case, **options):
    """Make a layer none of whose weights is 1 or 0."""
    torch.manual_seed(3)
    kind = LiftingSelfAttention if case.lifting else GroupSelfAttention
    found = kind(case.group, 2, 3, heads=1, head_channels=case.channels, window=5, **options)
    for weight in found.encoding.parameters():
        torch.nn.init.normal_(weight)
    return found


def table(case, device):
    """Both parts of the table, the second empty for a lifting layer, and the gradients of all weights."""
    if device == "cpu":
        from unpose.nn.ops.cuda import encoding, reduce

        encoding._PROGRAMS, reduce._BLOCK_ROWS, reduce._BLOCK_COLUMNS = case.programs, 4, 128  # each takes long
    module = layer(case).to(device)
    constants = module.inverses, module.relations, *case.window, module.encoding.reach, module.encoding.along_x[1].eps
    found = results_and_gradients(
        lambda *weights: parts(torch.ops.unpose.separable_table(weights, *constants, getattr(torch, case.dtype))),
        list(module.encoding.parameters()),
    )
    assert found[0].dtype == getattr(torch, case.dtype)
    return found


def parts(found):
    return tuple(part for part in found if part.numel())


def plain_table(case, device):
    """The same from the whole table in float64: the channels of x and y are the same for all keys."""
    module = copy.deepcopy(layer(case)).to(device).double()
    c = module.encoding.along_x[-1].out_features + module.encoding.along_y[-1].out_features

    def halves(*_):
        whole = position_table(module.encoding, module.inverses, module.relations, case.window)
        return parts((whole[:, :, :1, ..., :c], whole[:, :, :, 0, 0, c:]))

    return results_and_gradients(halves, list(module.encoding.parameters()))


STEP = ["table_kernel", "weight_gradient_kernel", "sum_rows_kernel"]
KERNELS = {
    "table": Kernel(
        table,
        plain_table,
        CASES,
        lambda case: case.tolerance,
        CASES | {"of global attention": GLOBAL},
        dict.fromkeys(("bfloat16", "lifting", "several blocks"), STEP),
    )
}
test_interpreted, test_compiled, test_on_a_gpu = kernel_tests(__file__, KERNELS)


@needs_triton
def test_which_tables_are_fused():
    def is_fused(module, device="cuda"):
        tensors = *module.encoding.parameters(), module.inverses, module.relations
        *weights, inverses, relations = (torch.empty(t.shape, dtype=t.dtype, device=device) for t in tensors)
        return use_separable_table(weights, inverses, relations)

    published, exact = layer(CASES["published"]), layer(CASES["published"]).double()
    wide, paper = layer(Case("c2", 301, (3, 3))), layer(CASES["bfloat16"], mode="paper")
    with FakeTensorMode():
        assert is_fused(published)
        assert not is_fused(published, "cpu")
        assert not is_fused(wide)
        assert not is_fused(paper)
        assert not is_fused(exact)
        with implementation("plain"):
            assert not is_fused(published)
