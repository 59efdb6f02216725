"""Loads labelled images by name or path: ``load("rotated-mnist")``, ``load("cells.npz")``, ``load("photos/")``."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unpose.data.decoding import Colour
from unpose.data.folders import NAMED_BY_DATE, InputError, Progress, read_folder
from unpose.data.grouping import grouped_split, groups_of
from unpose.data.public import READERS, Location, MissingDataError
from unpose.data.splits import (
    RANDOM_SPLIT,
    Dataset,
    Split,
    integer_labels,
    random_split,
    read_part,
    with_validation,
    without_shared_images,
)
from unpose.files import UnreadableError, printable_name
from unpose.files.arrays import array_names, first_existing, is_folder, read_array
from unpose.files.listing import split_array_name

_FOLDER_SHARES = (0.15, 0.15)
"""Validation and test shares of a folder that is not divided into parts."""

_SPLIT_FOLDERS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip


NAMES = tuple(READERS)
"""Names of the data sets that :func:`load` knows."""


def load(
    name: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    colour: Colour = "auto",
    split_by: str | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """Load a labelled data set by its name, or from a folder or an ``.npz`` file.

    Parameters
    ----------
    name : str or path
        One of :data:`NAMES`, a folder, or an ``.npz`` file. A folder holds one folder of images per class
        (``cat/1.png``), or such folders below ``train``, ``validation`` and ``test``. An ``.npz`` file holds ``x`` and
        ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test`` and optionally ``x_valid``, ``y_valid``; names of
        classes in ``class_names``.
    root : str or path, optional
        The folder to look in and to download to, also in a folder of the set's name below it. By default, the folder
        named by the environment variable ``UNPOSE_DATA`` and the cache.
    size : int, optional
        Longer side of the images of a folder in pixels; see :func:`unpose.data.read_folder`.
    colour : {"auto", "grey", "rgb"}, default "auto"
        Colour of the images of a folder; see :func:`unpose.data.read_folder`.
    split_by : str, optional
        Keep images of one group, such as a slide or a patient, in the same part. For a folder, a column of its
        ``labels.csv`` (which names images in a column ``path``), ``"parent-folder"`` (``CLASS/SLIDE/1.png``), or a
        regular expression that finds the group in every name (``"slide[0-9]+"``). For an ``.npz`` file, the name of an
        array with one entry for each image.
    download : bool, default True
        Whether missing files may be downloaded; only files with a known checksum are.
    progress : callable, optional
        Called with a stage, the amount done and the total.

    Returns
    -------
    Dataset
        Training, validation and test images with labels.

    Raises
    ------
    MissingDataError
        If files are missing and cannot be downloaded; the message says what was looked for and where.
    InputError
        If files exist and cannot be used.

    Notes
    -----
    ``rotated-mnist`` reads the original ``.amat`` files if they are found. Otherwise it is generated from MNIST by the
    same protocol (10,000 + 2,000 + 50,000 different digits, each rotated by a uniform angle, seed 0) and named
    ``mnist-rotated-unpose``: these are other digits at other angles, and results on the two differ slightly. A set
    without a validation part gives up a tenth of its training images, drawn within each class by a fixed seed; a set
    without any parts is split 70:15:15. ``digits`` are scikit-learn's, enlarged twice to 20 pixels and split 60:20:20;
    they need no file.

    The parts of folders and ``.npz`` files share no image: all copies of an image are drawn into the same part, and if
    the parts are given, validation and test images that are also in an earlier part are removed, with a note. The named
    sets are as published.

    Examples
    --------
    >>> dataset = load("digits")
    >>> dataset.image_size, len(dataset.classes)
    ((20, 20), 10)
    """
    path = Path(name)
    try:
        if str(name) in READERS:
            if split_by is not None:
                raise InputError(f"split_by needs a folder or an .npz file; the parts of {name} are as published")
            return READERS[str(name)](Location(str(name), root, download, progress))
        if is_folder(path):
            return _from_folder(path, size, colour, split_by, progress)
        if path.suffix.lower() == ".npz" and first_existing([path.parent], (path.name,)):
            return _from_npz(path, split_by)
    except UnreadableError as error:
        raise InputError(str(error)) from error
    raise MissingDataError(
        f"{printable_name(str(name))!r} is neither a data set, a folder nor an .npz file; data sets: {', '.join(NAMES)}"
    )


def _from_folder(
    path: Path, size: int | None, colour: Colour, split_by: str | None, progress: Progress | None
) -> Dataset:
    found = read_folder(path, size=size, colour=colour, progress=progress)
    paths = [name.split("/") for name in found.names]
    parts_found = {parts[0]: _SPLIT_FOLDERS.get(parts[0].lower()) for parts in paths}
    is_divided = None not in parts_found.values()
    if not is_divided and {"train", "test"} <= set(parts_found.values()):
        given = sorted(name for name, part in parts_found.items() if part)
        others = sorted(name for name, part in parts_found.items() if part is None)
        raise InputError(
            f"{printable_name(str(path))} holds the folders {' and '.join(given)} and beside them "
            f"{', '.join(others[:5])}, which is no part; move it elsewhere, or rename train and test if they are "
            "classes"
        )
    depth = 1 if is_divided else 0
    unlabelled = [name for name, parts in zip(found.names, paths, strict=True) if len(parts) < depth + 2]
    shown = printable_name(str(path))
    if unlabelled:
        raise InputError(
            f"{shown}: {len(unlabelled):,} images are in no class folder and so have no label, {unlabelled[0]} first; "
            "put every image into a folder named after its class: CLASS/NAME.png"
        )
    class_names = [parts[depth] for parts in paths]
    classes = tuple(sorted(set(class_names)))
    if len(classes) < 2:
        raise InputError(f"{shown} has one class only, {classes[0]!r}; at least two class folders are needed")
    labels = np.array([classes.index(label) for label in class_names], dtype=np.int64)
    everything = Split(found.images, labels)
    learnt = "folders are named by date or by run; these names are the classes here"
    said = (learnt if note == NAMED_BY_DATE else note for note in found.notes)
    notes = (*said, *(f"not read: {name} {reason}" for name, reason in found.rejected))
    if split_by is not None:
        if is_divided:
            raise InputError(f"{shown} is divided into train and test already; split_by divides undivided folders")
        groups = groups_of(path, found.names, split_by)
        return _by_group(path.resolve().name, f"folder {shown}", classes, everything, groups, split_by, notes)
    if not is_divided:
        try:
            train, validation, test = random_split(everything, _FOLDER_SHARES, classes)
        except InputError as error:
            raise InputError(f"{shown}: {error}") from error
        source = f"folder {shown}, {RANDOM_SPLIT}"
        return Dataset(path.resolve().name, source, classes, train, validation, test, notes, is_random_split=True)
    part_names = np.array([_SPLIT_FOLDERS[parts[0].lower()] for parts in paths])
    missing = {"train", "test"} - set(part_names.tolist())
    if missing:
        raise InputError(
            f"{shown} has no images below {' or '.join(sorted(missing))}; give the folders train and test, and perhaps "
            "validation, or none of them"
        )
    train, validation, test = (everything.take(part_names == part) for part in ("train", "validation", "test"))
    source = f"folder {shown}, as divided there"
    if len(validation):
        return without_shared_images(Dataset(path.resolve().name, source, classes, train, validation, test, notes))
    return without_shared_images(with_validation(path.resolve().name, source, classes, train, test, notes))


def _by_group(
    name: str, source: str, classes: tuple[str, ...], whole: Split, groups: NDArray, split_by: str,
    notes: tuple[str, ...] = (),
) -> Dataset:  # fmt: skip
    """A data set whose parts share no group; copies of training images in other parts are removed."""
    try:
        parts = grouped_split(whole.labels, groups, _FOLDER_SHARES, classes)
    except InputError as error:
        raise InputError(f"{source}, split by {split_by!r}: {error}") from error
    train, validation, test = (whole.take(part) for part in parts)
    counts = [len(np.unique(groups[part])) for part in parts]
    about = (
        f"divided by {split_by}: {counts[0]} groups for training, {counts[1]} for validation, {counts[2]} for the test"
    )
    for part, what in ((validation, "validation"), (test, "the test")):
        absent = [classes[label] for label in np.setdiff1d(whole.labels, part.labels)]
        if absent:
            notes = (*notes, f"no image for {what} is of class {', '.join(absent)}: too few groups have one")
    return without_shared_images(Dataset(name, f"{source}, {about}", classes, train, validation, test, notes))


def _from_npz(path: Path, split_by: str | None) -> Dataset:
    keys = set(array_names(path))
    classes: tuple[str, ...] | None = None
    if "class_names" in keys:
        classes = tuple(printable_name(str(name)) for name in read_array(path, "class_names"))
    if {"x", "y"} <= keys:
        whole = Split(read_array(path, "x"), integer_labels(read_array(path, "y")))
        classes = classes or _numbered(whole.labels)
        if split_by is not None:
            if split_by not in keys or len(groups := read_array(path, split_by)) != len(whole):
                raise InputError(
                    f"{path}: split by {split_by!r}: it must be an array with one entry for each of the {len(whole):,} "
                    f"images; arrays in the file: {', '.join(sorted(keys))}"
                )
            return _by_group(path.stem, f"{path}", classes, whole, groups.astype(str), split_by)
        train, validation, test = random_split(whole, _FOLDER_SHARES, classes)
        source = f"{path}, {RANDOM_SPLIT}"
        return Dataset(path.stem, source, classes, train, validation, test, is_random_split=True)
    if split_by is not None:
        raise InputError(f"{path} is divided into training and test already; split_by needs the arrays x and y")
    wanted = ["x_train", "y_train", "x_test", "y_test"]
    if not set(wanted) <= keys:
        raise InputError(
            f"{path} holds {', '.join(sorted(keys)) or 'nothing'}; needed: x and y, or {', '.join(wanted)}"
        )
    train, test = read_part(path, "train"), read_part(path, "test")
    classes = classes or _numbered(np.concatenate([train.labels, test.labels]))
    if {"x_valid", "y_valid"} <= keys:
        validation = read_part(path, "valid")
        return without_shared_images(Dataset(path.stem, str(path), classes, train, validation, test))
    return without_shared_images(with_validation(path.stem, str(path), classes, train, test))


def labels_in_file(source: str | os.PathLike[str], frames: NDArray) -> list[str] | None:
    """Read the classes that an ``.npz`` file holds beside its images: ``y`` beside ``x``, as :func:`load` reads them.

    Parameters
    ----------
    source : str or path
        ``FILE`` or ``FILE::NAME``, where the name begins with ``x``: beside ``x_test`` are the labels ``y_test``.
    frames : ndarray of int, shape (n,)
        The index of each image in the file, which :func:`read_folder` gives.

    Returns
    -------
    list of str or None
        The class of each image, named by the array ``class_names`` if there is one; None without labels.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(folder + "/cells.npz", x=np.zeros((3, 9, 9)), y=[0, 1, 1], class_names=["round", "oval"])
    ...     found = read_folder(folder + "/cells.npz")
    ...     labels_in_file(folder + "/cells.npz", found.frames)
    ['round', 'oval', 'oval']
    """
    path, name = split_array_name(Path(source)) or (Path(source), None)
    if path.suffix.lower() != ".npz" or not (name or "x").startswith("x"):
        return None
    beside, keys = "y" + (name or "x")[1:], array_names(path)
    labels = read_array(path, beside) if beside in keys else np.zeros(0)
    if labels.ndim != 1 or labels.dtype.kind not in "iub" or len(labels) <= frames.max():
        return None
    names = [printable_name(str(each)) for each in read_array(path, "class_names")] if "class_names" in keys else []
    chosen = labels[frames].astype(np.int64)
    if not 2 <= len(np.unique(chosen)) < len(chosen):
        return None
    return [names[label] if 0 <= label < len(names) else str(label) for label in chosen]


def _numbered(labels: NDArray) -> tuple[str, ...]:
    if len(labels) and labels.max() >= len(labels):
        raise InputError(
            f"labels must number the classes from 0, got {int(labels.max()):,} as the largest of {len(labels):,} "
            "labels; number them without gaps, or add their names as the array class_names"
        )
    return tuple(str(number) for number in range(int(labels.max(initial=-1)) + 1))
