"""Canonicalizers agree over an orbit, gates leave upright images alone, and answers come back to the input's frame."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from unpose.adapt import (
    Pose,
    as_model,
    canonicalize,
    coordinates,
    energy,
    fit_canonicalizer,
    gate_threshold,
    iterate,
    learned,
    moments,
    polar,
    regress,
    restore,
    search,
    symmetrize,
)
from unpose.groups import inverse, parse, rotation, scaling, translation
from unpose.images import warp
from unpose.nn import group_cnn


def glyphs(size=21):
    """An L, an arrow-like wedge and a P: three upright shapes without symmetry."""
    images = torch.zeros(3, 1, size, size)
    a, b = size // 4, size - size // 4
    images[0, 0, a:b, 8:11] = images[0, 0, b - 3 : b, 8:15] = 1
    for row in range(a, b):
        images[1, 0, row, 10 - (row - a) // 3 : 11 + (row - a) // 2] = 1
    images[2, 0, a:b, 8:10] = images[2, 0, a : a + 2, 8:14] = images[2, 0, a + 4 : a + 6, 8:14] = 1
    images[2, 0, a : a + 6, 12:14] = 1
    return images


def angle_of(poses):
    return torch.atan2(poses[:, 0, 1], poses[:, 0, 0])


def angular_error(poses, expected):
    difference = (angle_of(poses) - expected).remainder(2 * math.pi)
    return torch.minimum(difference, 2 * math.pi - difference)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def trained(group="c4"):
    torch.manual_seed(0)
    return fit_canonicalizer(
        None, glyphs(), canonicalizer=learned(group, 1, width=3, stages=(1, 1)), steps=40, batch_size=24,
        learning_rate=2e-2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def scorer():
    return trained()


FINDERS = {
    "moments": lambda: moments("so2"),
    "search": lambda: search(glyphs(), group="so2"),
    "coordinates": lambda: coordinates("so2", glyphs()),
    "contrast": lambda: energy(lambda x: x.flatten(1), glyphs(), "c4", neighbours=1),
    "distance": lambda: energy(lambda x: x.flatten(1), glyphs(), "c4", score="distance", neighbours=1),
    "learned": trained,
}


@pytest.mark.laws
@pytest.mark.parametrize("name", FINDERS)
def test_views_of_one_orbit_agree_and_canonical_images_stay(name):
    finder = FINDERS[name]()
    with torch.no_grad():
        canonical = [warp(turned, finder(turned).element) for turned in (glyphs().rot90(k, (2, 3)) for k in range(4))]
        again = finder(canonical[0])
    size = canonical[0].flatten(1).norm(dim=1)
    for other in canonical[1:]:
        assert ((other - canonical[0]).flatten(1).norm(dim=1) < 0.02 * size).all()
    assert ((warp(canonical[0], again.element) - canonical[0]).flatten(1).norm(dim=1) < 0.2 * size).all()


@pytest.mark.parametrize("name", ["search", "coordinates"])
@pytest.mark.parametrize("angle", [0.5, -2.2])
def test_the_angle_is_found_to_a_fraction_of_a_grid_cell(name, angle):
    pose = FINDERS[name]()(warp(glyphs(), rotation(torch.tensor(angle))))
    cell = 2 * math.pi / 72
    assert (angular_error(pose.element, -angle) < cell / 2).all()
    assert (pose.gain > 0).all()
    assert (pose.margin > 0).all()


def test_a_rotation_shifts_polar_coordinates(generator):
    image = torch.rand(1, 2, 13, 13, generator=generator)
    assert torch.allclose(polar(image.rot90(1, (2, 3)), 12), polar(image, 12).roll(3, 2), atol=1e-5)
    larger = warp(glyphs(33), scaling(torch.tensor(1.2)) @ rotation(torch.tensor(0.7)))
    pose = coordinates("similarity", glyphs(33), radii=24)(larger)
    scale = pose.element[:, :2, :2].det().abs().sqrt()
    assert ((scale - 1 / 1.2).abs() < 0.08).all()
    assert (angular_error(pose.element, -0.7) < 0.06).all()


def test_a_shear_shifts_its_coordinates():
    upright, amounts = glyphs(33), torch.tensor([0.5, -0.2, 0.0])
    shears = torch.eye(3).repeat(3, 1, 1)
    shears[:, 0, 1] = amounts
    pose = coordinates("shear", upright)(warp(upright, shears))
    assert ((pose.element[:, 0, 1] + amounts).abs() < 0.05).all()
    assert (pose.gain[:2] > 0).all()
    assert (pose.gain[2] < 1e-6).all()  # upright, and found to be
    others = pose.element.clone()
    others[:, 0, 1] = 0
    assert torch.equal(others, torch.eye(3).expand(3, 3, 3))


def test_symmetric_things_have_no_margin():
    bar = torch.zeros(1, 1, 21, 21)
    bar[..., 4:17, 9:12] = 1
    pose = search(bar, group="so2", n_jobs=1)(bar)
    assert pose.value > -1e-3
    assert moments("so2")(bar).margin < 1e-3  # half a turn does as well
    assert moments("so2")(glyphs()[:1]).margin > 0.1


@pytest.mark.laws
def test_the_answer_to_an_upright_image_is_bit_equal_behind_the_gate(scorer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(441, 3)).eval()
    adapted = canonicalize(model, scorer, gate=glyphs())
    upright = glyphs()
    answer, pose = adapted.with_pose(upright)
    assert torch.equal(pose.element, torch.eye(3).expand(3, 3, 3))
    assert torch.equal(answer, model(upright))
    turned = upright.rot90(1, (2, 3))
    assert not torch.allclose(model(turned), model(upright), atol=1e-3)
    assert torch.allclose(adapted(turned), model(upright), atol=1e-5)
    arrays = adapted(turned[:, 0].numpy())
    assert isinstance(arrays, np.ndarray)
    assert np.allclose(arrays, adapted(turned).detach(), atol=1e-6)


def test_the_gate_keeps_the_share_of_upright_images_that_it_shall(scorer):
    turned = torch.cat([glyphs(), glyphs().rot90(1, (2, 3))])
    threshold = gate_threshold(scorer, turned, kept=0.5)
    moved = scorer(turned).gain > threshold
    assert moved.tolist() == [False] * 3 + [True] * 3
    with pytest.raises(ValueError, match="kept must be a share"):
        gate_threshold(scorer, turned, kept=1.5)


def test_several_views_are_used_where_the_margin_is_small(scorer):
    calls = []

    def model(x):
        calls.append(len(x))
        return x.flatten(1)

    margins = scorer(glyphs()).margin.detach()
    doubt = float(margins.sort().values[:2].mean())  # one image is below
    canonicalize(model, scorer, views=3, doubt=doubt)(glyphs())
    assert calls == [3, 1, 1]
    mean = canonicalize(model, scorer, views=2)(glyphs()).softmax(1)
    pose = scorer(glyphs())
    both = [warp(glyphs(), element).flatten(1).softmax(1) for element in (pose.element, pose.alternatives[:, 0])]
    assert torch.allclose(mean, (both[0] + both[1]) / 2, atol=1e-6)


def test_views_that_agree_give_the_answer_of_the_model(scorer):
    """Means of logits keep their scale, so that images with one view and with several can be compared."""

    def model(x):
        return 30 * x.mean((1, 2, 3))[:, None] + 5 * torch.arange(3)

    expected = model(glyphs())
    for doubt in (None, float(scorer(glyphs()).margin.detach().median())):
        torch.testing.assert_close(canonicalize(model, scorer, views=2, doubt=doubt)(glyphs()), expected)
    chances = as_model(lambda x: model(x).softmax(1), gives="probabilities")
    torch.testing.assert_close(canonicalize(chances, scorer, views=2)(glyphs()), expected.softmax(1))


def test_masks_come_back_to_the_frame_of_the_input(scorer):
    def lower_half(x):
        rows = torch.arange(21)[:, None]
        return torch.where(rows > 10, x, 0 * x)

    adapted = canonicalize(lower_half, scorer, restores="mask")
    turned = glyphs().rot90(1, (2, 3))
    assert torch.allclose(adapted(turned), lower_half(glyphs()).rot90(1, (2, 3)), atol=1e-5)
    assert torch.allclose(adapted(glyphs()), lower_half(glyphs()), atol=1e-5)


@pytest.mark.laws
def test_restore_inverts_warp(generator):
    smooth = warp(torch.rand(2, 3, 6, 6, generator=generator), scaling(torch.tensor(4.0)), (24, 24))
    poses = parse("affine").random(2, generator=generator, max_shift=1, max_scale=1.1, max_stretch=1.1)
    inner = (..., slice(9, 15), slice(9, 15))
    assert (restore(warp(smooth, poses), poses)[inner] - smooth[inner]).abs().max() < 0.03
    arrays = restore(warp(smooth, poses).movedim(1, 3).numpy(), poses, "image")
    assert np.allclose(arrays, restore(warp(smooth, poses), poses).movedim(1, 3), atol=1e-6)
    exact = parse("d4").elements[[3, 5]].float()
    assert torch.equal(restore(warp(smooth, exact), exact), smooth)
    labels = (smooth[:, 0] * 5).long()
    assert torch.equal(restore(restore(labels, inverse(exact), "mask"), exact, "mask"), labels)


@pytest.mark.laws
def test_points_boxes_and_vectors_follow_the_image():
    image = torch.zeros(1, 1, 15, 19)
    image[0, 0, 4, 13] = 1  # the pixel at x = 13, y = 4
    pose = translation(torch.tensor([[2.0, -1.0]])) @ rotation(torch.tensor([math.pi]))
    row, column = divmod(int(warp(image, pose).argmax()), 19)
    back = restore(torch.tensor([[[float(column), float(row)]]]), pose, "keypoints", frame=(15, 19))
    assert torch.allclose(back, torch.tensor([[[13.0, 4.0]]]), atol=1e-4)
    box = torch.tensor([[[column, row, column + 1, row + 1]]], dtype=torch.float32)
    boxes, growth = restore(box, pose, "boxes", frame=(15, 19))
    assert torch.allclose(boxes, torch.tensor([[[13.0, 4.0, 14.0, 5.0]]]), atol=1e-4)
    assert growth.item() == pytest.approx(1, abs=1e-4)
    _, diagonal = restore(box, rotation(torch.tensor([math.pi / 4])), "boxes", frame=(15, 19))
    assert diagonal.item() == pytest.approx(2, abs=1e-4)
    turned = restore(torch.tensor([[[1.0, 0.0]]]), rotation(torch.tensor([math.pi / 2])), "vectors")
    assert torch.allclose(turned, torch.tensor([[[0.0, 1.0]]]), atol=1e-6)  # a quarter clockwise, y points down


@pytest.mark.laws
def test_no_class_appears_at_the_edge_of_a_restored_mask():
    scores = torch.tensor([6.0, -4.0, -5.0])[:, None, None].repeat(2, 1, 23, 19)
    scores[1, :, 9:14, 4:13] = torch.tensor([-4.0, 7.0, -5.0])[:, None, None]
    poses = rotation(torch.tensor([0.4, 2.2]))
    for answer in (scores, scores.softmax(1)):
        classes = restore(answer, poses, "mask").argmax(1)
        assert (classes[0] == 0).all()  # the overshoot of the interpolation gave the frame a margin of class 1
        assert (classes[1] != restore(answer.argmax(1), poses, "mask")[1]).float().mean() < 0.03


def test_maps_of_another_resolution_are_restored():
    image = torch.rand(1, 1, 16, 16)
    pose = translation(torch.tensor([[4.0, 0.0]]))
    small = torch.nn.functional.avg_pool2d(image, 2)
    restored = restore(torch.nn.functional.avg_pool2d(warp(image, pose), 2), pose, frame=(16, 16))
    assert torch.allclose(restored[..., :6], small[..., :6], atol=1e-6)


def test_iterating_composes_poses_and_resamples_the_original():
    finder = iterate(search(glyphs(), group="so2", max_angle=0.4), rounds=2)
    moved = warp(glyphs(), rotation(torch.tensor(0.7)))
    first = search(glyphs(), group="so2", max_angle=0.4)(moved)
    assert (angular_error(finder(moved).element, -0.7) < angular_error(first.element, -0.7)).all()
    assert (angular_error(finder(moved).element, -0.7) < 0.05).all()


@pytest.mark.equivariance
def test_the_posterior_of_a_scorer_turns_with_the_image():
    scorer = learned("so2+mirror", 1, directions=4, width=3, stages=(1, 1)).eval()
    images = glyphs()
    with torch.no_grad():
        pose, turned, mirrored = scorer(images), scorer(images.rot90(1, (2, 3))), scorer(images.flip(3))
    quarter = parse("d4").elements.float()
    assert torch.allclose(turned.element, pose.element @ inverse(quarter[1]), atol=1e-4)
    assert torch.allclose(mirrored.element, pose.element @ inverse(quarter[4]), atol=1e-4)
    assert torch.allclose(turned.value, pose.value, atol=1e-4)
    angles = torch.linspace(-math.pi, math.pi, 721)[:-1]
    density = [
        scorer.log_density(*scorer.posterior(images), angles.expand(3, -1), torch.tensor([sign])).exp().mean(1)
        for sign in (1.0, -1.0)
    ]
    # The density is relative to the uniform one on each half.
    assert torch.allclose(density[0] + density[1], torch.ones(3), atol=1e-2)


@pytest.mark.equivariance
@pytest.mark.parametrize("group", ["c8", "so2"])
def test_the_posterior_turns_where_half_of_the_rotations_come_from_a_second_view(group):
    scorer = learned(group, 1, width=3, stages=(1, 1), views=2).eval()
    images = glyphs()
    with torch.no_grad():
        pose, turned = scorer(images), scorer(images.rot90(1, (2, 3)))
        weights = scorer.posterior(images)[0]
        step = warp(images, rotation(torch.tensor(math.pi / 4)))
        other = scorer.posterior(step)[0]
    assert torch.allclose(turned.element, pose.element @ inverse(parse("c4").elements[1].float()), atol=1e-4)
    # By an eighth of a turn the scores move by one element, up to interpolation.
    distances = [(weights.roll(k, 1) - other).norm() for k in range(8)]
    assert distances[1] == min(distances)


def test_one_square_of_each_training_image_is_erased():
    scorer = learned("c4", 2, width=2, stages=(1,), dropout=0.1)
    given = []
    scorer.features.register_forward_pre_hook(lambda module, arguments: given.append(arguments[0] == 0))
    images = torch.ones(50, 2, 16, 20)
    scorer.eval().posterior(images)
    scorer.train().posterior(images)
    corners, gone = given[0], given[1] & ~given[0]  # the corners of an image are always hidden
    assert (corners == corners[0]).all()
    assert torch.equal(gone[:, 0], gone[:, 1])
    rows, columns = gone[:, 0].any(2), gone[:, 0].any(1)
    assert torch.equal(rows[:, :, None] & columns[:, None] & ~corners[:, 0], gone[:, 0])  # a rectangle
    # Half of the shorter side and the centre; less where the edge cuts it.
    assert rows.sum(1).max() == columns.sum(1).max() == 9
    assert len(gone.unique(dim=0)) > 40


def test_coordinates_are_not_rounded_under_autocast():
    model = symmetrize(lambda x: x.flatten(1), "c8", over="logits")
    images, pose = glyphs(), rotation(torch.tensor([0.3, 1.0, 2.0]))
    with torch.autocast("cpu", torch.bfloat16):
        found, rounded = model(images), warp(images, pose)
    assert not torch.allclose(rounded, warp(images, pose), atol=1e-2)  # what would happen
    assert torch.equal(found, model(images))


@pytest.mark.slow
def test_a_scorer_of_rotations_learns_the_upright_pose():
    scorer = fit_canonicalizer(
        None, glyphs(), canonicalizer=learned("so2", 1, width=4, stages=(1, 1)), steps=80, batch_size=32,
        learning_rate=2e-2,
    )  # fmt: skip
    angles = torch.tensor([0.6, -1.3, 2.5])
    with torch.no_grad():
        pose = scorer(warp(glyphs(), rotation(angles)))
    assert (angular_error(pose.element, -angles) < 0.35).all()


def test_the_model_says_which_poses_matter():
    bright = lambda x: torch.stack([x.mean((1, 2, 3)), 1 - x.mean((1, 2, 3))], 1)  # noqa: E731  ignores pose
    seen = []
    model = lambda x: (seen.append(len(x)), bright(x))[1]  # noqa: E731
    scorer = fit_canonicalizer(
        model, glyphs(), canonicalizer=learned("c4", 1, width=2, stages=(1,)), steps=2, batch_size=8
    )
    assert sum(seen) == 3 * 4 + 2 * 3  # every element once, and twice to see that answers repeat
    assert not scorer.training


@pytest.mark.slow
def test_images_of_unknown_pose_can_be_learnt_from():
    angles = torch.linspace(0, 6, 12)
    unknown = warp(glyphs()[:1].expand(12, -1, -1, -1), rotation(angles))
    scorer = fit_canonicalizer(
        None, unknown, upright=False, canonicalizer=learned("so2", 1, width=3, stages=(1, 1)), steps=90, batch_size=24,
        learning_rate=2e-2,
    )  # fmt: skip
    with torch.no_grad():
        canonical = angle_of(scorer(unknown).element) + angles  # one angle for all of them
    spread = torch.stack([canonical.cos(), canonical.sin()]).mean(1).norm()
    assert spread > 0.9


def test_a_regression_learns_small_shifts():
    finder = fit_canonicalizer(
        None, glyphs(), canonicalizer=regress("translation", 1, size=21, width=4), steps=60, batch_size=32
    )
    shift = torch.tensor([[2.0, 0.0], [0.0, -2.0], [-1.5, 1.5]])
    with torch.no_grad():
        pose = finder(warp(glyphs(), translation(shift)))
    assert (pose.element[:, :2, 2] + shift).norm(dim=1).mean() < 1.0


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: canonicalize(lambda x: x, lambda x: x), "a canonicalizer such as"),
        (lambda: canonicalize(lambda x: x, moments("so2"), views=9), "views must be from 1 to 4"),
        (lambda: canonicalize(lambda x: x, moments("so2"), doubt=1.0), "set views to 2"),
        (lambda: canonicalize(lambda x: x, moments("so2"), restores="text"), "restores must be one of"),
        (
            lambda: canonicalize(lambda x: x.flatten(1).softmax(1), moments("so2"), views=2)(glyphs()),
            "gives='prob",
        ),
        (lambda: canonicalize(lambda x: x.mean((1, 2, 3)), moments("so2"), views=2)(glyphs()), "needs answers"),
        (lambda: canonicalize(group_cnn("c4", 1, 2, 21, width=2, head=None), moments("so2"), views=2), "views=1"),
        (lambda: moments("affine"), "moments canonicalize"),
        (lambda: coordinates("affine", glyphs()), "canonical coordinates exist"),
        (lambda: energy(lambda x: x.flatten(1), glyphs(), "so2"), "finite group"),
        (lambda: energy(lambda x: x.flatten(1), glyphs(), "c4", neighbours=9), "must not exceed the 3"),
        (lambda: energy(lambda x: x.flatten(1), glyphs(), "c4", score="mean"), "'contrast' or 'distance'"),
        (lambda: learned("affine"), "a learned scorer knows rotations"),
        (lambda: learned("dilations(2)"), "not closed"),
        (lambda: learned("d4", views=2), "cyclic group of even order"),
        (lambda: learned("c4", 3)(glyphs()), "takes images of 3 channels, got 1"),
        (lambda: regress("c4"), "continuous group of the plane without mirrors"),
        (lambda: iterate(), "at least one canonicalizer"),
        (lambda: fit_canonicalizer(None, glyphs()[:1]), "at least 2 images"),
        (lambda: restore(glyphs(), torch.eye(3)[None], "image"), "equal in number"),
        (lambda: restore(glyphs(), torch.eye(3).expand(3, 3, 3), "boxes", frame=(21, 21)), r"\(n, k, 4\)"),
        (lambda: restore(torch.rand(3, 2, 2), torch.eye(3).expand(3, 3, 3), "keypoints"), "frame="),
        (lambda: restore(glyphs(), torch.eye(3).expand(3, 3, 3), "text"), "kind must be one of"),
    ],
)
def test_wrong_use_is_refused(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()


def test_nothing_of_a_call_stays_in_a_canonicalizer(scorer):
    before = {name: value.clone() for name, value in scorer.state_dict().items()}
    fields = set(vars(scorer))
    first = scorer(glyphs())
    scorer(glyphs().rot90(1, (2, 3)))
    assert set(vars(scorer)) == fields
    assert all(torch.equal(value, before[name]) for name, value in scorer.state_dict().items())
    assert isinstance(first, Pose)
    assert torch.equal(first.element, scorer(glyphs()).element)
