"""Networks that come along: every file loads, is what its card says, holds the audit, and reads digits it never saw."""

import importlib.util
import json
import math
import re
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from unpose.audit import equivariance_error
from unpose.data import CREDITS, NAMES, InputError, Split, credit, load
from unpose.images import Light, as_batch, onto_canvas
from unpose.nn import count_parameters, group_cnn
from unpose.train import (
    accuracy,
    accuracy_by_angle,
    cards,
    named_recipe,
    predict_logits,
    pretrained,
    pretrained_file,
    pretrained_names,
    read_notes,
    recipe_from,
    save_network,
    train,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ship():
    """The maintainers' script that makes a shipped file."""
    spec = importlib.util.spec_from_file_location("ship", ROOT / "benchmarks" / "ship.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits():
    """Scikit-learn's digits, another data set than any model learnt from, on the canvas of MNIST: 360 of them."""
    test = load("digits").test
    return Split(np.stack([onto_canvas(image, (28, 28)) for image in test.images]), test.labels)


@pytest.mark.parametrize("name", pretrained_names())
def test_the_file_is_what_its_card_says(name):
    model, network = cards.describe(pretrained_file(name)), pretrained(name)
    card = model.card
    assert not network.training
    assert model.parameters == count_parameters(network)
    assert len(model.classes) == network.description["n_classes"]
    assert model.size == pretrained_file(name).stat().st_size
    # Nothing but the weights the network needs: no optimizer, no average.
    weights = safetensors.torch.load_file(pretrained_file(name))
    assert weights.keys() == network.state_dict().keys()
    assert all(tensor.isfinite().all() for tensor in weights.values())
    # The command on the card, read back, is the recipe in the file.
    options = dict(re.findall(r"--(\w+) (\S+)", card.command))
    recipe = named_recipe(options.pop("recipe")).changed(
        group=options.get("group"),
        **{key: int(options[key]) for key in ("epochs", "seed") if key in options},
    )
    assert recipe == recipe_from(read_notes(pretrained_file(name))["recipe"])
    assert card.data
    assert (card.citation, card.licence) == (credit(recipe.data.name).citation, credit(recipe.data.name).licence)
    assert 1 <= card.chosen_epoch <= card.epochs == recipe.epochs
    assert 0 <= card.worst <= card.turned <= 1
    assert card.limits


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.slow if name in ("rotmnist-modern", "rotmnist-attention", "cifar10-d4") else ()
        )
        for name in pretrained_names()
    ],
)
def test_every_network_holds_the_audit(name, digits):
    network = pretrained(name)
    height, width = network.description["image_size"]
    images = np.stack([onto_canvas(image, (height, width)) for image in digits.images[:2]])
    inputs = as_batch(images, dtype=torch.float32).expand(-1, network.description["in_channels"], -1, -1)
    found = equivariance_error(network, inputs, network.group)
    card = cards.describe(pretrained_file(name)).card
    assert found.holds(), str(found)
    assert found.control_error > 1e-2
    assert card.exact_error < 1e-5
    assert card.control_error > 1e3 * card.exact_error


def test_together_they_are_small_and_the_page_is_theirs(ship):
    assert sum(pretrained_file(name).stat().st_size for name in pretrained_names()) <= ship.LARGEST
    assert (ROOT / "docs" / "reference" / "models.md").read_text() == ship.page()
    for name in pretrained_names():
        assert str(ROOT) not in cards.card_markdown(cards.describe(pretrained_file(name)))


def test_digits_it_never_saw_upright_and_turned(digits):
    found = accuracy_by_angle(pretrained("mnist-c8"), digits.take(np.arange(0, len(digits), 7)), [0.0, 1.0])
    assert found.min() > 0.75  # coarse digits, enlarged: far from what it learnt


@pytest.mark.slow
def test_the_card_says_what_mnist_says(real_data):
    arrays = real_data("mnist.npz")
    part = Split(arrays["x_test"][::25], arrays["y_test"][::25].astype(np.int64))
    card = cards.describe(pretrained_file("mnist-c8")).card
    assert accuracy(pretrained("mnist-c8"), part) == pytest.approx(card.upright, abs=0.015)
    assert accuracy(pretrained("mnist-c8"), part, angle=0.7) == pytest.approx(card.turned, abs=0.02)


@pytest.mark.parametrize(
    "name", ["", "mnist", "../recipes/digits", "mnist-c8.safetensors", "/etc/passwd", "mnist-c8\x00", "MNIST-C8"],
    ids=["empty", "another", "climbs", "file", "absolute", "null", "capitals"],
)  # fmt: skip
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match=r"unknown model .*models in this package: .*mnist-c8"):
        pretrained(name)


def test_a_slip_of_the_pen_is_understood():
    with pytest.raises(ValueError, match=r"did you mean mnist-c8\?"):
        pretrained("mnist-8c")


def test_every_named_data_set_has_a_credit():
    assert set(CREDITS) == set(NAMES)
    with pytest.raises(InputError, match="no credit is known for the data 'photos'"):
        credit("photos")


