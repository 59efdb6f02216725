"""Input folders: three shapes at random poses, file names that look like code, and files that are not images."""

import os

import pytest

from kit.images import HOSTILE, posed_things, write_folder


def write_posed(folder, **options):
    """Posed hooks, frames and brackets, in a folder for each kind."""
    made = posed_things(copies=options.pop("copies"), seed=options.pop("seed"))
    return write_folder(folder, made.images, made.sources, **options)


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """24 images in three class folders, hostile names among them, and three files that cannot be read."""
    folder = write_posed(tmp_path_factory.mktemp("input") / "shapes", copies=8, seed=3, hostile=HOSTILE)
    (folder / "hook" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    (folder / "hook" / "empty.png").write_bytes(b"")
    with open(os.fsencode(folder) + b"/frame/not \xff text.png", "wb") as file:
        file.write(b"plain words")
    return folder


@pytest.fixture(scope="session")
def new_shapes(tmp_path_factory):
    """Six more images of the same three kinds, at other poses."""
    return write_posed(tmp_path_factory.mktemp("input") / "new", copies=2, seed=11)
