"""``unpose cluster --dask``: the files of a run on one machine, also after the command was killed."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from unpose.cli import main

pytest.importorskip("distributed")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
EXEMPT = {"log.txt", "config.toml", "model.json"}  # they say how many workers there were


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in EXEMPT
    }


def unpose(*arguments, **options):
    command = [sys.executable, "-m", "unpose", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, **options)


def test_a_wrong_address_is_refused_before_images_are_read(new_shapes, tmp_path):
    done = CliRunner().invoke(main, ["cluster", str(new_shapes), "-o", str(tmp_path / "run"), "--dask", "somewhere"])
    assert done.exit_code == 2
    assert "must be like tcp://host:8786, or the word local, got 'somewhere'" in done.output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # three commands, two of which start workers
def test_the_same_files_on_workers_and_after_a_kill_on_another_number_of_them(new_shapes, tmp_path):
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    assert CliRunner().invoke(main, ["cluster", str(new_shapes), "-o", str(plain)]).exit_code == 0
    with unpose("cluster", new_shapes, "-o", killed, "--dask", "local", "--jobs", 2) as command:
        for line in command.stderr:
            if line.startswith("neighbours: search: "):
                command.kill()
    assert not (killed / "labels.csv").exists()
    with unpose("cluster", new_shapes, "-o", killed, "--resume", "--dask", "local", "--jobs", 1) as command:
        _, told = command.communicate()
    assert command.returncode == 0, told
    assert contents(killed) == contents(plain)
