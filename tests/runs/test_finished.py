"""A finished run from Python: what is written is read back, and damaged runs are refused."""

import shutil

import numpy as np
import pytest

from unpose.cluster import InvariantClustering, apply_poses
from unpose.data import read_folder
from unpose.runs import RunError, RunSettings, read_run, write_run


def test_a_run_is_read_back(run, images):
    file, found = images
    again = read_run(str(run.path))
    assert again.names == found.names
    assert again.paths == [file] * 6
    assert again.source == file
    assert again.settings == run.settings
    assert sorted(np.bincount(again.labels)) == [3, 3]
    np.testing.assert_array_equal(again.poses, run.model.poses_)
    np.testing.assert_array_equal(again.confidences, run.model.confidences_)
    assert again.table() == (run.path / "labels.csv").read_text()
    assert again.page() == (run.path / "report.html").read_text(encoding="utf-8")
    assert again.summary()["images"] == 6


def test_the_means_are_those_of_the_aligned_images(run, images):
    aligned = apply_poses(images[1].images, run.poses)
    for label, mean in enumerate(run.means):
        expected = aligned[run.labels == label].mean(0)
        low, high = run.display_range
        assert np.abs(expected.clip(low, high) - mean).max() < 2 * (high - low) / 65535


def test_every_image_has_a_row(run):
    rows = run.rows()
    assert [row["path"] for row in rows] == run.names
    assert [row["cluster"] for row in rows] == run.labels.tolist()
    assert all(abs(row["angle"]) <= 180 for row in rows)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("images.json", b"{}"), ("images.json", b"[1, 2"), ("images.json", b'{"names": 3}'), ("model.json", b"{}"),
        ("model.safetensors", b"\x08"), ("pictures.safetensors", b"\xff" * 99), ("pictures.safetensors", None),
        ("config.toml", None),
    ],
)  # fmt: skip
def test_a_damaged_run_is_refused(run, tmp_path, file, content):
    folder = tmp_path / "copy"
    shutil.copytree(run.path, folder)
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    with pytest.raises(RunError, match="copy"):
        read_run(folder)


def test_a_run_of_train_is_told_from_a_folder_without_a_run(tmp_path):
    with pytest.raises(RunError, match="holds no run of `unpose cluster`"):
        read_run(tmp_path)
    for name in ("model.safetensors", "result.json"):
        (tmp_path / name).touch()
    with pytest.raises(RunError, match=r"holds a run of `unpose train`, .*`unpose predict --model .* IMAGES` uses"):
        read_run(tmp_path)


def test_copies_are_named_in_the_table_and_few_images_have_no_confidence(tmp_path):
    file = tmp_path / "stack.npy"
    kinds = np.stack([np.tri(13), np.eye(13)])
    np.save(file, kinds[[0, 1, 0]])
    images, settings = read_folder(file), RunSettings(clusters=2)
    model = InvariantClustering(2).fit(images.images)
    made = write_run(tmp_path, file, images, model, settings, "python")
    assert [row["copy_of"] for row in made.rows()] == [None, None, images.names[0]]
    assert made.table().splitlines()[3].endswith(f",{images.names[0]}")
    summary = made.summary()
    assert (summary["confidence"], summary["stability"], len(summary["remarks"])) == (None, None, 2)
    assert "average confidence" not in made.page()
    assert read_run(tmp_path).model.copies_.tolist() == [0, 1, 0]
