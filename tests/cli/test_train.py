"""``unpose train``, ``evaluate``, ``predict`` and ``demo learn``: the whole way from a folder to answers, and abuse."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from unpose.cli import learn_demo, main
from unpose.data import Dataset, load
from unpose.train import load_network, read_recipe, recipe_names, save_network

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def unpose(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def words(text):
    return " ".join(text.replace("│", " ").split())


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Bars and squares, fifteen of each, and one file that is no picture."""
    rng = np.random.default_rng(3)
    folder = tmp_path_factory.mktemp("data") / "photos"
    for label, shape in (("bar", (2, 9)), ("square", (5, 5))):
        (folder / label).mkdir(parents=True)
        for number in range(15):
            pixels = rng.integers(0, 40, (13, 13), dtype=np.uint8)
            y, x = rng.integers(0, 14 - shape[0]), rng.integers(0, 14 - shape[1])
            pixels[y : y + shape[0], x : x + shape[1]] = 255
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    (folder / "bar" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    return folder


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    """The real command on a folder."""
    out = tmp_path_factory.mktemp("runs") / "photos"
    done = subprocess.run(
        [sys.executable, "-m", "unpose", "train", str(photos), "--group", "c4", "--epochs", "4", "-o", str(out)],
        capture_output=True, text=True, timeout=240, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out, done


def test_from_a_folder_to_a_network(run, photos):
    out, done = run
    assert "the test images were used once" in done.stdout
    assert "not read: bar/torn.png" in done.stderr
    assert "22 images to train, 4 to validate, 4 to test" in done.stderr
    assert "epoch   4 of 4" in done.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "config.toml", "curves.png", "log.csv", "model.safetensors", "result.json", "state.safetensors",
    ]  # fmt: skip
    assert load_network(out / "model.safetensors").group.name == "c4"
    assert read_recipe(out / "config.toml").data.name == str(photos)
    assert np.asarray(Image.open(out / "curves.png")).std() > 5


def test_evaluate_sweeps_the_angles_and_draws_a_twin_beside(run, photos, tmp_path):
    out, _ = run
    shutil.copy(out / "model.safetensors", tmp_path / "other.safetensors")
    done = unpose("evaluate", out / "model.safetensors", photos, "--split", "train", "--json", "--twin",
                  tmp_path / "other.safetensors", "-o", tmp_path / "new" / "angles.png")  # fmt: skip
    assert done.exit_code == 0, done.output
    numbers = json.loads(done.stdout)
    line = numbers["accuracy"]["model.safetensors"]
    assert len(line) == 24 == len(numbers["degrees"])
    assert numbers["accuracy"]["other.safetensors"] == line
    assert line[0] == line[6] == line[12] == line[18] == numbers["upright"]["model.safetensors"]  # quarter turns
    assert np.asarray(Image.open(tmp_path / "new" / "angles.png")).std() > 5
    told = unpose("evaluate", out / "model.safetensors", photos, "--split", "all")
    assert "all: 30 images" in told.stdout
    assert "upright" in told.stdout
    assert "turned" in told.stdout


def test_evaluate_knows_classes_by_their_names(run, photos, tmp_path):
    network = load_network(run[0] / "model.safetensors")
    model = save_network(tmp_path / "more.safetensors", network, classes=["square", "bar"])
    right, wrong = (
        json.loads(unpose("evaluate", path, photos, "--split", "all", "--json").stdout)["upright"][path.name]
        for path in (run[0] / "model.safetensors", model)
    )
    assert right == pytest.approx(1 - wrong)


def test_predict_gives_probabilities_as_csv_and_json(run, photos, tmp_path):
    model = run[0] / "model.safetensors"
    table = unpose("predict", "--model", model, photos)
    assert table.exit_code == 0, table.output
    rows = list(csv.DictReader(io.StringIO(table.stdout)))
    assert list(rows[0]) == ["name", "class", "bar", "square"]
    assert len(rows) == 30
    assert all(abs(float(row["bar"]) + float(row["square"]) - 1) < 1e-4 for row in rows)
    assert all(float(row[row["class"]]) >= 0.5 for row in rows)
    assert "not read: bar/torn.png" in table.stderr
    done = unpose("predict", "--model", model, photos, "--json", "-o", tmp_path / "new" / "answers.json")
    assert done.exit_code == 0
    answers = json.loads((tmp_path / "new" / "answers.json").read_text())
    assert [image["name"] for image in answers["images"]] == [row["name"] for row in rows]
    assert answers["not_read"][0]["name"] == "bar/torn.png"


def test_audit_takes_what_train_made(run):
    done = unpose("audit", run[0] / "model.safetensors", "--json", "--count", 2)
    assert json.loads(done.stdout)["group"] == "c4"


def test_a_name_like_a_formula_is_not_run_by_a_spreadsheet(run, photos, tmp_path):
    shutil.copytree(photos / "bar", tmp_path / "new")
    (tmp_path / "new" / "0.png").rename(tmp_path / "new" / "=1+1.png")
    rows = list(
        csv.reader(io.StringIO(unpose("predict", "--model", run[0] / "model.safetensors", tmp_path / "new").stdout))
    )
    assert "'=1+1.png" in [row[0] for row in rows]


def test_stopped_by_the_keyboard_it_says_how_to_go_on(photos, tmp_path):
    out = tmp_path / "my run"
    process = subprocess.Popen(
        [sys.executable, "-m", "unpose", "train", str(photos), "--group", "c1", "--epochs", "5000", "-o", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    for _ in range(600):
        if (out / "state.safetensors").exists():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert f"Go on with: unpose train --resume '{out}'" in told
    recipe = (out / "config.toml").read_text()
    assert "epochs = 5000" in recipe
    done = unpose("train", "--resume", out, "--epochs", 3)
    assert done.exit_code == 2
    assert "as it was begun" in words(done.stderr)
    (out / "config.toml").write_text(recipe.replace("epochs = 5000", "epochs = 4999"))
    done = unpose("train", "--resume", out)
    assert done.exit_code == 2
    assert "its recipe is" in words(done.stderr)


def test_recipes_are_listed_printed_and_read_back(tmp_path, run, photos):
    assert unpose("train", "--recipe", "list").stdout.split() == recipe_names()
    printed = unpose("train", "--recipe", "rotmnist-r4", "--group", "c8", "--seed", 3, "--print")
    (tmp_path / "mine.toml").write_text(printed.stdout)
    recipe = read_recipe(tmp_path / "mine.toml")
    assert recipe.network.group == "c8"
    assert recipe.seed == 3
    assert unpose("train", "--config", tmp_path / "mine.toml", "--print").stdout == printed.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of"),
        (["--recipe", "digits", "."], "2 given"),
        (["--recipe", "nothing"], "unknown recipe 'nothing'"),
        (["--recipe", "digits", "--group", "so3", "-o", "{tmp}/r"], "unknown group 'so3'"),
        (["--recipe", "digits", "--group", "se2", "-o", "{tmp}/r"], "finite group"),
        (["--recipe", "digits", "--device", "abacus", "-o", "{tmp}/r"], "cannot be used here"),
        (["--recipe", "patch-camelyon", "-o", "{tmp}/r"], "unknown recipe"),
        (["--recipe", "pcam-r4", "--root", "{tmp}", "-o", "{tmp}/r"], "looked for camelyonpatch"),
        (["--recipe", "digits", "--epochs", "0"], "--epochs"),
        (["--recipe", "digits", "--begin", "{tmp}/gone", "-o", "{tmp}/r"], "no file is called"),
        (["--recipe", "digits", "--begin", "mnist-c8", "-o", "{tmp}/r"], "differs from the recipe's network in"),
        (["--config", "{tmp}/bad.toml"], "is not a recipe: unknown entry"),
        (["--resume", "{tmp}"], "holds no run"),
        (["{tmp}/one"], "one class only"),
        (["{tmp}/loose"], "in no class folder"),
        (["{tmp}/empty"], "no image files"),
        (["{tmp}/nowhere"], "does not exist"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_is_wrong_and_end_with_two(arguments, message, tmp_path, photos):
    (tmp_path / "bad.toml").write_text("epoch = 3")
    (tmp_path / "empty").mkdir()
    shutil.copytree(photos / "bar", tmp_path / "one" / "bar")
    shutil.copytree(photos / "bar", tmp_path / "loose")
    done = unpose("train", *(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert done.exit_code == 2, done.output
    assert message in words(done.stderr)
    assert not (tmp_path / "r").exists()


def test_a_run_begins_with_the_weights_of_another(run, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(run[0])
    done = unpose("train", photos, "--group", "c4", "--begin", "model.safetensors", "--epochs", 1, "-o", tmp_path / "r")
    assert done.exit_code == 0, done.output
    assert "Kept: epoch 1 of 1" in done.stdout
    # From wherever the run is gone on with, the file is found.
    assert read_recipe(tmp_path / "r" / "config.toml").network.begin == str(run[0] / "model.safetensors")
    rows = [(folder / "log.csv").read_text().splitlines()[1].split(",") for folder in (run[0], tmp_path / "r")]
    assert float(rows[1][2]) < float(rows[0][2])  # its first epoch is better than that of a network that knew nothing


def test_a_run_is_not_overwritten(run, photos):
    before = (run[0] / "model.safetensors").read_bytes()
    done = unpose("train", photos, "--group", "c4", "--epochs", 1, "-o", run[0])
    assert done.exit_code == 2
    assert "nothing is overwritten" in words(done.stderr)
    done = unpose("train", "--resume", run[0])
    assert done.exit_code == 2
    assert "finished run" in words(done.stderr)
    assert (run[0] / "model.safetensors").read_bytes() == before


def test_models_that_are_none_or_do_not_fit(run, photos, tmp_path):
    (tmp_path / "torn.safetensors").write_bytes((run[0] / "model.safetensors").read_bytes()[:-7])
    (tmp_path / "notes.txt").write_text("words")
    for path in (tmp_path / "torn.safetensors", tmp_path / "notes.txt", run[0] / "state.safetensors"):
        for arguments in (["evaluate", path, photos], ["predict", "--model", path, photos]):
            done = unpose(*arguments)
            assert done.exit_code == 2, done.output
            assert "is not a network that unpose can read" in words(done.stderr)
    done = unpose("evaluate", run[0] / "model.safetensors", "digits")
    assert done.exit_code == 2
    assert "tells apart bar, square; digits has 0, 1" in words(done.stderr)
    network = load_network(run[0] / "model.safetensors")
    liar = save_network(tmp_path / "liar.safetensors", network, classes=["one", "two", "three"])
    done = unpose("predict", "--model", liar, photos)
    assert "names 3 classes for 2 outputs" in words(done.stderr)


def test_demo_learn_ends_with_the_picture(tmp_path, monkeypatch):
    def a_few(name, root):
        whole = load(name, root)
        parts = (part.take(np.arange(0, len(part), 8)) for part in (whole.train, whole.validation, whole.test))
        return Dataset(whole.name, whole.source, whole.classes, *parts)

    monkeypatch.setattr(learn_demo, "load_data", a_few)
    done = unpose("demo", "learn", "--epochs", 1, "-o", tmp_path / "demo")
    assert done.exit_code == 0, done.output
    assert "eight rotations (c8)" in done.stdout
    assert "translations only (c1)" in done.stdout
    assert np.asarray(Image.open(tmp_path / "demo" / "learn.png")).std() > 5


@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "demo"])
def test_help_imports_nothing_heavy(name, quick_help):
    assert "Usage" in quick_help(name)
