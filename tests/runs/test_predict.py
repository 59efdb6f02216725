"""How well new images belong to a run: confidence, and images of a kind that the run has not seen."""

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from unpose.cli import main
from unpose.cluster import InvariantClustering
from unpose.data import posed, read_folder
from unpose.runs import RunSettings, write_run

TINT = np.array([0.9, 0.6, 0.3], np.float32)


def drawings(kind, count, seed):
    """Shapes of one kind whose proportions vary, with noise and at random poses: (count, 21, 21), mostly in [0, 1]."""
    rng = np.random.default_rng(seed)
    images = np.zeros((count, 21, 21), np.float32)
    for image in images:
        length, arm = rng.integers(14, 17), rng.integers(13, 17)
        if kind == "hook":
            image[4:length, 9:12] = image[4:7, 9:arm] = 0.8
        elif kind == "block":
            image[6:length, 6:arm] = 0.8
        else:
            image[5:15, 5:15] = 0.8 * (np.indices((10, 10)) // 3 % 2).max(0)
    turned = posed(images, copies=1, max_shift=1.0, random_state=seed).images
    return (turned + 0.03 * rng.standard_normal(turned.shape)).astype(np.float32)


@pytest.fixture(
    scope="module", params=["ignore", *(pytest.param(each, marks=pytest.mark.slow) for each in ("keep", "colour"))]
)
def known(request, tmp_path_factory):
    """A run of hooks and blocks, and what makes images like those of the run from grey ones."""
    folder = tmp_path_factory.mktemp("known")
    light = "keep" if request.param == "keep" else "ignore"

    def prepare(images):
        return images[..., None] * TINT if request.param == "colour" else images

    np.save(folder / "stack.npy", prepare(np.concatenate([drawings("hook", 14, 1), drawings("block", 14, 2)])))
    images = read_folder(folder / "stack.npy")
    model = InvariantClustering(2, light=light, random_state=0).fit(images.images)
    run = write_run(folder, folder / "stack.npy", images, model, RunSettings(clusters=2, light=light), "unpose cluster")
    return run, prepare


def fits(run, images):
    """How many of the images fit a cluster."""
    return int((run.model.assign(images).p_values >= 0.05).sum())


def test_new_images_of_a_known_kind_fit_and_others_do_not(known):
    run, prepare = known
    assert fits(run, prepare(np.concatenate([drawings("hook", 10, 5), drawings("block", 10, 6)]))) >= 16
    assert fits(run, prepare(drawings("checks", 10, 7))) <= 1


def test_another_brightness_fits_where_the_run_ignores_light(known):
    run, prepare = known
    count = fits(run, (0.1 + 0.5 * prepare(drawings("hook", 10, 5))).astype(np.float32))
    assert count <= 1 if run.model.light == "keep" else count >= 8


def test_clusters_of_few_images_are_not_judged(run):
    assert np.isnan(run.model.assign(np.tri(13, dtype=np.float32)[None]).p_values).all()


def test_the_command_says_which_images_fit(known, tmp_path):
    run, prepare = known
    run.write_page()
    np.save(tmp_path / "new.npy", prepare(np.concatenate([drawings("hook", 6, 5), drawings("checks", 6, 7)])))
    done = CliRunner().invoke(
        main, ["predict", str(run.path), str(tmp_path / "new.npy"), "-o", str(tmp_path / "t.csv")]
    )
    assert done.exit_code == 0, done.output
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(row["fits"] == "yes" for row in rows[:6]) >= 4
    assert sum(row["fits"] == "no" for row in rows[6:]) >= 5
    assert all(0.5 <= float(row["confidence"]) <= 1 for row in rows)
    assert all((float(row["p_value"]) >= 0.05) == (row["fits"] == "yes") for row in rows)
    assert "of 12 images fit no cluster of the run" in done.stderr
    np.save(tmp_path / "own.npy", np.load(run.path / "stack.npy"))
    done = CliRunner().invoke(main, ["predict", str(run.path), str(tmp_path / "own.npy"), "--json"])
    assert [image["cluster"] for image in json.loads(done.stdout)["images"]] == run.labels.tolist()
    assert "fit no cluster" not in done.stderr
