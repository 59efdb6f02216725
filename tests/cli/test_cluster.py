"""``unpose cluster``, ``align``, ``predict``, ``report``, ``export``, ``demo``: results and wrong calls."""

import json
import re
import shutil
import tomllib

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import adjusted_rand_score

from kit.commands import table, unpose, unpose_process
from unpose.cluster import InvariantClustering
from unpose.data import posed

NO_NETWORK = """
import sys
def refuse(event, arguments):
    if event.startswith("socket.") and event != "socket.gethostname":
        raise RuntimeError(f"the command used the network: {event} {arguments}")
sys.addaudithook(refuse)
sys.modules["efficientnet_lite_pytorch"] = None  # as tests/conftest.py hides it from the tests' own process
from unpose.cli import main
main()
"""


@pytest.fixture(scope="module")
def run(shapes, tmp_path_factory):
    """The real command, in a process that may not touch the network."""
    out = tmp_path_factory.mktemp("runs") / "deep" / "run"
    done = unpose_process("cluster", shapes, "-o", out, "--clusters", 3, "--json", program=["-c", NO_NETWORK])
    assert done.status == 0, done.err
    return out, done


def test_a_folder_gives_a_complete_run(run, shapes):
    out, done = run
    told = done.json
    assert (told["images"], told["clusters"], told["rejected"]) == (24, 3, 3)
    assert told["agreement"]["accuracy"] == 1.0
    assert "refine" in done.err
    assert {entry.name for entry in out.iterdir()} == {
        "labels.csv", "rejected.csv", "clusters.json", "images.json", "model.json", "model.safetensors", "config.toml",
        "pictures.safetensors", "report.html", "log.txt", "means",
    }  # fmt: skip
    assert sorted(entry.name for entry in (out / "means").iterdir()) == [
        f"cluster-00{k}{what}.png" for k in range(3) for what in ("-error", "")
    ]
    model = InvariantClustering.load(out)
    assert model.labels_.shape == (24,)


def test_the_table_has_a_row_for_each_image_and_is_safe_in_a_spreadsheet(run):
    out, _ = run
    text = (out / "labels.csv").read_text()
    rows = table(text)
    assert len(rows) == 24
    assert {row["cluster"] for row in rows} == {"0", "1", "2"}
    assert all(0 <= float(row["confidence"]) <= 1 and abs(float(row["angle"])) <= 180 for row in rows)
    assert not re.search(r"^[=+\-@]", text, re.MULTILINE)
    assert any("new\\nline" in row["path"] for row in rows)
    reasons = {row["path"]: row["reason"] for row in table((out / "rejected.csv").read_text())}
    assert set(reasons) == {"hook/torn.png", "hook/empty.png", "frame/not \\xff text.png"}
    assert all(reasons.values())


def test_the_poses_of_the_table_bring_the_images_together(run, shapes):
    """The angle that the table gives must turn copies upright: read back independently, from the file alone."""
    import torch

    from unpose.data import read_folder
    from unpose.groups import rotation, translation
    from unpose.images import warp

    out, _ = run
    rows = table((out / "labels.csv").read_text())
    images = torch.from_numpy(read_folder(shapes).images)[:, None]
    first = [k for k, row in enumerate(rows) if row["cluster"] == "0"]
    angle, x, y = (torch.tensor([float(rows[k][name]) for k in first]) for name in ("angle", "shift_x", "shift_y"))
    moved = warp(images[first], translation(torch.stack([x, y], -1)) @ rotation(angle.deg2rad()))
    spread = lambda stack: float(stack.std(0).mean())  # noqa: E731
    assert spread(moved) < 0.3 * spread(images[first])
    mean = np.asarray(Image.open(out / "means" / "cluster-000.png")) / 255
    assert np.abs(moved.mean(0)[0].clamp(0, 1).numpy() - mean).max() < 0.01


