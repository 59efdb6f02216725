"""The run folder: one writer at a time, continued runs, and files that are never replaced."""

import contextlib
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from unpose.runs import RunError, RunSettings
from unpose.runs.folder import RunFolder, fingerprint

SETTINGS = RunSettings(clusters=2)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def test_a_stopped_run_continues_from_its_checkpoints(folder, images):
    arrays = {"x": np.arange(6).reshape(2, 3).T}
    with contextlib.suppress(KeyboardInterrupt), folder.begin("cluster", SETTINGS, images[1], force=False):
        folder.store("search", arrays)
        raise KeyboardInterrupt
    assert folder.is_unfinished
    assert folder.has_checkpoints
    with folder.begin("cluster", SETTINGS, images[1], force=False):
        np.testing.assert_array_equal(folder.load("search")["x"], arrays["x"])
        assert folder.load("refine") is None
        folder.write_config(SETTINGS, images[0], images[1], fingerprint(images[1]))
        folder.finish()
    assert not folder.is_unfinished
    assert folder.finished_config().settings == SETTINGS
    folder.check_same(folder.finished_config(), "cluster", replace(SETTINGS, jobs=1), images[1])
    with pytest.raises(RunError, match="--clusters 2, not 3"):
        folder.check_same(folder.finished_config(), "cluster", replace(SETTINGS, clusters=3), images[1])
    with pytest.raises(RunError, match="finished run"):
        folder.check(images[0], force=False, resume=False)


def test_a_different_run_does_not_continue(folder, images):
    with pytest.raises(KeyboardInterrupt), folder.begin("cluster", SETTINGS, images[1], force=False):
        raise KeyboardInterrupt
    with pytest.raises(RunError, match="by `unpose cluster`"), folder.begin("align", SETTINGS, images[1], force=False):
        pass
    with folder.begin("align", SETTINGS, images[1], force=True):
        assert not folder.has_checkpoints


def test_two_processes_never_share_a_folder(folder, images):
    with folder.begin("cluster", SETTINGS, images[1], force=False):
        with pytest.raises(RunError, match="another unpose"):
            folder.begin("cluster", SETTINGS, images[1], force=False).__enter__()
        assert folder.is_unfinished


def test_a_run_refused_at_once_leaves_no_trace(folder, images):
    with contextlib.suppress(ValueError), folder.begin("cluster", SETTINGS, images[1], force=False):
        folder.log("began")
        raise RunError("wrong")
    assert not folder.path.exists()


@pytest.mark.parametrize("is_learnt", [True, False])
def test_an_encoder_that_was_learnt_outlives_the_refusal_of_its_run(folder, images, is_learnt):
    with contextlib.suppress(ValueError), folder.begin("cluster", SETTINGS, images[1], force=False):
        (folder.path / "encoder").mkdir()
        (folder.path / "encoder" / ("result.json" if is_learnt else "log.csv")).write_text("{}")
        raise RunError("more memory is needed than --memory allows")
    assert folder.path.exists() is is_learnt
    for resume, force in ((False, False), (is_learnt, False), (False, True)):
        folder.check(images[0], force=force, resume=resume)


@pytest.mark.parametrize("name", ["labels", "features"])
def test_a_run_continues_only_with_the_same_content_of_the_files_that_it_names(folder, images, tmp_path, name):
    (tmp_path / "named").mkdir()
    file = tmp_path / "named" / ("model.safetensors" if name == "features" else "known.csv")
    file.write_text("path,class\na.png,cat\n")
    settings = replace(SETTINGS, **{name: str(file.parent if name == "features" else file)})
    with contextlib.suppress(KeyboardInterrupt), folder.begin("cluster", settings, images[1], force=False):
        raise KeyboardInterrupt
    with folder.begin("cluster", settings, images[1], force=False):
        folder.write_config(settings, images[0], images[1], fingerprint(images[1]))
        before = file.read_text()
        file.write_text("path,class\na.png,dog\n")
    with pytest.raises(RunError, match=f"another content of --{name} .*has changed since"):
        folder.begin("cluster", settings, images[1], force=False).__enter__()
    folder.finish()
    config = folder.finished_config()
    with pytest.raises(RunError, match=f"another content of --{name} .*has changed since"):
        folder.check_same(config, "cluster", settings, images[1])
    file.write_text(before)
    folder.check_same(config, "cluster", settings, images[1])


