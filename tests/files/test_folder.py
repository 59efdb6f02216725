"""The door to a folder of results: no link is followed, no name leads out, files are complete or absent."""

import os
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from unpose.files import BusyError, Folder, FolderError

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names, nor these modes")


@pytest.fixture
def folder(tmp_path):
    with Folder(tmp_path / "run", create=True) as opened:
        yield opened


@pytest.fixture
def victim(tmp_path):
    """A folder outside, with a file, and what is in it."""
    place = tmp_path / "victim"
    place.mkdir()
    (place / "notes.txt").write_text("precious")
    return place


WRITING = {
    "write": lambda folder, name: folder.write_text(name, "new"),
    "image": lambda folder, name: folder.write_image(name, np.zeros((3, 5))),
    "append": lambda folder, name: folder.append(name, "new"),
    "lock": lambda folder, name: folder.lock(name).__enter__(),
    "move": lambda folder, name: (folder.write_text("own.txt", "new"), folder.move("own.txt", folder, name)),
}
READING = {
    "read": lambda folder, name: folder.read(name, 100),
    "json": lambda folder, name: folder.read_json(name, 100),
    "open": lambda folder, name: folder.open(name).__enter__(),
    "take": lambda folder, name: folder.move(name, folder, "own.txt"),
}


def test_what_is_written_is_read_back(folder):
    with folder.folder("means", create=True) as means:
        means.write_chunks("a.bin", [b"one ", b"two"])
        means.write_image("a.png", np.eye(5))
    folder.write_json("a.json", {"x": [1]})
    folder.append("log.txt", "one\n")
    folder.append("log.txt", "\udcfftwo\n")
    assert folder.read("means/a.bin", 7) == b"one two"
    assert folder.read_json("a.json", 99) == {"x": [1]}
    assert folder.read_text("log.txt", 99) == "one\n\\udcfftwo\n"
    np.testing.assert_array_equal(np.asarray(Image.open(folder.path / "means" / "a.png")), np.eye(5) * 255)
    folder.move("means/a.bin", folder, "new/b.bin")
    assert (folder.names(), folder.names("*.json")) == (["a.json", "log.txt", "means", "new"], ["a.json"])
    folder.remove_empty("means")
    folder.remove_tree("new")
    folder.remove("missing/a.bin")
    assert folder.names() == ["a.json", "log.txt", "means"]
    with pytest.raises(FolderError, match="more than the 3 that"):
        folder.read("log.txt", 3)
    with pytest.raises(ValueError, match="JSON"):
        folder.write_json("a.json", float("nan"))
    assert folder.read_json("a.json", 99) == {"x": [1]}


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "/a", "a//b", "a/../b", "a/", "./a", "a\0b"])
@pytest.mark.parametrize("act", [*WRITING.values(), *READING.values(), Folder.has, Folder.remove_tree, Folder.folder])
def test_a_name_never_leads_out(folder, name, act):
    with pytest.raises(FolderError, match="is not the name of a file inside"):
        act(folder, name)


@posix
@pytest.mark.parametrize("act", [*WRITING.values(), *READING.values()])
@pytest.mark.parametrize("name", ["link.txt", "means/notes.txt", "dangling.txt"])
def test_a_link_is_refused_by_name_and_what_it_leads_to_stays(folder, victim, act, name):
    (folder.path / "link.txt").symlink_to(victim / "notes.txt")
    (folder.path / "dangling.txt").symlink_to(victim / "new.txt")
    (folder.path / "means").symlink_to(victim)
    with pytest.raises(FolderError, match=f"{name.split('/')[0]} is a symbolic link, which is not followed"):
        act(folder, name)
    assert [(path.name, path.read_text()) for path in victim.iterdir()] == [("notes.txt", "precious")]


@posix
def test_of_a_link_only_the_link_is_removed(folder, victim):
    for remove in (folder.remove, folder.remove_tree):
        (folder.path / "link.txt").symlink_to(victim / "notes.txt")
        remove("link.txt")
    (folder.path / "pieces").symlink_to(victim)
    folder.remove_tree("pieces")
    with folder.folder("new", create=True) as new:
        (new.path / "inner").symlink_to(victim)
    folder.remove_tree("new")
    assert folder.names() == []
    assert (victim / "notes.txt").read_text() == "precious"


@posix
@pytest.mark.parametrize("act", [*WRITING.values(), *READING.values()])
def test_only_plain_files_are_read_and_written(folder, act):
    os.mkfifo(folder.path / "pipe")
    with pytest.raises(FolderError, match="pipe must be a plain file"):
        act(folder, "pipe")


