"""Pairs of images at one size: every backend against the reference, and the meaning of refined poses and distances."""

import numpy as np
import pytest
import torch

from unpose.align import align_from, photometry, pyramid, refine
from unpose.align.kernels import BACKENDS, backend_for
from unpose.groups import parse
from unpose.images import pixel_grid, smooth, warp

REFERENCE = backend_for(torch.device("meta"))  # which has no backend of its own
BOUNDS = refine.PoseBounds(max_angle=0.5, max_shift=3.0, max_scale=1.3)


@pytest.fixture(params=[pytest.param(each, marks=[pytest.mark.gpu] * (each == "cuda")) for each in BACKENDS])
def device(request):
    return request.param


@pytest.fixture(params=[1, 3], ids=["grey", "colour"])
def images(request, generator):
    content = smooth(torch.rand(7, request.param, 13, 17, generator=generator), 1.2)
    return torch.nn.functional.pad(content, [3] * 4)  # nothing leaves the frame


@pytest.fixture
def mask():
    return (pixel_grid((19, 23)).norm(dim=-1) < 9).float()


def pairs_of(device, *sides):
    return backend_for(torch.device(device)).ImagePairs(*(side.to(device) for side in sides))


def random(group, count, generator, **bounds):
    bounds = {"max_angle": 0.5, "max_shift": 3.0, "max_scale": 1.2} | bounds
    return parse(group).random(count, generator=generator, **bounds)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("group", ["se2", "perspective"])
def test_moments_and_lost_energy_are_those_of_the_reference(images, mask, generator, overlap, group, device):
    sides = images, images.flip(0) + 0.1, mask
    left, right = torch.tensor([3, 0, 3, 5, 6]), torch.tensor([1, 1, 2, 6, 0])
    poses = random(group, 5, generator)
    there, here = pairs_of(device, *sides), REFERENCE.ImagePairs(*sides)
    given = [each.to(device) for each in (left, right, poses)]
    found, expected = there.moments(*given, overlap=overlap), here.moments(left, right, poses, overlap=overlap)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    lost = there.energy_outside(given[0], given[2]).cpu()
    torch.testing.assert_close(lost, here.energy_outside(left, poses), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("contrast", photometry.CONTRASTS)
@pytest.mark.parametrize("group", ["translation", "se2+mirror", "similarity", "affine", "perspective"])
def test_refinement_is_that_of_the_reference_and_lowers_distances(images, mask, generator, contrast, group, device):
    true = random(group, 7, generator, max_angle=0.06, max_shift=1.0, max_scale=1.03)
    sides, rows, start = (images, warp(images, true), mask), torch.arange(7), torch.eye(3).repeat(7, 1, 1)
    if "mirror" in group:
        start = torch.where((torch.linalg.det(true) < 0)[:, None, None], start * torch.tensor([-1.0, 1, 1]), start)
    options = {"contrast": contrast, "bounds": BOUNDS, "n_steps": 12, "tolerance": refine.Tolerance()}
    given = [each.to(device) for each in (rows, rows, start)]
    found, converged = pairs_of(device, *sides).refine(*given, parse(group), **options)
    expected, also = REFERENCE.ImagePairs(*sides).refine(rows, rows, start, parse(group), **options)
    level = pyramid.Level(1.0, *sides)
    near, far = (level.distances(rows, rows, poses, contrast) for poses in (found.cpu(), start))
    assert (near < far).all()
    found = (found / found[:, 2:, 2:]).cpu()
    torch.testing.assert_close(found, expected / expected[:, 2:, 2:], rtol=1e-3, atol=2e-3)
    assert torch.equal(converged.cpu(), also)


def test_a_pair_does_not_depend_on_the_other_pairs_or_their_order(images, mask):
    """Pairs of one fixed image share its linearisation; alone or together, in any order, they give the same bytes."""
    pairs = pairs_of("cpu", images, images, mask)
    left, right = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([5, 5, 6, 5, 5])
    start = torch.eye(3).repeat(5, 1, 1)

    def refined(left, right, start):
        options = {"contrast": "affine", "bounds": BOUNDS, "n_steps": 12, "tolerance": refine.Tolerance()}
        return pairs.refine(left, right, start, parse("affine"), **options)[0]

    together, back = refined(left, right, start), refined(left.flip(0), right.flip(0), start)
    alone = [refined(left[i : i + 1], right[i : i + 1], start[:1]) for i in range(5)]
    assert torch.equal(together, back.flip(0))
    assert torch.equal(together, torch.cat(alone))


def test_refinement_keeps_its_bounds_and_lowers_distances(images):
    poses = parse("se2").exp(torch.tensor([[2.0, 0.0, 0.0]])).repeat(7, 1, 1)
    given = [side.movedim(1, -1).numpy() for side in (images, warp(images, poses))]
    eyes = np.eye(3)[None].repeat(7, axis=0)
    (_, still), (within, near), (_, free) = (
        align_from(*given, eyes, max_angle=angle, max_shift=shift)
        for angle, shift in ((0.0, 0.0), (0.1, 0.7), (0.1, 3.0))
    )
    assert (np.linalg.norm(within[:, :2, 2], axis=1) <= 0.7 * 1.0001).all()
    assert (np.abs(within[:, 0, 1]) <= 0.1 * 1.0001).all()
    assert (free < near).all()
    assert (near < still).all()


def test_quarter_turns_mirrors_and_whole_shifts_are_exact(generator):
    image = torch.rand(24, 24, generator=generator).numpy()
    poses = parse("se2").exp(torch.tensor([[0.0, 0.0, torch.pi / 2], [0.0, 0.0, 0.0], [5.0, 0.0, 0.0]])).numpy()
    poses[1, 0, 0] = -1
    goals = np.stack([np.rot90(image), image[:, ::-1], np.pad(image, ((0, 0), (5, 0)))[:, :24]])
    found, distances = align_from(np.stack([image] * 3), goals, poses)
    np.testing.assert_allclose(found, poses, atol=1e-5)
    lost = (image[:, -5:].astype(np.float64) ** 2).sum()
    np.testing.assert_allclose(distances**2, [0, 0, lost], rtol=1e-6, atol=1e-9)


def test_energy_outside_is_that_of_the_pixels_that_leave_the_frame(device):
    image = torch.zeros(1, 1, 21, 21)
    image[..., 8:13, 8:13] = 1.0
    poses = parse("translation").exp(torch.tensor([[0.0, 0.0], [30.0, 0.0], [10.6, 0.0]]))
    pairs = pairs_of(device, image, image, torch.ones(21, 21))
    lost = pairs.energy_outside(torch.zeros(3, dtype=torch.long, device=device), poses.to(device)).cpu()
    assert lost.tolist() == [0.0, 25.0, 15.0]
    inside = warp(image, poses[2:]).square().sum()
    torch.testing.assert_close(lost[2] + inside.double(), torch.tensor(25.0, dtype=torch.float64), rtol=0.15, atol=0)


@pytest.mark.parametrize("contrast", photometry.CONTRASTS)
def test_distances_ignore_the_changes_that_the_contrast_names(contrast, rng):
    image = rng.random((2, 19, 23)).astype(np.float32) + 0.1
    change = {"none": image, "offset": image + 0.4, "gain": 1.7 * image, "affine": 0.6 * image + 0.3}[contrast]
    eyes = np.eye(3)[None].repeat(2, axis=0)
    assert (align_from(change, image, eyes, contrast=contrast)[1] < 1e-3).all()
    assert (align_from(1 - change, image, eyes, contrast=contrast)[1] > 0.5).all()
