"""Nothing is replaced unasked: own files, earlier results, other runs. Errors are one line."""

import errno
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kit.commands import contents, refused, unpose, unpose_process
from kit.doubles import watching
from unpose.runs import RunError


@pytest.fixture(scope="module")
def run(new_shapes, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert unpose("cluster", new_shapes, "-o", out, "--clusters", 3).status == 0
    return out


@pytest.fixture(scope="module")
def aligned(new_shapes, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "aligned"
    assert unpose("align", new_shapes / "hook", "-o", out).status == 0
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


def test_force_replaces_a_run_and_keeps_what_lies_beside_it(run, new_shapes, black, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(run, out)
    (out / "mine.txt").write_text("dear")
    assert unpose("align", new_shapes / "hook", "-o", out, "--force").status == 0
    assert (out / "mine.txt").read_text() == "dear"
    assert not (out / "labels.csv").exists()
    assert not (out / "means").exists()
    (out / "mine.txt").unlink()
    refused(unpose("cluster", black, "-o", out, "--force"), "all constant")
    assert not out.exists()  # and not a folder that is not empty and that no --force takes


def test_plots_of_audits_are_png(tmp_path):
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
    assert done.status == 0, done.output
    reader.join()
    assert len(heard[0]) > 200
    assert pipe.is_fifo()


@pytest.mark.slow
def test_stdout_given_by_name_receives_only_the_table(run, new_shapes, tmp_path):
    """As `unpose predict RUN IMAGES -o /dev/fd/1 > FILE`, through a link that a mistake of ours could not harm."""
    (tmp_path / "stdout").symlink_to("/dev/fd/1")
    with (tmp_path / "x.csv").open("w") as file:
        done = unpose_process("predict", run, new_shapes, "-o", tmp_path / "stdout", stdout=file)
    assert done.status == 0, done.err
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("path,")
    assert (tmp_path / "stdout").is_symlink()


def test_missing_folders_are_created(run, tmp_path):
    for form in ("csv", "star", "npz", "folders"):
        out = tmp_path / form / "deep" / "out"
        done = unpose("export", run, "--to", form, "-o", out)
        assert done.status == 0, done.output
        assert out.exists()
    assert unpose("report", run, "-o", tmp_path / "page" / "deep" / "page.html").status == 0
    (tmp_path / "file").write_text("dear")
    for arguments in (["export", run, "--to", "csv"], ["export", run, "--to", "folders"], ["report", run]):
        refused(unpose(*arguments, "-o", tmp_path / "file" / "x"), "cannot write")
    refused(unpose("export", run, "--to", "csv", "-o", tmp_path / "csv", "--force"), "Is a directory")
    assert not list(tmp_path.glob(".*"))


def test_the_demonstration_never_replaces_other_files(tmp_path):
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


@pytest.mark.slow  # two runs on three hundred images
def test_the_demonstration_ends_with_a_page_and_replaces_its_own(tmp_path):
    for seed in (0, 1):
        done = unpose("demo", "-o", tmp_path / "demo", "--seed", seed, "--force", "--json")
        assert done.status == 0, done.output
        assert done.json["images"] == 300
        assert done.json["agreement"]["purity"] > 0.5
        assert Path(done.json["report"]).stat().st_size > 10_000
        refused(unpose("demo", "-o", tmp_path / "demo"), "--force")


def test_resume_accepts_a_finished_run_only_if_it_is_the_same(run, aligned, new_shapes, shapes):
    before = contents(run) | contents(aligned)
    same = unpose("cluster", new_shapes, "-o", run, "--clusters", 3, "--resume", "--jobs", 1, "--json")
    assert same.status == 0, same.output
    assert "already finished" in same.err
    assert same.json["clusters"] == 3
    refused(unpose("cluster", new_shapes, "-o", run, "-k", 2, "--resume"), "--clusters 3, not 2")
    refused(unpose("cluster", shapes, "-o", run, "-k", 3, "--resume"), "with other images")
    refused(
        unpose("cluster", new_shapes / "hook", "-o", aligned, "--resume"), "by `unpose align`, not `unpose cluster`"
    )
    refused(unpose("align", new_shapes, "-o", run, "--resume"), "by `unpose cluster`, not `unpose align`")
    same = unpose("align", new_shapes / "hook", "-o", aligned, "--resume", "--json")
    assert same.status == 0, same.output
    assert "already finished" in same.err
    assert same.json["images"] == 2
    refused(unpose("align", new_shapes / "frame", "-o", aligned, "--resume"), "with other images")
    refused(unpose("align", new_shapes / "hook", "-o", aligned, "--resume", "--seed", 4), "--seed 0, not 4")
    assert contents(run) | contents(aligned) == before


def test_commands_that_need_clusters_refuse_a_run_of_align(aligned, new_shapes, tmp_path):
    for arguments in (["report", aligned], ["predict", aligned, new_shapes],
                      ["export", aligned, "--to", "csv", "-o", tmp_path / "x"]):  # fmt: skip
        refused(unpose(*arguments), "a run of `unpose align`", "aligned.npy", "needs a run of `unpose cluster`")


def test_a_refused_export_leaves_no_copy_and_removes_only_exports(run, new_shapes, tmp_path):
    out = tmp_path / "sorted"
    assert unpose("export", run, "--to", "folders", "-o", out).status == 0
    again = ["export", run, "--to", "folders", "-o", out, "--force"]
    assert unpose(*again).status == 0
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
    assert unpose(*again).status == 0
    assert (tmp_path / ".sorted.tmp" / "mine.txt").exists()
    (tmp_path / "file").write_text("dear")
    refused(unpose("export", run, "--to", "folders", "-o", tmp_path / "file", "--force"), "is a file")


def test_constant_images_are_counted(black, some_black, tmp_path):
    refused(unpose("align", black, "-o", tmp_path / "no"), "none of the 5 images shows anything")
    assert not (tmp_path / "no").exists()
    done = unpose("align", some_black, "-o", tmp_path / "aligned")
    assert done.status == 0, done.output
    assert "4 images aligned" in done.out
    assert "2 images constant, with nothing to align" in done.out
    assert "1 file ignored" in done.out
    told = unpose("align", some_black, "-o", tmp_path / "aligned", "--force", "--json").json
    assert (told["images"], told["constant"], told["rejected"]) == (4, 2, 0)
    assert "1 file ignored" in told["notes"][0]
    done = unpose("cluster", some_black, "-o", tmp_path / "run", "-k", 1)
    assert done.status == 0, done.output
    assert "4 images, 1 group." in done.out
    assert "2 images in no group: constant" in done.out


def test_unreadable_images_of_a_stack_are_counted(tmp_path, rng):
    stack = rng.random((6, 17, 17))
    stack[1, 3, 3] = stack[4, 2, 2] = np.nan
    np.save(tmp_path / "stack.npy", stack)
    done = unpose("cluster", tmp_path / "stack.npy", "-o", tmp_path / "run", "-k", 1)
    assert done.status == 0, done.output
    assert "2 images could not be read" in done.out
    done = unpose("predict", tmp_path / "run", tmp_path / "stack.npy", "-o", tmp_path / "x.csv")
    assert "Wrote the results of 4 images to" in done.out


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RuntimeError("out of luck\nand more"), 1, "failed: out of luck; this is a fault of unpose, "),
        (MemoryError(), 1, "failed: MemoryError; "),
        (ValueError("cannot reshape array"), 1, "failed: cannot reshape array; this is a fault of unpose, "),
        (RunError("images must be numbers"), 2, "images must be numbers"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "predict --model", "export", "audit", "cluster"])
def test_unexpected_errors_are_one_line(run, new_shapes, tmp_path, command, error, status, message):
    """An operation of the system fails where the command looks for its images."""
    images = shutil.copytree(new_shapes, tmp_path / "images")
    arguments = {
        "predict": ["predict", run, images], "predict --model": ["predict", "--model", "mnist-c8", images],
        "export": ["export", run, "--to", "npz", "-o", tmp_path / "x.npz", "--images", images],
        "audit": ["audit", "mnist-c8", "--images", images], "cluster": ["cluster", images, "-o", tmp_path / "x"],
    }[command]  # fmt: skip

    def break_down(event, arguments):
        if event == "os.scandir" and str(arguments[0]) == str(images):
            raise error

    with watching(break_down):
        done = unpose(*arguments)
    assert done.status == status, done.output
    assert message in done.words
    assert "Traceback" not in done.output
    logs = re.findall(r"\S*unpose-\S*\.log", done.err.replace("\n", ""))
    assert len(logs) == ("failed" in message)
    for log in logs:
        assert "Traceback" in Path(log).read_text()
        Path(log).unlink()


@pytest.mark.parametrize("command", ["predict", "export", "cluster"])
def test_a_full_disk_is_said(run, new_shapes, tmp_path, command):
    out = tmp_path / "out"
    rest = {"predict": [run, new_shapes], "export": [run, "--to", "csv"], "cluster": [new_shapes]}[command]

    def fill(event, arguments):
        if event == "os.rename" and str(arguments[1]) in ("out", "labels.csv"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with watching(fill):
        done = unpose(command, *rest, "-o", out)
    assert done.status in (1, 2), done.output
    assert "No space left on device" in done.words
    assert "Traceback" not in done.output
    assert not out.is_file()


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
