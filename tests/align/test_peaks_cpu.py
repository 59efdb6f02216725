"""The compiled search for peaks against the reference."""

import numpy as np
import pytest
import torch

from unpose.align import Search, coarse
from unpose.align.kernels import reference
from unpose.images import smooth


@pytest.mark.parametrize(
    ("group", "bounds"), [("se2", {}), ("similarity+mirror", {}), ("se2", {"max_angle": 0.7}), ("translation", {})]
)
def test_peaks_are_the_highest_local_maxima(group, bounds, generator):
    images = smooth(torch.rand(9, 1, 21, 21, generator=generator), 1.5)
    search = Search(group=group, **{"max_angle": np.pi, "max_shift": 4.0, "max_scale": 1.3, **bounds})
    plan = coarse.make_plan((21, 21), search)
    index = coarse.build_index(plan, images, images)
    views = index.view_coefficients(images[:3])
    fixed = index.coefficients(images)[torch.tensor([[1, 2, 3, 4, 5], [8, 7, 6, 0, 2], [0] * 5])]
    scores = reference.all_scores(views, fixed, index.basis.starts, plan.angles)
    expected = reference.local_maxima(scores, plan.n_shifts, plan.full_circle, 4)
    found = coarse.peaks(views, fixed, index.basis, plan, 4)
    heights = [scores.flatten(-2).gather(-1, points) for points in (found, expected)]
    torch.testing.assert_close(*heights, rtol=1e-4, atol=1e-5)  # ties may be broken either way
    assert (found == expected).float().mean() > 0.95
