"""Gradients of exp, log, composition and inverse agree with finite differences, also at zero and at half a turn."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from unpose.groups import CONTINUOUS, inverse, parse, transform

pytestmark = pytest.mark.gradients

KINDS = list(CONTINUOUS)


def twists(group):
    v = torch.randn(5, group.dim, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 0.3
    names = [coordinate.name for coordinate in group.coordinates]
    v[:, [name.startswith("tilt") for name in names]] *= 0.1
    v[0] = 0
    if group.turns:
        v[1], v[2] = 0, 0
        v[1:3, names.index("turn")] = math.pi
        if group.shifts:
            v[2, :2] = torch.tensor([1.0, -2.0])
    return v.requires_grad_()


@pytest.mark.parametrize("kind", KINDS)
def test_exp_compose_inverse(kind):
    group = parse(kind)
    v = twists(group)

    def chain(v):
        return group.inverse(group.exp(v)) @ group.exp(0.5 * v)

    assert gradcheck(group.exp, v, fast_mode=kind != "perspective")  # which has the directions of all others
    assert gradcheck(chain, v, fast_mode=True)
    assert gradgradcheck(group.exp, v[3:], fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_log(kind):
    group = parse(kind)
    elements = group.exp(twists(group).detach())
    away_from_half_a_turn = elements[[0, 3, 4]].requires_grad_()
    # Finite differences leave the group; what matters is the derivative along it.
    near = twists(group)[[0, 3, 4]] * 0.1
    assert gradcheck(lambda v: group.log(away_from_half_a_turn.detach() @ group.exp(v)), near, fast_mode=True)
    half = elements.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(group.log(half).square().sum(), half)
    assert torch.isfinite(gradient).all()


def test_inverse_and_transform_of_any_homography():
    matrices = (
        torch.eye(3, dtype=torch.float64)
        + 0.1 * torch.randn(4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ).requires_grad_()
    points = torch.randn(4, 7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    assert gradcheck(inverse, matrices)
    assert gradcheck(transform, (matrices, points))
