"""A folder that is read in pieces gives the same images, names and rejections as one that is read at once."""

import numpy as np
import pytest
import tifffile

from unpose.data import folders, read_folder
from unpose.files import ImagesInPieces, write_image
from unpose.runs.folder import fingerprint


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Pictures of two sizes, a stack that is divided, a damaged file; anything is kept in a file."""
    monkeypatch.setattr(folders, "_IN_MEMORY", 100)
    monkeypatch.setattr(folders, "_FRAMES_AT_ONCE", 4)
    rng = np.random.default_rng(0)
    for k in range(6):
        write_image(tmp_path / "in" / f"{k}.png", rng.random((13 + k % 2, 11)))
    np.save(tmp_path / "in" / "stack.npy", rng.random((11, 9, 8)).astype(np.float32))
    (tmp_path / "in" / "damaged.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing more")
    return tmp_path / "in"


@pytest.mark.parametrize("colour", ["auto", "rgb"])
def test_the_same_images(folder, tmp_path, colour):
    at_once, stored = read_folder(folder, colour=colour), read_folder(folder, colour=colour, pieces=tmp_path / "new")
    assert isinstance(stored.images, ImagesInPieces)
    np.testing.assert_array_equal(stored.images[:], at_once.images)
    assert stored.names == at_once.names
    assert stored.rejected == at_once.rejected
    assert fingerprint(stored) == fingerprint(at_once)
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_one_coloured_picture_makes_all_coloured(folder):
    write_image(folder / "red.png", np.random.default_rng(1).random((13, 11, 3)))
    stored = read_folder(folder, pieces=True)
    assert stored.images.shape[-1] == 3
    np.testing.assert_array_equal(stored.images[:], read_folder(folder).images)


def test_the_budget_does_not_limit_what_is_read_in_pieces(folder, monkeypatch):
    monkeypatch.setattr(folders, "_FRAMES_AT_ONCE", 512)
    np.save(folder / "large.npy", np.zeros((1500, 64, 64), np.float32))
    with pytest.raises(ValueError, match="budget"):
        read_folder(folder, size=64, memory="44MB", min_images=1500)
    assert len(read_folder(folder, size=64, memory="44MB", pieces=True)) == 1517


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
    pages = np.arange(2060, dtype=np.float32)[:, None, None] * np.ones((8, 8), np.float32)
    bad = {3, 900, 2055}  # one pixel each, so that they cannot be images
    with tifffile.TiffWriter(tmp_path / "stack.tif") as file:
        for k, page in enumerate(pages):
            file.write(page[:1, :1] if k in bad else page, contiguous=False, metadata=None)
    at_once = read_folder(tmp_path / "stack.tif")
    stored = read_folder(tmp_path / "stack.tif", pieces=True, memory="1MiB")
    assert isinstance(stored.images, ImagesInPieces)
    assert stored.frames.tolist() == at_once.frames.tolist() == [k for k in range(2060) if k not in bad]
    assert stored.images[:, 0, 0].tolist() == at_once.images[:, 0, 0].tolist() == stored.frames.tolist()
    assert dict(stored.rejected).keys() == dict(at_once.rejected).keys() == {f"stack.tif[{k}]" for k in bad}
