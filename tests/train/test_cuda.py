"""Training on a GPU: captured steps are the steps, resumed is uninterrupted, and what cannot be captured still runs."""

import copy
import math
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.functional import dropout

from unpose.data import Split
from unpose.nn import group_cnn
from unpose.train import StoppedError, build_network, train
from unpose.train import batches as batches_module
from unpose.train import cuda_graph as cuda_graph_module
from unpose.train import loop as loop_module
from unpose.train.batches import ImageStore, make_image_store, training_batch
from unpose.train.cuda_graph import GraphedFunction, capture
from unpose.train.evaluation import predict_logits, validate
from unpose.train.optimizers import make_optimizer, set_learning_rate
from unpose.train.processes import Processes
from unpose.train.recipe import OptimizerPart, PosePart

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
FULL = {  # everything that has a state: dropout, poses, an average, moments
    "average": 0.9,
    "label_smoothing": 0.1,
    "network": {"group": "c4", "options": {"width": 3, "stages": [1, 1], "dropout": 0.2}},
    "poses": {"max_angle": 30, "max_shift": 1, "mirror": True},
}
NAMES = ["adamw", "adam", "sgd"]


class Killed(BaseException):
    """Stands for a signal that no code handles."""


@pytest.fixture
def full_recipe(small_recipe):
    def make(name="adamw", *, mixed=True):
        return small_recipe(**FULL, mixed_precision=mixed, optimizer={"name": name, "learning_rate": 0.02})

    return make


