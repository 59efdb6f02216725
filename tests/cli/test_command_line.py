"""The real command in a subprocess: help, version, the reproductions, and what it says when it is called wrongly."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image


def unpose(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "unpose", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )


def test_help_teaches_and_answers_at_once():
    seconds = []
    for _ in range(5):
        before = os.times()
        done = unpose("--help")
        after = os.times()  # of the processor, not of the clock: other tests run beside this one
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert done.returncode == 0
    assert "Start here" in done.stdout
    assert "reproduce" in done.stdout
    assert "130 stopped by Ctrl-C" in done.stdout
    assert min(seconds) < 0.3  # the best of five: the rest is the machine's noise


def test_help_imports_nothing_heavy(quick_help):
    assert "Start here" in quick_help()


def test_version():
    import unpose as package

    assert unpose("--version").stdout.strip() == f"unpose {package.__version__}"


def test_the_command_installed_is_this_one():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="unpose")
    assert script.value == "unpose.cli:main"


def test_figure2_shows_blobs_drawn_together(tmp_path):
    done = unpose("reproduce", "figure2", "--out", str(tmp_path / "new" / "folder"), "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert "figure2.png" in done.stdout
    numbers = json.loads((tmp_path / "new" / "folder" / "numbers.json").read_text())
    spread = numbers["mean distance to the blob's mean, largest blob"]
    assert spread["4"] < 0.3 * spread["0"]
    picture = np.asarray(Image.open(tmp_path / "new" / "folder" / "figure2.png"))
    assert picture.std() > 5


@pytest.mark.parametrize("with_data", [False, True])
def test_experiment2_finds_a_mean(tmp_path, with_data, real_data):
    if with_data:
        real_data("mnist.npz")
    done = unpose("reproduce", "experiment2", "--out", str(tmp_path), **({} if with_data else {"UNPOSE_DATA": ""}))
    assert done.returncode == 0, done.stderr
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["digits"] == ("MNIST" if with_data else "scikit-learn digits")
    assert numbers["objective"][-1] < 0.5 * numbers["objective"][0]
    assert np.shape(numbers["poses"]) == (10, 3, 3)
    assert (tmp_path / "experiment2.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "figure9", "--out", "x"], "figure9"),
        (["reproduce", "figure2"], "--out"),
        (["reproduce", "experiment1", "--out", "x", "--max-angle", "400"], "at most 180"),
        (["dance"], "dance"),
    ],
)
def test_wrong_calls_say_what_is_wrong(arguments, message, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "unpose", *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
