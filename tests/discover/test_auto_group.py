"""``group="auto"`` in audits, adaptations and recipes: what is found is used, and said."""

import json

import numpy as np
import pytest
import torch

from unpose.adapt import try_adaptations
from unpose.audit import audit_model
from unpose.data import Dataset, Split
from unpose.train import recipe_from, train

COUNT = 66


def letters(upright):
    """Noisy letters L of 12 pixels, and as many with a dot; upright, or each by a random quarter turn."""
    rng = np.random.default_rng(4)
    images = 0.1 * rng.random((COUNT, 12, 12)).astype(np.float32)
    images[:, 2:10, 4] += 1
    images[:, 9, 4:9] += 1
    images[::2, 4:6, 7:9] += 1
    if not upright:
        images = np.stack([np.rot90(image, rng.integers(4)) for image in images])
    return images, np.arange(COUNT) % 2


def test_an_audit_uses_the_group_of_its_images_and_says_why():
    images, _ = letters(upright=False)
    pool = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    audit = audit_model(pool, images, "auto", modules=False, measure=False)
    assert audit.group in ("c2", "c4", "c8")
    assert f"group 'auto' is {audit.group}" in audit.notes
    assert any("quarter turn: " in note for note in audit.notes)
    with pytest.raises(ValueError, match="give images, or name the group"):
        audit_model(torch.nn.Flatten(), group="auto")


@pytest.mark.slow
def test_adaptations_refuse_images_that_obey_nothing():
    images, labels = letters(upright=True)
    with pytest.raises(ValueError, match=r"no turn or mirror[\s\S]*half turn +does not hold"):
        try_adaptations(lambda x: x[:, 0, 0], images, labels, "auto", steps=0)


def test_a_recipe_takes_the_group_of_its_training_images(tmp_path):
    images, labels = letters(upright=False)
    few = Split(images[:9], labels[:9])
    dataset = Dataset("letters", "made for tests", ("dot", "none"), Split(images, labels), few, few)
    network = {"group": "auto", "options": {"width": 2, "stages": [1]}}
    result = train(dataset, recipe_from({"epochs": 1, "network": network}), tmp_path)
    assert result.network.group.name == result.discovery.finite_group
    assert 'group = "auto"' not in (tmp_path / "config.toml").read_text()
    assert len(json.loads((tmp_path / "result.json").read_text())["group_found"]) == len(result.discovery.findings)
