"""Sampling agrees with scikit-image, is exact for quarter turns and mirrors, and the same in all implementations."""

import math

import numpy as np
import pytest
import skimage.transform
import torch

from unpose.groups import parse, rotation, scaling, translation
from unpose.images import (
    displacements,
    mirror,
    pixel_grid,
    quarter_turn,
    sample,
    sample_with_gradient,
    source_points,
    warp,
)

HEIGHT, WIDTH = 29, 37


def oracle(image, pose, shape):
    """scikit-image's bicubic warp, an independent implementation of the same kernel."""

    def centre(height, width):
        return np.array([[1, 0, (width - 1) / 2], [0, 1, (height - 1) / 2], [0, 0, 1.0]])

    inverse_map = centre(*image.shape) @ np.linalg.inv(pose) @ np.linalg.inv(centre(*shape))
    return skimage.transform.warp(image, inverse_map, order=3, clip=False, output_shape=shape)


@pytest.mark.parametrize("name", ["translation", "se2", "similarity", "affine", "perspective", "affine+mirror"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (31, 24)])
def test_warp_equals_scikit_image(name, dtype, shape, generator):
    images = torch.rand(7, 3, HEIGHT, WIDTH, generator=generator, dtype=dtype)
    poses = parse(name).random(7, generator=generator, dtype=dtype)
    warped = warp(images, poses, shape)
    for image, pose, result in zip(images.double().numpy(), poses.double().numpy(), warped.numpy(), strict=True):
        expected = np.stack([oracle(channel, pose, shape) for channel in image])
        np.testing.assert_allclose(result, expected, atol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("shape", [(6, 6), (7, 7), (6, 7), (5, 8)])
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_quarter_turns_are_exact(shape, turns, generator):
    images = torch.rand(3, 2, *shape, generator=generator)
    turned_shape = shape if turns % 2 == 0 else shape[::-1]
    exact = quarter_turn(images, turns)
    pose = rotation(torch.tensor(turns * math.pi / 2))  # cos of it is not exactly zero
    assert torch.equal(warp(images, pose, turned_shape), exact)
    assert torch.equal(warp(images, pose.expand(3, 3, 3), turned_shape), exact)
    assert torch.equal(warp(images, parse("p4").elements[turns].float(), turned_shape), exact)


def test_a_quarter_turn_is_counter_clockwise_on_screen():
    image = torch.tensor([[0.0, 0, 0], [0, 0, 1], [0, 0, 0]])  # a dot on the right
    assert quarter_turn(image)[0, 1] == 1  # is now on top


def test_mirrors_and_whole_pixel_shifts_are_exact(generator):
    images = torch.rand(3, 1, 6, 7, generator=generator)
    flip = parse("d1").elements[1].float()
    assert torch.equal(warp(images, flip), mirror(images))
    shifted = warp(images, translation(torch.tensor([2.0, -1.0])))
    assert torch.equal(shifted[..., :5, 2:], images[..., 1:, :5])
    assert (shifted[..., 5, :] == 0).all()
    assert (shifted[..., :2] == 0).all()


def test_everything_is_zero_outside(generator):
    images = torch.ones(1, 1, 5, 5)
    far = translation(torch.tensor([[100.0, 0.0], [0.0, -1e30], [7.5, 0.0]]))
    assert (warp(images, far) == 0).all()
    behind = torch.eye(3)
    behind[2, 0] = 1.0  # half of the plane lies behind the camera
    assert torch.isfinite(warp(images, behind)).all()


def test_all_implementations_agree(generator):
    """Compiled, shared-pose, and differentiable sampling are one function."""
    images = torch.rand(5, 3, 11, 13, generator=generator)
    pose = parse("affine").random(1, generator=generator)[0]
    shared = warp(images, pose)
    compiled = warp(images, pose.expand(5, 3, 3))
    differentiable = warp(images.clone().requires_grad_(), pose.expand(5, 3, 3)).detach()
    torch.testing.assert_close(shared, compiled, atol=2e-6, rtol=0)
    torch.testing.assert_close(differentiable, compiled, atol=2e-6, rtol=0)
    one_by_one = torch.stack([warp(image[None], pose)[0] for image in images])
    torch.testing.assert_close(one_by_one, compiled, atol=0, rtol=0)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_gradient_of_sampling_is_the_derivative(requires_grad, generator):
    images = torch.rand(2, 3, 9, 11, generator=generator, dtype=torch.float64)
    points = source_points(parse("se2").random(2, generator=generator, max_shift=5, dtype=torch.float64), (7, 5))
    values, slopes = sample_with_gradient(images.requires_grad_(requires_grad), points)
    torch.testing.assert_close(values, sample(images, points))
    moved = points.clone().requires_grad_()
    for channel in range(3):
        (expected,) = torch.autograd.grad(sample(images, moved)[:, channel].sum(), moved)
        torch.testing.assert_close(slopes[:, channel], expected)


def test_one_image_seen_from_many_poses(generator):
    image = torch.rand(1, 2, 9, 9, generator=generator)
    poses = parse("se2").random(4, generator=generator)
    views = warp(image, poses)
    assert views.shape == (4, 2, 9, 9)
    for view, pose in zip(views, poses, strict=True):
        torch.testing.assert_close(view, warp(image, pose)[0])


def test_images_without_channels(generator):
    images = torch.rand(4, 9, 8, generator=generator)
    pose = parse("se2").random(1, generator=generator)[0]
    assert warp(images, pose).shape == (4, 9, 8)
    torch.testing.assert_close(warp(images[0], pose), warp(images, pose)[0], atol=1e-6, rtol=0)
    assert warp(images[0], pose.expand(6, 3, 3), (5, 5)).shape == (6, 5, 5)


def test_composing_poses_resamples_once():
    """Two quarter turns of an eighth are a quarter turn: composed first, nothing is interpolated."""
    image = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    eighth = rotation(torch.tensor(math.pi / 4))
    torch.testing.assert_close(warp(image, eighth @ eighth), quarter_turn(image), atol=1e-5, rtol=0)
    assert (warp(warp(image, eighth), eighth) - quarter_turn(image)).abs().max() > 0.05


def test_a_linear_image_is_reproduced_inside():
    """Keys' kernel reproduces polynomials up to degree two."""
    x, y = pixel_grid((21, 23), torch.float64).unbind(-1)
    for image, value in (
        (x, lambda p: p[..., 0]),
        (x * y, lambda p: p[..., 0] * p[..., 1]),
        (y**2, lambda p: p[..., 1] ** 2),
    ):
        points = 7 * (torch.rand(1, 50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.5)
        torch.testing.assert_close(sample(image[None, None], points)[0, 0], value(points)[0])


def test_scaling_keeps_the_centre():
    image = torch.zeros(9, 9)
    image[4, 4] = 1.0
    assert warp(image, scaling(torch.tensor(2.0)))[4, 4] == 1.0


def test_displacements_interpolate_their_nodes_smoothly(generator):
    nodes = torch.randn(3, 5, 4, 2, generator=generator, dtype=torch.float64)
    field = displacements(nodes, (33, 31))
    torch.testing.assert_close(field[:, ::8, ::10], nodes)
    assert (field[:, 1:] - field[:, :-1]).abs().max() < 0.25 * nodes.abs().max()
    even = displacements(nodes[:, :1, :1].expand(-1, 5, 4, -1), (9, 11))
    torch.testing.assert_close(even, nodes[:, :1, :1].expand(-1, 9, 11, -1))


def test_results_do_not_depend_on_the_number_of_threads(generator):
    images = torch.rand(7, 1, 13, 13, generator=generator)
    poses = parse("affine").random(7, generator=generator)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(warp(images, poses))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    ("images", "poses", "message"),
    [
        (torch.zeros(5), torch.eye(3), "images must be"),
        (torch.zeros(2, 1, 4, 4), torch.eye(2), "poses must be"),
        (torch.zeros(2, 1, 4, 4), torch.eye(3).expand(3, 3, 3), "must be equal in number"),
    ],
)
def test_shapes_that_do_not_match_are_refused(images, poses, message):
    with pytest.raises(ValueError, match=message):
        warp(images, poses)


def test_no_images_and_no_poses_give_no_images():
    for images, poses in ((torch.rand(0, 3, 8, 8), torch.eye(3)), (torch.rand(1, 3, 8, 8), torch.empty(0, 3, 3))):
        assert warp(images, poses).shape == (0, 3, 8, 8)
        assert warp(images.requires_grad_(), poses).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_values_and_not_coordinates(dtype, generator):
    images = torch.rand(2, 1, 64, 200, generator=generator).to(dtype)
    poses = parse("se2").random(2, generator=generator)
    found = warp(images, poses)
    assert found.dtype == dtype
    assert torch.equal(found, warp(images.float(), poses).to(dtype))
    assert torch.equal(warp(images, torch.eye(3)), images)


def test_integer_images_are_refused():
    for pose in (torch.eye(3), torch.eye(3).repeat(2, 1, 1)):
        with pytest.raises(ValueError, match="divide integers by their full scale"):
            warp(torch.ones(2, 1, 4, 4, dtype=torch.uint8), pose)


def test_warp_can_be_transformed(generator):
    images, poses = torch.rand(3, 2, 7, 9, generator=generator), parse("similarity").random(3, generator=generator)
    wanted = warp(images, poses)
    torch.testing.assert_close(torch.func.vmap(lambda i, p: warp(i[None], p)[0])(images, poses), wanted)
    fine, poses_64 = images.double(), poses.double()
    step = parse("similarity").random(3, generator=generator, dtype=torch.float64) - torch.eye(3)
    slope = torch.func.jvp(lambda p: warp(fine, p), (poses_64,), (step,))[1]
    apart = (warp(fine, poses_64 + 1e-6 * step) - warp(fine, poses_64 - 1e-6 * step)) / 2e-6
    torch.testing.assert_close(slope, apart, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_warp_can_be_traced(generator):
    """What the compiled kernels compute would be a constant of the trace."""
    images, poses = torch.rand(3, 2, 7, 9, generator=generator), parse("similarity").random(3, generator=generator)
    traced = torch.jit.trace(warp, (images, poses))
    others, to = torch.rand(3, 2, 7, 9, generator=generator), parse("similarity").random(3, generator=generator)
    torch.testing.assert_close(traced(others, to), warp(others, to))


@pytest.mark.slow
def test_warp_can_be_exported(generator):
    images, poses = torch.rand(3, 2, 7, 9, generator=generator), parse("similarity").random(3, generator=generator)

    class Warp(torch.nn.Module):
        def forward(self, images, poses):
            return warp(images, poses)

    torch.testing.assert_close(
        torch.export.export(Warp(), (images, poses)).module()(images, poses), warp(images, poses)
    )
