"""The CUDA kernels of group attention: in Triton's interpreter and compiler, and on a GPU where there is one."""

import math
from dataclasses import asdict, dataclass

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import pad

from kit.kernels import (
    answer_job,
    compile_only,
    needs_interpreter,
    needs_triton,
    run_job,
    use_cuda_kernels_on_cpu,
)
from unpose.nn import group_attention, implementation
from unpose.nn.ops.dispatch import OPERATORS


@dataclass(frozen=True)
class Case:
    """A problem, and how kernels are to divide it.

    ``channels`` are those of queries and of values, ``tables`` and ``bias_heads`` the heads of the position table and
    of the bias, ``element`` the channels of the table in a second part. ``pixels`` are those of a program; ``scratch``,
    ``programs`` and ``block`` split the backward pass into several launches. The interpreter's time grows with
    programs, channels and entries.
    """

    batch: int
    heads: int
    queries: int
    outputs: int
    keys: int
    size: tuple
    channels: tuple
    window: tuple
    tables: int
    bias_heads: int = 0
    element: int = 0
    dtype: str = "float32"
    dropout: float = 0.0
    seed: int = 0
    pixels: int = 16
    scratch: int = 2**25
    programs: int = 1
    block: int = 64

    @property
    def is_half(self):
        return self.dtype != "float32"

    @property
    def is_packed(self):
        """Whether two images share a number, as in half precision."""
        return self.is_half and self.batch > 1


SMALL = {
    "group": Case(
        batch=1,
        heads=2,
        queries=2,
        outputs=2,
        keys=2,
        size=(3, 5),
        channels=(2, 1),
        window=(1, 3),
        tables=1,
        bias_heads=2,
        pixels=16,
    ),
    "lifting": Case(
        batch=1, heads=2, queries=1, outputs=3, keys=1, size=(5, 3), channels=(2, 3), window=(3, 1), tables=2, pixels=16
    ),
    "global, two segments in a row": Case(
        batch=1,
        heads=1,
        queries=2,
        outputs=2,
        keys=1,
        size=(2, 5),
        channels=(1, 2),
        window=(1, 9),
        tables=1,
        bias_heads=1,
        pixels=32,
    ),
    "some images a launch": Case(
        batch=3,
        heads=1,
        queries=2,
        outputs=2,
        keys=2,
        size=(3, 5),
        channels=(2, 1),
        window=(1, 3),
        tables=1,
        pixels=16,
        scratch=1000,
        block=32,
    ),
    "one segment a launch": Case(
        batch=2,
        heads=1,
        queries=2,
        outputs=2,
        keys=2,
        size=(3, 2),
        channels=(2, 1),
        window=(3, 1),
        tables=1,
        bias_heads=1,
        pixels=16,
        scratch=1,
    ),
    "wide heads": Case(
        batch=1,
        heads=1,
        queries=1,
        outputs=2,
        keys=1,
        size=(3, 5),
        channels=(17, 2),
        window=(1, 3),
        tables=1,
        pixels=16,
    ),
    "dropout": Case(
        batch=2,
        heads=2,
        queries=2,
        outputs=2,
        keys=2,
        size=(3, 5),
        channels=(2, 1),
        window=(1, 3),
        tables=1,
        pixels=32,
        dropout=0.3,
        seed=2_000_000_011,
    ),
    "bfloat16, dropout": Case(
        batch=3,
        heads=1,
        queries=2,
        outputs=2,
        keys=2,
        size=(2, 3),
        channels=(3, 1),
        window=(1, 3),
        tables=1,
        pixels=16,
        dtype="bfloat16",
        dropout=0.3,
        seed=5,
    ),
    "float16, lifting, one segment a launch": Case(
        batch=3,
        heads=2,
        queries=1,
        outputs=2,
        keys=1,
        size=(3, 2),
        channels=(2, 1),
        window=(3, 1),
        tables=2,
        bias_heads=1,
        pixels=16,
        dtype="float16",
        scratch=1,
    ),
    "table in two parts": Case(
        batch=1,
        heads=2,
        queries=2,
        outputs=2,
        keys=2,
        size=(3, 5),
        channels=(3, 3),
        window=(1, 3),
        tables=2,
        element=2,
        pixels=16,
    ),
    "table in two parts, one segment a launch, dropout": Case(
        batch=2,
        heads=1,
        queries=2,
        outputs=2,
        keys=2,
        size=(2, 3),
        channels=(2, 2),
        window=(3, 3),
        tables=1,
        element=1,
        pixels=16,
        scratch=1,
        dropout=0.3,
        seed=4,
    ),
    "table in two parts, bfloat16, dropout": Case(
        batch=3,
        heads=1,
        queries=2,
        outputs=2,
        keys=2,
        size=(3, 2),
        channels=(2, 2),
        window=(3, 1),
        tables=1,
        element=1,
        pixels=16,
        dtype="bfloat16",
        scratch=400,
        block=32,
        dropout=0.3,
        seed=4,
    ),
    "tall window, table in two parts, several launches": Case(
        batch=1,
        heads=1,
        queries=2,
        outputs=2,
        keys=2,
        size=(5, 4),
        channels=(2, 2),
        window=(9, 1),
        tables=1,
        element=1,
        pixels=16,
        scratch=1,
        programs=100,
    ),
    "one image in bfloat16": Case(
        batch=1,
        heads=1,
        queries=2,
        outputs=2,
        keys=2,
        size=(3, 5),
        channels=(2, 1),
        window=(1, 3),
        tables=1,
        pixels=16,
        dtype="bfloat16",
        dropout=0.3,
        seed=5,
    ),
}

