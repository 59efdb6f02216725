"""The images of a run, and new ones beside them, are read again as the run read them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kit.commands import table, unpose
from unpose.cluster import InvariantClustering
from unpose.data import read_folder
from unpose.runs import RunSettings, read_run, write_run


def write(path, shape, *, seed, in_colour=False, tint=0):
    """A triangle on noise; its channels are equal up to a tint, or red is another."""
    height, width = shape
    image = np.full((*shape, 3), 40, np.uint8) + np.random.default_rng(seed).integers(0, 30, (*shape, 1), np.uint8)
    image[5 : height - 5, 4 : width - 4] += (np.tri(height - 10, width - 8, dtype=np.uint8) * 150)[..., None]
    image[..., 0] += np.uint8(tint)
    if in_colour:
        image[..., 0] = image[::-1, :, 0]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def printed(*words, code=0):
    """What a command prints, or its error."""
    result = unpose(*words)
    assert result.status == code, result.output
    return result.err if code else result.out


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on seven pictures of 31 x 17, one in colour, one nearly grey, which left out one beyond its budget."""
    folder = tmp_path_factory.mktemp("run")
    for k in range(7):
        write(folder / "in" / f"{k}.png", (31, 17), seed=k, in_colour=k == 3, tint=2 * (k == 5))
    Image.fromarray(np.zeros((900, 900, 3), np.uint8)).save(folder / "in" / "large.png")
    settings = RunSettings(clusters=1, size=31, memory=4 * 10**6, features="pixels")
    images = read_folder(folder / "in", size=31, memory=settings.memory)
    assert images.images.shape == (7, 31, 17, 3)
    model = InvariantClustering(1, features="pixels", max_angle=0.3, max_shift=2).fit(images.images)
    (folder / "run").mkdir()
    write_run(folder / "run", folder / "in", images, model, settings, "unpose cluster").write_page()
    return folder


@pytest.fixture
def run(finished, tmp_path):
    for name in ("in", "run"):
        shutil.copytree(finished / name, tmp_path / name)
    return tmp_path / "run"


def test_a_run_with_a_budget_finds_its_images_unchanged(run, tmp_path):
    printed("export", run, "--to", "npz", "-o", tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz") as arrays:
        assert arrays["aligned"].shape == (7, 31, 17, 3)


def test_a_new_picture_is_the_same_in_any_company(run, tmp_path):
    write(tmp_path / "one" / "a.png", (31, 17), seed=11)
    write(tmp_path / "grey" / "a.png", (31, 17), seed=11, tint=2)  # alone, it makes no set in colour
    for name, company in (("one", "two"), ("grey", "three")):
        shutil.copytree(tmp_path / name, tmp_path / company)
        write(tmp_path / company / "b.png", (30, 17), seed=12, in_colour=True)
        alone, among = (table(printed("predict", run, tmp_path / each)) for each in (name, company))
        assert len(among) == 2
        for column in ("cluster", "confidence", "angle", "distance"):
            assert float(alone[0][column]) == pytest.approx(float(among[0][column]), rel=1e-4)


def test_images_of_the_run_are_recognised_among_new_ones(run, finished, tmp_path):
    shutil.copytree(finished / "in", tmp_path / "same")
    (tmp_path / "same" / "large.png").unlink()
    images = read_folder(tmp_path / "same")
    model = read_run(run).model
    (tmp_path / "other").mkdir()
    write_run(tmp_path / "other", tmp_path / "same", images, model, RunSettings(clusters=1), "unpose cluster")
    assert "was made from" in printed("update", tmp_path / "other", tmp_path / "same", code=2)


def test_a_network_is_trained_on_a_run_with_pictures_of_another_shape(run, tmp_path):
    for k in range(3):
        write(tmp_path / "later" / f"{k}.png", (20, 24), seed=20 + k)
    printed("update", run, tmp_path / "later")
    names = read_run(run).names
    rows = "".join(f"{name},{'left' if k % 2 else 'right'}\n" for k, name in enumerate(names))
    (tmp_path / "names.csv").write_text("path,name\n" + rows)
    printed("apply", run, tmp_path / "names.csv")
    printed("train", run, "--quick", "-o", tmp_path / "network")
    assert any(Path(tmp_path / "network").iterdir())
