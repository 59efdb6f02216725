"""Nothing is replaced unasked: own files, earlier results, other runs. Errors are one line."""

import json
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from unpose.cli import main
from unpose.runs import RunError
from unpose.runs.folder import folder_lock


def unpose(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def words(text):
    return " ".join(text.replace("│", " ").split())


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(done, *messages):
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    for message in messages:
        assert message in words(done.output)


@pytest.fixture(scope="module")
def run(new_shapes, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert unpose("cluster", new_shapes, "-o", out, "--clusters", 3).exit_code == 0
    return out


@pytest.fixture(scope="module")
def aligned(new_shapes, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "aligned"
    assert unpose("align", new_shapes / "hook", "-o", out).exit_code == 0
    return out


@pytest.fixture(scope="module")
def black(tmp_path_factory):
    folder = tmp_path_factory.mktemp("input") / "black"
    folder.mkdir()
    for number in range(5):
        Image.fromarray(np.zeros((26, 26), np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def some_black(new_shapes, black, tmp_path_factory):
    """Two hooks, two black images, a text."""
    folder = tmp_path_factory.mktemp("input") / "some"
    shutil.copytree(new_shapes / "hook", folder)
    for number in range(2):
        shutil.copy(black / "0.png", folder / f"black{number}.png")
    (folder / "notes.txt").write_text("words")
    return folder


@pytest.mark.parametrize("command", ["cluster", "align"])
@pytest.mark.parametrize(
    "config", [None, "clusters = 3\n", "[made]\nby = 'me'\n", "clusters = [", 'name = "a recipe"\n']
)
def test_force_replaces_runs_and_nothing_else(new_shapes, tmp_path, command, config):
    mine = tmp_path / "mine"
    (mine / "means").mkdir(parents=True)
    for name in ("labels.csv", "poses.csv", "report.html", "log.txt", ".draft.tmp", "means/cluster-000.png"):
        (mine / name).write_text("dear")
    if config is not None:
        (mine / "config.toml").write_text(config)
    before = contents(mine)
    refused(unpose(command, new_shapes, "-o", mine, "--force"), "holds no run, and --force replaces nothing else")
    assert contents(mine) == before
    assert not (mine / ".pieces").exists()


def test_force_replaces_a_run_and_keeps_what_lies_beside_it(run, new_shapes, black, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(run, out)
    (out / "mine.txt").write_text("dear")
    assert unpose("align", new_shapes / "hook", "-o", out, "--force").exit_code == 0
    assert (out / "mine.txt").read_text() == "dear"
    assert not (out / "labels.csv").exists()
    assert not (out / "means").exists()
    (out / "mine.txt").unlink()
    refused(unpose("cluster", black, "-o", out, "--force"), "all constant")
    assert not out.exists()  # and not a folder that is not empty and that no --force takes


def test_predictions_replace_no_file_unasked(run, new_shapes, tmp_path):
    for number, arguments in enumerate(([run, new_shapes], ["--model", "mnist-c8", new_shapes])):
        out = tmp_path / f"{number}.csv"
        out.write_text("dear")
        refused(unpose("predict", *arguments, "-o", out), "already exists", "--force")
        assert out.read_text() == "dear"
        done = unpose("predict", *arguments, "-o", out, "--force")
        assert done.exit_code == 0, done.output
        assert len(out.read_text().splitlines()) == 7


def test_plots_of_audits_replace_no_file_unasked(tmp_path):
    out = tmp_path / "audit.png"
    out.write_text("dear")
    refused(unpose("audit", "mnist-c8", "-o", out), "already exists", "--force")
    assert out.read_text() == "dear"
    refused(unpose("audit", "mnist-c8", "-o", tmp_path / "audit.jpg"), ".png")
    assert not (tmp_path / "audit.jpg").exists()


@pytest.mark.parametrize("command", ["predict", "export", "report"])
def test_pipes_are_written_to_and_not_replaced(run, new_shapes, tmp_path, command):
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()), daemon=True)
    reader.start()
    rest = {"predict": [new_shapes], "export": ["--to", "csv"], "report": []}[command]
    done = unpose(command, run, *rest, "-o", pipe)
    assert done.exit_code == 0, done.output
    reader.join()
    assert len(heard[0]) > 200
    assert pipe.is_fifo()


@pytest.mark.slow
def test_stdout_given_by_name_receives_only_the_table(run, new_shapes, tmp_path):
    """As `unpose predict RUN IMAGES -o /dev/fd/1 > FILE`, through a link that a mistake of ours could not harm."""
    (tmp_path / "stdout").symlink_to("/dev/fd/1")
    with (tmp_path / "x.csv").open("w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "unpose", "predict", run, new_shapes, "-o", tmp_path / "stdout"],
            stdout=file, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("path,")
    assert (tmp_path / "stdout").is_symlink()


def test_missing_folders_are_created(run, tmp_path):
    for form in ("csv", "star", "npz", "folders"):
        out = tmp_path / form / "deep" / "out"
        done = unpose("export", run, "--to", form, "-o", out)
        assert done.exit_code == 0, done.output
        assert out.exists()
    assert unpose("report", run, "-o", tmp_path / "page" / "deep" / "page.html").exit_code == 0
    (tmp_path / "file").write_text("dear")
    for arguments in (["export", run, "--to", "csv"], ["export", run, "--to", "folders"], ["report", run]):
        refused(unpose(*arguments, "-o", tmp_path / "file" / "x"), "cannot write")
    refused(unpose("export", run, "--to", "csv", "-o", tmp_path / "csv", "--force"), "Is a directory")
    assert not list(tmp_path.glob(".*"))


def test_the_demonstration_never_replaces_other_files(tmp_path, monkeypatch):
    from unpose.cli.commands import demo

    monkeypatch.setattr(demo, "_IMAGES_PER_DIGIT", 2)
    monkeypatch.setattr(demo, "run_cluster", lambda images, *_, **__: {"images": len(list(images.rglob("*.png")))})
    mine = tmp_path / "demo" / "digits" / "0"
    mine.mkdir(parents=True)
    for name in ("000.png", "holiday.png"):
        Image.fromarray(np.zeros((44, 44), np.uint8)).save(mine / name)
        before = contents(tmp_path)
        refused(unpose("demo", "-o", tmp_path / "demo"), name, "which no demonstration wrote")
        assert contents(tmp_path) == before
        (mine / name).unlink()
    (mine / "link").symlink_to(tmp_path)
    refused(unpose("demo", "-o", tmp_path / "demo"), "link")
    (mine / "link").unlink()
    for seed in (0, 1):
        done = unpose("demo", "-o", tmp_path / "demo", "--seed", seed, "--force", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["images"] == 20


def test_resume_accepts_a_finished_run_only_if_it_is_the_same(run, aligned, new_shapes, shapes):
    before = contents(run) | contents(aligned)
    same = unpose("cluster", new_shapes, "-o", run, "--clusters", 3, "--resume", "--jobs", 1, "--json")
    assert same.exit_code == 0, same.output
    assert "already finished" in same.stderr
    assert json.loads(same.stdout)["clusters"] == 3
    refused(unpose("cluster", new_shapes, "-o", run, "-k", 2, "--resume"), "--clusters 3, not 2")
    refused(unpose("cluster", shapes, "-o", run, "-k", 3, "--resume"), "with other images")
    refused(
        unpose("cluster", new_shapes / "hook", "-o", aligned, "--resume"), "by `unpose align`, not `unpose cluster`"
    )
    refused(unpose("align", new_shapes, "-o", run, "--resume"), "by `unpose cluster`, not `unpose align`")
    same = unpose("align", new_shapes / "hook", "-o", aligned, "--resume", "--json")
    assert same.exit_code == 0, same.output
    assert "already finished" in same.stderr
    assert json.loads(same.stdout)["images"] == 2
    refused(unpose("align", new_shapes / "frame", "-o", aligned, "--resume"), "with other images")
    refused(unpose("align", new_shapes / "hook", "-o", aligned, "--resume", "--seed", 4), "--seed 0, not 4")
    assert contents(run) | contents(aligned) == before


def test_commands_that_need_clusters_refuse_a_run_of_align(aligned, new_shapes, tmp_path):
    for arguments in (["report", aligned], ["predict", aligned, new_shapes],
                      ["export", aligned, "--to", "csv", "-o", tmp_path / "x"]):  # fmt: skip
        refused(unpose(*arguments), "a run of `unpose align`", "aligned.npy", "needs a run of `unpose cluster`")


def test_a_refused_export_leaves_no_copy_and_removes_only_exports(run, new_shapes, tmp_path):
    out = tmp_path / "sorted"
    assert unpose("export", run, "--to", "folders", "-o", out).exit_code == 0
    again = ["export", run, "--to", "folders", "-o", out, "--force"]
    assert unpose(*again).exit_code == 0
    for name in ("mine.txt", "cluster-notes", "cluster-000/mine.png"):
        (out / name).write_text("dear")
        before = contents(tmp_path)
        refused(unpose(*again), "which no export wrote")
        assert contents(tmp_path) == before
        (out / name).unlink()
    (tmp_path / ".sorted.tmp").mkdir()
    (tmp_path / ".sorted.tmp" / "mine.txt").write_text("dear")
    refused(unpose(*again, "--images", tmp_path / "sorted"), "changed since the run")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".sorted.tmp", "sorted"]
    assert unpose(*again).exit_code == 0
    assert (tmp_path / ".sorted.tmp" / "mine.txt").exists()
    (tmp_path / "file").write_text("dear")
    refused(unpose("export", run, "--to", "folders", "-o", tmp_path / "file", "--force"), "is a file")


def test_constant_images_are_counted(black, some_black, tmp_path):
    refused(unpose("align", black, "-o", tmp_path / "no"), "none of the 5 images shows anything")
    assert not (tmp_path / "no").exists()
    done = unpose("align", some_black, "-o", tmp_path / "aligned")
    assert done.exit_code == 0, done.output
    assert "4 images aligned" in done.stdout
    assert "2 images constant, with nothing to align" in done.stdout
    assert "1 file ignored" in done.stdout
    told = json.loads(unpose("align", some_black, "-o", tmp_path / "aligned", "--force", "--json").stdout)
    assert (told["images"], told["constant"], told["rejected"]) == (4, 2, 0)
    assert "1 file ignored" in told["notes"][0]
    done = unpose("cluster", some_black, "-o", tmp_path / "run", "-k", 1)
    assert done.exit_code == 0, done.output
    assert "4 images, 1 group." in done.stdout
    assert "2 images in no group: constant" in done.stdout


def test_unreadable_images_of_a_stack_are_counted(tmp_path, rng):
    stack = rng.random((6, 17, 17))
    stack[1, 3, 3] = stack[4, 2, 2] = np.nan
    np.save(tmp_path / "stack.npy", stack)
    done = unpose("cluster", tmp_path / "stack.npy", "-o", tmp_path / "run", "-k", 1)
    assert done.exit_code == 0, done.output
    assert "2 images could not be read" in done.stdout
    done = unpose("predict", tmp_path / "run", tmp_path / "stack.npy", "-o", tmp_path / "x.csv")
    assert "Wrote the results of 4 images to" in done.stdout


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RuntimeError("out of luck\nand more"), 1, "failed: out of luck; this is a fault of unpose, "),
        (MemoryError(), 1, "failed: MemoryError; "),
        (OSError(28, "No space left on device"), 1, "No space left"),
        (ValueError("cannot reshape array"), 1, "failed: cannot reshape array; this is a fault of unpose, "),
        (RunError("images must be numbers"), 2, "images must be numbers"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "predict --model", "export", "audit", "cluster"])
def test_unexpected_errors_are_one_line(run, new_shapes, tmp_path, monkeypatch, command, error, status, message):
    def break_down(*_args, **_options):
        raise error

    monkeypatch.setattr("unpose.data.read_folder", break_down)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arguments = {
        "predict": ["predict", run, new_shapes], "predict --model": ["predict", "--model", "mnist-c8", new_shapes],
        "export": ["export", run, "--to", "npz", "-o", tmp_path / "x.npz"],
        "audit": ["audit", "mnist-c8", "--images", new_shapes],
        "cluster": ["cluster", new_shapes, "-o", tmp_path / "x"],
    }[command]  # fmt: skip
    done = unpose(*arguments)
    assert done.exit_code == status, done.output
    assert message in words(done.stderr)
    assert "Traceback" not in done.output
    assert isinstance(done.exception, SystemExit)
    logs = list(tmp_path.glob("unpose-*.log"))
    assert len(logs) == ("failed" in message)
    assert all(str(log) in done.stderr.replace("\n", "") and "Traceback" in log.read_text() for log in logs)


@pytest.mark.parametrize("device", ["mps", "gpu", "CPU", "meta", "cuda:99", "abacus"])
def test_unavailable_devices_are_refused(run, new_shapes, tmp_path, device):
    for arguments in (["predict", run, new_shapes], ["cluster", new_shapes, "-o", tmp_path / "x"],
                      ["predict", "--model", "mnist-c8", new_shapes]):  # fmt: skip
        done = unpose(*arguments, "--device", device)
        refused(done, f"'{device}' cannot be used here; available: cpu")
        assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-k", "abc"], "auto"),
        (["-k", "0"], "auto"),
        (["--memory", "1MB"], "at least 1MiB"),
        (["--group", "so3"], "one of them with +mirror, or auto, got 'so3'"),
        (["--crop", "nan"], "nan is not a finite number"),
        (["--max-shift", "inf"], "inf is not a finite number"),
        (["--jobs", "999999999"], "1<=x<=1024"),
        (["--seed", str(2**40)], "0<=x<=4294967295"),
        (["--labels", "/dev/zero"], "/dev/zero must be a regular file"),
        (["--config", "/dev/zero"], "/dev/zero must be a regular file"),
    ],
)  # fmt: skip
def test_messages_for_wrong_values_give_the_right_ones(new_shapes, tmp_path, arguments, message):
    done = unpose("cluster", new_shapes, "-o", tmp_path / "x", *arguments)
    refused(done, message)
    assert "dilations" not in done.output


WORK_ON_IMAGES = [
    ["dedupe"],
    ["audit", "mnist-c8", "--force", "--images"],
    ["adapt", "mnist-c8", "--steps", 0, "--force", "--images"],
]


@pytest.mark.parametrize("command", WORK_ON_IMAGES, ids=lambda command: command[0])
@pytest.mark.parametrize("stranger", ["a run of cluster", "audit.json", "card.json", "state.json"])
def test_results_never_go_into_a_folder_that_holds_anything_else(run, new_shapes, tmp_path, command, stranger):
    out = tmp_path / "taken"
    if stranger == "a run of cluster":
        shutil.copytree(run, out)
    else:
        out.mkdir()
        (out / stranger).write_text("{}")
        (out / "report.html").write_text("dear")
    before = contents(out)
    refused(unpose(*command, new_shapes, "-o", out), "is not empty and holds no results of `unpose")
    assert contents(out) == before


@pytest.mark.parametrize(
    "command",
    [["cluster"], *WORK_ON_IMAGES, ["train"], ["train", "--quick", "--force"], ["train", "--unlabelled", "--force"]],
    ids=str,
)
def test_results_and_images_never_contain_each_other(new_shapes, tmp_path, command):
    images = tmp_path / "all" / "images"
    shutil.copytree(new_shapes, images)
    before = contents(tmp_path)
    for out in (images / "results", tmp_path / "all"):
        refused(unpose(*command, images, "-o", out), "must not contain each other")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("command", [*WORK_ON_IMAGES, ["train", "--quick"], ["train", "--unlabelled"]], ids=str)
def test_two_processes_never_write_into_one_folder(new_shapes, tmp_path, command):
    with folder_lock(tmp_path / "out"):
        refused(unpose(*command, new_shapes, "-o", tmp_path / "out"), "another unpose")
    assert not (tmp_path / "out").exists()


def test_train_replaces_runs_and_nothing_else(tmp_path):
    for name, content in (("log.csv", "dear"), ("model.safetensors", "dear"), ("config.toml", "epoch = 3\n")):
        (tmp_path / name).write_text(content)
        before = contents(tmp_path)
        refused(unpose("train", "--recipe", "digits", "-o", tmp_path), "holds no run; give another folder")
        refused(unpose("train", "--recipe", "digits", "-o", tmp_path, "--force"), "--force replaces nothing else")
        assert contents(tmp_path) == before
    (tmp_path / "config.toml").write_text(unpose("train", "--recipe", "digits", "--print").stdout)
    done = unpose("train", "--recipe", "digits", "-o", tmp_path)
    refused(done, f"--resume {tmp_path} to continue it, or --force to replace it")


def test_a_stopped_run_says_whether_anything_is_kept(new_shapes, tmp_path, monkeypatch):
    from unpose.runs.folder import RunFolder

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "load", interrupt)
        done = unpose("cluster", new_shapes, "-o", tmp_path / "run")
    assert done.exit_code == 130
    assert "before any stage was finished" in done.stderr
    with monkeypatch.context() as patch:
        patch.setattr("unpose.cli.commands.cluster.write_run", interrupt)
        done = unpose("cluster", new_shapes, "-o", tmp_path / "run")
    assert done.exit_code == 130
    assert "finished stages are kept" in done.stderr
