"""The items of the group self-attention paper: laws hold, cells of the tables are the paper's, small runs end."""

import json
import math
import tomllib

import numpy as np
import pytest

from kit.commands import unpose
from unpose.nn import create_network
from unpose.reproduce import Settings, find
from unpose.reproduce.published_networks import TABLE1, TABLE2
from unpose.train import recipe_from, recipe_toml


def test_every_statement_of_the_propositions_holds():
    rows = find("propositions").outcome().table
    for row in rows:
        if row["the paper says"] == "commutes":
            assert row["error"] < 1e-10, row
        else:
            assert row["error"] > 1e-2, row
    assert {row["proposition"] for row in rows} == {"4.1", "4.2", "4.3", "5.1", "5.2"}


@pytest.mark.slow
def test_equation_16_is_equivariant_with_invariant_relative_elements_only():
    for row in find("equation16").outcome().table:
        assert max(row["lifting (14)"], row["relative"], row["paper"]) < 1e-12
        assert row["printed (16)"] > 0.05
        assert 1e-12 < row["printed, usual initial weights"] < row["printed (16)"]
        assert row["released code"] == "" or row["released code"] > 0.05


@pytest.mark.slow
def test_convolution_equals_attention_and_the_measure_belongs_inside():
    assert all(row["difference, interior"] < 1e-10 for row in find("convolution").outcome().table)
    inside, outside = find("haar-measure").outcome().table
    assert inside["error"] < 0.1 < outside["error"]


def test_parameters_are_within_a_per_cent_of_the_papers():
    for row in find("architectures").outcome().table:
        printed = float(row["the paper"][:-1]) * {"K": 1e3, "M": 1e6}[row["the paper"][-1]]
        assert abs(row["parameters"] / printed - 1) < 0.01


@pytest.mark.parametrize("name", ["1", "2", "A1", "B1", "B2"])
def test_pictures_are_drawn_and_their_errors_are_rounding(name):
    outcome = find(f"attention-figure{name}").outcome()
    assert min(outcome.figure.size) > 100
    assert np.asarray(outcome.figure).std() > 10  # not blank
    if name == "1":
        assert max(outcome.numbers["errors"]) < 1e-12
    if name == "2":
        kernel, encoding = outcome.numbers["errors"].values()
        assert encoding < 1e-12 < 0.1 < kernel
    if name[0] == "B":
        assert outcome.numbers["error of the rotated encoding"] < 1e-12


@pytest.mark.parametrize("cells", [TABLE1, TABLE2], ids=["table1", "table2"])
def test_every_cell_has_a_recipe_that_survives_toml_and_builds(cells):
    for name, cell in cells.items():
        for settings in ("published", "ours"):
            if cell.absent:
                continue
            recipe = cell.recipe(settings, "relative")
            assert recipe.network.group == cell.group
            assert recipe_from(tomllib.loads(recipe_toml(recipe))) == recipe, name
    windows = [cell.recipe("published", "relative").network.options["config"] for cell in TABLE1.values()]
    assert [config if isinstance(config, str) else config["window"] for config in windows] == [
        3, "rotated-mnist", 7, 9, 11, 15, 19, 23, 0,
    ]  # fmt: skip


def test_the_global_cell_of_table_1_is_global_attention():
    part = TABLE1["r4-28x28"].recipe("published", "relative").network
    network = create_network(part.kind, group=part.group, in_channels=1, n_classes=10, image_size=28, **part.options)
    assert network.features[1].window is None


def test_published_settings_are_those_of_the_appendix():
    recipe = TABLE2["rotmnist-r16"].recipe("published", "relative")
    assert (recipe.epochs, recipe.batch_size, recipe.optimizer.name, recipe.optimizer.learning_rate) == (
        300, 8, "adam", 0.001,
    )  # fmt: skip
    recipe = TABLE2["cifar10-z2m"].recipe("published", "relative")
    assert (recipe.epochs, recipe.batch_size, recipe.optimizer.name, recipe.network.group) == (350, 24, "sgd", "d1")
    assert TABLE2["pcam-r4m"].recipe("published", "relative").epochs == 100
    assert TABLE2["rotmnist-r4"].recipe("published", "paper").network.options["config"]["mode"] == "paper"


def hours(table, **options):
    """Estimated hours of the cells of a table, NaN for those that are not estimated."""
    rows = find(table).outcome(cell="all", **options).table
    texts = {row["cell"]: row["H200 hours, estimated"] for row in rows}
    return {cell: float("nan" if text in ("", "not estimated") else text) for cell, text in texts.items()}


def test_cost_grows_with_rotations_window_and_the_papers_sum():
    ours, published, paper = hours("table2", recipe="ours"), hours("table2"), hours("table2", mode="paper")
    for found in (ours, published):
        turns = [found[f"rotmnist-{name}"] for name in ("z2", "r4", "r8", "r12", "r16")]
        assert turns == sorted(turns)
    assert paper["rotmnist-r4"] > published["rotmnist-r4"]
    assert math.isnan(published["rotmnist-r4-cnn"])
    windows = list(hours("table1", recipe="ours").values())
    assert windows == sorted(set(windows))


def test_the_list_of_cells_and_absent_rows_train_nothing():
    listed = find("table2").outcome(cell="all")
    assert {row["cell"] for row in listed.table} == set(TABLE2)
    absent = find("table2").outcome(cell="rotmnist-alpha-r4-cnn")
    assert "attentive group convolution" in absent.findings[0]


def test_the_command_ends_in_a_table_and_numbers(tmp_path):
    answer = unpose("reproduce", "table2", "--cell", "all", "-o", tmp_path)
    assert answer.status == 0, answer.output
    assert "| rotmnist-r16 | 97.66 |" in answer.out
    assert set(json.loads((tmp_path / "numbers.json").read_text())["cells"]) == set(TABLE2)
    assert (tmp_path / "table2.md").read_text().startswith("| cell |")


@pytest.mark.slow
def test_a_small_run_says_that_it_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOSE_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    outcome = find("table2").outcome(Settings(folder=tmp_path), cell="rotmnist-z2-cnn")
    assert "stand in for it" in outcome.findings[0]
    assert outcome.findings[1].startswith("This is the small run")
    assert 0 <= outcome.numbers["cells"]["rotmnist-z2-cnn"]["results"][0]["test_accuracy"] <= 1
    assert not list(tmp_path.iterdir())  # a small run leaves no files behind


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["pcam-r4m", "cifar10-z2m", "rotmnist-r16"])
def test_small_runs_without_data_use_a_stand_in(cell, tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOSE_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    outcome = find("table2").outcome(Settings(folder=tmp_path), cell=cell)
    assert "stand in" in outcome.findings[0]
