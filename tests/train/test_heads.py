"""The head of learning without labels: what its loss asks for, and runs with it."""

import numpy as np
import pytest
import torch

from unpose.data import InputError
from unpose.train import StoppedError, recipe_from, train_unlabelled
from unpose.train.heads import GramHead, quarter_turned

TINY = {
    "epochs": 1,
    "batch_size": 8,
    "keep": "last",
    "network": {"kind": "group_resnet", "group": "c1", "options": {"widths": [2, 3], "depths": [1, 1]}},
    "unlabelled": {"loss": "vicreg", "steps": 3, "expander": 8},
}


def tiny(head, **changes):
    return recipe_from(TINY | {"unlabelled": TINY["unlabelled"] | {"head": head}} | changes)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).random((11, 13, 13)).astype(np.float32)


def test_images_turn_by_their_own_number_of_quarter_turns(generator):
    images, turns = torch.rand(5, 2, 7, 7, generator=generator), torch.tensor([0, 1, 2, 3, 1])
    for image, number, turned in zip(images, turns.tolist(), quarter_turned(images, turns), strict=True):
        assert torch.equal(turned, torch.rot90(image, number, (1, 2)))


def test_the_loss_is_zero_if_and_only_if_cosines_are_kept(generator):
    gram = GramHead(12)
    unit = gram(torch.randn(7, 12, generator=generator))
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=generator))[0]
    assert gram.loss(unit, unit @ rotation) < 1e-8
    assert gram.loss(unit, unit.flip(0)) > 0.1


def test_turns_are_drawn_from_the_seed_and_are_the_same_for_all_images():
    drawn = [GramHead(3).draw_turns(9, seed) for seed in range(30)]
    assert torch.equal(drawn[5], GramHead(3).draw_turns(9, 5))
    assert all(len(turns.unique()) == 1 for turns in drawn)
    assert {int(turns[0]) for turns in drawn} == {1, 2, 3}


def test_a_run_with_a_head_continues_to_the_same_bits_and_keeps_the_encoder_alone(images, tmp_path):
    recipe = tiny("gram")
    whole = train_unlabelled(images, recipe)
    assert whole.encoder(torch.from_numpy(images[:, None])).shape == (11, 20)
    assert not any("head" in name for name in whole.encoder.state_dict())

    def stop(current):
        if current.step == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_unlabelled(images, recipe, tmp_path, progress=stop)
    rest = train_unlabelled(images, recipe, tmp_path, resume=True)
    for name, weight in whole.encoder.state_dict().items():
        assert torch.equal(weight, rest.encoder.state_dict()[name]), name


def test_heads_need_an_encoder_that_sees_turns_and_square_images(images):
    turning = tiny("gram", network=TINY["network"] | {"group": "c4"})
    with pytest.raises(ValueError, match=r"set network\.group to 'c1', got 'c4'"):
        train_unlabelled(images, turning)
    with pytest.raises(InputError, match="must be square, got 13 x 12"):
        train_unlabelled(images[:, :, :12], tiny("gram"))
    with pytest.raises(ValueError, match=r"unlabelled\.head must be one of none, gram"):
        tiny("capsule")
