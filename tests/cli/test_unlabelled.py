"""``unpose train --unlabelled`` and ``unpose cluster --features``: the commands that learn and use an encoder."""

import json
import shutil
import tomllib

import numpy as np
import pytest

from kit.commands import unpose
from unpose.data import posed
from unpose.files import write_image
from unpose.train import load_network, read_notes, read_recipe, recipe_from, save_network

RECIPE = """
epochs = 2
batch_size = 16
keep = "last"
[network]
kind = "group_resnet"
group = "c4"
[network.options]
widths = [2, 3]
depths = [1, 1]
[poses]
max_angle = 180
[unlabelled]
loss = "vicreg"
steps = 3
expander = 8
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unlabelled") / "photos"
    folder.mkdir()
    plain = np.zeros((2, 15, 15), np.float32)
    plain[0, 3:12, 6:8] = plain[0, 10:12, 6:11] = plain[1, 4:11, 4:11] = 1
    turned = posed(plain, "se2", copies=16, max_shift=1.0, random_state=2).images
    for number, image in enumerate(np.clip(turned, 0, 1)):
        write_image(folder / f"{number:02d}.png", image)
    return folder


@pytest.fixture(scope="module")
def encoder(photos):
    recipe, folder = photos.parent / "tiny.toml", photos.parent / "encoder"
    recipe.write_text(RECIPE)
    result = unpose("train", photos, "--config", recipe, "-o", folder)
    assert result.status == 0, result.output
    assert "vectors of 20 numbers" in result.output
    assert "--features" in result.output
    return folder


def test_the_run_folder_has_the_encoder_and_what_was_measured(encoder):
    names = {path.name for path in encoder.iterdir()}
    assert names == {"card.md", "config.toml", "log.csv", "model.safetensors", "result.json", "state.safetensors"}
    table = json.loads((encoder / "result.json").read_text())
    assert table["images"] == 32
    assert table["vector"] == 20
    assert not table["has_collapsed"]
    card = (encoder / "card.md").read_text()
    (encoder / "card.md").unlink()  # as if the command was killed before its report
    assert unpose("train", "--resume", encoder).status == 0
    assert (encoder / "card.md").read_text() == card
    assert json.loads((encoder / "result.json").read_text()) == table
    again = unpose("train", "--resume", encoder)
    assert again.status == 2
    assert "holds a finished run" in again.output
    other = unpose("train", encoder.parent / "photos", "--unlabelled", "-o", encoder)
    assert "already holds a run" in other.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "--model", "ENCODER", "PHOTOS"],
        ["evaluate", "ENCODER", "PHOTOS"],
        ["adapt", "ENCODER", "--images", "PHOTOS", "--group", "c4", "-o", "OUT"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_encoder_has_no_classes_and_is_not_asked_for_one(arguments, encoder, photos, tmp_path):
    places = {"PHOTOS": photos, "ENCODER": encoder, "OUT": tmp_path / "out"}
    result = unpose(*(places.get(argument, argument) for argument in arguments))
    assert result.status == 2
    assert "outputs are no scores of classes; give a classifier" in result.words
    assert not (tmp_path / "out").exists()


def test_one_array_of_a_file_is_enough(tmp_path):
    np.savez(tmp_path / "several.npz", first=np.zeros((9, 12, 12)), second=np.zeros((9, 12, 12)))
    result = unpose("train", f"{tmp_path / 'several.npz'}::first", "--unlabelled", "--print")
    assert result.status == 0, result.output
    assert "[unlabelled]" in result.output


def test_the_group_is_found_from_the_images_and_minutes_bound_a_run(tmp_path):
    """With a recipe of one's own as without one, printed as trained."""
    things = np.zeros((66, 12, 12), np.float32)
    things[:, 2:10, 4] = things[:, 9, 4:9] = things[::2, 4:6, 7:9] = 1
    rng = np.random.default_rng(4)
    turned = np.stack([np.rot90(image, rng.integers(4)) for image in things]) + 0.1 * rng.random(things.shape)
    np.save(tmp_path / "turned.npy", turned.astype(np.float32))
    (tmp_path / "own.toml").write_text(RECIPE.replace('"c4"', '"auto"'))
    given = ("train", tmp_path / "turned.npy", "--device", "cpu")
    printed = [
        unpose(*given, *more, "--print")
        for more in (("--unlabelled", "--group", "auto"), ("--config", tmp_path / "own.toml"))
    ]
    own = (*given, "--config", tmp_path / "own.toml", "-o", tmp_path / "run", "--minutes")
    hasty, trained = unpose(*own, 1e-9), unpose(*own, 600)
    assert hasty.status == 2
    assert "one epoch takes about" in hasty.output
    for result in (*printed, trained):
        assert result.status == 0, result.output
    recipes = [recipe_from(tomllib.loads(result.out)) for result in printed]
    recipes.append(read_recipe(tmp_path / "run" / "config.toml"))
    assert len({recipe.network.group for recipe in recipes}) == 1
    assert recipes[0].network.group != "auto"
    assert recipes[2].epochs == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--unlabelled"], "needs a folder or file of images"),
        (["PHOTOS", "--unlabelled", "--quick"], "takes no --quick"),
        (["PHOTOS", "--minutes", "1"], "--minutes belongs to --unlabelled"),
        (["PHOTOS", "--unlabelled", "--group", "so3"], "group of the plane"),
        (["--resume", "ENCODER", "--epochs", "3"], "its own settings"),
    ],
)
def test_wrong_options_say_what_to_do(arguments, message, encoder, photos):
    places = {"PHOTOS": photos, "ENCODER": encoder}
    result = unpose("train", *(places.get(argument, argument) for argument in arguments))
    assert result.status == 2
    assert message in result.output