FEW = ("group", "lifting", "table in two parts", "bfloat16, dropout")
"""Small cases with and without lifting, dropout, half precision and a table in two parts; the others are slow tests."""

LARGE = {
    "rotated digits": Case(
        batch=5, heads=9, queries=4, outputs=4, keys=4, size=(28, 28), channels=(10, 10), window=(5, 5), tables=1
    ),
    "dropped": Case(
        batch=3,
        heads=9,
        queries=4,
        outputs=4,
        keys=4,
        size=(14, 13),
        channels=(10, 10),
        window=(5, 5),
        tables=9,
        dropout=0.1,
        seed=11,
    ),
    "twelve turns": Case(
        batch=2,
        heads=3,
        queries=12,
        outputs=12,
        keys=12,
        size=(13, 11),
        channels=(10, 10),
        window=(5, 5),
        tables=1,
        bias_heads=3,
    ),
    "lifted": Case(
        batch=7, heads=9, queries=1, outputs=8, keys=1, size=(28, 29), channels=(10, 10), window=(7, 7), tables=9
    ),
    "global": Case(
        batch=2, heads=3, queries=4, outputs=4, keys=4, size=(11, 13), channels=(6, 7), window=(21, 25), tables=1
    ),
    "wide heads": Case(
        batch=2, heads=2, queries=2, outputs=2, keys=2, size=(9, 11), channels=(48, 33), window=(3, 5), tables=1
    ),
    "bfloat16": Case(
        batch=5,
        heads=9,
        queries=4,
        outputs=4,
        keys=4,
        size=(28, 28),
        channels=(10, 10),
        window=(5, 5),
        tables=1,
        dtype="bfloat16",
        dropout=0.1,
        seed=3,
    ),
    "wide halves": Case(
        batch=2,
        heads=2,
        queries=2,
        outputs=2,
        keys=2,
        size=(9, 11),
        channels=(48, 33),
        window=(3, 5),
        tables=1,
        dtype="bfloat16",
    ),
    "shared table": Case(
        batch=5,
        heads=9,
        queries=4,
        outputs=4,
        keys=4,
        size=(28, 28),
        channels=(10, 10),
        window=(5, 5),
        tables=1,
        element=4,
    ),
    "shared halves": Case(
        batch=5,
        heads=9,
        queries=12,
        outputs=12,
        keys=12,
        size=(28, 28),
        channels=(10, 10),
        window=(5, 5),
        tables=1,
        element=4,
        dtype="bfloat16",
        dropout=0.1,
        seed=3,
    ),
}

