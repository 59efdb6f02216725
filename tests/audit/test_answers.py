"""Answers, embeddings and collapse over the orbit: laws on models whose behaviour is known."""

import json

import numpy as np
import pytest
import torch

from kit.group_networks import Network
from kit.tensors import normal
from unpose.audit import (
    answer_changes,
    collapse,
    effective_rank,
    instability,
    monitor,
    needed_invariances,
    neighbour_agreement,
    orbit_outputs,
    pose_collapse,
    relative_embedding,
    shared_invariances,
    smooth_noise,
    spanning_tree_length,
    variability_collapse,
    version_diff,
)
from unpose.data import drawings
from unpose.images import as_batch, pixel_grid, quarter_turn


def brightest_side(x):
    """Class 0 to 3: which side of the image is brightest. A quarter turn changes every answer."""
    third = x.shape[-1] // 3
    sides = [x[..., :third, :], x[..., -third:, :], x[..., :third], x[..., -third:]]
    return 20 * torch.stack([side.mean((1, 2, 3)) for side in sides], dim=1)


def light_and_dark(x):
    """Two classes by the mean of an image: no turn changes an answer."""
    mean = x.mean((1, 2, 3))
    return torch.stack([mean, 1 - mean], dim=1)


def test_answers_that_follow_the_pose_all_change_and_those_that_do_not_never_do():
    images = smooth_noise(23, 1, (13, 13))
    follows = answer_changes(orbit_outputs(brightest_side, images, "c4"))
    assert follows.flips.tolist() == [0, 1, 1, 1]
    assert not follows.floors.any()
    ignores = answer_changes(orbit_outputs(light_and_dark, images, "c4"))
    assert not ignores.flips.any()
    assert ignores.discrimination > 0.1


def test_one_broken_angle_and_one_broken_class_are_found_with_their_images():
    images = smooth_noise(40, 1, (11, 11), random_state=3)
    images[:, 0, 5, 5] = torch.linspace(0, 1, 40)  # the centre decides the class; a quarter turn keeps it
    marked = torch.zeros(40, dtype=torch.bool)
    marked[[3, 8, 21]] = True
    images[marked, 0, 0, 5] = 7.0  # a mark at the top, which half a turn brings to the bottom

    def model(x):
        centre = x[:, 0, 5, 5]
        wrong = x[:, 0, 10, 5] == 7.0
        scores = torch.stack([centre < 0.35, (centre >= 0.35) & (centre < 0.7), centre >= 0.7], dim=1).float()
        return torch.where(wrong[:, None], scores.roll(1, 1), scores)

    report = answer_changes(orbit_outputs(model, images, "c4"), class_names=["low", "middle", "high"])
    assert report.elements[report.worst] == "turn 180"
    assert report.flips.tolist() == [0, 0, 3 / 40, 0]
    worst = report.classes[0]
    assert (worst.name, worst.worst, worst.degrees) == ("low", "turn 180", 180)
    assert set(worst.images) == {3, 8}
    assert "class low" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["classes"][0]["images"] == list(worst.images)


def test_interpolation_alone_is_charged_to_the_floor():
    images = smooth_noise(60, 1, (16, 16), sigma=0.7)
    images = images * torch.sigmoid(20 - 4 * pixel_grid((16, 16)).norm(dim=-1))  # fading further changes little

    def roughness(x):  # falls with resampling, whatever the angle
        across, down = x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]
        return across.square().mean((1, 2, 3)) + down.square().mean((1, 2, 3))

    middle = 0.9 * roughness(images).median()
    report = answer_changes(
        orbit_outputs(lambda x: torch.stack([roughness(x), middle.expand(len(x))], dim=1), images, "c8")
    )
    assert not report.flips[report.exact].any()
    assert report.flips[1] > 0.1
    assert report.floors[1] > 0.7 * report.flips[1]


def test_calibration_error_is_that_of_known_confidences():
    images = smooth_noise(200, 1, (9, 9))
    labels = np.random.default_rng(0).integers(0, 2, 200)

    def sure_of_zero(x):  # 90 % sure of class 0, which is right half of the time
        return torch.tensor([[0.9, 0.1]]).repeat(len(x), 1) + 0 * x[:, 0, 0, :2]

    report = answer_changes(orbit_outputs(sure_of_zero, images, "c4"), labels)
    expected = abs((labels == 0).mean() - 0.9)
    assert report.calibration_upright == pytest.approx(expected, abs=1e-6)
    assert report.calibration_orbit == pytest.approx(expected, abs=1e-6)
    assert report.discrimination == 0
    assert "means nothing" in str(report)


