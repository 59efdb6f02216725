"""The page that a fitted estimator writes: that of a run, without what only a run folder has."""

import copy
import json
import re

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import unpose
from unpose.cluster import InvariantClustering
from unpose.cluster.estimator import fit_within
from unpose.cluster.limits import Limits
from unpose.data import posed
from unpose.files import write_image
from unpose.runs import RunSettings, write_run

OF_A_RUN = ("run folder", "unpose apply", "unpose export", "labels.csv lists")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two things, seven copies each at random poses, as files."""
    things = np.zeros((2, 23, 21), np.float32)
    things[0, 4:18, 9:12] = things[0, 4:7, 9:16] = 1
    things[1, 5:17, 5:16] = 1
    things[1, 9:13, 9:16] = 0
    folder = tmp_path_factory.mktemp("things")
    for k, image in enumerate(posed(things, copies=7, max_shift=2.0, random_state=2).images):
        write_image(folder / f"{k:02d} <b>.png", image)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return InvariantClustering(2, max_shift=4.0).fit(folder)


def shown(text):
    """The data of a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def words(text):
    """What a reader may see: all but the script and the data."""
    return re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_it_is_the_page_of_a_run_but_for_the_run(folder, model, tmp_path):
    file = model.report(folder, tmp_path / "groups.html", title="things <b>")
    text = file.read_text(encoding="utf-8")
    assert file == tmp_path / "groups.html"
    assert list(tmp_path.iterdir()) == [file]
    assert "14 images, 2 groups." in text
    assert "What kinds are there in things &lt;b&gt;, if pose does not count?" in text
    assert "InvariantClustering(max_shift=4.0, n_clusters=2).fit(images)" in words(text)
    assert not [each for each in OF_A_RUN if each in words(text)]
    assert "Save labels.csv" in text
    (tmp_path / "run").mkdir()
    run = write_run(tmp_path / "run", folder, unpose.read_folder(folder), model, RunSettings(), "unpose cluster")
    assert all(each in words(run.page()) for each in OF_A_RUN[:2])
    mine, of_run = shown(text), shown(run.page())
    assert mine["names"] == sorted(path.name for path in folder.iterdir())
    differing = {"run", "inRun", "settled", "groupNames"}
    assert {key for key in mine if mine[key] != of_run[key]} <= differing
    sheets = r'id="(sheet-.*?)">(.*?)<'
    assert dict(re.findall(sheets, text)) == dict(re.findall(sheets, run.page()))


def test_names_are_those_of_the_files_wherever_they_are_known(folder, model, tmp_path):
    found = unpose.read_folder(folder)
    model.save(tmp_path)
    loaded, batch = InvariantClustering.load(tmp_path), torch.from_numpy(found.images)[:, None]
    numbers = [str(k) for k in range(14)]
    for estimator, images, names in (
        (model, found.images, found.names), (loaded, folder, found.names), (loaded, found, found.names),
        (loaded, found.images, numbers), (loaded, list(found.images), numbers),
    ):  # fmt: skip
        text = estimator.report(images, tmp_path / "page.html").read_text(encoding="utf-8")
        assert shown(text)["names"] == names
    of_torch = InvariantClustering(2, max_shift=4.0).fit(batch)
    assert "14 images, 2 groups." in of_torch.report(batch, tmp_path / "page.HTM").read_text(encoding="utf-8")


def test_images_that_were_added_are_on_the_page(folder, model, tmp_path):
    found = unpose.read_folder(folder)
    own = posed(np.pad(np.ones((1, 11, 9)), ((0, 0), (6, 6), (6, 6))), copies=3, max_shift=2.0).images
    added = [tmp_path / f"new {k}.png" for k in range(3)]
    for path, image in zip(added, own, strict=True):
        write_image(path, image)
    more = unpose.read_folder(added)
    everything = np.concatenate([found.images, more.images])
    for new, names in ((added, more.names), (more.images, ["14", "15", "16"])):
        grown = copy.deepcopy(model).partial_fit(new)
        assert grown.names_ == [*found.names, *names]
        text = grown.report(everything, tmp_path / "page.html").read_text(encoding="utf-8")
        assert shown(text)["names"] == [*found.names, *names]
    unnamed = InvariantClustering(2, max_shift=4.0).fit(found.images).partial_fit(added)
    assert unnamed.names_ == [*(str(k) for k in range(14)), *more.names]


def test_what_a_folder_held_is_fitted_with_its_names(folder, model):
    found = unpose.read_folder(folder)
    again = InvariantClustering(2, max_shift=4.0).fit(found)
    assert again.names_ == found.names == model.names_
    assert np.array_equal(again.labels_, model.labels_)
    assert np.array_equal(again.predict(found), model.labels_)


def test_more_images_than_a_page_holds(folder, tmp_path):
    model = fit_within(Limits(page_images=9), InvariantClustering(2, max_shift=4.0), folder)
    text = model.report(folder, tmp_path / "page.html").read_text(encoding="utf-8")
    assert 6 <= len(shown(text)["names"]) <= 9
    assert f"a sample of {len(shown(text)['names'])} of the 14 images" in text
    assert "14 images, 2 groups." in text
    assert not [each for each in (*OF_A_RUN, "given to the whole group") if each in words(text)]


def test_what_cannot_be_a_page_is_refused_and_nothing_is_written(folder, model, tmp_path):
    images = unpose.read_folder(folder).images
    for path in (tmp_path, tmp_path / "photo.png"):
        with pytest.raises(ValueError, match=r"path must be the name of an HTML file, such as groups\.html"):
            model.report(images, path)
    with pytest.raises(ValueError, match="X must be the 14 images that were fitted, got 13"):
        model.report(images[1:], tmp_path / "page.html")
    with pytest.raises(ValueError, match="of the shape that was fitted"):
        model.report(images[:, 1:], tmp_path / "page.html")
    with pytest.raises(NotFittedError):
        InvariantClustering().report(images, tmp_path / "page.html")
    vectors = np.random.default_rng(0).random((12, 3))
    with pytest.raises(ValueError, match="fitted to vectors, which have no page"):
        InvariantClustering(2).fit(vectors).report(vectors, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
