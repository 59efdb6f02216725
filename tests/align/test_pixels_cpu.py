"""The compiled pixel loops against the plain versions."""

import pytest
import torch

from unpose.align import photometry, pixels_cpu
from unpose.align.refine import _slopes, _velocity, linearise
from unpose.groups import parse
from unpose.images import pixel_grid, sample, source_points, warp


@pytest.fixture(params=[1, 3])
def case(request, generator):
    moving = torch.rand(5, request.param, 19, 23, generator=generator)
    fixed = torch.rand(5, request.param, 19, 23, generator=generator)
    poses = parse("perspective").random(5, generator=generator, max_angle=0.5, max_shift=3.0, max_scale=1.2)
    mask = (pixel_grid((19, 23)).norm(dim=-1) < 9).float()
    return moving, fixed, poses, mask


@pytest.mark.parametrize("contrast", photometry.CONTRASTS)
@pytest.mark.parametrize("group", ["se2", "perspective"])
def test_linearising(case, contrast, group):
    moving, fixed, poses, mask = case
    velocity = _velocity(parse(group), pixel_grid((19, 23)))
    slopes = _slopes(fixed)
    expected = linearise(moving, fixed, slopes, velocity, poses, contrast, mask)
    compiled = pixels_cpu.Linearised(moving, fixed, slopes, velocity, mask, photometry.CONTRASTS.index(contrast))
    for found, wanted in zip(compiled(poses, torch.arange(5)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    some = torch.tensor([3, 1])
    for found, wanted in zip(compiled(poses[some], some), expected, strict=True):
        torch.testing.assert_close(found, wanted[some], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("overlap", [False, True])
def test_moments(case, overlap):
    moving, fixed, poses, mask = case
    points = source_points(poses, (19, 23))
    moved = sample(moving, points)
    weight = photometry.overlap(mask, points) if overlap else mask.expand(5, 1, -1, -1)
    w = weight.expand_as(fixed)
    wanted = torch.stack(
        [t.sum((2, 3)) for t in (w, w * moved, w * fixed, w * moved**2, w * moved * fixed, w * fixed**2)], -1
    )
    found = pixels_cpu.moments(moving, fixed, poses, mask, overlap=overlap)
    torch.testing.assert_close(found.float(), wanted, rtol=1e-4, atol=1e-3)


def test_energy_outside_is_what_the_frame_loses():
    image = torch.zeros(1, 1, 21, 21)
    image[..., 8:13, 8:13] = 1.0
    poses = parse("translation").exp(torch.tensor([[0.0, 0.0], [30.0, 0.0], [10.6, 0.0]]))
    lost = pixels_cpu.energy_outside(image.expand(3, -1, -1, -1), poses, (21, 21))
    assert lost.tolist() == [0.0, 25.0, 15.0]
    inside = warp(image, poses[2:]).square().sum()
    torch.testing.assert_close(lost[2] + inside.double(), torch.tensor(25.0, dtype=torch.float64), rtol=0.15, atol=0)


@pytest.mark.parametrize("contrast", photometry.CONTRASTS)
def test_what_a_contrast_is_blind_to(contrast, generator):
    image = torch.rand(2, 1, 19, 23, generator=generator) + 0.1
    eye, mask = torch.eye(3).repeat(2, 1, 1), torch.ones(19, 23)
    change = {"none": image, "offset": image + 0.4, "gain": 1.7 * image, "affine": 0.6 * image + 0.3}[contrast]
    torch.testing.assert_close(
        photometry.distances(change, image, eye, contrast, mask), torch.zeros(2, dtype=torch.float64), atol=1e-3, rtol=0
    )
    assert (photometry.distances(1 - change, image, eye, contrast, mask) > 0.5).all()
