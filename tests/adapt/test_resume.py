"""An interrupted training of a canonicalizer continues to the same bits."""

from types import SimpleNamespace

import pytest
import torch

from kit.doubles import Killed, StopAt
from unpose.adapt import fit_canonicalizer, learned

SETTINGS = {"steps": 40, "batch_size": 6, "random_state": 3}


def noise():
    return torch.rand(9, 1, 11, 11, generator=torch.Generator().manual_seed(1))


def start():
    torch.manual_seed(0)
    return learned("c4", 1, width=2, stages=(1, 1), dropout=0.2)


def weights(canonicalizer):
    return torch.cat([value.double().flatten() for value in canonicalizer.state_dict().values()])


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Of upright images, and of others the end of the first round and inside of the second.
@pytest.mark.parametrize(("upright", "step"), [(True, 7), pytest.param(False, 13, marks=pytest.mark.slow), (False, 19)])
def test_a_killed_training_continues_to_the_same_bits(tmp_path, one_thread, upright, step):
    path, options, stop = tmp_path / "scorer.state", {"upright": upright, **SETTINGS}, StopAt(step)

    def progress(stage, done, total):
        stop(SimpleNamespace(step=done))

    with pytest.raises(Killed):
        fit_canonicalizer(None, noise(), canonicalizer=start(), checkpoint=path, progress=progress, **options)
    done = []
    resumed = fit_canonicalizer(
        None,
        noise(),
        canonicalizer=start(),
        checkpoint=path,
        progress=lambda *step: done.append(step[1]),
        **options,
    )
    whole = fit_canonicalizer(None, noise(), canonicalizer=start(), **options)
    assert step - 2 < done[0] <= step + 1  # the state is saved after every second step
    assert torch.equal(weights(resumed), weights(whole))
    assert not torch.equal(weights(whole), weights(start()))


def test_a_finished_training_is_not_repeated_and_another_is_refused(tmp_path):
    path = tmp_path / "scorer.state"
    first = fit_canonicalizer(None, noise(), canonicalizer=start(), checkpoint=path, **SETTINGS)
    steps = []
    again = fit_canonicalizer(
        None,
        noise(),
        canonicalizer=start(),
        checkpoint=path,
        progress=lambda *step: steps.append(step),
        **SETTINGS,
    )
    assert not steps
    assert torch.equal(weights(first), weights(again))
    with pytest.raises(ValueError, match="its settings is"):
        fit_canonicalizer(None, noise(), canonicalizer=start(), checkpoint=path, **SETTINGS | {"steps": 50})
    with pytest.raises(ValueError, match="its data is"):
        fit_canonicalizer(None, noise() / 2, canonicalizer=start(), checkpoint=path, **SETTINGS)


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit_canonicalizer(None, noise(), canonicalizer=learned("c4", 1, width=2, stages=(1,)), steps=1, batch_size=2)
    torch.manual_seed(5)
    fit_canonicalizer(None, noise(), group="c4", steps=1, batch_size=2)
    assert torch.equal(torch.rand(3), expected)
