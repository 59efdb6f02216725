"""One door for labelled images: ``load("rotated-mnist")``, ``load("cells.npz")``, ``load("photos/")``.

Local files first: below ``root``, or below the folder that ``UNPOSE_DATA`` names and the cache. What is not there is
downloaded where its checksum is known.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unpose.data.folders import Colour, InputError, Progress, read_images
from unpose.data.public import READERS, MissingData, Place
from unpose.data.splits import DRAWN, Dataset, Split, apart, drawn, integers, with_validation
from unpose.files.arrays import first_of, is_folder, member_names, read_member
from unpose.files.frames import Unreadable, printable

_FOLDER_SHARES = (0.15, 0.15)
"""Validation and test, of a folder that is not divided."""

_SPLIT_FOLDERS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip


NAMES = tuple(READERS)
"""The data sets that :func:`load` knows by name."""


def load(
    name: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    color: Colour = "auto",
    fetch: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """A data set by its name, or by the path of a folder or an ``.npz`` file.

    Parameters
    ----------
    name : one of :data:`NAMES`, a folder, or an ``.npz`` file
        A folder holds one folder of images per class (``cat/1.png``), or such folders below ``train``, ``validation``
        and ``test``. An ``.npz`` holds ``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test`` and
        perhaps ``x_valid``, ``y_valid``; names of classes in ``class_names``.
    root : where to look, instead of the folder that ``UNPOSE_DATA`` names and the cache
        In it, and in a folder of the set's name below it. Downloads go there too.
    size, color : longer side in pixels and colour of the images of a folder; see :func:`unpose.data.read_images`
    fetch : whether files that are not there may be downloaded
    progress : called with a stage, how much is done, and of how much

    Raises
    ------
    MissingData
        Where files are neither there nor to be had; the message says what was looked for and where.
    InputError
        Where files are there and cannot be used.

    Notes
    -----
    ``rotated-mnist`` reads the original ``.amat`` files where they lie. Otherwise it is made from MNIST by the same
    protocol (10,000 + 2,000 + 50,000 different digits, each turned by a uniform angle, seed 0) and calls itself
    ``mnist-rotated-unpose``: these are other digits at other angles, and results on the two differ a little. Sets
    without a validation part of their own give a tenth of their training images, of each class and by a fixed seed;
    those without any parts, 15 % to validate and 15 % to test. ``digits`` are scikit-learn's, enlarged twice onto 20
    pixels, a fifth for each; they need no file.

    Folders and ``.npz`` files share no image between their parts, whatever is copied in them: copies are drawn
    together, and where the parts are given, images for validation and test that an earlier part has too are left out,
    with a note. The sets known by name are as published.
    """
    path = Path(name)
    try:
        if str(name) in READERS:
            return READERS[str(name)](Place(str(name), root, fetch, progress))
        if is_folder(path):
            return _from_folder(path, size, color, progress)
        if path.suffix.lower() == ".npz" and first_of([path.parent], (path.name,)):
            return _from_npz(path)
    except Unreadable as error:
        raise InputError(str(error)) from error
    raise MissingData(
        f"{printable(str(name))!r} is neither a data set, a folder nor an .npz file; data sets: {', '.join(NAMES)}"
    )


def _from_folder(path: Path, size: int | None, color: Colour, progress: Progress | None) -> Dataset:
    found = read_images(path, size=size, color=color, progress=progress)
    ways = [name.split("/") for name in found.names]
    divided = all(way[0].lower() in _SPLIT_FOLDERS for way in ways)
    depth = 1 if divided else 0
    loose = [name for name, way in zip(found.names, ways, strict=True) if len(way) < depth + 2]
    shown = printable(str(path))
    if loose:
        raise InputError(
            f"{shown}: {len(loose):,} images lie in no class folder and so have no label, {loose[0]} first; put every "
            "image into a folder named after its class: CLASS/NAME.png"
        )
    named = [way[depth] for way in ways]
    classes = tuple(sorted(set(named)))
    if len(classes) < 2:
        raise InputError(f"{shown} has one class only, {classes[0]!r}; at least two class folders are needed")
    labels = np.array([classes.index(label) for label in named], dtype=np.int64)
    everything = Split(found.images, labels)
    notes = (*found.notes, *(f"not read: {name} {reason}" for name, reason in found.rejected))
    if not divided:
        try:
            train, validation, test = drawn(everything, _FOLDER_SHARES, classes)
        except InputError as error:
            raise InputError(f"{shown}: {error}") from error
        source = f"folder {shown}, {DRAWN}"
        return Dataset(path.resolve().name, source, classes, train, validation, test, notes, is_drawn=True)
    which = np.array([_SPLIT_FOLDERS[way[0].lower()] for way in ways])
    missing = {"train", "test"} - set(which.tolist())
    if missing:
        raise InputError(f"{shown} has no images below {' or '.join(sorted(missing))}; either divide it or do not")
    train, validation, test = (everything.take(which == part) for part in ("train", "validation", "test"))
    source = f"folder {shown}, as divided there"
    if len(validation):
        return apart(Dataset(path.resolve().name, source, classes, train, validation, test, notes))
    return apart(with_validation(path.resolve().name, source, classes, train, test, notes))


def _from_npz(path: Path) -> Dataset:
    keys = set(member_names(path))
    classes: tuple[str, ...] | None = None
    if "class_names" in keys:
        classes = tuple(printable(str(name)) for name in read_member(path, "class_names"))
    if {"x", "y"} <= keys:
        whole = Split(read_member(path, "x"), integers(read_member(path, "y")))
        classes = classes or _numbered(whole.labels)
        train, validation, test = drawn(whole, _FOLDER_SHARES, classes)
        source = f"{path}, {DRAWN}"
        return Dataset(path.stem, source, classes, train, validation, test, is_drawn=True)
    wanted = ["x_train", "y_train", "x_test", "y_test"]
    if not set(wanted) <= keys:
        raise InputError(
            f"{path} holds {', '.join(sorted(keys)) or 'nothing'}; needed: x and y, or {', '.join(wanted)}"
        )
    arrays = {key: read_member(path, key) for key in keys if key[:2] in ("x_", "y_")}
    train, test = (Split(arrays[f"x_{part}"], integers(arrays[f"y_{part}"])) for part in ("train", "test"))
    classes = classes or _numbered(np.concatenate([train.labels, test.labels]))
    if {"x_valid", "y_valid"} <= keys:
        validation = Split(arrays["x_valid"], integers(arrays["y_valid"]))
        return apart(Dataset(path.stem, str(path), classes, train, validation, test))
    return apart(with_validation(path.stem, str(path), classes, train, test))


def _numbered(labels: NDArray) -> tuple[str, ...]:
    return tuple(str(number) for number in range(int(labels.max()) + 1))
