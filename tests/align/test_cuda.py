"""The CUDA backend and sampling against the CPU; skipped where there is no GPU."""

import numpy as np
import pytest
import torch

from unpose.align import align, nearest
from unpose.align import refine as refinement
from unpose.data import posed
from unpose.groups import parse
from unpose.images import quarter_turn, sample, sample_with_gradient, source_points, warp

pytestmark = pytest.mark.gpu


@pytest.fixture
def blots(rng):
    return np.pad(rng.random((12, 20, 20)).astype(np.float32) > 0.6, ((0, 0), (10, 10), (10, 10))).astype(np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sampling_is_the_same(dtype, generator):
    images = torch.rand(7, 3, 29, 31, generator=generator, dtype=dtype)
    points = source_points(parse("affine").random(7, generator=generator, dtype=dtype), (23, 27))
    tolerance = {"atol": 2e-5 if dtype == torch.float32 else 1e-12, "rtol": 0}
    torch.testing.assert_close(sample(images.cuda(), points.cuda()).cpu(), sample(images, points), **tolerance)
    for there, here in zip(
        sample_with_gradient(images.cuda(), points.cuda()), sample_with_gradient(images, points), strict=True
    ):
        torch.testing.assert_close(there.cpu(), here, **tolerance)


def test_quarter_turns_are_exact(generator):
    images = torch.rand(5, 2, 7, 8, generator=generator).cuda()
    quarter = parse("c4").elements[1].float().cuda()
    assert torch.equal(warp(images, quarter.expand(5, 3, 3), (8, 7)), quarter_turn(images))
    assert torch.equal(warp(images, quarter, (8, 7)), quarter_turn(images))


@pytest.mark.parametrize("group", ["se2", "se2+mirror", "similarity"])
def test_alignments_are_the_same(group, blots):
    copies = posed(blots, group, copies=2, random_state=1, max_shift=3.0, max_scale=1.2)
    here = align(blots[copies.sources], copies.images, group=group)
    there = align(blots[copies.sources], copies.images, group=group, device="cuda")
    np.testing.assert_allclose(there.poses, here.poses, atol=0.02)
    np.testing.assert_allclose(there.distances, here.distances, atol=0.02)


def test_neighbours_are_the_same(blots):
    copies = posed(blots, "se2", copies=8, random_state=2, max_shift=3.0)
    here, there = nearest(copies.images, 5), nearest(copies.images, 5, device="cuda")
    assert (here.indices == there.indices).mean() > 0.95
    again = nearest(copies.images, 5, device="cuda")
    assert np.array_equal(there.distances, again.distances)


@pytest.mark.parametrize("contrast", ["none", "offset", "gain", "affine"])
def test_refinement_is_the_same(contrast, blots):
    images = torch.from_numpy(blots)[:, None]
    poses = parse("se2").random(12, max_angle=0.1, max_shift=1.0, generator=torch.Generator().manual_seed(1))
    fixed = warp(images, poses)
    start = torch.eye(3).repeat(12, 1, 1)
    here, _ = refinement.refine(images, fixed, start.clone(), parse("se2"), contrast=contrast)
    there, _ = refinement.refine(images.cuda(), fixed.cuda(), start.cuda(), parse("se2"), contrast=contrast)
    torch.testing.assert_close(there.cpu(), here, atol=0.02, rtol=0)


@pytest.mark.parametrize("budget", [2 * 10**9, 4 * 10**9])
def test_pairs_are_refined_in_chunks_that_fit_the_budget(budget, blots):
    images = np.concatenate([blots] * 12)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    found = align(images, images[:120], every=True, device="cuda", memory=budget)
    assert torch.cuda.max_memory_allocated() < budget
    free = align(images, images[:120], every=True, device="cuda")
    np.testing.assert_allclose(np.median(np.abs(found.distances - free.distances)), 0, atol=1e-4)
