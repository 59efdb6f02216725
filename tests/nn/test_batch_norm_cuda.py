"""Batch norm of maps on a group on a GPU, beside torch's; without a GPU, with slow versions of its operators."""

import pytest
import torch
from torch import nn

from unpose.nn import GroupBatchNorm, group_resnet
from unpose.nn.ops.batch_norm import batch_norm_of_parts

SHAPES = [(16, 3, 8, 5, 7), (12, 3, 4, 5, 7), (7, 2, 1, 3, 3), (1, 2, 4, 3, 3)]
"""Eight, four, and one part of the batch."""


def maps_like(shape, device="cpu", dtype=torch.float32, shift=2.0):
    generator = torch.Generator().manual_seed(len(shape))
    deviations = torch.linspace(0.5, 3.0, shape[1])[:, None, None, None]
    return (torch.randn(shape, generator=generator) * deviations + shift).to(device, dtype).requires_grad_()


def norm_like(channels, kind, device="cpu"):
    norm = kind(channels).to(device)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1.0, 2.0, channels))
        norm.bias.copy_(torch.linspace(3.0, -2.0, channels))
    return norm


def results(norm, maps, apply=None):
    """The result, the gradients of maps, weight and bias, and the running statistics."""
    out = (apply or norm)(maps)
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).bfloat16().to(out)
    gradients = torch.autograd.grad(out, [maps, norm.weight, norm.bias], gradient)
    return out.detach(), *gradients, norm.running_mean.clone(), norm.running_var.clone()


def assert_equal(found, wanted, tolerance):
    for a, b in zip(found, wanted, strict=True):
        assert (a.float() - b.float()).abs().max() <= tolerance * b.float().abs().max().clamp(min=1.0)


def slow_stats(maps, eps):
    flat = maps.transpose(0, 1).flatten(1)
    return flat.mean(1), (flat.var(1, correction=0) + eps).rsqrt()


def slow_gather(maps, means, inverses, running_mean, running_variance, momentum, eps, counts):
    means, inverses, counts = means.double(), inverses.double(), counts.double()
    squares = inverses**-2 - eps + means**2  # of every part
    mean = (means * counts[:, None]).sum(0) / counts.sum()
    variance = (squares * counts[:, None]).sum(0) / counts.sum() - mean**2
    running_mean.lerp_(mean.float(), momentum)
    running_variance.lerp_((variance * counts.sum() / (counts.sum() - 1)).float(), momentum)
    return mean.float(), (variance + eps).rsqrt().float()


def by_channel(vector):
    return vector[:, None, None]


def slow_elemt(maps, weight, bias, mean, inverse, eps):
    return (maps - by_channel(mean)) * by_channel(inverse * weight) + by_channel(bias)


def slow_reduce(above, maps, mean, inverse, weight, *wanted):
    assert weight is None
    assert wanted == (True, False, False)
    return above.sum((0, 2, 3)), (above * (maps - by_channel(mean))).sum((0, 2, 3)), None, None


def slow_backward(above, maps, mean, inverse, weight, total, product, count):
    centred = above - by_channel(total) / count
    return by_channel(weight * inverse) * (
        centred - (maps - by_channel(mean)) * by_channel(inverse**2 * product) / count
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_are_combined_as_one_batch(shape, monkeypatch):
    for name, slow in {
        "batch_norm_stats": slow_stats, "batch_norm_gather_stats_with_counts": slow_gather,
        "batch_norm_elemt": slow_elemt, "batch_norm_backward_reduce": slow_reduce,
        "batch_norm_backward_elemt": slow_backward,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch, name, slow)
    wanted, norm = norm_like(shape[1], nn.BatchNorm3d), norm_like(shape[1], GroupBatchNorm)

    def apply(maps):
        given = norm.weight, norm.bias, norm.running_mean, norm.running_var
        return batch_norm_of_parts(maps, *given, norm.momentum, norm.eps)

    for _ in range(2):  # running statistics of two steps
        there = results(wanted, maps_like(shape))
        here = results(norm, maps_like(shape), apply)
    assert_equal(here, there, 1e-5)


def test_saved_weights_and_results_are_those_of_torch():
    theirs, ours = norm_like(3, nn.BatchNorm3d), GroupBatchNorm(3)
    ours.load_state_dict(theirs.state_dict())
    assert_equal(results(ours, maps_like(SHAPES[0])), results(theirs, maps_like(SHAPES[0])), 0.0)
    assert ours.num_batches_tracked == theirs.num_batches_tracked == 1


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("shape", [*SHAPES, (64, 16, 8, 20, 20)])
def test_results_on_a_gpu_are_those_of_torch(shape, dtype, tolerance):
    norm, exact = norm_like(shape[1], GroupBatchNorm, "cuda"), norm_like(shape[1], nn.BatchNorm3d, "cuda").double()
    maps = maps_like(shape, "cuda", dtype)
    here = results(norm, maps)
    assert_equal(here, results(exact, maps.detach().double().requires_grad_()), tolerance)
    again = results(norm_like(shape[1], GroupBatchNorm, "cuda"), maps)
    assert all(torch.equal(a, b) for a, b in zip(here, again, strict=True)), "not the same bytes"
    assert norm.num_batches_tracked == 1
    assert torch.equal(norm.eval()(maps), nn.BatchNorm3d.forward(norm, maps))


@pytest.mark.gpu
def test_a_cuda_graph_records_a_network_with_batch_norms():
    network = group_resnet("d4", 1, 3, 16, widths=(2, 4), depths=(1, 1)).cuda().train()
    images, side = torch.rand(8, 1, 16, 16, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = network(images).float().square().sum()
        return (loss.detach(), *torch.autograd.grad(loss, list(network.parameters())))

    with torch.cuda.stream(side):
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            recorded = step()
        images.uniform_()
        graph.replay()
        again = step()
    torch.cuda.synchronize()
    assert all((a - b).abs().max() <= 1e-2 * b.abs().max().clamp(min=1.0) for a, b in zip(recorded, again, strict=True))
