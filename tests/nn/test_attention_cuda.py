"""Group attention on a GPU: on one where there is one, and by Triton's interpreter and compiler."""

import math

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from absent_gpu import answer, child, compile_only, needs_gpu, needs_interpreter, needs_triton
from unpose.nn import implementation
from unpose.nn.functional.group_attention import joint_table, mapped_attention
from unpose.nn.ops.reference.attention import unprojected

# batch, heads, query elements, outputs, keys, (height, width), (d, dv), window; then what is special
SMALL = {
    "cyclic": dict(shape=(1, 2, 3, 3, 3, (3, 5), (3, 2), (3, 3)), heads=1, bias_heads=2, lanes=16),
    "lifting": dict(shape=(1, 2, 1, 4, 1, (5, 3), (2, 5), (5, 3)), heads=2, lanes=16),
    "global": dict(shape=(1, 1, 2, 2, 2, (2, 5), (1, 3), (3, 9)), heads=1, bias_heads=1, lanes=32),
    "blocks": dict(shape=(3, 1, 2, 2, 2, (3, 5), (3, 2), (3, 3)), heads=1, lanes=16, room=2000, block=32),
    "parts": dict(shape=(3, 1, 2, 2, 2, (3, 5), (3, 2), (3, 3)), heads=1, bias_heads=1, lanes=16, room=1),
    "many channels": dict(shape=(1, 1, 1, 2, 1, (3, 5), (17, 2), (1, 3)), heads=1, lanes=16),
    "dropout": dict(shape=(2, 2, 2, 2, 2, (3, 5), (2, 3), (3, 3)), heads=1, lanes=32, dropout=0.3, seed=2_000_000_011),
    "bfloat16": dict(shape=(2, 1, 2, 2, 2, (3, 5), (3, 2), (3, 3)), heads=1, lanes=32, dtype="bfloat16"),
    "halves dropped": dict(
        shape=(3, 1, 2, 2, 2, (2, 3), (5, 2), (1, 3)), heads=1, lanes=16, dtype="bfloat16", dropout=0.3, seed=5
    ),
    "halves lifted": dict(
        shape=(3, 2, 1, 2, 1, (3, 2), (2, 3), (1, 3)), heads=2, bias_heads=1, lanes=16, dtype="float16"
    ),
    "halves in parts": dict(
        shape=(3, 1, 2, 2, 2, (2, 5), (3, 2), (3, 1)), heads=1, lanes=16, dtype="bfloat16", room=1
    ),
    "shared table": dict(shape=(1, 2, 3, 3, 3, (3, 5), (4, 4), (3, 3)), heads=2, element=2, lanes=16),
    "shared in parts": dict(
        shape=(3, 1, 2, 2, 2, (3, 5), (3, 3), (3, 5)), heads=1, element=1, lanes=16, room=1, dropout=0.3, seed=4
    ),
    "shared halves": dict(
        shape=(3, 1, 2, 2, 2, (3, 2), (3, 3), (3, 3)), heads=1, element=1, lanes=16, dtype="bfloat16", room=1200,
        block=32, dropout=0.3, seed=4,
    ),
    "tall window": dict(shape=(2, 1, 1, 2, 1, (5, 5), (2, 3), (9, 1)), heads=1, lanes=16),
    "tall in parts": dict(
        shape=(2, 1, 2, 2, 2, (5, 5), (3, 3), (9, 1)), heads=1, element=1, lanes=16, room=1, programs=100
    ),
    "one image": dict(
        shape=(1, 1, 2, 2, 2, (3, 5), (3, 2), (3, 3)), heads=1, lanes=16, dtype="bfloat16", dropout=0.3, seed=5
    ),
}  # fmt: skip

