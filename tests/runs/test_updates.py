"""Images are added to a finished run: all files fit together afterwards, and a kill changes nothing or everything."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from kit.commands import contents, unpose
from unpose.cli import main
from unpose.cluster import InvariantClustering
from unpose.data import posed, read_folder
from unpose.runs import RunError, RunSettings, apply_names, read_names, read_run, update_run, write_run
from unpose.runs.folder import RunFolder
from unpose.train import load_network


def shapes(copies, seed):
    images = np.zeros((2, 16, 16), np.float32)
    images[0, 3:13, 7:9] = images[1, 3:13, 4:6] = images[1, 11:13, 4:12] = 1
    return posed(images, copies=copies, max_shift=1.0, random_state=seed).images


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run of fourteen images, and three images that arrive later, one of them constant."""
    folder = tmp_path_factory.mktemp("update")
    np.save(folder / "old.npy", shapes(7, 0))
    np.save(folder / "later.npy", np.concatenate([shapes(1, 9), np.zeros((1, 16, 16), np.float32)]))
    images, settings = read_folder(folder / "old.npy"), RunSettings(clusters=2, size=16)
    (folder / "run").mkdir()
    model = InvariantClustering(2, features="pixels", n_jobs=1).fit(images.images)
    write_run(folder / "run", folder / "old.npy", images, model, settings, "unpose cluster").write_page()
    return folder


@pytest.fixture
def folder(original, tmp_path):
    shutil.copytree(original / "run", tmp_path / "run")
    return tmp_path / "run"


def test_new_images_are_in_every_file(folder, original):
    before = read_run(folder)
    expected = before.model.predict(read_folder(original / "later.npy").images)
    update = update_run(before, original / "later.npy", read_folder(original / "later.npy"))
    again = read_run(folder)
    assert again.names[14:] == [f"later.npy/later.npy[{k}]" for k in range(3)]
    assert again.labels[14:].tolist() == expected.tolist()
    assert again.labels[16] == -1
    assert [row["cluster"] for row in update.rows] == expected.tolist()
    assert len((folder / "labels.csv").read_text().splitlines()) == 18
    listed = list(csv.DictReader((folder / "added.csv").read_text().splitlines()))
    assert [row["path"] for row in listed] == again.names[14:]
    assert listed[2]["fits"] == "no"  # constant images fit nowhere
    assert update.n_foreign == sum(row["fits"] == "no" for row in listed)
    assert again.page() == (folder / "report.html").read_text(encoding="utf-8")
    assert "17 images, 2 groups" in again.page()
    assert again.pictures["images"].shape[0] == 17
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []
    np.testing.assert_array_equal(again.means, before.means)
    assert again.pictures["distances"][14:16].max() < 0.4


def test_the_same_images_are_not_added_twice(folder, original):
    later, old = read_folder(original / "later.npy"), read_folder(original / "old.npy")
    first = update_run(read_run(folder), original / "later.npy", later)
    before = contents(folder)
    again = update_run(read_run(folder), original / "later.npy", later)
    assert (again.rows, len(again.run.names)) == (first.rows, 17)
    with pytest.raises(RunError, match="was made from"):
        update_run(read_run(folder), original / "old.npy", old)
    with pytest.raises(RunError, match="as in the run"):
        update_run(read_run(folder), original / "other.npy", replace(later, images=np.zeros((2, 9, 9))))
    assert contents(folder) == before


def test_no_change_of_another_process_is_lost(folder, original, tmp_path):
    before, more = read_run(folder), tmp_path / "more.npy"
    np.save(more, shapes(1, 11))
    with RunFolder(folder).changing():
        command = [sys.executable, "-m", "unpose", "update", str(folder), str(more)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "another unpose" in done.stderr) == (2, True), done.stderr
        assert len(read_run(folder).names) == 14, "who only reads is not kept out"
        update_run(read_run(folder), original / "later.npy", read_folder(original / "later.npy"))
    with pytest.raises(RunError, match="changed by another process"):
        update_run(before, more, read_folder(more, min_images=1))
    with pytest.raises(RunError, match="changed by another process"):
        apply_names(before, read_names("path,name\nold.npy[0],bar\n", before), read_folder(original / "old.npy"))
    assert len(update_run(read_run(folder), more, read_folder(more, min_images=1)).run.names) == 19


class Unreadable:
    """Images that can be read together, as for a fit, and not one by one, as for the page."""

    def __init__(self, images):
        self.images, self.shape, self.dtype, self.ndim = images, images.shape, images.dtype, images.ndim

    def __len__(self):
        return len(self.images)

    def __array__(self, *arguments, **options):
        return self.images

    def __getitem__(self, rows):
        if isinstance(rows, int | np.integer):
            raise ZeroDivisionError
        return self.images[rows]


def test_an_error_changes_nothing(folder, original):
    before, later = contents(folder), read_folder(original / "later.npy")
    with pytest.raises(ZeroDivisionError):
        update_run(read_run(folder), original / "later.npy", replace(later, images=Unreadable(later.images)))
    assert contents(folder) == before
    mean = folder / "means" / "cluster-000.png"  # is copied when the new page is written
    mean.unlink()
    mean.symlink_to(original / "run" / "means" / mean.name)
    with pytest.raises(ValueError, match="symbolic link"):
        update_run(read_run(folder), original / "later.npy", later)
    assert contents(folder) == before


def test_a_kill_while_files_are_moved_is_completed_by_the_next_reader(folder):
    """As a kill leaves it: new results count, some of their files have been moved and others have not."""
    (folder / "images.json").write_text("new")
    (folder / ".complete" / "means").mkdir(parents=True)
    for name in ("labels.csv", "report.html", "means/cluster-000.png"):
        (folder / ".complete" / name).write_text("new")
    RunFolder(folder).complete_replacement()
    assert [(folder / name).read_text() for name in ("images.json", "labels.csv", "report.html")] == ["new"] * 3
    assert (folder / "means" / "cluster-000.png").read_text() == "new"
    assert not (folder / ".complete").exists()


