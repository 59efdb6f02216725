"""Heads of learning without labels: what their losses ask for, and runs with them."""

import numpy as np
import pytest
import torch

from unpose.data import InputError
from unpose.train import StoppedError, recipe_from, train_unlabelled
from unpose.train.heads import GramHead, SplitHead, TurnHead, quarter_turned, turned_pairs

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


def test_images_and_pairs_turn_by_their_own_number_of_quarter_turns(generator):
    images, turns = torch.rand(5, 2, 7, 7, generator=generator), torch.tensor([0, 1, 2, 3, 1])
    for image, number, turned in zip(images, turns.tolist(), quarter_turned(images, turns), strict=True):
        assert torch.equal(turned, torch.rot90(image, number, (1, 2)))
    pairs = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(turned_pairs(turned_pairs(pairs, turns), 4 - turns), pairs)
    torch.testing.assert_close(turned_pairs(pairs, torch.ones(5))[:, 1::2], pairs[:, ::2])  # y becomes x
    torch.testing.assert_close(turned_pairs(pairs, torch.full((5,), 2)), -pairs)


def test_the_loss_of_each_head_is_least_for_what_it_asks(generator):
    turns = torch.tensor([0, 1, 2, 3, 3, 1, 0])
    sure = 20.0 * torch.nn.functional.one_hot(turns, 4)
    assert TurnHead(6).loss(sure, sure, turns) < 1e-3 < 5 < TurnHead(6).loss(sure, sure.roll(1, 1), turns)

    first = torch.randn(7, 12, generator=generator)
    moved, split = turned_pairs(first, turns), SplitHead(9)
    still = split.loss(moved, moved, turns)  # pairs that do not turn with the image
    assert split.loss(first, moved, turns) < still - 5
    assert split.left(torch.zeros(2, 9)).shape == (2, 5)
    assert split(torch.randn(7, 9, generator=generator)).shape == (7, 64)

    gram = GramHead(12)
    unit = gram(first)
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=generator))[0]
    assert gram.loss(unit, unit @ rotation, turns) < 1e-8
    assert gram.loss(unit, unit.flip(0), turns) > 0.1


def test_turns_are_drawn_from_the_seed_and_are_shared_where_cosines_are_compared():
    drawn = TurnHead(3).draw_turns(100, 5)
    assert torch.equal(drawn, TurnHead(3).draw_turns(100, 5))
    assert drawn.unique().tolist() == [0, 1, 2, 3]
    shared = [GramHead(3).draw_turns(9, seed) for seed in range(30)]
    assert all(len(turns.unique()) == 1 for turns in shared)
    assert {int(turns[0]) for turns in shared} == {1, 2, 3}


@pytest.mark.parametrize("head", ["split", *(pytest.param(name, marks=pytest.mark.slow) for name in ("turn", "gram"))])
def test_a_run_with_a_head_continues_to_the_same_bits_and_keeps_the_encoder_alone(head, images, tmp_path):
    recipe = tiny(head)
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
    turning = tiny("turn", network=TINY["network"] | {"group": "c4"})
    with pytest.raises(ValueError, match=r"set network\.group to 'c1', got 'c4'"):
        train_unlabelled(images, turning)
    with pytest.raises(InputError, match="must be square, got 13 x 12"):
        train_unlabelled(images[:, :, :12], tiny("gram"))
    with pytest.raises(ValueError, match=r"unlabelled\.head must be one of none, turn, split, gram"):
        tiny("capsule")
