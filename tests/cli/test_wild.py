"""``unpose cluster`` with features and with a few known classes."""

import csv
import io
import json

import pytest
from click.testing import CliRunner

from unpose.cli import main


def unpose(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_known_classes_give_probabilities(shapes, tmp_path):
    known = tmp_path / "known.csv"
    with known.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "class"])
        for kind in ("hook", "frame", "bracket"):
            names = sorted(path.name for path in (shapes / kind).iterdir() if path.name[0].isdigit())
            writer.writerows([[f"{kind}/{names[0]}", f"a {kind}"], [f"{kind}/{names[1]}", ""]])
    done = unpose("cluster", shapes, "-o", tmp_path / "run", "--labels", known, "--features", "pixels", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["clusters"] == 3
    rows = list(csv.DictReader(io.StringIO((tmp_path / "run" / "labels.csv").read_text())))
    assert len(rows) == 24
    assert all(row["probable_class"] == f"a {row['class']}" for row in rows)
    assert all(0 < float(row["probability"]) <= 1 for row in rows)


def test_labels_of_unknown_images_are_counted_and_a_path_is_shown(shapes, tmp_path):
    known = tmp_path / "known.csv"
    known.write_text("path,class\nbracket/016.png,hook\nmissing.png,frame\n")
    done = unpose("cluster", shapes, "-o", tmp_path / "run", "--labels", known)
    assert done.exit_code == 2
    assert f"1 path in {known} is not among the images, 'missing.png' first; paths are relative" in done.stderr
    assert "such as 'bracket/016.png'" in done.stderr


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
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
