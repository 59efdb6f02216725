"""``unpose discover``: the command, its page and its JSON."""

import json

import numpy as np
import pytest
from PIL import Image

from kit.commands import unpose


@pytest.fixture
def arrows(tmp_path):
    """Two classes that a half turn exchanges, in one folder each."""
    rng = np.random.default_rng(0)
    for name in ("up", "down"):
        (tmp_path / "arrows" / name).mkdir(parents=True)
        for k in range(50):
            picture = 40 * rng.random((18, 18))
            picture[4:14, 8:10] = picture[4:6, 5:13] = 255
            picture = picture if name == "up" else picture[::-1]
            Image.fromarray(picture.astype(np.uint8)).save(tmp_path / "arrows" / name / f"{k}.png")
    return tmp_path / "arrows"


def test_the_command_names_the_symmetry_and_writes_a_page(arrows, tmp_path):
    page = tmp_path / "page.html"
    words = ["discover", str(arrows), "--try", "mirror", "--try", "half turn", "-o", str(page)]
    result = unpose(*words)
    assert result.status == 0, result.output
    assert "half turn  does not hold" in result.output
    assert "--group d1" in result.output
    text = page.read_text()
    assert "down, like a moved up" in text or "up, like a moved down" in text
    assert "http" not in text.replace("http-equiv", "")


def test_json_without_labels(arrows):
    result = unpose("discover", str(arrows), "--try", "half turn", "--no-labels", "--json")
    found = result.json
    assert found["labelled"] is False
    assert found["findings"][0]["verdict"] == "holds"


def test_one_array_of_a_file_and_the_labels_beside_it(arrows, tmp_path):
    paths = sorted(arrows.rglob("*.png"))
    images, labels = np.stack([np.asarray(Image.open(path)) for path in paths]), [path.parent.name for path in paths]
    classes = np.array([4 + (label == "up") for label in labels])
    file = tmp_path / "arrows.npz"
    np.savez(file, x_train=images[:9], y_train=classes[:9], x_test=images, y_test=classes)
    words = ["discover", f"{file}::x_test", "--try", "half turn", "--json"]
    found = unpose(*words).json
    assert found["labelled"] is True
    assert found["findings"][0]["verdict"] == "does not hold"
    assert unpose(*words, "--no-labels").json["labelled"] is False
    assert "FILE::NAME" in unpose("discover", str(file)).output
    np.savez(tmp_path / "other.npz", x=images, y=classes / 7)  # no classes
    words[1] = str(tmp_path / "other.npz")
    assert unpose(*words).json["labelled"] is False


@pytest.mark.parametrize("words", [["predict", "RUN"], ["update", "RUN"], ["train"]])
def test_commands_that_read_images_take_one_array_of_a_file(words, arrows, tmp_path):
    """They go on to what is wrong besides: there is no run, and one array has no classes."""
    np.savez(tmp_path / "several.npz", first=np.zeros((9, 12, 12)), second=np.zeros((9, 12, 12)))
    given = [str(arrows) if word == "RUN" else word for word in words]
    result = unpose(*given, f"{tmp_path / 'several.npz'}::first")
    assert result.status == 2
    assert ("no run" if "RUN" in words else "neither a data set") in result.output


def test_what_could_not_be_read_is_said(arrows):
    for k in range(7):
        (arrows / "up" / f"broken{k}.png").write_bytes(b"no picture")
    result = unpose("discover", str(arrows), "--try", "mirror", "--json")
    assert "not read: up/broken0.png is not an image" in result.err
    assert "... and 2 more" in result.err
    assert len(result.json["not_read"]) == 7


def test_wrong_calls_say_what_is_possible(arrows, tmp_path):
    result = unpose("discover", str(arrows), "--try", "twist")
    assert result.status != 0
    assert "must be of turns" in result.output
    result = unpose("discover", str(arrows), "-o", str(tmp_path / "page.pdf"))
    assert "ends with .html" in result.output


@pytest.mark.slow  # compiles the search
def test_cluster_finds_its_group(arrows, tmp_path):
    words = ["cluster", str(arrows), "-o", str(tmp_path / "run"), "-k", "2", "--group", "auto", "--features", "pixels"]
    result = unpose(*words)
    assert result.status == 0, result.output
    assert "--group auto: half turn: holds" in result.err
    config = (tmp_path / "run" / "config.toml").read_text()
    assert "+mirror" in config
    assert 'group = "auto"' not in config


def test_train_finds_its_group_with_labels_and_needs_images(arrows, tmp_path):
    words = ["train", str(arrows), "--group", "auto", "-o", str(tmp_path / "run"), "--print"]
    result = unpose(*words)
    assert result.status == 0, result.output
    assert 'group = "d1"' in result.out
    result = unpose("train", "--recipe", "digits", "--group", "auto")
    assert result.status != 0


@pytest.mark.slow  # trains
def test_what_train_found_is_said_and_is_in_its_folder(arrows, tmp_path):
    words = ["train", str(arrows), "--group", "auto", "-o", str(tmp_path / "run"), "--epochs", "1"]
    result = unpose(*words)
    assert result.status == 0, result.output
    assert "--group auto: half turn: does not hold" in result.err
    table = json.loads((tmp_path / "run" / "result.json").read_text())
    assert table["group"] == "d1"
    assert any(line.startswith("mirror: holds") for line in table["group_found"])
    assert 'group = "d1"' in (tmp_path / "run" / "config.toml").read_text()


def test_audit_with_auto_needs_images():
    result = unpose("audit", "mnist-c8", "--group", "auto")
    assert result.status == 2
    assert "give --images" in result.output
