"""`unpose reproduce`: the list, the figures, and the messages for wrong calls."""

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from unpose.cli import main
from unpose.reproduce import ITEMS, Outcome, find


def unpose(*arguments, **environment):
    return CliRunner(env=environment).invoke(main, [str(argument) for argument in arguments])


def test_the_list_has_a_command_that_exists_for_every_item():
    done = unpose("reproduce", "--list")
    assert done.exit_code == 0, done.output
    for item in ITEMS:
        (line,) = [line for line in done.stdout.splitlines() if f" unpose reproduce {item.name} " in line]
        assert item.reference in line
        assert item.title in line
        assert unpose("reproduce", item.name, "--help").exit_code == 0


def test_names_are_unique_and_small_versions_take_at_most_two_minutes():
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    assert max(item.seconds for item in ITEMS) <= 120


def test_a_table_is_written_and_printed(tmp_path, monkeypatch):
    item = find("figure2")
    table = [{"where": "here", "error": 0.25}, {"where": "there", "error": 1e-9}]
    outcome = Outcome({"a": 1}, ["Said."], table=table)
    monkeypatch.setattr(
        "unpose.cli.commands.reproduce.find",
        lambda name: type(item)(name, item.paper, "T", "t", lambda settings: outcome, 1),
    )
    done = unpose("reproduce", "anything", "-o", tmp_path)
    assert done.exit_code == 0, done.output
    written = (tmp_path / "anything.md").read_text()
    assert written == "| where | error |\n|---|---|\n| here | 0.25 |\n| there | 1e-09 |\n"
    assert written in done.stdout
    assert "Said." in done.stdout
    assert json.loads((tmp_path / "numbers.json").read_text())["a"] == 1


def test_an_unknown_option_from_python_is_refused():
    with pytest.raises(ValueError, match="figure2 has no option colour; it has none"):
        find("figure2").outcome(colour="red")


def test_figure2_shows_blobs_drawn_together(tmp_path):
    done = unpose("reproduce", "figure2", "--out", tmp_path / "new" / "folder", "--seed", 1)
    assert done.exit_code == 0, done.output
    assert "figure2.png" in done.stdout
    numbers = json.loads((tmp_path / "new" / "folder" / "numbers.json").read_text())
    spread = numbers["mean distance to the blob's mean, largest blob"]
    assert spread["4"] < 0.3 * spread["0"]
    picture = np.asarray(Image.open(tmp_path / "new" / "folder" / "figure2.png"))
    assert picture.std() > 5


@pytest.mark.parametrize("with_data", [False, pytest.param(True, marks=pytest.mark.slow)])
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["figure1", "kernel", "contraction", "uniqueness", "experiment1"])
def test_items_of_invariant_attention_run_and_end_in_a_picture(name, tmp_path):
    command = [sys.executable, "-m", "unpose", "reproduce", name, "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert np.asarray(Image.open(tmp_path / f"{name}.png")).std() > 5
    assert json.loads((tmp_path / "numbers.json").read_text())["item"] == name
    table = tmp_path / f"{name}.md"
    assert table.exists() == (name in ("kernel", "contraction", "uniqueness"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "figure9", "--out", "x"], "'figure9'; did you mean figure"),
        (["reproduce", "zebra", "--out", "x"], "there are figure"),
        (["reproduce", "figure2"], "--out"),
        (["reproduce", "experiment1", "--out", "x", "--max-angle", "400"], "not in the range 0<=x<=180"),
    ],
)
def test_wrong_calls_say_what_is_wrong(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = unpose(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
