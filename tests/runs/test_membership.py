"""How well new images belong to a run: confidence, and images of a kind that the run has not seen."""

import csv

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from unpose.cli import main
from unpose.cluster import InvariantClustering
from unpose.data import posed, read_images
from unpose.runs import RunSettings, fits_cluster, membership, write_run

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


@pytest.fixture(scope="module", params=["ignore", "keep", "colour"])
def known(request, tmp_path_factory):
    """A run of hooks and blocks, and what makes images like those of the run from grey ones."""
    folder = tmp_path_factory.mktemp("known")
    light = "keep" if request.param == "keep" else "ignore"

    def prepare(images):
        return images[..., None] * TINT if request.param == "colour" else images

    np.save(folder / "stack.npy", prepare(np.concatenate([drawings("hook", 14, 1), drawings("block", 14, 2)])))
    images = read_images(folder / "stack.npy")
    model = InvariantClustering(2, light=light, random_state=0).fit(images.images)
    run = write_run(folder, folder / "stack.npy", images, model, RunSettings(clusters=2, light=light), "unpose cluster")
    return run, prepare


def answers(run, images):
    distances, poses = run.model.place(images)
    labels = np.where(np.isfinite(distances).any(1), distances.argmin(1), -1)
    return fits_cluster(run, images, labels, poses[np.arange(len(labels)), labels])


def test_new_images_of_a_known_kind_fit_and_others_do_not(known):
    run, prepare = known
    same = answers(run, prepare(np.concatenate([drawings("hook", 10, 5), drawings("block", 10, 6)])))
    other = answers(run, prepare(drawings("checks", 10, 7)))
    assert sum(same) >= 16
    assert sum(other) <= 1


def test_another_brightness_fits_where_the_run_ignores_light(known):
    run, prepare = known
    images = prepare(drawings("hook", 10, 5))
    fits = answers(run, (0.1 + 0.5 * images).astype(np.float32))
    assert (sum(fits) <= 1) if run.model.light == "keep" else (sum(fits) >= 8)


def test_a_constant_image_fits_nothing_and_small_clusters_are_not_judged(known, run):
    several, prepare = known
    flat = prepare(np.full((1, 21, 21), 0.5, np.float32))
    assert fits_cluster(several, flat, np.array([-1]), np.eye(3)[None]) == [False]
    assert fits_cluster(run, np.tri(13, dtype=np.float32)[None], np.array([0]), np.eye(3)[None]) == [None]


@given(distances=st.lists(st.lists(st.floats(1e-6, 2), min_size=3, max_size=3), min_size=1, max_size=5))
def test_membership_is_a_share_that_grows_with_the_margin(distances):
    found = membership(distances)
    assert ((found >= 1 / 3 - 1e-9) & (found <= 1)).all()
    farther = np.sort(distances, axis=1) * [1, 1.5, 1.5]
    assert (membership(farther) >= found - 1e-9).all()


def test_membership_at_the_ends():
    far = [np.inf, np.inf]
    assert membership([[0.3, 0.3], [0.0, 0.4], far]).tolist() == [0.5, 1.0, 0.0]
    assert membership([[0.7]]).tolist() == [1.0]


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
    assert "of 12 images fit no cluster of the run" in done.stderr
    assert "83 %" in CliRunner().invoke(main, ["predict", "--help"]).output