LARGE = {
    "rotated digits": dict(shape=(5, 9, 4, 4, 4, (28, 28), (10, 10), (5, 5)), heads=1),
    "dropped": dict(shape=(3, 9, 4, 4, 4, (14, 13), (10, 10), (5, 5)), heads=9, dropout=0.1, seed=11),
    "twelve turns": dict(shape=(2, 3, 12, 12, 12, (13, 11), (10, 10), (5, 5)), heads=1, bias_heads=3),
    "lifted": dict(shape=(7, 9, 1, 8, 1, (28, 29), (10, 10), (7, 7)), heads=9),
    "global": dict(shape=(2, 3, 4, 4, 4, (11, 13), (6, 7), (21, 25)), heads=1),
    "wide heads": dict(shape=(2, 2, 2, 2, 2, (9, 11), (48, 33), (3, 5)), heads=1),
    "bfloat16": dict(shape=(5, 9, 4, 4, 4, (28, 28), (10, 10), (5, 5)), heads=1, dtype="bfloat16", dropout=0.1, seed=3),
    "wide halves": dict(shape=(2, 2, 2, 2, 2, (9, 11), (48, 33), (3, 5)), heads=1, dtype="bfloat16"),
    "shared table": dict(shape=(5, 9, 4, 4, 4, (28, 28), (10, 10), (5, 5)), heads=1, element=4),
    "shared halves": dict(
        shape=(5, 9, 12, 12, 12, (28, 28), (10, 10), (5, 5)), heads=1, element=4, dtype="bfloat16", dropout=0.1, seed=3
    ),
}  # fmt: skip

DRAWN = 10
"""Cases that are drawn: none that fails is made smaller, which would take the interpreter minutes."""


@st.composite
def drawn_case(draw_from):
    """Any shape, group, window, type and way through the kernels, small enough for the interpreter."""

    def whole(low, high):
        return draw_from(st.integers(low, high))

    def one_of(*choices):
        return draw_from(st.sampled_from(choices))

    batch, heads, outputs, keys = (*one_of((1, 1), (1, 2), (2, 1), (3, 1)), whole(1, 3), whole(1, 3))
    size, d, dv = (whole(1, 3), whole(2, 5)), whole(2, 5), whole(1, 5)
    window = one_of(*range(1, 2 * size[0], 2)), one_of(*range(3, 2 * size[1], 2))
    case = {"heads": one_of(1, heads), "lanes": one_of(16, 32), "room": one_of(2**25, 1)}
    if one_of(False, True):
        case["dtype"] = "float16"  # bfloat16, which the interpreter cuts off instead of rounding, has cases above
    if one_of(False, True):
        case |= {"dropout": 0.3, "seed": whole(0, 2**31)}
    if keys > 1 and one_of(False, True):
        queries = outputs = keys
        case["element"], dv = whole(1, d - 1), d
    else:
        queries = one_of(1, outputs)
        if one_of(False, True):
            case["bias_heads"] = one_of(1, heads)
    return {**case, "shape": (batch, heads, queries, outputs, keys, size, (d, dv), window)}


# keys, outputs, type, dropout
PROJECTED = {"cyclic": (2, 2, "float32", 0.25), "halves lifted": (1, 3, "bfloat16", 0.0)}

SIZES = (0.0, 3e-36, 1e-20, 1.0, 1e38, math.inf)

NAMES = ("out", "logsumexp", "query", "key", "value", "position", "bias")
SHARED_NAMES = ("out", "logsumexp", "projected", "position", "element")


def draw(case, device="cpu"):
    """Tensors of a case in its type: query, key, value, position, bias or None, gradient of the result."""
    batch, heads, queries, outputs, keys, size, (d, dv), window = case["shape"]
    generator = torch.Generator().manual_seed(7)
    shapes = [
        (batch, heads, queries, *size, d),
        (batch, heads, keys, *size, d),
        (batch, heads, keys, *size, dv),
        (case["heads"], outputs, keys, *window, d),
        (case.get("bias_heads", 0), outputs, keys, *window),
        (batch, heads, outputs, *size, dv),
    ]
    dtype = getattr(torch, case.get("dtype", "float32"))
    tensors = [torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes]
    if not len(tensors[4]):
        tensors[4] = None
    else:
        tensors[4][0, 0, 0, 0, 1] = -math.inf  # a key that is left out
    return tensors


def kept(shape, dropout, seed, in_words):
    """What each weight of (b, n, outputs, h, w, keys, window_y, window_x) is multiplied with: a hash decides.

    Two images that share words share a hash: 14 bits of each half are for one of them.
    """
    if in_words:
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


