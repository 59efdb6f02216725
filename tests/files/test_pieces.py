"""Images that stay on disk are indexed like an array in memory, from every format, also in another process."""

import pickle
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kit.formats import by_numpy, hdf5, mrc, zarr
from unpose.files import images_in_pieces, open_images, store_images


def pixels(n=23, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 255, (n, 7, 5)).astype(dtype)


def open_as(kind, folder, images):
    """Images that lie in a file of a kind."""
    write = {"npy": by_numpy, "h5": partial(hdf5, chunks=(4, 7, 5)), "zarr": partial(zarr, version=3), "mrc": mrc}[kind]
    write(folder / "stack", images)
    return open_images(folder / "stack")


KEYS = [
    slice(None), slice(3, 11), slice(20, 3, -2), 4, -1, np.array([1, 2, 19]), np.array([5, 0, 5, -2]), [],
    np.arange(23) % 3 == 0, (slice(2, 9), slice(1, 3)), (3, slice(2), 0),
]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    ["npy", pytest.param("h5", marks=pytest.mark.extra("formats")),
     pytest.param("zarr", marks=pytest.mark.extra("formats")), pytest.param("mrc", marks=pytest.mark.extra("em"))],
)  # fmt: skip
def test_pieces_are_those_of_the_array(kind, tmp_path):
    images = pixels(dtype=np.float32 if kind == "mrc" else np.uint8)
    opened = open_as(kind, tmp_path, images)
    assert (opened.shape, opened.dtype, len(opened)) == (images.shape, images.dtype, 23)
    for key in KEYS:
        key = np.asarray(key, dtype=np.int64) if isinstance(key, list) else key
        np.testing.assert_array_equal(opened[key], images[key])
    sent = pickle.loads(pickle.dumps(opened.take(np.array([3, 1, 8])).scaled(np.array([1.0, 2.0, 0.5]))))
    assert len(pickle.dumps(opened)) < 1000  # a path, not the pixels
    expected = images[[3, 1, 8]] * np.array([1.0, 2.0, 0.5], np.float32)[:, None, None]
    np.testing.assert_array_equal(sent[:], expected)
    np.testing.assert_array_equal(sent[[2, 0]], expected[[2, 0]])
    np.testing.assert_array_equal(np.asarray(sent), expected)
    cropped = pickle.loads(pickle.dumps(opened.cropped(1)))
    np.testing.assert_array_equal(cropped[3:5], images[3:5, 1:-1, 1:-1])


@pytest.mark.extra("scale")
def test_arrays_of_other_libraries_are_read_in_pieces(tmp_path):
    from dask import array

    images = pixels()
    np.save(tmp_path / "stack.npy", images)
    for given in (array.from_array(images, chunks=(4, 7, 5)), np.load(tmp_path / "stack.npy", mmap_mode="r")):
        opened = images_in_pieces(given)
        for key in (slice(3, 11), np.array([1, 2, 19]), 4):
            np.testing.assert_array_equal(opened[key], images[key])
        with pytest.raises(TypeError, match="save them"):
            pickle.dumps(opened)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_pages_of_a_memory_map_are_given_back_and_what_was_written_stays(mode, tmp_path):
    np.save(tmp_path / "large.npy", np.full((4_000, 64, 64), 3, np.uint8))
    mapped = np.load(tmp_path / "large.npy", mmap_mode=mode)
    if mode != "r":
        mapped[5] = 9
    images, before = images_in_pieces(mapped), pages_of_files()
    assert sum(int(piece[0, 0, 0]) for piece in images.pieces(500)) == 3 * 8
    assert mode == "c" or pages_of_files() - before < 4_000_000  # of 16 MB
    assert images[5, 0, 0] == (3 if mode == "r" else 9)
    assert images_in_pieces(mapped[4:7])[1, 0, 0] == images[5, 0, 0]


def pages_of_files():
    """Bytes of files that are mapped into the memory of this process, where the system tells."""
    status = Path("/proc/self/status")
    return 1024 * int(status.read_text().split("RssFile:")[1].split()[0]) if status.exists() else 0


def test_only_what_is_asked_for_is_read():
    read = []
    images = pixels(1000)

    def watched(start, stop):
        read.append((start, stop))
        return images[start:stop]

    opened = type(store_images([images]))(watched, images.shape, images.dtype)
    np.testing.assert_array_equal(opened[[3, 5, 700, 701]], images[[3, 5, 700, 701]])
    assert read == [(3, 6), (700, 702)]


def test_stored_images_are_a_file_of_numpy_that_goes_with_them(tmp_path):
    images = pixels()
    stored = store_images((images[start : start + 5] for start in range(0, 23, 5)), tmp_path)
    (file,) = tmp_path.iterdir()
    np.testing.assert_array_equal(np.load(file), images)
    np.testing.assert_array_equal(stored[:], images)
    temporary = store_images([images])
    part = temporary.take(np.array([2, 4]))
    del temporary
    np.testing.assert_array_equal(part[:], images[[2, 4]])  # the file lives as long as any of its images
    with pytest.raises(ValueError, match="no images"):
        store_images([])


def test_threads_read_the_same_file(tmp_path):
    images = pixels(500, np.uint16)
    np.save(tmp_path / "stack.npy", images)
    opened, wrong = open_images(tmp_path / "stack.npy"), []

    def check(seed):
        for rows in np.random.default_rng(seed).integers(0, 500, (40, 9)):
            if not np.array_equal(opened[rows], images[rows]):
                wrong.append(rows)

    threads = [threading.Thread(target=check, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros(7), "images are"), (np.zeros((3, 4, 5), "U2"), "images are"),
        (np.asfortranarray(np.zeros((3, 4, 5))), "C order"),
    ],
)  # fmt: skip
def test_what_is_no_array_of_images_is_refused(content, message, tmp_path):
    np.save(tmp_path / "stack.npy", content)
    with pytest.raises(ValueError, match=message):
        open_images(tmp_path / "stack.npy")


def test_an_index_outside_is_an_error():
    opened = store_images([pixels(3)])
    for key in (3, -4, [0, 3]):
        with pytest.raises(IndexError):
            opened[key]


def test_factors_of_images_that_are_scaled_twice_multiply():
    stored = store_images([pixels(5, np.float32)])
    factors = np.arange(1, 6, dtype=np.float32)
    twice = stored.scaled(factors).take(np.array([4, 1])).scaled(np.array([3, 7]))
    np.testing.assert_allclose(twice[:], stored[[4, 1]] * np.array([15, 14])[:, None, None])


@pytest.mark.parametrize(
    "other", [np.zeros((2, 4, 5)), np.zeros((2, 4, 6), np.float32), np.zeros((2, 4, 5, 1), np.float32)]
)
def test_pieces_of_another_shape_or_type_are_refused(other, tmp_path):
    with pytest.raises(ValueError, match="all pieces must have images of one shape and type"):
        store_images([np.zeros((2, 4, 5), np.float32), other], tmp_path)
    assert not list(tmp_path.iterdir())