def test_too_few_images(photos, tmp_path):
    (tmp_path / "few").mkdir()
    for number in range(5):
        (tmp_path / "few" / f"{number}.png").write_bytes((photos / f"{number:02d}.png").read_bytes())
    result = unpose("train", tmp_path / "few", "--unlabelled", "--epochs", 2, "-o", tmp_path / "run")
    assert result.status == 2
    assert "at least 8 images" in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_cluster_learns_an_encoder_in_its_run_folder(photos, tmp_path, monkeypatch):
    def tiny_recipe(group, **options):
        return recipe_from(tomllib.loads(RECIPE) | {"seed": options["seed"]})

    monkeypatch.setattr("unpose.train.unlabelled_recipe", tiny_recipe)
    arguments = ("cluster", photos, "-o", tmp_path / "run", "-k", 2, "--features", "learn", "--device", "cpu")
    result = unpose(*arguments)
    assert result.status == 0, result.output
    assert "about" in result.output  # the estimate
    assert "compared by encoder" in result.output
    moved = shutil.copytree(tmp_path / "run", tmp_path / "moved")  # the run is complete: it finds its own encoder
    assert unpose("predict", moved, photos).status == 0
    assert unpose("update", moved, photos / "00.png").status == 0
    assert unpose("predict", moved, photos).status == 0
    made = tmp_path / "run" / "encoder" / "model.safetensors"
    model, when = made.read_bytes(), made.stat().st_mtime_ns
    again = unpose(*arguments, "--force")
    assert again.status == 0, again.output
    assert made.stat().st_mtime_ns == when  # the same images: not learnt again
    notes = {name: note for name, note in read_notes(made).items() if name != "learnt"}
    save_network(made, load_network(made), notes=notes)  # as for more images than a file lists
    model, when = made.read_bytes(), made.stat().st_mtime_ns
    assert unpose(*arguments, "--force").status == 0
    assert made.stat().st_mtime_ns == when
    fewer = tmp_path / "fewer"
    shutil.copytree(photos, fewer)
    (fewer / "00.png").unlink()
    other = unpose("cluster", fewer, *arguments[2:], "--force")
    assert other.status == 0, other.output
    assert made.read_bytes() != model
