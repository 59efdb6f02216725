"""Averages over the orbit are invariant, or equivariant after restoring, and frames do not jump."""

import math

import pytest
import torch
from torch import nn

from kit.networks import contrasted_sequence
from unpose.adapt import as_model, most_certain, symmetrize
from unpose.audit import equivariance_error, smooth_noise
from unpose.groups import parse, rotation, translation
from unpose.images import warp


def classifier():
    return contrasted_sequence(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(5 * 81, 3))


@pytest.mark.laws
@pytest.mark.parametrize("over", ["probabilities", "logits", "features", most_certain, lambda views: views.amax(0)])
@pytest.mark.parametrize("group", ["c4", "d4", "c2"])
def test_finite_groups_of_pixel_permutations_are_exact(group, over):
    report = equivariance_error(symmetrize(classifier(), group, over), smooth_noise(3, 2, (11, 11)), group)
    assert report.holds()
    assert report.control_error > 1e-2


@pytest.mark.laws
def test_any_callable_becomes_invariant(generator):
    images = torch.rand(3, 11, 11, generator=generator).numpy()
    model = symmetrize(lambda x: x[:, :4, :3].reshape(len(x), -1), "d4", over="logits")
    for turned in (images[:, ::-1], images.transpose(0, 2, 1), images[:, :, ::-1]):
        assert abs(model(turned.copy()) - model(images)).max() < 1e-6


@pytest.mark.equivariance
def test_other_rotations_reach_the_floor_of_interpolation():
    report = equivariance_error(symmetrize(classifier(), "c8", over="logits"), smooth_noise(3, 2, (11, 11)), "c8")
    assert report.holds()
    between = ~report.exact
    assert (report.errors[between] < 3 * report.floors[between]).all()
    plain = equivariance_error(classifier(), smooth_noise(3, 2, (11, 11)), "c8")
    assert report.errors.max() < 0.3 * plain.errors.max()


@pytest.mark.equivariance
@pytest.mark.parametrize("shape", [(11, 11), (7, 10)])
def test_dense_answers_become_equivariant(shape):
    dense = contrasted_sequence(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=1))
    images = smooth_noise(3, 2, shape)
    assert equivariance_error(symmetrize(dense, "d4", "logits", restores="image"), images, "d4", "image").holds()
    assert not equivariance_error(dense, images, "d4", "image").holds()


def test_averaged_masks_stay_in_their_range():
    model = symmetrize(lambda images: torch.ones_like(images), "c8", "logits", restores="mask")
    assert model(torch.zeros(1, 1, 11, 11)).min() >= 0.5  # four of the eight views show the corners


def test_vectors_turn_with_the_image():
    field = contrasted_sequence(nn.Conv2d(2, 2, 3, padding=1))
    model = symmetrize(field, "c4", over="logits", restores="vectors")
    images = smooth_noise(2, 2, (9, 9))
    turned = model(images.rot90(1, (2, 3)))
    x, y = model(images).rot90(1, (2, 3)).unbind(1)
    assert torch.allclose(turned, torch.stack([y, -x], dim=1), atol=1e-5)  # counter-clockwise, y points down
    assert (turned - torch.stack([x, y], dim=1)).abs().max() > 1e-2


def test_the_mean_of_probabilities_is_again_a_logit():
    images = smooth_noise(4, 2, (11, 11))
    model = classifier()
    views = [model(images.rot90(k, (2, 3))).softmax(1) for k in range(4)]
    mean = torch.stack(views).mean(0)
    assert torch.allclose(symmetrize(model, "c4")(images).softmax(1), mean, atol=1e-6)
    probabilities = as_model(lambda x: model(x).softmax(1), gives="probabilities")
    assert torch.allclose(symmetrize(probabilities, "c4")(images), mean, atol=1e-6)
    with pytest.raises(ValueError, match="already returns probabilities"):
        symmetrize(lambda x: model(x).softmax(1), "c4")(images)


