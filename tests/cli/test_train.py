"""``unpose train``, ``evaluate``, ``predict`` and ``demo learn``: from a folder to predictions, and wrong calls."""

import csv
import io
import json
import os
import shutil
import signal
import sys
from unittest import mock

import numpy as np
import pytest
import safetensors
import safetensors.torch
from PIL import Image

from kit.commands import refused, started, table, unpose
from unpose.data import load
from unpose.nn import group_cnn
from unpose.train import load_network, named_recipe, read_recipe, recipe_names, save_network


def draw(folder, count, seed, name=""):
    """Bars and squares, so many of each, on noise."""
    rng = np.random.default_rng(seed)
    for label, shape in (("bar", (2, 9)), ("square", (5, 5))):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = rng.integers(0, 40, (13, 13), dtype=np.uint8)
            y, x = rng.integers(0, 14 - shape[0]), rng.integers(0, 14 - shape[1])
            pixels[y : y + shape[0], x : x + shape[1]] = 255
            Image.fromarray(pixels).save(folder / label / f"{name}{number}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Bars and squares, fifteen of each, and one file that is no picture."""
    folder = draw(tmp_path_factory.mktemp("data") / "photos", 15, seed=3)
    (folder / "bar" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    return folder


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    """A network that was trained on the folder, and what the command said."""
    out = tmp_path_factory.mktemp("runs") / "photos"
    done = unpose("train", photos, "--group", "c4", "--epochs", 4, "-o", out)
    assert done.status == 0, done.output
    return out, done


def test_from_a_folder_to_a_network(run, photos):
    out, done = run
    assert "the test images were used once" in done.out
    assert "not read: bar/torn.png" in done.err
    assert "22 images for training, 4 for validation, 4 for the test" in done.err
    assert "epoch   4 of 4" in done.err
    assert sorted(path.name for path in out.iterdir()) == [
        "card.md", "config.toml", "confusion.csv", "confusion.png", "curves.png", "log.csv", "model.safetensors",
        "quick.safetensors", "result.json", "state.safetensors",
    ]  # fmt: skip
    assert load_network(out / "model.safetensors").group.name == "c4"
    assert read_recipe(out / "config.toml").data.name == str(photos)
    assert np.asarray(Image.open(out / "curves.png")).std() > 5


def test_figures_by_class_stand_beside_two_baselines(run, photos):
    out, done = run
    assert "on this machine; --size, --epochs and --group change it, --quick takes seconds" in done.err
    assert "first answer: the quick classifier is right for" in done.err
    result = json.loads((out / "result.json").read_text())
    counts = np.array(result["test_by_class"]["confusion"])
    assert counts.sum(1).tolist() == [2, 2]
    assert counts.trace() / 4 == result["test_accuracy"]
    assert list(result["baselines"]) == ["quick classifier", "always bar"]
    assert result["baselines"]["always bar"]["test_accuracy"] == 0.5
    data, _, upright = measured(out / "quick.safetensors", photos)  # the baseline had the images of the network's test
    assert (data["images"], data["left_out"]) == (4, 26)
    assert upright["quick.safetensors"] == result["baselines"]["quick classifier"]["test_accuracy"]
    better = result["baselines"]["quick classifier"]["test_accuracy"] > result["test_accuracy"]
    assert (f"Better on these test images: quick classifier ({out / 'quick.safetensors'})" in done.out) == better
    card = (out / "card.md").read_text()
    for line in ("group_cnn c4", "quick classifier", "always bar", "recall", "precision"):
        assert line in done.out
        assert line in card
    matrix = table((out / "confusion.csv").read_text())
    assert [[int(row["taken for bar"]), int(row["taken for square"])] for row in matrix] == counts.tolist()
    assert np.asarray(Image.open(out / "confusion.png")).std() > 5


def test_quick_needs_no_network_and_its_file_is_read_by_every_command(photos, tmp_path):
    done = unpose("train", photos, "--quick", "--class-weights", "balanced", "-o", tmp_path / "q")
    assert done.status == 0, done.output
    assert sorted(path.name for path in (tmp_path / "q").iterdir()) == [
        "card.md", "config.toml", "confusion.csv", "confusion.png", "model.safetensors", "result.json",
    ]  # fmt: skip
    result = json.loads((tmp_path / "q" / "result.json").read_text())
    model = tmp_path / "q" / "model.safetensors"
    data, notes, upright = measured(model, photos)
    assert (data["images"], data["left_out"]) == (4, 26)
    assert "left out of the test" in notes[0]
    assert upright["model.safetensors"] == result["test_accuracy"]
    rows = table(unpose("predict", "--model", model, photos).out)
    assert sum(row["name"].startswith(row["class"]) for row in rows) > 20
    audited = unpose("audit", model, "--images", photos, "--count", 5, "--json").json
    assert audited["group"] == "d4"
    assert audited["holds"]
    assert "no --group" in unpose("train", photos, "--quick", "--group", "c4").words


def test_what_was_learned_about_symmetries_is_in_the_card(photos, tmp_path):
    recipe = tmp_path / "soft.toml"
    recipe.write_text(
        f"epochs = 1\n[data]\nname = {json.dumps(str(photos))}\n"
        '[network]\nkind = "group_cnn"\ngroup = "c1"\noptions = { width = 3, stages = [1] }\n'
        '[symmetry]\nmethod = "soft"\ngroups = ["d1", "so2"]\n'
    )
    result = unpose("train", "--config", recipe, "-o", tmp_path / "run")
    assert result.status == 0, result.output
    strengths = json.loads((tmp_path / "run" / "result.json").read_text())["symmetry"]
    assert set(strengths["mismatch"]) == {"d1", "so2"}
    for text in (result.out, (tmp_path / "run" / "card.md").read_text()):
        assert f"mismatch, so2: {strengths['mismatch']['so2']:.3g}" in text


def test_images_of_one_slide_stay_together(tmp_path):
    folder = tmp_path / "slides"
    for slide in range(6):
        draw(folder, 3, seed=slide, name=f"slide{slide}_")
    printed = unpose("train", folder, "--split-by", "slide[0-9]", "--size", 9, "--print").out
    assert 'split_by = "slide[0-9]"' in printed
    assert "size = 9" in printed
    done = unpose("train", folder, "--split-by", "slide[0-9]", "--quick", "-o", tmp_path / "out")
    assert done.status == 0, done.output
    assert "divided by slide[0-9]: 4 groups for training, 1 for validation, 1 for the test" in done.err
    for split_by, message in (
        ("slide", "1 group (slide)"),
        ("patient", "no name matches"),
        ("[", "regular expression"),
    ):
        wrong = unpose("train", folder, "--split-by", split_by, "--quick", "-o", tmp_path / "none")
        assert wrong.status == 2, wrong.output
        assert message in wrong.words


def test_evaluate_measures_every_angle_and_plots_a_second_network(run, photos, tmp_path):
    out, _ = run
    shutil.copy(out / "model.safetensors", tmp_path / "other.safetensors")
    done = unpose("evaluate", out / "model.safetensors", photos, "--split", "train", "--json", "--compare",
                  tmp_path / "other.safetensors", "-o", tmp_path / "new" / "angles.png")  # fmt: skip
    assert done.status == 0, done.output
    numbers = done.json
    line = numbers["accuracy"]["model.safetensors"]
    assert len(line) == 24 == len(numbers["degrees"])
    by_class = numbers["by_class"]["model.safetensors"]
    assert by_class["accuracy"] == pytest.approx(line[0])
    assert sum(each["images"] for each in by_class["classes"]) == numbers["data"]["images"]
    assert (tmp_path / "new" / "angles-confusion.png").exists()
    assert (tmp_path / "new" / "angles-confusion.csv").exists()
    assert numbers["accuracy"]["other.safetensors"] == line
    assert line[0] == line[6] == line[12] == line[18] == numbers["upright"]["model.safetensors"]  # quarter turns
    assert np.asarray(Image.open(tmp_path / "new" / "angles.png")).std() > 5
    told = unpose("evaluate", out / "model.safetensors", photos, "--split", "all")
    assert "all: 30 images" in told.out
    assert "upright" in told.out
    assert "rotated" in told.out
    assert "Always answering bar would be right for 50.00%" in told.out
    assert "recall" in told.out


def test_evaluate_matches_classes_by_name(run, photos, tmp_path):
    network = load_network(run[0] / "model.safetensors")
    model = save_network(tmp_path / "more.safetensors", network, classes=["square", "bar"])
    right, wrong = (
        unpose("evaluate", path, photos, "--split", "all", "--json").json["upright"][path.name]
        for path in (run[0] / "model.safetensors", model)
    )
    assert right == pytest.approx(1 - wrong)


# Images that were used for training ----------------------------------------------------------------------------------


def measured(*arguments):
    """What ``evaluate`` reports about the data, its notes, and the accuracy upright, without other angles."""
    with mock.patch("unpose.cli.commands.evaluate.sweep_angles", return_value=[0.0]):
        done = unpose("evaluate", *arguments, "--json")
    assert done.status == 0, done.output
    numbers = done.json
    assert numbers["notes"] == [line[6:] for line in done.err.splitlines() if line.startswith("note: ")]
    return numbers["data"], numbers["notes"], numbers["upright"]


def test_evaluate_on_the_training_folder_repeats_the_test_of_the_training(run, photos):
    data, notes, upright = measured(run[0] / "model.safetensors", photos)
    assert (data["images"], data["learnt"], data["left_out"]) == (4, 0, 26)
    assert notes == ["26 of 30 images were used for training or validation and are left out of the test"]
    assert upright["model.safetensors"] == json.loads((run[0] / "result.json").read_text())["test_accuracy"]


def test_evaluate_leaves_out_training_images_of_a_folder_that_has_grown(run, photos, tmp_path):
    grown = shutil.copytree(photos, tmp_path / "photos")
    draw(grown, 3, seed=5, name="a new one ")
    data, notes, _ = measured(run[0] / "model.safetensors", grown)
    assert (data["split"], data["images"], data["learnt"], data["left_out"]) == ("test", 10, 0, 26)
    assert "26 of 36 images were used for training or validation and are left out" in notes[0]
    told = unpose("evaluate", run[0] / "model.safetensors", grown)
    assert f"photos, test: 10 images; folder {grown}\n" in told.out  # not divided anew
    assert "note: 26 of 36 images" in told.err


def test_evaluate_uses_all_images_of_a_new_folder(run, tmp_path):
    data, notes, _ = measured(run[0] / "model.safetensors", draw(tmp_path / "new", 7, seed=11))
    assert (data["images"], data["learnt"], data["left_out"]) == (14, 0, 0)
    assert notes == ["none of the 14 images was used for training or validation; the test uses all of them"]


def test_evaluate_leaves_training_images_out_of_a_given_test_part(run, photos, tmp_path):
    for part, seed in (("train", 13), ("test", 17)):
        draw(tmp_path / "divided" / part, 5, seed=seed)
    data, notes, _ = measured(run[0] / "model.safetensors", tmp_path / "divided")
    assert (data["images"], data["left_out"], notes) == (10, 0, [])  # as divided there, not all of it
    for label in ("bar", "square"):
        for path in (photos / label).glob("[0-9]*.png"):
            shutil.copy(path, tmp_path / "divided" / "test" / label / f"old {path.name}")
    data, notes, _ = measured(run[0] / "model.safetensors", tmp_path / "divided")
    assert (data["images"], data["learnt"], data["left_out"]) == (14, 0, 26)
    assert "26 of 40 images were used for training" in notes[0]


@pytest.mark.parametrize(("split", "images", "learnt"), [("all", 30, 26), ("train", 22, 22), ("validation", 4, 4)])
def test_evaluate_counts_training_images_in_other_parts(split, images, learnt, run, photos):
    data, notes, _ = measured(run[0] / "model.safetensors", photos, "--split", split)
    assert (data["images"], data["learnt"], data["left_out"]) == (images, learnt, 0)
    assert notes == [f"{learnt} of {images} images were used for training or validation: this is not a test"]


def test_evaluate_refuses_a_test_on_training_images_only(run, photos, tmp_path):
    learnt = load(photos).train
    np.savez(tmp_path / "old.npz", x=learnt.images, y=learnt.labels, class_names=["bar", "square"])
    done = unpose("evaluate", run[0] / "model.safetensors", tmp_path / "old.npz")
    assert done.status == 2, done.output
    assert "all 22 images of old were used for training or validation" in done.words
    assert measured(run[0] / "model.safetensors", tmp_path / "old.npz", "--split", "all")[0]["learnt"] == 22


def test_evaluate_says_if_training_images_are_unknown(run, photos, tmp_path):
    bare = tmp_path / "bare.safetensors"
    save_network(bare, load_network(run[0] / "model.safetensors"), classes=["bar", "square"])
    for split, images in (("test", 4), ("all", 30)):
        data, notes, _ = measured(bare, photos, "--split", split)
        assert (data["images"], data["learnt"], data["left_out"]) == (images, None, 0)
        assert notes == [
            "whether bare.safetensors was trained on these images cannot be checked: its file does not list them"
        ]
    # A twin that says less: what the first learnt from is left out all the same.
    grown = draw(shutil.copytree(photos, tmp_path / "grown"), 9, seed=5, name="new ")
    data, notes, _ = measured(run[0] / "model.safetensors", grown, "--compare", bare)
    assert data["learnt"] is None
    assert data["images"] + data["left_out"] == 8  # as drawn anew
    assert data["left_out"] > 0
    assert len(notes) == 2


def test_evaluate_uses_the_whole_test_part_of_a_public_data_set(tmp_path):
    save_network(tmp_path / "bare.safetensors", group_cnn("c1", 1, 10, 20, width=2, stages=(1,)))
    data, notes, _ = measured(tmp_path / "bare.safetensors", "digits")
    assert (data["images"], data["learnt"], data["left_out"]) == (len(load("digits").test), None, 0)
    assert notes == []


def test_a_damaged_list_of_training_images_is_refused(run, photos, tmp_path):
    network = load_network(run[0] / "model.safetensors")
    save_network(tmp_path / "liar.safetensors", network, classes=["bar", "square"], notes={"learnt": "all of them"})
    done = unpose("evaluate", tmp_path / "liar.safetensors", photos)
    assert done.status == 2, done.output
    assert "list of training images" in done.words


@pytest.mark.slow
def test_evaluate_recognizes_training_images_on_another_canvas_and_in_colour(tmp_path):
    rng = np.random.default_rng(19)
    for label in ("one", "other"):
        (tmp_path / "mixed" / label).mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 256, (200, 300, 3), dtype=np.uint8)
            if number % 2:  # grey but for a little, which is read as grey
                pixels = (pixels[..., :1] // 2 + rng.integers(60, 63, (200, 300, 3), dtype=np.uint8)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "mixed" / label / f"{number}.png")
    out = tmp_path / "run"
    done = unpose("train", tmp_path / "mixed", "--group", "c1", "--epochs", 1, "--size", 128, "-o", out)
    assert done.status == 0, done.output
    assert load_network(out / "model.safetensors").description["image_size"] == [85, 128]
    assert measured(out / "model.safetensors", tmp_path / "mixed")[0]["left_out"] == 16
    grey = shutil.copytree(tmp_path / "mixed", tmp_path / "grey", ignore=shutil.ignore_patterns("[02468].png"))
    count = measured(out / "model.safetensors", grey, "--split", "all")[0]["learnt"]
    assert count > 4
    tall = rng.integers(0, 256, (190, 70, 3), dtype=np.uint8)
    Image.fromarray(tall).save(tmp_path / "mixed" / "one" / "tall.png")
    data, _, _ = measured(out / "model.safetensors", tmp_path / "mixed")
    assert (data["images"], data["left_out"]) == (5, 16)


# Predictions, and what goes wrong ------------------------------------------------------------------------------------


def test_predict_gives_probabilities_as_csv_and_json(run, photos, tmp_path):
    model = run[0] / "model.safetensors"
    done = unpose("predict", "--model", model, photos)
    assert done.status == 0, done.output
    rows = table(done.out)
    assert list(rows[0]) == ["name", "class", "bar", "square"]
    assert len(rows) == 30
    assert all(abs(float(row["bar"]) + float(row["square"]) - 1) < 1e-4 for row in rows)
    assert all(float(row[row["class"]]) >= 0.5 for row in rows)
    assert "not read: bar/torn.png" in done.err
    done = unpose("predict", "--model", model, photos, "--json", "-o", tmp_path / "new" / "answers.json")
    assert done.status == 0
    answers = json.loads((tmp_path / "new" / "answers.json").read_text())
    assert [image["name"] for image in answers["images"]] == [row["name"] for row in rows]
    assert answers["not_read"][0]["name"] == "bar/torn.png"


def test_audit_reads_a_trained_network(run):
    done = unpose("audit", run[0] / "model.safetensors", "--json", "--count", 2)
    assert done.json["group"] == "c4"


def test_names_of_files_and_classes_like_formulas_are_not_run_by_a_spreadsheet(run, photos, tmp_path):
    (tmp_path / "new").mkdir()
    shutil.copy(photos / "bar" / "0.png", tmp_path / "new" / "=1+1.png")
    model = tmp_path / "model.safetensors"
    save_network(model, load_network(run[0] / "model.safetensors"), classes=["=1+1", "@SUM(1)"])
    header, row = csv.reader(io.StringIO(unpose("predict", "--model", model, tmp_path / "new").out))
    assert header == ["name", "class", "'=1+1", "'@SUM(1)"]
    assert row[0] == "'=1+1.png"
    assert row[1] in header[2:]


@pytest.mark.slow  # a process that trains; tests/train stops a run without one
def test_ctrl_c_gives_the_command_that_continues(photos, tmp_path):
    out = tmp_path / "my run"
    process = started(
        "train", photos, "--group", "c1", "--epochs", 5000, "-o", out,
        # Tests that a shell started in the background inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert any(line.startswith("epoch") for line in process.stderr)  # waits for the first
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130, told
    assert f"Continue with: unpose train --resume '{out}'" in told
    recipe = (out / "config.toml").read_text()
    assert "epochs = 5000" in recipe
    done = unpose("train", "--resume", out, "--epochs", 3)
    assert done.status == 2
    assert "with its own settings" in done.words
    (out / "config.toml").write_text(recipe.replace("epochs = 5000", "epochs = 4999"))
    done = unpose("train", "--resume", out)
    assert done.status == 2
    assert "its recipe is" in done.words


def test_recipes_are_listed_printed_and_read_back(tmp_path, run, photos):
    listed = unpose("train", "--recipe", "list").out.splitlines()
    assert [line.split(maxsplit=1) for line in listed] == [[name, named_recipe(name).title] for name in recipe_names()]
    printed = unpose("train", "--recipe", "rotmnist-r4", "--group", "c8", "--seed", 3, "--print")
    (tmp_path / "mine.toml").write_text(printed.out)
    recipe = read_recipe(tmp_path / "mine.toml")
    assert recipe.network.group == "c8"
    assert recipe.seed == 3
    assert unpose("train", "--config", tmp_path / "mine.toml", "--print").out == printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of"),
        (["--recipe", "digits", "."], "2 given"),
        (["--recipe", "nothing"], "unknown recipe 'nothing'"),
        (["--recipe", "digits", "--group", "s03", "-o", "{tmp}/r"], "unknown group 's03'"),
        (["--recipe", "digits", "--group", "se2", "-o", "{tmp}/r"], "finite group"),
        (["--recipe", "digits", "--device", "abacus", "-o", "{tmp}/r"], "cannot be used here"),
        (["--recipe", "patch-camelyon", "-o", "{tmp}/r"], "unknown recipe"),
        (["--recipe", "pcam-modern", "--root", "{tmp}", "-o", "{tmp}/r"], "looked for camelyonpatch"),
        (["--recipe", "digits", "--epochs", "0"], "--epochs"),
        (["--recipe", "digits", "--begin", "{tmp}/gone", "-o", "{tmp}/r"], "models in this package"),
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
    assert done.status == 2, done.output
    assert message in done.words
    assert not (tmp_path / "r").exists()


def test_a_run_can_start_from_the_weights_of_another(run, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(run[0])
    done = unpose("train", photos, "--group", "c4", "--begin", "model.safetensors", "--epochs", 1, "-o", tmp_path / "r")
    assert done.status == 0, done.output
    assert "Kept epoch 1 of 1" in done.out
    # The file is found when the run is continued from another folder.
    assert read_recipe(tmp_path / "r" / "config.toml").network.begin == str(run[0] / "model.safetensors")
    rows = [(folder / "log.csv").read_text().splitlines()[1].split(",") for folder in (run[0], tmp_path / "r")]
    assert float(rows[1][2]) < float(rows[0][2])  # its first epoch is better than that of an untrained network


def test_a_report_that_was_interrupted_is_written_on_resuming(run, tmp_path):
    folder = shutil.copytree(run[0], tmp_path / "run")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    table = json.loads(whole["result.json"])
    (folder / "result.json").write_text(json.dumps({name: table[name] for name in table if name != "baselines"}))
    for name in ("card.md", "confusion.csv", "confusion.png"):
        (folder / name).unlink()
    done = unpose("train", "--resume", folder)
    assert done.status == 0, done.output
    for name in ("card.md", "confusion.csv", "result.json", "model.safetensors", "log.csv"):
        assert (folder / name).read_bytes() == whole[name], name


def test_a_run_is_not_overwritten(run, photos):
    before = (run[0] / "model.safetensors").read_bytes()
    refused(
        unpose("train", photos, "--group", "c4", "--epochs", 1, "-o", run[0]),
        "already holds a run", f"--resume {run[0]} to continue it, or --force to replace it",
    )  # fmt: skip
    done = unpose("train", "--resume", run[0])
    assert done.status == 2
    assert "finished run" in done.words
    assert (run[0] / "model.safetensors").read_bytes() == before


def test_damaged_and_unsuitable_networks_are_refused(run, photos, tmp_path):
    (tmp_path / "torn.safetensors").write_bytes((run[0] / "model.safetensors").read_bytes()[:-7])
    (tmp_path / "notes.txt").write_text("words")
    for path in (tmp_path / "torn.safetensors", tmp_path / "notes.txt", run[0] / "state.safetensors"):
        for arguments in (["evaluate", path, photos], ["predict", "--model", path, photos]):
            done = unpose(*arguments)
            assert done.status == 2, done.output
            assert "is not a network that unpose can read" in done.words
    done = unpose("evaluate", run[0] / "model.safetensors", "digits")
    assert done.status == 2
    assert "has the classes bar, square; digits has 0, 1" in done.words
    with safetensors.safe_open(run[0] / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["unpose"]) | {"classes": ["one", "two", "three"]}
    liar, weights = tmp_path / "liar.safetensors", safetensors.torch.load_file(run[0] / "model.safetensors")
    safetensors.torch.save_file(weights, liar, metadata={"unpose": json.dumps(about)})
    done = unpose("predict", "--model", liar, photos)
    assert "3 names of classes for 2 outputs" in done.words


@pytest.mark.slow
def test_demo_learn_ends_with_the_picture(tmp_path):
    done = unpose("demo", "learn", "--epochs", 1, "-o", tmp_path / "demo")
    assert done.status == 0, done.output
    assert "eight rotations (c8)" in done.out
    assert "translations only (c1)" in done.out
    assert np.asarray(Image.open(tmp_path / "demo" / "learn.png")).std() > 5


def test_a_configuration_stores_the_absolute_path_of_the_images(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(photos.parent)
    printed = unpose("train", photos, "--epochs", 1, "--print").out
    (tmp_path / "one.toml").write_text(printed.replace(str(photos), photos.name))
    done = unpose("train", "--config", tmp_path / "one.toml", "-o", tmp_path / "out")
    assert done.status == 0, done.output
    assert read_recipe(tmp_path / "out" / "config.toml").data.name == str(photos)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux allows names that are not UTF-8")
def test_a_folder_whose_name_is_not_utf8_is_refused(photos, tmp_path):
    odd = tmp_path / os.fsdecode(b"\xff")
    odd.symlink_to(photos)  # a link is followed to a name that can be written
    assert unpose("train", odd, "--print").status == 0
    odd.unlink()
    odd.mkdir()
    done = unpose("train", odd, "-o", tmp_path / "out")
    assert done.status == 2
    assert "is not UTF-8, as config.toml must be; rename it" in done.words
