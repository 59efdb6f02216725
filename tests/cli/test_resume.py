"""A run that is stopped at any moment continues to the same bytes; two runs never write into one folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.commands import contents, unpose
from kit.doubles import watching

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "tool.py"
KILLS = 5
EXEMPT = {"log.txt"}


@pytest.fixture(scope="module")
def undisturbed(new_shapes, tmp_path_factory):
    """The files of a run that nothing disturbs."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    done = unpose("cluster", new_shapes, "-o", out)
    assert done.status == 0, done.output
    return contents(out, EXEMPT)


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_in_the_same_bytes(tmp_path):
    """Some of the kills that the benchmark does by the hundred."""
    counted = tmp_path / "kills.json"
    command = [sys.executable, str(BENCHMARK), "kills", "--count", str(KILLS), "--out", str(counted)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(counted.read_text())
    assert (told["kills"], told["corrupt"], told["different"]) == (KILLS, [], [])
    assert told["runs"] >= 1


class StopAfter:
    """Presses Ctrl-C before a run keeps another stage than those it has kept, and so many more."""

    def __init__(self, more, error=KeyboardInterrupt):
        self.more, self.error, self.kept = more, error, []

    def __call__(self, event, arguments):
        if event == "os.rename" and (name := str(arguments[1])).endswith(".safetensors"):
            is_result = name in ("model.safetensors", "pictures.safetensors")
            if not is_result and self.more == 0:
                raise self.error
            self.more -= not is_result
            self.kept += [] if is_result else [name]


def test_a_run_stopped_before_any_stage_is_kept_ends_in_the_same_bytes(undisturbed, new_shapes, tmp_path):
    """Stop at each stage in turn, which random moments are not sure to hit."""
    out, kept, status = tmp_path / "run", [], 130
    while status == 130:
        stop = StopAfter(bool(kept))
        with watching(stop):
            done = unpose("cluster", new_shapes, "-o", out)
        status, kept = done.status, [*kept, *stop.kept] if kept else ["begun"]
        if status == 130:
            assert f"unpose cluster {new_shapes} -o {out}" in done.output.replace("\n", " ")
            assert ("finished stages are kept" in done.err) == (len(kept) > 1)
        assert len(kept) < 30
    assert status == 0, done.output
    assert len(kept) == len(set(kept)) > 4  # no stage was done twice
    assert contents(out, EXEMPT) == undisturbed


def begin(images, out):
    """A run that stopped early."""
    with watching(StopAfter(0)):
        done = unpose("cluster", images, "-o", out)
    assert done.status == 130
    assert "before any stage was finished" in done.err


def test_only_the_same_run_continues(new_shapes, tmp_path):
    source, out = tmp_path / "input", tmp_path / "run"
    shutil.copytree(new_shapes, source)
    begin(source, out)
    done = unpose("cluster", source, "-o", out, "--clusters", "2")
    assert done.status == 2
    assert "--clusters auto, not 2" in done.output
    assert "unpose cluster" in unpose("align", source, "-o", out).output
    picture = next(source.rglob("*.png"))
    os.utime(picture, (1, 1))  # a new date alone changes nothing
    picture.rename(picture.with_name("other.png"))
    done = unpose("cluster", source, "-o", out, "--resume")
    assert done.status == 2
    assert "input has changed" in done.output
    picture.with_name("other.png").rename(picture)
    for name in ("export", "predict", "report"):
        rest = {"export": [out, "--to", "csv", "-o", tmp_path / "x"], "predict": [out, source], "report": [out]}[name]
        refused = unpose(name, *rest)
        assert refused.status == 2
        assert "unfinished" in refused.output
    assert unpose("cluster", source, "-o", out, "--jobs", "1", "--resume").status == 0
    assert not (out / ".pieces").exists()


def test_files_left_by_a_killed_process_are_removed(new_shapes, tmp_path):
    out = tmp_path / "run"
    begin(new_shapes, out)
    (out / "means").mkdir()
    for stale in (".labels.csv.x1.tmp", "means/.cluster-000.png.x2.tmp", ".pieces/.search.x3.tmp"):
        (out / stale).write_bytes(b"half")
    (out / "means" / "cluster-099.png").write_bytes(b"of an earlier run")
    (out / ".lock").write_text("1\n")  # a process that exists, a lock that nobody holds
    assert unpose("cluster", new_shapes, "-o", out).status == 0
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp") or "099" in path.name]


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_failure_is_one_line_and_the_log_has_the_rest(new_shapes, tmp_path, kind):
    with watching(StopAfter(0, kind("out of luck\nand more"))):
        done = unpose("cluster", new_shapes, "-o", tmp_path / "run")
    assert done.status == 1
    assert "out of luck" in done.output
    assert "a fault of unpose" in done.words
    assert "Traceback" not in done.output
    assert "Traceback" in (tmp_path / "run" / "log.txt").read_text()