def test_fewer_elements_cost_fewer_calls():
    calls = []

    def model(x):
        calls.append(len(x))
        return x.flatten(1)

    assert symmetrize(model, "c8", "logits", elements=[0, 2]).passes == 2
    symmetrize(model, "c8", "logits", elements=[0, 2])(smooth_noise(3, 1, (9, 9)))
    assert calls == [3, 3]


def blob(stretch, angle=0.3, shift=(0.0, 0.0), size=25):
    """A skewed Gaussian blob, nearly round if ``stretch`` is near one."""
    grid = torch.stack(torch.meshgrid(*[torch.arange(size) - (size - 1) / 2] * 2, indexing="xy"), dim=-1)
    turn = rotation(torch.tensor(angle))[:2, :2]
    u, v = ((grid - torch.tensor(shift)) @ turn).unbind(-1)
    return torch.exp(-((u / stretch) ** 2 + v**2) / 12)[None, None]


@pytest.mark.equivariance
def test_frames_follow_the_image():
    model = symmetrize(lambda x: x[:, 0, 6:18, 8:20].flatten(1), "se2", "logits", frames="moments", views=8)
    first = model(blob(1.7))
    for angle, shift in ((1.1, (0.0, 0.0)), (-2.0, (1.5, -2.0)), (3.0, (0.0, 2.0))):
        moved = warp(blob(1.7), translation(torch.tensor(shift)) @ rotation(torch.tensor(angle)))
        assert (model(moved) - first).norm() < 0.05 * first.norm()
    assert (model(blob(1.2)) - first).norm() > 0.1 * first.norm()


def test_weighted_frames_do_not_jump_where_the_axis_does():
    model = symmetrize(lambda x: x[:, 0, 6:18, 8:20].flatten(1), "so2", "logits", frames="moments", views=16)
    wide, tall = blob(1.001, angle=0.0), blob(1.001, angle=math.pi / 2)
    # The principal axis of the two jumps by 90 degrees, the images and the answers hardly differ.
    difference = (model(wide) - model(tall)).norm() / model(wide).norm()
    assert difference < 1e-3


def test_draws_are_reproducible_and_cheaper():
    images = torch.cat([blob(1.5), blob(1.2)])
    model = symmetrize(lambda x: x.flatten(1), "so2", "logits", frames="moments", views=8, draws=2)
    assert model.passes == 2
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group": "so2"}, "infinitely many elements"),
        ({"group": "affine", "frames": "moments"}, "frames from moments exist for"),
        ({"group": "dilations(3)"}, "not closed under products"),
        ({"group": "c4", "over": "votes"}, "over must be one of"),
        ({"group": "c4", "elements": [4]}, "indices below 4"),
        ({"group": "c4", "frames": "moments"}, "averaged over its elements"),
        ({"group": "c4", "restores": "boxes"}, "restores must be one of"),
        ({"group": "c4", "border": "black"}, "border must be one of"),
        ({"group": "so2", "frames": "moments", "draws": 0}, "at least 1"),
    ],
)
def test_wrong_options_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        symmetrize(lambda x: x.flatten(1), **arguments)(smooth_noise(2, 1, (9, 9)))


def test_dense_restoring_needs_maps():
    with pytest.raises(ValueError, match="dense answers must be"):
        symmetrize(lambda x: x.flatten(1), "c4", "logits", restores="mask")(smooth_noise(2, 1, (9, 9)))


def test_reflection_at_the_border_leaves_no_black_corners():
    white = torch.ones(1, 1, 12, 12)
    seen = symmetrize(lambda x: x.flatten(1), "c8", lambda views: views.amin(0), border="reflect")(white)
    assert seen.min() > 0.99
    assert symmetrize(lambda x: x.flatten(1), "c8", lambda views: views.amin(0))(white).min() < 0.01


def test_the_group_is_that_of_the_name():
    assert symmetrize(lambda x: x, parse("p4m"), "logits", restores="image").passes == 8
