"""Runs of more images than a page can show: a sample on the page, everything in the tables, bounded memory."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from scipy import sparse

from unpose.align import Neighbours
from unpose.cluster import InvariantClustering, page
from unpose.cluster.pose_range import PoseRange
from unpose.data import ImageSet
from unpose.runs import RunSettings, read_names, read_run, write_run


def synthetic(n, side, n_clusters, seed=0):
    """Images of bars, and an estimator that says it has clustered them: planted clusters, random poses and copies."""
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.integers(0, n_clusters, n))[rng.permutation(n)]
    _, labels = np.unique(labels, return_inverse=True)
    order = np.argsort(-np.bincount(labels), kind="stable")
    labels = np.argsort(order)[labels]
    labels[rng.integers(0, n, max(1, n // 100))] = -1
    images = np.zeros((n, side, side), np.uint8)
    images[:, side // 4 : -side // 4, side // 2] = 255
    images[np.arange(n), labels % side, 1] = 200
    model = InvariantClustering(n_clusters, features="pixels")
    model.labels_, model.n_clusters_, model.n_clusters_range_ = labels, n_clusters, (n_clusters, n_clusters)
    model.confidences_ = np.where(labels >= 0, rng.random(n), 0.0)
    model.copies_ = np.arange(n)
    angle = rng.uniform(-np.pi, np.pi, n)
    model.poses_ = np.tile(np.eye(3), (n, 1, 1))
    model.poses_[:, 0, 0] = model.poses_[:, 1, 1] = np.cos(angle)
    model.poses_[:, 0, 1], model.poses_[:, 1, 0] = np.sin(angle), -np.sin(angle)
    members = [np.flatnonzero(labels == k) for k in range(n_clusters)]
    model.exemplars_ = np.array([each[0] for each in members])
    neighbours = np.empty((n, 3), np.int64)
    for each in members:
        neighbours[each] = each[(np.arange(len(each))[:, None] + [1, 2, 3]) % len(each)]
    lonely = np.flatnonzero(labels < 0)
    neighbours[lonely] = lonely[:, None]
    weights = sparse.csr_array((np.ones(3 * n), (np.repeat(np.arange(n), 3), neighbours.ravel())), shape=(n, n))
    model.weights_ = sparse.csr_array(weights.maximum(weights.T))
    model.neighbours_ = Neighbours(neighbours, np.ones((n, 3)), np.tile(np.eye(3, dtype=np.float32), (n, 3, 1, 1)))
    model.means_ = np.stack([images[k] / 255 for k in model.exemplars_]).astype(np.float32)
    model.standard_errors_, model.symmetries_ = np.full_like(model.means_, 0.1), np.ones(n_clusters, np.int64)
    model.stability_, model.history_, model.n_iter_, model.light_, model._local_gain = 0.9, [], 1, "ignore", 0.0
    model.features_ = model.classes_ = model.probabilities_ = model.names_ = None
    model.references_ = np.zeros((0, 1, side, side), np.float16)
    model._reference_rows, model._n_fitted = np.zeros(0, np.int64), n
    model._typical_distances = np.ones(int((labels >= 0).sum()))
    model._is_vectors, model._has_channels = False, False
    model.range_ = PoseRange("se2", np.pi, 1.5)
    model.image_shape_, model.n_features_in_ = (side, side), side * side
    names = [f"plate {i // 1000}/image {i}.png" for i in range(n)]
    made = ImageSet(images, names, names, np.zeros(n, int), None, [], "as stored", (side, side), [])
    return made, model


def page_data(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    images, model = synthetic(397, 11, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "PAGE_IMAGES", 60)
        run = write_run(folder, folder / "input", images, model, RunSettings(clusters=5), "unpose cluster")
        run.write_page()
    return run


def test_the_page_of_many_images_shows_a_sample_and_says_so(sampled):
    run = sampled
    again = read_run(run.path)
    text = again.page()
    assert text == (run.path / "report.html").read_text(encoding="utf-8")
    data = page_data(text)
    shown = again.pictures["shown"]
    assert 50 <= len(shown) <= 60
    assert data["names"] == [run.names[i] for i in shown]
    assert data["labels"] == run.labels[shown].tolist()
    counts = np.bincount(run.labels[shown] + 1)
    assert counts[1:].min() >= 0.8 * counts[1:].max()  # equally many of each cluster
    assert data["totals"] == np.bincount(run.labels + 1).tolist()
    assert [each["size"] for each in data["clusters"]] == np.bincount(run.labels[run.labels >= 0]).tolist()
    assert f"a sample of {len(shown)} of the 397 images" in text
    assert "397 images, 5 groups" in text
    assert all(run.labels[shown[each["exemplar"]]] == c for c, each in enumerate(data["clusters"]))


def test_the_table_of_many_images_has_all_of_them(sampled):
    run = sampled
    lines = (run.path / "labels.csv").read_text().splitlines()
    assert len(lines) == 1 + 397
    assert run.table() == "".join(run.table_lines())


def test_a_small_run_has_no_sample(run):
    assert "shown" not in run.pictures
    assert page_data(run.page())["totals"] is None


def test_a_name_on_a_sampled_page_is_given_to_the_whole_group(sampled):
    run = sampled
    shown = run.pictures["shown"]
    table = "path,cluster,name,named,settled\n"
    for i in shown:
        named = run.labels[i] == 1
        table += f"{run.names[i]},{run.labels[i]},{'comb' if named else ''},{str(named).lower()},{str(named).lower()}\n"
    groups = read_names(table, run)
    comb = groups.names.index("comb")
    np.testing.assert_array_equal(groups.labels == comb, run.labels == 1)
    np.testing.assert_array_equal(groups.settled, run.labels == 1)


def test_a_group_whose_images_were_parted_on_a_sampled_page_keeps_the_others(sampled):
    run = sampled
    shown = run.pictures["shown"]
    inside = [i for i in shown if run.labels[i] == 2]
    table = "path,name\n" + "".join(f"{run.names[i]},odd\n" for i in inside[:3])
    table += "".join(f"{run.names[i]},even\n" for i in inside[3:])
    groups = read_names(table, run)
    odd = groups.names.index("odd")
    assert (groups.labels == odd).sum() == 3
    others = np.setdiff1d(np.flatnonzero(run.labels == 2), shown)
    assert all(groups.names[groups.labels[i]] == "" for i in others)


def test_a_damaged_sample_is_refused(sampled, tmp_path):
    shutil.copytree(sampled.path, tmp_path / "copy")
    pictures = sampled.pictures | {"shown": sampled.pictures["shown"][::-1].copy()}
    (tmp_path / "copy" / "pictures.safetensors").write_bytes(safetensors.numpy.save(pictures))
    with pytest.raises(ValueError, match="shown"):
        read_run(tmp_path / "copy")


_MILLION = """
import resource, sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_large import RunSettings, read_run, synthetic, write_run
n, folder = 1_000_000, Path(sys.argv[1])
images, model = synthetic(n, 8, 40)
def told(stage):
    print(stage, f"{time.process_time():.0f} s", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
told("begin")
run = write_run(folder, folder / "input", images, model, RunSettings(clusters=40), "unpose cluster")
told("write_run")
run.write_page()
told("page")
with (folder / "labels.csv").open() as table:
    print("rows", sum(1 for _ in table))
assert len(read_run(folder).names) == n
told("read_run")
"""


@pytest.mark.slow
def test_a_million_images(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _MILLION, str(tmp_path), str(__file__).rpartition("/")[0]], text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rows 1000001" in done.stdout
    assert (tmp_path / "report.html").stat().st_size < 15_000_000
    peak = max(float(line.split()[-2]) for line in done.stdout.splitlines() if line.endswith("GB"))
    assert peak < 8.0, done.stdout
