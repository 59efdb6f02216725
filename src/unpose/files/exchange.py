"""Exchange of arrays with another program: images written to a temporary folder, a table of numbers read back."""

import csv
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unpose.files.atomic import write_image

__all__ = ["exchanged_images", "read_numbers"]


@contextmanager
def exchanged_images(images: NDArray, form: str) -> Iterator[tuple[Path, Path]]:
    """Write images (n, h, w) or (n, h, w, c) in [0, 1] to a temporary folder that is removed afterwards.

    Yields the folder of PNG files 000000.png, 000001.png, ... (``form`` "png") or the NumPy file ("npy"), and an empty
    folder for answers.

    >>> with exchanged_images(np.zeros((2, 5, 7)), "png") as (images, answers):
    ...     sorted(path.name for path in images.iterdir())
    ['000000.png', '000001.png']
    """
    with tempfile.TemporaryDirectory(prefix="unpose-") as name:
        folder, answers = Path(name) / "images", Path(name) / "answers"
        answers.mkdir()
        if form == "npy":
            folder = folder.with_suffix(".npy")
            np.save(folder, images)
        else:
            folder.mkdir()
            for i, image in enumerate(images):
                write_image(
                    folder / f"{i:06d}.png", image[..., 0] if image.shape[-1] == 1 and image.ndim == 3 else image
                )
        yield folder, answers


def read_numbers(path: str | os.PathLike[str]) -> NDArray:
    """Read numbers from a .npy file, or from a .csv file with one row for each image: (rows, columns).

    A header and a first column of names are skipped in a CSV file; the numbers are integers if all of them are.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("file,label\\nb.png,3\\na.png,4\\n")
    ...     read_numbers(folder + "/a.csv").tolist()
    [[3], [4]]
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path.name} was not written")
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    if rows and not any(_is_number(entry) for entry in rows[0]):
        rows = rows[1:]
    rows = [row[1:] if not _is_number(row[0]) else row for row in rows]
    try:
        whole = all(float(entry).is_integer() and "." not in entry for row in rows for entry in row)
        return np.array([[float(entry) for entry in row] for row in rows], dtype=np.int64 if whole else np.float64)
    except ValueError as error:
        raise ValueError(f"{path.name} must hold rows of numbers, all of the same length: {error}") from error


def _is_number(entry: str) -> bool:
    try:
        float(entry)
    except ValueError:
        return False
    return True