def slow(query, key, value, position, bias, dropout=0.0, seed=0, in_words=False):
    """Every score written out, (b, n, outputs, h, w, keys, window_y, window_x), in float64; and the log-sum-exp."""
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
        weights = weights * kept(weights.shape, dropout, seed, in_words).to(weights)
    return torch.einsum("bnohwkyx,bnkhwdyx->bnohwd", weights, around(value)), scores.flatten(5).logsumexp(-1)


def errors(kernels, case, device="cpu"):
    """Relative error of each result of the kernels, by name; and the results."""
    if "element" in case:
        return shared_errors(kernels, case, device)
    *tensors, gradient = draw(case, device)
    dropping = case.get("dropout", 0.0), case.get("seed", 0)
    given = dropping[0], torch.tensor(dropping[1], device=device)
    out, logsumexp = kernels.forward(*tensors, *given)
    found = kernels.backward(gradient, *tensors, out, logsumexp, *given)
    exact = [tensor if tensor is None else tensor.detach().double().requires_grad_() for tensor in tensors]
    wanted, wanted_sum = slow(*exact, *dropping, in_words="dtype" in case and case["shape"][0] > 1)
    given = [tensor for tensor in exact if tensor is not None]
    slopes = torch.autograd.grad(wanted, given, gradient.double())
    return compared(NAMES, (out, logsumexp, *found), (wanted, wanted_sum, *slopes), gradient)


def shared_results(kernels, case, device="cpu"):
    """What kernels give for query, key and value in one tensor, and a table that all key elements share.

    What was given, the result's gradient, and result, denominators and gradients.
    """
    batch, heads, _, outputs, keys, size, (d, _), window = case["shape"]
    generator, dtype = torch.Generator().manual_seed(9), getattr(torch, case.get("dtype", "float32"))
    shapes = (
        (batch, 3, heads, d, keys, *size),
        (case["heads"], outputs, 1, *window, d - case["element"]),
        (case["heads"], outputs, keys, case["element"]),
        (batch, heads, outputs, *size, d),
    )
    *tensors, gradient = (torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes)
    dropping = case.get("dropout", 0.0), case.get("seed", 0)
    given = *tensors, None, dropping[0], torch.tensor(dropping[1], device=device)
    out, logsumexp = kernels.forward_projected(*given)
    found = kernels.backward_projected(gradient, *given[:4], out, logsumexp, *given[4:])[:3]
    return tensors, gradient, (out, logsumexp, *found)


def shared_errors(kernels, case, device="cpu"):
    """:func:`errors` of :func:`shared_results`."""
    tensors, gradient, found = shared_results(kernels, case, device)
    dropping, in_words = (case.get("dropout", 0.0), case.get("seed", 0)), "dtype" in case and case["shape"][0] > 1
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    wanted, wanted_sum = slow(*unprojected(exact[0]), joint_table(*exact[1:]), None, *dropping, in_words=in_words)
    slopes = torch.autograd.grad(wanted, exact, gradient.double())
    return compared(SHARED_NAMES, found, (wanted, wanted_sum, *slopes), gradient)


