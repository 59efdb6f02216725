"""The compiled peaks against the plain version."""

import numpy as np
import pytest
import torch

from unpose.align import coarse
from unpose.groups import parse
from unpose.images import smooth


@pytest.mark.parametrize(
    ("group", "bounds"), [("se2", {}), ("similarity+mirror", {}), ("se2", {"max_angle": 0.7}), ("translation", {})]
)
def test_peaks_are_the_highest_local_maxima(group, bounds, generator):
    images = smooth(torch.rand(9, 1, 21, 21, generator=generator), 1.5)
    plan = coarse.plan((21, 21), parse(group), **{"max_angle": np.pi, "max_shift": 4.0, "max_scale": 1.3, **bounds})
    index = coarse.build_index(plan, images, images)
    views, fixed = (
        index.views_of(images[:3]),
        index.at_rest(images)[torch.tensor([[1, 2, 3, 4, 5], [8, 7, 6, 0, 2], [0] * 5])],
    )
    scores = coarse.all_scores(views, fixed, index.basis, plan)
    wanted = coarse.local_maxima(scores, plan, 4)
    found = coarse.peaks(views, fixed, index.basis, plan, 4)
    heights = [scores.flatten(-2).gather(-1, points) for points in (found, wanted)]
    torch.testing.assert_close(*heights, rtol=1e-4, atol=1e-5)  # a tie may be broken either way
    assert (found == wanted).float().mean() > 0.95
