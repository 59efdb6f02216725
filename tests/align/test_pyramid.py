"""A pyramid level: the compiled kernels against the reference, and the meaning of its distances."""

import pytest
import torch

from unpose.align import photometry
from unpose.align.kernels import cpu, reference
from unpose.align.pyramid import Level
from unpose.align.refine import PoseBounds
from unpose.groups import parse
from unpose.images import pixel_grid, smooth, warp


@pytest.fixture(params=[1, 3])
def images(request, generator):
    content = smooth(torch.rand(7, request.param, 13, 17, generator=generator), 1.2)
    return torch.nn.functional.pad(content, [3] * 4)  # nothing leaves the frame


@pytest.fixture
def mask():
    return (pixel_grid((19, 23)).norm(dim=-1) < 9).float()


def reference_level(*arguments):
    """The same level computed by the reference."""
    level = Level(*arguments)
    level.pairs = reference.ImagePairs(*arguments[1:])
    return level


def random(group, count, generator, **bounds):
    bounds = {"max_angle": 0.5, "max_shift": 3.0, "max_scale": 1.2} | bounds
    return parse(group).random(count, generator=generator, **bounds)


@pytest.mark.parametrize("contrast", photometry.CONTRASTS)
@pytest.mark.parametrize("group", ["se2", "perspective"])
def test_distances_are_those_of_the_reference(images, mask, generator, contrast, group):
    arguments = (1.0, images, images.flip(0) + 0.1, mask)
    left, right = torch.tensor([3, 0, 3, 5, 6]), torch.tensor([1, 1, 2, 6, 0])
    poses = random(group, 5, generator)
    found, expected = (make(*arguments).distances(left, right, poses, contrast) for make in (Level, reference_level))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("contrast", photometry.CONTRASTS)
@pytest.mark.parametrize("group", ["translation", "se2+mirror", "similarity", "affine", "perspective"])
def test_refinement_is_that_of_the_reference_and_lowers_distances(images, mask, generator, contrast, group):
    true = random(group, 7, generator, max_angle=0.06, max_shift=1.0, max_scale=1.03)
    arguments = (1.0, images, warp(images, true), mask)
    level = Level(*arguments)
    pairs, start = torch.arange(7), torch.eye(3).repeat(7, 1, 1)
    if "mirror" in group:
        start = torch.where((torch.linalg.det(true) < 0)[:, None, None], start * torch.tensor([-1.0, 1, 1]), start)
    settings = {"contrast": contrast, "bounds": PoseBounds(0.5, 3.0, 1.3)}
    found, converged = level.refine(pairs, pairs, start, parse(group), **settings)
    expected, also = reference_level(*arguments).refine(pairs, pairs, start, parse(group), **settings)
    torch.testing.assert_close(found / found[:, 2:, 2:], expected / expected[:, 2:, 2:], rtol=1e-3, atol=2e-3)
    assert torch.equal(converged, also)
    assert (level.distances(pairs, pairs, found, contrast) < level.distances(pairs, pairs, start, contrast)).all()


def test_refinement_keeps_its_bounds(images, mask):
    poses = parse("se2").exp(torch.tensor([[2.0, 0.0, 0.0]])).repeat(7, 1, 1)
    level, pairs = Level(1.0, images, warp(images, poses), mask), torch.arange(7)
    start, bounds = torch.eye(3).repeat(7, 1, 1), PoseBounds(max_angle=0.1, max_shift=0.7, max_scale=1.0)
    found, _ = level.refine(pairs, pairs, start, parse("se2"), contrast="none", bounds=bounds)
    assert (found[:, :2, 2].norm(dim=1) <= 0.7 * 1.0001).all()
    assert (found[:, 0, 1].abs() <= 0.1 * 1.0001).all()


def test_a_pair_does_not_depend_on_the_other_pairs_or_their_order(images, mask):
    """Pairs of one fixed image share its linearisation; alone or together, in any order, they give the same bytes."""
    level = Level(1.0, images, images, mask)
    left, right = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([5, 5, 6, 5, 5])
    settings = {"contrast": "affine", "bounds": PoseBounds(0.5, 3.0, 1.3)}
    start = torch.eye(3).repeat(5, 1, 1)
    together, _ = level.refine(left, right, start, parse("affine"), **settings)
    back, _ = level.refine(left.flip(0), right.flip(0), start, parse("affine"), **settings)
    alone = [
        level.refine(left[i : i + 1], right[i : i + 1], start[:1], parse("affine"), **settings)[0] for i in range(5)
    ]
    assert torch.equal(together, back.flip(0))
    assert torch.equal(together, torch.cat(alone))


def test_quarter_turns_mirrors_and_whole_shifts_are_exact(generator):
    image = torch.rand(1, 1, 24, 24, generator=generator)
    turned = [torch.rot90(image, 1, (2, 3)), image.flip(3), torch.nn.functional.pad(image, (5, -5, 0, 0))]
    poses = parse("se2").exp(torch.tensor([[0.0, 0.0, torch.pi / 2], [0.0, 0.0, 0.0], [5.0, 0.0, 0.0]]))
    poses[1, 0, 0] = -1
    for pose, goal, lost in zip(poses, turned, (0, 0, image[..., -5:].square().sum()), strict=True):
        level = Level(1.0, image, goal, torch.ones(24, 24))
        zero = torch.zeros(1, dtype=torch.long)
        squared = level.distances(zero, zero, pose[None], "none") ** 2
        torch.testing.assert_close(squared, torch.as_tensor([lost]).double(), rtol=1e-6, atol=1e-9)


def test_energy_outside_is_that_of_the_pixels_that_leave_the_frame():
    image = torch.zeros(1, 1, 21, 21)
    image[..., 8:13, 8:13] = 1.0
    poses = parse("translation").exp(torch.tensor([[0.0, 0.0], [30.0, 0.0], [10.6, 0.0]]))
    zeros = torch.zeros(3, dtype=torch.long)
    lost = cpu.ImagePairs(image, image, torch.ones(21, 21)).energy_outside(zeros, poses)
    assert lost.tolist() == [0.0, 25.0, 15.0]
    torch.testing.assert_close(photometry.energy_outside(image.expand(3, -1, -1, -1), poses, (21, 21)), lost)
    inside = warp(image, poses[2:]).square().sum()
    torch.testing.assert_close(lost[2] + inside.double(), torch.tensor(25.0, dtype=torch.float64), rtol=0.15, atol=0)


@pytest.mark.parametrize("contrast", photometry.CONTRASTS)
def test_distances_ignore_the_changes_that_the_contrast_names(contrast, generator):
    image = torch.rand(2, 1, 19, 23, generator=generator) + 0.1
    change = {"none": image, "offset": image + 0.4, "gain": 1.7 * image, "affine": 0.6 * image + 0.3}[contrast]
    pairs, eye = torch.arange(2), torch.eye(3).repeat(2, 1, 1)
    same = Level(1.0, change, image, torch.ones(19, 23)).distances(pairs, pairs, eye, contrast)
    torch.testing.assert_close(same, torch.zeros(2, dtype=torch.float64), atol=1e-3, rtol=0)
    assert (Level(1.0, 1 - change, image, torch.ones(19, 23)).distances(pairs, pairs, eye, contrast) > 0.5).all()
