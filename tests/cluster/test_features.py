"""Features over the orbit: invariance, what networks may return and want, and bad files."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from kit.images import blobs, posed_things
from unpose.cluster import InvariantClustering
from unpose.cluster.estimator import fit_within
from unpose.cluster.features import cosine_neighbours, feature_network, fit_space, orbit_features
from unpose.cluster.limits import Limits
from unpose.nn import equivariant_vit, group_cnn, group_resnet, lie_cnn, scale_net, swivel_net
from unpose.train import save_network


class Small(nn.Module):
    """A network with three channels and any size."""

    def __init__(self, channels=3, answer=lambda maps: maps.mean((2, 3))):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(channels, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 13, 3), nn.Dropout())
        self.answer = answer

    def forward(self, images):
        return self.answer(self.layers(images))


def views(group, max_angle=math.pi):
    """The poses of the views of any network."""
    return feature_network(np.array, blobs()).poses(group, max_angle)


class Fixed(nn.Module):
    """A network with one channel that takes 28 pixels only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 5), nn.Flatten(), nn.Linear(3 * 24 * 24, 7))

    def forward(self, images):
        return self.layers(images)


@pytest.mark.parametrize(("group", "count"), [("se2", 8), ("se2+mirror", 8), ("translation", 1), ("similarity", 8)])
def test_the_views_are_the_turns_and_mirrors_of_the_group(group, count):
    poses = views(group)
    assert poses.shape == (count, 3, 3)
    assert (torch.linalg.det(poses) < 0).sum() == (count // 2 if "mirror" in group else 0)
    np.testing.assert_allclose(poses @ poses.mT, torch.eye(3).expand(count, 3, 3), atol=1e-6)


def test_bounded_rotations_have_views_within_the_bound():
    poses = views("se2", math.radians(60))
    angles = torch.atan2(poses[:, 0, 1], poses[:, 0, 0])
    assert angles.abs().max() <= math.radians(60) + 1e-6
    assert len(angles) == 5
    assert len(views("se2", math.radians(10))) == 1


@pytest.mark.equivariance
def test_a_quarter_turn_and_a_mirror_change_nothing_and_a_shift_does():
    images = blobs()
    network, poses = feature_network(Small(), images), views("se2+mirror")
    own = orbit_features(images, network, poses)
    for moved in (images.rot90(1, (2, 3)), images.flip(3)):
        np.testing.assert_allclose(orbit_features(moved, network, poses), own, atol=1e-5)
    control = orbit_features(torch.roll(images, 3, 3) * torch.linspace(0, 1, 21), network, poses)
    assert np.abs(control - own).max() > 1e-3


def test_the_middle_is_a_second_view_that_does_not_see_the_border():
    images, bordered = blobs(side=40), blobs(side=40)
    bordered[..., :3] = 0.9  # the middle leaves out 40 (1 - 1 / 1.4) / 2 = 5.7 pixels on each side
    pixels = feature_network(lambda batch: batch.reshape(len(batch), -1), images)
    network = replace(pixels, side=20, middle=(14, 1.4))
    poses = views("translation")
    own, other = orbit_features(images, network, poses), orbit_features(bordered, network, poses)
    assert own.shape == (5, 20 * 20 + 14 * 14)
    assert np.abs(own - other)[:, :400].max() > 0.1
    np.testing.assert_allclose(own[:, 400:], other[:, 400:], atol=1e-3)


def test_pose_change_is_zero_for_what_ignores_pose_and_large_for_what_does_not():
    images = blobs(26)[:, 0].numpy()

    def invariant(batch):
        return np.stack([batch.mean((1, 2)), (batch**2).mean((1, 2)), (batch**3).mean((1, 2))], axis=1)

    def upright(batch):
        return batch.reshape(len(batch), -1)

    changes = []
    for function in (invariant, upright):
        model = InvariantClustering(2, features=function, max_angle=math.radians(30), max_shift=1.0).fit(images)
        changes.append(model.features_.pose_change)
    assert changes[0] < 0.1 < 0.2 < changes[1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_functions_are_called_with_arrays_of_the_own_size(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    shapes = []

    def mean_colour(batch):
        shapes.append(batch.shape[1:])
        return batch.mean((1, 2))

    images = blobs(channels=3, side=17)
    found = orbit_features(images, feature_network(mean_colour, images, device), views("se2"), device)
    assert found.shape == (5, 3)
    assert set(shapes) == {(17, 17, 3)}


@pytest.mark.parametrize(
    ("network", "width"),
    [(Small(1), 13), (Small(3), 13), (Fixed(), 7), (Small(answer=lambda maps: maps), 13),
     (Small(answer=lambda maps: maps.flatten(2).mT), 13)],
    ids=["one channel", "three channels", "28 pixels only", "maps", "tokens"],
)  # fmt: skip
def test_networks_get_the_channels_and_size_they_want_and_maps_are_pooled(network, width):
    images = blobs()
    network.train()
    found = orbit_features(images, feature_network(network, images), views("translation"))
    assert found.shape == (5, width)
    assert network.training, "the mode of the network is the caller's"
    again = orbit_features(images, feature_network(network, images), views("translation"))
    assert np.array_equal(found, again), "dropout is switched off"


@pytest.mark.parametrize(
    ("answer", "message"),
    [(lambda maps: maps.mean((2, 3)) * math.nan, "NaN"), (lambda maps: maps.mean((1, 2, 3)), "one vector per image"),
     (lambda maps: maps.mean((2, 3))[:1], "one output per input"),
     (lambda maps: {"a": maps, "b": maps}, "say which entry")],
    ids=["NaN", "numbers", "rows", "dictionary"],
)  # fmt: skip
def test_other_answers_are_refused_with_a_reason(answer, message):
    with pytest.raises(ValueError, match=message):
        feature_network(Small(answer=answer), blobs())


def test_a_network_that_takes_no_offered_size_says_what_it_wanted():
    network = nn.Sequential(nn.Flatten(), nn.Linear(11, 3))
    with pytest.raises(ValueError, match=r"Sequential gives no features for images of any size.*mat1 and mat2"):
        feature_network(network, blobs())


@pytest.mark.parametrize("features", ["resnet", 3])
def test_unknown_features_are_refused(features):
    with pytest.raises(ValueError, match="features must be"):
        feature_network(features, blobs())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, inside the export to ONNX
def test_the_lines_of_the_refusal_write_files_that_give_the_features_of_the_network(tmp_path, monkeypatch):
    """What the error for a .pt2 file tells to write is read again, and gives the vectors of the module itself."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"is refused, because \.pt2 files can run code") as refusal:
        feature_network("small.pt2", blobs())
    onnx, own = (line.strip() for line in str(refusal.value).splitlines()[1:])
    network, images, poses = Small().eval(), blobs(), views("se2")
    encoder = group_resnet("c4", 1, 0, (21, 21), widths=(2, 3), depths=(1, 1), head=None).eval()
    exec(f"import unpose.train\n{own}", {"model": encoder})
    found = feature_network("model.safetensors", images)
    with torch.no_grad():
        torch.testing.assert_close(found.call(images), encoder(images))
    assert len(found.digest) == 64
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    exec(onnx, {"model": network, "images": torch.rand(2, 3, 64, 64), "torch": torch})
    exported = feature_network("model.onnx", images)
    assert exported.side == 64
    at_64 = replace(feature_network(network, images), side=64)
    np.testing.assert_allclose(orbit_features(images, exported, poses), orbit_features(images, at_64, poses), atol=1e-4)


def test_the_space_of_many_images_is_that_of_a_sample():
    vectors = np.random.default_rng(0).standard_normal((50, 7)) * np.arange(1, 8)
    sampled = fit_space(vectors, most=10)
    assert np.array_equal(sampled.basis, fit_space(vectors[[0, 5, 11, 16, 22, 27, 33, 38, 44, 49]]).basis)
    nearly = fit_space(np.repeat(vectors, 3, axis=0))
    assert np.allclose(nearly.mean, vectors.mean(0)), "fewer images than the limit are all used"


def test_the_space_ignores_offsets_and_the_scale_of_blocks():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((50, 9)) * np.linspace(1, 5, 9)
    changed = features * np.repeat([1.0, 100.0], [4, 5]) + 7.0
    one, other = fit_space(features, (4, 5))(features), fit_space(changed, (4, 5))(changed)
    np.testing.assert_allclose(one @ one.T, other @ other.T, atol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1.0)


def test_neighbours_by_cosine_of_many_points_are_found_in_little_memory():
    """Each product of a block of points with all others would take 2.5 GB for 300,000 points."""
    rng = np.random.default_rng(0)
    points, others = rng.standard_normal((300, 2)), rng.standard_normal((60_000, 2))
    points, others = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (points, others))
    with torch.profiler.profile(profile_memory=True) as memory:
        indices, distances = cosine_neighbours(points, others, 3)
    assert max(each.self_cpu_memory_usage for each in memory.events()) < 2**28
    rows = [0, 150, 299]
    full = np.linalg.norm(points[rows, None] - others, axis=-1)
    assert np.array_equal(indices[rows], np.argsort(full, axis=1)[:, :3])
    np.testing.assert_allclose(distances[rows], np.sort(full, axis=1)[:, :3], atol=1e-6)


def test_neighbours_by_cosine_are_those_of_a_full_sort():
    points = np.random.default_rng(0).standard_normal((37, 5))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    indices, distances = cosine_neighbours(points, None, 6)
    full = np.linalg.norm(points[:, None] - points, axis=-1)
    np.fill_diagonal(full, np.inf)
    assert np.array_equal(indices, np.argsort(full, axis=1)[:, :6])
    np.testing.assert_allclose(distances, np.sort(full, axis=1)[:, :6], atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_statistics_ignore_quarter_turns_mirrors_and_units(channels):
    images = blobs(n=7, channels=channels)
    network = feature_network("statistics", images)
    poses = network.poses("se2+mirror", math.pi)
    before = orbit_features(images, network, poses)
    assert sum(network.blocks) == before.shape[1]
    for moved in (torch.rot90(images, 1, (2, 3)), images.flip(3)):
        after = orbit_features(moved, network, poses)
        np.testing.assert_allclose(after, before, atol=1e-4 * np.abs(before).max())
    control = orbit_features(images.roll(5, 3), network, poses)
    assert np.abs(control - before).max() > 1e-2 * np.abs(before).max()
    units = np.geomspace(1e-3, 1e3, before.shape[1])
    one, other = fit_space(before, network.blocks)(before), fit_space(before * units, network.blocks)(before * units)
    np.testing.assert_allclose(one @ one.T, other @ other.T, atol=1e-6)


def test_without_the_extra_the_error_names_it():
    with pytest.raises(ValueError, match=r"unpose\[features\]"):
        feature_network("efficientnet-lite0", blobs())


@pytest.mark.extra("features")
@pytest.mark.usefixtures("extra_network")
def test_the_network_of_the_extra_gives_three_layers_of_the_whole_and_of_the_middle():
    images = blobs(2)
    network = feature_network("efficientnet-lite0", images)
    assert network.blocks == 2 * (112, 112, 192, 192, 1280, 1280)
    assert network.call(torch.rand(2, 1, 32, 32)).shape == (2, sum(network.blocks) // 2)


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
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.maps, self.num_classes, self.classes = nn.Conv2d(3, 5, 3), 2, nn.Linear(5, 2)

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


def test_features_can_be_learnt_from_the_images():
    stages = set()
    images = posed_things(13, size=15, kinds=2, max_shift=1.0, noise=0.02).images
    model = InvariantClustering(2, features="learn", random_state=0)
    fit_within(Limits(learning_steps=1), model, images, progress=lambda stage, done, total: stages.add(stage))
    assert "learn" in stages
    assert model.features_.network == "encoder"
    assert model.predict(images[:3]).shape == (3,)
