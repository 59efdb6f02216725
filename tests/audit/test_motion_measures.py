"""Lie derivatives, explanations, completeness, invariant sets and real pairs: laws on functions that are known."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from kit.group_networks import AbsolutePositions, Network
from kit.tensors import normal, uniform
from unpose.adapt import symmetrize
from unpose.audit import (
    completeness,
    descriptor_distance,
    digital_against_real,
    explain,
    explanation_agreement,
    invariant_set,
    lie_derivative,
    smooth_noise,
)
from unpose.images import pixel_grid, quarter_turn


def smooth_network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(5, 5, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(125, 3),
    ).to(dtype)


def test_lie_derivatives_agree_with_finite_differences_of_moved_images_and_their_parts_add_up():
    images = smooth_noise(4, 2, (11, 11), sigma=2).double()
    report = lie_derivative(smooth_network(), images, ("x", "y", "rotation", "scale"))
    assert max(report.check) < 2e-3
    for index in range(4):
        assert sum(row.shares[index] for row in report.rows) == pytest.approx(1, abs=1e-9)
        assert report.rows[-1].sizes[index] < 1e-9 * report.totals[index]  # nothing happens outside of modules


@pytest.mark.parametrize("outputs", [15, 16])  # from 17 on they are projected at random
def test_one_module_contributes_the_whole_derivative(outputs):
    network = nn.Sequential(nn.Flatten(), nn.Linear(81, outputs)).double()
    report = lie_derivative(network, smooth_noise(4, 1, (9, 9)).double(), ("x",))
    assert report.rows[0].sizes[0] == pytest.approx(report.totals[0])


def test_what_happens_outside_of_modules_is_named():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular")

        def forward(self, x):
            return self.convolution(x).flatten(1)[:, :7]

    torch.manual_seed(0)
    report = lie_derivative(Functional(), smooth_noise(4, 1, (9, 9)), ("x",))
    assert report.rows[-1].name == "(outside of modules)"
    assert report.rows[-1].shares[0] == pytest.approx(1, abs=1e-3)


class Shifted(nn.Module):
    """Adds a position code whose border is constant."""

    def __init__(self, size):
        super().__init__()
        self.code = nn.Parameter(torch.exp(-(pixel_grid((size, size)) - 2).square().sum(-1) / 8))

    def forward(self, x):
        return x + self.code * x.abs().mean()


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (nn.ReLU, "aliasing"),
        (lambda: nn.MaxPool2d(2), "aliasing"),
        (lambda: nn.Conv2d(6, 6, 3, stride=2, padding=1, padding_mode="circular"), "aliasing"),
        (lambda: nn.Conv2d(6, 6, 3, padding=1), "border"),
        (lambda: AbsolutePositions(24, 2.0), "position"),
        (lambda: Shifted(24), "position"),
    ],
)
def test_the_module_that_breaks_shifts_is_named_with_its_cause(make, cause):
    torch.manual_seed(1)
    layer = make()
    lift = nn.Conv2d(1, 6, 3, padding=1, padding_mode="circular")  # exact for whole pixels and for fractions
    # The mean of a linear map of the image does not change with shifts, whatever the map.
    between = nn.Identity() if cause == "border" or not list(layer.parameters()) else Square()
    network = nn.Sequential(lift, layer, between, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
    report = lie_derivative(network, smooth_noise(6, 1, (24, 24)), ("x", "y"))
    row = next(row for row in report.rows if row.name == "1")
    assert row.cause == cause
    assert row.sizes[0] > 5e-3
    if isinstance(between, nn.Identity):
        assert report.worst("x") == row
    assert not any(other.cause for other in report.rows if other.module == "Linear")


class Square(nn.Module):
    def forward(self, x):
        return x.square()


def test_tokens_move_like_the_map_that_they_are():
    class Tokens(nn.Module):
        def __init__(self, positions):
            super().__init__()
            torch.manual_seed(2)
            self.patches = nn.Conv2d(1, 8, 4, stride=4)
            self.norm = nn.LayerNorm(8)
            self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.code = positions * normal(36, 8, dtype=torch.float64)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            tokens = self.patches(x).flatten(2).mT + self.code
            return self.head(self.attention(self.norm(tokens)).mean(1))

    images = smooth_noise(5, 1, (24, 24)).double()
    plain, coded = (lie_derivative(Tokens(strength).double(), images, ("x",), depth=1) for strength in (0.0, 1.0))
    names = [row.name for row in plain.rows]
    assert names == ["patches", "norm", "attention", "head", "(outside of modules)"]
    assert plain.rows[-1].sizes[0] < 1e-5  # reshaping maps to tokens moves nothing
    assert coded.rows[-1].sizes[0] > 0.05  # adding a code does
    assert plain.worst("x").name == "patches"


def test_functions_that_torch_cannot_differentiate_forward_are_measured_by_finite_differences():
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    images = smooth_noise(3, 1, (9, 9)).double()
    weights = torch.linspace(0, 1, 81, dtype=torch.float64)[:, None]
    custom = lie_derivative(lambda x: Backward.apply(x).flatten(1) @ weights, images, ("rotation",))
    direct = lie_derivative(lambda x: x.sin().flatten(1) @ weights, images, ("rotation",))
    assert custom.totals[0] == pytest.approx(direct.totals[0], rel=1e-5)


@pytest.mark.parametrize(
    "method",
    ["gradients", *(pytest.param(name, marks=pytest.mark.slow) for name in ("integrated gradients", "occlusion"))],
)
def test_explanations_of_a_network_exact_for_quarter_turns_turn_with_the_image(method):
    images = smooth_noise(4, 2, (9, 9))
    network = Network("c4")
    report = explanation_agreement(explain(network, images, method), images, "c4", method=method)
    assert np.abs(report.scores - 1).max() < 1e-5
    assert report.control_score < 0.97
    assert report.between_images < 0.9


def test_a_position_coded_explainer_scores_low_and_averaging_over_the_group_raises_it():
    images = smooth_noise(5, 2, (9, 9))
    code = uniform(9, 9) ** 4
    gradients = explain(Network("c4"), images)

    def coded(x):
        return gradients(x) * code

    scores = [explanation_agreement(coded, images, "c4").score]
    for count in (2, 4):
        averaged = symmetrize(coded, "c4", over="logits", elements=range(count), restores="image")
        scores.append(explanation_agreement(averaged, images, "c4").score)
    assert scores[0] < 0.5
    assert scores[0] < scores[1] < scores[2]
    assert scores[2] == pytest.approx(1, abs=1e-5)


def test_the_same_explanation_for_every_image_is_named():
    ring = torch.exp(-pixel_grid((9, 9)).square().sum(-1) / 9)
    report = explanation_agreement(lambda x: ring.expand(len(x), 9, 9), smooth_noise(3, 1, (9, 9)), "c4")
    assert report.score == pytest.approx(1)
    assert "nearly equal" in str(report)


def test_a_changed_answer_is_still_explained_for_the_first_one():
    images = smooth_noise(6, 1, (8, 8))
    halves = lambda x: torch.stack([x[..., :4].sum((1, 2, 3)), x[..., 4:].sum((1, 2, 3))], 1)  # noqa: E731
    explained = explain(halves, images)
    assert torch.equal(explained(images), explained(images.flip(-1)))


def test_integrated_gradients_and_occlusion_of_a_linear_model():
    images = smooth_noise(3, 1, (8, 8))
    weights = normal(64, 2)
    model = lambda x: x.flatten(1) @ weights  # noqa: E731
    targets = model(images).argmax(1)
    expected = images * weights.T[targets].reshape(3, 1, 8, 8)
    assert torch.allclose(explain(model, images, "integrated gradients")(images), expected, atol=1e-5)
    hidden = explain(model, images, "occlusion", patch=1)(images)
    centred = (images - images.mean((2, 3), keepdim=True))[:, 0] * weights.T[targets].reshape(3, 8, 8)
    assert torch.allclose(hidden, centred, atol=1e-5)


def ring_sums(x):
    """Sums over rings about the centre."""
    radius = pixel_grid((x.shape[-2], x.shape[-1])).norm(dim=-1).round().long().flatten()
    return torch.zeros(len(x), int(radius.max()) + 1).index_add_(1, radius, x.flatten(1))


@pytest.mark.parametrize(
    ("descriptor", "group", "families"),
    [
        (lambda x: torch.fft.rfft2(x).abs(), "translation", {"equal autocorrelation"}),
        (ring_sums, "c4", {"independent rings", "mirror images"}),
    ],
)
def test_descriptors_that_keep_too_little_are_flagged(descriptor, group, families):
    report = completeness(descriptor_distance(descriptor), group, n_pairs=5, size=20)
    flagged = {family.name for family in report.families if len(family.confused) == family.pairs > 0}
    assert flagged == families
    assert not report.is_complete
    assert all(family.related > 0.2 for family in report.families if family.pairs)


def distance_over_quarter_turns(one, other):
    return torch.stack([(one - quarter_turn(other, k)).flatten(1).norm(dim=1) for k in range(4)]).amin(0)


def test_the_distance_over_the_orbit_is_cleared_and_a_constant_is_not():
    orbit = completeness(distance_over_quarter_turns, "c4", n_pairs=4, size=20)
    assert orbit.is_complete
    assert orbit.floor < 1e-5
    constant = completeness(descriptor_distance(lambda x: torch.ones(len(x), 1)), "c4", n_pairs=4, size=20)
    assert not constant.is_complete
    assert "same for all images" in str(constant)


@pytest.mark.parametrize("failed", [2, 4])
def test_pairs_on_which_the_invariant_fails_do_not_count(failed):
    power = descriptor_distance(lambda x: torch.fft.rfft2(x).abs())

    def distance(one, other):
        given = power(one, other)
        given[:failed] = torch.nan
        return given

    families = {family.name: family for family in completeness(distance, "c4", n_pairs=4, size=16).families}
    assert families["equal autocorrelation"].confused == tuple(range(failed, 4))
    assert all(family.pairs <= 4 - failed for family in families.values())


def gabor(phase):
    points = pixel_grid((13, 13))
    wave = torch.cos(1.2 * points[..., 0] - phase) * torch.exp(-points.square().sum(-1) / 18)
    return wave / wave.norm()


@pytest.mark.slow
def test_the_invariant_set_of_a_quadrature_pair_covers_all_phases():
    pair = torch.stack([gabor(0.0), gabor(math.pi / 2)])
    found = invariant_set(lambda x: torch.einsum("nchw,khw->nk", x, pair).square().sum(1), (1, 13, 13), steps=120)
    coordinates = np.einsum("nchw,khw->nk", found.images, pair.numpy())
    phases = np.sort(np.degrees(np.arctan2(coordinates[:, 1], coordinates[:, 0])))
    gaps = np.diff(phases, append=phases[0] + 360)
    assert gaps.max() < 75
    assert found.responses.min() >= 0.9
    linear = invariant_set(lambda x: (x[:, 0] * gabor(0.0)).sum((1, 2)), (1, 13, 13), steps=120)
    assert linear.spread <= linear.linear < 0.6 * found.spread
    with pytest.raises(ValueError, match="responds to no image"):
        invariant_set(lambda x: -x.square().sum((1, 2, 3)), (1, 5, 5), steps=5)


def drawn_at(angles, size=24, over=4):
    """Three things made of sharp discs, drawn at any angle by averaging 4 x 4 points of each pixel."""
    random = np.random.default_rng(0)
    points = pixel_grid((size * over, size * over), torch.float64) / over
    images, things, turns = [], [], []
    for thing in range(6):
        centres, radii = random.uniform(-6, 6, (5, 2)), random.uniform(1, 2.5, 5)
        for angle in angles:
            cos, sin = math.cos(angle), math.sin(angle)
            turned = centres @ np.array([[cos, -sin], [sin, cos]])  # counter-clockwise on screen, y down
            inside = sum(
                ((points - torch.from_numpy(c)).norm(dim=-1) < r).double() for c, r in zip(turned, radii, strict=True)
            )
            images.append(nn.functional.avg_pool2d(inside[None], over)[0])
            things.append(thing)
            turns.append(angle)
    return torch.stack(images)[:, None].float() / 2, things, turns


def test_a_turn_by_resampling_is_compared_with_a_turn_in_the_world():
    images, things, angles = drawn_at([0.0, 0.5, 1.1])
    torch.manual_seed(0)
    smooth = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(36, 5))
    honest = digital_against_real(smooth, images, things, angles)
    assert honest.real.mean() > 0.2
    assert abs(honest.gap) < 0.03 * honest.real.mean()  # the digital audit is right
    assert not honest.is_artefact
    assert sorted(set(honest.degrees.round(3))) == [28.648, 63.025]

    def sharpness(x):  # what an orientation network learns from images turned by resampling
        return (x - nn.functional.avg_pool2d(x, 3, 1, 1)).square().mean((2, 3)).sqrt()

    fooled = digital_against_real(sharpness, images, things, angles)
    assert fooled.is_artefact
    assert fooled.gap > 0.2
    assert "due to resampling" in str(fooled)


def test_photographs_at_the_same_angle_give_the_noise_of_taking_them():
    images, things, angles = drawn_at([0.0, 0.0, math.pi / 2])
    images = images + 0.01 * normal(*images.shape)
    report = digital_against_real(lambda x: x.flatten(1), images, things, angles)
    assert len(report.pairs) == 6
    assert 0 < report.retakes < 0.1
    assert not report.resampled.any()  # a quarter turn is exact
    with pytest.raises(ValueError, match="at least two things"):
        digital_against_real(lambda x: x.flatten(1), images[:2], [0, 1], [0.0, 0.0])