@pytest.fixture
def one_by_one(monkeypatch):
    """Steps are launched, not captured, from the call on."""

    def start():
        warnings.filterwarnings("ignore", message=".*capturable=True")  # the optimizer expects to be captured
        monkeypatch.setattr(cuda_graph_module, "capture", lambda *_: None)

    return start


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that were captured, None where that failed."""
    made = []

    def watched(*given):
        made.append(capture(*given))
        return made[-1]

    monkeypatch.setattr(cuda_graph_module, "capture", watched)
    return made


def differing(one, other):
    """Names of tensors that are not equal bit for bit, and by how much."""
    assert one.keys() == other.keys()
    pairs = {name: (one[name].cpu(), other[name].cpu()) for name in one}
    return {
        name: float((a.double() - b.double()).abs().max()) for name, (a, b) in pairs.items() if not torch.equal(a, b)
    }


def without_seconds(history):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


def state_file(folder):
    return safetensors.torch.load_file(folder / "state.safetensors")


# Recorded is launched ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_captured_steps_are_the_steps(name, mixed, problem, full_recipe, graphs, one_by_one, tmp_path):
    captured = train(problem, full_recipe(name, mixed=mixed), tmp_path / "captured", device="cuda")
    assert len(graphs) == 1
    assert graphs[0] is not None
    one_by_one()
    launched = train(problem, full_recipe(name, mixed=mixed), tmp_path / "launched", device="cuda")
    assert without_seconds(captured.history) == without_seconds(launched.history)
    assert differing(state_file(tmp_path / "captured"), state_file(tmp_path / "launched")) == {}


def test_a_run_on_the_gpu_is_that_on_the_cpu_up_to_rounding(problem, small_recipe):
    recipe = small_recipe(epochs=1, average=0.5, optimizer={"name": "sgd", "learning_rate": 0.01})
    here, there = (train(problem, recipe, device=device) for device in ("cpu", "cuda"))
    assert here.history[0]["train_loss"] == pytest.approx(there.history[0]["train_loss"], rel=1e-3)
    weights = there.network.state_dict()
    for name, tensor in here.network.state_dict().items():
        torch.testing.assert_close(weights[name].cpu(), tensor, rtol=0.02, atol=2e-3)


def test_a_captured_function_draws_by_the_seed_before_each_call():
    shown = torch.zeros(1001, device=CUDA)

    def work(images):
        shown.copy_(dropout(dropout(images, 0.3), 0.5))  # two draws: the second starts where the first ended

    images = torch.ones(1001, device=CUDA)
    replayed = GraphedFunction(work, lambda: [shown], CUDA)
    seen = []
    for seed in (11, 12, 2**62 + 5, 11):
        torch.manual_seed(seed)
        replayed(images)
        seen.append(shown.clone())
        torch.manual_seed(seed)
        work(images)
        assert torch.equal(shown, seen[-1])
    assert torch.equal(seen[0], seen[3])
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
    assert 0.2 < float((seen[0] > 0).float().mean()) < 0.5  # 0.35 stay


@pytest.mark.parametrize("name", NAMES)
def test_the_rate_of_a_captured_step_is_the_one_set_before_it(name):
    weight = nn.Parameter(torch.zeros(13, device=CUDA))
    holder = nn.ParameterList([weight])
    optimizer = make_optimizer(holder, OptimizerPart(name=name, momentum=0.0, weight_decay=0.0), capturable=True)

    def work(factor):
        optimizer.zero_grad(set_to_none=True)
        (weight * factor.float()).sum().backward()
        optimizer.step()

    def changing():
        return [weight, *(moment for moments in optimizer.state.values() for moment in moments.values())]

    replayed = GraphedFunction(work, changing, CUDA)
    expected = 0.0
    for rate in (0.5, 0.25, 0.0, 1.0):
        set_learning_rate(optimizer, rate)
        replayed(1.0)  # a gradient of one moves every kind of weight by the rate
        expected -= rate
        torch.testing.assert_close(weight.detach().cpu(), torch.full((13,), expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stopped", [False, True], ids=["fresh", "with moments"])
def test_capture_leaves_everything_as_it_was(stopped):
    network = nn.Sequential(nn.Linear(11, 7), nn.Dropout(0.3), nn.Linear(7, 3)).to(CUDA)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, capturable=True)
    inputs, count = torch.randn(8, 11, device=CUDA), torch.zeros((), device=CUDA)

    def work():
        optimizer.zero_grad(set_to_none=True)
        network(inputs).square().sum().backward()
        optimizer.step()
        count.add_(len(inputs))

    def changing():
        moments = (moment for moments in optimizer.state.values() for moment in moments.values())
        return [*network.parameters(), count, *moments]

    if stopped:
        capture(work, changing, CUDA).replay()
    before = [(tensor, tensor.data_ptr(), tensor.detach().clone()) for tensor in changing()]
    generators = torch.get_rng_state(), torch.cuda.get_rng_state()
    graph = capture(work, changing, CUDA)
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert torch.equal(torch.cuda.get_rng_state(), generators[1])
    for tensor, address, old in before:
        assert tensor.data_ptr() == address
        assert torch.equal(tensor, old)
    made = changing()[len(before) :]
    assert bool(made) != stopped
    assert not any(tensor.any() for tensor in made)
    graph.replay()
    assert int(count) == (16 if stopped else 8)


# Going on ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_killed_and_resumed_equals_uninterrupted(name, problem, full_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(loop_module, "_LOSS_INTERVAL", 1)
    whole = train(problem, full_recipe(name), tmp_path / "whole", device="cuda")
    for step in (5, 12):  # six steps an epoch; a state is written after every fourth

        def watch(moment, step=step):
            if moment.step == step:
                raise Killed

        folder = tmp_path / f"killed {step}"
        with pytest.raises(Killed):
            train(problem, full_recipe(name), folder, device="cuda", checkpoint_steps=4, progress=watch)
        again = train(problem, full_recipe(name), folder, device="cuda", checkpoint_steps=4, resume=True)
        assert differing(state_file(folder), state_file(tmp_path / "whole")) == {}
        assert without_seconds(again.history) == without_seconds(whole.history)
        assert again.test_accuracy == whole.test_accuracy


@pytest.mark.parametrize(("first", "then"), [("cpu", "cuda"), ("cuda", "cpu")], ids=["to the gpu", "to the cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_on_another_device(name, first, then, problem, full_recipe, tmp_path):
    def watch(moment):
        if moment.step == 6:
            raise StoppedError

    recipe = full_recipe(name, mixed=False)
    with pytest.raises(StoppedError):
        train(problem, recipe, tmp_path, device=first, progress=watch)
    at_six = state_file(tmp_path)
    outcome = train(problem, recipe, tmp_path, device=then, resume=True)
    assert len(outcome.history) == 3
    after = state_file(tmp_path)
    assert after.keys() - at_six.keys() == {key for key in after if key.startswith("best.")}
    if name != "sgd":
        assert at_six["optimizer.0.step"] == 6
        assert after["optimizer.0.step"] == 18


# Images and validation -----------------------------------------------------------------------------------------------


def test_images_on_the_gpu_and_images_sent_are_the_same(problem, full_recipe, monkeypatch):
    grey, labels = problem.train.images, problem.train.labels
    coloured = np.stack([grey, grey[:, ::-1], grey[:, :, ::-1]], axis=-1)
    rows, moved = torch.tensor([3, 50, 3, 17, 0]), PosePart(max_angle=math.radians(30), max_shift=2, mirror=True)
    for images in (grey, (255 * grey.clip(0, 1)).astype(np.uint8), coloured):
        split = Split(images, labels)
        assert make_image_store(split, CUDA).images is not None
        for poses in (PosePart(), moved):
            one, its_labels = training_batch(make_image_store(split, CUDA), rows, poses, 5, 2, Processes())
            other, also = training_batch(ImageStore(split, CUDA), rows, poses, 5, 2, Processes())
            here, _ = training_batch(ImageStore(split, torch.device("cpu")), rows, poses, 5, 2, Processes())
            assert torch.equal(one, other)
            assert one.stride() == other.stride()  # layers may round by the order of the numbers in memory
            assert its_labels.tolist() == also.tolist() == labels[rows].tolist()
            torch.testing.assert_close(one.cpu(), here, rtol=1e-4, atol=1e-5)
    first = train(problem, full_recipe(), device="cuda")
    monkeypatch.setattr(batches_module, "_RESIDENT_FRACTION", 0.0)
    assert make_image_store(problem.train, CUDA).images is None
    second = train(problem, full_recipe(), device="cuda")
    assert differing(first.network.state_dict(), second.network.state_dict()) == {}


def waits(action):
    """How often torch waited for the GPU."""
    action()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            action()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in seen)


def test_batches_do_not_wait_for_the_gpu_and_a_validation_waits_once(problem):
    network = group_cnn("c4", 1, 3, (9, 11), width=3, stages=(1,)).to(CUDA)
    assert waits(lambda: predict_logits(network, problem.test.images, batch_size=5)) == 1
    rows = torch.arange(8)
    for store in (make_image_store(problem.train, CUDA), ImageStore(problem.train, CUDA)):
        assert waits(lambda store=store: training_batch(store, rows, PosePart(), 5, 2, Processes())) == 0


def test_validation_is_that_of_the_cpu(problem):
    torch.manual_seed(3)
    network = group_cnn("c4", 1, 3, (9, 11), width=3, stages=(1,), dropout=0.3).double()
    loss, right = validate(network, problem.test, Processes(), torch.device("cpu"))
    there, also_right = validate(copy.deepcopy(network).to(CUDA), problem.test, Processes(), CUDA)
    assert there == pytest.approx(loss, rel=1e-6)
    assert also_right == right


# What cannot be captured ---------------------------------------------------------------------------------------------


def reads_a_number(module, given, outputs):
    float(outputs.detach().sum())


def draws_on_the_host(module, given, outputs):
    return outputs * torch.rand(()).item()  # would be the same number in every step


def waits_for_the_device(module, given, outputs):
    torch.cuda.synchronize()  # not seen before the capture, and spoils it


def refuses(module, given, outputs):
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("not while capture")


@pytest.mark.parametrize("hook", [reads_a_number, draws_on_the_host, refuses, waits_for_the_device])
def test_a_network_that_cannot_be_captured_is_trained_all_the_same(hook, problem, full_recipe, monkeypatch, one_by_one):
    def hooked(recipe, dataset):
        network = build_network(recipe, dataset)
        network.classify.register_forward_hook(hook)
        return network

    monkeypatch.setattr(loop_module, "build_network", hooked)
    with pytest.warns(RuntimeWarning, match="cannot be captured as a CUDA graph"):
        found = train(problem, full_recipe(), device="cuda")
    one_by_one()
    launched = train(problem, full_recipe(), device="cuda")
    assert without_seconds(found.history) == without_seconds(launched.history)
    assert differing(found.network.state_dict(), launched.network.state_dict()) == {}


def test_an_error_of_the_network_itself_is_not_hidden(problem, full_recipe, monkeypatch):
    def broken(recipe, dataset):
        network = build_network(recipe, dataset)
        network.classify = nn.Linear(1, 3)
        return network

    monkeypatch.setattr(loop_module, "build_network", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        train(problem, full_recipe(), device="cuda")
