"""Readers of the public data sets: where their files are looked for, and how each is read."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unpose.data.download import REMOTE, download
from unpose.data.folders import InputError, Progress
from unpose.data.posed import posed
from unpose.data.splits import Dataset, Split, integer_labels, read_part, stratified_split, with_validation
from unpose.files.arrays import first_existing, read_array, read_idx, read_records, read_table
from unpose.groups import scaling
from unpose.images import as_batch, warp

LAROCHELLE = (10_000, 2_000, 50_000)
"""Numbers of training, validation and test images in the rotated MNIST of Larochelle et al. (2007)."""


class MissingDataError(InputError):
    """The files of a data set are missing; the message says which files were looked for, and where."""


@dataclass(frozen=True)
class Location:
    """Where the files of a data set are looked for."""

    name: str
    root: str | os.PathLike[str] | None
    may_download: bool
    progress: Progress | None

    def folders(self) -> list[Path]:
        roots = [self.root] if self.root is not None else [os.environ.get("UNPOSE_DATA"), cache_folder()]
        return [folder for root in roots if root for folder in (Path(root), Path(root) / self.name)]

    def find(self, *names: str) -> Path | None:
        return first_existing(self.folders(), names)

    def missing(self, files: str, how: str) -> MissingDataError:
        folders = ", ".join(str(folder) for folder in self.folders())
        return MissingDataError(f"{self.name}: looked for {files} in {folders} and found none. {how}")

    def downloaded(self) -> dict[str, Path]:
        """The files of the data set by name; missing ones are downloaded."""
        remotes = REMOTE[self.name]
        found = {remote.name: self.find(remote.name) for remote in remotes}
        if not self.may_download and not all(found.values()):
            listed = ", ".join(remote.name for remote in remotes)
            raise self.missing(listed, f"They are at {remotes[0].url.rpartition('/')[0]}.")
        target = self.folders()[-1]
        return {remote.name: found[remote.name] or download(remote, target, self.progress) for remote in remotes}


def cache_folder() -> Path:
    """The folder for downloads unless the caller gives another."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unpose"


def rotated(images: NDArray, labels: NDArray, counts: tuple[int, int, int] = LAROCHELLE) -> tuple[Split, Split, Split]:
    """Draw different images at random and rotate each by a uniform angle about its centre: train, validation, test.

    Pixels are rounded to 8 bits, so that the images are the same on every machine.
    """
    if len(images) < sum(counts):
        raise InputError(f"{sum(counts):,} different images are needed, got {len(images):,}")
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=generator).numpy()[: sum(counts)]
    turned = posed(images[order], "se2", max_shift=0.0, random_state=generator).images
    pixels = np.clip(np.rint(turned * 255), 0, 255).astype(np.uint8)
    ends = np.cumsum(counts)[:-1]
    train, validation, test = map(Split, np.split(pixels, ends), np.split(labels[order], ends))
    return train, validation, test


_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _idx_set(location: Location, classes: tuple[str, ...], stem: str) -> Dataset:
    train, test, source = _idx_parts(location, stem)
    return with_validation(location.name, source, classes, train, test)


def _idx_parts(location: Location, stem: str) -> tuple[Split, Split, str]:
    """Training and test part of MNIST and sets of its format: one ``.npz``, or four IDX files, plain or gzipped."""
    if (packed := location.find(f"{stem}.npz")) is not None:
        return read_part(packed, "train"), read_part(packed, "test"), f"{packed}"
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    found = [location.find(name, f"{name}.gz") for name in names]
    if None in found:
        downloaded = location.downloaded()
        found = [path or downloaded[f"{name}.gz"] for path, name in zip(found, names, strict=True)]
    paths = [path for path in found if path is not None]
    arrays, source = [read_idx(path) for path in paths], f"IDX files in {paths[0].parent}"
    return Split(arrays[0], integer_labels(arrays[1])), Split(arrays[2], integer_labels(arrays[3])), source