def test_wrong_outputs_and_labels_are_refused():
    orbit = orbit_outputs(light_and_dark, smooth_noise(5, 1, (7, 7)), "c4")
    with pytest.raises(ValueError, match="from 0 to 1"):
        answer_changes(orbit, [0, 1, 2, 0, 0])
    with pytest.raises(ValueError, match="whole numbers"):
        answer_changes(orbit, [0.0, 1, 1, 0, 0])
    with pytest.raises(ValueError, match="class scores"):
        answer_changes(orbit_outputs(lambda x: x.mean((2, 3)), smooth_noise(5, 1, (7, 7)), "c4"))
    with pytest.raises(ValueError, match="fails on images transformed by 'turn 90'"):
        orbit_outputs(lambda x: x.reshape(5, 63) @ torch.ones(63, 2) if x.shape[-1] == 9 else 1 / 0,
                      smooth_noise(5, 1, (7, 9)), "c4")  # fmt: skip


def test_neighbours_are_kept_by_an_invariant_embedding_and_by_one_that_turns():
    images = smooth_noise(31, 2, (9, 9))
    invariant = neighbour_agreement(orbit_outputs(Network("c4"), images, "c4"))
    assert invariant.agreement.min() == 1
    assert invariant.retrieval.min() == 1
    assert invariant.control_change > 1e3 * invariant.change.max()
    turning = neighbour_agreement(orbit_outputs(lambda x: x - 0.5, images, "c4"))
    assert turning.agreement.min() == 1  # all images turn alike
    assert turning.retrieval[1:].max() < 0.3  # but none finds itself
    weights = normal(162, 8)
    plain = neighbour_agreement(orbit_outputs(lambda x: (x.flatten(1) - 0.5) @ weights, images, "c4"))
    assert plain.agreement[0] == 1
    assert plain.agreement[1:].max() < 0.75


def test_a_constant_embedding_is_not_taken_for_an_invariant_one():
    report = neighbour_agreement(orbit_outputs(lambda x: torch.ones(len(x), 3), smooth_noise(9, 1, (7, 7)), "c4"))
    assert report.discrimination == 0
    assert "nearly constant" in str(report)
    assert report.to_dict()["change"] == [None] * 4


@pytest.mark.parametrize("seed", range(4))
def test_the_collapse_index_is_0_at_collapse_and_unchanged_by_invertible_maps(seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 5, 300)
    centres = random.standard_normal((5, 12))
    assert variability_collapse(centres[labels], labels) == 0
    features = centres[labels] + random.standard_normal((300, 12))
    index = variability_collapse(features, labels)
    assert 0.05 < index < 0.6
    stretched = random.standard_normal((12, 12)) * 10.0 ** random.uniform(-3, 3, 12)
    assert variability_collapse(features @ stretched + 7, labels) == pytest.approx(index, abs=1e-6)
    assert variability_collapse(features @ np.ones((12, 12)), labels) != pytest.approx(
        index, abs=1e-2
    )  # not invertible
    chance = collapse(features, random.permutation(labels))
    assert chance.index == pytest.approx(chance.chance, abs=0.03)


def test_too_few_embeddings_for_their_dimension_are_named():
    random = np.random.default_rng(0)
    report = collapse(random.standard_normal((20, 50)), random.integers(0, 3, 20))
    assert report.index < 1e-6  # although the labels are random
    assert "too few embeddings" in str(report)


def test_pose_collapses_in_an_invariant_network_only():
    images = smooth_noise(40, 2, (9, 9))
    network = Network("c4")
    invariant = pose_collapse(orbit_outputs(network, images, "c4"))
    assert invariant.index < 1e-4
    assert invariant.within < 1e-9
    moved = pose_collapse(orbit_outputs(lambda x: network.lift(x)[:, :, 0].relu().mean(-1).flatten(1), images, "c4"))
    assert moved.index > 0.1
    assert 0.05 < moved.within < 1


def test_gauges_of_collapse():
    random = np.random.default_rng(0)
    isotropic = random.standard_normal((4000, 6))
    assert effective_rank(isotropic) == pytest.approx(6, abs=0.05)
    assert effective_rank(np.outer(random.standard_normal(50), np.ones(6))) == pytest.approx(1)
    length = spanning_tree_length(isotropic[:300])
    assert spanning_tree_length(isotropic[:300] + 20) < 0.1 * length  # all point the same way
    points = np.repeat(isotropic[:5], 60, axis=0)
    assert spanning_tree_length(points) == pytest.approx(spanning_tree_length(isotropic[:5]) * 4 / 299)
    assert effective_rank(points) > 3  # which the eigenvalues do not see


