"""The CPU kernels of group attention equal the reference in float64, gradients too, with any number of threads."""

import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradgradcheck

from unpose.nn import GroupSelfAttention, LiftingSelfAttention, group_attention, implementation
from unpose.nn.ops.cpu import layout
from unpose.nn.ops.dispatch import OPERATORS

projected_attention = OPERATORS["projected_attention"].run


def draw(shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tensors(
    batch, heads, outputs, keys, size, window, channels, *, shared=False, tables=1, bias=None, dtype=torch.float32
):
    """[query, key, value, position, bias] and grad_out; ``channels`` are those of queries and of values."""
    query_channels, value_channels = channels
    query = draw((batch, heads, 1 if shared else outputs, *size, query_channels), 1, dtype)
    key, value = (
        draw((batch, heads, keys, *size, query_channels), 2, dtype),
        draw((batch, heads, keys, *size, value_channels), 3, dtype),
    )
    position = draw((tables, outputs, keys, *window, query_channels), 4, dtype)
    biases = None if bias is None else draw((bias, outputs, keys, *window), 5, dtype)
    return [query, key, value, position, biases], draw((batch, heads, outputs, *size, value_channels), 6, dtype)


def results(inputs, grad_out, name, dropout=0.0):
    """The output and the gradients of all inputs."""
    inputs = [None if tensor is None else tensor.detach().requires_grad_() for tensor in inputs]
    *maps, bias = inputs
    with implementation(name):
        out = group_attention(*maps, bias=bias, dropout=dropout)
        return [out.detach(), *torch.autograd.grad(out, [tensor for tensor in inputs if tensor is not None], grad_out)]


def relative_errors(inputs, grad_out):
    """How far output and gradients are from the reference in double precision, relative to its norm."""
    wanted = results([None if t is None else t.double() for t in inputs], grad_out.double(), "plain")
    found = results(inputs, grad_out, "fused")
    assert [tensor.dtype for tensor in found] == [grad_out.dtype] * len(found)
    # A gradient may vanish, as that of the query does with a single key: errors are relative to grad_out at least.
    least = 0.1 * grad_out.double().norm()
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


@settings(max_examples=15, deadline=None, derandomize=True)
@given(cases())
def test_kernels_equal_the_reference_in_double_precision(case):
    assert max(relative_errors(*case)) < 1e-5


@st.composite
def split_tables(draw_from):
    size = draw_from(st.tuples(st.integers(1, 7), st.integers(1, 19)))
    window = tuple(draw_from(st.integers(0, min(side - 1, 2))) * 2 + 1 for side in size)
    keys, heads = draw_from(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12])), draw_from(st.integers(1, 2))
    by_offset, by_key = draw_from(st.integers(1, 6)), draw_from(st.integers(1, 5))
    tables = draw_from(st.sampled_from([1, heads]))
    projected = draw((draw_from(st.integers(1, 2)), 3, heads, by_offset + by_key, keys, *size), 1)
    position, element = draw((tables, keys, 1, *window, by_offset), 2), draw((tables, keys, keys, by_key), 3)
    return projected, position, element, draw((*projected[:, 0, :, 0].shape, by_offset + by_key), 4)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(split_tables())
def test_position_and_element_table_equal_the_reference(case):
    *inputs, grad_out = case

    def results_of(name, dtype):
        given = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        with implementation(name):
            out = projected_attention(given[0], given[1], element=given[2])
        return [out.detach(), *torch.autograd.grad(out, given, grad_out.to(dtype))]

    least = 0.1 * grad_out.double().norm()
    for a, b in zip(results_of("fused", torch.float32), results_of("plain", torch.float64), strict=True):
        assert (a.double() - b).norm() / torch.maximum(b.norm(), least) < 1e-5


def test_a_table_in_two_parts_with_a_bias_has_the_right_gradients():
    """The kernels do not compute this combination; the function joins the parts, and the operator refuses."""
    inputs = [
        draw((2, 3, 1, 5, 4, 6, 7), 1),
        draw((1, 4, 1, 3, 3, 3), 2),
        draw((1, 4, 4, 2), 3),
        draw((1, 4, 4, 3, 3), 5),
    ]

    def results_of(name, dtype):
        given = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        with implementation(name):
            out = projected_attention(given[0], given[1], element=given[2], bias=given[3])
        return [out.detach(), *torch.autograd.grad(out.square().sum(), given)]

    for a, b in zip(results_of("fused", torch.float32), results_of("plain", torch.float64), strict=True):
        assert (a.double() - b).norm() < 1e-5 * b.norm()
    with pytest.raises(ValueError, match="takes no bias"):
        torch.ops.unpose.projected_attention(*inputs, None, 0.0)


