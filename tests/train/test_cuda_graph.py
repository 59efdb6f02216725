"""Recorded steps, as far as no GPU is needed: what is handed to a graph, and optimizers whose rate is a tensor.

A graph is stood in for by calling the function again, which is what playing it back must amount to.
"""

import copy
from types import SimpleNamespace

import pytest
import torch

from unpose.nn import group_cnn
from unpose.train import cuda_graph as cuda_graph_module
from unpose.train.cuda_graph import GraphedFunction
from unpose.train.optimizers import make_optimizer, set_learning_rate, update_average
from unpose.train.recipe import OptimizerPart
from unpose.train.state import State, load_state, save_state

NAMES = ["adamw", "adam", "sgd"]


def small_network(seed=3):
    torch.manual_seed(seed)
    return group_cnn("c4", 1, 3, (9, 11), width=2, stages=(1,))


def fresh_state(name, *, captured):
    network = small_network()
    optimizer = make_optimizer(network, OptimizerPart(name=name), capturable=captured)
    return State(network, optimizer, copy.deepcopy(network))


def train_a_little(state, rates, generator):
    for step, rate in enumerate(rates):
        set_learning_rate(state.optimizer, rate)
        state.optimizer.zero_grad()
        state.network(torch.rand(5, 1, 9, 11, generator=generator)).square().sum().backward()
        state.optimizer.step()
        update_average(state.average, state.network, 0.9, step)


@pytest.fixture(params=["captured", "not captured"])
def played(request, monkeypatch):
    """Whether :class:`GraphedFunction` gets a graph, and the functions it was given to record."""
    asked = []

    def capture(work, changing, device):
        asked.append(work)
        return SimpleNamespace(replay=work) if request.param == "captured" else None

    monkeypatch.setattr(cuda_graph_module, "capture", capture)
    return asked


def test_every_call_does_its_work_once_on_what_it_is_given(played):
    total = torch.zeros(7, dtype=torch.float64)
    addresses = set()

    def work(rows, factor):
        addresses.add((rows.data_ptr(), factor.data_ptr()))
        total.add_(rows * factor)

    replayed = GraphedFunction(work, lambda: [total], torch.device("cpu"))
    for number in range(5):
        rows = torch.full((7,), 10.0**number)
        replayed(rows, number + 1)
        rows.zero_()  # the caller's own: nothing of it is kept
    assert total.tolist() == [54321.0] * 7
    assert len(played) == 1  # captured once
    assert len(addresses) == 1  # a graph reads where it was captured


@pytest.mark.parametrize("name", NAMES)
def test_a_rate_that_is_a_tensor_moves_weights_as_a_number_does(name, generator):
    rates = [0.02, 0.01, 0.0, 0.03]
    plain, captured = (fresh_state(name, captured=captured) for captured in (False, True))
    kept = [group["lr"] for group in captured.optimizer.param_groups]
    train_a_little(plain, rates, generator.manual_seed(5))
    train_a_little(captured, rates, generator.manual_seed(5))
    for one, other in zip(plain.network.parameters(), captured.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    for group, rate in zip(captured.optimizer.param_groups, kept, strict=True):
        assert group["lr"] is rate  # written in place, where a graph reads it
        assert rate.item() == pytest.approx(0.03)


def test_an_average_moves_as_far_by_a_step_that_is_a_tensor(generator):
    state = fresh_state("sgd", captured=False)
    other = copy.deepcopy(state.average)
    for step in range(12):
        state.network(torch.rand(5, 1, 9, 11, generator=generator))  # moves the statistics of norms, and their count
        with torch.no_grad():
            state.network.classify.weight.add_(torch.randn(state.network.classify.weight.shape, generator=generator))
        update_average(state.average, state.network, 0.4, step)
        update_average(other, state.network, 0.4, torch.tensor(step, dtype=torch.float64))
    for name, tensor in state.average.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, msg=lambda told, name=name: f"{name}: {told}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("captured", [False, True], ids=["to plain", "to captured"])
def test_a_state_goes_from_one_kind_of_optimizer_to_the_other(name, captured, generator, tmp_path):
    source, target = fresh_state(name, captured=not captured), fresh_state(name, captured=captured)
    train_a_little(source, [0.02, 0.01], generator)
    save_state(tmp_path / "state.safetensors", source, {})
    load_state(tmp_path / "state.safetensors", target, {})
    for state in (source, target):
        train_a_little(state, [0.03, 0.01], generator.manual_seed(8))
    for one, other in zip(source.network.parameters(), target.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    held = [group["lr"] for group in target.optimizer.param_groups]
    assert all(isinstance(rate, torch.Tensor) == captured for rate in held)


@pytest.mark.parametrize("name", NAMES)
def test_the_tensors_that_change_are_all_that_a_step_writes_to(name, generator):
    state = fresh_state(name, captured=True)
    train_a_little(state, [0.02], generator)
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in everything(state).items()}
    train_a_little(state, [0.02], generator)
    changing = {tensor.data_ptr() for tensor in state.changing()}
    written = {name: tensor for name, (tensor, old) in before.items() if not torch.equal(tensor, old)}
    assert len(written) > 10
    assert [name for name, tensor in written.items() if tensor.data_ptr() not in changing] == []


def everything(state):
    """Every tensor that can be reached from a state, by name."""
    found = {f"network {name}": tensor for name, tensor in state.network.state_dict().items()}
    found |= {f"average {name}": tensor for name, tensor in state.average.state_dict().items()}
    for index, moments in state.optimizer.state_dict()["state"].items():
        found |= {f"moment {index} {name}": moment for name, moment in moments.items()}
    return found