def test_the_rest_of_new_results_that_were_moved_is_removed_and_no_mean_is_lost(folder):
    """A process that was killed while it removed ``.complete`` may have left the folder of its means."""
    means = sorted(path.name for path in (folder / "means").iterdir())
    (folder / ".complete" / "means").mkdir(parents=True)
    read_run(folder)
    assert sorted(path.name for path in (folder / "means").iterdir()) == means
    assert not (folder / ".complete").exists()


def test_a_reader_waits_until_another_process_has_moved_new_results(folder):
    (folder / ".complete" / "means").mkdir(parents=True)
    locked, moved = threading.Event(), threading.Event()

    def move():
        with RunFolder(folder).changing():
            locked.set()
            moved.wait(0.05)

    other = threading.Thread(target=move)  # which stands for another process: locks are those of a thread
    other.start()
    locked.wait()
    assert len(read_run(folder).names) == 14
    other.join()
    assert not (folder / ".complete").exists()


_KILLED = """
import os, signal, sys
from pathlib import Path
from unpose.data import read_folder
from unpose.runs import read_run, update_run
import unpose.runs.finished as finished
place = sys.argv[3]
def kill(*args):
    os.kill(os.getpid(), signal.SIGKILL)
if place == "page":
    finished.FinishedRun.write_page = kill
else:
    done, replace = [], os.replace
    def replacing(source, target, **folders):
        if ".complete" in done:  # the new results count, and are moved one by one
            done.append(target)
            if len(done) == int(place) + 1:
                kill()
        elif target == ".complete":
            done.append(target)
        replace(source, target, **folders)
    os.replace = replacing
update_run(read_run(sys.argv[1]), Path(sys.argv[2]), read_folder(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["page", "1", "4", "8"])
def test_a_killed_update_changes_nothing_or_everything(folder, original, place):
    later = original / "later.npy"
    done = subprocess.run([sys.executable, "-c", _KILLED, str(folder), str(later), place], check=False)
    assert done.returncode == -signal.SIGKILL
    run = read_run(folder)  # its files fit together, or this is an error
    assert len(run.names) == (14 if place == "page" else 17)
    assert len((folder / "labels.csv").read_text().splitlines()) == len(run.names) + 1
    if place == "page":
        assert len(update_run(run, later, read_folder(later)).run.names) == 17


@pytest.mark.slow
def test_the_command_and_what_follows_it(folder, original, tmp_path):
    invoke = CliRunner().invoke
    result = invoke(main, ["update", str(folder), str(original / "later.npy"), "--json"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["added"], summary["images"], summary["foreign"]) == (3, 17, 1)
    np.save(tmp_path / "more.npy", shapes(1, 11))
    result = invoke(main, ["update", str(folder), str(tmp_path / "more.npy"), "--averages"])
    assert result.exit_code == 0, result.output
    assert len(read_run(folder).added) == 2
    result = invoke(main, ["export", str(folder), "--to", "npz", "-o", str(tmp_path / "all.npz")])
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "all.npz") as arrays:
        assert arrays["aligned"].shape == (19, 16, 16)
        assert len(arrays["names"]) == 19
    (tmp_path / "names.csv").write_text("path,name\nlater.npy/later.npy[0],bar\n")
    result = invoke(main, ["apply", str(folder), str(tmp_path / "names.csv")])
    assert result.exit_code == 0, result.output
    assert len(read_run(folder).added) == 2
    # A command that was killed when it had just finished is repeated: nothing is left to do, and that is no error.
    for name, rows in ((original / "later.npy", 3), (tmp_path / "more.npy", 2)):
        result = invoke(main, ["update", str(folder), str(name), "--json"])
        assert result.exit_code == 0, result.output
        summary = json.loads(result.stdout)
        assert (summary["added"], summary["images"], summary["foreign"]) == (rows, 19, 1 if rows == 3 else 0)
    assert (
        "3 images added by an earlier update and none now"
        in invoke(main, ["update", str(folder), str(original / "later.npy")]).output
    )


@pytest.mark.parametrize(("size", "side"), [((), 12), (("--size", 24), 18)])
def test_a_network_learns_from_added_images_of_another_shape_as_the_run_saw_them(size, side, tmp_path):
    np.save(tmp_path / "old.npy", shapes(7, 0))
    np.save(tmp_path / "later.npy", shapes(1, 9)[:, 3:13])
    images, settings = read_folder(tmp_path / "old.npy"), RunSettings(clusters=2, size=16, crop=2)
    inside = replace(images, images=images.images[:, 2:-2, 2:-2])
    (tmp_path / "run").mkdir()
    model = InvariantClustering(2, features="pixels", n_jobs=1).fit(inside.images)
    write_run(tmp_path / "run", tmp_path / "old.npy", inside, model, settings, "unpose cluster").write_page()
    assert unpose("update", tmp_path / "run", tmp_path / "later.npy").status == 0
    names = [f"{name},kind {k % 2}" for k, name in enumerate(read_run(tmp_path / "run").names)]
    (tmp_path / "names.csv").write_text("\n".join(["path,name", *names]))
    assert unpose("apply", tmp_path / "run", tmp_path / "names.csv").status == 0
    assert unpose("train", tmp_path / "run", "--quick", *size, "-o", tmp_path / "network").status == 0
    assert json.loads((tmp_path / "network" / "result.json").read_text())["images"]["train"] >= 8
    assert load_network(tmp_path / "network" / "model.safetensors").description["image_size"] == [side, side]
