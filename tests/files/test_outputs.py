"""What is written: whole or not at all, with the right to read it that was there, and into what is no plain file."""

import os
import stat
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from unpose.files import write_chunks, write_image, write_text

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names, nor these modes")


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def read_end(path):
    """A pipe that is open for reading: small texts fit into it, and no test waits for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield handle
    finally:
        os.close(handle)


@posix
@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002])
def test_a_new_file_has_the_mode_that_open_would_give(tmp_path, mask):
    with umask(mask):
        write_text(tmp_path / "a.txt", "a")
        write_image(tmp_path / "a.png", np.zeros((5, 7)))
        write_chunks(tmp_path / "new" / "a.bin", [b"a"])
    for name in ("a.txt", "a.png", "new/a.bin"):
        assert mode(tmp_path / name) == 0o666 & ~mask


@posix
@pytest.mark.parametrize("kept", [0o600, 0o640, 0o664, 0o444])
def test_a_file_that_was_there_keeps_its_mode(tmp_path, kept):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "a.txt").chmod(kept)
    with umask(0o022):
        write_text(tmp_path / "a.txt", "new")
    assert (mode(tmp_path / "a.txt"), (tmp_path / "a.txt").read_text()) == (kept, "new")


@posix
def test_what_replaces_a_private_file_is_private_while_it_is_written(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"old")
    (tmp_path / "a.bin").chmod(0o600)

    def chunks():
        yield b"new"
        (beside,) = set(tmp_path.iterdir()) - {tmp_path / "a.bin"}
        assert mode(beside) == 0o600

    with umask(0o022):
        write_chunks(tmp_path / "a.bin", chunks())
    assert (tmp_path / "a.bin").read_bytes() == b"new"


@posix
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("there/a.txt")
    (tmp_path / "twice.txt").symlink_to("link.txt")
    (tmp_path / "dangling.txt").symlink_to("there/b.txt")
    for name in ("twice.txt", "dangling.txt"):
        assert write_text(tmp_path / name, "new") == tmp_path / name
    assert all((tmp_path / name).is_symlink() for name in ("link.txt", "twice.txt", "dangling.txt"))
    assert {path.name: path.read_text() for path in (tmp_path / "there").iterdir()} == {"a.txt": "new", "b.txt": "new"}
    (tmp_path / "circle.txt").symlink_to("circle.txt")
    with pytest.raises(OSError, match="symbolic links"):
        write_text(tmp_path / "circle.txt", "new")
    assert (tmp_path / "circle.txt").is_symlink()


@posix
@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_into_and_stays(tmp_path, linked):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    target = tmp_path / "link" if linked else pipe
    if linked:
        target.symlink_to(pipe)
    before = set(tmp_path.iterdir())
    with read_end(pipe) as handle:
        write_text(target, "words")
        assert os.read(handle, 99) == b"words"
        write_image(target, np.eye(5))  # Pillow goes back and forth in what it writes, which a pipe does not
        (tmp_path / "back.png").write_bytes(os.read(handle, 9999))
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "back.png")), np.eye(5) * 255)
        with pytest.raises(ZeroDivisionError):
            write_chunks(target, (b"%d" % (1 // k) for k in (1, 0)))
        assert os.read(handle, 99) == b"", "half of it never came"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert set(tmp_path.iterdir()) == before | {tmp_path / "back.png"}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not list open files")
def test_a_stream_behind_a_link_that_leads_to_no_path(tmp_path):
    # As /dev/stdout does in a pipeline, but where a mistake would replace nothing that matters.
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        (tmp_path / "out").symlink_to(f"/proc/self/fd/{writing}")
        write_text(tmp_path / "out", "words")
        assert os.read(reading, 99) == b"words"
    finally:
        os.close(reading)
        os.close(writing)
    assert (tmp_path / "out").is_symlink()


def test_what_fails_leaves_what_was_there_and_nothing_else(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        write_chunks(tmp_path / "a.bin", (b"%d" % (1 // k) for k in (1, 0)))
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_text(tmp_path / "folder", "words")
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "missing" / "a.txt", "words")
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"a.bin", "folder"}
