"""`unpose reproduce`: the list, the figures, and the messages for wrong calls."""

import json

import numpy as np
import pytest
from PIL import Image

from kit.commands import unpose
from unpose.reproduce import ITEMS, Outcome, find


def test_the_list_has_a_command_that_exists_for_every_item():
    done = unpose("reproduce", "--list")
    assert done.status == 0, done.output
    for item in ITEMS:
        (line,) = [line for line in done.out.splitlines() if f" unpose reproduce {item.name} " in line]
        assert item.reference in line
        assert item.title in line
        assert unpose("reproduce", item.name, "--help").status == 0


def test_names_are_unique_and_small_versions_take_at_most_two_minutes():
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    assert max(item.seconds for item in ITEMS) <= 120


def test_a_table_is_written_and_printed(tmp_path):
    done = unpose("reproduce", "haar-measure", "-o", tmp_path)
    assert done.status == 0, done.output
    written = (tmp_path / "haar-measure.md").read_text()
    assert written in done.out
    assert "which is the error of sampling" in done.out
    assert json.loads((tmp_path / "numbers.json").read_text())["item"] == "haar-measure"


def test_a_table_is_markdown():
    table = [{"where": "here", "error": 0.25}, {"where": "there", "error": 1e-9}]
    assert Outcome({}, [], table=table).markdown() == "| where | error |\n|---|---|\n| here | 0.25 |\n| there | 1e-09 |"


def test_an_unknown_option_from_python_is_refused():
    with pytest.raises(ValueError, match="figure2 has no option colour; it has none"):
        find("figure2").outcome(colour="red")


def test_figure2_shows_blobs_drawn_together(tmp_path):
    done = unpose("reproduce", "figure2", "--out", tmp_path / "new" / "folder", "--seed", 1)
    assert done.status == 0, done.output
    assert "figure2.png" in done.out
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
    assert done.status == 0, done.output
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["digits"] == ("MNIST" if with_data else "scikit-learn digits")
    assert numbers["objective"][-1] < 0.5 * numbers["objective"][0]
    assert np.shape(numbers["poses"]) == (10, 3, 3)
    assert (tmp_path / "experiment2.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["figure1", "kernel", "contraction", "uniqueness", "experiment1"])
def test_items_of_invariant_attention_run_and_end_in_a_picture(name, tmp_path):
    done = unpose("reproduce", name, "-o", tmp_path)
    assert done.status == 0, done.err
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
    assert done.status == 2
    assert message in done.err
    assert not list(tmp_path.iterdir())
