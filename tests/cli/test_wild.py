"""``unpose cluster`` with features and with a few known classes."""

import csv

import numpy as np
import pytest

from kit.commands import table, unpose
from unpose.data import drawings, posed


def test_known_classes_give_probabilities(shapes, tmp_path):
    known = tmp_path / "known.csv"
    with known.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "class"])
        for kind in ("hook", "frame", "bracket"):
            names = sorted(path.name for path in (shapes / kind).iterdir() if path.name[0].isdigit())
            writer.writerows([[f"{kind}/{names[0]}", f"a {kind}"], [f"{kind}/{names[1]}", ""]])
    done = unpose("cluster", shapes, "-o", tmp_path / "run", "--labels", known, "--features", "pixels", "--json")
    assert done.status == 0, done.output
    assert done.json["clusters"] == 3
    rows = table((tmp_path / "run" / "labels.csv").read_text())
    assert len(rows) == 24
    assert all(row["probable_class"] == f"a {row['class']}" for row in rows)
    assert all(0 < float(row["probability"]) <= 1 for row in rows)


def test_a_file_of_huge_pixels_is_rejected_alone(tmp_path):
    images = posed(drawings(26).mean(-1)[:3], copies=4, max_shift=1.5, random_state=3).images.clip(0, 1)
    (tmp_path / "in").mkdir()
    for number, image in enumerate(images):
        np.save(tmp_path / "in" / f"{number:02d}.npy", image)
    labels = []
    for run in ("without", "with"):
        out = tmp_path / run
        done = unpose("cluster", tmp_path / "in", "-o", out, "--clusters", 3, "--features", "pixels", "--json")
        assert done.status == 0, done.output
        labels.append((out / "labels.csv").read_text())
        np.save(tmp_path / "in" / "99.npy", np.float32(3e38) * images[0])
    assert labels[0] == labels[1]
    told = done.json
    (rejected,) = table((tmp_path / "with" / "rejected.csv").read_text())
    assert (told["images"], told["rejected"]) == (12, 1)
    assert rejected["path"] == "99.npy"
    assert "e+38, and beyond 1e+15 their squares overflow" in rejected["reason"]


def test_labels_of_unknown_images_are_counted_and_a_path_is_shown(shapes, tmp_path):
    known = tmp_path / "known.csv"
    known.write_text("path,class\nbracket/016.png,hook\nmissing.png,frame\n")
    done = unpose("cluster", shapes, "-o", tmp_path / "run", "--labels", known)
    assert done.status == 2
    assert f"1 path in {known} is not among the images, 'missing.png' first; paths are relative" in done.err
    assert "such as 'bracket/016.png'" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--labels", "missing.csv"], "--labels must be a CSV file"),
        pytest.param(["--features", "missing.pt2"], "missing.pt2", marks=pytest.mark.slow),
    ],
)
def test_bad_files_and_names_end_in_one_line(shapes, tmp_path, options, message):
    options = [options[0], str(tmp_path / options[1])]
    done = unpose("cluster", shapes, "-o", tmp_path / "run", *options)
    assert done.status == 2
    assert message in done.err
    assert "Traceback" not in done.err
