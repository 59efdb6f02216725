"""Help, version, the figures of the paper, and the messages for wrong calls."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from unpose.cli import _COMMANDS, commands, main


def unpose(*arguments, **environment):
    return CliRunner(env=environment).invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", ["", *_COMMANDS, "demo learn"])
def test_help_explains_ends_with_examples_and_imports_nothing_slow(name, quick_help):
    text = quick_help(*name.split())
    assert "\n  Examples:\n" in text
    examples = text.rpartition("Examples:\n")[2]
    assert examples.count(f"unpose {name}".rstrip()) >= 2  # the examples come last
    if not name:
        assert "130 stopped by Ctrl-C" in " ".join(text.split())


def test_every_command_has_a_file_of_its_name():
    files = {path.stem for path in Path(commands.__file__).parent.glob("*.py")}
    assert files == {*_COMMANDS, "__init__"}


@pytest.mark.parametrize(
    ("typed", "answer"), [("clusters", "did you mean cluster?"), ("dance", "the commands are demo, cluster")]
)
def test_a_mistyped_command_gets_a_suggestion(typed, answer):
    done = CliRunner().invoke(main, [typed])
    assert done.exit_code == 2
    assert f"There is no command {typed!r}; {answer}" in done.stderr


def test_version():
    import unpose as package

    done = subprocess.run([sys.executable, "-m", "unpose", "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == f"unpose {package.__version__}"


def test_the_command_installed_is_this_one():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="unpose")
    assert script.value == "unpose.cli:main"


def test_figure2_shows_blobs_drawn_together(tmp_path):
    done = unpose("reproduce", "figure2", "--out", tmp_path / "new" / "folder", "--seed", 1)
    assert done.exit_code == 0, done.output
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
    done = unpose("reproduce", "experiment2", "--out", tmp_path, **({} if with_data else {"UNPOSE_DATA": ""}))
    assert done.exit_code == 0, done.output
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
    ],
)
def test_wrong_calls_say_what_is_wrong(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = unpose(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
