"""A run that is stopped at any moment continues to the same bytes; two runs never write into one folder."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from unpose.cli import main

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "tool.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
KILLS = 5
EXEMPT = {"log.txt"}


def unpose(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in EXEMPT
    }


@pytest.fixture(scope="module")
def undisturbed(new_shapes, tmp_path_factory):
    """The files of a run that nothing disturbs."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    done = unpose("cluster", new_shapes, "-o", out)
    assert done.exit_code == 0, done.output
    return contents(out)


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_in_the_same_bytes(tmp_path):
    """Some of the kills that the benchmark does by the hundred."""
    counted = tmp_path / "kills.json"
    command = [sys.executable, str(BENCHMARK), "kills", "--count", str(KILLS), "--out", str(counted)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    told = json.loads(counted.read_text())
    assert (told["kills"], told["corrupt"], told["different"]) == (KILLS, [], [])
    assert told["runs"] >= 1


def test_a_run_stopped_after_any_stage_ends_in_the_same_bytes(undisturbed, new_shapes, tmp_path, monkeypatch):
    """Stop after each stage in turn, which random moments are not sure to hit."""
    from unpose.runs.folder import RunFolder

    out = tmp_path / "run"
    store, stopped = RunFolder.store, []

    def store_and_stop(self, name, arrays):
        store(self, name, arrays)
        stopped.append(name)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "store", store_and_stop)
    while (done := unpose("cluster", new_shapes, "-o", out)).exit_code == 130:
        assert f"unpose cluster {new_shapes} -o {out}" in done.output.replace("\n", " ")
        assert len(stopped) < 30
    assert done.exit_code == 0, done.output
    assert len(stopped) == len(set(stopped)) >= 4  # no stage was done twice
    assert contents(out) == undisturbed


# The command as it is, but where it first looks for an earlier result it says so and waits for the signal.
WAITING = """
import signal
from unpose.cli import main
from unpose.runs.folder import RunFolder
RunFolder.load = lambda *_: (print("waiting", flush=True), signal.pause())
main()
"""


@pytest.mark.slow
def test_ctrl_c_gives_the_command_that_continues(new_shapes, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, "cluster", str(new_shapes), "-o", str(out), "--clusters", "3"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        # Tests that a shell started in the background inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert f"unpose cluster {new_shapes} -o {out} --clusters 3" in said
    assert "Traceback" not in said


def begin(images, out, monkeypatch):
    """A run that stopped early."""
    from unpose.runs.folder import RunFolder

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "load", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert unpose("cluster", images, "-o", out).exit_code == 130


def test_only_the_same_run_continues(new_shapes, tmp_path, monkeypatch):
    source, out = tmp_path / "input", tmp_path / "run"
    shutil.copytree(new_shapes, source)
    begin(source, out, monkeypatch)
    done = unpose("cluster", source, "-o", out, "--clusters", "2")
    assert done.exit_code == 2
    assert "--clusters auto, not 2" in done.output
    assert "unpose cluster" in unpose("align", source, "-o", out).output
    picture = next(source.rglob("*.png"))
    os.utime(picture, (1, 1))  # a new date alone changes nothing
    picture.rename(picture.with_name("other.png"))
    done = unpose("cluster", source, "-o", out, "--resume")
    assert done.exit_code == 2
    assert "input has changed" in done.output
    picture.with_name("other.png").rename(picture)
    for name in ("export", "predict", "report"):
        rest = {"export": [out, "--to", "csv", "-o", tmp_path / "x"], "predict": [out, source], "report": [out]}[name]
        refused = unpose(name, *rest)
        assert refused.exit_code == 2
        assert "unfinished" in refused.output
    assert unpose("cluster", source, "-o", out, "--jobs", "1", "--resume").exit_code == 0
    assert not (out / ".pieces").exists()


def test_files_left_by_a_killed_process_are_removed(new_shapes, tmp_path, monkeypatch):
    out = tmp_path / "run"
    begin(new_shapes, out, monkeypatch)
    (out / "means").mkdir()
    for stale in (".labels.csv.x1.tmp", "means/.cluster-000.png.x2.tmp", ".pieces/.search.x3.tmp"):
        (out / stale).write_bytes(b"half")
    (out / "means" / "cluster-099.png").write_bytes(b"of an earlier run")
    (out / ".lock").write_text("1\n")  # a process that exists, a lock that nobody holds
    assert unpose("cluster", new_shapes, "-o", out).exit_code == 0
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp") or "099" in path.name]


def test_two_runs_never_share_a_folder(new_shapes, tmp_path, monkeypatch):
    import fcntl

    out = tmp_path / "run"
    begin(new_shapes, out, monkeypatch)
    before = json.loads((out / ".pieces" / "begun.json").read_text())
    with (out / ".lock").open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for arguments in ([], ["--force"], ["--resume"]):
            done = unpose("cluster", new_shapes, "-o", out, *arguments)
            assert done.exit_code == 2
            assert "another unpose" in done.output
    assert json.loads((out / ".pieces" / "begun.json").read_text()) == before
    assert unpose("cluster", new_shapes, "-o", out).exit_code == 0


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_failure_is_one_line_and_the_log_has_the_rest(new_shapes, tmp_path, monkeypatch, kind):
    from unpose.cluster import InvariantClustering

    def break_down(*_args, **_options):
        raise kind("out of luck\nand more")

    monkeypatch.setattr(InvariantClustering, "fit", break_down)
    done = unpose("cluster", new_shapes, "-o", tmp_path / "run")
    assert done.exit_code == 1
    assert "out of luck" in done.output
    assert "a fault of unpose" in " ".join(done.output.split())
    assert "Traceback" not in done.output
    assert "Traceback" in (tmp_path / "run" / "log.txt").read_text()