def test_the_page_can_be_made_again_without_the_images(run, tmp_path):
    out, _ = run
    before = (out / "report.html").read_bytes()
    done = unpose("report", out, "-o", tmp_path / "again.html")
    assert done.status == 0, done.output
    assert (tmp_path / "again.html").read_bytes() == before
    told = unpose("report", out, "-o", tmp_path / "again.html", "--force", "--json").json
    assert (told["clusters"], told["report"]) == (3, str(tmp_path / "again.html"))


def test_a_damaged_run_is_refused_in_one_line(run, tmp_path, shapes):
    out = tmp_path / "copy"
    shutil.copytree(run[0], out)
    (out / "images.json").write_bytes(b"[1, 2")
    for arguments in (["report", out], ["predict", out, shapes], ["export", out, "--to", "csv", "-o", tmp_path / "x"]):
        done = unpose(*arguments)
        assert done.status == 2, done.output
        assert str(out) in done.output


def test_the_configuration_repeats_the_run(run, shapes, tmp_path):
    out, _ = run
    done = unpose("cluster", shapes, "-o", tmp_path / "again", "--config", out / "config.toml")
    assert done.status == 0, done.output
    for name in (
        "labels.csv",
        "model.safetensors",
        "model.json",
        "config.toml",
        "clusters.json",
        "pictures.safetensors",
    ):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes(), name
    other = tmp_path / "other.toml"
    other.write_text('clusters = 3\nmax-angel = 4\nseed = "x"')
    done = unpose("cluster", shapes, "-o", tmp_path / "no", "--config", other)
    assert done.status == 2
    assert "max-angel" in done.output
    other.write_text("clusters = 0")
    assert unpose("cluster", shapes, "-o", tmp_path / "no", "--config", other).status == 2
    assert "24" in unpose("cluster", shapes, "-o", tmp_path / "no", "--config", other, "--clusters", "40").output
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SHAPES"], "--out"),
        (["SHAPES", "-o", "x", "--clusters", "many"], "many"),
        (["SHAPES", "-o", "x", "--clusters", "25"], "24"),
        (["SHAPES", "-o", "x", "--group", "p4"], "continuous"),
        (["SHAPES", "-o", "x", "--max-angle", "400"], "180"),
        (["SHAPES", "-o", "x", "--memory", "lots"], "4GB"),
        (["SHAPES", "-o", "x", "--memory", "5MB"], "give --memory "),
        (["SHAPES", "-o", "x", "--device", "abacus"], "abacus"),
        (["SHAPES", "-o", "x", "--resume"], "no run to continue"),
    ],
)
def test_wrong_calls_say_what_is_wrong_and_leave_nothing(arguments, message, shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = unpose("cluster", *(each.replace("SHAPES", str(shapes)) for each in arguments))
    assert done.status == 2, done.output
    assert message in done.output
    assert "memory=" not in done.output  # the message names flags and no parameter of Python
    assert "Traceback" not in done.output
    assert not list(tmp_path.iterdir())
    assert not (shapes / "run").exists()


def test_new_images_find_their_cluster(run, new_shapes, tmp_path):
    out, _ = run
    done = unpose("predict", out, new_shapes, "-o", tmp_path / "new.csv")
    assert done.status == 0, done.output
    known = {row["class"]: row["cluster"] for row in table((out / "labels.csv").read_text())}
    rows = table((tmp_path / "new.csv").read_text())
    assert len(rows) == 6
    for row in rows:
        assert row["cluster"] == known[row["path"].partition("/")[0]]
        assert float(row["confidence"]) > 0.9
    larger = tmp_path / "larger"
    larger.mkdir()
    for number, path in enumerate(sorted(new_shapes.rglob("*.png"))):
        Image.open(path).resize((61, 61)).save(larger / f"{path.parent.name}-{number}.png")
    done = unpose("predict", str(out), str(larger), "--json")
    told = done.json
    assert [str(image["cluster"]) for image in told["images"]] == [
        known[image["path"].partition("-")[0]] for image in told["images"]
    ]
    one = next(iter(sorted(new_shapes.rglob("*.png"))))
    told = unpose("predict", str(out), str(one), "--json").json
    assert [str(image["cluster"]) for image in told["images"]] == [known[one.parent.name]]


def test_the_poses_of_new_images_bring_them_onto_the_means(run, new_shapes, tmp_path):
    """Read back from the table alone, as for the images of the run."""
    import torch

    from unpose.data import read_folder
    from unpose.groups import rotation, translation
    from unpose.images import warp

    out, _ = run
    assert unpose("predict", out, new_shapes, "-o", tmp_path / "new.csv").status == 0
    rows = table((tmp_path / "new.csv").read_text())
    images = torch.from_numpy(read_folder(new_shapes).images)[:, None]
    angle, x, y = (torch.tensor([float(row[name]) for row in rows]) for name in ("angle", "shift_x", "shift_y"))
    moved = warp(images, translation(torch.stack([x, y], -1)) @ rotation(angle.deg2rad()))[:, 0].clamp(0, 1).numpy()
    for row, image, still in zip(rows, moved, images[:, 0].numpy(), strict=True):
        mean = np.asarray(Image.open(out / "means" / f"cluster-{int(row['cluster']):03d}.png")) / 255
        assert np.abs(image - mean).mean() < 0.2 * np.abs(still - mean).mean()
        assert row["mirrored"] == "no"
        assert abs(float(row["scale"]) - 1) < 1e-5


def test_a_run_of_local_contrast_in_a_disc_inside_a_rim(tmp_path):
    """Things in a bright rim, under light that varies inside the image; the rim is cut off and never compared."""
    rng, (rows, columns) = np.random.default_rng(0), np.mgrid[:36, :36] - 17.5
    kinds = np.zeros((2, 26, 26), np.float32)
    kinds[0, 5:20, 12:15] = kinds[0, 5:8, 12:20] = kinds[1, 8:18, 8:18] = 1
    kinds[1, 11:15, 11:15] = 0
    turned = posed(kinds, copies=6, max_shift=1.0, random_state=4)
    things = np.zeros((12, 36, 36), np.float32)
    things[:, 5:31, 5:31] = turned.images
    for thing, angle in zip(things, rng.uniform(0, 6.3, 12), strict=True):
        thing *= np.exp((np.cos(angle) * columns + np.sin(angle) * rows) / 14)
        thing[[0, 1, 2, -3, -2, -1]] = thing[:, [0, 1, 2, -3, -2, -1]] = rng.uniform(2, 6)
    np.save(tmp_path / "rims.npy", things)
    run = tmp_path / "run"
    done = unpose(
        "cluster", tmp_path / "rims.npy", "-o", run, "-k", 2, "--light", "local", "--mask", "disc", "--crop", "0.1"
    )
    assert done.status == 0, done.output
    config = tomllib.loads((run / "config.toml").read_text())
    assert (config["crop"], config["light"], config["mask"], config["size"]) == (4, "local", "disc", 36)
    labels = [int(row["cluster"]) for row in table((run / "labels.csv").read_text())]
    assert adjusted_rand_score(turned.sources, labels) == 1.0
    assert np.asarray(Image.open(run / "means" / "cluster-000.png")).shape == (28, 28)
    told = unpose("predict", str(run), str(tmp_path / "rims.npy"), "--json").json
    assert [image["cluster"] for image in told["images"]] == labels
    done = unpose("export", run, "--to", "npz", "-o", tmp_path / "rims.npz")
    assert done.status == 0, done.output
    assert np.load(tmp_path / "rims.npz")["aligned"].shape == (12, 28, 28)
    for crop in ("0.6", "15"):
        done = unpose("cluster", tmp_path / "rims.npy", "-o", tmp_path / "other", "--crop", crop)
        assert done.status == 2
        assert "--crop" in done.output


def test_predict_says_what_it_needs(run, shapes, tmp_path):
    assert "RUN IMAGES" in unpose("predict", shapes).output
    done = unpose("predict", tmp_path, shapes)
    assert done.status == 2
    assert "no run" in done.output


def test_export_as_table_and_arrays(run, tmp_path):
    out, _ = run
    assert unpose("export", out, "--to", "csv", "-o", tmp_path / "t.csv").status == 0
    assert (tmp_path / "t.csv").read_bytes() == (out / "labels.csv").read_bytes()
    told = unpose("export", out, "--to", "npz", "-o", tmp_path / "x.npz", "--json").json
    assert (told["images"], told["out"]) == (24, str(tmp_path / "x.npz"))
    with np.load(tmp_path / "x.npz") as arrays:
        model = InvariantClustering.load(out)
        assert arrays["aligned"].shape == (24, 26, 26)
        assert (arrays["labels"] == model.labels_).all()
        for label in range(3):
            mean = arrays["aligned"][arrays["labels"] == label].mean(0)
            assert np.abs(mean - arrays["means"][label]).max() < 1e-5


def test_export_sorts_copies_into_folders_and_never_leaves_them(run, shapes, tmp_path):
    out, _ = run
    before = {path: path.stat().st_mtime_ns for path in shapes.rglob("*")}
    done = unpose("export", out, "--to", "folders", "-o", tmp_path / "sorted")
    assert done.status == 0, done.output
    copies = sorted(path for path in (tmp_path / "sorted").rglob("*") if path.is_file())
    assert len(copies) == 24
    assert {path.parent.parent for path in copies} == {tmp_path / "sorted"}
    originals = {path.read_bytes() for path in shapes.rglob("*.png")}
    assert all(path.read_bytes() in originals for path in copies)
    assert all(re.fullmatch(r"[0-9]{6}-[\w. -]+", path.name) for path in copies)
    done = unpose("export", out, "--to", "folders", "-o", tmp_path / "sorted", "--aligned", "--force")
    assert done.status == 0, done.output
    stack = [np.asarray(Image.open(path)) for path in (tmp_path / "sorted" / "cluster-000").iterdir()]
    assert np.stack(stack).std(0).mean() < 12  # of 255: they are upright
    assert {path: path.stat().st_mtime_ns for path in shapes.rglob("*")} == before


def test_names_of_groups_become_safe_names_of_folders(run, tmp_path):
    copy = shutil.copytree(run[0], run[0].with_name("renamed"))  # as far from its images as the run
    about = json.loads((copy / "images.json").read_text())
    hostile = ["../../etc/passwd", "..", ".", "a/b", "C:\\x", "con\x01", "x" * 400 + ".png", "~", "-rf"]
    for first in range(0, len(hostile), 3):
        (copy / "images.json").write_text(json.dumps(about | {"cluster_names": hostile[first : first + 3]}))
        done = unpose("export", copy, "--to", "folders", "-o", tmp_path / "deep" / "sorted", "--force")
        assert done.status == 0, done.output
        names = [path.name for path in (tmp_path / "deep" / "sorted").iterdir()]
        assert len(names) == 3
        assert all(len(name) < 140 and "\\" not in name for name in names)
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["sorted"]
        assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_export_to_star_follows_relions_convention(run, tmp_path):
    """RELION moves by the origin, then turns by psi with [[cos, -sin], [sin, cos]], y down: the same map as a pose."""
    out, _ = run
    assert unpose("export", out, "--to", "star", "-o", tmp_path / "x.star", "--pixel-size", "2").status == 0
    lines = (tmp_path / "x.star").read_text().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("_")] == [
        "_rlnImageName", "_rlnClassNumber", "_rlnAnglePsi", "_rlnOriginXAngst", "_rlnOriginYAngst",
    ]  # fmt: skip
    rows = [line for line in lines if line.startswith(("/", '"', "'"))]
    model = InvariantClustering.load(out)
    assert len(rows) == 24
    for row, pose, label in zip(rows, model.poses_, model.labels_, strict=True):
        number, psi, x, y = (float(value) for value in row.split()[-4:])
        turn = np.radians(psi)
        matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        assert number == label + 1
        assert np.abs(matrix - pose[:2, :2]).max() < 1e-4
        assert np.abs(matrix @ [x / 2, y / 2] - pose[:2, 2]).max() < 1e-4


