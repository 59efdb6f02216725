"""The core against slow, obvious versions, and its two ways and its pieces against each other."""

import importlib.util
import math
import time
from pathlib import Path

import pytest
import torch

from unpose.groups import parse
from unpose.nn import GroupSelfAttention, group_attention, windowed


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def one_by_one(query, key, value, position, bias=None):
    """The sums of equation 16, pixel by pixel; query, key, value without batch and heads, (elements, h, w, d)."""
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


@pytest.mark.parametrize("window", [(1, 1), (3, 3), (3, 5), (7, 3), (7, 9)], ids=str)
def test_the_core_is_the_sum_it_says(window, generator):
    query, key = draw(generator, 2, 2, 3, 4, 5, 2)
    value = draw(generator, 2, 3, 4, 5, 3)
    position = draw(generator, 3, 3, *window, 2)
    bias = draw(generator, 3, 3, *window)
    found = group_attention(
        query[:, None], key[:, None], value[:, None], position[None], bias=bias[None]
    )  # (2, 1, 3, 4, 5, 3)
    for b in range(2):
        torch.testing.assert_close(found[b, 0], one_by_one(query[b], key[b], value[b], position, bias))


def test_one_query_is_shared_when_a_map_is_lifted(generator):
    query, key, value = draw(generator, 3, 1, 1, 1, 4, 5, 2)
    position = draw(generator, 1, 4, 1, 3, 3, 2)
    found = group_attention(query, key, value, position)
    assert found.shape == (1, 1, 4, 4, 5, 2)
    torch.testing.assert_close(found[0, 0], one_by_one(query[0, 0], key[0, 0], value[0, 0], position[0]))


@pytest.mark.parametrize("name", ["c3", "d2"])
def test_the_papers_sum_is_the_double_loop(name, generator):
    # out(i, h) = sum over h~ of the attention of q(i, h~) with P(h^-1 (x_j - x_i), h^-1 h~, h^-1 k), written out.
    group = parse(name)
    torch.manual_seed(1)
    layer = GroupSelfAttention(group, 2, 3, heads=2, head_channels=3, window=3, mode="paper", encoding="harmonic")
    layer.double()
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
                        n, :, 0
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
                                        pair = group.product[back, other] * group.order + group.product[back, k]
                                        code = seen[j_x - x, j_y - y][pair]
                                        scores.append(query[other, y, x] @ (key[k, j_y, j_x] + code) / math.sqrt(3))
                                        values.append(value[k, j_y, j_x])
                            weights = torch.stack(scores).softmax(0)
                            total[h, y, x] += weights @ torch.stack(values)
            heads.append(total)
        wanted = layer.merge(torch.cat(heads, dim=-1)).movedim(-1, 0)
        torch.testing.assert_close(layer(maps)[0], wanted)


def test_a_full_window_is_global_attention(generator):
    torch.manual_seed(0)
    near = GroupSelfAttention("d4", 2, 3, heads=2, head_channels=3, window=13, reach=4.0)
    everywhere = GroupSelfAttention("d4", 2, 3, heads=2, head_channels=3, window=None, reach=4.0)
    everywhere.load_state_dict(near.state_dict())
    maps = draw(generator, 2, 2, 8, 7, 7).float()
    torch.testing.assert_close(near(maps), everywhere(maps))


def test_one_rotation_is_ordinary_relative_attention(generator):
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


def both_ways(generator, window):
    query, key, value = (t.requires_grad_() for t in draw(generator, 3, 2, 3, 2, 5, 6, 4).unbind(0))
    position = draw(generator, 3, 2, 2, *window, 4).requires_grad_()
    bias = draw(generator, 1, 2, 2, *window)
    return query, key, value, position, bias


