"""Input folders: three shapes at random poses, file names that look like code, and files that are not images."""

import os

import numpy as np
import pytest
from PIL import Image

from unpose.data import posed

HOSTILE = [
    "<img src=x onerror=alert(1)>.png", "=HYPERLINK(1).png", "new\nline.png", "quote\"'.png", "-rf.png", "; rm x.png",
]  # fmt: skip


def three_kinds():
    """A hook, a frame and a bracket, which differ at every pose: (3, 26, 26)."""
    things = np.zeros((3, 26, 26), np.float32)
    things[0, 5:20, 12:15] = things[0, 5:8, 12:20] = 1
    things[1, 8:18, 8:18] = 1
    things[1, 11:15, 11:15] = 0
    things[2, 6:20, 8:11] = things[2, 17:20, 8:19] = things[2, 6:9, 8:14] = 1
    return things


def write_folder(folder, *, copies, seed, hostile=()):
    turned = posed(three_kinds(), copies=copies, max_shift=2.0, random_state=seed)
    names = list(hostile)
    for number, (image, source) in enumerate(zip(turned.images, turned.sources, strict=True)):
        place = folder / ("hook", "frame", "bracket")[source]
        place.mkdir(parents=True, exist_ok=True)
        name = names.pop() if names else f"{number:03d}.png"
        Image.fromarray((image.clip(0, 1) * 255).astype(np.uint8)).save(place / name, format="PNG")
    return folder


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """24 images in three class folders, hostile names among them, and three files that cannot be read."""
    folder = write_folder(tmp_path_factory.mktemp("input") / "shapes", copies=8, seed=3, hostile=HOSTILE)
    (folder / "hook" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    (folder / "hook" / "empty.png").write_bytes(b"")
    with open(os.fsencode(folder) + b"/frame/not \xff text.png", "wb") as file:
        file.write(b"plain words")
    return folder


@pytest.fixture(scope="session")
def new_shapes(tmp_path_factory):
    """Six more images of the same three kinds, at other poses."""
    return write_folder(tmp_path_factory.mktemp("input") / "new", copies=2, seed=11)