def test_the_implementation_is_that_of_the_thread():
    """A thread that begins inside the block begins with "auto": its kernels have no second derivatives."""
    found = []

    def second_derivative():
        maps = draw((1, 3, 1, 5, 2, 4, 4), 1).requires_grad_()
        (first,) = torch.autograd.grad(
            projected_attention(maps, draw((1, 2, 2, 3, 3, 5), 2)).square().sum(), maps, create_graph=True
        )
        try:
            torch.autograd.grad(first.square().sum(), maps)
        except RuntimeError as error:
            found.append(str(error))
        else:
            found.append("plain")

    with implementation("plain"):
        second_derivative()
        thread = threading.Thread(target=second_derivative)
        thread.start()
        thread.join()
        second_derivative()
    assert found[::2] == ["plain", "plain"]
    assert "no second derivatives" in found[1]


@pytest.mark.parametrize(("outputs", "keys"), [(1, 9), (7, 2), (9, 6), (13, 1)], ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["own queries", "shared query"])
def test_any_number_of_elements_is_supported(outputs, keys, shared):
    # Output elements are computed in blocks; the remainder in blocks of two and one.
    case = tensors(2, 2, outputs, keys, (9, 11), (3, 5), (7, 5), shared=shared, tables=2, bias=1)
    assert max(relative_errors(*case)) < 1e-5


@pytest.mark.parametrize("size", [(9, 37), (5, 3), (67, 3)], ids=str)
def test_no_byte_depends_on_the_layout_in_memory(size):
    inputs, grad_out = tensors(2, 3, 3, 2, size, (3, 3), (5, 4), bias=1)

    def channels_first(tensor):
        """The same numbers with the pixels of a channel contiguous in memory."""
        return tensor.permute(0, 1, 5, 2, 3, 4).contiguous().permute(0, 1, 3, 4, 5, 2)

    wanted = results(inputs, grad_out, "fused")
    found = results(
        [*(channels_first(tensor) for tensor in inputs[:3]), *inputs[3:]], channels_first(grad_out), "fused"
    )
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    out, grad_query, grad_key, grad_value = found[:4]
    assert {tensor.stride()[3:5] for tensor in (out, grad_query, grad_key, grad_value)} == {(size[1], 1)}


def test_scores_of_very_different_size():
    # The largest score gets all of the weight, without overflow; scores far below it have a weight of zero.
    (query, key, value, position, _), grad_out = tensors(1, 2, 3, 3, (7, 9), (3, 3), (4, 3))
    for factor in (30.0, 1e4):
        assert max(relative_errors([factor * query, key, value, position, None], grad_out)[:1]) < 1e-5


@pytest.mark.parametrize("size", [(5, 7), (1, 6), (6, 1), (1, 1)], ids=str)
def test_windows_that_cover_the_whole_image(size):
    assert max(relative_errors(*tensors(2, 2, 3, 3, size, tuple(2 * side - 1 for side in size), (5, 3), bias=1))) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_close_to_the_reference(dtype):
    assert max(relative_errors(*tensors(2, 3, 4, 4, (11, 13), (5, 3), (10, 10), bias=3, dtype=dtype))) < 1e-2


@pytest.mark.slow  # compiles all kernels for float64, which only implementation("fused") uses
def test_double_precision_equals_the_reference():
    assert max(relative_errors(*tensors(1, 2, 3, 3, (5, 7), (3, 5), (5, 3), bias=2, dtype=torch.float64))) < 1e-12


def test_row_blocks_give_the_output_of_the_whole_image(monkeypatch):
    case = tensors(2, 2, 2, 2, (13, 17), (5, 3), (4, 3), bias=1)
    whole = results(*case, "fused")
    monkeypatch.setattr(layout, "_ROW_BLOCK_PIXELS", 40)
    assert max(relative_errors(*case)) < 1e-5
    assert torch.equal(results(*case, "fused")[0], whole[0])


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("row_block_pixels", [4096, 30], ids=["whole images", "row blocks"])
def test_no_byte_depends_on_the_number_of_threads(dropout, row_block_pixels, monkeypatch):
    monkeypatch.setattr(layout, "_ROW_BLOCK_PIXELS", row_block_pixels)
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


