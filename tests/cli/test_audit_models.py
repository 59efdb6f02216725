"""``unpose audit`` on models of any kind: the verdict, the files it writes, and models that misbehave."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from kit.commands import contents, refused, started, unpose, unpose_process

MODELS = """
import numpy as np

log = {"calls": 0, "stop": None}
rng = np.random.default_rng(0)


def halves(images):  # scores of three parts of the image, which other turns do not reach
    log["calls"] += 1
    if log["stop"] == log["calls"]:
        raise KeyboardInterrupt
    x = images[..., 0]
    return np.stack([x[:, :5, 1:].mean((1, 2)), x[:, 6:, :7].mean((1, 2)), x[:, 3:8, 3:8].mean((1, 2))], 1)


def brightness(images):  # ignores every turn
    x = np.sort(images[..., 0].reshape(len(images), -1))
    return np.stack([x.mean(1), np.full(len(x), 0.43), 2 * x[:, 20]], 1).round(4)


def one_at_a_time(images):
    if len(images) != 1:
        raise ValueError("one image, please")
    return halves(images)


def picky(images):  # fails on some images
    if (images[:, 0, 0, 0] > 0.8).any():
        raise RuntimeError("corner too bright")
    return halves(images)


def holes(images):  # NaN for some images
    scores = halves(images)
    scores[images[:, 0, 0, 0] > 0.8] = np.nan
    return scores


def needs_gpu(images):
    raise RuntimeError("no CUDA device")


def noisy(images):
    return halves(images) + 0.1 * rng.normal(size=(len(images), 3))


def two(images):
    return halves(images), images.mean((1, 2))


def constant(images):
    return np.tile([0.1, 0.9, 0.2], (len(images), 1))


def names(images):  # classes by name
    return np.array(["dark", "grey", "light"])[halves(images).argmax(1)]


def numbers(images):  # classes by number
    return halves(images).argmax(1)


def embedding(images):
    return np.sort(images.reshape(len(images), -1))[:, ::20]


def wobbly(images):  # other scores after a turn, but the same answers
    return brightness(images) + 1e-4 * images[:, :5, :, 0].mean((1, 2))[:, None]


def cross(images):  # ignores quarter turns only
    x = images[..., 0]
    return np.stack([x[:, 2, 5] + x[:, 8, 5] + (x[:, 5, 2] + x[:, 5, 8]), x[:, 5, 5]], 1)


def batch(images):  # depends on the other images of a call
    return brightness(images) - 0.2 * brightness(images).mean(0)


def stateful(images):
    log["state"] = log.get("state", 0.0) + float(images.sum())
    return brightness(images) + 0.2 * np.sin(log["state"]) * np.arange(3)


def one_class(images):
    return brightness(images) + [9, 0, 0]


def one_of_two(images):
    if len(images) != 1:
        raise ValueError("one image, please")
    return two(images)


def wide_map(images):
    return np.repeat(images[..., 0][:, None], 64, 1)


def flat_map(images):  # (n, h, w), without an axis of channels
    return images[..., 0] ** 2


def label_map(images):
    return (10 * images[..., 0]).astype(np.int64)


class Weighted:  # what it has learnt is in another file; it changes the answers to some images
    def __init__(self):
        with open("weights.txt") as file:
            self.weight = float(file.read())

    def __call__(self, images):
        bright = images[:, 5, 5, 0] > images.mean((1, 2, 3))
        return halves(images) + self.weight * bright[:, None] * [1, 0, 0]


class Estimator:
    def fit(self, rows, labels): ...
    def predict(self, rows): ...
    def predict_proba(self, rows):
        share = 1 / (1 + np.exp(-8 * (rows[:, :60].mean(1) - rows[:, 60:].mean(1))))
        return np.stack([share, 1 - share], 1)


def estimator():
    return Estimator()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with Python models, 24 images in three class folders and a torn file; the process is in it."""
    rng = np.random.default_rng(5)
    pictures = rng.random((24, 11, 11))
    pictures[::2, :5] *= 0.4
    for i, picture in enumerate(pictures):
        folder = tmp_path / "photos" / ("dark", "grey", "light")[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * picture).astype(np.uint8)).save(folder / f"{i:02d}.png")
    (tmp_path / "photos" / "dark" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    (tmp_path / "audited_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("audited_models", None)


TORCH = """
import torch
from torch import nn