DRAWN = 20
"""Cases that hypothesis draws in the slow test; one that fails is not shrunk, which would take minutes."""


@st.composite
def drawn_case(draw_from):
    """Draw any shape, group, window, type and path through the kernels, small enough for the interpreter."""

    def whole(low, high):
        return draw_from(st.integers(low, high))

    def one_of(*choices):
        return draw_from(st.sampled_from(choices))

    batch, heads, outputs, keys = (*one_of((1, 1), (1, 2), (2, 1), (3, 1)), whole(1, 3), whole(1, 3))
    size, d, dv = (whole(1, 3), whole(2, 5)), whole(2, 4), whole(1, 4)
    window = one_of(*range(1, min(2 * size[0], 4), 2)), one_of(*range(3, min(2 * size[1], 8), 2))
    case = {"tables": one_of(1, heads), "pixels": one_of(16, 32), "scratch": one_of(2**25, 1)}
    if one_of(False, True):
        case["dtype"] = "float16"  # the interpreter truncates bfloat16 instead of rounding; the cases above have it
    if one_of(False, True):
        case |= {"dropout": 0.3, "seed": whole(0, 2**31)}
    if keys > 1 and one_of(False, True):
        queries = outputs = keys
        case["element"], dv = whole(1, d - 1), d
    else:
        queries = one_of(1, outputs)
        if one_of(False, True):
            case["bias_heads"] = one_of(1, heads)
    return Case(batch, heads, queries, outputs, keys, size, (d, dv), window, **case)


# keys, outputs, type, dropout
PROJECTED = {"float32, dropout": (2, 2, "float32", 0.25), "bfloat16, lifting": (1, 2, "bfloat16", 0.0)}

MAGNITUDES = (0.0, 3e-36, 1e-20, 1.0, 1e38, math.inf)

NAMES = ("out", "logsumexp", "query", "key", "value", "position", "bias")
SPLIT_NAMES = ("out", "logsumexp", "projected", "position", "element")


def draw(case, device="cpu"):
    """Return query, key, value, position, bias or None, and the gradient of the result, in the type of a case."""
    d, dv = case.channels
    generator = torch.Generator().manual_seed(7)
    shapes = [
        (case.batch, case.heads, case.queries, *case.size, d),
        (case.batch, case.heads, case.keys, *case.size, d),
        (case.batch, case.heads, case.keys, *case.size, dv),
        (case.tables, case.outputs, case.keys, *case.window, d),
        (case.bias_heads, case.outputs, case.keys, *case.window),
        (case.batch, case.heads, case.outputs, *case.size, dv),
    ]
    dtype = getattr(torch, case.dtype)
    tensors = [torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes]
    if not len(tensors[4]):
        tensors[4] = None
    else:
        tensors[4][0, 0, 0].view(-1)[1] = -math.inf  # a masked key
    return tensors


