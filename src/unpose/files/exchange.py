"""Exchange of arrays with another program: images written to temporary files, a table of numbers read back."""

import csv
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unpose.files.outputs import write_image

__all__ = ["program_answers", "read_numbers"]


@contextmanager
def program_answers(
    words: Sequence[str], images: NDArray, *, marks: tuple[str, str] = ("{images}", "{answers}"), form: str = "png",
    name: str = "answers.csv", timeout: float | None = None,
) -> Iterator[Path]:  # fmt: skip
    """Run a program on images (n, h, w) or (n, h, w, c) in [0, 1], and yield the file of answers that it wrote.

    The first of the ``marks`` in its command line is replaced by a folder of PNG files 000000.png, 000001.png, ...
    (``form`` "png") or by a NumPy file ("npy"), the second by the path of the file to write, which is called ``name``.
    All files are temporary.

    >>> import sys
    >>> code = "import os, sys; open(sys.argv[2], 'w').write(str(sorted(os.listdir(sys.argv[1]))))"
    >>> with program_answers([sys.executable, "-c", code, "{images}", "{answers}"], np.zeros((2, 5, 7))) as file:
    ...     file.read_text()
    "['000000.png', '000001.png']"
    """
    with tempfile.TemporaryDirectory(prefix="unpose-") as place:
        given, answers = Path(place) / "images", Path(place) / "answers" / name
        answers.parent.mkdir()
        if form == "npy":
            given = given.with_suffix(".npy")
            np.save(given, images)
        else:
            given.mkdir()
            for i, image in enumerate(images):
                is_grey = image.ndim == 3 and image.shape[-1] == 1
                write_image(given / f"{i:06d}.png", image[..., 0] if is_grey else image)
        filled = [word.replace(marks[0], str(given)).replace(marks[1], str(answers)) for word in words]
        try:
            done = _run(filled, timeout)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ValueError(f"{words[0]} could not be run: {error}") from error
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise ValueError(f"{words[0]} ended with status {done.returncode}: {last}")
        if not answers.is_file():
            raise ValueError(f"{words[0]} ended without writing {name}")
        yield answers


def _run(words: Sequence[str], timeout: float | None) -> "subprocess.CompletedProcess[str]":
    """Run a program; if it takes too long or we are interrupted, it ends with all programs that it started."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)  # its session, of which it is the first process
            else:
                process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, errors)


def read_numbers(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> NDArray:
    """Read numbers from a .npy file, or from a .csv file with one row for each image: (rows, columns).

    A header of a CSV file is skipped, and so is a first column of names; with ``names`` the rows are put in the order
    of these. The numbers are integers if all of them are.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("file,label\\nb.png,3\\na.png,4\\n")
    ...     read_numbers(folder + "/a.csv").tolist(), read_numbers(folder + "/a.csv", ["a.png", "b.png"]).tolist()
    ([[3], [4]], [[4], [3]])
    """
    path = Path(path)
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes the mark
        rows = [row for row in csv.reader(file) if row]
    if rows and not any(_is_number(entry) for entry in rows[0]):
        rows = rows[1:]
    if names is not None and rows and not _is_number(rows[0][0]):
        by_name = {Path(row[0].strip()).name: row for row in rows}
        missing = [name for name in names if name not in by_name]
        if missing or len(rows) != len(names):
            raise ValueError(
                f"{path.name} must have one row for each of {len(names)} images, got {len(rows)} rows"
                + (f" and none for {missing[0]}" if missing else "")
            )
        rows = [by_name[name] for name in names]
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
