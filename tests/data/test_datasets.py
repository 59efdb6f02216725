"""load: the same set from every format, parts that share no image, downloads, and files with wrong headers."""

import gzip
import hashlib
import http.server
import io
import os
import shutil
import tarfile
import threading
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from unpose.data import Dataset, InputError, MissingDataError, Split, load, splits
from unpose.data import download as downloads
from unpose.data.public import rotated

PARTS = ("train", "validation", "test")
REAL = os.environ.get("UNPOSE_DATA", "")


@pytest.fixture(autouse=True)
def nowhere_else(tmp_path, monkeypatch):
    """Data sets installed on this machine are not used."""
    monkeypatch.delenv("UNPOSE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def small(rng):
    """A set like MNIST: 60 training and 20 test images of 5 x 7 pixels, ten classes."""
    return {
        "x_train": rng.integers(0, 256, (60, 5, 7), dtype=np.uint8),
        "y_train": (np.arange(60) % 10).astype(np.uint8),
        "x_test": rng.integers(0, 256, (20, 5, 7), dtype=np.uint8),
        "y_test": (np.arange(20) % 10).astype(np.uint8),
    }


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_idx(folder, arrays, packed):
    folder.mkdir(parents=True, exist_ok=True)
    for key, name in (
        ("x_train", "train-images-idx3-ubyte"),
        ("y_train", "train-labels-idx1-ubyte"),
        ("x_test", "t10k-images-idx3-ubyte"),
        ("y_test", "t10k-labels-idx1-ubyte"),
    ):
        content = idx(arrays[key])
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)


def same(one, other):
    return all(
        np.array_equal(getattr(one, part).images, getattr(other, part).images)
        and np.array_equal(getattr(one, part).labels, getattr(other, part).labels)
        for part in PARTS
    )


def test_npz_idx_and_gzipped_idx_give_the_same_set(small, tmp_path):
    np.savez(tmp_path / "mnist.npz", **small)
    write_idx(tmp_path / "plain", small, packed=False)
    write_idx(tmp_path / "packed" / "mnist", small, packed=True)  # in a folder of the set's name
    first = load("mnist", tmp_path)
    assert same(first, load("mnist", tmp_path / "plain"))
    assert same(first, load("mnist", tmp_path / "packed"))
    assert np.array_equal(first.test.images, small["x_test"])
    assert first.image_size == (5, 7)
    assert first.channels == 1


def test_validation_images_are_taken_from_the_training_images_only(small, tmp_path):
    np.savez(tmp_path / "mnist.npz", **small)
    found = load("mnist", tmp_path)
    assert len(found.train) == 50
    assert len(found.validation) == 10
    both = np.concatenate([found.train.images, found.validation.images])
    assert sorted(image.tobytes() for image in both) == sorted(image.tobytes() for image in small["x_train"])
    assert np.array_equal(np.bincount(found.validation.labels), np.ones(10))


