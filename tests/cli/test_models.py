"""Networks by name on the command line: the list, the cards, and predictions on digits as people photograph them."""

import csv
import io

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from kit.commands import table, unpose
from unpose.nn import group_cnn
from unpose.train import pretrained_file, pretrained_names, save_network


def enlarged(digit):
    """An 8 x 8 digit as 45 pixels of a 65 pixel image, light on dark, in [0, 1]."""
    picture = Image.fromarray((255 * digit / 16).astype(np.uint8)).resize((45, 45), Image.Resampling.BICUBIC)
    return np.pad(np.asarray(picture) / 255, 10)


@pytest.fixture(scope="module")
def pens(tmp_path_factory):
    """Forty digits twice: light on dark, and as blue ink on grey paper of other sizes. Names begin with the digit."""
    digits = load_digits()
    folder = tmp_path_factory.mktemp("digits")
    rng = np.random.default_rng(5)
    for kind in ("light", "paper"):
        (folder / kind).mkdir()
    paper, ink = np.array([0.8, 0.79, 0.75]), np.array([0.15, 0.2, 0.5])
    for number in range(40):
        pixels = enlarged(digits.images[number])
        name = f"{digits.target[number]}-{number}.png"
        Image.fromarray((255 * pixels).astype(np.uint8)).save(folder / "light" / name)
        photo = paper + pixels[..., None] * (ink - paper) + 0.01 * rng.standard_normal((*pixels.shape, 3))
        side = int(rng.integers(50, 131))
        picture = Image.fromarray((255 * photo.clip(0, 1)).astype(np.uint8)).resize((side, side + 7))
        picture.save(folder / "paper" / name)
    return folder


def right(text):
    rows = table(text)
    assert len(rows) == 40
    return sum(row["class"] == row["name"][0] for row in rows) / 40


def test_a_network_of_the_package_reads_digits(pens):
    done = unpose("predict", "--model", "mnist-c8", pens / "light")
    assert done.status == 0, done.output
    assert right(done.out) > 0.7
    assert "scaled to fit the network's 28 x 28 pixels" in done.err
    assert "--match-light" not in done.err
    assert "coloured" not in done.err


def test_dark_on_light_is_noticed_and_can_be_matched(pens):
    done = unpose("predict", "--model", "mnist-c8", pens / "paper", "--json")
    told = done.json
    assert any("coloured" in note for note in told["notes"])
    assert any("40 of 40 images are dark on light and not light on dark" in note for note in told["notes"])
    assert "wrong answers" not in done.err
    assert "--match-light" in done.err
    matched = unpose("predict", "--model", "mnist-c8", pens / "paper", "--match-light")
    assert matched.status == 0, matched.output
    assert "--match-light" not in matched.err
    assert right(matched.out) > 0.7