@pytest.mark.parametrize("window", [(3, 5), (9, 11)], ids=str)
def test_copied_neighbours_and_all_pixels_give_the_same(window, generator):
    *wanted_grad, bias = both_ways(generator, window)
    results, gradients = [], []
    for method in (windowed._attend_neighbours, windowed._attend_everywhere):
        result = method(*wanted_grad, bias, 0.0)
        results.append(result)
        gradients.append(torch.autograd.grad(result.square().sum(), wanted_grad))
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("window", [(3, 5), (9, 11)], ids=str)
@pytest.mark.parametrize("limit", [1, 20_000])
def test_pieces_make_the_whole(window, limit, generator, monkeypatch):
    *wanted_grad, bias = both_ways(generator, window)
    whole = group_attention(*wanted_grad, bias=bias)
    gradients = torch.autograd.grad(whole.square().sum(), wanted_grad)
    monkeypatch.setitem(windowed._WORKING_BYTES, "cpu", limit)
    cut = group_attention(*wanted_grad, bias=bias)
    torch.testing.assert_close(cut, whole)
    torch.testing.assert_close(torch.autograd.grad(cut.square().sum(), wanted_grad), gradients)
    with torch.no_grad():
        torch.testing.assert_close(group_attention(*wanted_grad, bias=bias), whole)


def test_pieces_keep_the_precision_of_the_forward_pass(generator, monkeypatch):
    maps = draw(generator, 2, 2, 4, 5, 6).float()
    layer = GroupSelfAttention("c4", 2, 3, heads=2, head_channels=3, window=3)
    gradients = []
    for limit in (2**30, 1):
        monkeypatch.setitem(windowed._WORKING_BYTES, "cpu", limit)
        with torch.autocast("cpu", torch.bfloat16):
            result = layer(maps)
        gradients.append(torch.autograd.grad(result.float().square().sum(), layer.parameters()))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2e-2, atol=2e-2)


def test_pieces_drop_the_same_weights_backward_as_forward(generator, monkeypatch):
    # With values all one and no softmax gradient, the result is linear in the values: the gradient must be the weights.
    query, key, _, position, _ = both_ways(generator, (3, 3))
    value = torch.ones(2, 3, 2, 5, 6, 1, dtype=torch.float64, requires_grad=True)
    monkeypatch.setitem(windowed._WORKING_BYTES, "cpu", 1)
    torch.manual_seed(4)
    result = group_attention(query.detach(), key.detach(), value, position.detach(), dropout=0.5)
    (gradient,) = torch.autograd.grad(result.sum(), value)
    torch.testing.assert_close(gradient.sum(), result.detach().sum())  # sum of weights, counted either way
    torch.manual_seed(4)
    again = group_attention(query.detach(), key.detach(), value, position.detach(), dropout=0.5)
    assert torch.equal(again, result)
    assert result.std() > 0.1  # something was dropped


def test_dropout_only_while_training(generator):
    torch.manual_seed(0)
    layer = GroupSelfAttention("c4", 2, 2, heads=2, head_channels=3, window=3, attention_dropout=0.5, value_dropout=0.5)
    maps = draw(generator, 1, 2, 4, 5, 5).float()
    assert not torch.equal(layer(maps), layer(maps))
    layer.eval()
    assert torch.equal(layer(maps), layer(maps))


def baseline():
    path = Path(__file__).parents[2] / "benchmarks" / "group_attention_memory.py"
    spec = importlib.util.spec_from_file_location("group_attention_memory", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kept_bytes(function):
    """What a training step keeps for its backward pass."""
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = function()
    return sum(kept.values()), result


def test_half_the_memory_of_the_direct_way_and_no_more_time(generator):
    bench = baseline()
    maps = draw(generator, 1, bench.CHANNELS, 8, 12, 12).float().requires_grad_()
    figures = {}
    for method in ("direct", "relative"):
        layer = bench.make(method, "c8")
        memory, result = kept_bytes(lambda layer=layer: layer(maps))
        del result
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            bench.step(layer, maps)
            seconds.append(time.perf_counter() - start)
        figures[method] = (memory, min(seconds))
    assert figures["relative"][0] <= 0.5 * figures["direct"][0]
    assert figures["relative"][1] <= figures["direct"][1]


def test_the_benchmarks_direct_way_is_the_papers_sum(generator):
    bench = baseline()
    maps = draw(generator, 1, bench.CHANNELS, 4, 7, 7).float()
    torch.testing.assert_close(bench.make("direct", "c4")(maps), bench.make("paper", "c4")(maps))
