"""Fused group attention: equal to the plain version in double precision, gradients too, at any number of threads."""

import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradgradcheck

from unpose.nn import GroupSelfAttention, LiftingSelfAttention, group_attention, implementation
from unpose.nn.functional.group_attention import projected_attention
from unpose.nn.ops.cpu import layout as planes_cpu
from unpose.nn.ops.dispatch import chosen


def draw(shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tensors(
    batch, heads, outputs, keys, size, window, channels, *, shared=False, tables=1, bias=None, dtype=torch.float32
):
    """query, key, value, position, bias, and a gradient of the result; channels of queries and of values."""
    each, value_channels = channels
    query = draw((batch, heads, 1 if shared else outputs, *size, each), 1, dtype)
    key, value = (
        draw((batch, heads, keys, *size, each), 2, dtype),
        draw((batch, heads, keys, *size, value_channels), 3, dtype),
    )
    position = draw((tables, outputs, keys, *window, each), 4, dtype)
    added = None if bias is None else draw((bias, outputs, keys, *window), 5, dtype)
    return [query, key, value, position, added], draw((batch, heads, outputs, *size, value_channels), 6, dtype)


def results(inputs, slope, name, dropout=0.0):
    """The attention and the gradients of all inputs."""
    inputs = [None if tensor is None else tensor.detach().requires_grad_() for tensor in inputs]
    *maps, bias = inputs
    with implementation(name):
        out = group_attention(*maps, bias=bias, dropout=dropout)
        return [out.detach(), *torch.autograd.grad(out, [tensor for tensor in inputs if tensor is not None], slope)]


def errors(inputs, slope):
    """Relative errors against the plain version of the same numbers in double precision."""
    wanted = results([None if t is None else t.double() for t in inputs], slope.double(), "plain")
    found = results(inputs, slope, "fused")
    assert [tensor.dtype for tensor in found] == [slope.dtype] * len(found)
    # A gradient that vanishes, as the query's does where there is one key, is measured by that of the result.
    least = 0.1 * slope.double().norm()
    return [float((a.double() - b).norm() / torch.maximum(b.norm(), least)) for a, b in zip(found, wanted, strict=True)]


@st.composite
def cases(draw):
    size = draw(st.tuples(st.integers(1, 9), st.integers(1, 37)))
    window = tuple(draw(st.integers(0, min(side - 1, 3))) * 2 + 1 for side in size)
    outputs, heads = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    return tensors(
        draw(st.integers(1, 3)),
        heads,
        outputs,
        draw(st.sampled_from([1, outputs, 3])),
        size,
        window,
        (draw(st.integers(1, 11)), draw(st.integers(1, 6))),
        shared=draw(st.booleans()),
        tables=draw(st.sampled_from([1, heads])),
        bias=draw(st.sampled_from([None, 1, heads])),
    )


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases())
def test_equals_the_plain_version_in_double_precision(case):
    assert max(errors(*case)) < 1e-5


@st.composite
def tables_in_two_parts(draw_from):
    size = draw_from(st.tuples(st.integers(1, 7), st.integers(1, 19)))
    window = tuple(draw_from(st.integers(0, min(side - 1, 2))) * 2 + 1 for side in size)
    keys, heads = draw_from(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12])), draw_from(st.integers(1, 2))
    by_offset, by_key = draw_from(st.integers(1, 6)), draw_from(st.integers(1, 5))
    tables = draw_from(st.sampled_from([1, heads]))
    projected = draw((draw_from(st.integers(1, 2)), 3, heads, by_offset + by_key, keys, *size), 1)
    position, element = draw((tables, keys, 1, *window, by_offset), 2), draw((tables, keys, keys, by_key), 3)
    return projected, position, element, draw((*projected[:, 0, :, 0].shape, by_offset + by_key), 4)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(tables_in_two_parts())
def test_tables_in_two_parts(case):
    *inputs, slope = case

    def found(name, dtype):
        given = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        with implementation(name):
            out = projected_attention(given[0], given[1], element=given[2])
        return [out.detach(), *torch.autograd.grad(out, given, slope.to(dtype))]

    least = 0.1 * slope.double().norm()
    for a, b in zip(found("fused", torch.float32), found("plain", torch.float64), strict=True):
        assert (a.double() - b).norm() / torch.maximum(b.norm(), least) < 1e-5