def test_folders_are_searched_in_their_order(small, tmp_path, monkeypatch):
    other = small | {"y_test": small["y_test"][::-1].copy()}
    for folder, arrays in (("given", small), ("named", other)):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "mnist.npz", **arrays)
    monkeypatch.setenv("UNPOSE_DATA", str(tmp_path / "named"))
    assert np.array_equal(load("mnist").test.labels, other["y_test"])
    assert np.array_equal(load("mnist", tmp_path / "given").test.labels, small["y_test"])


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "rotated-mnist", "cifar-10", "patch-camelyon"])
def test_the_error_for_missing_files_names_files_and_folders(name, tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOSE_DATA", str(tmp_path / "mine"))
    with pytest.raises(MissingDataError, match="looked for") as told:
        load(name, download=False)
    assert str(tmp_path / "mine") in str(told.value)
    assert str(tmp_path / "cache" / "unpose") in str(told.value)
    assert "http" in str(told.value)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(MissingDataError, match="data sets: rotated-mnist, mnist"):
        load("mnits")


# Laws of the parts ---------------------------------------------------------------------------------------------------


def numbered(labels):
    """An image of 5 x 7 pixels for each label, which tells its number, so that none is a copy of another."""
    images = np.zeros((len(labels), 5, 7), np.float32)
    images[:, 2, 3], images[:, 4, 1] = np.arange(len(labels)) + 1, 0.5
    return Split(images, labels)


def numbers(part):
    """The numbers of the images of a part."""
    return np.rint(part.images[:, 2, 3]).astype(int) - 1


def test_random_parts_are_disjoint_and_each_has_every_class(rng):
    labels = np.concatenate([np.full(count, label) for label, count in enumerate((3, 17, 101))])
    rng.shuffle(labels)
    whole = numbered(labels)
    parts = splits.random_split(whole, (0.15, 0.15), ("ant", "bee", "cat"))
    assert np.array_equal(np.sort(np.concatenate([numbers(part) for part in parts])), np.arange(len(labels)))
    assert all(np.array_equal(part.labels, labels[numbers(part)]) for part in parts)
    assert all(np.array_equal(np.unique(part.labels), [0, 1, 2]) for part in parts)
    assert [np.bincount(part.labels)[2] for part in parts] == [71, 15, 15]
    again = splits.random_split(whole, (0.15, 0.15), ("ant", "bee", "cat"))
    assert all(np.array_equal(one.images, other.images) for one, other in zip(parts, again, strict=True))


def test_copies_of_an_image_are_in_the_same_part(rng):
    images, labels = rng.random((40, 5, 7)), np.arange(40) % 2
    copies = rng.integers(40, size=25)
    whole = Split(np.concatenate([images, images[copies]]), np.concatenate([labels, labels[copies]]))
    parts = splits.random_split(whole, (0.15, 0.15), ("cat", "dog"))
    found = [set(splits.image_fingerprints(part.images)) for part in parts]
    assert sum(map(len, parts)) == 65
    assert sum(map(len, found)) == 40 == len(set().union(*found))
    with pytest.raises(InputError, match="class 'dog' has too few images: 1, "):
        splits.random_split(
            Split(images[[0, 2, 4, 1, 1, 1]], np.array([0, 0, 0, 1, 1, 1])), (0.15, 0.15), ("cat", "dog")
        )


def test_given_parts_lose_images_that_an_earlier_part_has(tmp_path, rng):
    images, labels = rng.random((12, 5, 7)), np.arange(12) % 2
    parts = {"train": [0, 1, 2, 3], "valid": [3, 4, 5], "test": [6, 0, 5, 7]}
    arrays = {f"{kind}_{part}": of[n] for part, n in parts.items() for kind, of in (("x", images), ("y", labels))}
    np.savez(tmp_path / "made.npz", class_names=["cat", "dog"], **arrays)
    found = load(tmp_path / "made.npz")
    assert np.array_equal(found.train.images, images[:4])
    assert np.array_equal(found.validation.images, images[4:6])
    assert np.array_equal(found.test.images, images[6:8])
    assert np.array_equal(found.test.labels, labels[6:8])
    assert found.notes == (
        "1 of 3 images for validation left out: they are in training too",
        "2 of 4 images for test left out: they are in training or validation too",
    )
    np.savez(tmp_path / "made.npz", **arrays | {"x_test": images[:4], "y_test": labels[:4]})
    with pytest.raises(InputError, match="every image for test is also an image for training or validation"):
        load(tmp_path / "made.npz")


def test_fingerprints_recognise_an_image_and_no_other(rng):
    images = rng.random((700, 7, 11, 3), dtype=np.float32)
    found = splits.image_fingerprints(images)
    assert len(set(found)) == len(found) == 700
    assert {len(mark) for mark in found} == {6}
    assert splits.image_fingerprints(images[500:501]) == found[500:501]  # whatever other images there are
    noise = np.float32(6e-8) * rng.choice(np.float32([-1, 1]), images.shape)
    again = splits.image_fingerprints(images + noise)  # the last bit of every pixel, as another machine may compute it
    assert np.mean([one == other for one, other in zip(found, again, strict=True)]) > 0.98
    assert not set(found) & set(splits.image_fingerprints(images[:, ::-1]))
    assert not set(found) & set(splits.image_fingerprints(images[..., ::-1]))
    assert not set(found) & set(splits.image_fingerprints(images / 2))
    square = images[..., :7, 0]
    assert not set(splits.image_fingerprints(square)) & set(splits.image_fingerprints(square.transpose(0, 2, 1)))
    assert splits.image_fingerprints(np.full((1, 5, 7), np.inf))  # rejected elsewhere


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_fingerprints_are_those_of_the_picture_however_it_is_stored(kind, rng):
    stored = rng.integers(0, np.iinfo(kind).max, (50, 7, 11)).astype(kind)
    assert splits.image_fingerprints(stored) == splits.image_fingerprints(
        np.float32(stored) / np.float32(np.iinfo(kind).max)
    )


def test_fingerprints_tell_positions_of_a_dot_apart_and_equal_empty_images():
    dots = np.zeros((35, 5, 7), np.uint8)
    dots[np.arange(35), np.arange(35) // 7, np.arange(35) % 7] = 255
    assert len(set(splits.image_fingerprints(dots))) == 35
    assert len(set(splits.image_fingerprints(np.zeros((3, 5, 7), np.uint8)))) == 1


def test_fingerprints_are_encoded_and_decoded(rng):
    found = set(splits.image_fingerprints(rng.random((53, 5, 7))))
    assert splits.decode_fingerprints(splits.encode_fingerprints(found), "a file") == found
    assert splits.decode_fingerprints(splits.encode_fingerprints(set()), "a file") == set()
    assert len(splits.encode_fingerprints(found)) == 8 * 53
    assert splits.encode_fingerprints(found) == splits.encode_fingerprints(set(sorted(found, reverse=True)))


@pytest.mark.parametrize("text", [17, None, ["AAAAAAAA"], "AAAA", "AAAAAAA!", "AAAAAAA\u00e9"])
def test_a_damaged_list_of_fingerprints_is_rejected(text):
    with pytest.raises(ValueError, match="a file: its list of training images"):
        splits.decode_fingerprints(text, "a file")


def test_rotated_draws_different_images_at_uniform_angles():
    count = 420
    images = np.zeros((count, 29, 29), dtype=np.uint8)
    images[:, 14, 14] = np.arange(count) % 251 + 1  # which image it is
    images[:, 12:17, 22:27] = 255  # a square on the right
    labels = np.arange(count)
    parts = rotated(images, labels, counts=(200, 50, 150))
    drawn = np.concatenate([part.labels for part in parts])
    assert [len(part) for part in parts] == [200, 50, 150]
    assert len(set(drawn.tolist())) == 400
    pixels = np.concatenate([part.images for part in parts]).astype(float)
    assert np.array_equal(pixels[:, 14, 14], drawn % 251 + 1)  # turned about the centre, image and label together
    y, x = np.mgrid[:29, :29] - 14
    marks = np.where(np.hypot(x, y) > 4, pixels, 0)
    angles = np.arctan2(-(marks * y).sum((1, 2)), (marks * x).sum((1, 2)))
    found = np.histogram(angles, bins=8, range=(-np.pi, np.pi))[0]
    assert ((found - 50) ** 2 / 50).sum() < 24.3  # chi square, 7 degrees of freedom: once in a thousand
    again = rotated(images, labels, counts=(200, 50, 150))
    assert all(np.array_equal(one.images, other.images) for one, other in zip(parts, again, strict=True))


def test_rotated_needs_enough_images():
    with pytest.raises(InputError, match="62,000 different images are needed, got 7"):
        rotated(np.zeros((7, 5, 5), np.uint8), np.zeros(7))


def test_parts_of_different_shapes_or_labels_are_rejected():
    part = Split(np.zeros((4, 5, 7)), np.array([0, 1, 0, 1]))
    with pytest.raises(InputError, match="one class"):
        Dataset("x", "", ("a",), part, part, part)
    with pytest.raises(InputError, match="labels for test run from 0 to 2"):
        Dataset("x", "", ("a", "b"), part, part, Split(part.images, np.array([0, 1, 2, 1])))
    with pytest.raises(InputError, match="differ in image size"):
        Dataset("x", "", ("a", "b"), part, part, Split(np.zeros((4, 7, 5)), part.labels))
    with pytest.raises(InputError, match="4 images and 3 labels"):
        Split(part.images, part.labels[:3])


# Sets with formats of their own --------------------------------------------------------------------------------------


def test_the_original_files_of_rotated_mnist_are_preferred(tmp_path, rng):
    stem = "mnist_all_rotation_normalized_float"
    tables = {"train_valid": rng.random((12, 785)), "test": rng.random((7, 785))}
    for part, table in tables.items():
        table[:, -1] = np.arange(len(table)) % 10
        np.savetxt(tmp_path / f"{stem}_{part}.amat", table, fmt="%.6f")
    found = load("rotated-mnist", tmp_path)
    assert found.name == "rotated-mnist"
    assert [len(getattr(found, part)) for part in PARTS] == [10, 2, 7]
    assert np.allclose(found.validation.images.reshape(2, -1), tables["train_valid"][10:, :-1], atol=1e-6)
    assert np.array_equal(found.test.labels, np.arange(7))


def test_cifar_from_records_from_the_archive_and_from_arrays(tmp_path, rng):
    records = rng.integers(0, 256, (6, 20, 3073), dtype=np.uint8)
    records[:, :, 0] = np.arange(20) % 10
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for folder in ("loose", "packed", "arrays"):
        (tmp_path / folder).mkdir()
    with tarfile.open(tmp_path / "packed" / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, record in zip(names, records, strict=True):
            (tmp_path / "loose" / name).write_bytes(record.tobytes())
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = record.nbytes
            archive.addfile(entry, io.BytesIO(record.tobytes()))
    pixels = records[:, :, 1:].reshape(6, 20, 3, 32, 32).transpose(0, 1, 3, 4, 2)
    for number in range(5):
        np.savez(tmp_path / "arrays" / f"cifar10_train_batch{number + 1}.npz", x_train=pixels[number],
                 y_train=records[number, :, 0])  # fmt: skip
    np.savez(tmp_path / "arrays" / "cifar10_test.npz", x_test=pixels[5], y_test=records[5, :, 0])
    sets = [load("cifar-10", tmp_path / folder, download=False) for folder in ("loose", "packed", "arrays")]
    assert same(sets[0], sets[1])
    assert same(sets[0], sets[2])
    assert sets[0].train.images.shape == (90, 32, 32, 3)
    assert sets[0].name == "cifar-10"
    (tmp_path / "arrays" / "cifar10_train_batch3.npz").unlink()
    assert load("cifar-10", tmp_path / "arrays", download=False).name == "cifar-10-4-of-5"


@pytest.mark.extra("formats")
def test_patch_camelyon_from_its_six_files(tmp_path, rng):
    import h5py

    kept = {}
    for part, count in (("train", 7), ("valid", 5), ("test", 3)):
        kept[part] = rng.integers(0, 256, (count, 5, 7, 3), dtype=np.uint8)
        for key, array in (("x", kept[part]), ("y", (np.arange(count) % 2).reshape(-1, 1, 1, 1).astype(np.uint8))):
            with h5py.File(tmp_path / f"camelyonpatch_level_2_split_{part}_{key}.h5", "w") as file:
                file[key] = array
    found = load("patch-camelyon", tmp_path)
    assert np.array_equal(found.validation.images, kept["valid"])
    assert np.array_equal(found.test.labels, [0, 1, 0])
    assert found.channels == 3


def test_digits_need_no_file():
    found = load("digits")
    assert [len(getattr(found, part)) for part in PARTS] == [1079, 359, 359]
    assert found.image_size == (20, 20)


@pytest.mark.slow
def test_real_mnist_becomes_rotated_mnist_under_another_name(real_data, monkeypatch):
    monkeypatch.setenv("UNPOSE_DATA", REAL)
    real_data("mnist.npz")
    found = load("rotated-mnist", download=False)
    assert found.name == "mnist-rotated-unpose"
    assert "not the original" in found.source
    assert [len(getattr(found, part)) for part in PARTS] == [10_000, 2_000, 50_000]
    assert 0.09 < np.bincount(found.train.labels)[3] / 10_000 < 0.12


# Folders and .npz files of the user ----------------------------------------------------------------------------------


def picture(path, rng, colour=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (11, 13, 3) if colour else (11, 13), dtype=np.uint8)).save(path)


def test_a_folder_of_class_folders(tmp_path, rng):
    for label, count in (("cat", 10), ("dog", 20)):
        for number in range(count):
            picture(tmp_path / label / f"{number}.png", rng)
    (tmp_path / "dog" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    found = load(tmp_path)
    assert found.classes == ("cat", "dog")
    assert [len(getattr(found, part)) for part in PARTS] == [20, 5, 5]
    assert any("dog/torn.png" in note for note in found.notes)
    assert found.is_random_split
    assert load(str(tmp_path)).name == tmp_path.name


def test_folders_named_by_date_are_learnt_and_that_is_said(tmp_path, rng):
    for label in ("2024-01-03", "2024-01-04"):
        for number in range(7):
            picture(tmp_path / label / f"{number}.png", rng)
    found = load(tmp_path)
    assert found.classes == ("2024-01-03", "2024-01-04")
    assert found.notes == ("folders are named by date or by run; these names are the classes here",)


def test_a_folder_with_train_and_test_folders(tmp_path, rng):
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        for label in ("cat", "dog"):
            for number in range(count):
                picture(tmp_path / part / label / f"{number}.png", rng, colour=True)
    found = load(tmp_path)
    assert [len(getattr(found, part)) for part in PARTS] == [12, 4, 6]
    assert found.channels == 3
    assert "as divided there" in found.source
    assert not found.is_random_split
    shutil.copy(tmp_path / "train" / "cat" / "0.png", tmp_path / "test" / "cat" / "again.png")
    again = load(tmp_path)
    assert len(again.test) == 6
    assert "1 of 7 images for test left out: they are in training or validation too" in again.notes


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["cat/1.png", "cat/2.png", "cat/3.png"], "one class only, 'cat'"),
        (["1.png", "2.png"], "in no class folder"),
        (["cat/1.png", "dog/1.png", "loose.png"], "1 images are in no class folder"),
        (
            ["cat/1.png", "cat/2.png", "cat/3.png", "dog/1.png"],
            "class 'dog' has too few images: 1, and at least 3 different",
        ),
        (["train/cat/1.png", "train/dog/2.png"], "no images below test"),
        (
            [
                *(f"{part}/{label}/{k}.png" for part in ("train", "test") for label in ("a", "b") for k in range(4)),
                "unlabelled/1.png",
                "unlabelled/2.png",
                "unlabelled/3.png",
            ],
            "the folders test and train and beside them unlabelled, which is no part",
        ),
        (["notes.txt"], "no image files"),
    ],
)
def test_folders_that_cannot_be_used_for_training(files, message, tmp_path, rng):
    for name in files:
        if name.endswith(".png"):
            picture(tmp_path / name, rng)
        else:
            (tmp_path / name).write_text("words")
    with pytest.raises(InputError, match=message):
        load(tmp_path)