def test_origins_are_in_pixels_of_the_files_where_these_have_one_size(run, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(run[0], out)
    about = json.loads((out / "images.json").read_text())
    assert about["source_shape"] == [26, 26]

    def origins(name, stored):
        (out / "images.json").write_text(json.dumps(about | {"source_shape": stored}))
        done = unpose("export", out, "--to", "star", "-o", tmp_path / name)
        assert done.status == 0, done.output
        rows = [line.split()[-2:] for line in (tmp_path / name).read_text().splitlines() if "shapes" in line]
        return np.array(rows, float), done.output

    same, said = origins("same.star", [26, 26])
    assert "several sizes" not in said
    assert np.abs(origins("thrice.star", [78, 78])[0] - 3 * same).max() < 1e-5
    mixed, said = origins("mixed.star", None)
    np.testing.assert_array_equal(mixed, same)
    assert "pixels of the canvas" in said


def test_a_changed_input_is_not_exported_as_the_old_one(run, shapes, tmp_path, new_shapes):
    out, _ = run
    done = unpose("export", out, "--to", "npz", "-o", tmp_path / "x.npz", "--images", new_shapes)
    assert done.status == 2
    assert "changed" in done.output
    assert not (tmp_path / "x.npz").exists()


def test_align_brings_one_thing_together(shapes, tmp_path):
    done = unpose("align", str(shapes / "hook"), "-o", str(tmp_path / "run"), "--json")
    assert done.status == 0, done.output
    told = done.json
    assert told["images"] == 8
    aligned = np.load(tmp_path / "run" / "aligned.npy")
    assert aligned.shape == (8, 26, 26)
    assert aligned.std(0).mean() < 0.05
    mean = np.asarray(Image.open(tmp_path / "run" / "mean.png")) / 255
    assert np.abs(aligned.mean(0).clip(0, 1) - mean).max() < 0.01
    assert len(table((tmp_path / "run" / "poses.csv").read_text())) == 8


def test_aligned_images_keep_a_light_background(tmp_path, rng):
    """Means and aligned images keep the background of the photographs, also where a turn uncovers it."""
    folder = tmp_path / "paper"
    folder.mkdir()
    for number in range(6):
        page = np.full((31, 31), 230, np.uint8)
        page[8:23, 13:17] = page[8:12, 13:22] = 20
        Image.fromarray(page).rotate(60 * number, fillcolor=230, resample=Image.Resampling.BICUBIC).save(
            folder / f"{number}.png"
        )
    assert unpose("align", folder, "-o", tmp_path / "run").status == 0
    aligned = np.load(tmp_path / "run" / "aligned.npy")
    corners = aligned[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert np.abs(corners - 230 / 255).max() < 0.02
    assert np.asarray(Image.open(tmp_path / "run" / "mean.png")).min() < 60


def test_any_unicode_in_a_path_survives_config_toml(new_shapes, tmp_path):
    source, out = tmp_path / "em\U0001f600 \u00e9\x7f", tmp_path / "run"
    shutil.copytree(new_shapes, source)
    assert unpose("cluster", source, "-o", out, "--clusters", 3).status == 0
    done = unpose("report", out)
    assert done.status == 0, done.output
    assert unpose("cluster", source, "-o", out, "--clusters", 3, "--resume").status == 0
