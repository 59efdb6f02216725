"""``unpose cluster --dask``: the files of a run on one machine, also after the command was killed."""

import pytest

from kit.commands import contents, started, unpose

pytestmark = pytest.mark.extra("scale")
EXEMPT = {"log.txt", "config.toml", "model.json"}  # they say how many workers there were


def test_a_wrong_address_is_refused_before_images_are_read(new_shapes, tmp_path):
    done = unpose("cluster", str(new_shapes), "-o", str(tmp_path / "run"), "--dask", "somewhere")
    assert done.status == 2
    assert "must be like tcp://host:8786, or the word local, got 'somewhere'" in done.output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # three commands, two of which start workers
def test_the_same_files_on_workers_and_after_a_kill_on_another_number_of_them(new_shapes, tmp_path):
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    assert unpose("cluster", str(new_shapes), "-o", str(plain)).status == 0
    with started("cluster", new_shapes, "-o", killed, "--dask", "local", "--jobs", 2) as command:
        for line in command.err:
            if line.startswith("neighbours: search: "):
                command.kill()
    assert not (killed / "labels.csv").exists()
    with started("cluster", new_shapes, "-o", killed, "--resume", "--dask", "local", "--jobs", 1) as command:
        _, told = command.communicate()
    assert command.returncode == 0, told
    assert contents(killed, EXEMPT) == contents(plain, EXEMPT)