def test_an_npz_file_of_the_user(tmp_path, small, rng):
    path = tmp_path / "cells.npz"
    np.savez(path, x=small["x_train"], y=small["y_train"], class_names=np.array([f"kind {k}" for k in range(10)]))
    found = load(path)
    assert found.classes[3] == "kind 3"
    assert [len(getattr(found, part)) for part in PARTS] == [40, 10, 10]
    assert found.is_random_split
    others = 255 - small["x_test"]
    np.savez(path, **small, x_valid=others, y_valid=small["y_test"])
    assert np.array_equal(load(path).validation.images, others)
    assert not load(path).is_random_split
    np.savez(path, pixels=small["x_train"])
    with pytest.raises(InputError, match="holds pixels; needed: x and y"):
        load(path)
    for shape in ((60,), (60, 35), (60, 5, 7, 1, 1)):
        np.savez(path, x=rng.random(shape), y=small["y_train"])
        with pytest.raises(InputError, match=r"images must be \(n, h, w\) or"):
            load(path)
    np.savez(path, x=small["x_train"], y=np.arange(60) // 31 * 5_000_000)
    with pytest.raises(InputError, match=r"labels must number the classes from 0, got 5,000,000 as the largest of 60"):
        load(path)
    for labels in (rng.random(60), np.array(["cat", "dog"] * 30)):
        np.savez(path, x=small["x_train"], y=labels)
        with pytest.raises(InputError, match="whole numbers"):
            load(path)


# Files with wrong headers --------------------------------------------------------------------------------------------


def test_pickled_objects_are_rejected(tmp_path, small):
    np.savez(tmp_path / "mnist.npz", **small | {"y_train": np.array([print] * 60, dtype=object)})
    with pytest.raises(InputError, match="not unpickled"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX"),
        (b"\0\0\x08\x03\0\0", "cut short"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "more than"),
        (b"\0\0\x07\x01\0\0\0\x01a", "not an IDX"),
        (idx(np.zeros((3, 5), np.uint8))[:-1], "fewer or more"),
        (idx(np.zeros((3, 5), np.uint8)) + b"x", "fewer or more"),
        # Without mtime the bytes, and so the name of the test, would depend on the time.
        (gzip.compress(idx(np.zeros((3, 5), np.uint8)), mtime=0)[:-9], "train-images"),
    ],
    ids=["empty", "cut header", "huge", "other type", "a byte short", "a byte over", "cut gzip"],
)
def test_damaged_idx_files_are_rejected(content, message, tmp_path, small):
    write_idx(tmp_path, small, packed=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load("mnist", tmp_path)


def test_a_table_with_a_wrong_number_of_columns_is_rejected(tmp_path):
    stem = "mnist_all_rotation_normalized_float"
    for part in ("train_valid", "test"):
        (tmp_path / f"{stem}_{part}.amat").write_text("1 2 3\n4 5 6\n")
    with pytest.raises(InputError, match="785 columns"):
        load("rotated-mnist", tmp_path)


# Downloads -----------------------------------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes]] = {}
    short: ClassVar[set[str]] = set()

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        if name not in self.files:
            self.send_error(404)
            return
        content = self.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if name in self.short else content)

    def log_message(self, *_):
        pass


