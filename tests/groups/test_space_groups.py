"""What is special to the groups of space; test_contract.py has what every group must be."""

import math

import pytest
import torch

from unpose.groups import inverse, parse, transform

pytestmark = pytest.mark.laws

NAMES = ["so3", "o3", "se3", "e3"]


def test_random_rotations_are_uniform_and_keep_their_bounds():
    generator = torch.Generator().manual_seed(1)
    turns = parse("so3").random(4001, generator=generator, dtype=torch.float64)[:, :3, :3]
    # Under the uniform measure the entries have mean 0 and variance 1/3, and the squared trace has mean 1.
    assert turns.mean(0).abs().max() < 0.03
    assert (turns.square().mean(0) - 1 / 3).abs().max() < 0.03
    assert abs(float(turns.diagonal(dim1=1, dim2=2).sum(1).square().mean()) - 1) < 0.08
    bounded = parse("se3").random(301, generator=generator, max_angle=0.3, max_shift=2.0, dtype=torch.float64)
    angles = parse("se3").log(bounded)[:, 3:].norm(dim=1)
    assert 0.28 < angles.max() <= 0.3
    assert 1.9 < bounded[:, :3, 3].abs().max() <= 2


def test_which_group_holds_which():
    mirror = torch.diag(torch.tensor([-1.0, 1.0, 1.0, 1.0]))
    shift = torch.eye(4)
    shift[0, 3] = 2.0
    assert [bool(parse(name).contains(mirror)) for name in NAMES] == [False, True, False, True]
    assert [bool(parse(name).contains(shift)) for name in NAMES] == [False, False, True, True]
    assert not parse("e3").contains(2 * torch.eye(4))


def test_axes_are_right_handed_and_quarter_turns_invert_exactly():
    turn = parse("so3").exp(torch.tensor([0.0, 0.0, math.pi / 2]))
    moved = transform(turn, torch.eye(3))
    torch.testing.assert_close(moved, torch.tensor([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]]), atol=1e-6, rtol=0)
    exact = turn.round()
    assert torch.equal(inverse(exact) @ exact, torch.eye(4))


def test_poses_keep_lengths(generator):
    points = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    moved = transform(parse("e3").random(7, generator=generator, dtype=torch.float64), points)
    torch.testing.assert_close(torch.cdist(moved, moved), torch.cdist(points, points).expand(7, 5, 5))


def test_an_angle_is_at_most_half_a_turn():
    with pytest.raises(ValueError, match="max_angle"):
        parse("se3").random(3, max_angle=4.0)
