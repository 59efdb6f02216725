"""Runs of more images than a page can show: a sample on the page, everything in the tables, bounded memory."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from kit.images import posed_things
from unpose.cluster import InvariantClustering
from unpose.cluster.estimator import fit_within
from unpose.cluster.limits import Limits
from unpose.data import read_folder
from unpose.runs import RunSettings, read_names, read_run, write_run


def page_data(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """A run of 101 images of five things, one of them blank, whose page shows at most 40."""
    folder = tmp_path_factory.mktemp("sampled")
    images = posed_things(20, size=15, kinds=5, max_shift=1.0, noise=0.02).images
    np.save(folder / "input.npy", np.concatenate([images, np.zeros((1, 15, 15), np.float32)]))
    found = read_folder(folder / "input.npy")
    model = InvariantClustering(5, features="pixels", max_shift=2.0)
    fit_within(Limits(page_images=40), model, found.images)
    run = write_run(folder, folder / "input.npy", found, model, RunSettings(clusters=5), "unpose cluster")
    run.write_page()
    return run


def test_the_page_of_many_images_shows_a_sample_and_says_so(sampled):
    run = sampled
    again = read_run(run.path)
    text = again.page()
    assert text == (run.path / "report.html").read_text(encoding="utf-8")
    data = page_data(text)
    shown = again.pictures["shown"]
    assert 35 <= len(shown) <= 40
    assert data["names"] == [run.names[i] for i in shown]
    assert data["labels"] == run.labels[shown].tolist()
    counts = np.bincount(run.labels[shown] + 1)
    assert counts[1:].min() >= 0.8 * counts[1:].max()  # equally many of each cluster
    assert data["totals"] == np.bincount(run.labels + 1).tolist()
    assert [each["size"] for each in data["clusters"]] == np.bincount(run.labels[run.labels >= 0]).tolist()
    assert f"a sample of {len(shown)} of the 101 images" in text
    assert "101 images, 5 groups" in text
    assert all(run.labels[shown[each["exemplar"]]] == c for c, each in enumerate(data["clusters"]))


def test_the_table_of_many_images_has_all_of_them(sampled):
    run = sampled
    lines = (run.path / "labels.csv").read_text().splitlines()
    assert len(lines) == 1 + 101
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


PROGRAM = Path(__file__).parent.parent / "programs" / "a_million_images.py"


@pytest.mark.slow
def test_a_million_images(tmp_path):
    done = subprocess.run([sys.executable, PROGRAM, tmp_path], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rows 1000001" in done.stdout
    assert (tmp_path / "report.html").stat().st_size < 15_000_000
    peak = max(float(line.split()[-2]) for line in done.stdout.splitlines() if line.endswith("GB"))
    assert peak < 8.0, done.stdout