def compared(names, found, wanted, gradient):
    """Relative error of each result by name; and the results.

    Slopes of scores are differences of products of the result and its gradient: what nearly cancels, as with one key,
    is measured by these.
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
    tolerance = 1e-2 if "dtype" in case else 1e-5
    names = SHARED_NAMES if "element" in case else NAMES
    assert set(found) == set(names) - ({"bias"} if "bias_heads" not in case else set())
    assert {name: error for name, error in found.items() if not error < tolerance} == {}


@pytest.fixture(scope="module")
def interpreted():
    return child(__file__, "interpret")


@needs_interpreter
@pytest.mark.parametrize("name", SMALL)
def test_interpreted_kernels_are_the_sums_written_out(name, interpreted):
    check(interpreted[name], SMALL[name])


@needs_interpreter
def test_interpreted_kernels_at_any_shape(interpreted):
    assert len(interpreted["drawn"]) == DRAWN
    for case, found in interpreted["drawn"]:
        check(found, case)


@needs_interpreter
def test_one_tensor_gives_the_bytes_of_three(interpreted):
    assert interpreted["projected"] == {"cyclic": [True] * 4, "halves lifted": [True] * 8}


@needs_interpreter
@pytest.mark.parametrize("part", ["out", "maps", "weight", "offset", "position", "element"])
def test_interpreted_attention_of_mapped_channels_and_its_gradients(part, interpreted):
    assert interpreted["mapped"][part] < 1e-2


@needs_interpreter
def test_gradients_of_any_size_come_back_in_scale(interpreted):
    # Scaled by a power of two, half precision holds the smallest numbers and the largest; what is not finite stays so.
    assert interpreted["scales"] == dict.fromkeys(map(str, SIZES), True)


@needs_triton
def test_the_kernels_compile_for_a_gpu_that_is_not_here(tmp_path):
    # The interpreter takes what the compiler does not.
    backward = ["queries_kernel", "table_kernel on tensor cores", "keys_kernel", "rows_kernel", "entries_kernel"]
    packing, with_bias = ["pack_kernel"], [*backward, *backward[3:]]
    shared = [*packing, "forward_kernel", *packing * 2, *backward, "vectors_kernel"]
    expected = [*packing * 3, "forward_kernel", *packing * 4, *backward, "forward_kernel", *with_bias, *shared]
    assert child(__file__, "compile", TRITON_CACHE_DIR=str(tmp_path)) == expected


@needs_gpu
@pytest.mark.parametrize("name", LARGE)
def test_kernels_are_the_sums_written_out(name):
    from unpose.nn.ops.cuda import attention as windowed_cuda

    found, results = errors(windowed_cuda, LARGE[name], "cuda")
    check(found, LARGE[name])
    again = errors(windowed_cuda, LARGE[name], "cuda")[1]
    assert all(torch.equal(first, second) for first, second in zip(results, again, strict=True)), "not the same bytes"


@needs_gpu
@pytest.mark.parametrize("keys", [1, 4])
def test_mapped_attention_is_that_of_what_is_projected(keys):
    generator, heads, d = torch.Generator().manual_seed(1), 2, 5
    shapes = (3, 6, keys, 9, 7), (3 * heads * d, 6), (3 * heads * d,), (1, 4, 1, 3, 3, d - (keys > 1)), (1, 4, keys, 1)
    given = [torch.randn(shape, generator=generator).mul_(0.5).cuda().requires_grad_() for shape in shapes]
    given = given[: 5 if keys > 1 else 4]
    pull = torch.randn(3, heads, 4, 9, 7, d, generator=generator).cuda()

    def results(kind, maps, weight, offset, position, element=None):
        out = mapped_attention(maps, weight, offset, heads, position, element=element)
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
def test_pixels_side_by_side_are_not_copied():
    from unpose.nn.ops.cuda import attention as windowed_cuda

    maps = torch.randn(3, 2, 5, 4, 13, 11).permute(0, 1, 3, 4, 5, 2)  # (b, n, g, h, w, d)
    assert windowed_cuda._planar(maps).data_ptr() == maps.data_ptr()
    copied = windowed_cuda._planar(maps.contiguous())
    assert copied.is_contiguous()
    assert torch.equal(windowed_cuda._pixels_first(copied), maps)


@needs_triton
@pytest.mark.parametrize("dtypes", [("float64",) * 3, ("float32", "float32", "bfloat16")], ids="-".join)
def test_other_types_are_refused(dtypes):
    from unpose.nn.ops.cuda import attention as windowed_cuda

    query, key, value, position, bias, _ = draw(SMALL["cyclic"])
    mixed = [tensor.to(getattr(torch, name)) for tensor, name in zip((query, key, value), dtypes, strict=True)]
    with pytest.raises(TypeError, match=f"got torch.{dtypes[0]}.*plain version"):
        windowed_cuda.forward(*mixed, position, bias)


def interpret():
    """Errors of every small case and of those that are drawn, in the interpreter."""
    from unpose.nn.ops.cuda import attention as kernels
    from unpose.nn.ops.cuda import position_tables as tables_cuda

    def interpreted_errors(case):
        kernels._LANES = case["lanes"]
        kernels._ROOM, kernels._PROGRAMS = (case.get("room", 2**25), 0), case.get("programs", 1)
        tables_cuda._BLOCK, tables_cuda._STEP, tables_cuda._ROWS = case.get("block", 64), 16, 16
        return errors(kernels, case)[0]

    @settings(max_examples=DRAWN, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(drawn_case())
    def at_any_shape(case):
        drawn.append((case, interpreted_errors(case)))

    drawn = []
    at_any_shape()
    found = {name: interpreted_errors(case) for name, case in SMALL.items()} | {"drawn": drawn}
    kernels._LANES = 16
    found["projected"] = {name: projected(kernels, *case) for name, case in PROJECTED.items()}
    found["mapped"] = mapped_errors()
    found["scales"] = {str(size): is_in_scale(kernels, size) for size in SIZES}
    return found


def projected(kernels, keys, outputs, dtype, dropout):
    """Whether result, denominators and gradients of one tensor are those of its parts, to the bit."""
    dtype, generator = getattr(torch, dtype), torch.Generator().manual_seed(3)
    maps = torch.randn(2, 3, 1, 3, keys, 3, 2, generator=generator).to(dtype)  # (b, 3, n, d, k, h, w)
    position = torch.randn(1, outputs, keys, 3, 1, 3, generator=generator).to(dtype)
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
    if kernels.has_words(out):
        words = kernels._words(kernels._joined(maps))
        found = kernels.forward_words(words, len(maps), position, None, *dropping, dtype)
        of_words = kernels.backward_projected(gradient, words, *apart, out, level, *dropping)
        pairs += [(found[0], out), (found[1], level), (of_words[0], to_maps), (of_words[1], to_position)]
    return [torch.equal(here, there) for here, there in pairs]


def mapped_errors():
    """Relative errors of the operator that maps channels and attends, and of its gradients: an odd number of images.

    In float16: the interpreter has no matrix products in bfloat16.
    """
    from unpose.nn.ops import attention as fused

    fused._LOOPS["cpu"] = "unpose.nn.ops.cuda.attention"
    generator, heads = torch.Generator().manual_seed(1), 2
    shapes = (3, 2, 2, 3, 4), (3 * heads * 4, 2), (3 * heads * 4,), (1, 2, 1, 3, 1, 3), (1, 2, 2, 1)
    names = ("maps", "weight", "offset", "position", "element")
    given = [torch.randn(shape, generator=generator).half().requires_grad_() for shape in shapes]
    maps, weight, offset, *tables = given
    out = fused._mapped(maps, weight, offset, heads, *tables, None, 0.0, torch.float16)[0]
    pull = torch.randn(out.shape, generator=generator).half()
    slopes = torch.autograd.grad(out, given, pull)
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    projected = torch.einsum("oc,bcghw->boghw", exact[1], exact[0]) + exact[2].view(-1, 1, 1, 1)
    maps = unprojected(projected.unflatten(1, (3, heads, -1)))
    wanted = slow(*maps, joint_table(*exact[3:]), None)[0]
    exact_slopes = torch.autograd.grad(wanted, exact, pull.double())
    return compared(("out", *names), (out.detach(), *slopes), (wanted, *exact_slopes), pull)[0]


def is_in_scale(kernels, size):
    """Whether a gradient with a largest entry of this size, in words and times its unit, is itself again."""
    planar = torch.linspace(-1, 1, 30).view(2, 1, 1, 1, 3, 5) * size
    words, unit = kernels._scaled(planar.bfloat16(), 0.5)
    back = words.view(torch.float16).unflatten(-1, (5, 2)).movedim(-1, 1)[0].double().view(2, 1, 1, 1, 3, 5)
    if not math.isfinite(size):
        return not bool(back.isfinite().all())
    wanted = planar.bfloat16().double()
    return torch.allclose(back * float(unit) / 2, wanted, rtol=1e-3, atol=1e-3 * size)


def compile_kernels():
    """Every launch of small cases, compiled to machine code for compute capability 9.0; the kernels' names."""
    from unpose.nn.ops.cuda import attention as kernels

    names = compile_only()
    for name in ("bfloat16", "cyclic"):
        *tensors, gradient = draw(SMALL[name])
        out, logsumexp = kernels.forward(*tensors)
        kernels.backward(gradient, *tensors, out, logsumexp)
    shared_results(kernels, SMALL["shared halves"])
    return names


if __name__ == "__main__":
    answer(interpret=interpret, compile=compile_kernels)
