"""Encoders as features of the clustering: from a file, and learnt from the images themselves."""

import numpy as np
import pytest
import torch

from unpose import InvariantClustering
from unpose.cluster import learned
from unpose.cluster.features import feature_network
from unpose.data import posed
from unpose.nn import equivariant_vit, group_cnn, group_resnet, lie_cnn, scale_net, swivel_net
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


@pytest.mark.parametrize(
    "network",
    [
        group_cnn("c4", 1, 11, 21, width=5), group_resnet("c4", 1, 11, 21, widths=(2, 3), depths=(1, 1)),
        swivel_net("c4", 1, 11, 21, widths=(2, 3, 4)), scale_net("dilations(3)", 1, 11, 21, widths=(2, 3)),
        equivariant_vit("c4", 1, 11, 21, patch=7, depth=1, width=32, heads=4, equivariant_until=1),
        lie_cnn("se2", 1, 11, 21, width=5),
    ],
    ids=lambda network: network.description["network"],
)  # fmt: skip
def test_the_features_of_a_classifier_are_not_its_scores(network):
    images = torch.rand(3, 1, 21, 21)
    found = feature_network(network, images).call(images)
    assert found.shape[1] != 11
    assert found.std() > 0
    with torch.no_grad():
        for each in network.parameters():
            if each.shape[0] == 11:  # of the layer of the classes
                each.zero_()
    assert network(images).std(1).max() < 1e-6
    torch.testing.assert_close(feature_network(network, images).call(images), found)


def test_features_of_timm_are_those_before_the_classes():
    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.maps, self.num_classes, self.classes = torch.nn.Conv2d(3, 5, 3), 2, torch.nn.Linear(5, 2)

        def forward_features(self, images):
            return self.maps(images)

        def forward_head(self, maps, pre_logits=False):
            return maps.mean((2, 3)) if pre_logits else self.classes(maps.mean((2, 3)))

        def forward(self, images):
            return self.forward_head(self.forward_features(images))

    network, images = Classifier(), torch.rand(3, 1, 21, 21)
    found = feature_network(network, images)
    assert found.name == "Classifier"
    assert found.call(images).shape == (3, 5)


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