def dropout_factors(shape, dropout, seed, is_packed):
    """Return the factors of all weights, (b, n, outputs, h, w, keys, window_y, window_x), which a hash decides.

    Two packed images share a hash: 14 bits of each half are for one of them.
    """
    if is_packed:
        bits = hashes((-(-shape[0] // 2), *shape[1:]), seed)
        draws = np.stack([bits & 0x3FFF, (bits >> np.uint32(16)) & 0x3FFF], 1).reshape(-1, *shape[1:])[: shape[0]]
        return torch.from_numpy((draws >= round(dropout * 2**14)) / (1 - dropout))
    return torch.from_numpy((hashes(shape, seed) >= round(dropout * 2**32)) / (1 - dropout))


def hashes(shape, seed):
    query = np.arange(math.prod(shape[:5]), dtype=np.uint32).reshape(*shape[:5], 1, 1, 1) + np.uint32(seed)
    query *= np.uint32(0x9E3779B9)
    query = (query ^ (query >> np.uint32(16))) * np.uint32(0x7FEB352D)
    query = (query ^ (query >> np.uint32(15))) * np.uint32(0x846CA68B)
    query ^= query >> np.uint32(16)
    entry = np.arange(math.prod(shape[5:]), dtype=np.uint32).reshape(shape[5:]) * np.uint32(0x9E3779B9)
    return (query ^ entry) * np.uint32(0x85EBCA6B)


def direct(query, key, value, position, bias, dropout=0.0, seed=0, is_packed=False):
    """Compute attention from all scores, (b, n, outputs, h, w, keys, window_y, window_x), and the natural logsumexp."""
    reach_y, reach_x = position.shape[3] // 2, position.shape[4] // 2

    def around(tensor):  # (b, n, k, h, w, d) -> (b, n, k, h, w, d, window_y, window_x)
        wide = pad(tensor, (0, 0, reach_x, reach_x, reach_y, reach_y))
        return wide.unfold(3, 2 * reach_y + 1, 1).unfold(4, 2 * reach_x + 1, 1)

    query = query.expand(-1, -1, position.shape[1], -1, -1, -1)
    scores = torch.einsum("bnohwd,bnkhwdyx->bnohwkyx", query, around(key))
    scores = scores + torch.einsum(
        "bnohwd,nokyxd->bnohwkyx", query, position.expand(query.shape[1], -1, -1, -1, -1, -1)
    )
    scores = scores / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias[:, :, None, None]
    inside = around(torch.ones_like(key[:1, :1, :1, ..., :1]))[:, :, :, :, :, 0].transpose(2, 3).transpose(3, 4)
    scores = scores.masked_fill(inside == 0, -math.inf)  # inside (1, 1, h, w, 1, window_y, window_x)
    weights = scores.flatten(5).softmax(-1).view_as(scores)
    if dropout:
        weights = weights * dropout_factors(weights.shape, dropout, seed, is_packed).to(weights)
    return torch.einsum("bnohwkyx,bnkhwdyx->bnohwd", weights, around(value)), scores.flatten(5).logsumexp(-1)


def errors(kernels, case, device="cpu"):
    """Return the relative error of each result of the kernels, by name, and the results."""
    if case.element:
        return split_errors(kernels, case, device)
    *tensors, gradient = draw(case, device)
    dropping = case.dropout, case.seed
    given = dropping[0], torch.tensor(dropping[1], device=device)
    out, logsumexp = kernels.forward(*tensors, *given)
    found = kernels.backward(gradient, *tensors, out, logsumexp, *given)
    exact = [tensor if tensor is None else tensor.detach().double().requires_grad_() for tensor in tensors]
    wanted, wanted_sum = direct(*exact, *dropping, is_packed=case.is_packed)
    given = [tensor for tensor in exact if tensor is not None]
    slopes = torch.autograd.grad(wanted, given, gradient.double())
    return compared(NAMES, (out, logsumexp, *found), (wanted, wanted_sum, *slopes), gradient)


def split_results(kernels, case, device="cpu"):
    """Run the kernels on query, key and value in one tensor and a table in two parts.

    Returns the tensors given, the gradient of the result, and the results: out, logsumexp and gradients.
    """
    outputs, keys, size, d = case.outputs, case.keys, case.size, case.channels[0]
    generator, dtype = torch.Generator().manual_seed(9), getattr(torch, case.dtype)
    shapes = (
        (case.batch, 3, case.heads, d, keys, *size),
        (case.tables, outputs, 1, *case.window, d - case.element),
        (case.tables, outputs, keys, case.element),
        (case.batch, case.heads, outputs, *size, d),
    )
    *tensors, gradient = (torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes)
    dropping = case.dropout, case.seed
    given = *tensors, None, dropping[0], torch.tensor(dropping[1], device=device)
    out, logsumexp = kernels.forward_projected(*given)
    found = kernels.backward_projected(gradient, *given[:4], out, logsumexp, *given[4:])[:3]
    return tensors, gradient, (out, logsumexp, *found)


def split_errors(kernels, case, device="cpu"):
    """Return :func:`errors` of :func:`split_results`."""
    tensors, gradient, found = split_results(kernels, case, device)
    dropping = case.dropout, case.seed
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    wanted, wanted_sum = direct(
        *split_projected(exact[0]), joint_table(*exact[1:]), None, *dropping, is_packed=case.is_packed
    )
    slopes = torch.autograd.grad(wanted, exact, gradient.double())
    return compared(SPLIT_NAMES, found, (wanted, wanted_sum, *slopes), gradient)


def split_projected(projected):
    """Query, key and value (b, n, elements, h, w, d) of one tensor (b, 3, n, d, elements, h, w)."""
    return projected.permute(1, 0, 2, 4, 5, 6, 3)


def joint_table(position, element):
    """Join (n, outputs, 1, *window, c) and (n, outputs, keys, e): (n, outputs, keys, *window, c + e)."""
    vectors = element[:, :, :, None, None].expand(-1, -1, -1, *position.shape[3:5], -1)
    return torch.cat([position.expand(-1, -1, element.shape[2], -1, -1, -1), vectors], -1)


def compared(names, found, wanted, gradient):
    """Return the relative error of each result by name, and the results.

    Gradients of scores are differences of products of the result and its gradient. Where these nearly cancel, as with
    one key, errors are relative to the products.
    """
    result, least = {}, (gradient.double() * wanted[0].detach()).norm()
    for name, there, here in zip(names, found, wanted, strict=False):
        if there.shape != here.shape or (name != "logsumexp" and there.dtype != gradient.dtype):
            result[name] = math.inf
        else:
            here = here.detach()
            result[name] = float((there.double() - here).norm() / torch.maximum(here.norm(), least))
    return result, tuple(tensor for tensor in found if tensor is not None)


def check(found, case):
    tolerance = 1e-2 if case.is_half else 1e-5
    names = SPLIT_NAMES if case.element else NAMES
    assert set(found) == set(names) - (set() if case.bias_heads else {"bias"})
    assert {name: error for name, error in found.items() if not error < tolerance} == {}


@pytest.fixture(scope="module")
def interpreted():
    return run_job(__file__, "interpret")


@needs_interpreter
@pytest.mark.parametrize("name", FEW)
def test_interpreted_kernels_agree_with_the_direct_computation(name, interpreted):
    check(interpreted[name], SMALL[name])


@needs_interpreter
def test_interpreted_kernels_agree_in_the_other_small_cases():
    found = run_job(__file__, "interpret_others")
    assert {*found, *FEW} == set(SMALL)
    for name, errors_found in found.items():
        check(errors_found, SMALL[name])


@needs_interpreter
def test_interpreted_kernels_agree_at_drawn_shapes():
    drawn = run_job(__file__, "interpret_drawn")
    assert len(drawn) == DRAWN
    for case, found in drawn:
        check(found, Case(**case))


@needs_interpreter
def test_one_tensor_gives_the_same_bytes_as_three(interpreted):
    assert interpreted["projected"] == {"float32, dropout": [True] * 4, "bfloat16, lifting": [True] * 4}


@needs_interpreter
@pytest.mark.parametrize("part", ["out", "maps", "weight", "offset", "position", "element"])
def test_interpreted_attention_of_a_projection_agrees_with_the_direct_computation(part, interpreted):
    assert interpreted["projection"][part] < 1e-2


@needs_interpreter
def test_gradients_of_any_magnitude_are_restored(interpreted):
    # Scaled by a power of two, half precision holds the smallest and the largest numbers; infinities stay infinite.
    assert interpreted["scales"] == dict.fromkeys(map(str, MAGNITUDES), True)


@needs_interpreter
def test_scores_beyond_half_precision_choose_among_the_highest(interpreted):
    assert interpreted["saturated"] == [True, True, True]


@pytest.mark.slow
@needs_triton
def test_the_kernels_compile_for_a_gpu_that_is_not_present(tmp_path):
    # The interpreter accepts code that the compiler does not.
    backward = ["query_gradient_kernel", "table_gradient_kernel on tensor cores", "key_value_gradient_kernel"]
    backward += ["sum_rows_kernel", "position_gradient_kernel"]
    packing, with_bias = ["pack_kernel"], [*backward, *backward[3:]]
    split = [*packing, "forward_kernel", *packing * 2, *backward, "element_gradient_kernel"]
    expected = [*packing * 3, "forward_kernel", *packing * 4, *backward, "forward_kernel", *with_bias, *split]
    assert run_job(__file__, "compile", TRITON_CACHE_DIR=str(tmp_path)) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGE)
def test_kernels_agree_with_the_direct_computation(name):
    from unpose.nn.ops.cuda import attention as kernels

    found, results = errors(kernels, LARGE[name], "cuda")
    check(found, LARGE[name])
    again = errors(kernels, LARGE[name], "cuda")[1]
    assert all(torch.equal(first, second) for first, second in zip(results, again, strict=True)), "not the same bytes"


@pytest.mark.gpu
def test_scores_beyond_half_precision_choose_among_the_highest_on_a_gpu():
    from unpose.nn.ops.cuda import attention as kernels

    assert is_saturated(kernels, "cuda") == [True, True, True]


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [1, 4])
def test_attention_of_a_projection_agrees_with_the_reference(keys):
    generator, heads, d = torch.Generator().manual_seed(1), 2, 5
    shapes = (3, 6, keys, 9, 7), (3 * heads * d, 6), (3 * heads * d,), (1, 4, 1, 3, 3, d - (keys > 1)), (1, 4, keys, 1)
    given = [torch.randn(shape, generator=generator).mul_(0.5).cuda().requires_grad_() for shape in shapes]
    given = given[: 5 if keys > 1 else 4]
    pull = torch.randn(3, heads, 4, 9, 7, d, generator=generator).cuda()

    def results(kind, maps, weight, offset, position, element=None):
        projected = OPERATORS["pointwise"].run(maps, weight, offset).unflatten(1, (3, heads, -1))
        out = OPERATORS["projected_attention"].run(projected, position, element=element)
        return out.detach().to(kind), *torch.autograd.grad(out, given, pull.to(out))

    with torch.autocast("cuda", torch.bfloat16):
        found = results(torch.bfloat16, *given)
    given = [tensor.detach().double().requires_grad_() for tensor in given]
    with implementation("plain"):
        wanted = results(torch.float64, *given)
    for here, there in zip(found, wanted, strict=True):
        assert here.shape == there.shape
        assert float((here.double() - there).norm() / there.norm()) < 2e-2


@needs_triton
def test_planar_maps_are_not_copied():
    from unpose.nn.ops.cuda import attention as kernels

    maps = torch.randn(3, 2, 5, 4, 13, 11).permute(0, 1, 3, 4, 5, 2)  # (b, n, g, h, w, d)
    assert kernels._planar(maps).data_ptr() == maps.data_ptr()
    copied = kernels._planar(maps.contiguous())
    assert copied.is_contiguous()
    assert torch.equal(kernels._channels_last(copied), maps)


@needs_triton
@pytest.mark.parametrize("dtypes", [("float64",) * 3, ("float32", "float32", "bfloat16")], ids="-".join)
def test_other_types_are_refused(dtypes):
    with FakeTensorMode():
        query, key, value = (torch.empty(1, 1, 2, 3, 3, 2, dtype=getattr(torch, n), device="cuda") for n in dtypes)
        position = torch.empty(1, 2, 2, 3, 3, 2, dtype=query.dtype, device="cuda")
        with implementation("fused"), pytest.raises(ValueError, match=f"one type among .*{dtypes[-1]}.*'plain'"):
            group_attention(query, key, value, position)


def interpreted_errors(case):
    """Return the errors of a case in the interpreter, with the block sizes that the case asks for."""
    from unpose.nn.ops.cuda import attention as kernels
    from unpose.nn.ops.cuda import position_tables, reduce

    reduce._BLOCK_ROWS, reduce._BLOCK_COLUMNS = 4, 32
    kernels._BLOCK_PIXELS = case.pixels
    kernels._SCRATCH, kernels._PROGRAMS = (case.scratch, 0), case.programs
    position_tables._BLOCK_PIXELS = case.block
    position_tables._STEP_PIXELS, position_tables._BLOCK_SLOTS = 16, 16
    return errors(kernels, case)[0]


def interpret_drawn():
    """Return drawn cases with their errors in the interpreter."""

    @settings(max_examples=DRAWN, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(drawn_case())
    def add(case):
        drawn.append((asdict(case), interpreted_errors(case)))

    drawn = []
    add()
    return drawn


def interpret_others():
    """Return the errors of the small cases that :func:`interpret` leaves out."""
    return {name: interpreted_errors(case) for name, case in SMALL.items() if name not in FEW}


def interpret():
    """Return the errors of a few small cases in the interpreter, and the other checks."""
    from unpose.nn.ops.cuda import attention as kernels

    found = {name: interpreted_errors(SMALL[name]) for name in FEW}
    kernels._BLOCK_PIXELS = 16
    found["projected"] = {name: projected(kernels, *case) for name, case in PROJECTED.items()}
    found["projection"] = projection_errors()
    found["saturated"] = is_saturated(kernels)
    found["scales"] = {str(magnitude): is_restored(kernels, magnitude) for magnitude in MAGNITUDES}
    return found


def is_saturated(kernels, device="cpu"):
    """Return whether large scores give the mean of the values that share the highest score, finite gradients, and
    gradients of values that are sums of weights of at most 1.

    Queries are 240 and keys -240, 0 or 240, so that scores of two channels are multiples of 57,600: all positive ones
    are limited to the same number, and half precision holds the others, or they are -inf. For the last answer scores
    are about 10,000, and their bias is added in another order in the backward pass.
    """
    seed = torch.tensor(0, device=device)
    generator = torch.Generator().manual_seed(5)
    key = 240 * torch.randint(-1, 2, (2, 1, 2, 3, 3, 2), generator=generator).to(device, torch.float16)
    key[..., 0, 0, :] = -240  # where a window sees such keys alone, every score is -inf
    query, value = torch.full_like(key, 240), torch.randn(key.shape, generator=generator).to(key)
    given = query, key, value, torch.zeros(1, 2, 2, 1, 3, 2).to(key), None
    out, logsumexp = kernels.forward(*given, 0.0, seed)
    gradients = kernels.backward(out, *given, out, logsumexp, 0.0, seed)
    exact = [tensor if tensor is None else tensor.double() for tensor in given]
    exact[1] = exact[1].sum(-1, keepdim=True).clamp(max=0.7).expand(-1, -1, -1, -1, -1, 2)
    wanted = direct(*exact)[0]
    answers = [bool((out.double() - wanted).abs().amax() < 1e-2)]
    answers.append(all(bool(tensor.isfinite().all()) for tensor in (out, logsumexp, *gradients[:4])))
    large = [100 * torch.randn(tensor.shape, generator=generator).to(key) for tensor in given[:4]]
    large.append(30 * large[3][..., 0])
    out, logsumexp = kernels.forward(*large, 0.0, seed)
    sums = kernels.backward(torch.ones_like(out), *large, out, logsumexp, 0.0, seed)[2]
    answers.append(bool(sums.amax() <= 1.01 * large[3].shape[1] * 3 and sums.amin() >= 0))  # outputs, window of 3
    return answers


def projected(kernels, keys, outputs, dtype, dropout):
    """Return whether result, logsumexp and gradients of one tensor equal those of its three parts, bit for bit."""
    dtype, generator = getattr(torch, dtype), torch.Generator().manual_seed(3)
    maps = torch.randn(2, 3, 1, 1, keys, 3, 2, generator=generator).to(dtype)  # (b, 3, n, d, k, h, w)
    position = torch.randn(1, outputs, keys, 3, 1, 1, generator=generator).to(dtype)
    tables, dropping = (position, None), (dropout, torch.tensor(7))
    apart = position, None, None
    parts = [part.permute(0, 1, 3, 4, 5, 2) for part in maps.unbind(1)]
    out, level = kernels.forward_projected(maps, *apart, *dropping)
    wanted, wanted_level = kernels.forward(*parts, *tables, *dropping)
    gradient = torch.randn(out.shape, generator=generator).to(dtype)
    to_maps, to_position, *_ = kernels.backward_projected(gradient, maps, *apart, out, level, *dropping)
    *to_parts, to_table, _ = kernels.backward(gradient, *parts, *tables, out, level, *dropping)
    joined = torch.stack([part.permute(0, 1, 5, 2, 3, 4) for part in to_parts], 1)
    pairs = [(out, wanted), (level, wanted_level), (to_maps, joined), (to_position, to_table)]
    return [torch.equal(here, there) for here, there in pairs]


def projection_errors():
    """Return the relative errors of projection and attention and of their gradients, for an odd number of images.

    In float16: the interpreter has no matrix products in bfloat16.
    """
    use_cuda_kernels_on_cpu()
    generator, heads = torch.Generator().manual_seed(1), 1
    shapes = (3, 2, 2, 2, 3), (3 * heads * 2, 2), (3 * heads * 2,), (1, 2, 1, 3, 1, 1), (1, 2, 2, 1)
    names = ("maps", "weight", "offset", "position", "element")
    given = [torch.randn(shape, generator=generator).half().requires_grad_() for shape in shapes]
    maps, weight, offset, *tables = given
    projected = torch.ops.unpose.pointwise(maps, weight, offset, torch.float16, torch.float16).unflatten(
        1, (3, heads, -1)
    )
    out, _ = torch.ops.unpose.projected_attention(projected, *tables, None, None, 0.0)
    pull = torch.randn(out.shape, generator=generator).half()
    slopes = torch.autograd.grad(out, given, pull)
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    projected = torch.einsum("oc,bcghw->boghw", exact[1], exact[0]) + exact[2].view(-1, 1, 1, 1)
    maps = split_projected(projected.unflatten(1, (3, heads, -1)))
    wanted = direct(*maps, joint_table(*exact[3:]), None)[0]
    exact_slopes = torch.autograd.grad(wanted, exact, pull.double())
    return compared(("out", *names), (out.detach(), *slopes), (wanted, *exact_slopes), pull)[0]


def is_restored(kernels, magnitude):
    """Return whether a gradient of this magnitude, packed and multiplied by its scale, is itself again."""
    planar = torch.linspace(-1, 1, 30).view(2, 1, 1, 1, 3, 5) * magnitude
    packed, scale = kernels._scale_gradient(planar.bfloat16(), 0.5)
    back = packed.view(torch.float16).unflatten(-1, (5, 2)).movedim(-1, 1)[0].double().view(2, 1, 1, 1, 3, 5)
    if not math.isfinite(magnitude):
        return not bool(back.isfinite().all())
    wanted = planar.bfloat16().double()
    return torch.allclose(back * float(scale) / 2, wanted, rtol=1e-3, atol=1e-3 * magnitude)


def compile_kernels():
    """Compile every launch of small cases for compute capability 9.0, and return the names of the kernels."""
    from unpose.nn.ops.cuda import attention as kernels

    names = compile_only()
    for name in ("bfloat16, dropout", "group"):
        *tensors, gradient = draw(SMALL[name])
        out, logsumexp = kernels.forward(*tensors)
        kernels.backward(gradient, *tensors, out, logsumexp)
    split_results(kernels, SMALL["table in two parts, bfloat16, dropout"])
    return names


if __name__ == "__main__":
    answer_job(
        interpret=interpret,
        interpret_others=interpret_others,
        interpret_drawn=interpret_drawn,
        compile=compile_kernels,
    )
