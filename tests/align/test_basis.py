"""The steerable basis: the functions of shifted views are those of every view on its own."""

import torch

from unpose.align import basis


def test_views_that_share_points_give_the_values_of_each_view():
    steps = 1.5 * torch.arange(-3, 4, dtype=torch.float64)
    shifts = torch.cartesian_prod(steps, steps)
    images = torch.rand(5, 1, 11, 14, generator=torch.Generator().manual_seed(0))
    for scales in (torch.ones(1), torch.tensor([1.0, 1.3])):  # scaled views share no points
        views = basis.view_grid(shifts, scales, False)
        fitted = basis.fit_basis(images, views, 9)
        alone = torch.cat([basis.analysis_matrix(fitted, view[None]) for view in views], dim=1)
        assert torch.equal(basis.analysis_matrix(fitted, views), alone)
