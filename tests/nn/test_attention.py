"""Group attention against plain loops, and the two algorithms and the chunks of the reference against each other."""

import importlib.util
import math
from functools import cache
from pathlib import Path

import pytest
import torch

from unpose.groups import parse
from unpose.nn import GroupSelfAttention, group_attention, implementation
from unpose.nn.ops.reference import attention as windowed
from unpose.nn.ops.reference import window_sums


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def plain_loops(query, key, value, position, bias=None):
    """Equation 16 pixel by pixel; query, key, value without batch and heads, (elements, h, w, d)."""
    outputs, keys, window_y, window_x, _ = position.shape
    height, width, channels = query.shape[1:]
    result = torch.zeros(outputs, height, width, value.shape[-1], dtype=query.dtype)
    for h in range(outputs):
        for y in range(height):
            for x in range(width):
                scores, values = [], []
                for k in range(keys):
                    for other_y in range(height):
                        for other_x in range(width):
                            row, column = other_y - y + window_y // 2, other_x - x + window_x // 2
                            if not (0 <= row < window_y and 0 <= column < window_x):
                                continue
                            own = query[h if len(query) > 1 else 0, y, x]
                            score = own @ (key[k, other_y, other_x] + position[h, k, row, column])
                            extra = 0.0 if bias is None else bias[h, k, row, column]
                            scores.append(score / math.sqrt(channels) + extra)
                            values.append(value[k, other_y, other_x])
                weights = torch.stack(scores).exp()
                result[h, y, x] = weights @ torch.stack(values) / weights.sum()
    return result


@pytest.mark.parametrize(
    "window",
    [(1, 1), (7, 3), *(pytest.param(size, marks=pytest.mark.slow) for size in ((3, 3), (3, 5), (7, 9)))],
    ids=str,
)
def test_group_attention_equals_plain_loops(window, generator):
    query, key = draw(generator, 2, 2, 3, 4, 5, 2)
    value = draw(generator, 2, 3, 4, 5, 3)
    position = draw(generator, 3, 3, *window, 2)
    bias = draw(generator, 3, 3, *window)
    found = group_attention(
        query[:, None], key[:, None], value[:, None], position[None], bias=bias[None]
    )  # (2, 1, 3, 4, 5, 3)
    for b in range(2):
        torch.testing.assert_close(found[b, 0], plain_loops(query[b], key[b], value[b], position, bias))


def test_one_query_is_shared_when_a_map_is_lifted(generator):
    query, key, value = draw(generator, 3, 1, 1, 1, 4, 5, 2)
    position = draw(generator, 1, 4, 1, 3, 3, 2)
    found = group_attention(query, key, value, position)
    assert found.shape == (1, 1, 4, 4, 5, 2)
    torch.testing.assert_close(found[0, 0], plain_loops(query[0, 0], key[0, 0], value[0, 0], position[0]))


@pytest.mark.parametrize(
    ("name", "mode", "encoding"),
    [
        ("c3", "paper", "separable"),
        pytest.param("d2", "paper", "harmonic", marks=pytest.mark.slow),
        ("c3", "printed", "separable"),
        pytest.param("d3", "printed", "harmonic", marks=pytest.mark.slow),
    ],
)
def test_the_papers_double_sum_equals_plain_loops(name, mode, encoding, generator):
    # out(i, h) = sum over h~ of the attention of q(i, h~) with the position term of the mode, written out.
    group = parse(name)
    torch.manual_seed(1)
    layer = GroupSelfAttention(group, 2, 3, heads=2, head_channels=3, window=3, mode=mode, encoding=encoding)
    layer.double()
    n_own = 1 if encoding == "separable" else 2  # heads of the encoding
    maps = draw(generator, 1, 2, group.order, 3, 4)
    with torch.no_grad():
        projected = layer.project(maps.movedim(1, -1)).unflatten(-1, (3, 2, 3))[0]  # (g, h, w, 3, heads, d)
        heads = []
        for n in range(2):
            query, key, value = (projected[..., part, n, :] for part in range(3))
            total = torch.zeros_like(value)
            for h in range(group.order):
                back = group.inverse[h]
                seen = {
                    (x, y): layer.encoding((group.elements[back, :2, :2] @ torch.tensor([x, y]).double())[None])[
                        n % n_own, :, 0
                    ]
                    for x in (-1, 0, 1)
                    for y in (-1, 0, 1)
                }
                for other in range(group.order):  # h~
                    for y in range(3):
                        for x in range(4):
                            scores, values = [], []
                            for k in range(group.order):
                                for j_y in range(max(y - 1, 0), min(y + 2, 3)):
                                    for j_x in range(max(x - 1, 0), min(x + 2, 4)):
                                        if mode == "paper":
                                            which = group.product[back, other] * group.order + group.product[back, k]
                                        else:
                                            which = group.product[back, group.product[group.inverse[other], k]]
                                        code = seen[j_x - x, j_y - y][which]
                                        scores.append(query[other, y, x] @ (key[k, j_y, j_x] + code) / math.sqrt(3))
                                        values.append(value[k, j_y, j_x])
                            weights = torch.stack(scores).softmax(0)
                            total[h, y, x] += weights @ torch.stack(values)
            heads.append(total)
        wanted = layer.merge(torch.cat(heads, dim=-1)).movedim(-1, 0)
        torch.testing.assert_close(layer(maps)[0], wanted)