def test_matching_leaves_images_like_those_of_training_alone(pens):
    plain = unpose("predict", "--model", "mnist-c8", pens / "light")
    assert unpose("predict", "--model", "mnist-c8", pens / "light", "--match-light").out == plain.out


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Coloured images of two classes whose grounds and contrasts vary much, and a network trained on half of them."""
    folder = tmp_path_factory.mktemp("cells")
    rng = np.random.default_rng(8)
    rows, columns = np.mgrid[:15, :15] - 7
    for kind, shape in {"disc": rows**2 + columns**2 < 20, "bar": (abs(rows) < 6) & (abs(columns) < 2)}.items():
        for number in range(60):
            ground = rng.uniform(0.45, 1.0) * np.array([1.0, 0.8, 0.9])
            pixels = ground * (1 - rng.uniform(0.2, 0.8) * shape[..., None] * np.array([0.6, 1.0, 0.4]))
            place = folder / ("old" if number < 40 else "new") / kind
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((255 * pixels).astype(np.uint8)).save(place / f"{kind}-{number}.png")
    done = unpose("train", folder / "old", "--group", "c4", "--epochs", 1, "-o", folder / "run")
    assert done.status == 0, done.output
    return folder


@pytest.mark.parametrize("part", ["old", "new"])
def test_images_of_the_training_set_get_no_note_about_light(cells, part):
    model = cells / "run" / "model.safetensors"
    plain = unpose("predict", "--model", model, cells / part)
    assert plain.status == 0, plain.output
    assert "--match-light" not in plain.err
    matched = unpose("predict", "--model", model, cells / part, "--match-light")
    assert matched.status == 0, matched.output
    assert matched.out == plain.out


def test_the_list_and_the_cards():
    listed = unpose("models")
    assert listed.status == 0, listed.output
    lines = listed.out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", *pretrained_names()]
    told = unpose("models", "--json").json
    for line, model in zip(lines[1:], told, strict=True):
        card = unpose("models", model["name"]).out
        for text in (f"{model['parameters']:,}", f"{model['card']['upright']:.2%}", model["network"]["group"]):
            assert text in line
            assert text in card
        assert model["sha256"] in card
        assert "Limits:" in card
        assert "Licence:" in card
    assert unpose("models", "mnist-c8", "--json").json["name"] == "mnist-c8"


@pytest.mark.slow
def test_evaluate_and_audit_take_names_too(tmp_path, rng):
    np.savez(tmp_path / "few.npz", x=rng.random((12, 28, 28)).astype(np.float32), y=np.arange(12) % 4)
    done = unpose("evaluate", "mnist-c8", tmp_path / "few.npz", "--split", "all", "--json")
    assert done.status == 0, done.output
    assert "mnist-c8.safetensors" in done.json["accuracy"]
    done = unpose("audit", "mnist-c8", "--count", 2)
    assert done.status == 0, done.output
    assert "Invariant to every element of c8 that only permutes pixels" in done.out


def test_a_file_takes_precedence_over_a_network_of_the_same_name(pens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_network("mnist-c8", group_cnn("c4", 1, 2, 28, width=2, stages=(1,)), classes=["cat", "dog"])
    done = unpose("predict", "--model", "mnist-c8", pens / "light")
    assert done.status == 0, done.output
    assert next(csv.reader(io.StringIO(done.out))) == ["name", "class", "cat", "dog"]
    assert "using the file of this name" in done.err


def test_the_folder_of_a_run_of_train_stands_for_its_network(pens, tmp_path):
    save_network(
        tmp_path / "model.safetensors", group_cnn("c4", 1, 2, 28, width=2, stages=(1,)), classes=["cat", "dog"]
    )
    done = unpose("predict", "--model", tmp_path, pens / "light")
    assert done.status == 0, done.output
    assert next(csv.reader(io.StringIO(done.out))) == ["name", "class", "cat", "dog"]


def test_a_run_of_cluster_is_no_network(new_shapes, tmp_path):
    assert unpose("cluster", new_shapes, "-o", tmp_path / "run", "-k", 3, "--features", "pixels").status == 0
    done = unpose("audit", tmp_path / "run")
    assert done.status == 2
    assert "is a run of unpose cluster, which has groups and no network" in done.words


@pytest.mark.slow
def test_a_folder_of_the_name_does_not_hide_it(pens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist-c8").mkdir()
    assert unpose("audit", "mnist-c8", "--count", 2).status == 0
    done = unpose("audit", tmp_path)
    assert done.status == 2
    assert "is a folder without model.safetensors; give a run of unpose train" in done.words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "mnist-c9"], "did you mean mnist-c8?"),
        (["predict", "--model", "minst-c8", "."], "there is no file 'minst-c8'"),
        (["predict", "--model", "../recipes/digits", "."], "models in this package: cifar10-d4, mnist-c8"),
        (["evaluate", "minst-c8", "digits"], "did you mean mnist-c8?"),
        (["evaluate", "mnist-c8", "digits", "--compare", "twin"], "there is no file 'twin'"),
        (["audit", "nothing"], "models in this package"),
        (["audit", "x" * 5000], "models in this package"),
        (["predict", "--match-light", ".", "."], "--match-light needs --model"),
        (["predict", "--model", "{plain}", "--match-light", "."], "does not state a background"),
    ],
)  # fmt: skip
def test_wrong_names_say_which_there_are(arguments, message, tmp_path):
    plain = save_network(tmp_path / "plain.safetensors", group_cnn("c4", 1, 2, 11, width=2, stages=(1,)))
    done = unpose(*(argument.replace("{plain}", str(plain)) for argument in arguments))
    assert done.status == 2, done.output
    assert message in done.words


def test_the_file_is_the_packages_own():
    assert unpose("models", "mnist-c8", "--json").json["path"] == str(pretrained_file("mnist-c8"))