class Network(nn.Module):  # ignores quarter turns; in training mode it depends on chance and on the batch
    def __init__(self, two=False):
        super().__init__()
        torch.manual_seed(0)
        self.two = two
        self.lift, self.norm, self.head = nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(self.norm(self.lift(4 * x - 1.7)).relu().mean((2, 3)))
        return (self.head(x), x.square()) if self.two else self.head(x)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Network().bfloat16()

    def forward(self, x):
        return self.inner(x.bfloat16()).float()


class Labels(nn.Module):
    def forward(self, x):
        return torch.cat([x, 0.8 - x], 1).argmax(1)


float32, float64, bfloat16, two = Network(), Network().double(), Network().bfloat16(), Network(two=True)
mixed, labels = Mixed(), Labels()
"""


def model(name):
    return f"audited_models:{name}"


def test_the_verdict_the_page_and_the_files(place):
    done = unpose(
        "audit", model("halves"), "--images", "photos", "-o", "out", "--junit", "ci/audit.xml", "--json", "a.json"
    )
    assert done.status == 1, done.output
    numbers = json.loads((place / "a.json").read_text())
    assert numbers == json.loads((place / "out" / "audit.json").read_text())
    answers = {row["element"]: row for row in numbers["answers"]}
    assert answers["identity"]["changed"] == 0
    changed = answers["turn 180"]["changed"]
    assert changed > 0.3
    assert f"That is {round(changed * 24)} of 24 images" in " ".join(done.out.split())
    assert numbers["verdict"][0] == numbers["headline"]
    assert answers["identity"]["accuracy"] == pytest.approx(np.mean([row["accuracy"] for row in numbers["classes"]]))
    assert [row["image"] for row in numbers["left_out"]] == ["dark/torn.png"]
    assert len(numbers["angles"]) == 24
    assert {row["tried"] for row in numbers["repairs"]} == {"the model as it is", "mean over c4"}
    assert next(row for row in numbers["repairs"] if row["tried"] == "mean over c4")["changed"] == 0
    page = (place / "out" / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "dark/torn.png" in page
    table = (place / "out" / "images.csv").read_text().splitlines()
    assert len(table) == 25
    assert not (place / "out" / "calls").exists()
    suite = ElementTree.parse(place / "ci" / "audit.xml").getroot().find("testsuite")
    assert [case.get("name") for case in suite][:3] == ["turn 90", "turn 180", "turn 270"]
    assert suite.get("failures") == str(len(suite.findall("testcase/failure"))) == "3"


def test_a_model_that_ignores_turns_passes(place):
    done = unpose(
        "audit", model("brightness"), "--images", "photos", "--group", "d4", "--fail-above", "0", "--junit", "a.xml"
    )
    assert done.status == 0, done.output
    assert "The answers do not change." in done.out
    assert "<failure" not in (place / "a.xml").read_text()


@pytest.mark.parametrize(("limit", "status"), [("1", 0), ("0.01", 1)])
def test_fail_above_decides_the_status(place, limit, status):
    done = unpose("audit", model("halves"), "--images", "photos", "--no-repair", "--fail-above", limit)
    assert done.status == status, done.output
    assert f"--fail-above {limit}" in done.out


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "mixed", "two", "labels"])
def test_torch_modules_are_called_in_evaluation_mode_and_in_their_own_type(place, name):
    (place / "torch_models.py").write_text(TORCH)
    sys.modules.pop("torch_models", None)
    kind = [] if name == "labels" else ["--kind", "embedding"]
    done = unpose("audit", f"torch_models:{name}", "--images", "photos", "--no-repair", "--json", "--count", 8, *kind)
    assert done.status == 0, done.output
    module = getattr(sys.modules.pop("torch_models"), name)
    assert module.training
    buffers = dict(module.named_buffers())
    assert all(int(count) == 0 for key, count in buffers.items() if "num_batches" in key)
    assert all((mean == 0).all() for key, mean in buffers.items() if "running_mean" in key)
    numbers = done.json
    assert not any("random" in remark or "state" in remark for remark in numbers["remarks"])
    tolerances = {"float64": 1e-12, "bfloat16": 0.1, "mixed": 0.1}
    assert tolerances.get(name, 1e-3) / 1e3 < numbers["tolerance"] < tolerances.get(name, 1e-3)


@pytest.mark.parametrize(
    ("name", "options", "state"),
    [
        ("brightness", [], "good"),
        ("halves", [], "bad"),
        ("halves", ["--fail-above", "1"], "good"),
        ("halves", ["--fail-above", "0.01"], "bad"),
        ("halves", ["--group", "c3"], "open"),
        ("wobbly", [], "bad"),
        ("wobbly", ["--fail-above", "0"], "good"),
        ("batch", [], "bad"),
        ("stateful", [], "bad"),
        ("noisy", [], "bad"),
        ("noisy", ["--fail-above", "1"], "good"),
        ("one_class", [], "bad"),
        ("embedding", ["--kind", "embedding"], "good"),
        ("cross", ["--kind", "embedding", "--group", "c8"], "good"),
        ("cross", ["--kind", "embedding", "--group", "c8", "--fail-above", "0"], "bad"),
    ],
)
def test_page_status_json_and_junit_give_one_verdict(place, name, options, state):
    wanted = ("--images", "photos", "--no-repair", "--count", 8, "-o", "out", "--junit", "out/ci.xml")
    done = unpose("audit", model(name), *wanted, *options)
    numbers, page = json.loads((place / "out" / "audit.json").read_text()), (place / "out" / "report.html").read_text()
    assert f'data-state="{state}"' in page
    assert done.status == (state == "bad")
    assert numbers["passed"] == (state != "bad")
    assert numbers["holds"] == numbers["passed"] or options
    assert ("<failure" in (place / "out" / "ci.xml").read_text()) == (state == "bad")
    assert state != "bad" or not numbers["headline"].endswith("not change.")
    assert "Invariant to" not in done.out or numbers["holds"]


def test_maps_without_channels_and_maps_of_labels_move_with_the_image(place):
    for name in ("flat_map", "label_map"):
        for group in ("c4", "c8"):
            options = ("--images", "photos", "--no-repair", "--count", 6, "--group", group, "-o", f"{name}-{group}")
            done = unpose("audit", model(name), *options, "--json")
            assert done.status == 0, done.output
            numbers = done.json
            assert numbers["output"] == "image"
            noise = unpose("audit", model(name), "--size", 11, "--group", group, "--json")
            assert (noise.status, noise.json["output"]) == (0, "image")
            assert all(row["error"] < 1e-6 for row in numbers["elements"] if row["exact"])
            assert "NaN" not in done.out


def test_the_plot_moves_maps_with_the_image(place):
    pictures = []
    for kind in ("image", "embedding"):
        done = unpose(
            "audit", model("flat_map"), "--images", "photos", "--kind", kind, "--count", 4, "-o", f"{kind}.png"
        )
        assert done.status == (kind == "embedding"), done.output
        pixels = np.asarray(Image.open(place / f"{kind}.png").convert("L"))
        pictures.append(pixels[:, : pixels.shape[1] // 2])  # the rotations by any angle
    assert (pictures[0] != pictures[1]).any()


def test_images_on_which_the_model_fails_are_left_out(place):
    kept = []
    for name, message in (("picky", "corner too bright"), ("holes", "NaN or infinite")):
        done = unpose("audit", model(name), "--images", "photos", "--no-repair", "--json")
        assert done.status == 1, done.output
        numbers = done.json
        assert 2 <= numbers["images"] < 24
        left = {row["image"]: row["why"] for row in numbers["left_out"]}
        assert len(left) == 24 - numbers["images"] + 1  # and the torn file
        assert any(message in why for why in left.values())
        kept.append((numbers["images"], numbers["elements"]))
    assert kept[0] == kept[1]


def test_one_of_several_outputs_is_chosen_or_each_is_audited(place):
    options = ("--images", "photos", "--no-repair", "--json", "--count", 8)
    chosen, reference = (
        unpose("audit", model(name), *options, *more) for name, more in (("two", ["--output", 0]), ("halves", []))
    )
    assert chosen.json["answers"] == reference.json["answers"]
    done = unpose("audit", model("two"), *options, "--junit", "both.xml", "-o", "out")
    assert done.status == 1, done.output
    both = done.json
    assert list(both["outputs"]) == ["0", "1"]
    assert both["outputs"]["0"]["answers"] == reference.json["answers"]
    assert both["outputs"]["1"]["holds"]
    assert both["headline"] == both["outputs"]["0"]["headline"]  # the one that changes most
    page = (place / "out" / "report.html").read_text()
    assert 'href="output-1/report.html"' in page
    assert (place / "out" / "output-1" / "report.html").is_file()
    names = [case.get("name") for case in ElementTree.parse(place / "both.xml").iter("testcase")]
    assert {"0: turn 90", "1: turn 90"} <= set(names)


@pytest.mark.slow
def test_further_measures_are_on_the_page_and_in_json(place):
    options = ("--images", "photos", "--no-repair", "--json", "--count", 6)
    scores = unpose("audit", model("halves"), *options, "--measures", "explanations", "-o", "a").json["measures"]
    assert list(scores) == ["stability", "occlusion"]  # a function has no gradients
    assert scores["stability"]["value"] > scores["stability"]["floor"] == 0
    assert scores["occlusion"]["value"] < 0.9
    assert "Explanations by occlusion" in (place / "a" / "report.html").read_text()
    embedding = unpose("audit", model("embedding"), *options, "--kind", "embedding", "--measures", "all", "--size", 24)
    found = embedding.json
    assert found["measures"]["pose_collapse"]["value"] < 1e-4
    assert found["measures"]["confused_equal_pixel_values"]["value"] == 1  # it sorts them
    assert "no vector of class scores" in " ".join(found["remarks"])
    refused = unpose("audit", model("halves"), "--images", "photos", "--measures", "all,nonsense")
    assert refused.status == 2


def test_a_model_that_fails_altogether_ends_with_three(place):
    done = unpose("audit", model("needs_gpu"), "--images", "photos", "-o", "out")
    assert done.status == 3
    assert "no CUDA device" in done.err
    assert "continue with: unpose audit" in done.err
    assert not (place / "out" / "audit.json").exists()


def test_an_audit_that_was_stopped_continues_and_ends_with_the_same_bytes(place):
    import audited_models

    arguments = (model("halves"), "--images", "../photos", "--batch", "7", "-o", "out")
    written = []
    for folder, stop in (("whole", None), ("stopped", 11)):
        (place / folder).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place / folder)
            audited_models.log.update(calls=0, stop=stop)
            done = unpose("audit", *arguments)
            if stop is not None:
                assert done.status == 130
                assert "continue with: unpose audit" in done.err
                assert len(list((place / folder / "out" / "calls").rglob("*.npz"))) >= 5
                audited_models.log.update(calls=0, stop=None)
                done = unpose("audit", *arguments)
            calls = audited_models.log["calls"]
        assert done.status == 1, done.output
        written.append(({path.name: path.read_bytes() for path in (place / folder / "out").iterdir()}, calls))
    assert written[0][0] == written[1][0]
    assert len(written[0][0]) == 3
    assert written[1][1] < written[0][1]


def test_answers_of_other_weights_are_not_used(place):
    import audited_models

    found = []
    options = ("--images", "photos", "--no-repair", "--batch", 1, "--json")
    for folder, weight, count, stop in (("old", 0, 6, 60), ("old", 5, 7, None), ("new", 5, 7, None)):
        (place / "weights.txt").write_text(str(weight))
        audited_models.log.update(calls=0, stop=stop)
        done = unpose("audit", model("Weighted()"), *options, "--count", count, "-o", folder)
        assert done.status == (1 if stop is None else 130), done.output
        found.append(done.out.replace('"old"', '"new"'))
    assert found[1] == found[2]


@pytest.mark.slow
def test_an_audit_that_was_killed_continues_and_ends_with_the_same_bytes(place):
    (place / "slow_models.py").write_text(
        "import time\nfrom audited_models import halves\n\n"
        "def slow(images):\n    time.sleep(0.05)\n    return halves(images)\n"
    )
    words = ("audit", "slow_models:slow", "--images", "../photos", "--batch", 5, "-o", "out")
    environment = {"PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}
    written = []
    for folder in ("whole", "killed"):
        (place / folder).mkdir()
        if folder == "killed":
            running = started(*words, cwd=place / folder, env=environment, stderr=subprocess.DEVNULL)
            while len(list((place / folder).rglob("*.npz"))) < 4:
                assert running.poll() is None, "it ended before it could be killed"
                time.sleep(0.01)
            running.kill()
            assert running.wait() == -signal.SIGKILL
            assert not (place / folder / "out" / "audit.json").exists()
        done = unpose_process(*words, cwd=place / folder, env=environment)
        assert done.status == 1, done.err
        written.append(contents(place / folder / "out"))
    assert written[0] == written[1]
    assert len(written[0]) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("noisy", "The model is random"),
        ("constant", "the same answer"),
        ("one_at_a_time", "one image at a time"),
        ("one_of_two", "one image at a time"),
    ],
)
def test_what_a_reader_must_know_about_a_model(place, name, message):
    done = unpose("audit", model(name), "--images", "photos", "--no-repair", "--fail-above", "1", "--json")
    numbers = done.json
    assert message in " ".join([numbers["headline"], *numbers["remarks"]])
    assert done.status == (1 if name == "constant" else 0)


def test_answers_by_name_embeddings_and_estimators(place):
    for name in (".git", ".cache"):  # no classes
        (place / "photos" / name).mkdir()
    done = unpose("audit", model("names"), "--images", "photos", "--no-repair", "--json")
    numbers = done.json
    assert {row["class"] for row in numbers["classes"]} == {"dark", "grey", "light"}
    counted = unpose("audit", model("numbers"), "--images", "photos", "--no-repair", "--json").json
    assert counted["answers"] == numbers["answers"]
    reference = unpose("audit", model("halves"), "--images", "photos", "--no-repair", "--json").json
    assert numbers["answers"] == reference["answers"]
    kept = unpose("audit", model("embedding"), "--images", "photos", "--kind", "embedding", "--json").json
    assert [row["share"] for row in kept["neighbours_kept"]] == [1.0] * 4
    labelled = unpose("audit", model("estimator()"), "--images", "photos", "--no-repair", "--json").json
    assert "The labels are not used" in " ".join(labelled["remarks"])  # two scores, three folders
    assert len(labelled["classes"]) == 2


def test_labels_from_a_table(place):
    rows = [f"{path.parent.name}/{path.name},light" for path in (place / "photos").rglob("*.png")]
    (place / "labels.csv").write_text("\n".join(rows))
    (place / "classes.txt").write_text("dark\ngrey\nlight\n")
    options = ("--images", "photos", "--no-repair", "--json", "--labels", "labels.csv", "--classes", "classes.txt")
    numbers = unpose("audit", model("halves"), *options).json
    assert [row["class"] for row in numbers["classes"]] == ["light"]
    assert numbers["classes"][0]["images"] == 24
    (place / "labels.csv").write_text("\n".join(rows[1:]))
    refused(unpose("audit", model("halves"), *options), "has no line for 1 image, ", f"{rows[0].split(',')[0]} first")


def test_a_header_a_mark_and_hidden_folders_are_no_classes(place):
    (place / "photos" / ".git").mkdir()
    (place / "photos" / "notes").mkdir()
    rows = [f"{path.parent.name}/{path.name},{path.parent.name}" for path in (place / "photos").rglob("*.png")]
    (place / "labels.csv").write_text("image,class\n" + "\n".join(rows), encoding="utf-8-sig")
    (place / "classes.txt").write_text("dark\ngrey\nlight\n", encoding="utf-8-sig")
    options = ("--images", "photos", "--no-repair", "--json")
    found = []
    for more in ([], ["--labels", "labels.csv"], ["--classes", "classes.txt"]):
        for name in ("halves", "names"):
            numbers = unpose("audit", model(name), *options, *more).json
            assert [row["class"] for row in sorted(numbers["classes"], key=lambda row: row["class"])] == [
                "dark", "grey", "light",
            ], (name, more)  # fmt: skip
            found.append(numbers["answers"])
    assert all(answers == found[0] for answers in found)
    assert found[0][0]["accuracy"] is not None


def test_two_versions_are_compared(place):
    done = unpose("audit", model("halves"), model("brightness"), "--images", "photos", "--json", "--no-repair")
    assert done.status == 0, done.output
    found = done.json["comparison"]
    assert found["old"] == model("halves")
    assert all(row["new"] == 0 for row in found["elements"])
    assert found["fixed"] > found["broken"] == 0
    assert len(found["images"]) == round(found["answers_differ"] * 24)


@pytest.mark.slow
def test_another_program_is_a_model(place):
    (place / "program.py").write_text(
        "import sys, zlib, pathlib\n"
        "names = sorted(pathlib.Path(sys.argv[1]).iterdir())\n"
        "lines = [f\"{p.name},{['dark', 'light'][zlib.crc32(p.read_bytes()) % 2]}\" for p in names]\n"
        "pathlib.Path(sys.argv[2]).write_text('name,class\\n' + '\\n'.join(lines))\n"
    )
    line = f"{sys.executable} -S program.py {{input}} {{output}}"
    done = unpose("audit", "--command", line, "--images", "photos", "--no-repair", "--json")
    assert done.status == 1, done.output
    numbers = done.json
    assert 0.1 < numbers["answers"][1]["changed"] < 0.9  # a checksum knows no symmetry
    failed = unpose("audit", "--command", f"{sys.executable} -S missing.py {{input}} {{output}}", "--images", "photos")
    assert failed.status == 3
    assert "missing.py" in failed.err


def test_photographs_of_the_same_things(place):
    rows = []
    for path in sorted((place / "photos" / "grey").glob("*.png")):
        turned = np.rot90(np.asarray(Image.open(path)))
        Image.fromarray(np.ascontiguousarray(turned)).save(place / f"turned-{path.name}")
        rows += [f"photos/grey/{path.name},{path.name},0", f"turned-{path.name},{path.name},90"]
    (place / "pairs.csv").write_text("image,thing,angle\n" + "\n".join(rows))
    done = unpose("audit", model("halves"), "--images", "photos", "--pairs", "pairs.csv", "--no-repair", "--json")
    found = done.json["pairs"]
    assert found["pairs"] == 8
    assert found["changed"]["real"] == found["changed"]["digital"]
    assert found["change"]["real"] == pytest.approx(found["change"]["digital"], rel=1e-5)
    assert "real pairs" in " ".join(done.json["verdict"])
    table = "image,thing\n" + "\n".join(row.rpartition(",")[0] for row in rows)
    (place / "pairs.csv").write_text(table, encoding="utf-8-sig")  # as Excel saves it
    done = unpose("audit", model("halves"), "--images", "photos", "--pairs", "pairs.csv", "--no-repair", "--json")
    estimated = done.json["pairs"]
    assert estimated["estimated"] == 8
    assert estimated["uncertainty_degrees"] < 1
    assert estimated["changed"] == found["changed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one MODEL"),
        (["a", "b", "c"], "give one MODEL"),
        (["--command", "classify photos", "--images", "photos"], "{input}"),
        ([model("halves"), "--command", "a {input} {output}"], "not both"),
        ([model("nothing")], "cannot be loaded"),
        ([model("halves")], "--images"),
        (["weights.pkl"], "can run code"),
        ([model("halves"), "--images", "photos", "--memory", "1MiB", "--count", "24", "--size", "64"], "--count"),
        ([model("wide_map"), "--images", "photos", "--memory", "1MiB", "--count", "24"], "outputs of (64, 11, 11)"),
        ([model("halves"), "--images", "photos", "--device", "cuda:7"], "cannot be used here"),
        ([model("halves"), "--images", "photos", "--fail-above", "-1"], "--fail-above"),
        ([model("halves"), "--labels", "audited_models.py"], "need --images"),
    ],
)
def test_wrong_calls_end_with_two(place, arguments, message):
    (place / "weights.pkl").write_bytes(b"\x80\x04")
    done = unpose("audit", *arguments)
    assert done.status == 2, done.output
    assert message in done.words


def test_json_alone_prints_wherever_it_stands(place):
    options = ("--images", "photos", "--no-repair")
    first, second = (
        unpose("audit", "--json", model("halves"), *options),
        unpose("audit", model("halves"), *options, "--json"),
    )
    assert first.out == second.out
    assert first.json["images"] == 24


@pytest.mark.extra("onnx")
def test_an_onnx_file_of_another_shape_and_batch(place):
    import onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [2], [1, 3])
    node = helper.make_node("ReduceSum", ["images", "axes"], ["sums"], keepdims=0)
    inputs = [helper.make_tensor_value_info("images", kind, [5, 1, 9, 13])]
    outputs = [helper.make_tensor_value_info("sums", kind, [5, 9])]
    graph = helper.make_graph([node], "sums", inputs, outputs, [axes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "rows.onnx")
    done = unpose("audit", "rows.onnx", "--images", "photos", "--no-repair", "--json")
    assert done.status == 1, done.output
    numbers = done.json
    assert numbers["images"] == 24
    assert numbers["answers"][2]["changed"] > 0.5  # half a turn reverses the rows
