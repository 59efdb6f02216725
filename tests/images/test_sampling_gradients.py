"""First and second derivatives of warps in image and pose agree with finite differences."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from unpose.groups import parse
from unpose.images import smooth, warp

pytestmark = pytest.mark.gradients


def case(name):
    generator = torch.Generator().manual_seed(11)
    images = torch.rand(2, 2, 5, 6, generator=generator, dtype=torch.float64).requires_grad_()
    group = parse(name)
    twist = 0.1 * torch.randn(2, group.dim, generator=generator, dtype=torch.float64)
    twist[:, 6:] *= 0.1
    return group, images, twist.requires_grad_()


def test_warp_in_image_and_pose():
    for name in ("se2", "perspective"):
        group, images, twist = case(name)

        def warped(images, twist, group=group):
            return warp(images, group.exp(twist), (2, 3))

        # Along random directions; all derivatives would take ten times as long.
        assert gradcheck(warped, (images, twist), fast_mode=True)
        assert gradgradcheck(warped, (images, twist), fast_mode=True)


def test_warp_at_the_identity():
    group, images, twist = case("se2")
    # Keys' kernel has a continuous first derivative, so the gradient at whole pixels is well defined.
    at = torch.zeros_like(twist).requires_grad_()
    assert gradcheck(lambda v: warp(images.detach(), group.exp(v)), (at,), eps=1e-7, atol=1e-5, fast_mode=True)


def test_smooth():
    _, images, _ = case("se2")
    assert gradcheck(lambda x: smooth(x, 1.3), images)