def _rotated_mnist(location: Location) -> Dataset:
    stem = "mnist_all_rotation_normalized_float"
    first = location.find(f"{stem}_train_valid.amat", f"mnist_rotation_new/{stem}_train_valid.amat")
    last = location.find(f"{stem}_test.amat", f"mnist_rotation_new/{stem}_test.amat")
    if first is not None and last is not None:
        training, test = _amat(first), _amat(last)
        cut = len(training) * LAROCHELLE[0] // sum(LAROCHELLE[:2])  # the file's first ten of twelve thousand
        parts = training.take(np.arange(cut)), training.take(np.arange(cut, len(training))), test
        return Dataset("rotated-mnist", f"the original files in {first.parent}", _DIGITS, *parts)
    train, upright, where = _idx_parts(replace(location, name="mnist"), "mnist")
    whole = _concatenated([train, upright])
    source = f"made from MNIST ({where}) by the protocol of Larochelle et al., seed 0; not the original files"
    return Dataset("mnist-rotated-unpose", source, _DIGITS, *rotated(whole.images, whole.labels))


def _amat(path: Path) -> Split:
    table = read_table(path, 28 * 28 + 1)
    return Split(table[:, :-1].reshape(-1, 28, 28), integer_labels(table[:, -1]))


def _cifar(location: Location) -> Dataset:
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    if (whole := location.find("cifar10.npz", "cifar-10.npz")) is not None:
        return with_validation(location.name, str(whole), _CIFAR, read_part(whole, "train"), read_part(whole, "test"))
    packed = [location.find(f"cifar10_train_batch{number}.npz") for number in range(1, 6)]
    test = location.find("cifar10_test.npz")
    if test is not None and any(packed):
        read = [read_part(path, "train") for path in packed if path is not None]
        part = "" if len(read) == 5 else f", {len(read)} of 5 training batches"
        name = location.name if len(read) == 5 else f"{location.name}-{len(read)}-of-5"
        source = f"arrays in {test.parent}{part}"
        return with_validation(name, source, _CIFAR, _concatenated(read), read_part(test, "test"))
    plain = [location.find(name, f"cifar-10-batches-bin/{name}") for name in [*batches, "test_batch.bin"]]
    if None in plain:
        (archive,) = location.downloaded().values()
        read = [_cifar_records(archive, f"cifar-10-batches-bin/{name}") for name in [*batches, "test_batch.bin"]]
    else:
        archive = plain[0] or Path()
        read = [_cifar_records(path) for path in plain if path is not None]
    return with_validation(location.name, f"{archive}", _CIFAR, _concatenated(read[:5]), read[5])


def _concatenated(parts: list[Split]) -> Split:
    return Split(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


def _cifar_records(path: Path, member: str | None = None) -> Split:
    rows = read_records(path, 1 + 3 * 32 * 32, member)
    pixels = rows[:, 1:].reshape(-1, 3, 32, 32)  # one byte for the class, then the three colour channels
    return Split(np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), integer_labels(rows[:, 0]))


def _camelyon(location: Location) -> Dataset:
    parts: list[Split] = []
    for part in ("train", "valid", "test"):
        stem = f"camelyonpatch_level_2_split_{part}"
        images, labels = location.find(f"{stem}_x.h5"), location.find(f"{stem}_y.h5")
        if images is None or labels is None:
            raise location.missing(
                f"{stem}_x.h5 and {stem}_y.h5",
                "Download the six .h5.gz files of PatchCamelyon (https://zenodo.org/records/2546921), unpack them with "
                "gunzip and put them there; they are not downloaded automatically.",
            )
        parts.append(Split(read_array(images, "x"), integer_labels(read_array(labels, "y").reshape(-1))))
        folder = images.parent
    train, validation, test = parts
    return Dataset(location.name, f"HDF5 files in {folder}", ("normal", "tumour"), train, validation, test)


def _digits(location: Location) -> Dataset:
    from sklearn.datasets import load_digits  # slow to import

    digits = load_digits()
    small = as_batch(digits.images.astype(np.float32) / 16)
    enlarged = warp(small, scaling(torch.tensor(2.0)), (20, 20)).clamp(0, 1)[:, 0].numpy()
    everything = Split(enlarged, digits.target.astype(np.int64))
    train, validation, test = (everything.take(part) for part in stratified_split(everything.labels, (0.2, 0.2)))
    return Dataset(location.name, "scikit-learn's digits, enlarged twice", _DIGITS, train, validation, test)


READERS: dict[str, Callable[[Location], Dataset]] = {
    "rotated-mnist": _rotated_mnist,
    "mnist": partial(_idx_set, classes=_DIGITS, stem="mnist"),
    "fashion-mnist": partial(_idx_set, classes=_CLOTHES, stem="fashion_mnist"),
    "cifar-10": _cifar,
    "patch-camelyon": _camelyon,
    "digits": _digits,
}
"""Name of a data set -> its reader."""
