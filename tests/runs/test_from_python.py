"""The page of an estimator that was fitted in Python."""

import numpy as np
import pytest
import torch

from unpose.cluster import InvariantClustering
from unpose.runs import RunError, read_run, write_report
from unpose.runs.settings import read_config


def test_the_page_of_an_estimator_is_that_of_the_command(images, tmp_path):
    file, found = images
    model = InvariantClustering(2).fit(found.images)
    run = write_report(model, found, tmp_path / "run", title="shapes")
    page = (run.path / "report.html").read_text()
    assert "6 images, 2 groups." in page
    assert "in shapes, if pose does not count" in page
    assert file.name in page
    back = read_run(tmp_path / "run")
    assert np.array_equal(back.labels, model.labels_)
    assert (back.settings.clusters, back.settings.max_angle) == (2, 180.0)
    with pytest.raises(RunError, match="finished run"):
        write_report(model, found, tmp_path / "run")
    write_report(model, found.images, tmp_path / "run", force=True)
    assert read_run(tmp_path / "run").names == [str(k) for k in range(6)]
    with pytest.raises(ValueError, match="must be the 6 images that were fitted, got 5"):
        write_report(model, found.images[:5], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def brightness(batch):
    """A feature of images (n, h, w)."""
    return np.asarray(batch).reshape(len(batch), -1)[:, :2]


@pytest.mark.parametrize(("features", "written"), [("pixels", "pixels"), ("auto", "auto"), (brightness, "pixels")])
def test_the_configuration_repeats_the_features_or_says_that_it_cannot(images, tmp_path, features, written):
    _, found = images
    run = write_report(InvariantClustering(2, features=features).fit(found.images), found, tmp_path / "run")
    config = read_config(run.path / "config.toml")
    assert config.settings.features == written
    assert ("brightness of Python" in config.about.get("features", "")) is callable(features)


@pytest.mark.slow
def test_batches_of_torch_and_pictures_of_different_sizes(images, tmp_path):
    _, found = images
    batch = torch.from_numpy(found.images)[:, None].repeat(1, 3, 1, 1)
    model = InvariantClustering(2).fit(batch)
    assert write_report(model, batch, tmp_path / "torch").means.shape == (2, 13, 13, 3)
    pictures = [np.pad(image, k % 2) for k, image in enumerate(found.images)]
    model = InvariantClustering(2).fit(pictures)
    assert len(write_report(model, pictures, tmp_path / "sizes").names) == 6


def test_vectors_have_no_page(tmp_path):
    with pytest.raises(ValueError, match="vectors, which have no page"):
        write_report(InvariantClustering(2).fit(np.random.default_rng(0).random((12, 3))), np.eye(3), tmp_path / "run")
