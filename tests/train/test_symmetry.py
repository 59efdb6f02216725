"""Learned symmetries: resumed runs equal uninterrupted ones, true and false symmetries are told apart, bad input."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from kit.doubles import StopAt
from kit.trainings import SYMMETRIES, differing, state_file
from unpose.data import Dataset, Split
from unpose.train import (
    Bounds,
    InstanceAugment,
    InvarianceConstrained,
    RecipeError,
    SoftEquivariance,
    StoppedError,
    read_notes,
    recipe_from,
    recipe_toml,
    train,
)
from unpose.train.symmetry import make_symmetry


@pytest.mark.parametrize(
    "method", ["instance", *(pytest.param(each, marks=pytest.mark.slow) for each in ("soft", "constrained"))]
)
def test_a_resumed_run_equals_an_uninterrupted_one(method, problem, small_recipe, tmp_path):
    recipe = small_recipe(epochs=2, average=0.9, symmetry=SYMMETRIES[method])
    whole = train(problem, recipe, tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(problem, recipe, tmp_path / "parts", progress=StopAt(7, StoppedError))
    parts = train(problem, recipe, tmp_path / "parts", resume=True)
    one, other = (state_file(tmp_path / name) for name in ("whole", "parts"))
    assert any(name.startswith("extra.") for name in one)
    assert differing(one, other) == {}
    assert parts.symmetry.strengths() == whole.symmetry.strengths()
    notes = read_notes(tmp_path / "whole" / "model.safetensors")["symmetry"]
    assert notes["method"] == method
    if whole.best_epoch == recipe.epochs:
        assert notes == whole.symmetry.strengths()


SMALL_NETWORKS = {
    "group_resnet": ("c4", {"widths": [2], "depths": [1]}),
    "equivariant_vit": ("c4", {"patch": 3, "depth": 1, "width": 16, "heads": 4}),
    "patch_net": ("c4", {"patch_size": 3, "width": 8, "hidden": 8, "heads": 2, "attention": "ordinary"}),
    "lie_cnn": ("affine", {"samples": 2, "width": 2}),
    "scale_fourier_net": ("dilations(2, 1.5)", {"width": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL_NETWORKS)
@pytest.mark.parametrize("method", SYMMETRIES)
def test_every_kind_of_network_learns_how_far_symmetries_hold(method, kind, problem):
    parts = [Split(part.images[:, :, 1:10], part.labels) for part in (problem.train, problem.validation, problem.test)]
    square = Dataset("marks", "made for tests", problem.classes, *parts)
    network = dict(zip(("group", "options"), SMALL_NETWORKS[kind], strict=True)) | {"kind": kind}
    recipe = recipe_from({"epochs": 1, "batch_size": 16, "network": network, "symmetry": SYMMETRIES[method]})
    strengths = train(square, recipe).symmetry.strengths()
    assert strengths != make_symmetry(recipe, square).strengths()  # something was learnt
    json.dumps(strengths, allow_nan=False)


def test_a_recipe_with_a_symmetry_survives_toml_and_one_without_is_written_as_before():
    table = {"symmetry": {"method": "constrained", "groups": ["so2"], "max_angle": 30, "slack": 0.2}}
    recipe = recipe_from(table)
    assert recipe.symmetry.max_angle == math.radians(30)
    assert "max_angle = 30.0" in recipe_toml(recipe).partition("[symmetry]")[2]
    assert "symmetry" not in recipe_toml(recipe_from({}))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"method": "hard"}, "symmetry.method must be one of"),
        ({"method": "soft", "strength": 0}, "symmetry.strength must be above 0"),
        ({"method": "instance", "groups": ["so2", "se2"]}, "must name one group"),
        ({"method": "instance", "spread": 1.0}, "symmetry.spread must be above 0"),
        ({"groups": "so2"}, "symmetry.groups must be of type list"),
    ],
)
def test_recipes_that_mean_nothing_are_refused(table, words):
    with pytest.raises(RecipeError, match=words):
        recipe_from({"symmetry": table})


def test_groups_that_cannot_be_candidates_are_refused():
    with pytest.raises(ValueError, match="more than the identity"):
        SoftEquivariance(["c1"])
    with pytest.raises(ValueError, match="finite groups"):
        InvarianceConstrained(["so3"])
    with pytest.raises(ValueError, match="the mirror is d1"):
        InstanceAugment("so2+mirror")


@pytest.mark.parametrize(
    "build",
    [
        lambda: SoftEquivariance(["so2", "d1"]),
        lambda: InvarianceConstrained(["c8", "similarity"]),
        lambda: InstanceAugment("se2", 2, 3),
    ],
    ids=["soft", "constrained", "instance"],
)
def test_poses_bring_in_nothing_darker_than_the_border(build, generator):
    symmetry = build()
    images = torch.rand(6, 2, 1, 1, generator=generator).expand(6, 2, 11, 9)
    images = torch.cat([images, 1 - images])
    seen = []

    def network(given):
        seen.append(given)
        return given.mean((2, 3)) @ torch.ones(2, 3)

    def losses(outputs, labels):
        return cross_entropy(outputs, labels, reduction="none")

    labels = torch.arange(12) % 3
    symmetry(network, images, labels, losses)
    symmetry.measure(network, images, labels, losses)
    for given in seen:
        torch.testing.assert_close(given, images.repeat(len(given) // 12, 1, 1, 1))


def bars(count, seed, turned):
    """Bars to the left or right of the centre, 11 x 11: turned by quarter turns within two classes, or upright.

    Upright, the class is the side of the bar, so that half turns and mirrors change it. Turned, the class is whether
    the bar has a head, which no turn changes.
    """
    rng = np.random.default_rng(seed)
    images = 0.1 * rng.random((count, 11, 11)).astype(np.float32)
    labels = np.arange(count) % 2
    for k, label in enumerate(labels):
        shape = np.zeros((11, 11), np.float32)
        shape[4:7, 7:10] = 1
        if turned:
            shape[2:9, 7] += label
            shape = np.rot90(shape, rng.integers(4))
        elif label:
            shape = shape[:, ::-1]
        images[k] += shape
    return Split(images, labels)


def problem_of(turned):
    parts = [bars(count, seed, turned) for seed, count in enumerate((160, 40, 40))]
    return Dataset("arrows", "made for tests", ("one", "two"), *parts)


def strengths_on(turned, symmetry):
    table = {"epochs": 12, "batch_size": 32, "optimizer": {"learning_rate": 0.01}, "symmetry": symmetry}
    table["network"] = {"group": "c1", "options": {"width": 6, "stages": [1, 1]}}
    return train(problem_of(turned), recipe_from(table)).symmetry.strengths()


@pytest.mark.slow
def test_multipliers_and_weights_tell_true_from_false_symmetries():
    true, false = (
        strengths_on(turned, {"method": "constrained", "groups": ["c2"]})["multipliers"]["c2"]
        for turned in (True, False)
    )
    assert true < 0.3 * false
    true, false = (
        strengths_on(turned, {"method": "soft", "groups": ["c2"]})["weights"]["c2"] for turned in (True, False)
    )
    assert true > 1.5 * false


@pytest.mark.slow
def test_ranges_are_wide_for_a_ring_and_narrow_for_a_bar_whose_direction_is_its_class():
    torch.manual_seed(0)
    x, y = torch.meshgrid(*[torch.arange(14) - 6.5] * 2, indexing="xy")
    radius, angle = torch.hypot(x, y), torch.atan2(y, x)
    ring = ((radius - 4).abs() < 1.2).float()
    right, left = ((radius < 6) & (angle.cos() * sign > 0.8) for sign in (1, -1))
    images = torch.stack([ring, right.float(), left.float()])[:, None].repeat(20, 1, 1, 1)
    images += 0.05 * torch.randn_like(images)
    labels = torch.arange(60) % 3
    network = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(200, 3))
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    symmetry = InstanceAugment("so2", n_classes=3, spread=0.6)
    for _ in range(250):
        optimizer.zero_grad()
        _, objective = symmetry(network, images, labels, lambda o, y: cross_entropy(o, y, reduction="none"))
        (objective / 60).backward()
        optimizer.step()
        symmetry.adjust()
    found = symmetry.ranges(images)[:, 0]  # radians
    ring_range, bars_range = found[labels == 0].mean(), found[labels > 0].mean()
    assert ring_range > 1.2 * bars_range
    assert bars_range < math.radians(115)


@pytest.mark.slow
def test_ranges_part_after_a_step_that_all_images_shared(generator):
    torch.manual_seed(0)
    kinds = torch.rand(2, 1, 14, 14, generator=generator)
    symmetry = InstanceAugment("so2", n_classes=2, spread=0.8)
    for step in range(100):
        labels = torch.arange(16) % 2
        images = kinds[labels] + 0.1 * torch.rand(16, 1, 14, 14, generator=generator)
        # By how much the loss at the end of the range exceeds that inside: at first the same for all, then not.
        wanted = -1.0 if step < 50 else torch.where(labels == 0, 0.5, -0.5)
        slope = wanted + 0.5 * torch.randn(16, generator=generator)
        losses = torch.cat([torch.zeros(32), slope])
        _, objective = symmetry(lambda batch: batch.flatten(1), images, labels, lambda o, y, found=losses: found)
        objective.backward()
        symmetry.adjust()
    narrow, wide = symmetry.ranges(kinds)[:, 0].rad2deg().tolist()
    assert narrow < 70
    assert wide > 150


def test_bounds_limit_the_elements():
    symmetry = SoftEquivariance(["similarity"], bounds=Bounds(max_angle=0.0, max_shift=0.0, max_scale=1.0))
    images, labels = torch.rand(4, 1, 9, 9), torch.tensor([0, 1, 0, 1])
    network = nn.Sequential(nn.Flatten(), nn.Linear(81, 2))
    symmetry(network, images, labels, lambda o, y: cross_entropy(o, y, reduction="none"))
    assert symmetry.sums[0] < 1e-6  # only the identity is left, which changes nothing