@pytest.mark.parametrize(("outputs", "keys"), [(1, 9), (7, 2), (9, 6), (13, 1)], ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["own queries", "shared query"])
def test_any_number_of_elements(outputs, keys, shared):
    # Elements are computed a few at a time; what remains is computed two at a time and alone.
    case = tensors(2, 2, outputs, keys, (9, 11), (3, 5), (7, 5), shared=shared, tables=2, bias=1)
    assert max(errors(*case)) < 1e-5


@pytest.mark.parametrize("size", [(9, 37), (5, 3), (67, 3)], ids=str)
def test_no_byte_depends_on_the_layout_in_memory(size):
    inputs, slope = tensors(2, 3, 3, 2, size, (3, 3), (5, 4), bias=1)

    def planar(tensor):
        """The same numbers with the pixels of a channel side by side."""
        return tensor.permute(0, 1, 5, 2, 3, 4).contiguous().permute(0, 1, 3, 4, 5, 2)

    wanted = results(inputs, slope, "fused")
    found = results([*(planar(tensor) for tensor in inputs[:3]), *inputs[3:]], planar(slope), "fused")
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    out, to_query, to_key, to_value = found[:4]
    assert {tensor.stride()[3:5] for tensor in (out, to_query, to_key, to_value)} == {(size[1], 1)}


def test_scores_far_apart():
    # The largest score takes all of the weight, whatever its size; those far below it have a weight of zero.
    (query, key, value, position, _), slope = tensors(1, 2, 3, 3, (7, 9), (3, 3), (4, 3))
    for factor in (30.0, 1e4):
        assert max(errors([factor * query, key, value, position, None], slope)[:1]) < 1e-5


@pytest.mark.parametrize("size", [(5, 7), (1, 6), (6, 1), (1, 1)], ids=str)
def test_windows_over_the_whole_image(size):
    assert max(errors(*tensors(2, 2, 3, 3, size, tuple(2 * side - 1 for side in size), (5, 3), bias=1))) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype):
    assert max(errors(*tensors(2, 3, 4, 4, (11, 13), (5, 3), (10, 10), bias=3, dtype=dtype))) < 1e-2


def test_double_precision():
    assert max(errors(*tensors(1, 2, 3, 3, (5, 7), (3, 5), (5, 3), bias=2, dtype=torch.float64))) < 1e-12


def test_bands_of_rows_make_the_whole(monkeypatch):
    case = tensors(2, 2, 2, 2, (13, 17), (5, 3), (4, 3), bias=1)
    whole = results(*case, "fused")
    monkeypatch.setattr(planes_cpu, "_BAND", 40)
    assert max(errors(*case)) < 1e-5
    assert torch.equal(results(*case, "fused")[0], whole[0])


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("band", [4096, 30], ids=["whole images", "bands"])
def test_no_byte_depends_on_the_number_of_threads(dropout, band, monkeypatch):
    monkeypatch.setattr(planes_cpu, "_BAND", band)
    case = tensors(5, 3, 4, 4, (9, 11), (5, 5), (10, 7), bias=1)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            found.append(results(*case, "fused", dropout))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def kept(seed, shape, threshold):
    """The hash that decides which weights stay, in plain operations: (batch, heads, outputs, h, w, keys, wy, wx).

    An output with an even number and the next share a hash: its lower half is for the first.
    """
    word = 0xFFFFFFFF
    x = (torch.arange(torch.Size(shape).numel()) * 0x9E3779B9 + seed) & word
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & word
    x = ((x ^ (x >> 15)) * 0x846CA68B) & word
    x = (x ^ (x >> 16)).view(shape)
    halves = [x[:, :, h - h % 2] >> 16 * (h % 2) & 0xFFFF for h in range(shape[2])]
    return torch.stack(halves, 2) >= threshold


