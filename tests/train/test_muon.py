"""Muon: orthogonal steps for matrices, AdamW for the rest."""

import math

import pytest
import torch
from torch import nn

from unpose.nn import gsa_net
from unpose.train.muon import Muon

SETTINGS = {"share": 0.25, "weight_decay": 0.0, "momentum": 0.9}


def muon(matrices, others=(), rate=0.1, **options):
    return Muon(matrices, others, rate, **SETTINGS | options)


def steps(*gradients):
    """By how much matrices move in a first step without momentum, at a rate of one, as all in one shape do."""
    weights = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.clone()
    muon([(weight, 1) for weight in weights], rate=1.0, momentum=0.0).step()
    found = []
    for weight in weights:
        rows, columns = weight.flatten(1).shape
        found.append(-weight.detach() / math.sqrt(max(1, rows / columns)))
    return found


def parameter(generator, *shape):
    found = nn.Parameter(torch.randn(shape, generator=generator))
    found.grad = torch.randn(shape, generator=generator)
    return found


@pytest.mark.parametrize("shape", [(7, 13), (13, 7), (5, 5), (2, 31)], ids=str)
def test_orthogonalizing_keeps_singular_vectors_and_evens_out_singular_values(shape, generator):
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    inside = left.T @ steps(matrix)[0] @ right.T
    assert torch.allclose(inside, inside.diagonal().diag(), atol=1e-9)
    assert values.max() / values.min() > 1.1
    assert 0.6 < inside.diagonal().min() <= inside.diagonal().max() < 1.3


def test_orthogonalizing_knows_no_size_and_no_neighbours(generator):
    matrices = torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
    found = steps(*matrices * torch.tensor([1e-3, 1.0, 1e4])[:, None, None])
    for matrix, step in zip(matrices, found, strict=True):
        assert torch.allclose(step, steps(matrix)[0], atol=1e-5)
        assert torch.allclose(steps(matrix.T)[0].T, steps(matrix)[0], atol=1e-12)


def test_maps_that_are_stacked_move_as_if_each_were_alone(generator):
    together = parameter(generator, 12, 3)
    apart = [nn.Parameter(part.detach().clone()) for part in together.chunk(3)]
    for part, gradient in zip(apart, together.grad.chunk(3), strict=True):
        part.grad = gradient.clone()
    muon([(together, 3)]).step()
    muon([(part, 1) for part in apart]).step()
    assert torch.allclose(together, torch.cat(apart), atol=1e-6)


def test_a_first_step_is_the_rate_times_an_orthogonal_matrix(generator):
    tall, kernel = parameter(generator, 18, 2), parameter(generator, 4, 3, 5, 5)
    before, wanted = tall.detach().clone(), steps(tall.grad)[0]
    kernel_before, kernel_wanted = kernel.detach().clone(), steps(kernel.grad.flatten(1))[0]
    muon([(tall, 1), (kernel, 1)], rate=0.1, weight_decay=0.5).step()
    # The outputs of a map with more of them than inputs move as much as those of others.
    assert torch.allclose(tall, before * (1 - 0.1 * 0.5) - 0.1 * 3 * wanted, atol=1e-5)
    assert torch.allclose(kernel, kernel_before * (1 - 0.1 * 0.5) - 0.1 * kernel_wanted.view_as(kernel), atol=1e-5)


def test_momentum_looks_ahead(generator):
    weight = parameter(generator, 3, 4)
    before, first = weight.detach().clone(), weight.grad.clone()
    optimizer = muon([(weight, 1)], momentum=0.8)
    optimizer.step()
    second = weight.grad = torch.randn(3, 4, generator=generator)
    optimizer.step()
    momentum = 0.2 * first
    after_one = before - 0.1 * steps(0.2 * first + 0.8 * momentum)[0]
    momentum = 0.8 * momentum + 0.2 * second
    wanted = after_one - 0.1 * steps(0.2 * second + 0.8 * momentum)[0]
    assert torch.allclose(weight, wanted, atol=1e-5)


def test_everything_else_moves_as_by_adamw(generator):
    ours = [parameter(generator, *shape) for shape in ((7,), (3, 5), ())]
    theirs = [nn.Parameter(weight.detach().clone()) for weight in ours]
    optimizer = muon([], ours, rate=torch.tensor(0.04), share=0.5)
    peer = torch.optim.AdamW(theirs, 0.02, weight_decay=0.0)
    for _ in range(5):
        for weight, other in zip(ours, theirs, strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator)
            other.grad = weight.grad.clone()
        optimizer.step()
        peer.step()
    for weight, other in zip(ours, theirs, strict=True):
        assert torch.allclose(weight, other, atol=1e-6)


def test_parameters_without_a_gradient_stay(generator):
    matrix, vector = parameter(generator, 3, 4), parameter(generator, 5)
    matrix.grad = vector.grad = None
    before = matrix.detach().clone(), vector.detach().clone()
    muon([(matrix, 1)], [vector]).step()
    assert torch.equal(matrix, before[0])
    assert torch.equal(vector, before[1])


def test_what_is_a_matrix_of_a_network(generator):
    network = gsa_net("c4", 1, 10, 9, config={"lifted": 8, "stages": [[8], [12]], "window": 3, "heads": 2})
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    optimizer = Muon.of(network, 0.1, **SETTINGS)
    matrices, others = (group["params"] for group in optimizer.param_groups)
    assert sorted(names[id(parameter)] for parameter in (*matrices, *others)) == sorted(names.values())
    alone = {}
    for parameter in matrices:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
        copied = alone[id(parameter)] = nn.Parameter(parameter.detach().clone())
        copied.grad = parameter.grad.clone()
        muon([(copied, 3 if "project" in names[id(parameter)] else 1)]).step()  # queries, keys and values
    optimizer.step()
    for parameter in matrices:
        assert torch.allclose(parameter, alone[id(parameter)], atol=1e-6)
    apart = {names[id(parameter)] for parameter in others if parameter.ndim > 1}
    # The image has one channel: its map is a vector. The last map gives class scores.
    assert {name.rpartition(".")[0] for name in apart} >= {"classify", "features.1.project"}
    assert all("encoding" in name for name in apart - {"classify.weight", "features.1.project.weight"})