def kept_weights(seed, shape, threshold):
    """The hash that decides which weights are kept, in torch operations: (batch, heads, outputs, h, w, keys, wy, wx).

    Output elements 2 i and 2 i + 1 share a hash: its lower half decides for the first.
    """
    mask32 = 0xFFFFFFFF
    x = (torch.arange(torch.Size(shape).numel()) * 0x9E3779B9 + seed) & mask32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & mask32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & mask32
    x = (x ^ (x >> 16)).view(shape)
    halves = [x[:, :, h - h % 2] >> 16 * (h % 2) & 0xFFFF for h in range(shape[2])]
    return torch.stack(halves, 2) >= threshold


def test_the_hash_decides_which_weights_are_dropped(monkeypatch):
    # Values are one-hot vectors of their pixel, so that the output is the weights themselves.
    batch, heads, outputs, keys, (height, width), (window_y, window_x) = 2, 2, 3, 2, (4, 5), (3, 5)
    (query, key, _, position, _), _ = tensors(
        batch, heads, outputs, keys, (height, width), (window_y, window_x), (4, 1)
    )
    one_hot = torch.eye(keys * height * width).view(keys, height, width, -1).expand(batch, heads, -1, -1, -1, -1)
    leaves = [tensor.requires_grad_() for tensor in (query, key, position)]
    seed, dropout = 2**31 - 5, 0.4
    with implementation("plain"):
        weights = group_attention(query, key, one_hot, position)  # (b, n, o, h, w, keys * h * w)
    mask = torch.zeros_like(weights)
    threshold = math.ceil(dropout * 2**16)  # the probability is a multiple of 1 / 65,536
    kept = kept_weights(seed, (batch, heads, outputs, height, width, keys, window_y, window_x), threshold).float()
    kept /= 1 - threshold / 2**16
    for y in range(height):
        for x in range(width):
            for dy in range(max(0, y - 1), min(height, y + 2)):
                for dx in range(max(0, x - 2), min(width, x + 3)):
                    for k in range(keys):
                        place = (k * height + dy) * width + dx
                        mask[:, :, :, y, x, place] = kept[:, :, :, y, x, k, dy - y + 1, dx - x + 2]
    wanted = weights * mask
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.tensor(seed))
    with implementation("fused"):
        found = group_attention(query, key, one_hot, position, dropout=dropout)
    torch.testing.assert_close(found, wanted)
    assert 0.5 < float((found.detach()[weights.detach() > 0] > 0).float().mean()) < 0.7
    grad_out = draw(found.shape, 8)
    for a, b in zip(*(torch.autograd.grad(out, leaves, grad_out) for out in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_seed_decides_the_dropout():
    (query, key, value, position, _), _ = tensors(1, 2, 3, 3, (5, 7), (3, 3), (4, 4))
    found = []
    for seed in (4, 4, 5):
        torch.manual_seed(seed)
        found.append(group_attention(query, key, value, position, dropout=0.5))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("mode", ["lifting", "relative", "paper", "printed"])
def test_layers_give_the_same_result_with_and_without_kernels(mode, generator):
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


@pytest.mark.slow
def test_the_double_sum_compiles_to_one_graph(generator):
    torch.manual_seed(0)
    layer = GroupSelfAttention("c3", 2, 3, heads=2, head_channels=3, window=3, mode="paper")
    maps = torch.rand(1, 2, 3, 5, 4, generator=generator)
    found = torch.compile(layer, backend="eager", fullgraph=True)(maps)
    torch.testing.assert_close(found, layer(maps))


def test_a_bias_of_minus_infinity_excludes_a_key():
    (query, key, value, position, bias), grad_out = tensors(1, 2, 2, 2, (5, 6), (3, 3), (4, 3), bias=1)
    bias[:, :, 1] = -torch.inf
    given = [query, key, value, position, bias]
    assert max(relative_errors(given, grad_out)[:-1]) < 1e-5
    alone = [query, key[:, :, :1], value[:, :, :1], position[:, :, :1], bias[:, :, :1]]
    torch.testing.assert_close(results(given, grad_out, "fused")[0], results(alone, grad_out, "fused")[0])


def test_nan_reaches_all_queries_whose_window_contains_it():
    (query, key, value, position, _), _ = tensors(1, 1, 2, 2, (7, 9), (3, 3), (4, 3))
    key[0, 0, 1, 3, 4] = torch.nan
    with implementation("fused"):
        found = group_attention(query, key, value, position).isnan().any(-1)[0, 0]
    near = torch.zeros(7, 9, dtype=torch.bool)
    near[2:5, 3:6] = True
    assert torch.equal(found, near.expand(2, 7, 9))


def test_kernels_are_used_where_they_can_run():
    (query, key, value, position, _), _ = tensors(1, 1, 2, 2, (5, 4), (3, 3), (3, 3))

    def uses_kernels(*given, **options):
        name = type(group_attention(*(tensor.requires_grad_() for tensor in given), **options).grad_fn).__name__
        return "unpose_group_attention" in name

    assert uses_kernels(query, key, value, position)
    assert uses_kernels(query, key, value, position, dropout=0.5)
    assert not uses_kernels(*(tensor.detach().double() for tensor in (query, key, value, position)))
    with implementation("plain"):
        assert not uses_kernels(query, key, value, position)
        with implementation("auto"):
            assert uses_kernels(query, key, value, position)
        assert not uses_kernels(query, key, value, position)
    with implementation("fused"), pytest.raises(ValueError, match="at least 0 and below 1"):
        group_attention(query, key, value, position, dropout=1.0)
    with implementation("fused"), pytest.raises(ValueError, match="one type among"):
        group_attention(query, key, value, position.double())
    with pytest.raises(ValueError, match="'auto', 'plain' or 'fused', got 'fast'"), implementation("fast"):
        pass
    with pytest.raises(KeyError), implementation("plain"):
        raise KeyError
    assert uses_kernels(query, key, value, position)


def test_only_the_reference_has_second_derivatives():
    inputs, _ = tensors(1, 1, 2, 2, (3, 4), (3, 3), (2, 2))
    query, key, value, position = (tensor.requires_grad_() for tensor in inputs[:4])
    (gradient,) = torch.autograd.grad(
        group_attention(query, key, value, position).square().sum(), query, create_graph=True
    )
    with pytest.raises(RuntimeError, match=r"no second derivatives.*implementation\('plain'\)"):
        gradient.sum().backward()
    double = [tensor.detach().double().requires_grad_() for tensor in (query, key, value, position)]
    with implementation("plain"):
        assert gradgradcheck(group_attention, double, fast_mode=True)


def test_autocast_rounds_the_inputs():
    inputs, grad_out = tensors(1, 2, 2, 2, (5, 7), (3, 3), (4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        found = results(inputs, grad_out.bfloat16(), "fused")
    assert found[0].dtype == torch.bfloat16
    assert {tensor.dtype for tensor in found[1:]} == {torch.float32}
    rounded = [None if tensor is None else tensor.bfloat16() for tensor in inputs]
    for a, b in zip(found, results(rounded, grad_out.bfloat16(), "fused"), strict=True):
        assert torch.equal(a.bfloat16(), b)


@pytest.mark.parametrize("name", ["auto", "plain"])
def test_torch_func_transforms_compute_the_right_derivatives(name):
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


def test_requested_kernels_raise_an_error_under_torch_func_transforms():
    inputs, _ = tensors(1, 1, 2, 2, (3, 3), (1, 1), (2, 2))
    with implementation("fused"), pytest.raises(ValueError, match=r"torch\.func"):
        torch.func.jvp(lambda query: group_attention(query, *inputs[1:4]), (inputs[0],), (inputs[0],))


def test_an_undefined_gradient_of_the_output_counts_as_zero():
    class NoGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, maps):
            return maps.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    inputs, _ = tensors(1, 1, 2, 2, (3, 3), (1, 1), (2, 2))
    query = inputs[0].requires_grad_()
    (NoGradient.apply(group_attention(query, *inputs[1:4])).sum() + query.sum()).backward()
    assert torch.equal(query.grad, torch.ones_like(query))


def test_gradients_of_a_table_and_a_bias_of_one_entry_share_no_memory():
    inputs, grad_out = tensors(1, 1, 1, 1, (3, 3), (1, 1), (2, 2), bias=1)
    assert max(relative_errors(inputs, grad_out)) < 1e-5


@pytest.mark.parametrize("dropout", [-0.5, 1.0, 1.5, math.nan])
def test_dropout_must_be_a_probability(dropout):
    inputs, _ = tensors(1, 1, 2, 2, (3, 3), (1, 1), (2, 2))
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        group_attention(*inputs[:4], dropout=dropout)
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        LiftingSelfAttention("c4", 1, 4, heads=2, head_channels=2, window=3, attention_dropout=dropout)
