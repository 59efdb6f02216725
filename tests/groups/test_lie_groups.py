"""What is special to the groups of the plane; test_contract.py has what every group must be."""

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck

from unpose.groups import area_change, inverse, parse, reflection, rotation, transform

pytestmark = pytest.mark.laws

CHAINS = [["translation", "se2", "similarity", "affine", "perspective"], ["so2", "se2"]]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[0])
def test_larger_groups_contain_smaller_ones_and_not_the_other_way_round(chain, generator):
    for small, large in itertools.pairwise(chain):
        elements = parse(small).random(13, generator=generator, dtype=torch.float64)
        assert parse(large).contains(elements).all()
        elements = parse(large).random(13, generator=generator, dtype=torch.float64)
        assert not parse(small).contains(elements).any()


def test_so2_turns_about_the_centre_and_does_not_shift(generator):
    so2, angle = parse("so2"), torch.tensor([0.3], dtype=torch.float64)
    torch.testing.assert_close(so2.exp(angle), rotation(angle[0]))
    elements = parse("se2").random(13, generator=generator, dtype=torch.float64)
    nearest = so2.project(elements)
    assert (nearest[:, :2, 2] == 0).all()
    torch.testing.assert_close(nearest[:, :2, :2], elements[:, :2, :2])
    assert (so2.random(13, generator=generator, max_shift=9.0)[:, :2, 2] == 0).all()


def test_a_group_says_what_a_search_needs():
    def properties(kind):
        group = parse(kind)
        return group.shifts, group.turns, group.scales, group.deforms, group.is_isometric, group.is_projective

    assert properties("translation") == (True, False, False, False, True, False)
    assert properties("so2") == (False, True, False, False, True, False)
    assert properties("se2") == (True, True, False, False, True, False)
    assert properties("similarity") == (True, True, True, False, False, False)
    assert properties("affine") == (True, True, True, True, False, False)
    assert properties("perspective") == (True, True, True, True, False, True)


@pytest.mark.parametrize("kind", ["affine", "perspective"])
def test_project_refuses_what_has_no_nearest_element(kind):
    with pytest.raises(ValueError, match="no nearest element"):
        parse(kind).project(reflection(torch.float64))


def test_random_keeps_its_bounds(generator):
    group = parse("similarity+mirror")
    elements = group.random(997, generator=generator, dtype=torch.float64, max_angle=0.4, max_shift=3, max_scale=1.3)
    area = area_change(elements)
    assert 0.4 < (area < 0).double().mean() < 0.6
    assert area.abs().sqrt().max() <= 1.3
    assert area.abs().sqrt().min() >= 1 / 1.3
    unmirrored = torch.where((area < 0)[:, None, None], elements @ reflection(torch.float64), elements)
    angles = torch.atan2(unmirrored[:, 0, 1], unmirrored[:, 0, 0])
    assert 0.35 < angles.abs().max() <= 0.4
    assert 2.9 < elements[:, :2, 2].abs().max() <= 3


@pytest.mark.parametrize("bound", ["max_scale", "max_stretch", "max_tilt"])
def test_random_refuses_bounds_that_make_no_sense(bound):
    with pytest.raises(ValueError, match=bound):
        parse("se2").random(3, **{bound: -1.0})


def test_positive_angles_turn_counter_clockwise_on_screen():
    # A point right of the centre goes up, which is towards smaller y.
    right = torch.tensor([[1.0, 0.0]])
    up = transform(rotation(torch.tensor(math.pi / 2)), right)
    torch.testing.assert_close(up, torch.tensor([[0.0, -1.0]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(parse("se2").exp(torch.tensor([0, 0, 0.3])), rotation(torch.tensor(0.3)))


@pytest.mark.parametrize("kind", ["affine", "perspective"])
def test_reversing_two_axes_by_different_amounts_has_no_real_logarithm(kind):
    with pytest.raises(ValueError, match="no real logarithm"):
        parse(kind).log(torch.diag(torch.tensor([-1.0, -2.0, 1.0], dtype=torch.float64)))


def test_homographies_count_up_to_a_factor(generator):
    group = parse("perspective")
    elements = group.random(7, generator=generator, dtype=torch.float64)
    assert group.contains(-3.0 * elements).all()
    torch.testing.assert_close(group.project(-3.0 * elements), elements)
    torch.testing.assert_close(group.log(-3.0 * elements), group.log(elements))


def test_the_inverse_of_a_quarter_turn_is_exact():
    quarter = parse("c4").elements[1].float()
    assert torch.equal(inverse(quarter), parse("c4").elements[3].float())


@pytest.mark.gradients
def test_gradients_of_inverse_and_transform_of_any_homography(generator):
    matrices = torch.eye(3, dtype=torch.float64) + 0.1 * torch.randn(4, 3, 3, generator=generator, dtype=torch.float64)
    points = torch.randn(4, 7, 2, generator=generator, dtype=torch.float64)
    assert gradcheck(inverse, matrices.requires_grad_())
    assert gradcheck(transform, (matrices, points.requires_grad_()))
