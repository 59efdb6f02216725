"""Training on a GPU: captured steps are the steps, resumed is uninterrupted, and what cannot be captured still runs."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import torch

from kit.doubles import Killed, StopAt, without_seconds
from kit.trainings import SYMMETRIES, differing, state_file
from unpose.data import Split
from unpose.nn import group_cnn
from unpose.train import StoppedError, cost, predict_logits, train, unlabelled_recipe, unlabelled_seconds
from unpose.train.limits import Limits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*capturable=True"),  # the optimizer expects to be captured
]
OPTIMIZERS = ["adamw", "adam", "sgd"]
LAUNCHED = Limits(capture=lambda *_: None)


# Recorded is launched ------------------------------------------------------------------------------------------------


def assert_captured_is_launched(problem, recipe, watched, folder):
    """Eighteen steps with and without a graph end in the same bits."""
    captured = train(problem, recipe, folder / "captured", device="cuda")
    passes = len(watched.trained)
    launched = train(problem, recipe, folder / "launched", device="cuda", limits=LAUNCHED)
    assert passes < (len(watched.trained) - passes) / 2  # a graph does not call the network
    assert without_seconds(captured.history) == without_seconds(launched.history)
    assert differing(state_file(folder / "captured"), state_file(folder / "launched")) == {}
    return captured


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "float32"])
@pytest.mark.parametrize("name", [*OPTIMIZERS, "muon"])
def test_captured_steps_are_the_steps(name, mixed, problem, full_recipe, watched, tmp_path):
    assert_captured_is_launched(problem, full_recipe(name, mixed_precision=mixed), watched, tmp_path)


@pytest.mark.parametrize("method", SYMMETRIES)
def test_captured_steps_that_learn_symmetries_are_the_steps(method, problem, full_recipe, watched, tmp_path):
    recipe = full_recipe(symmetry=SYMMETRIES[method])
    found = assert_captured_is_launched(problem, recipe, watched, tmp_path)
    begun = train(problem, recipe.changed(epochs=1), device="cuda").symmetry.strengths()
    assert found.symmetry.strengths() != begun  # every epoch learns more
    assert all(math.isfinite(value) for row in found.history for value in row.values())


def test_a_run_on_the_gpu_is_that_on_the_cpu_up_to_rounding(problem, small_recipe):
    recipe = small_recipe(epochs=1, average=0.5, optimizer={"name": "sgd", "learning_rate": 0.01})
    here, there = (train(problem, recipe, device=device) for device in ("cpu", "cuda"))
    assert here.history[0]["train_loss"] == pytest.approx(there.history[0]["train_loss"], rel=1e-3)
    weights = there.network.state_dict()
    for name, tensor in here.network.state_dict().items():
        torch.testing.assert_close(weights[name].cpu(), tensor, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("symmetry", [{}, *SYMMETRIES.values()], ids=["none", *SYMMETRIES])
def test_a_duration_is_that_of_steps_on_the_gpu(symmetry, problem, full_recipe, watched):
    generators = torch.get_rng_state(), torch.cuda.get_rng_state()
    seconds = cost.measured_seconds(full_recipe(symmetry=symmetry), problem, device="cuda")
    assert 0 < seconds < math.inf
    assert watched.steps >= 2
    assert {images.device.type for images in watched.trained} == {"cuda"}
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert torch.equal(torch.cuda.get_rng_state(), generators[1])


def test_a_duration_without_labels_is_that_of_steps_on_the_gpu(problem, watched):
    recipe = dataclasses.replace(unlabelled_recipe("c4", small=True, epochs=2), batch_size=8)
    assert 0 < unlabelled_seconds(recipe, problem.train.images, device="cuda") < math.inf
    assert watched.steps >= 2
    assert {images.device.type for images in watched.trained} == {"cuda"}


# Going on ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_killed_and_resumed_equals_uninterrupted(name, problem, full_recipe, tmp_path):
    limits = Limits(loss_interval=1)
    recipe = full_recipe(name, mixed_precision=True)
    whole = train(problem, recipe, tmp_path / "whole", device="cuda", limits=limits)
    for step in (5, 12):  # six steps an epoch; a state is written after every fourth
        folder, options = tmp_path / f"killed {step}", {"device": "cuda", "checkpoint_steps": 4, "limits": limits}
        with pytest.raises(Killed):
            train(problem, recipe, folder, progress=StopAt(step), **options)
        again = train(problem, recipe, folder, resume=True, **options)
        assert differing(state_file(folder), state_file(tmp_path / "whole")) == {}
        assert without_seconds(again.history) == without_seconds(whole.history)
        assert again.test_accuracy == whole.test_accuracy


@pytest.mark.parametrize(("first", "then"), [("cpu", "cuda"), ("cuda", "cpu")], ids=["to the gpu", "to the cpu"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_goes_on_on_another_device(name, first, then, problem, full_recipe, tmp_path):
    recipe = full_recipe(name)
    with pytest.raises(StoppedError):
        train(problem, recipe, tmp_path, device=first, progress=StopAt(6, StoppedError))
    at_six = state_file(tmp_path)
    outcome = train(problem, recipe, tmp_path, device=then, resume=True)
    assert len(outcome.history) == 3
    after = state_file(tmp_path)
    assert after.keys() - at_six.keys() == {key for key in after if key.startswith("best.")}
    if name != "sgd":
        assert at_six["optimizer.0.step"] == 6
        assert after["optimizer.0.step"] == 18


# Images and validation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poses", [{}, {"max_angle": 30, "max_shift": 2, "mirror": True}], ids=["still", "moved"])
@pytest.mark.parametrize("kind", ["grey", "bytes", "coloured"])
def test_images_on_the_gpu_and_images_sent_are_the_same(kind, poses, problem, small_recipe):
    def of_kind(part):
        grey = part.images
        if kind == "bytes":
            return Split((255 * grey.clip(0, 1)).astype(np.uint8), part.labels)
        return part if kind == "grey" else Split(np.stack([grey, grey[:, ::-1], grey[:, :, ::-1]], -1), part.labels)

    parts = {name: of_kind(getattr(problem, name)) for name in ("train", "validation", "test")}
    dataset, recipe = dataclasses.replace(problem, **parts), small_recipe(epochs=1, poses=poses)
    there, sent = (
        train(dataset, recipe, device="cuda", limits=Limits(resident_fraction=share)) for share in (0.25, 0.0)
    )
    assert differing(there.network.state_dict(), sent.network.state_dict()) == {}


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


@pytest.mark.parametrize("share", [0.25, 0.0], ids=["images on the gpu", "images sent"])
def test_steps_do_not_wait_for_the_gpu(share, problem, full_recipe):
    def training(batch_size):
        recipe = full_recipe(epochs=1, batch_size=batch_size)
        return lambda: train(problem, recipe, device="cuda", limits=Limits(resident_fraction=share))

    assert waits(training(5)) == waits(training(12))  # ten steps and four


def test_a_validation_waits_once_for_the_gpu(problem):
    network = group_cnn("c4", 1, 3, (9, 11), width=3, stages=(1,)).to("cuda")
    assert waits(lambda: predict_logits(network, problem.test.images, batch_size=5)) == 1


def test_validation_is_that_of_the_cpu(problem, full_recipe):
    recipe = full_recipe("sgd", epochs=1, average=0.0)
    still = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, learning_rate=1e-30))
    here, there = (train(problem, still, device=device).history[0] for device in ("cpu", "cuda"))
    assert there["validation_loss"] == pytest.approx(here["validation_loss"], rel=1e-3)
    assert there["validation_accuracy"] == here["validation_accuracy"]


# What cannot be captured ---------------------------------------------------------------------------------------------


def reads_a_number(outputs, step):
    float(outputs.detach().sum())
    return outputs


def draws_on_the_host(outputs, step):
    return outputs * torch.rand(()).item()  # would be the same number in every step


def waits_for_the_device(outputs, step):
    torch.cuda.synchronize()  # not seen before the capture, and spoils it
    return outputs


def refuses(outputs, step):
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("not while capture")
    return outputs


@pytest.mark.parametrize("change", [reads_a_number, draws_on_the_host, refuses, waits_for_the_device])
def test_a_network_that_cannot_be_captured_is_trained_all_the_same(change, problem, full_recipe, outputs_changed):
    with outputs_changed(change):
        with pytest.warns(RuntimeWarning, match="cannot be captured as a CUDA graph"):
            found = train(problem, full_recipe(mixed_precision=True), device="cuda")
        launched = train(problem, full_recipe(mixed_precision=True), device="cuda", limits=LAUNCHED)
    assert without_seconds(found.history) == without_seconds(launched.history)
    assert differing(found.network.state_dict(), launched.network.state_dict()) == {}


def test_an_error_of_the_network_itself_is_not_hidden(problem, full_recipe, outputs_changed):
    with outputs_changed(lambda outputs, step: outputs @ outputs), pytest.raises(RuntimeError, match="shapes"):
        train(problem, full_recipe(), device="cuda")