def test_a_run_that_a_fault_of_ours_ends_keeps_its_log(folder, images):
    with contextlib.suppress(ValueError), folder.begin("cluster", SETTINGS, images[1], force=False):
        folder.log("began")
        np.zeros(3).reshape(2, 2)
    assert "began" in (folder.path / "log.txt").read_text()


def test_files_that_no_run_wrote_are_never_replaced(folder, images):
    folder.path.mkdir()
    (folder.path / "labels.csv").write_text("mine")
    for force in (False, True):
        with pytest.raises(RunError, match="holds no run"):
            folder.check(images[0], force=force, resume=False)
        with pytest.raises(RunError, match="holds no run"):
            folder.begin("cluster", SETTINGS, images[1], force=force).__enter__()
    assert [path.name for path in folder.path.iterdir()] == ["labels.csv"]


def test_the_fingerprint_sees_pixels_and_names(images):
    found = images[1]
    assert fingerprint(found) == fingerprint(replace(found))
    assert fingerprint(replace(found, images=found.images + 1)) != fingerprint(found)
    assert fingerprint(replace(found, names=found.names[::-1])) != fingerprint(found)


def test_checkpoints_left_by_a_kill_in_the_last_instant_are_removed(folder, images, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    with folder.begin("cluster", SETTINGS, images[1], force=False):
        folder.store("search", {"x": np.arange(3)})
        folder.write_config(SETTINGS, images[0], images[1], fingerprint(images[1]))
        with monkeypatch.context() as patched:
            patched.setattr("shutil.rmtree", killed)
            with pytest.raises(KeyboardInterrupt):
                folder.finish()
    assert [path.name for path in folder.path.glob(".pieces*")] != []
    with pytest.raises(RunError, match="holds a finished run"):
        folder.check(images[0], force=False, resume=False)
    assert list(folder.path.glob(".pieces*")) == []


# Each run is killed before another one of its actions on files: of all that write results, or of those that end it.
KILLED = """
import hashlib, os, sys
from pathlib import Path
import numpy as np
from unpose.cluster import InvariantClustering
from unpose.data import read_folder
from unpose.runs import RunError, RunSettings, write_run
from unpose.runs.folder import RunFolder, fingerprint

file, finished, place = map(Path, sys.argv[1:4])
images, settings, arrays = read_folder(file), RunSettings(clusters=2), {"x": np.arange(6)}
model, digest = InvariantClustering.load(finished), fingerprint(images)

def end(folder):
    if sys.argv[4] == "all":
        write_run(folder.path, file, images, model, settings, "unpose cluster").write_page()
    else:
        folder.write_config(settings, file, images, digest)
    folder.finish()

def run_until(folder, left):
    with folder.begin("cluster", settings, images, force=False):
        folder.store("search", arrays)
        folder.store("refine", arrays)
        for name in ("mkdir", "replace", "unlink", "rmdir"):
            def mortal(*given, call=getattr(os, name), **options):
                nonlocal left
                if left == 0:
                    os._exit(9)
                left -= 1
                return call(*given, **options)
            setattr(os, name, mortal)
        end(folder)
    os._exit(0)

def contents(path):
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}

status, moment = 9, 0
while status:
    folder = RunFolder(place / str(moment))
    if (child := os.fork()) == 0:
        run_until(folder, moment)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if (again := os.fork()) == 0:  # so that this process stays without threads
        try:
            folder.check(file, force=False, resume=False)
            with folder.begin("cluster", settings, images, force=False):
                assert np.array_equal(folder.load("search")["x"], arrays["x"])
                end(folder)
            os._exit(0)
        except RunError as error:
            os._exit(1 if "holds a finished run" in str(error) else 2)
    state = os.waitstatus_to_exitcode(os.waitpid(again, 0)[1])
    written = hashlib.sha256(repr(sorted(contents(folder.path).items())).encode()).hexdigest()
    print(status, ["continues", "finished"][state], written, sorted(path.name for path in folder.path.iterdir()))
    moment += 1
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(("writes", "least"), [("last", 6), pytest.param("all", 20, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_of_its_writes_continues_or_is_finished_with_the_same_bytes(
    images, run, tmp_path, writes, least
):
    command = [sys.executable, "-c", KILLED, images[0], run.path, tmp_path, writes]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    assert len(told) > least
    assert {(status, state) for status, state, *_ in told} == {("9", "continues"), ("9", "finished"), ("0", "finished")}
    assert len({written for _, _, written, _ in told}) == 1
    (left,) = {names for *_, names in told}
    names = sorted(path.name for path in run.path.iterdir())
    assert left == str(names if writes == "all" else ["config.toml"])