@posix
def test_the_names_of_another_file_are_no_way_to_change_it(folder, victim):
    for name in ("log.txt", ".lock"):
        os.link(victim / "notes.txt", folder.path / name)
    folder.append("log.txt", " new")
    with folder.lock():
        pass
    assert folder.read_text("log.txt", 99) == "precious new"
    assert (victim / "notes.txt").read_text() == "precious"


@posix
def test_the_folder_itself_is_the_users_and_stays_the_same(folder, victim, tmp_path):
    (tmp_path / "link").symlink_to(folder.path)
    with Folder(tmp_path / "link") as opened:
        folder.path.rename(tmp_path / "moved")
        folder.path.symlink_to(victim)
        opened.write_text("a.txt", "new")
        assert (tmp_path / "moved" / "a.txt").read_text() == "new"
    assert os.listdir(victim) == ["notes.txt"]
    with pytest.raises(NotADirectoryError):
        Folder(victim / "notes.txt")


@posix
def test_modes_are_those_that_open_would_give_and_a_replaced_file_keeps_its_own(folder):
    before = os.umask(0o027)
    try:
        folder.write_text("new.txt", "new")
        folder.write_text("private.txt", "old")
        (folder.path / "private.txt").chmod(0o400)
        with folder.write("private.txt") as stream:
            stream.write(b"new")
            (beside,) = folder.names(".*.tmp")
            assert stat.S_IMODE((folder.path / beside).stat().st_mode) == 0o600
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((folder.path / name).stat().st_mode) for name in folder.names()}
    assert modes == {"new.txt": 0o640, "private.txt": 0o400}


def test_what_fails_leaves_what_was_there_and_nothing_else(folder):
    longest = "n" * 255
    folder.write_text(longest, "old")
    with pytest.raises(ZeroDivisionError):
        folder.write_chunks(longest, (b"%d" % (1 // k) for k in (1, 0)))
    with pytest.raises(FileNotFoundError, match=r"missing"):
        folder.write_text("missing/a.txt", "words")
    folder.folder("inner", create=True).close()
    with pytest.raises(IsADirectoryError, match="inner"):
        folder.write_text("inner", "words")
    assert folder.names() == ["inner", longest]
    assert folder.read_text(longest, 9) == "old"


def test_one_process_at_a_time(folder):
    with folder.lock(), folder.lock(again=True), pytest.raises(BusyError):
        folder.lock().__enter__()
    with folder.lock():
        assert (folder.path / ".lock").read_text() == f"{os.getpid()}\n"
        found = []

        def other():
            with pytest.raises(BusyError, match=rf"another unpose \(process {os.getpid()}\) is working in"):
                found.append(folder.lock().__enter__())

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert not found
    assert folder.names() == []
    (folder.path / ".lock").write_text("left by a kill")
    with folder.lock():
        assert (folder.path / ".lock").read_text() == f"{os.getpid()}\n"


LIMITED = """
import resource, sys
import numpy as np
from unpose.files import Folder
def save():
    with folder.write("b.npy") as stream:
        np.save(stream, np.zeros(30_000, np.uint8))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
with Folder(sys.argv[1]) as folder:
    for act in (
        lambda: folder.write_chunks("a.bin", [b"x" * 30_000]), lambda: folder.append("log.txt", "x" * 12_345), save
    ):
        try:
            act()
        except OSError as error:
            print(error)
"""


@posix
def test_a_full_disk_names_the_path_and_what_could_not_be_written(folder):
    folder.write_text("a.bin", "old")
    command = [sys.executable, "-c", LIMITED, folder.path]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert ["20,000 bytes could not be written" in told[0], "a.bin" in told[0]] == [True, True]
    assert ["2,345 bytes could not be written" in told[1], "log.txt" in told[1]] == [True, True]
    assert ["bytes could not be written" in told[2], "b.npy" in told[2]] == [True, True]
    assert (folder.names(), folder.read_text("a.bin", 9)) == (["a.bin", "log.txt"], "old")


WITHOUT_HANDLES = """
import os, sys
os.supports_dir_fd.clear()  # as on Windows
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[1], "-k", "not without_handles and not stays_the_same"]))
"""


@posix
def test_the_same_holds_without_handles_of_folders():
    done = subprocess.run([sys.executable, "-c", WITHOUT_HANDLES, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