@pytest.mark.parametrize(
    "light",
    [3, {"ground": 0.0}, {"ground": 0.0, "contrast": "much", "agreement": 1.0},
     {"ground": float("nan"), "contrast": 1.0, "agreement": 1.0},
     {"ground": 0.0, "contrast": 1.0, "agreement": 1.0, "ground_range": [0.0], "contrast_range": [0.1, 1.0]},
     {"ground": 0.0, "contrast": 1.0, "agreement": 1.0, "ground_range": [0.0, "1"], "contrast_range": [0.1, 1.0]},
     {"ground": 0.0, "contrast": 1.0, "agreement": 1.0, "ground_range": 0.0, "contrast_range": [0.1, 1.0]},
     {"ground": 0.0, "contrast": [0.1, 1.0], "agreement": 1.0}],
    ids=["number", "missing", "text", "nan", "short range", "range of text", "no range", "range for a number"],
)  # fmt: skip
def test_a_note_about_light_that_cannot_be_meant(tmp_path, light):
    network = group_cnn("c4", 1, 3, 9, width=2, stages=(1,))
    path = save_network(tmp_path / "odd.safetensors", network, notes={"light": light})
    with pytest.raises(ValueError, match="light"):
        cards.read_light(path)


def test_the_light_of_a_file_is_read_with_and_without_ranges(tmp_path):
    network = group_cnn("c4", 1, 3, 9, width=2, stages=(1,))
    for light in (Light(0.1, 0.5, 1.0), Light(0.1, 0.5, 1.0, (0.0, 0.2), (0.4, 0.6))):
        note = {name: value for name, value in asdict(light).items() if value is not None}
        assert cards.read_light(save_network(tmp_path / "small.safetensors", network, notes={"light": note})) == light


def test_a_network_without_a_card(tmp_path):
    path = save_network(tmp_path / "plain.safetensors", group_cnn("c4", 1, 3, 9, width=2, stages=(1,)))
    assert cards.read_light(path) is None
    with pytest.raises(ValueError, match="has no card"):
        cards.describe(path)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """One epoch of a recipe of the package, on a quarter of its images."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    whole = load("digits")
    few, judges = (part.take(np.arange(0, len(part), 4)) for part in (whole.train, whole.validation))
    outcome = train(
        replace(whole, train=few, validation=judges), named_recipe("digits").changed(epochs=1, seed=2), folder
    )
    return folder, outcome


@pytest.mark.slow
def test_a_finished_run_becomes_a_file_with_its_card(ship, short_run, tmp_path):
    angles = [number * math.pi / 4 for number in range(8)]
    folder, outcome = short_run
    path = ship.ship(folder, "small-digits", ["one digit"], weights=tmp_path, angles=angles)
    model = cards.describe(path)
    assert model.name == "small-digits"
    assert model.card.command == "unpose train --recipe digits --epochs 1 --seed 2"
    assert model.card.upright == pytest.approx(outcome.test_accuracy, abs=1e-3)
    around = accuracy_by_angle(outcome.network, load("digits").test, angles)
    assert (model.card.turned, model.card.worst) == pytest.approx((around.mean(), around.min()), abs=3e-3)
    assert model.card.angles == 8
    assert model.card.validation == outcome.validation_accuracy
    assert model.card.limits == ("one digit",)
    assert model.light.is_common
    assert model.light.contrast > 0
    told = cards.card_markdown(model)
    assert model.sha256 in told
    assert f"{model.card.upright:.2%}" in told
    images = load("digits").test.images[:7]
    assert torch.equal(predict_logits(outcome.network, images), predict_logits(ship.load_network(path), images))


@pytest.mark.slow
def test_runs_that_are_not_shipped(ship, short_run, tmp_path):
    folder, _ = short_run
    copy = tmp_path / "run"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ship.UnfitError, match="lower-case letters"):
        ship.ship(copy, "../Digits", [], weights=tmp_path)
    result = json.loads((copy / "result.json").read_text())
    (copy / "result.json").write_text(json.dumps(result | {"test_accuracy": 0.999}))
    with pytest.raises(ship.UnfitError, match=r"test accuracy of 0.9990"):
        ship.ship(copy, "digits", [], weights=tmp_path)
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config.replace("learning_rate = 0.01", "learning_rate = 0.02"))
    with pytest.raises(ship.UnfitError, match="not in the package"):
        ship.ship(copy, "digits", [], weights=tmp_path)
    (copy / "result.json").unlink()
    with pytest.raises(ship.UnfitError, match="only a finished run"):
        ship.ship(copy, "digits", [], weights=tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


def test_the_wheel_holds_the_weights_the_recipes_and_the_documentation(tmp_path):
    builders = pytest.importorskip("hatchling.builders.wheel", reason="hatchling, which builds the wheel, is not here")
    (wheel,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    held = zipfile.ZipFile(wheel).namelist()
    for name in pretrained_names():
        assert f"unpose/train/weights/{name}.safetensors" in held
    assert "unpose/train/recipes/mnist-c8.toml" in held
    assert {"unpose/site/index.html", "unpose/site/index.md"} & set(held)  # the built site, or the sources of its pages
    assert {"unpose/site/howto/audit.html", "unpose/site/howto/audit.md"} & set(held)
