"""A folder that is read in pieces gives the same images, names and rejections as one that is read at once."""

import shutil

import numpy as np
import pytest
import tifffile
from PIL import Image

from unpose.data import read_folder
from unpose.files import ImagesInPieces, write_image

IN_PIECES = {"pieces": True, "memory": "1MiB"}
"""Options under which more than 256 kB of images are kept in a file, and stacks are decoded in parts of 64 kB."""


@pytest.fixture
def folder(tmp_path):
    """Pictures of two sizes, a stack that is divided and a damaged file: at 32 pixels, enough to be kept in a file."""
    rng = np.random.default_rng(0)
    for k in range(6):
        write_image(tmp_path / "in" / f"{k}.png", rng.random((13 + k % 2, 11)))
    np.save(tmp_path / "in" / "stack.npy", rng.random((83, 9, 8)).astype(np.float32))
    (tmp_path / "in" / "damaged.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing more")
    return tmp_path / "in"


def assert_same(stored, at_once):
    """What was kept in a file is what is read into memory."""
    assert isinstance(stored.images, ImagesInPieces)
    np.testing.assert_array_equal(stored.images[:], at_once.images)
    for name in ("names", "paths", "labels", "rejected", "canvas", "source_shape", "notes"):
        assert getattr(stored, name) == getattr(at_once, name), name
    np.testing.assert_array_equal(stored.frames, at_once.frames)


@pytest.mark.parametrize("colour", ["auto", "rgb"])
def test_the_same_images(folder, tmp_path, colour):
    stored = read_folder(folder, size=32, colour=colour, **IN_PIECES | {"pieces": tmp_path / "new"})
    assert_same(stored, read_folder(folder, size=32, colour=colour))
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_one_coloured_picture_makes_all_coloured(folder):
    write_image(folder / "red.png", np.random.default_rng(1).random((13, 11, 3)))
    stored = read_folder(folder, size=32, **IN_PIECES)
    assert stored.images.shape[-1] == 3
    assert_same(stored, read_folder(folder, size=32))


def test_the_budget_does_not_limit_what_is_read_in_pieces(folder):
    np.save(folder / "large.npy", np.zeros((1500, 64, 64), np.float32))
    with pytest.raises(ValueError, match="budget"):
        read_folder(folder, size=64, memory="44MB", min_images=1500)
    assert len(read_folder(folder, size=64, memory="44MB", pieces=True)) == 1589


def test_small_sets_stay_in_memory(tmp_path):
    np.save(tmp_path / "stack.npy", np.random.default_rng(0).random((5, 9, 8)))
    assert isinstance(read_folder(tmp_path / "stack.npy", pieces=True).images, np.ndarray)


def test_nothing_is_left_where_nothing_can_be_read(folder, tmp_path):
    for file in folder.iterdir():
        if file.name != "damaged.png":
            file.unlink()
    with pytest.raises(ValueError, match="no image"):
        read_folder(folder, pieces=tmp_path / "new")
    assert not list(tmp_path.glob("new/*"))


def test_a_divided_stack_loses_only_its_bad_pages(tmp_path):
    pages = np.arange(1100, dtype=np.float32)[:, None, None] * np.ones((8, 8), np.float32)
    bad = {3, 900, 1095}  # one pixel each, so that they cannot be images
    with tifffile.TiffWriter(tmp_path / "stack.tif") as file:
        for k, page in enumerate(pages):
            file.write(page[:1, :1] if k in bad else page, contiguous=False, metadata=None)
    stored = read_folder(tmp_path / "stack.tif", pieces=True, memory="1MiB")
    assert isinstance(stored.images, ImagesInPieces)
    assert stored.frames.tolist() == stored.images[:, 0, 0].tolist() == [k for k in range(1100) if k not in bad]
    assert dict(stored.rejected).keys() == {f"stack.tif[{k}]" for k in bad}


def test_the_colour_does_not_depend_on_the_budget(tmp_path, rng):
    grey = rng.integers(0, 255, (201, 32, 32, 1), np.uint8)
    pictures = np.repeat(grey, 3, axis=-1)
    pictures[7, 3, 5, 0] ^= 2  # a tint that the tolerance takes for grey
    for k, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{k:03d}.png")
    for red in (None, 199, 0):  # no coloured picture, one of the last, the first
        if red is not None:
            pictures[red, 5, 3] = (255, 0, 0)
            Image.fromarray(pictures[red]).save(tmp_path / f"{red:03d}.png")
        at_once = read_folder(tmp_path)
        stored = read_folder(tmp_path, pieces=tmp_path / "new", memory="1MiB")
        assert stored.images.shape == (201, 32, 32) if red is None else (201, 32, 32, 3)
        assert_same(stored, at_once)
        assert len(list((tmp_path / "new").glob("*"))) == 1
        del stored
        shutil.rmtree(tmp_path / "new")


def test_a_damaged_stack_gives_no_image_however_it_is_read(tmp_path, rng):
    np.save(tmp_path / "good.npy", rng.random((3, 32, 32), np.float32))
    np.savez_compressed(tmp_path / "bad.npz", x=rng.random((1500, 32, 32), np.float32))
    content = bytearray((tmp_path / "bad.npz").read_bytes())
    content[-100_000:-90_000] = bytes(10_000)  # in the last images
    (tmp_path / "bad.npz").write_bytes(content)
    for options in ({}, {"pieces": True, "memory": "20MB"}):
        found = read_folder(tmp_path, **options)
        assert found.names == ["good.npy[0]", "good.npy[1]", "good.npy[2]"]
        assert [name for name, _ in found.rejected] == ["bad.npz"]
        np.testing.assert_array_equal(found.images[:], np.load(tmp_path / "good.npy"))
