"""Samples follow the Haar measure, and polar coordinates are the factors they say they are."""

import math

import pytest
import torch

from unpose.groups import haar_samples, parse, polar_coordinates, reflection, rotation, translation

pytestmark = pytest.mark.laws

AFFINE = parse("affine")


def bump(elements, width=1.0):
    """A smooth function of the linear part that is negligible beyond a distance of the identity."""
    cos, sin, scale, stretch, shear = polar_coordinates("affine", elements)[..., 2:].unbind(-1)
    square = (cos - 1) ** 2 + sin**2 + (scale / 0.5) ** 2 + (stretch**2 + shear**2) / 0.6**2
    return torch.exp(-2 * square / width**2)


@pytest.mark.parametrize("move", [(0.4, 0.2, 0.3, -0.2), (-1.0, -0.3, 0.0, 0.4)])
def test_the_measure_is_left_invariant_and_without_its_density_it_is_not(move):
    element = AFFINE.exp(torch.tensor([0.0, 0.0, *move], dtype=torch.float64))
    samples = haar_samples("affine", 60_000, max_scale=6.0, max_stretch=30.0, dtype=torch.float64)
    fixed, moved = bump(samples).mean(), bump(element @ samples).mean()
    assert abs(moved / fixed - 1) < 0.02
    # Weights that turn the density of the stretch into that of a flat plane, r dr.
    stretch = polar_coordinates("affine", samples)[:, 5:].norm(dim=1).clamp(min=1e-9)
    flat = 2 * stretch / torch.sinh(2 * stretch)
    assert abs((flat * bump(element @ samples)).mean() / (flat * bump(samples)).mean() - 1) > 0.06


def test_a_random_offset_keeps_the_distribution(generator):
    offsets = torch.rand(400, 4, generator=generator)
    means = torch.stack(
        [bump(haar_samples("affine", 6, offset=each, max_scale=4.0, max_stretch=9.0)) for each in offsets]
    )
    fine = bump(haar_samples("affine", 20_000, max_scale=4.0, max_stretch=9.0)).mean()
    for place in (0, 5):  # the first sample is distributed like any other
        assert abs(means[:, place].mean() - fine) < 4 * means[:, place].std() / 20


def test_samples_of_rigid_motions_are_finite_groups():
    for name, finite in (("se2", "c6"), ("se2+mirror", "d3")):
        torch.testing.assert_close(haar_samples(name, 6, dtype=torch.float64), parse(finite).elements)
    mirrors = haar_samples("translation+mirror", 4)
    torch.testing.assert_close(mirrors, torch.stack([torch.eye(3)] * 2 + [reflection()] * 2))


@pytest.mark.parametrize("name", ["se2", "similarity+mirror", "affine", "affine+mirror"])
def test_samples_are_elements_within_their_bounds(name):
    group = parse(name)
    samples = haar_samples(name, 30, max_scale=1.7, max_stretch=2.5, dtype=torch.float64)
    assert group.contains(samples).all()
    values = torch.linalg.svdvals(samples[:, :2, :2])
    ratio, scale = values[:, 0] / values[:, 1], values.prod(1).sqrt()
    assert ratio.max() <= (2.5 if group.deforms else 1) * (1 + 1e-9)
    assert scale.max() <= (1.7 if group.scales else 1) * (1 + 1e-9)
    assert not group.deforms or ratio.max() > 1.8


def test_polar_coordinates_are_the_polar_factors(generator):
    drawn = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    drawn[0] = 0  # the limit of no stretch
    drawn[1, 2] = math.pi  # half a turn after a stretch, which has no logarithm
    zero = torch.zeros_like(drawn[:, :3])
    symmetric = AFFINE.exp(torch.cat([zero, drawn[:, 3:]], dim=1))
    elements = translation(drawn[:, :2]) @ rotation(drawn[:, 2]) @ symmetric
    turn = drawn[:, 2:3]
    wanted = torch.cat([drawn[:, :2], turn.cos(), turn.sin(), drawn[:, 3:]], dim=1)
    torch.testing.assert_close(polar_coordinates("affine", elements), wanted)
    mirrored = polar_coordinates("affine+mirror", elements @ reflection(torch.float64))
    torch.testing.assert_close(mirrored, torch.cat([wanted, -torch.ones(50, 1, dtype=torch.float64)], dim=1))


@pytest.mark.gradients
def test_polar_coordinates_have_gradients_at_the_identity(generator):
    near = torch.eye(3, dtype=torch.float64) + 0.1 * torch.randn(3, 3, 3, generator=generator, dtype=torch.float64)
    near[0] = torch.eye(3)
    near[:, 2] = torch.tensor([0.0, 0.0, 1.0])
    assert torch.autograd.gradcheck(lambda x: polar_coordinates("affine", x), near.requires_grad_())


def test_wrong_arguments():
    for call, message in (
        (lambda: haar_samples("so2", 4), "is needed here, got so2"),
        (lambda: polar_coordinates("perspective", torch.eye(3)), "got perspective"),
        (lambda: haar_samples("se2+mirror", 5), "even"),
        (lambda: haar_samples("se2", 0), "at least 1"),
        (lambda: haar_samples("affine", 4, max_stretch=0.5), "max_stretch must be at least 1"),
        (lambda: polar_coordinates("se2", torch.eye(2)), "poses must end in"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
