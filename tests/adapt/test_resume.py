"""An interrupted training of a canonicalizer continues to the same bits."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from unpose.adapt import fit_canonicalizer, learned

SMALL = {"steps": 40, "batch_size": 6, "random_state": 3}
KILLED = """
import os, signal, sys
import torch
from test_resume import SMALL, images, scorer
from unpose.adapt import fit_canonicalizer

def stop(stage, done, total):
    if done == 7:
        os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
fit_canonicalizer(None, images(), canonicalizer=scorer(), checkpoint=sys.argv[1], progress=stop, **SMALL)
"""


class Interrupted(Exception):
    pass


def images():
    return torch.rand(9, 1, 11, 11, generator=torch.Generator().manual_seed(1))


def scorer():
    torch.manual_seed(0)
    return learned("c4", 1, width=2, stages=(1, 1), dropout=0.2)


def interrupt_at(step):
    def progress(stage, done, total):
        if done == step:
            raise Interrupted

    return progress


def weights(canonicalizer):
    return torch.cat([value.double().flatten() for value in canonicalizer.state_dict().values()])


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow  # two processes; the test below interrupts training in this one
def test_a_killed_training_continues_to_the_same_bits(tmp_path, one_thread):
    path = tmp_path / "scorer.state"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.exists()
    done = []
    resumed = fit_canonicalizer(
        None, images(), canonicalizer=scorer(), checkpoint=path, progress=lambda *step: done.append(step[1]), **SMALL
    )
    whole = fit_canonicalizer(None, images(), canonicalizer=scorer(), **SMALL)
    assert done == list(range(7, 41))  # the state is saved after every second step
    assert torch.equal(weights(resumed), weights(whole))
    assert not torch.equal(weights(whole), weights(scorer()))


# the end of the first round, and inside of the second
@pytest.mark.parametrize("step", [pytest.param(13, marks=pytest.mark.slow), 19])
def test_images_of_unknown_pose_are_aligned_as_before_the_interruption(tmp_path, one_thread, step):
    path = tmp_path / "scorer.state"
    with pytest.raises(Interrupted):
        fit_canonicalizer(
            None, images(), canonicalizer=scorer(), upright=False, checkpoint=path, progress=interrupt_at(step), **SMALL
        )
    resumed = fit_canonicalizer(None, images(), canonicalizer=scorer(), upright=False, checkpoint=path, **SMALL)
    assert torch.equal(
        weights(resumed), weights(fit_canonicalizer(None, images(), canonicalizer=scorer(), upright=False, **SMALL))
    )


def test_a_finished_training_is_not_repeated_and_another_is_refused(tmp_path):
    path = tmp_path / "scorer.state"
    first = fit_canonicalizer(None, images(), canonicalizer=scorer(), checkpoint=path, **SMALL)
    steps = []
    again = fit_canonicalizer(
        None, images(), canonicalizer=scorer(), checkpoint=path, progress=lambda *step: steps.append(step), **SMALL
    )
    assert not steps
    assert torch.equal(weights(first), weights(again))
    with pytest.raises(ValueError, match="its settings is"):
        fit_canonicalizer(None, images(), canonicalizer=scorer(), checkpoint=path, **SMALL | {"steps": 50})
    with pytest.raises(ValueError, match="its data is"):
        fit_canonicalizer(None, images() / 2, canonicalizer=scorer(), checkpoint=path, **SMALL)


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit_canonicalizer(None, images(), canonicalizer=learned("c4", 1, width=2, stages=(1,)), steps=1, batch_size=2)
    torch.manual_seed(5)
    fit_canonicalizer(None, images(), group="c4", steps=1, batch_size=2)
    assert torch.equal(torch.rand(3), expected)