def test_weights_are_dropped_where_the_hash_says(monkeypatch):
    # Values that mark their own pixel make the result the weights themselves.
    batch, heads, outputs, keys, (height, width), (window_y, window_x) = 2, 2, 3, 2, (4, 5), (3, 5)
    (query, key, _, position, _), _ = tensors(
        batch, heads, outputs, keys, (height, width), (window_y, window_x), (4, 1)
    )
    marks = torch.eye(keys * height * width).view(keys, height, width, -1).expand(batch, heads, -1, -1, -1, -1)
    leaves = [tensor.requires_grad_() for tensor in (query, key, position)]
    seed, dropout = 2**31 - 5, 0.4
    with implementation("plain"):
        weights = group_attention(query, key, marks, position)  # (b, n, o, h, w, keys * h * w)
    mask = torch.zeros_like(weights)
    threshold = math.ceil(dropout * 2**16)  # what is dropped is a whole number of 65,536ths
    stays = kept(seed, (batch, heads, outputs, height, width, keys, window_y, window_x), threshold).float()
    stays /= 1 - threshold / 2**16
    for y in range(height):
        for x in range(width):
            for dy in range(max(0, y - 1), min(height, y + 2)):
                for dx in range(max(0, x - 2), min(width, x + 3)):
                    for k in range(keys):
                        place = (k * height + dy) * width + dx
                        mask[:, :, :, y, x, place] = stays[:, :, :, y, x, k, dy - y + 1, dx - x + 2]
    wanted = weights * mask
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.tensor(seed))
    with implementation("fused"):
        found = group_attention(query, key, marks, position, dropout=dropout)
    torch.testing.assert_close(found, wanted)
    assert 0.5 < float((found.detach()[weights.detach() > 0] > 0).float().mean()) < 0.7
    slope = draw(found.shape, 8)
    for a, b in zip(*(torch.autograd.grad(out, leaves, slope) for out in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_dropout_follows_the_seed():
    (query, key, value, position, _), _ = tensors(1, 2, 3, 3, (5, 7), (3, 3), (4, 4))
    found = []
    for seed in (4, 4, 5):
        torch.manual_seed(seed)
        found.append(group_attention(query, key, value, position, dropout=0.5))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("mode", ["lifting", "relative", "paper"])
def test_layers_are_the_same_either_way(mode, generator):
    torch.manual_seed(0)
    options = {"heads": 2, "head_channels": 3, "window": 3}
    if mode == "lifting":
        layer, maps = LiftingSelfAttention("d2", 2, 3, **options), torch.rand(2, 2, 7, 5, generator=generator)
    else:
        layer = GroupSelfAttention("d2", 2, 3, mode=mode, **options)
        maps = torch.rand(2, 2, 4, 7, 5, generator=generator)
    found = {}
    for name in ("plain", "fused"):
        with implementation(name):
            out = layer(maps)
            found[name] = [out, *torch.autograd.grad(out.square().sum(), layer.parameters())]
    torch.testing.assert_close(found["fused"], found["plain"], rtol=1e-4, atol=1e-5)


def test_a_key_left_out_by_the_bias_does_not_count():
    (query, key, value, position, bias), slope = tensors(1, 2, 2, 2, (5, 6), (3, 3), (4, 3), bias=1)
    bias[:, :, 1] = -torch.inf
    given = [query, key, value, position, bias]
    assert max(errors(given, slope)[:-1]) < 1e-5
    alone = [query, key[:, :, :1], value[:, :, :1], position[:, :, :1], bias[:, :, :1]]
    torch.testing.assert_close(results(given, slope, "fused")[0], results(alone, slope, "fused")[0])


def test_what_is_not_a_number_is_not_hidden():
    (query, key, value, position, _), _ = tensors(1, 1, 2, 2, (7, 9), (3, 3), (4, 3))
    key[0, 0, 1, 3, 4] = torch.nan
    with implementation("fused"):
        found = group_attention(query, key, value, position).isnan().any(-1)[0, 0]
    near = torch.zeros(7, 9, dtype=torch.bool)
    near[2:5, 3:6] = True
    assert torch.equal(found, near.expand(2, 7, 9))


def test_automatic_choice():
    (query, key, value, position, _), _ = tensors(1, 1, 2, 2, (5, 4), (3, 3), (3, 3))

    def operator(*given, **options):
        name = type(group_attention(*(tensor.requires_grad_() for tensor in given), **options).grad_fn).__name__
        return "unpose_group_attention" in name

    assert operator(query, key, value, position)
    assert operator(query, key, value, position, dropout=0.5)
    assert not operator(*(tensor.detach().double() for tensor in (query, key, value, position)))
    with implementation("plain"):
        assert not operator(query, key, value, position)
        with implementation("auto"):
            assert operator(query, key, value, position)
        assert not operator(query, key, value, position)
    with implementation("fused"), pytest.raises(ValueError, match="at least 0 and below 1"):
        group_attention(query, key, value, position, dropout=1.0)
    with implementation("fused"), pytest.raises(ValueError, match="one type among"):
        group_attention(query, key, value, position.double())
    with pytest.raises(ValueError, match="'auto', 'plain' or 'fused', got 'fast'"), implementation("fast"):
        pass
    with pytest.raises(KeyError), implementation("plain"):
        raise KeyError
    assert operator(query, key, value, position)


def test_a_choice_is_its_threads_own():
    seen = []
    with implementation("plain"):
        thread = threading.Thread(target=lambda: seen.append(chosen()))
        thread.start()
        thread.join()
        seen.append(chosen())
    assert seen == ["auto", "plain"]


def test_second_derivatives_are_the_plain_versions():
    inputs, _ = tensors(1, 1, 2, 2, (3, 4), (3, 3), (2, 2))
    query, key, value, position = (tensor.requires_grad_() for tensor in inputs[:4])
    (slope,) = torch.autograd.grad(
        group_attention(query, key, value, position).square().sum(), query, create_graph=True
    )
    with pytest.raises(RuntimeError, match=r"no second derivatives.*implementation\('plain'\)"):
        slope.sum().backward()
    double = [tensor.detach().double().requires_grad_() for tensor in (query, key, value, position)]
    with implementation("plain"):
        assert gradgradcheck(group_attention, double, fast_mode=True)


def test_autocast():
    inputs, slope = tensors(1, 2, 2, 2, (5, 7), (3, 3), (4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        found = results(inputs, slope.bfloat16(), "fused")
    assert found[0].dtype == torch.bfloat16
    assert {tensor.dtype for tensor in found[1:]} == {torch.float32}
    rounded = [None if tensor is None else tensor.bfloat16() for tensor in inputs]
    for a, b in zip(found, results(rounded, slope.bfloat16(), "fused"), strict=True):
        assert torch.equal(a.bfloat16(), b)


@pytest.mark.parametrize("name", ["auto", "plain"])
def test_transforms_find_the_derivatives(name):
    inputs, _ = tensors(2, 2, 4, 4, (5, 6), (3, 3), (3, 2), bias=1)
    *maps, bias = inputs

    def attention(query):
        return group_attention(query, *maps[1:], bias=bias)

    step = draw(maps[0].shape, 7)
    exact = torch.func.jvp(
        lambda query: group_attention(query, *(t.double() for t in maps[1:]), bias=bias.double()),
        (maps[0].double(),), (step.double(),),
    )[1]  # fmt: skip
    with implementation(name):
        along = torch.func.jvp(attention, (maps[0],), (step,))[1]
        torch.testing.assert_close(along, exact.float(), rtol=1e-3, atol=1e-4)
        against = torch.func.grad(lambda query: attention(query).square().sum())(maps[0])
        query = maps[0].clone().requires_grad_()
        wanted = torch.autograd.grad(attention(query).square().sum(), query)[0]
        torch.testing.assert_close(against, wanted, rtol=1e-3, atol=1e-4)
        each = torch.func.vmap(lambda q, k, v: group_attention(q[None], k[None], v[None], maps[3], bias=bias)[0])
        torch.testing.assert_close(each(*maps[:3]), attention(maps[0]), rtol=1e-3, atol=1e-4)


def test_forced_loops_say_that_transforms_are_not_for_them():
    inputs, _ = tensors(1, 1, 2, 2, (3, 3), (1, 1), (2, 2))
    with implementation("fused"), pytest.raises(ValueError, match=r"torch\.func"):
        torch.func.jvp(lambda query: group_attention(query, *inputs[1:4]), (inputs[0],), (inputs[0],))


def test_what_comes_after_may_have_no_gradient_to_give():
    class Blind(torch.autograd.Function):
        @staticmethod
        def forward(ctx, maps):
            return maps.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    inputs, _ = tensors(1, 1, 2, 2, (3, 3), (1, 1), (2, 2))
    query = inputs[0].requires_grad_()
    (Blind.apply(group_attention(query, *inputs[1:4])).sum() + query.sum()).backward()
    assert torch.equal(query.grad, torch.ones_like(query))


def test_a_table_and_a_bias_of_one_entry_get_gradients_of_their_own():
    inputs, slope = tensors(1, 1, 1, 1, (3, 3), (1, 1), (2, 2), bias=1)
    assert max(errors(inputs, slope)) < 1e-5


@pytest.mark.parametrize("dropout", [-0.5, 1.0, 1.5, math.nan])
def test_weights_are_dropped_with_a_probability(dropout):
    inputs, _ = tensors(1, 1, 2, 2, (3, 3), (1, 1), (2, 2))
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        group_attention(*inputs[:4], dropout=dropout)
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        LiftingSelfAttention("c4", 1, 4, heads=2, head_channels=2, window=3, attention_dropout=dropout)
