"""Recorded steps, as far as no GPU is needed.

A graph is stood in for by calling the function again, which is what playing it back must amount to. As on a GPU, the
function has run before, and what it changed was put back.
"""

from types import SimpleNamespace

import pytest
import torch

from kit.doubles import StopAt
from kit.trainings import assert_close, differing, state_file
from unpose.train import StoppedError, train
from unpose.train.limits import Limits

pytestmark = pytest.mark.filterwarnings("ignore:.*capturable=True")  # what a GPU would say of steps that are launched
OPTIMIZERS = ["adamw", "adam", "sgd"]
ROUNDING = {"rtol": 1e-3, "atol": 1e-5}


@pytest.fixture
def recorder():
    """Records functions, and lists them."""
    recorded = []

    def capture(work, changing, device):
        before = {id(tensor): (tensor, tensor.detach().clone()) for tensor in changing()}
        with torch.random.fork_rng(devices=[]):
            work()
        with torch.no_grad():
            for tensor in changing():
                tensor.copy_(before[id(tensor)][1] if id(tensor) in before else torch.zeros(()))
        recorded.append(work)
        return SimpleNamespace(replay=work)

    capture.recorded = recorded
    return capture


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_recorded_steps_are_the_steps(name, problem, full_recipe, recorder, tmp_path):
    recipe = full_recipe(name, epochs=1)
    plain, played = (train(problem, recipe, tmp_path / kind, limits=Limits(capture=how)).history[0]
                     for kind, how in (("plain", None), ("played", recorder)))  # fmt: skip
    assert len(recorder.recorded) == 1
    assert_close(state_file(tmp_path / "plain"), state_file(tmp_path / "played"), **ROUNDING)
    for figure in ("learning_rate", "train_loss", "train_accuracy", "validation_loss"):
        assert played[figure] == pytest.approx(plain[figure], rel=1e-4)


def test_steps_that_cannot_be_recorded_are_launched(problem, full_recipe, recorder, tmp_path):
    for name, how in (("launched", lambda *_: None), ("played", recorder)):
        train(problem, full_recipe(epochs=1), tmp_path / name, limits=Limits(capture=how))
    assert differing(state_file(tmp_path / "launched"), state_file(tmp_path / "played")) == {}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("first", ["plain", "recorded"])
def test_a_run_goes_on_with_the_other_kind_of_optimizer(name, first, problem, full_recipe, recorder, tmp_path):
    recipe, kinds = full_recipe(name, epochs=1), [Limits(), Limits(capture=recorder)]
    train(problem, recipe, tmp_path / "whole")
    before, after = kinds if first == "plain" else kinds[::-1]
    with pytest.raises(StoppedError):
        train(problem, recipe, tmp_path / "parts", limits=before, progress=StopAt(3, StoppedError))
    train(problem, recipe, tmp_path / "parts", limits=after, resume=True)
    assert_close(state_file(tmp_path / "whole"), state_file(tmp_path / "parts"), **ROUNDING)