def test_a_full_window_is_global_attention(generator):
    torch.manual_seed(0)
    near = GroupSelfAttention("d4", 2, 3, heads=2, head_channels=3, window=9, reach=4.0)
    everywhere = GroupSelfAttention("d4", 2, 3, heads=2, head_channels=3, window=None, reach=4.0)
    everywhere.load_state_dict(near.state_dict())
    maps = draw(generator, 2, 2, 8, 5, 5).float()
    torch.testing.assert_close(near(maps), everywhere(maps))


def test_the_trivial_group_gives_ordinary_relative_attention(generator):
    # torch's own attention, with the position scores as its mask (equation 11).
    torch.manual_seed(0)
    layer = GroupSelfAttention("c1", 3, 4, heads=2, head_channels=3, window=None, reach=3.0).double()
    maps = draw(generator, 2, 3, 1, 4, 5)
    y, x = torch.meshgrid(torch.arange(4.0), torch.arange(5.0), indexing="ij")
    places = torch.stack([x.flatten(), y.flatten()], dim=-1).double()
    code = layer.encoding(places[None, :] - places[:, None])[0, 0]  # (i, j, d)
    projected = layer.project(maps[:, :, 0].flatten(2).mT).unflatten(-1, (3, 2, 3))
    query, key, value = projected.permute(2, 0, 3, 1, 4)  # (b, heads, pixels, d)
    placed = torch.einsum("bnid,ijd->bnij", query, code) / math.sqrt(3)
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=placed)
    wanted = layer.merge(found.transpose(1, 2).flatten(-2)).mT.unflatten(-1, (4, 5))
    torch.testing.assert_close(layer(maps)[:, :, 0], wanted)


def drawn_terms(generator, window, kind):
    """Query, key, value, position (with gradients) and bias for one of the three sums."""
    queries, keys, table = {"relative": (2, 2, (2, 2)), "lifting": (1, 1, (3, 1)), "double": (2, 2, (3, 2, 2))}[kind]
    terms = [draw(generator, 2, 3, elements, 5, 6, 4) for elements in (queries, keys, keys)]
    terms.append(draw(generator, 3, *table, *window, 4))
    bias = draw(generator, 1, table[0], table[-1], *window)
    return [term.requires_grad_() for term in terms], bias.requires_grad_()


def plain(kind, terms, bias=None, dropout=0.0):
    return (windowed.attend_double if kind == "double" else windowed.attend)(*terms, bias, dropout)


