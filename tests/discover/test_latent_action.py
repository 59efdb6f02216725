"""Latent actions: operators are exact where latents move by a matrix, and rotations are found from films."""

import math

import numpy as np
import pytest
import torch

from unpose.data import drawings
from unpose.discover import LatentAction, fit_latent_action
from unpose.groups import rotation
from unpose.images import downscale, warp


def film(n, seed):
    """Films (n, 3, 12, 12) of one drawing that turns by a constant step of up to 60 degrees, and the steps."""
    generator = torch.Generator().manual_seed(seed)
    image = downscale(torch.from_numpy(drawings(36).mean(-1)[:1])[:, None], 3.0).float().expand(n, -1, -1, -1)
    start, step = (2 * torch.rand(2, n, generator=generator) - 1) * torch.tensor([[math.pi], [math.pi / 3]])
    return torch.cat([warp(image, rotation(start + k * step)) for k in range(3)], dim=1), step


def test_the_operator_of_latents_that_move_by_a_matrix_is_this_matrix():
    action = LatentAction((1, 3, 40), order=3, columns=40)
    action.encoder = torch.nn.Flatten(0, 1)  # the rows of an image are its latent
    first, moves = torch.randn(6, 1, 3, 40, dtype=torch.float64), torch.randn(6, 3, 3, dtype=torch.float64)
    found = action.operators(first, (moves @ first[:, 0])[:, None])
    torch.testing.assert_close(found, moves, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_the_next_image_of_a_turning_thing_is_predicted():
    films, _ = film(2000, 0)
    action = fit_latent_action(films.numpy(), order=5, columns=8, width=128, steps=1500)
    tested, step = film(200, 1)
    first, second, third = tested[:, :, None].unbind(1)
    with torch.no_grad():
        error = (action(first, second) - third).square().mean()
    assert error < 0.1 * (third - third.mean(0)).square().mean()  # the second image errs by more than the variance
    fastest = action.angles(first, second)[:, -1]
    assert np.corrcoef(fastest, step.abs())[0, 1] > 0.8  # it was never told how far the thing turns


def test_the_same_seed_gives_the_same_bits():
    films, _ = film(8, 0)
    one, two = (fit_latent_action(films.numpy(), order=2, columns=3, width=8, steps=3, random_state=5) for _ in "ab")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize(
    ("films", "settings", "message"),
    [
        (np.zeros((5, 2, 8, 8)), {}, "at least two"),
        (np.zeros((1, 3, 8, 8)), {}, "at least two"),
        (np.full((5, 3, 8, 8), np.nan), {}, "NaN or infinite"),
        (np.zeros((5, 3, 8, 8)), {"order": 9, "columns": 8}, "at most the number of columns"),
    ],
)
def test_bad_films_are_refused(films, settings, message):
    with pytest.raises(ValueError, match=message):
        fit_latent_action(films, steps=1, **settings)