@pytest.fixture
def home(small, monkeypatch, tmp_path):
    """A server with a small MNIST; the table of remote files leads to it."""
    write_idx(tmp_path / "source", small, packed=True)
    Server.files = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    Server.short = set()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    remotes = tuple(
        replace(known, url=f"{address}/{name}", sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        for known, (name, content) in zip(downloads.REMOTE["mnist"], sorted(Server.files.items()), strict=True)
    )
    monkeypatch.setitem(downloads.REMOTE, "mnist", remotes)
    yield remotes
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_is_checked_kept_and_not_repeated(home, small, tmp_path):
    seen = []
    first = load("mnist", tmp_path / "data", progress=lambda *told: seen.append(told))
    assert np.array_equal(first.test.images, small["x_test"])
    assert {name for name, _, _ in seen} == set(Server.files)
    assert all(done <= total for _, done, total in seen)
    assert sorted(path.name for path in (tmp_path / "data" / "mnist").iterdir()) == sorted(Server.files)
    Server.files = {}
    assert same(first, load("mnist", tmp_path / "data"))


def test_downloads_go_to_the_cache_by_default(home, tmp_path):
    load("mnist")
    assert (tmp_path / "cache" / "unpose" / "mnist" / home[0].name).is_file()


@pytest.mark.parametrize("damage", ["changed", "longer", "short", "gone"])
def test_a_download_that_goes_wrong_leaves_nothing(damage, home, tmp_path):
    name = home[0].name
    if damage == "changed":
        Server.files[name] = Server.files[name][:-1] + b"?"
    elif damage == "longer":
        Server.files[name] += b"?" * 2**19
    elif damage == "short":
        Server.short = {name}
    else:
        del Server.files[name]
    message = {"changed": "SHA-256", "longer": "SHA-256", "short": "ended after", "gone": "Not Found"}[damage]
    with pytest.raises(InputError, match=message):
        load("mnist", tmp_path / "data")
    assert not (tmp_path / "data" / "mnist" / name).exists()
    assert not list((tmp_path / "data").rglob(".*"))


def test_an_unreachable_server_gives_a_clear_error(monkeypatch, tmp_path):
    known = downloads.REMOTE["mnist"]
    monkeypatch.setitem(
        downloads.REMOTE, "mnist", tuple(replace(each, url="http://127.0.0.1:9/" + each.name) for each in known)
    )
    with pytest.raises(InputError, match="by other means"):
        load("mnist", tmp_path)
