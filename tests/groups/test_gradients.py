"""Gradients through exp, log, composition and inverse against finite differences, at zero and at half a turn too."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from unpose.groups import inverse, parse, transform

KINDS = ["translation", "se2", "similarity", "affine", "perspective"]


def twists(group):
    v = torch.randn(5, group.dim, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 0.3
    v[:, 6:] *= 0.1
    v[0] = 0
    if group.dim >= 3:
        v[1], v[2] = 0, 0
        v[1, 2] = math.pi
        v[2, :3] = torch.tensor([1.0, -2.0, math.pi])
    return v.requires_grad_()


@pytest.mark.parametrize("kind", KINDS)
def test_exp_compose_inverse(kind):
    group = parse(kind)
    v = twists(group)

    def chain(v):
        return group.inverse(group.exp(v)) @ group.exp(0.5 * v)

    assert gradcheck(group.exp, v)
    assert gradcheck(chain, v)
    assert gradgradcheck(group.exp, v[3:])


@pytest.mark.parametrize("kind", KINDS)
def test_log(kind):
    group = parse(kind)
    elements = group.exp(twists(group).detach())
    away_from_half_a_turn = elements[[0, 3, 4]].requires_grad_()
    # Finite differences leave the group; what matters is the derivative along it.
    assert gradcheck(lambda v: group.log(away_from_half_a_turn.detach() @ group.exp(v)), twists(group)[[0, 3, 4]] * 0.1)
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