def with_autograd(kind, terms, bias):
    """The same sums with every score kept, derived by autograd: what is compiled and exported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        return plain(kind, terms, bias)


KINDS = ["relative", "lifting", "double"]
WINDOWS = [(3, 5), (9, 11), (5, 7)]  # local, global, and nearly global


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_local_and_global_algorithms_give_the_same_result(window, kind, generator, monkeypatch):
    terms, bias = drawn_terms(generator, window, kind)
    results, gradients = [], []
    for is_local in (True, False):
        monkeypatch.setattr(window_sums.RowBlock, "is_local", is_local)
        results.append(plain(kind, terms, bias))
        gradients.append(torch.autograd.grad(results[-1].square().sum(), [*terms, bias]))
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [1, 20_000, pytest.param(2**40, marks=pytest.mark.slow)])
def test_chunks_give_the_whole_result(window, kind, limit, generator, monkeypatch):
    # Chunks of one row, of some rows and of some heads, with the hand-written gradients.
    terms, bias = drawn_terms(generator, window, kind)
    whole = with_autograd(kind, terms, bias)
    gradients = torch.autograd.grad(whole.square().sum(), [*terms, bias])
    monkeypatch.setitem(windowed._WORKING_BYTES, "cpu", limit)
    cut = plain(kind, terms, bias)
    torch.testing.assert_close(cut, whole)
    torch.testing.assert_close(torch.autograd.grad(cut.square().sum(), [*terms, bias]), gradients)
    with torch.no_grad():
        torch.testing.assert_close(plain(kind, terms, bias), whole)


@pytest.mark.slow  # test_fused_operator.py and test_attention_fused.py compile one graph each
def test_compiled_as_one_graph(generator):
    # The backend aot_eager needs no compiler on the machine; export traces the same graph.
    terms, bias = drawn_terms(generator, (3, 5), "double")
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
    results = [function("double", terms, bias) for function in (plain, compiled)]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad(result.square().sum(), [*terms, bias]) for result in results]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "kind", ["relative", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("lifting", "double"))]
)
def test_second_derivatives(kind, generator):
    terms, bias = drawn_terms(generator, (3, 3), kind)
    terms = [term[:1, :1, :, :2, :3, :2].detach() for term in terms[:3]] + [terms[3][:1, ..., :2].detach()]
    inputs = [term.requires_grad_() for term in terms]
    extra = bias.detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: plain(kind, given[:4], given[4]), (*inputs, extra))
    assert torch.autograd.gradgradcheck(lambda *given: plain(kind, given), inputs, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_single_inputs(kind, generator):
    terms, bias = drawn_terms(generator, (3, 3), kind)
    wanted = torch.autograd.grad(plain(kind, terms, bias).square().sum(), terms)
    for at, term in enumerate(terms):
        others = [term if i == at else other.detach() for i, other in enumerate(terms)]
        (found,) = torch.autograd.grad(plain(kind, others, bias.detach()).square().sum(), [term])
        torch.testing.assert_close(found, wanted[at])


def test_an_empty_batch_gives_an_empty_batch(generator):
    terms, _ = drawn_terms(generator, (3, 3), "relative")
    assert plain("relative", [*(term[:0] for term in terms[:3]), terms[3]]).shape == (0, 3, 2, 5, 6, 4)


def test_the_double_sum_accepts_one_shared_query(generator):
    terms, _ = drawn_terms(generator, (3, 3), "double")
    query = terms[0][:, :, :1]
    assert torch.equal(
        plain("double", [query, *terms[1:]]), plain("double", [query.expand(-1, -1, 2, -1, -1, -1), *terms[1:]])
    )


@pytest.mark.parametrize("limit", [2**30, 1])
@pytest.mark.parametrize(("group", "mode"), [("c4", "relative"), ("c4", "paper"), ("dilations(2, 3)", "relative")])
def test_half_precision_is_close_to_single_precision_in_both_passes(group, mode, limit, generator, monkeypatch):
    torch.manual_seed(2)
    maps = draw(generator, 2, 2, parse(group).order, 5, 6).float()
    layer = GroupSelfAttention(group, 2, 3, heads=2, head_channels=3, window=3, mode=mode)
    monkeypatch.setitem(windowed._WORKING_BYTES, "cpu", limit)
    gradients = []
    with implementation("plain"):
        for is_half in (True, False):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
                result = layer(maps)
            assert (result.dtype == torch.bfloat16) == is_half
            found = torch.autograd.grad(result.float().square().sum(), layer.parameters())
            gradients.append(torch.cat([gradient.flatten() for gradient in found]))
    assert (gradients[0] - gradients[1]).norm() < 0.02 * gradients[1].norm()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_weights_are_dropped_backward_as_forward(kind, generator, monkeypatch):
    # The result is linear in the values: for values of one, the sum of their gradient is the sum of the result.
    terms, _ = drawn_terms(generator, (3, 3), kind)
    value = torch.ones(*terms[2].shape[:5], 1, dtype=torch.float64, requires_grad=True)
    given = [terms[0].detach(), terms[1].detach(), value, terms[3].detach()]
    monkeypatch.setitem(windowed._WORKING_BYTES, "cpu", 1)
    torch.manual_seed(4)
    result = plain(kind, given, dropout=0.5)
    (gradient,) = torch.autograd.grad(result.sum(), value)
    torch.testing.assert_close(gradient.sum(), result.detach().sum())
    torch.manual_seed(4)
    again = plain(kind, given, dropout=0.5)
    assert torch.equal(again, result)
    assert result.std() > 0.1  # something was dropped


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_with_dropped_weights(kind, generator):
    # With a fixed seed, dropout is a deterministic function.
    terms, _ = drawn_terms(generator, (3, 3), kind)
    terms = [term.detach()[:1, :1, :, :2, :3].requires_grad_() for term in terms[:3]] + [terms[3][:1].detach()]
    terms[3].requires_grad_()

    def dropped(*given):
        torch.manual_seed(4)
        return plain(kind, given, dropout=0.5)

    assert torch.autograd.gradcheck(dropped, terms, fast_mode=True)


def test_dropout_only_while_training(generator):
    torch.manual_seed(0)
    layer = GroupSelfAttention("c4", 2, 2, heads=2, head_channels=3, window=3, attention_dropout=0.5, value_dropout=0.5)
    maps = draw(generator, 1, 2, 4, 5, 5).float()
    assert not torch.equal(layer(maps), layer(maps))
    layer.eval()
    assert torch.equal(layer(maps), layer(maps))


@cache
def baseline():
    path = Path(__file__).parents[2] / "benchmarks" / "group_attention_memory.py"
    spec = importlib.util.spec_from_file_location("group_attention_memory", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def peak_bytes(method, group, size, batch):
    return baseline().peak_bytes(method, group, size, batch)


@pytest.mark.parametrize(
    ("group", "size", "batch"),
    [("c4", 8, 3)]
    + [pytest.param(*e, marks=pytest.mark.slow) for e in (("c4", 8, 1), ("c4", 16, 2), ("c8", 11, 1), ("d4", 7, 2))],
)
@pytest.mark.parametrize(
    "method", ["relative", *(pytest.param(method, marks=pytest.mark.slow) for method in ("paper", "lifting"))]
)
def test_chunks_use_at_most_half_the_memory_of_the_direct_computation(method, group, size, batch):
    # Peak bytes of live tensors in a training step; the benchmark has larger sizes, and times.
    direct = baseline().PAIRS[method]
    assert peak_bytes(method, group, size, batch) <= 0.5 * peak_bytes(direct, group, size, batch)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["relative", "paper"])
def test_memory_grows_slowly_with_the_batch(method):
    # Four times the images have four times the scores, but no more of them are alive at once.
    few, many = (peak_bytes(method, "c4", 16, batch) for batch in (1, 4))
    assert many < 2.5 * few


def test_bytes_alive_are_counted_exactly():
    bench = baseline()
    with bench.BytesAlive() as counter:
        held = torch.zeros(1000)
        torch.zeros(2000)
        part = held[:500].view(5, 100)  # no memory of its own
        assert counter.now == 4000
        del held
        assert counter.now == 4000  # the view holds it
        part = part + torch.ones(5, 100)
    assert counter.now == 2000
    assert counter.peak == 12_000


@pytest.mark.parametrize("method", ["paper", "lifting"])
def test_the_direct_computation_of_the_benchmark_gives_the_same_result(method):
    bench = baseline()
    maps = bench.inputs(method, "c4", 7, 2)
    results = [bench.make(name, "c4")(maps) for name in (method, bench.PAIRS[method])]
    torch.testing.assert_close(*results)
