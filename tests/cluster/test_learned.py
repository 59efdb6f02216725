"""Encoders as features of the clustering: from a file, and learnt from the images themselves."""

import numpy as np
import pytest
import torch

from unpose import InvariantClustering
from unpose.cluster import learned
from unpose.cluster.features import feature_network
from unpose.data import posed
from unpose.nn import group_resnet
from unpose.train import recipe_from, save_network

TINY = {
    "epochs": 1,
    "batch_size": 16,
    "keep": "last",
    "network": {"kind": "group_resnet", "group": "c4", "options": {"widths": [2, 3], "depths": [1, 1]}},
    "poses": {"max_angle": 180},
    "unlabelled": {"loss": "vicreg", "steps": 2, "expander": 8},
}


@pytest.fixture(scope="module")
def shapes():
    rng = np.random.default_rng(1)
    plain = np.zeros((2, 15, 15), np.float32)
    plain[0, 3:12, 6:8] = plain[0, 10:12, 6:11] = plain[1, 4:11, 4:11] = 1
    turned = posed(plain, "se2", copies=13, max_shift=1.0, random_state=2)
    return turned.images + 0.02 * rng.standard_normal(turned.images.shape).astype(np.float32)


def test_a_network_of_the_package_is_called_at_its_own_size_and_with_its_channels(tmp_path):
    torch.manual_seed(0)
    encoder = group_resnet("c4", 3, 0, (9, 9), widths=(2, 3), depths=(1, 1), head=None).eval()
    save_network(tmp_path / "model.safetensors", encoder)
    images = torch.rand(4, 1, 15, 15)
    by_folder = feature_network(tmp_path, images)
    assert by_folder.side == 9
    assert sum(by_folder.blocks) == 20
    same_size = torch.rand(4, 3, 9, 9)
    at_size = feature_network(encoder, same_size)
    assert at_size.side is None
    with torch.no_grad():
        torch.testing.assert_close(at_size.call(same_size), encoder(same_size))
        grey = torch.rand(2, 1, 9, 9)
        torch.testing.assert_close(by_folder.call(grey), encoder(grey.expand(-1, 3, -1, -1)))


def test_a_folder_without_a_network_says_what_features_may_be(tmp_path):
    with pytest.raises(ValueError, match="folder of a run of unpose train"):
        feature_network(str(tmp_path), torch.rand(4, 1, 9, 9))
    (tmp_path / "model.safetensors").write_bytes(b"none")
    with pytest.raises(ValueError, match="is not a network that unpose can read"):
        feature_network(str(tmp_path), torch.rand(4, 1, 9, 9))


def test_features_can_be_learnt_from_the_images(shapes, monkeypatch):
    asked = []

    def small_recipe(group, **options):
        asked.append((group, options["small"]))
        return recipe_from(TINY | {"seed": options["seed"]})

    monkeypatch.setattr("unpose.train.unlabelled_recipe", small_recipe)
    stages = set()
    model = InvariantClustering(2, group="se2", features=learned.LEARN, random_state=0)
    model.fit(shapes, progress=lambda stage, done, total: stages.add(stage))
    assert asked == [("se2", True)]
    assert "learn" in stages
    assert model.features_.network == "encoder"
    assert model.predict(shapes[:3]).shape == (3,)