def test_relative_embeddings_ignore_orthogonal_maps_and_scale():
    random = np.random.default_rng(1)
    features, anchors = random.standard_normal((30, 7)), random.standard_normal((9, 7))
    rotation = np.linalg.qr(random.standard_normal((7, 7)))[0]
    relative = relative_embedding(features, anchors)
    assert np.allclose(relative, relative_embedding(3 * features @ rotation, 3 * anchors @ rotation))
    assert not np.allclose(
        relative, relative_embedding(features @ np.diag(range(1, 8)), anchors @ np.diag(range(1, 8)))
    )


def test_shared_invariances_flag_a_model_that_still_uses_a_planted_mark():
    images = smooth_noise(50, 1, (11, 11))
    labels = torch.arange(50) % 2
    images[:, 0, :2, :2] = labels[:, None, None].float()  # the mark
    weights = normal(4, 2) / 2

    def features(x):
        return torch.stack([x.mean((1, 2, 3)), x.square().mean((1, 2, 3)), x.amax((1, 2, 3)), x.std((1, 2, 3))], 1)

    def honest(x):
        x = x.clone()
        x[:, 0, :2, :2] = 0.5
        return features(x) @ weights

    def cheating(x):
        return honest(x) + 3 * torch.stack([x[:, 0, 0, 0], -x[:, 0, 0, 0]], 1)

    def unmarked(x):
        x[:, 0, :2, :2] = 0.5
        return x

    with torch.no_grad():
        report = shared_invariances(honest, cheating, images, {"mark removed": unmarked, "quarter turns": "c4"})
    assert report.rows[0].verdict == "only the first ignores it"
    assert report.rows[0].sensitivities[1] > 0.4
    assert report.overlap < 0.8
    same = shared_invariances(honest, honest, images, {"mark removed": unmarked})
    assert same.overlap == 1


def test_a_new_version_fixes_and_breaks_images():
    images = smooth_noise(31, 1, (13, 13))
    old, new = (answer_changes(orbit_outputs(model, images, "c4")) for model in (brightest_side, light_and_dark))
    diff = version_diff(old, new)
    assert diff.fixed == tuple(range(31))
    assert not diff.broken
    assert diff.p_value < 1e-6
    assert version_diff(old, old).p_value == 1
    with pytest.raises(ValueError, match="same elements"):
        version_diff(old, answer_changes(orbit_outputs(light_and_dark, images, "d4")))


def test_the_monitor_is_silent_on_a_steady_stream_and_raises_the_alarm_when_the_model_decays():
    class Model(torch.nn.Module):
        side = 0.0

        def forward(self, x):
            return 8 * torch.cat([light_and_dark(x), torch.zeros(len(x), 2)], 1) + self.side * brightest_side(x)

    model = Model()

    def stream():
        for number in range(14):
            model.side = 0.0 if number < 11 else 0.2
            yield smooth_noise(24, 1, (9, 9), random_state=number)

    readings = list(monitor(model, stream(), "c4"))
    assert not any(reading.alarm for reading in readings[:11])
    assert all(reading.alarm for reading in readings[11:])
    assert readings[0].score < 1e-6


def test_instability_is_the_total_variation_of_the_probabilities():
    images = smooth_noise(7, 1, (9, 9))
    hard = lambda x: torch.nn.functional.one_hot(brightest_side(x).argmax(1), 4).float()  # noqa: E731
    assert instability(orbit_outputs(hard, images, "c4")).tolist() == [1] * 7
    assert instability(orbit_outputs(hard, images, "c4"), returned=True).tolist() == [0] * 7


def test_the_invariance_that_helps_is_told_from_the_one_that_hurts():
    shapes = as_batch(np.stack([drawings()[i] for i in (0, 1, 2)]))[:, :, ::2, ::2]
    generator = torch.Generator().manual_seed(0)
    which, turns = (torch.randint(count, (60,), generator=generator) for count in (3, 4))
    images = torch.cat([quarter_turn(shapes[w : w + 1], int(t)) for w, t in zip(which, turns, strict=True)])
    images = images + 0.2 * torch.randn(images.shape, generator=generator)
    embedding = lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 5).flatten(1)  # noqa: E731
    by_shape = needed_invariances(embedding, images, which.numpy(), ["c4"]).rows[0]
    by_turn = needed_invariances(embedding, images, turns.numpy(), ["c4"]).rows[0]
    assert by_turn.verdict == "hurts"
    assert by_turn.averaged < 0.5 < by_turn.plain
    assert by_shape.averaged >= by_shape.plain
